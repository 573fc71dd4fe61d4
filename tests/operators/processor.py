"""What ONNX Runtime's integer kernels do on this processor."""

from pathlib import Path

_CPU = Path("/proc/cpuinfo")

# On x86 without VNNI, ONNX Runtime adds products of U8 and S8 in 16 bits, which saturate, unless told to be exact; it
# then turns constant weights into U8, and can't run QLinearConv and QLinearMatMul of S8 activations.
SATURATES = _CPU.exists() and "avx2" in _CPU.read_text() and "vnni" not in _CPU.read_text()

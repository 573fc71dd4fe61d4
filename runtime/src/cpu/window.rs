//! Windows of operators as kernels take them.

use compress_compiler::ops::window::Window as OpWindow;
use compress_kernels::Window;

/// The window `w` of `kernel` taps that makes `y` of `x`, both as ONNX has them, with one spatial
/// axis or two; one is two, the first of size 1.
pub(crate) fn window(w: &OpWindow, kernel: [usize; 2], x: &[usize], y: &[usize]) -> Window {
    let spatial = x.len() - 2;
    let missing = 2 - spatial;
    let each = |f: &dyn Fn(usize) -> usize, none: usize| -> [usize; 2] {
        std::array::from_fn(|i| i.checked_sub(missing).map_or(none, f))
    };
    Window {
        batch: x[0],
        input: each(&|i| x[2 + i], 1),
        output: each(&|i| y[2 + i], 1),
        kernel,
        stride: each(&|i| w.stride(i) as usize, 1),
        dilation: each(&|i| w.dilation(i) as usize, 1),
        pad: each(&|i| w.padding(i, x[2 + i] as i64, kernel[missing + i] as i64).0 as usize, 0),
    }
}

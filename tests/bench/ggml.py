"""Our runtime beside llama.cpp on GPT-2's shapes with random weights: INT4 in blocks of 32, milliseconds, in turns.

    lab/bin/pip install torch 'transformers==4.*' onnx onnxruntime optimum-onnx llama-cpp-python gguf
    lab/bin/python tests/bench/ggml.py FOLDER [--prompt 64] [--threads 1 2] [--turns 3]

FOLDER gets the decoder with a cache (model.onnx), ours (int4.onnx, `--weights int4`), and the same weights as Q4_0 for llama.cpp
(model.gguf), which has its table and head in Q4_0 too. A prompt is read at once, then eight tokens one by one. A time is the median of
a turn, and of the turns the least. The command is COMPRESS_BIN, or target/release/compress.
"""

import argparse
import os
import subprocess
import time
from pathlib import Path

import numpy as np
from text_models import BINARY, STEPS, ours

RUNS = 10


def exported(folder):
    """The decoder as Optimum exports it, and its weights."""
    import torch
    from optimum.exporters.onnx import onnx_export_from_model
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config()).eval()
    path = folder / "model.onnx"
    if not path.exists():
        onnx_export_from_model(model, folder, task="text-generation-with-past", monolith=False, do_validation=False)
    return path, {name: t.numpy() for name, t in model.state_dict().items()}


def write_gguf(path, weights):
    """The weights as llama.cpp reads them: matrices in Q4_0, the rest in floats."""
    import gguf

    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_block_count(12)
    writer.add_context_length(1024)
    writer.add_embedding_length(768)
    writer.add_feed_forward_length(3072)
    writer.add_head_count(12)
    writer.add_layer_norm_eps(1e-5)
    writer.add_vocab_size(50257)
    writer.add_tokenizer_model("no_vocab")

    def add(name, values, is_matrix=False):
        values = np.ascontiguousarray(values, np.float32)
        if is_matrix:
            kind = gguf.GGMLQuantizationType.Q4_0
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)

    table = weights["transformer.wte.weight"]
    add("token_embd.weight", table, is_matrix=True)
    add("output.weight", table, is_matrix=True)
    add("position_embd.weight", weights["transformer.wpe.weight"])
    norms = {"transformer.ln_f": "output_norm"}
    layers = {}
    for i in range(12):
        norms |= {f"transformer.h.{i}.ln_1": f"blk.{i}.attn_norm", f"transformer.h.{i}.ln_2": f"blk.{i}.ffn_norm"}
        names = {
            "attn.c_attn": "attn_qkv",
            "attn.c_proj": "attn_output",
            "mlp.c_fc": "ffn_up",
            "mlp.c_proj": "ffn_down",
        }
        layers |= {f"transformer.h.{i}.{theirs}": f"blk.{i}.{name}" for theirs, name in names.items()}
    for theirs, name in (norms | layers).items():
        weight = weights[f"{theirs}.weight"]
        # Their layers keep inputs along the first axis.
        add(f"{name}.weight", weight.T if theirs in layers else weight, is_matrix=theirs in layers)
        add(f"{name}.bias", weights[f"{theirs}.bias"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Llama:
    """A model in llama.cpp, by its C interface."""

    def __init__(self, path, threads):
        import llama_cpp

        self.api = llama_cpp
        llama_cpp.llama_backend_init()
        quiet = llama_cpp.llama_log_callback(lambda *_: None)
        self.quiet = quiet
        llama_cpp.llama_log_set(quiet, None)
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = 512, 512, 512
        params.n_threads = params.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        assert self.context, "llama.cpp can't read the model"

    def decode(self, ids):
        ids = (self.api.llama_token * len(ids))(*ids)
        began = time.perf_counter()
        assert self.api.llama_decode(self.context, self.api.llama_batch_get_one(ids, len(ids))) == 0
        self.api.llama_synchronize(self.context)
        return 1e3 * (time.perf_counter() - began)

    def timed(self, prompt):
        """Milliseconds of a prompt, and of a token behind it."""
        rng = np.random.default_rng(0)
        prompts, tokens = [], []
        for _ in range(RUNS):
            self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)
            prompts.append(self.decode(rng.integers(1, 50000, prompt).tolist()))
            tokens += [self.decode([int(rng.integers(1, 50000))]) for _ in range(STEPS)]
        return [float(np.median(prompts)), float(np.median(tokens))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    model, weights = exported(args.folder)
    q4, int4 = args.folder / "model.gguf", args.folder / "int4.onnx"
    if not q4.exists():
        write_gguf(q4, weights)
    if not int4.exists():
        subprocess.run([BINARY, model, "--weights", "int4", "--check", "none", "-o", int4, "-q"], check=True)
    print(f"Q4_0 {os.path.getsize(q4) / 1e6:.1f} MB, ours {os.path.getsize(int4) / 1e6:.1f} MB\n")
    print("| threads | what | llama.cpp | ours | ratio |\n|---|---|---|---|---|")
    for threads in args.threads:
        theirs = Llama(q4, threads)
        length = args.prompt + STEPS
        turns = [(theirs.timed(args.prompt), ours(int4, ["input_ids"], 1, length, threads)) for _ in range(args.turns)]
        for place, what in enumerate([f"{args.prompt} tokens at once", f"a token behind {args.prompt}"]):
            a, b = (min(turn[side][place] for turn in turns) for side in (0, 1))
            print(f"| {threads} | {what} | {a:.3f} | {b:.3f} | {b / a:.2f} |", flush=True)


if __name__ == "__main__":
    main()

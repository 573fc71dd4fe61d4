"""Our runtime beside ONNX Runtime on transformers of many families as PyTorch exports them, with random weights.

    python3 -m venv lab && lab/bin/pip install torch transformers==4.46.3 onnx onnxscript onnxruntime
    lab/bin/python tests/bench/exported.py FOLDER [--dynamo] [--threads 1] [NAME ...]

Exports what FOLDER doesn't have yet, by TorchScript or, with --dynamo, by torch.export, and times each: the median of some runs, of two
turns the least. Operators that the interpreter ran, for want of a kernel of ours, are listed with their milliseconds. Models are small:
what is measured is how much of a graph has kernels, and what a node costs. The command is COMPRESS_BIN, or target/release/compress.
"""

import argparse
import json
import os
import re
import subprocess
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
import transformers as t

ROOT = Path(__file__).resolve().parent.parent.parent
BINARY = os.environ.get("COMPRESS_BIN", str(ROOT / "target/release/compress"))
RUNS, LENGTH, SAMPLES = 15, 32, 4000
SIZES = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 256}
TEXT = {**SIZES, "vocab_size": 500}
IMAGE = {**SIZES, "image_size": 64, "patch_size": 8}
SMALL = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 64, "patch_size": 8}
DEBERTA = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 32, "share_att_key": True}
T5 = {"vocab_size": 500, "d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 3, "num_heads": 4}
DISTIL = {"dim": 128, "n_layers": 3, "n_heads": 4, "hidden_dim": 256, "vocab_size": 500}
SWIN = {"image_size": 64, "patch_size": 4, "embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
NEXT = {"hidden_sizes": [32, 64, 96, 128], "depths": [1, 1, 2, 1]}
WHISPER = {
    **{"d_model": 128, "encoder_layers": 3, "encoder_attention_heads": 4, "encoder_ffn_dim": 256, "vocab_size": 500},
    **{"max_source_positions": 200, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_layers": 1},
    **{"decoder_attention_heads": 4, "decoder_ffn_dim": 256, "decoder_start_token_id": 1},
}
WAVE = {
    **{
        **SIZES,
        "conv_dim": [64] * 3,
        "conv_kernel": [10, 3, 3],
        "conv_stride": [5, 2, 2],
        "num_feat_extract_layers": 3,
    },
    **{"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4},
}
FAMILIES = {
    "bert": (t.BertModel, t.BertConfig(**TEXT)),
    "bert-silu": (t.BertModel, t.BertConfig(**TEXT, hidden_act="silu")),
    "distilbert": (t.DistilBertModel, t.DistilBertConfig(**DISTIL)),
    "roberta": (t.RobertaModel, t.RobertaConfig(**TEXT)),
    "mpnet": (t.MPNetModel, t.MPNetConfig(**TEXT)),
    "deberta": (t.DebertaV2Model, t.DebertaV2Config(**TEXT, **DEBERTA)),
    "albert": (t.AlbertModel, t.AlbertConfig(**TEXT, embedding_size=64)),
    "electra": (t.ElectraModel, t.ElectraConfig(**TEXT)),
    "t5-encoder": (t.T5EncoderModel, t.T5Config(**T5, feed_forward_proj="gated-gelu")),
    "vit": (t.ViTModel, t.ViTConfig(**IMAGE)),
    "dinov2": (t.Dinov2Model, t.Dinov2Config(**SMALL)),
    "swin": (t.SwinModel, t.SwinConfig(**SWIN)),
    "convnext": (t.ConvNextModel, t.ConvNextConfig(**NEXT)),
    "clip": (t.CLIPVisionModel, t.CLIPVisionConfig(**IMAGE)),
    "whisper-encoder": (lambda c: t.WhisperModel(c).encoder, t.WhisperConfig(**WHISPER)),
    "wav2vec2": (t.Wav2Vec2Model, t.Wav2Vec2Config(**WAVE)),
}
GIVEN = {"whisper-encoder": ["input_features"], "wav2vec2": ["input_values"]}
PICTURES = ("vit", "dinov2", "swin", "convnext", "clip")
EXAMPLES = {
    "input_ids": torch.randint(1, 99, (2, 12)),
    "attention_mask": torch.ones(2, 12, dtype=torch.long),
    "pixel_values": torch.randn(1, 3, 64, 64),
    "input_features": torch.randn(1, 80, 400),
    "input_values": torch.randn(1, SAMPLES),
}


class Hidden(torch.nn.Module):
    """The last hidden state alone."""

    def __init__(self, model, names):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *given):
        return self.model(**dict(zip(self.names, given, strict=True))).last_hidden_state


def export(name, path, dynamo):
    torch.manual_seed(0)
    make, config = FAMILIES[name]
    names = GIVEN.get(name, ["pixel_values"] if name in PICTURES else ["input_ids", "attention_mask"])
    model, given = Hidden(make(config).eval(), names), tuple(EXAMPLES[n] for n in names)
    open_axes = {0: "batch"} if names[0] in ("pixel_values", "input_features") else {0: "batch", 1: "length"}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            shapes = ({axis: torch.export.Dim.DYNAMIC for axis in open_axes},) * len(given)
            how = {"dynamic_shapes": (shapes,), "opset_version": 18, "external_data": False, "verbose": False}
        else:
            how = {"dynamic_axes": {n: open_axes for n in [*names, "y"]}, "opset_version": 17}
        torch.onnx.export(model, given, str(path), input_names=names, output_names=["y"], dynamo=dynamo, **how)


def made_up(value):
    """One sample."""
    sizes = [1, SAMPLES if value.name == "input_values" else LENGTH]
    shape = [n if isinstance(n, int) else sizes[axis] for axis, n in enumerate(value.shape)]
    if "int64" in value.type:
        return np.ones(shape, np.int64)
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def timed(path, threads):
    """Milliseconds of ONNX Runtime, ours, and of ours what operators the interpreter ran."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feed = {i.name: made_up(i) for i in session.get_inputs()}
    shapes = [w for n, v in feed.items() for w in ("--shape", f"{n}={'x'.join(map(str, v.shape))}")]
    on = ["--runs", str(RUNS), "--device", "cpu", "--batch", "1", "--threads", str(threads)]
    theirs, ours = [], []
    for _ in range(2):
        times = []
        for _ in range(RUNS):
            began = time.perf_counter()
            session.run(None, feed)
            times.append(1e3 * (time.perf_counter() - began))
        theirs.append(float(np.median(times)))
        ran = subprocess.run([BINARY, "bench", str(path), "--json", *on, *shapes], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        report = json.loads(ran.stdout)
        ours.append(report["median_ms"])
    rest = Counter()
    for node in report["nodes"]:
        if node["kernel"] == "burn":
            op = re.search(r"\((\w+)[^)]*\)$", node["node"])
            rest[op.group(1) if op else node["node"]] += node["ms"]
    return min(theirs), min(ours), [f"{op} {ms:.2f}" for op, ms in rest.most_common(4) if ms >= 0.005]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--dynamo", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    print("| model | ONNX Runtime | ours | ratio | by the interpreter |\n|---|---|---|---|---|")
    for name in args.names or FAMILIES:
        path = args.folder / f"{name}{'-dynamo' if args.dynamo else ''}.onnx"
        try:
            if not path.exists():
                export(name, path, args.dynamo)
        except Exception as error:
            print(f"| {path.stem} | not exported: {str(error).splitlines()[0][:80]} | | | |", flush=True)
            continue
        theirs, ours, rest = timed(path, args.threads)
        print(f"| {path.stem} | {theirs:.3f} | {ours:.3f} | {ours / theirs:.2f} | {', '.join(rest)} |", flush=True)


if __name__ == "__main__":
    main()

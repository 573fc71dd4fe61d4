"""Decoders as they are made for ONNX Runtime GenAI: GroupQueryAttention, SkipSimplifiedLayerNormalization, lengths made of the mask."""

import numpy as np
import onnx
import pytest
from decoders import WORDS, likely, perplexity, sequences
from onnx import TensorProto, helper, numpy_helper
from small import floats, model, node
from support import session

WIDTH, HEADS, GROUPS, SIZE, PLACES = 64, 4, 2, 16, 64
INT64, MS = TensorProto.INT64, {"domain": "com.microsoft"}


def decoder(path, layers=2):
    """Queries, keys and values are one product; angles are a table; the sum of a layer and its norm are one operator."""
    at = np.arange(PLACES)[:, None] / 100 ** (np.arange(SIZE // 2) / (SIZE // 2))
    # The builder leaves the size of a head open.
    cache = ["batch", GROUPS, "past", "size"]
    inputs = [("input_ids", ["batch", "sequence"], INT64), ("attention_mask", ["batch", "total"], INT64)]
    outputs = [("logits", ["batch", "sequence", WORDS])]
    weights = {
        "words": floats(1, WORDS, WIDTH, scale=0.3),
        "head": floats(2, WIDTH, WORDS, scale=0.3),
        "cos": np.cos(at).astype(np.float32),
        "sin": np.sin(at).astype(np.float32),
        "scale": np.ones(WIDTH, np.float32),
        "row": np.array([1], np.int64),
        "column": np.int64(1),
    }
    nodes = [
        node("ReduceSum", "attention_mask row", "sums", keepdims=0),
        node("Sub", "sums row", "lasts"),
        node("Cast", "lasts", "seqlens_k", to=TensorProto.INT32),
        node("Shape", "attention_mask", "of_mask"),
        node("Gather", "of_mask column", "long", axis=0),
        node("Cast", "long", "total_sequence_length", to=TensorProto.INT32),
        node("Gather", "words input_ids", "x"),
        node("SimplifiedLayerNormalization", "x scale", "normed0", axis=-1, epsilon=1e-5),
    ]
    x = "x"
    for i in range(layers):
        past = f"past_key_values.{i}.key past_key_values.{i}.value"
        of = f"qkv{i}   {past} seqlens_k total_sequence_length cos sin"
        heads = {"num_heads": HEADS, "kv_num_heads": GROUPS, "do_rotary": 1}
        nodes += [
            node("MatMul", f"normed{i} wqkv{i}", f"qkv{i}"),
            node(
                "GroupQueryAttention", of, f"made{i} present.{i}.key present.{i}.value", f"attention{i}", **heads, **MS
            ),
            node("MatMul", f"made{i} wo{i}", f"out{i}"),
            node(
                "SkipSimplifiedLayerNormalization", f"out{i} {x} scale", f"normed{i + 1}   sum{i}", epsilon=1e-5, **MS
            ),
        ]
        x = f"sum{i}"
        inputs += [(name, cache) for name in past.split(" ")]
        outputs += [(f"present.{i}.{part}", ["batch", GROUPS, "total", SIZE]) for part in ("key", "value")]
        weights |= {f"wqkv{i}": floats(3 + i, WIDTH, (HEADS + 2 * GROUPS) * SIZE, scale=0.2)}
        weights |= {f"wo{i}": floats(13 + i, HEADS * SIZE, WIDTH, scale=0.2)}
    nodes.append(node("MatMul", f"normed{layers} head", "logits"))
    made = model(nodes, inputs, outputs, weights, domains=[("com.microsoft", 1)])
    onnx.save(made, path)
    return path


def scores(path, ids):
    """All tokens at once, on ONNX Runtime."""
    of = session(path)
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    feed |= {i.name: np.zeros((len(ids), GROUPS, 0, SIZE), np.float32) for i in of.get_inputs() if i.name not in feed}
    return of.run(["logits"], feed)[0].astype(np.float64)


@pytest.fixture
def ids(tmp_path):
    return sequences(tmp_path / "ids.npz")


@pytest.mark.parametrize("engine", ["cpu", "burn"])
def test_they_are_measured_as_onnx_runtime_runs_them(compress, tmp_path, ids, engine):
    """Prompts and tokens behind a cache, of the original and of one with weights of 4 bits."""
    before, after, data = decoder(tmp_path / "d.onnx"), tmp_path / "i4.onnx", tmp_path / "ids.npz"
    compress(before, "--weights", "int4", "--block", "16", "-o", after, "--data", data, "--eval", data, "--quiet")
    kinds = {n.op_type for n in onnx.load(after).graph.node}
    assert "GroupQueryAttention" in kinds
    by = ["--data", data, "--device", "cpu", "--engine", "burn", "--metric", "perplexity", "--json"]
    if engine == "cpu":
        by = [word for word in by if word not in ("--engine", "burn")]
    found = compress("check", after, "--against", before, *by).json()["accuracy"]
    assert found["before"] == pytest.approx(perplexity(scores(before, ids), ids), rel=1e-4)
    assert found["after"] == pytest.approx(perplexity(scores(after, ids), ids), rel=2e-2 if engine == "cpu" else 1e-3)


def test_tokens_run_in_kernels(compress, tmp_path):
    """Neither attention nor the cache nor norms are left to the interpreter."""
    path = decoder(tmp_path / "d.onnx")
    report = compress("bench", path, "--json", "--runs", "2", "--device", "cpu", "--shape", "input_ids=1x24").json()
    kernels = {(n["kernel"], n["node"].split("(")[-1].rstrip(")").split(",")[0]) for n in report["nodes"]}
    assert {"cache", "rotary", "attention", "rms_norm"} <= {kernel for kernel, _ in kernels}
    floats = {"GroupQueryAttention", "MatMul", "Mul", "Add", "Pow", "ReduceMean", "Sqrt", "Div", "Reciprocal"}
    assert not {of for kernel, of in kernels if kernel == "burn"} & floats, kernels


def changed(path, change):
    """The model with its first GroupQueryAttention changed."""
    made = onnx.load(path)
    change(made, next(n for n in made.graph.node if n.op_type == "GroupQueryAttention"))
    onnx.save(made, path)
    return path


def constant(made, name, value):
    made.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return name


@pytest.mark.parametrize("lasts", [[-5], [99], [2**31 - 1], [30, 30]])
def test_lengths_that_can_not_be_are_refused(compress, tmp_path, lasts):
    """By the kernels as by the interpreter: nothing is computed of keys that are not there."""

    def change(made, attention):
        attention.input[5] = "given"
        made.graph.input.append(helper.make_tensor_value_info("given", TensorProto.INT32, ["samples"]))

    path, data = changed(decoder(tmp_path / "d.onnx", layers=1), change), tmp_path / "x.npz"
    np.savez(data, input_ids=np.ones((1, 1, 4), np.int64), given=np.array([lasts], np.int32))
    for engine in ("cpu", "burn"):
        by = ["--score", "true", "--device", "cpu", *(["--engine", "burn"] if engine == "burn" else [])]
        said = compress("check", path, "--against", path, "--data", data, *by, code=7)
        assert "can't take these samples" in said.err and "attention0" in said.err, said.err


def test_forms_that_are_wrong_are_refused(compress, tmp_path):
    """With the node, before anything is run."""
    forms = {
        "other lengths": lambda made, a: a.input.__setitem__(5, constant(made, "n", np.zeros((1, 1), np.int32))),
        "other type": lambda made, a: a.input.__setitem__(5, constant(made, "n", np.zeros(1, np.int64))),
        "no total": lambda made, a: a.input.__setitem__(6, ""),
        "tables": lambda made, a: a.input.__setitem__(8, constant(made, "n", np.zeros((3, SIZE // 2), np.float32))),
        "heads": lambda made, a: [setattr(of, "i", 2**62) for of in a.attribute if of.name.endswith("num_heads")],
        "cache": lambda made, a: a.input.__setitem__(3, constant(made, "n", np.zeros((1, GROUPS, 4), np.float32))),
    }
    for name, change in forms.items():
        path = changed(decoder(tmp_path / "d.onnx"), change)
        said = compress("bench", path, "--runs", "2", "--device", "cpu", code=3)
        assert "attention0" in said.err, (name, said.err)


def test_the_cache_need_not_come_out(compress, tmp_path):
    """A node with one output is run too."""
    path = decoder(tmp_path / "d.onnx", layers=1)
    made = onnx.load(path)
    attention = next(n for n in made.graph.node if n.op_type == "GroupQueryAttention")
    attention.input[3:5] = ["", ""]
    del attention.output[1:]
    for side in (made.graph.input, made.graph.output):
        kept = [value for value in side if "key" not in value.name and "present" not in value.name]
        del side[:]
        side.extend(kept)
    onnx.save(made, path)
    compress(
        "bench", path, "--runs", "2", "--device", "cpu", "--shape", "input_ids=1x8", "--shape", "attention_mask=1x8"
    )


def test_layers_are_left_out_and_trained(compress, tmp_path, ids):
    """What is left computes what it did, and training goes through the operator."""
    path, data = decoder(tmp_path / "d.onnx"), tmp_path / "ids.npz"
    short, trained = tmp_path / "short.onnx", tmp_path / "trained.onnx"
    compress(path, "--keep-layers", "1", "-o", short, "--quiet")
    assert [n.op_type for n in onnx.load(short).graph.node].count("GroupQueryAttention") == 1
    steps = ["--data", data, "--eval", data, "--epochs", "4", "--device", "cpu", "--lr", "3e-3", "--quiet"]
    compress("distill", short, "--teacher", path, *steps, "-o", trained, code=(0, 9))

    def kl(after):
        p, q = likely(scores(path, ids)), likely(scores(after, ids))
        return (np.exp(p) * (p - q)).sum(-1).mean()

    assert kl(trained) < 0.7 * kl(short)

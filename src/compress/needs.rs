//! Options that say nothing without others: giving them alone is a mistake, and not passed over.

use super::{Compress, plan::Purpose};
use crate::options::{DataOptions, Effort as CheckEffort};
use crate::values::{InputShape, Int8};
use compress_compiler::{
    error::{Error, Result},
    words::option::{
        AIM, AS_IS, BISECT, BLOCK, CALIBRATION, CALIBRATION_SAMPLES, CHANNELS_BUDGET, CHANNELS_BY, CHANNELS_CUTS,
        CHECK, CUT_ANYWAY, DATA, EFFORT, ENCODER, EPOCHS, EVAL, EXCLUDE, INT8, KEEP_LAYERS, LAYER, LOW_RANK, LR,
        METRIC, PREPROCESS, PRUNE, PRUNE_BUDGET, PRUNE_BY, PRUNE_CHANNELS, PRUNE_ENDS, PRUNE_PATTERN, QAT,
        REDUCE_RANGE, ROUND_CHANNELS, SCORE, SHAPE, STRICT, TARGET, TEACHER, TIME, VALIDATION_SAMPLES, WEIGHT_BITS,
        WEIGHTS,
    },
};
use compress_passes::{
    PruneBudget,
    prune::{recover::WeightSaliency, score::ChannelSaliency, structured::ChannelBudget},
    quant::{
        layer_forms::LayerForm, reduce_range::ReduceRange, scheme::WeightBits, search::Effort,
        weight_only::WeightFormat,
    },
};
use std::fmt::Display;

/// An option, whether it was given, what it needs, and whether that was given.
type Row<'a> = (&'a dyn Display, bool, &'a dyn Display, bool);

/// # Errors
/// Usage, naming the first option that says nothing.
pub fn check(r: &Compress, purpose: Purpose) -> Result<()> {
    of_pruning(r)?;
    of_quantisation(r)?;
    of_measuring(r)?;
    let gates = r.gates.any();
    let judged = [(STRICT.to_string(), r.gates.strict), ("gates".to_string(), gates)];
    if let Some((what, _)) = judged.iter().find(|(_, given)| purpose == Purpose::Bisect && *given) {
        return Err(Error::usage(format!("{BISECT} compresses nothing, so {what} has no effect: remove one of them")));
    }
    data(&r.data)?;
    shapes(&r.measures.shape, r.data.data.is_some())?;
    of_training(r)?;
    match r.gates.measured().filter(|_| r.measures.check == CheckEffort::None) {
        Some(gate) => Err(Error::usage(format!("{CHECK} none measures nothing, so {gate} can't be judged"))),
        None => Ok(()),
    }
}

fn prunes(r: &Compress) -> bool {
    r.prune.is_some() || r.prune_pattern.is_some()
}

fn of_pruning(r: &Compress) -> Result<()> {
    let pattern = r.prune_pattern.is_some();
    apart(&[(&PRUNE, r.prune.is_some()), (&PRUNE_PATTERN, pattern)])?;
    apart(&[(&PRUNE_BUDGET, r.prune_budget == PruneBudget::Layer), (&PRUNE_PATTERN, pattern)])?;
    let (prunes, channels, has_data) = (prunes(r), r.prune_channels.is_some(), r.data.data.is_some());
    let taylor = r.prune_by == Some(WeightSaliency::Taylor);
    let on_data = matches!(r.channels_by, Some(ChannelSaliency::Activation | ChannelSaliency::Taylor));
    let weights = format!("{PRUNE} or {PRUNE_PATTERN}");
    let (narrows, low_rank) = (format!("{PRUNE_CHANNELS} or {LOW_RANK}"), r.low_rank.is_some());
    first(&[
        (&PRUNE_BY, r.prune_by.is_some(), &format!("{PRUNE}, {PRUNE_PATTERN} or {PRUNE_CHANNELS}"), prunes || channels),
        (
            &format!("{PRUNE_BY} taylor"),
            taylor,
            &format!("{weights}; for channels there is {CHANNELS_BY} taylor"),
            prunes,
        ),
        (&format!("{PRUNE_BY} taylor"), taylor, &format!("{DATA} with labels"), has_data),
        (&PRUNE_BUDGET, r.prune_budget == PruneBudget::Layer, &weights, prunes),
        (&PRUNE_ENDS, r.prune_ends, &format!("{PRUNE} or {PRUNE_PATTERN}"), prunes),
        (&CHANNELS_BY, r.channels_by.is_some(), &PRUNE_CHANNELS, channels),
        (&CHANNELS_BUDGET, r.channels_budget != ChannelBudget::Macs, &PRUNE_CHANNELS, channels),
        (&CHANNELS_CUTS, r.channels_cuts.is_some_and(|n| n.get() > 1), &PRUNE_CHANNELS, channels),
        (&ROUND_CHANNELS, r.round_channels.is_some(), &narrows, channels || low_rank),
        (&CUT_ANYWAY, r.cut_anyway, &narrows, channels || low_rank),
        (&format!("{CHANNELS_BY} activation and taylor"), on_data, &DATA, has_data),
    ])
}

fn of_quantisation(r: &Compress) -> Result<()> {
    // It trains codes in blocks where these are asked for.
    let other = if r.qat && r.weights.is_some() { format!(" without {WEIGHTS}") } else { String::new() };
    let (quantises, has_data) = (format!("{INT8} or {QAT}{other}"), r.data.data.is_some());
    let narrows = r.prune_channels.is_some() || r.low_rank.is_some();
    let looks = r.calibrates() || r.stores_weights() || prunes(r) || narrows;
    let any_prune = format!("one of {PRUNE}, {PRUNE_PATTERN}, {PRUNE_CHANNELS} and {LOW_RANK}");
    let samples = r.calibration_samples.is_some();
    let reduces = r.reduce_range != ReduceRange::default();
    let dynamic = r.int8 == Some(Int8::Dynamic);
    apart(&[(&format!("dynamic {INT8}"), dynamic), (&QAT, r.qat)])?;
    let in_floats = r.weights == Some(WeightFormat::Fp8);
    apart(&[(&format!("{WEIGHTS} fp8"), in_floats), (&QAT, r.qat)])?;
    let names = |form: LayerForm| r.layer.iter().any(|rule| rule.form == form);
    let stored = r.weights.is_none() && r.stores_weights();
    apart(&[(&format!("{LAYER} NAME=weights-int4 or weights-int8 beside {INT8}"), stored), (&QAT, r.qat)])?;
    let of_codes = format!("{INT8}, {QAT} or {WEIGHTS}");
    // Ranges of each run are not chosen, and nothing is searched for.
    let of_static = |other: &str| format!("{}{other}", if dynamic { "static " } else { "" });
    let ranges = of_static(&quantises);
    let codes_of_8 = "U8 activations and weights of 8 bits: products of other codes are never cut off";
    first(&[
        (&format!("{TARGET} {}", r.target), r.target.is_for_codes(), &of_codes, r.quantises() || r.stores_weights()),
        (&format!("{LAYER} NAME=int8"), names(LayerForm::Int8), &quantises, r.quantises()),
        (&format!("{LAYER} NAME=float"), names(LayerForm::Float), &of_codes, r.quantises() || r.stores_weights()),
        (&WEIGHT_BITS, r.weight_bits != WeightBits::default(), &quantises, r.quantises()),
        (&BLOCK, r.block.is_some(), &format!("{WEIGHTS} int4 or int8"), r.stores_weights() && !in_floats),
        (&CALIBRATION, r.calibration.is_some(), &ranges, r.calibrates()),
        (&REDUCE_RANGE, reduces, &quantises, r.quantises()),
        (&REDUCE_RANGE, reduces, &codes_of_8, r.scheme().may_be_cut_off()),
        (&EFFORT, r.effort != Effort::default(), &ranges, r.calibrates()),
        (&format!("{EFFORT} best"), r.effort == Effort::Best, &DATA, has_data),
        (&AIM, r.aim.is_some(), &ranges, r.calibrates()),
        (&AIM, r.aim.is_some(), &DATA, has_data),
        (&AIM, r.aim.is_some(), &format!("a search, which {EFFORT} quick leaves out"), r.effort != Effort::Quick),
        (&TIME, r.time.is_some(), &ranges, r.calibrates()),
        (&TIME, r.time.is_some(), &DATA, has_data),
        (&TIME, r.time.is_some(), &format!("a search, which {EFFORT} quick leaves out"), r.effort != Effort::Quick),
        (&CALIBRATION_SAMPLES, samples, &of_static(&format!("{INT8}, {QAT}, {WEIGHTS} or {any_prune}")), looks),
        (&CALIBRATION_SAMPLES, samples, &DATA, has_data),
        (&VALIDATION_SAMPLES, r.validation_samples.is_some(), &DATA, has_data),
        (&EXCLUDE, !r.exclude.is_empty(), &format!("{INT8}, {QAT}, {WEIGHTS} or {any_prune}"), looks || dynamic),
    ])
}

fn of_measuring(r: &Compress) -> Result<()> {
    let training = format!("{PRUNE}, {PRUNE_CHANNELS}, {LOW_RANK}, {KEEP_LAYERS} or {QAT}");
    let narrows = r.prune_channels.is_some() || r.low_rank.is_some();
    let compresses = r.qat || prunes(r) || narrows || r.keep_layers.is_some();
    let checked = format!("a check, which {CHECK} none leaves out");
    let checks = r.checks();
    first(&[
        (
            &EPOCHS,
            r.epochs.is_some(),
            &format!("{PRUNE}, {PRUNE_CHANNELS}, {LOW_RANK}, {KEEP_LAYERS}, {QAT} or {EFFORT} best"),
            compresses || r.effort == Effort::Best,
        ),
        (&LR, r.lr.is_some(), &training, compresses),
        (&TEACHER, r.teacher.is_some(), &training, compresses),
        (&METRIC, r.measures.metric.is_some(), &checked, checks),
        (&SCORE, r.measures.score.is_some(), &checked, checks),
        (&AS_IS, r.measures.as_is, &checked, checks),
    ])
}

fn of_training(r: &Compress) -> Result<()> {
    let for_training = [
        (QAT.to_string(), r.qat),
        (format!("{EFFORT} best"), r.effort == Effort::Best),
        (format!("{PRUNE_BY} taylor"), r.prune_by == Some(WeightSaliency::Taylor)),
        (EPOCHS.to_string(), r.epochs.is_some_and(|n| n.get() > 0)),
        (LR.to_string(), r.lr.is_some()),
        (TEACHER.to_string(), r.teacher.is_some()),
        (CHANNELS_CUTS.to_string(), r.channels_cuts.is_some_and(|n| n.get() > 1)),
    ];
    match for_training.iter().find(|(_, given)| *given && !trains(r)) {
        Some((what, _)) => {
            let help = match r.data.data {
                Some(_) => format!("leave out {EPOCHS} 0"),
                None => format!("without data, {EPOCHS} N trains on made-up pictures"),
            };
            let needs = format!("{what} is for training: it needs {DATA}, and {EPOCHS} other than 0");
            Err(Error::usage(needs).help(help))
        }
        None => Ok(()),
    }
}

/// Whether something is trained, if there is something to train: on data, or on made-up pictures where epochs are asked for.
pub fn trains(r: &Compress) -> bool {
    r.epochs.map_or(r.data.data.is_some(), |n| n.get() > 0)
}

/// What is said of data.
///
/// # Errors
/// As for [`check`].
pub fn data(data: &DataOptions) -> Result<()> {
    data.check()?;
    let (wanted, given) = (&format!("{DATA} or {EVAL}"), data.any());
    first(&[(&PREPROCESS, data.preprocess.is_some(), wanted, given), (&ENCODER, data.encoder.is_some(), wanted, given)])
}

/// What is said of inputs that are made up, where `given` says that there is data for all.
///
/// # Errors
/// As for [`check`].
pub fn shapes(shapes: &[InputShape], given: bool) -> Result<()> {
    let needs = "inputs that are made up: the data that is given has its own sizes";
    first(&[(&SHAPE, !shapes.is_empty(), &needs, !given)])
}

/// # Errors
/// Usage for two options of which each makes the other meaningless.
pub fn apart(options: &[(&dyn Display, bool); 2]) -> Result<()> {
    match options {
        [(a, true), (b, true)] => Err(Error::usage(format!("{a} and {b} exclude each other: remove one of them"))),
        _ => Ok(()),
    }
}

fn first(rows: &[Row]) -> Result<()> {
    match rows.iter().find(|(_, given, _, has)| *given && !has) {
        Some((option, _, needs, _)) => Err(Error::usage(format!("{option} needs {needs}"))),
        None => Ok(()),
    }
}

//! Whether data and teachers fit a model, found out before the work that they would end.

use crate::{
    data::{Samples, Sets},
    evaluator::{classes, measure, vocabulary},
    values::Filter,
};
use compress_compiler::{
    error::{Error, Result},
    forms::decoder::Decoder,
    graph::Graph,
    node::Port,
    ops::source::fed,
    tensor::Tensor,
    value::{Dim, Fact},
    words::{
        Opt, counted,
        option::{DATA, TEACHER},
    },
};
use compress_runtime::{dataset::Dataset, metrics};
use std::path::Path;

const LABELS_AT_ONCE: usize = 1 << 16;

/// Looks at the labels of these samples: otherwise one that is not a class is met hours later, with its batch.
///
/// # Errors
/// Data for a label that is none of the classes of `graph`, where their number is known.
pub fn check_labels(set: &Dataset, samples: &[usize], graph: &Graph) -> Result<()> {
    let Some(classes) = classes(graph) else { return Ok(()) };
    if let Some(named) = set.named_classes().filter(|n| i64::try_from(*n) != Ok(classes)) {
        return Err(Error::data(format!(
            "{}: there are folders for {named} classes, and the model has {classes}: names alone don't say which class is which",
            set.describe()
        ))
        .help("call each folder by the number of its class, from 0"));
    }
    for indices in samples.chunks(LABELS_AT_ONCE) {
        let labels = set.labels(indices)?.unwrap_or_default();
        if let Some((index, label)) = indices.iter().zip(labels).find(|(_, label)| !(0..classes).contains(label)) {
            let place = set.place(*index);
            return Err(Error::data(format!(
                "label {label} of {place} is out of range: the model has {classes} classes"
            ))
                .help("classes are numbered from 0; each folder of pictures is a class, by its number or in the order of names"));
        }
    }
    Ok(())
}

/// Looks at all that a model is to be compressed with: labels, and a teacher that is another model.
///
/// # Errors
/// Data where something doesn't fit.
pub fn check(sets: &Sets, model: &Graph, teacher: Option<(&Path, &Graph)>) -> Result<()> {
    let set = &sets.trained_on;
    for (set, indices) in
        [(set, &sets.training), (set, &sets.validation.indices), (&sets.evaluation.set, &sets.evaluation.indices)]
    {
        check_labels(set, indices, model)?;
    }
    let Some((path, teacher)) = teacher else { return Ok(()) };
    let scored = measure(&metrics::Answers::of(model), &sets.validation, true);
    let answers = if scored.metric.judges_alone() { Answers::Scores } else { Answers::All };
    check_teacher(path, teacher, model, answers)
}

/// Names that a filter may have meant.
const NEAREST: usize = 3;

/// Whether each filter matches one of `names`, which are those of every `what`.
///
/// # Errors
/// Usage for one that doesn't, with the nearest names.
pub fn check_filters(option: Opt, filters: &[Filter], names: &[&str], what: &str) -> Result<()> {
    let Some(filter) = filters.iter().find(|f| !names.iter().any(|n| f.get().is_match(n))) else { return Ok(()) };
    let mut near: Vec<&&str> = names.iter().filter(|n| !n.is_empty()).collect();
    near.sort_by_cached_key(|n| (strsim::damerau_levenshtein(filter.get().as_str(), n), n.to_string()));
    near.dedup();
    let near: Vec<String> = near.into_iter().take(NEAREST).map(|n| format!("`{n}`")).collect();
    Err(Error::usage(format!("{option} {filter} matches no {what}"))
        .help(format!("the nearest names are {}", near.join(", "))))
}

/// Fewer samples than these show little of what a model is given.
const FEW: usize = 64;

/// What to say where layers are solved on few samples, or trained on them.
pub fn few(sets: &Sets, solves: bool, trains: bool) -> Option<String> {
    if sets.calibration.synthetic {
        return None;
    }
    let solved = sets.calibration.indices.len();
    let trained = sets.training.len();
    let what = match (solves && solved < FEW, trains && trained < FEW) {
        (_, true) => format!("only {} to train on", counted(trained, "sample")),
        (true, false) => format!("weights are adjusted on only {}", counted(solved, "sample")),
        _ => return None,
    };
    Some(format!(
        "{what}: fewer than {FEW} samples rarely represent the real inputs. The model may answer well on them and badly \
         on others. Give more {DATA}"
    ))
}

/// By how much samples to measure on may be wider than made-up ones.
const WIDER: f64 = 4.0;

/// What to say where made-up samples are far from those that are measured on.
///
/// # Errors
/// Whatever reading the data can raise.
pub fn far_from_real(sets: &Sets) -> Result<Option<String>> {
    if !sets.calibration.synthetic || sets.evaluation.synthetic {
        return Ok(None);
    }
    let size = |samples: &Samples| -> Result<Vec<f64>> {
        let Some(indices) = samples.batches().next() else { return Ok(vec![]) };
        let of = |t: &Tensor| {
            let values = t.as_f32().unwrap_or_default();
            (values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / values.len().max(1) as f64).sqrt()
        };
        Ok(samples.set.batch(indices)?.inputs.iter().map(of).collect())
    };
    let (made, real) = (size(&sets.calibration)?, size(&sets.evaluation)?);
    let is_far =
        |(made, real): &(f64, f64)| *made > 0.0 && *real > 0.0 && !(1.0 / WIDER..WIDER).contains(&(real / made));
    Ok(made.into_iter().zip(real).find(is_far).map(|(made, real)| {
        format!(
            "WARNING: the samples to measure on are of size {real:.2} (root mean square), the made-up ones that were calibrated \
             on of {made:.2}: give {DATA}"
        )
    }))
}

/// Fewer samples than these rarely show how far activations go.
const FEW_TO_CALIBRATE: usize = 32;

/// What to say where ranges are found on few samples.
pub fn few_to_calibrate(sets: &Sets) -> Option<String> {
    let count = sets.calibration.indices.len();
    (!sets.calibration.synthetic && count < FEW_TO_CALIBRATE).then(|| {
        format!(
            "activation ranges were calibrated on only {}: fewer than {FEW_TO_CALIBRATE} may miss the largest activations. \
             Give more {DATA}",
            counted(count, "sample")
        )
    })
}

/// What of a teacher's answers is learnt from or scored by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    /// All outputs.
    All,
    /// A score for each class.
    Scores,
    /// None.
    None,
}

/// Whether `teacher` reads what `model` reads, and answers in the same shapes; decoders without their caches.
///
/// # Errors
/// Data, naming the teacher's file, where it doesn't.
pub fn check_teacher(path: &Path, teacher: &Graph, model: &Graph, answers: Answers) -> Result<()> {
    let differs = |what: &str, theirs: &[(&str, &Fact)], ours: &[(&str, &Fact)]| {
        let list = |values: &[(&str, &Fact)]| {
            values.iter().map(|(name, fact)| format!("`{name}` {fact}")).collect::<Vec<_>>().join(", ")
        };
        Error::data(format!("the teacher's {what} ({}) do not fit the model's ({})", list(theirs), list(ours)))
            .in_file(path)
            .help(format!("give a {TEACHER} that reads the same inputs and answers in the same shapes"))
    };
    let [teacher, model] = [teacher, model].map(|graph| {
        let mut graph = graph.clone();
        Decoder::forget(&mut graph);
        graph
    });
    let (teacher, model) = (&teacher, &model);
    let (theirs, ours) = (inputs(teacher), inputs(model));
    let reads = |(t, m): (&(&str, &Fact), &(&str, &Fact))| same(t.1, m.1) && takes_batches(t.1, m.1);
    if theirs.len() != ours.len() || !theirs.iter().zip(&ours).all(reads) {
        return Err(differs("inputs", &theirs, &ours));
    }
    let (theirs, ours) = (outputs(teacher), outputs(model));
    let fits = match answers {
        Answers::All => theirs.len() == ours.len() && theirs.iter().zip(&ours).all(|(t, m)| same(t.1, m.1)),
        Answers::Scores => {
            [classes, vocabulary].iter().all(|of| of(teacher).zip(of(model)).is_none_or(|(a, b)| a == b))
        }
        Answers::None => true,
    };
    if fits { Ok(()) } else { Err(differs("outputs", &theirs, &ours)) }
}

/// Whether two values may be of one type and shape, as far as that is known; of their batches nothing is asked.
fn same(a: &Fact, b: &Fact) -> bool {
    let types = a.dtype.zip(b.dtype).is_none_or(|(a, b)| a == b);
    let sizes = |a: &[Dim], b: &[Dim]| {
        let equal = |(a, b): (&Dim, &Dim)| a.known().zip(b.known()).is_none_or(|(a, b)| a == b);
        a.len() == b.len() && a.iter().zip(b).skip(1).all(equal)
    };
    types && a.dims().zip(b.dims()).is_none_or(|(a, b)| sizes(a, b))
}

/// Whether the teacher takes as many samples at once as the model.
fn takes_batches(teacher: &Fact, model: &Fact) -> bool {
    let batch = |fact: &Fact| fact.dims().and_then(|dims| dims.first()?.known());
    batch(teacher).is_none_or(|n| batch(model) == Some(n))
}

/// The inputs without a default.
fn inputs(g: &Graph) -> Vec<(&str, &Fact)> {
    fed(g).map(|n| g.value(Port::from(n))).map(|v| (&v.name[..], &v.fact)).collect()
}

fn outputs(g: &Graph) -> Vec<(&str, &Fact)> {
    g.outputs().iter().map(|o| (&o.name[..], g.fact(o.port))).collect()
}

/// Says that samples are run one by one, where they would change each other's outputs otherwise.
pub fn mixed(sets: &Sets) -> Option<String> {
    sets.mixed.then(|| {
        "samples of a batch change each other's outputs, so each sample runs alone. If an array is one whole input, whose \
         first axis is time, say, add an axis in front that counts the samples"
            .into()
    })
}

/// Names of arrays that a sentence has.
const NAMED: usize = 8;

/// Says which arrays of the data nothing reads: a name may be misspelt, or padding that a mask names may count.
pub fn unread(sets: &Sets) -> Option<String> {
    let mut names: Vec<&String> = sets.calibration.set.unread().iter().chain(sets.evaluation.set.unread()).collect();
    names.sort_unstable();
    names.dedup();
    let shown: Vec<String> = names.iter().take(NAMED).map(|n| format!("`{n}`")).collect();
    let more = if names.len() > NAMED { format!(" and {} more", names.len() - NAMED) } else { String::new() };
    (!names.is_empty())
        .then(|| format!("nothing reads {}{more} of the data: no input that data feeds is called so", shown.join(", ")))
}

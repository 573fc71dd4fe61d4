//! Sizes and integers of made-up inputs, where the model leaves them open.

use crate::values::InputShape;
use compress_compiler::{
    bound::bound,
    error::{Error, Result},
    forms::decoder::{Decoder, rows_read},
    graph::Graph,
    node::{NodeId, Port},
    ops::source::fed,
    value::{Dim, Fact},
    words::option::SHAPE,
};
use compress_runtime::dataset::{InputSpec, MadeUpIntegers};

/// What is tried in turn: pictures, texts, sounds, anything else. The first are what is usual; models with many windows or
/// with few positions take others.
const TRIED: [[i64; 4]; 6] = [
    [224, 128, 16_000, 16],
    [320, 64, 512, 8],
    [256, 32, 32_000, 32],
    [640, 16, 4_000, 4],
    [64, 8, 1_600, 2],
    [32, 4, 160, 1],
];

/// The height of a line of text at most, and how wide one is.
const LINE: i64 = 64;
const LINE_WIDTH: i64 = 320;

/// Whether an axis behind the first is of any size.
fn is_open(spec: &InputSpec) -> bool {
    spec.shape.iter().skip(1).any(|d| d.known().is_none())
}

/// The inputs with sizes for all open axes but those of the batch, best guess first: those that `given` says, and such that
/// the operators can take. The last are the inputs as they are.
///
/// # Errors
/// Usage for sizes of an input that is not there, or that the model does not take.
pub fn guesses(graph: &Graph, specs: Vec<InputSpec>, given: &[InputShape]) -> Result<Vec<Vec<InputSpec>>> {
    let mut specs = specs;
    for shape in given {
        fix(&mut specs, shape)?;
    }
    if !specs.iter().any(is_open) {
        return Ok(vec![specs]);
    }
    let tried = TRIED.iter().map(|sizes| guess(&specs, sizes)).filter(|guess| fits(graph, guess));
    Ok(tried.chain([specs.clone()]).collect())
}

/// Takes the sizes that the user gives. The first axis counts samples, where the model leaves it open.
fn fix(specs: &mut [InputSpec], given: &InputShape) -> Result<()> {
    let wrong = |why: String| Error::usage(format!("{SHAPE} {}: {why}", given.name));
    let names: Vec<String> = specs.iter().map(|s| s.name.clone()).collect();
    let spec = specs.iter_mut().find(|s| s.name == given.name);
    let spec =
        spec.ok_or_else(|| wrong(format!("the model has no such input; its inputs are {}", names.join(", "))))?;
    let agree = |(dim, size): (&Dim, &usize)| dim.known().is_none_or(|d| d == *size as i64);
    if spec.shape.len() != given.sizes.len() || !spec.shape.iter().zip(&given.sizes).all(agree) {
        let wanted: Vec<String> = spec.shape.iter().map(ToString::to_string).collect();
        return Err(wrong(format!("the input is {}", wanted.join("x"))));
    }
    for (dim, size) in spec.shape.iter_mut().zip(&given.sizes).skip(1) {
        *dim = Dim::from(*size);
    }
    Ok(())
}

/// One guess for all open axes; axes of one name get one size.
fn guess(specs: &[InputSpec], sizes: &[i64; 4]) -> Vec<InputSpec> {
    let batch: Vec<Dim> =
        specs.iter().filter_map(|s| s.shape.first()).filter(|d| d.known().is_none()).cloned().collect();
    let counts_samples = |d: &Dim| matches!(d, Dim::Sym(_)) && batch.contains(d);
    let mut named: Vec<(Dim, i64)> = vec![];
    for spec in specs {
        for axis in 1..spec.shape.len() {
            let dim = &spec.shape[axis];
            if matches!(dim, Dim::Sym(_))
                && !counts_samples(dim)
                && !is_sum(dim)
                && !named.iter().any(|(d, _)| d == dim)
            {
                named.push((dim.clone(), usual(spec, axis, sizes)));
            }
        }
    }
    let size = |spec: &InputSpec, axis: usize| -> Dim {
        let dim = &spec.shape[axis];
        match dim {
            Dim::Known(_) => dim.clone(),
            _ if axis == 0 || counts_samples(dim) => dim.clone(),
            Dim::Sym(s) if is_sum(dim) => Dim::Known(sum(s, &named).unwrap_or_else(|| usual(spec, axis, sizes))),
            Dim::Sym(_) => Dim::Known(named.iter().find(|(d, _)| d == dim).map_or(1, |(_, n)| *n)),
            Dim::Unknown => Dim::Known(usual(spec, axis, sizes)),
        }
    };
    let sized = |spec: &InputSpec| InputSpec {
        shape: (0..spec.shape.len()).map(|axis| size(spec, axis)).collect(),
        ..spec.clone()
    };
    specs.iter().map(sized).collect()
}

/// Whether exporters wrote a sum of two sizes: `past + sequence`.
fn is_sum(dim: &Dim) -> bool {
    matches!(dim, Dim::Sym(s) if s.contains('+'))
}

fn sum(text: &str, named: &[(Dim, i64)]) -> Option<i64> {
    let part = |part: &str| {
        let part = part.trim();
        let known = named.iter().find(|(d, _)| matches!(d, Dim::Sym(s) if **s == *part)).map(|(_, n)| *n);
        known.or(part.parse().ok())
    };
    text.split('+').map(part).sum()
}

/// What an open axis usually is.
fn usual(spec: &InputSpec, axis: usize, [picture, text, sound, other]: &[i64; 4]) -> i64 {
    let known = |i: usize| spec.shape.get(i).and_then(Dim::known);
    let name = spec.name.to_lowercase();
    let is_cache = name.contains("past") || name.contains("cache") || name.contains("state");
    match (spec.shape.len(), spec.dtype.is_float()) {
        _ if is_cache => *other,
        (4, true) => {
            let last = known(3).is_some_and(|c| c <= 4);
            let [channels, height, width] = if last { [3, 1, 2] } else { [1, 2, 3] };
            match axis {
                _ if axis == channels => 3,
                // A line of text is as high as the model says, and wide.
                _ if axis == width && known(height).is_some_and(|h| h <= LINE) => LINE_WIDTH,
                _ if axis == width => known(height).unwrap_or(*picture),
                _ => known(width).unwrap_or(*picture),
            }
        }
        (2, false) => *text,
        (2, true) => *sound,
        (3, true) => *text,
        _ => *other,
    }
}

/// Whether inference finds that the operators can take such inputs.
fn fits(graph: &Graph, specs: &[InputSpec]) -> bool {
    let one = |d: &Dim| if d.known().is_none() { Dim::Known(1) } else { d.clone() };
    let fact = |s: &InputSpec| Fact::new(Some(s.dtype), Some(s.shape.iter().map(one).collect()));
    let mut facts: Vec<(NodeId, Fact)> = fed(graph).zip(specs.iter().map(fact)).collect();
    let beside = Decoder::facts_beside(graph, &facts);
    let has_cache = !beside.is_empty();
    facts.extend(beside);
    let Ok(sized) = bound(graph, &facts) else { return false };
    // A cache is empty at first.
    if has_cache {
        return true;
    }
    // A window that doesn't fit leaves nothing.
    let mut values = sized.operators().flat_map(|n| &sized.node(n).outputs).filter_map(|v| v.fact.dims());
    !values.any(|dims| dims.iter().any(|d| d.known().is_some_and(|n| n <= 0)))
}

/// What integers to make up for an input: ones for a mask, numbers of rows where it chooses those of a table.
pub fn whole(graph: &Graph, input: NodeId) -> MadeUpIntegers {
    let port = Port::from(input);
    if graph.value(port).name.to_lowercase().contains("mask") {
        return MadeUpIntegers::Ones;
    }
    rows_read(graph, input).map_or(MadeUpIntegers::Zeros, MadeUpIntegers::Below)
}

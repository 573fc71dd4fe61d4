//! What must hold for every input. A target panics when it doesn't.

use compress_compiler::{
    error::{Error, Kind},
    graph::Graph,
    onnx::{self, Model},
    op::Op,
    pass::Context,
    tensor::{DType, Tensor},
    text,
    value::Fact,
    verify::verify,
};
use compress_passes::{Options, pipeline as passes};
use compress_runtime::{
    burn::BurnInterpreter,
    session::{Backend, Session},
};

/// Inputs larger than this are not made.
const MAX_ELEMENTS: usize = 4096;

/// Nothing a user gives may be called our own defect.
fn honest<T>(result: Result<T, Error>) -> Option<T> {
    match result {
        Ok(v) => Some(v),
        Err(e) if e.kind() == Kind::Bug => panic!("{e}"),
        Err(_) => None,
    }
}

/// Reading ends well or in an error; what is read is well-formed, and its text form parses.
pub fn read(bytes: &[u8]) {
    if let Some(model) = honest(onnx::read_bytes(bytes)) {
        verify(&model.graph).unwrap_or_else(|e| panic!("what is read does not verify: {e}"));
        let _ = model.graph.to_string();
    }
}

/// As [`read`], and what the passes make of it can be written, reads back, and runs where the
/// original ran, to outputs of the same types and shapes.
pub fn pipeline(bytes: &[u8]) {
    let Some(mut model) = honest(onnx::read_bytes(bytes)) else { return };
    let inputs = inputs(&model.graph);
    let before = inputs.as_ref().and_then(|i| run(&model.graph, i));
    // A file may declare shapes that are not those it has; the passes believe it.
    let before = before
        .filter(|outputs| outputs.iter().zip(model.graph.outputs()).all(|(t, o)| fits(t, model.graph.fact(o.port))));
    if simplify(&mut model).is_none() {
        return;
    }
    // An operator that is kept may forbid the opset that another one needs.
    let Some(bytes) = honest(onnx::to_bytes(&model)) else { return };
    let back = match onnx::read_bytes(&bytes) {
        Ok(back) => back,
        Err(e) if e.kind() == Kind::Limit => return,
        Err(e) => panic!("the result does not read back: {e}\n{}", model.graph),
    };
    let (Some(inputs), Some(before)) = (inputs, before) else { return };
    let Some(after) = run(&back.graph, &inputs) else {
        panic!("the result does not run:\n{}", back.graph);
    };
    for (b, a) in before.iter().zip(&after) {
        assert_eq!((b.dtype(), b.shape()), (a.dtype(), a.shape()), "an output has changed:\n{}", back.graph);
    }
}

fn simplify(model: &mut Model) -> Option<()> {
    let interpreter = BurnInterpreter::cpu();
    let run = passes(&Options::default(), None).run(&mut model.graph, &Context::new(&interpreter), &mut |_, _| Ok(()));
    honest(run.map(drop))
}

fn run(graph: &Graph, inputs: &[Tensor]) -> Option<Vec<Tensor>> {
    let verified = verify(graph).unwrap_or_else(|e| panic!("{e}"));
    let executable = honest(Session::new(&verified, &Backend::cpu(), &[]))?;
    honest(executable.run(inputs))
}

fn fits(t: &Tensor, fact: &Fact) -> bool {
    Fact::new(Some(t.dtype()), Fact::of(t).shape).refined(fact).is_ok()
}

/// Small inputs for a graph, where there are such.
fn inputs(graph: &Graph) -> Option<Vec<Tensor>> {
    let inputs = graph.inputs().iter().filter(|n| matches!(graph.op(**n), Op::Input(i) if i.default.is_none()));
    inputs.map(|n| input(graph.fact((*n).into()))).collect()
}

fn input(fact: &Fact) -> Option<Tensor> {
    let dims = fact.dims()?.iter().map(|d| d.known().map_or(Some(2), |n| usize::try_from(n).ok()));
    let shape: Vec<usize> = dims.collect::<Option<_>>()?;
    let n = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d)).filter(|n| *n <= MAX_ELEMENTS)?;
    match fact.dtype? {
        DType::String => None,
        d if d.is_float() => Some(Tensor::floats(d, &shape, &(0..n).map(|i| i as f32 * 0.3 - 1.0).collect::<Vec<_>>())),
        d => Some(Tensor::ints(d, &shape, &(0..n).map(|i| (i % 3) as i64).collect::<Vec<_>>())),
    }
}

/// A text that parses prints to one that parses to the same.
pub fn text(bytes: &[u8]) {
    let Ok(source) = std::str::from_utf8(bytes) else { return };
    let Some(graph) = honest(text::parse(source)) else { return };
    if verify(&graph).is_err() {
        return;
    }
    let printed = graph.to_string();
    // Long constants are printed as their digest, which only those who know them can read.
    if printed.contains("= #") {
        return;
    }
    match text::parse(&printed) {
        Ok(again) => assert_eq!(again.to_string(), printed, "printed differently"),
        Err(e) => panic!("what was printed does not parse: {e}\n{printed}"),
    }
}

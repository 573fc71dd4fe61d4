//! Golden tests: what each pass makes of a graph, as text, and that both compute the same.
//!
//! `tests/passes/golden/PASS/*.txt` holds cases, with `===` between them. A case is a graph, `---`,
//! and what one run of the pass makes of it: the new graph or `unchanged`, then a line
//! `skip RULE at NODE: reason` for everything the pass left alone with a reason.
//! `UPDATE_GOLDEN=1 cargo test --test golden` writes what comes out; read the diff.

use compress_compiler::{
    graph::Graph,
    node::{NodeId, Site},
    onnx,
    op::Op,
    pass::{Calibrator, Context, Outcome, Pass, Trained, Trainer, Tuning, Weight},
    tensor::{DType, Tensor},
    text,
    verify::{Verified, verify},
};
use compress_passes::{
    Factorised, Options, Recovery,
    clean::Clean,
    fold::Fold,
    fuse::Fuse,
    pipeline,
    prune::{
        recover::WeightSaliency,
        score::ChannelSaliency,
        structured::{ChannelBudget, Channels},
    },
    quant::{
        scheme::{DYNAMIC, INT8, Scheme},
        tables::Tables,
        weight_only::WeightFormat,
    },
    simplify,
    target::{ForOnnxRuntime, Target},
};
use compress_runtime::{
    burn::BurnInterpreter,
    device::DeviceChoice,
    metrics::Sqnr,
    session::{Backend, Session},
};
use std::{fs, path::Path};

const BETWEEN_CASES: &str = "===\n";
const BEFORE_AFTER: &str = "---\n";

#[test]
fn fold() {
    golden(&Fold);
}

#[test]
fn clean() {
    golden(&Clean);
}

#[test]
fn fuse() {
    golden(&Fuse);
}

#[test]
fn target() {
    golden(&ForOnnxRuntime);
}

#[test]
fn channels() {
    golden_by(&passes("channels", channels_of(0.5)), Keeps::Signature);
}

#[test]
fn low_rank() {
    // Ranks of this step, and weights of zeros, whose factors are the same on every machine.
    let low_rank = Some(Factorised { fraction: 0.3, round: Some(2), pays: false, by_data: false });
    golden_by(&passes("low-rank", Options { low_rank, ..Options::default() }), Keeps::Signature);
}

#[test]
fn prune() {
    golden_by(&passes("prune", Options { prune: Some(0.5), prune_ends: true, ..Options::default() }), Keeps::Signature);
    let pattern = Some("2:4".parse().unwrap());
    golden_by(&passes("prune-pattern", Options { pattern, prune_ends: true, ..Options::default() }), Keeps::Signature);
}

#[test]
fn recover() {
    let training = Some(Recovery { by: WeightSaliency::Magnitude, must: true });
    let asked = Options { prune: Some(0.5), prune_ends: true, training, ..Options::default() };
    golden_by(&passes("recover", asked), Keeps::Signature);
}

#[test]
fn int8() {
    let scheme = Some(INT8);
    golden_by(&passes("int8", Options { scheme, ..Options::default() }), Keeps::Decibels(20.0));
    let scheme = Some(Scheme { activations: DYNAMIC, ..INT8 });
    golden_by(&passes("int8-dynamic", Options { scheme, ..Options::default() }), Keeps::Decibels(20.0));
}

#[test]
fn tables() {
    let others = Some(WeightFormat::Int8);
    let pass = Tables { exclude: vec![], rules: vec![], others, block: 32, target: Target::default() };
    golden_by(&pass, Keeps::Decibels(35.0));
}

#[test]
fn weights() {
    let weights = Options { weights: Some(WeightFormat::Int4), block: 16, ..Options::default() };
    golden_by(&passes("weights", weights.clone()), Keeps::Decibels(14.0));
    let target = "onnxruntime".parse().unwrap();
    golden_by(&passes("weights-onnxruntime", Options { target, ..weights }), Keeps::Decibels(14.0));
}

/// All passes in turn take real models down to so many operators, and compute the same.
#[test]
#[ignore = "needs COMPRESS_ZOO, the folder of real models"]
fn zoo_models() {
    let zoo = std::env::var_os("COMPRESS_ZOO").expect("COMPRESS_ZOO is the folder of the models");
    let most = [
        ("resnet20_cifar10", 54),
        ("ultraface_rfb320", 122),
        ("tinyvit_fashion", 85),
        ("yunet_n_320", 109),
        ("gtcrn", 261),
    ];
    for (name, most) in most {
        let before = onnx::read(&Path::new(&zoo).join(format!("models/{name}.onnx"))).unwrap().graph;
        let mut after = before.clone();
        let interpreter = BurnInterpreter::cpu();
        let cx = Context::new(&interpreter);
        simplify(&mut after, &cx).unwrap();
        assert!(after.operators().count() <= most, "{name} has {} operators", after.operators().count());
        compare(&before, &after).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

/// What a pass keeps of the outputs.
#[derive(Clone, Copy)]
enum Keeps {
    /// Their values, but for rounding.
    Values,
    /// Their values, with this much signal to noise at least.
    Decibels(f64),
    /// Their types and shapes.
    Signature,
}

/// The passes that options ask for, after those that simplify, as one under the name of their folder.
#[derive(Debug)]
struct Passes(&'static str, Options);

fn passes(folder: &'static str, options: Options) -> Passes {
    Passes(folder, options)
}

fn channels_of(fraction: f64) -> Options {
    let (of, by) = (ChannelBudget::Parameters, ChannelSaliency::L1);
    let channels = Some(Channels { fraction, of, by, round: Some(1), pays: false, cuts: 1 });
    Options { channels, ..Options::default() }
}

impl Pass for Passes {
    fn name(&self) -> &'static str {
        self.0
    }

    fn run(&self, graph: &mut Graph, cx: &Context) -> compress::Result<Outcome> {
        let mut total = Outcome::default();
        for pass in pipeline(&self.1, None).passes {
            total.add(pass.run(graph, cx)?);
        }
        Ok(total)
    }
}

/// Runs all cases of a pass that changes no value.
fn golden(pass: &dyn Pass) {
    golden_by(pass, Keeps::Values);
}

/// Runs all cases of a pass and reports those that differ, or writes them anew.
fn golden_by(pass: &dyn Pass, keeps: Keeps) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/passes/golden").join(pass.name());
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let mut wrong = vec![];
    for file in &files {
        let old = fs::read_to_string(file).unwrap();
        let cases = old.split(BETWEEN_CASES).map(|case| {
            let before = case.split(BEFORE_AFTER).next().unwrap();
            format!("{before}{BEFORE_AFTER}{}", after(pass, keeps, before, file))
        });
        let new = cases.collect::<Vec<_>>().join(BETWEEN_CASES);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(file, &new).unwrap();
        } else if new != old {
            let line = new.lines().zip(old.lines()).position(|(n, o)| n != o);
            let line = line.unwrap_or_else(|| new.lines().count().min(old.lines().count()));
            wrong.push(format!(
                "{}:{}: expected\n  {}\nfound\n  {}",
                file.display(),
                line + 1,
                old.lines().nth(line).unwrap_or("nothing more"),
                new.lines().nth(line).unwrap_or("nothing more"),
            ));
        }
    }
    assert!(!files.is_empty() && wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What `pass` makes of the graph `before`, as the golden files have it.
fn after(pass: &dyn Pass, keeps: Keeps, before: &str, file: &Path) -> String {
    let context = |what: &str, e: &dyn std::fmt::Display| -> ! { panic!("{}: {e}\n{what}:\n{before}", file.display()) };
    let graph = text::parse(before).unwrap_or_else(|e| context("reading", &e));
    let mut new = graph.clone();
    let interpreter = BurnInterpreter::cpu();
    let batch: Vec<Tensor> = graph.inputs().iter().enumerate().map(|(i, n)| input(&graph, *n, i)).collect();
    let calibrator = OneBatch(batch);
    let cx = Context {
        calibrator: Some(&calibrator),
        trainer: Some(&OneStep),
        original: Some(&graph),
        ..Context::new(&interpreter)
    };
    let done = pass.run(&mut new, &cx).unwrap_or_else(|e| context("the pass on", &e));
    if let Err(e) = compare_by(&graph, &new, keeps) {
        context(&format!("{new}is what the pass makes of"), &e);
    }
    let mut out = if done.edits == 0 { "unchanged\n".into() } else { new.to_string() };
    for s in done.skipped {
        out += &format!("skip {} at {}: {}\n", s.rule, s.node, s.reason);
    }
    out
}

/// A calibrator with one batch, the inputs on which graphs are compared.
struct OneBatch(Vec<Tensor>);

impl Calibrator for OneBatch {
    fn observe(
        &self,
        graph: &Verified,
        watch: &[Site],
        sink: &(dyn Fn(usize, &[f32]) -> compress::Result<()> + Sync),
    ) -> compress::Result<()> {
        // These kernels give the same bits on every machine, and so the same scales.
        let backend = Backend::open(DeviceChoice::Cpu, "portable".parse()?, None)?;
        let session = Session::new(graph, &backend, watch)?;
        session.observe(&self.0, &mut |i, values| sink(i, values)).map(drop)
    }

    fn observe_in_turn(
        &self,
        graph: &Verified,
        watch: &[Site],
        sink: &mut dyn FnMut(usize, &[f32]) -> compress::Result<()>,
    ) -> compress::Result<()> {
        let backend = Backend::open(DeviceChoice::Cpu, "portable".parse()?, None)?;
        Session::new(graph, &backend, watch)?.observe(&self.0, sink).map(drop)
    }

    fn run(
        &self,
        graphs: &[&Verified],
        _: usize,
        sink: &mut dyn FnMut(&[Vec<Tensor>]) -> compress::Result<()>,
    ) -> compress::Result<()> {
        let run = |g: &&Verified| Session::new(g, &Backend::cpu(), &[])?.run(&self.0);
        sink(&graphs.iter().map(run).collect::<compress::Result<Vec<_>>>()?)
    }

    fn samples(&self) -> usize {
        3
    }

    fn sized(&self, graph: &Graph) -> compress::Result<Graph> {
        Ok(graph.clone())
    }
}

/// A trainer of one step, which adds a half to every weight and then applies the masks of the end.
struct OneStep;

impl Trainer for OneStep {
    fn tune(&self, _: &mut Graph, _: Tuning) -> compress::Result<(u64, usize)> {
        unreachable!("nothing is searched here")
    }

    fn train(&self, graph: &mut Graph, training: compress_compiler::pass::Training) -> compress::Result<Trained> {
        let moved = |node: &NodeId| {
            let values = graph.constant((*node).into()).and_then(|t| t.as_f32()).unwrap();
            let values = values.iter().map(|v| if *v == 0.0 { 0.0 } else { v + 0.5 }).collect();
            Weight { node: *node, values, saliency: vec![] }
        };
        let weights: Vec<Weight> = training.masked.iter().map(moved).collect();
        let keep = match training.masking {
            Some(mut masking) => (masking.choose)(1.0, &weights)?,
            None => weights.iter().map(|w| vec![true; w.values.len()]).collect(),
        };
        for (weight, keep) in weights.iter().zip(keep) {
            let shape = graph.constant(weight.node.into()).unwrap().shape().to_vec();
            let kept: Vec<f32> = weight.values.iter().zip(keep).map(|(v, k)| if k { *v } else { 0.0 }).collect();
            graph.set_constant(weight.node, Tensor::f32(&shape, &kept));
        }
        Ok(Trained { name: training.name.into(), epochs: 1, planned: 1, ..Trained::default() })
    }

    fn saliency(&self, _: &Graph, _: &[NodeId]) -> compress::Result<Vec<Weight>> {
        panic!("no case asks for saliencies")
    }
}

/// Runs both graphs on the same random inputs.
fn compare(before: &Graph, after: &Graph) -> Result<(), String> {
    compare_by(before, after, Keeps::Values)
}

/// Runs both graphs on the same random inputs, and looks at what has to be kept.
fn compare_by(before: &Graph, after: &Graph, keeps: Keeps) -> Result<(), String> {
    let inputs: Vec<Tensor> = before.inputs().iter().enumerate().map(|(i, n)| input(before, *n, i)).collect();
    let run = |g: &Graph| {
        let verified = verify(g)?;
        Session::new(&verified, &Backend::cpu(), &[])?.run(&inputs)
    };
    let old = run(before).map_err(|e| format!("before: {e}"))?;
    let new = run(after).map_err(|e| format!("after: {e}"))?;
    for ((old, new), output) in old.iter().zip(&new).zip(before.outputs()) {
        let name = &output.name;
        if (old.dtype(), old.shape()) != (new.dtype(), new.shape()) {
            return Err(format!("`{name}` was {old:?} and is {new:?}"));
        }
        match (old.as_f32(), new.as_f32()) {
            _ if matches!(keeps, Keeps::Signature) => {}
            (Some(a), Some(b)) if let Keeps::Decibels(least) = keeps => {
                let mut sqnr = Sqnr::default();
                sqnr.add(&a, &b);
                if sqnr.db().is_none_or(|db| db < least) {
                    return Err(format!("`{name}` has {:?} dB, below {least}", sqnr.db()));
                }
            }
            (Some(a), Some(b)) => {
                let largest = a.iter().filter(|v| v.is_finite()).fold(0.0f32, |m, v| m.max(v.abs()));
                let same = |a: f32, b: f32| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-5 * largest;
                if let Some((a, b)) = a.iter().zip(b.iter()).find(|(a, b)| !same(**a, **b)) {
                    return Err(format!("`{name}` has {b} where it had {a}; values reach {largest}"));
                }
            }
            _ if old.bytes() != new.bytes() => return Err(format!("`{name}` differs")),
            _ => {}
        }
    }
    Ok(())
}

/// Random values for an input; 3 stands in for every size that is not known.
fn input(graph: &Graph, node: NodeId, seed: usize) -> Tensor {
    let fact = graph.fact(node.into());
    let shape: Vec<i64> = fact.dims().unwrap().iter().map(|d| d.known().unwrap_or(3)).collect();
    let dtype = fact.dtype.unwrap_or(DType::F32);
    let made = text::parse(&format!("graph \"\" {{ const %x: {dtype}{shape:?} = random({seed}) }}")).unwrap();
    let constant = made.ids().next().unwrap();
    match made.op(constant) {
        Op::Constant(c) => c.0.clone(),
        _ => unreachable!("the text holds one constant"),
    }
}

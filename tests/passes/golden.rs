//! Golden tests: what each pass makes of a graph, as text, and that both compute the same.
//!
//! `tests/passes/golden/PASS/*.txt` holds cases, with `===` between them. A case is a graph, `---`,
//! and what one run of the pass makes of it: the new graph or `unchanged`, then a line
//! `skip RULE at NODE: reason` for everything the pass left alone with a reason.
//! `UPDATE_GOLDEN=1 cargo test --test golden` writes what comes out; read the diff.

use compress_compiler::{
    graph::Graph,
    node::NodeId,
    onnx,
    op::Op,
    pass::{Context, Pass},
    tensor::{DType, Tensor},
    text,
    verify::verify,
};
use compress_passes::{clean::Clean, fold::Fold, fuse::Fuse, simplify, target::ForOnnxRuntime};
use compress_runtime::{
    burn::BurnInterpreter,
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

/// Runs all cases of a pass and reports those that differ, or writes them anew.
fn golden(pass: &dyn Pass) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/passes/golden").join(pass.name());
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let mut wrong = vec![];
    for file in &files {
        let old = fs::read_to_string(file).unwrap();
        let cases = old.split(BETWEEN_CASES).map(|case| {
            let before = case.split(BEFORE_AFTER).next().unwrap();
            format!("{before}{BEFORE_AFTER}{}", after(pass, before, file))
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
fn after(pass: &dyn Pass, before: &str, file: &Path) -> String {
    let context = |what: &str, e: &dyn std::fmt::Display| -> ! { panic!("{}: {e}\n{what}:\n{before}", file.display()) };
    let graph = text::parse(before).unwrap_or_else(|e| context("reading", &e));
    let mut new = graph.clone();
    let interpreter = BurnInterpreter::cpu();
    let cx = Context::new(&interpreter);
    let done = pass.run(&mut new, &cx).unwrap_or_else(|e| context("the pass on", &e));
    if let Err(e) = compare(&graph, &new) {
        context(&format!("{new}is what the pass makes of"), &e);
    }
    let mut out = if done.edits == 0 { "unchanged\n".into() } else { new.to_string() };
    for s in done.skipped {
        out += &format!("skip {} at {}: {}\n", s.rule, s.node, s.reason);
    }
    out
}

/// Runs both graphs on the same random inputs.
fn compare(before: &Graph, after: &Graph) -> Result<(), String> {
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

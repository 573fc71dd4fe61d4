//! Every operator against ONNX Runtime: cases that `tests/operators/make_op_cases.py` wrote, run as they
//! are and again after the simplifying passes.
//!
//! Each case is a folder with up to four forms of one model (see `tests/operators/op_cases/build.py`) and
//! an ONNX test data set. The folder comes in `COMPRESS_OP_CASES`; `tests/run` sets it. `COMPRESS_TEST_DEVICE` names another device
//! than the CPU: each case is then run there once, as it is (`tests/gpu/on_double`).

#[path = "../pb/mod.rs"]
mod pb;

use compress_compiler::{
    graph::Graph,
    onnx,
    pass::Context,
    tensor::{DType, Tensor},
    verify::verify,
};
use compress_passes::{Options, pipeline};
use compress_runtime::{
    burn::BurnInterpreter,
    session::{Backend, EngineChoice, Session},
};
use pb::tensors;
use std::{
    env, fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

/// Fewer cases than this mean that the generator lost some.
const AT_LEAST: usize = 1270;
/// What has no kernel yet, and has to say so.
const UNSUPPORTED: [&str; 0] = [];
const FORMS: [&str; 4] = ["model", "symbolic", "unranked", "constant"];

#[test]
#[ignore = "needs COMPRESS_OP_CASES, which tests/run sets"]
fn operators_agree_with_onnx_runtime() {
    let folder = env::var_os("COMPRESS_OP_CASES").expect("COMPRESS_OP_CASES is the folder of the cases");
    let mut cases: Vec<PathBuf> =
        fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir()).collect();
    cases.sort();
    assert!(cases.len() >= AT_LEAST, "only {} cases in {}", cases.len(), folder.display());
    let mut wrong = vec![];
    let device = device();
    let forms = if device.is_some() { &FORMS[..1] } else { &FORMS[..] };
    for case in &cases {
        for form in forms {
            let model = case.join(format!("{form}.onnx"));
            if !model.exists() {
                continue;
            }
            // A panic is a failure of one case, not the end of all.
            let checked = catch_unwind(AssertUnwindSafe(|| match &device {
                None => check(case, &model, *form == "constant"),
                Some(device) => check_on(device, case, &model),
            }));
            let name = case.file_name().unwrap().to_string_lossy();
            match checked.unwrap_or_else(|_| Err("panicked".into())) {
                Ok(()) if UNSUPPORTED.contains(&&*name) => {
                    wrong.push(format!("{name}/{form}: runs now; take it off the list UNSUPPORTED"));
                }
                Err(why) if !(UNSUPPORTED.contains(&&*name) && why.contains("unsupported")) => {
                    wrong.push(format!("{name}/{form}: {why}"));
                }
                _ => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// The device that was asked for.
fn device() -> Option<Backend> {
    let name = env::var("COMPRESS_TEST_DEVICE").ok()?;
    Some(Backend::open(name.parse().unwrap(), EngineChoice::Burn, None).unwrap())
}

/// Runs a model on a device.
fn check_on(device: &Backend, case: &Path, model: &Path) -> Result<(), String> {
    let data = case.join("test_data_set_0");
    let graph = onnx::read(model).map_err(|e| e.to_string())?.graph;
    agree_on(device, &graph, &tensors(&data, "input"), &tensors(&data, "output"))
}

/// Runs a model before and after the passes.
fn check(case: &Path, model: &Path, constant: bool) -> Result<(), String> {
    let data = case.join("test_data_set_0");
    let inputs = if constant { vec![] } else { tensors(&data, "input") };
    let expected = tensors(&data, "output");
    let mut graph = onnx::read(model).map_err(|e| e.to_string())?.graph;
    outputs_agree(&graph, &inputs, &expected).map_err(|e| format!("as it is: {e}"))?;

    let interpreter = BurnInterpreter::cpu();
    let cx = Context::new(&interpreter);
    let passes = pipeline(&Options::default(), None);
    passes.run(&mut graph, &cx, &mut |_, _| Ok(())).map_err(|e| format!("while simplifying: {e}"))?;
    outputs_agree(&graph, &inputs, &expected).map_err(|e| format!("simplified: {e}\n{}", indent(&graph.to_string())))
}

fn outputs_agree(graph: &Graph, inputs: &[Tensor], expected: &[Tensor]) -> Result<(), String> {
    for backend in [Backend::cpu(), Backend::burn()] {
        agree_on(&backend, graph, inputs, expected).map_err(|e| format!("{}: {e}", backend.engine))?;
    }
    Ok(())
}

fn agree_on(backend: &Backend, graph: &Graph, inputs: &[Tensor], expected: &[Tensor]) -> Result<(), String> {
    let verified = verify(graph).map_err(|e| e.to_string())?;
    let session = Session::new(&verified, backend, &[]).map_err(|e| e.to_string())?;
    let got = session.run(inputs).map_err(|e| e.to_string())?;
    if got.len() != expected.len() {
        return Err(format!("{} outputs, not {}", got.len(), expected.len()));
    }
    for (output, (got, expected)) in graph.outputs().iter().zip(got.iter().zip(expected)) {
        agree(got, expected).map_err(|e| format!("output `{}`: {e}", output.name))?;
        let fact = graph.fact(output.port);
        let known = fact.dims().map(|d| d.iter().map(|d| d.known()).collect::<Vec<_>>());
        let fits = known.is_none_or(|k| {
            let shape = expected.shape();
            k.len() == shape.len() && k.iter().zip(shape).all(|(k, n)| k.is_none_or(|k| k == *n as i64))
        });
        if !fits || fact.dtype.is_some_and(|d| d != expected.dtype()) {
            return Err(format!("output `{}` is inferred as {fact}, and is {expected:?}", output.name));
        }
    }
    Ok(())
}

/// Integers must be equal; floats may differ by their rounding, seen against the largest.
fn agree(got: &Tensor, expected: &Tensor) -> Result<(), String> {
    if (got.dtype(), got.shape()) != (expected.dtype(), expected.shape()) {
        return Err(format!("{got:?} instead of {expected:?}"));
    }
    // Devices sum in another order, and have functions of their own.
    let float = if env::var_os("COMPRESS_TEST_DEVICE").is_some() { 1e-4 } else { 1e-5 };
    let tolerance = if matches!(expected.dtype(), DType::F16 | DType::BF16) { 2e-3 } else { float };
    let (Some(a), Some(b)) = (got.as_f32(), expected.as_f32()) else {
        let (a, b) = (got.as_i64().unwrap(), expected.as_i64().unwrap());
        let first = a.iter().zip(&b).position(|(a, b)| a != b);
        return first.map_or(Ok(()), |i| Err(format!("element {i} is {} instead of {}", a[i], b[i])));
    };
    let largest = b.iter().filter(|v| v.is_finite()).fold(0f32, |m, v| m.max(v.abs()));
    let near =
        |a: f32, b: f32| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance * (largest + b.abs());
    let first = a.iter().zip(b.iter()).position(|(a, b)| !near(*a, *b));
    first.map_or(Ok(()), |i| Err(format!("element {i} of {} is {} instead of {}", a.len(), a[i], b[i])))
}

fn indent(text: &str) -> String {
    text.lines().map(|l| format!("    {l}\n")).collect()
}

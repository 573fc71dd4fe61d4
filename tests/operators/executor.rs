//! Integer and float kernels against ONNX Runtime's: quantised cases and whole quantised models, on every engine.
//!
//! The cases come from `tests/operators/make_qdq_cases.py` in the folder `COMPRESS_QDQ_CASES`, the models from
//! `tests/operators/make_qdq_models.py` in `COMPRESS_QDQ_MODELS`; `tests/run` sets both. Integers must be equal to the last bit, but
//! where a case says why they may be a step off. Every case runs as the file is, and again after the passes.

#[path = "../pb/mod.rs"]
mod pb;

use compress_compiler::{
    graph::Graph,
    onnx,
    pass::Context,
    tensor::{DType, Tensor},
    text,
    verify::verify,
};
use compress_kernels::Isa;
use compress_passes::{Options, pipeline};
use compress_runtime::{
    burn::BurnInterpreter,
    device::Device,
    session::{Backend, Engine as Runner, Session},
};
use pb::tensors;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::{
    collections::BTreeSet,
    env, fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

/// What runs a graph, and how much it promises.
struct Engine {
    name: String,
    /// Whether its integers are those of ONNX Runtime's kernels; if not, they come from floats.
    exact: bool,
    backend: Backend,
}

/// Every instruction set of this machine, and Burn; or the device that `COMPRESS_TEST_DEVICE` names (`tests/gpu/on_double`).
fn engines() -> Vec<Engine> {
    if let Ok(name) = env::var("COMPRESS_TEST_DEVICE") {
        let device = Device::open(name.parse().unwrap()).unwrap();
        return vec![Engine { name, exact: true, backend: Backend::new(device, Runner::Burn) }];
    }
    let sets = Isa::ALL.into_iter().filter(|isa| isa.is_available()).map(Runner::Cpu);
    let all = sets.chain([Runner::Burn]);
    all.map(|engine| Engine {
        name: engine.to_string(),
        exact: engine != Runner::Burn,
        backend: Backend::new(Device::cpu(), engine),
    })
    .collect()
}

impl Engine {
    fn run(&self, graph: &Graph, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
        let verified = verify(graph).map_err(|e| e.to_string())?;
        let session = Session::new(&verified, &self.backend, &[]).map_err(|e| e.to_string())?;
        session.run(inputs).map_err(|e| e.to_string())
    }
}

/// What is written beside a case (`case.json`).
#[derive(Deserialize)]
struct Facts {
    /// How far integers may be off.
    steps: u64,
    /// The scale of each output that was just dequantised: it is compared like its integers.
    scales: Vec<Option<f32>>,
    /// Whether ONNX Runtime's integers are not what floats come to, which are then not compared.
    #[serde(default)]
    floats_differ: bool,
    /// Operators that ONNX Runtime computes in floats, or approximates, before it quantises. Where a sum in another
    /// order rounds differently, later layers of a whole model make more of it.
    #[serde(default)]
    loose: Vec<String>,
}

/// How far floats may be off, relative to the largest of their output.
const ROUNDING: f32 = 1e-5;
/// How much noise, relative to the signal, rounding may grow to in a whole model. Burn's floats come to 0.02 at worst
/// (models calibrated on noise, 60 layers); INT8 itself costs far more.
const DRIFT: f64 = 0.05;

/// How far a case was off at worst.
#[derive(Default)]
struct Off {
    /// Integers, in steps.
    steps: u64,
    /// How many of them, and of how many.
    count: (usize, usize),
    /// Floats, relative to the largest of their output.
    relative: f32,
    /// Squares of what is wrong and of what is right, both relative to the largest.
    noise: (f64, f64),
}

/// What a case came to. The order is that of the table's columns.
#[derive(Clone, Copy, PartialEq)]
enum Verdict {
    Exact,
    Allowed,
    Drifted,
    One,
    Worse,
    Refused,
    Failed,
}

#[test]
#[ignore = "needs COMPRESS_QDQ_CASES, which tests/run sets"]
fn quantised_cases_agree_with_onnx_runtime() {
    check("COMPRESS_QDQ_CASES", 560, false);
}

#[test]
#[ignore = "needs COMPRESS_QDQ_MODELS, which tests/run sets"]
fn zoo_models_quantised_by_others_agree_with_onnx_runtime() {
    check("COMPRESS_QDQ_MODELS", 1, true);
}

/// Attention between a convolution and a classifier, and entries that follow each other by steps.
const ATTENTION: &str = r#"graph "attention" {
  input %x: f32[N,3,32,32]
  const %w: f32[64,3,8,8] = random(1)
  const %tokens: i64[3] = [0, 64, -1]
  const %heads: i64[4] = [0, -1, 4, 16]
  const %wq: f32[64,64] = random(2)
  const %wk: f32[64,64] = random(3)
  const %wv: f32[64,64] = random(4)
  const %joined: i64[3] = [0, -1, 64]
  const %from: i64[2] = [0, 63]
  const %to: i64[2] = [16, -65]
  const %axes: i64[2] = [1, 2]
  const %steps: i64[2] = [3, -2]
  const %rows: i64[1] = [1]
  const %head: f32[32,10] = random(5)
  %a = Conv(%x, %w) {strides=[8, 8]}
  %b = Reshape(%a, %tokens)
  %t = Transpose(%b) {perm=[0, 2, 1]}
  %q = MatMul(%t, %wq)
  %k = MatMul(%t, %wk)
  %v = MatMul(%t, %wv)
  %q2 = Reshape(%q, %heads)
  %k2 = Reshape(%k, %heads)
  %v2 = Reshape(%v, %heads)
  %q3 = Transpose(%q2) {perm=[0, 2, 1, 3]}
  %k3 = Transpose(%k2) {perm=[0, 2, 3, 1]}
  %v3 = Transpose(%v2) {perm=[0, 2, 1, 3]}
  %s = MatMul(%q3, %k3)
  %p = Softmax(%s) {axis=-1}
  %o = MatMul(%p, %v3)
  %o2 = Transpose(%o) {perm=[0, 2, 1, 3]}
  %o3 = Reshape(%o2, %joined)
  %picked = Slice(%o3, %from, %to, %axes, %steps)
  %mean = ReduceMean(%picked, %rows) {keepdims=0}
  %y = MatMul(%mean, %head)
  output %y
}"#;

#[test]
fn attention_and_steps_along_columns_have_kernels() {
    let graph = text::parse(ATTENTION).unwrap();
    let verified = verify(&graph).unwrap();
    for n in [1, 3] {
        let data: Vec<f32> = (0..n * 3 * 32 * 32).map(|i| ((i * 2_654_435_761) % 1000) as f32 / 500.0 - 1.0).collect();
        let x = [Tensor::f32(&[n, 3, 32, 32], &data)];
        let burn = Session::new(&verified, &Backend::burn(), &[]).unwrap().run(&x).unwrap();
        for engine in engines().iter().filter(|e| e.exact) {
            let session = Session::new(&verified, &engine.backend, &[]).unwrap();
            let mut off = Off::default();
            off.compare(&session.run(&x).unwrap()[0], &burn[0], None).unwrap();
            assert!(off.relative < ROUNDING, "{} is off by {:e}", engine.name, off.relative);
            let kernels: Vec<&str> = session.profile(&x).unwrap().iter().map(|s| s.kernel.name).collect();
            assert!(!kernels.contains(&"burn"), "{}: {kernels:?}", engine.name);
            assert!(["attention", "pick"].iter().all(|k| kernels.contains(k)), "{}: {kernels:?}", engine.name);
        }
    }
}

/// Two products of one input by codes of its own range: a GELU and a bias behind one, nothing but scales behind the other.
const BY_OWN_RANGE: &str = r#"graph "dynamic" {
  input %x: f32[N,6,64]
  const %w: i8[64,48] = random(1)
  const %of_w: f32[48] = random(2)
  const %bias: f32[48] = random(3)
  const %v: i8[64,16] = random(4)
  const %of_v: f32[1] = [0.01]
  const %root: f32[1] = [1.4142135]
  const %one: f32[1] = [1.0]
  const %half: f32[1] = [0.5]
  %codes, %scale, %zero = DynamicQuantizeLinear(%x)
  %sums = MatMulInteger(%codes, %w, %zero)
  %floats = Cast(%sums) {to=1}
  %by = Mul(%scale, %of_w)
  %scaled = Mul(%floats, %by)
  %biased = Add(%scaled, %bias)
  %d = Div(%biased, %root)
  %e = Erf(%d)
  %p = Add(%e, %one)
  %g = Mul(%biased, %p)
  %y = Mul(%g, %half)
  %more = MatMulInteger(%codes, %v, %zero)
  %as_floats = Cast(%more) {to=1}
  %by_one = Mul(%scale, %of_v)
  %z = Mul(%as_floats, %by_one)
  output %y
  output %z
}"#;

#[test]
fn codes_by_their_own_range_have_kernels() {
    let graph = text::parse(BY_OWN_RANGE).unwrap();
    let verified = verify(&graph).unwrap();
    let data: Vec<f32> = (0..3 * 6 * 64).map(|i| ((i * 2_654_435_761_usize) % 1000) as f32 / 400.0 - 1.0).collect();
    let x = [Tensor::f32(&[3, 6, 64], &data)];
    let burn = Session::new(&verified, &Backend::burn(), &[]).unwrap().run(&x).unwrap();
    for engine in engines().iter().filter(|e| e.exact) {
        let session = Session::new(&verified, &engine.backend, &[]).unwrap();
        for (made, want) in session.run(&x).unwrap().iter().zip(&burn) {
            let mut off = Off::default();
            off.compare(made, want, None).unwrap();
            assert!(off.relative < ROUNDING, "{} is off by {:e}", engine.name, off.relative);
        }
        let mut kernels: Vec<&str> = session.profile(&x).unwrap().iter().map(|s| s.kernel.name).collect();
        kernels.sort_unstable();
        let all = ["gemm_dynamic_i8", "gemm_dynamic_i8", "own_range", "own_range", "quantize"];
        assert_eq!(kernels, all, "{}", engine.name);
    }
}

/// Rows of a table of floats and of one of codes, chosen by numbers of 64 and of 32 bits, some of them from behind.
const TABLES: &str = r#"graph "tables" {
  input %ids: i64[N,64]
  input %kinds: i32[N,64]
  const %words: f32[50,64] = random(1)
  const %codes: i8[7,64] = random(2)
  const %of_rows: f32[7,1] = random(3)
  const %w: f32[64,64] = random(4)
  %word = Gather(%words, %ids)
  %code = Gather(%codes, %kinds)
  %floats = Cast(%code) {to=1}
  %scale = Gather(%of_rows, %kinds)
  %kind = Mul(%floats, %scale)
  %sum = Add(%word, %kind)
  %y = MatMul(%sum, %w)
  output %y
}"#;

#[test]
fn rows_are_looked_up_where_tables_are() {
    let graph = text::parse(TABLES).unwrap();
    let verified = verify(&graph).unwrap();
    let inputs = |n: usize, last: i64| {
        let mut ids: Vec<i64> = (0..n * 64).map(|i| (i * 7919 % 100) as i64 - 50).collect();
        ids[n * 64 - 1] = last;
        let kinds: Vec<i64> = (0..n * 64).map(|i| (i * 31 % 14) as i64 - 7).collect();
        [Tensor::ints(DType::I64, &[n, 64], &ids), Tensor::ints(DType::I32, &[n, 64], &kinds)]
    };
    for engine in engines().iter().filter(|e| e.exact) {
        let session = Session::new(&verified, &engine.backend, &[]).unwrap();
        for n in [1, 6] {
            let burn = Session::new(&verified, &Backend::burn(), &[]).unwrap().run(&inputs(n, 3)).unwrap();
            let mut off = Off::default();
            off.compare(&session.run(&inputs(n, 3)).unwrap()[0], &burn[0], None).unwrap();
            assert!(off.relative < ROUNDING, "{} is off by {:e}", engine.name, off.relative);
        }
        let kernels: Vec<&str> = session.profile(&inputs(1, 3)).unwrap().iter().map(|s| s.kernel.name).collect();
        assert_eq!(kernels.iter().filter(|k| **k == "look_up").count(), 2, "{}: {kernels:?}", engine.name);
        assert!(!kernels.contains(&"burn"), "{}: {kernels:?}", engine.name);
        for outside in [50, -51, i64::MIN, i64::MAX] {
            let said = session.run(&inputs(2, outside)).unwrap_err().to_string();
            assert!(said.contains("is out of range for an axis of 50"), "{}: {said}", engine.name);
        }
    }
}

/// A mask may have more rows than there are queries: scores become as many.
#[test]
fn a_mask_widens_scores() {
    let source = r#"graph "widened" {
        input %q: f32[2,3,1,8]
        input %k: f32[2,3,8,7]
        input %v: f32[2,3,7,5]
        input %mask: f32[2,1,9,7]
        %s = MatMul(%q, %k)
        %m = Add(%s, %mask)
        %p = Softmax(%m) {axis=-1}
        %y = MatMul(%p, %v)
        output %y
    }"#;
    let graph = text::parse(source).unwrap();
    let verified = verify(&graph).unwrap();
    let noise = |shape: &[usize]| {
        let n = shape.iter().product::<usize>();
        let data: Vec<f32> = (0..n).map(|i| ((i * 2_654_435_761) % 1000) as f32 / 500.0 - 1.0).collect();
        Tensor::f32(shape, &data)
    };
    let inputs = [noise(&[2, 3, 1, 8]), noise(&[2, 3, 8, 7]), noise(&[2, 3, 7, 5]), noise(&[2, 1, 9, 7])];
    let burn = Session::new(&verified, &Backend::burn(), &[]).unwrap().run(&inputs).unwrap();
    assert_eq!(burn[0].shape(), [2, 3, 9, 5]);
    for engine in engines().iter().filter(|e| e.exact) {
        let mut off = Off::default();
        let made = Session::new(&verified, &engine.backend, &[]).unwrap().run(&inputs).unwrap();
        off.compare(&made[0], &burn[0], None).unwrap();
        assert!(off.relative < ROUNDING, "{} is off by {:e}", engine.name, off.relative);
    }
}

/// Runs all cases in the folder that `variable` names on each engine; fewer than `at_least` mean that some were lost.
/// `whole` models have many layers, in which rounding may grow. Those in which it may not have outputs of one digest, on all instruction
/// sets. It is written to the file that `COMPRESS_DIGESTS` names; where that is there, as another machine wrote it, it has to be the same.
fn check(variable: &str, at_least: usize, whole: bool) {
    let folder = env::var_os(variable).unwrap_or_else(|| panic!("{variable} is the folder of the cases"));
    let entries = fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path());
    let mut cases: Vec<PathBuf> = entries.filter(|p| p.is_dir()).collect();
    cases.sort();
    assert!(cases.len() >= at_least, "only {} cases in {}", cases.len(), folder.display());
    let (mut wrong, mut near, mut digests) = (vec![], vec![], BTreeSet::new());
    println!(
        "| engine | form | cases | exact | a step, allowed | grown rounding | a step | worse | refused | failed |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for engine in &engines() {
        for simplified in [false, true] {
            let form = if simplified { "simplified" } else { "as it is" };
            let mut counts = [0; 7];
            let (mut digest, mut digested) = (Sha256::new(), 0);
            for case in &cases {
                let facts = facts(case);
                let mut outputs = |t: &Tensor| {
                    if whole && facts.loose.is_empty() && !facts.floats_differ {
                        digest.update(t.bytes());
                        digested += 1;
                    }
                };
                // A panic is a failure of one case, not the end of all.
                let off = catch_unwind(AssertUnwindSafe(|| run(engine, case, simplified, &mut outputs)));
                let may_drift = whole && (!engine.exact || !facts.loose.is_empty());
                let (verdict, why) = judge(&facts, off.unwrap_or_else(|_| Err("panicked".into())), may_drift);
                counts[verdict as usize] += 1;
                let line = format!("{} {}, {form}: {why}", engine.name, case.file_name().unwrap().display());
                match verdict {
                    Verdict::Exact | Verdict::Allowed => {}
                    Verdict::Drifted | Verdict::Refused => near.push(line),
                    Verdict::One if !engine.exact => near.push(line),
                    _ if !engine.exact && facts.floats_differ => near.push(line),
                    _ => wrong.push(line),
                }
            }
            let counts = counts.map(|n: usize| n.to_string()).join(" | ");
            println!("| {} | {form} | {} | {counts} |", engine.name, cases.len());
            if engine.exact && digested > 0 {
                digests.insert(format!("{digested} outputs, {form}: {:x}", digest.finalize()));
            }
        }
    }
    println!("digests: {digests:#?}");
    // One as the models are, and one simplified.
    assert_eq!(digests.len(), if whole { 2 } else { 0 }, "instruction sets differ: {digests:#?}");
    if let Some(file) = env::var_os("COMPRESS_DIGESTS").filter(|_| whole) {
        let own = digests.iter().map(|digest| format!("{digest}\n")).collect::<String>();
        match fs::read_to_string(&file) {
            Ok(other) => assert_eq!(own, other, "the outputs are not those of {}", Path::new(&file).display()),
            Err(_) => fs::write(&file, own).unwrap(),
        }
    }
    println!("{} not equal, and forgiven:\n{}", near.len(), near.join("\n"));
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// What a case came to, and why.
fn judge(facts: &Facts, off: Result<Off, String>, may_drift: bool) -> (Verdict, String) {
    let off = match off {
        Ok(off) => off,
        // Operators of ONNX Runtime's own domain are kept, not run.
        Err(why) if why.contains("cannot be run: operator com.microsoft::") => return (Verdict::Refused, why),
        Err(why) => return (Verdict::Failed, why),
    };
    let noise = (off.noise.0 / off.noise.1.max(f64::MIN_POSITIVE)).sqrt();
    let ((wrong, of), steps) = (off.count, off.steps);
    let why =
        format!("{wrong} of {of} integers off by up to {steps}, floats by {:.1e}, noise {noise:.1e}", off.relative);
    let verdict = match steps {
        0 if off.relative <= ROUNDING => Verdict::Exact,
        n if n <= facts.steps && off.relative <= ROUNDING => Verdict::Allowed,
        _ if may_drift && noise <= DRIFT => Verdict::Drifted,
        1 if off.relative <= ROUNDING => Verdict::One,
        _ => Verdict::Worse,
    };
    (verdict, why)
}

fn facts(case: &Path) -> Facts {
    serde_json::from_slice(&fs::read(case.join("case.json")).unwrap()).unwrap()
}

/// Runs a case on every data set that it has.
fn run(engine: &Engine, case: &Path, simplified: bool, outputs: &mut dyn FnMut(&Tensor)) -> Result<Off, String> {
    let mut graph = onnx::read(&case.join("model.onnx")).map_err(|e| e.to_string())?.graph;
    if simplified {
        let interpreter = BurnInterpreter::cpu();
        let passes = pipeline(&Options::default(), None);
        passes.run(&mut graph, &Context::new(&interpreter), &mut |_, _| Ok(())).map_err(|e| e.to_string())?;
    }
    let scales = facts(case).scales;
    let mut off = Off::default();
    let sets = (0..).map(|i| case.join(format!("test_data_set_{i}"))).take_while(|p| p.exists());
    for data in sets {
        let expected = tensors(&data, "output");
        let got = engine.run(&graph, &tensors(&data, "input"))?;
        if got.len() != expected.len() || scales.len() != expected.len() {
            return Err(format!("{} outputs, not {}", got.len(), expected.len()));
        }
        for ((output, scale), (got, expected)) in graph.outputs().iter().zip(&scales).zip(got.iter().zip(&expected)) {
            outputs(got);
            off.compare(got, expected, *scale).map_err(|e| format!("output `{}`: {e}", output.name))?;
        }
    }
    Ok(off)
}

impl Off {
    fn compare(&mut self, got: &Tensor, expected: &Tensor, scale: Option<f32>) -> Result<(), String> {
        if (got.dtype(), got.shape()) != (expected.dtype(), expected.shape()) {
            return Err(format!("{got:?} instead of {expected:?}"));
        }
        let (Some(a), Some(b)) = (got.as_f32(), expected.as_f32()) else {
            // Neither is a float, so both are integers.
            let (a, b) = (got.as_i64().unwrap(), expected.as_i64().unwrap());
            let largest = b.iter().map(|v| v.unsigned_abs()).max().unwrap_or(0).max(1) as f64;
            for (a, b) in a.iter().zip(&b) {
                self.step(a.abs_diff(*b));
                self.hear((a - b) as f64 / largest, *b as f64 / largest);
            }
            return Ok(());
        };
        let largest = b.iter().filter(|v| v.is_finite()).fold(f32::MIN_POSITIVE, |m, v| m.max(v.abs()));
        for (&a, &b) in a.iter().zip(b.iter()) {
            let same = a == b || (a.is_nan() && b.is_nan());
            let mut difference = if same { 0.0 } else { (a - b).abs() };
            if b.is_finite() {
                self.hear(f64::from(difference / largest), f64::from(b / largest));
            }
            if let Some(scale) = scale {
                let steps = (difference / scale).round();
                self.step(steps as u64);
                difference = (difference - steps * scale).abs();
            }
            // A NaN on one side only is not a small difference.
            let relative = difference / largest;
            self.relative = if relative.is_nan() { f32::INFINITY } else { self.relative.max(relative) };
        }
        Ok(())
    }

    fn hear(&mut self, noise: f64, signal: f64) {
        self.noise.0 += noise * noise;
        self.noise.1 += signal * signal;
    }

    fn step(&mut self, steps: u64) {
        self.steps = self.steps.max(steps);
        self.count.0 += usize::from(steps > 0);
        self.count.1 += 1;
    }
}

//! Gradients against finite differences, for every operator.
//!
//! The graphs are those that `tests/operators/make_op_cases.py` wrote (`COMPRESS_OP_CASES`) and ONNX's backend tests
//! (`COMPRESS_CONFORMANCE`). Every float input is a leaf, alone and then with all others. The derivative along
//! single elements and along dense directions must be that of the forward pass off the tape, which on the CPU
//! runs other kernels. What is expected of each input of each operator is in `gradients.txt`.

use super::*;
use crate::burn::tensor::{Float, Value};
use compress_compiler::{
    error::{Error, Kind},
    onnx,
    op::Operator,
    ops::reduce::ReduceKind,
};
use rayon::prelude::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

/// Elements of a leaf along which derivatives are compared, and dense directions.
const PROBES: (usize, usize) = (8, 2);
/// Steps, in shares of what an element is.
const STEPS: [f64; 4] = [1e-2, 4e-3, 1e-3, 2e-4];
/// How far slopes by two steps may be apart.
const AGREEMENT: f64 = 5e-3;
/// How far slopes to both sides may be from their mean.
const SMOOTH: f64 = 0.03;
/// How far a derivative may be off.
const TOLERANCE: f64 = 1e-2;
/// What the rounding of an output is taken for.
const ROUNDING: f64 = 5e-7;

/// Cases whose Softmax makes NaN that a Where replaces: their gradients are NaN in any framework.
const NAN_INSIDE: [&str; 5] = [
    "test_attention_23_boolmask_fullymasked_row_nan_robustness_expanded",
    "test_attention_23_fullymasked_qk_matmul_output_mode3_zero_expanded",
    "test_attention_24_fullymasked_qk_matmul_output_mode3_zero_expanded",
    "test_attention_4d_causal_nonpad_negative_offset_structural_empty_expanded",
    "test_attention_causal_boolmask_nan_robustness_expanded",
];

/// What is found of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    /// The gradient is that of finite differences.
    Right,
    /// An error says that there is no gradient.
    Refused,
    /// Nothing depends on it but by jumps.
    Zero,
}

/// Repeatable numbers between -1 and 1.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f64 / f64::from(1 << 23) - 1.0
    }
}

/// Of so many cases one is looked at on another device than the CPU.
const SOME: usize = 16;

/// A graph, its inputs, and which of them can be leaves.
struct Case {
    exe: Executable,
    inputs: Vec<Tensor>,
    leaves: Vec<(usize, String)>,
}

/// The outputs that count, one list.
struct Made {
    values: Vec<f64>,
    weights: Vec<f64>,
}

impl Case {
    /// `None` where the case has other than tensors, or rounds in its middle: gradients pass through that as if it
    /// didn't, so no difference is one. The kernels of that have their own tests.
    fn read(folder: &Path) -> Option<Self> {
        let graph = onnx::read(&folder.join("model.onnx")).ok()?.graph;
        let verified = verify(&graph).ok()?;
        let operators: Vec<_> = graph.operators().collect();
        let rounded = operators.iter().any(|n| matches!(graph.op(*n), Op::Quantize(_)));
        if rounded && operators.len() > 1 {
            return None;
        }
        let mut inputs = vec![];
        for i in 0..graph.inputs().len() {
            let bytes = fs::read(folder.join(format!("test_data_set_0/input_{i}.pb"))).ok()?;
            inputs.push(onnx::read_tensor(bytes).ok()?.1);
        }
        let mut ports: Vec<Port> = graph.inputs().iter().map(|id| Port::from(*id)).collect();
        let learnt =
            operators.iter().flat_map(|n| graph.op(*n).parameters().iter().map(|slot| graph.operand(*n, *slot)));
        for port in learnt.flatten().filter(|p| graph.constant(*p).is_some()).collect::<BTreeSet<_>>() {
            inputs.push(graph.constant(port)?.clone());
            ports.push(port);
        }
        let mut leaves = vec![];
        for (i, (port, t)) in ports.iter().zip(&inputs).enumerate() {
            if t.dtype() != DType::F32 || t.is_empty() {
                continue;
            }
            let Some(user) = graph.uses(*port).into_iter().next() else { continue };
            let op = graph.op(user.node);
            let slot = match op {
                Op::Concat(_) | Op::Variadic(_) | Op::Einsum(_) | Op::If(_) | Op::Loop(_) | Op::Scan(_) => 0,
                _ => user.slot,
            };
            let mode = if matches!(op, Op::BatchNorm(b) if b.training) { "(training)" } else { "" };
            let several = operators.len() > 1;
            leaves.push((i, if several { String::new() } else { format!("{}{mode} {slot}", op.op_type()) }));
        }
        // What training moves in a normalisation is not a part of a loss.
        let moved = |p: &Port| matches!(graph.op(p.node), Op::BatchNorm(_)) && p.slot > 0;
        let ends: Vec<Port> = graph.outputs().iter().map(|o| o.port).filter(|p| !moved(p)).collect();
        let place = verified.order().iter().enumerate().map(|(i, id)| (*id, i)).collect();
        let exe = Executable::part(&graph, &place, &ports, &ends, &Device::of_tests()).ok()?;
        Some(Self { exe, inputs, leaves })
    }

    fn values(&self, leaves: &[usize]) -> Result<Vec<Value>> {
        let one = |(i, t): (usize, &Tensor)| match leaves.contains(&i) {
            true => Ok(Value::Float(Float::upload(t, &Device::of_tests())?.leaf(false))),
            false => Value::input(t, &Device::of_tests()),
        };
        self.inputs.iter().enumerate().map(one).collect()
    }

    /// The float outputs off the tape, with input `changed` moved by `by`.
    fn outputs(&self, changed: usize, by: &[f64]) -> Result<Vec<f64>> {
        let mut values = self.values(&[])?;
        let x = &self.inputs[changed];
        let moved = x.as_f32().unwrap().iter().zip(by).map(|(x, d)| (f64::from(*x) + d) as f32).collect();
        values[changed] = Value::Float(Float::from_vec(moved, x.shape(), &Device::of_tests())?);
        let mut out = vec![];
        for value in self.exe.run_values(values)? {
            if let Some(y) = counted(value) {
                out.extend(y.into_f64s()?);
            }
        }
        Ok(out)
    }

    /// The gradients of `leaves` by a weighted sum of the outputs.
    fn gradients(&self, leaves: &[usize], weights: &[f64]) -> Result<Vec<Vec<f64>>> {
        let device = Device::of_tests();
        let values = self.values(leaves)?;
        let leaf =
            |i: &usize| if let Value::Float(x) = &values[*i] { x.clone() } else { unreachable!("a leaf is a float") };
        let leaves: Vec<Float> = leaves.iter().map(leaf).collect();
        let mut weights = weights;
        let mut sum: Option<Float> = None;
        for value in self.exe.run_values(values)? {
            let Some(y) = counted(value) else { continue };
            let (own, rest) = weights.split_at(y.elements());
            weights = rest;
            let counts: Vec<i64> = (0..own.len() as i64).filter(|i| own[*i as usize] != 0.0).collect();
            if counts.is_empty() || !y.is_tracked() {
                continue;
            }
            let own = counts.iter().map(|i| own[*i as usize]).collect();
            let own = Float::from_f64s(own, &[counts.len()], y.dtype(), &device)?;
            let n = y.elements();
            let part = y.reshape(&[n])?.select(0, counts)?.mul(own)?.reduce(ReduceKind::Sum, &[0], false)?;
            sum = Some(match sum {
                None => part,
                Some(sum) => sum.add(part)?,
            });
        }
        let mut all = sum.map(Float::backward).transpose()?;
        let of = |leaf: &Float| match all.as_mut().and_then(|all| all.take(leaf)) {
            Some(g) => g.into_f64s(),
            None => Ok(vec![0.0; leaf.elements()]),
        };
        leaves.iter().map(of).collect()
    }

    /// What is found of each leaf.
    fn check(&self) -> Result<Vec<Option<Class>>, String> {
        let all: Vec<usize> = self.leaves.iter().map(|(i, _)| *i).collect();
        let Some(first) = all.first() else { return Ok(vec![]) };
        let still = vec![0.0; self.inputs[*first].len()];
        let values = match self.outputs(*first, &still) {
            Err(e) if e.kind() == Kind::Unsupported => return Ok(vec![]),
            values => values.map_err(|e| format!("off the tape: {e}"))?,
        };
        let mut noise = Noise(1);
        let weights = values.iter().map(|v| if v.is_finite() { 1.0 + noise.next() / 2.0 } else { 0.0 }).collect();
        let made = Made { values, weights };
        let mut classes = vec![];
        let mut apart = vec![];
        for leaf in &all {
            match self.gradients(&[*leaf], &made.weights) {
                Err(e) if refuses(&e) => {
                    classes.push(Some(Class::Refused));
                    apart.push(None);
                }
                Err(e) => return Err(format!("input {leaf}: {e}")),
                Ok(mut g) => {
                    let g = g.remove(0);
                    classes.push(self.compare(*leaf, &g, &made).map_err(|why| format!("input {leaf}: {why}"))?);
                    apart.push(Some(g));
                }
            }
        }
        match self.gradients(&all, &made.weights) {
            Err(e) if refuses(&e) => {}
            Err(e) => return Err(format!("all inputs: {e}")),
            Ok(together) => {
                for (leaf, (a, b)) in all.iter().zip(apart.iter().zip(&together)) {
                    let Some(a) = a else { continue };
                    let size = a.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
                    if a.iter().zip(b).any(|(a, b)| (a - b).abs() > 1e-4 * size) {
                        return Err(format!("input {leaf}: alone {a:?}, with all others {b:?}"));
                    }
                }
            }
        }
        Ok(classes)
    }

    /// Compares a gradient with finite differences. `None` where no difference says anything.
    fn compare(&self, leaf: usize, gradient: &[f64], made: &Made) -> Result<Option<Class>, String> {
        let x = self.inputs[leaf].as_f32().unwrap();
        let finite = x.iter().filter(|v| v.is_finite() && v.abs() < 1e6);
        let mean = finite.map(|v| f64::from(v.abs())).sum::<f64>() / x.len() as f64;
        // An element moves in proportion to itself, but not by less than others do.
        let span = |i: usize| if x[i].is_finite() { f64::from(x[i].abs()).max(mean).clamp(1e-3, 1e6) } else { 0.0 };
        let mut noise = Noise(leaf as u64 + 2);
        let mut directions = vec![];
        for probe in 0..PROBES.0.min(x.len()) {
            let i = if x.len() <= PROBES.0 { probe } else { (noise.next().abs() * x.len() as f64) as usize % x.len() };
            let mut by = vec![0.0; x.len()];
            by[i] = span(i);
            directions.push((format!("element {i}"), by));
        }
        for probe in 0..PROBES.1 {
            directions.push((format!("direction {probe}"), (0..x.len()).map(|i| noise.next() * span(i)).collect()));
        }
        let mut class = None;
        for (name, by) in directions {
            let exact: f64 = gradient.iter().zip(&by).filter(|(_, d)| **d != 0.0).map(|(g, d)| g * d).sum();
            let Some((slope, error)) = self.slope(leaf, &by, made) else { continue };
            // Outputs that are NaN have such gradients too.
            if exact.is_nan() && made.weights.contains(&0.0) {
                continue;
            }
            let most = exact.abs().max(slope.abs());
            // Written so that NaN is wrong.
            let agree = (exact - slope).abs() <= TOLERANCE * most + error;
            if !agree {
                let all: Vec<_> = STEPS.iter().map(|step| self.secant(leaf, &by, *step, made)).collect();
                return Err(format!("{name}: {exact:e}, by differences {slope:e} +- {error:e}, of {all:?}"));
            }
            match most > 4.0 * error && most > 0.0 {
                true => class = Some(Class::Right),
                false if exact == 0.0 => class = class.or(Some(Class::Zero)),
                false => {}
            }
        }
        Ok(class)
    }

    /// The derivative along `by`, and how far it may be off; `None` where steps of two lengths disagree, as they do
    /// at kinks and jumps.
    fn slope(&self, leaf: usize, by: &[f64], made: &Made) -> Option<(f64, f64)> {
        let slopes: Vec<Option<[f64; 3]>> = STEPS.iter().map(|step| self.secant(leaf, by, *step, made)).collect();
        slopes.windows(2).find_map(|pair| {
            let ([long, e, half], [short, f, _]) = (pair[0]?, pair[1]?);
            ((long - short).abs() <= AGREEMENT * long.abs() + e + f).then_some((long, e + half))
        })
    }

    /// The slope between two points, what rounding does to it, and how far it is from that on either side; `None`
    /// where that is far.
    fn secant(&self, leaf: usize, by: &[f64], step: f64, made: &Made) -> Option<[f64; 3]> {
        let side = |step: f64| {
            let moved = self.outputs(leaf, &by.iter().map(|d| d * step).collect::<Vec<_>>()).ok()?;
            (moved.len() == made.values.len()).then_some(moved)
        };
        let (up, down) = (side(step)?, side(-step)?);
        let (mut right, mut left, mut changed, mut all) = (0.0, 0.0, 0.0, 0.0);
        for (i, w) in made.weights.iter().enumerate().filter(|(_, w)| **w != 0.0) {
            let (up, here, down) = (up[i], made.values[i], down[i]);
            let rounding = w * ROUNDING * up.abs().max(down.abs());
            right += w * (up - here);
            left += w * (here - down);
            changed += if up == down { 0.0 } else { rounding.abs() };
            all += rounding * rounding;
        }
        let (slope, error) = ((right + left) / step / 2.0, (changed + all.sqrt()) / step / 2.0);
        // Where a kink lies between both points, the derivative is that of one side.
        let half = (right - left).abs() / step / 2.0;
        let smooth = half <= SMOOTH * slope.abs() + error;
        (slope.is_finite() && smooth).then_some([slope, error, half])
    }
}

/// An output that a loss can be made of. What is rounded to 16 bits moves by jumps, and gradients pass through it as
/// if it weren't.
fn counted(value: Value) -> Option<Float> {
    match value {
        Value::Float(y) if matches!(y.dtype(), DType::F32 | DType::F64) => Some(y),
        _ => None,
    }
}

fn refuses(e: &Error) -> bool {
    e.kind() == Kind::Unsupported && e.message().contains("cannot be trained through")
}

/// The folders of cases that the environment names.
fn cases() -> Vec<PathBuf> {
    let named = |name: &str| env::var_os(name).unwrap_or_else(|| panic!("{name} is a folder of cases"));
    let folders = |folder: &Path| -> Vec<PathBuf> {
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir()).collect()
    };
    let ours = folders(Path::new(&named("COMPRESS_OP_CASES")));
    let onnx = folders(Path::new(&named("COMPRESS_CONFORMANCE"))).iter().flat_map(|f| folders(f)).collect();
    let mut all = [ours, onnx].concat();
    all.sort();
    all
}

#[test]
#[ignore = "needs COMPRESS_OP_CASES and COMPRESS_CONFORMANCE, which tests/run sets"]
fn gradients_are_those_of_differences() {
    let mut cases = cases();
    // A double of a device takes minutes for some of them, and the table is of all.
    let all = Device::of_tests().is_cpu();
    if !all {
        cases = cases.into_iter().step_by(SOME).collect();
    }
    let run = |folder: &PathBuf| {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let case = Case::read(folder).filter(|_| !NAN_INSIDE.contains(&&name[..]))?;
        let checked = catch_unwind(AssertUnwindSafe(|| case.check())).unwrap_or_else(|_| Err("panicked".into()));
        let labels = case.leaves.into_iter().map(|(_, label)| label);
        Some(checked.map(|classes| labels.zip(classes).collect::<Vec<_>>()).map_err(|why| format!("{name}: {why}")))
    };
    let checked: Vec<_> = cases.par_iter().filter_map(run).collect();
    let mut found: BTreeMap<String, BTreeSet<Class>> = BTreeMap::new();
    let mut wrong = vec![];
    for case in checked {
        match case {
            Err(why) => wrong.push(why),
            Ok(leaves) => {
                for (label, class) in leaves {
                    if !label.is_empty() {
                        found.entry(label).or_default().extend(class);
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    if !all {
        return;
    }
    let table: String =
        found.iter().filter_map(|(label, classes)| Some(format!("{label} {}\n", told(classes)?))).collect();
    let expected = include_str!("gradients.txt");
    assert!(table == expected, "gradients.txt should say\n{table}");
}

/// A line of the table: a gradient that is zero in some case is right.
fn told(classes: &BTreeSet<Class>) -> Option<&'static str> {
    let has = |class| classes.contains(&class);
    match (has(Class::Right), has(Class::Refused), has(Class::Zero)) {
        (true, true, _) => Some("right or refused"),
        (true, false, _) => Some("right"),
        (false, true, true) => Some("zero or refused"),
        (false, true, false) => Some("refused"),
        (false, false, true) => Some("zero"),
        (false, false, false) => None,
    }
}

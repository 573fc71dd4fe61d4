//! Kernels against plain loops, each run twice: in a graph, and alone by the interpreter.

#![allow(clippy::type_complexity, clippy::excessive_precision)]

mod elements;
mod execution;
mod gradients;
mod movement;
mod products;
mod quantized;
mod training;
mod types;
mod windows;

use super::{BurnInterpreter, Executable};
use crate::device::Device;
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::Port,
    op::Op,
    ops::source::Input,
    pass::Interpreter,
    tensor::{DType, Tensor},
    value::Fact,
    verify::verify,
};

/// Runs `op` in a graph of its own, and by the interpreter; both must give the same.
fn try_run(op: impl Into<Op>, inputs: &[Option<Tensor>], outputs: usize) -> Result<Vec<Tensor>> {
    let op = op.into();
    let alone = BurnInterpreter { device: Device::of_tests() }.eval(&op, inputs)?;
    let mut g = Graph::new("test");
    let mut ports = vec![];
    for (i, t) in inputs.iter().enumerate() {
        ports.push(match t {
            None => None,
            Some(t) => {
                let fact = Fact::new(Some(t.dtype()), Fact::of(t).shape);
                Some(Port::from(g.add_input(&format!("i{i}"), fact, Op::Input(Input { default: None }))?))
            }
        });
    }
    let names: Vec<String> = (0..outputs).map(|i| format!("o{i}")).collect();
    let n = g.add_node("n", op, &ports, &names.iter().map(|n| &n[..]).collect::<Vec<_>>())?;
    for (slot, name) in names.iter().enumerate() {
        g.add_output(name, Port { node: n, slot });
    }
    let given: Vec<Tensor> = inputs.iter().flatten().cloned().collect();
    let made = Executable::new(&verify(&g)?, &Device::of_tests())?.run(&given)?;
    // A kernel may make outputs that nobody asks for.
    assert!(made.len() <= alone.len());
    for ((slot, a), b) in made.iter().enumerate().zip(&alone) {
        assert_eq!((a.dtype(), a.shape(), a.bytes()), (b.dtype(), b.shape(), b.bytes()), "output {slot}");
        // What inference said must hold.
        let fact = Fact::new(Some(a.dtype()), Fact::of(a).shape);
        g.fact(Port { node: n, slot }).clone().refined(&fact).unwrap();
    }
    Ok(made)
}

fn run(op: impl Into<Op>, inputs: &[&Tensor]) -> Tensor {
    let inputs: Vec<Option<Tensor>> = inputs.iter().map(|t| Some((*t).clone())).collect();
    try_run(op, &inputs, 1).unwrap().remove(0)
}

fn fails(op: impl Into<Op>, inputs: &[&Tensor]) -> compress_compiler::error::Kind {
    let inputs: Vec<Option<Tensor>> = inputs.iter().map(|t| Some((*t).clone())).collect();
    let op = op.into();
    BurnInterpreter { device: Device::of_tests() }.eval(&op, &inputs).unwrap_err().kind()
}

/// Repeatable numbers between -1 and 1.
fn noise(shape: &[usize], seed: u64) -> Tensor {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let data: Vec<f32> = (0..shape.iter().product())
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / (1 << 23) as f32) - 1.0
        })
        .collect();
    Tensor::f32(shape, &data)
}

fn floats(t: &Tensor) -> Vec<f32> {
    t.as_f32().unwrap().into_owned()
}

fn f32s(data: &[f32]) -> Tensor {
    Tensor::f32(&[data.len()], data)
}

fn scalar(v: f32) -> Tensor {
    Tensor::f32(&[], &[v])
}

fn ints(dtype: DType, data: &[i64]) -> Tensor {
    Tensor::ints(dtype, &[data.len()], data)
}

#[track_caller]
fn close(t: &Tensor, shape: &[usize], expected: &[f32]) {
    assert_eq!(t.shape(), shape);
    for (i, (a, b)) in floats(t).iter().zip(expected).enumerate() {
        let same = (a.is_nan() && b.is_nan()) || a == b || (a - b).abs() <= 1e-5 * b.abs().max(1.0);
        assert!(same, "element {i}: {a} is not {b}");
    }
}

#[track_caller]
fn same_ints(t: &Tensor, shape: &[usize], expected: &[i64]) {
    assert_eq!((t.shape(), &t.as_i64().unwrap()[..]), (shape, expected));
}

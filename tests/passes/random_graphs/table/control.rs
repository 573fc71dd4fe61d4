//! If, Loop and Scan over random bodies.

use super::{entries, i};
use crate::{
    maker::{Maker, V},
    table::Entry,
};
use compress_compiler::tensor::{DType, Tensor};

pub const ENTRIES: &[&[Entry]] = &[entries!(false: branches 5, same_condition 2, repeated 3, scanned 2)];

/// Some values that a body reads from outside.
fn outer(m: &mut Maker, n: usize) -> Vec<V> {
    let mut found: Vec<V> = vec![];
    for _ in 0..n {
        if let Some(v) = m.pick(|v| v.known.tensor.dtype() == DType::F32 && v.known.is_tame())
            && !found.contains(&v)
        {
            found.push(v);
        }
    }
    found
}

fn condition(m: &mut Maker) -> V {
    let t = m.filled(DType::Bool, &[], 0.0, 1.0);
    if m.chance(0.4) {
        return m.constant(t);
    }
    let old = m.pick(|v| v.known.tensor.dtype() == DType::Bool && v.known.tensor.shape().is_empty() && !v.constant);
    old.unwrap_or_else(|| m.input(t))
}

/// An If whose branches make two values each; what they share in type only.
fn if_on(m: &mut Maker, condition: V) -> Option<()> {
    let count = m.size(1, 3);
    let captured = outer(m, count);
    let mut branches = vec![];
    for _ in 0..2 {
        let steps = m.size(0, 4);
        let mut inner = m.inner(&[], &captured, steps);
        if let Some(failure) = inner.failure.take() {
            m.failure = Some(failure);
            return None;
        }
        let results = [inner.of(DType::F32, 0..=5), inner.of(DType::F32, 0..=5)];
        branches.push((inner, results));
    }
    let count = m.size(1, 2);
    let mut bodies = branches.into_iter().map(|(g, results)| g.into_body(&results[..count], captured.len()));
    let (yes, no) = (bodies.next()?, bodies.next()?);
    let operands: Vec<Option<V>> = [condition].into_iter().chain(captured).map(Some).collect();
    m.ops("If", &operands, &[("then_branch", yes.into()), ("else_branch", no.into())], count).map(drop)
}

fn branches(m: &mut Maker) -> Option<()> {
    let mut c = condition(m);
    if m.chance(0.3) {
        c = m.op("Not", &[Some(c)], &[])?;
    }
    if_on(m, c)
}

fn same_condition(m: &mut Maker) -> Option<()> {
    let c = condition(m);
    if_on(m, c)?;
    if_on(m, c)
}

/// In `inner`, a value like formal `v`, the newest there is.
fn successor(inner: &mut Maker, v: V) -> V {
    let (dtype, shape) = (inner.dtype(v), inner.shape(v));
    let last = (0..inner.values.len()).rev().find(|u| {
        let e = &inner.values[*u];
        !e.constant && e.known.tensor.dtype() == dtype && e.known.tensor.shape() == shape
    });
    last.unwrap_or(v)
}

fn repeated(m: &mut Maker) -> Option<()> {
    let state = m.within(-3.0, 3.0)?;
    let captured = outer(m, 1);
    let start = m.at(state).clone();
    let (steps, scan) = (m.size(1, 3), m.chance(0.5));
    // The sizes of what is stacked are not known where nothing is.
    let trips = m.int(scan.into(), 3);
    let formals = [Tensor::ints(DType::I64, &[], &[0]), Tensor::ints(DType::Bool, &[], &[1]), start];
    let mut inner = m.inner(&formals, &captured, steps);
    if let Some(failure) = inner.failure.take() {
        m.failure = Some(failure);
        return None;
    }
    let next = successor(&mut inner, 2);
    // States stay small whatever the body does.
    let next = inner.op("Tanh", &[Some(next)], &[])?;
    let mut results = vec![1, next];
    if scan {
        results.push(next);
    }
    let captures = captured.len();
    let body = inner.into_body(&results, captures);
    let trips = m.scalar(trips);
    let goes = m.shared(Tensor::ints(DType::Bool, &[], &[1]));
    let goes = if m.chance(0.5) { Some(goes) } else { None };
    let operands: Vec<Option<V>> =
        [Some(trips), goes, Some(state)].into_iter().chain(captured.into_iter().map(Some)).collect();
    m.ops("Loop", &operands, &[("body", body.into())], if scan { 2 } else { 1 }).map(drop)
}

fn scanned(m: &mut Maker) -> Option<()> {
    let sequence = m.x(2);
    let (t, width) = (m.shape(sequence)[0], m.shape(sequence)[1]);
    if t == 0 || width == 0 {
        return None;
    }
    let state = m.weight(DType::F32, &[width]);
    let captured = outer(m, 1);
    let row = m.filled(DType::F32, &[width], -2.0, 2.0);
    let formals = [m.at(state).clone(), row];
    let steps = m.size(1, 3);
    let mut inner = m.inner(&formals, &captured, steps);
    if let Some(failure) = inner.failure.take() {
        m.failure = Some(failure);
        return None;
    }
    let joined = inner.op("Add", &[Some(0), Some(1)], &[])?;
    let next = inner.op("Tanh", &[Some(joined)], &[])?;
    let seen = successor(&mut inner, 1);
    let captures = captured.len();
    let body = inner.into_body(&[next, seen], captures);
    let operands: Vec<Option<V>> = [state, sequence].into_iter().chain(captured).map(Some).collect();
    m.ops("Scan", &operands, &[("body", body.into()), ("num_scan_inputs", i(1))], 2).map(drop)
}

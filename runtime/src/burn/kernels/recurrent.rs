//! RNN, GRU, LSTM.
//!
//! The product with W is one for the whole sequence; only what depends on the state goes step
//! by step: in a kernel where there is one, or else by Burn, which can go back over the steps.

use super::{Args, quantize};
use crate::{
    burn::{
        host::IntArray,
        tensor::{Float, Value, check_size},
    },
    device::Device,
};
use compress_compiler::{
    error::{Error, Result},
    ops::{
        dynamic_lstm::DynamicLstm,
        recurrent::{Cell, GateActivation, GateKind, Recurrent},
    },
    tensor::DType,
};
use compress_kernels::{self as kernels, Isa, Recurrence, Rows, StateWeights};

/// What all directions share.
struct Cells<'a> {
    op: &'a Recurrent,
    length: usize,
    batch: usize,
    hidden: usize,
    /// How long each sequence is, where they differ.
    lengths: Option<Vec<i64>>,
    /// Whether states become codes before they are multiplied.
    codes: bool,
    device: &'a Device,
}

/// One direction's weights, and its state before the first step.
struct OneWay<'a> {
    /// The activations f, g, h, as many as the cell has.
    functions: &'a [GateActivation],
    /// `X W'` with the biases that don't depend on the state, `[length, batch, gates * hidden]`.
    projected: Float,
    /// R, transposed: `[hidden, gates * hidden]`, but without what is in `r_new`.
    r: Float,
    /// The part of R that is multiplied after the reset gate was applied.
    r_new: Option<Float>,
    /// The bias on `H R'` where it can't be added to `projected`.
    inner_bias: Option<Float>,
    /// Weights of the peepholes i, o, f.
    peepholes: Option<[Float; 3]>,
    h: Float,
    c: Float,
}

/// RNN, GRU or LSTM.
pub(super) fn recurrent(op: &Recurrent, mut a: Args) -> Result<Vec<Value>> {
    let (x, w, r) = (a.float(0)?, a.float(1)?, a.float(2)?);
    layer(op, [x, w, r], false, a)
}

/// An LSTM by codes.
pub(super) fn dynamic(op: &DynamicLstm, mut a: Args) -> Result<Vec<Value>> {
    let x = by_own_range(a.float(0)?)?;
    let mut weight = |slot: usize, scale: usize| -> Result<Float> {
        let (codes, scale, zero) = (a.take(slot)?, a.float(scale)?, a.take(scale + 1)?);
        let [codes, zero] =
            [codes, zero].map(|codes| quantize::numbers(codes, a.device).map(|t| t.with_dtype(DType::F32)));
        let (codes, zero) = (codes?, zero?);
        let &[directions, _, columns] = codes.shape() else {
            return Err(Error::malformed(format!("input {slot} of shape {:?}", codes.shape())));
        };
        let per_column = |t: Float| match *t.shape() {
            [n] if n == directions => t.reshape(&[n, 1, 1]),
            [n, m] if n == directions && m == columns => t.reshape(&[n, 1, m]),
            _ => Err(Error::malformed(format!("scales or zero points of shape {:?}", t.shape()))),
        };
        let values = codes.sub(per_column(zero)?)?.mul(per_column(scale)?)?;
        Ok(values.permute(&[0, 2, 1]))
    };
    let (w, r) = (weight(1, 8)?, weight(2, 10)?);
    layer(&op.lstm, [x, w, r], true, a)
}

/// What is left of `x` where it becomes codes by its own range, as DynamicQuantizeLinear has it.
fn by_own_range(x: Float) -> Result<Float> {
    let (scale, zero) = quantize::own_range(&x)?;
    let codes = x.div_scalar(scale).round().add_scalar(zero).clamp_min(0.0).clamp_max(255.0);
    Ok(codes.add_scalar(-zero).mul_scalar(scale))
}

/// The layer with weights W and R; states become codes before they are multiplied if `codes`.
fn layer(op: &Recurrent, [x, w, r]: [Float; 3], codes: bool, mut a: Args) -> Result<Vec<Value>> {
    let (&[first, second, input], &[_, _, hidden]) = (x.shape(), r.shape()) else {
        return Err(Error::malformed(format!("X of {:?} and R of {:?}", x.shape(), r.shape())));
    };
    let (batch, length) = if op.batch_first { (first, second) } else { (second, first) };
    let (directions, gates) = (op.directions(), op.cell.gates());
    let x = if op.batch_first { x.permute(&[1, 0, 2]) } else { x };
    let rows = check_size(&[gates, hidden])?;
    let state = [directions, batch, hidden];
    check_size(&[length, directions, batch, rows])?;
    expect(&w, 1, &[directions, rows, input])?;
    expect(&r, 2, &[directions, rows, hidden])?;

    let b = sized(&mut a, 3, &[directions, 2 * rows])?;
    let lengths = lengths(&mut a, batch, length)?;
    if codes && lengths.is_some() {
        // Which states of sequences that have ended count for the range is not said anywhere.
        return Err(Error::unsupported("sequences of different lengths in a layer by codes"));
    }
    let mut start = |slot| {
        let given = if op.batch_first { [batch, directions, hidden] } else { state };
        Ok::<_, Error>(match sized(&mut a, slot, &given)? {
            Some(s) if op.batch_first => s.permute(&[1, 0, 2]),
            Some(s) => s,
            None => Float::full(&state, 0.0, a.device)?.with_dtype(x.dtype()),
        })
    };
    let h = start(5)?;
    let lstm = matches!(op.cell, Cell::Lstm { .. });
    let c = if lstm { start(6)? } else { h.clone() };
    let p = if lstm { sized(&mut a, 7, &[directions, 3 * hidden])? } else { None };

    let cells = Cells { op, length, batch, hidden, lengths, codes, device: a.device };
    let flat = x.reshape(&[length * batch, input])?;
    let (mut ys, mut hs, mut cs) = (vec![], vec![], vec![]);
    let functions = op.activations.chunks(op.activations.len() / directions);
    for (d, (functions, backwards)) in functions.zip(op.direction.passes()).enumerate() {
        let part = |t: &Float| -> Result<Float> {
            let rest = t.shape()[1..].to_vec();
            t.clone().slice(0, d, 1, 1)?.reshape(&rest)
        };
        let (outer, inner_bias) = match &b {
            None => (None, None),
            Some(b) => {
                let row = b.clone().slice(0, d, 1, 1)?;
                let (wb, rb) = (row.clone().slice(1, 0, rows, 1)?, row.slice(1, rows, rows, 1)?);
                match op.cell {
                    Cell::Gru { linear_before_reset: true } => (Some(wb), Some(rb)),
                    _ => (Some(wb.add(rb)?), None),
                }
            }
        };
        let mut projected = flat.clone().matmul(part(&w)?.permute(&[1, 0]))?;
        if let Some(b) = outer {
            projected = projected.add(b)?;
        }
        let peepholes = match &p {
            None => None,
            Some(p) => {
                let row = p.clone().slice(0, d, 1, 1)?;
                let at = |i: usize| row.clone().slice(1, i * hidden, hidden, 1);
                Some([at(0)?, at(1)?, at(2)?])
            }
        };
        let turned = part(&r)?.permute(&[1, 0]);
        let (r_outer, r_new) = match op.cell {
            Cell::Gru { linear_before_reset: false } => {
                let new = turned.clone().slice(1, 2 * hidden, hidden, 1)?;
                (turned.slice(1, 0, 2 * hidden, 1)?, Some(new))
            }
            _ => (turned, None),
        };
        let way = OneWay { functions, projected, r: r_outer, r_new, inner_bias, peepholes, h: part(&h)?, c: part(&c)? };
        let (y, h, c) = cells.run(way, *backwards)?;
        ys.push(y);
        hs.push(h.reshape(&[1, batch, hidden])?);
        cs.push(c.reshape(&[1, batch, hidden])?);
    }
    let y = Float::cat(ys, 1)?;
    let mut out = vec![if op.batch_first { y.permute(&[2, 0, 1, 3]) } else { y }];
    for states in if lstm { vec![hs, cs] } else { vec![hs] } {
        let s = Float::cat(states, 0)?;
        out.push(if op.batch_first { s.permute(&[1, 0, 2]) } else { s });
    }
    Ok(out.into_iter().map(Value::Float).collect())
}

fn expect(t: &Float, slot: usize, shape: &[usize]) -> Result<()> {
    if t.shape() == shape {
        return Ok(());
    }
    Err(Error::malformed(format!("input {slot} has shape {:?}, not {shape:?}", t.shape())))
}

fn sized(a: &mut Args, slot: usize, shape: &[usize]) -> Result<Option<Float>> {
    let t = a.opt_float(slot)?;
    t.iter().try_for_each(|t| expect(t, slot, shape))?;
    Ok(t)
}

fn lengths(a: &mut Args, batch: usize, length: usize) -> Result<Option<Vec<i64>>> {
    let Some(lengths) = a.opt_ints(4)? else { return Ok(None) };
    if lengths.len() != batch || lengths.iter().any(|n| !(0..=length as i64).contains(n)) {
        return Err(Error::malformed(format!(
            "sequence_lens {lengths:?} for {batch} sequences of {length} elements at most"
        )));
    }
    Ok(lengths.iter().any(|n| *n < length as i64).then(|| lengths.to_vec()))
}

impl Cells<'_> {
    /// Reads the sequence: Y as `[length, 1, batch, hidden]`, and the last state.
    fn run(&self, mut way: OneWay, backwards: bool) -> Result<(Float, Float, Float)> {
        let (batch, hidden) = (self.batch, self.hidden);
        if self.has_kernel(&way) {
            return self.run_on_host(way, backwards);
        }
        let mut ys = Vec::with_capacity(self.length);
        for i in 0..self.length {
            let t = if backwards { self.length - 1 - i } else { i };
            let x = way.projected.clone().slice(0, t * batch, batch, 1)?;
            let (h, c) = self.step(&way, x)?;
            let y = match &self.lengths {
                None => {
                    (way.h, way.c) = (h.clone(), c);
                    h
                }
                // A sequence that has ended, or seen backwards has not begun, keeps its state.
                Some(lengths) => {
                    let inside = lengths.iter().map(|n| (t < *n as usize) as i64).collect();
                    let inside = IntArray::new(DType::Bool, vec![batch, 1], inside);
                    let y = h.clone().select_where(&inside, Float::full(&[], 0.0, self.device)?)?;
                    (way.h, way.c) = (h.select_where(&inside, way.h)?, c.select_where(&inside, way.c)?);
                    y
                }
            };
            ys.push(y.reshape(&[1, 1, batch, hidden])?);
        }
        if backwards {
            ys.reverse();
        }
        Ok((Float::cat(ys, 0)?, way.h, way.c))
    }

    /// Whether one kernel can do all the steps: that of an inference on the CPU, of the cell as its paper has it.
    fn has_kernel(&self, way: &OneWay) -> bool {
        let operands = [&way.projected, &way.r, &way.h, &way.c].into_iter().chain(&way.r_new).chain(&way.inner_bias);
        let fit = |t: &Float| !t.is_tracked() && t.dtype() != DType::F64;
        self.op.is_usual()
            && self.lengths.is_none()
            && !self.codes
            && way.peepholes.is_none()
            && self.device.is_cpu()
            && operands.into_iter().all(fit)
    }

    fn run_on_host(&self, way: OneWay, backwards: bool) -> Result<(Float, Float, Float)> {
        let (batch, hidden, dtype) = (self.batch, self.hidden, way.projected.dtype());
        let weights = match way.r_new {
            Some(new) => Float::cat(vec![way.r, new], 1)?,
            None => way.r,
        };
        let (x, weights) = (way.projected.into_vec()?, weights.permute(&[1, 0]).into_vec()?);
        let bias = way.inner_bias.map(Float::into_vec).transpose()?.unwrap_or_default();
        let (mut h, mut c) = (way.h.into_vec()?, way.c.into_vec()?);
        let mut y = vec![0.0; self.length * batch * hidden];
        let op = match self.op.cell {
            Cell::Gru { linear_before_reset } => Recurrence::Gru { linear_before_reset },
            _ => Recurrence::Lstm,
        };
        let width = self.op.cell.gates() * hidden;
        let way = (backwards, StateWeights::Floats(&weights), &bias[..]);
        let layer = kernels::Recurrent::new(Isa::detect(), op, hidden, &[way]);
        let x = Rows::dense(&x, self.length * batch, width);
        layer.run(x, &mut h, &mut c, &mut y, &mut vec![0; layer.scratch(batch)], 1);
        let made = |data, shape: &[usize]| Ok::<_, Error>(Float::from_vec(data, shape, self.device)?.with_dtype(dtype));
        Ok((made(y, &[self.length, 1, batch, hidden])?, made(h, &[batch, hidden])?, made(c, &[batch, hidden])?))
    }

    /// The state after one step, given the rows of the projected input.
    fn step(&self, way: &OneWay, x: Float) -> Result<(Float, Float)> {
        let n = self.hidden;
        let gate = |t: &Float, i: usize| t.clone().slice(1, i * n, n, 1);
        let call = |i: usize, t: Float| activate(&way.functions[i], self.clipped(t));
        let h = if self.codes { by_own_range(way.h.clone())? } else { way.h.clone() };
        let hr = |r: &Float| h.clone().matmul(r.clone());
        match self.op.cell {
            Cell::Rnn => {
                let h = call(0, x.add(hr(&way.r)?)?)?;
                Ok((h.clone(), h))
            }
            Cell::Gru { .. } => {
                let mut inner = hr(&way.r)?;
                if let Some(b) = &way.inner_bias {
                    inner = inner.add(b.clone())?;
                }
                let z = call(0, gate(&x, 0)?.add(gate(&inner, 0)?)?)?;
                let r = call(0, gate(&x, 1)?.add(gate(&inner, 1)?)?)?;
                let inner = match &way.r_new {
                    Some(r_new) => r.mul(way.h.clone())?.matmul(r_new.clone())?,
                    None => r.mul(gate(&inner, 2)?)?,
                };
                let new = call(1, gate(&x, 2)?.add(inner)?)?;
                let kept = z.clone().mul(way.h.clone())?;
                let h = z.neg().add_scalar(1.0).mul(new)?.add(kept)?;
                Ok((h.clone(), h))
            }
            Cell::Lstm { input_forget } => {
                let gates = x.add(hr(&way.r)?)?;
                let peep = |t: Float, i: usize, c: &Float| match &way.peepholes {
                    Some(p) => t.add(c.clone().mul(p[i].clone())?),
                    None => Ok(t),
                };
                let i = call(0, peep(gate(&gates, 0)?, 0, &way.c)?)?;
                let f = if input_forget {
                    i.clone().neg().add_scalar(1.0)
                } else {
                    call(0, peep(gate(&gates, 2)?, 2, &way.c)?)?
                };
                let new = call(1, gate(&gates, 3)?)?;
                let c = f.mul(way.c.clone())?.add(i.mul(new)?)?;
                let o = call(0, peep(gate(&gates, 1)?, 1, &c)?)?;
                let h = o.mul(activate(&way.functions[2], c.clone())?)?;
                Ok((h, c))
            }
        }
    }

    fn clipped(&self, x: Float) -> Float {
        match self.op.clip {
            Some(c) => x.clamp_min(-c).clamp_max(c),
            None => x,
        }
    }
}

fn activate(f: &GateActivation, x: Float) -> Result<Float> {
    let (alpha, beta) = (f.alpha, f.beta);
    Ok(match f.kind {
        GateKind::Relu => x.relu(),
        GateKind::Tanh => x.tanh(),
        GateKind::Sigmoid => x.sigmoid(),
        GateKind::Affine => x.mul_scalar(alpha).add_scalar(beta),
        GateKind::LeakyRelu => x.leaky_relu(alpha),
        GateKind::ThresholdedRelu => {
            let below = x.clone().sub_scalar(alpha).sign().clamp_max(0.0);
            below.add_scalar(1.0).mul(x)?
        }
        GateKind::ScaledTanh => x.mul_scalar(beta).tanh().mul_scalar(alpha),
        GateKind::HardSigmoid => x.hard_sigmoid(alpha, beta),
        GateKind::Elu => {
            let below = x.clone().clamp_max(0.0).exp().sub_scalar(1.0).mul_scalar(alpha);
            x.relu().add(below)?
        }
        GateKind::Softsign => x.clone().div(x.abs().add_scalar(1.0))?,
        GateKind::Softplus => x.softplus(),
    })
}

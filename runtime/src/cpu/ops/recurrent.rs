//! LSTM and GRU by constant weights, and LSTM by codes.
//!
//! The states after the last step lie behind those after each step: Y_h and Y_c are parts of what makes Y.

use crate::cpu::{
    cost,
    lowering::{Lowered, Lowering, Operand, ValueId, Want},
    plan::{Layout, Planner},
    scope::Scope,
    steps::View,
};
use compress_compiler::{
    error::{Error, Result},
    node::Port,
    op::Op,
    ops::recurrent::{Cell, Recurrent},
    tensor::{DType, Tensor},
};
use compress_kernels::{
    self as kernels, CodeMatrix, ConvF, Dynamic8, End, Isa, Recurrence, Rows, StateWeights, Window,
};
use std::sync::Arc;

/// The float value `port`, where a recurrent layer makes it.
pub(super) fn lowering<'g>(s: &Scope<'g>, port: Port) -> Option<Lowering<'g>> {
    let g = s.graph;
    let (op, codes) = match g.op(port.node) {
        Op::Recurrent(op) => (op, false),
        Op::DynamicLstm(op) => (&op.lstm, true),
        _ => return None,
    };
    let operand = |slot: usize| g.operand(port.node, slot);
    let x = operand(0)?;
    let float = |p: &Port| g.fact(*p).dtype == Some(DType::F32);
    let fits = s.has(port.node)
        && op.is_usual()
        && !op.batch_first
        && [4, 7].iter().all(|slot| operand(*slot).is_none())
        && [0, 5, 6].iter().filter_map(|slot| operand(*slot)).all(|p| float(&p));
    let sizes = Sizes::of(s, port, op, codes).filter(|_| fits)?;
    if port.slot > 0 {
        return Some(Lowering::of(vec![Want::float(Port { slot: 0, ..port })], StatesAfter(port.slot - 1)));
    }
    let starts = [5, 6].map(operand);
    let operands = [Some(x)].into_iter().chain(starts).flatten().map(Want::float).collect();
    let later = |slot: usize| operand(slot).map(|p| s.constant_later(p));
    let (w, r, b, scales) = (later(1)?, later(2)?, later(3), [8, 10].map(|slot| codes.then(|| later(slot)).flatten()));
    Some(Lowering::with(operands, move |isa| {
        let [of_w, of_r] = scales.map(|t| t.map(|t| t()).transpose());
        let weights = [(w()?, of_w?), (r()?, of_r?)];
        Layer::new(isa, op, sizes, weights, b.map(|b| b()).transpose()?, starts.map(|p| p.is_some()))
    }))
}

/// The sizes of a layer.
#[derive(Clone, Copy)]
struct Sizes {
    directions: usize,
    input: usize,
    hidden: usize,
    /// Gates times hidden.
    rows: usize,
}

impl Sizes {
    /// Those of a layer whose weights are constants that fit each other: of floats, or codes around zero with their scales.
    fn of(s: &Scope, port: Port, op: &Recurrent, codes: bool) -> Option<Self> {
        let g = s.graph;
        let operand = |slot: usize| g.operand(port.node, slot);
        let shape = |slot: usize| {
            let p = operand(slot)?;
            let is_known = if codes { g.constant(p).is_some_and(|t| t.dtype() == DType::I8) } else { s.is_constant(p) };
            g.fact(p).fixed().filter(|_| is_known)
        };
        let (&[directions, a, b], &[_, c, d]) = (&shape(1)?[..], &shape(2)?[..]) else { return None };
        let (rows, input, hidden) = if codes { (b, a, c) } else { (a, b, d) };
        let r = if codes { [directions, hidden, rows] } else { [directions, rows, hidden] };
        let bias = operand(3).map(|p| g.fact(p).fixed().filter(|_| s.is_constant(p)));
        let by_codes = |slot: usize| {
            let (scale, zero) = (g.constant(operand(slot)?)?, g.constant(operand(slot + 1)?)?);
            let sizes = scale.shape() == [directions] || scale.shape() == [directions, rows];
            Some(sizes && scale.dtype() == DType::F32 && zero.as_i64()?.iter().all(|z| *z == 0))
        };
        let fits = directions == op.directions()
            && rows == op.cell.gates() * hidden
            && hidden > 0
            && input > 0
            && shape(2)? == r
            && bias.is_none_or(|b| b.is_some_and(|b| b == [directions, 2 * rows]))
            && (!codes || [8, 10].into_iter().all(|slot| by_codes(slot) == Some(true)));
        fits.then_some(Self { directions, input, hidden, rows })
    }
}

/// The product of the whole sequence by W.
enum Projection {
    Floats(ConvF),
    Codes(Dynamic8),
}

/// A layer.
struct Layer {
    projection: Arc<Projection>,
    states: Arc<kernels::Recurrent>,
    sizes: Sizes,
    /// Whether h and c are given before the first step.
    starts: [bool; 2],
    lstm: bool,
    weight_bytes: usize,
}

impl Layer {
    fn new(
        isa: Isa,
        op: &Recurrent,
        sizes: Sizes,
        [(w, of_w), (r, of_r)]: [(Tensor, Option<Tensor>); 2],
        b: Option<Tensor>,
        starts: [bool; 2],
    ) -> Result<Self> {
        let Sizes { directions, input, hidden, rows } = sizes;
        let codes = of_w.is_some();
        let bias = b.as_ref().and_then(Tensor::as_f32);
        let bias = bias.map_or_else(|| vec![0.0; directions * 2 * rows], |b| b.into_owned());
        // The bias of the product by the states is added to that of the input where nothing comes between.
        let apart = op.cell == Cell::Gru { linear_before_reset: true };
        let sum = |(of_x, of_h): (&f32, &f32)| if apart { *of_x } else { of_x + of_h };
        let (outer, inner): (Vec<Vec<f32>>, Vec<&[f32]>) = bias
            .chunks_exact(2 * rows)
            .map(|of| {
                (of[..rows].iter().zip(&of[rows..]).map(sum).collect(), if apart { &of[rows..] } else { &[][..] })
            })
            .unzip();
        let outer = outer.concat();
        let recurrence = match op.cell {
            Cell::Gru { linear_before_reset } => Recurrence::Gru { linear_before_reset },
            _ => Recurrence::Lstm,
        };
        let backwards = op.direction.passes().iter().zip(&inner);
        let (projection, states) = if codes {
            let of_w = per_column(of_w, rows);
            let w = turned(&w, input, rows);
            let (r, of_r) = (turned(&r, hidden, rows), per_column(of_r, rows));
            let parts = r.chunks_exact(rows * hidden).zip(of_r.chunks_exact(rows));
            let ways: Vec<_> =
                parts.zip(backwards).map(|((r, s), (b, bias))| (*b, StateWeights::Codes(r, s), *bias)).collect();
            let matrix = CodeMatrix { codes: &w, scales: &of_w, zeros: None };
            let projection = Projection::Codes(Dynamic8::new(isa, matrix, outer, End::default()));
            (projection, kernels::Recurrent::new(isa, recurrence, hidden, &ways))
        } else {
            let (w, r) = (w.as_f32().unwrap_or_default(), r.as_f32().unwrap_or_default());
            let parts = r.chunks_exact(rows * hidden);
            let ways: Vec<_> =
                parts.zip(backwards).map(|(r, (b, bias))| (*b, StateWeights::Floats(r), *bias)).collect();
            let matrix = Rows::dense(&w, directions * rows, input);
            let bounds = (f32::NEG_INFINITY, f32::INFINITY);
            let projection = Projection::Floats(ConvF::of_matrix(isa, matrix, true, &outer, bounds, 1));
            (projection, kernels::Recurrent::new(isa, recurrence, hidden, &ways))
        };
        Ok(Self {
            projection: Arc::new(projection),
            states: Arc::new(states),
            sizes,
            starts,
            lstm: recurrence == Recurrence::Lstm,
            weight_bytes: w.bytes().len() + r.bytes().len(),
        })
    }
}

/// A scale for each column of each direction.
fn per_column(scales: Option<Tensor>, columns: usize) -> Vec<f32> {
    let scales = scales.unwrap_or_else(|| Tensor::f32(&[0], &[]));
    let each = if scales.shape().len() == 1 { columns } else { 1 };
    let values = scales.as_f32().unwrap_or_default();
    values.iter().flat_map(|s| std::iter::repeat_n(*s, each)).collect()
}

/// Codes of columns, as those of rows.
fn turned(codes: &Tensor, inner: usize, columns: usize) -> Vec<i8> {
    let of_direction = codes.bytes().chunks_exact((inner * columns).max(1));
    let turn = |of: &[u8]| -> Vec<i8> {
        (0..columns).flat_map(|c| (0..inner).map(move |k| of[k * columns + c].cast_signed())).collect()
    };
    of_direction.flat_map(turn).collect()
}

impl Lowered for Layer {
    fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }

    fn is_by_sample(&self, _inputs: &[Operand], _output: &[usize]) -> bool {
        // The first axis is time.
        false
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let Sizes { directions, input, hidden, rows: gates } = self.sizes;
        let &[length, batch, given] = p.dims(inputs[0]) else {
            return Err(Error::unsupported("X that is not of rank 3"));
        };
        let fit = inputs[1..].iter().all(|id| p.dims(*id) == [directions, batch, hidden]);
        if given != input || !fit {
            return Err(Error::unsupported("X or states that don't fit the weights"));
        }
        let (rows, states, width) = (length * batch, directions * batch, directions * gates);
        let x = p.read(inputs[0], Layout::Plain);
        let projected = p.buffer(output, rows, width);
        let of = self.projection.clone();
        let work = cost::macs32(p.isa(), (rows * width * input) as u64);
        let parts = p.parts(work);
        let (name, scratch) = match &*of {
            Projection::Floats(of) => ("gemm_f32", of.scratch(&Window::pixel(rows), parts)),
            Projection::Codes(of) => ("gemm_dynamic_i8", of.scratch(rows, parts)),
        };
        p.step(name, output, &[x], projected, scratch, work, move |o| {
            let (x, parts) = (o.read(0), o.parts);
            let (y, scratch) = o.write();
            match &*of {
                Projection::Floats(of) => of.run(x, &Window::pixel(rows), None, y, scratch, parts),
                Projection::Codes(of) => of.run(x, y, scratch, parts),
            }
        });
        let mut reads = vec![projected];
        for id in &inputs[1..] {
            reads.push(p.dense(*id));
        }
        let y = p.followed(output, 2 * states);
        let work = cost::macs32(p.isa(), (rows * width * hidden) as u64);
        let scratch = self.states.scratch(batch);
        let name = match (self.lstm, &*self.projection) {
            (true, Projection::Codes(_)) => "lstm_i8",
            (true, Projection::Floats(_)) => "lstm_f32",
            (false, _) => "gru_f32",
        };
        let (layer, [has_h, has_c], lstm) = (self.states.clone(), self.starts, self.lstm);
        let size = states * hidden;
        p.step(name, output, &reads, y, scratch, work, move |o| {
            let (x, parts) = (o.read(0), o.parts);
            let h: Option<&[f32]> = has_h.then(|| o.slice(1));
            let c: Option<&[f32]> = has_c.then(|| o.slice(1 + usize::from(has_h)));
            let (mut y, scratch) = o.write();
            let (y, after) = y.data().split_at_mut(length * size);
            let (after_h, after_c) = after.split_at_mut(size);
            for (to, from) in [(&mut *after_h, h), (&mut *after_c, c)] {
                match from {
                    Some(from) => to.copy_from_slice(from),
                    None => to.fill(0.0),
                }
            }
            layer.run(x, after_h, if lstm { after_c } else { &mut [] }, y, scratch, parts);
        });
        Ok(())
    }
}

/// Y_h or Y_c, the states after the last step, which lie behind Y.
struct StatesAfter(usize);

impl Lowered for StatesAfter {
    fn is_by_sample(&self, _inputs: &[Operand], _output: &[usize]) -> bool {
        false
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let y = p.read(inputs[0], Layout::Plain);
        let (rows, width) = Layout::Plain.rows(p.dims(output));
        let offset = y.offset + y.len() + self.0 * rows * width;
        p.alias(output, View { place: y.place, offset, rows, width, stride: width }, Layout::Plain);
        Ok(())
    }
}

//! Rows of constant tables that numbers from elsewhere choose, as embeddings are: tables of floats, and of codes with a scale for each row.
//! Rows are read where the file has them.

use crate::cpu::{
    cost,
    lowering::{Form, Lowered, Lowering, Operand, ValueId, Want},
    plan::{Layout, Planner},
    scope::Scope,
    steps::Operands,
};
use compress_compiler::{
    error::Result,
    node::{NodeId, Port},
    op::Op,
    ops::{binary::Binary, cast::Cast, gather::Gather},
    tensor::{DType, Tensor},
};
use compress_kernels as kernels;
use std::sync::Arc;

/// A Gather of rows of a constant.
struct Rows<'g> {
    table: &'g Tensor,
    ids: Port,
}

/// The Gather that node `id` is, if rows of a constant matrix are looked up by numbers that a run tells.
fn rows<'g>(s: &Scope<'g>, id: NodeId) -> Option<Rows<'g>> {
    let g = s.graph;
    let Op::Gather(Gather { axis: 0 }) = g.op(id) else { return None };
    let (table, ids) = (g.constant(g.operand(id, 0)?)?, g.operand(id, 1)?);
    let fact = g.fact(ids);
    // Small integers that shapes tell are no value here.
    let are_given =
        matches!(fact.dtype, Some(DType::I64 | DType::I32)) && fact.elems.is_none() && fact.rank() > Some(0);
    let fits = s.has(id)
        && !s.on_device
        && are_given
        && g.constant(ids).is_none()
        && matches!(table.shape(), [a, b] if *a > 0 && *b > 0);
    fits.then_some(Rows { table, ids })
}

/// The float value `port`: rows of floats, of codes times their scales, or codes as floats.
pub(super) fn float<'g>(s: &Scope<'g>, port: Port) -> Option<Lowering<'g>> {
    if let Some(Rows { table, ids }) = rows(s, port.node) {
        let lookup = Lookup { table: table.clone(), scales: None };
        return (table.dtype() == DType::F32).then(|| Lowering::of(vec![Want::codes(ids)], lookup));
    }
    let g = s.graph;
    let Op::Binary(Binary::Mul) = g.op(port.node) else { return None };
    let (a, b) = (g.operand(port.node, 0)?, g.operand(port.node, 1)?);
    if !s.has(port.node) {
        return None;
    }
    [(a, b), (b, a)].into_iter().find_map(|(cast, scales)| {
        let Op::Cast(Cast { to: DType::F32, .. }) = g.op(s.inner(cast)?) else { return None };
        let codes = rows(s, s.inner(g.operand(cast.node, 0)?)?)?;
        let scales = rows(s, s.inner(scales)?)?;
        let [n, _] = *codes.table.shape() else { return None };
        let fits = codes.ids == scales.ids
            && codes.table.dtype() == DType::I8
            && scales.table.dtype() == DType::F32
            && scales.table.shape() == [n, 1];
        let lookup = || -> Option<Lookup> {
            Some(Lookup { table: codes.table.clone(), scales: Some(scales.table.as_f32()?.to_vec().into()) })
        };
        fits.then(lookup).flatten().map(|lookup| Lowering::of(vec![Want::codes(codes.ids)], lookup))
    })
}

/// The codes `port`: rows of a table of codes.
pub(super) fn codes<'g>(s: &Scope<'g>, port: Port) -> Option<Lowering<'g>> {
    let Rows { table, ids } = rows(s, port.node)?;
    let fits = matches!(table.dtype(), DType::I8 | DType::U8);
    fits.then(|| Lowering::of(vec![Want::codes(ids)], Lookup { table: table.clone(), scales: None }))
}

/// Rows of a table.
struct Lookup {
    table: Tensor,
    /// Of a table of codes, the scale of each row.
    scales: Option<Arc<[f32]>>,
}

/// The row that element `i` of the first operand names; [`Lookup::rows`] had it checked.
fn row(o: &Operands, i: usize, wide: bool, rows: usize) -> usize {
    let bytes: &[u8] = o.bytes(0);
    let id = match wide {
        true => bytes.as_chunks().0.get(i).map(|bytes| i64::from_ne_bytes(*bytes)),
        false => bytes.as_chunks().0.get(i).map(|bytes| i32::from_ne_bytes(*bytes).into()),
    };
    let id = id.unwrap_or(0);
    (if id < 0 { id + rows as i64 } else { id }) as usize
}

impl Lowered for Lookup {
    fn is_by_sample(&self, inputs: &[Operand], _output: &[usize]) -> bool {
        inputs.iter().all(|x| !x.is_constant)
    }

    fn rows(&self) -> Option<usize> {
        self.table.shape().first().copied()
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let (ids, size) = (p.dense(inputs[0]), p.size(inputs[0]));
        let y = p.output(output, Layout::Plain);
        let (isa, table, scales) = (p.isa(), self.table.clone(), self.scales.clone());
        let n = table.shape()[0];
        let work = cost::bytes(2 * p.size(output) * y.len());
        if p.form(output) == Form::Codes {
            let flip = if table.dtype() == DType::I8 { 128 } else { 0 };
            p.step_of("look_up", output, vec![(ids, size)], y, 0, work, move |o| {
                let (to, threads) = (o.out(), o.threads);
                kernels::look_up_codes(table.bytes(), flip, |i| row(o, i, size == size_of::<i64>(), n), to, threads);
            });
            return Ok(());
        }
        p.step_of("look_up", output, vec![(ids, size)], y, 0, work, move |o| {
            let (to, threads) = (o.out(), o.threads);
            let of = match &scales {
                Some(scales) => kernels::Table::Codes(table.bytes(), scales),
                None => kernels::Table::Floats(table.bytes()),
            };
            kernels::look_up(isa, of, |i| row(o, i, size == size_of::<i64>(), n), to, threads);
        });
        Ok(())
    }
}

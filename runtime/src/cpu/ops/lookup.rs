//! Rows of constant tables that numbers from elsewhere choose, as embeddings are: tables of floats, of codes with a scale for each row,
//! and of codes of 4 bits with a scale for each block.
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
    forms::packed_rows::{PackedRows, bytes},
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
    /// Whether they are bytes, of which each names a row.
    by_bytes: bool,
}

impl Rows<'_> {
    /// These rows as floats or codes, times `scales`.
    fn look_up(&self, scales: Scales) -> Lookup {
        Lookup { table: self.table.clone(), scales, by_bytes: self.by_bytes }
    }
}

/// The Gather that node `id` is, if rows of a constant matrix are looked up by numbers that a run tells.
fn rows<'g>(s: &Scope<'g>, id: NodeId) -> Option<Rows<'g>> {
    let g = s.graph;
    let Op::Gather(Gather { axis: 0 }) = g.op(id) else { return None };
    let (table, ids) = (g.constant(g.operand(id, 0)?)?, g.operand(id, 1)?);
    let least = if bytes(g, ids).is_some() { 1 << u8::BITS } else { 1 };
    let rows = Rows { table, ids: bytes(g, ids).unwrap_or(ids), by_bytes: least > 1 };
    let fits = s.has(id) && are_given(s, rows.ids) && matches!(table.shape(), [a, b] if *a >= least && *b > 0);
    fits.then_some(rows)
}

/// Whether `ids` are numbers of rows that a run tells.
fn are_given(s: &Scope, ids: Port) -> bool {
    let fact = s.graph.fact(ids);
    // Small integers that shapes tell are no value here.
    let counted = matches!(fact.dtype, Some(DType::I64 | DType::I32 | DType::U8)) && fact.elems.is_none();
    counted && fact.rank() > Some(0) && !s.on_device && s.graph.constant(ids).is_none()
}

/// Rows of codes of 4 bits.
fn packed<'g>(s: &Scope<'g>, port: Port) -> Option<Lowering<'g>> {
    let packed = PackedRows::of(s.graph, port.node)?;
    let fits = s.has(port.node) && are_given(s, packed.ids) && packed.codes.shape()[0] > 0;
    let lookup = || -> Option<Lookup> {
        let values = packed.pairs.as_f32()?;
        let pair = |byte: usize| [values[2 * byte], values[2 * byte + 1]];
        let (scales, block) = (packed.scales.clone(), packed.block());
        let zeros = packed.zeros.map(|(zeros, _)| zeros.clone());
        let scales = Scales::Blocks { pairs: Arc::new(std::array::from_fn(pair)), scales, zeros, block };
        Some(Lookup { table: packed.codes.clone(), scales, by_bytes: false })
    };
    fits.then(lookup).flatten().map(|lookup| Lowering::of(vec![Want::codes(packed.ids)], lookup))
}

/// The float value `port`: rows of floats, of codes times their scales, or codes as floats.
pub(super) fn float<'g>(s: &Scope<'g>, port: Port) -> Option<Lowering<'g>> {
    if let Some(rows) = rows(s, port.node) {
        let is_float = rows.table.dtype() == DType::F32;
        return is_float.then(|| Lowering::of(vec![Want::codes(rows.ids)], rows.look_up(Scales::None)));
    }
    let g = s.graph;
    if let Op::Reshape(_) = g.op(port.node) {
        return packed(s, port);
    }
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
        let lookup = || -> Option<Lookup> { Some(codes.look_up(Scales::Rows(scales.table.as_f32()?.to_vec().into()))) };
        fits.then(lookup).flatten().map(|lookup| Lowering::of(vec![Want::codes(codes.ids)], lookup))
    })
}

/// The codes `port`: rows of a table of codes.
pub(super) fn codes<'g>(s: &Scope<'g>, port: Port) -> Option<Lowering<'g>> {
    let rows = rows(s, port.node)?;
    let fits = matches!(rows.table.dtype(), DType::I8 | DType::U8);
    fits.then(|| Lowering::of(vec![Want::codes(rows.ids)], rows.look_up(Scales::None)))
}

/// Rows of a table.
struct Lookup {
    table: Tensor,
    scales: Scales,
    by_bytes: bool,
}

/// What the codes of a table are multiplied by.
#[derive(Clone)]
enum Scales {
    /// They are numbers already, or stay codes.
    None,
    /// The scale of each row.
    Rows(Arc<[f32]>),
    /// What each byte stands for, and the scale and perhaps the zero point of each block of codes.
    Blocks { pairs: Arc<[[f32; 2]; 256]>, scales: Tensor, zeros: Option<Tensor>, block: usize },
}

/// The row that element `i` of the first operand, of `size` bytes, names; [`Lookup::rows`] had it checked.
fn row(o: &Operands, i: usize, size: usize, rows: usize) -> usize {
    let bytes: &[u8] = o.bytes(0);
    let id = match size {
        8 => bytes.as_chunks().0.get(i).map(|bytes| i64::from_ne_bytes(*bytes)),
        4 => bytes.as_chunks().0.get(i).map(|bytes| i32::from_ne_bytes(*bytes).into()),
        _ => bytes.get(i).map(|byte| i64::from(*byte)),
    };
    let id = id.unwrap_or(0);
    (if id < 0 { id + rows as i64 } else { id }) as usize
}

impl Lowered for Lookup {
    fn is_by_sample(&self, inputs: &[Operand], _output: &[usize]) -> bool {
        inputs.iter().all(|x| !x.is_constant)
    }

    fn rows(&self) -> Option<usize> {
        // Each byte names one that there is.
        self.table.shape().first().copied().filter(|_| !self.by_bytes)
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
                let (to, parts) = (o.out(), o.parts);
                kernels::look_up_codes(table.bytes(), flip, |i| row(o, i, size, n), to, parts);
            });
            return Ok(());
        }
        p.step_of("look_up", output, vec![(ids, size)], y, 0, work, move |o| {
            let (to, parts) = (o.out(), o.parts);
            let of = match &scales {
                Scales::None => kernels::Table::Floats(table.bytes()),
                Scales::Rows(scales) => kernels::Table::Codes(table.bytes(), scales),
                Scales::Blocks { pairs, scales, zeros, block } => kernels::Table::Pairs(kernels::Pairs {
                    codes: table.bytes(),
                    values: pairs,
                    scales: scales.bytes(),
                    zeros: zeros.as_ref().map(Tensor::bytes),
                    block: *block,
                }),
            };
            kernels::look_up(isa, of, |i| row(o, i, size, n), to, parts);
        });
        Ok(())
    }
}

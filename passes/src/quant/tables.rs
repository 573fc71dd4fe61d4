//! Pass "tables": tables from which rows are looked up, embeddings above all, become codes: of 8 bits with a scale for each row, or of 4
//! with one for each block of it.
//!
//! Only what was looked up is multiplied by its scale: a DequantizeLinear of the whole table would cost more than the model.

use super::weight_only::{self, Block};
use crate::{nested, target::Target};
use compress_compiler::{
    error::{Error, Result},
    forms::packed_rows::PackedRows,
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
    ops::{
        binary::Binary,
        cast::{Cast, Rounding},
        gather::Gather,
        gather_blocks::GatherBlocks,
    },
    pass::{Context, Outcome, Pass},
    rewrite::{Edit, Rule, Verdict, rewrite},
    tensor::{DType, Tensor},
    words::option::EXCLUDE,
};
use regex::Regex;

/// Tables of fewer elements stay as they are.
const LEAST: usize = 1 << 14;

/// So do those of shorter rows, as each gets a scale.
const LEAST_COLUMNS: usize = 16;

/// A smaller part of all weights has 8 bits where 4 are asked for: it saves little, and what is looked up in it counts as much as ever.
const WORTH_4_BITS: f64 = 0.125;

/// The pass "tables".
#[derive(Debug)]
pub struct Tables {
    /// Those to leave in floats.
    pub exclude: Vec<Regex>,
    /// How many codes of 4 bits share a scale, if large tables have 4.
    pub in_blocks_of: Option<usize>,
    /// What the result has to run on.
    pub target: Target,
}

impl Pass for Tables {
    fn name(&self) -> &'static str {
        "tables"
    }

    fn is_exact(&self) -> bool {
        false
    }

    fn run(&self, graph: &mut Graph, cx: &Context) -> Result<Outcome> {
        let (exclude, by_bits) = (self.exclude.clone(), self.target.capabilities().by_bits);
        let graphs = graph.and_bodies();
        let constants = graphs.iter().flat_map(|g| g.ids().filter_map(|n| g.constant(n.into())));
        let weights: usize = constants.filter(|t| t.dtype().is_float()).map(Tensor::len).sum();
        let in_blocks = self.in_blocks_of.map(|block| (block, (WORTH_4_BITS * weights as f64) as usize));
        let rules: [Box<dyn Rule>; 1] = [Box::new(ToCodes { exclude, in_blocks, by_bits })];
        nested::change_each(graph, |graph| rewrite(graph, &rules, cx))
    }
}

/// A Gather of rows of a constant looks up codes and scales.
struct ToCodes {
    exclude: Vec<Regex>,
    /// How many codes of 4 bits share a scale, and in which tables at least.
    in_blocks: Option<(usize, usize)>,
    by_bits: bool,
}

impl Rule for ToCodes {
    fn name(&self) -> &'static str {
        "tables"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["Gather"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, cx: &Context) -> Result<Verdict> {
        self.codes(graph, node, cx).transpose().map(|verdict| verdict.unwrap_or(Verdict::No))
    }
}

impl ToCodes {
    fn codes(&self, g: &Graph, node: NodeId, cx: &Context) -> Option<Result<Verdict>> {
        let Op::Gather(Gather { axis: 0 }) = g.op(node) else { return None };
        let (table, indices) = (g.operand(node, 0)?, g.operand(node, 1)?);
        let tensor = g.constant(table)?;
        let [rows, columns] = *tensor.shape() else { return None };
        if tensor.dtype() != DType::F32
            || tensor.len() < LEAST
            || columns < LEAST_COLUMNS
            || g.constant(indices).is_some()
        {
            return None;
        }
        let name = &g.value(table).name;
        let is_excluded = |r: &Regex| r.is_match(name) || r.is_match(g.node(node).display_name());
        if self.exclude.iter().any(is_excluded) {
            return Some(Ok(Verdict::Skip(format!("excluded by {EXCLUDE}"))));
        }
        if g.only_use(table).is_none() {
            return Some(Ok(Verdict::Skip(format!("its table `{name}` is read elsewhere too"))));
        }
        if tensor.is_finite() != Some(true) {
            return Some(Ok(Verdict::Skip(format!("its table `{name}` has NaN or infinite values"))));
        }
        if let (Some((block, least)), Some(rank)) = (self.in_blocks, g.fact(indices).rank())
            && tensor.len() >= least
            && let Some(block) = Block::within(columns, block)
        {
            return Some(self.in_blocks(g, node, tensor, (indices, rank), block, cx));
        }
        let values = tensor.as_f32()?;
        let mut scales = Vec::with_capacity(rows);
        let mut codes = Vec::with_capacity(values.len());
        for row in values.chunks(columns) {
            let scale = row.iter().fold(0f32, |m, v| m.max(v.abs())) / 127.0;
            let scale = if scale.is_normal() { scale } else { 1.0 };
            codes.extend(row.iter().map(|v| ((v / scale).round_ties_even() as i8).cast_unsigned()));
            scales.push(scale);
        }
        drop(values);
        tensor.release();
        let codes = match Tensor::new(DType::I8, vec![rows, columns], codes).and_then(|codes| cx.kept(codes)) {
            Ok(codes) => codes,
            Err(e) => return Some(Err(e)),
        };
        let mut edit = Edit::new();
        let base = g.node(node).display_name();
        let codes = edit.constant(&format!("{name}_quantized"), codes);
        let scales = edit.constant(&format!("{name}_scale"), Tensor::f32(&[rows, 1], &scales));
        let look = |edit: &mut Edit, what, of| {
            edit.node(&format!("{base}_{what}"), Gather { axis: 0 }, &[Some(of), Some(indices.into())])
        };
        let (code, scale) = (look(&mut edit, "codes", codes), look(&mut edit, "scales", scales));
        let cast = Cast { to: DType::F32, rounding: Rounding::default() };
        let code = edit.node(&format!("{base}_cast"), cast, &[Some(code)]);
        let row = edit.node(base, Binary::Mul, &[Some(code), Some(scale)]);
        edit.replace(node.into(), row);
        Some(Ok(Verdict::Apply(edit)))
    }

    /// Codes of 4 bits, a scale for each `block` of a row.
    fn in_blocks(
        &self,
        g: &Graph,
        node: NodeId,
        table: &Tensor,
        ids: (Port, usize),
        block: usize,
        cx: &Context,
    ) -> Result<Verdict> {
        let [rows, columns] = [table.shape()[0], table.shape()[1]];
        let values = table.as_f32().ok_or_else(|| Error::bug("a table that is not f32"))?;
        let (codes, scales) = weight_only::rows_of_pairs(&values, [rows, columns], block);
        drop(values);
        table.release();
        let codes = cx.kept(Tensor::new(DType::U8, vec![rows, columns / 2], codes)?)?;
        let parts = columns / block;
        let scales = cx.kept(Tensor::f32(&[rows, parts], &scales))?;
        let (mut edit, name) = (Edit::new(), g.node(node).display_name());
        let from = &g.operand(node, 0).map_or("", |table| &g.value(table).name);
        let made = if self.by_bits {
            let codes = edit.constant(&format!("{from}_quantized"), codes);
            let scales = edit.constant(&format!("{from}_scale"), scales);
            let op = GatherBlocks { block: block as i64, columns };
            edit.node(name, op, &[Some(codes), Some(ids.0.into()), Some(scales)])
        } else {
            PackedRows::write(&mut edit, name, (codes, scales), from, ids)
        };
        edit.replace(node.into(), made);
        Ok(Verdict::Apply(edit))
    }
}

//! Pass "tables": tables from which rows are looked up, embeddings above all, become codes: of 8 bits with a scale for each row, or of 4
//! with one for each block of it.
//!
//! Only what was looked up is multiplied by its scale: a DequantizeLinear of the whole table would cost more than the model.

use super::{
    layer_forms::{self, LayerForm, LayerRule},
    weight_only::{self, Block, WeightFormat},
};
use crate::{layers::is_excluded, nested, target::Target};
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
    words::option::{EXCLUDE, LAYER},
};
use regex::Regex;

/// Tables of fewer elements stay as they are.
const LEAST: usize = 1 << 14;

/// So do those of shorter rows, as each gets a scale.
const LEAST_COLUMNS: usize = 16;

/// A smaller part of all weights has 8 bits where 4 are asked for: it saves little, and what is looked up in it counts as much as ever.
const WORTH_4_BITS: f64 = 0.125;

/// The pass "tables".
#[derive(Debug, Clone)]
pub struct Tables {
    /// Those to leave in floats.
    pub exclude: Vec<Regex>,
    /// Forms of single tables: `int8` and `weights-int8` are codes of 8 bits, `weights-int4` are codes of 4.
    pub rules: Vec<LayerRule>,
    /// What others become: large ones have codes of 4 bits for `int4`; nothing where only `rules` name some.
    pub others: Option<WeightFormat>,
    /// How many codes of 4 bits share a scale.
    pub block: usize,
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
        let (of, by_bits) = (self.clone(), self.target.capabilities().by_bits);
        let graphs = graph.and_bodies();
        let constants = graphs.iter().flat_map(|g| g.ids().filter_map(|n| g.constant(n.into())));
        let weights: usize = constants.filter(|t| t.dtype().is_float()).map(Tensor::len).sum();
        let large = (WORTH_4_BITS * weights as f64) as usize;
        let rules: [Box<dyn Rule>; 1] = [Box::new(ToCodes { of, large, by_bits })];
        nested::change_each(graph, |graph| {
            let undone = self.undone(graph);
            let able = self.target.capabilities().looks_up_codes;
            let mut done = if able { rewrite(graph, &rules, cx)? } else { Outcome::default() };
            done.undone.extend(undone);
            Ok(done)
        })
    }
}

impl Tables {
    /// The form that a rule gives a table.
    fn form(&self, g: &Graph, table: &Table) -> Option<LayerForm> {
        layer_forms::form_by_name(g, table.node, &g.value(table.port).name, &self.rules)
    }

    /// How many codes of 4 bits share a scale, if a table can have such.
    fn block_of(&self, g: &Graph, table: &Table) -> Option<usize> {
        g.fact(table.indices).rank().and_then(|_| Block::within(table.columns, self.block))
    }

    /// Tables that do not get the form which a rule gives them, and why.
    fn undone(&self, g: &Graph) -> Vec<String> {
        let why = |node| {
            let table = Table::of(g, node)?;
            let form = self.form(g, &table).filter(|form| form.weights().is_some())?;
            let asked = format!("asked for {LAYER} {form}: {}", g.node(node).label());
            let able = self.target.capabilities().looks_up_codes;
            let target = || (!able).then(|| format!("{} looks up no codes", self.target));
            if let Some(why) = target().or_else(|| table.obstacle(g, &self.exclude)) {
                return Some(format!("{asked} stays in floats ({why})"));
            }
            let has_blocks = form != LayerForm::WeightsInt4 || self.block_of(g, &table).is_some();
            (!has_blocks)
                .then(|| format!("{asked} has codes of 8 bits (no block of {} or fewer divides its rows)", self.block))
        };
        g.ids().filter_map(why).collect()
    }
}

/// A constant from which rows are looked up.
struct Table<'g> {
    node: NodeId,
    port: Port,
    indices: Port,
    values: &'g Tensor,
    rows: usize,
    columns: usize,
}

impl<'g> Table<'g> {
    fn of(g: &'g Graph, node: NodeId) -> Option<Self> {
        let Op::Gather(Gather { axis: 0 }) = g.op(node) else { return None };
        let (port, indices) = (g.operand(node, 0)?, g.operand(node, 1)?);
        let values = g.constant(port)?;
        let [rows, columns] = *values.shape() else { return None };
        let is_looked_up = values.dtype() == DType::F32 && g.constant(indices).is_none();
        is_looked_up.then_some(Self { node, port, indices, values, rows, columns })
    }

    fn is_large(&self) -> bool {
        self.values.len() >= LEAST && self.columns >= LEAST_COLUMNS
    }

    /// Why it can't become codes, if so.
    fn obstacle(&self, g: &Graph, exclude: &[Regex]) -> Option<String> {
        let name = &g.value(self.port).name;
        match () {
            () if !self.is_large() => Some(format!(
                "its table `{name}` has fewer than {LEAST} elements, or rows of fewer than {LEAST_COLUMNS}"
            )),
            () if is_excluded(g, self.node, name, exclude) => Some(format!("excluded by {EXCLUDE}")),
            () if g.only_use(self.port).is_none() => Some(format!("its table `{name}` is read elsewhere too")),
            () if self.values.is_finite() != Some(true) => {
                Some(format!("its table `{name}` has NaN or infinite values"))
            }
            () => None,
        }
    }
}

/// A Gather of rows of a constant looks up codes and scales.
struct ToCodes {
    of: Tables,
    /// The elements of a table that is worth codes of 4 bits.
    large: usize,
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
        let table = Table::of(g, node)?;
        let form = self.of.form(g, &table);
        let in_blocks = match form {
            Some(LayerForm::Float) => return Some(Ok(Verdict::Skip(format!("{LAYER} says {}", LayerForm::Float)))),
            Some(form) => form == LayerForm::WeightsInt4,
            None => self.of.others? == WeightFormat::Int4 && table.values.len() >= self.large,
        };
        if let Some(why) = table.obstacle(g, &self.of.exclude) {
            // Small tables stay without a word where nothing names them.
            return (table.is_large() || form.is_some()).then(|| Ok(Verdict::Skip(why)));
        }
        let block = self.of.block_of(g, &table);
        let Table { port, indices, values: tensor, rows, columns, .. } = table;
        if let Some(block) = block.filter(|_| in_blocks)
            && let Some(rank) = g.fact(indices).rank()
        {
            return Some(self.in_blocks(g, node, tensor, (indices, rank), block, cx));
        }
        let name = &g.value(port).name;
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

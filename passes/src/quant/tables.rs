//! Pass "tables": tables from which rows are looked up, embeddings above all, become codes with a scale for each row.
//!
//! Only what was looked up is multiplied by its scale: a DequantizeLinear of the whole table would cost more than the model.

use compress_compiler::{
    error::Result,
    graph::Graph,
    node::NodeId,
    op::Op,
    ops::{
        binary::Binary,
        cast::{Cast, Rounding},
        gather::Gather,
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

/// The pass "tables".
pub struct Tables {
    /// Those to leave in floats.
    pub exclude: Vec<Regex>,
}

impl Pass for Tables {
    fn name(&self) -> &'static str {
        "tables"
    }

    fn is_exact(&self) -> bool {
        false
    }

    fn run(&self, graph: &mut Graph, cx: &Context) -> Result<Outcome> {
        rewrite(graph, &[Box::new(ByRow { exclude: self.exclude.clone() })], cx)
    }
}

/// A Gather of rows of a constant looks up codes and scales.
struct ByRow {
    exclude: Vec<Regex>,
}

impl Rule for ByRow {
    fn name(&self) -> &'static str {
        "tables"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["Gather"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        Ok(self.by_row(graph, node).unwrap_or(Verdict::No))
    }
}

impl ByRow {
    fn by_row(&self, g: &Graph, node: NodeId) -> Option<Verdict> {
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
            return Some(Verdict::Skip(format!("excluded by {EXCLUDE}")));
        }
        if g.only_use(table).is_none() {
            return Some(Verdict::Skip(format!("its table `{name}` is read elsewhere too")));
        }
        if tensor.is_finite() != Some(true) {
            return Some(Verdict::Skip(format!("its table `{name}` has NaN or infinite values")));
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
        let mut edit = Edit::new();
        let base = g.node(node).display_name();
        let codes =
            edit.constant(&format!("{name}_quantized"), Tensor::new(DType::I8, vec![rows, columns], codes).ok()?);
        let scales = edit.constant(&format!("{name}_scale"), Tensor::f32(&[rows, 1], &scales));
        let look = |edit: &mut Edit, what, of| {
            edit.node(&format!("{base}_{what}"), Gather { axis: 0 }, &[Some(of), Some(indices.into())])
        };
        let (code, scale) = (look(&mut edit, "codes", codes), look(&mut edit, "scales", scales));
        let cast = Cast { to: DType::F32, rounding: Rounding::default() };
        let code = edit.node(&format!("{base}_cast"), cast, &[Some(code)]);
        let row = edit.node(base, Binary::Mul, &[Some(code), Some(scale)]);
        edit.replace(node.into(), row);
        Some(Verdict::Apply(edit))
    }
}

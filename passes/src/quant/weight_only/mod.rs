//! Pass "weights": the weights of products become codes of 4 or 8 bits, a scale for each block of inputs; activations stay floats. With
//! calibration data they are rounded with a view to what their layers read (GPTQ, Frantar et al. 2023), without to the nearest.

mod blocks;
mod form;

use super::{
    rounding::Triangle,
    scheme::{Codes, Symmetry},
};
use crate::{
    layers::{Layer, excluded, layers, obstacle},
    moments::{Inputs, Moments, Reads, gather, together},
    target::Target,
    weight_matrix::WeightMatrix,
};
use blocks::{Told, blocked};
use compress_compiler::{
    choice,
    error::{Error, Result},
    graph::Graph,
    node::Port,
    op::Op,
    pass::{Context, Outcome, Pass, Skipped},
    tensor::DType,
};
use regex::Regex;

/// Codes of four bits around zero, and with a zero point.
pub(super) const S4: Codes = Codes { dtype: DType::I4, stored: DType::I4, symmetry: Symmetry::Symmetric };
pub(super) const U4: Codes = Codes { dtype: DType::U4, stored: DType::U4, symmetry: Symmetry::Asymmetric };
const S8: Codes = super::scheme::S8;
const U8: Codes = Codes { dtype: DType::U8, stored: DType::U8, symmetry: Symmetry::Asymmetric };

/// Weights of fewer elements stay floats.
const LEAST: usize = 1024;

/// What weights alone become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightFormat {
    /// Codes of four bits.
    Int4,
    /// Codes of eight bits.
    Int8,
}

choice!(WeightFormat, "format of weights", [
    Int4 "int4" "codes of 4 bits",
    Int8 "int8" "codes of 8 bits",
]);

/// How many inputs share a scale: powers of two, as kernels want them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Block {
    /// 16.
    Of16,
    /// 32.
    #[default]
    Of32,
    /// 64.
    Of64,
    /// 128.
    Of128,
    /// 256.
    Of256,
}

choice!(Block, "size of a block", [
    Of16 "16" "the nearest, and the largest files",
    Of32 "32" "5 bits a weight of 4",
    Of64 "64" "4.5 bits a weight of 4",
    Of128 "128" "4.25 bits a weight of 4",
    Of256 "256" "the smallest files",
]);

impl Block {
    /// The number of inputs.
    pub fn get(self) -> usize {
        match self {
            Self::Of16 => 16,
            Self::Of32 => 32,
            Self::Of64 => 64,
            Self::Of128 => 128,
            Self::Of256 => 256,
        }
    }
}

impl WeightFormat {
    /// Codes around zero, and those with a zero point.
    fn codes(self) -> [Codes; 2] {
        match self {
            Self::Int4 => [S4, U4],
            Self::Int8 => [S8, U8],
        }
    }
}

/// The pass "weights".
pub struct WeightOnly {
    /// What weights become.
    pub format: WeightFormat,
    /// Inputs that share a scale.
    pub block: usize,
    /// Whether there are data that tell what layers read.
    pub by_data: bool,
    /// What the result has to run on.
    pub target: Target,
    /// Layers to leave alone.
    pub exclude: Vec<Regex>,
}

/// A weight that becomes codes, and how its layer reads.
struct Task {
    layer: Layer,
    layout: WeightMatrix,
    inputs: Inputs,
}

impl Task {
    /// What the layer reads: what made it may have been replaced since the task was found.
    fn input(&self, g: &Graph) -> Option<Port> {
        g.operand(self.layer.node, 0)
    }
}

impl Pass for WeightOnly {
    fn name(&self) -> &'static str {
        "weights"
    }

    fn is_exact(&self) -> bool {
        false
    }

    fn run(&self, graph: &mut Graph, cx: &Context) -> Result<Outcome> {
        let mut done = Outcome::default();
        let (mut tasks, mut seen) = (vec![], vec![]);
        for layer in layers(graph)? {
            if seen.contains(&layer.weight) {
                continue;
            }
            match self.task(graph, &layer) {
                Ok(task) => {
                    seen.push(layer.weight);
                    tasks.push(task);
                }
                Err(reason) => {
                    done.skipped.push(Skipped { rule: "weights".into(), node: graph.node(layer.node).label(), reason })
                }
            }
        }
        let all = tasks.len();
        while !tasks.is_empty() {
            cx.check()?;
            (cx.progress)("round weights", all - tasks.len(), all);
            let now: Vec<Task> = tasks.drain(..together(tasks.iter().map(|task| &task.layout))).collect();
            let moments = self.gather(graph, &now, cx)?;
            for (task, moments) in now.iter().zip(moments) {
                cx.check()?;
                let told = moments.map(|moments| told(&moments[0]));
                self.quantise(graph, task, told.as_ref(), cx)?;
                done.edits += 1;
            }
        }
        (cx.progress)("round weights", all, all);
        Ok(done)
    }
}

/// What moments tell of how to round.
fn told(moments: &Moments) -> Told {
    let (h, _) = moments.second(false);
    let d = h.len().isqrt();
    let importance: Vec<f64> = (0..d).map(|i| h[i * d + i]).collect();
    // Inputs that were never seen to be other than zero count a little all the same.
    let mean = importance.iter().sum::<f64>() / d.max(1) as f64;
    let floor = if mean > 0.0 { mean * 1e-4 } else { 1.0 };
    Told { triangle: Triangle::of(&h, d), importance: importance.iter().map(|v| v.max(floor)).collect() }
}

impl WeightOnly {
    /// What there is to do for a layer, or why it stays.
    fn task(&self, g: &Graph, layer: &Layer) -> std::result::Result<Task, String> {
        if let Some(why) = excluded(g, layer, &self.exclude).or_else(|| obstacle(g, layer)) {
            return Err(why);
        }
        if !matches!(g.op(layer.node), Op::MatMul(_) | Op::Gemm(_)) {
            return Err("only products with a matrix have weights in blocks".into());
        }
        let layout = WeightMatrix::of(g, layer).ok_or("its weight isn't a matrix")?;
        if layout.len() < LEAST {
            return Err(format!("its weight has fewer than {LEAST} elements"));
        }
        if layout.columns() < self.block {
            return Err(format!("it has {} inputs, fewer than a block", layout.columns()));
        }
        let inputs = Inputs::of(g, layer, layout).ok_or("its input is transposed")?;
        Ok(Task { layer: *layer, layout, inputs })
    }

    /// What the layers read, in moments; nothing without data, and of layers with too many inputs.
    fn gather(&self, g: &Graph, tasks: &[Task], cx: &Context) -> Result<Vec<Option<Vec<Moments>>>> {
        let Some(calibrator) = cx.calibrator.filter(|_| self.by_data) else {
            return Ok(tasks.iter().map(|_| None).collect());
        };
        let reads: Vec<Reads> = tasks
            .iter()
            .map(|task| Reads {
                node: task.layer.node,
                inputs: &task.inputs,
                ports: task.input(g).into_iter().collect(),
            })
            .collect();
        gather(g, &reads, calibrator)
    }

    fn quantise(&self, g: &mut Graph, task: &Task, told: Option<&Told>, cx: &Context) -> Result<()> {
        let bug = || Error::bug("a weight is not a constant of f32");
        let tensor = g.constant(task.layer.weight.into()).ok_or_else(bug)?;
        let stored = tensor.as_f32().ok_or_else(bug)?;
        let (blocked, codes) = blocked((&stored, &task.layout), self.block, self.format.codes(), told);
        drop(stored);
        // It is not read again.
        tensor.release();
        if self.target.capabilities().by_bits && form::has_bits(g, &task.layer) {
            return form::by_bits(g, &task.layer, &task.layout, (&blocked, codes), cx);
        }
        form::dequantised(g, &task.layer, &task.layout, (&blocked, codes), cx)
    }
}

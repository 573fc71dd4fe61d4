//! Pass "weights": the weights of products become codes of 4 or 8 bits, a scale for each block of inputs; activations stay floats. With
//! calibration data they are rounded with a view to what their layers read (GPTQ, Frantar et al. 2023), without to the nearest.

mod blocks;
mod float8;
mod form;
mod trained;

use super::{
    rounding::Triangle,
    scheme::{Codes, Symmetry},
};
use crate::{
    layers::{Layer, excluded, layers, obstacle},
    moments::{Inputs, Moments, Reads, gather, together},
    nested::{self, Place},
    target::Target,
    weight_matrix::WeightMatrix,
};
use blocks::{Told, blocked};
use compress_compiler::{
    choice,
    choice::Choice,
    error::{Error, Result},
    graph::Graph,
    node::Port,
    op::Op,
    pass::{Context, Outcome, Pass, Skipped, Trained, Training},
    tensor::DType,
    words::{counted, option::QAT},
};
use regex::Regex;
use trained::Pair;

/// The rows of a table as codes of 4 bits around 8, two a byte, and the scale of each block of a row.
pub(super) fn rows_of_pairs(values: &[f32], [rows, columns]: [usize; 2], block: usize) -> (Vec<u8>, Vec<f32>) {
    let (blocked, _) = blocked((values, &WeightMatrix::dense(rows, columns)), block, [S4, S4], None);
    let scales = blocked.blocks.iter().map(|by| by.scale).collect();
    (form::packed(&blocked.codes, 4), scales)
}

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
    /// Floats of eight bits.
    Fp8,
}

choice!(WeightFormat, "format of weights", [
    Int4 "int4" "codes of 4 bits",
    Int8 "int8" "codes of 8 bits",
    Fp8 "fp8" "floats of 8 bits (E4M3), a scale for each output, for TensorRT",
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
    /// The largest number of inputs up to `most` that may share a scale, of which `columns` is a multiple.
    pub(super) fn within(columns: usize, most: usize) -> Option<usize> {
        let sizes = Self::ALL.iter().rev().map(|block| block.get());
        sizes.filter(|size| *size <= most).find(|size| columns.is_multiple_of(*size))
    }

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
    /// Codes around zero, and those with a zero point; none where numbers are floats, which have no blocks.
    fn codes(self) -> Option<[Codes; 2]> {
        match self {
            Self::Int4 => Some([S4, U4]),
            Self::Int8 => Some([S8, U8]),
            Self::Fp8 => None,
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
    /// Train the model with weights in codes (quantisation-aware training).
    pub train: bool,
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
        let mut inside = 0;
        let mut done = nested::change_each(graph, |graph, place| {
            let done = self.round(graph, place, cx)?;
            inside += if place == Place::Inside { done.edits } else { 0 };
            Ok(done)
        })?;
        if inside > 0 && self.train {
            let layers = counted(inside, "layer");
            done.undone.push(format!("asked for {QAT}: {layers} inside If, Loop or Scan can't be trained"));
        }
        if inside > 0 && self.by_data {
            let layers = counted(inside, "layer");
            done.warnings.push(format!(
                "the weights of {layers} inside If, Loop or Scan are rounded to the nearest: nothing can be run by itself there to see \
                 what layers read"
            ));
        }
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
    /// Rounds the weights of a graph, and leaves those of graphs inside it.
    fn round(&self, graph: &mut Graph, place: Place, cx: &Context) -> Result<Outcome> {
        // Of what is inside of operators, nothing can be run by itself to see what layers read.
        let [by_data, train] = [self.by_data, self.train].map(|asked| asked && place == Place::Outermost);
        let mut done = Outcome::default();
        let (mut tasks, mut seen) = (vec![], vec![]);
        let mut pairs = train.then(Vec::new);
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
            let moments = self.gather(graph, &now, by_data, cx)?;
            for (task, moments) in now.iter().zip(moments) {
                cx.check()?;
                let told = moments.map(|moments| told(&moments[0]));
                self.quantise(graph, task, told.as_ref(), pairs.as_mut(), cx)?;
                done.edits += 1;
            }
        }
        if all > 0 {
            (cx.progress)("round weights", all, all);
        }
        if let Some(pairs) = pairs.filter(|pairs| !pairs.is_empty()) {
            done.trained.push(self.train(graph, &pairs, cx)?);
        }
        Ok(done)
    }

    /// Trains weights in codes to answer as the model did, and makes codes of what they became.
    fn train(&self, graph: &mut Graph, pairs: &[Pair], cx: &Context) -> Result<Trained> {
        let trainer = cx.trainer.ok_or_else(|| Error::bug("training was planned without data"))?;
        let masked = graph.ids().filter(|n| graph.constant((*n).into()).is_some_and(|t| t.shape().len() > 1)).collect();
        let deploy = |g: &mut Graph| pairs.iter().try_for_each(|pair| pair.freeze(g, false, cx));
        let training = Training { name: "qat", share: 1.0, masked, masking: None, scales: true, deploy: &deploy };
        let trained = trainer.train(graph, training)?;
        pairs.iter().try_for_each(|pair| pair.freeze(graph, self.by_bits(), cx))?;
        Ok(trained)
    }

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
        let least = Block::Of16.get();
        if self.format.codes().is_some() && layout.columns() < least {
            return Err(format!("it has {} inputs, fewer than the smallest block", layout.columns()));
        }
        let inputs = Inputs::of(g, layer, layout).ok_or("its input is transposed")?;
        Ok(Task { layer: *layer, layout, inputs })
    }

    /// What the layers read, in moments; nothing without data, and of layers with too many inputs.
    fn gather(&self, g: &Graph, tasks: &[Task], by_data: bool, cx: &Context) -> Result<Vec<Option<Vec<Moments>>>> {
        let Some(calibrator) = cx.calibrator.filter(|_| by_data) else {
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

    /// Whether the target has an operator for products with matrices of codes.
    fn by_bits(&self) -> bool {
        self.target.capabilities().by_bits
    }

    /// Makes codes of a weight, or, where there are `pairs` to be trained, one of these.
    fn quantise(
        &self,
        g: &mut Graph,
        task: &Task,
        told: Option<&Told>,
        pairs: Option<&mut Vec<Pair>>,
        cx: &Context,
    ) -> Result<()> {
        let bug = || Error::bug("a weight is not a constant of f32");
        let tensor = g.constant(task.layer.weight.into()).ok_or_else(bug)?;
        let stored = tensor.as_f32().ok_or_else(bug)?;
        let Some(codes) = self.format.codes() else {
            let stored = stored.into_owned();
            return float8::write(g, &task.layer, &task.layout, &stored, cx);
        };
        // A layer of fewer inputs than a block has smaller ones.
        let block = Block::ALL.iter().map(|block| block.get()).filter(|n| *n <= task.layout.columns()).max();
        let block = block.map_or(self.block, |most| most.min(self.block));
        let (blocked, codes) = blocked((&stored, &task.layout), block, codes, told);
        drop(stored);
        // It is not read again.
        tensor.release();
        if let Some(pairs) = pairs {
            pairs.push(Pair::insert(g, &task.layer, &task.layout, (&blocked, codes))?);
            return Ok(());
        }
        form::write(g, &task.layer, &task.layout, (&blocked, codes), self.by_bits(), cx)
    }
}

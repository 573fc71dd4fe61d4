//! Pass "weights": the weights of products become codes of 4 or 8 bits, a scale for each block of inputs; activations stay floats. With
//! calibration data they are rounded with a view to what their layers read (GPTQ, Frantar et al. 2023), without to the nearest.

mod awq;
mod blocks;
mod float8;
mod form;
mod trained;

use super::{
    equalise::Group,
    layer_forms::{self, LayerRule},
    scheme::{Codes, Symmetry},
};
use crate::{
    layers::{Layer, excluded, layers, obstacle},
    moments::{Inputs, Moments, Reads, gather, gather_inside, together},
    nested::{self, Nested},
    target::Target,
    weight_matrix::WeightMatrix,
};
use blocks::{Blocked, Told, blocked};
use compress_compiler::{
    choice,
    choice::Choice,
    error::{Error, Result},
    graph::Graph,
    judge::Judge,
    node::{NodeId, Port, Site},
    op::Op,
    pass::{Context, Outcome, Pass, Skipped, Trained, Training},
    tensor::{DType, Tensor},
    verify::verify,
    words::{
        counted,
        option::{LAYER, QAT},
    },
};
use float8::Floats;
use regex::Regex;
use std::collections::{HashMap, HashSet};
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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
#[derive(Debug)]
pub struct WeightOnly {
    /// What weights become of which no rule says it; none stay as they are.
    pub format: Option<WeightFormat>,
    /// Layers whose form the user named.
    pub rules: Vec<LayerRule>,
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
    format: WeightFormat,
    /// Other layers that multiply by the weight.
    also: Vec<NodeId>,
    layout: WeightMatrix,
    inputs: Inputs,
}

impl Task {
    /// What its layers read: what made it may have been replaced since the task was found.
    fn read(&self, g: &Graph) -> Vec<Port> {
        [self.layer.node].iter().chain(&self.also).filter_map(|node| g.operand(*node, 0)).collect()
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
        let mut done = self.round(graph, cx)?;
        let inside = nested::change_inside(graph, |whole, found| self.round_inside(whole, found, cx))?;
        if inside.edits > 0 && self.train {
            let layers = counted(inside.edits, "layer");
            done.undone.push(format!("asked for {QAT}: {layers} inside If, Loop or Scan can't be trained"));
        }
        done.add(inside);
        Ok(done)
    }
}

/// Tasks whose layers read the same and become the same, together.
fn by_input(g: &Graph, tasks: Vec<Task>) -> Vec<Vec<Task>> {
    let mut groups: Vec<Vec<Task>> = vec![];
    let mut places: HashMap<(Vec<Port>, usize, WeightFormat), usize> = HashMap::new();
    for task in tasks {
        let place = *places.entry((task.read(g), task.layout.columns(), task.format)).or_insert(groups.len());
        match groups.get_mut(place) {
            Some(group) => group.push(task),
            None => groups.push(vec![task]),
        }
    }
    groups
}

impl WeightOnly {
    /// Rounds the weights of a graph, and leaves those of graphs inside it.
    fn round(&self, graph: &mut Graph, cx: &Context) -> Result<Outcome> {
        let mut done = Outcome::default();
        let tasks = self.tasks(graph, &mut done)?;
        let mut pairs = self.train.then(Vec::new);
        let all = tasks.len();
        let mut groups = by_input(graph, tasks);
        while !groups.is_empty() {
            cx.check()?;
            let now: Vec<Vec<Task>> = groups.drain(..together(groups.iter().map(|tasks| &tasks[0].layout))).collect();
            let moments = self.gather(graph, &now, cx)?;
            // The layer that divides what another reads may be among these: it is not in codes yet.
            let mut told = vec![];
            for (tasks, moments) in now.iter().zip(moments) {
                cx.check()?;
                let seen = moments.map(|moments| (moments[0].second(false).0, moments[0].seen()));
                told.push(seen.map(|(h, seen)| self.told(graph, tasks, (&h, seen))).transpose()?);
            }
            for (tasks, told) in now.iter().zip(told) {
                for task in tasks {
                    cx.check()?;
                    (cx.progress)("round weights", done.edits, all);
                    let rounded = self.rounded(graph, task, told.as_ref())?;
                    match (&mut pairs, &rounded) {
                        (Some(pairs), Rounded::Codes(blocked, codes)) => {
                            pairs.push(Pair::insert(graph, &task.layer, &task.layout, (blocked, *codes))?)
                        }
                        _ => self.write(graph, task, &rounded, cx)?,
                    }
                    done.edits += 1;
                }
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

    /// Rounds the weights of the graphs `found` inside a `whole`. Those that several have alike, as the branches of a decoder do, are
    /// rounded once, by what all their layers read.
    fn round_inside(&self, whole: &Graph, found: &mut [Nested], cx: &Context) -> Result<Outcome> {
        let mut done = Outcome::default();
        let mut alike: Vec<Vec<(usize, Task)>> = vec![];
        for (at, part) in found.iter().enumerate() {
            for task in self.tasks(&part.graph, &mut done)? {
                let weight = |at: usize, task: &Task| found[at].graph.constant(task.layer.weight.into());
                let same = |(other_at, other): &(usize, Task)| {
                    other.layout == task.layout && weight(*other_at, other) == weight(at, &task)
                };
                match alike.iter_mut().find(|tasks| same(&tasks[0])) {
                    Some(tasks) => tasks.push((at, task)),
                    None => alike.push(vec![(at, task)]),
                }
            }
        }
        let (all, mut unseen) = (alike.len(), 0);
        while !alike.is_empty() {
            (cx.progress)("round weights", all - alike.len(), all);
            let layouts = alike.iter().map(|tasks| &tasks[0].1.layout);
            let now: Vec<Vec<(usize, Task)>> = alike.drain(..together(layouts)).collect();
            let moments = self.gather_inside(whole, found, &now, cx)?;
            for (tasks, moments) in now.iter().zip(moments) {
                cx.check()?;
                unseen += if moments.is_none() { tasks.len() } else { 0 };
                let (at, first) = &tasks[0];
                let told = moments.map(|moments| Told::of(&moments.second(false).0));
                let rounded = self.rounded(&found[*at].graph, first, told.as_ref())?;
                for (at, task) in tasks {
                    self.write(&mut found[*at].graph, task, &rounded, cx)?;
                    done.edits += 1;
                }
            }
        }
        if all > 0 {
            (cx.progress)("round weights", all, all);
        }
        if unseen > 0 && self.by_data && cx.calibrator.is_some() {
            let layers = counted(unseen, "layer");
            done.warnings.push(format!(
                "the weights of {layers} inside If, Loop or Scan are rounded to the nearest: no sample of the data reaches them, \
                 what they read is not a number, or they have too many inputs"
            ));
        }
        Ok(done)
    }

    /// The noise of each layer of `g` whose weight alone is rounded to the nearest codes.
    ///
    /// # Errors
    /// Whatever running the graph can raise; interrupted.
    pub(crate) fn alone(
        &self,
        g: &Graph,
        judge: &dyn Judge,
        samples: usize,
        cx: &Context,
    ) -> Result<HashMap<NodeId, f64>> {
        let tasks = self.tasks(g, &mut Outcome::default())?;
        let mut noise = HashMap::new();
        for (i, task) in tasks.iter().enumerate() {
            cx.check()?;
            (cx.progress)("weights alone", i, tasks.len());
            let Rounded::Codes(blocked, codes) = self.rounded(g, task, None)? else { continue };
            let shape = g.constant(task.layer.weight.into()).map_or(vec![], |t| t.shape().to_vec());
            let values = Tensor::f32(&shape, &task.layout.stored(&blocked.values(codes)));
            let mut rounded = g.clone();
            rounded.set_constant(task.layer.weight, values);
            let likeness = judge.judge(&verify(&rounded)?, samples)?;
            noise.extend([task.layer.node].iter().chain(&task.also).map(|node| (*node, likeness.typical)));
        }
        (cx.progress)("weights alone", tasks.len(), tasks.len());
        Ok(noise)
    }

    /// What there is to do for the layers of a graph, once for each weight; says in `done` what stays, and why.
    fn tasks(&self, graph: &Graph, done: &mut Outcome) -> Result<Vec<Task>> {
        let layers = layers(graph)?;
        // A weight has one form: it stays for all of its layers where it has to for one.
        let stays = layers.iter().filter(|layer| self.asked(graph, layer).is_err());
        let stays: HashMap<NodeId, NodeId> = stays.map(|layer| (layer.weight, layer.node)).collect();
        let task = |layer: &Layer| match (self.task(graph, layer), stays.get(&layer.weight)) {
            (Ok(_), Some(other)) => {
                Err(format!("its weight is shared with {}, which has another form", graph.node(*other).label()))
            }
            (task, _) => task,
        };
        let found: Vec<_> = layers.iter().map(|layer| (layer, task(layer))).collect();
        let coded: HashSet<NodeId> = found.iter().filter(|(_, t)| t.is_ok()).map(|(layer, _)| layer.weight).collect();
        let mut tasks: Vec<Task> = vec![];
        let mut places: HashMap<NodeId, usize> = HashMap::new();
        for (layer, task) in found {
            match (task, places.get(&layer.weight)) {
                (Ok(task), Some(place)) if task.layout == tasks[*place].layout => tasks[*place].also.push(layer.node),
                (Ok(_), Some(_)) => {}
                (Ok(task), None) => {
                    places.insert(layer.weight, tasks.len());
                    tasks.push(task);
                }
                // It reads the codes of another layer.
                (Err(_), _) if coded.contains(&layer.weight) => {}
                (Err(reason), _) => {
                    let node = graph.node(layer.node).label();
                    let form =
                        layer_forms::form_of(graph, layer.node, &self.rules).filter(|form| form.weights().is_some());
                    done.undone.extend(
                        form.map(|form| format!("asked for {LAYER} {form}: {node} stays in floats ({reason})")),
                    );
                    done.skipped.push(Skipped { rule: "weights".into(), node, reason })
                }
            }
        }
        Ok(tasks)
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

    /// The form that a layer's weight is to have, or by which option it stays.
    fn asked(&self, g: &Graph, layer: &Layer) -> std::result::Result<WeightFormat, String> {
        match (excluded(g, layer, &self.exclude), layer_forms::form_of(g, layer.node, &self.rules)) {
            (Some(why), _) => Err(why),
            (None, Some(form)) => form.weights().ok_or_else(|| format!("{LAYER} says {form}")),
            (None, None) => self.format.ok_or_else(|| format!("{LAYER} doesn't name it")),
        }
    }

    /// What there is to do for a layer, or why it stays.
    fn task(&self, g: &Graph, layer: &Layer) -> std::result::Result<Task, String> {
        let format = self.asked(g, layer)?;
        if let Some(why) = obstacle(g, layer) {
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
        if format.codes().is_some() && layout.columns() < least {
            return Err(format!("it has {} inputs, fewer than the smallest block", layout.columns()));
        }
        let inputs = Inputs::of(g, layer, layout).ok_or("its input is transposed")?;
        Ok(Task { layer: *layer, format, also: vec![], layout, inputs })
    }

    /// What the layers of each input read, in moments; nothing without data, and of layers with too many inputs.
    fn gather(&self, g: &Graph, inputs: &[Vec<Task>], cx: &Context) -> Result<Vec<Option<Vec<Moments>>>> {
        let Some(calibrator) = cx.calibrator.filter(|_| self.by_data) else {
            return Ok(inputs.iter().map(|_| None).collect());
        };
        let reads: Vec<Reads> = inputs
            .iter()
            .map(|tasks| Reads { node: tasks[0].layer.node, inputs: &tasks[0].inputs, ports: tasks[0].read(g) })
            .collect();
        gather(g, &reads, calibrator)
    }

    /// What is told of the inputs of some layers, whose second moments are `h`, of so many rows `seen`: they are scaled where that makes the
    /// error of few bits smaller.
    fn told(&self, g: &mut Graph, tasks: &[Task], (h, seen): (&[f64], f64)) -> Result<Told> {
        let layers = tasks.iter().map(|task| task.layer).collect();
        let [input] = tasks[0].read(g)[..] else { return Ok(Told::of(h)) };
        let group = Group::of(g, input, layers);
        let format = tasks[0].format;
        let codes = format.codes().filter(|_| format == WeightFormat::Int4);
        let Some((codes, group)) = codes.zip(group) else { return Ok(Told::of(h)) };
        let layouts: Vec<WeightMatrix> = tasks.iter().map(|task| task.layout).collect();
        awq::scale(g, &group, &layouts, (h, seen), (self.block_of(&tasks[0]), codes), &self.exclude)
    }

    /// The size of blocks: a layer of fewer inputs than a block has smaller ones.
    fn block_of(&self, task: &Task) -> usize {
        let fits = Block::ALL.iter().map(|block| block.get()).filter(|n| *n <= task.layout.columns());
        fits.max().map_or(self.block, |most| most.min(self.block))
    }

    /// What layers inside of operators read, for each weight; nothing without data.
    fn gather_inside(
        &self,
        whole: &Graph,
        found: &[Nested],
        weights: &[Vec<(usize, Task)>],
        cx: &Context,
    ) -> Result<Vec<Option<Moments>>> {
        let Some(calibrator) = cx.calibrator.filter(|_| self.by_data) else {
            return Ok(weights.iter().map(|_| None).collect());
        };
        let sites = |(at, task): &(usize, Task)| {
            let Nested { way, graph } = &found[*at];
            task.read(graph).into_iter().map(|port| Site { within: way.clone(), port }).collect::<Vec<_>>()
        };
        let of = |tasks: &Vec<(usize, Task)>| tasks.iter().flat_map(sites).collect();
        let products: Vec<(&Inputs, Vec<Site>)> = weights.iter().map(|tasks| (&tasks[0].1.inputs, of(tasks))).collect();
        gather_inside(whole, &products, calibrator)
    }

    /// Whether the target has an operator for products with matrices of codes.
    fn by_bits(&self) -> bool {
        self.target.capabilities().by_bits
    }

    /// What a weight becomes.
    fn rounded(&self, g: &Graph, task: &Task, told: Option<&Told>) -> Result<Rounded> {
        let bug = || Error::bug("a weight is not a constant of f32");
        let tensor = g.constant(task.layer.weight.into()).ok_or_else(bug)?;
        let stored = tensor.as_f32().ok_or_else(bug)?;
        let made = match task.format.codes() {
            None => Rounded::Floats(float8::rounded(&task.layout, &stored)),
            Some(codes) => {
                let (blocked, codes) = blocked((&stored, &task.layout), self.block_of(task), codes, told);
                Rounded::Codes(blocked, codes)
            }
        };
        drop(stored);
        // It is not read again.
        tensor.release();
        Ok(made)
    }

    fn write(&self, g: &mut Graph, task: &Task, rounded: &Rounded, cx: &Context) -> Result<()> {
        match rounded {
            Rounded::Floats(floats) => float8::write(g, &task.layer, &task.layout, floats, cx),
            Rounded::Codes(blocked, codes) => {
                form::write(g, &task.layer, &task.layout, (blocked, *codes), self.by_bits(), cx)
            }
        }
    }
}

/// What a weight becomes.
enum Rounded {
    Codes(Blocked, Codes),
    Floats(Floats),
}

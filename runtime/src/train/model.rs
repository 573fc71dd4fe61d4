//! A graph with parameters: what is trained.
//!
//! The interpreter that runs any graph ([`Executable`]) runs it here too, with two changes. Constants that are
//! learnt ([`Operator::parameters`](compress_compiler::op::Operator::parameters)) become inputs, which are leaves of Burn's tape. And what behaves differently
//! in training is written so in a copy of the graph, as ONNX has it: BatchNormalization takes its statistics from
//! the batch and gives the moved running ones as outputs; Dropout drops, by a seed that is an input.

use super::{
    form::{TrainingForm, parameters, scales},
    teacher::named,
    untie::untie,
};
use crate::{
    burn::{
        Executable,
        host::IntArray,
        precision::Precision,
        tensor::{Float, Value},
    },
    device::Device,
};
use compress_compiler::{
    error::{Error, Result},
    forms::decoder::{Decoder, NamedSizes, SizeNames},
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
    ops::source::Input,
    tensor::{DType, Tensor},
    verify::verify,
    words::option::{FREEZE, KEEP_INITIALIZER_INPUTS},
};
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A constant that is learnt.
pub struct Parameter {
    /// Its name in the graph.
    pub name: String,
    /// What it is now.
    pub value: Float,
    /// Of a scale of quantised values, what it was at first: it is learnt in proportion to that, and stays positive.
    pub scale: Option<f32>,
    /// What its learning rate is in proportion to.
    pub(super) unit: f32,
    node: NodeId,
}

impl Parameter {
    /// The constant.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Whether weight decay applies to it: to matrices and kernels, not to biases and scales.
    pub fn decays(&self) -> bool {
        self.value.shape().len() > 1
    }
}

/// A running mean or variance.
struct Statistic {
    name: String,
    node: NodeId,
    value: Float,
}

/// What a forward pass made.
pub struct Forward {
    /// The graph's outputs, in order.
    pub outputs: Vec<Value>,
    /// The values asked for by name, in order.
    pub features: Vec<Value>,
    leaves: Vec<Float>,
    statistics: Vec<Value>,
}

impl Forward {
    /// The gradient of `loss` by each parameter, `None` where it doesn't depend on it.
    ///
    /// # Errors
    /// Unsupported when it depends on none.
    pub fn gradients(&self, loss: Float) -> Result<Vec<Option<Float>>> {
        let mut all = loss.backward()?;
        Ok(self.leaves.iter().map(|leaf| all.take(leaf)).collect())
    }

    /// The running statistics that it moved, off the tape.
    ///
    /// # Errors
    /// None for what [`Trainable::forward`] made.
    pub fn statistics(self) -> Result<Vec<Float>> {
        let float = |v| match v {
            Value::Float(x) => Ok(x.detached()),
            Value::Int(_) => Err(Error::bug("a running statistic is not a float")),
        };
        self.statistics.into_iter().map(float).collect()
    }
}

/// How a graph is trained.
#[derive(Debug, Clone, Default)]
pub struct ModelOptions {
    /// Parameters that stay as they are, by name.
    pub freeze: Vec<Regex>,
    /// The constants that are trained, and what the learning rate of each is in proportion to; if not given, all that can be.
    pub only: Option<BTreeMap<NodeId, f32>>,
    /// Values, by name, that the loss reads besides the outputs.
    pub features: Vec<String>,
    /// Compute cheap operators again in the backward pass instead of keeping what they made (Chen et al. 2016).
    pub recompute: bool,
    /// In which width convolutions and products are computed.
    pub precision: Precision,
    /// Learn the scales of QuantizeLinear too (LSQ, Esser et al. 2020).
    pub scales: bool,
}

/// Why a graph without parameters has none.
fn untrainable(graph: &Graph) -> Error {
    let coded = |n: NodeId| {
        let codes = graph.operand(n, 0).and_then(|port| graph.constant(port));
        matches!(graph.op(n), Op::Dequantize(_)) && codes.is_some_and(|t| t.shape().len() > 1)
    };
    let replaceable = |n: &NodeId| matches!(graph.op(*n), Op::Input(i) if i.default.is_some());
    let none = "the model has no weight that can be trained";
    if graph.operators().any(coded) {
        return Error::unsupported(format!("{none}: it is quantised, its weights are codes"))
            .help("train the model from which it was made, and quantise what comes out");
    }
    if graph.inputs().iter().any(replaceable) {
        return Error::unsupported(format!("{none}: they are inputs too, of which a caller may give others"))
            .help(format!("leave {KEEP_INITIALIZER_INPUTS} away"));
    }
    Error::unsupported(none).help(format!(
        "weights are floating-point constants of Conv, Gemm, MatMul and the like; {FREEZE} leaves some out"
    ))
}

/// Where an input of a graph that is trained comes from.
enum Source {
    /// Its default.
    Default(Tensor),
    /// The data; so many inputs before it do as well.
    Data(usize),
    /// It follows from the data: the input of a decoder.
    Made(NodeId),
}

impl Source {
    /// Where the inputs of `graph` come from.
    fn all(graph: &Graph, decoder: Option<&Decoder>) -> Vec<Self> {
        let mut given = 0..;
        let of = |node: &NodeId| match graph.op(*node) {
            Op::Input(Input { default: Some(t) }) => Some(Self::Default(t.clone())),
            _ if decoder.is_some_and(|d| d.makes(*node)) => Some(Self::Made(*node)),
            _ => given.next().map(Self::Data),
        };
        graph.inputs().iter().filter_map(of).collect()
    }
}

/// A graph whose parameters can be trained.
pub struct Trainable {
    graph: Graph,
    exe: Executable,
    device: Device,
    parameters: Vec<Parameter>,
    statistics: Vec<Statistic>,
    /// Where the model's own inputs come from.
    inputs: Vec<Source>,
    /// How the inputs are made that a decoder has for its cache: it is trained on whole sequences, without one.
    decoder: Option<Decoder>,
    dropouts: usize,
    outputs: usize,
    features: usize,
    recompute: bool,
    precision: Precision,
    left_out: Vec<String>,
    /// The parameters in the order in which their gradients are found.
    arrival: Vec<usize>,
}

impl Trainable {
    /// Makes `graph` ready to be trained.
    ///
    /// # Errors
    /// Unsupported when nothing in it can be trained or an operator has no kernel; usage when a feature is not a value of the graph.
    pub fn new(graph: &Graph, options: &ModelOptions, device: &Device) -> Result<Self> {
        if !Float::can_hold(options.precision, device) {
            return Err(Error::unsupported(format!("computing in {} on {}", options.precision, device.describe())));
        }
        let graph = &{
            let mut own = graph.clone();
            untie(&mut own);
            own
        };
        let scales = if options.scales { scales(graph) } else { BTreeSet::new() };
        let mut found = parameters(graph);
        let matrix = |t: &Tensor| t.dtype().is_float() && t.shape().len() > 1;
        let others = graph.ids().filter(|n| !found.contains(n) && graph.constant((*n).into()).is_some_and(matrix));
        let left_out = others.map(|n| graph.value(n.into()).name.clone()).collect();
        if let Some(only) = &options.only {
            found.retain(|n| only.contains_key(n));
        }
        found.extend(&scales);
        let name = |node: NodeId| graph.value(node.into()).name.clone();
        let frozen = |node: &NodeId| options.freeze.iter().any(|r| r.is_match(&graph.value((*node).into()).name));
        let all = found.len();
        let trained: BTreeSet<NodeId> = found.into_iter().filter(|node| !frozen(node)).collect();
        if trained.is_empty() && all > 0 {
            return Err(Error::usage("every weight that can be trained is frozen")
                .help(format!("let {FREEZE} match fewer names")));
        }
        if trained.is_empty() {
            return Err(untrainable(graph));
        }
        let mut form = TrainingForm::of(graph, &trained)?;
        Decoder::forget(&mut form.graph);
        let features = options.features.iter().map(|name| named(&form.graph, name)).collect::<Result<Vec<_>>>()?;
        let ends: Vec<Port> = form.graph.outputs().iter().map(|o| o.port).collect();
        let upload = |node: NodeId| -> Result<Float> {
            let t = graph.constant(node.into()).ok_or_else(|| Error::bug("a parameter is not a constant"))?;
            Float::upload(t, device)
        };
        let parameters = trained
            .iter()
            .map(|node| {
                let value = upload(*node)?;
                let mean = |v: &[f32]| Ok(v.iter().map(|v| v.abs()).sum::<f32>() / v.len() as f32);
                let scale = if scales.contains(node) { Some(value.view(mean)?) } else { None };
                let unit = options.only.as_ref().and_then(|only| only.get(node)).copied().unwrap_or(1.0);
                Ok(Parameter { name: name(*node), value, scale, unit, node: *node })
            })
            .collect::<Result<Vec<_>>>()?;
        let statistics = form
            .statistics
            .iter()
            .map(|(node, _)| Ok(Statistic { name: name(*node), node: *node, value: upload(*node)? }))
            .collect::<Result<Vec<_>>>()?;
        let inputs: Vec<Port> = (form.graph.inputs().iter().copied())
            .chain(trained.iter().copied())
            .chain(form.statistics.iter().map(|(node, _)| *node))
            .map(Port::from)
            .collect();
        let outputs: Vec<Port> =
            ends.iter().chain(&features).copied().chain(form.statistics.iter().map(|(_, port)| *port)).collect();
        let decoder = Decoder::of(graph);
        let place = verify(&form.graph)?.order().iter().enumerate().map(|(i, id)| (*id, i)).collect();
        let first = form.graph.inputs().len();
        let exe = Executable::part(&form.graph, &place, &inputs, &outputs, device)?
            .with_fused_steps()
            .in_precision(options.precision)
            .heard(first..first + trained.len());
        Ok(Self {
            arrival: exe.last_read_first(first..first + trained.len()),
            exe,
            graph: graph.clone(),
            device: device.clone(),
            parameters,
            statistics,
            inputs: Source::all(graph, decoder.as_ref()),
            decoder,
            dropouts: form.dropouts,
            outputs: ends.len(),
            features: features.len(),
            recompute: options.recompute,
            precision: options.precision,
            left_out,
        })
    }

    /// The parameters that are trained.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Matrices that look like weights and are none that training knows: what reads them has no parameters.
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// The parameters, to be changed.
    pub fn parameters_mut(&mut self) -> &mut [Parameter] {
        &mut self.parameters
    }

    /// Where it is trained.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// In which width it computes.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// The inputs of a batch, where it is trained.
    ///
    /// # Errors
    /// Unsupported for types that nothing computes with; limit where there is no room.
    pub fn send(&self, inputs: &[Tensor]) -> Result<Vec<Value>> {
        inputs.iter().map(|t| Value::input(t, &self.device)).collect()
    }

    /// Runs it in training mode on a batch that was [sent](Self::send), and moves the running statistics. `seed` decides what dropout
    /// drops.
    ///
    /// # Errors
    /// As for [`Executable::run`]; unsupported, naming the node, where there is no gradient.
    pub fn forward(&self, inputs: Vec<Value>, seed: u64) -> Result<Forward> {
        self.computed(self.parameters.iter().map(|p| p.value.clone().leaf(self.recompute)).collect(), inputs, seed)
    }

    /// As [`Trainable::forward`], where nothing is learnt: what gradients need would be kept until the next are taken.
    pub(crate) fn forward_alone(&self, inputs: Vec<Value>, seed: u64) -> Result<Forward> {
        self.computed(self.parameters.iter().map(|p| p.value.clone()).collect(), inputs, seed)
    }

    fn computed(&self, parameters: Vec<Float>, inputs: Vec<Value>, seed: u64) -> Result<Forward> {
        let made = match &self.decoder {
            Some(decoder) => decoder.beside(&self.shape_of(decoder.tokens, &inputs)?, &self.sizes(&inputs))?,
            None => vec![],
        };
        let missing = || Error::data("an input is missing");
        let own = self.inputs.iter().map(|source| match source {
            Source::Default(t) => Value::input(t, &self.device),
            Source::Data(place) => inputs.get(*place).cloned().ok_or_else(missing),
            Source::Made(node) => {
                let made = made.iter().find(|(of, _)| of == node).ok_or_else(missing)?;
                Value::input(&made.1, &self.device)
            }
        });
        let mut values = own.collect::<Result<Vec<_>>>()?;
        values.extend((0..self.dropouts as u64).map(|i| {
            let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(i);
            Value::Int(IntArray::new(DType::I64, vec![], vec![seed as i64]))
        }));
        values.extend(parameters.iter().cloned().map(Value::Float));
        values.extend(self.statistics.iter().map(|s| Value::Float(s.value.clone())));
        let mut made = self.exe.run_values(values)?;
        made.iter_mut().for_each(|value| value.hold(Precision::F32));
        let statistics = made.split_off(self.outputs + self.features);
        let features = made.split_off(self.outputs);
        Ok(Forward { outputs: made, features, leaves: parameters, statistics })
    }

    /// The shape that an input has in these data.
    fn shape_of(&self, input: NodeId, data: &[Value]) -> Result<Vec<usize>> {
        let place = self.graph.inputs().iter().position(|n| *n == input);
        match place.and_then(|i| self.inputs.get(i)) {
            Some(Source::Data(place)) => data.get(*place).map(|v| v.shape().to_vec()),
            _ => None,
        }
        .ok_or_else(|| Error::data("an input is missing"))
    }

    /// What the names of sizes stand for in these data.
    fn sizes(&self, data: &[Value]) -> NamedSizes {
        let given = |(input, source): (&NodeId, &Source)| match source {
            Source::Data(place) => data.get(*place).map(|v| (*input, v.shape())),
            _ => None,
        };
        let given: Vec<(NodeId, &[usize])> = self.graph.inputs().iter().zip(&self.inputs).filter_map(given).collect();
        let names = SizeNames::of(&self.graph, given.iter().map(|(input, _)| *input));
        names.sizes(given.into_iter().map(|(_, shape)| shape))
    }

    /// The shapes of what a batch teaches: the gradients of the parameters, and the running statistics.
    pub(crate) fn sizes_of_lessons(&self) -> Vec<Vec<usize>> {
        self.learnt().map(|(_, _, value)| value.shape().to_vec()).collect()
    }

    /// The places of all that in the order in which it is found: statistics going forward, gradients going back.
    pub(crate) fn order_of_lessons(&self) -> Vec<usize> {
        let parameters = self.parameters.len();
        (parameters..parameters + self.statistics.len()).chain(self.arrival.iter().copied()).collect()
    }

    /// Takes over the running statistics that a forward pass moved.
    pub(crate) fn keep_statistics(&mut self, moved: Vec<Float>) {
        self.statistics.iter_mut().zip(moved).for_each(|(s, new)| s.value = new);
    }

    /// The graph as it is written: in inference mode, with the parameters as they are now.
    ///
    /// # Errors
    /// Device, when reading fails.
    pub fn trained(&self) -> Result<Graph> {
        let mut graph = self.graph.clone();
        for (node, _, value) in self.learnt() {
            let dtype = graph.constant(node.into()).map_or(DType::F32, Tensor::dtype);
            let data = value.clone().into_vec()?;
            graph.set_constant(node, Tensor::floats(dtype, value.shape(), &data));
        }
        Ok(graph)
    }

    /// Parameters and statistics.
    fn learnt(&self) -> impl Iterator<Item = (NodeId, &str, &Float)> {
        let parameters = self.parameters.iter().map(|p| (p.node, &p.name[..], &p.value));
        parameters.chain(self.statistics.iter().map(|s| (s.node, &s.name[..], &s.value)))
    }

    /// Parameters and statistics as tensors, by name.
    ///
    /// # Errors
    /// Device, when reading fails.
    pub fn state(&self) -> Result<Vec<(String, Tensor)>> {
        self.learnt().map(|(_, name, v)| Ok((name.into(), Tensor::f32(v.shape(), &v.clone().into_vec()?)))).collect()
    }

    /// Takes over what [`Trainable::state`] gave.
    ///
    /// # Errors
    /// Data when something is missing or of another shape.
    pub(crate) fn set_state(&mut self, state: &HashMap<&str, &Tensor>) -> Result<()> {
        let take = |name: &str, old: &Float| -> Result<Float> {
            let fits = |t: &&&Tensor| t.dtype() == DType::F32 && t.shape() == old.shape();
            match state.get(name).filter(fits) {
                Some(t) => Ok(Float::upload(t, &self.device)?.with_dtype(old.dtype())),
                None => Err(Error::data(format!("the saved state has no `{name}` of shape {:?}", old.shape()))),
            }
        };
        let parameters = self.parameters.iter().map(|p| take(&p.name, &p.value)).collect::<Result<Vec<_>>>()?;
        let statistics = self.statistics.iter().map(|s| take(&s.name, &s.value)).collect::<Result<Vec<_>>>()?;
        self.parameters.iter_mut().zip(parameters).for_each(|(p, v)| p.value = v);
        self.statistics.iter_mut().zip(statistics).for_each(|(s, v)| s.value = v);
        Ok(())
    }
}

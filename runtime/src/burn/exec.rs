//! The interpreter: runs the nodes of a verified graph in order.

mod first;
mod training;

use self::first::First;
use super::{
    control::{self, Body, Run},
    fused::{Fused, Fusion},
    inputs::{Input, complete},
    kernels::{self, Args},
    order::{Maker, Order, Ways, made_once},
    precision::Precision,
    tensor::{Value, hearing},
};
use crate::{
    cpu::{self, Form, Spent, Want},
    device::Device,
    gpu::{Elapsed, Range, Recorder, Timer},
};
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    node::{NodeId, Port, Site},
    op::Op,
    tensor::Tensor,
    value::Fact,
    verify::Verified,
};
use std::{
    collections::{HashMap, HashSet},
    time::Instant,
};

/// A graph made ready to run on one device. Constants were sent there, quantised constants
/// were dequantised, and it is known after which node each value is of no more use.
pub struct Executable {
    device: Device,
    steps: Vec<Step>,
    inputs: Vec<Input>,
    /// Constants by slot; `None` for the slots of values that are computed.
    constants: Vec<Option<Value>>,
    outputs: Vec<usize>,
    /// What is known of the outputs.
    results: Vec<Fact>,
    /// In which width it computes; the graphs inside of nodes are always run in 32 bits.
    precision: Precision,
    slots: HashMap<Want, usize>,
    /// By slot, the numbers under which a value is shown.
    watched: HashMap<usize, Vec<usize>>,
    /// The steps that integers of inputs go through.
    first: First,
    /// By slot, the numbers of parameters whose gradients may be listened to.
    heard: HashMap<usize, usize>,
    /// Plays the other steps again, where a device can and they do the same every time.
    recorder: Option<Recorder>,
}

struct Step {
    node: NodeId,
    label: String,
    op: Op,
    /// The graphs that the operator runs.
    bodies: Vec<Body>,
    /// The slot of each input, and whether this is the last time that it is read.
    inputs: Vec<Option<(usize, bool)>>,
    /// The slot of each output; `None` where nobody reads it.
    outputs: Vec<Option<usize>>,
    /// Whether a Relu that alone read the first output is a part of it.
    rectified: bool,
    /// What makes the output, if it isn't the node alone.
    fused: Option<Box<dyn Fused>>,
}

/// What [`Executable::observe`] hands out: the place in the list of watched values, and the
/// elements.
pub type Sink<'a> = dyn FnMut(usize, &[f32]) -> Result<()> + 'a;

impl Executable {
    /// Makes `graph` ready. Nodes that no output needs are left out.
    ///
    /// # Errors
    /// Unsupported, naming the node, where an output needs an operator without kernel; device
    /// errors of the upload.
    pub fn new(graph: &Verified, device: &Device) -> Result<Self> {
        let inputs: Vec<Port> = graph.inputs().iter().map(|id| Port::from(*id)).collect();
        let outputs: Vec<Port> = graph.outputs().iter().map(|o| o.port).collect();
        let place = graph.order().iter().enumerate().map(|(i, id)| (*id, i)).collect();
        Self::part(graph, &place, &inputs, &outputs, device)
    }

    /// Makes the part of `graph` ready that computes `outputs` from `inputs`. `place` says where
    /// every node stands in the order.
    ///
    /// # Errors
    /// As for [`Executable::new`].
    pub(crate) fn part(
        graph: &Graph,
        place: &HashMap<NodeId, usize>,
        inputs: &[Port],
        outputs: &[Port],
        device: &Device,
    ) -> Result<Self> {
        Self::with_ways(
            graph,
            place,
            inputs,
            outputs,
            device,
            &Ways { branches: &|_| Ok(None), fuse: &|_| Ok(None), shown: &[] },
        )
    }

    /// The same, where others may run branches of If, and values may be made by other steps than their nodes.
    ///
    /// # Errors
    /// As for [`Executable::new`]; what `ways` raise.
    pub(crate) fn with_ways(
        graph: &Graph,
        place: &HashMap<NodeId, usize>,
        inputs: &[Port],
        outputs: &[Port],
        device: &Device,
        ways: &Ways,
    ) -> Result<Self> {
        let given: HashSet<Port> = inputs.iter().copied().collect();
        let Order { makers, asked } = Order::of(graph, place, &given, outputs, ways)?;
        let mut this = Self {
            device: device.clone(),
            steps: vec![],
            inputs: vec![],
            constants: vec![],
            outputs: vec![],
            results: outputs.iter().map(|p| graph.fact(*p).clone()).collect(),
            precision: device.products().width(),
            slots: HashMap::new(),
            watched: HashMap::new(),
            first: First::default(),
            heard: HashMap::new(),
            recorder: None,
        };
        for maker in makers {
            let id = match maker {
                Maker::Node(id) => id,
                Maker::Fusion(want, fusion) => {
                    this.add_fused(graph, want, fusion, &given)?;
                    continue;
                }
            };
            let node = graph.node(id);
            let at = |e: Error| e.at(node.label());
            let operands = graph.operands(id);
            match &node.op {
                Op::Input(_) | Op::Constant(_) => continue,
                Op::Opaque(o) => {
                    let why = format!("this operator cannot be run: {}", o.reason);
                    return Err(at(Error::unsupported(why)));
                }
                _ => {}
            }
            if let Some(t) = made_once(graph, id, &given).map_err(at)? {
                let slot = this.slot(id.into());
                this.constants[slot] = Some(Value::upload(&t, device).map_err(at)?);
                continue;
            }
            let mut read = Vec::with_capacity(operands.len());
            for port in &operands {
                read.push(match port {
                    Some(p) => Some((this.source(graph, *p, &given)?, false)),
                    None => None,
                });
            }
            let port = |slot: usize| Port { node: id, slot };
            let used = |slot: usize| asked.contains(&Want::float(port(slot)));
            let made = (0..node.outputs.len()).map(|s| used(s).then(|| this.slot(port(s)))).collect();
            // What a branch reads from around it may be a weight.
            let known = |slot: usize| operands.get(slot).copied().flatten().filter(|p| !given.contains(p));
            let constant =
                |slot: usize| known(slot).filter(|p| cpu::is_constant(graph, *p)).and_then(|p| cpu::constant(graph, p));
            let bodies = control::prepare(&node.op, &constant, device, ways.branches).map_err(at)?;
            let (label, op) = (node.label(), node.op.clone());
            this.steps.push(Step {
                node: id,
                label,
                op,
                bodies,
                inputs: read,
                outputs: made,
                rectified: false,
                fused: None,
            });
        }
        for port in outputs {
            let slot = this.source(graph, *port, &given)?;
            this.outputs.push(slot);
        }
        for port in inputs {
            this.inputs.push(Input::of(graph, *port, this.slots.get(&Want::float(*port)).copied()));
        }
        this.prepare_to_play(graph);
        this.mark_last_uses();
        Ok(this)
    }

    /// The same, with values that [`Executable::observe`] shows, each with the number under which it does.
    ///
    /// # Errors
    /// A bug when no output needs such a value, so that it is never computed.
    pub fn watching(mut self, watch: &[(usize, Site)]) -> Result<Self> {
        watch.iter().try_for_each(|(number, site)| self.watch(*number, &site.within, site.port))?;
        Ok(self)
    }

    fn watch(&mut self, number: usize, within: &[(NodeId, usize)], port: Port) -> Result<()> {
        let never = || Error::bug(format!("value {port:?} is watched and never computed"));
        match within {
            [] => {
                let slot = self.slots.get(&Want::float(port)).ok_or_else(never)?;
                self.watched.entry(*slot).or_default().push(number);
                Ok(())
            }
            [(node, body), within @ ..] => {
                let step = self.steps.iter_mut().find(|s| s.node == *node);
                match step.and_then(|s| s.bodies.get_mut(*body)) {
                    Some(Body::Burn(body)) => body.watch(number, within, port),
                    Some(Body::Other(_)) | None => Err(never()),
                }
            }
        }
    }

    /// The same, computing in another width.
    pub(crate) fn in_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// Adds the step that makes `want`.
    fn add_fused(&mut self, graph: &Graph, want: Want, fusion: Fusion, given: &HashSet<Port>) -> Result<()> {
        let mut read = Vec::with_capacity(fusion.operands.len());
        for operand in &fusion.operands {
            let slot = match operand.form {
                Form::Float => self.source(graph, operand.port, given)?,
                Form::Codes => self.slot_of(*operand),
            };
            read.push(Some((slot, false)));
        }
        let outputs = vec![Some(self.slot_of(want))];
        let node = graph.node(want.port.node);
        self.steps.push(Step {
            node: want.port.node,
            label: node.label(),
            op: node.op.clone(),
            bodies: vec![],
            inputs: read,
            outputs,
            rectified: false,
            fused: Some(fusion.step),
        });
        Ok(())
    }

    /// The slot of a value, a new one if it has none.
    fn slot(&mut self, port: Port) -> usize {
        self.slot_of(Want::float(port))
    }

    fn slot_of(&mut self, want: Want) -> usize {
        let next = self.constants.len();
        let slot = *self.slots.entry(want).or_insert(next);
        if slot == next {
            self.constants.push(None);
        }
        slot
    }

    /// The slot of a value that is read; a constant that is not `given` is sent to the device the first time.
    fn source(&mut self, graph: &Graph, port: Port, given: &HashSet<Port>) -> Result<usize> {
        let slot = self.slot(port);
        if let Some(t) = graph.constant(port).filter(|_| !given.contains(&port))
            && self.constants[slot].is_none()
        {
            let value = Value::upload(t, &self.device).map_err(|e| e.at(graph.node(port.node).label()))?;
            self.constants[slot] = Some(value);
        }
        Ok(slot)
    }

    fn mark_last_uses(&mut self) {
        let mut seen: HashSet<usize> = self.outputs.iter().chain(&self.first.kept).copied().collect();
        for step in self.steps.iter_mut().rev() {
            // From the last input on, as a step that reads a value twice takes the second.
            for (slot, last) in step.inputs.iter_mut().rev().flatten() {
                *last = seen.insert(*slot);
            }
        }
    }

    /// Where this runs.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What was known of the outputs before anything ran.
    pub(super) fn results(&self) -> &[Fact] {
        &self.results
    }

    /// The rank of an input, if that is known.
    pub(super) fn rank(&self, input: usize) -> Option<usize> {
        self.inputs.get(input)?.fact.rank()
    }

    /// Runs the graph on `inputs`, in the order of the model's signature, and returns its
    /// outputs. Inputs with a default may all be left out.
    ///
    /// # Errors
    /// Data when the inputs don't fit the signature; what a kernel raises, naming the node.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        download(self.interpret(self.feed(inputs)?, &mut Run::new(&mut |_, _| Ok(())), None)?)
    }

    /// Runs it on values that stay where they are, every input given.
    ///
    /// # Errors
    /// As for [`Executable::run`].
    pub(crate) fn run_values(&self, inputs: Vec<Value>) -> Result<Vec<Value>> {
        let mut symbols = HashMap::new();
        for (input, value) in self.inputs.iter().zip(&inputs) {
            input.check(value.dtype(), value.shape(), &mut symbols)?;
        }
        self.run_body(inputs, &mut Run::new(&mut |_, _| Ok(())))
    }

    /// Runs a body as a part of `run`: every input is given, and values stay where they are.
    ///
    /// # Errors
    /// As for [`Executable::run`].
    pub(super) fn run_body(&self, inputs: Vec<Value>, run: &mut Run) -> Result<Vec<Value>> {
        let mut values: Vec<Option<Value>> = vec![None; self.constants.len()];
        for (input, value) in self.inputs.iter().zip(inputs) {
            // What a loop hands on may change its shape, whatever the body declares.
            if input.fact.dtype.is_some_and(|d| d != value.dtype()) {
                return Err(input.differs(value.dtype(), value.shape()));
            }
            if let Some(slot) = input.slot {
                values[slot] = Some(value);
            }
        }
        self.interpret(values, run, None)
    }

    /// As [`Executable::run`], and shows every watched floating-point value to `sink`, under its
    /// number, as soon as it exists; one inside a body each time that the body runs. Other values are not shown. `spent` is
    /// told how long each node took, on a GPU by the GPU's clock, and how long the rest.
    ///
    /// # Errors
    /// As for [`Executable::run`]; what `sink` returns.
    pub fn observe(
        &self,
        inputs: &[Tensor],
        sink: &mut Sink,
        mut spent: Option<&mut Vec<Spent>>,
    ) -> Result<Vec<Tensor>> {
        if let (Some(recorder), true, None) = (&self.recorder, self.watched.is_empty(), &spent) {
            return self.play(recorder, inputs);
        }
        let started = Instant::now();
        let before = spent.as_ref().map_or(0, |list| list.len());
        let made = download(self.interpret(self.feed(inputs)?, &mut Run::new(sink), spent.as_deref_mut())?)?;
        if let Some(list) = spent {
            let named: f64 = list[before..].iter().map(|s| s.ms).sum();
            let ms = (started.elapsed().as_secs_f64() * 1e3 - named).max(0.0);
            list.push(Spent { node: "between nodes".into(), kernel: "burn".into(), ms, started, worker: (0, 1) });
        }
        Ok(made)
    }

    /// Runs all steps; `values` holds the inputs.
    fn interpret(
        &self,
        mut values: Vec<Option<Value>>,
        run: &mut Run,
        spent: Option<&mut Vec<Spent>>,
    ) -> Result<Vec<Value>> {
        if !self.watched.is_empty() {
            for (slot, (value, constant)) in values.iter().zip(&self.constants).enumerate() {
                if let Some(v) = value.as_ref().or(constant.as_ref()) {
                    self.show(slot, v, run)?;
                }
            }
        }
        self.pass(self.steps.iter(), &mut values, run, spent)?;
        self.results_of(&mut values)
    }

    /// The outputs, once all steps are done.
    fn results_of(&self, values: &mut [Option<Value>]) -> Result<Vec<Value>> {
        self.outputs.iter().map(|slot| self.read(values, *slot, false)).collect()
    }

    /// Runs some steps.
    fn pass<'s>(
        &self,
        steps: impl Iterator<Item = &'s Step>,
        values: &mut [Option<Value>],
        run: &mut Run,
        mut spent: Option<&mut Vec<Spent>>,
    ) -> Result<()> {
        let is_heard = !self.heard.is_empty() && hearing::is_heard();
        let mut timed: Vec<(usize, f64, Elapsed)> = vec![];
        for step in steps {
            let _range = Range::begin(&self.device, &step.label);
            let started = spent.is_some().then(|| (Instant::now(), Timer::start(&self.device)));
            let mut args = Vec::with_capacity(step.inputs.len());
            for input in &step.inputs {
                args.push(match *input {
                    None => None,
                    Some((slot, last)) => Some(self.read(values, slot, last).map_err(|e| e.at(&step.label))?),
                });
            }
            if is_heard {
                self.listen(step, &mut args);
            }
            let before = spent.as_ref().map_or(0, |list| list.len());
            let (kernel, made) = match &step.fused {
                Some(fused) => (fused.kernel(), fused.run(args.into_iter().flatten().collect()).map(|made| vec![made])),
                None => {
                    let eval = |args| match &step.bodies[..] {
                        [] => kernels::eval(&step.op, Args::new(args, &self.device).rectified(step.rectified)),
                        bodies => control::eval(&step.op, bodies, args, &self.device, run, spent.as_deref_mut()),
                    };
                    ("burn", self.precision.around(&step.op, args, eval))
                }
            };
            let made = made.map_err(|e| e.at(&step.label))?;
            if made.len() < step.outputs.len() {
                return Err(Error::bug(format!("{} outputs were made", made.len())).at(&step.label));
            }
            for (value, slot) in made.into_iter().zip(&step.outputs) {
                if let Some(slot) = *slot {
                    self.show(slot, &value, run)?;
                    values[slot] = Some(value);
                }
            }
            if let (Some(list), Some((started, timer))) = (spent.as_deref_mut(), started) {
                let inside: f64 = list[before..].iter().map(|s| s.ms).sum();
                timed.extend(timer.and_then(Timer::stop).map(|elapsed| (list.len(), inside, elapsed)));
                let ms = (started.elapsed().as_secs_f64() * 1e3 - inside).max(0.0);
                list.push(Spent { node: step.label.clone(), kernel: kernel.into(), ms, started, worker: (0, 1) });
            }
        }
        if let Some(list) = spent {
            for (at, inside, elapsed) in timed {
                list[at].ms = elapsed.ms().map_or(list[at].ms, |ms| (ms - inside).max(0.0));
            }
        }
        Ok(())
    }

    /// Shows a value, if it is watched.
    fn show(&self, slot: usize, value: &Value, run: &mut Run) -> Result<()> {
        match (self.watched.get(&slot), value) {
            (Some(numbers), Value::Float(f)) if f.dtype().is_float() => {
                f.view(|data| numbers.iter().try_for_each(|number| (run.sink)(*number, data)))
            }
            _ => Ok(()),
        }
    }

    fn read(&self, values: &mut [Option<Value>], slot: usize, last: bool) -> Result<Value> {
        if let Some(c) = &self.constants[slot] {
            return Ok(c.clone());
        }
        let value = if last { values[slot].take() } else { values[slot].clone() };
        value.ok_or_else(|| Error::bug("a value is read before it is computed"))
    }

    /// Checks the inputs and puts them where they are read.
    fn feed(&self, given: &[Tensor]) -> Result<Vec<Option<Value>>> {
        let mut values: Vec<Option<Value>> = vec![None; self.constants.len()];
        for (input, tensor) in self.inputs.iter().zip(complete(&self.inputs, given)?) {
            let Some(slot) = input.slot else { continue };
            values[slot] = Some(Value::input(tensor, &self.device)?);
        }
        Ok(values)
    }
}

/// Brings the outputs to the host.
fn download(values: Vec<Value>) -> Result<Vec<Tensor>> {
    values.into_iter().map(Value::download).collect()
}

//! A graph on two executors: the only place where both meet.
//!
//! A graph is cut into parts by what runs them: the CPU executor where it knows the operators,
//! Burn for the others. Between parts values are [`Tensor`]s as ONNX has them, so neither knows
//! of the other. A part that cannot be planned for the shapes at hand runs on Burn. A branch of an If that the CPU executor
//! knows something of is cut into parts of its own; Burn, which runs the If, sees a [`Branch`].

use super::{Backend, Engine, settled::settled};
use crate::{
    burn::{
        Executable,
        control::Branch,
        exec::Sink,
        inputs::{Input, complete},
        order::Ways,
    },
    cpu::{self, Program, Spent, Workspaces},
    gpu::Fuser,
};
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    node::{NodeId, Port, Site},
    op::Op,
    tensor::Tensor,
    verify::{Verified, verify},
};
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::OnceLock,
};

/// A part of a graph, and what runs it.
struct Part {
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    /// Values to show, with their numbers.
    watch: Vec<(usize, Site)>,
    /// What nobody needs after it.
    last: Vec<Port>,
    runner: Runner,
}

enum Runner {
    Cpu {
        program: Box<Program>,
        /// Which of the part's inputs it reads.
        read: Vec<usize>,
        /// What runs where it cannot.
        burn: OnceLock<Executable>,
    },
    Burn(Executable),
}

/// A graph cut into parts, ready to run.
pub struct Parts {
    backend: Backend,
    /// What plans are made of; only where there are parts that need them.
    graph: Option<Graph>,
    /// The graph's inputs and outputs.
    signature: (Vec<Port>, Vec<Port>),
    /// Where each node stands in the graph's order.
    place: HashMap<NodeId, usize>,
    inputs: Vec<Input>,
    /// Outputs and watched values that are constants.
    constants: Vec<(Port, Tensor)>,
    parts: Vec<Part>,
    /// What the CPU executor's parts run in.
    workspaces: Workspaces,
    watch: Vec<Site>,
}

impl Parts {
    /// Makes `graph` ready to run. [`Parts::observe`] shows the values in `watch`.
    ///
    /// # Errors
    /// As for [`Executable::new`].
    pub fn new(graph: &Verified, backend: &Backend, watch: &[Site]) -> Result<Self> {
        match settled(graph)? {
            Some(settled) => Self::of(&verify(&settled)?, backend, watch),
            None => Self::of(graph, backend, watch),
        }
    }

    fn of(graph: &Verified, backend: &Backend, watch: &[Site]) -> Result<Self> {
        let known = match backend.engine {
            Engine::Cpu(_) => cpu::known(graph, graph.order()),
            Engine::Burn | Engine::OnnxRuntime(_) => HashSet::new(),
        };
        let levels = Levels::of(graph, known);
        let plans = !levels.is_burn_alone();
        let mut this = Self {
            graph: plans.then(|| Graph::clone(graph)),
            signature: (
                graph.inputs().iter().map(|id| Port::from(*id)).collect(),
                graph.outputs().iter().map(|o| o.port).collect(),
            ),
            place: HashMap::new(),
            backend: backend.clone(),
            inputs: graph.inputs().iter().map(|id| Input::of(graph, Port::from(*id), None)).collect(),
            constants: vec![],
            parts: vec![],
            workspaces: Workspaces::default(),
            watch: watch.to_vec(),
        };
        let place: HashMap<NodeId, usize> = graph.order().iter().enumerate().map(|(i, id)| (*id, i)).collect();
        let mut nodes: Vec<Vec<NodeId>> = vec![vec![]; levels.count()];
        for id in graph.order() {
            if let Some(level) = levels.at(*id) {
                nodes[level].push(*id);
            }
        }
        let mut watched: Vec<Vec<(usize, Site)>> = vec![vec![]; levels.count()];
        for (i, site) in watch.iter().enumerate() {
            if let Some(level) = levels.at(site.outermost()) {
                watched[level].push((i, site.clone()));
            }
        }
        // What each part is asked for by later ones, the last part first.
        let mut asked: Vec<BTreeSet<Port>> = vec![BTreeSet::new(); levels.count()];
        let ends: BTreeSet<Port> =
            graph.outputs().iter().map(|o| o.port).chain(watch.iter().filter_map(Site::here)).collect();
        for port in ends {
            match levels.at(port.node) {
                // What is only watched is freed after its last reader, unless it has none.
                Some(_) if !graph.is_output(port) && graph.is_read(port) => {}
                Some(level) => drop(asked[level].insert(port)),
                None => this.constants.extend(cpu::constant(graph, port).map(|t| (port, t))),
            }
        }
        for level in (0..levels.count()).rev() {
            let outputs: Vec<Port> = std::mem::take(&mut asked[level]).into_iter().collect();
            if outputs.is_empty() {
                continue;
            }
            let watch = std::mem::take(&mut watched[level]);
            let part = this.part(graph, &levels, level, (&place, &nodes[level]), outputs, watch)?;
            for port in &part.inputs {
                if let Some(level) = levels.at(port.node) {
                    asked[level].insert(*port);
                }
            }
            this.parts.push(part);
        }
        // The parts are still in reverse.
        let mut read: HashSet<Port> = this.signature.1.iter().copied().collect();
        for part in &mut this.parts {
            part.last = part.inputs.iter().copied().filter(|port| read.insert(*port)).collect();
        }
        this.parts.reverse();
        this.place = place;
        Ok(this)
    }

    fn part(
        &self,
        graph: &Verified,
        levels: &Levels,
        level: usize,
        (place, nodes): (&HashMap<NodeId, usize>, &[NodeId]),
        outputs: Vec<Port>,
        watch: Vec<(usize, Site)>,
    ) -> Result<Part> {
        let is_here = |id: NodeId| levels.at(id) == Some(level);
        let inputs = self.borders(graph, &is_here, &outputs);
        if let Engine::Cpu(isa) = self.backend.engine
            && Levels::is_cpu(level)
        {
            let ports: Vec<(usize, Port)> = watch.iter().filter_map(|(i, site)| Some((*i, site.here()?))).collect();
            let program = Box::new(cpu::lower(graph, place, nodes, &is_here, (&inputs, &outputs), &ports, isa)?);
            // The inputs are those that Burn would read, were it to run the part; we may need fewer.
            let place = |port: Port| inputs.iter().position(|p| *p == port);
            let read = program.inputs().map(|p| place(p).ok_or_else(|| Error::bug("an input from nowhere")));
            let read = read.collect::<Result<_>>()?;
            return Ok(Part {
                inputs,
                outputs,
                watch,
                last: vec![],
                runner: Runner::Cpu { program, read, burn: OnceLock::new() },
            });
        }
        let branches = |g: &Verified| {
            let inside = |(_, site): &(usize, Site)| !site.within.is_empty();
            if self.backend.engine == Engine::Burn || watch.iter().any(inside) {
                return Ok(None);
            }
            let session = Self::new(g, &self.backend, &[])?;
            Ok(session.graph.is_some().then(|| Box::new(session) as Box<dyn Branch>))
        };
        let shown: Vec<Port> = watch.iter().filter_map(|(_, site)| site.here()).filter(|p| is_here(p.node)).collect();
        let pinned: HashSet<Port> = outputs.iter().chain(&shown).copied().collect();
        let device = &self.backend.device;
        let fuser = Fuser::new(graph, nodes, &is_here, &pinned, device);
        let ways = Ways { branches: &branches, fuse: &|want| fuser.fuse(want), shown: &shown };
        let exe = Executable::with_ways(graph, place, &inputs, &outputs, device, &ways)?;
        let exe = exe.watching(&watch)?;
        Ok(Part { inputs, outputs, watch, last: vec![], runner: Runner::Burn(exe) })
    }

    /// What the nodes for which `is_here` holds read from elsewhere, as far as `outputs` need them.
    fn borders(&self, graph: &Graph, is_here: &dyn Fn(NodeId) -> bool, outputs: &[Port]) -> Vec<Port> {
        let (mut seen, mut borders) = (HashSet::new(), HashSet::new());
        let mut open: Vec<NodeId> = outputs.iter().map(|p| p.node).collect();
        while let Some(id) = open.pop() {
            if !seen.insert(id) {
                continue;
            }
            for port in graph.operands(id).into_iter().flatten().filter(|p| !cpu::is_constant(graph, *p)) {
                match is_here(port.node) {
                    true => open.push(port.node),
                    false => drop(borders.insert(port)),
                }
            }
        }
        let mut borders: Vec<Port> = borders.into_iter().collect();
        borders.sort_unstable();
        borders
    }

    /// Runs the model on `inputs`, in the order of its signature, and returns its outputs. Inputs
    /// with a default may all be left out.
    ///
    /// # Errors
    /// Data when the inputs don't fit the signature; what a kernel raises, naming the node.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.go(&complete(&self.inputs, inputs)?, &mut |_, _| Ok(()), None)
    }

    /// As [`Parts::run`], and shows every watched floating-point value to `sink`, by its place
    /// in the list given to [`Parts::new`], as soon as it exists; one of a graph inside each time
    /// that this one runs. Other values are not shown.
    ///
    /// # Errors
    /// As for [`Parts::run`]; what `sink` returns.
    pub fn observe(&self, inputs: &[Tensor], sink: &mut Sink) -> Result<Vec<Tensor>> {
        for (i, site) in self.watch.iter().enumerate() {
            let Some(port) = site.here() else { continue };
            let constant = self.constants.iter().find(|(p, _)| *p == port).map(|(_, t)| t);
            let place = self.signature.0.iter().position(|input| *input == port);
            let given = match place {
                Some(place) => complete(&self.inputs, inputs)?.get(place).copied(),
                None => constant,
            };
            if let Some(values) = given.and_then(Tensor::as_f32) {
                sink(i, &values)?;
            }
        }
        self.go(&complete(&self.inputs, inputs)?, sink, None)
    }

    /// As [`Parts::run`], and says how long each node took, and for each part that Burn ran the time between its nodes.
    ///
    /// # Errors
    /// As for [`Parts::run`].
    pub fn profile(&self, inputs: &[Tensor]) -> Result<Vec<Spent>> {
        let mut spent = vec![];
        self.go(&complete(&self.inputs, inputs)?, &mut |_, _| Ok(()), Some(&mut spent))?;
        Ok(spent)
    }

    fn go(&self, inputs: &[&Tensor], sink: &mut Sink, mut spent: Option<&mut Vec<Spent>>) -> Result<Vec<Tensor>> {
        let mut values: HashMap<Port, Tensor> = self.constants.iter().cloned().collect();
        for (port, tensor) in self.signature.0.iter().zip(inputs) {
            values.insert(*port, Tensor::clone(tensor));
        }
        for part in &self.parts {
            let read = |port: &Port| values.get(port).ok_or_else(|| Error::bug("a part reads what is not made"));
            let given: Vec<&Tensor> = part.inputs.iter().map(read).collect::<Result<_>>()?;
            let made = self.run_part(part, &given, sink, spent.as_deref_mut())?;
            part.last.iter().for_each(|port| drop(values.remove(port)));
            values.extend(part.outputs.iter().copied().zip(made));
        }
        let output = |port: Port| values.get(&port).cloned().ok_or_else(|| Error::bug("an output is not made"));
        self.signature.1.iter().map(|port| output(*port)).collect()
    }

    fn run_part(
        &self,
        part: &Part,
        inputs: &[&Tensor],
        sink: &mut Sink,
        mut spent: Option<&mut Vec<Spent>>,
    ) -> Result<Vec<Tensor>> {
        let exe = match &part.runner {
            Runner::Burn(exe) => exe,
            Runner::Cpu { program, read, burn } => {
                let read: Vec<&Tensor> = read.iter().map(|i| inputs[*i]).collect();
                let graph = self.graph.as_ref().ok_or_else(|| Error::bug("a plan without a graph"))?;
                if let Some(made) = program.run(graph, &self.workspaces, &read, sink, spent.as_deref_mut())? {
                    return Ok(made);
                }
                if burn.get().is_none() {
                    let made = Executable::part(graph, &self.place, &part.inputs, &part.outputs, &self.backend.device)?;
                    let made = made.watching(&part.watch)?;
                    // Another thread may have been faster; either will do.
                    let _ = burn.set(made);
                }
                burn.get().ok_or_else(|| Error::bug("no executable was made"))?
            }
        };
        let inputs: Vec<Tensor> = inputs.iter().map(|t| (*t).clone()).collect();
        exe.observe(&inputs, sink, spent)
    }
}

impl Branch for Parts {
    fn run(&self, inputs: &[&Tensor], spent: Option<&mut Vec<Spent>>) -> Result<Vec<Tensor>> {
        self.go(inputs, &mut |_, _| Ok(()), spent)
    }

    fn reads(&self, input: usize) -> bool {
        let port = self.signature.0[input];
        self.signature.1.contains(&port) || self.parts.iter().any(|part| part.inputs.contains(&port))
    }
}

/// A number for each node, such that nodes of one number form a part: even ones run on the CPU
/// executor, odd ones on Burn, and no node needs a value of a higher number.
struct Levels(HashMap<NodeId, usize>);

impl Levels {
    fn of(graph: &Verified, mut known: HashSet<NodeId>) -> Self {
        loop {
            let levels = Self::given(graph, &known);
            if levels.count() <= 1 {
                return levels;
            }
            let (gains, before) = (levels.gains(graph), known.len());
            known.retain(|id| levels.at(*id).is_some_and(|level| gains[level] >= WORTH_A_PART));
            if known.len() == before {
                return levels;
            }
        }
    }

    /// What each of the CPU executor's levels is worth.
    fn gains(&self, graph: &Graph) -> Vec<u64> {
        let mut gains = vec![0u64; self.count()];
        for (id, level) in self.0.iter().filter(|(_, level)| Self::is_cpu(**level)) {
            gains[*level] = gains[*level].saturating_add(weight(graph, *id));
        }
        gains
    }

    fn given(graph: &Verified, known: &HashSet<NodeId>) -> Self {
        let mut levels: HashMap<NodeId, usize> = HashMap::new();
        for id in graph.order() {
            if matches!(graph.op(*id), Op::Input(_)) || cpu::is_constant(graph, Port::from(*id)) {
                continue;
            }
            let own = usize::from(!known.contains(id));
            let reads = graph.operands(*id).into_iter().flatten().filter_map(|p| levels.get(&p.node));
            let level = reads.map(|l| l + (l + own) % 2).max().unwrap_or(own);
            levels.insert(*id, level);
        }
        // What the CPU executor makes is made where it is read, or a product would be in one part and its reader, which
        // also reads something of Burn's, in another.
        for id in graph.order().iter().rev().filter(|id| known.contains(id)) {
            let outputs = (0..graph.node(*id).outputs.len()).map(|slot| Port { node: *id, slot });
            let (mut readers, mut is_output): (Vec<usize>, bool) = (vec![], false);
            for port in outputs {
                is_output |= graph.is_output(port);
                readers.extend(graph.uses(port).iter().filter_map(|u| levels.get(&u.node).copied()));
            }
            let latest = readers.into_iter().map(|level| level - level % 2).min();
            if let (Some(level), Some(latest), false) = (levels.get_mut(id), latest, is_output) {
                *level = latest.max(*level);
            }
        }
        Self(levels)
    }

    fn at(&self, id: NodeId) -> Option<usize> {
        self.0.get(&id).copied()
    }

    fn count(&self) -> usize {
        self.0.values().max().map_or(0, |l| l + 1)
    }

    /// Whether no node runs on the CPU executor.
    fn is_burn_alone(&self) -> bool {
        !self.0.values().any(|level| Self::is_cpu(*level))
    }

    fn is_cpu(level: usize) -> bool {
        level.is_multiple_of(2)
    }
}

/// Multiply-accumulates for whose sake values are handed to the CPU executor and back, which
/// takes some ten microseconds.
const WORTH_A_PART: u64 = 200_000;

/// What a node counts for, in multiply-accumulates of a sample.
fn weight(graph: &Graph, id: NodeId) -> u64 {
    match graph.op(id) {
        // Burn packs its weights in every run.
        Op::Recurrent(_) | Op::DynamicLstm(_) => WORTH_A_PART,
        // Burn emulates these in several floating-point operators.
        Op::Quantize(_) | Op::Dequantize(_) | Op::Pool(_) | Op::GlobalPool(_) => WORTH_A_PART / 4,
        _ => match graph.macs(id) {
            0 => 0,
            // Of what is not known yet there may be much.
            _ if !graph.fact(id.into()).dims().is_some_and(|d| d.iter().skip(1).all(|d| d.known().is_some())) => {
                WORTH_A_PART
            }
            macs => macs,
        },
    }
}

#[cfg(test)]
mod tests;

//! What lowering makes: lowered operators in order, whose shapes are open, and the plans made of them.

use super::{
    arena::Workspaces,
    batch::Batch,
    lowering::{Form, Lowered, ValueId, Want},
    steps::Spent,
};
use crate::burn::tensor::check_size;
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    node::{NodeId, Port},
    op::{Inputs, Op, Operator},
    tensor::{DType, Tensor},
    value::{Dim, Fact},
};
use compress_kernels::Isa;
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Plans that are kept: batches have one size, and the last one another.
const PLANS: usize = 4;

/// A value of a program, as the graph knows it.
pub(super) struct Placed {
    pub port: Port,
    pub form: Form,
    /// Whether the codes are those of signed numbers.
    pub signed: bool,
}

impl Placed {
    pub fn of(graph: &Graph, want: Want) -> Self {
        Self { port: want.port, form: want.form, signed: graph.fact(want.port).dtype == Some(DType::I8) }
    }

    /// The type outside.
    pub fn dtype(&self) -> DType {
        match (self.form, self.signed) {
            (Form::Float, _) => DType::F32,
            (Form::Codes, false) => DType::U8,
            (Form::Codes, true) => DType::I8,
        }
    }
}

/// A lowered operator with its operands.
pub(super) struct Instruction {
    pub label: String,
    pub op: Box<dyn Lowered>,
    pub inputs: Vec<ValueId>,
    pub output: ValueId,
}

/// A part of a graph, lowered.
pub struct Program {
    pub(super) isa: Isa,
    pub(super) values: Vec<Placed>,
    pub(super) instructions: Vec<Instruction>,
    pub(super) inputs: Vec<ValueId>,
    pub(super) outputs: Vec<ValueId>,
    pub(super) watch: Vec<(usize, ValueId)>,
    /// The nodes from which shapes follow, in order.
    shape_nodes: Vec<NodeId>,
    /// The constants among the values.
    constants: HashSet<ValueId>,
    plans: Mutex<Vec<Arc<Batch>>>,
}

impl Program {
    pub(super) fn new(isa: Isa) -> Self {
        Self {
            isa,
            values: vec![],
            instructions: vec![],
            inputs: vec![],
            outputs: vec![],
            watch: vec![],
            shape_nodes: vec![],
            constants: HashSet::new(),
            plans: Mutex::default(),
        }
    }

    fn add_value(&mut self, value: Placed) -> ValueId {
        self.values.push(value);
        self.values.len() - 1
    }

    pub(super) fn add_input(&mut self, value: Placed) -> ValueId {
        let id = self.add_value(value);
        self.inputs.push(id);
        id
    }

    pub(super) fn add(&mut self, label: String, op: Box<dyn Lowered>, inputs: Vec<ValueId>, output: Placed) -> ValueId {
        let output = self.add_value(output);
        if op.is_constant() {
            self.constants.insert(output);
        }
        self.instructions.push(Instruction { label, op, inputs, output });
        output
    }

    pub(super) fn add_output(&mut self, value: ValueId) {
        self.outputs.push(value);
    }

    pub(super) fn add_watch(&mut self, place: usize, value: ValueId) {
        self.watch.push((place, value));
    }

    /// Whether a value is a constant.
    pub(super) fn is_constant(&self, id: ValueId) -> bool {
        self.constants.contains(&id)
    }

    /// The values that it takes, in order.
    pub fn inputs(&self) -> impl Iterator<Item = Port> + '_ {
        self.inputs.iter().map(|id| self.values[*id].port)
    }

    /// Finds the nodes from which the shapes of all values follow: back to the inputs, and before
    /// `part` to what is known without them, or each part would go through all before it.
    pub(super) fn find_shape_nodes(
        &mut self,
        graph: &Graph,
        place: &HashMap<NodeId, usize>,
        part: &dyn Fn(NodeId) -> bool,
    ) {
        let inputs: HashSet<Port> = self.inputs().collect();
        let is_known = |port: Port| {
            let fact = graph.fact(port);
            !part(port.node) && (fact.known_elems().is_some() || fact.elems.is_none() && fact.fixed().is_some())
        };
        let mut needed = HashSet::new();
        let mut open: Vec<Port> = self.values.iter().map(|v| v.port).collect();
        while let Some(port) = open.pop() {
            if !inputs.contains(&port) && !is_known(port) && needed.insert(port.node) {
                open.extend(graph.operands(port.node).into_iter().flatten());
            }
        }
        let is_source = |id: NodeId| matches!(graph.op(id), Op::Input(_) | Op::Constant(_));
        self.shape_nodes = needed.into_iter().filter(|id| !is_source(*id)).collect();
        self.shape_nodes.sort_by_key(|id| place[id]);
    }

    /// The shape of every value, given those of the inputs.
    pub(super) fn shapes(&self, graph: &Graph, given: &[&[usize]]) -> Result<Vec<Vec<usize>>> {
        let mut facts: HashMap<Port, Fact> = HashMap::new();
        for (id, dims) in self.inputs.iter().zip(given) {
            let dims = dims.iter().map(|n| Dim::from(*n)).collect();
            facts.insert(self.values[*id].port, Fact::new(Some(self.values[*id].dtype()), Some(dims)));
        }
        for id in &self.shape_nodes {
            let operands = graph.operands(*id);
            let known: Vec<Option<&Fact>> =
                operands.iter().map(|p| p.map(|p| facts.get(&p).unwrap_or_else(|| graph.fact(p)))).collect();
            let made = graph.op(*id).infer(&Inputs(&known)).map_err(|e| e.at(graph.node(*id).label()))?;
            for (slot, fact) in made.into_iter().enumerate() {
                let port = Port { node: *id, slot };
                // An input may lie behind another one: what was given for it stands.
                facts.entry(port).or_insert(fact);
            }
        }
        let shape = |v: &Placed| {
            let fact = facts.get(&v.port).unwrap_or_else(|| graph.fact(v.port));
            let dims = fact.fixed().filter(|dims| !dims.contains(&0));
            let dims = dims.ok_or_else(|| Error::unsupported(format!("a value of {fact}")));
            dims.and_then(|d| check_size(&d).map(|_| d)).map_err(|e| e.at(graph.node(v.port.node).label()))
        };
        self.values.iter().map(shape).collect()
    }

    /// Runs it in `workspaces` on `inputs`, in the order of [`Program::inputs`], and shows watched
    /// values to `sink`. `None` where no plan can be made for these shapes.
    ///
    /// # Errors
    /// What `sink` returns.
    pub fn run(
        &self,
        graph: &Graph,
        workspaces: &Workspaces,
        inputs: &[&Tensor],
        sink: &mut dyn FnMut(usize, &[f32]) -> Result<()>,
        spent: Option<&mut Vec<Spent>>,
    ) -> Result<Option<Vec<Tensor>>> {
        let shapes: Vec<&[usize]> = inputs.iter().map(|t| t.shape()).collect();
        self.planned(graph, &shapes).run(self, workspaces, inputs, sink, spent)
    }

    /// How inputs of `shapes` are run. No lock is held while they are planned, nor while they run:
    /// a thread of Rayon's that waits for others may begin another run of the same program.
    fn planned(&self, graph: &Graph, shapes: &[&[usize]]) -> Arc<Batch> {
        let threads = rayon::current_num_threads();
        let known = |plans: &[Arc<Batch>]| plans.iter().find(|p| p.fits(shapes, threads)).cloned();
        if let Some(batch) = known(&self.plans()) {
            return batch;
        }
        let made = Batch::new(self, graph, shapes, threads).unwrap_or_else(|why| {
            tracing::debug!("no plan for inputs of {shapes:?}: {why}");
            Batch::impossible(shapes, threads)
        });
        let mut plans = self.plans();
        // Another thread may have been faster; its plan is the same.
        known(&plans).unwrap_or_else(|| {
            if plans.len() == PLANS {
                plans.remove(0);
            }
            plans.push(Arc::new(made));
            plans[plans.len() - 1].clone()
        })
    }

    fn plans(&self) -> MutexGuard<'_, Vec<Arc<Batch>>> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

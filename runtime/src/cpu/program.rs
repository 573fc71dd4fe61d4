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
    value::{Dim, Fact, MAX_ELEMS},
};
use compress_kernels::Isa;
use rustc_hash::{FxHashMap, FxHashSet};
use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Plans that are kept at least: batches have one size, and the last one another. More are kept while they take no more bytes than
/// this: a decoder has another shape in each run, and has it again in the next text.
const PLANS: usize = 4;
const PLAN_BYTES: usize = 32 << 20;

/// A value of a program, as the graph knows it.
pub(super) struct Placed {
    pub port: Port,
    pub form: Form,
    /// The type outside.
    pub dtype: DType,
}

impl Placed {
    pub fn of(graph: &Graph, want: Want) -> Self {
        let dtype = match (want.form, graph.fact(want.port).dtype) {
            (Form::Float, _) => DType::F32,
            (Form::Codes, Some(dtype @ (DType::I8 | DType::Bool | DType::I32 | DType::I64))) => dtype,
            (Form::Codes, _) => DType::U8,
        };
        Self { port: want.port, form: want.form, dtype }
    }
}

/// A lowered operator with its operands.
pub(super) struct Instruction {
    pub label: String,
    pub op: Box<dyn Lowered>,
    pub inputs: Vec<ValueId>,
    pub output: ValueId,
}

/// What plans are made for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Given {
    /// The shapes of the inputs.
    pub shapes: Vec<Vec<usize>>,
    /// The shapes of values beside them, and the elements of those that may be sizes.
    pub beside: Vec<(Vec<usize>, Option<Vec<i64>>)>,
}

/// A part of a graph, lowered.
pub struct Program {
    pub(super) isa: Isa,
    pub(super) values: Vec<Placed>,
    pub(super) instructions: Vec<Instruction>,
    pub(super) inputs: Vec<ValueId>,
    pub(super) outputs: Vec<ValueId>,
    pub(super) watch: Vec<(usize, ValueId)>,
    /// Outputs that are sizes: which of the outputs, and of what node.
    pub(super) sizes: Vec<(usize, Port)>,
    /// The values from elsewhere from which only shapes follow: plans are made for their shapes, and for the elements of those
    /// that may be sizes.
    beside: Vec<Port>,
    /// The nodes from which shapes follow, in order.
    shape_nodes: Vec<NodeId>,
    /// The constants among the values.
    constants: FxHashSet<ValueId>,
    plans: Mutex<Plans>,
}

/// Plans, the oldest first.
#[derive(Default)]
struct Plans {
    by_given: HashMap<(Given, usize), Arc<Batch>>,
    order: VecDeque<(Given, usize)>,
    bytes: usize,
}

impl Plans {
    /// Keeps one, and drops the oldest where they take too much.
    fn keep(&mut self, given: (Given, usize), plan: Arc<Batch>) {
        self.bytes += plan.bytes();
        self.by_given.insert(given.clone(), plan);
        self.order.push_back(given);
        while self.order.len() > PLANS && self.bytes > PLAN_BYTES {
            let oldest = self.order.pop_front().and_then(|given| self.by_given.remove(&given));
            self.bytes -= oldest.map_or(0, |plan| plan.bytes());
        }
    }
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
            sizes: vec![],
            beside: vec![],
            shape_nodes: vec![],
            constants: FxHashSet::default(),
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

    /// Adds a value that nothing makes, for its shape.
    pub(super) fn add_shape(&mut self, value: Placed) -> ValueId {
        self.add_value(value)
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

    /// Adds an output whose elements are known once shapes are.
    pub(super) fn add_size(&mut self, port: Port) {
        self.sizes.push((self.outputs.len() + self.sizes.len(), port));
    }

    /// The values that it takes, in order: those that it computes with, then those from which only shapes follow.
    pub fn inputs(&self) -> impl Iterator<Item = Port> + '_ {
        self.inputs.iter().map(|id| self.values[*id].port).chain(self.beside.iter().copied())
    }

    /// Finds the nodes from which the shapes of all values follow: back to the inputs, and before
    /// `part` to what is known without them, or each part would go through all before it.
    pub(super) fn find_shape_nodes(
        &mut self,
        graph: &Graph,
        place: &HashMap<NodeId, usize>,
        part: &dyn Fn(NodeId) -> bool,
        given: &[Port],
    ) {
        let inputs: HashSet<Port> = self.inputs().collect();

        let is_known = |port: Port| {
            let fact = graph.fact(port);
            !part(port.node) && (fact.known_elems().is_some() || fact.elems.is_none() && fact.fixed().is_some())
        };
        let mut needed = HashSet::new();
        let sizes = self.sizes.iter().map(|s| s.1);
        let mut open: Vec<Port> = self.values.iter().map(|v| v.port).chain(sizes).collect();
        let mut beside = BTreeSet::new();
        while let Some(port) = open.pop() {
            if inputs.contains(&port) || is_known(port) {
                continue;
            }
            if given.contains(&port) {
                beside.insert(port);
            } else if needed.insert(port.node) {
                open.extend(graph.operands(port.node).into_iter().flatten());
            }
        }
        self.beside = beside.into_iter().collect();
        let is_source = |id: NodeId| matches!(graph.op(id), Op::Input(_) | Op::Constant(_));
        self.shape_nodes = needed.into_iter().filter(|id| !is_source(*id)).collect();
        self.shape_nodes.sort_by_key(|id| place[id]);
    }

    /// The shape of every value and the elements of outputs that are sizes, given what the inputs are.
    pub(super) fn shapes(&self, graph: &Graph, given: &Given) -> Result<(Vec<Vec<usize>>, Vec<Tensor>)> {
        let mut facts: FxHashMap<Port, Fact> = FxHashMap::default();
        for (id, dims) in self.inputs.iter().zip(&given.shapes) {
            let dims = dims.iter().map(|n| Dim::from(*n)).collect();
            facts.insert(self.values[*id].port, Fact::new(Some(self.values[*id].dtype), Some(dims)));
        }
        for (port, (dims, elems)) in self.beside.iter().zip(&given.beside) {
            let known = || Fact::new(graph.fact(*port).dtype, Some(dims.iter().map(|n| Dim::from(*n)).collect()));
            let elems: Option<Vec<Dim>> = elems.as_ref().map(|elems| elems.iter().map(|n| Dim::Known(*n)).collect());
            facts.insert(*port, elems.map_or_else(known, |elems| Fact::elems(elems, dims.is_empty())));
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
        let fact = |port: Port| facts.get(&port).unwrap_or_else(|| graph.fact(port));
        // A cache begins without entries.
        let is_begun = |id: ValueId| {
            let mut readers = self.instructions.iter().filter(|l| l.inputs.contains(&id));
            readers.all(|l| l.op.may_be_empty()) && !self.outputs.contains(&id)
        };
        let shape = |(id, v): (ValueId, &Placed)| {
            let fact = fact(v.port);
            let dims = fact.fixed().filter(|dims| !dims.contains(&0) || is_begun(id));
            let dims = dims.ok_or_else(|| Error::unsupported(format!("a value of {fact}")));
            dims.and_then(|d| check_size(&d).map(|_| d)).map_err(|e| e.at(graph.node(v.port.node).label()))
        };
        let size = |(_, port): &(usize, Port)| {
            let fact = fact(*port);
            let known = || Some((fact.fixed()?, fact.known_elems()?));
            let (dims, elems) = known().ok_or_else(|| Error::unsupported(format!("sizes of {fact}")))?;
            Ok(match graph.fact(*port).dtype {
                Some(DType::I32) => {
                    let narrow = elems.iter().map(|n| i32::try_from(*n)).collect::<std::result::Result<Vec<_>, _>>();
                    let narrow = narrow.map_err(|_| Error::unsupported("sizes beyond 32 bits"))?;
                    Tensor::new(DType::I32, dims, bytemuck::cast_slice(&narrow).to_vec())?
                }
                _ => Tensor::new(DType::I64, dims, bytemuck::cast_slice(&elems).to_vec())?,
            })
        };
        let sizes = self.sizes.iter().map(size).collect::<Result<_>>()?;
        Ok((self.values.iter().enumerate().map(shape).collect::<Result<_>>()?, sizes))
    }

    /// Runs it in `workspaces` on `inputs`, in the order of [`Program::inputs`], and shows watched
    /// values to `sink`. `None` where no plan can be made for these shapes.
    ///
    /// # Errors
    /// Malformed for a number of a row that a table doesn't have; what `sink` returns.
    pub fn run(
        &self,
        graph: &Graph,
        workspaces: &Workspaces,
        inputs: &[&Tensor],
        sink: &mut dyn FnMut(usize, &[f32]) -> Result<()>,
        spent: Option<&mut Vec<Spent>>,
    ) -> Result<Option<Vec<Tensor>>> {
        let (inputs, beside) = inputs.split_at(self.inputs.len());
        self.check_rows(inputs)?;
        let shapes = inputs.iter().map(|t| t.shape().to_vec()).collect();
        let elements = |t: &Tensor| {
            let are_sizes = t.dtype() == DType::I64 && t.shape().len() <= 1 && t.len() <= MAX_ELEMS;
            if are_sizes { t.as_i64() } else { None }
        };
        let beside = beside.iter().map(|t| (t.shape().to_vec(), elements(t))).collect();
        self.planned(graph, Given { shapes, beside }).run(self, workspaces, inputs, sink, spent)
    }

    /// # Errors
    /// Malformed for a number that chooses a row which a table doesn't have.
    fn check_rows(&self, inputs: &[&Tensor]) -> Result<()> {
        for Instruction { label, op, inputs: operands, .. } in &self.instructions {
            let Some(rows) = op.rows().and_then(|rows| i64::try_from(rows).ok()) else { continue };
            let place = operands.first().and_then(|id| self.inputs.iter().position(|input| input == id));
            let ids = place.and_then(|i| inputs[i].as_i64()).ok_or_else(|| Error::bug("rows that nothing chooses"))?;
            if let Some(id) = ids.iter().find(|id| !(-rows..rows).contains(*id)) {
                let what = format!("index {id} is out of range for an axis of {rows}");
                return Err(Error::malformed(what).at(label));
            }
        }
        Ok(())
    }

    /// How such inputs are run. No lock is held while they are planned, nor while they run:
    /// a thread of Rayon's that waits for others may begin another run of the same program.
    fn planned(&self, graph: &Graph, given: Given) -> Arc<Batch> {
        let given = (given, rayon::current_num_threads());
        if let Some(plan) = self.plans().by_given.get(&given) {
            return plan.clone();
        }
        let plan = Batch::new(self, graph, &given.0, given.1).unwrap_or_else(|why| {
            tracing::debug!("no plan for inputs of {:?}: {why}", given.0.shapes);
            Batch::impossible()
        });
        let (plan, mut plans) = (Arc::new(plan), self.plans());
        // Another thread may have been faster; its plan is the same.
        if !plans.by_given.contains_key(&given) {
            plans.keep(given, plan.clone());
        }
        plan
    }

    fn plans(&self) -> MutexGuard<'_, Plans> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_of_any_number_of_inputs_take_little() {
        let mut plans = Plans::default();
        let most = PLAN_BYTES / Batch::impossible().bytes();
        for size in 0..2 * most {
            let given = Given { shapes: vec![vec![size]], beside: vec![] };
            plans.keep((given, 1), Arc::new(Batch::impossible()));
        }
        assert_eq!((plans.by_given.len(), plans.order.len()), (most, most));
        assert!(plans.bytes <= PLAN_BYTES);
        let newest = Given { shapes: vec![vec![2 * most - 1]], beside: vec![] };
        assert!(plans.by_given.contains_key(&(newest, 1)), "the newest stays");
    }
}

//! Grows a graph operator by operator, from choices that a random number generator makes.

use crate::{
    known::{Known, Refusal, apply},
    table::{self, Entry},
};
use compress_compiler::{
    attr::{Attr, Reader},
    graph::Graph,
    node::Port,
    op::Op,
    ops::{control::Body, source::Input},
    rewrite::remove_dead,
    tensor::{DType, Tensor},
    value::{Dim, Fact},
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::sync::Arc;

/// A value that operators may read: its place in [`Maker::values`].
pub type V = usize;

/// A value of the graph under construction.
#[derive(Clone)]
pub struct Entrant {
    /// Where it is.
    pub port: Port,
    /// Its elements.
    pub known: Known,
    /// Whether it is a constant.
    pub constant: bool,
}

/// The operator set in which operators are written.
const OPSET: i64 = 28;

/// The sizes that names stand for.
pub const SYMBOLS: [(&str, usize); 3] = [("N", 2), ("L", 3), ("len 2", 4)];

/// A graph under construction.
pub struct Maker {
    /// Makes the choices of the current step.
    pub rng: StdRng,
    /// What there is so far.
    pub graph: Graph,
    /// The values that may be read.
    pub values: Vec<Entrant>,
    /// The tensors of the inputs.
    pub inputs: Vec<Tensor>,
    /// What went wrong, after which nothing more is made.
    pub failure: Option<String>,
    /// The graph without outputs.
    pub open: Graph,
    /// The sizes of axes. Where few differ, a rule that takes one axis for another is seen.
    pub sizes: &'static [usize],
    /// Whether this is the graph of an If or its kind, which has no inputs of its own accord.
    pub body: bool,
    /// The entries that were taken, and whether something came of them.
    pub took: Vec<(&'static str, bool)>,
    names: usize,
}

impl Maker {
    /// A graph without values.
    pub fn new(seed: u64, body: bool) -> Self {
        let rng = StdRng::seed_from_u64(seed);
        let sizes: &[usize] = [&[1, 2, 2, 3, 3, 4, 5][..], &[2], &[1, 3], &[1, 2, 4]][(seed % 4) as usize];
        let (graph, values) = (Graph::new(if body { "body" } else { "random" }), vec![]);
        Self {
            rng,
            graph,
            values,
            inputs: vec![],
            failure: None,
            open: Graph::default(),
            sizes,
            body,
            took: vec![],
            names: 0,
        }
    }

    // --- sources ---

    /// A name that no value has.
    fn name(&mut self) -> String {
        self.names += 1;
        match self.names {
            n if n % 13 == 5 => format!("block.{n}/v:0"),
            n => format!("v{n}"),
        }
    }

    /// A constant of its own.
    pub fn constant(&mut self, tensor: Tensor) -> V {
        let name = self.name();
        let port = self.graph.add_constant(&name, tensor.clone()).into();
        self.enter(port, Known::given(tensor), true)
    }

    /// A constant, the one that there is if it fits.
    pub fn shared(&mut self, tensor: Tensor) -> V {
        let same =
            |t: &Tensor| t.dtype() == tensor.dtype() && t.shape() == tensor.shape() && t.bytes() == tensor.bytes();
        let old = self.values.iter().position(|v| v.constant && same(&v.known.tensor));
        match old {
            Some(v) if self.chance(0.7) => v,
            _ => self.constant(tensor),
        }
    }

    /// A list of integers.
    pub fn ints(&mut self, list: &[i64]) -> V {
        self.shared(Tensor::i64s(list))
    }

    /// A single integer.
    pub fn scalar(&mut self, n: i64) -> V {
        self.shared(Tensor::ints(DType::I64, &[], &[n]))
    }

    /// A single float of a type.
    pub fn number(&mut self, dtype: DType, v: f32) -> V {
        let shape: &[usize] = if self.chance(0.8) { &[] } else { &[1] };
        self.shared(Tensor::floats(dtype, shape, &[v]))
    }

    /// An input of the graph, or a constant where there are none.
    pub fn input(&mut self, tensor: Tensor) -> V {
        if self.body || self.inputs.len() >= 6 {
            return self.constant(tensor);
        }
        let dims = tensor.shape().iter().map(|&n| {
            let named = SYMBOLS.iter().find(|s| s.1 == n).filter(|_| self.rng.random_bool(0.5));
            match named {
                Some((name, _)) => Dim::Sym(Arc::from(*name)),
                None if self.rng.random_bool(0.1) => Dim::Unknown,
                None => Dim::from(n),
            }
        });
        let dims = dims.collect();
        let shape = if self.chance(0.03) { None } else { Some(dims) };
        let default = self.chance(0.05).then(|| tensor.clone());
        let fact = match &default {
            Some(t) => Fact::new(Some(t.dtype()), Fact::of(t).shape),
            None => Fact::new(Some(tensor.dtype()), shape),
        };
        let name = self.name();
        let node = self.graph.add_input(&name, fact, Op::Input(Input { default })).expect("the name is new");
        self.inputs.push(tensor.clone());
        self.enter(node.into(), Known::given(tensor), false)
    }

    /// Something new of this type and shape.
    pub fn source(&mut self, dtype: DType, shape: &[usize]) -> V {
        let constant = self.chance(0.5);
        let tensor = if constant { self.tensor(dtype, shape) } else { self.filled(dtype, shape, -3.0, 3.0) };
        if constant { self.constant(tensor) } else { self.input(tensor) }
    }

    pub fn enter(&mut self, port: Port, known: Known, constant: bool) -> V {
        self.values.push(Entrant { port, known, constant });
        self.values.len() - 1
    }

    // --- operators ---

    /// `x` in another shape.
    pub fn reshape(&mut self, x: V, shape: &[usize]) -> Option<V> {
        let target: Vec<i64> = shape.iter().map(|n| *n as i64).collect();
        let target = self.ints(&target);
        self.op("Reshape", &[Some(x), Some(target)], &[])
    }

    /// Adds an operator with one result.
    pub fn op(&mut self, name: &str, operands: &[Option<V>], attrs: &[(&str, Attr)]) -> Option<V> {
        self.ops(name, operands, attrs, 1).map(|v| v[0])
    }

    /// Adds an operator. `None` when its results would say nothing, or when it fails, which is kept.
    pub fn ops(
        &mut self,
        name: &str,
        operands: &[Option<V>],
        attrs: &[(&str, Attr)],
        outputs: usize,
    ) -> Option<Vec<V>> {
        if self.failure.is_some() {
            return None;
        }
        let ports: Vec<Option<Port>> = operands.iter().map(|v| v.map(|v| self.values[v].port)).collect();
        let fact =
            |slot: usize| ports.get(slot).copied().flatten().map(|p| self.graph.fact(p).clone()).unwrap_or_default();
        let attrs = attrs.iter().map(|(n, a)| (n.to_string(), a.clone())).collect();
        let mut reader = Reader::new(name, OPSET, operands.len(), outputs, fact(0), attrs);
        reader.second = fact(1);
        let read = Op::read(&mut reader).and_then(|op| Ok((op, reader.finish()?)));
        let (op, lifted) = match read {
            Ok(read) => read,
            Err(e) => return self.fail(name, operands, &e.to_string()),
        };
        assert!(lifted.lifted.is_empty() && lifted.moved.is_empty(), "{name} is not the newest form");
        let known: Vec<Option<&Known>> = operands.iter().map(|v| v.map(|v| &self.values[v].known)).collect();
        let rng = &mut self.rng;
        let made = match apply(&op, &known, outputs, &mut || rng.random_range(-1.0..=1.0)) {
            Ok(made) => made,
            Err(Refusal::Delicate) => return None,
            Err(Refusal::Wrong(why)) => return self.fail(name, operands, &format!("{op:?} cannot be run: {why}")),
        };
        let names: Vec<String> = (0..outputs).map(|_| self.name()).collect();
        let label = if self.chance(0.5) { format!("{name}/{}", self.names) } else { String::new() };
        let names: Vec<&str> = names.iter().map(|n| &n[..]).collect();
        match self.graph.add_node(&label, op, &ports, &names) {
            Ok(node) => {
                let made = made.into_iter().enumerate();
                Some(made.map(|(slot, k)| self.enter(Port { node, slot }, k, false)).collect())
            }
            Err(e) => self.fail(name, operands, &e.to_string()),
        }
    }

    /// The graph of one value only.
    pub fn alone(&self, v: V) -> Self {
        let mut graph = self.open.clone();
        let port = self.values[v].port;
        graph.add_output(&graph.value(port).name.clone(), port);
        for n in graph.topological().unwrap_or_default().into_iter().rev() {
            remove_dead(&mut graph, n);
        }
        let values = self.values.iter().filter(|v| graph.contains(v.port.node)).cloned().collect();
        let (inputs, open) = (self.inputs.clone(), self.open.clone());
        Self {
            rng: self.rng.clone(),
            graph,
            values,
            inputs,
            failure: None,
            open,
            sizes: self.sizes,
            body: false,
            took: vec![],
            names: self.names,
        }
    }

    fn fail<T>(&mut self, name: &str, operands: &[Option<V>], why: &str) -> Option<T> {
        let seen: Vec<String> = operands.iter().map(|v| v.map_or("_".into(), |v| self.describe(v))).collect();
        self.failure = Some(format!("{name}({}): {why}", seen.join(", ")));
        None
    }

    fn describe(&self, v: V) -> String {
        let t = self.at(v);
        let few = t.len() <= 16;
        let elements =
            if few { format!("{:?}{:?}", t.as_f32().as_deref().unwrap_or(&[]), t.as_i64()) } else { "".into() };
        format!("{t:?}{elements}")
    }

    /// Takes one entry of the table, by its place.
    pub fn step(&mut self, entries: &[Entry], place: usize, seed: u64) {
        if self.failure.is_none() {
            self.rng = StdRng::seed_from_u64(seed);
            if let Some(entry) = place.checked_rem(entries.len()).map(|i| &entries[i]) {
                let made = (entry.make)(self).is_some();
                self.took.push((entry.name, made));
            }
        }
    }

    /// A graph of `steps` tame operators over values like `formals`, and then over outer values.
    pub fn inner(&mut self, formals: &[Tensor], captured: &[V], steps: usize) -> Maker {
        let seed = self.rng.random();
        let mut inner = Maker::new(seed, true);
        let outer: Vec<(Known, Fact)> = captured
            .iter()
            .map(|v| (self.values[*v].known.clone(), self.graph.fact(self.values[*v].port).clone()))
            .collect();
        // What a loop hands to itself was computed.
        let formal = |t: &Tensor| Known { exact: !t.dtype().is_float(), ..Known::given(t.clone()) };
        let given = formals.iter().map(|t| (formal(t), Fact::new(Some(t.dtype()), Fact::of(t).shape)));
        for (known, fact) in given.chain(outer) {
            let name = inner.name();
            let input = Op::Input(Input { default: None });
            let node = inner.graph.add_input(&name, fact, input).expect("the name is new");
            inner.enter(node.into(), known, false);
        }
        let entries = table::tame();
        for _ in 0..steps {
            let (place, seed) = (inner.rng.random_range(0..entries.len()), inner.rng.random());
            inner.step(&entries, place, seed);
        }
        inner
    }

    /// This graph as a body with these results.
    pub fn into_body(mut self, results: &[V], captures: usize) -> Body {
        for (i, v) in results.iter().enumerate() {
            self.graph.add_output(&format!("out{i}"), self.values[*v].port);
        }
        Body::new(self.graph, captures)
    }
}

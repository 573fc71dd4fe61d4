//! Which channels can only be removed together ("DepGraph", Fang et al. 2023).
//!
//! From the channels of every layer's weight, operators are asked which indices of their other axes those are tied to
//! (`Operator::axes_map`), and so on from value to value. What is tied in the end is a unit: it goes or stays as a whole.

use crate::{
    layers::{Layer, layers, obstacle},
    weight_matrix::WeightMatrix,
};
use compress_compiler::{
    axes::{Axis, Flow, Tie},
    error::Result,
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

/// An axis of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizedAxis {
    /// The value.
    pub port: Port,
    /// Which of its axes.
    pub axis: usize,
    /// How many indices it has.
    pub size: usize,
}

/// Indices that are removed together, or stay together.
#[derive(Debug, Clone, Default)]
pub struct Unit {
    /// Of which place (by its number), and which.
    pub members: Vec<(usize, Vec<usize>)>,
}

/// Units whose places are connected: alternatives for a cut.
#[derive(Debug, Clone, Default)]
pub struct Group {
    /// The places, by their numbers.
    pub places: Vec<usize>,
    /// The units, in the order of their first index.
    pub units: Vec<Unit>,
    /// The layers whose output channels these are, by their numbers in the order of all.
    makers: Vec<usize>,
    /// The layers that read them.
    readers: Vec<usize>,
}

/// The groups of a graph.
#[derive(Debug, Default)]
pub struct Groups {
    /// All places that something is known of.
    pub places: Vec<SizedAxis>,
    /// The groups, by the topological order of the layers they begin at.
    pub groups: Vec<Group>,
    /// The layers of the graph, in topological order.
    pub layers: Vec<Layer>,
    numbers: HashMap<(Port, usize), usize>,
    closed: BTreeMap<usize, String>,
}

impl Groups {
    /// Finds the groups of a graph.
    ///
    /// # Errors
    /// Malformed when the graph has a cycle.
    pub fn find(g: &Graph) -> Result<Self> {
        let mut finder = Finder::new(g)?;
        let layers = layers(g)?;
        for layer in &layers {
            let rank = g.constant(layer.weight.into()).map_or(0, |t| t.shape().len());
            for axis in 0..rank {
                finder.place(layer.weight.into(), axis);
            }
        }
        finder.follow();
        Ok(finder.finish(layers))
    }

    /// The number of an axis of a value, if it is in any group.
    pub fn place(&self, port: Port, axis: usize) -> Option<usize> {
        self.numbers.get(&(port, axis)).copied()
    }

    /// The layers whose output channels a group is of.
    pub fn makers(&self, group: &Group) -> impl Iterator<Item = &Layer> {
        group.makers.iter().map(|i| &self.layers[*i])
    }

    /// The layers that read the channels of a group.
    pub fn readers(&self, group: &Group) -> impl Iterator<Item = &Layer> {
        group.readers.iter().map(|i| &self.layers[*i])
    }

    /// What a group is called: the layers that make its channels.
    pub fn name(&self, g: &Graph, group: &Group) -> String {
        self.makers(group).map(|l| g.node(l.node).display_name()).collect::<Vec<_>>().join(" + ")
    }

    /// Why nothing of a group may go, if so.
    pub fn closed(&self, g: &Graph, group: &Group) -> Option<String> {
        if let Some(why) = self.makers(group).find_map(|l| obstacle(g, l)) {
            return Some(why);
        }
        let mut obstacles = group.units.iter().map(|unit| self.obstacle(unit));
        match obstacles.clone().any(|why| why.is_none()) {
            true if group.units.len() > 1 => None,
            true => Some("all of its channels depend on each other".into()),
            false => obstacles.next().flatten().map(String::from),
        }
    }

    /// Why a unit has to stay, if it has to.
    pub fn obstacle(&self, unit: &Unit) -> Option<&str> {
        unit.members.iter().find_map(|(place, _)| self.closed.get(place)).map(String::as_str)
    }
}

/// A merged axis of which several factors could be meant.
struct Undecided {
    /// The node's place in the topological order.
    rank: usize,
    node: NodeId,
    at: Axis,
    first: Tie,
}

struct Finder<'a> {
    g: &'a Graph,
    rank: HashMap<NodeId, usize>,
    places: Vec<SizedAxis>,
    numbers: HashMap<(Port, usize), usize>,
    /// The first element of each place; elements are the indices of all places in turn.
    first: Vec<usize>,
    elements: Forest,
    /// Which places are connected.
    joined: Forest,
    closed: BTreeMap<usize, String>,
    asked: HashSet<(NodeId, Axis)>,
    tied: HashSet<(NodeId, Axis)>,
    open: VecDeque<usize>,
    undecided: Vec<Undecided>,
}

impl<'a> Finder<'a> {
    fn new(g: &'a Graph) -> Result<Self> {
        let rank = g.topological()?.into_iter().enumerate().map(|(i, n)| (n, i)).collect();
        Ok(Self {
            g,
            rank,
            places: vec![],
            numbers: HashMap::new(),
            first: vec![],
            elements: Forest::default(),
            joined: Forest::default(),
            closed: BTreeMap::new(),
            asked: HashSet::new(),
            tied: HashSet::new(),
            open: VecDeque::new(),
            undecided: vec![],
        })
    }

    /// The number of an axis whose size is known.
    fn place(&mut self, port: Port, axis: usize) -> Option<usize> {
        if let Some(i) = self.numbers.get(&(port, axis)) {
            return Some(*i);
        }
        let size = usize::try_from(self.g.fact(port).dims()?.get(axis)?.known()?).ok()?;
        let number = self.places.len();
        self.places.push(SizedAxis { port, axis, size });
        self.numbers.insert((port, axis), number);
        self.first.push(self.elements.len());
        self.elements.grow(size);
        self.joined.grow(1);
        self.open.push_back(number);
        Some(number)
    }

    /// Asks operators until nothing new comes up.
    fn follow(&mut self) {
        loop {
            while let Some(place) = self.open.pop_front() {
                self.visit(place);
            }
            // A factor that something else asks for is the one; where nothing does, the last node decides, as what it
            // chooses reaches those before it (heads: from the projection behind attention to those of its operands).
            self.undecided.retain(|u| !self.tied.contains(&(u.node, u.at)));
            let Some(last) = (0..self.undecided.len()).max_by_key(|i| self.undecided[*i].rank) else { return };
            let Undecided { node, first, .. } = self.undecided.swap_remove(last);
            self.tie(node, first);
        }
    }

    fn visit(&mut self, number: usize) {
        let SizedAxis { port, axis, .. } = self.places[number];
        if self.g.is_output(port) {
            self.close(number, "it is a graph output".into());
        }
        match self.g.op(port.node) {
            Op::Input(_) => self.close(number, "it is a graph input".into()),
            Op::Constant(c) if c.0.dtype().bits() < 8 => self.close(number, "its elements are packed".into()),
            Op::Constant(_) => {}
            _ => self.ask(port.node, Axis::Out(port.slot, axis), number),
        }
        for user in self.g.uses(port) {
            self.ask(user.node, Axis::In(user.slot, axis), number);
        }
    }

    fn close(&mut self, number: usize, why: String) {
        self.closed.entry(number).or_insert(why);
    }

    fn ask(&mut self, node: NodeId, at: Axis, number: usize) {
        if self.tied.contains(&(node, at)) || !self.asked.insert((node, at)) {
            return;
        }
        match self.g.axes_map(node, at) {
            Flow::Closed(why) => self.close(number, format!("{}: {why}", self.g.node(node).label())),
            Flow::Tied(tie) => self.tie(node, tie),
            Flow::Either(ties) => {
                let first = ties.into_iter().next().unwrap_or_default();
                self.undecided.push(Undecided { rank: self.rank[&node], node, at, first });
            }
        }
    }

    /// Joins what a node ties.
    fn tie(&mut self, node: NodeId, tie: Tie) {
        let mut found = vec![];
        for (axis, labels) in &tie {
            self.tied.insert((node, *axis));
            let Some((port, i)) = self.value(node, *axis) else { continue };
            match self.place(port, i) {
                Some(number) if self.places[number].size == labels.as_slice().len() => found.push((number, labels)),
                Some(number) => {
                    let size = self.places[number].size;
                    let why =
                        format!("{}: {} labels for {size} indices", self.g.node(node).label(), labels.as_slice().len());
                    self.close(number, why);
                }
                None => {}
            }
        }
        let Some((head, _)) = found.first().copied() else { return };
        if found.len() < tie.iter().filter(|(axis, _)| self.value(node, *axis).is_some()).count() {
            found
                .iter()
                .for_each(|(n, _)| self.close(*n, format!("{}: sizes that are not known", self.g.node(node).label())));
        }
        // Zeros on one side of a sum of products are enough, but only a weight is sure to have them.
        let sums = tie.len() > 1 && tie.iter().all(|(axis, _)| matches!(axis, Axis::In(..)));
        let computed = |n: usize| !matches!(self.g.op(self.places[n].port.node), Op::Constant(_));
        if sums && found.iter().all(|(n, _)| computed(*n)) {
            self.close(head, format!("{}: it sums over products of two activations", self.g.node(node).label()));
        }
        let mut by_label: HashMap<usize, usize> = HashMap::new();
        for (number, labels) in found {
            self.joined.join(head, number);
            for (i, label) in labels.as_slice().iter().enumerate() {
                let element = self.first[number] + i;
                let other = *by_label.entry(*label).or_insert(element);
                self.elements.join(other, element);
            }
        }
    }

    /// The value that an axis of a node is of, if it is there, and which of its axes.
    fn value(&self, node: NodeId, axis: Axis) -> Option<(Port, usize)> {
        match axis {
            Axis::In(slot, i) => Some((self.g.operand(node, slot)?, i)),
            Axis::Out(slot, i) => (slot < self.g.node(node).outputs.len()).then_some((Port { node, slot }, i)),
        }
    }

    /// The groups of what makes channels of `layers`.
    fn finish(mut self, layers: Vec<Layer>) -> Groups {
        let at = |l: &Layer, axis: usize| self.numbers.get(&(l.weight.into(), axis)).copied();
        let made: Vec<Option<usize>> = layers.iter().map(|l| at(l, l.axes.output)).collect();
        let read: Vec<Option<usize>> =
            layers.iter().map(|l| WeightMatrix::of(self.g, l).and_then(|layout| at(l, layout.input_axis()))).collect();
        // Only what removes channels of a layer is a group.
        let wanted: HashSet<usize> = made.iter().flatten().map(|place| self.joined.root(*place)).collect();
        let mut groups: Vec<Group> = vec![];
        let mut of_root: HashMap<usize, usize> = HashMap::new();
        let mut units: HashMap<usize, usize> = HashMap::new();
        for (number, place) in self.places.iter().enumerate() {
            let root = self.joined.root(number);
            if !wanted.contains(&root) {
                continue;
            }
            let group = *of_root.entry(root).or_insert_with(|| {
                groups.push(Group::default());
                groups.len() - 1
            });
            let group = &mut groups[group];
            group.places.push(number);
            for i in 0..place.size {
                let unit = *units.entry(self.elements.root(self.first[number] + i)).or_insert_with(|| {
                    group.units.push(Unit::default());
                    group.units.len() - 1
                });
                let members = &mut group.units[unit].members;
                match members.last_mut() {
                    Some((last, indices)) if *last == number => indices.push(i),
                    _ => members.push((number, vec![i])),
                }
            }
        }
        for (i, (made, read)) in made.into_iter().zip(read).enumerate() {
            let mut group = |place: Option<usize>| of_root.get(&self.joined.root(place?)).copied();
            if let Some(group) = group(made) {
                groups[group].makers.push(i);
            }
            if let Some(group) = group(read) {
                groups[group].readers.push(i);
            }
        }
        Groups { places: self.places, groups, layers, numbers: self.numbers, closed: self.closed }
    }
}

/// Disjoint sets of numbers.
#[derive(Default)]
struct Forest(Vec<usize>);

impl Forest {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn grow(&mut self, by: usize) {
        let from = self.0.len();
        self.0.extend(from..from + by);
    }

    fn root(&mut self, mut i: usize) -> usize {
        while self.0[i] != i {
            self.0[i] = self.0[self.0[i]];
            i = self.0[i];
        }
        i
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        // The lower number is the root, so that what is found does not depend on the order.
        self.0[a.max(b)] = a.min(b);
    }
}

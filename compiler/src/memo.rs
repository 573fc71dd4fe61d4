//! What passes found out about graphs, for pipelines that come to the same graph again.

use crate::{error::Result, graph::Graph, tensor::Tensor};
use std::{
    any::Any,
    cell::RefCell,
    collections::VecDeque,
    hash::{DefaultHasher, Hash, Hasher},
    rc::Rc,
};

/// Findings, the last used one last.
pub struct Memo {
    most: usize,
    known: RefCell<VecDeque<(Key, Rc<dyn Any>)>>,
}

/// A digest of a graph, and what was asked of it.
type Key = (u64, String);

impl Memo {
    /// At most so many findings are kept.
    pub fn up_to(most: usize) -> Self {
        Self { most, known: RefCell::default() }
    }

    /// What `find` finds out about `graph`, unless it is known: `what` says all else that decides it.
    ///
    /// # Errors
    /// Those of `find`.
    pub fn get_or<T: 'static>(&self, graph: &Graph, what: String, find: impl FnOnce() -> Result<T>) -> Result<Rc<T>> {
        let key = (digest(graph), what);
        let known = self.known.borrow().iter().position(|(k, _)| *k == key);
        let taken = known.and_then(|at| self.known.borrow_mut().remove(at));
        let found = match taken.and_then(|(_, found)| found.downcast::<T>().ok()) {
            Some(found) => found,
            None => Rc::new(find()?),
        };
        let mut known = self.known.borrow_mut();
        known.push_back((key, found.clone()));
        if known.len() > self.most {
            known.pop_front();
        }
        Ok(found)
    }
}

/// A digest of all that a graph computes, and of the numbers of its nodes: what is found out names nodes by them.
fn digest(graph: &Graph) -> u64 {
    let mut hash = DefaultHasher::new();
    graph.to_string().hash(&mut hash);
    for g in graph.and_bodies() {
        for n in g.ids() {
            let node = g.node(n);
            (n, &node.name, g.constant(n.into()).map(Tensor::bytes)).hash(&mut hash);
            node.outputs.iter().for_each(|value| value.name.hash(&mut hash));
        }
    }
    hash.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{error::Error, text};
    use std::cell::Cell;

    #[test]
    fn what_is_known_of_a_graph_is_not_found_out_again() {
        let graph = |value: f32| {
            let text = "graph \"g\" {\n input %x: f32[1]\n const %w: f32[1] = zeros\n %y = Add(%x, %w)\n output %y\n}";
            let mut graph = text::parse(text).unwrap();
            let w = graph.ids().find(|n| graph.constant((*n).into()).is_some()).unwrap();
            graph.set_constant(w, Tensor::f32(&[1], &[value]));
            graph
        };
        let (other, graph) = (graph(2.0), graph(1.0));
        let (memo, asked) = (Memo::up_to(2), Cell::new(0));
        let ask = |graph: &Graph, what: &str| {
            let find = || {
                asked.set(asked.get() + 1);
                Ok(asked.get())
            };
            *memo.get_or(graph, what.into(), find).unwrap()
        };
        assert_eq!([ask(&graph, "a"), ask(&graph, "a"), ask(&graph, "b")], [1, 1, 2]);
        assert_eq!(ask(&other, "a"), 3, "another value of a constant");
        assert_eq!(ask(&graph, "a"), 4, "the one that was used longest ago is forgotten");
        assert!(memo.get_or::<()>(&graph, "c".into(), || Err(Error::bug("no"))).is_err());
        assert_eq!(ask(&graph, "a"), 4, "what failed is not kept");
    }
}

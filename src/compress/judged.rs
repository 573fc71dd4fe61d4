//! Graphs that are judged once: what is known of them is not found out again, and others may find out a part.

use crate::{Shard, kept::structure};
use compress_compiler::{
    error::Result,
    graph::Graph,
    judge::{Judge, Judges, Likeness},
    verify::Verified,
};
use sha2::{Digest, Sha256};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
};

/// How graphs were judged, by digests of them and of what they were beside.
pub type Judged = BTreeMap<String, Likeness>;

/// Judges graphs, but those that are known, and those that others judge.
pub struct Dealt<'a> {
    judges: &'a dyn Judges,
    shard: Option<Shard>,
    judged: &'a RefCell<Judged>,
    asked: Cell<usize>,
}

impl<'a> Dealt<'a> {
    /// Judgements by `judges`, of the graphs of a part if others judge the rest, beside those in `judged`, where they stay.
    pub fn new(judges: &'a dyn Judges, shard: Option<Shard>, judged: &'a RefCell<Judged>) -> Self {
        Self { judges, shard, judged, asked: Cell::new(0) }
    }

    /// How many graphs were not known.
    pub fn asked(&self) -> usize {
        self.asked.get()
    }
}

impl Judges for Dealt<'_> {
    fn beside(&self, original: &Verified) -> Result<Box<dyn Judge + '_>> {
        Ok(Box::new(DealtJudge { judge: self.judges.beside(original)?, beside: digest(original, ""), dealt: self }))
    }
}

struct DealtJudge<'a> {
    judge: Box<dyn Judge + 'a>,
    /// A digest of the graph that others are beside.
    beside: String,
    dealt: &'a Dealt<'a>,
}

/// In the place of what others find out.
const UNKNOWN: Likeness = Likeness { noise: 1.0, worst: 1.0, inner: 1.0, strong: 1.0, typical: 1.0, drop: None };

impl Judge for DealtJudge<'_> {
    fn samples(&self) -> usize {
        self.judge.samples()
    }

    fn judge(&self, graph: &Verified, samples: usize) -> Result<Likeness> {
        let digest = digest(graph, &format!("on {samples} samples beside {}", self.beside));
        if let Some(known) = self.dealt.judged.borrow().get(&digest) {
            return Ok(*known);
        }
        let turn = self.dealt.asked.replace(self.dealt.asked.get() + 1);
        if self.dealt.shard.is_some_and(|shard| !shard.has(turn)) {
            return Ok(UNKNOWN);
        }
        let found = self.judge.judge(graph, samples)?;
        self.dealt.judged.borrow_mut().insert(digest, found);
        Ok(found)
    }

    fn sized(&self, graph: &Graph) -> Result<Graph> {
        self.judge.sized(graph)
    }
}

/// A digest of a graph, its constants included, and of how it is judged.
fn digest(graph: &Graph, how: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(structure(graph));
    for g in graph.and_bodies() {
        for constant in g.ids().filter_map(|n| g.constant(n.into())) {
            hash.update(constant.bytes());
        }
    }
    hash.update(how);
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

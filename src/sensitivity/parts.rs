//! Layers that several machines judge, each a part of them.
//!
//! All of them make the same graphs in the same order, and judge every so many of them. Who puts the parts together makes the graphs once
//! more, and finds in the parts how each was judged.

use crate::{Shard, kept::structure, report::Recorded};
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    judge::{Judge, Judges, Likeness},
    verify::Verified,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    fs,
    path::Path,
};

/// How graphs were judged, by their digests.
pub type Judged = BTreeMap<String, Likeness>;

/// The file of a part.
#[derive(Debug, Serialize, Deserialize)]
pub struct PartFile {
    /// SHA-256 of the files of the model.
    pub model: Vec<String>,
    pub judged: Judged,
    pub recipe: Recorded,
}

impl PartFile {
    /// # Errors
    /// File when it can't be read, or is another file.
    pub fn read(path: &Path) -> Result<Self> {
        let fail = |what: String| Error::file(what).in_file(path);
        let text = fs::read_to_string(path).map_err(|e| fail(format!("cannot be read: {e}")))?;
        serde_json::from_str(&text).map_err(|e| fail(format!("is not a whole part of this version: {e}")))
    }

    /// # Errors
    /// Usage for what was judged by another version, of another model, or on other data.
    pub fn check(&self, path: &Path, model: &[String], data: &str) -> Result<()> {
        let other = match () {
            () if self.recipe.version != env!("CARGO_PKG_VERSION") => "by another version",
            () if self.model != model => "of another model",
            () if self.recipe.data.as_deref() != Some(data) => "on other data",
            () => return Ok(()),
        };
        Err(Error::usage(format!("was judged {other}: it is not a part of this job")).in_file(path))
    }
}

/// Judges graphs, but those that are known, and those that others judge.
pub struct Dealt<'a> {
    judges: &'a dyn Judges,
    shard: Option<Shard>,
    judged: RefCell<Judged>,
    asked: Cell<usize>,
}

impl<'a> Dealt<'a> {
    /// Judgements by `judges`, of the graphs of a part if it is one, beside those that are known.
    pub fn new(judges: &'a dyn Judges, shard: Option<Shard>, known: Judged) -> Self {
        Self { judges, shard, judged: RefCell::new(known), asked: Cell::new(0) }
    }

    /// All that is known now, and how many graphs were in no part.
    pub fn judged(self) -> (Judged, usize) {
        (self.judged.into_inner(), self.asked.get())
    }
}

impl Judges for Dealt<'_> {
    fn beside(&self, original: &Verified) -> Result<Box<dyn Judge + '_>> {
        Ok(Box::new(DealtJudge { judge: self.judges.beside(original)?, dealt: self }))
    }
}

struct DealtJudge<'a> {
    judge: Box<dyn Judge + 'a>,
    dealt: &'a Dealt<'a>,
}

/// In the place of what others find out.
const UNKNOWN: Likeness = Likeness { noise: 1.0, worst: 1.0, inner: 1.0, strong: 1.0, typical: 1.0, drop: None };

impl Judge for DealtJudge<'_> {
    fn samples(&self) -> usize {
        self.judge.samples()
    }

    fn judge(&self, graph: &Verified, samples: usize) -> Result<Likeness> {
        let digest = digest(graph, samples);
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

/// A digest of a graph, its constants included, and of the number of samples.
fn digest(graph: &Graph, samples: usize) -> String {
    let mut hash = Sha256::new();
    hash.update(structure(graph));
    for g in graph.and_bodies() {
        for constant in g.ids().filter_map(|n| g.constant(n.into())) {
            hash.update(constant.bytes());
        }
    }
    hash.update(samples.to_le_bytes());
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

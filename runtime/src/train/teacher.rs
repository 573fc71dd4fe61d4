//! The model that is learnt from: run for each batch, or once for each sample where that is the same.

use super::{once::Once, stored::StoredAnswers};
use crate::session::{Backend, Session};
use compress_compiler::{
    error::{Error, Result},
    forms::decoder::Decoder,
    graph::Graph,
    node::Port,
    tensor::Tensor,
    verify::verify,
};
use std::{path::Path, sync::Arc};

/// A model that is learnt from.
pub struct Teacher {
    from: From,
    outputs: usize,
}

/// Where its answers come from.
enum From {
    Model(Once),
    Stored(StoredAnswers),
}

/// What a teacher says of a batch: nothing, without one.
#[derive(Default)]
pub struct Answer {
    /// Its outputs.
    pub outputs: Vec<Tensor>,
    /// Its features, as they were asked for.
    pub features: Vec<Tensor>,
}

impl Teacher {
    /// Makes a teacher ready, read from the file at `path`, that also gives the values called `features`; a decoder gives the
    /// scores of whole sequences, and no cache. `keep` is
    /// the number of samples whose answers may be kept on disk: where every epoch asks the same, and samples have
    /// answers of their own.
    ///
    /// # Errors
    /// As for [`Session::new`]; usage when a feature is not a value of the graph.
    pub fn new(path: &Path, graph: &Graph, features: &[String], backend: &Backend, keep: usize) -> Result<Self> {
        Self::of(path, graph.clone(), features, backend, keep).map_err(|e| e.in_file(path))
    }

    fn of(path: &Path, mut graph: Graph, features: &[String], backend: &Backend, keep: usize) -> Result<Self> {
        Decoder::forget(&mut graph);
        let outputs = graph.outputs().len();
        for name in features {
            let port = named(&graph, name)?;
            let output = graph.fresh(&format!("feature {name}"));
            graph.add_output(&output, port);
        }
        let session = Session::new(&verify(&graph)?, backend, &[])?;
        Ok(Self { from: From::Model(Once::new(path, Arc::new(session), keep)), outputs })
    }

    /// A teacher whose answers, of so many `outputs`, are stored: it is not run.
    pub fn stored(answers: StoredAnswers, outputs: usize) -> Self {
        Self { from: From::Stored(answers), outputs }
    }

    /// What it says of a batch. `indices` names the samples where answers may be kept, or are stored.
    ///
    /// # Errors
    /// As for [`Session::run`]; data when it gives no numbers, or a sample has no stored answer; file when the disk is full.
    pub fn answer(&mut self, inputs: &[Tensor], indices: Option<&[usize]>) -> Result<Answer> {
        let mut outputs = match (&mut self.from, indices) {
            (From::Model(model), _) => model.ask(inputs, indices)?,
            (From::Stored(answers), Some(indices)) => answers.answer(inputs, indices)?,
            (From::Stored(_), None) => return Err(Error::bug("stored answers to samples that change")),
        };
        let features = outputs.split_off(self.outputs.min(outputs.len()));
        Ok(Answer { outputs, features })
    }
}

/// The value that is called `name`, or that the node of this name makes first.
///
/// # Errors
/// Usage when there is none.
pub fn named(graph: &Graph, name: &str) -> Result<Port> {
    let ports = |node| (0..graph.node(node).outputs.len()).map(move |slot| Port { node, slot });
    let is = |p: &Port| graph.value(*p).name == name || p.slot == 0 && graph.node(p.node).name == name;
    graph.ids().flat_map(ports).find(is).ok_or_else(|| {
        Error::usage(format!("the model has no value or node `{name}`"))
            .help("the text form of the graph (inspect, ir) lists them")
    })
}

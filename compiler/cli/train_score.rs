//! How good the model of a training job is, on what was held out.

use crate::data::Samples;
use compress_compiler::{
    error::{Kind, Result},
    graph::Graph,
    pass::Context,
    value::Dim,
    verify::verify,
};
use compress_passes::simplify;
use compress_runtime::{
    burn::BurnEvaluator,
    metrics::{Comparison, cross_entropy},
    session::{Backend, Session},
    train::{
        augment::Augment,
        job::Score,
        loader::{Loader, LoaderOptions},
        teacher::Teacher,
    },
};
use std::cell::RefCell;

/// The most threads that prepare samples: each holds a batch.
const WORKERS: usize = 8;

/// Scores models on what was held out.
pub struct Judge<'a> {
    held: Loader,
    backend: &'a Backend,
    teacher: Option<RefCell<Teacher>>,
    metric: &'static str,
}

impl<'a> Judge<'a> {
    /// A judge by `metric` on `held`, beside the teacher where that says what is right.
    ///
    /// # Errors
    /// Those of [`Loader::new`].
    pub fn new(held: &Samples, backend: &'a Backend, teacher: Option<Teacher>, metric: &'static str) -> Result<Self> {
        let options = LoaderOptions {
            batch: held.batch,
            seed: 0,
            workers: rayon::current_num_threads().min(WORKERS),
            prefetch: 2,
            augment: Augment::default(),
            shuffle: false,
            drop_last: held.set.fixed_batch().is_some(),
        };
        let held = Loader::new(held.set.clone(), held.indices.clone(), options)?;
        Ok(Self { held, backend, teacher: teacher.map(RefCell::new), metric })
    }

    /// The score of a model. Between as many right classes the cross-entropy decides, between as many equal ones the
    /// nearness of the outputs.
    ///
    /// # Errors
    /// Those of reading and running; data when a label is no class.
    pub fn score(&self, graph: &Graph) -> Result<Score> {
        // As it would be deployed: with normalisations folded it runs several times as fast.
        let mut graph = graph.clone();
        simplify(&mut graph, &Context::new(&BurnEvaluator::cpu()))?;
        let session = Session::new(&verify(&graph)?, self.backend, &[])?;
        let mut compared = Comparison::blaming(Kind::Data);
        let mut loss = 0.0;
        for batch in self.held.epoch(0, 0)? {
            let batch = batch?;
            let made = session.run(&batch.inputs)?;
            if made.iter().any(|t| t.all_f32(f32::is_finite) == Some(false)) {
                // Worse than any model that gives numbers.
                return Ok(Score::NONE);
            }
            let answer = match &self.teacher {
                Some(t) => t.borrow_mut().answer(&batch.inputs, Some(&batch.indices))?.outputs,
                None => made.clone(),
            };
            compared.add(&answer, &made, batch.len, batch.labels.as_deref())?;
            if let (Some(labels), Some(scores)) = (&batch.labels, made.first()) {
                loss += cross_entropy(scores, labels);
            }
        }
        let (value, tie) = match self.metric {
            "top1" => (compared.top1_after(), Some(-loss)),
            "agreement" => (compared.agreement(), compared.sqnr_db()),
            _ => (compared.sqnr_db(), Some(0.0)),
        };
        let number = |v: Option<f64>| v.unwrap_or(f64::MIN).clamp(f64::MIN, f64::MAX);
        Ok(Score { value: number(value), tie: number(tie) })
    }
}

/// What a model is scored by: the share of right classes, that of classes which the teacher chooses too, or how
/// near its outputs are to the teacher's.
pub fn metric(graph: &Graph, held: &Samples, taught: bool) -> &'static str {
    match (scores(graph).is_some(), held.set.is_labelled(), taught) {
        (true, true, _) => "top1",
        (true, false, true) => "agreement",
        _ => "sqnr",
    }
}

/// The classes that the model tells apart, if their number is known.
pub fn classes(graph: &Graph) -> Option<i64> {
    scores(graph)?.into_iter().product()
}

/// The sizes behind the first axis of the first output that holds a score for each class: one is not 1, or may not be.
fn scores(graph: &Graph) -> Option<Vec<Option<i64>>> {
    graph.outputs().iter().find_map(|o| {
        let sizes: Vec<Option<i64>> = graph.fact(o.port).dims()?.iter().skip(1).map(Dim::known).collect();
        (sizes.iter().filter(|size| size.unwrap_or(2) > 1).count() == 1).then_some(sizes)
    })
}

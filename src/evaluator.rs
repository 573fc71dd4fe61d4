//! How good the model of a training job is, on what was held out.

use crate::{data::Samples, distill::workers};
use compress_compiler::{
    error::{Kind, Result},
    graph::Graph,
    pass::Context,
    value::Dim,
    verify::verify,
};
use compress_passes::simplify;
use compress_runtime::{
    burn::BurnInterpreter,
    dataset::Batch,
    metrics::{Answers, Comparison, Meaning, Measure, Metric, cross_entropy},
    session::{Backend, Session},
    train::{
        augment::Augment,
        job::Score,
        loader::{Loader, LoaderOptions},
        teacher::Teacher,
    },
};
use std::cell::RefCell;

/// Scores models on what was held out.
pub struct Evaluator<'a> {
    held: Loader,
    backend: &'a Backend,
    teacher: Option<RefCell<Teacher>>,
    answers: Answers,
    measure: Measure,
}

impl<'a> Evaluator<'a> {
    /// An evaluator by `measure` of `answers` on `held`, beside the teacher where that says what is right.
    ///
    /// # Errors
    /// Those of [`Loader::new`].
    pub fn new(
        held: &Samples,
        backend: &'a Backend,
        teacher: Option<Teacher>,
        answers: Answers,
        measure: Measure,
    ) -> Result<Self> {
        let options = LoaderOptions {
            batch: held.batch,
            seed: 0,
            workers: workers(rayon::current_num_threads()),
            prefetch: 2,
            augment: Augment::default(),
            shuffle: false,
            drop_last: held.set.fixed_batch().is_some(),
        };
        let held = Loader::new(held.set.clone(), held.indices.clone(), options)?;
        Ok(Self { held, backend, teacher: teacher.map(RefCell::new), answers, measure })
    }

    /// The score of a model. Between as many right classes the cross-entropy decides, between as many equal ones the
    /// nearness of the outputs.
    ///
    /// # Errors
    /// Those of reading and running; data when a label is not a class.
    pub fn score(&self, graph: &Graph) -> Result<Score> {
        // As it would be deployed: with normalisations folded it runs several times as fast.
        let mut graph = graph.clone();
        simplify(&mut graph, &Context::new(&BurnInterpreter::cpu()))?;
        let session = Session::new(&verify(&graph)?, self.backend, &[])?;
        let mut compared = Comparison::new(Kind::Data, &self.answers, self.measure);
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
            let seen = Batch { inputs: batch.inputs.clone(), labels: batch.labels.clone(), len: batch.len };
            compared.add(&seen, &answer, &made)?;
            if let (Some(labels), Some(scores)) = (&batch.labels, made.get(self.measure.output)) {
                loss += cross_entropy(scores, labels);
            }
        }
        let (_, value) = compared.value_as_asked();
        let tie = match self.measure.metric {
            Metric::Top1 => Some(-loss),
            Metric::Sqnr => Some(0.0),
            _ => compared.sqnr_db(),
        };
        let number = |v: Option<f64>| v.unwrap_or(f64::MIN).clamp(f64::MIN, f64::MAX);
        Ok(Score { value: number(value), tie: number(tie) })
    }
}

/// What a model is scored by: labels where it tells classes apart, otherwise what its answers share with the teacher's.
/// Without either, how near they are to what they were.
pub fn measure(answers: &Answers, held: &Samples, has_teacher: bool) -> Measure {
    // The classes of made-up pictures say little: a network takes most of them for a few.
    let has_teacher = has_teacher && !held.synthetic;
    // Without a metric that is asked for nothing can be refused.
    let usual = answers.measure(None, held.set.is_labelled()).ok().filter(|m| has_teacher || m.metric == Metric::Top1);
    usual.unwrap_or(Measure { metric: Metric::Sqnr, output: 0, meaning: Meaning::Values })
}

/// The classes that the model tells apart, if it does and their number is known.
pub fn classes(graph: &Graph) -> Option<i64> {
    let output = &graph.outputs()[Answers::of(graph).classes()?];
    graph.fact(output.port).dims()?.iter().skip(1).map(Dim::known).product()
}

//! How good the model of a training job is, on what was held out.

use crate::{data::Samples, distill::workers};
use compress_compiler::{
    error::{Kind, Result},
    forms::decoder::Decoder,
    graph::Graph,
    pass::Context,
    value::Dim,
    verify::verify,
};
use compress_passes::simplify;
use compress_runtime::{
    burn::BurnInterpreter,
    dataset::Batch,
    metrics::{Answers, Comparison, Meaning, Measure, Metric, Wanted, cross_entropy},
    session::{Backend, Session},
    train::{
        augment::Augment,
        job::Score,
        loader::{Loader, LoaderOptions, Share},
        loss::Sequences,
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
    /// An evaluator by `measure` of `answers`, which are those of [`answers`], on `held`, beside the teacher where that says
    /// what is right.
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
        let held = in_order(held, held.batch)?;
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
        Decoder::forget(&mut graph);
        simplify(&mut graph, &Context::new(&BurnInterpreter::cpu()))?;
        let session = Session::new(&verify(&graph)?, self.backend, &[])?;
        let mut compared = Comparison::new(Kind::Data, &self.answers, self.measure);
        let mut loss = 0.0;
        for batch in self.held.epoch(0, 0)? {
            let batch = batch?;
            let made = session.run(&batch.inputs)?;
            if made.iter().any(|t| t.is_finite() == Some(false)) {
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
        Ok(match value {
            Some(value) if value.is_nan() => Score::NONE,
            Some(_) => Score::new(number(value), self.measure.metric.rises(), number(tie)),
            None => Score::new(f64::MIN, true, number(tie)),
        })
    }
}

/// Samples that are not trained on, as they are, in batches of so many.
///
/// # Errors
/// Those of [`Loader::new`].
pub fn in_order(held: &Samples, batch: usize) -> Result<Loader> {
    let options = LoaderOptions {
        batch,
        seed: 0,
        workers: workers(rayon::current_num_threads()),
        prefetch: 2,
        augment: Augment::default(),
        shuffle: false,
        drop_last: held.set.fixed_batch().is_some(),
        share: Share::default(),
    };
    Loader::new(held.set.clone(), held.indices.clone(), options)
}

/// What a model answers in training and when it is scored: a decoder without its cache.
pub fn answers(graph: &Graph) -> Answers {
    let mut graph = graph.clone();
    Decoder::forget(&mut graph);
    Answers::of(&graph)
}

/// The sequences whose next tokens are learnt, if the model is trained on those.
pub fn sequences(answers: &Answers, measure: &Measure) -> Option<Sequences> {
    let tokens = answers.tokens.filter(|_| measure.meaning == Meaning::NextToken)?;
    Some(Sequences { tokens, mask: answers.mask })
}

/// What a model is scored by: labels where it tells classes apart, the next tokens of real text, otherwise what its answers
/// share with the teacher's. Without any, how near they are to what they were.
pub fn measure(answers: &Answers, held: &Samples, has_teacher: bool) -> Measure {
    let by = |metric| answers.measure(Some(&Wanted { metric, output: None }), false).ok();
    if (has_teacher || !held.synthetic) && answers.outputs.iter().any(|o| o.meaning == Meaning::NextToken) {
        let metric = if held.synthetic { Metric::Kl } else { Metric::Perplexity };
        if let Some(measure) = by(metric) {
            return measure;
        }
    }
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

/// The size of the vocabulary that a decoder chooses from, if that is known.
pub fn vocabulary(graph: &Graph) -> Option<i64> {
    let output = graph.outputs().get(Decoder::of(graph)?.scores?)?;
    graph.fact(output.port).dims()?.last()?.known()
}

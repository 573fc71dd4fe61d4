//! Jobs on a thread of their own, and what they tell and ask.

use crate::{
    arrays::Data,
    errors::raised,
    model::{by_name, described, tensors},
};
use compress::{
    Error, Evaluate, Event, Events, Inspected, Recipe, Result, Scorer, Step, Tensor, TrainProgress,
    cli::{tables, training},
    report,
};
use pyo3::{
    exceptions::PyRuntimeError,
    prelude::*,
    types::{PyDict, PyTuple},
};
use serde_json::{Value, json};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    time::Duration,
};

/// How often a thread that waits looks for Ctrl-C.
const LOOK: Duration = Duration::from_millis(50);

/// The stack of a job: graphs within graphs take one frame each.
const STACK: usize = 16 << 20;

/// What a job tells the thread that waits for it.
enum Message {
    /// Something happened.
    Event(Value),
    /// A model wants a score.
    Evaluate(Predict),
    /// It is over.
    Done(Result<Done>),
}

/// What a model takes and gives.
#[derive(Clone)]
struct Signature {
    inputs: Vec<(String, String)>,
    outputs: Vec<(String, String)>,
}

/// What is answered to a job that wants a score.
enum Answer {
    /// Run the model first, and send what it gives.
    Run(Vec<Tensor>, Sender<Result<Vec<Tensor>>>),
    /// The score.
    Score(f64),
    /// There is none.
    Failed(String),
}

/// What a job made.
struct Done {
    /// The report, in JSON.
    report: String,
    /// The same for people.
    text: String,
    /// The gate that failed, if one did.
    failed: Option<String>,
    /// What was asked for and not done.
    undone: Vec<String>,
}

/// A job that runs.
#[pyclass(frozen)]
pub struct Job {
    messages: Mutex<Receiver<Message>>,
    stop: Arc<AtomicBool>,
    done: Mutex<Option<Result<Done>>>,
}

/// Hears a job.
struct Follower {
    messages: Sender<Message>,
    stop: Arc<AtomicBool>,
}

impl Events for Follower {
    fn event(&mut self, event: Event) {
        let step =
            |kind: &str, s: Step| json!({ "kind": kind, "id": s.id, "name": s.name, "done": s.done, "total": s.total });
        let training = |kind: &str, t: &TrainProgress| {
            json!({
                "kind": kind, "epoch": t.epoch, "epochs": t.epochs, "batch": t.batch, "batches": t.batches,
                "step": t.step, "loss": t.loss, "samples_per_second": t.samples_per_second,
                "metric": t.metric.to_string(), "score": t.score,
            })
        };
        let told = match event {
            Event::Began(s) => step("began", s),
            Event::Advanced(s) => step("advanced", s),
            Event::Ended(s) => step("ended", s),
            Event::Note(line) => json!({ "kind": "note", "line": line }),
            Event::Undone(line) => json!({ "kind": "undone", "line": line }),
            Event::Part { fraction, output } => json!({ "kind": "part", "fraction": fraction, "output": output }),
            Event::Batch(t) => training("batch", t),
            Event::Scored(t) => training("scored", t),
            _ => return,
        };
        // Nobody hears a job whose caller went away.
        let _ = self.messages.send(Message::Event(told));
    }

    fn stopped(&mut self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Asks the caller for scores.
struct Asker {
    messages: Sender<Message>,
    stop: Arc<AtomicBool>,
}

impl Evaluate for Asker {
    fn evaluate(&self, model: &compress::Model) -> Result<f64> {
        // Each score has a line of its own, which ends with it.
        let (answers, asked) = channel();
        let signature = Signature { inputs: described(model.inputs()), outputs: described(model.outputs()) };
        let wanted = Message::Evaluate(Predict { answers, signature });
        self.messages.send(wanted).map_err(|_| Error::interrupted())?;
        loop {
            match asked.recv_timeout(LOOK) {
                // Who asked may have gone away meanwhile.
                Ok(Answer::Run(inputs, reply)) => drop(reply.send(model.run(&inputs))),
                Ok(Answer::Score(score)) => return Ok(score),
                Ok(Answer::Failed(why)) => {
                    return Err(Error::data(format!("the function that evaluates models failed: {why}")));
                }
                Err(RecvTimeoutError::Timeout) if !self.stop.load(Ordering::Relaxed) => {}
                Err(_) => return Err(Error::interrupted()),
            }
        }
    }
}

#[pymethods]
impl Job {
    /// Begins the job that `recipe` (JSON) describes.
    #[new]
    #[pyo3(signature = (recipe, *, data=None, eval=None, evaluates=false, force=false, resume=false))]
    fn new(
        py: Python,
        recipe: &str,
        data: Option<&Bound<Data>>,
        eval: Option<&Bound<Data>>,
        evaluates: bool,
        force: bool,
        resume: bool,
    ) -> PyResult<Self> {
        static PROCESS: OnceLock<u32> = OnceLock::new();
        if *PROCESS.get_or_init(std::process::id) != std::process::id() {
            return Err(PyRuntimeError::new_err(
                "this process was forked from one that ran a job, and has none of its threads: start it with the method \
                 \"spawn\" (multiprocessing.get_context)",
            ));
        }
        // Messages name options as Python code does.
        compress::write_options(|option| option.replace('-', "_"));
        let (to_caller, messages) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let asker = Asker { messages: to_caller.clone(), stop: stop.clone() };
        let read = || -> Result<Recipe> {
            let mut recipe = Recipe::of_json(recipe)?;
            data.into_iter().for_each(|data| recipe.give_data(data.get().source()));
            if let Some(eval) = eval {
                recipe.give_eval(eval.get().source())?;
            }
            if evaluates {
                recipe.give_scorer(Scorer::Given(Arc::new(asker)))?;
            }
            recipe.set_force(force);
            recipe.set_resume(resume);
            Ok(recipe)
        };
        let recipe = read().map_err(|e| raised(py, &e))?;
        let mut follower = Follower { messages: to_caller.clone(), stop: stop.clone() };
        let work = move || {
            let ran = catch_unwind(AssertUnwindSafe(|| carried_out(&recipe, &mut follower)));
            let done = ran.unwrap_or_else(|panic| {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
                Err(Error::bug(text))
            });
            // Of a job whose caller went away the result goes too.
            let _ = to_caller.send(Message::Done(done));
        };
        let started = std::thread::Builder::new().name("compress".into()).stack_size(STACK).spawn(work);
        started.map_err(|e| PyRuntimeError::new_err(format!("the job could not be started: {e}")))?;
        Ok(Self { messages: Mutex::new(messages), stop, done: Mutex::new(None) })
    }

    /// Waits for what the job tells next: an event in JSON, or a `Predict` of a model that is to be evaluated; `None` when it
    /// is over.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        loop {
            let waited = py.detach(|| self.messages.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(LOOK));
            match waited {
                Ok(Message::Event(event)) => return Ok(Some(event.to_string().into_pyobject(py)?.into_any())),
                Ok(Message::Evaluate(asks)) => return Ok(Some(Bound::new(py, asks)?.into_any())),
                Ok(Message::Done(done)) => {
                    *self.done.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
                    return Ok(None);
                }
                Err(RecvTimeoutError::Timeout) => py.check_signals()?,
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
            }
        }
    }

    /// Asks the job to stop.
    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// What the job made, once it is over: the report in JSON, its text, the gate that failed, what was not done.
    fn result(&self, py: Python) -> PyResult<(String, String, Option<String>, Vec<String>)> {
        match self.done.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(Ok(done)) => Ok((done.report, done.text, done.failed, done.undone)),
            Some(Err(e)) => Err(raised(py, &e)),
            None => Err(PyRuntimeError::new_err("the job is not over, or its result was taken")),
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// A model that is to be evaluated: a function from inputs to outputs, until it has its score.
#[pyclass(frozen)]
pub struct Predict {
    answers: Sender<Answer>,
    signature: Signature,
}

#[pymethods]
impl Predict {
    #[getter]
    fn inputs(&self) -> Vec<(String, String)> {
        self.signature.inputs.clone()
    }

    #[getter]
    fn outputs(&self) -> Vec<(String, String)> {
        self.signature.outputs.clone()
    }

    /// Gives the model its score.
    fn score(&self, score: f64) {
        // A job that is over needs no score.
        let _ = self.answers.send(Answer::Score(score));
    }

    /// Says why the model has no score.
    fn fail(&self, why: String) {
        // As above.
        let _ = self.answers.send(Answer::Failed(why));
    }

    #[pyo3(signature = (*args, **named))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        named: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let inputs = tensors(&self.signature.inputs, args, named)?;
        let over = || PyRuntimeError::new_err("the evaluation that this model was given to is over");
        let (reply, made) = channel();
        self.answers.send(Answer::Run(inputs, reply)).map_err(|_| over())?;
        // Waiting without the interpreter's lock takes a value that threads may share.
        let made = Mutex::new(made);
        let made = loop {
            match py.detach(|| made.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(LOOK)) {
                Ok(made) => break made.map_err(|e| raised(py, &e))?,
                Err(RecvTimeoutError::Timeout) => py.check_signals()?,
                Err(RecvTimeoutError::Disconnected) => return Err(over()),
            }
        };
        by_name(py, &self.signature.outputs, &made)
    }
}

/// Does a job.
fn carried_out(recipe: &Recipe, events: &mut dyn Events) -> Result<Done> {
    let done = |report: String, text: String, verdict: Result<()>, undone: Vec<String>| Done {
        report,
        text,
        failed: verdict.err().map(|e| e.to_string()),
        undone,
    };
    match recipe {
        Recipe::Compress(job) => {
            let made = job.run(events)?;
            let text = tables::headline(&made) + &tables::report(&made);
            Ok(done(report::json(&made)?, text, made.verdict(job.gates.strict), made.undone.clone()))
        }
        Recipe::Check(job) => {
            let made = job.run(events)?;
            let text = tables::headline(&made) + &tables::report(&made);
            Ok(done(report::json(&made)?, text, made.verdict(job.gates.strict), made.undone.clone()))
        }
        Recipe::Draft(job) => {
            let made = job.run(events)?;
            let text = tables::headline(&made) + &tables::report(&made);
            Ok(done(report::json(&made)?, text, made.verdict(false), made.undone.clone()))
        }
        Recipe::Sweep(job) => {
            let made = job.run(events)?;
            Ok(done(report::json(&made)?, tables::sweep(&made), made.verdict(), vec![]))
        }
        Recipe::Search(job) => {
            let made = job.run(events)?;
            Ok(done(report::json(&made)?, tables::search(&made), made.verdict(), vec![]))
        }
        Recipe::Answers(job) => {
            let made = job.run(events)?;
            Ok(done(report::json(&made)?, tables::answers(&made), Ok(()), vec![]))
        }
        Recipe::Merge(job) => {
            let made = job.run(events)?;
            Ok(done(report::json(&made)?, tables::merged(&made), made.verdict(), vec![]))
        }
        Recipe::Distill(job) => {
            let made = job.run(events)?;
            Ok(done(report::json(&made)?, training::table(&made), made.verdict(false), made.undone.clone()))
        }
        Recipe::Bench(job) => {
            let made = job.run(events)?;
            Ok(done(report::json(&made)?, tables::figures(&made), Ok(()), vec![]))
        }
        Recipe::Explain(job) => {
            let made = job.run(events)?;
            Ok(done(report::json(&made)?, tables::explained(&made), Ok(()), vec![]))
        }
        Recipe::Sensitivity(job) => {
            let made = job.run(events)?;
            Ok(done(report::json(&made)?, tables::sensitivity(&made), Ok(()), vec![]))
        }
        Recipe::Inspect(job) => {
            let made = job.run(events)?;
            let text = match &made {
                Inspected::Whole(found) => tables::inspection(found),
                Inspected::Text(text) => text.clone(),
                Inspected::Groups(groups) => tables::groups(groups),
            };
            Ok(done(report::json(&made)?, text, Ok(()), vec![]))
        }
    }
}

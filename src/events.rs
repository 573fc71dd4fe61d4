//! What a job tells while it runs, and how it is asked to stop.

use compress_compiler::{
    error::{Error, Result},
    words::counted,
};
use compress_runtime::metrics::Metric;
use std::{
    cell::RefCell,
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

/// Something that happened in a job.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A long step begins.
    Began(Step<'a>),
    /// More units of a step are done.
    Advanced(Step<'a>),
    /// A step is over, done or not.
    Ended(Step<'a>),
    /// A line about the work at hand.
    Note(&'a str),
    /// Something that was asked for was not done, or not in full.
    Undone(&'a str),
    /// One model of several is begun (`sweep`).
    Part {
        /// The fraction of its weights that go.
        fraction: f64,
        /// Where it goes.
        output: &'a Path,
    },
    /// A batch of a training job was learnt.
    Batch(&'a TrainProgress),
    /// A training job was scored: before it, or after an epoch.
    Scored(&'a TrainProgress),
}

/// A long step of a job.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// A number of its own: steps may be inside others.
    pub id: u64,
    /// Its name, a word or two.
    pub name: &'a str,
    /// Units that are done.
    pub done: usize,
    /// All units.
    pub total: usize,
    /// Whether it is one of many alike.
    pub minor: bool,
}

/// Where a training job is.
#[derive(Debug, Clone)]
pub struct TrainProgress {
    /// The epoch, from 0.
    pub epoch: u64,
    /// All epochs.
    pub epochs: u64,
    /// Batches of this epoch that are done.
    pub batch: u64,
    /// All batches of an epoch.
    pub batches: u64,
    /// Steps that are done.
    pub step: u64,
    /// The mean loss since the last score.
    pub loss: f64,
    /// The speed.
    pub samples_per_second: f64,
    /// What it is scored by.
    pub metric: Metric,
    /// The last score.
    pub score: Option<f64>,
}

/// Follows a job. All methods have defaults: `()` follows none of it, and a closure that takes an [`Event`] follows all
/// and never stops.
pub trait Events: Send {
    /// Told of what happens, on whichever thread it does, one event at a time.
    fn event(&mut self, event: Event) {
        let _ = event;
    }

    /// Whether the job is to stop. It is asked often; a job that stops leaves no file behind but checkpoints, and its error is
    /// [`Kind::Interrupted`](compress_compiler::error::Kind::Interrupted).
    fn stopped(&mut self) -> bool {
        false
    }
}

impl Events for () {}

impl<F: FnMut(Event) + Send> Events for F {
    fn event(&mut self, event: Event) {
        self(event);
    }
}

/// What all that works on a job tells and asks, from any thread.
pub(crate) trait Ask: Sync {
    fn tell(&self, event: Event);
    fn stopped(&self) -> bool;
}

impl Ask for Mutex<&mut dyn Events> {
    fn tell(&self, event: Event) {
        self.lock().unwrap_or_else(PoisonError::into_inner).event(event);
    }

    fn stopped(&self) -> bool {
        self.lock().unwrap_or_else(PoisonError::into_inner).stopped()
    }
}

/// The [`Events`] of a job, shared by all that works on it.
#[derive(Clone, Copy)]
pub(crate) struct Monitor<'a>(pub &'a dyn Ask);

/// Does `work` with a monitor that tells `events`.
pub(crate) fn watched<T>(events: &mut dyn Events, work: impl FnOnce(&Monitor) -> T) -> T {
    let shared = Mutex::new(events);
    work(&Monitor(&shared))
}

static STEPS: AtomicU64 = AtomicU64::new(0);

impl Monitor<'_> {
    pub fn tell(&self, event: Event) {
        self.0.tell(event);
    }

    /// A line about the work at hand.
    pub fn note(&self, line: &str) {
        self.tell(Event::Note(line));
    }

    pub fn stopped(&self) -> bool {
        self.0.stopped()
    }

    /// # Errors
    /// Interrupted when the job is to stop.
    pub fn check(&self) -> Result<()> {
        if self.stopped() { Err(Error::interrupted()) } else { Ok(()) }
    }

    /// Begins a step of `total` units.
    pub fn step(&self, name: &str, total: usize) -> Progress<'_> {
        self.begin(name, total, false)
    }

    /// Begins a step that is one of many alike.
    pub fn minor_step(&self, name: &str, total: usize) -> Progress<'_> {
        self.begin(name, total, true)
    }

    fn begin(&self, name: &str, total: usize, minor: bool) -> Progress<'_> {
        let id = STEPS.fetch_add(1, Ordering::Relaxed);
        let made = Progress { monitor: *self, id, name: name.into(), done: AtomicUsize::new(0), total, minor };
        self.tell(Event::Began(made.step()));
        made
    }

    /// Tells what passes report of long work: [`Context::progress`](compress_compiler::pass::Context).
    pub fn passes(&self) -> impl Fn(&str, usize, usize) {
        let running: RefCell<Option<Progress>> = RefCell::new(None);
        move |what, done, of| {
            let mut running = running.borrow_mut();
            match done {
                0 => {
                    *running = Some(self.step(what, of));
                    self.note(&format!("{what}: {}", counted(of, "step")));
                }
                _ if done == of => *running = None,
                _ => running.iter().for_each(|progress| progress.advance(1)),
            }
        }
    }
}

/// A step that is going on. It ends when it is dropped.
pub(crate) struct Progress<'a> {
    monitor: Monitor<'a>,
    id: u64,
    name: String,
    done: AtomicUsize,
    total: usize,
    minor: bool,
}

impl Progress<'_> {
    /// Counts `n` more units.
    pub fn advance(&self, n: usize) {
        self.done.fetch_add(n, Ordering::Relaxed);
        self.monitor.tell(Event::Advanced(self.step()));
    }

    fn step(&self) -> Step<'_> {
        let Self { id, name, done, total, minor, .. } = self;
        Step { id: *id, name, done: done.load(Ordering::Relaxed), total: *total, minor: *minor }
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        self.monitor.tell(Event::Ended(self.step()));
    }
}

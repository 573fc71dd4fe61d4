//! What a person sees of a job: bars on a terminal, plain lines elsewhere, nothing when quiet.

use super::{interrupt, terminal::say};
use crate::{Event, Events, Step, TrainProgress};
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

/// How often a plain line tells of a long epoch.
const LINE_EVERY: Duration = Duration::from_secs(30);

/// The terminal of a job.
pub struct Terminal {
    quiet: bool,
    /// Whether nobody watches, so that lines are all there is.
    plain: bool,
    steps: Vec<Running>,
    /// The bar of a training job.
    training: Option<ProgressBar>,
    last_line: Instant,
}

/// A step that is going on.
struct Running {
    id: u64,
    bar: ProgressBar,
    start: Instant,
}

impl Terminal {
    pub fn new(quiet: bool) -> Self {
        let plain = !std::io::stderr().is_terminal();
        Self { quiet, plain, steps: vec![], training: None, last_line: Instant::now() }
    }

    fn bar(&self, total: u64, style: &str) -> ProgressBar {
        let bar = if self.plain { ProgressBar::hidden() } else { ProgressBar::new(total) };
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        bar
    }

    fn began(&mut self, step: Step) {
        let bar = self.bar(step.total as u64, "{msg:<13} {bar:30} {pos}/{len} {per_sec} {eta} left");
        bar.set_message(step.name.to_string());
        self.steps.push(Running { id: step.id, bar, start: Instant::now() });
    }

    fn ended(&mut self, step: Step) {
        let Some(place) = self.steps.iter().position(|s| s.id == step.id) else { return };
        let Running { bar, start, .. } = self.steps.remove(place);
        bar.finish_and_clear();
        // A line for each of many alike would be noise.
        if self.plain && !step.minor {
            say(&format!("{} {:.1} s", step.name, start.elapsed().as_secs_f64()));
        }
    }

    /// A line beside the bars.
    fn line(&self, line: &str) {
        match self.training.as_ref().or(self.steps.last().map(|s| &s.bar)).filter(|_| !self.plain) {
            Some(bar) => bar.println(line),
            None => say(line),
        }
    }

    fn batch(&mut self, t: &TrainProgress) {
        if self.training.is_none() {
            self.training = Some(self.bar(t.epochs * t.batches, "{bar:24} {percent}% {msg} {eta} left"));
        }
        let bar = self.training.iter();
        bar.for_each(|bar| {
            bar.set_position(t.epoch * t.batches + t.batch);
            bar.set_message(line(t));
        });
        if self.plain && self.last_line.elapsed() >= LINE_EVERY {
            say(&format!("{} ({} of {} batches)", line(t), t.batch, t.batches));
            self.last_line = Instant::now();
        }
    }

    fn scored(&mut self, t: &TrainProgress) {
        match t.step {
            0 if self.plain => {
                let score = t.score.map_or(String::new(), |score| t.metric.unit().show(score));
                say(&format!("before training: {} {score}", t.metric));
            }
            0 => {}
            _ => {
                self.line(&line(t));
                self.last_line = Instant::now();
            }
        }
    }
}

/// Where a training job is.
fn line(t: &TrainProgress) -> String {
    let score = t.score.map_or(String::new(), |s| format!(" {} {}", t.metric, t.metric.unit().show(s)));
    let epoch = (t.epoch + 1).min(t.epochs);
    format!("epoch {epoch}/{} loss {:.4}{score} {:.0} samples/s", t.epochs, t.loss, t.samples_per_second)
}

impl Events for Terminal {
    fn event(&mut self, event: Event) {
        match event {
            Event::Undone(what) => say(&format!("warning: {what}")),
            _ if self.quiet => {}
            Event::Began(step) => self.began(step),
            Event::Advanced(step) => {
                let running = self.steps.iter().find(|s| s.id == step.id);
                running.into_iter().for_each(|s| s.bar.set_position(step.done as u64));
            }
            Event::Ended(step) => self.ended(step),
            Event::Note(line) => self.line(line),
            Event::Part { fraction, output } => say(&format!("--prune {fraction} -> {}", output.display())),
            Event::Batch(t) => self.batch(t),
            Event::Scored(t) => self.scored(t),
        }
    }

    fn stopped(&mut self) -> bool {
        interrupt::stopped()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.training.iter().for_each(ProgressBar::finish_and_clear);
    }
}

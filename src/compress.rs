//! The main job: a model is compressed, measured, and written.

mod advice;
mod best;
mod bisect;
pub(crate) mod calibrator;
mod coverage;
mod intent;
pub(crate) mod judge;
pub(crate) mod judged;
pub(crate) mod needs;
mod opened;
mod plan;
mod recipe;
mod sets;
mod trainer;
mod tuner;

pub use bisect::Bisection;
pub use intent::{Expected, Intent, PlannedPass, Shares};
pub use recipe::Compress;

pub(crate) use opened::{Opened, Shared};
pub(crate) use plan::{CompressPlan, Purpose};

use crate::{
    events::{Events, Monitor, watched},
    options::within,
    report::Report,
};
use compress_compiler::error::{Error, Result};

impl Compress {
    /// Compresses the model and measures what that gave. The result and its report are written together at the end, or
    /// neither is. A gate that failed is not an error: [`Report::verdict`] has it.
    ///
    /// # Errors
    /// Usage for contradictions in the recipe; file, malformed, limit and unsupported for the model; data; device;
    /// interrupted when `events` asks to stop.
    pub fn run(&self, events: &mut dyn Events) -> Result<Report> {
        let plan = CompressPlan::new(self, Purpose::Compress)?;
        self.on_its_threads(events, |monitor| Opened::new(&plan, false, monitor)?.compress(&plan, true, monitor))
    }

    /// What [`Compress::run`] would do, and how long it would take.
    ///
    /// # Errors
    /// As for [`Compress::run`].
    pub fn intent(&self, events: &mut dyn Events) -> Result<Intent> {
        let plan = CompressPlan::new(self, Purpose::Intent)?;
        self.on_its_threads(events, |monitor| Intent::of(&Opened::new(&plan, false, monitor)?, &plan))
    }

    /// Runs the graph before and after every pass on the same inputs, and finds the change that alters the outputs, if one
    /// does. Nothing is written.
    ///
    /// # Errors
    /// As for [`Compress::run`].
    pub fn bisect(&self, events: &mut dyn Events) -> Result<Bisection> {
        let plan = CompressPlan::new(self, Purpose::Bisect)?;
        self.on_its_threads(events, |monitor| {
            let opened = Opened::new(&plan, false, monitor)?;
            opened.bisect(&plan, monitor).map_err(|e| e.in_file(&self.model))
        })
    }

    /// Does `work` on the threads that the job asks for.
    pub(crate) fn on_its_threads<T: Send>(
        &self,
        events: &mut dyn Events,
        work: impl FnOnce(&Monitor) -> Result<T> + Send,
    ) -> Result<T> {
        watched(events, |monitor| within(self.on.threads, self.takes_many_steps(), || work(monitor)))
    }
}

impl Opened {
    fn bisect(&self, plan: &CompressPlan, monitor: &Monitor) -> Result<Bisection> {
        let sets = self.sets.as_ref().ok_or_else(|| Error::unsupported(self.warnings.join("; ")))?;
        let pipeline = plan.pipeline(&self.options(plan));
        bisect::run(&self.original.graph, &pipeline, sets, &self.backend, monitor)
    }
}

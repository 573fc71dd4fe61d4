//! Which change, if any, makes the model compute something else.

use super::calibrator::DataCalibrator;
use crate::{data::Sets, events::Monitor, measure};
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    pass::{Calibrator, Context},
    pipeline::Pipeline,
};
use compress_passes::bisect::{Culprit, PassEffect, bisect};
use compress_runtime::{burn::BurnInterpreter, session::Backend};

/// Samples on which the graphs are compared.
const SAMPLES: usize = 8;

/// What a search for a wrong change found.
#[derive(Debug, Clone)]
pub struct Bisection {
    /// Each pass, in order.
    pub passes: Vec<PassEffect>,
    /// The change that alters the outputs, if one does.
    pub culprit: Option<Culprit>,
}

impl Bisection {
    /// # Errors
    /// A bug, naming pass, rule and node, when a change alters the outputs.
    pub fn verdict(&self) -> Result<()> {
        match &self.culprit {
            None => Ok(()),
            Some(c) => {
                let what = format!("pass `{}`, change {}, rule `{}`: {}", c.pass, c.edit, c.rule, c.difference);
                Err(Error::bug(what).at(&c.node))
            }
        }
    }
}

/// Runs the graph before and after every pass on the same inputs.
///
/// # Errors
/// Whatever running can raise.
pub fn run(graph: &Graph, pipeline: &Pipeline, sets: &Sets, backend: &Backend, monitor: &Monitor) -> Result<Bisection> {
    let interpreter = BurnInterpreter::cpu();
    let calibrator = DataCalibrator { samples: &sets.calibration, backend, monitor };
    let cx = Context {
        calibrator: Some(&calibrator as &dyn Calibrator),
        stopped: &|| monitor.stopped(),
        ..Context::new(&interpreter)
    };
    let compute = |g: &Graph| {
        let exe = measure::session(g, backend)?;
        let mut outputs = vec![];
        for indices in sets.evaluation.few(SAMPLES) {
            outputs.push(exe.run(&sets.evaluation.set.batch(indices)?.inputs)?);
        }
        Ok(outputs)
    };
    let mut passes = vec![];
    let progress = monitor.step("bisect", pipeline.passes.len());
    let culprit = bisect(graph, &pipeline.passes, &cx, &compute, &mut |step: PassEffect| {
        progress.advance(1);
        passes.push(step);
    })?;
    Ok(Bisection { passes, culprit })
}

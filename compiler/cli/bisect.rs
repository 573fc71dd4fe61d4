//! `compress MODEL --bisect`: which change, if any, makes the model compute something else.

use crate::{calibrate::DataCalibrator, data::Sets, interrupt, measure, plan::CompressPlan, terminal};
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    pass::{Calibrator, Context, Pipeline},
};
use compress_passes::bisect::{Step, bisect};
use compress_runtime::{burn::BurnEvaluator, session::Backend};

/// Samples on which the graphs are compared.
const SAMPLES: usize = 8;

/// Runs the graph before and after every pass on the same inputs and prints what that showed.
///
/// # Errors
/// A bug, naming pass, rule and node, when one changes the outputs; whatever running can raise.
pub fn run(plan: &CompressPlan, graph: &Graph, pipeline: &Pipeline, sets: &Sets, backend: &Backend) -> Result<()> {
    let evaluator = BurnEvaluator::cpu();
    let calibrator = DataCalibrator { samples: &sets.calibration, backend, quiet: true };
    let cx = Context {
        calibrator: Some(&calibrator as &dyn Calibrator),
        stopped: &interrupt::stopped,
        ..Context::new(&evaluator)
    };
    let compute = |g: &Graph| {
        let exe = measure::session(g, backend)?;
        let mut outputs = vec![];
        for indices in sets.evaluation.few(SAMPLES) {
            outputs.push(exe.run(&sets.evaluation.set.batch(indices)?.inputs)?);
        }
        Ok(outputs)
    };
    let mut printed = Ok(());
    let culprit = bisect(graph, &pipeline.passes, &cx, &compute, &mut |step: Step| {
        if !plan.run.quiet {
            let what = match step.difference {
                Some(d) => format!("outputs differ by {d:.1e} of their largest element at most"),
                None => "means to change the outputs: not judged".into(),
            };
            let line = format!("{:<9} {:>6} changes   {what}\n", step.pass, step.edits);
            printed = std::mem::replace(&mut printed, Ok(())).and_then(|()| terminal::print(&line));
        }
    })?;
    printed?;
    match culprit {
        None => Ok(()),
        Some(c) => {
            Err(Error::bug(format!("pass `{}`, change {}, rule `{}`: {}", c.pass, c.edit, c.rule, c.difference))
                .at(c.node))
        }
    }
}

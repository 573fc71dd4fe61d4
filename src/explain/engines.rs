//! Models on the engines that are here, kernel by kernel.

use super::join::{self, Kernels, Part};
use crate::{data::Samples, events::Monitor, facts, measure};
use compress_compiler::{
    error::{Error, Kind, Result},
    graph::Graph,
    onnx::Model,
    verify::verify,
    words::{
        counted,
        option::{ENGINE, ORT},
    },
};
use compress_runtime::{
    bench::{self, Pace},
    onnxruntime::{self, Provider},
    session::{Backend, Engine, Session},
};
use std::{path::Path, time::Duration};

/// Runs of which the fastest count, at most.
const RUNS: usize = 30;

/// The engines that a model runs on.
pub struct Engines {
    pub ours: Option<Backend>,
    pub provider: Option<Provider>,
    pub warnings: Vec<String>,
}

impl Engines {
    /// Our runtime and ONNX Runtime, if that is in the active environment; ONNX Runtime alone, if that was asked for.
    ///
    /// # Errors
    /// Device for an ONNX Runtime that was asked for and is not there.
    pub fn open(backend: &Backend, library: Option<&Path>) -> Result<Self> {
        if let Engine::OnnxRuntime(provider) = backend.engine {
            return Ok(Self { ours: None, provider: Some(provider), warnings: vec![] });
        }
        let loaded = match library.map(Into::into).or_else(onnxruntime::active) {
            Some(path) => onnxruntime::load(Some(&path)).map(|()| true),
            None => Ok(false),
        };
        let ours = Some(backend.clone());
        match loaded {
            Ok(true) => Ok(Self { ours, provider: Some(Provider::Cpu), warnings: vec![] }),
            Err(e) if library.is_some() => Err(e),
            Err(e) => Ok(Self { ours, provider: None, warnings: vec![e.to_string()] }),
            Ok(false) => {
                let what = format!(
                    "ONNX Runtime is in no active Python environment, so our runtime alone is shown: pip install onnxruntime, \
                     or {ORT} PATH or {ENGINE} onnxruntime"
                );
                Ok(Self { ours, provider: None, warnings: vec![what] })
            }
        }
    }

    /// Leaves our runtime out where it has no kernel for an operator, and ONNX Runtime is here.
    pub fn leave_out_ours_for(&mut self, graph: &Graph) {
        let unknown = facts::unknown(graph);
        if unknown > 0 && self.provider.is_some() && self.ours.take().is_some() {
            self.warnings.push(format!("our runtime is not shown: it does not know {}", counted(unknown, "operator")));
        }
    }

    /// Leaves ONNX Runtime out where it refuses the model, if our runtime is shown; says whether it did.
    pub fn leave_out_onnxruntime(&mut self, why: &Error) -> bool {
        let may =
            matches!(why.kind(), Kind::Unsupported | Kind::Limit) && self.ours.is_some() && self.provider.is_some();
        if may {
            self.provider = None;
            self.warnings.push(format!("ONNX Runtime is not shown: {why}"));
        }
        may
    }

    /// Runs `models` by turns on a batch of `samples`, and tells the parts of each.
    ///
    /// # Errors
    /// Whatever running them can raise; interrupted.
    pub fn parts(
        &self,
        models: &[&Model],
        samples: &Samples,
        (batch, time): (usize, Duration),
        monitor: &Monitor,
    ) -> Result<Vec<Vec<Part>>> {
        let pace = Pace { runs: RUNS, time, stopped: &|| monitor.stopped() };
        let inputs = measure::timing_batch(samples, batch)?.inputs;
        let ours = match &self.ours {
            Some(backend) => {
                let sessions = models.iter().map(|m| Session::of_model(m, backend)).collect::<Result<Vec<_>>>()?;
                for (session, model) in sessions.iter().zip(models) {
                    let file = model.source().files().first().map(|f| f.path().to_path_buf()).unwrap_or_default();
                    session.run(&inputs).map_err(|e| e.in_file(&file))?;
                }
                bench::least(&sessions.iter().collect::<Vec<_>>(), &inputs, &pace)?
            }
            None => vec![vec![]; models.len()],
        };
        let theirs = match self.provider {
            Some(provider) => onnxruntime::ran(models, provider, &inputs, &pace)?,
            None => vec![vec![]; models.len()],
        };
        let joined = |((model, ours), theirs): ((&&Model, &Vec<_>), &Vec<_>)| {
            let graph = &model.graph;
            let order = verify(graph)?.order().to_vec();
            let kernels = (Kernels::ours(graph, ours), Kernels::onnxruntime(graph, &order, theirs));
            Ok(join::parts(graph, &order, kernels.0, kernels.1))
        };
        models.iter().zip(&ours).zip(&theirs).map(joined).collect()
    }
}

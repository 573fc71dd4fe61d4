//! A GPU while it runs a model again and again: what its driver says of it, and the energy of a sample.

use crate::events::Monitor;
use compress_compiler::{error::Result, tensor::Tensor};
use compress_runtime::{
    device::{Device, GpuLoad, Watch},
    session::Session,
};
use schemars::JsonSchema;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Drivers tell of the last second: it has to be one of runs.
const WARM: Duration = Duration::from_secs(1);
const TIME: Duration = Duration::from_secs(2);

/// A GPU that runs a model.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct RunningGpu {
    /// What its driver says of it.
    #[serde(flatten)]
    pub load: GpuLoad,
    /// Runs in that time.
    pub runs: usize,
    /// The energy of a sample, that of an idle GPU included; absent where the driver counts no energy.
    pub joules_per_sample: Option<f64>,
}

impl RunningGpu {
    /// Runs it for some seconds; `None` where no driver says anything of the device.
    ///
    /// # Errors
    /// What running it raises; interrupted.
    pub(super) fn of(
        session: &Session,
        (inputs, samples): (&[Tensor], usize),
        device: &Device,
        monitor: &Monitor,
    ) -> Result<Option<Self>> {
        let again = |time: Duration| -> Result<usize> {
            let (began, mut runs) = (Instant::now(), 0);
            while runs == 0 || began.elapsed() < time {
                monitor.check()?;
                session.run(inputs)?;
                runs += 1;
            }
            Ok(runs)
        };
        if !Watch::is_possible(device) {
            return Ok(None);
        }
        again(WARM)?;
        let Some(watch) = Watch::begin(device) else { return Ok(None) };
        let runs = again(TIME)?;
        let load = watch.so_far();
        let joules_per_sample = load.joules.map(|joules| joules / (runs * samples.max(1)) as f64);
        Ok(Some(Self { load, runs, joules_per_sample }))
    }
}

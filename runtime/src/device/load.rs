//! How busy a GPU is, as its driver says: NVIDIA's management library, NVML.

use super::Device;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

#[cfg(not(feature = "cuda"))]
use super::absent_nvml::Meter;
#[cfg(feature = "cuda")]
use super::nvml::Meter;

/// Drivers count for a sixth of a second at least.
const EVERY: Duration = Duration::from_millis(250);

/// A GPU at a moment; what its driver doesn't say is absent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Load {
    /// The share of the last sixth of a second to second in which it computed.
    pub busy: Option<f64>,
    /// Bytes of its memory that programs use, others too.
    pub used_bytes: Option<u64>,
    /// All of its memory.
    pub memory_bytes: Option<u64>,
    /// The power that it takes.
    pub watts: Option<f64>,
    /// Its temperature.
    pub celsius: Option<u32>,
    /// The clock of its processors.
    pub clock_mhz: Option<u32>,
    /// The highest clock that they have.
    pub highest_clock_mhz: Option<u32>,
    /// What keeps the clock lower.
    pub slowed_by: BTreeSet<Brake>,
}

/// What keeps the clock of a GPU lower than it could be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Brake {
    /// It is too hot.
    Heat,
    /// It takes as much power as it may, or as there is.
    Power,
    /// It protects itself, and doesn't say from what.
    Protection,
}

/// A GPU over some time: means, unless it says otherwise. What its driver doesn't say is absent.
#[derive(Debug, Clone, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct GpuLoad {
    /// How long it was watched.
    pub seconds: f64,
    /// The share of that in which it computed.
    pub busy: Option<f64>,
    /// The most bytes of its memory that programs used at once, others too.
    pub peak_bytes: Option<u64>,
    /// All of its memory.
    pub memory_bytes: Option<u64>,
    /// The power that it took.
    pub watts: Option<f64>,
    /// The energy that it took in all that time.
    pub joules: Option<f64>,
    /// Its highest temperature.
    pub celsius: Option<u32>,
    /// The clock of its processors.
    pub clock_mhz: Option<f64>,
    /// The highest clock that they have.
    pub highest_clock_mhz: Option<u32>,
    /// What kept the clock lower at times.
    pub slowed_by: BTreeSet<Brake>,
}

impl GpuLoad {
    /// What a user should know of brakes.
    pub fn slowed(&self) -> Option<String> {
        let whys: Vec<&str> = self
            .slowed_by
            .iter()
            .map(|why| match why {
                Brake::Heat => "heat",
                Brake::Power => "its limit of power",
                Brake::Protection => "its own protection",
            })
            .collect();
        let clocks = match (self.clock_mhz, self.highest_clock_mhz) {
            (Some(clock), Some(highest)) => format!(" (it ran at {clock:.0} of {highest} MHz)"),
            _ => String::new(),
        };
        (!whys.is_empty()).then(|| format!("the GPU was slowed down by {}{clocks}", whys.join(" and ")))
    }
}

/// Asks a GPU now and then, on a thread of its own, for as long as it lives.
pub struct Watch {
    meter: Arc<Meter>,
    seen: Arc<Mutex<Seen>>,
    began: Instant,
    joules: Option<f64>,
    thread: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Watch {
    /// Whether a driver says anything of the device.
    pub fn is_possible(device: &Device) -> bool {
        Meter::of(device).is_some()
    }

    /// Begins; `None` where no driver says anything of the device.
    pub fn begin(device: &Device) -> Option<Self> {
        let meter = Arc::new(Meter::of(device)?);
        let seen = Arc::new(Mutex::new(Seen::default()));
        let (stop, stopped) = mpsc::channel();
        let (asked, told) = (meter.clone(), seen.clone());
        let thread = thread::Builder::new().name("watch".into()).spawn(move || {
            while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                let load = asked.load();
                told.lock().unwrap_or_else(PoisonError::into_inner).add(load);
            }
        });
        let joules = meter.joules();
        Some(Self { meter, seen, began: Instant::now(), joules, thread: thread.ok().map(|thread| (stop, thread)) })
    }

    /// The GPU a moment ago; `None` in the first moment.
    pub fn latest(&self) -> Option<Load> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).last.clone()
    }

    /// The GPU since the beginning; of a time that was too short it is asked now.
    pub fn so_far(&self) -> GpuLoad {
        let seconds = self.began.elapsed().as_secs_f64();
        let joules = self.joules.zip(self.meter.joules()).map(|(before, now)| now - before);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.last.is_none() {
            seen.add(self.meter.load());
        }
        seen.whole(seconds, joules)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.thread.take() {
            drop(stop);
            // It can't panic.
            let _ = thread.join();
        }
    }
}

/// A sum, and of how many.
#[derive(Default)]
struct Mean(f64, usize);

impl Mean {
    fn add(&mut self, value: Option<f64>) {
        if let Some(value) = value {
            (self.0, self.1) = (self.0 + value, self.1 + 1);
        }
    }

    fn get(&self) -> Option<f64> {
        (self.1 > 0).then(|| self.0 / self.1 as f64)
    }
}

/// What was seen so far: no more than that is kept of jobs that take days.
#[derive(Default)]
struct Seen {
    last: Option<Load>,
    busy: Mean,
    watts: Mean,
    clock: Mean,
    peak_bytes: Option<u64>,
    celsius: Option<u32>,
    slowed_by: BTreeSet<Brake>,
}

impl Seen {
    fn add(&mut self, load: Load) {
        self.busy.add(load.busy);
        self.watts.add(load.watts);
        self.clock.add(load.clock_mhz.map(f64::from));
        self.peak_bytes = self.peak_bytes.max(load.used_bytes);
        self.celsius = self.celsius.max(load.celsius);
        self.slowed_by.extend(&load.slowed_by);
        self.last = Some(load);
    }

    fn whole(&self, seconds: f64, joules: Option<f64>) -> GpuLoad {
        GpuLoad {
            seconds,
            busy: self.busy.get(),
            peak_bytes: self.peak_bytes,
            memory_bytes: self.last.as_ref().and_then(|load| load.memory_bytes),
            watts: self.watts.get(),
            joules,
            celsius: self.celsius,
            clock_mhz: self.clock.get(),
            highest_clock_mhz: self.last.as_ref().and_then(|load| load.highest_clock_mhz),
            slowed_by: self.slowed_by.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_summed_up() {
        let load = |busy: f64, used: u64, celsius, brakes: &[Brake]| Load {
            busy: Some(busy),
            used_bytes: Some(used),
            celsius: Some(celsius),
            clock_mhz: Some(1000),
            highest_clock_mhz: Some(1980),
            slowed_by: brakes.iter().copied().collect(),
            ..Load::default()
        };
        let mut seen = Seen::default();
        seen.add(load(0.25, 7, 60, &[]));
        seen.add(load(0.75, 5, 66, &[Brake::Heat]));
        let whole = seen.whole(0.5, Some(3.0));
        assert_eq!((whole.busy, whole.peak_bytes, whole.celsius), (Some(0.5), Some(7), Some(66)));
        assert_eq!((whole.watts, whole.joules, whole.seconds), (None, Some(3.0), 0.5));
        assert_eq!(whole.slowed().unwrap(), "the GPU was slowed down by heat (it ran at 1000 of 1980 MHz)");
        assert_eq!(Seen::default().whole(1.0, None).slowed(), None);
    }

    #[test]
    fn a_cpu_is_not_watched() {
        assert!(Watch::begin(&Device::cpu()).is_none());
    }
}

//! What would make training faster, by what waited for what.

use compress_compiler::words::option;
use compress_runtime::{burn::precision::Precision, device::GpuLoad, train::job::Spent};
use rustix::time::{ClockId, clock_gettime};
use std::time::Instant;

/// The share of the time from which on waiting for samples counts.
const WAITS: f64 = 0.1;
/// The share of the time above which a GPU, or the cores of the CPU, are busy.
const BUSY: f64 = 0.7;
/// The share of a GPU's memory above which it is full.
const FULL: f64 = 0.95;

/// What was seen of a training.
pub struct Seen<'a> {
    /// Where its time went.
    pub spent: &'a Spent,
    /// What its GPU did, where a driver says that.
    pub gpu: Option<&'a GpuLoad>,
    /// The share of all cores that worked.
    pub cores_busy: f64,
    /// Cores.
    pub cores: usize,
    /// Threads that prepare samples.
    pub workers: usize,
    /// What it computes in.
    pub precision: Precision,
    /// Whether samples are changed at random.
    pub augmented: bool,
    /// Whether cheap operators were computed again.
    pub recompute: bool,
}

impl Seen<'_> {
    /// The option that would make it faster, and why; `None` where nothing that was seen says so.
    pub fn advice(&self) -> Option<String> {
        let Self { gpu, cores_busy, cores, workers, .. } = *self;
        let waits = self.spent.data / self.spent.training().max(1e-9);
        let percent = |share: f64| format!("{:.0}%", 100.0 * share);
        if waits >= WAITS {
            let waits = format!("training waits for samples {} of the time", percent(waits));
            let idle = cores_busy < BUSY && workers < cores;
            let less = if self.augmented { format!(", or less {}", option::AUGMENT) } else { String::new() };
            return Some(match idle {
                true => format!("{waits}, and cores are idle: give {} {}", option::WORKERS, (2 * workers).min(cores)),
                false => format!(
                    "{waits}, and the cores that prepare them are busy: give data that take less work, such as .npz in place of \
                     pictures{less}"
                ),
            });
        }
        let gpu = gpu?;
        let busy = gpu.busy?;
        let computes = format!("the GPU computes {} of the time", percent(busy));
        let full = gpu.peak_bytes.zip(gpu.memory_bytes).is_some_and(|(used, all)| used as f64 >= FULL * all as f64);
        let (batch, recompute) = (option::BATCH, option::RECOMPUTE);
        Some(match (busy >= BUSY, full) {
            (false, true) if !self.recompute => {
                format!("{computes}, and its memory is full: {recompute} makes room for a larger {batch}")
            }
            (false, true) => format!("{computes}, and its memory is full: a GPU with more would take a larger {batch}"),
            (false, false) => format!("{computes}, and waits for launches and copies: a larger {batch} has fewer"),
            (true, _) if self.recompute => format!("{computes}: without {recompute} it does less"),
            (true, _) if !self.precision.is_half() => {
                format!("{computes}: {} bf16 takes less of it", option::PRECISION)
            }
            (true, _) => format!("{computes}: only a smaller model takes less of it"),
        })
    }
}

/// How much of the cores this process uses.
pub struct CoresClock {
    began: Instant,
    used: f64,
}

impl CoresClock {
    /// Begins to count.
    pub fn start() -> Self {
        Self { began: Instant::now(), used: seconds() }
    }

    /// The share of so many cores that was used since.
    pub fn busy(&self, cores: usize) -> f64 {
        (seconds() - self.used) / (self.began.elapsed().as_secs_f64() * cores as f64).max(1e-9)
    }
}

/// Seconds that all threads of this process computed.
fn seconds() -> f64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn gpu(busy: f64, used: u64) -> GpuLoad {
        GpuLoad {
            seconds: 1.0,
            busy: Some(busy),
            peak_bytes: Some(used),
            memory_bytes: Some(100),
            watts: None,
            joules: None,
            celsius: None,
            clock_mhz: None,
            highest_clock_mhz: None,
            slowed_by: BTreeSet::new(),
        }
    }

    fn seen<'a>(spent: &'a Spent, gpu: Option<&'a GpuLoad>) -> Seen<'a> {
        Seen {
            spent,
            gpu,
            cores_busy: 0.3,
            cores: 8,
            workers: 2,
            precision: Precision::F32,
            augmented: false,
            recompute: false,
        }
    }

    /// The four rules: the loader, transfers, memory, the model.
    #[test]
    fn each_limit_has_its_option() {
        let waiting = Spent { data: 3.0, compute: 7.0, ..Spent::default() };
        let computing = Spent { data: 0.1, compute: 9.9, ..Spent::default() };
        let (idle, full, busy) = (gpu(0.4, 50), gpu(0.4, 99), gpu(0.93, 99));
        // A library names options as recipes do.
        let says = |seen: Seen| seen.advice().unwrap_or_default().replace('`', "");
        let loader = says(seen(&waiting, Some(&idle)));
        assert!(loader.contains("30% of the time, and cores are idle: give workers 4"), "{loader}");
        let loader = says(Seen { cores_busy: 0.9, ..seen(&waiting, Some(&idle)) });
        assert!(loader.contains("less work, such as .npz"), "{loader}");
        let changed = says(Seen { workers: 8, augmented: true, ..seen(&waiting, None) });
        assert!(changed.ends_with("pictures, or less augment") && !loader.contains("augment"), "{changed}");
        assert!(says(seen(&computing, Some(&idle))).contains("40% of the time, and waits for launches"));
        assert!(says(seen(&computing, Some(&full))).contains("recompute makes room for a larger batch"));
        assert!(says(seen(&computing, Some(&busy))).contains("93% of the time: precision bf16"));
        let half = Seen { precision: Precision::Bf16, ..seen(&computing, Some(&busy)) };
        assert!(says(half).contains("a smaller model"));
        assert_eq!(seen(&computing, None).advice(), None);
    }
}

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
/// Seconds of computing on a CPU below which it doesn't matter how to save some.
const SHORT: f64 = 60.0;

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
    /// Whether samples are pictures that have to be decoded.
    pub pictures: bool,
    /// Whether samples are changed at random.
    pub augmented: bool,
    /// Whether a batch could have more samples.
    pub more_samples: bool,
    /// What it computes in.
    pub precision: Precision,
    /// Whether the device multiplies 16 bits faster than 32.
    pub multiplies_halves: bool,
    /// Whether cheap operators were computed again.
    pub recompute: bool,
}

impl Seen<'_> {
    /// The option that would make it faster, and why; `None` where nothing that was seen says so.
    pub fn advice(&self) -> Option<String> {
        let waits = self.spent.data / self.spent.training().max(1e-9);
        match waits >= WAITS {
            true => Some(format!("training waits for samples {}{}", percent(waits), self.of_loading())),
            false => self.of_gpu().or_else(|| self.of_cores()),
        }
    }

    /// What keeps the loader.
    fn of_loading(&self) -> String {
        let Self { cores_busy, cores, workers, .. } = *self;
        match (cores_busy < BUSY, workers < cores) {
            (true, true) => format!(", and cores are idle: give {} {}", option::WORKERS, (2 * workers).min(cores)),
            (true, false) => format!(
                ", and cores are idle: what holds the data is slow to read; more {} may read more at once",
                option::WORKERS
            ),
            (false, _) => {
                let pictures = if self.pictures { ": an .npz has nothing to decode" } else { "" };
                let less = if self.augmented { format!("; less {} helps", option::AUGMENT) } else { String::new() };
                format!(", and the cores that prepare them are busy{pictures}{less}")
            }
        }
    }

    /// What the cores could do less of, where there is no GPU.
    fn of_cores(&self) -> Option<String> {
        let computes = self.spent.compute / self.spent.training().max(1e-9);
        let narrow = self.gpu.is_none() && self.multiplies_halves && !self.precision.is_half();
        (narrow && self.spent.compute >= SHORT && computes >= BUSY).then(|| {
            format!(
                "computing takes {}: {} bf16 may take less, as two such numbers are multiplied in the time of one",
                percent(computes),
                option::PRECISION
            )
        })
    }

    /// What keeps the GPU, where a driver says how busy it is.
    fn of_gpu(&self) -> Option<String> {
        let gpu = self.gpu?;
        let busy = gpu.busy?;
        let computes = format!("the GPU computes {}", percent(busy));
        let full = gpu.peak_bytes.zip(gpu.memory_bytes).is_some_and(|(used, all)| used as f64 >= FULL * all as f64);
        let (batch, recompute) = (option::BATCH, option::RECOMPUTE);
        match (busy >= BUSY, full) {
            (false, _) if !self.more_samples => None,
            (false, true) if self.recompute => None,
            (false, true) => {
                Some(format!("{computes}, and its memory is full: {recompute} makes room for a larger {batch}"))
            }
            (false, false) => Some(format!("{computes}: a larger {batch} gives it more to do at once")),
            (true, false) if self.recompute => Some(format!("{computes}: without {recompute} it does less")),
            (true, _) if !self.precision.is_half() && self.multiplies_halves => {
                Some(format!("{computes}: {} bf16 takes less of it", option::PRECISION))
            }
            (true, _) => Some(format!("{computes}: a smaller model would take less of it")),
        }
    }
}

fn percent(share: f64) -> String {
    format!("{:.0}% of the time", 100.0 * share)
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
            pictures: true,
            augmented: false,
            more_samples: true,
            precision: Precision::F32,
            multiplies_halves: true,
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
        let slow = says(Seen { workers: 8, ..seen(&waiting, None) });
        assert!(slow.contains("slow to read; more workers"), "{slow}");
        let decodes = says(Seen { cores_busy: 0.9, ..seen(&waiting, Some(&idle)) });
        assert!(decodes.ends_with("are busy: an .npz has nothing to decode"), "{decodes}");
        let changes = says(Seen { cores_busy: 0.9, pictures: false, augmented: true, ..seen(&waiting, None) });
        assert!(changes.ends_with("are busy; less augment helps"), "{changes}");
        assert!(says(seen(&computing, Some(&idle))).contains("40% of the time: a larger batch"));
        assert!(says(seen(&computing, Some(&full))).contains("recompute makes room for a larger batch"));
        assert!(says(seen(&computing, Some(&busy))).contains("93% of the time: precision bf16"));
    }

    #[test]
    fn advice_can_be_followed() {
        let computing = Spent { compute: 10.0, ..Spent::default() };
        let (idle, full, busy) = (gpu(0.4, 50), gpu(0.4, 99), gpu(0.93, 99));
        assert_eq!(seen(&computing, None).advice(), None);
        let long = Spent { compute: 100.0, data: 2.0, ..Spent::default() };
        let on_cores = seen(&long, None).advice().unwrap_or_default();
        assert!(on_cores.starts_with("computing takes 98% of the time: ") && on_cores.contains("bf16"), "{on_cores}");
        assert_eq!(Seen { precision: Precision::Bf16, ..seen(&long, None) }.advice(), None);
        assert_eq!(Seen { multiplies_halves: false, ..seen(&long, None) }.advice(), None);
        assert_eq!(Seen { more_samples: false, ..seen(&computing, Some(&idle)) }.advice(), None);
        assert_eq!(Seen { recompute: true, ..seen(&computing, Some(&full)) }.advice(), None);
        let says = |seen: Seen| seen.advice().unwrap_or_default();
        assert!(says(Seen { multiplies_halves: false, ..seen(&computing, Some(&busy)) }).contains("smaller model"));
        assert!(says(Seen { precision: Precision::Bf16, ..seen(&computing, Some(&busy)) }).contains("smaller model"));
        // Its memory is full with it.
        assert!(says(Seen { recompute: true, ..seen(&computing, Some(&busy)) }).contains("bf16"));
        assert!(says(Seen { recompute: true, ..seen(&computing, Some(&gpu(0.93, 50))) }).contains("it does less"));
    }
}

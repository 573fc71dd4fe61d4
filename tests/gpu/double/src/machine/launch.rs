//! Launches: all blocks of a grid, on all processors.

use super::{Fault, Kernel, block::Runner, memory::Ranges};
use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

/// A kernel with its grid and its arguments.
pub struct Launch<'a> {
    /// The kernel.
    pub kernel: &'a Kernel,
    /// The bytes of the parameters, in words.
    pub params: Vec<u128>,
    /// How many bytes of them there are.
    pub param_bytes: usize,
    /// Blocks along each axis.
    pub grid: [u32; 3],
    /// Threads of a block along each axis.
    pub block: [u32; 3],
    /// Bytes of shared memory that the launch adds.
    pub dynamic: usize,
    /// Memory that it may touch.
    pub ranges: Ranges,
}

/// What a launch did.
#[derive(Debug, Default, Clone, Copy)]
pub struct Counts {
    /// Instructions of warps.
    pub steps: u64,
    /// The lanes that they ran for.
    pub lanes: u64,
    /// Instructions of tensor cores.
    pub tensor: u64,
}

impl Launch<'_> {
    /// Threads of a block.
    pub fn threads(&self) -> usize {
        self.block.iter().product::<u32>() as usize
    }

    /// Runs all blocks.
    ///
    /// # Errors
    /// The first fault of any.
    pub fn run(&self) -> Result<Counts, Fault> {
        let blocks = self.grid.iter().map(|n| u64::from(*n)).product::<u64>();
        let next = AtomicU64::new(0);
        let stop = AtomicBool::new(false);
        let result: Mutex<Result<Counts, Fault>> = Mutex::new(Ok(Counts::default()));
        let work = || {
            let mut runner = Runner::new(self);
            let mut counts = Counts::default();
            let mut fault = None;
            while !stop.load(Relaxed) {
                let i = next.fetch_add(1, Relaxed);
                if i >= blocks {
                    break;
                }
                let [x, y, _] = self.grid.map(u64::from);
                let at = [(i % x) as u32, (i / x % y) as u32, (i / x / y) as u32];
                if let Err(found) = runner.run(at, &mut counts) {
                    fault = Some(found);
                    stop.store(true, Relaxed);
                }
            }
            let mut result = result.lock().unwrap_or_else(|e| e.into_inner());
            match (&mut *result, fault) {
                (Ok(_), Some(fault)) => *result = Err(fault),
                (Ok(all), None) => {
                    all.steps += counts.steps;
                    all.lanes += counts.lanes;
                    all.tensor += counts.tensor;
                }
                (Err(_), _) => {}
            }
        };
        let workers = std::thread::available_parallelism().map_or(1, usize::from).min(blocks as usize);
        std::thread::scope(|scope| {
            (1..workers).for_each(|_| drop(scope.spawn(work)));
            work();
        });
        result.into_inner().unwrap_or_else(|e| e.into_inner())
    }
}

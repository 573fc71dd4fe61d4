//! Coverage, when the compiler was told to count it (README.md): which inputs reach new code.
//!
//! LLVM calls the function below for each object file, with that file's counters, one byte for
//! each edge. Without instrumentation there are none, and no input is ever new.

use std::sync::Mutex;

struct Counters {
    start: *mut u8,
    len: usize,
    /// The classes of counts that each edge has had, one bit each.
    seen: Vec<u8>,
}

// SAFETY: the counters are static memory; threads may race on a count, which blurs it only.
unsafe impl Send for Counters {}

static ALL: Mutex<Vec<Counters>> = Mutex::new(vec![]);

/// # Safety
/// LLVM calls it: from `start` to `stop` are counters of an object file, in static memory.
#[unsafe(no_mangle)]
unsafe extern "C" fn __sanitizer_cov_8bit_counters_init(start: *mut u8, stop: *mut u8) {
    let len = (stop as usize).saturating_sub(start as usize);
    let mut all = ALL.lock().unwrap_or_else(|e| e.into_inner());
    if len > 0 && !all.iter().any(|c| c.start == start) {
        all.push(Counters { start, len, seen: vec![0; len] });
    }
}

/// Forgets what the last run counted.
pub fn reset() {
    for c in ALL.lock().unwrap_or_else(|e| e.into_inner()).iter() {
        // SAFETY: LLVM gave these bounds, and the memory is static.
        unsafe { c.start.write_bytes(0, c.len) };
    }
}

/// Whether the last run took an edge that none took before, or took one much more often.
pub fn is_new() -> bool {
    let mut new = false;
    for c in ALL.lock().unwrap_or_else(|e| e.into_inner()).iter_mut() {
        for (i, seen) in c.seen.iter_mut().enumerate() {
            // SAFETY: LLVM gave these bounds, and the memory is static. `seen` is as long.
            let count = unsafe { c.start.add(i).read() };
            if count > 0 {
                let class = 1 << count.ilog2();
                new |= *seen & class == 0;
                *seen |= class;
            }
        }
    }
    new
}

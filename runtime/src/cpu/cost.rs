//! What a step costs, roughly, and into how many parts that divides it.

use compress_kernels::Isa;

/// Nanoseconds of work that are worth a thread of their own. To hand it over and to wait for it
/// takes from a fifth of a microsecond to one, by how far apart the cores are; and even where that
/// gains nothing, what each thread wrote stays in its own core's cache.
const WORTH_A_THREAD: u64 = 500;

/// Where there are more parts than threads, a part has at least so many nanoseconds.
const WORTH_A_PART: u64 = 20_000;

/// Parts of much work for each thread. One whose core is faster, or has no other program to run, does more of them.
const PARTS: u64 = 2;

/// Into how many parts so many nanoseconds of work are divided for at most `threads` threads.
pub(super) fn parts(ns: u64, threads: usize) -> usize {
    let threads = (ns / WORTH_A_THREAD).clamp(1, threads.max(1) as u64);
    let each = if threads == 1 { 1 } else { (ns / threads / WORTH_A_PART).clamp(1, PARTS) };
    (threads * each) as usize
}

/// Nanoseconds that one thread takes for so many 8-bit multiplications and additions.
pub(super) fn macs8(isa: Isa, n: u64) -> u64 {
    n / match isa {
        Isa::Portable | Isa::Saturating => 2,
        Isa::Avx2 => 60,
        Isa::AvxVnni => 120,
        Isa::Avx512Vnni => 250,
        Isa::Amx => 500,
        // Of cores with two units of 128 bits, at 2 to 3 GHz; not measured.
        Isa::Neon => 15,
        Isa::Dotprod => 60,
        Isa::I8mm => 100,
    }
}

/// Nanoseconds that one thread takes for so many multiplications and additions of floats.
pub(super) fn macs32(isa: Isa, n: u64) -> u64 {
    n / match isa {
        Isa::Portable | Isa::Saturating => 4,
        Isa::Avx2 | Isa::AvxVnni => 40,
        Isa::Avx512Vnni | Isa::Amx => 60,
        Isa::Neon | Isa::Dotprod | Isa::I8mm => 15,
    }
}

/// Nanoseconds that one thread takes to read or write so many bytes, with little to do for each.
pub(super) fn bytes(n: usize) -> u64 {
    n as u64 / 32
}

/// Nanoseconds that one thread takes for a function such as the exponential of so many floats.
pub(super) fn math(n: usize) -> u64 {
    n as u64 / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_work_is_done_by_one() {
        for (ns, most, want) in [(0, 4, 1), (999, 4, 1), (1000, 4, 2), (1500, 2, 2), (5000, 0, 1), (u64::MAX, 1, 1)] {
            assert_eq!(parts(ns, most), want, "{ns} ns");
        }
    }

    #[test]
    fn much_work_has_parts_for_threads_that_are_done_early() {
        for (ns, threads, want) in [(79_999, 2, 2), (80_000, 2, 4), (u64::MAX, 3, 6)] {
            assert_eq!(parts(ns, threads), want, "{ns} ns");
        }
    }
}

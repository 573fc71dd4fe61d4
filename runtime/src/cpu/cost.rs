//! What a step costs, roughly, and how many threads that is worth.

use compress_kernels::Isa;

/// Nanoseconds of work that are worth a thread of their own. To hand it over and to wait for it
/// takes from a fifth of a microsecond to one, by how far apart the cores are; and even where that
/// gains nothing, what each thread wrote stays in its own core's cache.
const WORTH_A_THREAD: u64 = 500;

/// How many of at most `threads` threads so many nanoseconds of work are worth.
pub(super) fn threads(ns: u64, threads: usize) -> usize {
    (ns / WORTH_A_THREAD).clamp(1, threads.max(1) as u64) as usize
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
        for (ns, most, want) in [(0, 4, 1), (999, 4, 1), (1000, 4, 2), (1500, 2, 2), (u64::MAX, 3, 3), (5000, 0, 1)] {
            assert_eq!(threads(ns, most), want, "{ns} ns");
        }
    }
}

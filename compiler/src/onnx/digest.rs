//! SHA-256 of two files at once.
//!
//! Each step of SHA-256 waits for the one before, so a processor that has instructions for it is
//! idle half of the time. Hashing a large model's file and the result together takes little
//! longer than one of them; on two cores it is the difference between waiting for the digest and
//! waiting for the copy.

use sha2::{Digest, Sha256};

/// The SHA-256 of the bytes of all `slices`, in hex.
pub(super) fn sha256<'a>(slices: impl Iterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    slices.for_each(|s| hash.update(s));
    hex(&hash.finalize())
}

/// As [`sha256`], of two streams of bytes.
pub(super) fn sha256_of_two<'a>(
    a: impl Iterator<Item = &'a [u8]> + Send,
    b: impl Iterator<Item = &'a [u8]> + Send,
) -> [String; 2] {
    #[cfg(target_arch = "x86_64")]
    if x86::supported() {
        let (mut a, mut b) = (x86::Lane::new(a), x86::Lane::new(b));
        while a.ready() && b.ready() {
            let n = a.rest.len().min(b.rest.len()) / x86::BLOCK * x86::BLOCK;
            let ((now_a, rest_a), (now_b, rest_b)) = (a.rest.split_at(n), b.rest.split_at(n));
            // SAFETY: `supported` found the features that `compress` names.
            unsafe { x86::compress([&mut a.state, &mut b.state], [now_a, now_b]) };
            (a.rest, b.rest) = (rest_a, rest_b);
        }
        return [a.finish(), b.finish()];
    }
    std::thread::scope(|scope| {
        let b = scope.spawn(|| sha256(b));
        let a = sha256(a);
        [a, b.join().unwrap_or_default()]
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::hex;
    use sha2::{
        compress256,
        digest::generic_array::{GenericArray, typenum::U64},
    };
    use std::arch::x86_64::*;

    pub(super) const BLOCK: usize = 64;

    /// A stream of bytes that is being hashed.
    pub(super) struct Lane<'a, I> {
        slices: I,
        /// What is left of the current slice.
        pub(super) rest: &'a [u8],
        /// The beginning of a block that goes on in the next slice.
        begun: Vec<u8>,
        pub(super) state: [u32; 8],
        /// Bytes of all slices taken so far.
        len: u64,
    }

    impl<'a, I: Iterator<Item = &'a [u8]>> Lane<'a, I> {
        pub(super) fn new(slices: I) -> Self {
            let state = [
                0x6a09_e667,
                0xbb67_ae85,
                0x3c6e_f372,
                0xa54f_f53a,
                0x510e_527f,
                0x9b05_688c,
                0x1f83_d9ab,
                0x5be0_cd19,
            ];
            Self { slices, rest: &[], begun: vec![], state, len: 0 }
        }

        /// Takes slices until a block lies in one, and returns whether there is such a block.
        pub(super) fn ready(&mut self) -> bool {
            loop {
                if !self.begun.is_empty() || self.rest.len() < BLOCK {
                    let (now, later) = self.rest.split_at(self.rest.len().min(BLOCK - self.begun.len()));
                    self.begun.extend_from_slice(now);
                    self.rest = later;
                    if self.begun.len() == BLOCK {
                        compress256(&mut self.state, &[*GenericArray::<u8, U64>::from_slice(&self.begun)]);
                        self.begun.clear();
                    }
                }
                if self.begun.is_empty() && self.rest.len() >= BLOCK {
                    return true;
                }
                if self.rest.is_empty() {
                    let Some(next) = self.slices.next() else { return false };
                    self.rest = next;
                    self.len += next.len() as u64;
                }
            }
        }

        pub(super) fn finish(mut self) -> String {
            while self.ready() {
                for block in self.rest.chunks_exact(BLOCK) {
                    compress256(&mut self.state, &[*GenericArray::<u8, U64>::from_slice(block)]);
                }
                self.rest = &self.rest[self.rest.len() / BLOCK * BLOCK..];
            }
            let mut end = std::mem::take(&mut self.begun);
            end.push(0x80);
            end.resize((end.len() + 8).next_multiple_of(BLOCK) - 8, 0);
            end.extend((self.len * 8).to_be_bytes());
            for block in end.chunks_exact(BLOCK) {
                compress256(&mut self.state, &[*GenericArray::<u8, U64>::from_slice(block)]);
            }
            hex(&self.state.iter().flat_map(|w| w.to_be_bytes()).collect::<Vec<_>>())
        }
    }

    /// Whether the processor has the instructions.
    pub(super) fn supported() -> bool {
        is_x86_feature_detected!("sha") && is_x86_feature_detected!("ssse3") && is_x86_feature_detected!("sse4.1")
    }

    /// Hashes the blocks of two equally long slices, step by step in turns.
    #[target_feature(enable = "sha,ssse3,sse4.1")]
    pub(super) fn compress(states: [&mut [u32; 8]; 2], data: [&[u8]; 2]) {
        let load = |bytes: &[u32]| _mm_set_epi32(bytes[3] as i32, bytes[2] as i32, bytes[1] as i32, bytes[0] as i32);
        let (mut abef, mut cdgh) = ([_mm_setzero_si128(); 2], [_mm_setzero_si128(); 2]);
        for i in 0..2 {
            let cdab = _mm_shuffle_epi32(load(&states[i][..4]), 0xb1);
            let efgh = _mm_shuffle_epi32(load(&states[i][4..]), 0x1b);
            abef[i] = _mm_alignr_epi8(cdab, efgh, 8);
            cdgh[i] = _mm_blend_epi16(efgh, cdab, 0xf0);
        }
        let swap = _mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203);
        for (a, b) in data[0].as_chunks::<BLOCK>().0.iter().zip(data[1].as_chunks::<BLOCK>().0) {
            let before = (abef, cdgh);
            let mut w = [[_mm_setzero_si128(); 4]; 2];
            for (w, block) in w.iter_mut().zip([a, b]) {
                for (w, bytes) in w.iter_mut().zip(block.as_chunks::<16>().0) {
                    // SAFETY: an unaligned load of 16 bytes from as many.
                    *w = _mm_shuffle_epi8(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }, swap);
                }
            }
            macro_rules! rounds {
                ($($n:literal)*) => {$(
                    for i in 0..2 {
                        let [w0, w1, w2, w3] = [w[i][$n % 4], w[i][($n + 1) % 4], w[i][($n + 2) % 4], w[i][($n + 3) % 4]];
                        let mixed = _mm_add_epi32(w0, load(&K[4 * $n..][..4]));
                        cdgh[i] = _mm_sha256rnds2_epu32(cdgh[i], abef[i], mixed);
                        abef[i] = _mm_sha256rnds2_epu32(abef[i], cdgh[i], _mm_shuffle_epi32(mixed, 0x0e));
                        if $n < 12 {
                            let sum = _mm_add_epi32(_mm_sha256msg1_epu32(w0, w1), _mm_alignr_epi8(w3, w2, 4));
                            w[i][$n % 4] = _mm_sha256msg2_epu32(sum, w3);
                        }
                    }
                )*};
            }
            rounds!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
            for i in 0..2 {
                abef[i] = _mm_add_epi32(abef[i], before.0[i]);
                cdgh[i] = _mm_add_epi32(cdgh[i], before.1[i]);
            }
        }
        for (i, state) in states.into_iter().enumerate() {
            let feba = _mm_shuffle_epi32(abef[i], 0x1b);
            let dchg = _mm_shuffle_epi32(cdgh[i], 0xb1);
            let halves = [_mm_blend_epi16(feba, dchg, 0xf0), _mm_alignr_epi8(dchg, feba, 8)];
            for (out, half) in state.chunks_exact_mut(4).zip(halves) {
                // SAFETY: an unaligned store of 16 bytes over four words.
                unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), half) };
            }
        }
    }

    #[rustfmt::skip]
    const K: [u32; 64] = [
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_that_of_the_standard() {
        // FIPS 180-4, as its examples have it.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256([&b"a"[..], b"bc"].into_iter()), abc);
    }

    #[test]
    fn two_at_once_are_as_one_by_one() {
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
        // Streams of all lengths around a block's, in slices of all lengths around it.
        for (len, slice) in [(0, 1), (1, 1), (55, 7), (56, 64), (63, 63), (64, 65), (119, 60), (200, 3), (100_000, 129)]
        {
            for (other, by) in [(0, 1), (64, 64), (70, 69), (99_999, 64), (100_000, 100_000)] {
                let both = sha256_of_two(bytes[..len].chunks(slice), bytes[..other].chunks(by));
                let each = [sha256(bytes[..len].chunks(slice)), sha256(bytes[..other].chunks(by))];
                assert_eq!(both, each, "{len} in {slice}, {other} in {by}");
            }
        }
        assert_eq!(sha256([&b"abc"[..]].into_iter())[..16], *"ba7816bf8f01cfea");
    }
}

//! How tiles multiply: one product of 32-bit floats a lane at a time, or two of bfloat16 numbers, or four in products of matrices on
//! ARM.

// Iterators over arrays of registers would hide which of them meet.
#![allow(clippy::needless_range_loop)]

use crate::Isa;
use crate::tile::Vectors;
use rayon::prelude::*;
use std::borrow::Cow;
use std::marker::PhantomData;

/// The width of what is multiplied; sums are floats of 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FactorWidth {
    /// Floats of 32 bits.
    F32,
    /// bfloat16, the upper half of those, to which operands are rounded: the nearest, the even one of two.
    Bf16,
}

impl FactorWidth {
    /// Whether products of this width take less time here than those of 32 bits.
    pub fn is_fast(self) -> bool {
        self == Self::Bf16 && Isa::detect().multiplies_bf16()
    }

    /// The set to multiply on, and the operands as it takes them: already rounded where it multiplies 32 bits only.
    pub(super) fn operands<'a>(self, isa: Isa, values: [&'a [f32]; 2]) -> (Set, [Cow<'a, [f32]>; 2]) {
        let set = Set { isa, bf16: self == Self::Bf16 && isa.multiplies_bf16() };
        let is_rounded = self == Self::Bf16 && !set.bf16;
        (set, values.map(|v| if is_rounded { Cow::Owned(rounded(v)) } else { Cow::Borrowed(v) }))
    }
}

/// An instruction set, and whether its products are those of bfloat16.
#[derive(Clone, Copy, Debug)]
pub(super) struct Set {
    pub isa: Isa,
    pub bf16: bool,
}

impl Set {
    /// Products that a step adds to a sum.
    pub fn depth(self) -> usize {
        if self.bf16 { 2 } else { 1 }
    }

    /// Factors of one lane, of which the second counts where the depth is 2.
    pub fn pack(self, factors: [f32; 2]) -> u32 {
        match (self.bf16, factors) {
            (true, [a, b]) => upper_half(a) >> 16 | upper_half(b),
            (false, [a, _]) => a.to_bits(),
        }
    }
}

/// The nearest bfloat16 number, in the upper half.
#[inline(always)]
fn upper_half(x: f32) -> u32 {
    let bits = x.to_bits();
    // NaN stays NaN: rounding could carry it to infinity.
    if x.is_nan() { (bits | 1 << 22) & !0xffff } else { bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & !0xffff }
}

/// The nearest bfloat16 numbers.
pub(super) fn rounded(x: &[f32]) -> Vec<f32> {
    x.par_iter().with_min_len(1 << 14).map(|x| f32::from_bits(upper_half(*x))).collect()
}

/// What a tile multiplies, [`Factors::DEPTH`] numbers a lane at a time.
///
/// # Safety
/// The operations must do what their names say in every lane.
pub(super) unsafe trait Factors {
    /// The vectors of sums.
    type V: Vectors;
    /// A vector of factors.
    type X: Copy;
    /// Products that a step adds to each lane.
    const DEPTH: usize;

    /// Of each lane a factor from `a`, and where the depth is 2 one from `b`.
    ///
    /// # Safety
    /// The machine has the set. A vector can be read at `a`, and where the depth is 2 at `b`.
    unsafe fn read(a: *const f32, b: *const f32) -> Self::X;
    /// The same of the first lanes: `n[0]` of `a` and `n[1]` of `b`. Others are 0.
    ///
    /// # Safety
    /// The machine has the set. So many floats can be read, at most a vector.
    unsafe fn read_first(a: *const f32, b: *const f32, n: [usize; 2]) -> Self::X;
    /// All factors of a lane from consecutive floats.
    ///
    /// # Safety
    /// The machine has the set. As many vectors can be read as the depth is.
    unsafe fn read_line(from: *const f32) -> Self::X;
    /// The same of the first `n` floats. Others are 0.
    ///
    /// # Safety
    /// The machine has the set. So many floats can be read, at most as many vectors as the depth is.
    unsafe fn read_line_first(from: *const f32, n: usize) -> Self::X;
    /// The factors that [`Set::pack`] packed, in every lane.
    ///
    /// # Safety
    /// The machine has the set.
    unsafe fn splat_word(packed: u32) -> Self::X;
    /// Reads packed factors.
    ///
    /// # Safety
    /// The machine has the set. There is a word for each lane.
    unsafe fn load_words(from: *const u32) -> Self::X;
    /// Writes packed factors.
    ///
    /// # Safety
    /// The machine has the set. There is room for a word of each lane.
    unsafe fn store_words(to: *mut u32, x: Self::X);
    /// Adds the products of a lane's factors to its sum.
    ///
    /// # Safety
    /// The machine has the set.
    unsafe fn add_products(sum: <Self::V as Vectors>::F, a: Self::X, b: Self::X) -> <Self::V as Vectors>::F;
    /// The products of `M` rows and `N` vectors of columns: of each step there are `M` packed words at `rows`, and those of the
    /// vectors at `columns`, from where it is `width` words to the next step's.
    ///
    /// # Safety
    /// The machine has the set. There are so many words.
    #[inline(always)]
    unsafe fn product<const M: usize, const N: usize>(
        rows: *const u32,
        columns: *const u32,
        width: usize,
        steps: usize,
    ) -> [[<Self::V as Vectors>::F; N]; M] {
        let lanes = Self::V::LANES;
        // SAFETY: the caller guarantees the set, and all words of each step.
        unsafe {
            let mut sums = [[Self::V::splat(0.0); N]; M];
            for step in 0..steps {
                let (rows, columns) = (rows.add(step * M), columns.add(step * width));
                let mut side = [Self::load_words(columns); N];
                for v in 1..N {
                    side[v] = Self::load_words(columns.add(v * lanes));
                }
                for i in 0..M {
                    let factor = Self::splat_word(*rows.add(i));
                    for v in 0..N {
                        sums[i][v] = Self::add_products(sums[i][v], factor, side[v]);
                    }
                }
            }
            sums
        }
    }
}

// SAFETY: each operation is that of the vectors.
unsafe impl<V: Vectors> Factors for V {
    type V = V;
    type X = V::F;
    const DEPTH: usize = 1;

    #[inline(always)]
    unsafe fn read(a: *const f32, _: *const f32) -> V::F {
        // SAFETY: the caller guarantees the set, and a vector of floats.
        unsafe { V::load(a) }
    }
    #[inline(always)]
    unsafe fn read_first(a: *const f32, _: *const f32, n: [usize; 2]) -> V::F {
        // SAFETY: the caller guarantees the set, and so many floats.
        unsafe { V::load_first(a, n[0]) }
    }
    #[inline(always)]
    unsafe fn read_line(from: *const f32) -> V::F {
        // SAFETY: the caller guarantees the set, and a vector of floats.
        unsafe { V::load(from) }
    }
    #[inline(always)]
    unsafe fn read_line_first(from: *const f32, n: usize) -> V::F {
        // SAFETY: the caller guarantees the set, and so many floats.
        unsafe { V::load_first(from, n) }
    }
    #[inline(always)]
    unsafe fn splat_word(packed: u32) -> V::F {
        // SAFETY: the caller guarantees the set.
        unsafe { V::splat(f32::from_bits(packed)) }
    }
    #[inline(always)]
    unsafe fn load_words(from: *const u32) -> V::F {
        // SAFETY: the caller guarantees the set, and a word for each lane.
        unsafe { V::load(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store_words(to: *mut u32, x: V::F) {
        // SAFETY: the caller guarantees the set, and room for a word of each lane.
        unsafe { V::store(to.cast(), x) }
    }
    #[inline(always)]
    unsafe fn add_products(sum: V::F, a: V::F, b: V::F) -> V::F {
        // SAFETY: the caller guarantees the set.
        unsafe { V::mul_add(sum, a, b) }
    }
}

/// Two bfloat16 numbers a lane.
pub(super) struct Bf16<V>(PhantomData<V>);

/// AVX-512 BF16: VCVTNE2PS2BF16 and VDPBF16PS, which take numbers below the least normal one for 0.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Bf16, Factors};
    use crate::isa::avx512vnni::{Avx512, first};
    use std::arch::x86_64::*;

    /// The words of two vectors side by side, lane by lane.
    const LANE_BY_LANE: [u16; 32] = {
        let mut order = [0; 32];
        let mut lane = 0;
        while lane < 16 {
            order[2 * lane] = lane as u16;
            order[2 * lane + 1] = lane as u16 + 16;
            lane += 1;
        }
        order
    };

    /// The numbers of two vectors, lane by lane.
    ///
    /// # Safety
    /// The machine has AVX-512 BF16 and BW.
    #[inline(always)]
    unsafe fn pairs(a: __m512, b: __m512) -> __m512bh {
        // SAFETY: the caller guarantees the set. Both types are 512 bits, of which all patterns are values.
        unsafe {
            let halves: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(b, a));
            let order = _mm512_loadu_si512(LANE_BY_LANE.as_ptr().cast());
            std::mem::transmute(_mm512_permutexvar_epi16(order, halves))
        }
    }

    // SAFETY: both factors of a lane are beside each other, and VDPBF16PS adds their products.
    unsafe impl Factors for Bf16<Avx512> {
        type V = Avx512;
        type X = __m512bh;
        const DEPTH: usize = 2;

        #[inline(always)]
        unsafe fn read(a: *const f32, b: *const f32) -> __m512bh {
            // SAFETY: the caller guarantees the set, and 16 floats at both.
            unsafe { pairs(_mm512_loadu_ps(a), _mm512_loadu_ps(b)) }
        }
        #[inline(always)]
        unsafe fn read_first(a: *const f32, b: *const f32, n: [usize; 2]) -> __m512bh {
            // SAFETY: the caller guarantees the set, and so many floats; masks leave out the others.
            unsafe { pairs(_mm512_maskz_loadu_ps(first(n[0]), a), _mm512_maskz_loadu_ps(first(n[1]), b)) }
        }
        #[inline(always)]
        unsafe fn read_line(from: *const f32) -> __m512bh {
            // SAFETY: the caller guarantees the set, and 32 floats.
            unsafe { _mm512_cvtne2ps_pbh(_mm512_loadu_ps(from.add(16)), _mm512_loadu_ps(from)) }
        }
        #[inline(always)]
        unsafe fn read_line_first(from: *const f32, n: usize) -> __m512bh {
            // SAFETY: the caller guarantees the set, and so many floats; masks leave out the others.
            unsafe {
                let second = _mm512_maskz_loadu_ps(first(n.saturating_sub(16)), from.wrapping_add(16));
                _mm512_cvtne2ps_pbh(second, _mm512_maskz_loadu_ps(first(n), from))
            }
        }
        #[inline(always)]
        unsafe fn splat_word(packed: u32) -> __m512bh {
            // SAFETY: the caller guarantees the set. Both types are 512 bits, of which all patterns are values.
            unsafe { std::mem::transmute(_mm512_set1_epi32(packed as i32)) }
        }
        #[inline(always)]
        unsafe fn load_words(from: *const u32) -> __m512bh {
            // SAFETY: the caller guarantees the set, and 16 words. All patterns are values.
            unsafe { std::mem::transmute(_mm512_loadu_si512(from.cast())) }
        }
        #[inline(always)]
        unsafe fn store_words(to: *mut u32, x: __m512bh) {
            // SAFETY: the caller guarantees the set, and room for 16 words. All patterns are values.
            unsafe { _mm512_storeu_si512(to.cast(), std::mem::transmute::<__m512bh, __m512i>(x)) }
        }
        #[inline(always)]
        unsafe fn add_products(sum: __m512, a: __m512bh, b: __m512bh) -> __m512 {
            // SAFETY: the caller guarantees the set.
            unsafe { _mm512_dpbf16_ps(sum, a, b) }
        }
    }
}

/// BF16 of ARM: BFCVTN, BFDOT and BFMMLA, whose sums are rounded to the odd one of two. Rust has no intrinsics for these yet.
#[cfg(target_arch = "aarch64")]
mod arm {
    use super::{Bf16, Factors};
    use crate::isa::neon::Neon;
    use crate::tile::Vectors;
    use std::arch::{aarch64::*, asm};

    /// The nearest numbers, in the lower half.
    ///
    /// # Safety
    /// The machine has BF16.
    #[inline(always)]
    unsafe fn lower(x: float32x4_t) -> uint16x8_t {
        let near: uint16x8_t;
        // SAFETY: the caller guarantees BFCVTN, which reads and writes these registers alone.
        unsafe {
            asm!(".arch_extension bf16", "bfcvtn {near:v}.4h, {x:v}.4s", near = out(vreg) near, x = in(vreg) x,
                options(pure, nomem, nostack, preserves_flags));
        }
        near
    }

    /// The numbers of two vectors, one after the other.
    ///
    /// # Safety
    /// The machine has BF16.
    #[inline(always)]
    unsafe fn line(a: float32x4_t, b: float32x4_t) -> uint16x8_t {
        // SAFETY: the caller guarantees BF16, and what is below.
        let mut near = unsafe { lower(a) };
        // SAFETY: the caller guarantees BFCVTN2, which reads and writes these registers alone.
        unsafe {
            asm!(".arch_extension bf16", "bfcvtn2 {near:v}.8h, {b:v}.4s", near = inout(vreg) near, b = in(vreg) b,
                options(pure, nomem, nostack, preserves_flags));
        }
        near
    }

    /// The numbers of two vectors, lane by lane.
    ///
    /// # Safety
    /// The machine has BF16.
    #[inline(always)]
    unsafe fn pairs(a: float32x4_t, b: float32x4_t) -> uint16x8_t {
        // SAFETY: the caller guarantees BF16.
        unsafe { vzip1q_u16(lower(a), lower(b)) }
    }

    /// Both words of each line, of four lines in pairs: those of a step, and of the next one if it is there, or else 0.
    ///
    /// # Safety
    /// The machine has NEON. There are four words of each of these steps, `apart` from each other.
    #[inline(always)]
    unsafe fn squares(words: *const u32, apart: usize, has_next: bool) -> [uint16x8_t; 2] {
        // SAFETY: the caller guarantees NEON, and the words that are read.
        unsafe {
            let first = vld1q_u32(words);
            let next = if has_next { vld1q_u32(words.add(apart)) } else { vdupq_n_u32(0) };
            [vreinterpretq_u16_u32(vzip1q_u32(first, next)), vreinterpretq_u16_u32(vzip2q_u32(first, next))]
        }
    }

    /// Adds the products of two lines of four numbers by two others.
    ///
    /// # Safety
    /// The machine has BF16.
    #[inline(always)]
    unsafe fn bfmmla(mut sums: float32x4_t, a: uint16x8_t, b: uint16x8_t) -> float32x4_t {
        // SAFETY: the caller guarantees BFMMLA, which reads and writes these registers alone.
        unsafe {
            asm!(".arch_extension bf16", "bfmmla {sums:v}.4s, {a:v}.8h, {b:v}.8h", sums = inout(vreg) sums, a = in(vreg) a, b = in(vreg) b,
                options(pure, nomem, nostack, preserves_flags));
        }
        sums
    }

    // SAFETY: both factors of a lane are beside each other, and BFDOT adds their products.
    unsafe impl Factors for Bf16<Neon> {
        type V = Neon;
        type X = uint16x8_t;
        const DEPTH: usize = 2;

        #[inline(always)]
        unsafe fn read(a: *const f32, b: *const f32) -> uint16x8_t {
            // SAFETY: the caller guarantees the set, and four floats at both.
            unsafe { pairs(vld1q_f32(a), vld1q_f32(b)) }
        }
        #[inline(always)]
        unsafe fn read_first(a: *const f32, b: *const f32, n: [usize; 2]) -> uint16x8_t {
            // SAFETY: the caller guarantees the set, and so many floats.
            unsafe { pairs(Neon::load_first(a, n[0]), Neon::load_first(b, n[1])) }
        }
        #[inline(always)]
        unsafe fn read_line(from: *const f32) -> uint16x8_t {
            // SAFETY: the caller guarantees the set, and eight floats.
            unsafe { line(vld1q_f32(from), vld1q_f32(from.add(4))) }
        }
        #[inline(always)]
        unsafe fn read_line_first(from: *const f32, n: usize) -> uint16x8_t {
            // SAFETY: the caller guarantees the set, and so many floats: none is read of a second vector that isn't there.
            unsafe {
                let second = Neon::load_first(from.wrapping_add(4), n.saturating_sub(4));
                line(Neon::load_first(from, n.min(4)), second)
            }
        }
        #[inline(always)]
        unsafe fn splat_word(packed: u32) -> uint16x8_t {
            // SAFETY: the caller guarantees the set.
            unsafe { vreinterpretq_u16_u32(vdupq_n_u32(packed)) }
        }
        #[inline(always)]
        unsafe fn load_words(from: *const u32) -> uint16x8_t {
            // SAFETY: the caller guarantees the set, and four words.
            unsafe { vreinterpretq_u16_u32(vld1q_u32(from)) }
        }
        #[inline(always)]
        unsafe fn store_words(to: *mut u32, x: uint16x8_t) {
            // SAFETY: the caller guarantees the set, and room for four words.
            unsafe { vst1q_u32(to, vreinterpretq_u32_u16(x)) }
        }
        #[inline(always)]
        unsafe fn add_products(mut sum: float32x4_t, a: uint16x8_t, b: uint16x8_t) -> float32x4_t {
            // SAFETY: the caller guarantees BFDOT, which reads and writes these registers alone.
            unsafe {
                asm!(".arch_extension bf16", "bfdot {sum:v}.4s, {a:v}.8h, {b:v}.8h", sum = inout(vreg) sum, a = in(vreg) a, b = in(vreg) b,
                    options(pure, nomem, nostack, preserves_flags));
            }
            sum
        }
        /// By BFMMLA: two rows by two columns of four numbers, those of two steps.
        #[inline(always)]
        unsafe fn product<const M: usize, const N: usize>(
            rows: *const u32,
            columns: *const u32,
            width: usize,
            steps: usize,
        ) -> [[float32x4_t; N]; M] {
            const { assert!(M.is_multiple_of(4)) }
            // SAFETY: the caller guarantees the set, and all words of each step.
            unsafe {
                // Of each pair of rows, two pairs of columns of each vector: half of these are unused, as arrays can't have half as
                // many rows as `M`.
                let mut sums = [[[vdupq_n_f32(0.0); 2]; N]; M];
                for step in (0..steps).step_by(2) {
                    let has_next = step + 1 < steps;
                    let (rows, columns) = (rows.add(step * M), columns.add(step * width));
                    let mut pairs = [vdupq_n_u16(0); M];
                    for four in 0..M / 4 {
                        [pairs[2 * four], pairs[2 * four + 1]] = squares(rows.add(4 * four), M, has_next);
                    }
                    for v in 0..N {
                        let columns = squares(columns.add(4 * v), width, has_next);
                        for pair in 0..M / 2 {
                            for half in 0..2 {
                                sums[pair][v][half] = bfmmla(sums[pair][v][half], pairs[pair], columns[half]);
                            }
                        }
                    }
                }
                let mut by_rows = [[vdupq_n_f32(0.0); N]; M];
                for pair in 0..M / 2 {
                    for v in 0..N {
                        let [a, b] = sums[pair][v].map(|sums| vreinterpretq_f64_f32(sums));
                        by_rows[2 * pair][v] = vreinterpretq_f32_f64(vzip1q_f64(a, b));
                        by_rows[2 * pair + 1][v] = vreinterpretq_f32_f64(vzip2q_f64(a, b));
                    }
                }
                by_rows
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_to_the_nearest() {
        let upper = |x: f32| f32::from_bits(upper_half(x));
        // From 1 to 2 numbers are so far apart.
        const STEP: f32 = 1.0 / 128.0;
        let at = |steps: f32| 1.0 + steps * STEP;
        for (steps, near) in
            [(0.0, 0.0), (0.5, 0.0), (0.501, 1.0), (1.499, 1.0), (1.5, 2.0), (2.5, 2.0), (127.6, 128.0)]
        {
            assert_eq!(upper(at(steps)), at(near), "{steps}");
            assert_eq!(upper(-at(steps)), -at(near), "{steps}");
        }
        assert_eq!(upper(f32::MAX), f32::INFINITY);
        assert!(upper(f32::from_bits(0x7f80_0001)).is_nan());
    }
}

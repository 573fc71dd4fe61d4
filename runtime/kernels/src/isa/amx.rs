//! Products of bytes by AMX: tiles of 16 rows by 64 bytes, of which one instruction multiplies two.
//!
//! Rust has no stable functions for it, so that its instructions are assembly here. What follows is from Intel's
//! Architecture Instruction Set Extensions and Software Developer's Manual, volume 1, chapter 18. Everything but the
//! products is of [`avx512vnni`](super::avx512vnni).

use super::avx512vnni::{self, Avx512};
use crate::{
    conv::POSITIONS,
    tile::{Operand, Tile8, Tiles, Tiles8, Vectors, finish8},
};
use std::{
    arch::{asm, x86_64::*},
    mem::{MaybeUninit, offset_of},
    ops::Range,
};

/// Rows of a tile.
const ROWS: usize = 16;

/// Bytes of a tile's row: of an operand's, for 64 products, or of 16 sums.
const ROW: usize = 64;

/// Rows that are multiplied at a time: two tiles of them.
const TALL: usize = 2 * ROWS;

/// Bytes of each row that are multiplied in one go: so many that the weights they meet stay in the first-level cache.
const DEPTH: usize = 9 * ROW;

/// Vectors of a panel.
const WIDEST: usize = 4;

/// Tiles of weights side by side that are multiplied in one go.
const WIDE: usize = 2;

/// Rows that are too few for tiles.
const FEW: usize = 6;

/// The tiles of this instruction set.
pub(crate) static TILES: Tiles = Tiles {
    lanes: Avx512::LANES,
    vectors: WIDEST,
    vectors_f: WIDEST,
    step: 4,
    together: None,
    offset: 0,
    tiles8: Tiles8::Bytes(tiles8),
    narrow: None,
    tiles_f: avx512vnni::tiles_f,
};

/// Whether the machine has it and the operating system lets this process use it.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
pub(super) fn is_found() -> bool {
    /// Linux's request for a part of the processor's state (arch_prctl(2)), and the number of that of tiles.
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const TILE_DATA: i64 = 18;
    /// CPUID, leaf 7: tiles, and their products of bytes.
    const AMX: u32 = 1 << 24 | 1 << 25;
    let has = __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & AMX == AMX;
    // SAFETY: the system call takes no pointer. It fails where the kernel doesn't know it, or not this part.
    has && unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) } == 0
}

/// Whether the machine has it and the operating system lets this process use it.
#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
pub(super) fn is_found() -> bool {
    false
}

/// What `ldtilecfg` reads: all eight tiles are of 16 rows of 64 bytes.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static CONFIG: Config = {
    let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
    let mut i = 0;
    while i < 8 {
        (row_bytes[i], rows[i]) = (ROW as u16, ROWS as u8);
        i += 1;
    }
    Config { palette: 1, start: 0, reserved: [0; 14], row_bytes, rows }
};

/// One step of a product: 64 bytes of each row of two tiles, and the weights that they meet.
#[repr(C)]
#[derive(Clone, Copy)]
struct Step {
    x: [*const u8; 2],
    w: *const i8,
}

/// Products to be added: of one or two tiles of rows, one below the other, by one or two of weights, side by side.
#[repr(C)]
struct Products {
    steps: *const Step,
    count: usize,
    /// Bytes from row to row, of each tile.
    x_stride: [usize; 2],
    /// Bytes from the weights of four products to those of the next.
    w_stride: usize,
    /// With what sums begin.
    start: *const i32,
    start_stride: usize,
    /// What becomes of them.
    sums: *mut i32,
    sums_stride: usize,
}

/// Defines a function that adds products to sums. `start` and `end` read and write the tiles of sums: `{sums}` and `{below}`
/// are the first rows of the upper and the lower ones, `{stride}` is the distance of rows. `step` has the rows of a step at
/// `{x}` and `{below}`, with their distances in `{stride}` and `{stride_below}`, and weights at `{w}`.
macro_rules! products {
    ($name:ident, start: [$($start:literal)+], step: [$($step:literal)+], end: [$($end:literal)+]) => {
        /// Adds products to sums.
        ///
        /// # Safety
        /// The machine has AMX, and tiles are as [`CONFIG`] says. At the pointers of `p` are the tiles that they name.
        #[inline(always)]
        unsafe fn $name(p: &Products) {
            // SAFETY: the caller guarantees tiles and pointers. Only what is listed below changes, and the sums.
            unsafe {
                asm!(
                    "mov {sums}, [{p} + {start}]",
                    "mov {stride}, [{p} + {start_stride}]",
                    "mov {below}, {stride}",
                    "shl {below}, 4",
                    "add {below}, {sums}",
                    $($start,)+
                    "mov {step}, [{p} + {steps}]",
                    "mov {count}, [{p} + {n}]",
                    "mov {stride}, [{p} + {x_stride}]",
                    "mov {stride_below}, [{p} + {x_stride} + {word}]",
                    "mov {w_stride}, [{p} + {w_of}]",
                    "2:",
                    "mov {x}, [{step}]",
                    "mov {below}, [{step} + {x_below}]",
                    "mov {w}, [{step} + {step_w}]",
                    $($step,)+
                    "add {step}, {step_size}",
                    "dec {count}",
                    "jnz 2b",
                    "mov {sums}, [{p} + {to}]",
                    "mov {stride}, [{p} + {sums_stride}]",
                    "mov {below}, {stride}",
                    "shl {below}, 4",
                    "add {below}, {sums}",
                    $($end,)+
                    p = in(reg) std::ptr::from_ref(p),
                    sums = out(reg) _, stride = out(reg) _, stride_below = out(reg) _, below = out(reg) _,
                    w_stride = out(reg) _, step = out(reg) _, count = out(reg) _, x = out(reg) _, w = out(reg) _,
                    start = const offset_of!(Products, start), start_stride = const offset_of!(Products, start_stride),
                    steps = const offset_of!(Products, steps), n = const offset_of!(Products, count),
                    x_stride = const offset_of!(Products, x_stride), w_of = const offset_of!(Products, w_stride),
                    x_below = const size_of::<usize>(), word = const size_of::<usize>(),
                    step_w = const offset_of!(Step, w), step_size = const size_of::<Step>(),
                    to = const offset_of!(Products, sums), sums_stride = const offset_of!(Products, sums_stride),
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
        }
    };
}

products!(
    two_by_two,
    start: [
        "tileloadd tmm0, [{sums} + {stride}]"
        "tileloadd tmm1, [{sums} + {stride} + 64]"
        "tileloadd tmm2, [{below} + {stride}]"
        "tileloadd tmm3, [{below} + {stride} + 64]"
    ],
    step: [
        "tileloadd tmm4, [{x} + {stride}]"
        "tileloadd tmm6, [{w} + {w_stride}]"
        "tileloadd tmm7, [{w} + {w_stride} + 64]"
        "tileloadd tmm5, [{below} + {stride_below}]"
        "tdpbusd tmm0, tmm4, tmm6"
        "tdpbusd tmm1, tmm4, tmm7"
        "tdpbusd tmm2, tmm5, tmm6"
        "tdpbusd tmm3, tmm5, tmm7"
    ],
    end: [
        "tilestored [{sums} + {stride}], tmm0"
        "tilestored [{sums} + {stride} + 64], tmm1"
        "tilestored [{below} + {stride}], tmm2"
        "tilestored [{below} + {stride} + 64], tmm3"
    ]
);
products!(
    two_by_one,
    start: ["tileloadd tmm0, [{sums} + {stride}]" "tileloadd tmm2, [{below} + {stride}]"],
    step: [
        "tileloadd tmm4, [{x} + {stride}]"
        "tileloadd tmm6, [{w} + {w_stride}]"
        "tileloadd tmm5, [{below} + {stride_below}]"
        "tdpbusd tmm0, tmm4, tmm6"
        "tdpbusd tmm2, tmm5, tmm6"
    ],
    end: ["tilestored [{sums} + {stride}], tmm0" "tilestored [{below} + {stride}], tmm2"]
);
products!(
    one_by_two,
    start: ["tileloadd tmm0, [{sums} + {stride}]" "tileloadd tmm1, [{sums} + {stride} + 64]"],
    step: [
        "tileloadd tmm4, [{x} + {stride}]"
        "tileloadd tmm6, [{w} + {w_stride}]"
        "tileloadd tmm7, [{w} + {w_stride} + 64]"
        "tdpbusd tmm0, tmm4, tmm6"
        "tdpbusd tmm1, tmm4, tmm7"
    ],
    end: ["tilestored [{sums} + {stride}], tmm0" "tilestored [{sums} + {stride} + 64], tmm1"]
);
products!(
    one_by_one,
    start: ["tileloadd tmm0, [{sums} + {stride}]"],
    step: [
        "tileloadd tmm4, [{x} + {stride}]"
        "tileloadd tmm6, [{w} + {w_stride}]"
        "tdpbusd tmm0, tmm4, tmm6"
    ],
    end: ["tilestored [{sums} + {stride}], tmm0"]
);

/// Sums, and copies of rows: of those that are multiplied and of those that are next.
#[repr(C, align(64))]
struct Scratch {
    sums: [i32; POSITIONS * WIDEST * Avx512::LANES],
    rows: [[u8; TALL * DEPTH]; 2],
}

/// Runs tiles on all rows, for a panel of so many vectors.
///
/// # Safety
/// As for `tiles8` of other sets. Behind a panel's weights [`OVERREAD`](crate::tile::OVERREAD) more can be read.
unsafe fn tiles8(t: &Tile8<u8, i8>, vectors: usize) {
    // SAFETY: the caller guarantees the instruction set and the operands.
    unsafe {
        if !pays(&t.x, vectors) {
            return avx512vnni::tiles8(t, vectors);
        }
        match vectors {
            1 => panel::<1>(t),
            2 => panel::<2>(t),
            3 => panel::<3>(t),
            4 => panel::<4>(t),
            _ => unreachable!("a panel of {vectors} vectors"),
        }
    }
}

/// Whether tiles are faster than vectors, by the cycles that a row takes: as measured on a Xeon of the fourth generation.
fn pays(x: &Operand<u8>, vectors: usize) -> bool {
    let (segment, depth) = (x.steps * 4, x.segments * x.steps * 4);
    let by_vectors = x.segments * x.steps * vectors / 2;
    let copies = if segment.is_multiple_of(ROW) { 0 } else { x.segments * segment.div_ceil(ROW) * 6 };
    let by_tiles = (depth.div_ceil(ROW) + 2) * vectors + copies;
    x.rows > FEW && by_tiles < by_vectors
}

/// Runs tiles on all rows, for a panel of `N` vectors.
///
/// # Safety
/// As for [`tiles8`].
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn panel<const N: usize>(t: &Tile8<u8, i8>) {
    assert!(t.x.rows <= POSITIONS, "a block of {} rows", t.x.rows);
    let mut scratch = MaybeUninit::<Scratch>::uninit();
    let scratch = scratch.as_mut_ptr();
    // SAFETY: the caller guarantees AMX. Between `ldtilecfg` and `tilerelease` only this file's assembly uses tiles: the compiler
    // makes no code that does. Each run is of the operand, and follows the runs on which its sums depend.
    unsafe {
        asm!("ldtilecfg [{}]", in(reg) &raw const CONFIG, options(nostack, readonly, preserves_flags));
        let depth = t.x.segments * t.x.steps * 4;
        for from in (0..depth).step_by(DEPTH) {
            let run = Run { t, from, bytes: (depth - from).min(DEPTH), is_last: from + DEPTH >= depth };
            // Rows that have to be copied are copied once for all columns.
            let wide = if run.in_place() { WIDE } else { N };
            for column in (0..N).step_by(wide) {
                run.multiply::<N>(column..(column + wide).min(N), scratch);
            }
        }
        asm!("tilerelease", options(nostack, nomem, preserves_flags));
    }
}

/// Some of the products of all rows.
struct Run<'a> {
    t: &'a Tile8<u8, i8>,
    /// Bytes of each row, of all segments, before these.
    from: usize,
    /// Bytes of each row, up to [`DEPTH`].
    bytes: usize,
    is_last: bool,
}

/// Rows of a tile, or fewer.
#[derive(Clone, Copy)]
struct Tile {
    first: *const u8,
    stride: usize,
    in_place: bool,
}

impl Run<'_> {
    /// Whether tiles may read rows where they are: no step has bytes of two segments.
    fn in_place(&self) -> bool {
        (self.t.x.steps * 4).is_multiple_of(ROW)
    }

    /// The pieces of a row that lie side by side, up to [`ROW`] bytes of each: how many bytes come before it, where it is
    /// from the row's offset on, and how many bytes it has.
    fn pieces(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let segment = self.t.x.steps * 4;
        let mut done = 0;
        std::iter::from_fn(move || {
            let at = self.from + done;
            let len = (self.bytes - done).min(segment - at % segment).min(ROW);
            done += len;
            (len > 0).then(|| (done - len, at / segment * self.t.x.segment + at % segment, len))
        })
    }

    /// Computes the sums of some of the panel's vectors, and what becomes of them if they are whole.
    ///
    /// # Safety
    /// As for [`tiles8`]. Tiles are as [`CONFIG`] says, and `scratch` has the sums of the runs before.
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn multiply<const N: usize>(&self, columns: Range<usize>, scratch: *mut Scratch) {
        let rows = self.t.x.rows;
        // SAFETY: the caller guarantees the operands, tiles and scratch memory, which is for two strips.
        unsafe {
            let copies = (&raw mut (*scratch).rows).cast::<u8>();
            let sums = (&raw mut (*scratch).sums).cast::<i32>();
            let mut next = self.strip(0, copies);
            for (i, first) in (0..rows).step_by(TALL).enumerate() {
                let strip = next;
                // A strip ahead: a tile waits if it reads bytes that are on their way to the cache.
                if first + TALL < rows {
                    next = self.strip(first + TALL, copies.add((i + 1) % 2 * TALL * DEPTH));
                }
                let here = (rows - first).min(TALL);
                let sums = sums.add(first * N * Avx512::LANES);
                for column in columns.clone().step_by(WIDE) {
                    let wide = (columns.end - column).min(WIDE);
                    self.tiles::<N>(&strip, here.div_ceil(ROWS), column, wide, sums);
                }
                if self.is_last {
                    match columns.len() {
                        n if n == N => finish::<N, N>(self.t, first, here, columns.start, sums),
                        1 => finish::<N, 1>(self.t, first, here, columns.start, sums),
                        _ => finish::<N, WIDE>(self.t, first, here, columns.start, sums),
                    }
                }
            }
        }
    }

    /// Two tiles of rows from row `first` on, or those that are left: copied to `copies` where tiles can't read them.
    ///
    /// # Safety
    /// As for [`tiles8`]. There is such a row, and room for the copies of a strip.
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    unsafe fn strip(&self, first: usize, copies: *mut u8) -> [Tile; 2] {
        let x = &self.t.x;
        std::array::from_fn(|i| {
            let stride = self.bytes.next_multiple_of(ROW);
            let to = copies.wrapping_add(i * ROWS * stride);
            let first = first + i * ROWS;
            let rows = x.rows.saturating_sub(first).min(ROWS);
            if rows == 0 {
                return Tile { first: to, stride, in_place: false };
            }
            // SAFETY: the operand has offsets for all its rows.
            let offsets = unsafe { std::slice::from_raw_parts(x.offsets.add(first), rows) };
            if let Some(stride) = even(offsets).filter(|_| rows == ROWS && self.in_place()) {
                return Tile { first: x.base.wrapping_add(offsets[0]), stride, in_place: true };
            }
            for (done, from, len) in self.pieces() {
                // SAFETY: the operand has these bytes of these rows, and the caller has room for them.
                unsafe { copy(x.base.wrapping_add(from), offsets, len, to, done, stride) }
            }
            Tile { first: to, stride, in_place: false }
        })
    }

    /// Adds the products of a strip of `tall` tiles by `wide` vectors from `column` on to its sums.
    ///
    /// # Safety
    /// As for [`Run::multiply`].
    #[inline(always)]
    unsafe fn tiles<const N: usize>(&self, strip: &[Tile; 2], tall: usize, column: usize, wide: usize, sums: *mut i32) {
        let mut steps = [Step { x: [std::ptr::null(); 2], w: std::ptr::null() }; DEPTH / ROW];
        let count = self.bytes.div_ceil(ROW);
        let mut weights = self.t.weights.wrapping_add(self.from / 4 * N * ROW + column * ROW);
        let mut pieces = self.pieces();
        for (i, step) in steps[..count].iter_mut().enumerate() {
            let from = pieces.next().map_or(0, |(_, from, _)| from);
            step.x = strip.map(|tile| tile.first.wrapping_add(if tile.in_place { from } else { i * ROW }));
            step.w = weights;
            weights = weights.wrapping_add(ROWS * N * ROW);
        }
        let lane = column * Avx512::LANES;
        // SAFETY: the caller guarantees the rows, and sums and biases for `N` vectors.
        unsafe {
            let sums = sums.add(lane);
            let (start, start_stride) =
                if self.from == 0 { (self.t.bias.add(lane), 0) } else { (sums.cast_const(), N * ROW) };
            let p = Products {
                steps: steps.as_ptr(),
                count,
                x_stride: strip.map(|tile| tile.stride),
                w_stride: N * ROW,
                start,
                start_stride,
                sums,
                sums_stride: N * ROW,
            };
            match (tall, wide) {
                (1, 1) => one_by_one(&p),
                (1, _) => one_by_two(&p),
                (_, 1) => two_by_one(&p),
                _ => two_by_two(&p),
            }
        }
    }
}

/// The distance between rows, if it is the same between all.
fn even(offsets: &[usize]) -> Option<usize> {
    let stride = offsets.get(1)?.checked_sub(offsets[0])?;
    offsets.windows(2).all(|two| two[1].wrapping_sub(two[0]) == stride).then_some(stride)
}

/// Copies `n` bytes of each row, from 1 to [`ROW`], to behind the first `done` bytes of rows that are `stride` apart.
/// Zeros follow up to the next multiple of [`ROW`].
///
/// # Safety
/// The machine has AVX-512 BW. From `x` and each of `offsets` there are `n` bytes, and at `to` there is room.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
unsafe fn copy(x: *const u8, offsets: &[usize], n: usize, to: *mut u8, done: usize, stride: usize) {
    let at = done % ROW;
    let over = (at + n).saturating_sub(ROW);
    let (read, write) = (u64::MAX >> (ROW - n), u64::MAX >> at);
    for (row, &offset) in offsets.iter().enumerate() {
        // SAFETY: the caller guarantees the bytes and room for them. What is masked is neither read nor written. A store
        // ends with the 64 bytes in which it begins; the second one writes the next 64, if the first was too short.
        unsafe {
            let (from, to) = (x.add(offset), to.add(row * stride + done));
            _mm512_mask_storeu_epi8(to.cast(), write, _mm512_maskz_loadu_epi8(read, from.cast()));
            if over > 0 {
                let rest = _mm512_maskz_loadu_epi8(u64::MAX >> (ROW - over), from.add(n - over).cast());
                _mm512_storeu_si512(to.add(n - over).cast(), rest);
            }
        }
    }
}

/// Writes what becomes of the sums of `rows` rows from `first` on, of `M` of a panel's `N` vectors from `column` on.
///
/// # Safety
/// As for [`tiles8`]. `sums` are those of these rows, and of whole tiles.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn finish<const N: usize, const M: usize>(
    t: &Tile8<u8, i8>,
    first: usize,
    rows: usize,
    column: usize,
    sums: *const i32,
) {
    let lane = column * Avx512::LANES;
    // SAFETY: the caller guarantees the operands and sums. Rows of tiles are a multiple of four.
    unsafe {
        let out = t.out.columns_from(lane);
        let columns = (t.columns - lane).min(M * Avx512::LANES);
        let scale = std::array::from_fn(|v| Avx512::load(t.scale.add(lane + v * Avx512::LANES)));
        for row in (0..rows).step_by(4) {
            let mut of_rows = [[Avx512::load_i32(sums); M]; 4];
            for (i, of_row) in of_rows.iter_mut().enumerate() {
                for (v, sum) in of_row.iter_mut().enumerate() {
                    *sum = Avx512::load_i32(sums.add(((row + i) * N + column + v) * Avx512::LANES));
                }
            }
            finish8::<Avx512, 4, M>(&out, columns, of_rows, scale, first + row, (rows - row).min(4));
        }
    }
}

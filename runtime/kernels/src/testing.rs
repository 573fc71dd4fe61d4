//! What the tests of kernels share: memory that ends where a page begins that must not be touched,
//! numbers that look random, and windows.

use crate::{Isa, Rows, RowsMut, Team, Window};
use proptest::{prelude::*, test_runner::RngSeed};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use std::ops::{Deref, DerefMut};

/// A copy of a slice, directly behind which reading or writing kills the process. As long as there
/// is one, helpers are awake: parts of a kernel run at the same time.
pub struct Guarded<T: Copy> {
    base: *mut core::ffi::c_void,
    bytes: usize,
    first: *mut T,
    len: usize,
    _team: Team,
}

impl<T: Copy> Guarded<T> {
    /// Copies `data`.
    pub fn new(data: &[T]) -> Self {
        let page = rustix::param::page_size();
        let used = size_of_val(data).next_multiple_of(page);
        let bytes = used + page;
        // SAFETY: a fresh private mapping; the last page is made untouchable, and the data is
        // written so that it ends directly before it, which keeps its alignment as a page is a
        // multiple of it.
        unsafe {
            let base =
                mmap_anonymous(core::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
                    .expect("a mapping");
            mprotect(base.byte_add(used), page, MprotectFlags::empty()).expect("a page is protected");
            let first: *mut T = base.byte_add(used - size_of_val(data)).cast();
            core::ptr::copy_nonoverlapping(data.as_ptr(), first, data.len());
            Self { base, bytes, first, len: data.len(), _team: Team::assemble(3) }
        }
    }
}

impl<T: Copy> Deref for Guarded<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `new` wrote these elements, and the mapping lives as long as this.
        unsafe { core::slice::from_raw_parts(self.first, self.len) }
    }
}

impl<T: Copy> DerefMut for Guarded<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: `new` wrote these elements, and the mapping lives as long as this. It is borrowed mutably.
        unsafe { core::slice::from_raw_parts_mut(self.first, self.len) }
    }
}

impl<T: Copy> Drop for Guarded<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, which nobody can borrow any more.
        let _ = unsafe { munmap(self.base, self.bytes) };
    }
}

/// Rows of guarded memory, with gaps between them.
pub struct Grid<T: Copy> {
    data: Guarded<T>,
    rows: usize,
    width: usize,
    stride: usize,
    filler: T,
}

impl<T: Copy + PartialEq + std::fmt::Debug> Grid<T> {
    /// Elements as `one` gives them, row by row, and `filler` in gaps.
    pub fn new(rows: usize, width: usize, gap: usize, filler: T, mut one: impl FnMut() -> T) -> Self {
        let stride = width + gap;
        let mut data = vec![filler; (rows * stride).saturating_sub(gap)];
        for row in data.chunks_mut(stride) {
            row[..width].fill_with(&mut one);
        }
        Self { data: Guarded::new(&data), rows, width, stride, filler }
    }

    /// To be read.
    pub fn rows(&self) -> Rows<'_, T> {
        Rows::new(&self.data, self.rows, self.width, self.stride)
    }

    /// To be written.
    pub fn rows_mut(&mut self) -> RowsMut<'_, T> {
        RowsMut::new(&mut self.data, self.rows, self.width, self.stride)
    }

    /// An element.
    pub fn at(&self, row: usize, column: usize) -> T {
        self.data[row * self.stride + column]
    }

    /// The elements of all rows, after a look at whether the gaps are as they were.
    pub fn values(&self) -> Vec<T> {
        let mut values = vec![];
        for row in self.data.chunks(self.stride) {
            let (row, gap) = row.split_at(self.width);
            values.extend_from_slice(row);
            assert!(gap.iter().all(|v| *v == self.filler), "a gap between rows was written");
        }
        values
    }
}

/// Numbers that look random, and are the same in every run.
#[derive(Debug, Clone)]
pub struct Noise(pub u64);

impl Noise {
    /// 31 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }

    /// A byte, often one of the extremes, where sums would saturate.
    pub fn byte(&mut self) -> u8 {
        match self.bits() % 8 {
            0 => 255,
            1 => 0,
            _ => (self.bits() >> 8) as u8,
        }
    }

    /// A float from -1 to 1.
    pub fn float(&mut self) -> f32 {
        self.bits() as f32 / (1u64 << 30) as f32 - 1.0
    }

    /// An integer below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() >> 4) as usize % n
    }
}

/// The instruction sets of this machine.
pub fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_available())
}

/// So many cases, the same in every run.
pub fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default() }
}

/// Small windows of all kinds: some have positions that cover no pixel at all.
pub fn windows() -> impl Strategy<Value = Window> {
    let axis = || (1usize..9, 1usize..5, 1usize..4, 1usize..4, 0usize..6, 0usize..6);
    (1usize..4, axis(), axis()).prop_map(|(batch, rows, columns)| {
        let axes = [rows, columns].map(|(mut input, kernel, stride, dilation, before, after)| {
            let reach = (kernel - 1) * dilation + 1;
            input = input.max(reach.saturating_sub(before + after));
            let output = (input + before + after - reach) / stride + 1;
            (input, output, kernel, stride, dilation, before)
        });
        Window {
            batch,
            input: axes.map(|a| a.0),
            output: axes.map(|a| a.1),
            kernel: axes.map(|a| a.2),
            stride: axes.map(|a| a.3),
            dilation: axes.map(|a| a.4),
            pad: axes.map(|a| a.5),
        }
    })
}

/// Calls `body` for each position of a window with its row, and the row of `x` of each tap that is
/// inside of the image: what a window means, written in the plainest way.
pub fn naive_window(w: &Window, mut body: impl FnMut(usize, [usize; 2], Vec<(usize, usize)>)) {
    for position in 0..w.positions() {
        let column = position % w.output[1];
        let row = position / w.output[1] % w.output[0];
        let image = position / w.output[1] / w.output[0];
        let mut inside = vec![];
        for i in 0..w.kernel[0] {
            for j in 0..w.kernel[1] {
                let y = (row * w.stride[0] + i * w.dilation[0]) as isize - w.pad[0] as isize;
                let x = (column * w.stride[1] + j * w.dilation[1]) as isize - w.pad[1] as isize;
                if (0..w.input[0] as isize).contains(&y) && (0..w.input[1] as isize).contains(&x) {
                    let pixel = (image * w.input[0] + y as usize) * w.input[1] + x as usize;
                    inside.push((i * w.kernel[1] + j, pixel));
                }
            }
        }
        body(position, [row, column], inside);
    }
}

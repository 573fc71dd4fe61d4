//! The vectors of bytes by which depthwise convolutions run.

/// The vector operations of an instruction set. They are inlined into functions of that set; closures would not be.
///
/// # Safety
/// Each does what it says with [`Bytes::CHANNELS`] bytes, or the 32-bit lanes of a quarter of them.
pub(super) unsafe trait Bytes {
    /// Bytes of a vector.
    const CHANNELS: usize;
    /// Bytes, or 32-bit integers.
    type I: Copy;
    /// Floats.
    type F: Copy;
    /// Weights of four taps for each lane.
    type W: Copy;

    /// Reads weights.
    ///
    /// # Safety
    /// The machine has the instruction set. There are as many bytes as a vector has.
    unsafe fn weights(from: *const i8) -> Self::W;
    /// Reads 32-bit integers.
    ///
    /// # Safety
    /// The same.
    unsafe fn sums(from: *const i32) -> Self::I;
    /// Reads floats.
    ///
    /// # Safety
    /// The same.
    unsafe fn scales(from: *const f32) -> Self::F;
    /// Reads bytes.
    ///
    /// # Safety
    /// The same.
    unsafe fn load(from: *const u8) -> Self::I;
    /// Reads the first `n` bytes; the others are 0.
    ///
    /// # Safety
    /// The machine has the instruction set. There are `n` bytes, fewer than a vector has.
    unsafe fn load_first(from: *const u8, n: usize) -> Self::I;
    /// Puts the bytes of four taps beside each other, in four vectors.
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn interleave(taps: [Self::I; 4]) -> [Self::I; 4];
    /// Adds the four products of each lane.
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn dot(sums: Self::I, x: Self::I, w: Self::W) -> Self::I;
    /// `max(min(round_half_even(sum * scale), upper) + zero, min)`, in bytes. What is too small becomes the least integer, and
    /// saturates when it is packed; NaN (0 by an infinite scale) becomes that, too.
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn narrow(sums: [Self::I; 4], scale: [Self::F; 4], upper: f32, zero: i16, min: u8) -> Self::I;
    /// Writes bytes.
    ///
    /// # Safety
    /// The machine has the instruction set. There is room for as many as a vector has.
    unsafe fn store(to: *mut u8, x: Self::I);
    /// Writes the first `n` bytes.
    ///
    /// # Safety
    /// The machine has the instruction set. There is room for `n` bytes, fewer than a vector has.
    unsafe fn store_first(to: *mut u8, x: Self::I, n: usize);
}

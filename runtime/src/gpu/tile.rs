//! How products are divided, and how weights lie for that.

use super::functions::Function;

/// Bytes of a row that are multiplied between two barriers.
pub const CHUNK: usize = 64;
/// Bytes that a unit reads at once.
pub const CELL: usize = 16;
/// Cells of a chunk.
pub const CELLS: usize = CHUNK / CELL;
/// Columns whose weights lie together: those of a fragment.
pub const COLUMNS: usize = 16;
/// Units of a plane: what `mma` is defined for.
pub const PLANE: usize = 32;

/// What is multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Numbers {
    /// Unsigned 8-bit codes by signed ones, with sums of 32 bits.
    Codes,
    /// Floats of 32 bits.
    Floats,
    /// What TF32 holds of floats of 32 bits.
    Tf32,
    /// The upper 16 bits of floats of 32 bits.
    Bf16,
    /// Floats of 16 bits.
    F16,
}

impl Numbers {
    /// The instruction, whose first operand is the weight.
    pub fn mma(self) -> &'static str {
        match self {
            Self::Codes => "m16n8k32.row.col.s32.s8.u8.s32",
            Self::Floats | Self::Tf32 => "m16n8k8.row.col.f32.tf32.tf32.f32",
            Self::Bf16 => "m16n8k16.row.col.f32.bf16.bf16.f32",
            Self::F16 => "m16n8k16.row.col.f32.f16.f16.f32",
        }
    }

    /// Whether they are multiplied as they lie in memory, not as what TF32 holds of them.
    pub fn are_whole(self) -> bool {
        !matches!(self, Self::Floats | Self::Tf32)
    }

    /// Bytes of a number.
    pub fn size(self) -> usize {
        match self {
            Self::Codes => 1,
            Self::Bf16 | Self::F16 => 2,
            Self::Floats | Self::Tf32 => 4,
        }
    }
}

/// How a result is divided among cubes and planes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Planes of a cube, along rows and columns.
    pub planes: [usize; 2],
    /// Fragments of a plane, of 8 rows and of 16 columns.
    pub fragments: [usize; 2],
}

impl Tile {
    /// Rows of a cube.
    pub const fn rows(self) -> usize {
        self.planes[0] * self.fragments[0] * 8
    }

    /// Columns of a cube.
    pub const fn columns(self) -> usize {
        self.planes[1] * self.fragments[1] * COLUMNS
    }

    /// Units of a cube.
    pub const fn units(self) -> usize {
        self.planes[0] * self.planes[1] * PLANE
    }
}

/// What becomes of the sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Finish {
    /// Codes: `clamp(round((sum + start) * scale), low, high) + zero`.
    Codes,
    /// Floats of sums of codes: `clamp((sum + start) * scale + bias, low, high)`.
    Scaled,
    /// Floats of floats: `clamp(sum + bias, low, high)`.
    Floats,
}

/// What becomes of the sums in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct End {
    pub finish: Finish,
    /// Whether another value is added to floats, before they are bounded.
    pub adds: bool,
    /// A function of bounded floats.
    pub then: Function,
}

impl End {
    /// No more than `finish`.
    pub fn of(finish: Finish) -> Self {
        Self { finish, adds: false, then: Function::Same }
    }
}

/// What is fixed when the kernel is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Form {
    pub numbers: Numbers,
    pub tile: Tile,
    pub end: End,
    /// Whether rows lie in the input as they are multiplied: a matrix, or a window of one tap that moves by one.
    pub plain: bool,
    /// Bytes of a piece: 16, 8, 4, 2 or 1.
    pub piece: usize,
    /// How many chunks shared memory holds. From 3 on they are copied there while others are multiplied, which takes pieces of
    /// [`CELL`] bytes, and 0 outside of images.
    pub stages: usize,
    /// Whether codes are written 16 at a time.
    pub wide: bool,
}

/// Lays out rows of `row` bytes, one a column, as tensor cores read them: by groups, blocks of [`COLUMNS`] columns, chunks, and
/// halves of a cell. A cell then has, of two columns 8 apart, the words that are a unit's fragment.
pub fn pack(rows: &[u8], row: usize, groups: usize) -> Vec<u8> {
    let columns = rows.len().checked_div(row * groups).unwrap_or(0);
    let (blocks, chunks) = (columns.div_ceil(COLUMNS), row.div_ceil(CHUNK));
    let mut packed = vec![0; groups * blocks * chunks * COLUMNS * CHUNK];
    for (at, word) in packed.chunks_exact_mut(4).enumerate() {
        // A word's place in a cell, the cell's in a half, and so on.
        let (place, cell) = (at % 4, at / 4);
        let (part, quad, half) = (cell % CELLS, cell / CELLS % 8, cell / PLANE % 2);
        let (chunk, block) = (cell / (2 * PLANE) % chunks, cell / (2 * PLANE) / chunks);
        let column = block % blocks * COLUMNS + place % 2 * 8 + quad;
        let from = chunk * CHUNK + part * CELL + (half * 2 + place / 2) * 4;
        if column < columns {
            let row_of = &rows[(block / blocks * columns + column) * row..][..row];
            for (to, from) in word.iter_mut().zip(row_of.iter().skip(from)) {
                *to = *from;
            }
        }
    }
    packed
}

/// Lays out rows of `row` bytes for units that multiply by themselves: each as whole chunks.
pub fn pad(rows: &[u8], row: usize) -> Vec<u8> {
    let mut padded = Vec::with_capacity(rows.len().checked_div(row).unwrap_or(0) * row.next_multiple_of(CHUNK));
    for row in rows.chunks_exact(row.max(1)) {
        padded.extend(row);
        padded.resize(padded.len().next_multiple_of(CHUNK), 0);
    }
    padded
}

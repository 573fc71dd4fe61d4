//! Rows looked up in a table.

use crate::{Isa, Rows, RowsMut, multiversion::multiversion, parallel::in_rows};

/// A table, row by row.
#[derive(Debug, Clone, Copy)]
pub enum Table<'a> {
    /// Floats, wherever their bytes begin.
    Floats(&'a [u8]),
    /// Signed codes of 8 bits, and a scale for each row.
    Codes(&'a [u8], &'a [f32]),
    /// Codes of 4 bits, two a byte, and a scale for each block of a row.
    Pairs(Pairs<'a>),
}

/// A table in codes of 4 bits.
#[derive(Debug, Clone, Copy)]
pub struct Pairs<'a> {
    /// Two codes each, row by row.
    pub codes: &'a [u8],
    /// What each byte stands for.
    pub values: &'a [[f32; 2]; 256],
    /// The scales of the blocks, row by row, as bytes, wherever these begin.
    pub scales: &'a [u8],
    /// What is subtracted from what the bytes of each block stand for, signed; none where that is zero.
    pub zeros: Option<&'a [u8]>,
    /// Codes of a block.
    pub block: usize,
}

impl Pairs<'_> {
    fn row(&self, at: usize, y: &mut [f32]) {
        let (width, block) = (y.len(), self.block);
        let codes = &self.codes[at * width / 2..][..width / 2];
        let scales = &self.scales[at * (width / block) * size_of::<f32>()..].as_chunks().0[..width / block];
        let first = at * (width / block);
        let blocks = y.chunks_exact_mut(block).zip(codes.chunks_exact(block / 2));
        for (i, ((y, codes), scale)) in blocks.zip(scales).enumerate() {
            let scale = f32::from_ne_bytes(*scale);
            let zero = self.zeros.map_or(0.0, |zeros| f32::from(zeros[first + i].cast_signed()));
            for (y, code) in y.as_chunks_mut().0.iter_mut().zip(codes) {
                *y = self.values[usize::from(*code)].map(|v| (v - zero) * scale);
            }
        }
    }
}

/// Writes the row of `table` that `row` names for each row of `y`, in `threads` parts.
///
/// # Panics
/// When the table has no such row.
pub fn look_up(isa: Isa, table: Table, row: impl Fn(usize) -> usize + Sync, y: RowsMut<f32>, threads: usize) {
    in_rows(y, 1, threads, &|part, mut y| {
        let width = y.width();
        for i in 0..part.rows {
            let (at, y) = (row(part.row + i), y.row(i));
            match table {
                Table::Floats(bytes) => {
                    let from = bytes[at * width * size_of::<f32>()..].as_chunks().0;
                    y.iter_mut().zip(&from[..width]).for_each(|(y, bytes)| *y = f32::from_ne_bytes(*bytes));
                }
                Table::Codes(codes, scales) => scaled(isa, &codes[at * width..][..width], scales[at], y),
                Table::Pairs(pairs) => pairs.row(at, y),
            }
        }
    });
}

/// As [`look_up`], of bytes: each is `flip`ped on the way.
///
/// # Panics
/// When the table has no such row.
pub fn look_up_codes(table: &[u8], flip: u8, row: impl Fn(usize) -> usize + Sync, y: RowsMut<u8>, threads: usize) {
    in_rows(y, 1, threads, &|part, mut y| {
        let width = y.width();
        for i in 0..part.rows {
            let from = &table[row(part.row + i) * width..][..width];
            y.row(i).iter_mut().zip(from).for_each(|(y, code)| *y = code ^ flip);
        }
    });
}

/// Writes to element `i` of `y` the one of the same row of `x` that `at` names for it, in `threads` parts.
///
/// # Panics
/// When the row has no such element.
pub fn take(x: Rows<f32>, at: impl Fn(usize) -> usize + Sync, y: RowsMut<f32>, threads: usize) {
    in_rows(y, 1, threads, &|part, mut y| {
        let width = y.width();
        for i in 0..part.rows {
            let (row, first) = (x.row(part.row + i), (part.row + i) * width);
            y.row(i).iter_mut().enumerate().for_each(|(j, y)| *y = row[at(first + j)]);
        }
    });
}

multiversion! {
    /// Codes times their scale.
    fn scaled(isa: Isa, codes: &[u8], scale: f32, y: &mut [f32]) {
        for (y, code) in y.iter_mut().zip(codes) {
            *y = f32::from(code.cast_signed()) * scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_come_as_they_are_asked_for() {
        let x: Vec<f32> = (0..20).map(|i| i as f32).collect();
        let at = [4, 0, 1, 0, 4, 2, 3, 3, 3, 1, 2, 0];
        for threads in [1, 3] {
            let mut y = vec![9.0; 12];
            take(Rows::dense(&x, 4, 5), |i| at[i], RowsMut::dense(&mut y, 4, 3), threads);
            let wanted: Vec<f32> = (0..12).map(|i| (i / 3 * 5 + at[i]) as f32).collect();
            assert_eq!(y, wanted);
        }
    }

    #[test]
    fn rows_come_as_they_are_asked_for() {
        let floats: Vec<f32> = (0..24).map(|i| i as f32 / 8.0 - 1.0).collect();
        let bytes: Vec<u8> = [0].into_iter().chain(floats.iter().flat_map(|v| v.to_ne_bytes())).collect();
        let codes: Vec<u8> = (0..24u8).map(|i| i.wrapping_mul(31)).collect();
        let scales = [0.5, -2.0, 0.125, 1.0];
        let rows = [3usize, 0, 3, 1, 2];
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for threads in [1, 3] {
                let look = |table: Table| {
                    let mut y = vec![9.0; 30];
                    look_up(isa, table, |i| rows[i], RowsMut::dense(&mut y, 5, 6), threads);
                    y
                };
                let whole: Vec<f32> = rows.iter().flat_map(|r| floats[r * 6..][..6].to_vec()).collect();
                let mut y = vec![9; 30];
                look_up_codes(&codes, 128, |i| rows[i], RowsMut::dense(&mut y, 5, 6), threads);
                let flipped: Vec<u8> = rows.iter().flat_map(|r| codes[r * 6..][..6].iter().map(|c| c ^ 128)).collect();
                assert_eq!(y, flipped, "{isa}");
                assert_eq!(look(Table::Floats(&bytes[1..])), whole, "{isa}");
                let of = |r: &usize| {
                    codes[r * 6..][..6].iter().map(|c| f32::from(*c as i8) * scales[*r]).collect::<Vec<_>>()
                };
                assert_eq!(look(Table::Codes(&codes, &scales)), rows.iter().flat_map(of).collect::<Vec<_>>(), "{isa}");
            }
        }
    }

    #[test]
    fn pairs_of_codes_are_scaled_by_the_block() {
        let (rows, width, block) = (5, 12, 4);
        let codes: Vec<u8> = (0..rows * width / 2).map(|i| (i * 89 % 256) as u8).collect();
        let scales: Vec<f32> = (0..rows * width / block).map(|i| i as f32 / 8.0 - 0.5).collect();
        let bytes: Vec<u8> = [0].into_iter().chain(scales.iter().flat_map(|v| v.to_ne_bytes())).collect();
        let values = std::array::from_fn(|byte| [byte & 15, byte >> 4].map(|code| code as f32 - 8.0));
        let zeros: Vec<u8> = (0..scales.len()).map(|i| (i as i8 % 5 - 2).cast_unsigned()).collect();
        let table =
            Table::Pairs(Pairs { codes: &codes, values: &values, scales: &bytes[1..], zeros: Some(&zeros), block });
        let asked = [4usize, 0, 4, 2];
        let mut y = vec![9.0; asked.len() * width];
        let isa = Isa::ALL.into_iter().find(|isa| isa.is_available()).unwrap();
        look_up(isa, table, |i| asked[i], RowsMut::dense(&mut y, asked.len(), width), 2);
        let value = |i: usize| {
            let (row, column) = (asked[i / width], i % width);
            let code = codes[(row * width + column) / 2] >> (column % 2 * 4) & 15;
            let block = row * (width / block) + column / block;
            (f32::from(code) - 8.0 - f32::from(zeros[block].cast_signed())) * scales[block]
        };
        assert_eq!(y, (0..y.len()).map(value).collect::<Vec<_>>());
    }
}

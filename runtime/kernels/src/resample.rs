//! Images of another size, whose pixels are mixtures of some of the input's.

use crate::{Isa, RowsMut, multiversion::multiversion, parallel::in_rows, pool::by_columns};

/// For each place along an axis of the result, the places of the input that make it, and how much each counts.
#[derive(Debug, Clone)]
pub struct Mix {
    /// How many make each.
    taps: usize,
    /// `[places][taps]`.
    list: Vec<(usize, f32)>,
}

impl Mix {
    /// The places that make each place of the result.
    ///
    /// # Panics
    /// When nothing makes a place.
    pub fn new(places: &[Vec<(usize, f32)>]) -> Self {
        let taps = places.iter().map(Vec::len).max().unwrap_or(1);
        let mut list = Vec::with_capacity(places.len() * taps);
        for of_place in places {
            list.extend_from_slice(of_place);
            for _ in of_place.len()..taps {
                // As often as all others, by two halves where there are fewer: with a weight of 0, infinity would be NaN.
                let half = list.last_mut().expect("a place is made of something");
                half.1 /= 2.0;
                let half = *half;
                list.push(half);
            }
        }
        Self { taps, list }
    }

    /// Every place as it is.
    pub fn same(places: usize) -> Self {
        Self { taps: 1, list: (0..places).map(|i| (i, 1.0)).collect() }
    }

    /// How many places the result has.
    pub fn places(&self) -> usize {
        self.list.len() / self.taps.max(1)
    }

    #[inline(always)]
    fn at(&self, place: usize) -> &[(usize, f32)] {
        &self.list[place * self.taps..][..self.taps]
    }

    fn reach(&self) -> usize {
        self.list.iter().map(|(from, _)| from + 1).max().unwrap_or(0)
    }
}

/// Resizes images: `planes` of them, `input` pixels of `unit` floats each, by a mixture for each axis, `[vertical, horizontal]`.
#[derive(Debug, Clone)]
pub struct Resample {
    isa: Isa,
    planes: usize,
    input: [usize; 2],
    unit: usize,
    axes: [Mix; 2],
}

impl Resample {
    /// # Panics
    /// When a mixture reaches beyond the input.
    pub fn new(isa: Isa, planes: usize, input: [usize; 2], unit: usize, axes: [Mix; 2]) -> Self {
        assert!(axes.iter().zip(input).all(|(mix, size)| mix.reach() <= size), "mixtures of {input:?} pixels");
        Self { isa, planes, input, unit, axes }
    }

    /// Resizes. `y` has a row for each pixel; where pixels have one float, it may have one for each line.
    ///
    /// # Panics
    /// When the operands don't fit.
    pub fn run(&self, x: &[f32], y: RowsMut<f32>, threads: usize) {
        let [lines, columns] = [0, 1].map(|i| self.axes[i].places());
        let lines = self.planes * lines;
        assert_eq!(x.len(), self.planes * self.input[0] * self.input[1] * self.unit, "the input");
        let by_pixel = (y.rows(), y.width()) == (lines * columns, self.unit);
        assert!(by_pixel || self.unit == 1 && (y.rows(), y.width()) == (lines, columns), "the result");
        let rows = if by_pixel { columns } else { 1 };
        in_rows(y, rows, threads, &|part, y| mix_lines(self.isa, self, x, part.row / rows.max(1), by_pixel, y));
    }
}

multiversion! {
    /// Lines from line `first` on, counted over all planes.
    fn mix_lines(isa: Isa, op: &Resample, x: &[f32], first: usize, by_pixel: bool, y: RowsMut<f32>) {
        let mut y = y;
        let ([down, across], length) = (&op.axes, op.input[1] * op.unit);
        let rows = if by_pixel { across.places() } else { 1 };
        let mut mixed = vec![0f32; length];
        for i in 0..y.rows() / rows.max(1) {
            let (plane, place) = ((first + i) / down.places(), (first + i) % down.places());
            let image = &x[plane * op.input[0] * length..][..op.input[0] * length];
            for (tap, (from, weight)) in down.at(place).iter().enumerate() {
                let line = &image[from * length..][..length];
                if tap == 0 {
                    for (mixed, x) in mixed.iter_mut().zip(line) {
                        *mixed = x * weight;
                    }
                } else {
                    for (mixed, x) in mixed.iter_mut().zip(line) {
                        *mixed += x * weight;
                    }
                }
            }
            if !by_pixel {
                for (y, taps) in y.row(i).iter_mut().zip(across.list.chunks_exact(across.taps)) {
                    *y = taps.iter().fold(0.0, |sum, (from, weight)| sum + mixed[*from] * weight);
                }
                continue;
            }
            for (column, taps) in across.list.chunks_exact(across.taps).enumerate() {
                let y = y.row(i * rows + column);
                by_columns!(y.len(), |channel, N| {
                    let mut sum = [0f32; N];
                    for (from, weight) in taps {
                        for (sum, x) in sum.iter_mut().zip(&mixed[from * op.unit + channel..][..N]) {
                            *sum += x * weight;
                        }
                    }
                    y[channel..][..N].copy_from_slice(&sum);
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Grid, Noise, cases, isas};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(cases(150))]

        #[test]
        fn every_pixel_is_its_mixture(
            planes in 1usize..4, input in (1usize..7, 1usize..9), output in (1usize..9, 1usize..12), most in 1usize..4,
            unit in prop_oneof![Just(1usize), 2usize..40], gap in 0usize..4, by_line: bool, threads in 1usize..4, seed: u64,
        ) {
            let mut noise = Noise(seed);
            let sizes = [(input.0, output.0), (input.1, output.1)];
            let places = sizes.map(|(from, to)| -> Vec<Vec<(usize, f32)>> {
                (0..to).map(|_| (0..1 + noise.below(most)).map(|_| (noise.below(from), noise.float())).collect()).collect()
            });
            let count = planes * input.0 * input.1 * unit;
            let x = Grid::new(1, count, 0, 0.0, || noise.float()).values();
            let (rows, width) = match by_line && unit == 1 {
                true => (planes * output.0, output.1),
                false => (planes * output.0 * output.1, unit),
            };
            for isa in isas() {
                let axes = [Mix::new(&places[0]), Mix::new(&places[1])];
                let mut y = Grid::new(rows, width, gap, 9.0, || 1.0);
                Resample::new(isa, planes, input.into(), unit, axes).run(&x, y.rows_mut(), threads);
                for (at, got) in y.values().into_iter().enumerate() {
                    let (pixel, channel) = (at / unit, at % unit);
                    let (line, column) = (pixel / output.1, pixel % output.1);
                    let (plane, row) = (line / output.0, line % output.0);
                    let mut want = 0.0;
                    for (i, down) in &places[0][row] {
                        for (j, across) in &places[1][column] {
                            want += down * across * x[((plane * input.0 + i) * input.1 + j) * unit + channel];
                        }
                    }
                    assert!((got - want).abs() <= 1e-5, "{isa}: {got} for {want}");
                }
            }
        }
    }
}

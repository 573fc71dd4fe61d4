//! A window that slides over images.

use std::ops::Range;

/// A window over `batch` images of `input` pixels. Sizes are `[vertical, horizontal]`.
///
/// Position `o` of the output covers pixels `o * stride - pad + tap * dilation`; those outside of
/// the image are padding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// How many images.
    pub batch: usize,
    /// Pixels of an image.
    pub input: [usize; 2],
    /// Positions of the window.
    pub output: [usize; 2],
    /// Taps of the window.
    pub kernel: [usize; 2],
    /// Steps between positions.
    pub stride: [usize; 2],
    /// Steps between taps.
    pub dilation: [usize; 2],
    /// Padding above and to the left.
    pub pad: [usize; 2],
}

impl Window {
    /// A window of one pixel over `rows` pixels: what a matrix product is.
    pub fn pixel(rows: usize) -> Self {
        Self {
            batch: 1,
            input: [rows, 1],
            output: [rows, 1],
            kernel: [1, 1],
            stride: [1, 1],
            dilation: [1, 1],
            pad: [0, 0],
        }
    }

    /// Pixels of all images.
    pub fn pixels(&self) -> usize {
        self.batch * self.input[0] * self.input[1]
    }

    /// Positions over all images.
    pub fn positions(&self) -> usize {
        self.batch * self.output[0] * self.output[1]
    }

    /// Taps of one position.
    pub fn taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    /// The taps on an axis (0 vertical, 1 horizontal) that are inside of the image at position `o`.
    pub fn taps_inside(&self, axis: usize, o: usize) -> Range<usize> {
        let (first, dilation) = (o * self.stride[axis], self.dilation[axis]);
        // Tap `t` is pixel `first + t * dilation - pad`.
        let before = |pixel: usize| (pixel + self.pad[axis]).saturating_sub(first).div_ceil(dilation);
        let end = before(self.input[axis]).min(self.kernel[axis]);
        before(0).min(end)..end
    }

    /// The positions on an axis at which all taps are inside of the image.
    pub fn interior(&self, axis: usize) -> Range<usize> {
        let first = self.pad[axis].div_ceil(self.stride[axis]);
        let room = (self.input[axis] + self.pad[axis]).checked_sub(self.reach(axis));
        let end = room.map_or(0, |room| room / self.stride[axis] + 1).min(self.output[axis]);
        first.min(end)..end
    }

    /// Pixels from the first tap to the last.
    fn reach(&self, axis: usize) -> usize {
        (self.kernel[axis].max(1) - 1) * self.dilation[axis] + 1
    }

    /// Whether each position covers exactly the pixel of its own place.
    pub fn is_pixel(&self) -> bool {
        self.kernel == [1, 1] && self.stride == [1, 1] && self.pad == [0, 0] && self.input == self.output
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taps_inside_are_those_of_pixels() {
        for input in 1..7 {
            for kernel in 1..5 {
                for (stride, dilation, pad) in [(1, 1, 0), (1, 1, 6), (2, 1, 1), (3, 2, 2), (1, 3, 4), (2, 2, 9)] {
                    let [input, kernel, stride, dilation, pad] = [input, kernel, stride, dilation, pad].map(|n| [1, n]);
                    let window = Window { batch: 1, input, output: [1, 9], kernel, stride, dilation, pad };
                    for o in 0..9 {
                        let inside = |t: &usize| {
                            let pixel = (o * stride[1] + t * dilation[1]) as isize - pad[1] as isize;
                            (0..input[1] as isize).contains(&pixel)
                        };
                        let want: Vec<usize> = (0..kernel[1]).filter(inside).collect();
                        assert_eq!(window.taps_inside(1, o).collect::<Vec<_>>(), want, "{window:?} at {o}");
                        let whole = want.len() == kernel[1];
                        assert_eq!(window.interior(1).contains(&o), whole, "{window:?} at {o}");
                    }
                }
            }
        }
    }
}

//! A window that slides over images.

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

    /// Whether each position covers exactly the pixel of its own place.
    pub fn is_pixel(&self) -> bool {
        self.kernel == [1, 1] && self.stride == [1, 1] && self.pad == [0, 0] && self.input == self.output
    }
}

//! Quantisation schemes: which codes activations and weights become. A scheme is data; [`ptq`](super::ptq) decides where it
//! applies, [`qdq`](super::qdq) writes it into the graph, and a [`Target`](crate::target::Target) says whether it runs there.

use super::{
    calibrators::{Calibration, MINMAX},
    reduce_range::ReduceRange,
};
use compress_compiler::{choice_of_rows, tensor::DType};
use std::fmt;

/// How numbers become codes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scheme {
    /// Those of activations.
    pub activations: Activations,
    /// Those of weights.
    pub weights: Weights,
    /// How the range of an activation is chosen.
    pub calibration: Calibration,
    /// Which activations become codes.
    pub placement: Placement,
    /// What biases become.
    pub biases: Biases,
    /// When scales of weights are larger than rounding needs.
    pub reduce_range: ReduceRange,
}

/// Which activations become codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Those between integer kernels: what layers read and convolutions make, and what sums, pools and the like read and
    /// make between them.
    Kernels,
    /// What layers read, and before it what operators pass on unchanged. A sum with
    /// what a convolution makes takes the other value in codes if a layer reads it as well: runtimes compute such a sum with
    /// the convolution, and add before they round.
    LayerInputs,
}

/// What the biases of integer layers become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Biases {
    /// Codes of 32 bits, in steps of the accumulator.
    Int32,
    /// They stay.
    Float,
}

/// When activations become codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activations {
    /// By ranges that calibration finds.
    Static(Codes),
    /// By the range of each in each run.
    Dynamic(Codes),
}

impl Activations {
    /// Their codes.
    pub fn codes(self) -> Codes {
        let (Self::Static(codes) | Self::Dynamic(codes)) = self;
        codes
    }

    /// Whether their ranges are those of each run.
    pub fn are_dynamic(self) -> bool {
        matches!(self, Self::Dynamic(_))
    }
}

/// How weights become codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weights {
    /// Their codes.
    pub codes: Codes,
    /// What of a weight shares a scale.
    pub granularity: Granularity,
}

/// Codes and the real numbers that they stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Codes {
    /// The type whose range they have.
    pub dtype: DType,
    /// The type in which they are stored, which kernels read.
    pub stored: DType,
    /// Where zero is.
    pub symmetry: Symmetry,
}

/// Where zero is among the codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Symmetry {
    /// At code 0; the range reaches as far down as up.
    Symmetric,
    /// Anywhere: the range is what it has to be.
    Asymmetric,
}

/// What of a weight shares a scale (Krishnamoorthi 2018).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Granularity {
    /// All of it.
    Tensor,
    /// Each output channel.
    Channel,
}

impl fmt::Display for Granularity {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::Tensor => "tensor",
            Self::Channel => "channel",
        })
    }
}

impl Codes {
    /// The least and the largest code.
    pub fn range(self) -> (i64, i64) {
        // All types of codes are integers, as the table below has them.
        self.dtype.int_range().unwrap_or_default()
    }

    /// Whether a range that ends at zero does what a Relu does: no code stands for what is below, and runtimes compute on the
    /// codes. Those of 16 bits are left out where there are no kernels for them, and the range with them.
    pub fn clamps(self) -> bool {
        self.symmetry == Symmetry::Asymmetric && matches!(self.stored, DType::U8 | DType::I8)
    }

    /// Steps from the least code to the largest.
    pub fn steps(self) -> f64 {
        let (low, high) = self.range();
        (high - low) as f64
    }
}

impl Scheme {
    /// Whether processors with AVX2 and without VNNI may cut off sums of two products: those of U8 and S8 codes of 8 bits.
    pub fn may_be_cut_off(&self) -> bool {
        let (activations, weights) = (self.activations.codes(), self.weights.codes);
        activations.stored == DType::U8 && weights.dtype == DType::I8
    }

    /// Whether the same values become the same kind of codes.
    pub fn is_placed_as(&self, other: &Self) -> bool {
        let of = |s: &Self| (s.activations, s.placement, s.biases);
        of(self) == of(other)
    }
}

/// U16 activations with a zero point, for processors that have such kernels.
pub(crate) const U16: Codes = Codes { dtype: DType::U16, stored: DType::U16, symmetry: Symmetry::Asymmetric };
/// U8 activations with a zero point: what every runtime has integer kernels for.
const U8: Codes = Codes { dtype: DType::U8, stored: DType::U8, symmetry: Symmetry::Asymmetric };
/// S8 activations with a zero point.
pub(crate) const S8_ANY_ZERO: Codes = Codes { dtype: DType::I8, stored: DType::I8, symmetry: Symmetry::Asymmetric };
/// S8 around zero.
pub(crate) const S8: Codes = Codes { dtype: DType::I8, stored: DType::I8, symmetry: Symmetry::Symmetric };
/// Weights of four bits, which are stored in eight: every runtime has integer kernels for these.
const S4: Codes = Codes { dtype: DType::I4, stored: DType::I8, symmetry: Symmetry::Symmetric };

/// INT8: static, weights per output channel.
pub const INT8: Scheme = Scheme {
    activations: Activations::Static(U8),
    weights: Weights { codes: S8, granularity: Granularity::Channel },
    calibration: MINMAX,
    placement: Placement::Kernels,
    biases: Biases::Int32,
    reduce_range: ReduceRange::Auto,
};

/// Activations by the range of each in each run, in the only codes that DynamicQuantizeLinear makes.
pub const DYNAMIC: Activations = Activations::Dynamic(U8);

/// INT8 with weights of four bits.
pub(crate) const INT8_W4: Scheme = Scheme { weights: Weights { codes: S4, granularity: Granularity::Channel }, ..INT8 };

/// A scheme that a user can ask for.
#[derive(Debug)]
struct Named {
    name: &'static str,
    /// What its weights become, in a few words.
    means: &'static str,
    scheme: Scheme,
}

/// The schemes, by the bits of a weight.
const SCHEMES: &[WeightBits] = &[
    WeightBits(&Named { name: "4", means: "from -8 to 7, stored in 8 bits each", scheme: INT8_W4 }),
    WeightBits(&Named { name: "8", means: "from -128 to 127", scheme: INT8 }),
];

/// Bits of a weight's codes.
#[derive(Debug, Clone, Copy)]
pub struct WeightBits(&'static Named);

impl WeightBits {
    /// The scheme with such weights.
    pub fn scheme(self) -> Scheme {
        self.0.scheme
    }
}

impl Default for WeightBits {
    fn default() -> Self {
        SCHEMES[1]
    }
}

choice_of_rows!(WeightBits, "number of bits of a weight", SCHEMES);

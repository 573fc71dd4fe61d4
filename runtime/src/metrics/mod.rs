//! How good a model is, and how close to another: what its outputs hold ([`meaning`]), which metric suits that
//! ([`metric`]; a file for each kind in `kinds`), the sums of both over batches ([`compare`]), and values of two kinds in one
//! output ([`parts`]).

pub mod compare;
mod kinds;
pub mod meaning;
pub mod metric;
mod noise;
pub mod parts;

pub use compare::{Comparison, OutputNoise};
pub(crate) use kinds::tokens::next_tokens;
pub use meaning::{Answers, Meaning};
pub use metric::{Measure, Metric, Wanted, metrics};
pub use noise::{Sqnr, cross_entropy};
pub use parts::{Mixture, Parts};

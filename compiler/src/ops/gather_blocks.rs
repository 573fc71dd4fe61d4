//! GatherBlockQuantized of ONNX Runtime's domain: rows of a table in codes of 4 bits.

use crate::{
    attr::Attrs,
    error::Result,
    op::{Inputs, Operator},
    value::{Dim, Fact},
};
use std::ops::RangeInclusive;

/// Rows of a table in codes from -8 to 7, each block of a row times its scale. Inputs: the table, U8 `[rows, columns / 2]`, with 8
/// added to each code, the even ones in the low halves; indices; scales, `[rows, blocks]`; zero points, U8 `[rows, bytes of a row]`, with
/// 8 added likewise, which are 0 when absent. Files that have it are read as
/// [`PackedRows`](crate::forms::packed_rows::PackedRows).
#[derive(Debug, Clone, PartialEq)]
pub struct GatherBlocks {
    /// Codes of a row that share a scale.
    pub block: i64,
    /// Codes of a row.
    pub columns: usize,
}

impl Operator for GatherBlocks {
    fn op_type(&self) -> &str {
        "com.microsoft.GatherBlockQuantized"
    }

    fn attrs(&self) -> Attrs {
        vec![
            ("bits", 4.into()),
            ("block_size", self.block.into()),
            ("gather_axis", 0.into()),
            ("quantize_axis", 1.into()),
        ]
    }

    fn arity(&self) -> RangeInclusive<usize> {
        3..=4
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let dims = x.dims(1).map(|ids| ids.iter().cloned().chain([Dim::from(self.columns)]).collect());
        Ok(vec![Fact::new(x.get(2).dtype, dims)])
    }
}

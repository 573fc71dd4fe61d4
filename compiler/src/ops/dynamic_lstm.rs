//! DynamicQuantizeLSTM of ONNX Runtime's domain: an LSTM whose weights are codes, and whose input and states become codes by
//! their own ranges.

use super::recurrent::Recurrent;
use crate::{
    attr::{Attrs, Reader},
    error::{Error, Result},
    op::{Inputs, Operator},
    value::Fact,
};
use std::ops::RangeInclusive;

/// Inputs: X, W, R, B, sequence_lens, initial_h, initial_c, P, then scale and zero point of W, and those of R. W and R are codes of
/// 8 bits, `[directions, inputs, 4 * hidden]` and `[directions, hidden, 4 * hidden]`; scales and zero points are for each
/// direction, `[directions]`, or for each column, `[directions, 4 * hidden]`. Outputs: Y, Y_h, Y_c.
#[derive(Debug, Clone, PartialEq)]
pub struct DynamicLstm {
    /// What it does apart from codes.
    pub lstm: Recurrent,
}

impl DynamicLstm {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let lstm = Recurrent::read(r)?;
        if lstm.batch_first {
            return Err(Error::unsupported("layout=1"));
        }
        Ok(Self { lstm })
    }
}

impl Operator for DynamicLstm {
    fn op_type(&self) -> &str {
        "com.microsoft.DynamicQuantizeLSTM"
    }

    fn attrs(&self) -> Attrs {
        self.lstm.attrs()
    }

    fn arity(&self) -> RangeInclusive<usize> {
        3..=12
    }

    fn max_outputs(&self) -> usize {
        3
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        // LSTM has rows where this has columns.
        let turned = |slot: usize| {
            let dims = x.dims(slot).map(|d| match d {
                [direction, inner, outer] => vec![direction.clone(), outer.clone(), inner.clone()],
                other => other.to_vec(),
            });
            Fact::new(x.get(0).dtype, dims)
        };
        let (w, r) = (turned(1), turned(2));
        let facts: Vec<Option<&Fact>> = (0..8)
            .map(|slot| match slot {
                1 => Some(&w),
                2 => Some(&r),
                _ => x.opt(slot),
            })
            .collect();
        self.lstm.infer(&Inputs(&facts))
    }

    fn macs(&self, x: &Inputs, outputs: &[&Fact]) -> u64 {
        self.lstm.macs(x, outputs)
    }
}

//! Cast.

use crate::{
    attr::{Attrs, Reader},
    error::{Error, Result},
    op::{Inputs, Operator},
    tensor::DType,
    value::Fact,
};

/// Converts elements to another type.
#[derive(Debug, Clone, PartialEq)]
pub struct Cast {
    /// The new type.
    pub to: DType,
}

impl Cast {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        // Saturation concerns 8-bit floats only, which have no DType.
        r.flag("saturate", true)?;
        let to = r.opt_dtype("to")?.ok_or_else(|| Error::malformed("attribute `to` is missing"))?;
        if to == DType::String {
            return Err(Error::unsupported("Cast to strings"));
        }
        Ok(Self { to })
    }
}

impl Operator for Cast {
    fn op_type(&self) -> &str {
        "Cast"
    }
    fn attrs(&self) -> Attrs {
        vec![("to", (self.to as i64).into())]
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let mut fact = Fact::new(Some(self.to), x.shape(0).clone());
        if matches!(self.to, DType::I64 | DType::I32) {
            fact.elems = x.get(0).elems.clone();
        }
        Ok(vec![fact])
    }
}

//! MaxPool, AveragePool and their global forms.

use super::window::Window;
use crate::{
    attr::{Attrs, Reader},
    error::{Error, Result},
    op::{Inputs, Operator, Quant},
    value::{Dim, Fact},
};

/// What a pool makes of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum PoolKind {
    Max,
    Average,
}

/// A pool over a sliding window; X is `[N, C, ...]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool {
    /// Maximum or average.
    pub kind: PoolKind,
    /// The window's size, one an axis.
    pub kernel: Vec<i64>,
    /// The sliding window.
    pub window: Window,
    /// Whether an average counts padding.
    pub count_include_pad: bool,
}

impl Pool {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let kind = if r.op_type == "MaxPool" { PoolKind::Max } else { PoolKind::Average };
        let kernel = r.opt_ints("kernel_shape")?.ok_or_else(|| Error::malformed("kernel_shape is missing"))?;
        if kernel.iter().any(|k| *k < 1 || *k > i32::MAX as i64) {
            return Err(Error::malformed(format!("kernel_shape {kernel:?} must be 1 or more")));
        }
        if r.outputs > 1 {
            return Err(Error::unsupported("MaxPool with an output of indices"));
        }
        if r.int("storage_order", 0)? != 0 {
            return Err(Error::unsupported("MaxPool in column-major order"));
        }
        let count_include_pad = r.flag("count_include_pad", false)?;
        Ok(Self { kind, kernel, window: Window::read(r)?, count_include_pad })
    }
}

impl Operator for Pool {
    fn op_type(&self) -> &str {
        match self.kind {
            PoolKind::Max => "MaxPool",
            PoolKind::Average => "AveragePool",
        }
    }

    fn attrs(&self) -> Attrs {
        let mut a: Attrs = vec![("kernel_shape", self.kernel.clone().into())];
        a.extend(self.window.attrs());
        if self.count_include_pad {
            a.push(("count_include_pad", true.into()));
        }
        a
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let dtype = x.get(0).dtype;
        let Some(data) = x.dims(0) else { return Ok(vec![Fact::new(dtype, None)]) };
        if data.len() != self.kernel.len() + 2 {
            return Err(Error::malformed(format!("kernel_shape {:?} on an input of rank {}", self.kernel, data.len())));
        }
        self.window.check_rank(self.kernel.len())?;
        let mut shape = data[..2].to_vec();
        for (i, k) in self.kernel.iter().enumerate() {
            shape.push(self.window.output(i, &data[2 + i], *k)?);
        }
        Ok(vec![Fact::new(dtype, Some(shape))])
    }

    fn quant(&self) -> Quant {
        match self.kind {
            PoolKind::Max => Quant::Same,
            PoolKind::Average => Quant::Arithmetic,
        }
    }
}

/// A pool over all spatial axes, which become 1.
#[derive(Debug, Clone, PartialEq)]
pub struct GlobalPool {
    /// Maximum or average.
    pub kind: PoolKind,
}

impl GlobalPool {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self { kind: if r.op_type == "GlobalMaxPool" { PoolKind::Max } else { PoolKind::Average } })
    }
}

impl Operator for GlobalPool {
    fn op_type(&self) -> &str {
        match self.kind {
            PoolKind::Max => "GlobalMaxPool",
            PoolKind::Average => "GlobalAveragePool",
        }
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let dtype = x.get(0).dtype;
        let Some(data) = x.dims(0) else { return Ok(vec![Fact::new(dtype, None)]) };
        if data.len() < 2 {
            return Err(Error::malformed(format!("input of rank {} has no channels", data.len())));
        }
        let shape = data.iter().enumerate().map(|(i, d)| if i < 2 { d.clone() } else { Dim::Known(1) });
        Ok(vec![Fact::new(dtype, Some(shape.collect()))])
    }

    fn quant(&self) -> Quant {
        match self.kind {
            PoolKind::Max => Quant::Same,
            PoolKind::Average => Quant::Arithmetic,
        }
    }
}

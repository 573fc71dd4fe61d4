//! MaxPool, AveragePool, LpPool and their global forms.

use super::window::Window;
use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, Flow, Sides},
    error::{Error, Result},
    op::{Inputs, Operator, Quant, Width},
    tensor::DType,
    value::{Dim, Fact},
};

/// What a pool makes of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum PoolKind {
    Max,
    Average,
    /// The norm of this order: the root of the sum of powers.
    Lp(i64),
}

impl PoolKind {
    fn read(r: &mut Reader) -> Result<Self> {
        Ok(match r.op_type.trim_start_matches("Global") {
            "MaxPool" => PoolKind::Max,
            "AveragePool" => PoolKind::Average,
            _ => match r.int("p", 2)? {
                p if (1..=i64::from(i32::MAX)).contains(&p) => PoolKind::Lp(p),
                p => return Err(Error::malformed(format!("p {p} must be 1 or more"))),
            },
        })
    }

    fn attrs(self) -> Attrs {
        match self {
            PoolKind::Lp(p) if p != 2 => vec![("p", p.into())],
            _ => vec![],
        }
    }

    /// In which width it computes: sums of powers may be larger than any of them.
    fn width(self) -> Width {
        if matches!(self, PoolKind::Lp(_)) { Width::Wide } else { Width::Bounded }
    }

    fn quant(self) -> Quant {
        match self {
            PoolKind::Max => Quant::Same,
            PoolKind::Average => Quant::Arithmetic,
            PoolKind::Lp(_) => Quant::Float,
        }
    }
}

/// A pool over a sliding window; X is `[N, C, ...]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool {
    /// What is made of a window.
    pub kind: PoolKind,
    /// The window's size, one an axis.
    pub kernel: Vec<i64>,
    /// The sliding window.
    pub window: Window,
    /// Whether an average counts padding.
    pub count_include_pad: bool,
    /// Whether a maximum also tells where in X it was found.
    pub indices: bool,
    /// Whether those places are counted in column-major order.
    pub column_major: bool,
}

impl Pool {
    /// A pool without further wishes.
    pub fn new(kind: PoolKind, kernel: Vec<i64>, window: Window) -> Self {
        Self { kind, kernel, window, count_include_pad: false, indices: false, column_major: false }
    }

    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let kind = PoolKind::read(r)?;
        let kernel = r.opt_ints("kernel_shape")?.ok_or_else(|| Error::malformed("kernel_shape is missing"))?;
        if kernel.iter().any(|k| *k < 1 || *k > i32::MAX as i64) {
            return Err(Error::malformed(format!("kernel_shape {kernel:?} must be 1 or more")));
        }
        Ok(Self {
            count_include_pad: r.flag("count_include_pad", false)?,
            indices: r.outputs > 1,
            column_major: r.flag("storage_order", false)?,
            ..Self::new(kind, kernel, Window::read(r)?)
        })
    }
}

impl Operator for Pool {
    fn op_type(&self) -> &str {
        match self.kind {
            PoolKind::Max => "MaxPool",
            PoolKind::Average => "AveragePool",
            PoolKind::Lp(_) => "LpPool",
        }
    }

    fn attrs(&self) -> Attrs {
        let mut a: Attrs = vec![("kernel_shape", self.kernel.clone().into())];
        a.extend(self.window.attrs());
        a.extend(self.kind.attrs());
        if self.count_include_pad {
            a.push(("count_include_pad", true.into()));
        }
        if self.column_major {
            a.push(("storage_order", true.into()));
        }
        a
    }

    fn max_outputs(&self) -> usize {
        if self.kind == PoolKind::Max { 2 } else { 1 }
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let mut shape = None;
        if let Some(data) = x.dims(0) {
            if data.len() != self.kernel.len() + 2 {
                let (kernel, rank) = (&self.kernel, data.len());
                return Err(Error::malformed(format!("kernel_shape {kernel:?} on an input of rank {rank}")));
            }
            self.window.check_rank(self.kernel.len())?;
            let mut out = data[..2].to_vec();
            for (i, k) in self.kernel.iter().enumerate() {
                out.push(self.window.output(i, &data[2 + i], *k)?);
            }
            shape = Some(out);
        }
        let mut made = vec![Fact::new(x.get(0).dtype, shape.clone())];
        if self.indices {
            made.push(Fact::new(Some(DType::I64), shape));
        }
        Ok(made)
    }

    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        // The places that a second result names are counted over all axes.
        let why = if self.indices { "it tells places among these" } else { "its window slides over these" };
        sides.passes(at, why, |axis| self.indices || axis > 1)
    }

    fn quant(&self) -> Quant {
        if self.indices { Quant::Float } else { self.kind.quant() }
    }

    fn width(&self) -> Width {
        self.kind.width()
    }
}

/// A pool over all spatial axes, which become 1.
#[derive(Debug, Clone, PartialEq)]
pub struct GlobalPool {
    /// What is made of all elements.
    pub kind: PoolKind,
}

impl GlobalPool {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self { kind: PoolKind::read(r)? })
    }
}

impl Operator for GlobalPool {
    fn op_type(&self) -> &str {
        match self.kind {
            PoolKind::Max => "GlobalMaxPool",
            PoolKind::Average => "GlobalAveragePool",
            PoolKind::Lp(_) => "GlobalLpPool",
        }
    }

    fn attrs(&self) -> Attrs {
        self.kind.attrs()
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

    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        sides.passes(at, "it reduces over these", |axis| axis > 1)
    }

    fn quant(&self) -> Quant {
        self.kind.quant()
    }

    fn width(&self) -> Width {
        self.kind.width()
    }
}

//! MaxUnpool: puts values back where a MaxPool found them.

use super::window::Window;
use crate::{
    attr::{Attrs, Reader},
    error::{Error, Result},
    op::{Inputs, Operator},
    value::{Dim, Fact},
};
use std::ops::RangeInclusive;

/// Inputs: values, their places in the pool's input (flat, of the whole tensor), and perhaps the
/// output's shape. All other elements are 0.
#[derive(Debug, Clone, PartialEq)]
pub struct MaxUnpool {
    /// The pool's kernel.
    pub kernel: Vec<i64>,
    /// The pool's window.
    pub window: Window,
}

impl MaxUnpool {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let kernel = r.opt_ints("kernel_shape")?.ok_or_else(|| Error::malformed("kernel_shape is missing"))?;
        if kernel.iter().any(|k| !(1..=i64::from(i32::MAX)).contains(k)) {
            return Err(Error::malformed(format!("kernel_shape {kernel:?} must be 1 or more")));
        }
        Ok(Self { kernel, window: Window::read(r)? })
    }

    /// The shape of the pool's input as far as it can be told from its output's. Places refer to
    /// it, whatever shape is asked for.
    ///
    /// # Errors
    /// Malformed when the attributes don't fit, or a size would be negative.
    pub fn pooled(&self, data: &[Dim]) -> Result<Vec<Dim>> {
        let n = self.kernel.len();
        if data.len() != n + 2 {
            return Err(Error::malformed(format!("kernel_shape {:?} on an input of rank {}", self.kernel, data.len())));
        }
        self.window.check_rank(n)?;
        let mut shape = data[..2].to_vec();
        for (i, k) in self.kernel.iter().enumerate() {
            let (begin, end) = self.window.padding(i, 0, *k);
            let size =
                |n: i64, k: i64| (n - 1).checked_mul(self.window.stride(i))?.checked_add(k)?.checked_sub(begin + end);
            let size = data[2 + i].zip(&Dim::Known(*k), size);
            if size.known().is_some_and(|n| n < 0) {
                return Err(Error::malformed(format!("padding {begin} and {end} leave no output")));
            }
            shape.push(size);
        }
        Ok(shape)
    }
}

impl Operator for MaxUnpool {
    fn op_type(&self) -> &str {
        "MaxUnpool"
    }

    fn attrs(&self) -> Attrs {
        let mut a: Attrs = vec![("kernel_shape", self.kernel.clone().into())];
        a.extend(self.window.attrs());
        a
    }

    fn arity(&self) -> RangeInclusive<usize> {
        2..=3
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let shape = match (x.dims(0), x.opt(2)) {
            (_, Some(asked)) => asked.elems.clone(),
            (Some(data), None) => Some(self.pooled(data)?),
            (None, None) => None,
        };
        if let Some(n) = shape.iter().flatten().filter_map(Dim::known).find(|n| *n < 0) {
            return Err(Error::malformed(format!("an axis of size {n}")));
        }
        Ok(vec![Fact::new(x.get(0).dtype, shape)])
    }

    fn since(&self) -> i64 {
        9
    }
}

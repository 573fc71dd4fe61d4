//! Moving elements on the device: shapes, slices, joins, picks.

use super::{
    B, Float, bool_dtype, check_size,
    extension::Train,
    operators::{Pad, Slices},
    prim_shape, scalar,
};
use crate::burn::host::{self, IntArray};
use ::burn::backend::{
    Slice, TensorData, TensorMetadata, get_or_init_device_settings,
    ops::{BoolTensorOps, FloatTensorOps, IntTensorOps, PadMode},
    tensor::{BoolTensor, IntTensor},
};
use compress_compiler::{
    error::{Error, Result},
    tensor::DType,
};

impl Float {
    /// The same elements under another shape.
    ///
    /// # Errors
    /// Malformed when the number of elements differs.
    pub fn reshape(self, shape: &[usize]) -> Result<Self> {
        if self.shape == shape {
            return Ok(self);
        }
        if check_size(shape)? != self.elements() {
            return Err(Error::malformed(format!("{:?} cannot become {shape:?}", self.shape)));
        }
        Ok(Self::wrap(B::float_reshape(self.t, prim_shape(shape)), shape.to_vec(), self.dtype))
    }

    /// Reorders axes: output axis i is input axis `axes[i]`. The caller has checked that
    /// this is a permutation.
    pub fn permute(self, axes: &[usize]) -> Self {
        if axes.iter().enumerate().all(|(i, a)| i == *a) {
            return self;
        }
        let shape = axes.iter().map(|a| self.shape[*a]).collect();
        Self::wrap(B::float_permute(self.t, axes), shape, self.dtype)
    }

    /// Takes `count` elements along `axis`, from `start` on, every `step`th; `step` may be
    /// negative, and then `start` is the last one in memory.
    ///
    /// # Errors
    /// A bug when that leaves the axis.
    pub fn slice(self, axis: usize, start: usize, count: usize, step: i64) -> Result<Self> {
        let size = self.shape[axis];
        if start == 0 && count == size && step == 1 {
            return Ok(self);
        }
        let far = start as i64 + step * (count as i64 - 1).max(0);
        if count == 0 || step == 0 || start >= size || far < 0 || far >= size as i64 {
            return Err(Error::bug(format!("slice {start}+{count}*{step} of an axis of {size}")));
        }
        let (low, high) = (far.min(start as i64) as isize, far.max(start as i64) as isize);
        let mut shape = self.shape.clone();
        let mut slices: Vec<Slice> = shape.iter().map(|n| Slice::new(0, Some(*n as isize), 1)).collect();
        slices[axis] = Slice::new(low, Some(high + 1), step.unsigned_abs() as isize);
        shape[axis] = count;
        let mut t = match self.is_tracked() && self.has_kernels() {
            true => B::train_slice(self.t, Slices(slices)),
            false => B::float_slice(self.t, &slices),
        };
        if step < 0 {
            t = B::float_flip(t, &[axis]);
        }
        Ok(Self::wrap(t, shape, self.dtype))
    }

    /// Joins tensors along `axis`.
    ///
    /// # Errors
    /// Malformed when the other axes differ; limit when the result is too large.
    pub fn cat(parts: Vec<Self>, axis: usize) -> Result<Self> {
        let Some(first) = parts.first() else { return Err(Error::malformed("nothing to join")) };
        let dtype = first.dtype;
        let shape = host::cat_shape(parts.iter().map(|p| &p.shape[..]), axis)?;
        check_size(&shape)?;
        let t = B::float_cat(parts.into_iter().map(|p| p.with_dtype(dtype).t).collect(), axis);
        Ok(Self::wrap(t, shape, dtype))
    }

    /// Broadcasts to `shape`, which must be one that `self` broadcasts to.
    ///
    /// # Errors
    /// Malformed when it isn't; limit when it is too large.
    pub fn expand(self, shape: &[usize]) -> Result<Self> {
        if self.shape == shape {
            return Ok(self);
        }
        check_size(shape)?;
        if host::broadcast(&self.shape, shape)? != shape {
            return Err(Error::malformed(format!("{:?} does not broadcast to {shape:?}", self.shape)));
        }
        let t = B::float_expand(self.padded(shape.len()), prim_shape(shape));
        Ok(Self { t, shape: shape.to_vec(), dtype: self.dtype, host: None })
    }

    /// Takes the entries `indices` along `axis`.
    ///
    /// # Errors
    /// Malformed when an index is out of range; limit when the result is too large.
    pub fn select(self, axis: usize, indices: Vec<i64>) -> Result<Self> {
        let size = self.shape[axis] as i64;
        if let Some(i) = indices.iter().find(|i| !(0..size).contains(i)) {
            return Err(Error::malformed(format!("index {i} is out of range for an axis of {size}")));
        }
        let mut shape = self.shape;
        shape[axis] = indices.len();
        check_size(&shape)?;
        let (device, count) = (self.t.device(), indices.len());
        let as_device = get_or_init_device_settings::<B>(&device).int_dtype;
        let indices = TensorData::new(indices, [count]).convert_dtype(as_device.into());
        let indices: IntTensor<B> = B::int_from_data(indices, &device);
        Ok(Self::wrap(B::float_select(self.t, axis, indices), shape, self.dtype))
    }

    /// Adds a border of `value`: (before, after) for every axis.
    ///
    /// # Errors
    /// Limit when the result is too large.
    pub fn pad(self, border: &[(usize, usize)], value: f32) -> Result<Self> {
        if border.iter().all(|b| *b == (0, 0)) {
            return Ok(self);
        }
        let shape: Vec<usize> = self.shape.iter().zip(border).map(|(n, (b, e))| n + b + e).collect();
        check_size(&shape)?;
        let t = match self.is_tracked() && self.has_kernels() {
            true => B::train_pad(self.t, Pad { border: border.to_vec(), value }),
            false => B::float_pad(self.t, border, PadMode::Constant(value)),
        };
        Ok(Self::wrap(t, shape, self.dtype))
    }

    /// `condition ? self : other`, broadcast. `condition` is on the host, 0 is false.
    ///
    /// # Errors
    /// Malformed when the shapes don't broadcast; limit when the result is too large.
    pub fn select_where(self, condition: &IntArray, other: Self) -> Result<Self> {
        let shape = host::broadcast(&host::broadcast(&self.shape, &other.shape)?, &condition.shape)?;
        let dtype = self.dtype;
        let (yes, no) = (self.expand(&shape)?, other.with_dtype(dtype).expand(&shape)?);
        // Sent as floats, as every device has them and not every one has this kind of bool.
        let mask = condition.data.iter().map(|v| (*v != 0) as u8 as f32).collect();
        let mask = B::float_from_data(TensorData::new(mask, prim_shape(&condition.shape)), &yes.t.device());
        let mask = Self::wrap(mask, condition.shape.clone(), DType::F32).padded(shape.len());
        let mask: BoolTensor<B> = B::float_greater_elem(mask, scalar(0.5), bool_dtype(&yes.t));
        let mask = B::bool_expand(mask, prim_shape(&shape));
        Ok(Self::wrap(B::float_mask_where(no.t, mask, yes.t), shape, dtype))
    }
}

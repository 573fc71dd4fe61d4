//! The sliding window shared by convolution and pooling.

use crate::{
    attr::{Attrs, Reader},
    error::{Error, Result},
    value::Dim,
};

/// The longest axis whose windows are counted.
const LONGEST: i64 = i32::MAX as i64;

/// ONNX's `auto_pad`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub enum AutoPad {
    #[default]
    NotSet,
    SameUpper,
    SameLower,
    Valid,
}

/// Strides, padding and dilation of a sliding window. Empty lists stand for the defaults
/// (1, 0 and 1), as the number of spatial axes may not be known.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Window {
    /// Steps between positions, one an axis.
    pub strides: Vec<i64>,
    /// Padding: all begins, then all ends.
    pub pads: Vec<i64>,
    /// Steps between taps, one an axis.
    pub dilations: Vec<i64>,
    /// How padding is chosen when `pads` does not say.
    pub auto_pad: AutoPad,
    /// Whether a last, partly filled position counts.
    pub ceil_mode: bool,
}

impl Window {
    /// Whether no position lies partly outside of the input.
    pub fn pads_nothing(&self) -> bool {
        match self.auto_pad {
            AutoPad::NotSet => self.pads.iter().all(|p| *p == 0),
            AutoPad::Valid => true,
            AutoPad::SameUpper | AutoPad::SameLower => false,
        }
    }

    /// Reads the window's attributes and checks them.
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let auto_pad = match r.string("auto_pad", "NOTSET")?.as_str() {
            "NOTSET" => AutoPad::NotSet,
            "SAME_UPPER" => AutoPad::SameUpper,
            "SAME_LOWER" => AutoPad::SameLower,
            "VALID" => AutoPad::Valid,
            other => return Err(Error::malformed(format!("auto_pad {other}"))),
        };
        let w = Self {
            strides: r.opt_ints("strides")?.unwrap_or_default(),
            pads: r.opt_ints("pads")?.unwrap_or_default(),
            dilations: r.opt_ints("dilations")?.unwrap_or_default(),
            auto_pad,
            ceil_mode: r.flag("ceil_mode", false)?,
        };
        for (name, list) in [("strides", &w.strides), ("dilations", &w.dilations)] {
            if list.iter().any(|v| *v < 1 || *v > LONGEST) {
                return Err(Error::malformed(format!("{name} {list:?} must all be from 1 to {LONGEST}")));
            }
        }
        if w.pads.iter().any(|p| *p < 0 || *p > LONGEST) {
            return Err(Error::malformed(format!("pads {:?} must all be from 0 to {LONGEST}", w.pads)));
        }
        Ok(w)
    }

    /// The attributes that are not at their default.
    pub(super) fn attrs(&self) -> Attrs {
        let mut a: Attrs = vec![];
        for (name, list) in [("strides", &self.strides), ("pads", &self.pads), ("dilations", &self.dilations)] {
            if !list.is_empty() {
                a.push((name, list.clone().into()));
            }
        }
        match self.auto_pad {
            AutoPad::NotSet => {}
            AutoPad::SameUpper => a.push(("auto_pad", "SAME_UPPER".into())),
            AutoPad::SameLower => a.push(("auto_pad", "SAME_LOWER".into())),
            AutoPad::Valid => a.push(("auto_pad", "VALID".into())),
        }
        if self.ceil_mode {
            a.push(("ceil_mode", true.into()));
        }
        a
    }

    /// Checks that every list has one entry an axis (two for pads).
    ///
    /// # Errors
    /// Malformed otherwise.
    pub fn check_rank(&self, spatial: usize) -> Result<()> {
        let bad = |list: &[i64], n: usize| !list.is_empty() && list.len() != n;
        if bad(&self.strides, spatial) || bad(&self.dilations, spatial) || bad(&self.pads, 2 * spatial) {
            return Err(Error::malformed(format!(
                "strides {:?}, pads {:?}, dilations {:?} do not fit {spatial} spatial axes",
                self.strides, self.pads, self.dilations
            )));
        }
        Ok(())
    }

    /// The stride along `axis`.
    pub fn stride(&self, axis: usize) -> i64 {
        self.strides.get(axis).copied().unwrap_or(1)
    }

    /// The dilation along `axis`.
    pub fn dilation(&self, axis: usize) -> i64 {
        self.dilations.get(axis).copied().unwrap_or(1)
    }

    /// Padding (begin, end) along `axis` of size `size` under a kernel of `kernel` taps.
    pub fn padding(&self, axis: usize, size: i64, kernel: i64) -> (i64, i64) {
        let n = self.pads.len() / 2;
        match self.auto_pad {
            AutoPad::NotSet if n > axis => (self.pads[axis], self.pads[n + axis]),
            AutoPad::NotSet | AutoPad::Valid => (0, 0),
            AutoPad::SameUpper | AutoPad::SameLower => {
                let s = self.stride(axis);
                let out = (size + s - 1) / s;
                let total = ((out - 1) * s + self.dilation(axis) * (kernel - 1) + 1 - size).max(0);
                let (small, large) = (total / 2, total - total / 2);
                if self.auto_pad == AutoPad::SameUpper { (small, large) } else { (large, small) }
            }
        }
    }

    /// Positions of the window along `axis`.
    ///
    /// # Errors
    /// Malformed when the window is larger than the padded axis.
    pub fn output(&self, axis: usize, size: &Dim, kernel: i64) -> Result<Dim> {
        // What is larger than that can't run, and might overflow here.
        let (Some(size), 1..=LONGEST) = (size.known().filter(|n| *n <= LONGEST), kernel) else {
            return Ok(Dim::Unknown);
        };
        let (begin, end) = self.padding(axis, size, kernel);
        let room = size + begin + end - (self.dilation(axis) * (kernel - 1) + 1);
        let s = self.stride(axis);
        let mut out = room.div_euclid(s) + 1;
        // A last, partial position counts only if it starts inside the input or its left padding.
        if self.ceil_mode && room.rem_euclid(s) != 0 && out * s < size + begin {
            out += 1;
        }
        if out < 1 {
            return Err(Error::malformed(format!(
                "a window of {kernel} taps does not fit an axis of {size} padded by {begin} and {end}"
            )));
        }
        Ok(Dim::Known(out))
    }
}

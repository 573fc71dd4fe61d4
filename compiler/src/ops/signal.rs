//! Signal processing: windows, Fourier transforms, mel scales.

use crate::{
    attr::{Attrs, Reader},
    error::{Error, Result},
    op::{Inputs, Operator},
    tensor::{DType, Tensor},
    value::{self, Dim, Fact},
};
use std::ops::RangeInclusive;

fn number_type(r: &mut Reader) -> Result<DType> {
    let dtype = r.opt_dtype("output_datatype")?.unwrap_or(DType::F32);
    if dtype == DType::String {
        return Err(Error::unsupported(format!("{} of strings", r.op_type)));
    }
    Ok(dtype)
}

/// The one element at `slot`, as far as it is known.
fn one(x: &Inputs, slot: usize) -> Dim {
    match x.get(slot).elems.as_deref() {
        Some([n]) => n.clone(),
        _ => Dim::Unknown,
    }
}

fn not_negative(d: Dim, what: &str) -> Result<Dim> {
    match d.known() {
        Some(n) if n < 0 => Err(Error::malformed(format!("{what} of {n}"))),
        _ => Ok(d),
    }
}

fn halved(d: &Dim) -> Dim {
    d.zip(&Dim::Known(1), |n, one| (n / 2).checked_add(one))
}

/// Which window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum WindowKind {
    Hann,
    Hamming,
    Blackman,
}

/// A window of the length in the input.
#[derive(Debug, Clone, PartialEq)]
pub struct SignalWindow {
    /// Which one.
    pub kind: WindowKind,
    /// Whether it is a period of a periodic function, rather than symmetric.
    pub periodic: bool,
    /// The type of the output.
    pub dtype: DType,
}

impl SignalWindow {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let kind = match &r.op_type[..] {
            "HannWindow" => WindowKind::Hann,
            "HammingWindow" => WindowKind::Hamming,
            _ => WindowKind::Blackman,
        };
        Ok(Self { kind, periodic: r.flag("periodic", true)?, dtype: number_type(r)? })
    }
}

impl Operator for SignalWindow {
    fn op_type(&self) -> &str {
        match self.kind {
            WindowKind::Hann => "HannWindow",
            WindowKind::Hamming => "HammingWindow",
            WindowKind::Blackman => "BlackmanWindow",
        }
    }

    fn attrs(&self) -> Attrs {
        let mut a: Attrs = vec![("output_datatype", (self.dtype as i64).into())];
        if !self.periodic {
            a.push(("periodic", false.into()));
        }
        a
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let size = not_negative(one(x, 0), "a window")?;
        Ok(vec![Fact::new(Some(self.dtype), Some(vec![size]))])
    }

    fn since(&self) -> i64 {
        17
    }

    fn inflates(&self) -> bool {
        true
    }
}

/// The discrete Fourier transform along one axis. The last axis of the input is a number's real and
/// perhaps imaginary part. Inputs: signal, length, axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Dft {
    /// Whether it is the inverse.
    pub inverse: bool,
    /// Whether the half of a spectrum is made of a real signal, or the other way round.
    pub onesided: bool,
}

impl Dft {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        if r.opset < 20 {
            let axis = r.int("axis", 1)?;
            r.lift(2, Tensor::ints(DType::I64, &[], &[axis]));
        }
        Ok(Self { inverse: r.flag("inverse", false)?, onesided: r.flag("onesided", false)? })
    }

    /// The axis, counted from the front: not the last.
    ///
    /// # Errors
    /// Malformed when it is none of an input of `rank`.
    pub fn axis(axis: i64, rank: usize) -> Result<usize> {
        let at = value::axis(axis, rank)?;
        if at + 1 == rank {
            return Err(Error::malformed("the last axis is that of complex numbers"));
        }
        Ok(at)
    }
}

impl Operator for Dft {
    fn op_type(&self) -> &str {
        "DFT"
    }

    fn attrs(&self) -> Attrs {
        let mut a: Attrs = vec![];
        if self.inverse {
            a.push(("inverse", true.into()));
        }
        if self.onesided {
            a.push(("onesided", true.into()));
        }
        a
    }

    fn arity(&self) -> RangeInclusive<usize> {
        1..=3
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let dtype = x.get(0).dtype;
        let Some(data) = x.dims(0) else { return Ok(vec![Fact::new(dtype, None)]) };
        if data.len() < 2 {
            return Err(Error::malformed(format!("a signal of rank {}", data.len())));
        }
        let axis = match x.opt(2) {
            None => Some(Self::axis(-2, data.len())?),
            Some(_) => one(x, 2).known().map(|a| Self::axis(a, data.len())).transpose()?,
        };
        let mut shape = data.to_vec();
        shape[data.len() - 1] = Dim::Known(if self.inverse && self.onesided { 1 } else { 2 });
        match axis {
            Some(at) => {
                let length = match x.opt(1) {
                    Some(_) => not_negative(one(x, 1), "a signal")?,
                    None if self.inverse && self.onesided => {
                        data[at].zip(&Dim::Known(1), |n, one| (n - one).checked_mul(2))
                    }
                    None => data[at].clone(),
                };
                shape[at] = if self.onesided && !self.inverse { halved(&length) } else { length };
            }
            None => shape[..data.len() - 1].iter_mut().for_each(|d| *d = Dim::Unknown),
        }
        Ok(vec![Fact::new(dtype, Some(shape))])
    }

    fn since(&self) -> i64 {
        20
    }
}

/// The Fourier transforms of windows that slide over a signal. Inputs: signal, step, window, length.
#[derive(Debug, Clone, PartialEq)]
pub struct Stft {
    /// Whether only the half of the spectrum is made that says it all of a real signal.
    pub onesided: bool,
}

impl Stft {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self { onesided: r.flag("onesided", true)? })
    }
}

impl Operator for Stft {
    fn op_type(&self) -> &str {
        "STFT"
    }

    fn attrs(&self) -> Attrs {
        if self.onesided { vec![] } else { vec![("onesided", false.into())] }
    }

    fn arity(&self) -> RangeInclusive<usize> {
        2..=4
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let (batch, signal) = match x.dims(0) {
            Some([b, n, _]) => (b.clone(), n.clone()),
            Some(d) => return Err(Error::malformed(format!("a signal of rank {}, not 3", d.len()))),
            None => (Dim::Unknown, Dim::Unknown),
        };
        let length = match (x.opt(3), x.opt(2)) {
            (Some(_), _) => not_negative(one(x, 3), "a window")?,
            (None, Some(w)) => w.dims().and_then(|d| d.first()).cloned().unwrap_or(Dim::Unknown),
            (None, None) => signal.clone(),
        };
        let room = signal.zip(&length, |n, l| n.checked_sub(l).filter(|r| *r >= 0));
        let frames = room.zip(&one(x, 1), |r, step| if step > 0 { (r / step).checked_add(1) } else { None });
        let bins = if self.onesided { halved(&length) } else { length };
        Ok(vec![Fact::new(x.get(0).dtype, Some(vec![batch, frames, bins, Dim::Known(2)]))])
    }

    fn since(&self) -> i64 {
        17
    }
}

/// The matrix that turns a spectrum into bands of the mel scale. Inputs: the number of bands, the
/// length of the transform, the rate of the signal, the lowest and the highest frequency.
#[derive(Debug, Clone, PartialEq)]
pub struct MelWeightMatrix {
    /// The type of the output.
    pub dtype: DType,
}

impl MelWeightMatrix {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self { dtype: number_type(r)? })
    }
}

impl Operator for MelWeightMatrix {
    fn op_type(&self) -> &str {
        "MelWeightMatrix"
    }
    fn attrs(&self) -> Attrs {
        vec![("output_datatype", (self.dtype as i64).into())]
    }
    fn arity(&self) -> RangeInclusive<usize> {
        5..=5
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let bands = not_negative(one(x, 0), "a number of bands")?;
        let bins = halved(&not_negative(one(x, 1), "a transform")?);
        Ok(vec![Fact::new(Some(self.dtype), Some(vec![bins, bands]))])
    }
    fn since(&self) -> i64 {
        17
    }
    fn inflates(&self) -> bool {
        true
    }
}

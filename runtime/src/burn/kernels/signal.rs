//! Windows, Fourier transforms and mel scales.

use super::{
    Args,
    numbers::{floats, number, of_floats, whole},
};
use crate::burn::{host::check_host, tensor::Value};
use compress_compiler::{
    error::{Error, Result},
    ops::signal::{Dft, MelWeightMatrix, SignalWindow, Stft, WindowKind},
};
use std::f64::consts::PI;

/// A complex number: its real and its imaginary part.
type Complex = [f64; 2];

fn times(a: Complex, b: Complex) -> Complex {
    [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
}

fn turn(angle: f64) -> Complex {
    [angle.cos(), angle.sin()]
}

/// The transform (or its inverse, not divided by the length) of a signal whose length is a power of 2.
fn fft_of_two(x: &mut [Complex], sign: f64) {
    let n = x.len();
    let bits = n.trailing_zeros();
    for i in 0..n {
        let j = if bits == 0 { 0 } else { i.reverse_bits() >> (usize::BITS - bits) };
        if i < j {
            x.swap(i, j);
        }
    }
    let mut half = 1;
    while half < n {
        let turns: Vec<Complex> = (0..half).map(|k| turn(sign * PI * k as f64 / half as f64)).collect();
        for block in x.chunks_exact_mut(2 * half) {
            let (low, high) = block.split_at_mut(half);
            for ((a, b), t) in low.iter_mut().zip(high).zip(&turns) {
                let v = times(*b, *t);
                *b = [a[0] - v[0], a[1] - v[1]];
                *a = [a[0] + v[0], a[1] + v[1]];
            }
        }
        half *= 2;
    }
}

/// The transform (or its inverse, not divided by the length) of a signal of any length.
fn fft(mut x: Vec<Complex>, inverse: bool) -> Vec<Complex> {
    let (n, sign) = (x.len(), if inverse { 1.0 } else { -1.0 });
    if n.is_power_of_two() || n == 0 {
        fft_of_two(&mut x, sign);
        return x;
    }
    // Bluestein: a convolution with a chirp, done by transforms of a power of 2.
    let chirp: Vec<Complex> =
        (0..n as u128).map(|k| turn(sign * PI * (k * k % (2 * n as u128)) as f64 / n as f64)).collect();
    let size = (2 * n - 1).next_power_of_two();
    let (mut a, mut b) = (vec![[0.0; 2]; size], vec![[0.0; 2]; size]);
    for k in 0..n {
        a[k] = times(x[k], chirp[k]);
        let back = [chirp[k][0], -chirp[k][1]];
        b[k] = back;
        b[(size - k) % size] = back;
    }
    fft_of_two(&mut a, -1.0);
    fft_of_two(&mut b, -1.0);
    a.iter_mut().zip(b).for_each(|(a, b)| *a = times(*a, b));
    fft_of_two(&mut a, 1.0);
    (0..n).map(|k| times([a[k][0] / size as f64, a[k][1] / size as f64], chirp[k])).collect()
}

/// A length that a signal can have.
fn length(n: i64) -> Result<usize> {
    let n = usize::try_from(n).ok().filter(|n| *n > 0);
    check_host(&[n.ok_or_else(|| Error::malformed("a signal without samples"))?])
}

/// The Fourier transform along one axis.
pub(super) fn dft(op: &Dft, mut a: Args) -> Result<Value> {
    let given = a.opt(1).map(whole).transpose()?;
    let axis = a.opt(2).map(whole).transpose()?.unwrap_or(-2);
    let x = a.take(0)?;
    let (shape, dtype) = (x.shape().to_vec(), x.dtype());
    let rank = shape.len();
    let axis = Dft::axis(axis, rank)?;
    let parts = shape[rank - 1];
    if !(1..=2).contains(&parts) {
        return Err(Error::malformed(format!("a last axis of {parts}, where numbers have 1 or 2 parts")));
    }
    let (have, real) = (shape[axis], op.inverse && op.onesided);
    let n = length(given.unwrap_or(if real { 2 * (have as i64 - 1) } else { have as i64 }))?;
    let bins = if op.onesided && !op.inverse { n / 2 + 1 } else { n };
    let mut out_shape = shape.clone();
    out_shape[axis] = bins;
    out_shape[rank - 1] = if real { 1 } else { 2 };
    let out_parts = out_shape[rank - 1];
    let mut out = vec![0.0; check_host(&out_shape)?];
    let (outer, inner): (usize, usize) = (shape[..axis].iter().product(), shape[axis + 1..rank - 1].iter().product());
    let x = floats(x)?;
    let scale = if op.inverse { 1.0 / n as f64 } else { 1.0 };
    for row in 0..outer * inner {
        let (o, i) = (row / inner, row % inner);
        let mut signal = vec![[0.0; 2]; n];
        // Of a real signal, half of the spectrum says all.
        let known = have.min(if real { n / 2 + 1 } else { n });
        for (k, v) in signal.iter_mut().enumerate().take(known) {
            let at = ((o * have + k) * inner + i) * parts;
            *v = [x[at], if parts == 2 { x[at + 1] } else { 0.0 }];
        }
        if real {
            for k in n / 2 + 1..n {
                signal[k] = [signal[n - k][0], -signal[n - k][1]];
            }
        }
        for (k, v) in fft(signal, op.inverse).into_iter().take(bins).enumerate() {
            let at = ((o * bins + k) * inner + i) * out_parts;
            out[at..at + out_parts].iter_mut().zip(v).for_each(|(o, v)| *o = v * scale);
        }
    }
    of_floats(out, &out_shape, dtype, a.device)
}

/// The Fourier transforms of windows that slide over a signal.
pub(super) fn stft(op: &Stft, mut a: Args) -> Result<Value> {
    let (x, step) = (a.take(0)?, whole(a.take(1)?)?);
    let (window, given) = (a.opt(2).map(floats).transpose()?, a.opt(3).map(whole).transpose()?);
    let (shape, dtype) = (x.shape().to_vec(), x.dtype());
    let [batch, samples, parts @ 1..=2] = shape[..] else {
        return Err(Error::malformed(format!("a signal of {shape:?}")));
    };
    let whole_signal = window.as_ref().map_or(samples, Vec::len);
    let n = length(given.unwrap_or(whole_signal as i64))?;
    let step = length(step)?;
    if n > samples || window.as_ref().is_some_and(|w| w.len() != n) {
        return Err(Error::malformed(format!("windows of {n} on a signal of {samples}")));
    }
    let frames = (samples - n) / step + 1;
    let bins = if op.onesided { n / 2 + 1 } else { n };
    let shape = [batch, frames, bins, 2];
    let mut out = Vec::with_capacity(check_host(&shape)?);
    let x = floats(x)?;
    for b in 0..batch {
        for frame in 0..frames {
            let sample = |k: usize| {
                let at = (b * samples + frame * step + k) * parts;
                let w = window.as_ref().map_or(1.0, |w| w[k]);
                [x[at] * w, if parts == 2 { x[at + 1] * w } else { 0.0 }]
            };
            let spectrum = fft((0..n).map(sample).collect(), false);
            out.extend(spectrum.into_iter().take(bins).flatten());
        }
    }
    of_floats(out, &shape, dtype, a.device)
}

/// A window.
pub(super) fn window(op: &SignalWindow, mut a: Args) -> Result<Value> {
    let size = whole(a.take(0)?)?;
    let size = usize::try_from(size).map_err(|_| Error::malformed(format!("a window of {size}")))?;
    check_host(&[size])?;
    let period = if op.periodic { size as f64 } else { size as f64 - 1.0 };
    let value = |i: usize| {
        let angle = 2.0 * PI * i as f64 / period;
        match op.kind {
            WindowKind::Hann => 0.5 - 0.5 * angle.cos(),
            WindowKind::Hamming => 25.0 / 46.0 - 21.0 / 46.0 * angle.cos(),
            WindowKind::Blackman => 0.42 - 0.5 * angle.cos() + 0.08 * (2.0 * angle).cos(),
        }
    };
    of_floats((0..size).map(value).collect(), &[size], op.dtype, a.device)
}

/// The matrix that turns a spectrum into bands of the mel scale.
pub(super) fn mel_weight_matrix(op: &MelWeightMatrix, mut a: Args) -> Result<Value> {
    let (bands, n, rate) = (whole(a.take(0)?)?, whole(a.take(1)?)?, whole(a.take(2)?)?);
    let (low, high) = (number(a.take(3)?)?, number(a.take(4)?)?);
    let sizes = usize::try_from(bands).ok().zip(usize::try_from(n / 2 + 1).ok()).filter(|_| n >= 0 && rate > 0);
    let (bands, bins) = sizes.ok_or_else(|| Error::malformed(format!("{bands} bands of {n} bins at {rate}")))?;
    let shape = [bins, bands];
    let mut out = vec![0.0; check_host(&shape)?];
    let mel = |hertz: f64| 2595.0 * (1.0 + hertz / 700.0).log10();
    let each = (mel(high) - mel(low)) / (bands + 2) as f64;
    let bin = |i: usize| {
        let hertz = 700.0 * (10f64.powf((i as f64 * each + mel(low)) / 2595.0) - 1.0);
        ((n as f64 + 1.0) * hertz / rate as f64).floor().clamp(-1.0, bins as f64) as i64
    };
    for band in 0..bands {
        let (left, center, right) = (bin(band), bin(band + 1), bin(band + 2));
        if left < 0 || center >= bins as i64 || right > bins as i64 {
            return Err(Error::malformed(format!("band {band} lies outside of a spectrum of {bins} bins")));
        }
        let mut set = |j: i64, v: f64| out[j as usize * bands + band] = v;
        if left == center {
            set(center, 1.0);
        }
        (left..center + 1).filter(|_| left < center).for_each(|j| set(j, (j - left) as f64 / (center - left) as f64));
        (center..right).for_each(|j| set(j, (right - j) as f64 / (right - center) as f64));
    }
    of_floats(out, &shape, op.dtype, a.device)
}

//! From the shape and numbers stored in a file to the shape and numbers a model takes.

use super::{InputSpec, Preprocess, size};
use compress_compiler::{
    error::{Error, Result},
    narrow::is_narrow,
    tensor::DType,
    value::Dim,
};
use std::ops::Range;

// More than is sensible, and little enough to refuse before the machine runs dry. The limit for a
// sample is lower because every thread holds one as it is stored.
const MAX_BATCH: usize = 4 << 30;
const MAX_SAMPLE: usize = 1 << 30;

/// Whether samples become a batch by stacking them along the first axis.
///
/// That needs a first axis which all the inputs share. A model that lacks one (a recurrent state
/// laid out `[layers, batch, ..]`, a mask `[length, length]`, a scalar) is fed one sample at a time,
/// each with the full shape. First axes of different names are still the same axis: exporters
/// name each input's anew.
pub(super) fn stacks(inputs: &[InputSpec]) -> bool {
    let behind = |axis: &Dim| inputs.iter().any(|i| i.shape.iter().skip(1).any(|other| other.same(axis)));
    let counts = |axis: &Dim| match size(axis) {
        Some(n) => n > 0 && fixed_front(inputs) == Some(n),
        None => !behind(axis),
    };
    inputs.iter().all(|i| i.shape.first().is_some_and(counts))
}

/// The size of the first of the first axes that have but one.
pub(super) fn fixed_front(inputs: &[InputSpec]) -> Option<usize> {
    inputs.iter().find_map(|i| size(i.shape.first()?))
}

/// The axes of one sample, as the model declares them.
fn sample_axes(spec: &InputSpec, stacked: bool) -> Vec<Option<usize>> {
    spec.sizes().split_off(usize::from(stacked && !spec.shape.is_empty()))
}

/// The shape that samples of shape `found` take in the model.
pub(super) fn fit(spec: &InputSpec, stacked: bool, found: &[usize]) -> Result<Vec<usize>> {
    let wanted = sample_axes(spec, stacked);
    let agrees = |shape: &[usize]| {
        shape.len() == wanted.len()
            && shape.iter().zip(&wanted).all(|(found, wanted)| wanted.is_none_or(|w| w == *found))
    };
    if found.contains(&0) {
        return Err(Error::data(format!("the samples for `{}` are empty: {found:?}", spec.name)));
    }
    if agrees(found) {
        return Ok(found.to_vec());
    }
    // Whole inputs of one sample are mostly stored without the axis that counts samples.
    if !stacked && wanted.len() == found.len() + 1 && wanted[0].is_none_or(|n| n == 1) {
        let whole: Vec<usize> = [&[1], found].concat();
        if agrees(&whole) {
            return Ok(whole);
        }
    }
    // Samples may be stored as the model takes them one at a time: each with an axis that counts one.
    if let (true, [1, rest @ ..]) = (stacked, found)
        && agrees(rest)
    {
        return Ok(rest.to_vec());
    }
    // Grey pictures are mostly stored without the channel axis that the model declares.
    if let (true, &[height, width]) = (stacked, found)
        && agrees(&[1, height, width])
    {
        return Ok(vec![1, height, width]);
    }
    let axes: String = wanted.iter().map(|w| w.map_or(", ?".to_owned(), |w| format!(", {w}"))).collect();
    let shape: String = found.iter().map(|f| format!(", {f}")).collect();
    let e = Error::data(format!("the data for `{}` is [N{shape}], but the model takes [N{axes}]", spec.name));
    Err(match *found {
        [h, w, c] if agrees(&[c, h, w]) => {
            e.help("the channels come last in the data; reorder it with x.transpose(0, 3, 1, 2)")
        }
        _ if !stacked => e.help(
            "the model's inputs share no batch axis, so the data needs an axis of samples in \
             front of each input's whole shape",
        ),
        _ => e.help("N is the number of samples; reshape the data to the model's shape"),
    })
}

/// Zeroed memory for `count` samples, refused rather than fatal when there is too little.
#[expect(clippy::slow_vector_initialization, reason = "`vec!` aborts when memory is short")]
pub(super) fn room(count: usize, sample_bytes: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match count.checked_mul(sample_bytes).filter(|n| *n <= MAX_BATCH) {
        Some(n) if bytes.try_reserve_exact(n).is_ok() => {
            bytes.resize(n, 0);
            Ok(bytes)
        }
        _ => Err(Error::limit(format!("{count} samples of {sample_bytes} bytes are too much for one batch"))
            .help("use smaller batches or smaller samples")),
    }
}

/// Data sets hold neither text nor the narrow types, which may share a byte.
pub(super) fn check_type(dtype: DType) -> Result<()> {
    if dtype == DType::String || dtype.bits() < 8 || is_narrow(dtype) {
        return Err(Error::unsupported(format!("{dtype} values cannot be fed")));
    }
    Ok(())
}

/// The bytes of one sample, unless they are too many.
pub(super) fn size_of(dtype: DType, shape: &[usize]) -> Result<usize> {
    shape
        .iter()
        .try_fold(dtype.size(), |n, d| n.checked_mul(*d))
        .filter(|n| *n <= MAX_SAMPLE)
        .ok_or_else(|| Error::limit(format!("a sample of {dtype}{shape:?} is too large")))
}

/// The way from the stored numbers of one sample to those the model takes.
pub(super) struct Values {
    from: DType,
    to: DType,
    scale: f64,
    mean: Vec<f64>,
    std: Vec<f64>,
    /// Bytes of a stored colour plane, when red and blue trade places.
    swap: Option<usize>,
    plane: usize,
    /// What each byte becomes, for each mean and std; empty unless bytes become `f32`.
    table: Vec<[[u8; 4]; 256]>,
}

impl Values {
    /// For samples of `shape` (as [`fit`] gave it) stored as `from`. `picture` says that a stored
    /// byte is a brightness, which becomes 0 to 1 even when nothing is asked for.
    pub(super) fn new(
        spec: &InputSpec,
        stacked: bool,
        from: DType,
        shape: &[usize],
        preprocess: Option<&Preprocess>,
        picture: bool,
    ) -> Result<Self> {
        let values = Self::computed(spec, stacked, from, shape, preprocess, picture)?;
        Ok(Self { table: values.tabulated(), ..values })
    }

    fn computed(
        spec: &InputSpec,
        stacked: bool,
        from: DType,
        shape: &[usize],
        preprocess: Option<&Preprocess>,
        picture: bool,
    ) -> Result<Self> {
        let to = spec.dtype;
        check_type(to).and(check_type(from)).map_err(|e| e.about(format_args!("input `{}`", spec.name)))?;
        if from.is_float() && !to.is_float() {
            return Err(Error::data(format!("the data for `{}` is {from}, but the model takes {to}", spec.name))
                .help(format!("convert it first; fractions are not cut off to make {to} of them")));
        }
        size_of(to, shape)?;
        let axis = if stacked { 0 } else { 1 };
        let channels = shape.get(axis).copied().unwrap_or(1);
        let mut values = Self {
            from,
            to,
            scale: 1.0,
            mean: vec![0.0],
            std: vec![1.0],
            swap: None,
            plane: shape.iter().skip(axis + 1).product(),
            table: Vec::new(),
        };
        if to.is_float() && picture {
            values.scale = 255.0;
        }
        let Some(p) = preprocess else { return Ok(values) };
        if p.bgr && channels == 3 {
            values.swap = Some(values.plane * from.size());
        }
        if !to.is_float() {
            return Ok(values);
        }
        let per_channel = p.mean.len().max(p.std.len());
        if (per_channel > 1 && per_channel != channels) || (p.bgr && channels != 3) {
            let wants = if p.bgr { 3 } else { per_channel };
            return Err(Error::data(format!(
                "the preprocessing is for {wants} channels, but `{}` has {channels}",
                spec.name
            ))
            .help("give one mean and one std, or one for each channel; bgr needs three"));
        }
        let default = if from == DType::U8 { 255.0 } else { 1.0 };
        values.scale = p.scale.map_or(default, f64::from);
        let widen = |list: &[f32], none: f64| match list {
            [] => vec![none],
            list => list.iter().map(|v| f64::from(*v)).collect(),
        };
        values.mean = widen(&p.mean, 0.0);
        values.std = widen(&p.std, 1.0);
        Ok(values)
    }

    /// The table of bytes, unless one of them becomes too large a value, which only samples that
    /// have it are refused for.
    fn tabulated(&self) -> Vec<[[u8; 4]; 256]> {
        if (self.from, self.to) != (DType::U8, DType::F32) {
            return Vec::new();
        }
        let bytes: [u8; 256] = std::array::from_fn(|byte| byte as u8);
        let one = |channel: usize| {
            let mut out = [[0; 4]; 256];
            self.convert_run(0..256, self.of(channel), &bytes, out.as_flattened_mut()).ok().map(|()| out)
        };
        (0..self.mean.len().max(self.std.len())).map(one).collect::<Option<_>>().unwrap_or_default()
    }

    /// The mean and std of a channel.
    fn of(&self, channel: usize) -> (f64, f64) {
        (self.mean[channel % self.mean.len()], self.std[channel % self.std.len()])
    }

    /// Converts one sample; an `Err` says what is wrong with it. `stored` is spoiled.
    pub(super) fn convert(&self, stored: &mut [u8], out: &mut [u8]) -> Result<(), String> {
        if let Some(plane) = self.swap {
            for picture in stored.chunks_exact_mut(3 * plane) {
                let (red, rest) = picture.split_at_mut(plane);
                red.swap_with_slice(&mut rest[plane..]);
            }
        }
        let (from, to) = (self.from.size(), self.to.size());
        if !self.to.is_float() {
            if self.from == self.to {
                out.copy_from_slice(stored);
                return Ok(());
            }
            for (stored, out) in stored.chunks_exact(from).zip(out.chunks_exact_mut(to)) {
                let value = read_int(self.from, stored);
                // No type here is wider than 64 bits, so `u64::MAX` is the only bound to mind.
                let (low, high) = self.to.int_range().unwrap_or_default();
                let high = if self.to == DType::U64 { i128::from(u64::MAX) } else { high.into() };
                let low = if self.to == DType::U64 { 0 } else { i128::from(low) };
                if value < low || value > high {
                    return Err(format!("{value} does not fit the model's {}", self.to));
                }
                out.copy_from_slice(&value.to_le_bytes()[..to]);
            }
            return Ok(());
        }
        let elements = stored.len() / from;
        let per_channel = self.mean.len().max(self.std.len());
        let run = if per_channel > 1 { self.plane } else { elements };
        for start in (0..elements).step_by(run.max(1)) {
            let channel = start / run.max(1) % per_channel;
            let end = (start + run).min(elements);
            match self.table.get(channel) {
                Some(table) => {
                    for (byte, out) in stored[start..end].iter().zip(out.as_chunks_mut().0[start..end].iter_mut()) {
                        *out = table[usize::from(*byte)];
                    }
                }
                None => self.convert_run(start..end, self.of(channel), stored, out)?,
            }
        }
        Ok(())
    }

    /// Goes through a small buffer, so that a large sample costs no second copy in `f64`.
    fn convert_run(
        &self,
        run: Range<usize>,
        (mean, std): (f64, f64),
        stored: &[u8],
        out: &mut [u8],
    ) -> Result<(), String> {
        const BLOCK: usize = 512;
        let mut buffer = [0.0; BLOCK];
        let (from, to) = (self.from.size(), self.to.size());
        for start in run.clone().step_by(BLOCK) {
            let end = (start + BLOCK).min(run.end);
            let block = &mut buffer[..end - start];
            read_floats(self.from, &stored[start * from..end * from], block);
            if block.iter().any(|v| !v.is_finite()) {
                return Err("it has a NaN or an infinity".to_owned());
            }
            for v in block.iter_mut() {
                *v = (*v / self.scale - mean) / std;
            }
            if !write_floats(self.to, block, &mut out[start * to..end * to]) {
                return Err(format!("a value is too large for the model's {}", self.to));
            }
        }
        Ok(())
    }
}

/// A little-endian integer of type `dtype`; wide enough for every type.
pub(super) fn read_int(dtype: DType, bytes: &[u8]) -> i128 {
    let mut wide = [0; 16];
    wide[..bytes.len()].copy_from_slice(bytes);
    let value = i128::from_le_bytes(wide);
    match dtype {
        DType::Bool => (value != 0).into(),
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => {
            let unused = 128 - 8 * bytes.len() as u32;
            value << unused >> unused
        }
        _ => value,
    }
}

fn read_floats(dtype: DType, bytes: &[u8], out: &mut [f64]) {
    fn each<const N: usize>(bytes: &[u8], out: &mut [f64], read: impl Fn([u8; N]) -> f64) {
        for (bytes, out) in bytes.as_chunks::<N>().0.iter().zip(out) {
            *out = read(*bytes);
        }
    }
    match dtype {
        DType::U8 => each(bytes, out, |[b]| b.into()),
        DType::F32 => each(bytes, out, |b| f32::from_le_bytes(b).into()),
        DType::F64 => each(bytes, out, f64::from_le_bytes),
        DType::F16 => each(bytes, out, |b| half::f16::from_le_bytes(b).into()),
        DType::BF16 => each(bytes, out, |b| half::bf16::from_le_bytes(b).into()),
        _ => {
            for (bytes, out) in bytes.chunks_exact(dtype.size()).zip(out) {
                *out = read_int(dtype, bytes) as f64;
            }
        }
    }
}

/// `false` when a value is out of the type's range.
pub(super) fn write_floats(dtype: DType, values: &[f64], out: &mut [u8]) -> bool {
    fn each<const N: usize>(values: &[f64], out: &mut [u8], write: impl Fn(f64) -> (bool, [u8; N])) -> bool {
        let mut fits = true;
        for (value, out) in values.iter().zip(out.as_chunks_mut::<N>().0) {
            let (finite, bytes) = write(*value);
            fits &= finite;
            *out = bytes;
        }
        fits
    }
    match dtype {
        DType::F64 => each(values, out, |v| (v.is_finite(), v.to_le_bytes())),
        DType::F16 => each(values, out, |v| {
            let v = half::f16::from_f64(v);
            (v.is_finite(), v.to_le_bytes())
        }),
        DType::BF16 => each(values, out, |v| {
            let v = half::bf16::from_f64(v);
            (v.is_finite(), v.to_le_bytes())
        }),
        _ => each(values, out, |v| {
            let v = v as f32;
            (v.is_finite(), v.to_le_bytes())
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::spec;
    use super::*;

    #[test]
    fn looked_up_bytes_are_the_computed_ones() {
        let spec = spec("x", &[None, Some(3), Some(9), Some(33)]);
        for text in ["imagenet", "scale=1,mean=3", "bgr,std=0.1:0.2:0.3", "scale=0.001"] {
            let preprocess = text.parse().unwrap();
            let make = |new: fn(_, _, _, _, _, _) -> Result<Values>| {
                let values = new(&spec, true, DType::U8, &[3, 9, 33][..], Some(&preprocess), true).unwrap();
                let mut stored: Vec<u8> = (0..891).map(|i| (i * 7) as u8).collect();
                let mut out = vec![0; 891 * 4];
                values.convert(&mut stored, &mut out).unwrap();
                (values.table.len(), out)
            };
            let (looked_up, computed) = (make(Values::new), make(Values::computed));
            assert!(looked_up.0 > 0 && computed.0 == 0 && looked_up.1 == computed.1, "{text}");
        }
        // The byte 255 is too large, so there is no table, and only samples with it are refused.
        let narrow = "scale=1e-37".parse().unwrap();
        let values = Values::new(&spec, true, DType::U8, &[3, 9, 33], Some(&narrow), true).unwrap();
        let mut out = vec![0; 891 * 4];
        assert!(values.convert(&mut vec![1; 891], &mut out).is_ok());
        assert!(values.convert(&mut vec![255; 891], &mut out).is_err());
    }
}

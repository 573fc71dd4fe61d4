//! What a layer reads and should answer, in second moments: gathered batch by batch, so that no activation is kept.

use crate::{layers::Layer, prune::solve::Rows, weight_matrix::WeightMatrix};
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    node::{NodeId, Port, Site},
    op::Op,
    ops::{gemm::Gemm, window::Window},
    part::only,
    pass::Calibrator,
    tensor::Tensor,
    verify::verify,
};
use rayon::prelude::*;

/// Multiplications that the moments of a group may take. Positions of a convolution are much alike: those of many
/// samples tell more than all of a few.
const WORK: f64 = 8e9;

/// But so many observations for each input there should be.
const OBSERVATIONS: usize = 16;

/// Observations that are multiplied at a time.
const CHUNK: usize = 512;

/// Rows of a product that are computed at a time. Of a symmetric one, the columns before the first of them are not.
pub(crate) const BLOCK: usize = 64;

/// How a layer's inputs become the columns of its matrix.
pub struct Inputs {
    /// The window; `None` for a product.
    window: Option<(Window, Vec<usize>)>,
    groups: usize,
    layout: WeightMatrix,
}

impl Inputs {
    /// Those of a layer; `None` where its input is transposed.
    pub fn of(g: &Graph, layer: &Layer, layout: WeightMatrix) -> Option<Self> {
        match g.op(layer.node) {
            Op::Gemm(Gemm { trans_a: true, .. }) => None,
            Op::Conv(conv) => {
                let kernel = g.constant(layer.weight.into())?.shape().get(2..)?.to_vec();
                Some(Self { window: Some((conv.window.clone(), kernel)), groups: conv.group as usize, layout })
            }
            _ => Some(Self { window: None, groups: 1, layout }),
        }
    }

    /// Parts of the layer with inputs of their own.
    pub fn groups(&self) -> usize {
        self.groups
    }
}

/// Sums over the observations of one group: inputs with themselves, and with wanted outputs.
pub struct Moments {
    columns: usize,
    rows: usize,
    count: f64,
    xx: Vec<f64>,
    yx: Vec<f64>,
    x: Vec<f64>,
    y: Vec<f64>,
    yy: Vec<f64>,
}

impl Moments {
    /// None yet, for each group of a layer.
    pub fn none(inputs: &Inputs) -> Vec<Self> {
        let (columns, rows) = (inputs.layout.columns(), inputs.layout.rows / inputs.groups);
        let zeros = |n| vec![0.0; n];
        let moments = || Self {
            columns,
            rows,
            count: 0.0,
            xx: zeros(columns * columns),
            // Only where outputs are wanted.
            yx: vec![],
            x: zeros(columns),
            y: zeros(rows),
            yy: zeros(rows),
        };
        (0..inputs.groups).map(|_| moments()).collect()
    }

    /// Whether nothing was seen, or something that is not a number.
    pub fn are_void(&self) -> bool {
        self.count == 0.0 || !self.xx.iter().chain(&self.yx).all(|v| v.is_finite())
    }

    /// Adds `n` observations: `x` has all columns of each, `y` all rows of each or nothing.
    fn add(&mut self, x: &[f64], y: &[f64]) {
        let (d, r) = (self.columns, self.rows);
        self.count += (x.len() / d) as f64;
        self.xx
            .par_chunks_mut(BLOCK * d)
            .enumerate()
            .for_each(|(i, to)| add_products(to, (x, d), (x, d), i * BLOCK, true));
        x.chunks(d).for_each(|x| self.x.iter_mut().zip(x).for_each(|(to, v)| *to += v));
        if y.is_empty() {
            return;
        }
        self.yx.resize(r * d, 0.0);
        self.yx
            .par_chunks_mut(BLOCK * d)
            .enumerate()
            .for_each(|(i, to)| add_products(to, (y, r), (x, d), i * BLOCK, false));
        for y in y.chunks(r) {
            for ((to, square), v) in self.y.iter_mut().zip(&mut self.yy).zip(y) {
                *to += v;
                *square += v * v;
            }
        }
    }

    /// How many rows of inputs it is of: samples, or tokens of these.
    pub fn seen(&self) -> f64 {
        self.count
    }

    /// The second moments of the inputs about their means, if `centred`, or about zero; and the means.
    pub fn second(&self, centred: bool) -> (Vec<f64>, Vec<f64>) {
        let (d, n) = (self.columns, self.count);
        let mean: Vec<f64> = self.x.iter().map(|v| if centred { v / n } else { 0.0 }).collect();
        let mut h = vec![0.0; d * d];
        for i in 0..d {
            for j in i..d {
                let v = self.xx[i * d + j] / n - mean[i] * mean[j];
                (h[i * d + j], h[j * d + i]) = (v, v);
            }
        }
        (h, mean)
    }

    /// The rows to solve for so that the outputs are those that were wanted, with the bias that `bias` says.
    pub fn rows(&self, weight: &[f64], bias: &Bias) -> Rows {
        let (d, n) = (self.columns, self.count);
        let (mut h, mean) = self.second(!matches!(bias, Bias::Kept | Bias::Answered));
        let own = |w: &[f64]| (0..d).map(|j| h[j * d..(j + 1) * d].iter().zip(w).map(|(h, w)| h * w).sum()).collect();
        let mut g: Vec<f64> = match bias {
            Bias::Wanted | Bias::Answered => {
                let wanted = self.yx.chunks(d).zip(&self.y);
                wanted.flat_map(|(yx, y)| yx.iter().zip(&mean).map(move |(v, m)| v / n - y / n * m)).collect()
            }
            _ => weight.par_chunks(d).flat_map_iter(|w| -> Vec<f64> { own(w) }).collect(),
        };
        let squares = |(w, g): (&[f64], &[f64])| w.iter().zip(g).map(|(w, g)| w * g).sum::<f64>();
        let mut energy: Vec<f64> = match bias {
            Bias::Wanted => self.yy.iter().zip(&self.y).map(|(yy, y)| yy / n - (y / n).powi(2)).collect(),
            Bias::Answered => self.yy.iter().map(|yy| yy / n).collect(),
            _ => weight.chunks(d).zip(g.chunks(d)).map(squares).collect(),
        };
        // Directions in which the inputs hardly vary are not to be trusted, least of all with few observations:
        // there the weights stay what they were.
        let mean_square = (0..d).map(|i| h[i * d + i]).sum::<f64>() / d as f64;
        let damping = mean_square * (0.02 * d as f64 / n).clamp(0.003, 1.0);
        let damping = if damping > 0.0 { damping } else { 1.0 };
        (0..d).for_each(|i| h[i * d + i] += damping);
        g.iter_mut().zip(weight).for_each(|(g, w)| *g += damping * w);
        for (e, w) in energy.iter_mut().zip(weight.chunks(d)) {
            *e += damping * w.iter().map(|w| w * w).sum::<f64>();
        }
        Rows { columns: d, h, g, energy }
    }

    /// The bias with which these rows have the mean output that was wanted.
    pub fn bias<'a>(&'a self, values: &'a [f64]) -> impl Iterator<Item = f32> + 'a {
        let product = |w: &[f64]| w.iter().zip(&self.x).map(|(w, x)| w * x).sum::<f64>();
        values.chunks(self.columns).zip(&self.y).map(move |(w, y)| ((y - product(w)) / self.count) as f32)
    }
}

/// What is wanted of a layer's bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bias {
    /// Outputs as observed; the bias makes up for their mean.
    Wanted,
    /// Outputs as observed, with the bias as it is or none.
    Answered,
    /// Outputs as the layer itself would answer to these inputs; the bias makes up for their mean.
    Free,
    /// The same, with the bias as it is or none.
    Kept,
}

/// Adds to the rows of `aᵀ b` from `first` on: both are matrices of so many columns, with a row for each observation. With
/// `upper` the columns before `first` stay as they are.
pub(crate) fn add_products(
    to: &mut [f64],
    (a, a_columns): (&[f64], usize),
    (b, columns): (&[f64], usize),
    first: usize,
    upper: bool,
) {
    let (rows, n) = (to.len() / columns, b.len() / columns);
    let skipped = if upper { first } else { 0 };
    assert!(a.len() == n * a_columns && first + rows <= a_columns && skipped <= columns && to.len() == rows * columns);
    // SAFETY: the lines above hold every element that is read and written within the slices: `rows` columns of `a` from
    // `first` on, and `columns - skipped` of `b` and of `to` from `skipped` on.
    unsafe {
        let (to, a, b) = (to.as_mut_ptr().add(skipped), a.as_ptr().add(first), b.as_ptr().add(skipped));
        let (to_stride, a_stride, b_stride) = (columns as isize, a_columns as isize, columns as isize);
        let (m, n, k) = (rows, columns - skipped, n);
        gemm::gemm(
            m,
            n,
            k,
            to,
            1,
            to_stride,
            true,
            a,
            a_stride,
            1,
            b,
            1,
            b_stride,
            1.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

/// Positions of a sample to observe, so that those of `samples` of them tell of all columns and take no more than [`WORK`]
/// without need.
pub fn enough(inputs: &Inputs, samples: usize) -> usize {
    let d = inputs.layout.columns();
    let few = (WORK / (d * d) as f64) as usize;
    few.max(OBSERVATIONS * d).div_ceil(samples.max(1))
}

/// A layer whose inputs are observed.
pub struct Reads<'a> {
    /// The layer, as messages name it.
    pub node: NodeId,
    /// How its inputs become columns.
    pub inputs: &'a Inputs,
    /// What it reads; several values where several layers share its weight.
    pub ports: Vec<Port>,
}

/// Observations for each input of a layer, and at least, where only the inputs are asked for.
const EACH: usize = 6;
const FEWEST: usize = 4096;

/// Inputs of a layer whose moments are gathered at most: those of more take over 128 MB and minutes.
const MOST_INPUTS: usize = 4096;

/// Bytes of moments that are gathered at a time.
const TOGETHER: usize = 256 << 20;

/// How many of the first of some layers are gathered together, one at least.
pub fn together<'a>(layers: impl Iterator<Item = &'a WeightMatrix>) -> usize {
    let mut bytes = 0;
    let fits = |layout: &&WeightMatrix| {
        bytes += layout.columns().pow(2) * size_of::<f64>();
        bytes <= TOGETHER
    };
    layers.take_while(fits).count().max(1)
}

/// The moments of what layers read in all calibration samples, for each of `layers` those of its groups; `None` for those with too many
/// inputs, of which nothing was seen, or something that is not a number.
///
/// # Errors
/// Whatever running the graph can raise.
pub fn gather(g: &Graph, layers: &[Reads], calibrator: &dyn Calibrator) -> Result<Vec<Option<Vec<Moments>>>> {
    let few = |layer: &&Reads| layer.inputs.layout.columns() <= MOST_INPUTS;
    let mut ports: Vec<Port> = layers.iter().filter(few).flat_map(|layer| layer.ports.clone()).collect();
    ports.sort();
    ports.dedup();
    if ports.is_empty() {
        return Ok(layers.iter().map(|_| None).collect());
    }
    let mut moments: Vec<Option<Vec<Moments>>> =
        layers.iter().map(|layer| few(&layer).then(|| Moments::none(layer.inputs))).collect();
    let (read, samples) = (only(g, &ports), calibrator.samples());
    calibrator.run(&[&verify(&read)?], samples, &mut |made| {
        for (layer, moments) in layers.iter().zip(&mut moments) {
            let Some(moments) = moments else { continue };
            let each = enough_of_each(layer.inputs, samples);
            for at in layer.ports.iter().filter_map(|port| ports.binary_search(port).ok()) {
                observe(layer.inputs, moments, &made[0][at], None, each)
                    .map_err(|e| e.at(g.node(layer.node).label()))?;
            }
        }
        Ok(())
    })?;
    Ok(moments.into_iter().map(|of| of.filter(|of| !of.iter().any(Moments::are_void))).collect())
}

/// The moments of what products inside operators (If, Loop, Scan) of `g` read, each at several places perhaps; `None` as for [`gather`].
///
/// # Errors
/// Whatever running the graph can raise.
pub fn gather_inside(
    g: &Graph,
    products: &[(&Inputs, Vec<Site>)],
    calibrator: &dyn Calibrator,
) -> Result<Vec<Option<Moments>>> {
    let few = |inputs: &Inputs| inputs.layout.columns() <= MOST_INPUTS;
    let mut moments: Vec<Option<Moments>> =
        products.iter().map(|(inputs, _)| few(inputs).then(|| Moments::none(inputs).pop()).flatten()).collect();
    let sites = products.iter().enumerate().filter(|(_, (inputs, _))| few(inputs));
    let (of, watch): (Vec<usize>, Vec<Site>) =
        sites.flat_map(|(i, (_, sites))| sites.iter().map(move |site| (i, site.clone()))).unzip();
    let samples = calibrator.samples();
    calibrator.observe_in_turn(&verify(g)?, &watch, &mut |at, values| {
        let (inputs, Some(moments)) = (products[of[at]].0, &mut moments[of[at]]) else { return Ok(()) };
        let d = inputs.layout.columns();
        if !values.len().is_multiple_of(d) {
            return Err(Error::malformed(format!("an activation of {} numbers has no rows of {d}", values.len())));
        }
        // Models with such operators take their samples one by one, unless they fix a batch.
        let (rows, each) = (values.len() / d, enough_of_each(inputs, samples));
        let step = rows.div_ceil(each.max(1)).max(1);
        let picked: Vec<f64> = values.chunks(d).step_by(step).flatten().map(|v| f64::from(*v)).collect();
        picked.chunks(CHUNK * d).for_each(|part| moments.add(part, &[]));
        Ok(())
    })?;
    Ok(moments.into_iter().map(|of| of.filter(|of| !of.are_void())).collect())
}

/// Observations of a sample that are enough to tell of a layer's inputs.
fn enough_of_each(inputs: &Inputs, samples: usize) -> usize {
    (EACH * inputs.layout.columns()).max(FEWEST).div_ceil(samples.max(1))
}

/// Adds a batch of a layer's inputs, and of the outputs that are wanted if any, at `each` positions of a sample.
///
/// # Errors
/// Malformed when the values have not the layer's shape.
pub fn observe(inputs: &Inputs, moments: &mut [Moments], x: &Tensor, y: Option<&Tensor>, each: usize) -> Result<()> {
    let (d, rows) = (inputs.layout.columns(), inputs.layout.rows / inputs.groups);
    let odd = |t: &Tensor| Error::malformed(format!("an activation is {t:?}, which the layer can't take"));
    let grid = Grid::of(inputs, x.shape()).ok_or_else(|| odd(x))?;
    let values = x.as_f32().ok_or_else(|| odd(x))?;
    let wanted =
        y.map(|y| y.as_f32().filter(|v| v.len() == grid.observations() * inputs.layout.rows).ok_or_else(|| odd(y)));
    let wanted = wanted.transpose()?;
    let each = each.clamp(1, grid.positions.max(1));
    let picked: Vec<(usize, usize)> = (0..grid.samples).flat_map(|s| grid.pick(s, each)).collect();
    for (group, moments) in moments.iter_mut().enumerate() {
        for part in picked.chunks(CHUNK) {
            let mut columns = vec![0.0; part.len() * d];
            columns
                .par_chunks_mut(d)
                .zip(part)
                .for_each(|(to, (s, p))| grid.columns(inputs, &values, group, *s, *p, to));
            let mut answers = vec![];
            if let Some(wanted) = &wanted {
                for (s, p) in part {
                    let at = |r: usize| f64::from(wanted[grid.output(inputs, *s, *p, group * rows + r)]);
                    answers.extend((0..rows).map(at));
                }
            }
            moments.add(&columns, &answers);
        }
    }
    Ok(())
}

/// Where observations are in a layer's input.
struct Grid {
    samples: usize,
    /// Positions of a window, or vectors of a sample.
    positions: usize,
    /// Sizes of the input along the axes of the window.
    sizes: Vec<usize>,
    /// Positions along them.
    outputs: Vec<usize>,
    /// Padding at their beginnings.
    begins: Vec<i64>,
}

impl Grid {
    fn of(inputs: &Inputs, shape: &[usize]) -> Option<Self> {
        let channels = inputs.layout.channels * inputs.groups;
        let Some((window, kernel)) = &inputs.window else {
            let [leading @ .., last] = shape else { return None };
            let samples = leading.first().copied().unwrap_or(1);
            let positions = leading.iter().skip(1).product();
            return (*last == channels).then_some(Self {
                samples,
                positions,
                sizes: vec![],
                outputs: vec![],
                begins: vec![],
            });
        };
        let [samples, c, sizes @ ..] = shape else { return None };
        if *c != channels || sizes.len() != kernel.len() {
            return None;
        }
        let mut grid = Self { samples: *samples, positions: 1, sizes: sizes.to_vec(), outputs: vec![], begins: vec![] };
        for (axis, (size, k)) in sizes.iter().zip(kernel).enumerate() {
            let output = window.output(axis, &(*size).into(), *k as i64).ok()?.known()?;
            grid.begins.push(window.padding(axis, *size as i64, *k as i64).0);
            grid.outputs.push(output.max(0) as usize);
            grid.positions *= output.max(0) as usize;
        }
        Some(grid)
    }

    fn observations(&self) -> usize {
        self.samples * self.positions
    }

    /// `count` positions of a sample, evenly apart, others in each sample.
    fn pick(&self, sample: usize, count: usize) -> impl Iterator<Item = (usize, usize)> {
        let positions = self.positions;
        let shift = sample % (positions / count).max(1);
        (0..count.min(positions)).map(move |i| (sample, (i * positions / count + shift).min(positions - 1)))
    }

    /// Where the output is of a row for an observation.
    fn output(&self, inputs: &Inputs, sample: usize, position: usize, row: usize) -> usize {
        let rows = inputs.layout.rows;
        match inputs.window {
            Some(_) => (sample * rows + row) * self.positions + position,
            None => (sample * self.positions + position) * rows + row,
        }
    }

    /// What a group reads for an observation.
    fn columns(&self, inputs: &Inputs, x: &[f32], group: usize, sample: usize, position: usize, to: &mut [f64]) {
        let Some((window, kernel)) = &inputs.window else {
            let from = (sample * self.positions + position) * to.len();
            to.iter_mut().zip(&x[from..]).for_each(|(to, v)| *to = f64::from(*v));
            return;
        };
        let (channels, taps) = (inputs.layout.channels, inputs.layout.taps);
        let plane: usize = self.sizes.iter().product();
        let first = (sample * inputs.groups + group) * channels;
        for tap in 0..taps {
            // From the last axis to the first: where the tap is in the input, unless that is padding.
            let (mut t, mut p, mut step, mut at) = (tap, position, 1, Some(0));
            for axis in (0..kernel.len()).rev() {
                let (k, o, size) = (kernel[axis], self.outputs[axis], self.sizes[axis]);
                let i =
                    (p % o) as i64 * window.stride(axis) + (t % k) as i64 * window.dilation(axis) - self.begins[axis];
                at = at.filter(|_| (0..size as i64).contains(&i)).map(|at| at + i as usize * step);
                (t, p, step) = (t / k, p / o, step * size);
            }
            for c in 0..channels {
                to[c * taps + tap] = at.map_or(0.0, |at| f64::from(x[(first + c) * plane + at]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_those_of_columns() {
        let (n, columns, rows) = (3, 150, 70);
        let value = |i: usize| ((i * 37) % 19) as f64 - 9.0;
        let a: Vec<f64> = (0..n * rows).map(value).collect();
        let b: Vec<f64> = (0..n * columns).map(|i| value(i + 5)).collect();
        let wanted = |i: usize, j: usize| (0..n).map(|n| a[n * rows + i] * b[n * columns + j]).sum::<f64>();
        let mut to = vec![0.5; rows * columns];
        to.chunks_mut(BLOCK * columns).enumerate().for_each(|(i, to)| {
            add_products(to, (&a, rows), (&b, columns), i * BLOCK, true);
        });
        for (at, v) in to.iter().enumerate() {
            let (i, j) = (at / columns, at % columns);
            let skipped = j < i / BLOCK * BLOCK;
            assert_eq!(*v, if skipped { 0.5 } else { 0.5 + wanted(i, j) }, "row {i}, column {j}");
        }
    }
}

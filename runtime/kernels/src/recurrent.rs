//! LSTM and GRU over a sequence, after the product of the whole sequence by the weights of the input.

// Iterators would hide which gates meet.
#![allow(clippy::needless_range_loop)]

use crate::{
    CodeMatrix, Dynamic8, End, Isa, Rows, RowsMut,
    conv::{aligned, bytes},
    math,
    multiversion::multiversion,
    pool::by_columns,
    team::join,
    transpose,
};

/// What a step of a sequence computes, of its state h and what x it reads. Gates are in ONNX's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recurrence {
    /// `c = f * c + i * tanh(n)`, `h = o * tanh(c)`, with the gates i, o, f and n of `x + h * weights`.
    Lstm,
    /// `h = (1 - z) * n + z * h`, with the gates z, r and n of `x + h * weights`.
    Gru {
        /// Whether r is multiplied by `h * weights + bias`, or else `r * h` by the weights.
        linear_before_reset: bool,
    },
}

impl Recurrence {
    /// How many values each state needs.
    fn gates(self) -> usize {
        match self {
            Self::Lstm => 4,
            Self::Gru { .. } => 3,
        }
    }

    /// The gates whose products are computed together.
    fn products(self) -> &'static [usize] {
        match self {
            Self::Lstm => &[4],
            Self::Gru { .. } => &[2, 1],
        }
    }
}

/// The weights of the states, of one direction.
#[derive(Debug, Clone, Copy)]
pub enum StateWeights<'a> {
    /// `[gates * hidden][hidden]`.
    Floats(&'a [f32]),
    /// Codes, and the scale of each row; before each product the states of a batch become codes by their range.
    Codes(&'a [i8], &'a [f32]),
}

/// A layer of one direction or two.
#[derive(Debug)]
pub struct Recurrent {
    isa: Isa,
    op: Recurrence,
    hidden: usize,
    ways: Vec<Way>,
}

/// One direction.
#[derive(Debug)]
struct Way {
    backwards: bool,
    products: Vec<Product>,
    /// Added to `h * weights` of a GRU, `[gates * hidden]`.
    bias: Vec<f32>,
}

#[derive(Debug)]
enum Product {
    /// Columns in the blocks in which they are read, each `[hidden][columns of the block]`.
    Blocks(Vec<f32>),
    Codes(Box<Dynamic8>),
}

/// The columns of a block are divided as this loop has them.
macro_rules! by_blocks {
    ($($loop:tt)*) => { by_columns!(64: $($loop)*) };
}

impl Product {
    fn new(isa: Isa, weights: StateWeights, hidden: usize, rows: std::ops::Range<usize>) -> Self {
        match weights {
            StateWeights::Floats(w) => {
                let (w, columns) = (&w[rows.start * hidden..rows.end * hidden], rows.len());
                let mut blocks = vec![0.0; w.len()];
                by_blocks!(columns, |column, N| {
                    let part = column * hidden..(column + N) * hidden;
                    let block = RowsMut::dense(&mut blocks[part.clone()], hidden, N);
                    transpose::<f32>(isa, &w[part], 1, N, hidden, block, 1);
                });
                Self::Blocks(blocks)
            }
            StateWeights::Codes(codes, scales) => {
                let codes = &codes[rows.start * hidden..rows.end * hidden];
                let (matrix, bias) =
                    (CodeMatrix { codes, scales: &scales[rows.clone()], zeros: None }, vec![0.0; rows.len()]);
                Self::Codes(Box::new(Dynamic8::new(isa, matrix, bias, End::default())))
            }
        }
    }

    fn scratch(&self, batch: usize) -> usize {
        match self {
            Self::Blocks(_) => 0,
            Self::Codes(of) => of.scratch(batch, 1) + bytes::<f32>(batch * of.outputs()),
        }
    }

    /// Adds the products of `h` to the columns of `sums` from `first` on.
    #[inline(always)]
    fn add(&self, h: Rows<f32>, sums: &mut RowsMut<f32>, first: usize, columns: usize, scratch: &mut [u8]) {
        match self {
            Self::Blocks(blocks) => {
                let hidden = h.width();
                by_blocks!(columns, |column, N| {
                    let block = &blocks[column * hidden..][..N * hidden];
                    for i in 0..h.rows() {
                        let to = &mut sums.row(i)[first + column..][..N];
                        let mut part = [0f32; N];
                        part.copy_from_slice(to);
                        for (h, row) in h.row(i).iter().zip(block.as_chunks::<N>().0) {
                            for (sum, w) in part.iter_mut().zip(row) {
                                *sum += h * w;
                            }
                        }
                        to.copy_from_slice(&part);
                    }
                });
            }
            Self::Codes(of) => {
                let (made, scratch) = scratch.split_at_mut(bytes::<f32>(h.rows() * columns));
                let made = &mut aligned::<f32>(made)[..h.rows() * columns];
                of.run(h, RowsMut::dense(made, h.rows(), columns), scratch, 1);
                for (i, made) in made.chunks_exact(columns).enumerate() {
                    sums.row(i)[first..][..columns].iter_mut().zip(made).for_each(|(sum, v)| *sum += v);
                }
            }
        }
    }
}

impl Recurrent {
    /// A layer with `hidden` states in each direction: whether it goes backwards, its weights, and what is added to
    /// `h * weights` if that can't be a part of x: `[gates * hidden]`, or nothing.
    ///
    /// # Panics
    /// When the operands don't fit each other, or the machine doesn't have `isa`.
    pub fn new(isa: Isa, op: Recurrence, hidden: usize, ways: &[(bool, StateWeights, &[f32])]) -> Self {
        let width = op.gates() * hidden;
        let way = |&(backwards, weights, bias): &(bool, StateWeights, &[f32])| {
            let fits = match weights {
                StateWeights::Floats(w) => w.len() == width * hidden,
                StateWeights::Codes(codes, scales) => (codes.len(), scales.len()) == (width * hidden, width),
            };
            assert!(fits, "weights of {hidden} states");
            assert!(bias.is_empty() || bias.len() == width, "a bias for each gate");
            let mut first = 0;
            let products = op.products().iter().map(|gates| {
                let rows = first..first + gates * hidden;
                first = rows.end;
                Product::new(isa, weights, hidden, rows)
            });
            let products = products.collect();
            let bias = if bias.is_empty() { vec![0.0; width] } else { bias.to_vec() };
            Way { backwards, products, bias }
        };
        Self { isa, op, hidden, ways: ways.iter().map(way).collect() }
    }

    /// Bytes of scratch memory that a run needs.
    pub fn scratch(&self, batch: usize) -> usize {
        self.ways.len() * self.way_scratch(batch)
    }

    fn way_scratch(&self, batch: usize) -> usize {
        let products = self.ways.iter().flat_map(|w| &w.products).map(|p| p.scratch(batch)).max();
        bytes::<f32>(batch * self.op.gates() * self.hidden) + products.unwrap_or(0)
    }

    /// Reads a sequence of `x`, `[length * batch][directions * gates * hidden]`. `h` and `c`,
    /// `[directions][batch][hidden]`, are the states before, and become those after it; a GRU has no use for `c`.
    /// `y`, `[length][directions][batch][hidden]`, becomes every `h`. Two directions are read at the same time where
    /// `threads` are more than one.
    ///
    /// # Panics
    /// When the operands don't fit each other, or `scratch` is too small.
    pub fn run(&self, x: Rows<f32>, h: &mut [f32], c: &mut [f32], y: &mut [f32], scratch: &mut [u8], threads: usize) {
        let (ways, width) = (self.ways.len(), self.op.gates() * self.hidden);
        let states = h.len() / ways.max(1);
        assert!(h.len() == ways * states && states.is_multiple_of(self.hidden.max(1)), "states of each direction");
        assert!(c.len() == h.len() || c.is_empty() && self.op != Recurrence::Lstm, "a cell for each state");
        if h.is_empty() || y.is_empty() {
            return;
        }
        let (batch, length) = (states / self.hidden, y.len() / h.len());
        assert_eq!((y.len(), x.rows()), (length * h.len(), length * batch), "x and y are as long");
        assert_eq!(x.width(), ways * width, "all gates of all directions");
        let mut parts: Vec<Vec<&mut [f32]>> = (0..ways).map(|_| Vec::with_capacity(length)).collect();
        y.chunks_exact_mut(states).enumerate().for_each(|(i, part)| parts[i % ways].push(part));
        let mut cells = c.chunks_exact_mut(states);
        let scratches = scratch.chunks_exact_mut(self.way_scratch(batch));
        let mut runs: Vec<Run> =
            (self.ways.iter().zip(h.chunks_exact_mut(states)).zip(parts).zip(scratches).enumerate())
                .map(|(i, (((way, h), y), scratch))| Run {
                    way,
                    x: x.columns(i * width, width),
                    h,
                    c: cells.next().unwrap_or_default(),
                    y,
                    scratch,
                })
                .collect();
        assert_eq!(runs.len(), ways, "scratch memory for each direction");
        match &mut runs[..] {
            [one, other] if threads > 1 => join(|| steps(self.isa, self, one), || steps(self.isa, self, other)),
            runs => runs.iter_mut().for_each(|run| steps(self.isa, self, run)),
        }
    }
}

/// A sequence that one direction reads.
struct Run<'a> {
    way: &'a Way,
    x: Rows<'a, f32>,
    h: &'a mut [f32],
    c: &'a mut [f32],
    /// The states after each step.
    y: Vec<&'a mut [f32]>,
    scratch: &'a mut [u8],
}

#[inline(always)]
fn lstm(isa: Isa, sums: &[f32], h: &mut [f32], c: &mut [f32]) {
    let n = h.len();
    let [i, o, f, new] = [0, 1, 2, 3].map(|gate| &sums[gate * n..][..n]);
    let c = &mut c[..n];
    for j in 0..n {
        c[j] = math::sigmoid(isa, f[j]) * c[j] + math::sigmoid(isa, i[j]) * math::tanh(isa, new[j]);
    }
    for j in 0..n {
        h[j] = math::sigmoid(isa, o[j]) * math::tanh(isa, c[j]);
    }
}

multiversion! {
    fn steps(isa: Isa, layer: &Recurrent, run: &mut Run) {
        let (n, width) = (layer.hidden, layer.op.gates() * layer.hidden);
        let (batch, length) = (run.h.len() / n, run.y.len());
        let (sums, scratch) = run.scratch.split_at_mut(bytes::<f32>(batch * width));
        let sums = &mut aligned::<f32>(sums)[..batch * width];
        let (products, bias) = (&run.way.products, &run.way.bias);
        for i in 0..length {
            let t = if run.way.backwards { length - 1 - i } else { i };
            let x = run.x.part(t * batch, batch);
            let states = Rows::dense(&*run.h, batch, n);
            for (b, sums) in sums.chunks_exact_mut(width).enumerate() {
                sums.copy_from_slice(x.row(b));
            }
            match layer.op {
                Recurrence::Lstm => {
                    products[0].add(states, &mut RowsMut::dense(sums, batch, width), 0, width, scratch);
                    for (b, sums) in sums.chunks_exact(width).enumerate() {
                        lstm(isa, sums, &mut run.h[b * n..][..n], &mut run.c[b * n..][..n]);
                    }
                }
                Recurrence::Gru { linear_before_reset } => {
                    if linear_before_reset {
                        for sums in sums.chunks_exact_mut(width) {
                            sums[..2 * n].iter_mut().zip(bias).for_each(|(sum, b)| *sum += b);
                            sums[2 * n..].copy_from_slice(&bias[2 * n..]);
                        }
                    }
                    products[0].add(states, &mut RowsMut::dense(sums, batch, width), 0, 2 * n, scratch);
                    for gate in sums.chunks_exact_mut(width).flat_map(|sums| &mut sums[..2 * n]) {
                        *gate = math::sigmoid(isa, *gate);
                    }
                    let y = &mut *run.y[t];
                    if linear_before_reset {
                        products[1].add(states, &mut RowsMut::dense(sums, batch, width), 2 * n, n, scratch);
                        for (b, sums) in sums.chunks_exact_mut(width).enumerate() {
                            let (gates, new) = sums.split_at_mut(2 * n);
                            let x = &x.row(b)[2 * n..];
                            for j in 0..n {
                                new[j] = x[j] + gates[n + j] * new[j];
                            }
                        }
                    } else {
                        // What the second product reads lies where the result will.
                        for (b, y) in y.chunks_exact_mut(n).enumerate() {
                            let (r, h) = (&sums[b * width + n..][..n], &run.h[b * n..][..n]);
                            for j in 0..n {
                                y[j] = r[j] * h[j];
                            }
                        }
                        let reset = Rows::dense(y, batch, n);
                        products[1].add(reset, &mut RowsMut::dense(sums, batch, width), 2 * n, n, scratch);
                    }
                    for (b, sums) in sums.chunks_exact(width).enumerate() {
                        let h = &mut run.h[b * n..][..n];
                        let (z, new) = (&sums[..n], &sums[2 * n..][..n]);
                        for j in 0..n {
                            h[j] = (1.0 - z[j]) * math::tanh(isa, new[j]) + z[j] * h[j];
                        }
                    }
                }
            }
            run.y[t].copy_from_slice(run.h);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Noise, cases, isas};
    use proptest::prelude::*;

    fn logistic(x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }

    /// The states after a step, in `f64`, with weights `[gates * hidden][hidden]`.
    fn naive(op: Recurrence, weights: &[f64], bias: &[f32], x: &[f32], h: &mut [f64], c: &mut [f64]) {
        let n = h.len();
        let x = |gate: usize, j: usize| f64::from(x[gate * n + j]);
        let product = |gate: usize, j: usize, by: &dyn Fn(usize) -> f64| -> f64 {
            (0..n).map(|k| by(k) * weights[(gate * n + j) * n + k]).sum()
        };
        let before = h.to_vec();
        for j in 0..n {
            match op {
                Recurrence::Lstm => {
                    let gate = |gate: usize| x(gate, j) + product(gate, j, &|k| before[k]);
                    c[j] = logistic(gate(2)) * c[j] + logistic(gate(0)) * gate(3).tanh();
                    h[j] = logistic(gate(1)) * c[j].tanh();
                }
                Recurrence::Gru { linear_before_reset } => {
                    let b =
                        |gate: usize, j: usize| if linear_before_reset { f64::from(bias[gate * n + j]) } else { 0.0 };
                    let sum = |gate: usize, j: usize| product(gate, j, &|k| before[k]) + b(gate, j);
                    let reset = |j: usize| logistic(x(1, j) + sum(1, j));
                    let inner = match linear_before_reset {
                        true => reset(j) * sum(2, j),
                        false => product(2, j, &|k| reset(k) * before[k]),
                    };
                    let z = logistic(x(0, j) + sum(0, j));
                    h[j] = (1.0 - z) * (x(2, j) + inner).tanh() + z * before[j];
                }
            }
        }
    }

    proptest! {
        #![proptest_config(cases(200))]

        #[test]
        fn sequences_of_any_shape(
            cell in 0usize..3, length in 0usize..6, batch in 1usize..4, hidden in 1usize..70, ways in 1usize..3, backwards: bool,
            codes: bool, seed: u64,
        ) {
            let mut noise = Noise(seed);
            let op = [Recurrence::Lstm, Recurrence::Gru { linear_before_reset: true }, Recurrence::Gru { linear_before_reset: false }][cell];
            let width = op.gates() * hidden;
            let mut some = |n: usize| -> Vec<f32> { (0..n).map(|_| noise.float()).collect() };
            let (x, bias) = (some(length * batch * ways * width), some(ways * width));
            let (h, c) = (some(ways * batch * hidden), some(ways * batch * hidden));
            let scales: Vec<f32> = some(ways * width).iter().map(|v| 0.002 + v.abs() * 0.002).collect();
            let floats = some(ways * width * hidden);
            let whole: Vec<i8> = floats.iter().map(|v| (v * 100.0) as i8).collect();
            let exact: Vec<f64> = match codes {
                true => whole.iter().enumerate().map(|(i, c)| f64::from(*c) * f64::from(scales[i / hidden])).collect(),
                false => floats.iter().map(|v| f64::from(*v)).collect(),
            };
            let wide = |v: &[f32]| v.iter().map(|v| f64::from(*v)).collect::<Vec<_>>();
            let (mut want_h, mut want_c, mut want) = (wide(&h), wide(&c), vec![0.0; length * ways * batch * hidden]);
            for (d, i, b) in (0..ways).flat_map(|d| (0..length).flat_map(move |i| (0..batch).map(move |b| (d, i, b)))) {
                let t = if backwards != (d == 1) { length - 1 - i } else { i };
                let at = (d * batch + b) * hidden..(d * batch + b + 1) * hidden;
                let x = &x[((t * batch + b) * ways + d) * width..][..width];
                let weights = &exact[d * width * hidden..][..width * hidden];
                naive(op, weights, &bias[d * width..][..width], x, &mut want_h[at.clone()], &mut want_c[at.clone()]);
                want[((t * ways + d) * batch + b) * hidden..][..hidden].copy_from_slice(&want_h[at]);
            }
            let of_way = |d: usize| {
                let at = d * width * hidden..(d + 1) * width * hidden;
                let weights = match codes {
                    true => StateWeights::Codes(&whole[at], &scales[d * width..][..width]),
                    false => StateWeights::Floats(&floats[at]),
                };
                let bias = if op == (Recurrence::Gru { linear_before_reset: true }) { &bias[d * width..][..width] } else { &[] };
                (backwards != (d == 1), weights, bias)
            };
            // States that became codes are off by half a step; what follows from them is too.
            let close = if codes { 0.1 } else { 1e-4 };
            let mut first = None;
            for isa in isas() {
                let layer = Recurrent::new(isa, op, hidden, &(0..ways).map(of_way).collect::<Vec<_>>());
                let (mut h, mut c, mut y) = (h.clone(), c.clone(), vec![9.0; want.len()]);
                let (x, mut scratch) = (Rows::dense(&x, length * batch, ways * width), vec![0; layer.scratch(batch)]);
                layer.run(x, &mut h, &mut c, &mut y, &mut scratch, 2);
                for (got, want) in [(&y, &want), (&h, &want_h), (&c, &want_c)].into_iter().flat_map(|(a, b)| a.iter().zip(b)) {
                    prop_assert!((f64::from(*got) - want).abs() < close, "{isa}: {got} for {want}");
                }
                prop_assert_eq!(&*first.get_or_insert_with(|| y.clone()), &y, "{} gives what all others do", isa);
            }
        }
    }
}

//! Products: their packed weights, and the steps that compute them.

use super::{Kind, Weight};
use crate::cpu::{
    cost,
    lowering::{Form, Lowered, Operand, ValueId},
    plan::{Layout, Planner},
    steps::{Kernel, Operands},
    window::window,
};
use compress_compiler::{
    error::Result,
    ops::window::Window as OpWindow,
    tensor::{DType, Tensor},
};
use compress_kernels::{
    Conv8, ConvF, Depthwise8, DepthwiseF, Finish8, GemvF, Isa, Rows, SparseF, Team, UnaryOp, Window,
};
use std::sync::{Arc, OnceLock};

/// Where a product slides.
pub(crate) enum Sliding {
    Window { window: OpWindow, kernel: [usize; 2] },
    Rows,
}

impl Sliding {
    /// One name for windows, one for rows.
    fn name(&self, window: &'static str, rows: &'static str) -> &'static str {
        if matches!(self, Self::Rows) { rows } else { window }
    }

    pub(super) fn of(kind: &Kind, kernel: [usize; 2]) -> Self {
        match kind {
            Kind::Conv { window, .. } => Self::Window { window: (*window).clone(), kernel },
            Kind::Rows { .. } => Self::Rows,
        }
    }

    /// The layout of both ends, and the window.
    fn at(&self, x: &[usize], y: &[usize]) -> (Layout, Window) {
        match self {
            Self::Window { window: w, kernel } => (Layout::Pixels, window(w, *kernel, x, y)),
            Self::Rows => (Layout::Plain, Window::pixel(Layout::Plain.rows(x).0)),
        }
    }
}

/// What the sums of a product of floats become: bounded, then a function of that.
#[derive(Clone, Copy)]
pub(in crate::cpu::ops) struct End {
    pub low: f32,
    pub high: f32,
    pub then: Option<UnaryOp>,
}

#[derive(Clone)]
pub(super) enum FloatKernel {
    Dense {
        dense: Arc<ConvF>,
        /// Without the zeros, where over some number of positions that is faster.
        sparse: Option<Arc<SparseF>>,
    },
    Depthwise(Arc<DepthwiseF>),
    InPlace(Arc<InPlace>),
}

/// A product of rows by a large matrix. One row is multiplied by it where it lies; for several it is packed.
pub(super) struct InPlace {
    weight: Tensor,
    transposed: bool,
    bias: Vec<f32>,
    end: End,
    one: GemvF,
    many: OnceLock<Arc<ConvF>>,
}

/// Bytes from which a matrix is large: reading it from memory is most of what a product of one row by it takes.
const LARGE: usize = 1 << 20;

impl InPlace {
    /// The product of rows by `weight`, if that is large, and has too few zeros to leave them out.
    pub(super) fn new(isa: Isa, weight: &Tensor, transposed: bool, bias: Vec<f32>, end: End) -> Option<Self> {
        let [rows, columns] = *weight.shape() else { return None };
        let (depth, outputs) = if transposed { (columns, rows) } else { (rows, columns) };
        let fits = weight.dtype() == DType::F32 && weight.bytes().len() >= LARGE && bias.len() == outputs;
        if !fits || sparse_pays(depth, outputs, weight.nonzero()) {
            return None;
        }
        let one = GemvF::new(isa, depth, transposed, bias.clone(), end.low, end.high).then(end.then);
        Some(Self { weight: weight.clone(), transposed, bias, end, one, many: OnceLock::new() })
    }

    fn one(&self, x: &[f32], add: Option<&[f32]>, y: &mut [f32], parts: usize) {
        let [rows, columns] = [0, 1].map(|axis| self.weight.shape()[axis]);
        let matrix = Rows::dense(self.weight.bytes().as_chunks().0, rows, columns);
        self.one.run(x, matrix, add, y, parts);
    }

    fn many(&self, isa: Isa) -> Arc<ConvF> {
        let pack = || {
            let _team = Team::assemble(rayon::current_num_threads());
            let values = self.weight.as_f32().unwrap_or_default();
            let [rows, columns] = [0, 1].map(|axis| self.weight.shape()[axis]);
            let matrix = Rows::dense(&values, rows, columns);
            let (bounds, threads) = ((self.end.low, self.end.high), rayon::current_num_threads());
            let packed = ConvF::of_matrix(isa, matrix, self.transposed, &self.bias, bounds, threads);
            self.weight.release();
            Arc::new(packed.then(isa, self.end.then))
        };
        self.many.get_or_init(pack).clone()
    }
}

/// Whether over some number of positions it is faster to leave zeros out.
fn sparse_pays(channels: usize, outputs: usize, nonzero: usize) -> bool {
    [1, usize::MAX].iter().any(|n| SparseF::pays(channels, outputs, nonzero, *n))
}

impl FloatKernel {
    pub(super) fn new(isa: Isa, w: &Weight<f32>, bias: Vec<f32>, end: End) -> Self {
        let End { low, high, then } = end;
        match w.channels == 1 && w.outputs == w.groups && w.groups > 1 {
            true => {
                let depthwise = DepthwiseF::new(isa, &w.data, w.taps, w.outputs, bias, low, high);
                Self::Depthwise(Arc::new(depthwise.then(then)))
            }
            false => {
                let nonzero = || w.data.iter().filter(|w| **w != 0.0).count();
                let sparse = (w.taps == 1 && w.groups == 1 && sparse_pays(w.channels, w.outputs, nonzero()))
                    .then(|| Arc::new(SparseF::new(isa, &w.data, w.channels, bias.clone(), low, high).then(then)));
                let conv = ConvF::new(isa, &w.data, w.outputs, w.kernel, w.channels, w.groups, bias, low, high);
                Self::Dense { dense: Arc::new(conv.then(isa, then)), sparse }
            }
        }
    }
}

pub(super) struct Floating {
    pub kernel: FloatKernel,
    pub at: Sliding,
    pub weight_bytes: usize,
}

impl Lowered for Floating {
    fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }
    fn is_by_sample(&self, inputs: &[Operand], _output: &[usize]) -> bool {
        inputs.iter().all(|x| !x.is_constant)
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let (layout, window) = self.at.at(p.dims(inputs[0]), p.dims(output));
        let mut reads = vec![p.read(inputs[0], layout)];
        reads.extend(inputs.get(1).map(|add| p.read(*add, layout)));
        let y = p.output(output, layout);
        let sums = reads.len() > 1;
        let (dense, sparse) = match self.kernel.clone() {
            FloatKernel::Dense { dense, sparse } => (dense, sparse),
            FloatKernel::InPlace(k) if window.positions() == 1 && !p.is_piece() => {
                let work = cost::bytes(k.weight.bytes().len()).max(cost::macs32(p.isa(), k.one.macs()));
                p.step("gemv_f32", output, &reads, y, 0, work, move |o| {
                    let (x, add, parts) = (o.slice(0), sums.then(|| o.slice(1)), o.parts);
                    k.one(x, add, o.out().data(), parts);
                });
                return Ok(());
            }
            FloatKernel::InPlace(k) => (k.many(p.isa()), None),
            FloatKernel::Depthwise(k) => {
                let work = cost::macs32(p.isa(), k.macs(&window));
                let scratch = k.scratch(&window, p.parts(work));
                p.step("depthwise_f32", output, &reads, y, scratch, work, move |o| {
                    let (x, parts) = (o.read(0), o.parts);
                    let (y, scratch) = o.write();
                    k.run(x, &window, y, scratch, parts);
                });
                return Ok(());
            }
        };
        // By the positions of one sample: however a batch is cut, its results are the same.
        let positions = window.positions() / p.dims(output)[0].max(1);
        if let Some(k) = sparse.filter(|k| window.is_pixel() && k.pays_at(positions)) {
            // Each costs about twice as much as in a dense product.
            let work = cost::macs32(p.isa(), 2 * k.macs(&window));
            let scratch = k.scratch(&window, p.parts(work));
            let kernel = Kernel { name: self.at.name("conv_sparse_f32", "gemm_sparse_f32"), skips_zeros: true };
            p.step(kernel, output, &reads, y, scratch, work, move |o| {
                let (x, add, parts) = (o.read(0), sums.then(|| o.read(1)), o.parts);
                let (y, scratch) = o.write();
                k.run(x, &window, add, y, scratch, parts);
            });
        } else {
            let work = cost::macs32(p.isa(), dense.macs(&window));
            let scratch = dense.scratch(&window, p.parts(work));
            p.step(self.at.name("conv_f32", "gemm_f32"), output, &reads, y, scratch, work, move |o| {
                let (x, add, parts) = (o.read(0), sums.then(|| o.read(1)), o.parts);
                let (y, scratch) = o.write();
                dense.run(x, &window, add, y, scratch, parts);
            });
        }
        Ok(())
    }
}

#[derive(Clone)]
pub(super) enum CodeKernel {
    Dense(Arc<Conv8>),
    Depthwise(Arc<Depthwise8>),
}

impl CodeKernel {
    /// `then` is made of results that are floats.
    pub(super) fn new(isa: Isa, w: &Weight<i8>, zero: u8, finish: Finish8, then: Option<UnaryOp>) -> Self {
        match w.channels == 1 && w.outputs == w.groups && w.groups > 1 {
            true => {
                let depthwise = Depthwise8::new(isa, &w.data, w.taps, w.outputs, zero, finish);
                Self::Depthwise(Arc::new(depthwise.then(then)))
            }
            false => {
                let conv = Conv8::new(isa, &w.data, w.outputs, w.kernel, w.channels, w.groups, zero, finish);
                Self::Dense(Arc::new(conv.then(isa, then)))
            }
        }
    }
}

impl CodeKernel {
    fn macs(&self, window: &Window) -> u64 {
        match self {
            Self::Dense(k) => k.macs(window),
            Self::Depthwise(k) => k.macs(window),
        }
    }

    fn scratch(&self, window: &Window, parts: usize) -> usize {
        match self {
            Self::Dense(k) => k.scratch(window, parts),
            Self::Depthwise(k) => k.scratch(window, parts),
        }
    }

    fn run(&self, o: &mut Operands, window: &Window, floats: bool) {
        let (x, parts) = (o.read(0), o.parts);
        if floats {
            let (y, scratch) = o.write();
            match self {
                Self::Dense(k) => k.run_f32(x, window, y, scratch, parts),
                Self::Depthwise(k) => k.run_f32(x, window, y, scratch, parts),
            }
        } else {
            let (y, scratch) = o.write();
            match self {
                Self::Dense(k) => k.run_u8(x, window, y, scratch, parts),
                Self::Depthwise(k) => k.run_u8(x, window, y, scratch, parts),
            }
        }
    }
}

pub(super) struct Coded {
    pub kernel: CodeKernel,
    pub at: Sliding,
    pub weight_bytes: usize,
}

impl Lowered for Coded {
    fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }
    fn is_by_sample(&self, inputs: &[Operand], _output: &[usize]) -> bool {
        inputs.iter().all(|x| !x.is_constant)
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let (layout, window) = self.at.at(p.dims(inputs[0]), p.dims(output));
        let x = p.read(inputs[0], layout);
        let y = p.output(output, layout);
        let floats = p.form(output) == Form::Float;
        let work = cost::macs8(p.isa(), self.kernel.macs(&window));
        let scratch = self.kernel.scratch(&window, p.parts(work));
        let name = match &self.kernel {
            CodeKernel::Dense(_) => self.at.name("conv_i8", "gemm_i8"),
            CodeKernel::Depthwise(_) => "depthwise_i8",
        };
        let kernel = self.kernel.clone();
        p.step_from(1, name, output, &[x], y, scratch, work, move |o| kernel.run(o, &window, floats));
        Ok(())
    }
}

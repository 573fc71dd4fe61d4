//! What a machine can do at most: large products and large copies, which the share of each kernel is told of.

use crate::events::Monitor;
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::Port,
    op::Op,
    ops::{
        matmul::MatMul,
        quantize::{Dequantize, Quantize},
        source::Input,
    },
    tensor::{DType, Tensor},
    value::{Dim, Fact},
    verify::verify,
};
use compress_runtime::{
    bench::{self, Pace},
    session::{Backend, Session},
};
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Rows, depth and columns of the products: of one whose matrices the cache of one core holds, and of a large one.
const SIZES: [usize; 2] = [256, 1024];
/// Bytes that copies read and write: from what the cache of one core holds to more than most caches have.
const COPIES: [usize; 4] = [128 << 10, 1 << 20, 8 << 20, 128 << 20];
/// How long each ceiling is looked for.
const TIME: Duration = Duration::from_millis(300);
const RUNS: usize = 30;

/// The most that a machine was seen to do, with the threads of the job.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct Ceilings {
    /// Multiplications and additions of floats in a second, in 10⁹: the faster of products of matrices of 256 x 256 and 1024 x 1024.
    pub gflops: f64,
    /// Those of 8-bit codes: the same products by codes.
    pub int8_gops: f64,
    /// Copies of several sizes, the smallest first: small ones stay in caches.
    pub copies: Vec<CopySpeed>,
}

/// How fast a copy is.
#[derive(Debug, Clone, Copy, JsonSchema, Serialize)]
pub struct CopySpeed {
    /// Bytes that are read and written, by all threads together.
    pub bytes: usize,
    /// Bytes in a second, in 10⁹.
    pub gbs: f64,
}

impl Ceilings {
    /// Measures them on `backend`.
    ///
    /// # Errors
    /// What running a product can raise; interrupted.
    pub(crate) fn measure(backend: &Backend, monitor: &Monitor) -> Result<Self> {
        let one = |size: usize, codes: bool| -> Result<f64> {
            let session = Session::new(&verify(&product(size, codes)?)?, backend, &[])?;
            let x = Tensor::floats(DType::F32, &[size, size], &vec![0.5; size * size]);
            let pace = Pace { runs: RUNS, time: TIME, stopped: &|| monitor.stopped() };
            let least = bench::least(&[&session], &[x], &pace)?.concat();
            // The rounding steps around it are none of it.
            let ms = least.iter().filter(|s| !s.kernel.converts()).map(|s| s.ms).sum::<f64>().max(1e-6);
            Ok(2.0 * (size as f64).powi(3) / ms / 1e6)
        };
        let best = |codes| SIZES.iter().try_fold(0.0, |best: f64, size| one(*size, codes).map(|made| best.max(made)));
        Ok(Self {
            gflops: best(false)?,
            int8_gops: best(true)?,
            copies: COPIES.into_iter().map(|bytes| copy(bytes, monitor)).collect::<Result<_>>()?,
        })
    }

    /// How fast so many bytes can be read and written, in 10⁹ a second.
    pub(crate) fn gbs(&self, bytes: u64) -> f64 {
        let holds = self.copies.iter().find(|copy| copy.bytes as u64 >= bytes);
        holds.or(self.copies.last()).map_or(f64::INFINITY, |copy| copy.gbs)
    }
}

/// A product with a constant matrix, of floats or of codes.
fn product(size: usize, codes: bool) -> Result<Graph> {
    let mut g = Graph::new("ceiling");
    let sizes = vec![Dim::from(size), Dim::from(size)];
    let x: Port =
        g.add_input("x", Fact::new(Some(DType::F32), Some(sizes)), Op::Input(Input { default: None }))?.into();
    let scale = g.add_constant("scale", Tensor::floats(DType::F32, &[], &[0.01])).into();
    let zero = |g: &mut Graph, dtype| Port::from(g.add_constant("zero", Tensor::ints(dtype, &[], &[0])));
    let rounded = |g: &mut Graph, x: Port, zero: Port| -> Result<Port> {
        let names = [g.fresh("codes"), g.fresh("rounded")];
        let q = g.add_node("", Quantize::default().into(), &[Some(x), Some(scale), Some(zero)], &[&names[0]])?;
        let params = [Some(q.into()), Some(scale), Some(zero)];
        Ok(g.add_node("", Dequantize::along(1).into(), &params, &[&names[1]])?.into())
    };
    let values: Vec<i64> = (0..size * size).map(|i| (i * 31 % 127) as i64 - 63).collect();
    let y = if codes {
        let (u8_zero, s8_zero) = (zero(&mut g, DType::U8), zero(&mut g, DType::I8));
        let x = rounded(&mut g, x, u8_zero)?;
        let w = g.add_constant("w", Tensor::ints(DType::I8, &[size, size], &values)).into();
        let w = g.add_node("", Dequantize::along(1).into(), &[Some(w), Some(scale), Some(s8_zero)], &["dw"])?;
        let y = g.add_node("product", MatMul.into(), &[Some(x), Some(w.into())], &["y"])?;
        rounded(&mut g, y.into(), u8_zero)?
    } else {
        let values: Vec<f32> = values.iter().map(|v| *v as f32 / 64.0).collect();
        let w = g.add_constant("w", Tensor::floats(DType::F32, &[size, size], &values)).into();
        g.add_node("product", MatMul.into(), &[Some(x), Some(w)], &["y"])?.into()
    };
    g.add_output("out", y);
    Ok(g)
}

/// A copy by all threads that reads and writes `bytes`.
fn copy(bytes: usize, monitor: &Monitor) -> Result<CopySpeed> {
    let threads = rayon::current_num_threads();
    let each = (bytes / 2 / threads).max(1);
    let mut pairs: Vec<(Vec<u8>, Vec<u8>)> = (0..threads).map(|i| (vec![i as u8; each], vec![0; each])).collect();
    // To hand the work over takes longer than one small copy.
    let turns = (COPIES[COPIES.len() - 1] / bytes).max(1);
    let (began, mut best) = (Instant::now(), f64::INFINITY);
    while began.elapsed() < TIME {
        monitor.check()?;
        let started = Instant::now();
        pairs.par_iter_mut().for_each(|(from, to)| {
            for _ in 0..turns {
                to.copy_from_slice(std::hint::black_box(&from[..]));
                std::hint::black_box(&mut to[..]);
            }
        });
        best = best.min(started.elapsed().as_secs_f64());
    }
    Ok(CopySpeed { bytes, gbs: (bytes * turns) as f64 / best / 1e9 })
}

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
        unary::Unary,
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

/// Sizes of products on a GPU: larger ones are tried until one takes as long as it should.
const LARGEST: usize = 4096;
/// Milliseconds of a product or a copy by a GPU beside which its launch is nothing; larger ones would tell no more.
const ENOUGH_MS: f64 = 20.0;
/// Bytes that copies on a GPU read and write.
const GPU_COPIES: [usize; 3] = [1 << 20, 16 << 20, 256 << 20];

/// The most that a machine was seen to do, with the threads of the job, or a GPU.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct Ceilings {
    /// Multiplications and additions of floats in a second, in 10⁹: the faster of products of matrices of 256 x 256 and 1024 x 1024.
    pub gflops: f64,
    /// Those of 8-bit codes: the same products by codes.
    pub int8_gops: f64,
    /// Copies of several sizes, the smallest first: small ones stay in caches.
    pub copies: Vec<CopySpeed>,
    /// Bytes to a GPU and back from it in a second, in 10⁹; absent on the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transfers_gbs: Option<f64>,
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
    /// Measures them where `backend` runs models.
    ///
    /// # Errors
    /// What running a product can raise; interrupted.
    pub(crate) fn measure(backend: &Backend, monitor: &Monitor) -> Result<Self> {
        if !backend.device.is_cpu() {
            return Self::of_gpu(backend, monitor);
        }
        // Another engine than ours has no kernels that are timed one by one.
        let backend = &Backend::cpu();
        let best = |codes| {
            SIZES.iter().try_fold(0.0, |best: f64, size| Ok(best.max(speed(*size, codes, backend, monitor)?.0)))
        };
        Ok(Self {
            gflops: best(false)?,
            int8_gops: best(true)?,
            copies: COPIES.into_iter().map(|bytes| copy(bytes, monitor)).collect::<Result<_>>()?,
            transfers_gbs: None,
        })
    }

    fn of_gpu(backend: &Backend, monitor: &Monitor) -> Result<Self> {
        let best = |codes| -> Result<f64> {
            let (mut best, mut size) = (0.0, SIZES[0]);
            loop {
                let (made, ms) = speed(size, codes, backend, monitor)?;
                best = f64::max(best, made);
                if ms >= ENOUGH_MS || size >= LARGEST {
                    return Ok(best);
                }
                size *= 2;
            }
        };
        let (gflops, int8_gops) = (best(false)?, best(true)?);
        let (mut copies, mut transfers) = (vec![], 0.0);
        for bytes in GPU_COPIES {
            let (own, ms, moved) = copy_by_gpu(bytes, backend, monitor)?;
            copies.push(own);
            transfers = f64::max(transfers, moved);
            if ms >= ENOUGH_MS {
                break;
            }
        }
        Ok(Self { gflops, int8_gops, copies, transfers_gbs: Some(transfers) })
    }

    /// How fast so many bytes can be read and written, in 10⁹ a second.
    pub(crate) fn gbs(&self, bytes: u64) -> f64 {
        let holds = self.copies.iter().find(|copy| copy.bytes as u64 >= bytes);
        holds.or(self.copies.last()).map_or(f64::INFINITY, |copy| copy.gbs)
    }
}

/// Operations in a second, in 10⁹, of the product of two matrices of `size` by `size`, and its milliseconds.
fn speed(size: usize, codes: bool, backend: &Backend, monitor: &Monitor) -> Result<(f64, f64)> {
    let session = Session::new(&verify(&product(size, codes)?)?, backend, &[])?;
    let x = Tensor::floats(DType::F32, &[size, size], &vec![0.5; size * size]);
    let pace = Pace { runs: RUNS, time: TIME, stopped: &|| monitor.stopped() };
    let least = bench::least(&[&session], &[x], &pace)?.concat();
    // The rounding steps around it, and the way to a GPU, are none of it.
    let own = least.iter().filter(|s| s.node != "between nodes" && !s.kernel.converts());
    let ms = own.map(|s| s.ms).sum::<f64>().max(1e-6);
    Ok((2.0 * (size as f64).powi(3) / ms / 1e6, ms))
}

/// A copy on a GPU that reads and writes `bytes`, its milliseconds, and how fast as many went there and back, in 10⁹ a second.
fn copy_by_gpu(bytes: usize, backend: &Backend, monitor: &Monitor) -> Result<(CopySpeed, f64, f64)> {
    let n = bytes / 2 / size_of::<f32>();
    let mut g = Graph::new("copy");
    let fact = Fact::new(Some(DType::F32), Some(vec![Dim::from(n)]));
    let x: Port = g.add_input("x", fact, Op::Input(Input { default: None }))?.into();
    let y = g.add_node("copy", Op::Unary(Unary::Relu), &[Some(x)], &["y"])?;
    g.add_output("out", y.into());
    let session = Session::new(&verify(&g)?, backend, &[])?;
    let x = Tensor::floats(DType::F32, &[n], &vec![0.5; n]);
    let pace = Pace { runs: RUNS, time: TIME, stopped: &|| monitor.stopped() };
    let least = bench::least(&[&session], &[x], &pace)?.concat();
    let ms = |copy: bool| least.iter().filter(|s| s.node.contains("copy") == copy).map(|s| s.ms).sum::<f64>().max(1e-6);
    let gbs = |ms: f64| bytes as f64 / ms / 1e6;
    Ok((CopySpeed { bytes, gbs: gbs(ms(true)) }, ms(true), gbs(ms(false))))
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

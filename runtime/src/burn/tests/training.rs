//! Our training kernels against Burn's own gradients, on shapes drawn by a seed.

use super::{floats, noise};
use crate::{
    burn::{
        kernels::{self, Args},
        tensor::{Float, Geometry, Value, multiplying},
    },
    device::Device,
};
use compress_compiler::{
    error::Result,
    op::Op,
    ops::{
        activation::Activation,
        normalize::LpNorm,
        pool::{GlobalPool, Pool, PoolKind},
        reduce::ReduceKind,
        window::Window,
    },
    tensor::Tensor,
};
use compress_kernels::train::FactorWidth;

/// How many shapes of each operator.
const ROUNDS: u64 = 60;

/// What is drawn by a seed.
struct Draw(u64);

impl Draw {
    fn from(&mut self, low: usize, high: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        low + (self.0 >> 33) as usize % (high - low + 1)
    }

    fn of(&mut self, list: &[usize]) -> usize {
        list[self.from(0, list.len() - 1)]
    }
}

/// The output of `f`, and the gradients of all leaves by a weighted sum of it.
fn derived(leaves: &[Tensor], f: impl Fn(&[Float]) -> Result<Float>) -> Result<Vec<Vec<f32>>> {
    derived_by(false, |shape| noise(shape, 99), leaves, f)
}

/// [`derived`], with cheap values computed again or not, by a sum that is weighted so.
fn derived_by(
    recompute: bool,
    weights: impl Fn(&[usize]) -> Tensor,
    leaves: &[Tensor],
    f: impl Fn(&[Float]) -> Result<Float>,
) -> Result<Vec<Vec<f32>>> {
    let device = Device::cpu();
    let leaf = |t: &Tensor| Ok(Float::upload(t, &device)?.leaf(recompute));
    let leaves = leaves.iter().map(leaf).collect::<Result<Vec<_>>>()?;
    let y = f(&leaves)?;
    let n = y.elements();
    let weights = Float::upload(&weights(y.shape()), &device)?;
    let mut out = vec![y.clone().detached().into_vec()?];
    let mut all = y.mul(weights)?.reshape(&[n])?.reduce(ReduceKind::Sum, &[0], false)?.backward()?;
    for leaf in &leaves {
        out.push(all.take(leaf).expect("the loss depends on all leaves").into_vec()?);
    }
    Ok(out)
}

fn bits(all: &[Vec<f32>]) -> Vec<Vec<u32>> {
    all.iter().map(|v| v.iter().map(|v| v.to_bits()).collect()).collect()
}

/// `ours` gives what `theirs` gives, and the same to the last bit whatever the number of threads.
fn same(
    what: &str,
    leaves: &[Tensor],
    ours: impl Fn(&[Float]) -> Result<Float> + Sync,
    theirs: impl Fn(&[Float]) -> Result<Float>,
) {
    near(what, leaves, ours, &derived(leaves, theirs).unwrap());
}

/// `ours` in bfloat16 gives what `theirs` gives of what is rounded before, both passes.
fn same_in_bf16(
    what: &str,
    leaves: &[Tensor],
    ours: impl Fn(&[Float]) -> Result<Float> + Sync,
    theirs: impl Fn(&[Float]) -> Result<Float>,
) {
    let rounded = |t: &Tensor| {
        let near: Vec<f32> = floats(t).into_iter().map(|v| half::bf16::from_f32(v).to_f32()).collect();
        Tensor::f32(t.shape(), &near)
    };
    let narrow: Vec<Tensor> = leaves.iter().map(rounded).collect();
    let expected = derived_by(false, |shape| rounded(&noise(shape, 99)), &narrow, theirs).unwrap();
    near(&format!("{what}, in bf16"), leaves, |x| multiplying(FactorWidth::Bf16, || ours(x)), &expected);
}

fn near(what: &str, leaves: &[Tensor], ours: impl Fn(&[Float]) -> Result<Float> + Sync, expected: &[Vec<f32>]) {
    let threads = |n| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap();
        pool.install(|| derived(leaves, &ours)).unwrap()
    };
    let (one, three) = (threads(1), threads(3));
    assert!(bits(&one) == bits(&three), "{what}: differs by the number of threads");
    for (i, (a, b)) in one.iter().zip(expected).enumerate() {
        let size = b.iter().fold(1e-3f32, |m, v| m.max(v.abs()));
        let worst = a.iter().zip(b).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
        assert!(a.len() == b.len() && worst <= 1e-4 * size, "{what}: result {i} is off by {worst} of {size}");
    }
}

#[test]
fn convolutions() {
    for seed in 0..ROUNDS {
        let mut draw = Draw(seed);
        let groups = draw.of(&[1, 1, 2, 3]);
        let depthwise = draw.from(0, 3) == 0;
        let each = if depthwise { 1 } else { draw.from(1, 5) };
        let (channels, filters) = (groups * each, groups * draw.from(1, 5));
        let flat = draw.from(0, 3) == 0;
        let (mut size, mut kernel) = ([0; 2], [0; 2]);
        let mut at = Geometry { stride: [1; 2], dilation: [1; 2], pads: [(0, 0); 2] };
        for i in 0..2 {
            if flat && i == 0 {
                (size[i], kernel[i]) = (1, 1);
                continue;
            }
            kernel[i] = draw.from(1, 4);
            at.stride[i] = draw.from(1, 3);
            at.dilation[i] = draw.from(1, 2);
            at.pads[i] = (draw.from(0, 2), draw.from(0, 2));
            size[i] = at.dilation[i] * (kernel[i] - 1) + draw.from(1, 9);
        }
        let out = [0, 1].map(|i| {
            let room = size[i] + at.pads[i].0 + at.pads[i].1;
            (room - at.dilation[i] * (kernel[i] - 1) - 1) / at.stride[i] + 1
        });
        let mut leaves = vec![
            noise(&[draw.from(1, 3), channels, size[0], size[1]], 3 * seed),
            noise(&[filters, each, kernel[0], kernel[1]], 3 * seed + 1),
        ];
        if draw.from(0, 1) == 0 {
            leaves.push(noise(&[filters], 3 * seed + 2));
        }
        let ours = |x: &[Float]| Ok(x[0].convolved(&x[1], x.get(2), &at, groups, out)?.expect("a kernel of ours"));
        let border = [(0, 0), (0, 0), at.pads[0], at.pads[1]];
        let bare = Geometry { pads: [(0, 0); 2], ..at };
        let theirs =
            |x: &[Float]| x[0].clone().pad(&border, 0.0)?.conv2d(x[1].clone(), x.get(2).cloned(), &bare, groups);
        let what = format!("{:?} by {:?}, {at:?}, {groups} groups", leaves[0], leaves[1]);
        same(&what, &leaves, ours, theirs);
        // What reads for one filter multiplies in 32 bits. The gradient of a bias is a sum, of which nothing is rounded.
        if filters > groups {
            same_in_bf16(&what, &leaves[..2], ours, theirs);
        }
    }
}

#[test]
fn products_in_bf16() {
    for seed in 0..ROUNDS {
        let mut draw = Draw(seed);
        let batches: Vec<usize> = (0..draw.from(0, 2)).map(|_| draw.from(1, 3)).collect();
        let [m, k, n] = [draw.from(1, 40), draw.from(1, 70), draw.from(1, 60)];
        let turned = [draw.from(0, 1) == 1, draw.from(0, 1) == 1];
        let shape = |[rows, columns]: [usize; 2], turned: bool| {
            let last = if turned { [columns, rows] } else { [rows, columns] };
            [&batches[..], &last].concat()
        };
        let leaves = [noise(&shape([m, k], turned[0]), 2 * seed), noise(&shape([k, n], turned[1]), 2 * seed + 1)];
        let product = |x: &[Float]| {
            let rank = batches.len() + 2;
            let order: Vec<usize> = (0..rank - 2).chain([rank - 1, rank - 2]).collect();
            let side = |i: usize| if turned[i] { x[i].clone().permute(&order) } else { x[i].clone() };
            side(0).matmul(side(1))
        };
        same_in_bf16(&format!("{batches:?} {m} {k} {n} {turned:?}"), &leaves, product, product);
    }
}

#[test]
fn batch_normalisation() {
    for seed in 0..ROUNDS {
        let mut draw = Draw(seed);
        let channels = draw.from(1, 9);
        let mut shape = vec![draw.from(2, 5), channels];
        (0..draw.from(0, 3)).for_each(|_| shape.push(draw.from(1, 7)));
        let leaves = [noise(&shape, 3 * seed), noise(&[channels], 3 * seed + 1), noise(&[channels], 3 * seed + 2)];
        let rectified = draw.from(0, 1) == 1;
        let ours = |x: &[Float]| {
            let [y, ..] = x[0].batch_norm(&x[1], &x[2], 1e-3, rectified).expect("a kernel of ours");
            Ok(y)
        };
        let others: Vec<usize> = (0..shape.len()).filter(|axis| *axis != 1).collect();
        let mut along = vec![1; shape.len()];
        along[1] = channels;
        let theirs = |x: &[Float]| {
            let mean = |x: Float| x.reduce(ReduceKind::Mean, &others, true);
            let centred = x[0].clone().sub(mean(x[0].clone())?)?;
            let variance = mean(centred.clone().mul(centred.clone())?)?;
            let y = centred.div(variance.add_scalar(1e-3).sqrt())?;
            let y = y.mul(x[1].clone().reshape(&along)?)?.sub(x[2].clone().reshape(&along)?.neg())?;
            Ok(if rectified { y.clamp_min(0.0) } else { y })
        };
        same(&format!("{shape:?}, rectified: {rectified}"), &leaves, ours, theirs);
    }
}

#[test]
fn maximum_pools() {
    for seed in 0..ROUNDS {
        let mut draw = Draw(seed);
        let (mut size, mut kernel, mut out, mut reach) = ([0; 2], [0; 2], [0; 2], [0; 2]);
        let mut at = Geometry { stride: [1; 2], dilation: [1; 2], pads: [(0, 0); 2] };
        for i in 0..2 {
            kernel[i] = draw.from(1, 4);
            at.stride[i] = draw.from(1, 3);
            at.dilation[i] = draw.from(1, 2);
            at.pads[i] = (draw.from(0, kernel[i] - 1), draw.from(0, kernel[i] - 1));
            let window = at.dilation[i] * (kernel[i] - 1) + 1;
            size[i] = window + draw.from(0, 9);
            let rest = size[i] + at.pads[i].0 + at.pads[i].1 - window;
            let up = draw.from(0, 1) == 1;
            out[i] = if up { rest.div_ceil(at.stride[i]) } else { rest / at.stride[i] } + 1;
            if (out[i] - 1) * at.stride[i] >= size[i] + at.pads[i].0 {
                out[i] -= 1;
            }
            reach[i] = (out[i] - 1) * at.stride[i] + window;
        }
        let shape = [draw.from(1, 3), draw.from(1, 4), size[0], size[1]];
        let leaves = [noise(&shape, seed)];
        let ours = |x: &[Float]| Ok(x[0].max_pooled(kernel, &at, out).expect("a kernel of ours"));
        let theirs = |x: &[Float]| {
            let end = |i: usize| reach[i].saturating_sub(size[i] + at.pads[i].0);
            let border = [(0, 0), (0, 0), (at.pads[0].0, end(0)), (at.pads[1].0, end(1))];
            let padded = x[0].clone().pad(&border, f32::NEG_INFINITY)?;
            let cut = padded.slice(2, 0, reach[0], 1)?.slice(3, 0, reach[1], 1)?;
            Ok(cut.max_pool2d(kernel, &Geometry { pads: [(0, 0); 2], ..at }, false, out))
        };
        same(&format!("{shape:?} by {kernel:?}, {at:?}, giving {out:?}"), &leaves, ours, theirs);
    }
}

#[test]
fn rectifiers_and_sums() {
    for seed in 0..ROUNDS {
        let mut draw = Draw(seed);
        let shape: Vec<usize> = (0..draw.from(1, 4)).map(|_| draw.from(1, 40)).collect();
        let leaves = [noise(&shape, 2 * seed), noise(&shape, 2 * seed + 1)];
        same(
            &format!("Relu of {shape:?}"),
            &leaves[..1],
            |x| Ok(x[0].clone().relu()),
            |x| Ok(x[0].clone().clamp_min(0.0)),
        );
        let theirs = |x: &[Float]| x[0].clone().sub(x[1].clone().neg());
        same(&format!("Add of {shape:?}"), &leaves, |x| x[0].clone().add(x[1].clone()), theirs);
        // A value that is read twice, by what overwrites in place.
        let twice = |x: &[Float]| x[0].clone().relu().add(x[0].clone())?.add(x[0].clone().relu());
        let theirs = |x: &[Float]| x[0].clone().clamp_min(0.0).mul_scalar(2.0).sub(x[0].clone().neg());
        same(&format!("both of {shape:?}"), &leaves[..1], twice, theirs);
    }
}

/// Each against its own differences; those of kernels are tested where these are.
#[test]
fn functions_of_an_element() {
    type Of = fn(Float) -> Float;
    let all: [(&str, Of); 5] = [
        ("Erf", Float::erf),
        ("Exp", Float::exp),
        ("Gelu", Float::gelu),
        ("Sigmoid", Float::sigmoid),
        ("Tanh", Float::tanh),
    ];
    let x = noise(&[9, 1000], 1);
    let (device, h) = (Device::cpu(), 0.01);
    let weights = floats(&noise(&[9, 1000], 99));
    for (name, f) in all {
        let at = |by: f64| f(Float::upload(&x, &device).unwrap().add_scalar(by)).into_vec().unwrap();
        let (low, high) = (at(-h), at(h));
        let [y, dx] = &derived(std::slice::from_ref(&x), |x| Ok(f(x[0].clone()))).unwrap()[..] else {
            panic!("a value and a gradient")
        };
        for (i, y0) in at(0.0).into_iter().enumerate() {
            let slope = weights[i] * (high[i] - low[i]) / (2.0 * h as f32);
            assert!((y[i] - y0).abs() < 1e-6 * y0.abs().max(1.0), "{name}: {} for {y0}", y[i]);
            assert!((dx[i] - slope).abs() < 3e-4, "the slope of {name}: {} for {slope}", dx[i]);
        }
    }
}

#[test]
fn what_runs_along_the_last_axis() {
    for seed in 0..ROUNDS {
        let mut draw = Draw(seed);
        let mut shape: Vec<usize> = (0..draw.from(1, 3)).map(|_| draw.from(1, 12)).collect();
        let (axis, width) = (shape.len(), draw.from(1, 70));
        shape.push(width);
        let of = |x: &Float, kind| x.clone().reduce(kind, &[axis], true);
        let leaves = [noise(&shape, 3 * seed), noise(&[width], 3 * seed + 1), noise(&[width], 3 * seed + 2)];
        let theirs = |x: &[Float]| {
            let y = x[0].clone().exp();
            y.clone().div(of(&y, ReduceKind::Sum)?)
        };
        same(&format!("softmax of {shape:?}"), &leaves[..1], |x| Ok(x[0].clone().softmax(axis, false)), theirs);
        let theirs = |x: &[Float]| x[0].clone().sub(x[1].clone().neg());
        same(&format!("line of {shape:?}"), &leaves[..2], |x| x[0].clone().add(x[1].clone()), theirs);
        same(&format!("lines of {shape:?}"), &leaves[..2], |x| x[1].clone().add(x[0].clone()), theirs);
        let normal = |x: &[Float]| {
            let rest = x[0].clone().sub(of(&x[0], ReduceKind::Mean)?)?;
            let variance = of(&rest.clone().mul(rest.clone())?, ReduceKind::Mean)?;
            rest.div(variance.add_scalar(0.1).sqrt())?.mul(x[1].clone())
        };
        let ours = |x: &[Float]| Ok(x[0].clone().layer_norm(x[1].clone(), x.get(2).cloned(), 0.1));
        same(&format!("norm of {shape:?}"), &leaves[..2], ours, normal);
        let theirs = |x: &[Float]| normal(x)?.sub(x[2].clone().neg());
        same(&format!("norm of {shape:?} and a bias"), &leaves, ours, theirs);
    }
}

#[test]
fn slices_and_borders() {
    for seed in 0..ROUNDS {
        let mut draw = Draw(seed);
        let rank = draw.from(1, 4);
        let shape: Vec<usize> = (0..rank).map(|_| draw.from(1, 12)).collect();
        let cut: Vec<[usize; 3]> = (shape.iter())
            .map(|n| {
                let (start, step) = (draw.from(0, n - 1), draw.from(1, 3));
                [start, draw.from(1, (n - start).div_ceil(step)), step]
            })
            .collect();
        let border: Vec<(usize, usize)> = shape.iter().map(|_| (draw.from(0, 2), draw.from(0, 2))).collect();
        let leaves = [noise(&shape, seed)];
        let ours = |x: &[Float]| {
            let mut cut = cut.iter().enumerate();
            let part =
                cut.try_fold(x[0].clone(), |x, (axis, &[start, count, step])| x.slice(axis, start, count, step as i64));
            part?.pad(&border, 0.5)
        };
        let theirs = |x: &[Float]| {
            let mut y = x[0].clone();
            for (axis, (&[start, count, step], (before, after))) in cut.iter().zip(&border).enumerate() {
                y = y.select(axis, (0..count).map(|i| (start + i * step) as i64).collect())?;
                let blank = |n: usize| {
                    let shape: Vec<usize> =
                        y.shape().iter().enumerate().map(|(i, m)| if i == axis { n } else { *m }).collect();
                    Float::full(&shape, 0.5, &Device::cpu())
                };
                let parts = [(*before > 0).then(|| blank(*before)), (*after > 0).then(|| blank(*after))];
                let [before, after] = parts.map(Option::transpose);
                let parts = [before?, Some(y), after?].into_iter().flatten().collect();
                y = Float::cat(parts, axis)?;
            }
            Ok(y)
        };
        same(&format!("{shape:?} cut by {cut:?} in {border:?}"), &leaves, ours, theirs);
    }
}

#[test]
fn what_is_computed_again_is_the_same() {
    let at = Geometry { stride: [1; 2], dilation: [1; 2], pads: [(1, 1); 2] };
    let kernel = |seed: u64| noise(&[4, 4, 3, 3], seed);
    let mut leaves = vec![noise(&[2, 4, 8, 8], 1), kernel(2), kernel(3), kernel(4)];
    leaves.extend((5..9).map(|seed| noise(&[4], seed)));
    let net = |x: &[Float]| {
        let conv = |y: &Float, w: &Float| Ok(y.convolved(w, None, &at, 1, [8; 2])?.expect("a kernel of ours"));
        let norm = |y: Float, scale: &Float, bias: &Float, rectified| {
            let [y, ..] = y.batch_norm(scale, bias, 1e-3, rectified).expect("a kernel of ours");
            y
        };
        let first = norm(conv(&x[0], &x[1])?, &x[4], &x[5], true);
        let second = norm(conv(&first, &x[2])?, &x[6], &x[7], false);
        let sum = second.add(first.clone())?.relu();
        let part = sum.clone().slice(2, 0, 4, 2)?.slice(3, 0, 4, 2)?.pad(&[(0, 0), (0, 0), (2, 2), (2, 2)], 0.0)?;
        conv(&sum, &x[3])?.add(part)?.relu().add(first)
    };
    let (kept, again) =
        (derived(&leaves, net).unwrap(), derived_by(true, |shape| noise(shape, 99), &leaves, net).unwrap());
    assert!(bits(&kept) == bits(&again));
}

#[test]
fn derivatives_at_zero_are_some_sides() {
    let zero = [Tensor::f32(&[3], &[0.0; 3])];
    let gradient = |op: compress_compiler::op::Op| {
        let device = Device::cpu();
        let f = |x: &[Float]| {
            let args = Args::new(vec![Some(Value::Float(x[0].clone()))], &device);
            let Value::Float(y) = kernels::eval(&op, args)?.remove(0) else { panic!("no float") };
            Ok(y)
        };
        derived(&zero, f).unwrap().remove(1)
    };
    let weights = noise(&[3], 99).as_f32().unwrap().into_owned();
    let twice: Vec<f32> = weights.iter().map(|w| 2.0 * w).collect();
    assert_eq!(gradient(Activation::Elu { alpha: 2.0 }.into()), twice);
    assert_eq!(gradient(Activation::Celu { alpha: 2.0 }.into()), weights);
    assert_eq!(gradient(LpNorm { axis: 0, p: 2 }.into()), weights);
}

#[test]
fn pools_of_zeros_have_no_gradient() {
    let device = Device::cpu();
    for p in [1, 2, 3] {
        let kind = PoolKind::Lp(p);
        let window = Window { strides: vec![2], ..Window::default() };
        for op in [Op::from(Pool::new(kind, vec![2], window)), GlobalPool { kind }.into()] {
            let pooled = |x: &[Float]| {
                let args = Args::new(vec![Some(Value::Float(x[0].clone()))], &device);
                let Value::Float(y) = kernels::eval(&op, args)?.remove(0) else { panic!("no float") };
                Ok(y)
            };
            let made = derived(&[Tensor::f32(&[2, 1, 4], &[0.0, 0.0, 3.0, 4.0, 0.0, 0.0, 0.0, 0.0])], pooled).unwrap();
            assert!(made.iter().flatten().all(|v| v.is_finite()), "{op:?}: {made:?}");
            assert_eq!(made[1][4..], [0.0; 4], "{op:?}");
        }
    }
}

//! Kernels beside those for the CPU. They run on the device that `COMPRESS_TEST_DEVICE` names.

mod sessions;

use super::dense::{By, Product, TILES, Weight};
use super::tile::Tile;
use crate::device::{Device, FloatProducts};
use ::burn::backend::{DType, DispatchDevice, Shape};
use burn_cubecl::{CubeDevice, tensor::CubeTensor};
use compress_kernels::{self as kernels, Conv8, ConvF, Finish8, Isa, Rows, RowsMut, UnaryOp, Window};
use rand::{Rng, SeedableRng, rngs::StdRng};

fn device() -> CubeDevice {
    match Device::of_tests().burn() {
        DispatchDevice::Cube(device) => device.clone(),
        other => panic!("a GPU, not {other:?}"),
    }
}

/// What multiplies on a device, and into which tiles.
fn ways(device: &CubeDevice) -> Vec<(By, &'static [Tile])> {
    let plain = (By::Units, &TILES[..1]);
    match By::of(device) {
        Some(By::TensorCores) => vec![(By::TensorCores, &TILES[..]), plain],
        _ => vec![plain],
    }
}

fn upload(device: &CubeDevice, bytes: &[u8], shape: Vec<usize>, dtype: DType) -> CubeTensor {
    let client = device.client();
    let handle = client.create_from_slice(bytes);
    CubeTensor::new_contiguous(client, device.clone(), Shape::from(shape), handle, dtype)
}

fn bytes_of(t: &CubeTensor) -> Vec<u8> {
    t.client.read_one_unchecked(t.handle.clone()).to_vec()
}

/// Windows with their channels of a group, groups and outputs.
fn windows() -> Vec<(Window, usize, usize, usize)> {
    let at = |batch, input, output, kernel, stride, dilation, pad| Window {
        batch,
        input,
        output,
        kernel,
        stride,
        dilation,
        pad,
    };
    vec![
        (Window::pixel(37), 51, 1, 29),
        (Window::pixel(128), 64, 1, 64),
        (Window::pixel(5), 96, 1, 10),
        (at(2, [7, 9], [7, 9], [3, 3], [1, 1], [1, 1], [1, 1]), 3, 1, 20),
        (at(1, [9, 8], [4, 4], [3, 3], [2, 2], [1, 1], [0, 1]), 20, 1, 24),
        (at(1, [12, 12], [12, 12], [3, 3], [1, 1], [2, 2], [2, 2]), 16, 1, 136),
        (at(2, [6, 6], [6, 6], [1, 1], [1, 1], [1, 1], [0, 0]), 48, 1, 40),
        (at(1, [5, 10], [5, 10], [5, 1], [1, 1], [1, 1], [2, 0]), 8, 3, 18),
    ]
}

#[test]
#[ignore = "needs COMPRESS_TEST_DEVICE to name a GPU"]
fn products_of_codes_equal_those_on_the_cpu() {
    let device = device();
    let mut rng = StdRng::seed_from_u64(7);
    for (window, channels, groups, outputs) in windows() {
        let depth = window.taps() * channels;
        let x: Vec<u8> = (0..window.pixels() * channels * groups).map(|_| rng.random()).collect();
        let w: Vec<i8> = (0..outputs * depth).map(|_| rng.random()).collect();
        let zero: u8 = rng.random();
        let requantize = Finish8::Requantize {
            bias: (0..outputs).map(|_| rng.random_range(-9000..9000)).collect(),
            // Halves come about often.
            scale: (0..outputs).map(|o| [0.5, 0.0078125, 0.003][o % 3] / depth as f32).collect(),
            zero: rng.random(),
            min: 3,
            max: 250,
        };
        let scale = Finish8::Scale {
            bias: (0..outputs).map(|_| rng.random_range(-1.0..1.0)).collect(),
            scale: (0..outputs).map(|_| rng.random_range(1e-4..1e-3)).collect(),
            min: -90.0,
            max: 95.0,
        };
        let shape = vec![window.pixels(), channels * groups];
        let weight = Weight { data: &w, outputs, kernel: window.kernel, channels, groups };
        let rows = Rows::dense(&x, window.pixels(), channels * groups);
        for finish in [requantize, scale] {
            let conv = Conv8::new(Isa::Portable, &w, outputs, window.kernel, channels, groups, zero, finish.clone());
            let mut scratch = vec![0; conv.scratch(&window, 1)];
            let n = window.positions();
            let expected = match finish {
                Finish8::Requantize { .. } => {
                    let mut y = vec![0u8; n * outputs];
                    conv.run_u8(rows, &window, RowsMut::dense(&mut y, n, outputs), &mut scratch, 1);
                    y
                }
                Finish8::Scale { .. } => {
                    let mut y = vec![0f32; n * outputs];
                    conv.run_f32(rows, &window, RowsMut::dense(&mut y, n, outputs), &mut scratch, 1);
                    bytemuck::cast_slice(&y).to_vec()
                }
            };
            for (by, tiles) in ways(&device) {
                let product = Product::of_codes(&device, by, &weight, zero, &finish);
                for tile in tiles {
                    let y = product.run_in(upload(&device, &x, shape.clone(), DType::U8), None, &window, *tile);
                    let got = bytes_of(&y);
                    let differ = got.iter().zip(&expected).filter(|(a, b)| a != b).count();
                    let what = format!("{window:?}, {channels} channels, {by:?}, {tile:?}");
                    assert_eq!((got.len(), differ), (expected.len(), 0), "{what}");
                }
            }
        }
    }
}

/// A number as products have it, and how the device holds those.
fn held(products: FloatProducts, v: f32) -> f32 {
    match products {
        FloatProducts::F32 | FloatProducts::Tf32 => v,
        FloatProducts::Bf16 => half::bf16::from_f32(v).to_f32(),
        FloatProducts::F16 => half::f16::from_f32(v).to_f32(),
    }
}

fn send(device: &CubeDevice, products: FloatProducts, v: &[f32], shape: &[usize]) -> CubeTensor {
    let (bytes, dtype): (Vec<u8>, DType) = match products {
        FloatProducts::F32 | FloatProducts::Tf32 => (bytemuck::cast_slice(v).to_vec(), DType::F32),
        FloatProducts::Bf16 => (v.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect(), DType::BF16),
        FloatProducts::F16 => (v.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect(), DType::F16),
    };
    upload(device, &bytes, shape.to_vec(), dtype)
}

fn floats_of(t: &CubeTensor) -> Vec<f32> {
    let bytes = bytes_of(t);
    let pairs = || bytes.as_chunks().0.iter();
    match t.dtype {
        DType::BF16 => pairs().map(|b| half::bf16::from_le_bytes(*b).to_f32()).collect(),
        DType::F16 => pairs().map(|b| half::f16::from_le_bytes(*b).to_f32()).collect(),
        _ => bytemuck::pod_collect_to_vec(&bytes),
    }
}

/// Products of what `products` holds of floats, beside those on the CPU: `wide` off, as parts of what so many products come to, and
/// `narrow` where they are made as narrow as they are read.
fn products_are_near(products: FloatProducts, wide: f32, narrow: f32) {
    let device = device();
    let mut rng = StdRng::seed_from_u64(8);
    for (window, channels, groups, outputs) in windows() {
        let depth = window.taps() * channels;
        let mut floats = |n: usize| (0..n).map(|_| held(products, rng.random_range(-1.0..1.0))).collect::<Vec<f32>>();
        let (x, w, bias) = (floats(window.pixels() * channels * groups), floats(outputs * depth), floats(outputs));
        let n = window.positions();
        // Each second one is a product by itself.
        let added = (groups == 1 && channels % 2 == 0).then(|| floats(n * outputs));
        let then = added.as_ref().map(|_| UnaryOp::Silu);
        let (low, high) = (-2.0, f32::INFINITY);
        let conv = ConvF::new(Isa::Portable, &w, outputs, window.kernel, channels, groups, bias.clone(), low, high);
        let conv = conv.then(Isa::Portable, then);
        let mut scratch = vec![0; conv.scratch(&window, 1)];
        let mut expected = vec![0f32; n * outputs];
        let rows = Rows::dense(&x, window.pixels(), channels * groups);
        let add = added.as_ref().map(|a| Rows::dense(a, n, outputs));
        conv.run(rows, &window, add, RowsMut::dense(&mut expected, n, outputs), &mut scratch, 1);
        let weight = Weight { data: &w, outputs, kernel: window.kernel, channels, groups };
        for (by, tiles) in ways(&device) {
            if products != FloatProducts::F32 && by == By::Units {
                continue;
            }
            for (tile, is_wide) in tiles.iter().zip([true, false].into_iter().cycle()) {
                let product = Product::of_floats(&device, by, products, &weight, &bias, [low, high]);
                let product = product.then(then).made_wide(is_wide);
                let x = send(&device, products, &x, &[window.pixels(), channels * groups]);
                let add = added.as_ref().map(|a| send(&device, products, a, &[n, outputs]));
                let got = floats_of(&product.run_in(x, add, &window, *tile));
                let scale = (depth as f32).sqrt();
                let far = got.iter().zip(&expected).map(|(a, b)| (a - b).abs() / scale).fold(0.0, f32::max);
                let bound = if is_wide { wide } else { narrow };
                assert!(got.len() == expected.len() && far < bound, "{far} {window:?}, {by:?}, {tile:?}, {is_wide}");
            }
        }
    }
}

#[test]
#[ignore = "needs COMPRESS_TEST_DEVICE to name a GPU"]
fn products_of_floats_are_as_exact_as_those_on_the_cpu() {
    products_are_near(FloatProducts::F32, 2e-6, 2e-6);
}

#[test]
#[ignore = "needs COMPRESS_TEST_DEVICE to name a GPU"]
fn products_of_halves_are_summed_in_floats() {
    // Without tensor cores there are none, on a device that is asked for them.
    let has = By::of(&device()) == Some(By::TensorCores);
    for products in [FloatProducts::Bf16, FloatProducts::F16] {
        assert_eq!(Device::of_tests().with_products(products).is_ok(), has, "{products}");
    }
    if has {
        // What cutting sums off costs, and half a unit of the last place of sums of up to 4.
        products_are_near(FloatProducts::Bf16, 1e-5, 8e-3);
        products_are_near(FloatProducts::F16, 1e-5, 1e-3);
    }
}

#[test]
#[ignore = "needs COMPRESS_TEST_DEVICE to name a GPU"]
fn there_may_be_more_rows_than_an_axis_has_cubes() {
    let device = device();
    // The double takes too long for so many.
    if By::of(&device) != Some(By::Units) {
        return;
    }
    let (rows, depth) = (super::plain::MOST * super::plain::SIDE + 700, 4);
    let x: Vec<u8> = (0..rows * depth).map(|i| (i * 7 / 3) as u8).collect();
    let w = [3i8, -5, 7, 2, -1, 4, -6, 1];
    let weight = Weight { data: &w, outputs: 2, kernel: [1, 1], channels: depth, groups: 1 };
    let (min, max) = (f32::NEG_INFINITY, f32::INFINITY);
    let finish = Finish8::Scale { bias: vec![0.0; 2], scale: vec![1.0; 2], min, max };
    let product = Product::of_codes(&device, By::Units, &weight, 9, &finish);
    let y = product.run(upload(&device, &x, vec![rows, depth], DType::U8), None, &Window::pixel(rows));
    let y: Vec<f32> = bytemuck::pod_collect_to_vec(&bytes_of(&y));
    let wrong = y.iter().enumerate().position(|(i, y)| {
        let (x, w) = (&x[i / 2 * depth..][..depth], &w[i % 2 * depth..][..depth]);
        let sum: i32 = x.iter().zip(w).map(|(x, w)| (i32::from(*x) - 9) * i32::from(*w)).sum();
        *y != sum as f32
    });
    assert_eq!((y.len(), wrong), (2 * rows, None));
}

#[test]
#[ignore = "needs COMPRESS_TEST_DEVICE to name a GPU"]
fn products_in_tf32_keep_eleven_bits() {
    let device = device();
    if By::of(&device) != Some(By::TensorCores) {
        assert!(Device::of_tests().with_products(FloatProducts::Tf32).is_err());
        return;
    }
    let (rows, depth, outputs) = (16, 128, 32);
    let mut rng = StdRng::seed_from_u64(9);
    let mut floats = |n: usize| (0..n).map(|_| rng.random_range(-1.0..1.0)).collect::<Vec<f32>>();
    let (x, w) = (floats(rows * depth), floats(outputs * depth));
    let weight = Weight { data: &w, outputs, kernel: [1, 1], channels: depth, groups: 1 };
    let bounds = [f32::NEG_INFINITY, f32::INFINITY];
    let product =
        Product::of_floats(&device, By::TensorCores, FloatProducts::Tf32, &weight, &vec![0.0; outputs], bounds);
    let y = product.run(
        upload(&device, bytemuck::cast_slice(&x), vec![rows, depth], DType::F32),
        None,
        &Window::pixel(rows),
    );
    let y: Vec<f32> = bytemuck::pod_collect_to_vec(&bytes_of(&y));
    // To nearest, of two to the one farther from zero.
    let kept = |v: f32| f64::from(f32::from_bits((v.to_bits() + 0x1000) & 0xffff_e000));
    let mut far = 0.0f64;
    for (i, y) in y.iter().enumerate() {
        let (x, w) = (&x[i / outputs * depth..][..depth], &w[i % outputs * depth..][..depth]);
        let sum: f64 = x.iter().zip(w).map(|(x, w)| kept(*x) * kept(*w)).sum();
        far = far.max((f64::from(*y) - sum).abs());
    }
    // What cutting sums off costs: a unit of the last place of a sum for every four products.
    assert!(far < 5e-5, "{far}");
}

#[test]
#[ignore = "needs COMPRESS_TEST_DEVICE to name a GPU"]
fn infinite_numbers_are_bounded() {
    let device = device();
    let (rows, depth, outputs) = (16, 64, 16);
    let mut x = vec![0.25f32; rows * depth];
    (x[0], x[depth], x[2 * depth]) = (f32::INFINITY, f32::NEG_INFINITY, f32::NAN);
    let w = vec![0.3f32; outputs * depth];
    let weight = Weight { data: &w, outputs, kernel: [1, 1], channels: depth, groups: 1 };
    for (by, _) in ways(&device) {
        let product = Product::of_floats(&device, by, FloatProducts::F32, &weight, &vec![1.0; outputs], [0.0, 6.0]);
        let x = upload(&device, bytemuck::cast_slice(&x), vec![rows, depth], DType::F32);
        let y: Vec<f32> = bytemuck::pod_collect_to_vec(&bytes_of(&product.run(x, None, &Window::pixel(rows))));
        let of_row = |row: usize| &y[row * outputs..][..outputs];
        assert_eq!((of_row(0), of_row(1)), (&[6.0; 16][..], &[0.0; 16][..]), "{by:?}");
        assert!(of_row(2).iter().all(|v| v.is_nan()), "{by:?}: {:?}", of_row(2));
        assert!(of_row(3).iter().all(|v| (v - 5.8).abs() < 1e-5), "{by:?}: {:?}", of_row(3));
    }
}

#[test]
#[ignore = "needs COMPRESS_TEST_DEVICE to name a GPU"]
fn functions_are_those_of_the_cpu() {
    let device = device();
    let mut x: Vec<f32> = (-4000..4000).map(|i| i as f32 * 0.005).collect();
    x.extend([-0.0, 1e-30, 88.0, 90.0, -90.0, 1e6, -1e6, 8_388_609.0, 4.5e15, -2.5, 0.5, 1.5]);
    // Vulkan promises nothing of these for most functions.
    let is_exact = matches!(device, CubeDevice::Cuda(_));
    if is_exact {
        x.extend([f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
    }
    use UnaryOp as F;
    let all = [
        F::Relu,
        F::Clip(-1.5, 3.0),
        F::LeakyRelu(0.1),
        F::Sigmoid,
        F::Tanh,
        F::Exp,
        F::Sqrt,
        F::Neg,
        F::Abs,
        F::HardSigmoid(0.2, 0.5),
        F::HardSwish,
        F::Silu,
        F::Gelu,
        F::GeluTanh,
        F::Erf,
        F::Log,
        F::Floor,
        F::Ceil,
        F::Round,
        F::Reciprocal,
        F::Square,
        F::Cube,
        F::Sin,
        F::Cos,
    ];
    for f in all {
        // Roots and logarithms of what has none are NaN, of which Vulkan promises nothing.
        let has = |v: &f32| is_exact || !matches!(f, F::Sqrt | F::Log) || *v > 0.0;
        let x: Vec<f32> = x.iter().copied().filter(has).collect();
        let n = x.len();
        let mut expected = vec![0f32; n];
        kernels::unary(Isa::Portable, f, Rows::dense(&x, 1, n), RowsMut::dense(&mut expected, 1, n), 1);
        let y = super::elementwise::applied(upload(&device, bytemuck::cast_slice(&x), vec![n], DType::F32), f);
        let got: Vec<f32> = bytemuck::pod_collect_to_vec(&bytes_of(&y));
        for ((x, got), expected) in x.iter().zip(&got).zip(&expected) {
            let near = (got - expected).abs() <= 1e-6 + 2e-6 * expected.abs();
            let same = got == expected || got.is_nan() && expected.is_nan();
            assert!(near || same, "{f:?} of {x}: {got}, not {expected}");
        }
    }
}

#[test]
#[ignore = "needs COMPRESS_TEST_DEVICE to name a GPU"]
fn rows_are_those_of_the_cpu() {
    let device = device();
    let mut rng = StdRng::seed_from_u64(11);
    for (n, width) in [(1, 1), (7, 3), (5, 33), (3, 128), (2, 700), (1, 5000)] {
        let mut x: Vec<f32> = (0..n * width).map(|_| rng.random_range(-9.0..9.0)).collect();
        // Exponentials of this row are infinite.
        x[..width].iter_mut().for_each(|v| *v += 100.0);
        let rows = || Rows::dense(&x, n, width);
        let sent = || upload(&device, bytemuck::cast_slice(&x), vec![n, width], DType::F32);
        let list = |t: CubeTensor| bytemuck::pod_collect_to_vec::<u8, f32>(&bytes_of(&t));
        let near = |got: &[f32], expected: &[f32], what: &str| {
            let far = got.iter().zip(expected).map(|(a, b)| (a - b).abs() / b.abs().max(1.0)).fold(0.0, f32::max);
            assert!(got.len() == expected.len() && far < 1e-4, "{what} of {n} rows of {width}: {far}");
        };
        let mut expected = vec![0.0; n * width];
        for (log, what) in [(false, "softmax"), (true, "its logarithm")] {
            let y = RowsMut::dense(&mut expected, n, width);
            match log {
                true => kernels::log_softmax(Isa::Portable, rows(), y, 1),
                false => kernels::softmax(Isa::Portable, rows(), y, 1),
            }
            near(&list(super::rows::softmax(sent(), width, log)), &expected, what);
        }
        let scale: Vec<f32> = (0..width).map(|i| 1.0 + i as f32 * 1e-3).collect();
        let bias: Vec<f32> = (0..width).map(|i| i as f32 * 1e-2).collect();
        for bias in [None, Some(&bias[..])] {
            let y = RowsMut::dense(&mut expected, n, width);
            kernels::layer_norm(Isa::Portable, rows(), &scale, bias, 1e-5, y, 1);
            let norm = super::rows::LayerNorm::new(&device, &scale, bias, 1e-5);
            near(&list(norm.run(sent())), &expected, "layer normalisation");
        }
    }
}

//! Graphs on a device, as sessions run them.

use super::*;
use crate::session::{Backend, Engine, Session};
use compress_compiler::{
    tensor::{DType, Tensor},
    text,
    verify::verify,
};

/// The session that runs a graph on the device.
fn session(source: &str) -> Session {
    session_on(source, Device::of_tests())
}

fn session_on(source: &str, device: Device) -> Session {
    let graph =
        verify(&text::parse(source).unwrap()).map(|g| Session::new(&g, &Backend::new(device, Engine::Burn), &[]));
    graph.unwrap().unwrap()
}

/// A net of which runs are recorded: a weight, a bias and a function, rounded and in floats.
fn net() -> String {
    let w: Vec<String> = (0..4 * 3 * 9).map(|i| format!("{}", (i * 37 % 19) as f32 * 0.05 - 0.45)).collect();
    format!(
        r#"graph "g" {{
            input %x: f32[N,3,D,D]
            const %w: f32[4,3,3,3] = [{}]  const %b: f32[4] = [0.1, -0.2, 0.3, 0]
            const %s: f32[] = [0.02]  const %z: u8[] = [100]  const %one: f32[1,4,1,1] = [1, 2, 3, 4]
            %c = Conv(%x, %w, %b) {{pads=[1,1,1,1]}}
            %a = Sigmoid(%c)
            %q = QuantizeLinear(%a, %s, %z)
            %d = DequantizeLinear(%q, %s, %z)
            %p = AveragePool(%d) {{kernel_shape=[2,2], strides=[2,2]}}
            %r = QuantizeLinear(%p, %s, %z)
            %e = DequantizeLinear(%r, %s, %z)
            %m = Mul(%e, %one)
            %y = ReduceMean(%m) {{axes=[2,3], keepdims=0}}
            output %y
            output %x
        }}"#,
        w.join(", ")
    )
}

#[test]
#[ignore = "needs COMPRESS_TEST_DEVICE to name a GPU"]
fn runs_that_are_played_again_take_new_inputs() {
    // Where each value has an allocation of its own, nothing can be recorded.
    let on_device = session_on(&net(), Device::named_for_tests());
    let on_cpu = session_on(&net(), Device::cpu());
    let mut rng = StdRng::seed_from_u64(12);
    // Sizes come back in turns, and more of them than recordings are kept.
    for turn in 0..7 {
        for (n, side) in [(1, 6), (3, 6), (1, 8), (2, 10), (1, 12), (1, 14)] {
            let x: Vec<f32> = (0..n * 3 * side * side).map(|_| rng.random_range(-2.0..2.0)).collect();
            let x = [Tensor::f32(&[n, 3, side, side], &x)];
            let (got, expected) = (on_device.run(&x).unwrap(), on_cpu.run(&x).unwrap());
            for (got, expected) in got.iter().zip(&expected) {
                let (a, b) = (got.as_f32().unwrap(), expected.as_f32().unwrap());
                let far = a.iter().zip(b.iter()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                // A step of a code, where a float before it rounds the other way.
                assert!(a.len() == b.len() && far < 0.02, "turn {turn}, {n} of {side}: {far}");
            }
        }
    }
    // Other threads have other streams, and record while others read.
    let x = |v: f32| [Tensor::f32(&[1, 3, 6, 6], &[v; 108])];
    let bits = |t: &[Tensor]| t[0].bytes().to_vec();
    let expected: Vec<_> = (0..8).map(|i| bits(&on_device.run(&x(i as f32 * 0.1)).unwrap())).collect();
    let check = |s: &Session| {
        for (i, expected) in expected.iter().enumerate() {
            assert_eq!(bits(&s.run(&x(i as f32 * 0.1)).unwrap()), *expected);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| check(&on_device));
        for _ in 0..2 {
            scope.spawn(|| check(&session_on(&net(), Device::named_for_tests())));
        }
    });
}

#[test]
#[ignore = "needs COMPRESS_TEST_DEVICE to name a GPU"]
fn what_depends_on_values_is_not_played_again() {
    // The sizes of the result are values of an input.
    let s = session_on(
        r#"graph "g" {
            input %x: f32[1,1,2,2]  input %by: f32[4]
            %y = Resize(%x, _, %by) {mode="nearest", nearest_mode="floor", coordinate_transformation_mode="asymmetric"}
            output %y
        }"#,
        Device::named_for_tests(),
    );
    let x = Tensor::f32(&[1, 1, 2, 2], &[1.0, 2.0, 3.0, 4.0]);
    for turn in 0..8 {
        let by = 1 + turn % 3;
        let y = s.run(&[x.clone(), Tensor::f32(&[4], &[1.0, 1.0, by as f32, 1.0])]).unwrap();
        assert_eq!(y[0].shape(), [1, 1, 2 * by, 2], "turn {turn}");
    }
}

#[test]
#[ignore = "needs COMPRESS_TEST_DEVICE to name a GPU"]
fn integers_go_ahead_of_what_is_played_again() {
    // Tokens, a mask, positions that only sizes say, a number of copies, and integers that are handed on.
    let weight =
        |n: i64| (0..n).map(|i| format!("{}", (i * 37 % 19) as f32 * 0.05 - 0.45)).collect::<Vec<_>>().join(", ");
    // The copies say how large the result is, so nothing is known of later sizes; of the mean over what isn't masked they are.
    let copies = "const %once: i64[1] = [1]  %counts = Concat(%copies, %once, %once) {axis=0}  %y = Tile(%h, %counts)";
    let mean = "%as = Shape(%h)  %u = Unsqueeze(%mask, %last)  %v = Expand(%u, %as)  %w2 = Cast(%v) {to=1}
        %masked = Mul(%h, %w2)  %z = Mul(%masked, %b)  %y = ReduceSum(%z) {keepdims=1}";
    for tail in [copies, mean] {
        let source = format!(
            r#"graph "g" {{
            input %ids: i64[N,S]  input %mask: i64[N,S]  input %copies: i64[1]  input %x: f32[N,S,4]
            const %table: f32[8,4] = [{}]  const %positions: f32[6,4] = [{}]  const %w: f32[4,4] = [{}]
            const %one: f32[] = [1]  const %far: f32[] = [-100]  const %last: i64[1] = [2]  const %at: i64[] = [1]
            const %zero: i64[] = [0]  const %step: i64[] = [1]
            %rows = Gather(%table, %ids)
            %sizes = Shape(%ids)
            %s = Gather(%sizes, %at)
            %range = Range(%zero, %s, %step)
            %places = Gather(%positions, %range)
            %m = Cast(%mask) {{to=1}}
            %k = Unsqueeze(%m, %last)
            %off = Sub(%one, %k)
            %far_off = Mul(%off, %far)
            %a = Add(%rows, %x)  %b = Add(%a, %places)  %c = MatMul(%b, %w)  %d = Sigmoid(%c)  %e = MatMul(%d, %w)
            %f = Add(%e, %far_off)  %g = Softmax(%f) {{axis=1}}  %h = MatMul(%g, %w)
            {tail}
            output %y  output %ids
        }}"#,
            weight(32),
            weight(24),
            weight(16)
        );
        let on_device = session_on(&source, Device::named_for_tests());
        let on_cpu = session_on(&source, Device::cpu());
        let mut rng = StdRng::seed_from_u64(13);
        let mut before = vec![];
        for turn in 0..24 {
            let (n, s) = [(1, 4), (2, 6)][turn % 2];
            let mut ints = |shape: &[usize], most: i64| {
                let count = shape.iter().product();
                Tensor::ints(DType::I64, shape, &(0..count).map(|_| rng.random_range(0..most)).collect::<Vec<i64>>())
            };
            let (ids, mask) = (ints(&[n, s], 8), ints(&[n, s], 2));
            let copies = Tensor::ints(DType::I64, &[1], &[1 + turn as i64 / 12]);
            let x: Vec<f32> = (0..n * s * 4).map(|_| rng.random_range(-1.0..1.0)).collect();
            let given = [ids, mask, copies, Tensor::f32(&[n, s, 4], &x)];
            let (got, expected) = (on_device.run(&given).unwrap(), on_cpu.run(&given).unwrap());
            assert_eq!(got[0].shape(), expected[0].shape(), "turn {turn}");
            let (a, b) = (got[0].as_f32().unwrap(), expected[0].as_f32().unwrap());
            let far = a.iter().zip(b.iter()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(far < 1e-5, "turn {turn}: {far}");
            // What an earlier run made would be seen.
            assert!(b.iter().zip(&before).any(|(b, before): (&f32, &f32)| (b - before).abs() > 1e-3) || turn == 0);
            before = b.to_vec();
            assert_eq!(got[1].as_i64(), given[0].as_i64(), "turn {turn}");
        }
    }
}

#[test]
#[ignore = "needs COMPRESS_TEST_DEVICE to name a GPU"]
fn inputs_that_do_not_fit_a_weight_are_refused() {
    let w = ["1"; 32].join(", ");
    let s = session(&format!(
        r#"graph "g" {{ input %x: f32[N,D]  const %w: f32[8,4] = [{w}]  %y = MatMul(%x, %w)  output %y }}"#
    ));
    let e = s.run(&[Tensor::f32(&[2, 3], &[1.0; 6])]).unwrap_err();
    assert!(e.to_string().contains("8 channels"), "{e}");
    assert_eq!(s.run(&[Tensor::f32(&[2, 8], &[1.0; 16])]).unwrap()[0].as_f32().unwrap()[..], [8.0; 8]);
}

#[test]
#[ignore = "needs COMPRESS_TEST_DEVICE to name a GPU"]
fn products_of_no_rows_are_nothing() {
    let s = session(
        r#"graph "g" { input %x: f32[N,2]  const %w: f32[2,3] = [1, 2, 3, 4, 5, 6]  %y = MatMul(%x, %w)  output %y }"#,
    );
    assert_eq!(s.run(&[Tensor::f32(&[0, 2], &[])]).unwrap()[0].shape(), [0, 3]);
    assert_eq!(s.run(&[Tensor::f32(&[1, 2], &[1.0, 1.0])]).unwrap()[0].as_f32().unwrap()[..], [5.0, 7.0, 9.0]);
}

#[test]
#[ignore = "needs COMPRESS_TEST_DEVICE to name a GPU"]
fn a_scale_or_bias_of_one_number_is_broadcast() {
    let source = |scale: &str, bias: &str| {
        format!(
            r#"graph "g" {{ input %x: f32[2,4]  const %s: {scale}  const %b: {bias}  %y = LayerNormalization(%x, %s, %b)  output %y }}"#
        )
    };
    let x = [Tensor::f32(&[2, 4], &[1.0, 2.0, 3.0, 4.0, -1.0, 0.0, 2.0, 9.0])];
    let full = source("f32[4] = [2, 2, 2, 2]", "f32[4] = [0.5, 0.5, 0.5, 0.5]");
    let expected = session_on(&full, Device::cpu()).run(&x).unwrap();
    for (scale, bias) in
        [("f32[1] = [2]", "f32[4] = [0.5, 0.5, 0.5, 0.5]"), ("f32[4] = [2, 2, 2, 2]", "f32[1] = [0.5]")]
    {
        for backend in [Backend::new(Device::of_tests(), Engine::Burn), Backend::cpu()] {
            let graph = text::parse(&source(scale, bias)).unwrap();
            let y = Session::new(&verify(&graph).unwrap(), &backend, &[]).unwrap().run(&x).unwrap();
            let far = y[0]
                .as_f32()
                .unwrap()
                .iter()
                .zip(expected[0].as_f32().unwrap().iter())
                .map(|(a, b)| (a - b).abs())
                .fold(0.0, f32::max);
            assert!(far < 1e-5, "{scale}, {bias}: {far}");
        }
    }
}

#[test]
#[ignore = "needs COMPRESS_TEST_DEVICE to name a GPU"]
fn what_may_be_large_stays_wide_in_halves() {
    let Ok(device) = Device::of_tests().with_products(FloatProducts::F16) else { return };
    // 1e5 has no half: the exponential of a product, and the sum of one with another value.
    let s = session_on(
        r#"graph "g" {
            input %x: f32[1,2]  input %r: f32[1,2]
            const %w: f32[2,2] = [1, 0, 0, 1]  const %k: f32[1] = [0.001]
            %m = MatMul(%x, %w)  %e = Exp(%m)  %a = Mul(%e, %k)
            %n = MatMul(%x, %w)  %t = Exp(%r)  %s = Add(%n, %t)  %b = Mul(%s, %k)
            output %a  output %b
        }"#,
        device,
    );
    let y = s.run(&[Tensor::f32(&[1, 2], &[12.0, 1.0]), Tensor::f32(&[1, 2], &[12.0, 1.0])]).unwrap();
    for (i, expected) in [162.754_79, 162.766_79].into_iter().enumerate() {
        assert!((y[i].as_f32().unwrap()[0] / expected - 1.0).abs() < 1e-3, "{:?}", y[i].as_f32());
    }
}

#[test]
#[ignore = "needs COMPRESS_TEST_DEVICE to name a GPU"]
fn sums_of_codes_of_nothing_are_nothing() {
    let s = session(
        r#"graph "g" {
            input %a: f32[N,3]  input %b: f32[1,3]
            const %s: f32[] = [0.5]  const %z: u8[] = [128]
            %p = QuantizeLinear(%a, %s, %z)  %q = QuantizeLinear(%b, %s, %z)
            %c = DequantizeLinear(%p, %s, %z)  %d = DequantizeLinear(%q, %s, %z)
            %e = Add(%c, %d)
            %r = QuantizeLinear(%e, %s, %z)  %y = DequantizeLinear(%r, %s, %z)
            output %y
        }"#,
    );
    let b = Tensor::f32(&[1, 3], &[1.0, 2.0, 3.0]);
    assert_eq!(s.run(&[Tensor::f32(&[0, 3], &[]), b.clone()]).unwrap()[0].shape(), [0, 3]);
    let y = s.run(&[Tensor::f32(&[2, 3], &[1.0; 6]), b]).unwrap();
    assert_eq!(y[0].as_f32().unwrap()[..], [2.0, 3.0, 4.0, 2.0, 3.0, 4.0]);
}

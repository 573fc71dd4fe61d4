use super::*;
use compress_compiler::{
    error::Kind,
    ops::quantize::{Dequantize, Quantize},
};

#[test]
fn halves_round_to_even_and_saturate() {
    let x = f32s(&[-200.0, -2.5, -1.5, -0.5, 0.0, 0.5, 1.5, 2.5, 3.0, 200.0, 1e30]);
    let zero = |d, z| Tensor::ints(d, &[], &[z]);
    let q = Quantize::along(1);
    let y = run(q.clone(), &[&x, &scalar(1.0), &zero(DType::I8, 0)]);
    assert_eq!(y.dtype(), DType::I8);
    same_ints(&y, &[11], &[-128, -2, -2, 0, 0, 0, 2, 2, 3, 127, 127]);
    let y = run(q.clone(), &[&x, &scalar(1.0), &zero(DType::U8, 3)]);
    same_ints(&y, &[11], &[0, 1, 1, 3, 3, 3, 5, 5, 6, 203, 255]);
    // Without zero point the type is u8.
    let y = run(q.clone(), &[&x, &scalar(0.5)]);
    assert_eq!(y.dtype(), DType::U8);
    same_ints(&y, &[11], &[0, 0, 0, 0, 0, 1, 3, 5, 6, 255, 255]);
    let y = run(q.clone(), &[&x, &scalar(1e-3), &zero(DType::I16, -7)]);
    same_ints(&y, &[11], &[-32768, -2507, -1507, -507, -7, 493, 1493, 2493, 2993, 32767, 32767]);
    assert_eq!(fails(q, &[&x, &scalar(1.0), &zero(DType::I32, 0)]), Kind::Unsupported);
}

#[test]
fn per_axis_and_back() {
    let x = Tensor::f32(&[2, 3], &[1.0, 2.0, 3.0, -1.0, -2.0, -3.0]);
    let (scale, zero) = (f32s(&[0.5, 1.0, 2.0]), ints(DType::U8, &[0, 10, 128]));
    let q = run(Quantize::along(-1), &[&x, &scale, &zero]);
    same_ints(&q, &[2, 3], &[2, 12, 130, 0, 8, 126]);
    let d = run(Dequantize::along(1), &[&q, &scale, &zero]);
    close(&d, &[2, 3], &[1.0, 2.0, 4.0, 0.0, -2.0, -4.0]);
    let rows = run(Dequantize::along(0), &[&q, &f32s(&[1.0, 10.0])]);
    close(&rows, &[2, 3], &[2.0, 12.0, 130.0, 0.0, 80.0, 1260.0]);
    assert_eq!(fails(Dequantize::along(0), &[&q, &scale]), Kind::Malformed);
    assert_eq!(fails(Dequantize::along(1), &[&q, &scale, &ints(DType::U8, &[1])]), Kind::Malformed);
}

#[test]
fn biases_of_32_bits_are_exact() {
    let big = i64::from(i32::MAX) - 1;
    let y = run(Dequantize::along(0), &[&ints(DType::I32, &[big, -5]), &f32s(&[0.5, 2.0])]);
    close(&y, &[2], &[big as f32 * 0.5, -10.0]);
}

#[test]
fn constants_are_dequantised_once_and_alike() {
    let x = Tensor::ints(DType::I8, &[2, 2, 2], &[-128, 127, 3, 4, 5, 6, 7, 8]);
    let (scale, zero) = (f32s(&[0.3, 0.7]), ints(DType::I8, &[1, -1]));
    let op = Dequantize::along(1);
    let at_run_time = run(op.clone(), &[&x, &scale, &zero]);
    let mut g = Graph::new("constant");
    let ports: Vec<_> =
        [("x", x), ("s", scale), ("z", zero)].map(|(n, t)| Some(Port::from(g.add_constant(n, t)))).into();
    let n = g.add_node("dq", op.into(), &ports, &["y"]).unwrap();
    g.add_output("y", n.into());
    let y = Executable::new(&verify(&g).unwrap(), &Device::of_tests()).unwrap().run(&[]).unwrap();
    assert_eq!(y[0].bytes(), at_run_time.bytes());
}

/// An integer zero has no sign, also while it is held as a float.
#[test]
fn small_negative_numbers_become_zero() {
    let text = r#"graph "g" {
        input %x: f32[2]
        const %scale: f32[] = [1]
        const %zero: i8[] = [0]
        %q = QuantizeLinear(%x, %scale, %zero)
        %y = DequantizeLinear(%q, %scale, %zero)
        output %y
    }"#;
    let g = compress_compiler::text::parse(text).unwrap();
    let y = Executable::new(&verify(&g).unwrap(), &Device::of_tests()).unwrap().run(&[f32s(&[-0.25, -0.0])]).unwrap();
    assert_eq!(y[0].bytes(), [0; 8]);
}

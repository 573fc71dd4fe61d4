//! Layers of which most weights are zero run on kernels that leave the zeros out, and compute what
//! Burn does.

use compress_compiler::{
    graph::Graph,
    node::Port,
    op::Op,
    ops::{conv::Conv, matmul::MatMul, source::Input, window::Window},
    tensor::{DType, Tensor},
    value::Fact,
    verify::verify,
};
use compress_runtime::session::{Backend, Session};

/// The largest difference between the executors on `op` by a weight of which every tenth entry is
/// not zero, or every second, and the kernels of ours.
fn run(op: impl Into<Op>, x: &[usize], weight: &[usize], every: usize) -> (f32, Vec<&'static str>) {
    let noise = |n: usize, every: usize| -> Vec<f32> {
        let one = |i: usize| if i.is_multiple_of(every) { (i * 37 % 101) as f32 / 101.0 - 0.4 } else { 0.0 };
        (0..n).map(one).collect()
    };
    let x = Tensor::f32(x, &noise(x.iter().product(), 1));
    let mut g = Graph::new("test");
    let input = Port::from(
        g.add_input("x", Fact::new(Some(DType::F32), Fact::of(&x).shape), Op::Input(Input { default: None })).unwrap(),
    );
    let weight = Port::from(g.add_constant("w", Tensor::f32(weight, &noise(weight.iter().product(), every))));
    let node = g.add_node("n", op.into(), &[Some(input), Some(weight)], &["y"]).unwrap();
    g.add_output("y", Port::from(node));
    let g = verify(&g).unwrap();
    let [ours, burn] = [Backend::cpu(), Backend::burn()].map(|backend| Session::new(&g, &backend, &[]).unwrap());
    let [a, b] = [&ours, &burn].map(|s| s.run(std::slice::from_ref(&x)).unwrap().remove(0));
    assert_eq!(a.shape(), b.shape());
    let (a, b) = (a.as_f32().unwrap(), b.as_f32().unwrap());
    let off = a.iter().zip(b.iter()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let spent = ours.profile(std::slice::from_ref(&x)).unwrap();
    (off, spent.iter().map(|s| s.kernel.name).collect())
}

fn conv(stride: i64) -> Conv {
    let window = Window { strides: vec![stride; 2], pads: vec![0; 4], dilations: vec![1; 2], ..Window::default() };
    Conv { window, group: 1, kernel: vec![1, 1] }
}

#[test]
fn sparse_layers_have_sparse_kernels() {
    let (image, weight) = ([2, 64, 9, 9], [128, 64, 1, 1]);
    for (made, kernel, runs) in [
        (run(conv(1), &image, &weight, 10), "conv_sparse_f32", true),
        (run(conv(1), &image, &weight, 2), "conv_sparse_f32", false),
        (run(conv(2), &image, &weight, 10), "conv_sparse_f32", false),
        (run(MatMul, &[2, 33, 200], &[200, 60], 10), "gemm_sparse_f32", true),
        (run(MatMul, &[8, 200], &[200, 60], 10), "gemm_sparse_f32", false),
        (run(MatMul, &[8, 200], &[200, 60], 19), "gemm_sparse_f32", true),
    ] {
        let (off, kernels) = made;
        assert!(off < 1e-4, "{kernel}: {off}");
        assert_eq!(kernels.contains(&kernel), runs, "{kernels:?}");
    }
}

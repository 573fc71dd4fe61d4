use super::*;
use compress_compiler::{
    error::Kind,
    ops::{
        batch_norm::BatchNorm,
        gemm::Gemm,
        layer_norm::LayerNorm,
        matmul::MatMul,
        reduce::{Reduce, ReduceKind},
        softmax::{Softmax, SoftmaxKind},
    },
};

fn naive(a: &[f32], b: &[f32], m: usize, k: usize, n: usize) -> Vec<f32> {
    (0..m * n).map(|i| (0..k).map(|j| a[i / n * k + j] * b[j * n + i % n]).sum()).collect()
}

#[test]
fn matrix_products() {
    let (a, b) = (noise(&[3, 5], 1), noise(&[5, 4], 2));
    let y = naive(&floats(&a), &floats(&b), 3, 5, 4);
    close(&run(MatMul, &[&a, &b]), &[3, 4], &y);
    // Rows and columns.
    close(&run(MatMul, &[&noise(&[5], 1), &b]), &[4], &naive(&floats(&noise(&[5], 1)), &floats(&b), 1, 5, 4));
    close(&run(MatMul, &[&a, &noise(&[5], 2)]), &[3], &naive(&floats(&a), &floats(&noise(&[5], 2)), 3, 5, 1));
    let dot = naive(&floats(&noise(&[5], 1)), &floats(&noise(&[5], 2)), 1, 5, 1);
    close(&run(MatMul, &[&noise(&[5], 1), &noise(&[5], 2)]), &[], &dot);
    // Batches broadcast: [2,1,3,5] x [4,5,2].
    let (a, b) = (noise(&[2, 1, 3, 5], 3), noise(&[4, 5, 2], 4));
    let (fa, fb) = (floats(&a), floats(&b));
    let each = |i: usize| naive(&fa[i / 4 * 15..][..15], &fb[i % 4 * 10..][..10], 3, 5, 2);
    close(&run(MatMul, &[&a, &b]), &[2, 4, 3, 2], &(0..8).flat_map(each).collect::<Vec<_>>());
    // One matrix for all batches.
    let b = noise(&[5, 2], 5);
    let each = |i: usize| naive(&fa[i * 15..][..15], &floats(&b), 3, 5, 2);
    close(&run(MatMul, &[&a, &b]), &[2, 1, 3, 2], &(0..2).flat_map(each).collect::<Vec<_>>());
    // A column for all batches of another.
    let (v, b) = (noise(&[5], 6), noise(&[2, 5, 3], 7));
    let each = |i: usize| naive(&floats(&v), &floats(&b)[i * 15..][..15], 1, 5, 3);
    close(&run(MatMul, &[&v, &b]), &[2, 3], &(0..2).flat_map(each).collect::<Vec<_>>());
    assert_eq!(fails(MatMul, &[&noise(&[2, 3], 1), &noise(&[2, 3], 1)]), Kind::Malformed);
    assert_eq!(fails(MatMul, &[&noise(&[], 1), &noise(&[2, 3], 1)]), Kind::Malformed);
    assert_eq!(fails(MatMul, &[&noise(&[2, 2, 3], 1), &noise(&[3, 3, 2], 1)]), Kind::Malformed);
}

#[test]
fn gemms() {
    let (a, b) = (noise(&[3, 5], 1), noise(&[5, 4], 2));
    let turn = |t: &Tensor| {
        let (r, c, f) = (t.shape()[0], t.shape()[1], floats(t));
        Tensor::f32(&[c, r], &(0..r * c).map(|i| f[i % r * c + i / r]).collect::<Vec<_>>())
    };
    for (trans_a, trans_b) in [(false, false), (true, false), (false, true), (true, true)] {
        let op = Gemm { alpha: 0.5, beta: 2.0, trans_a, trans_b };
        let x = if trans_a { turn(&a) } else { a.clone() };
        let w = if trans_b { turn(&b) } else { b.clone() };
        let product = naive(&floats(&a), &floats(&b), 3, 5, 4);
        let c = noise(&[4], 3);
        let y: Vec<f32> = product.iter().enumerate().map(|(i, v)| 0.5 * v + 2.0 * floats(&c)[i % 4]).collect();
        close(&run(op.clone(), &[&x, &w, &c]), &[3, 4], &y);
        let y: Vec<f32> = product.iter().enumerate().map(|(i, v)| 0.5 * v + 2.0 * floats(&c)[i / 4]).collect();
        let column = Tensor::f32(&[3, 1], &floats(&c)[..3]);
        close(&run(op.clone(), &[&x, &w, &column]), &[3, 4], &y);
        close(&run(op.clone(), &[&x, &w]), &[3, 4], &product.iter().map(|v| 0.5 * v).collect::<Vec<_>>());
        assert_eq!(fails(op, &[&x, &w, &noise(&[2, 3, 4], 1)]), Kind::Malformed);
    }
}

#[test]
fn softmaxes() {
    let x = noise(&[2, 3, 4], 1);
    let f = floats(&x);
    for (axis, len, step) in [(0i64, 2, 12), (1, 3, 4), (-1, 4, 1)] {
        let row = |i: usize| {
            let start = i / (step * len) * step * len + i % step;
            (0..len).map(|j| f[start + j * step].exp()).sum::<f32>()
        };
        let y: Vec<f32> = (0..24).map(|i| f[i].exp() / row(i)).collect();
        close(&run(Softmax { axis, kind: SoftmaxKind::Soft, coerced: false }, &[&x]), &[2, 3, 4], &y);
        let y: Vec<f32> = y.iter().map(|v| v.ln()).collect();
        close(&run(Softmax { axis, kind: SoftmaxKind::Log, coerced: false }, &[&x]), &[2, 3, 4], &y);
    }
    let y = run(Softmax { axis: 0, kind: SoftmaxKind::Soft, coerced: false }, &[&f32s(&[1000.0, 1000.0, -1000.0])]);
    close(&y, &[3], &[0.5, 0.5, 0.0]);
    let y = run(Softmax { axis: 0, kind: SoftmaxKind::Log, coerced: false }, &[&f32s(&[1000.0, -1000.0])]);
    close(&y, &[2], &[0.0, -2000.0]);
}

#[test]
fn reductions() {
    let x = noise(&[2, 3, 4, 2], 1);
    let f = floats(&x);
    let folds: &[(ReduceKind, fn(&[f32]) -> f32)] = &[
        (ReduceKind::Mean, |v| v.iter().sum::<f32>() / v.len() as f32),
        (ReduceKind::Sum, |v| v.iter().sum()),
        (ReduceKind::Max, |v| v.iter().copied().fold(f32::MIN, f32::max)),
        (ReduceKind::Min, |v| v.iter().copied().fold(f32::MAX, f32::min)),
        (ReduceKind::Prod, |v| v.iter().product()),
    ];
    for (kind, fold) in folds {
        for axes in [&[1i64][..], &[-1, -2], &[0, 2], &[0, 1, 2, 3], &[3, 1]] {
            let positive: Vec<usize> = axes.iter().map(|a| a.rem_euclid(4) as usize).collect();
            let shape = [2, 3, 4, 2];
            let kept: Vec<usize> = (0..4).filter(|i| !positive.contains(i)).collect();
            let mut groups = vec![vec![]; kept.iter().map(|i| shape[*i]).product()];
            for (i, v) in f.iter().enumerate() {
                let index = [i / 24, i / 8 % 3, i / 2 % 4, i % 2];
                groups[kept.iter().fold(0, |at, k| at * shape[*k] + index[*k])].push(*v);
            }
            let y: Vec<f32> = groups.iter().map(|g| fold(g)).collect();
            let list = Tensor::i64s(axes);
            let op = |keepdims| Reduce { kind: *kind, keepdims, noop_with_empty_axes: false };
            let bare: Vec<usize> = kept.iter().map(|i| shape[*i]).collect();
            close(&run(op(false), &[&x, &list]), &bare, &y);
            let full: Vec<usize> = (0..4).map(|i| if positive.contains(&i) { 1 } else { shape[i] }).collect();
            close(&run(op(true), &[&x, &list]), &full, &y);
        }
    }
    let sum = Reduce { kind: ReduceKind::Sum, keepdims: false, noop_with_empty_axes: false };
    close(&run(sum.clone(), &[&x]), &[], &[f.iter().sum()]);
    same_ints(
        &run(sum.clone(), &[&Tensor::ints(DType::I64, &[2, 2], &[1, 2, 3, 4]), &Tensor::i64s(&[0])]),
        &[2],
        &[4, 6],
    );
    close(&run(sum.clone(), &[&Tensor::f32(&[2, 0], &[]), &Tensor::i64s(&[1])]), &[2], &[0.0, 0.0]);
    // What the specification leaves open is as in ONNX Runtime.
    let neutral_element = |kind, x: &Tensor| run(Reduce { kind, ..sum.clone() }, &[x, &Tensor::i64s(&[1])]);
    close(&neutral_element(ReduceKind::Mean, &Tensor::f32(&[2, 0], &[])), &[2], &[0.0, 0.0]);
    let integers = Tensor::ints(DType::I32, &[2, 0], &[]);
    same_ints(&neutral_element(ReduceKind::Mean, &integers), &[2], &[0, 0]);
    same_ints(&neutral_element(ReduceKind::LogSum, &integers), &[2], &[i32::MIN.into(); 2]);
    let noop = Reduce { noop_with_empty_axes: true, ..sum.clone() };
    close(&run(noop, &[&x]), &[2, 3, 4, 2], &f);
    let mean = Reduce { kind: ReduceKind::Mean, ..sum };
    same_ints(&run(mean.clone(), &[&Tensor::i64s(&[1, 4])]), &[], &[2]);
    assert_eq!(fails(mean, &[&x, &Tensor::i64s(&[4])]), Kind::Malformed);
}

#[test]
fn normalisations() {
    let x = noise(&[2, 3, 2, 2], 1);
    let f = floats(&x);
    let p = |seed| Tensor::f32(&[3], &floats(&noise(&[3], seed)).iter().map(|v| v + 2.0).collect::<Vec<_>>());
    let (scale, bias, mean, var) = (p(1), p(2), p(3), p(4));
    let op = BatchNorm { epsilon: 1e-3, momentum: 0.9, training: false };
    let y: Vec<f32> = (0..24)
        .map(|i| {
            let c = i / 4 % 3;
            let at = |t: &Tensor| floats(t)[c];
            (f[i] - at(&mean)) / (at(&var) + 1e-3).sqrt() * at(&scale) + at(&bias)
        })
        .collect();
    close(&run(op.clone(), &[&x, &scale, &bias, &mean, &var]), &[2, 3, 2, 2], &y);
    assert_eq!(fails(op, &[&x, &scale, &bias, &mean, &noise(&[2], 1)]), Kind::Malformed);

    let layer = |f: &[f32], n: usize, s: &dyn Fn(usize) -> f32, b: &dyn Fn(usize) -> f32| -> Vec<f32> {
        let row = |r: &[f32]| {
            let mean = r.iter().sum::<f32>() / n as f32;
            let var = r.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / n as f32;
            r.iter().map(|v| (v - mean) / (var + 1e-5).sqrt()).collect::<Vec<_>>()
        };
        f.chunks(n).flat_map(row).enumerate().map(|(i, v)| v * s(i) + b(i)).collect()
    };
    let layer_norm = |axis| LayerNorm { axis, epsilon: 1e-5, stash_type: DType::F32, statistics: false };
    let (s, b) = (noise(&[2, 2], 5), noise(&[2, 2], 6));
    let y = layer(&f, 4, &|i| floats(&s)[i % 4], &|i| floats(&b)[i % 4]);
    close(&run(layer_norm(2), &[&x, &s, &b]), &[2, 3, 2, 2], &y);
    let y = layer(&f, 2, &|i| floats(&s)[i % 2], &|_| 0.0);
    let one = Tensor::f32(&[2], &floats(&s)[..2]);
    close(&run(layer_norm(-1), &[&x, &one]), &[2, 3, 2, 2], &y);
    // A scale of fewer axes than are normalised.
    let y = layer(&f, 4, &|i| floats(&s)[i % 2], &|_| 0.5);
    close(&run(layer_norm(2), &[&x, &one, &scalar(0.5)]), &[2, 3, 2, 2], &y);
}

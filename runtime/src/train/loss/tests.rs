use super::*;
use compress_compiler::tensor::DType;

const SCORES: [f32; 6] = [1.0, 2.0, 0.5, -1.0, 0.0, 3.0];

fn float(v: &[f32], shape: &[usize]) -> Value {
    Value::Float(Float::from_vec(v.to_vec(), shape, &Device::of_tests()).unwrap())
}

fn softmax(row: &[f32], temperature: f64) -> Vec<f64> {
    let e: Vec<f64> = row.iter().map(|v| (f64::from(*v) / temperature).exp()).collect();
    e.iter().map(|v| v / e.iter().sum::<f64>()).collect()
}

fn value(options: &LossOptions, target: &Supervision) -> Result<f64> {
    let outputs = [float(&SCORES, &[2, 3, 1, 1])];
    options.of(&outputs, &[float(&[1.0, 2.0], &[2])], target, &Device::of_tests())?.whole.scalar()
}

fn of(term: Term, weight: f32) -> LossOptions {
    LossOptions::default().with(term, weight)
}

#[test]
fn cross_entropy_with_smoothing_and_mixing_by_hand() {
    let labels = [1, 2];
    let smooth = of(Term::Labels, 2.0).smoothed(0.3);
    let mixed = Supervision { labels: Some(&labels), mix: Some((&[2, 1], 0.75)), ..Supervision::default() };
    let mut expected = 0.0;
    for (row, label) in labels.iter().enumerate() {
        let p = softmax(&SCORES[row * 3..][..3], 1.0);
        for (class, p) in p.iter().enumerate() {
            let own = if class as i64 == *label { 0.75 } else { 0.0 };
            let other = if class as i64 == labels[1 - row] { 0.25 } else { 0.0 };
            expected -= (0.7 * (own + other) + 0.1) * p.ln() / 2.0;
        }
    }
    let got = value(&smooth, &mixed).unwrap();
    assert!((got - 2.0 * expected).abs() < 1e-5, "{got} {expected}");
}

#[test]
fn squares_in_parts_of_the_signal() {
    let features = [Tensor::f32(&[2], &[0.0, 4.0])];
    let target = Supervision { features: &features, ..Supervision::default() };
    // Features are 1 and 2 off, the squares of the teacher's 0 and 16.
    let got = value(&of(Term::Features, 10.0).relative(), &target).unwrap();
    assert!((got - 10.0 * 2.5 / 8.0).abs() < 1e-5, "{got}");
}

#[test]
fn divergence_and_squares_by_hand() {
    let theirs: Vec<f32> = SCORES.iter().rev().copied().collect();
    let outputs = |shape: &[usize]| [Tensor::f32(shape, &theirs)];
    let features = [Tensor::f32(&[2], &[0.0, 4.0])];
    let mut expected = 0.0;
    for row in 0..2 {
        let (p, q) = (softmax(&theirs[row * 3..][..3], 2.0), softmax(&SCORES[row * 3..][..3], 2.0));
        expected += p.iter().zip(&q).map(|(p, q)| p * (p / q).ln()).sum::<f64>() / 2.0;
    }
    let options = of(Term::Distill, 1.0).with(Term::Features, 10.0).at(2.0);
    for outputs in [outputs(&[2, 3]), outputs(&[2, 3, 1, 1])] {
        let target = Supervision { outputs: &outputs, features: &features, ..Supervision::default() };
        let got = value(&options, &target).unwrap();
        // Features are 1 and 2 off: their mean square is 2.5.
        assert!((got - 4.0 * expected - 25.0).abs() < 1e-4, "{got} {expected}");
    }
}

#[test]
fn what_does_not_fit_is_an_error() {
    let labels = of(Term::Labels, 1.0);
    let kind = |options: &LossOptions, target: &Supervision| value(options, target).unwrap_err().exit_code();
    assert_eq!(kind(&labels, &Supervision::default()), 7);
    assert_eq!(kind(&labels, &Supervision { labels: Some(&[0, 3]), ..Supervision::default() }), 7);
    assert_eq!(kind(&labels, &Supervision { labels: Some(&[0]), ..Supervision::default() }), 7);
    let other = [Tensor::f32(&[2, 4], &[0.0; 8])];
    let distill = of(Term::Distill, 1.0);
    assert_eq!(kind(&distill, &Supervision { outputs: &other, ..Supervision::default() }), 7);
    assert_eq!(kind(&LossOptions::default(), &Supervision::default()), 2);
}

#[test]
fn rows_of_sequences_are_tokens_and_the_last_has_no_label() {
    let places = Sequences { tokens: 0, mask: Some(1) };
    let usual = |taught| LossOptions::usual(Setting { taught, sequences: Some(places), ..Setting::default() });
    let ids = Tensor::ints(DType::I64, &[2, 3], &[0, 1, 2, 2, 0, 0]);
    let mask = Tensor::ints(DType::I64, &[2, 3], &[1, 1, 1, 1, 1, 0]);
    let labels = usual(false).labels(&[ids, mask], None).unwrap().unwrap();
    assert_eq!(labels[..], [1, 2, NO_LABEL, 0, NO_LABEL, NO_LABEL]);

    let scores: Vec<f32> = (0..18).map(|i| (i * i % 7) as f32 - 2.0).collect();
    let outputs = [float(&scores, &[2, 3, 3])];
    let of = |options: &LossOptions, outputs: &[Value], teacher: &[Tensor]| {
        let target = Supervision { labels: Some(&labels), outputs: teacher, ..Supervision::default() };
        options.of(outputs, &[], &target, &Device::of_tests()).unwrap().whole.scalar().unwrap()
    };
    let counted = [(0, 1), (1, 2), (3, 0)];
    let rows: Vec<&[f32]> = scores.chunks(3).collect();
    let wanted: f64 = counted.iter().map(|(row, k)| -softmax(rows[*row], 1.0)[*k].ln()).sum::<f64>() / 3.0;
    assert!((of(&usual(false), &outputs, &[]) - wanted).abs() < 1e-6);

    let theirs: Vec<f32> = scores.iter().map(|v| v * 0.5).collect();
    let teacher = [Tensor::f32(&[2, 3, 3], &theirs)];
    let divergence = |(row, _): &(usize, usize)| -> f64 {
        let (q, p) = (softmax(rows[*row], 1.0), softmax(&theirs[row * 3..][..3], 1.0));
        p.iter().zip(&q).map(|(p, q)| p * (p / q).ln()).sum()
    };
    let taught = 0.1 * wanted + 0.9 * counted.iter().map(divergence).sum::<f64>() / 3.0;
    assert!((of(&usual(true), &outputs, &teacher) - taught).abs() < 1e-6);
}

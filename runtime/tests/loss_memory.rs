//! The memory of a process is that of all its threads: this test has a process to itself.

use compress_compiler::{tensor::Tensor, text};
use compress_runtime::{
    device::Device,
    memory::peak_of,
    train::{
        loader::TrainBatch,
        loss::{LossOptions, Term},
        model::{ModelOptions, Trainable},
        replicas::{Learning, loss_of_batch},
        teacher::Answer,
    },
};

/// Losses that nothing is learnt from, as trials of learning rates are judged by, kept all values of all batches.
#[test]
fn losses_alone_keep_no_values() {
    let source = r#"graph "g" {
        input %x: f32[N,1024]
        const %s: f32[1024] = random(1)
        const %w: f32[1024,4] = random(2)
        %a = Mul(%x, %s)
        %b = Relu(%a)
        %c = Mul(%b, %s)
        %y = MatMul(%c, %w)
        output %y
    }"#;
    let model = Trainable::new(&text::parse(source).unwrap(), &ModelOptions::default(), &Device::cpu()).unwrap();
    let (n, loss) = (1024, LossOptions::default().with(Term::Labels, 1.0));
    let batch = TrainBatch {
        inputs: vec![Tensor::f32(&[n, 1024], &vec![0.5; n * 1024])],
        sent: None,
        labels: Some(vec![1; n]),
        mix: None,
        indices: (0..n).collect(),
        len: n,
        whole: n,
        first: 0,
    };
    let losses = |count: usize| {
        let how = Learning { loss: &loss, seed: 0, scale: 1.0 };
        (0..count).try_for_each(|_| loss_of_batch(&model, how, &batch, &Answer::default()).map(drop))
    };
    losses(2).unwrap();
    let ((), peak) = peak_of(|| losses(20)).unwrap();
    // A batch makes values of 16 MiB.
    assert!(peak.is_none_or(|peak| peak < 100 << 20), "{peak:?}");
}

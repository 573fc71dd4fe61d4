//! Pruning and quantisation under training: what passes ask of a trainer, and what a trainer makes of it.

use compress_compiler::{
    error::Result,
    graph::Graph,
    node::{NodeId, Site},
    pass::{Calibrator, Context, Pass, Trained, Trainer, Training, Tuning, Weight},
    tensor::{DType, Tensor},
    text,
    verify::{Verified, verify},
};
use compress_passes::{
    prune::{
        mask::Scope,
        reconstruct::Budget,
        recover::{Recover, WeightSaliency},
    },
    quant::{ptq::Int8, scheme::WeightBits},
};
use compress_runtime::{
    burn::{BurnInterpreter, tensor::Value},
    device::Device,
    session::{Backend, Session},
    train::{
        masks::Masks,
        model::{ModelOptions, Trainable},
        optimiser::{Optimiser, OptimiserOptions},
    },
};
use std::cell::RefCell;

const NET: &str = r#"graph "net" {
  input %x: f32[N,2,6,6]
  const %w0: f32[4,2,3,3] = random(1)
  const %b0: f32[4] = random(2)
  const %w1: f32[4,4,3,3] = random(3)
  const %b1: f32[4] = random(4)
  const %w2: f32[64,5] = random(5)
  %a = Conv(%x, %w0, %b0) "a"
  %ra = Relu(%a) "ra"
  %b = Conv(%ra, %w1, %b1) {pads=[1, 1, 1, 1]} "b"
  %rb = Relu(%b) "rb"
  %f = Flatten(%rb) "f"
  %y = MatMul(%f, %w2) "y"
  output %y
}"#;

fn samples(n: usize) -> Tensor {
    let data: Vec<f32> = (0..n * 72).map(|i| ((i * 2_654_435_761) % 1000) as f32 / 500.0 - 1.0).collect();
    Tensor::f32(&[n, 2, 6, 6], &data)
}

/// Calibrates on the samples.
struct Samples;

impl Calibrator for Samples {
    fn observe(
        &self,
        graph: &Verified,
        watch: &[Site],
        sink: &(dyn Fn(usize, &[f32]) -> Result<()> + Sync),
    ) -> Result<()> {
        let session = Session::new(graph, &Backend::cpu(), watch)?;
        session.observe(&[samples(8)], &mut |i, v| sink(i, v)).map(drop)
    }

    fn observe_in_turn(
        &self,
        graph: &Verified,
        watch: &[Site],
        sink: &mut dyn FnMut(usize, &[f32]) -> Result<()>,
    ) -> Result<()> {
        Session::new(graph, &Backend::cpu(), watch)?.observe(&[samples(8)], sink).map(drop)
    }

    fn run(&self, graphs: &[&Verified], _: usize, sink: &mut dyn FnMut(&[Vec<Tensor>]) -> Result<()>) -> Result<()> {
        let run = |g: &&Verified| Session::new(g, &Backend::cpu(), &[])?.run(&[samples(8)]);
        sink(&graphs.iter().map(run).collect::<Result<Vec<_>>>()?)
    }

    fn samples(&self) -> usize {
        8
    }

    fn sized(&self, graph: &Graph) -> Result<Graph> {
        Ok(graph.clone())
    }
}

/// Does with the graph what a test wants.
struct Does<'a>(&'a dyn Fn(&mut Graph, Training) -> Result<()>);

impl Trainer for Does<'_> {
    fn tune(&self, _: &mut Graph, _: Tuning) -> Result<(u64, usize)> {
        unreachable!("nothing is searched here")
    }

    fn train(&self, graph: &mut Graph, training: Training) -> Result<Trained> {
        (self.0)(graph, training)?;
        Ok(Trained::default())
    }

    fn saliency(&self, _: &Graph, _: &[NodeId]) -> Result<Vec<Weight>> {
        Ok(vec![])
    }
}

fn run(pass: &dyn Pass, trainer: &dyn Trainer) -> Graph {
    let mut graph = text::parse(NET).unwrap();
    let interpreter = BurnInterpreter::cpu();
    let cx = Context { calibrator: Some(&Samples), trainer: Some(trainer), ..Context::new(&interpreter) };
    pass.run(&mut graph, &cx).unwrap();
    graph.infer_all().unwrap();
    graph
}

fn int8(bits: &str) -> Int8 {
    let weights: WeightBits = bits.parse().unwrap();
    Int8 { train: true, ..Int8::of(weights.scheme()) }
}

fn outputs(graph: &Graph) -> Vec<f32> {
    let session = Session::new(&verify(graph).unwrap(), &Backend::cpu(), &[]).unwrap();
    session.run(&[samples(8)]).unwrap()[0].as_f32().unwrap().into_owned()
}

fn trainable(graph: &Graph) -> Trainable {
    Trainable::new(graph, &ModelOptions { scales: true, ..ModelOptions::default() }, &Device::cpu()).unwrap()
}

/// What a training sees of a graph.
fn forward(graph: &Graph) -> Vec<f32> {
    let model = trainable(graph);
    let pass = model.forward(model.send(&[samples(8)]).unwrap(), 0).unwrap();
    let Some(Value::Float(y)) = pass.outputs.into_iter().next() else { panic!("no output") };
    y.detached().into_vec().unwrap()
}

#[test]
fn what_is_trained_is_what_is_deployed() {
    for bits in ["8", "4"] {
        let seen = RefCell::new(vec![]);
        let deployed = run(
            &int8(bits),
            &Does(&|graph, training| {
                graph.infer_all()?;
                assert!(training.scales && training.masking.is_none() && training.masked.len() == 3);
                // What a training gives back has other scales.
                for node in graph.ids().collect::<Vec<_>>() {
                    let value = graph.value(node.into());
                    if value.name.ends_with("_scale")
                        && let Some(t) = graph.constant(node.into())
                    {
                        let changed: Vec<f32> = t.as_f32().unwrap().iter().map(|v| v * 0.9).collect();
                        let changed = Tensor::f32(t.shape(), &changed);
                        graph.set_constant(node, changed);
                    }
                }
                *seen.borrow_mut() = forward(graph);
                Ok(())
            }),
        );
        let (seen, deployed_outputs) = (seen.into_inner(), outputs(&deployed));
        let largest = seen.iter().fold(0f32, |m, v| m.max(v.abs()));
        // Biases are rounded to steps of the accumulator; an activation that this moves over the middle between two
        // codes moves by one of 255.
        let far = |(a, b): (&f32, &f32)| (a - b).abs() > largest / 100.0;
        let count = seen.iter().zip(&deployed_outputs).filter(|p| far((p.0, p.1))).count();
        assert!(seen.len() == 40 && count == 0, "{count} of 40 differ: {seen:?} {deployed_outputs:?}");
        let weights = ["w0", "w1", "w2"].map(|name| {
            let node = deployed.ids().find(|n| deployed.value((*n).into()).name == format!("{name}_quantized"));
            deployed.constant(node.unwrap().into()).unwrap().clone()
        });
        let most = if bits == "4" { 8 } else { 128 };
        for w in weights {
            assert_eq!(w.dtype(), DType::I8);
            let codes = w.as_i64().unwrap();
            assert!(codes.iter().all(|c| (-most..most).contains(c)) && codes.iter().any(|c| c.abs() > most / 2));
        }
    }
}

#[test]
fn weights_and_scales_are_learnt_through_rounding() {
    run(
        &int8("4"),
        &Does(&|graph, _| {
            graph.infer_all()?;
            let mut model = trainable(graph);
            let scales = model.parameters().iter().filter(|p| p.scale.is_some()).count();
            // Of the input, of what lies between the layers, and of three weights.
            assert!(scales >= 6, "{scales}");
            let mut optimiser = Optimiser::new(&OptimiserOptions::default(), model.parameters().len());
            let mut losses = vec![];
            for _ in 0..60 {
                let pass = model.forward(model.send(&[samples(8)])?, 0)?;
                let Some(Value::Float(y)) = pass.outputs.first() else { panic!("no output") };
                let flat = y.clone().reshape(&[40])?.add_scalar(-1.0);
                let loss =
                    flat.clone().mul(flat)?.reduce(compress_compiler::ops::reduce::ReduceKind::Mean, &[0], false)?;
                losses.push(loss.clone().detached().scalar()?);
                let gradients = pass.gradients(loss)?;
                assert!(gradients.iter().all(Option::is_some));
                optimiser.step(0.01, model.parameters_mut(), gradients)?;
            }
            assert!(losses[59] < losses[0] / 2.0, "{losses:?}");
            Ok(())
        }),
    );
}

#[test]
fn masks_grow_and_hold() {
    let recover = Recover {
        budget: Budget::Fraction(0.75),
        scope: Scope { ends: true, ..Scope::default() },
        by: WeightSaliency::Taylor,
        must: true,
        deferred: false,
    };
    let graph = run(
        &recover,
        &Does(&|graph, training| {
            let device = Device::cpu();
            let mut model = Trainable::new(graph, &ModelOptions::default(), &device)?;
            let mut masks = Masks::new(model.parameters(), &training.masked, training.masking, &device)?;
            let mut optimiser = Optimiser::new(&OptimiserOptions::default(), model.parameters().len());
            let zeros = |model: &Trainable| -> Vec<usize> {
                let all = model.parameters().iter().filter(|p| p.value.shape().len() > 1);
                all.flat_map(|p| p.value.clone().into_vec().unwrap())
                    .enumerate()
                    .filter(|v| v.1 == 0.0)
                    .map(|v| v.0)
                    .collect()
            };
            let mut before: Vec<usize> = vec![];
            for step in 0..100 {
                let pass = model.forward(model.send(&[samples(8)])?, 0)?;
                let Some(Value::Float(y)) = pass.outputs.first() else { panic!("no output") };
                let loss =
                    y.clone().reshape(&[40])?.reduce(compress_compiler::ops::reduce::ReduceKind::Mean, &[0], false)?;
                let gradients = pass.gradients(loss)?;
                masks.feel(model.parameters(), &gradients)?;
                optimiser.step(0.01, model.parameters_mut(), gradients)?;
                masks.apply(f64::from(step) / 100.0, model.parameters_mut(), &device)?;
                let now = zeros(&model);
                assert!(before.iter().all(|i| now.contains(i)), "step {step}: what was zero is none");
                // A cubic rise to the whole over the first half.
                let share = 1.0 - (1.0 - (f64::from(step) / 50.0).min(1.0)).powi(3);
                let (expected, got) = (0.75 * share, now.len() as f64 / 536.0);
                assert!((got - expected).abs() < 0.01, "step {step}: {got} is zero, not {expected}");
                assert_eq!(masks.are_final(), step >= 50);
                before = now;
            }
            *graph = model.trained()?;
            Ok(())
        }),
    );
    let zero = |name: &str| {
        let node = graph.ids().find(|n| graph.value((*n).into()).name == name).unwrap();
        graph.constant(node.into()).unwrap().nonzero()
    };
    assert_eq!(["w0", "w1", "w2"].map(zero).iter().sum::<usize>(), 134);
    assert_eq!(zero("b0"), 4);
}

/// The masks that a budget comes to halfway and at the end, of all three weights.
fn masks(budget: Budget, saliency: bool) -> [Vec<Vec<bool>>; 2] {
    let seen = RefCell::new([vec![], vec![]]);
    let recover = Recover {
        budget,
        scope: Scope { ends: true, ..Scope::default() },
        by: if saliency { WeightSaliency::Taylor } else { WeightSaliency::Magnitude },
        must: true,
        deferred: false,
    };
    run(
        &recover,
        &Does(&|graph, mut training| {
            let masking = training.masking.as_mut().unwrap();
            let value = |node| graph.constant(node).unwrap().as_f32().unwrap().into_owned();
            let weight = |node: &NodeId| Weight { node: *node, values: value((*node).into()), saliency: vec![] };
            let weights: Vec<Weight> = training.masked.iter().map(weight).collect();
            *seen.borrow_mut() = [(masking.choose)(0.5, &weights)?, (masking.choose)(1.0, &weights)?];
            Ok(())
        }),
    );
    seen.into_inner()
}

fn share(mask: &[bool]) -> f64 {
    mask.iter().filter(|keep| !**keep).count() as f64 / mask.len() as f64
}

#[test]
fn a_budget_for_each_layer_is_the_same_for_all() {
    let [half, whole] = masks(Budget::Layers(0.75), false);
    assert_eq!(whole.iter().map(|m| share(m)).collect::<Vec<_>>(), [0.75; 3]);
    // A cubic is at seven eighths halfway.
    assert!(half.iter().all(|m| (share(m) - 0.65625).abs() < 0.01), "{half:?}");
    let [_, together] = masks(Budget::Fraction(0.75), false);
    assert!(together.iter().any(|m| (share(m) - 0.75).abs() > 0.005));
}

#[test]
fn a_pattern_holds_in_every_group() {
    let pattern = Budget::Pattern("2:4".parse().unwrap());
    let [at_once, whole] = masks(pattern, false);
    assert_eq!(at_once, whole);
    // Saliencies are known step by step.
    // The first layer has 2 input channels, which fill no group of 4.
    let [half, whole] = masks(pattern, true);
    let sizes: Vec<usize> = whole.iter().map(Vec::len).collect();
    assert_eq!(sizes, [144, 320]);
    for (half, whole) in half.iter().zip(&whole) {
        assert!(share(half) < 0.45 && share(whole) == 0.5);
        assert!(half.iter().zip(whole).all(|(half, whole)| *half || !whole));
    }
    // Groups run along input channels: of the convolution 9 elements apart, of the product one row apart, 5 wide.
    for (mask, apart) in whole.iter().zip([9, 5]) {
        for block in mask.chunks(4 * apart) {
            for i in 0..apart {
                assert_eq!((0..4).filter(|c| block[c * apart + i]).count(), 2);
            }
        }
    }
}

#[test]
fn what_the_loss_feels_decides_where_asked() {
    let scores = RefCell::new(vec![]);
    let recover = Recover {
        budget: Budget::Fraction(0.5),
        scope: Scope { ends: true, ..Scope::default() },
        by: WeightSaliency::Taylor,
        must: true,
        deferred: false,
    };
    run(
        &recover,
        &Does(&|_, mut training| {
            let node = training.masked[0];
            let masking = training.masking.as_mut().unwrap();
            let weight = Weight { node, values: vec![1.0, -5.0, 2.0, 0.0], saliency: vec![0.3, 0.1, 0.2, 9.0] };
            *scores.borrow_mut() = (masking.choose)(1.0, &[weight])?;
            Ok(())
        }),
    );
    // The one that is zero stays so, whatever its gradient.
    assert_eq!(scores.into_inner(), [[true, false, true, false]]);
}

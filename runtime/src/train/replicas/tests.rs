use super::*;
use crate::{
    burn::{precision::Precision, tensor::Float},
    device::Device,
    train::{loss::Term, model::ModelOptions, ranks::threads::teams},
};
use compress_compiler::text;

/// Numbers between -0.5 and 0.5 that look random.
fn numbers(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + seed * 104_729) % 1009) as f32 / 1009.0 - 0.5).collect()
}

/// Three classes of pictures of 4 by 4 pixels.
fn model(normalised: bool, precision: Precision) -> Trainable {
    let list = |n, seed| format!("{:?}", numbers(n, seed));
    let (w, m) = (list(4 * 2 * 9, 1), list(3 * 64, 2));
    let normalise = match normalised {
        true => {
            "const %scale: f32[4] = [1, 0.5, 2, 1]
             const %bias: f32[4] = [0, 1, 0, -1]
             const %mean: f32[4] = [0, 0, 0, 0]
             const %variance: f32[4] = [1, 1, 1, 1]
             %n = BatchNormalization(%c, %scale, %bias, %mean, %variance)"
        }
        false => "%n = Identity(%c)",
    };
    let source = format!(
        r#"graph "g" {{
            input %x: f32[N,2,4,4]
            const %w: f32[4,2,3,3] = {w}
            const %m: f32[64,3] = {m}
            const %b: f32[3] = [0.1, 0, -0.1]
            %c = Conv(%x, %w) {{pads=[1,1,1,1]}}
            {normalise}
            %r = Relu(%n)
            %f = Flatten(%r)
            %y = Gemm(%f, %m, %b)
            output %y
        }}"#
    );
    let graph = text::parse(&source).unwrap();
    let options = ModelOptions { precision, ..ModelOptions::default() };
    Trainable::new(&graph, &options, &Device::of_tests()).unwrap()
}

/// Seven samples, mixed with each other, and what a teacher says of them.
fn material() -> (TrainBatch, Answer) {
    let tensor = |shape: &[usize], seed| Tensor::f32(shape, &numbers(shape.iter().product(), seed));
    let batch = TrainBatch {
        inputs: vec![tensor(&[7, 2, 4, 4], 3)],
        sent: None,
        labels: Some(vec![0, 1, 2, 0, 2, 1, 0]),
        mix: Some((vec![0, 1, 2, 0, 2, 1, 0], 0.7)),
        indices: (0..7).collect(),
        len: 7,
        whole: 7,
        first: 0,
    };
    (batch, Answer { outputs: vec![tensor(&[7, 3], 4)], features: vec![] })
}

fn learn(model: &Trainable, replicas: &Replicas, scale: f32) -> Lesson {
    learn_from(model, replicas, material(), scale).lesson.unwrap()
}

fn learn_from(model: &Trainable, replicas: &Replicas, (batch, answer): (TrainBatch, Answer), scale: f32) -> Learnt {
    let loss =
        LossOptions::default().smoothed(0.1).with(Term::Labels, 1.0).with(Term::Distill, 1.0).with(Term::Mse, 0.5);
    replicas.learn(model, Learning { loss: &loss, seed: 0, scale }, Ok((&batch, &answer)), replicas).unwrap()
}

impl Beside for Replicas {
    fn word(&self) -> Word {
        let team = self.team();
        Word { seconds: 1.5 + team.rank() as f64, stops: team.rank() == 1, saves: team.leads() }
    }
}

/// What a rank reads of the seven samples.
fn own(replicas: &Replicas) -> (TrainBatch, Answer) {
    let (batch, answer) = material();
    let rows = replicas.share().rows(7);
    let cut = |tensors: &[Tensor]| tensors.iter().map(|t| tensor_rows(t, 7, &rows).unwrap()).collect();
    let mix = batch.mix.map(|(labels, share)| (labels[rows.clone()].to_vec(), share));
    let own = TrainBatch {
        inputs: cut(&batch.inputs),
        labels: batch.labels.map(|labels| labels[rows.clone()].to_vec()),
        indices: rows.clone().collect(),
        len: rows.len(),
        first: rows.start,
        mix,
        ..batch
    };
    (own, Answer { outputs: cut(&answer.outputs), features: vec![] })
}

/// A parameter that is read late is told first, although the tape meets another one first that stands beside it in the sum.
#[test]
fn gradients_do_not_wait_for_the_end_of_the_pass() {
    let list = |n, seed| format!("{:?}", numbers(n, seed));
    let source = format!(
        r#"graph "g" {{
            input %x: f32[N,4]
            const %early: f32[4,4] = {}
            const %beside: f32[4] = {}
            const %late: f32[4,4] = {}
            %a = MatMul(%x, %early)
            %b = Mul(%a, %beside)
            %r = Relu(%a)
            %c = MatMul(%r, %late)
            %y = Add(%c, %b)
            output %y
        }}"#,
        list(16, 1),
        list(4, 2),
        list(16, 3)
    );
    let model = Trainable::new(&text::parse(&source).unwrap(), &ModelOptions::default(), &Device::of_tests()).unwrap();
    let inputs = vec![Tensor::f32(&[2, 4], &numbers(8, 4))];
    let batch = TrainBatch { inputs, len: 2, whole: 2, indices: vec![0, 1], ..TrainBatch::default() };
    let answer = Answer { outputs: vec![Tensor::f32(&[2, 4], &numbers(8, 5))], features: vec![] };
    let loss = LossOptions::default().with(Term::Mse, 1.0);
    let (to, told) = mpsc::channel();
    let hear = Box::new(move |place, _| to.send(place).unwrap());
    let how = Learning { loss: &loss, seed: 0, scale: 1.0 };
    Material::new(&batch, &answer).teach(&model, how, 0, Some(hear)).unwrap();
    let order: Vec<&str> = told.iter().map(|place: usize| &model.parameters()[place].name[..]).collect();
    assert_eq!(order, ["late", "beside", "early"]);
}

#[test]
fn an_error_of_one_rank_is_one_of_all() {
    let model = model(false, Precision::F32);
    let loss = LossOptions::default().with(Term::Labels, 1.0);
    let how = Learning { loss: &loss, seed: 0, scale: 1.0 };
    // A batch that can't be read, and an answer that can't be divided.
    for broken in [Err(Error::data("a broken sample")), Ok(Tensor::f32(&[1, 3], &[0.0; 3]))] {
        let said: Vec<String> = std::thread::scope(|scope| {
            let work = |team: Team| {
                let (model, broken) = (&model, &broken);
                scope.spawn(move || {
                    let replicas = Replicas::of(team.clone(), 4, 7, 4).unwrap();
                    let (batch, mut answer) = own(&replicas);
                    let given = match (team.rank(), broken) {
                        (1, Err(e)) => Err(e.clone()),
                        (1, Ok(t)) => {
                            answer.outputs[0] = t.clone();
                            Ok((&batch, &answer))
                        }
                        _ => Ok((&batch, &answer)),
                    };
                    replicas.learn(model, how, given, &()).err().unwrap().to_string()
                })
            };
            let begun: Vec<_> = teams(2).into_iter().map(work).collect();
            begun.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert!(said[0] == format!("rank 1: {}", said[1]), "{said:?}");
    }
}

#[test]
fn gradients_are_told_as_they_are_found() {
    let model = model(true, Precision::F32);
    let (batch, answer) = material();
    let loss = LossOptions::default().with(Term::Labels, 1.0);
    let how = Learning { loss: &loss, seed: 0, scale: 1.0 };
    let (to, told) = mpsc::channel();
    let hear = Box::new(move |place, values| drop(to.send((place, values))));
    let (lesson, heard) = Material::new(&batch, &answer).teach(&model, how, 0, Some(hear)).unwrap();
    let names: Vec<&str> = model.parameters().iter().map(|p| &p.name[..]).collect();
    assert_eq!(heard, vec![true; names.len()]);
    let gradients = lesson.unwrap().gradients;
    let mut order = vec![];
    for (place, values) in told {
        assert_eq!(gradients[place].clone().unwrap().into_vec().unwrap(), values, "{}", names[place]);
        order.push(names[place]);
    }
    // The last layers come first, and what reads a parameter that many steps lie behind does not wait for the end.
    let at = |name| order.iter().position(|n| *n == name).unwrap();
    assert!(at("m") < at("scale") && at("scale") < at("w"), "{order:?}");
    let places = model.order_of_lessons();
    let at = |name| places.iter().position(|place| names.get(*place) == Some(&name)).unwrap();
    assert!(at("m") < at("scale") && at("scale") < at("w"), "{places:?}");
}

#[test]
fn ranks_find_the_same_bits_as_replicas() {
    let model = model(true, Precision::F32);
    for replicas in [2, 3, 4, 6] {
        let one = found(learn(&model, &Replicas::new(replicas, 7, replicas).unwrap(), 1.0));
        // Of other numbers of ranks each has a number of replicas that isn't a power of two.
        for ranks in [2, 3, 4, 6].into_iter().filter(|n| replicas % n == 0 && (replicas / n).is_power_of_two()) {
            let all: Vec<Learnt> = std::thread::scope(|scope| {
                let work = |team| {
                    let model = &model;
                    scope.spawn(move || {
                        let replicas = Replicas::of(team, replicas, 7, replicas).unwrap();
                        learn_from(model, &replicas, own(&replicas), 1.0)
                    })
                };
                let begun: Vec<_> = teams(ranks).into_iter().map(work).collect();
                begun.into_iter().map(|rank| rank.join().unwrap()).collect()
            });
            for learnt in all {
                assert_eq!(learnt.word, Word { seconds: 1.5, stops: true, saves: true });
                assert_eq!(found(learnt.lesson.unwrap()), one, "{replicas} replicas on {ranks} ranks");
            }
        }
    }
}

/// The loss, the gradients and the statistics.
fn found(lesson: Lesson) -> Vec<Vec<f32>> {
    let gradients = lesson.gradients.into_iter().map(|g| g.expect("the loss depends on all parameters"));
    let tensors = gradients.chain(lesson.statistics).map(|x| x.into_vec().unwrap());
    std::iter::once(vec![lesson.loss as f32]).chain(tensors).collect()
}

fn far(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    assert!(a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.len() == b.len()));
    let each = |(a, b): (&Vec<f32>, &Vec<f32>)| {
        let size = b.iter().fold(1e-3f32, |m, v| m.max(v.abs()));
        a.iter().zip(b).fold(0f32, |m, (a, b)| m.max((a - b).abs() / size))
    };
    a.iter().zip(b).map(each).fold(0.0, f32::max)
}

#[test]
fn replicas_find_what_one_finds() {
    let model = model(false, Precision::F32);
    let one = found(learn(&model, &Replicas::default(), 1.0));
    for count in [2, 3, 7] {
        let many = found(learn(&model, &Replicas::new(count, 7, count).unwrap(), 1.0));
        assert!(far(&many, &one) < 1e-5, "{count} replicas: {}", far(&many, &one));
    }
}

#[test]
fn threads_of_replicas_change_nothing() {
    for normalised in [false, true] {
        let model = model(normalised, Precision::F32);
        let [a, b] = [2, 5].map(|threads| found(learn(&model, &Replicas::new(2, 7, threads).unwrap(), 1.0)));
        assert_eq!(a, b);
    }
}

#[test]
fn statistics_are_averaged_by_the_sizes_of_parts() {
    let model = model(true, Precision::F32);
    let (batch, answer) = material();
    let whole = Material::new(&batch, &answer);
    let loss = LossOptions::default().with(Term::Labels, 1.0);
    let how = Learning { loss: &loss, seed: 0, scale: 1.0 };
    let of = |part: Material| part.teach(&model, how, 0, None).unwrap().0.unwrap().statistics;
    let (a, b) = (of(whole.part(0..3).unwrap()), of(whole.part(3..7).unwrap()));
    let both = Replicas::new(2, 7, 2).unwrap().learn(&model, how, Ok((&batch, &answer)), &()).unwrap();
    let both = both.lesson.unwrap();
    assert_eq!(both.statistics.len(), 2);
    for ((a, b), both) in a.into_iter().zip(b).zip(both.statistics) {
        let [a, b, both] = [a, b, both].map(|x| x.into_vec().unwrap());
        for ((a, b), both) in a.iter().zip(&b).zip(&both) {
            assert!((a * 3.0 / 7.0 + b * 4.0 / 7.0 - both).abs() < 1e-6);
        }
    }
}

#[test]
fn too_many_replicas_are_refused() {
    assert!(Replicas::new(2, 2, 2).is_ok() && Replicas::new(1, 1, 1).is_ok());
    for (count, samples, threads) in [(3, 2, 4), (3, 4, 2)] {
        assert_eq!(Replicas::new(count, samples, threads).err().map(|e| e.exit_code()), Some(2));
    }
}

#[test]
fn what_is_not_counted_by_samples_is_refused() {
    let (batch, mut answer) = material();
    answer.outputs[0] = Tensor::f32(&[1, 3], &[0.0; 3]);
    let replicas = Replicas::new(2, 7, 2).unwrap();
    let loss = LossOptions::default().with(Term::Distill, 1.0);
    let how = Learning { loss: &loss, seed: 0, scale: 1.0 };
    let made = replicas.learn(&model(false, Precision::F32), how, Ok((&batch, &answer)), &());
    assert_eq!(made.err().map(|e| e.exit_code()), Some(7));
}

#[test]
fn half_precision_rounds_and_is_near() {
    for normalised in [false, true] {
        let wide = found(learn(&model(normalised, Precision::F32), &Replicas::default(), 1.0));
        // Not all GPUs hold bf16.
        let can_hold = |(precision, _): &(Precision, f32)| Float::can_hold(*precision, &Device::of_tests());
        let held: Vec<_> = [(Precision::F16, 1e-2), (Precision::Bf16, 8e-2)].into_iter().filter(can_hold).collect();
        assert!(!held.is_empty());
        for (precision, bound) in held {
            let model = model(normalised, precision);
            let half = learn(&model, &Replicas::default(), 1.0);
            assert!(half.gradients.iter().flatten().all(|g| !g.is_half()), "gradients are wide");
            let half = found(half);
            let off = far(&half, &wide);
            assert!(off > bound / 100.0 && off < bound, "{precision}: {off}");
            // A scale is a power of two: but for what is too small or too large it changes exponents alone.
            let scaled = found(learn(&model, &Replicas::default(), 256.0));
            assert!(far(&scaled, &half) < bound, "{precision}: {}", far(&scaled, &half));
        }
    }
}

#[test]
fn small_gradients_need_a_scale_and_large_ones_overflow() {
    let model = model(false, Precision::F16);
    let (batch, answer) = material();
    let learn = |labels: f32, scale: f32| {
        let loss = LossOptions::default().with(Term::Labels, labels);
        let how = Learning { loss: &loss, seed: 0, scale };
        Replicas::default().learn(&model, how, Ok((&batch, &answer)), &()).unwrap().lesson.unwrap()
    };
    // The gradient of the convolution's weight, which passes through two products in 16 bits.
    let size = |lesson: Lesson| {
        let gradients = lesson.gradients.into_iter().flatten().filter(|g| g.shape().len() == 4);
        gradients.flat_map(|g| g.into_vec().unwrap()).fold(0f32, |m, v| m.max(v.abs()))
    };
    assert_eq!(size(learn(1e-7, 1.0)), 0.0);
    let (small, whole) = (size(learn(1e-7, 65536.0)), size(learn(1.0, 1.0)));
    assert!((small * 1e7 / whole - 1.0).abs() < 0.05, "{small} {whole}");
    assert!(learn(1.0, 1.0).is_finite().unwrap());
    let lost = learn(1.0, 1e8);
    assert!(lost.loss.is_finite() && !lost.is_finite().unwrap());
}

#[test]
fn batches_are_halved_until_one_fits() {
    let width = 1 << 16;
    let source = format!(
        r#"graph "g" {{
            input %x: f32[N,{width}]
            const %w: f32[{width},1] = [{}]
            %y = MatMul(%x, %w)
            output %y
        }}"#,
        vec!["0.5"; width].join(", ")
    );
    // Not as other tests do: tensors that have an allocation of their own may be larger.
    let name = std::env::var("COMPRESS_TEST_DEVICE").unwrap_or_else(|_| "cpu".into());
    let device = Device::open(name.parse().unwrap()).unwrap();
    let model = Trainable::new(&text::parse(&source).unwrap(), &ModelOptions::default(), &device).unwrap();
    assert_eq!(model.parameters().len(), 1);
    let sample = |n: usize| Ok(vec![Tensor::f32(&[n, width], &vec![1.0; n * width])]);
    let found = model.largest_batch(1024, sample).unwrap();
    assert!(found.is_power_of_two() && found <= 1024);
    // A batch of 1024 has 268 MB, more than a tensor may have in software.
    if device.describe().contains("llvmpipe") {
        assert!((64..=512).contains(&found), "{found}");
    }
}

//! Structured pruning: which channels go together, and that a model without them computes what it computes with zeros.

use compress_compiler::{
    error::Result,
    graph::Graph,
    node::NodeId,
    onnx,
    pass::{Context, Outcome, Pass, Stopwatch, Trained, Trainer, Training, Weight},
    tensor::Tensor,
    text,
    verify::{Verified, verify},
};
use compress_passes::{
    layers::layers,
    prune::{
        cut::Cut,
        groups::{Group, Groups},
        score::ChannelSaliency,
        structured::{ChannelBudget, Channels, PruneChannels},
    },
    simplify,
};
use compress_runtime::{
    burn::BurnInterpreter,
    session::{Backend, Session},
};
use std::{cell::RefCell, env, path::PathBuf};

/// Repeatable numbers.
struct Noise(u64);

impl Noise {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// The units of a group that may go.
fn open<'a>(all: &'a Groups, group: &'a Group) -> Vec<usize> {
    (0..group.units.len()).filter(|u| all.obstacle(&group.units[*u]).is_none()).collect()
}

/// Removes some units of every group.
fn some<'a>(all: &'a Groups, noise: &mut Noise) -> Cut<'a> {
    let mut cut = Cut::new(all);
    for group in &all.groups {
        for u in open(all, group) {
            if noise.below(2) == 0 {
                cut.remove(&group.units[u]);
            }
        }
    }
    cut
}

fn outputs(g: &Graph, inputs: &[Tensor]) -> Vec<Vec<f32>> {
    let verified = verify(g).unwrap_or_else(|e| panic!("{e}\n{g}"));
    let made =
        Session::new(&verified, &Backend::cpu(), &[]).unwrap().run(inputs).unwrap_or_else(|e| panic!("{e}\n{g}"));
    made.iter().map(|t| t.as_f32().unwrap_or_default().into_owned()).collect()
}

/// Cuts a graph in several ways, and compares with zeros. Returns how many channels went.
fn masked_equals_sliced(g: &Graph, inputs: &[Tensor], times: u64) -> usize {
    let groups = Groups::find(g).unwrap();
    let mut gone = 0;
    for seed in 0..times {
        let cut = some(&groups, &mut Noise(seed));
        let (mut masked, mut sliced) = (g.clone(), g.clone());
        cut.mask(&mut masked);
        cut.apply(&mut sliced).unwrap_or_else(|e| panic!("{e}\n{g}"));
        for l in layers(g).unwrap() {
            let size = |g: &Graph| g.constant(l.weight.into()).unwrap().shape()[l.axes.output];
            gone += size(g) - size(&sliced);
        }
        let (want, got) = (outputs(&masked, inputs), outputs(&sliced, inputs));
        assert_eq!(want.len(), got.len());
        for (want, got) in want.iter().zip(&got) {
            assert_eq!(want.len(), got.len(), "{sliced}");
            let largest = want.iter().fold(1e-6f32, |m, v| m.max(v.abs()));
            let far = want.iter().zip(got).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(far <= 1e-4 * largest, "seed {seed}: off by {far} of {largest}\n{sliced}");
        }
    }
    gone
}

/// The sizes of the units of each group that may go: how many there are, by the layers that make them.
fn told(g: &Graph) -> Vec<(String, usize, usize)> {
    let groups = Groups::find(g).unwrap();
    let name = |group: &Group| {
        let names = groups.makers(group).map(|l| g.node(l.node).display_name());
        names.collect::<Vec<_>>().join("+")
    };
    groups.groups.iter().map(|group| (name(group), group.units.len(), open(&groups, group).len())).collect()
}

#[track_caller]
fn check(source: &str, expected: &[(&str, usize, usize)]) {
    let g = text::parse(source).unwrap();
    let told = told(&g);
    assert_eq!(told.iter().map(|(name, all, open)| (&name[..], *all, *open)).collect::<Vec<_>>(), expected);
    let gone = masked_equals_sliced(&g, &[noise(&g, g.inputs()[0].into())], 6);
    assert!(gone > 0, "nothing went");
}

#[test]
fn a_chain_with_normalisation_and_flatten() {
    check(
        r#"graph "chain" {
  input %x: f32[N,2,6,6]
  const %w0: f32[4,2,3,3] = random(1)
  const %b0: f32[4] = random(2)
  const %scale: f32[4] = random(3)
  const %shift: f32[4] = random(4)
  const %mean: f32[4] = random(5)
  const %var: f32[4] = [0.5, 1.0, 1.5, 2.0]
  const %w1: f32[6,4,3,3] = random(6)
  const %w2: f32[24,5] = random(7)
  const %b2: f32[5] = random(8)
  %a = Conv(%x, %w0, %b0) "a"
  %n = BatchNormalization(%a, %scale, %shift, %mean, %var) "n"
  %ra = Sigmoid(%n)
  %b = Conv(%ra, %w1) "b"
  %f = Flatten(%b)
  %y = Gemm(%f, %w2, %b2) "y"
  output %y
}"#,
        &[("a", 4, 4), ("b", 6, 6), ("y", 5, 0)],
    );
}

#[test]
fn a_sum_ties_its_operands() {
    check(
        r#"graph "residual" {
  input %x: f32[N,2,4,4]
  const %w0: f32[6,2,1,1] = random(1)
  const %w1: f32[8,6,3,3] = random(2)
  const %w2: f32[6,8,1,1] = random(3)
  const %w3: f32[3,6] = random(4)
  %a = Conv(%x, %w0) "a"
  %b = Conv(%a, %w1) {pads=[1, 1, 1, 1]} "b"
  %rb = Relu(%b)
  %c = Conv(%rb, %w2) "c"
  %s = Add(%a, %c)
  %p = GlobalAveragePool(%s)
  %f = Flatten(%p)
  %y = Gemm(%f, %w3) {transB=1} "y"
  output %y
}"#,
        &[("a+c", 6, 6), ("b", 8, 8), ("y", 3, 0)],
    );
}

#[test]
fn depthwise_and_grouped_convolutions() {
    check(
        r#"graph "groups" {
  input %x: f32[N,3,5,5]
  const %w0: f32[8,3,1,1] = random(1)
  const %w1: f32[16,1,3,3] = random(2)
  const %b1: f32[16] = random(3)
  const %w2: f32[12,8,3,3] = random(4)
  const %w3: f32[2,12,1,1] = random(5)
  %a = Conv(%x, %w0) "a"
  %d = Conv(%a, %w1, %b1) {group=8, pads=[1, 1, 1, 1]} "d"
  %r = Clip(%d)
  %g = Conv(%r, %w2) {group=2} "g"
  %y = Conv(%g, %w3) "y"
  output %y
}"#,
        // The second layer reads the same places of both halves, so those go together.
        &[("a+d", 4, 4), ("g", 6, 6), ("y", 2, 0)],
    );
}

#[test]
fn concatenations_and_splits() {
    check(
        r#"graph "dense" {
  input %x: f32[N,3,4,4]
  const %w0: f32[4,3,3,3] = random(1)
  const %w1: f32[5,7,1,1] = random(2)
  const %w2: f32[6,12,1,1] = random(3)
  const %sizes: i64[2] = [2, 4]
  const %w3: f32[3,2,1,1] = random(4)
  const %w4: f32[3,4,1,1] = random(5)
  %a = Conv(%x, %w0) {pads=[1, 1, 1, 1]} "a"
  %ca = Concat(%x, %a) {axis=1}
  %b = Conv(%ca, %w1) "b"
  %cb = Concat(%ca, %b) {axis=1}
  %c = Conv(%cb, %w2) "c"
  %s, %t = Split(%c, %sizes) {axis=1}
  %d = Conv(%s, %w3) "d"
  %e = Conv(%t, %w4) "e"
  %y = Add(%d, %e)
  output %y
}"#,
        &[("a+b", 12, 9), ("c", 6, 6), ("d+e", 3, 0)],
    );
}

#[test]
fn branches_with_a_gate() {
    check(
        r#"graph "inception" {
  input %x: f32[N,3,6,6]
  const %w0: f32[4,3,1,1] = random(1)
  const %w1: f32[4,3,3,3] = random(2)
  const %w2: f32[4,3,1,1] = random(3)
  const %s0: f32[2,12,1,1] = random(4)
  const %s1: f32[12,2,1,1] = random(5)
  const %slope: f32[12,1,1] = random(6)
  const %w3: f32[3,12,1,1] = random(7)
  %a = Conv(%x, %w0) "a"
  %b = Conv(%x, %w1) {pads=[1, 1, 1, 1]} "b"
  %p = MaxPool(%x) {kernel_shape=[3, 3], pads=[1, 1, 1, 1]}
  %c = Conv(%p, %w2) "c"
  %all = Concat(%a, %b, %c) {axis=1}
  %r = PRelu(%all, %slope)
  %m = GlobalAveragePool(%r)
  %q = Conv(%m, %s0) "q"
  %qr = Relu(%q)
  %k = Conv(%qr, %s1) "k"
  %gate = HardSigmoid(%k)
  %g = Mul(%r, %gate)
  %y = Conv(%g, %w3) "y"
  output %y
}"#,
        &[("a+b+c+k", 12, 12), ("q", 2, 2), ("y", 3, 0)],
    );
}

#[test]
fn heads_of_attention_go_as_a_whole() {
    check(
        r#"graph "attention" {
  input %x: f32[N,5,8]
  const %scale: f32[8] = random(1)
  const %shift: f32[8] = random(2)
  const %wq: f32[8,12] = random(3)
  const %wk: f32[8,12] = random(4)
  const %wv: f32[8,12] = random(5)
  const %bq: f32[12] = random(6)
  const %wo: f32[12,8] = random(7)
  const %shape: i64[4] = [0, 5, 3, 4]
  const %flat: i64[3] = [0, 0, 12]
  const %w1: f32[8,16] = random(8)
  const %w2: f32[16,8] = random(9)
  %n = LayerNormalization(%x, %scale, %shift) {axis=-1}
  %q0 = MatMul(%n, %wq) "q"
  %qb = Add(%q0, %bq)
  %k0 = MatMul(%n, %wk) "k"
  %v0 = MatMul(%n, %wv) "v"
  %q1 = Reshape(%qb, %shape)
  %k1 = Reshape(%k0, %shape)
  %v1 = Reshape(%v0, %shape)
  %q2 = Transpose(%q1) {perm=[0, 2, 1, 3]}
  %k2 = Transpose(%k1) {perm=[0, 2, 3, 1]}
  %v2 = Transpose(%v1) {perm=[0, 2, 1, 3]}
  %s = MatMul(%q2, %k2)
  %p = Softmax(%s) {axis=-1}
  %o = MatMul(%p, %v2)
  %o1 = Transpose(%o) {perm=[0, 2, 1, 3]}
  %o2 = Reshape(%o1, %flat)
  %oo = MatMul(%o2, %wo) "o"
  %z = Add(%x, %oo)
  %h = MatMul(%z, %w1) "h"
  %g = Gelu(%h)
  %e = MatMul(%g, %w2) "e"
  %y = Add(%z, %e)
  output %y
}"#,
        &[("q+k+v", 3, 3), ("o+e", 8, 0), ("h", 16, 16)],
    );
}

#[test]
fn padded_channels_are_channels() {
    check(
        r#"graph "shortcut" {
  input %x: f32[N,2,4,4]
  const %w0: f32[4,2,1,1] = random(1)
  const %pads: i64[8] = [0, 2, 0, 0, 0, 2, 0, 0]
  const %w1: f32[8,4,3,3] = random(2)
  const %w2: f32[3,8,1,1] = random(3)
  %a = Conv(%x, %w0) "a"
  %p = Pad(%a, %pads)
  %b = Conv(%a, %w1) {pads=[1, 1, 1, 1]} "b"
  %s = Add(%b, %p)
  %r = Relu(%s)
  %y = Conv(%r, %w2) "y"
  output %y
}"#,
        &[("a+b", 8, 8), ("y", 3, 0)],
    );
}

#[test]
fn shared_weights_are_sliced_once() {
    check(
        r#"graph "siamese" {
  input %x: f32[N,4,4,4]
  const %w0: f32[6,4,1,1] = random(1)
  const %w1: f32[6,6,1,1] = random(2)
  const %b: f32[6] = random(3)
  const %w2: f32[2,6,1,1] = random(4)
  %a = Conv(%x, %w0, %b) "a"
  %n = Neg(%x)
  %c = Conv(%n, %w0, %b) "c"
  %m = Mul(%a, %c)
  %d = Conv(%m, %w1) "d"
  %e = Conv(%d, %w1) "e"
  %y = Conv(%e, %w2) "y"
  output %y
}"#,
        // What is read and made by one weight is one group, with all that it reads and makes.
        &[("a+c+d+e", 6, 6), ("y", 2, 0)],
    );
}

#[test]
fn what_cannot_be_cut_says_why() {
    let source = r#"graph "closed" {
  input %x: f32[N,3,4,4]
  const %w0: f32[4,3,1,1] = random(1)
  const %w1: f32[2,4,1,1] = random(2)
  %a = Conv(%x, %w0) "a"
  %s = Softmax(%a) {axis=1} "soft"
  %y = Conv(%s, %w1) "y"
  output %y
}"#;
    let g = text::parse(source).unwrap();
    let groups = Groups::find(&g).unwrap();
    let why: Vec<Option<&str>> = groups.groups.iter().map(|group| groups.obstacle(&group.units[0])).collect();
    assert!(why[0].is_some_and(|why| why.contains("`soft` (Softmax)")), "{why:?}");
    assert_eq!(why[1], Some("it is a graph output"));
}

#[test]
#[ignore = "needs COMPRESS_ZOO, the folder of real models"]
fn zoo_models_without_channels_are_those_with_zeros() {
    let zoo = env::var_os("COMPRESS_ZOO").map(PathBuf::from).expect("COMPRESS_ZOO is the folder of the models");
    for name in [
        "lenet5_mnist",
        "bncnn_fashion",
        "tinyvit_fashion",
        "resnet20_cifar10",
        "squeezenet1_1_imagenet",
        "ultraface_rfb320",
        "yunet_n_320",
        "gtcrn",
    ] {
        let raw = onnx::read(&zoo.join(format!("models/{name}.onnx"))).unwrap().graph;
        let mut simple = raw.clone();
        simplify(&mut simple, &Context::new(&BurnInterpreter::cpu())).unwrap();
        for (g, simplified) in [(raw, false), (simple, true)] {
            let inputs: Vec<Tensor> = g.inputs().iter().map(|n| noise(&g, (*n).into())).collect();
            let gone = masked_equals_sliced(&g, &inputs, 1);
            println!("{name}: {gone} channels, {:?}", told(&g));
            assert!(gone > 0 || !simplified, "{name}: nothing went");
        }
    }
}

fn noise(g: &Graph, port: compress_compiler::node::Port) -> Tensor {
    let shape: Vec<usize> = g.fact(port).dims().unwrap().iter().map(|d| d.known().unwrap_or(1) as usize).collect();
    let mut noise = Noise(7);
    let data: Vec<f32> = (0..shape.iter().product()).map(|_| noise.below(2000) as f32 / 1000.0 - 1.0).collect();
    Tensor::f32(&shape, &data)
}

/// A machine on which each layer takes what a test says of its channels.
struct Machine(fn(&str, usize) -> f64);

impl Stopwatch for Machine {
    fn compare(&self, graphs: [&Verified; 2]) -> Result<[f64; 2]> {
        Ok(graphs.map(|g| {
            let layers = layers(g).unwrap();
            let channels = |l: &compress_passes::layers::Layer| g.constant(l.weight.into()).unwrap().shape()[0];
            layers.iter().map(|l| self.0(g.node(l.node).display_name(), channels(l))).sum()
        }))
    }
}

const TWO: &str = r#"graph "two" {
  input %x: f32[N,3,8,8]
  const %w0: f32[32,3,3,3] = random(1)
  const %w1: f32[32,32,3,3] = random(2)
  const %w2: f32[5,32,1,1] = random(3)
  %a = Conv(%x, %w0) "a"
  %r = Relu(%a)
  %b = Conv(%r, %w1) "b"
  %s = Relu(%b)
  %y = Conv(%s, %w2) "y"
  output %y
}"#;

/// Takes note of the share of the training that each is to have, and trains nothing.
struct Shares(RefCell<Vec<f64>>);

impl Trainer for Shares {
    fn train(&self, _: &mut Graph, training: Training) -> Result<Trained> {
        self.0.borrow_mut().push(training.share);
        Ok(Trained::default())
    }

    fn saliency(&self, _: &Graph, _: &[NodeId]) -> Result<Vec<Weight>> {
        Ok(vec![])
    }
}

#[test]
fn what_the_last_cut_leaves_is_trained_to_the_end() {
    // Below 16 channels nothing is faster: the second cut finds nothing that pays.
    let machine = Machine(|_, n| n.max(16) as f64);
    let mut g = text::parse(TWO).unwrap();
    let channels = Channels {
        fraction: 0.9,
        of: ChannelBudget::Macs,
        by: ChannelSaliency::L2,
        round: Some(8),
        pays: true,
        cuts: 2,
    };
    let pass = PruneChannels { channels, exclude: vec![], reconstruct: false, train: Some(true), followed: false };
    let (interpreter, trainer) = (BurnInterpreter::cpu(), Shares(RefCell::default()));
    let cx = Context { stopwatch: Some(&machine), trainer: Some(&trainer), ..Context::new(&interpreter) };
    let out = pass.run(&mut g, &cx).unwrap();
    assert_eq!(*trainer.0.borrow(), [0.5, 0.5]);
    let [told] = &out.warnings[..] else { panic!("{:?}", out.warnings) };
    assert!(told.contains("32 -> 16") && told.contains("more than the 10.0% asked for"), "{told}");
}

/// Prunes half of the multiply-accumulates on a machine; the channels of the layers then, and what the pass says.
fn pruned_on(machine: &Machine, of: ChannelBudget) -> (Vec<usize>, Outcome) {
    let mut g = text::parse(TWO).unwrap();
    let channels = Channels { fraction: 0.5, of, by: ChannelSaliency::L2, round: None, pays: true, cuts: 1 };
    let pass = PruneChannels { channels, exclude: vec![], reconstruct: false, train: None, followed: false };
    let interpreter = BurnInterpreter::cpu();
    let cx = Context { stopwatch: Some(machine), ..Context::new(&interpreter) };
    let out = pass.run(&mut g, &cx).unwrap();
    (layers(&g).unwrap().iter().map(|l| g.constant(l.weight.into()).unwrap().shape()[0]).collect(), out)
}

#[test]
fn rounding_takes_no_step_more_than_the_budget_asks_for() {
    // Positions: 36 of `a`, 16 of the others.
    let macs = |a: usize, b: usize| (36 * 27 * a + 16 * (9 * a * b + 5 * b)) as f64;
    for (percent, step) in (5..70).flat_map(|percent| [(percent, 8), (percent, 16)]) {
        let fraction = f64::from(percent) / 100.0;
        let channels = Channels {
            fraction,
            of: ChannelBudget::Macs,
            by: ChannelSaliency::L2,
            round: Some(step),
            pays: false,
            cuts: 1,
        };
        let pass = PruneChannels { channels, exclude: vec![], reconstruct: false, train: None, followed: false };
        let mut g = text::parse(TWO).unwrap();
        pass.run(&mut g, &Context::new(&BurnInterpreter::cpu())).unwrap();
        let size = |l: &compress_passes::layers::Layer| g.constant(l.weight.into()).unwrap().shape()[0];
        let [a, b, 5] = layers(&g).unwrap().iter().map(size).collect::<Vec<_>>()[..] else { panic!("{g}") };
        let budget = macs(32, 32) * (1.0 - fraction);
        assert!(macs(a, b) <= budget && a % step == 0 && b % step == 0, "{fraction}: {a}, {b}");
        assert!(a == 32 || macs(a + step, b) > budget, "{fraction}: {a}, {b}");
        assert!(b == 32 || macs(a, b + step) > budget, "{fraction}: {a}, {b}");
    }
}

#[test]
fn others_make_up_for_a_layer_that_gets_no_faster() {
    let (sizes, out) =
        pruned_on(&Machine(|name, n| if name == "b" { 1000.0 } else { n as f64 * 30.0 }), ChannelBudget::Macs);
    assert_eq!(sizes, [8, 32, 5]);
    let alone: Vec<&str> = out.skipped.iter().filter(|s| s.reason.contains("no faster")).map(|s| &s.node[..]).collect();
    assert_eq!(alone, ["b"]);
}

#[test]
fn cuts_follow_the_steps_of_kernels() {
    // Sixteen channels at a time: 24 take as long as 32.
    let (sizes, _) = pruned_on(&Machine(|_, n| n.div_ceil(16) as f64 * 100.0), ChannelBudget::Macs);
    assert!(sizes[..2].iter().all(|n| n % 16 == 0) && sizes[..2].contains(&16), "{sizes:?}");
}

#[test]
fn a_machine_on_which_nothing_pays_keeps_everything() {
    let (sizes, out) = pruned_on(&Machine(|_, _| 1.0), ChannelBudget::Macs);
    assert_eq!(sizes, [32, 32, 5]);
    assert!(out.warnings[0].contains("no faster here"), "{:?}", out.warnings);
}

#[test]
fn time_is_a_budget() {
    // `b` is slow, and takes four of its five parts of the time.
    let (sizes, _) =
        pruned_on(&Machine(|name, n| n as f64 * if name == "b" { 4.0 } else { 1.0 }), ChannelBudget::Latency);
    let time = |a: usize, b: usize| (a + 4 * b + 5) as f64;
    assert!(time(sizes[0], sizes[1]) <= 0.5 * time(32, 32) && sizes[1] <= 16, "{sizes:?}");
}

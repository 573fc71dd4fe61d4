//! Structured pruning: which channels go together, and that a model without them computes what it computes with zeros.

use compress_compiler::{graph::Graph, onnx, pass::Context, tensor::Tensor, text, verify::verify};
use compress_passes::{
    layers::layers,
    prune::{
        cut::Cut,
        groups::{Group, Groups},
    },
    simplify,
};
use compress_runtime::{
    burn::BurnInterpreter,
    session::{Backend, Session},
};
use std::{env, path::PathBuf};

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

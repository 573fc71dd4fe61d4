use super::{
    Axis::{self, In, Out},
    Flow, Kept, Sides, Tie,
};
use crate::{
    graph::Graph,
    node::NodeId,
    op::{Inputs, Op, Operator},
    ops::group_norm::GroupNorm,
    tensor::DType,
    text,
    value::{Dim, Fact},
};
use std::collections::BTreeSet;

/// Graphs of one operator each, or few: every axis of every node is asked, and every tie is carried out.
const GRAPHS: &[&str] = &[
    // Element by element.
    "input %x: f32[batch,6,4] const %s: f32[6,1] = random(1) %a = Relu(%x) %y = PRelu(%a, %s) output %y",
    "input %x: f32[5,1,4] input %z: f32[6,4] %a = Add(%x, %z) %b = Mod(%a, %z) {fmod=1} %y = Sum(%a, %b, %x) output %y",
    "input %x: f32[2,6] input %c: bool[6] const %z: f32[1] = [0.0] %y = Where(%c, %x, %z) output %y",
    "input %x: f32[2,6] const %l: f32[] = [0.0] %a = Clip(%x, %l) %b = Cast(%a) {to=10} %y = CastLike(%b, %x) output %y",
    "input %x: f32[2,6] %a, %m = Dropout(%x) %b = Identity(%a) %i = IsInf(%b) %y = SwiGLU(%b, %x) output %y output %m output %i",
    // Convolutions.
    "input %x: f32[2,3,8,8] const %w: f32[4,3,3,3] = random(1) const %b: f32[4] = random(2) %y = Conv(%x, %w, %b) output %y",
    "input %x: f32[N,3,8,8] const %w: f32[6,1,3,3] = random(1) const %b: f32[6] = random(2) %y = Conv(%x, %w, %b) {group=3} output %y",
    "input %x: f32[N,4,8] const %w: f32[6,2,3] = random(1) const %b: f32[6] = random(2) %y = Conv(%x, %w, %b) {group=2} output %y",
    "input %x: f32[1,4,8,8] const %w: f32[4,3,2,2] = random(1) const %b: f32[3] = random(2) %y = ConvTranspose(%x, %w, %b) {strides=[2, 2], output_shape=[1, 3, 16, 16]} output %y",
    "input %x: f32[1,4,8,8] const %w: f32[4,2,2,2] = random(1) %y = ConvTranspose(%x, %w) {group=4} output %y",
    "input %x: f32[1,4,8,8] const %w: f32[4,3,2,2] = random(1) const %b: f32[6] = random(2) %y = ConvTranspose(%x, %w, %b) {group=2} output %y",
    "input %x: f32[1,4,8,8] const %w: f32[6,4,3,3] = random(1) input %o: f32[1,18,6,6] const %b: f32[6] = random(2) %y = DeformConv(%x, %w, %o, %b) output %y",
    // Products.
    "input %x: f32[3,4] const %w: f32[4,5] = random(1) const %b: f32[5] = random(2) %y = Gemm(%x, %w, %b) output %y",
    "input %x: f32[4,3] const %w: f32[5,4] = random(1) const %b: f32[3,1] = random(2) %y = Gemm(%x, %w, %b) {transA=1, transB=1} output %y",
    "input %x: f32[batch,7,4] const %w: f32[4,5] = random(1) %y = MatMul(%x, %w) output %y",
    "input %x: f32[2,1,3,4] input %z: f32[6,4,5] %y = MatMul(%x, %z) output %y",
    "input %x: f32[4] input %z: f32[6,4,5] %a = MatMul(%x, %z) input %v: f32[5] %y = MatMul(%z, %v) output %y output %a",
    "input %x: f32[2,3,4] input %z: f32[2,4,5] %a = Einsum(%x, %z) {equation=\"bij,bjk->bik\"} %y = Einsum(%x) {equation=\"bij->ij\"} output %a output %y",
    // Normalisation.
    "input %x: f32[N,4,8] const %s: f32[4] = random(1) const %b: f32[4] = random(2) const %m: f32[4] = random(3) const %v: f32[4] = fill(1.0) %y = BatchNormalization(%x, %s, %b, %m, %v) output %y",
    "input %x: f32[N,6,8] const %s: f32[6] = random(1) const %b: f32[6] = random(2) %a = InstanceNormalization(%x, %s, %b) %y = GroupNormalization(%a, %s, %b) {num_groups=3} output %y",
    "input %x: f32[N,3,8] const %s: f32[3,8] = random(1) const %t: f32[8] = random(2) %y, %m, %d = LayerNormalization(%x, %s, %t) {axis=2} %z = RMSNormalization(%x, %t) output %y output %m output %z output %d",
    "input %x: f32[3,4,5] const %i: i64[] = [1] %a = Softmax(%x) %b = LpNormalization(%a) {axis=0} %c = CumSum(%b, %i) %d = LRN(%c) {size=3} output %d",
    "input %x: f32[3,4,5] const %k: i64[1] = [2] %a = ArgMax(%x) {axis=1, keepdims=0} %b, %c = TopK(%x, %k) {axis=0} %d = ArgMin(%x) {axis=-1} output %a output %b output %c output %d",
    "input %x: f32[3,4,5,6] const %i: i64[2] = [1, -1] %a = ReduceMean(%x, %i) {keepdims=0} %b = ReduceSum(%x, %i) output %a output %b",
    // Windows and sampling.
    "input %x: f32[2,4,8,8] %a = MaxPool(%x) {kernel_shape=[2, 2]} %y = GlobalAveragePool(%a) output %y",
    "input %x: f32[N,4,8,8] const %s: f32[4] = [1.0, 1.0, 2.0, 2.0] const %n: i64[2] = [4, 16] %a = Resize(%x, _, %s) %y = Resize(%a, _, _, %n) {axes=[1, 2]} output %y",
    "input %x: f32[2,4,8] const %p: i64[6] = [0, 2, 1, 0, 3, 0] %a = Relu(%x) %y = Pad(%a, %p) output %y",
    "input %x: f32[2,4,8] const %p: i64[2] = [1, 2] const %v: f32[] = [0.5] const %a: i64[1] = [-2] %b = Relu(%x) %y = Pad(%b, %p, %v, %a) output %y",
    "input %x: f32[2,4,8] const %p: i64[6] = [0, 0, 1, 0, 0, 1] const %r: i64[3] = [1, 1, 2] %a = Pad(%x, %p) %y = Tile(%a, %r) output %y",
    "input %x: f32[4,1] const %s: i64[3] = [3, 1, 5] %y = Expand(%x, %s) output %y",
    "input %x: f32[1,12,4,4] %a = DepthToSpace(%x) {blocksize=2} %b = DepthToSpace(%x) {blocksize=2, mode=\"CRD\"} %y = SpaceToDepth(%a) {blocksize=2} output %y output %b",
    "input %x: f32[1,4,8,8] input %g: f32[1,5,5,2] %y = GridSample(%x, %g) input %r: f32[3,4] input %n: i64[3] %z = RoiAlign(%x, %r, %n) output %y output %z",
    // Axes moved, dropped, joined and cut.
    "input %x: f32[2,3,4] %a = Transpose(%x) {perm=[2, 0, 1]} const %i: i64[2] = [0, 3] %b = Unsqueeze(%a, %i) %c = Squeeze(%b) %d = Squeeze(%b, %i) output %c output %d",
    "input %x: f32[batch,4,3,2] %y = Flatten(%x) output %y",
    "input %x: f32[batch,seq,12] const %s: i64[4] = [0, 0, 3, 4] const %t: i64[3] = [0, -1, 12] %a = Reshape(%x, %s) %y = Reshape(%a, %t) output %y",
    "input %x: f32[2,6,5] const %s: i64[4] = [2, 2, 3, -1] const %t: i64[2] = [4, 15] %a = Reshape(%x, %s) %y = Reshape(%a, %t) output %y",
    "input %x: f32[batch,6,5] %n = Shape(%x) {end=1} const %h: i64[2] = [2, 3] const %r: i64[1] = [5] %s = Concat(%n, %h, %r) {axis=0} %y = Reshape(%x, %s) output %y",
    "input %x: f32[2,3,4] input %z: f32[2,5,4] %y = Concat(%x, %z, %x) {axis=1} output %y",
    "input %x: f32[2,7] const %s: i64[3] = [3, 3, 1] %a, %b, %c = Split(%x, %s) {axis=1} output %a output %b output %c",
    "input %x: f32[2,8] %a, %b, %c = Split(%x) {axis=-1, num_outputs=3} output %a output %b output %c",
    "input %x: f32[4,8,5] const %s: i64[2] = [2, 0] const %e: i64[2] = [6, -1] const %a: i64[2] = [1, 2] %y = Slice(%x, %s, %e, %a) output %y",
    "input %x: f32[8] const %s: i64[1] = [1] const %e: i64[1] = [9223372036854775807] %y = Slice(%x, %s, %e) output %y",
    "input %x: f32[3,5,4] const %i: i64[4] = [4, 0, -2, 0] %y = Gather(%x, %i) {axis=1} output %y",
    "const %x: f32[30,4] = random(1) input %i: i64[batch,7] %y = Gather(%x, %i) output %y",
    // Attention and codes.
    "input %q: f32[2,4,5,6] input %k: f32[2,2,7,6] input %v: f32[2,2,7,3] input %m: f32[4,5,7] %y = Attention(%q, %k, %v, %m) output %y",
    "input %q: f32[N,5,24] input %k: f32[N,7,12] input %v: f32[N,7,6] %y = Attention(%q, %k, %v) {q_num_heads=4, kv_num_heads=2} output %y",
    "input %x: f32[2,5,12] const %c: f32[9,2] = random(1) input %p: i64[2,5] %y = RotaryEmbedding(%x, %c, %c, %p) {num_heads=3} output %y",
    "input %x: f32[2,4,5] const %s: f32[4] = fill(0.5) const %z: u8[4] = zeros %q = QuantizeLinear(%x, %s, %z) %y = DequantizeLinear(%q, %s, %z) output %y",
    "input %q: f32[2,4,5,6] input %k: f32[2,4,7,6] input %v: f32[2,4,7,3] input %m: f32[2,1,5,9] input %p: f32[2,4,2,6] input %o: f32[2,4,2,3] %y, %a, %b, %c = Attention(%q, %k, %v, %m, %p, %o) output %y output %a output %b output %c",
    "input %x: f32[2,5,12] const %s: f32[] = [0.5] %q = QuantizeLinear(%x, %s) %y = DequantizeLinear(%q, %s) output %y",
    // The rest.
    "input %x: u8[2,6] const %n: u8[6] = fill(1) %a = BitShift(%x, %n) {direction=\"LEFT\"} %y = BitCast(%a) {to=3} output %y",
    "input %x: f32[3,4,5,5] %a = MeanVarianceNormalization(%x) const %s: i64[2] = [3, 7] %b = CenterCropPad(%a, %s) {axes=[2, 3]} %y = Trilu(%b) output %y",
    "input %x: f32[5,3,4] input %l: i64[3] %y = ReverseSequence(%x, %l) output %y",
    "input %x: f32[2,12,9] const %s: i64[2] = [4, 4] const %b: i64[2] = [2, 2] %y = Col2Im(%x, %s, %b) output %y",
    "input %x: f32[1,4,8,8] input %r: f32[3,5] %y = MaxRoiPool(%x, %r) {pooled_shape=[2, 2]} output %y",
    "input %x: f32[2,4,8] const %w: f32[4,1,3] = random(1) const %b: f32[4] = random(2) input %p: f32[2,4,2] %y, %z = CausalConvWithState(%x, %w, %b, %p) output %y output %z",
    "input %x: f32[4,8] const %s: i64[1] = [0] input %e: i64[1] const %a: i64[1] = [0] %y = Slice(%x, %s, %e, %a) output %y",
    "input %x: f32[6,8] input %i: i64[3] %y = Gather(%x, %i) output %y",
    "const %c: f32[3,4] = random(1) input %x: f32[3,4] %n = Shape(%x) {start=1} %y = Add(%x, %c) output %y output %n",
];

fn graph(body: &str) -> Graph {
    text::parse(&format!("graph \"g\" {{ {body} }}")).unwrap_or_else(|e| panic!("{body}: {e}"))
}

/// What `f` says of a node and the facts of its operands and results.
fn with<T>(g: &Graph, n: NodeId, f: impl FnOnce(&Op, &Sides) -> T) -> T {
    let inputs: Vec<Option<&Fact>> = g.operands(n).iter().map(|p| p.map(|p| g.fact(p))).collect();
    let outputs: Vec<&Fact> = g.node(n).outputs.iter().map(|v| &v.fact).collect();
    f(g.op(n), &Sides { inputs: Inputs(&inputs), outputs: &outputs })
}

/// The ties with which a node answers.
fn ties(op: &Op, at: Axis, sides: &Sides) -> Vec<Tie> {
    let mut ties = match op.axes_map(at, sides) {
        Flow::Tied(tie) => vec![tie],
        Flow::Either(ties) => ties,
        Flow::Closed(_) => vec![],
    };
    ties.iter_mut().for_each(|tie| tie.sort());
    ties
}

/// The fact of a value of which only some indices of axes are left.
fn cut(fact: &Fact, axes: impl Fn(usize) -> Option<Vec<usize>>) -> Fact {
    let mut out = Fact { elems: None, floats: None, ..fact.clone() };
    let rank = fact.rank().unwrap_or(0);
    for i in 0..rank {
        if let (Some(left), Some(dims)) = (axes(i), &mut out.shape) {
            dims[i] = Dim::from(left.len());
        }
    }
    let left = if rank == 1 { axes(0) } else { None };
    let whole = (0..rank).all(|i| axes(i).is_none());
    match left {
        Some(left) => {
            out.elems = fact.elems.as_ref().map(|e| left.iter().map(|i| e[*i].clone()).collect());
            out.floats = fact.floats.as_ref().map(|f| left.iter().map(|i| f[*i]).collect());
        }
        None if whole => (out.elems, out.floats) = (fact.elems.clone(), fact.floats.clone()),
        None => {}
    }
    out
}

/// Removes the indices with the labels `gone` from all axes of a tie, and compares what inference makes of the node that
/// is left with what the tie says of its results. Whether there was something to compare.
fn carried_out(op: &Op, tie: &Tie, gone: &BTreeSet<usize>, sides: &Sides) -> bool {
    let mut kept = Kept::default();
    for (axis, labels) in tie {
        let left: Vec<usize> =
            (0..labels.as_slice().len()).filter(|i| !gone.contains(&labels.as_slice()[*i])).collect();
        if left.is_empty() {
            return false;
        }
        if left.len() < labels.as_slice().len() {
            kept.insert(*axis, left);
        }
    }
    let narrowed = op.channel_slice(&kept, sides).unwrap();
    let left = |axis: Axis| kept.get(axis).map(<[usize]>::to_vec);
    let inputs = sides.inputs.0.iter().enumerate();
    let mut facts: Vec<Option<Fact>> =
        inputs.map(|(slot, fact)| fact.map(|fact| cut(fact, |i| left(In(slot, i))))).collect();
    for (slot, tensor) in &narrowed.operands {
        facts.resize(facts.len().max(slot + 1), None);
        facts[*slot] = Some(Fact::of(tensor));
    }
    let facts: Vec<Option<&Fact>> = facts.iter().map(Option::as_ref).collect();
    let op = narrowed.op.as_ref().unwrap_or(op);
    let made = op.infer(&Inputs(&facts)).unwrap_or_else(|e| panic!("{op:?} without {gone:?} of {tie:?}: {e}"));
    for (slot, was) in sides.outputs.iter().enumerate() {
        let expected = cut(was, |i| left(Out(slot, i)));
        assert_eq!(made[slot].shape, expected.shape, "{op:?} without {gone:?} of {tie:?}");
    }
    true
}

#[test]
fn ties_are_complete_symmetric_and_can_be_carried_out() {
    for body in GRAPHS {
        let g = graph(body);
        for n in g.operators() {
            let mut compared = 0;
            with(&g, n, |op, sides| {
                for at in sides.axes().unwrap() {
                    for tie in ties(op, at, sides) {
                        let name = format!("{at:?} of {op:?} in {body}: {tie:?}");
                        assert!(tie.iter().any(|(axis, _)| *axis == at), "lacks the axis itself: {name}");
                        for (axis, labels) in &tie {
                            assert_eq!(sides.size(*axis), Some(labels.as_slice().len()), "{axis:?}, {name}");
                            assert!(ties(op, *axis, sides).contains(&tie), "{axis:?} answers otherwise: {name}");
                        }
                        let all: BTreeSet<usize> = tie.iter().flat_map(|(_, l)| l.as_slice()).copied().collect();
                        let some = |keep: fn(usize) -> bool| all.iter().copied().filter(|l| keep(*l)).collect();
                        for gone in [BTreeSet::from([0]), some(|l| l % 3 == 1), some(|l| l > 0), some(|l| l % 2 == 0)] {
                            compared += usize::from(carried_out(op, &tie, &gone, sides));
                        }
                    }
                }
            });
            assert!(compared > 0, "nothing to compare at {} in {body}", g.node(n).label());
        }
    }
}

/// The answer about an axis of the node that makes `value`: each axis of a tie with its labels, or why there is none.
fn answer(body: &str, value: &str, at: Axis) -> String {
    let g = graph(body);
    let made = |n: &NodeId| g.node(*n).outputs.iter().any(|v| v.name == value);
    let n = g.operators().find(made).unwrap_or_else(|| panic!("no %{value} in {body}"));
    with(&g, n, |op, sides| {
        if let Flow::Closed(why) = op.axes_map(at, sides) {
            return why;
        }
        let axis = |(axis, labels): &(Axis, super::Labels)| {
            let labels: Vec<String> = labels.as_slice().iter().map(ToString::to_string).collect();
            format!("{axis:?}: {}", labels.join(" "))
        };
        let shown = |tie: &Tie| tie.iter().map(axis).collect::<Vec<_>>().join("; ").replace(", ", ",");
        ties(op, at, sides).iter().map(shown).collect::<Vec<_>>().join(" or ")
    })
}

#[track_caller]
fn expect(body: &str, cases: &[(Axis, &str)]) {
    for (at, expected) in cases {
        assert_eq!(answer(body, "y", *at), *expected, "{at:?} of {body}");
    }
}

#[test]
fn convolutions() {
    let conv = |c: usize, w: &str, m: usize, rest: &str| {
        format!(
            "input %x: f32[1,{c},5,5] const %w: f32[{w}] = random(1) const %b: f32[{m}] = random(2) {rest} output %y"
        )
    };
    let over = "its window slides over these";
    let dense = conv(2, "3,2,3,3", 3, "%y = Conv(%x, %w, %b)");
    let (data, result) = ("In(0,1): 0 1; In(1,1): 0 1", "In(1,0): 0 1 2; In(2,0): 0 1 2; Out(0,1): 0 1 2");
    expect(&dense, &[(In(0, 1), data), (In(1, 1), data), (In(2, 0), result), (Out(0, 1), result), (Out(0, 2), over)]);
    let depthwise = conv(2, "4,1,3,3", 4, "%y = Conv(%x, %w, %b) {group=2}");
    let all = "In(0,1): 0 1; In(1,0): 0 0 1 1; In(2,0): 0 0 1 1; Out(0,1): 0 0 1 1";
    expect(&depthwise, &[(In(0, 1), all), (In(1, 0), all), (Out(0, 1), all), (In(0, 0), "In(0,0): 0; Out(0,0): 0")]);
    let grouped = conv(4, "6,2,3,3", 6, "%y = Conv(%x, %w, %b) {group=2}");
    let result = "In(1,0): 0 1 2 0 1 2; In(2,0): 0 1 2 0 1 2; Out(0,1): 0 1 2 0 1 2";
    expect(&grouped, &[(In(0, 1), "In(0,1): 0 1 0 1; In(1,1): 0 1"), (In(1, 0), result), (In(1, 2), over)]);
    let transposed = conv(4, "4,3,3,3", 6, "%y = ConvTranspose(%x, %w, %b) {group=2}");
    let result = "In(1,1): 0 1 2; In(2,0): 0 1 2 0 1 2; Out(0,1): 0 1 2 0 1 2";
    expect(&transposed, &[(In(1, 0), "In(0,1): 0 1 0 1; In(1,0): 0 1 0 1"), (Out(0, 1), result)]);
    let transposed = conv(2, "2,2,3,3", 4, "%y = ConvTranspose(%x, %w, %b) {group=2}");
    expect(&transposed, &[(In(2, 0), "In(0,1): 0 1; In(1,0): 0 1; In(2,0): 0 0 1 1; Out(0,1): 0 0 1 1")]);
}

#[test]
fn products() {
    let gemm = "input %x: f32[2,3] const %w: f32[4,2] = random(1) const %b: f32[3,1] = random(2)
        %y = Gemm(%x, %w, %b) {transA=1, transB=1} output %y";
    let cases = [
        (In(0, 0), "In(0,0): 0 1; In(1,1): 0 1"),
        (In(0, 1), "In(0,1): 0 1 2; In(2,0): 0 1 2; Out(0,0): 0 1 2"),
        (Out(0, 1), "In(1,0): 0 1 2 3; Out(0,1): 0 1 2 3"),
        (In(2, 1), "one index stands for all of these"),
    ];
    expect(gemm, &cases);
    let batched = "input %x: f32[2,1,3,4] input %z: f32[5,4,2] %y = MatMul(%x, %z) output %y";
    let cases = [
        (In(1, 1), "In(0,3): 0 1 2 3; In(1,1): 0 1 2 3"),
        (In(1, 0), "In(1,0): 0 1 2 3 4; Out(0,1): 0 1 2 3 4"),
        (In(0, 0), "In(0,0): 0 1; Out(0,0): 0 1"),
        (In(0, 1), "one index stands for all of these"),
        (Out(0, 2), "In(0,2): 0 1 2; Out(0,2): 0 1 2"),
    ];
    expect(batched, &cases);
    let vector = "input %x: f32[4] input %z: f32[2,4,3] %y = MatMul(%x, %z) output %y";
    expect(vector, &[(In(0, 0), "In(0,0): 0 1 2 3; In(1,1): 0 1 2 3"), (Out(0, 0), "In(1,0): 0 1; Out(0,0): 0 1")]);
}

#[test]
fn shapes() {
    let flat = |dims: &str| format!("input %x: f32[{dims}] %y = Flatten(%x) output %y");
    expect(
        &flat("batch,3,1,2"),
        &[(In(0, 1), "In(0,1): 0 1 2; Out(0,1): 0 0 1 1 2 2"), (In(0, 2), "there is one of these")],
    );
    // Channels last, and both answers about the joined axis.
    let (h, c) = ("In(0,1): 0 1; Out(0,1): 0 0 0 1 1 1", "In(0,3): 0 1 2; Out(0,1): 0 1 2 0 1 2");
    expect(&flat("batch,2,1,3"), &[(In(0, 1), h), (In(0, 3), c), (Out(0, 1), &format!("{h} or {c}"))]);
    // A pooled map has one pixel: nothing to choose from.
    expect(&flat("batch,3,1,1"), &[(Out(0, 1), "In(0,1): 0 1 2; Out(0,1): 0 1 2")]);
    expect(&flat("batch,3,h,w"), &[(In(0, 1), super::UNKNOWN)]);

    let reshaped = |dims: &str, to: &str| {
        let n = to.split(',').count();
        format!("input %x: f32[{dims}] const %s: i64[{n}] = [{to}] %y = Reshape(%x, %s) output %y")
    };
    let heads = reshaped("batch,seq,4", "0,0,2,2");
    expect(&heads, &[(Out(0, 2), "In(0,2): 0 0 1 1; Out(0,2): 0 1"), (Out(0, 3), "In(0,2): 0 1 0 1; Out(0,3): 0 1")]);
    // From the last axis back, where the first ones are not known.
    let rows = reshaped("batch,seq,3", "-1,3");
    expect(&rows, &[(Out(0, 1), "In(0,2): 0 1 2; Out(0,1): 0 1 2"), (In(0, 1), super::UNKNOWN)]);
    expect(&reshaped("4,6", "8,3"), &[(In(0, 1), "it cuts these anew")]);
    let computed = "input %x: f32[2,6] input %s: i64[2] %y = Reshape(%x, %s) output %y";
    expect(computed, &[(In(0, 0), "the shape that it makes is not known")]);

    let picture = |op: &str| format!("input %x: f32[1,8,2,2] %y = {op} output %y");
    let dcr = picture("DepthToSpace(%x) {blocksize=2}");
    expect(&dcr, &[(Out(0, 1), "In(0,1): 0 1 0 1 0 1 0 1; Out(0,1): 0 1"), (In(0, 2), "it makes blocks of these")]);
    let crd = picture("DepthToSpace(%x) {blocksize=2, mode=\"CRD\"}");
    expect(&crd, &[(In(0, 1), "In(0,1): 0 0 0 0 1 1 1 1; Out(0,1): 0 1")]);
    let back = "input %x: f32[1,2,4,4] %y = SpaceToDepth(%x) {blocksize=2} output %y";
    expect(back, &[(In(0, 1), "In(0,1): 0 1; Out(0,1): 0 1 0 1 0 1 0 1")]);
}

#[test]
fn joining_and_cutting() {
    let joined = "input %x: f32[2,2] input %z: f32[2,3] %y = Concat(%x, %z) {axis=-1} output %y";
    let axis = "In(0,1): 0 1; In(1,1): 2 3 4; Out(0,1): 0 1 2 3 4";
    expect(joined, &[(In(1, 1), axis), (Out(0, 1), axis), (In(0, 0), "In(0,0): 0 1; In(1,0): 0 1; Out(0,0): 0 1")]);
    let cut = "input %x: f32[5,2] %y, %z = Split(%x) output %y output %z";
    expect(cut, &[(Out(1, 0), "In(0,0): 0 1 2 3 4; Out(0,0): 0 1 2; Out(1,0): 3 4")]);
    let slice = |start: i64, end: i64, step: i64| {
        format!(
            "input %x: f32[2,5] const %s: i64[1] = [{start}] const %e: i64[1] = [{end}] const %a: i64[1] = [1]
            const %t: i64[1] = [{step}] %y = Slice(%x, %s, %e, %a, %t) output %y"
        )
    };
    expect(
        &slice(1, -1, 1),
        &[(Out(0, 1), "In(0,1): 0 1 2 3 4; Out(0,1): 1 2 3"), (In(0, 0), "In(0,0): 0 1; Out(0,0): 0 1")],
    );
    expect(&slice(0, 5, 2), &[(In(0, 1), "it takes every n-th of these")]);
    let gathered = "input %x: f32[2,4] const %i: i64[3] = [3, 0, -1] %y = Gather(%x, %i) {axis=1} output %y";
    let axis = "In(0,1): 0 1 2 3; In(1,0): 3 0 3; Out(0,1): 3 0 3";
    expect(gathered, &[(In(0, 1), axis), (Out(0, 1), axis), (Out(0, 0), "In(0,0): 0 1; Out(0,0): 0 1")]);
    let one = "input %x: f32[2,4,3] const %i: i64[] = [1] %y = Gather(%x, %i) {axis=1} output %y";
    expect(one, &[(In(0, 2), "In(0,2): 0 1 2; Out(0,1): 0 1 2")]);
    assert!(answer(one, "y", In(0, 1)).contains("takes"));
}

#[test]
fn attention_and_normalisation() {
    let wide = "input %q: f32[1,3,8] input %k: f32[1,3,4] %y = Attention(%q, %k, %k) {q_num_heads=4, kv_num_heads=2} output %y";
    let heads = "In(0,2): 0 0 0 0 1 1 1 1; In(1,2): 0 0 1 1; In(2,2): 0 0 1 1; Out(0,2): 0 0 0 0 1 1 1 1";
    expect(wide, &[(In(0, 2), heads), (Out(0, 2), heads), (In(0, 1), "only whole heads can go")]);
    let four =
        "input %q: f32[1,4,3,2] input %k: f32[1,2,3,2] input %m: bool[4,3,3] %y = Attention(%q, %k, %k, %m) output %y";
    let heads = "In(0,1): 0 0 1 1; In(1,1): 0 1; In(2,1): 0 1; In(3,0): 0 0 1 1; Out(0,1): 0 0 1 1";
    expect(four, &[(In(2, 1), heads), (In(3, 0), heads), (In(0, 3), "only whole heads can go")]);
    let group = "input %x: f32[1,4,3] const %s: f32[4] = random(1) %y = GroupNormalization(%x, %s, %s) {num_groups=2} output %y";
    let groups = "In(0,1): 0 0 1 1; In(1,0): 0 0 1 1; In(2,0): 0 0 1 1; Out(0,1): 0 0 1 1";
    expect(group, &[(In(1, 0), groups), (In(0, 2), "it normalises over these")]);
    // The form of opset 18, which the text form doesn't have: an entry a group.
    let fact = |dims: &[i64]| Fact::new(None, Some(dims.iter().map(|n| Dim::Known(*n)).collect()));
    let (x, s) = (fact(&[1, 4, 3]), fact(&[2]));
    let sides = Sides { inputs: Inputs(&[Some(&x), Some(&s), Some(&s)]), outputs: &[&x] };
    let old = GroupNorm { num_groups: 2, epsilon: 1e-5, stash_type: DType::F32, per_group: true }.into();
    let tie = ties(&old, In(1, 0), &sides).remove(0);
    assert_eq!(tie[1], (In(1, 0), super::Labels::each(2)));
    assert!(carried_out(&old, &tie, &BTreeSet::from([1]), &sides));
    let softmax = "input %x: f32[2,3] %y = Softmax(%x) output %y";
    expect(softmax, &[(In(0, 1), "it normalises over these"), (Out(0, 0), "In(0,0): 0 1; Out(0,0): 0 1")]);
    let pool = "input %x: f32[1,2,4,4] %y, %i = MaxPool(%x) {kernel_shape=[2, 2]} output %y output %i";
    expect(pool, &[(In(0, 1), "it tells places among these")]);
    let determinant = "input %x: f32[3,3] %y = Det(%x) output %y";
    expect(determinant, &[(In(0, 1), "what goes with them through Det is not known")]);
}

/// The operands that change when the indices with `gone` labels of `at` go, as text.
fn rewritten(body: &str, at: Axis, gone: &[usize]) -> Vec<(usize, Vec<i64>)> {
    let g = graph(body);
    let n = g.operators().last().unwrap();
    with(&g, n, |op, sides| {
        let mut kept = Kept::default();
        for (axis, labels) in &ties(op, at, sides)[0] {
            let left = labels.as_slice().iter().enumerate().filter(|(_, l)| !gone.contains(l));
            kept.insert(*axis, left.map(|(i, _)| i).collect());
        }
        let narrowed = op.channel_slice(&kept, sides).unwrap();
        narrowed.operands.into_iter().map(|(slot, t)| (slot, t.as_i64().unwrap())).collect()
    })
}

#[test]
fn operands_that_hold_sizes_follow() {
    let split = "input %x: f32[8] %a, %b = Split(%x) output %a output %b";
    assert_eq!(rewritten(split, In(0, 0), &[0]), [(1, vec![3, 4])]);
    assert_eq!(rewritten(split, In(0, 0), &[0, 7]), []);
    let gather = "input %x: f32[5] const %i: i64[3] = [4, 0, -2] %y = Gather(%x, %i) output %y";
    assert_eq!(rewritten(gather, In(0, 0), &[0, 1]), [(1, vec![2, 1])]);
    assert_eq!(rewritten(gather, In(0, 0), &[1]), [(1, vec![3, 0, 2])]);
    let slice = "input %x: f32[8] const %s: i32[1] = [2] const %e: i32[1] = [6] %y = Slice(%x, %s, %e) output %y";
    assert_eq!(rewritten(slice, In(0, 0), &[0, 4, 7]), [(1, vec![1]), (2, vec![4])]);
    let end = "input %x: f32[8] const %s: i64[1] = [-3] const %e: i64[1] = [100] %y = Slice(%x, %s, %e) output %y";
    assert_eq!(rewritten(end, In(0, 0), &[0, 1]), []);
    assert_eq!(rewritten(end, In(0, 0), &[7]), [(1, vec![5]), (2, vec![7])]);
    // A copied axis that another one takes the place of, and what is left.
    let reshape = "input %x: f32[batch,6,4] const %s: i64[4] = [0, 2, 3, -1] %y = Reshape(%x, %s) output %y";
    assert_eq!(rewritten(reshape, Out(0, 2), &[1]), [(1, vec![0, 2, 2, -1])]);
    assert_eq!(rewritten(reshape, Out(0, 3), &[1]), []);
    let copied = "input %x: f32[4,4,2] const %s: i64[2] = [0, 8] %y = Reshape(%x, %s) output %y";
    assert_eq!(rewritten(copied, In(0, 1), &[0]), [(1, vec![0, 6])]);
    // The 0 copies an axis that shrinks to one that doesn't.
    let other = "input %x: f32[4,2,2,3] const %s: i64[5] = [2, 0, 2, 2, 3] %y = Reshape(%x, %s) output %y";
    assert_eq!(rewritten(other, In(0, 1), &[0]), [(1, vec![2, 2, 1, 2, 3])]);
    let squeeze = "input %x: f32[1,2,3] %y = Squeeze(%x) output %y";
    assert_eq!(rewritten(squeeze, In(0, 1), &[0]), [(1, vec![0])]);
    assert_eq!(rewritten(squeeze, In(0, 2), &[0]), []);
}

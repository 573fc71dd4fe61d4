use super::*;
use compress_compiler::{tensor::DType, text, verify::verify};
use std::fmt::Write;

/// Pools, of which four are worth a part, Softplus, which Burn runs, and sums of two values.
fn random(nodes: usize, mut state: u32) -> Graph {
    let mut random = |n: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) as usize % n
    };
    let mut source = String::from("graph \"random\" {\n  input %v0: f32[1,2,4,4]\n");
    for i in 1..=nodes {
        let (a, b) = (i - 1 - random(i.min(12)), i - 1 - random(i.min(12)));
        let op = match random(3) {
            0 => format!("AveragePool(%v{a}) {{kernel_shape=[3, 3], pads=[1, 1, 1, 1]}}"),
            1 => format!("Softplus(%v{a})"),
            _ => format!("Add(%v{a}, %v{b})"),
        };
        writeln!(source, "  %v{i} = {op} \"n{i}\"").unwrap();
    }
    (1..=nodes).for_each(|i| writeln!(source, "  output %v{i}").unwrap());
    text::parse(&(source + "}")).unwrap()
}

#[test]
fn every_part_of_the_cpu_executor_is_worth_it() {
    let mut parts = 0;
    for seed in 0..200 {
        let graph = random(120, seed);
        let graph = verify(&graph).unwrap();
        let levels = Levels::of(&graph, cpu::known(&graph, graph.order()));
        let own = levels.gains(&graph).into_iter().enumerate().filter(|(level, _)| Levels::is_cpu(*level));
        let own: Vec<u64> = own.map(|(_, gain)| gain).collect();
        parts += own.len();
        // None is empty but the first, where Burn begins.
        let low = |(i, gain): &(usize, &u64)| **gain < WORTH_A_PART && (*i > 0 || **gain > 0);
        assert_eq!(own.iter().enumerate().find(low), None, "seed {seed}");
    }
    assert!(parts > 400, "{parts} parts");
}

/// A product in one branch of an If, by a weight that is inside of it or around it, and a Neg in the other.
fn branches(inside: bool) -> Graph {
    let weight: Vec<String> = (0..512 * 512).map(|i| format!("{}", (i * 7919 % 201) as f32 / 1000.0 - 0.1)).collect();
    let constant = format!("const %w: f32[512,512] = [{}]", weight.join(", "));
    let capture = "capture %w: f32[512,512]";
    let (around, own, operands, other) =
        if inside { ("", &constant[..], "%c, %x", "") } else { (&constant[..], capture, "%c, %x, %w", capture) };
    let source = format!(
        r#"graph "g" {{
            input %c: bool[]
            input %x: f32[3,512]
            {around}
            %y = If({operands}) {{then_branch=graph "yes" {{
                capture %x: f32[3,512]
                {own}
                %m = MatMul(%x, %w)
                %r = Relu(%m)
                output %r
            }}, else_branch=graph "no" {{
                capture %x: f32[3,512]
                {other}
                %n = Neg(%x)
                output %n
            }}}} "if"
            output %y
        }}"#
    );
    text::parse(&source).unwrap()
}

#[test]
fn a_branch_runs_in_the_cpu_executor() {
    for graph in [true, false].map(branches) {
        let graph = verify(&graph).unwrap();
        let x: Vec<f32> = (0..3 * 512).map(|i| (i % 37) as f32 - 18.0).collect();
        let burn = Backend::burn();
        let [ours, theirs] = [Backend::cpu(), burn].map(|b| Parts::new(&graph, &b, &[]).unwrap());
        for yes in [1, 0] {
            let inputs = [Tensor::ints(DType::Bool, &[], &[yes]), Tensor::f32(&[3, 512], &x)];
            let [a, b] = [&ours, &theirs].map(|s| s.run(&inputs).unwrap()[0].as_f32().unwrap().to_vec());
            assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-3), "{yes}");
            let product = |s: &Parts| s.profile(&inputs).unwrap().iter().any(|node| node.kernel.name == "gemm_f32");
            assert_eq!([product(&ours), product(&theirs)], [yes == 1, false]);
        }
    }
}

/// A layer of a decoder as Hugging Face's Llama is exported: RMS norm, rotary embedding, two heads of keys and values for six of
/// queries, a mask of which only as many columns count as there are keys, and a factor that follows from a shape.
const LAYER: &str = r#"graph "layer" {
    input %x: f32[B,S,48]
    input %cos: f32[B,S,8]
    input %sin: f32[B,S,8]
    input %mask: f32[B,1,S,L]
    input %past_key: f32[B,2,P,8]
    input %past_value: f32[B,2,P,8]
    const %named: f32[48] = random(1)
    const %wq: f32[48,48] = random(2)
    const %wk: f32[48,16] = random(3)
    const %wv: f32[48,16] = random(4)
    const %wo: f32[48,48] = random(5)
    const %two: f32[] = [2.0]
    const %last: i64[1] = [-1]
    const %small: f32[] = [1e-05]
    const %one_f: f32[] = [1.0]
    const %minus: i64[5] = [-1, -1, -1, -1, -1]
    const %ones: i64[5] = [1, 1, 1, 1, 1]
    const %i0: i64[1] = [0]
    const %i1: i64[1] = [1]
    const %i2: i64[1] = [2]
    const %i3: i64[1] = [3]
    const %i4: i64[1] = [4]
    const %i6: i64[1] = [6]
    const %all: i64[1] = [9223372036854775807]
    const %heads: i64[4] = [0, 0, -1, 8]
    const %flat: i64[3] = [0, 0, 48]
    const %three: i64[1] = [3]
    const %eight: i64[1] = [8]
    %scale = Identity(%named)
    %wide = Cast(%x) {to=1}
    %square = Pow(%wide, %two)
    %mean = ReduceMean(%square, %last)
    %sum = Add(%mean, %small)
    %root = Sqrt(%sum)
    %over = Div(%one_f, %root)
    %normal = Mul(%wide, %over)
    %narrow = Cast(%normal) {to=1}
    %h = Mul(%scale, %narrow)
    %qm = MatMul(%h, %wq)
    %km = MatMul(%h, %wk)
    %vm = MatMul(%h, %wv)
    %qr = Reshape(%qm, %heads)
    %kr = Reshape(%km, %heads)
    %vr = Reshape(%vm, %heads)
    %q = Transpose(%qr) {perm=[0, 2, 1, 3]}
    %k = Transpose(%kr) {perm=[0, 2, 1, 3]}
    %v = Transpose(%vr) {perm=[0, 2, 1, 3]}
    %c = Unsqueeze(%cos, %i1)
    %s = Unsqueeze(%sin, %i1)
    %qshape = Shape(%q)
    %qsize = Slice(%qshape, %i3, %i4)
    %half = Div(%qsize, %i2)
    %q1 = Slice(%q, %i0, %half, %i3)
    %q2 = Slice(%q, %half, %all, %i3)
    %qn = Neg(%q2)
    %qt = Concat(%qn, %q1) {axis=-1}
    %qc = Mul(%q, %c)
    %qs = Mul(%qt, %s)
    %query = Add(%qc, %qs)
    %k1 = Slice(%k, %i0, %half, %i3)
    %k2 = Slice(%k, %half, %all, %i3)
    %kn = Neg(%k2)
    %kt = Concat(%kn, %k1) {axis=-1}
    %kc = Mul(%k, %c)
    %ks = Mul(%kt, %s)
    %turned = Add(%kc, %ks)
    %key = Concat(%past_key, %turned) {axis=-2}
    %value = Concat(%past_value, %v) {axis=-2}
    %kshape = Shape(%key)
    %batch = Slice(%kshape, %i0, %i1)
    %own = Slice(%kshape, %i1, %i2)
    %length = Slice(%kshape, %i2, %i3)
    %wanted = Concat(%batch, %own, %three, %length, %eight) {axis=0}
    %open = Equal(%wanted, %minus)
    %target = Where(%open, %ones, %wanted)
    %joined = Concat(%batch, %i6, %length, %eight) {axis=0}
    %ku = Unsqueeze(%key, %i2)
    %ke = Expand(%ku, %target)
    %keys = Reshape(%ke, %joined)
    %vu = Unsqueeze(%value, %i2)
    %ve = Expand(%vu, %target)
    %values = Reshape(%ve, %joined)
    %lshape = Shape(%keys)
    %many = Slice(%lshape, %i2, %i3)
    %cut = Slice(%mask, %i0, %many, %i3)
    %depth = Cast(%qsize) {to=1}
    %factor = Sqrt(%depth)
    %across = Transpose(%keys) {perm=[0, 1, 3, 2]}
    %products = MatMul(%query, %across)
    %scores = Div(%products, %factor)
    %masked = Add(%scores, %cut)
    %weights = Softmax(%masked) {axis=-1}
    %sums = MatMul(%weights, %values)
    %side = Transpose(%sums) {perm=[0, 2, 1, 3]}
    %together = Reshape(%side, %flat)
    %out = MatMul(%together, %wo)
    %y = Add(%out, %x)
    output %y
    output %key
    output %value
}"#;

#[test]
fn a_layer_of_llama_has_kernels() {
    let graph = text::parse(LAYER).unwrap();
    let graph = verify(&graph).unwrap();
    let mut state = 7u32;
    let mut noise = |shape: [usize; 4], axes: usize| {
        let shape = &shape[..axes];
        let data = (0..shape.iter().product::<usize>()).map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) as f32 / 32768.0 - 1.0
        });
        Tensor::f32(shape, &data.collect::<Vec<_>>())
    };
    let ours = Parts::new(&graph, &Backend::cpu(), &[]).unwrap();
    let burn = Parts::new(&graph, &Backend::burn(), &[]).unwrap();
    for (batch, past, tokens) in [(1, 0, 5), (1, 4, 1), (2, 3, 2)] {
        let long = past + tokens + 2;
        let inputs = [
            noise([batch, tokens, 48, 0], 3),
            noise([batch, tokens, 8, 0], 3),
            noise([batch, tokens, 8, 0], 3),
            noise([batch, 1, tokens, long], 4),
            noise([batch, 2, past, 8], 4),
            noise([batch, 2, past, 8], 4),
        ];
        for (made, want) in ours.run(&inputs).unwrap().iter().zip(&burn.run(&inputs).unwrap()) {
            assert_eq!(made.shape(), want.shape());
            let (made, want) = (made.as_f32().unwrap(), want.as_f32().unwrap());
            let most = want.iter().map(|v| v.abs()).fold(0.0, f32::max);
            let off = made.iter().zip(want.iter()).map(|(a, b)| (a - b).abs() / most).fold(0.0, f32::max);
            assert!(off < 1e-5, "{batch} samples, {tokens} tokens behind {past}: {off:e}");
        }
        let spent = ours.profile(&inputs).unwrap();
        let kernels: Vec<&str> = spent.iter().map(|s| s.kernel.name).collect();
        assert!(["rms_norm", "rotary", "attention"].iter().all(|k| kernels.contains(k)), "{kernels:?}");
        assert!(["burn", "pick", "softmax"].iter().all(|k| !kernels.contains(k)), "{kernels:?}");
    }
}

#[test]
fn heads_that_grow_in_another_way_are_not_shared() {
    // A single key is expanded to five.
    let source = r#"graph "g" {
        input %q: f32[1,4,3,8]
        input %k: f32[1,2,K,8]
        input %v: f32[1,4,5,8]
        const %axis: i64[1] = [2]
        const %target: i64[5] = [1, 2, 2, 5, 8]
        const %shape: i64[4] = [1, 4, 5, 8]
        %u = Unsqueeze(%k, %axis)
        %e = Expand(%u, %target)
        %r = Reshape(%e, %shape)
        %t = Transpose(%r) {perm=[0, 1, 3, 2]}
        %s = MatMul(%q, %t)
        %p = Softmax(%s) {axis=-1}
        %y = MatMul(%p, %v)
        output %y
    }"#;
    let graph = text::parse(source).unwrap();
    let graph = verify(&graph).unwrap();
    let of = |shape: &[usize]| {
        let data: Vec<f32> = (0..shape.iter().product()).map(|i: usize| (i % 11) as f32 / 7.0 - 0.6).collect();
        Tensor::f32(shape, &data)
    };
    for keys in [1, 5] {
        let inputs = [of(&[1, 4, 3, 8]), of(&[1, 2, keys, 8]), of(&[1, 4, 5, 8])];
        let made = [Backend::cpu(), Backend::burn()].map(|backend| {
            let made = Parts::new(&graph, &backend, &[]).unwrap().run(&inputs).unwrap();
            made[0].as_f32().unwrap().into_owned()
        });
        assert!(made[0].iter().zip(&made[1]).all(|(a, b)| (a - b).abs() < 1e-5), "{keys} keys");
    }
}

#[test]
fn what_data_cut_leaves_the_rest_in_kernels() {
    // One ends where an input says, one has the shape that an input says; the numbers of a third come from a constant condition.
    let source = r#"graph "g" {
        input %x: f32[N,512]
        input %end: i64[1]
        const %w: f32[512,512] = random(1)
        const %zero: i64[1] = [0]
        const %open: bool[2] = [1, 0]
        const %other: i64[2] = [-1, -1]
        %p = MatMul(%x, %w)
        %cut = Slice(%p, %zero, %end, %zero)
        %q = MatMul(%p, %w)
        %grown = Expand(%q, %end)
        %s = Shape(%x)
        %asked = Where(%open, %other, %s)
        %z = Reshape(%q, %asked)
        output %cut
        output %grown
        output %z
    }"#;
    let graph = text::parse(source).unwrap();
    let graph = verify(&graph).unwrap();
    let data: Vec<f32> = (0..3 * 512).map(|i| (i * 7919 % 201) as f32 / 100.0 - 1.0).collect();
    let inputs = [Tensor::f32(&[3, 512], &data), Tensor::i64s(&[1])];
    let ours = Parts::new(&graph, &Backend::cpu(), &[]).unwrap();
    let burn = Parts::new(&graph, &Backend::burn(), &[]).unwrap();
    for (made, want) in ours.run(&inputs).unwrap().iter().zip(&burn.run(&inputs).unwrap()) {
        assert_eq!(made.shape(), want.shape());
        let (made, want) = (made.as_f32().unwrap(), want.as_f32().unwrap());
        assert!(made.iter().zip(want.iter()).all(|(a, b)| (a - b).abs() < 1e-3 * b.abs().max(1.0)));
    }
    let spent = ours.profile(&inputs).unwrap();
    let by_burn: Vec<&str> = spent.iter().filter(|s| s.kernel.name == "burn").map(|s| &s.node[..]).collect();
    let only = |node: &&&str| !node.contains("Slice") && !node.contains("Expand") && !node.contains("between");
    assert_eq!(by_burn.iter().find(only), None, "{by_burn:?}");
    // A target that the value can't be broadcast to is an error, wherever it comes from.
    let wrong = [Tensor::f32(&[3, 512], &data), Tensor::i64s(&[7])];
    assert!(ours.run(&wrong).is_err() && burn.run(&wrong).is_err());
}

use super::*;
use compress_compiler::{
    error::{Error, Kind},
    node::Site,
    ops::{batch_norm::BatchNorm, binary::Binary, opaque::Opaque, unary::Unary},
    value::Dim,
};

fn input(g: &mut Graph, name: &str, shape: &[Dim], default: Option<Tensor>) -> Port {
    let fact = Fact::new(Some(DType::F32), Some(shape.to_vec()));
    g.add_input(name, fact, Op::Input(Input { default })).unwrap().into()
}

/// y = relu(x + w) * (x + w), z = x, with w a default input.
fn model() -> (Graph, Port) {
    let mut g = Graph::new("m");
    let n = [Dim::Sym("n".into())];
    let x = input(&mut g, "x", &n, None);
    let w = input(&mut g, "w", &n, Some(f32s(&[1.0, -1.0])));
    let sum = g.add_node("sum", Binary::Add.into(), &[Some(x), Some(w)], &["s"]).unwrap();
    let relu = g.add_node("relu", Unary::Relu.into(), &[Some(sum.into())], &["r"]).unwrap();
    let mul = g.add_node("mul", Binary::Mul.into(), &[Some(relu.into()), Some(sum.into())], &["y"]).unwrap();
    g.add_output("y", mul.into());
    g.add_output("z", x);
    (g, sum.into())
}

fn executable(g: &Graph) -> Result<Executable, Error> {
    Executable::new(&verify(g)?, &Device::of_tests())
}

#[test]
fn runs_in_order_and_again() {
    let (g, _) = model();
    let e = executable(&g).unwrap();
    for _ in 0..2 {
        let y = e.run(&[f32s(&[1.0, -2.0])]).unwrap();
        close(&y[0], &[2], &[4.0, 0.0]);
        close(&y[1], &[2], &[1.0, -2.0]);
        let y = e.run(&[f32s(&[1.0, -2.0]), f32s(&[0.5, 4.0])]).unwrap();
        close(&y[0], &[2], &[2.25, 4.0]);
    }
}

#[test]
fn halves_are_not_rounded_between_operators() {
    // (x + 1000) - 1000 is x, as ONNX Runtime computes it on a CPU; a rounded sum would leave [0, 0, 0.5].
    let x = Tensor::floats(DType::F16, &[3], &[0.12573242, -0.13208008, 0.64038086]);
    let mut g = Graph::new("m");
    let half = Fact::new(Some(DType::F16), Some(vec![3.into()]));
    let input = g.add_input("x", half, Op::Input(Input { default: None })).unwrap();
    let k = g.add_constant("k", Tensor::floats(DType::F16, &[], &[1000.0]));
    let sum = g.add_node("sum", Binary::Add.into(), &[Some(input.into()), Some(k.into())], &["s"]).unwrap();
    let y = g.add_node("y", Binary::Sub.into(), &[Some(sum.into()), Some(k.into())], &["y"]).unwrap();
    g.add_output("y", y.into());
    assert_eq!(executable(&g).unwrap().run(std::slice::from_ref(&x)).unwrap(), [x]);
}

#[test]
fn a_relu_behind_batch_normalisation_is_a_part_of_it() {
    let mut g = Graph::new("m");
    let x = input(&mut g, "x", &[4.into(), 2.into()], None);
    let vector = |g: &mut Graph, name: &str, data: &[f32]| Some(g.add_constant(name, f32s(data)).into());
    let operands = [("scale", [1.0, -2.0]), ("bias", [0.5, 0.0]), ("mean", [0.0; 2]), ("variance", [1.0; 2])];
    let operands = operands.map(|(name, data)| vector(&mut g, name, &data));
    let norm = |g: &mut Graph, x: Port, name: &str| -> Port {
        let op = BatchNorm { epsilon: 1e-3, momentum: 0.9, training: true };
        let outputs = [name.to_owned(), format!("{name} mean"), format!("{name} variance")];
        let all = [&[Some(x)], &operands[..]].concat();
        g.add_node(name, op.into(), &all, &outputs.each_ref().map(|s| &s[..])).unwrap().into()
    };
    let relu = |g: &mut Graph, x: Port, name: &str| -> Port {
        g.add_node(name, Unary::Relu.into(), &[Some(x)], &[name]).unwrap().into()
    };
    // The second is an output too, and the Relu after the first Relu reads no normalisation.
    let first = norm(&mut g, x, "first");
    let first = relu(&mut g, first, "r");
    let again = relu(&mut g, first, "s");
    let second = norm(&mut g, again, "second");
    let last = relu(&mut g, second, "t");
    g.add_output("y", last);
    g.add_output("z", second);
    g.add_output("mean", Port { node: second.node, slot: 1 });
    let data = Tensor::f32(&[4, 2], &[1.0, 2.0, -3.0, 5.0, 0.5, -1.0, 4.0, 0.25]);
    let (plain, fused) = (executable(&g).unwrap(), executable(&g).unwrap().with_fused_steps());
    let steps = |e: &Executable| {
        let mut spent = vec![];
        e.observe(std::slice::from_ref(&data), &mut |_, _| Ok(()), Some(&mut spent)).unwrap();
        spent.len()
    };
    // With the time between them.
    assert_eq!((steps(&plain), steps(&fused)), (6, 5));
    assert_eq!(plain.run(std::slice::from_ref(&data)).unwrap(), fused.run(&[data]).unwrap());
}

#[test]
fn inputs_are_checked() {
    let (g, _) = model();
    let e = executable(&g).unwrap();
    let kind = |inputs: &[Tensor]| e.run(inputs).unwrap_err().kind();
    assert_eq!(kind(&[]), Kind::Data);
    assert_eq!(kind(&[f32s(&[1.0]), f32s(&[1.0, 2.0])]), Kind::Data, "one symbol, two sizes");
    assert_eq!(kind(&[Tensor::i64s(&[1, 2])]), Kind::Data);
    assert_eq!(kind(&[noise(&[1, 2], 1)]), Kind::Data);
    let message = e.run(&[noise(&[1, 2], 1)]).unwrap_err().to_string();
    assert!(message.contains("`x`") && message.contains("f32[1, 2]"), "{message}");
}

#[test]
fn watched_values_are_shown_as_they_were() {
    let (g, sum) = model();
    let mut seen = vec![];
    let x = Port::from(g.inputs()[0]);
    let watch: Vec<(usize, Site)> = [sum, x, sum].map(Site::from).into_iter().enumerate().collect();
    let e = executable(&g).unwrap().watching(&watch).unwrap();
    let mut sink = |i: usize, v: &[f32]| -> Result<()> {
        seen.push((i, v.to_vec()));
        Ok(())
    };
    e.observe(&[f32s(&[1.0, -2.0])], &mut sink, None).unwrap();
    assert_eq!(seen, [(1, vec![1.0, -2.0]), (0, vec![2.0, -3.0]), (2, vec![2.0, -3.0])]);
    let stop = e.observe(&[f32s(&[1.0, -2.0])], &mut |_, _| Err(Error::interrupted()), None);
    assert_eq!(stop.unwrap_err().kind(), Kind::Interrupted);
}

#[test]
fn a_value_read_twice_by_one_node() {
    let mut g = Graph::new("square");
    let x = input(&mut g, "x", &[Dim::Known(2)], None);
    let n = g.add_node("neg", Unary::Neg.into(), &[Some(x)], &["n"]).unwrap();
    let sq = g.add_node("sq", Binary::Mul.into(), &[Some(n.into()), Some(n.into())], &["y"]).unwrap();
    g.add_output("y", sq.into());
    g.add_output("again", sq.into());
    let y = executable(&g).unwrap().run(&[f32s(&[3.0, -4.0])]).unwrap();
    close(&y[0], &[2], &[9.0, 16.0]);
    close(&y[1], &[2], &[9.0, 16.0]);
}

#[test]
fn unknown_operators_matter_only_where_needed() {
    let (mut g, sum) = model();
    let opaque = Op::Opaque(Opaque {
        proto: Default::default(),
        captures: vec![],
        opset: 13,
        reason: "operator Mystery".into(),
    });
    let mut proto_outputs = opaque.clone();
    if let Op::Opaque(o) = &mut proto_outputs {
        o.proto.output.push("m".into());
    }
    let m = g.add_node("mystery", proto_outputs, &[Some(sum)], &["m"]).unwrap();
    assert!(executable(&g).is_ok(), "nobody needs it");
    g.add_output("m", m.into());
    let e = executable(&g).err().unwrap();
    assert_eq!(e.kind(), Kind::Unsupported);
    assert!(e.to_string().contains("mystery") && e.to_string().contains("Mystery"), "{e}");
}

#[test]
fn errors_name_the_node() {
    let mut g = Graph::new("bad");
    let x = input(&mut g, "x", &[Dim::Sym("a".into())], None);
    let y = input(&mut g, "y", &[Dim::Sym("b".into())], None);
    let n = g.add_node("clash", Binary::Add.into(), &[Some(x), Some(y)], &["s"]).unwrap();
    g.add_output("s", n.into());
    let e = executable(&g).unwrap().run(&[noise(&[2], 1), noise(&[3], 1)]).unwrap_err();
    assert!(e.to_string().contains("`clash` (Add)"), "{e}");
}

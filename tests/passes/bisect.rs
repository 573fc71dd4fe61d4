//! `--bisect` finds a rule that is wrong: here it is planted.

use compress_compiler::{
    error::Result,
    graph::Graph,
    node::NodeId,
    op::Op,
    ops::{activation::Activation, unary::Unary},
    pass::{Context, Outcome, Pass},
    rewrite::{Edit, Rule, Verdict, rewrite},
    tensor::Tensor,
    text,
    verify::verify,
};
use compress_passes::{bisect::bisect, clean::Clean, fold::Fold};
use compress_runtime::{
    burn::BurnInterpreter,
    session::{Backend, Session},
};

/// Turns every Relu into a LeakyRelu, which is right without a slope, and gives one called
/// `bad` a slope.
struct Leaky;

impl Rule for Leaky {
    fn name(&self) -> &'static str {
        "leaky"
    }
    fn roots(&self) -> &'static [&'static str] {
        &["Relu"]
    }
    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        assert_eq!(*graph.op(node), Op::Unary(Unary::Relu));
        let name = graph.node(node).name.clone();
        let alpha = if name == "bad" { 0.5 } else { 0.0 };
        let mut edit = Edit::new();
        let x = graph.operand(node, 0).map(Into::into);
        let leaky = edit.node(&name, Activation::LeakyRelu { alpha }, &[x]);
        edit.replace(node.into(), leaky);
        Ok(Verdict::Apply(edit))
    }
}

#[derive(Debug)]
struct Planted;

impl Pass for Planted {
    fn name(&self) -> &'static str {
        "planted"
    }
    fn run(&self, graph: &mut Graph, cx: &Context) -> Result<Outcome> {
        rewrite(graph, &[Box::new(Leaky)], cx)
    }
}

fn run(graph: &Graph) -> Result<Vec<Vec<Tensor>>> {
    let exe = Session::new(&verify(graph)?, &Backend::cpu(), &[])?;
    let x: Vec<f32> = (0..12).map(|i| i as f32 - 6.0).collect();
    Ok(vec![exe.run(&[Tensor::f32(&[3, 4], &x)])?])
}

/// Relus of shifted values, summed up; the `bad`th one is called so.
fn chain(relus: usize, bad: Option<usize>) -> Graph {
    let mut nodes = String::new();
    let mut last = "x".to_string();
    for i in 0..relus {
        let name = if Some(i) == bad { "bad".into() } else { format!("good{i}") };
        nodes += &format!("%a{i} = Add(%x, %shift{i})\n%r{i} = Relu(%a{i}) \"{name}\"\n%s{i} = Add(%{last}, %r{i})\n");
        nodes.insert_str(0, &format!("const %shift{i}: f32[] = [{}]\n", (i + 1) as f32 / 2.0));
        last = format!("s{i}");
    }
    text::parse(&format!("graph \"g\" {{ input %x: f32[3,4]\n{nodes}%same = Identity(%{last})\noutput %same }}"))
        .unwrap()
}

fn passes() -> Vec<Box<dyn Pass>> {
    vec![Box::new(Fold), Box::new(Clean), Box::new(Planted)]
}

#[test]
fn finds_the_pass_the_rule_and_the_node() {
    let interpreter = BurnInterpreter::cpu();
    let cx = Context::new(&interpreter);
    for bad in [0, 1, 6] {
        let mut seen = vec![];
        let graph = chain(7, Some(bad));
        let found = bisect(&graph, &passes(), &cx, &run, &mut |s| seen.push((s.pass, s.edits))).unwrap();
        let found = found.unwrap_or_else(|| panic!("nothing found: {seen:?}"));
        assert_eq!((found.pass, &found.rule[..], &found.node[..]), ("planted", "leaky", "`bad` (Relu)"));
        assert_eq!(found.edit, bad + 1, "it is the change of that number");
        assert!(found.difference.contains("output `same`"), "{}", found.difference);
        assert_eq!(seen, [("fold", 0), ("clean", 1)], "the passes before it are cleared");
    }
}

#[test]
fn clears_passes_that_are_right() {
    let interpreter = BurnInterpreter::cpu();
    let found = bisect(&chain(3, None), &passes(), &Context::new(&interpreter), &run, &mut |_| {}).unwrap();
    assert_eq!(found, None);
}

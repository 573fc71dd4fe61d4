//! Properties of random graphs, in which every operator with a kernel occurs.
//!
//! A plan is a list of steps: an entry of the table ([`table`]) and a seed for its choices. Leaving steps out makes a
//! smaller graph, which is how a failure shrinks. While a graph grows, every operator is run at once on the tensors
//! at hand, so that operands can be chosen by their elements (see [`known`]). Then ([`check`]):
//!
//! 1. the whole computes what its operators computed one by one; simplified it computes the same, with other
//!    sizes too where sizes have names; types, shapes and names of inputs and outputs stay;
//! 2. its text parses to the same text;
//! 3. its ONNX file computes the same, and is written again to the byte;
//! 4. what inference says of a value holds;
//! 5. without some of its channels it computes what it does when their weights are zero.
//!
//! `PROPTEST_CASES` sets the number of graphs, `COMPRESS_SEED` the seed. `-- --nocapture` shows how often each rule
//! made a change.

mod check;
mod choose;
mod known;
mod maker;
mod rules;
mod table;

use check::{Simplify, check};
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::NodeId,
    op::Op,
    ops::{activation::Activation, unary::Unary},
    pass::Context,
    rewrite::{Edit, Rule, Verdict, rewrite},
    tensor::DType,
};
use maker::Maker;
use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner},
};
use rules::{Counts, Listener};
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    env,
    sync::Once,
};

/// Graphs in one run of the tests.
const CASES: u32 = 3000;

/// The most steps of a plan.
const STEPS: usize = 25;

/// What a graph is made from.
#[derive(Debug, Clone)]
struct Plan {
    seed: u64,
    /// Places in the table, and seeds.
    steps: Vec<(usize, u64)>,
}

fn plans() -> impl Strategy<Value = Plan> {
    // Smaller seeds are not simpler ones.
    let step = (any::<usize>().no_shrink(), any::<u64>().no_shrink());
    (any::<u64>().no_shrink(), vec(step, 1..=STEPS)).prop_map(|(seed, steps)| Plan { seed, steps })
}

/// Builds the graph of a plan.
fn build(plan: &Plan) -> Maker {
    let mut m = Maker::new(plan.seed, false);
    let entries = if plan.seed.is_multiple_of(3) { table::focused() } else { table::all() };
    for _ in 0..m.size(1, 3) {
        let rank = m.size(0, 5);
        let shape = m.any_shape(rank);
        let tensor = m.filled(DType::F32, &shape, -3.0, 3.0);
        m.input(tensor);
    }
    for (place, seed) in &plan.steps {
        m.step(&entries, *place, *seed);
    }
    finish(&mut m, plan.seed);
    m
}

/// Chooses the outputs: most ends, a value in between, an input or a constant now and then.
fn finish(m: &mut Maker, seed: u64) {
    m.step(&[], 0, seed);
    let mut chosen: BTreeSet<usize> = BTreeSet::new();
    for v in 0..m.values.len() {
        let end = m.graph.uses(m.values[v].port).is_empty() && !m.values[v].constant;
        let p = if end {
            0.8
        } else if m.values[v].constant {
            0.01
        } else {
            0.04
        };
        if m.chance(p) {
            chosen.insert(v);
        }
    }
    if chosen.is_empty() {
        chosen.insert(m.values.len() - 1);
    }
    let mut named = 0;
    m.open = m.graph.clone();
    for v in chosen {
        let port = m.values[v].port;
        let own = m.graph.value(port).name.clone();
        let name = if m.chance(0.05) { format!("result {own}") } else { own };
        m.graph.add_output(&name, port);
        if m.chance(0.02) {
            named += 1;
            m.graph.add_output(&format!("again {named}"), port);
        }
    }
}

/// What is wrong, and where: in the graph as it is, or in that of its first value which is wrong on its own.
fn smallest(m: &Maker, whole: String, simplify: Simplify) -> String {
    let alone = (0..m.values.len()).filter(|_| m.failure.is_none()).find_map(|v| {
        let mut part = m.alone(v);
        check(&mut part, simplify).err().map(|e| (e, part.graph))
    });
    let (why, graph) = alone.unwrap_or_else(|| (whole, m.graph.clone()));
    format!("{why}\nwhere the graph was\n{graph}")
}

fn runner(cases: u32) -> TestRunner {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 2000, ..Config::default() };
    let seed = env::var("COMPRESS_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1u64);
    let mut bytes = [7; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

fn cases() -> u32 {
    env::var("PROPTEST_CASES").ok().and_then(|s| s.parse().ok()).unwrap_or(CASES)
}

thread_local! {
    /// Whether panics of this thread are caught, and told with their graph.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Checks random graphs; the error is the smallest plan that fails, its graph and what is wrong.
fn search(cases: u32, simplify: Simplify) -> std::result::Result<(), String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let told = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                told(info);
            }
        }));
    });
    QUIET.set(true);
    let done = runner(cases).run(&plans(), |plan| {
        let mut m = build(&plan);
        check(&mut m, simplify).map_err(|e| TestCaseError::fail(smallest(&m, e, simplify)))
    });
    QUIET.set(false);
    done.map_err(|e| match e {
        TestError::Fail(why, plan) => format!("{}\n{plan:?}", why.message()),
        TestError::Abort(why) => why.message().into(),
    })
}

#[test]
fn simplifying_and_writing_change_nothing() {
    let counts = Counts::default();
    let found =
        tracing::subscriber::with_default(Listener(counts.clone()), || search(cases(), compress_passes::simplify));
    println!("changes by rule: {:#?}", counts.lock().unwrap());
    if let Err(e) = found {
        panic!("{e}");
    }
}

/// Every operator with a kernel is among the graphs.
#[test]
fn every_operator_occurs() {
    let seen: RefCell<BTreeMap<&str, usize>> = RefCell::default();
    let took: RefCell<BTreeMap<&str, [usize; 2]>> = RefCell::default();
    let made = runner(CASES).run(&plans(), |plan| {
        let m = build(&plan);
        let variants = m.graph.operators().filter_map(|n| table::variant(m.graph.op(n)));
        variants.for_each(|v| *seen.borrow_mut().entry(v).or_default() += 1);
        m.took.iter().for_each(|(name, made)| took.borrow_mut().entry(name).or_default()[usize::from(*made)] += 1);
        Ok(())
    });
    assert!(made.is_ok());
    let (seen, took) = (seen.into_inner(), took.into_inner());
    println!("{} operators in {CASES} graphs: {seen:?}", seen.values().sum::<usize>());
    println!("entries, how often they made nothing and something: {took:?}");
    let missing: Vec<&&str> = table::KERNELS.iter().filter(|k| !seen.contains_key(**k)).collect();
    let idle: Vec<&str> = took.iter().filter(|t| t.1[1] == 0).map(|t| *t.0).collect();
    assert!(idle.is_empty(), "nothing ever comes of {idle:?}");
    assert!(missing.is_empty(), "these never occur: {missing:?}");
}

/// Gives every Relu a little slope: wrong, and found.
struct Leaky;

impl Rule for Leaky {
    fn name(&self) -> &'static str {
        "leaky"
    }
    fn roots(&self) -> &'static [&'static str] {
        &["Relu"]
    }
    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        let mut edit = Edit::new();
        let x = graph.operand(node, 0).map(Into::into);
        let leaky = edit.node("", Activation::LeakyRelu { alpha: 0.01 }, &[x]);
        edit.replace(node.into(), leaky);
        Ok(if *graph.op(node) == Op::Unary(Unary::Relu) { Verdict::Apply(edit) } else { Verdict::No })
    }
}

#[test]
fn a_wrong_rule_is_found() {
    let found = search(cases(), |graph, cx| rewrite(graph, &[Box::new(Leaky)], cx)).unwrap_err();
    let operators = found.lines().filter(|l| l.contains("Relu")).count();
    assert!(found.contains("differs by") && operators > 0, "{found}");
}

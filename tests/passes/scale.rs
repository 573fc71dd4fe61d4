//! Cost grows with the model, not faster: import, simplification and export of chains of 10,000 and of 40,000 nodes.
//! The memory in which a session runs doesn't grow with the number of its parts.
//!
//! What is compared is counted, not timed: allocations and their bytes, by an allocator that counts; and processor
//! time of the thread, which other processes don't lengthen as they do wall time, with room to spare. Four times the
//! nodes would be sixteen times the cost if anything were quadratic.

use compress_compiler::{
    graph::Graph,
    node::Port,
    onnx::{self, Model},
    op::Op,
    ops::{binary::Binary, identity::Identity, source::Input, unary::Unary},
    pass::Context,
    tensor::{DType, Tensor},
    text,
    value::{Dim, Fact},
    verify::verify,
};
use compress_passes::simplify;
use compress_runtime::{
    burn::BurnInterpreter,
    session::{Backend, Session},
};
use mimalloc::MiMalloc;
use std::{
    alloc::{GlobalAlloc, Layout},
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

static CALLS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);
/// Bytes that were given back.
static FREED: AtomicU64 = AtomicU64::new(0);

/// The command's allocator, counting.
struct Counting;

// SAFETY: every call goes to the command's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Relaxed);
        BYTES.fetch_add(layout.size() as u64, Relaxed);
        // SAFETY: the caller's promise is handed on.
        unsafe { MiMalloc.alloc(layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        CALLS.fetch_add(1, Relaxed);
        BYTES.fetch_add(size as u64, Relaxed);
        FREED.fetch_add(layout.size() as u64, Relaxed);
        // SAFETY: the caller's promise is handed on, and all memory is from `MiMalloc`.
        unsafe { MiMalloc.realloc(at, layout, size) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        FREED.fetch_add(layout.size() as u64, Relaxed);
        // SAFETY: the caller's promise is handed on, and all memory is from `MiMalloc`.
        unsafe { MiMalloc.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Links of a chain: what each makes of the value before.
type Link = fn(usize) -> (Op, Option<f32>);

/// Foldable and removable links, as peers are measured with: Add, Identity, Mul, Relu.
fn foldable(i: usize) -> (Op, Option<f32>) {
    match i % 4 {
        0 => (Binary::Add.into(), Some(0.5)),
        1 => (Identity.into(), None),
        2 => (Binary::Mul.into(), Some(2.0)),
        _ => (Unary::Relu.into(), None),
    }
}

/// Nothing here can go: the graph stays as long as it is.
fn lasting(i: usize) -> (Op, Option<f32>) {
    (if i.is_multiple_of(2) { Unary::Sigmoid } else { Unary::Tanh }.into(), None)
}

/// The ONNX file of a chain. With `constant`, it starts from a constant and folds away whole; with `shared`, all links
/// of a kind read the same constant.
fn chain(nodes: usize, link: Link, constant: bool, shared: bool) -> Vec<u8> {
    let mut g = Graph::new("chain");
    let fact = Fact::new(Some(DType::F32), Some(vec![Dim::Sym("n".into()), Dim::Known(4)]));
    let x = g.add_input("x", fact, Op::Input(Input { default: None })).unwrap();
    let start = Tensor::f32(&[1, 4], &[1.0, -2.0, 3.0, 0.5]);
    let mut last: Port = if constant { g.add_constant("start", start).into() } else { x.into() };
    let mut known: HashMap<u32, Port> = HashMap::new();
    for i in 0..nodes {
        let (op, operand) = link(i);
        let mut make = |v| Port::from(g.add_constant(&format!("c{i}"), Tensor::f32(&[], &[v])));
        let c =
            operand.map(|v: f32| if shared { *known.entry(v.to_bits()).or_insert_with(|| make(v)) } else { make(v) });
        let operands: Vec<Option<Port>> = [Some(last), c].into_iter().take(1 + c.iter().len()).collect();
        last = g.add_node(&format!("n{i}"), op, &operands, &[&format!("v{i}")]).unwrap().into();
    }
    let sum = g.add_node("sum", Binary::Add.into(), &[Some(x.into()), Some(last)], &["y"]).unwrap();
    g.add_output("y", sum.into());
    onnx::to_bytes(&Model::new(g)).unwrap()
}

/// Calls of the allocator, bytes asked of it, and seconds of processor time.
fn cost(file: &[u8]) -> [f64; 3] {
    let now = || [CALLS.load(Relaxed) as f64, BYTES.load(Relaxed) as f64, processor_seconds()];
    let before = now();
    let mut model = onnx::read_bytes(file).unwrap();
    let interpreter = BurnInterpreter::cpu();
    simplify(&mut model.graph, &Context::new(&interpreter)).unwrap();
    let out = onnx::to_bytes(&model).unwrap();
    assert!(!out.is_empty());
    let after = now();
    [0, 1, 2].map(|i| after[i] - before[i])
}

/// What this thread has used.
fn processor_seconds() -> f64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}

/// What four times the nodes cost, in times: calls of the allocator, its bytes, processor time.
fn ratios(small: &[u8], large: &[u8]) -> [f64; 3] {
    let least = |file: &[u8]| {
        let runs = [cost(file), cost(file), cost(file)];
        [0, 1, 2].map(|i| runs.iter().map(|r| r[i]).fold(f64::INFINITY, f64::min))
    };
    let (a, b) = (least(small), least(large));
    [0, 1, 2].map(|i| b[i] / a[i])
}

/// A chain that runs on both executors by turns.
fn alternating(i: usize) -> (Op, Option<f32>) {
    (if i.is_multiple_of(2) { Unary::Softplus } else { Unary::Tanh }.into(), None)
}

/// Calls of the allocator for making a file ready to run, for the first run and for the second.
fn session_calls(file: &[u8]) -> [u64; 3] {
    let graph = onnx::read_bytes(file).unwrap().graph;
    let input = [Tensor::f32(&[2, 4], &[0.5; 8])];
    let start = CALLS.load(Relaxed);
    let session = Session::new(&verify(&graph).unwrap(), &Backend::cpu(), &[]).unwrap();
    let made = CALLS.load(Relaxed);
    session.run(&input).unwrap();
    let first = CALLS.load(Relaxed);
    session.run(&input).unwrap();
    [made - start, first - made, CALLS.load(Relaxed) - first]
}

/// Parts of the CPU executor's, each with an activation of 256 KB, and of Burn's by turns.
fn parts(n: usize) -> Graph {
    let part = |i: usize| {
        format!(
            "  %c{i} = Conv(%s{i}, %w) {{group=16, pads=[1, 1, 1, 1]}} \"c{i}\"\n  %s{} = Softplus(%c{i}) \"s{i}\"\n",
            i + 1
        )
    };
    let body: String = (0..n).map(part).collect();
    let head = "input %s0: f32[1,16,64,64]\n  const %w: f32[16,1,3,3] = random(1)";
    text::parse(&format!("graph \"parts\" {{\n  {head}\n{body}  output %s{n}\n}}")).unwrap()
}

/// Bytes that a session of so many parts holds after it has run.
fn session_bytes(n: usize) -> u64 {
    let graph = parts(n);
    let input = [Tensor::f32(&[1, 16, 64, 64], &[0.5; 16 * 64 * 64])];
    let held = || BYTES.load(Relaxed) - FREED.load(Relaxed);
    let before = held();
    let session = Session::new(&verify(&graph).unwrap(), &Backend::cpu(), &[]).unwrap();
    session.run(&input).unwrap();
    held() - before
}

// One test, as others beside it would be counted too.
#[test]
fn cost_is_linear_in_the_nodes() {
    let [small, large] = [1_000, 4_000].map(|n| session_calls(&chain(n, lasting, false, false)));
    println!("sessions: {small:?} and {large:?} calls of the allocator");
    assert!(large[0] <= small[0] * 42 / 10 && large[1] <= small[1] * 42 / 10, "making a plan");
    assert_eq!(small[2], large[2], "what is planned allocates for its outputs alone");
    let [small, large] = [1_000, 4_000].map(|n| session_calls(&chain(n, alternating, false, false)));
    assert!((0..3).all(|i| large[i] <= small[i] * 42 / 10), "sessions in parts: {small:?} and {large:?} calls");
    session_bytes(1);
    let [few, many] = [4, 36].map(session_bytes);
    println!("sessions of 4 and of 36 parts hold {few} and {many} bytes");
    assert!(many - few < 32 * (64 << 10), "each part has memory of its own");
    for (name, link, constant, shared) in [
        ("foldable", foldable as Link, true, false),
        ("foldable, shared constants", foldable, true, true),
        ("foldable, variable", foldable, false, false),
        ("variable, shared constants", foldable, false, true),
        ("lasting", lasting, false, false),
    ] {
        let [few, small, large] = [2_500, 10_000, 40_000].map(|n| chain(n, link, constant, shared));
        // The first run pays for thread pools and tables.
        cost(&few);
        let [calls, bytes, _] = ratios(&small, &large);
        // Time is compared on graphs that fit the caches: one that doesn't takes longer a node, by the machine. Caches
        // are shared with whoever else runs, so time gets another try. Had it grown with the square of the nodes, no
        // try would end below 8.
        let mut tries = (0..5).map(|_| ratios(&few, &small)[2]);
        let time = tries.find(|time| *time <= 5.0).unwrap_or_else(|| ratios(&few, &small)[2]);
        println!("{name}: calls of the allocator {calls:.2}, bytes {bytes:.2}, processor time {time:.2}");
        assert!(calls <= 4.2 && bytes <= 4.2, "{name}: 4 times the nodes take {calls:.2} times the allocations");
        assert!(time <= 5.0, "{name}: 4 times the nodes take {time:.2} times the time");
    }
}

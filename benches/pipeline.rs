//! What each step of simplifying costs on chains of nodes: `cargo bench --bench pipeline`.

use compress_compiler::{
    graph::Graph,
    node::Port,
    onnx::{self, Model},
    op::Op,
    ops::{binary::Binary, identity::Identity, source::Input, unary::Unary},
    pass::{Context, Pass},
    tensor::{DType, Tensor},
    value::{Dim, Fact},
};
use compress_passes::{clean::Clean, fold::Fold, fuse::Fuse};
use compress_runtime::burn::interpreter::BurnInterpreter;
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

/// A chain of Add, Identity, Mul and Relu on the input.
fn chain(nodes: usize) -> Graph {
    let mut g = Graph::new("chain");
    let fact = Fact::new(Some(DType::F32), Some(vec![Dim::Sym("n".into()), Dim::Known(4)]));
    let mut last: Port = match g.add_input("x", fact, Op::Input(Input { default: None })) {
        Ok(x) => x.into(),
        Err(e) => panic!("{e}"),
    };
    for i in 0..nodes {
        let (op, constant): (Op, bool) = match i % 4 {
            0 => (Binary::Add.into(), true),
            1 => (Identity.into(), false),
            2 => (Binary::Mul.into(), true),
            _ => (Unary::Relu.into(), false),
        };
        let c = constant.then(|| Port::from(g.add_constant("c", Tensor::f32(&[], &[1.5]))));
        let operands: Vec<Option<Port>> = std::iter::once(last).chain(c).map(Some).collect();
        last = match g.add_node("", op, &operands, &[&format!("v{i}")]) {
            Ok(n) => n.into(),
            Err(e) => panic!("{e}"),
        };
    }
    g.add_output("y", last);
    g
}

fn steps(c: &mut Criterion) {
    let interpreter = BurnInterpreter::cpu();
    for nodes in [1_000, 10_000, 40_000] {
        let graph = chain(nodes);
        let model = Model::new(graph.clone());
        let file = onnx::to_bytes(&model).unwrap_or_else(|e| panic!("{e}"));
        let mut group = c.benchmark_group("chain");
        group.throughput(Throughput::Elements(nodes as u64)).sample_size(10);
        group.bench_function(BenchmarkId::new("import", nodes), |b| b.iter(|| onnx::read_bytes(&file)));
        for pass in [&Fold as &dyn Pass, &Clean, &Fuse] {
            let cx = Context::new(&interpreter);
            group.bench_function(BenchmarkId::new(pass.name(), nodes), |b| {
                b.iter_batched_ref(|| graph.clone(), |g| pass.run(g, &cx).map(|_| ()), BatchSize::LargeInput);
            });
        }
        group.bench_function(BenchmarkId::new("export", nodes), |b| b.iter(|| onnx::to_bytes(&model)));
        group.finish();
    }
}

criterion_group!(benches, steps);
criterion_main!(benches);

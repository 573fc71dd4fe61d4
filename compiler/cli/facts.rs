//! Models in numbers: what the report says of a file and of its layers.

use compress_compiler::{
    graph::Graph,
    node::{NodeId, Port},
    op::{Inputs, Op, Operator},
    report::{FileFacts, LayerFacts},
    tensor::DType,
    value::Fact,
};
use sha2::{Digest, Sha256};
use std::path::Path;

/// SHA-256 in hex.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// The facts of a file that holds `graph`.
pub fn file(path: &Path, bytes: &[u8], graph: &Graph) -> FileFacts {
    let tensors = || graph.ids().filter_map(|n| graph.constant(n.into()));
    FileFacts {
        path: path.display().to_string(),
        sha256: sha256(bytes),
        bytes: bytes.len(),
        zstd_bytes: zstd::bulk::compress(bytes, 3).map_or(bytes.len(), |z| z.len()),
        nodes: graph.operators().count(),
        parameters: tensors().map(|t| t.len()).sum(),
        nonzero: tensors().map(|t| t.nonzero()).sum(),
        macs: graph.operators().map(|n| macs(graph, n)).sum(),
    }
}

fn macs(g: &Graph, n: NodeId) -> u64 {
    let operands = g.operands(n);
    let inputs: Vec<Option<&Fact>> = operands.iter().map(|p| p.map(|p| g.fact(p))).collect();
    let outputs: Vec<&Fact> = g.node(n).outputs.iter().map(|v| &v.fact).collect();
    g.op(n).macs(&Inputs(&inputs), &outputs)
}

/// The layers of `graph`: operators with a weight, seen through DequantizeLinear.
pub fn layers(graph: &Graph) -> Vec<(NodeId, LayerFacts)> {
    let Ok(order) = graph.topological() else { return vec![] };
    let layer = |n: NodeId| {
        let axes = graph.op(n).weight()?;
        let weight = stored(graph, graph.operand(n, axes.slot)?)?;
        let facts = LayerFacts {
            node: graph.node(n).display_name().into(),
            op: graph.op(n).op_type().into(),
            precision: if weight.dtype() == DType::I8 { "int8".into() } else { weight.dtype().to_string() },
            sparsity: 1.0 - weight.nonzero() as f64 / weight.len().max(1) as f64,
            sqnr_db: None,
            macs: macs(graph, n),
        };
        Some((n, facts))
    };
    order.into_iter().filter_map(layer).collect()
}

fn stored(g: &Graph, port: Port) -> Option<&compress_compiler::tensor::Tensor> {
    match g.op(port.node) {
        Op::Dequantize(_) => g.constant(g.operand(port.node, 0)?),
        _ => g.constant(port),
    }
}

//! Models in numbers: what the report says of a file and of its layers.

use crate::report::{DataFacts, FileFacts, LayerFacts};
use compress_compiler::{
    captured,
    graph::Graph,
    narrow::unpack,
    node::{NodeId, Port},
    onnx::{Model, Source, SourceFile},
    op::{Op, Operator},
    ops::{binary::Binary, quantize::Grain},
    tensor::{DType, Tensor},
    value::axis,
};
use compress_passes::layers::weight_slots;
use sha2::{Digest, Sha256};
use std::{io::Write, path::Path};

/// Larger models are not compressed only to see how small they get.
const MAX_ZSTD: u64 = 256 << 20;

/// SHA-256 in hex.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// The facts of the file at `path`, from which `model` was read.
pub fn file(path: &Path, model: &Model) -> FileFacts {
    let (graph, source) = (&model.graph, model.source());
    let graphs = graph.and_bodies();
    let hash = |f: &SourceFile| f.sha256().to_string();
    let data = source.files().iter().skip(1).map(|f| DataFacts {
        path: f.path().display().to_string(),
        sha256: hash(f),
        bytes: f.bytes().len(),
    });
    FileFacts {
        path: path.display().to_string(),
        sha256: source.files().first().map(hash).unwrap_or_default(),
        bytes: source.len() as usize,
        zstd_bytes: zstd_bytes(source),
        data: data.collect(),
        nodes: graphs.iter().map(|g| g.operators().count()).sum(),
        parameters: graphs.iter().flat_map(|g| tensors(g)).map(|t| t.len()).sum(),
        nonzero: nonzero(graph),
        macs: macs(graph),
    }
}

/// Multiply-accumulates of one run: of If those of the larger branch, of Loop and Scan those of one turn. Operators that are
/// not known count nothing.
pub fn macs(graph: &Graph) -> u64 {
    graph.operators().map(|n| graph.macs_with_bodies(n)).fold(0, u64::saturating_add)
}

/// Whether a layer makes values of which more than the batch is open, so that its multiply-accumulates are not known.
pub fn has_open_sizes(graph: &Graph) -> bool {
    let open = |n: NodeId| {
        let dims = graph.fact(n.into()).dims();
        graph.op(n).weight().is_some() && dims.is_none_or(|d| d.iter().skip(1).any(|d| d.known().is_none()))
    };
    graph.operators().any(open)
}

/// The first operator that can't be run here, and why.
pub fn first_unknown(graph: &Graph) -> Option<(String, String)> {
    let reason = |op: &Op| if let Op::Opaque(o) = op { Some(o.reason.clone()) } else { None };
    let mut nodes = graph.and_bodies().into_iter().flat_map(|g| g.operators().map(move |n| g.node(n)));
    nodes.find_map(|n| Some((n.label(), reason(&n.op)?)))
}

/// Operators that are kept as they came.
pub fn unknown(graph: &Graph) -> usize {
    let is_unknown = |g: &Graph| g.operators().filter(|n| matches!(g.op(*n), Op::Opaque(_))).count();
    graph.and_bodies().into_iter().map(is_unknown).sum()
}

fn tensors(graph: &Graph) -> impl Iterator<Item = &Tensor> {
    graph.ids().filter_map(|n| graph.constant(n.into()))
}

/// How many elements of all constants are not zero: of codes that a DequantizeLinear reads, how many are not its zero point.
pub fn nonzero(graph: &Graph) -> usize {
    graph.and_bodies().into_iter().map(|g| g.ids().map(|n| nonzero_of(g, n)).sum::<usize>()).sum()
}

/// The same of one constant. A tensor keeps how many of its elements are not 0, so that asking again costs nothing; codes with zero points
/// are looked at each time.
fn nonzero_of(g: &Graph, constant: NodeId) -> usize {
    let Some(tensor) = g.constant(constant.into()) else { return 0 };
    let read = g.uses(constant.into()).into_iter().find_map(|u| match g.op(u.node) {
        Op::Dequantize(d) if u.slot == 0 => Some((d.grain, g.constant(g.operand(u.node, 2)?)?)),
        _ => None,
    });
    let points = read.filter(|(_, points)| points.nonzero() > 0);
    points.and_then(|(grain, points)| apart(tensor, points, grain)).unwrap_or_else(|| tensor.nonzero())
}

/// How many codes are not their zero point; `None` for codes of more than a byte, and where zero points don't fit.
fn apart(codes: &Tensor, points: &Tensor, grain: Grain) -> Option<usize> {
    let (dtype, shape) = (codes.dtype(), codes.shape());
    if dtype.int_range().is_none() || dtype.bits() > 8 || dtype != points.dtype() || codes.is_empty() {
        return None;
    }
    let [codes, points] = [codes, points].map(|t| unpack(dtype.bits(), t.bytes(), t.len()).collect::<Vec<u8>>());
    if let [point] = points[..] {
        return Some(codes.iter().filter(|code| **code != point).count());
    }
    let axis = axis(grain.axis, shape.len()).ok()?;
    let (size, behind) = (shape[axis], shape[axis + 1..].iter().product());
    let block = usize::try_from(grain.block).ok()?;
    let rows = codes.chunks(behind).enumerate().map(|(row, codes)| match block {
        0 => points.get(row % size).map(|point| codes.iter().filter(|code| *code != point).count()),
        _ => {
            let first = (row / size * size.div_ceil(block) + row % size / block) * behind;
            let points = points.get(first..first + behind)?;
            Some(codes.iter().zip(points).filter(|(code, point)| code != point).count())
        }
    });
    rows.sum()
}

/// Bytes of all files after zstd, which are counted and not kept.
fn zstd_bytes(source: &Source) -> Option<usize> {
    struct Count(usize);
    impl Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let compressed = |f: &SourceFile| {
        let mut to = zstd::Encoder::new(Count(0), 3)?;
        to.set_pledged_src_size(Some(f.bytes().len() as u64))?;
        to.write_all(f.bytes())?;
        Ok(to.finish()?.0)
    };
    if source.len() > MAX_ZSTD {
        return None;
    }
    source.files().iter().map(compressed).sum::<std::io::Result<usize>>().ok()
}

/// The layers of `graph`: operators with a weight, seen through DequantizeLinear and Cast.
pub fn layers(graph: &Graph) -> Vec<(NodeId, LayerFacts)> {
    let Ok(order) = graph.topological() else { return vec![] };
    let layer = |n: NodeId| {
        let slots = weight_slots(graph.op(n));
        let port = graph.operand(n, *slots.first()?)?;
        let constants = slots.into_iter().map(|slot| stored_at(graph, graph.operand(n, slot)?));
        let constants: Vec<NodeId> = constants.collect::<Option<_>>()?;
        let weights: Vec<&Tensor> = constants.iter().filter_map(|c| graph.constant((*c).into())).collect();
        let weight = *weights.first()?;
        let is_code = weight.dtype() == DType::I8;
        let all: usize = weights.iter().map(|w| w.len()).sum();
        let live: usize = constants.iter().map(|c| nonzero_of(graph, *c)).sum();
        // A code may take half a byte.
        let bytes: usize = weights.iter().map(|w| w.bytes().len()).sum();
        let of = |elements: usize| bytes * elements / all.max(1);
        let facts = LayerFacts {
            node: graph.node(n).display_name().into(),
            op: graph.op(n).op_type().into(),
            precision: match graph.op(port.node) {
                Op::Binary(_) if is_code => "int8 weights".into(),
                _ if is_code => "int8".into(),
                _ => weight.dtype().to_string(),
            },
            sparsity: (all - live) as f64 / all.max(1) as f64,
            live_bytes: of(live),
            dead_bytes: of(all - live),
            skips_zeros: None,
            kernel: None,
            deployed: None,
            float_because: None,
            sqnr_db: None,
            macs: graph.macs(n),
        };
        Some((n, facts))
    };
    order.into_iter().filter_map(layer).collect()
}

/// The layers of the graphs inside `graph` (If, Loop, Scan), those with weights from around them too.
pub fn layers_inside(graph: &Graph) -> Vec<LayerFacts> {
    let moved = captured::moved_in(graph).ok().flatten();
    moved.as_ref().unwrap_or(graph).and_bodies().into_iter().skip(1).flat_map(layers).map(|(_, l)| l).collect()
}

/// The layers that our runtime computes in floats, codes or not: those of graphs that repeat, or have such inside.
pub fn layers_in_loops(graph: &Graph) -> Vec<LayerFacts> {
    let repeats = |g: &Graph| g.operators().any(|n| matches!(g.op(n), Op::Loop(_) | Op::Scan(_)));
    let of = |n: NodeId| -> Vec<LayerFacts> {
        let bodies = graph.op(n).bodies().into_iter().map(|b| b.graph());
        let one = |body: &Graph| match graph.op(n) {
            Op::If(_) if !body.and_bodies().into_iter().any(repeats) => layers_in_loops(body),
            _ => all_layers(body),
        };
        bodies.flat_map(one).collect()
    };
    graph.operators().flat_map(of).collect()
}

/// The layers of `graph`, then those of the graphs inside it.
pub fn all_layers(graph: &Graph) -> Vec<LayerFacts> {
    layers(graph).into_iter().map(|(_, l)| l).chain(layers_inside(graph)).collect()
}

/// The constant that a weight is made of.
pub(crate) fn stored(g: &Graph, port: Port) -> Option<&Tensor> {
    g.constant(stored_at(g, port)?.into())
}

fn stored_at(g: &Graph, port: Port) -> Option<NodeId> {
    let port = match g.op(port.node) {
        Op::Dequantize(_) | Op::Cast(_) => g.operand(port.node, 0)?,
        // Codes that are widened and scaled.
        Op::Binary(Binary::Mul) => match g.op(g.operand(port.node, 0)?.node) {
            Op::Cast(_) => {
                g.constant(g.operand(port.node, 1)?)?;
                g.operand(g.operand(port.node, 0)?.node, 0)?
            }
            _ => return None,
        },
        _ => port,
    };
    g.constant(port).map(|_| port.node)
}

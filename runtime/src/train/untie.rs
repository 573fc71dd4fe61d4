//! Constants that are equal by chance, each on its own.
//!
//! Exporters write equal weights once, and copies of them behind Identity: in a model that was never trained all
//! scales of normalisations are 1, and would be one weight. So vectors behind Identity become weights of their own, under
//! the names they had. Matrices and kernels are equal by design: they stay tied, and so do all that several
//! operators read directly. Running statistics are never shared: each belongs to one place.

use compress_compiler::{
    graph::Graph,
    node::{NodeId, Port},
    op::{Op, Operator},
};
use std::collections::HashSet;

/// Where a constant is read that is learnt or moved in training.
struct Read {
    node: NodeId,
    slot: usize,
    /// What is read, and the constant of which that is a copy.
    port: Port,
    constant: Port,
    is_statistic: bool,
}

/// Gives vectors behind Identity, and running statistics that several operators share, constants of their own.
pub(crate) fn untie(graph: &mut Graph) {
    let mut reads = vec![];
    for node in graph.operators() {
        let statistics: &[usize] = if matches!(graph.op(node), Op::BatchNorm(_)) { &[3, 4] } else { &[] };
        for (slot, is_statistic) in
            graph.op(node).parameters().iter().map(|s| (*s, false)).chain(statistics.iter().map(|s| (*s, true)))
        {
            let Some(port) = graph.operand(node, slot) else { continue };
            let mut constant = port;
            while let (Op::Identity(_), Some(source)) = (graph.op(constant.node), graph.operand(constant.node, 0)) {
                constant = source;
            }
            if graph.constant(constant).is_some() {
                reads.push(Read { node, slot, port, constant, is_statistic });
            }
        }
    }
    let mut taken: HashSet<Port> = HashSet::new();
    for r in reads {
        let is_copy = r.port != r.constant;
        let first = taken.insert(r.constant);
        if !is_copy && (first || !r.is_statistic) {
            continue;
        }
        let Some(t) = graph.constant(r.constant).cloned() else { continue };
        if t.shape().len() > 1 {
            graph.set_operand(r.node, r.slot, Some(r.constant));
            continue;
        }
        let name = graph.value(r.port).name.clone();
        if is_copy {
            // The copy goes, and leaves its name.
            graph.set_operand(r.node, r.slot, Some(r.constant));
            let mut copy = r.port.node;
            while matches!(graph.op(copy), Op::Identity(_)) && graph.is_dead(copy) {
                let source = graph.operand(copy, 0);
                graph.remove(copy);
                match source {
                    Some(p) => copy = p.node,
                    None => break,
                }
            }
        }
        let own = graph.add_constant(&name, t);
        graph.set_operand(r.node, r.slot, Some(own.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use compress_compiler::text;

    #[test]
    fn vectors_behind_identity_are_weights_of_their_own() {
        let mut graph = text::parse(
            r#"graph "g" {
                input %x: f32[N,2,4]
                const %one: f32[2] = [1, 1]
                const %zero: f32[2] = [0, 0]
                const %w: f32[4,4] = zeros
                %scale2 = Identity(%one)
                %mean2 = Identity(%zero)
                %w2 = Identity(%w)
                %a = BatchNormalization(%x, %one, %zero, %zero, %one)
                %b = BatchNormalization(%a, %scale2, %zero, %mean2, %one)
                %c = MatMul(%b, %w)
                %y = MatMul(%c, %w2)
                output %y
            }"#,
        )
        .unwrap();
        untie(&mut graph);
        let norms: Vec<NodeId> = graph.operators().filter(|n| matches!(graph.op(*n), Op::BatchNorm(_))).collect();
        let read = |n: NodeId, slot| graph.value(graph.operand(n, slot).unwrap()).name.clone();
        assert_eq!(read(norms[1], 1), "scale2");
        assert_eq!(read(norms[1], 3), "mean2");
        // The shift is read directly by both: it stays shared. The statistics don't.
        assert_eq!(read(norms[0], 2), read(norms[1], 2));
        let statistics: HashSet<String> = norms.iter().flat_map(|n| [read(*n, 3), read(*n, 4)]).collect();
        assert_eq!(statistics.len(), 4, "{statistics:?}");
        let products: Vec<NodeId> = graph.operators().filter(|n| matches!(graph.op(*n), Op::MatMul(_))).collect();
        assert_eq!(read(products[0], 1), "w");
        assert_eq!(read(products[1], 1), "w");
        assert!(!graph.operators().any(|n| matches!(graph.op(n), Op::Identity(_)) && read(n, 0) != "w"));
    }
}

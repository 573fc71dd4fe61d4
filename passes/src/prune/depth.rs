//! Pass "layers": takes whole layers out of a decoder, those in between first (depth pruning; ShortGPT, Men et al. 2024, and
//! the students of DistilGPT2). A layer adds something to what goes through all of them, so the others run without it.

use super::recover::train;
use compress_compiler::{
    error::{Error, Result},
    forms::decoder::Decoder,
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
    pass::{Context, Outcome, Pass},
    rewrite::remove_dead,
    words::{counted, option::KEEP_LAYERS},
};
use petgraph::{
    algo::dominators::{Dominators, simple_fast},
    graph::{DiGraph, NodeIndex},
};
use std::collections::{BTreeMap, HashMap, HashSet};

/// The pass "layers".
#[derive(Debug)]
pub struct KeepLayers {
    /// How many layers stay.
    pub keep: usize,
    /// Whether the model is trained then, and whether it must be.
    pub train: Option<bool>,
    /// Whether a later pass trains it.
    pub followed: bool,
}

impl Pass for KeepLayers {
    fn name(&self) -> &'static str {
        "layers"
    }

    fn is_exact(&self) -> bool {
        false
    }

    fn run(&self, g: &mut Graph, cx: &Context) -> Result<Outcome> {
        let mut out = Outcome::default();
        let layers = layers(g)?;
        let all = layers.len().max(1);
        if self.keep >= all {
            out.warnings.push(format!(
                "asked for {KEEP_LAYERS} {}: the model has {}",
                self.keep,
                counted(all, "layer")
            ));
            return Ok(out);
        }
        let kept = spread(all, self.keep);
        out.edits = all - kept.len();
        remove(g, &layers, &kept)?;
        let numbers: Vec<String> = kept.iter().map(ToString::to_string).collect();
        out.warnings.push(format!("of {all} layers these are left, counted from 0: {}", numbers.join(", ")));
        if let Some(must) = self.train.filter(|_| !self.followed) {
            out.add(train(g, (self.name(), 1.0), vec![], None, must, cx)?);
        }
        Ok(out)
    }
}

/// How many layers a decoder has.
///
/// # Errors
/// Unsupported for a model whose layers can't be told apart.
pub fn count(g: &Graph) -> Result<usize> {
    layers(g).map(|layers| layers.len().max(1))
}

/// `keep` of `all` layers, the first and the last among them, the others as evenly between as can be.
fn spread(all: usize, keep: usize) -> Vec<usize> {
    match keep {
        0 | 1 => vec![0],
        _ => (0..keep).map(|i| (i * (all - 1) + (keep - 1) / 2) / (keep - 1)).collect(),
    }
}

/// A layer: it changes what goes through all of them.
struct Layer {
    /// What goes in, and comes out.
    ends: [Port; 2],
    /// Its places in [`Decoder::caches`].
    caches: Vec<usize>,
}

/// The layers of a decoder, the first first; none of one that has but one.
///
/// # Errors
/// Unsupported for a model whose layers can't be told apart.
fn layers(g: &Graph) -> Result<Vec<Layer>> {
    let cannot = |why: &str| Error::unsupported(format!("{KEEP_LAYERS}: {why}"));
    let decoder = Decoder::of(g).ok_or_else(|| cannot("the model is not a decoder with a cache"))?;
    let Some(scores) = decoder.scores.and_then(|place| g.outputs().get(place)) else {
        return Err(cannot("the model's scores of next tokens (logits) were not found"));
    };
    if decoder.caches.iter().any(|cache| cache.once || cache.output.is_none()) {
        return Err(cannot("its layers read an encoder, or parts of the cache don't come out"));
    }
    let stream = Stream::of(g, decoder.tokens, scores.port.node);
    let stream = stream.ok_or_else(|| cannot("no value goes from its tokens through all layers to its scores"))?;
    let mut found: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (i, cache) in decoder.caches.iter().enumerate() {
        let into = stream.reader(g, cache.input).ok_or_else(|| {
            cannot(&format!("no layer reads `{}` beside what goes through the model", g.value(cache.input.into()).name))
        })?;
        found.entry(into).or_default().push(i);
    }
    let starts: Vec<usize> = found.keys().copied().collect();
    let [first, .., last] = &starts[..] else { return Ok(vec![]) };
    let step = starts[1] - first;
    let uneven = starts.windows(2).any(|w| w[1] - w[0] != step);
    let end = stream.nodes.get(last + step).ok_or_else(|| cannot("its layers are of several kinds"))?;
    // What the last layer makes is made as what the others make.
    let made = |n: NodeId| std::mem::discriminant(g.op(n));
    if uneven
        || made(*end) != made(stream.nodes[starts[1]])
        || found.values().any(|caches| caches.len() != found[first].len())
    {
        return Err(cannot("its layers are of several kinds"));
    }
    let layer = |(into, caches)| Layer { ends: [into, into + step].map(|i: usize| stream.nodes[i].into()), caches };
    Ok(found.into_iter().map(layer).collect())
}

/// The values that all goes through on its way from the tokens to the scores.
struct Stream {
    /// The nodes that make them, in order.
    nodes: Vec<NodeId>,
    flow: DiGraph<NodeId, ()>,
    places: HashMap<NodeId, NodeIndex>,
    dominators: Dominators<NodeIndex>,
}

impl Stream {
    fn of(g: &Graph, tokens: NodeId, scores: NodeId) -> Option<Self> {
        let mut flow = DiGraph::new();
        let places: HashMap<NodeId, NodeIndex> = g.ids().map(|n| (n, flow.add_node(n))).collect();
        for node in g.operators() {
            for port in g.operands(node).into_iter().flatten().filter(|port| is_float(g, *port)) {
                flow.add_edge(places[&port.node], places[&node], ());
            }
        }
        let dominators = simple_fast(&flow, *places.get(&embedding(g, tokens)?)?);
        let mut nodes: Vec<NodeId> = dominators.dominators(*places.get(&scores)?)?.map(|n| flow[n]).collect();
        nodes.reverse();
        Some(Self { nodes, flow, places, dominators })
    }

    /// The place of the value that goes into the layer that reads a cache.
    fn reader(&self, g: &Graph, cache: NodeId) -> Option<usize> {
        let (mut open, mut seen) = (vec![cache], HashSet::new());
        let mut found = None;
        while let Some(node) = open.pop() {
            for reader in g.uses(node.into()).into_iter().map(|u| u.node).filter(|reader| seen.insert(*reader)) {
                match self.before(reader) {
                    Some(place) => found = Some(found.map_or(place, |other: usize| other.min(place))),
                    None if is_float(g, reader.into()) => open.push(reader),
                    None => {}
                }
            }
        }
        found
    }

    /// The place of the last of its values that all goes through on its way to `node`.
    fn before(&self, node: NodeId) -> Option<usize> {
        let place = |n| self.nodes.iter().position(|node| *node == self.flow[n]);
        self.dominators.strict_dominators(*self.places.get(&node)?)?.find_map(place)
    }
}

fn is_float(g: &Graph, port: Port) -> bool {
    g.fact(port).dtype.is_some_and(|d| d.is_float())
}

/// The node that makes vectors of tokens.
fn embedding(g: &Graph, tokens: NodeId) -> Option<NodeId> {
    let mut open = vec![Port::from(tokens)];
    while let Some(port) = open.pop() {
        for reader in g.uses(port) {
            match g.op(reader.node) {
                Op::Gather(_) if reader.slot == 1 && is_float(g, reader.node.into()) => return Some(reader.node),
                Op::Cast(_) | Op::Identity(_) | Op::Reshape(_) if reader.slot == 0 => open.push(reader.node.into()),
                _ => {}
            }
        }
    }
    None
}

/// Takes all layers but `kept` out, and numbers the caches of these anew.
fn remove(g: &mut Graph, layers: &[Layer], kept: &[usize]) -> Result<()> {
    let decoder = Decoder::of(g).ok_or_else(|| Error::bug("a decoder that was one before"))?;
    // From behind: what a layer reads may be what one before it makes.
    for (_, layer) in layers.iter().enumerate().rev().filter(|(i, _)| !kept.contains(i)) {
        let [into, out] = layer.ends;
        g.redirect(out, into, &[]);
    }
    let (caches, outputs) = (&decoder.caches, g.outputs().to_vec());
    g.remove_outputs();
    for (place, output) in outputs.iter().enumerate() {
        let of = layers.iter().position(|layer| layer.caches.iter().any(|i| caches[*i].output == Some(place)));
        let number = of.map(|layer| kept.iter().position(|i| *i == layer));
        match number {
            None => g.add_output(&output.name, output.port),
            Some(Some(number)) => g.add_output(&numbered(&output.name, number), output.port),
            Some(None) => {}
        }
    }
    for node in g.topological()?.into_iter().rev() {
        remove_dead(g, node);
    }
    for (i, layer) in layers.iter().enumerate() {
        let number = kept.iter().position(|kept| *kept == i);
        for input in layer.caches.iter().map(|i| caches[*i].input) {
            let name = g.value(input.into()).name.clone();
            match number {
                Some(number) => g.rename(input.into(), &numbered(&name, number))?,
                None if g.is_read(input.into()) => {
                    let what = format!("{KEEP_LAYERS}: others than its layer read `{name}`");
                    return Err(Error::unsupported(what).help("keep another number of layers"));
                }
                None => g.remove_input(input),
            }
        }
    }
    for output in g
        .outputs()
        .to_vec()
        .iter()
        .filter(|output| outputs.iter().all(|old| old.name != output.name || old.port != output.port))
    {
        if !matches!(g.op(output.port.node), Op::Input(_)) {
            g.rename(output.port, &output.name)?;
        }
    }
    g.infer_all()
}

/// The name of a cache with the number of its layer, which is the last in it.
fn numbered(name: &str, number: usize) -> String {
    let digit = |c: char| c.is_ascii_digit();
    let Some(to) = name.rfind(digit).map(|last| last + 1) else { return name.into() };
    let from = name[..to].rfind(|c| !digit(c)).map_or(0, |before| before + 1);
    format!("{}{number}{}", &name[..from], &name[to..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_spread_from_the_first_to_the_last() {
        assert_eq!(spread(12, 6), [0, 2, 4, 7, 9, 11]);
        assert_eq!(spread(4, 3), [0, 2, 3]);
        assert_eq!(spread(4, 2), [0, 3]);
        assert_eq!(spread(4, 1), [0]);
        for all in 2..40 {
            for keep in 1..all {
                let kept = spread(all, keep);
                assert!(
                    kept.len() == keep && kept.is_sorted_by(|a, b| a < b) && kept[keep - 1] < all,
                    "{keep} of {all}"
                );
            }
        }
    }

    #[test]
    fn caches_are_numbered_anew() {
        assert_eq!(numbered("past_key_values.11.key", 3), "past_key_values.3.key");
        assert_eq!(numbered("present_0", 1), "present_1");
        assert_eq!(numbered("past_key_values_v2.12.key", 1), "past_key_values_v2.1.key");
        assert_eq!(numbered("present", 1), "present");
    }
}

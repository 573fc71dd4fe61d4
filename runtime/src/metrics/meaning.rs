//! What the outputs of a model are, read from its graph: a metric means something only on outputs that it is made for.

use compress_compiler::{
    forms::decoder::Decoder,
    graph::Graph,
    node::{NodeId, Output, Port},
    op::{Op, Operator},
    ops::{binary::Binary, reduce::ReduceKind, source::fed, unary::Unary},
    tensor::DType,
    value::Dim,
};
use std::fmt;

/// What an output holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// A score for each class, a row for each sample.
    Classes,
    /// A probability of something, or several of them: a half decides.
    Flags,
    /// Numbers of classes.
    Labels,
    /// A score for each class at each position of a sample.
    Positions,
    /// A score for each character, or none, at each step (CTC, Graves et al. 2006).
    Text,
    /// Which class each point of a picture has, or whether it belongs to the object.
    Mask,
    /// A vector for each sample, whose direction counts.
    Embedding,
    /// A vector for each token.
    Tokens,
    /// A score for each token of a vocabulary at each token of a sequence: which one comes next.
    NextToken,
    /// Numbers of which no more is known: coordinates, anchors, signals.
    Values,
}

impl fmt::Display for Meaning {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Meaning::Classes => "class scores",
            Meaning::Flags => "probabilities",
            Meaning::Labels => "class numbers",
            Meaning::Positions => "class scores at each position",
            Meaning::Text => "text, as CTC writes it",
            Meaning::Mask => "a mask",
            Meaning::Embedding => "an embedding",
            Meaning::Tokens => "an embedding of each token",
            Meaning::NextToken => "scores of the next token",
            Meaning::Values => "values",
        })
    }
}

/// An output, and what it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Its name.
    pub name: String,
    /// What it holds.
    pub meaning: Meaning,
    /// Of each axis the size that the model declares, unless that is open.
    pub declared: Vec<Option<i64>>,
    /// Whether it may hold values of two kinds: floats of which no more is known, joined by Concat.
    pub may_mix: bool,
}

/// The outputs of a model, and the input that says which tokens count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answers {
    /// Each output, in order.
    pub outputs: Vec<Answer>,
    /// The place of the attention mask among the inputs without a default.
    pub mask: Option<usize>,
    /// The place of the numbers of tokens among these inputs.
    pub tokens: Option<usize>,
}

impl Answers {
    /// What the outputs of `graph` hold, as far as the operators that make them, their shapes and their names tell.
    pub fn of(graph: &Graph) -> Self {
        let mask = fed(graph).map(|n| graph.value(Port::from(n))).position(|v| {
            let whole = v.fact.dtype.is_some_and(|d| !d.is_float());
            whole && v.fact.rank() == Some(2) && v.name.to_lowercase().contains("mask")
        });
        let looked = Look { graph, reads_text: reads_text(graph) };
        let tokens = fed(graph).map(|n| graph.value(Port::from(n))).position(|v| {
            let counts = matches!(v.fact.dtype, Some(DType::I64 | DType::I32));
            counts && v.fact.rank() == Some(2) && v.name.contains("input_ids")
        });
        let scores = Decoder::of(graph).and_then(|decoder| decoder.scores);
        let declared = |o: &Output| graph.fact(o.port).dims().unwrap_or_default().iter().map(Dim::known).collect();
        let answer = |(place, o): (usize, &Output)| {
            let meaning = match scores {
                Some(scores) if scores == place => Meaning::NextToken,
                Some(_) => Meaning::Values,
                None => looked.meaning(o),
            };
            let is_float = graph.fact(o.port).dtype.is_none_or(|d| d.is_float());
            let may_mix = meaning == Meaning::Values && is_float && looked.is_joined(o.port);
            Answer { name: o.name.clone(), meaning, declared: declared(o), may_mix }
        };
        Self { outputs: graph.outputs().iter().enumerate().map(answer).collect(), mask, tokens }
    }

    /// The answers of `graph` that `other` gives too, and the places of these among the outputs of both: all of them, but where
    /// one of two decoders has fewer layers, and so fewer caches. A cache is not an answer.
    pub fn shared(graph: &Graph, other: &Graph) -> (Self, [Vec<usize>; 2]) {
        let mut all = Self::of(graph);
        let places = [graph, other].map(|g| match graph.outputs().len() == other.outputs().len() {
            true => (0..g.outputs().len()).collect(),
            false => Decoder::answers(g),
        });
        all.outputs = places[0].iter().map(|place| all.outputs[*place].clone()).collect();
        (all, places)
    }
}

/// Whether the model is given numbers of words or of characters.
fn reads_text(graph: &Graph) -> bool {
    graph.inputs().iter().map(|n| graph.fact((*n).into())).any(|f| {
        let whole = f.dtype.is_some_and(|d| !d.is_float());
        whole && f.rank() == Some(2)
    })
}

/// What a name says of what it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hint {
    Embedding,
    Coordinates,
    Classes,
    None,
}

impl Hint {
    fn of(name: &str) -> Self {
        let name = name.to_lowercase();
        let says = |words: &[&str]| words.iter().any(|w| name.contains(w));
        if says(&["box", "loc", "landmark", "point", "kps", "coord", "pose", "offset", "delta", "anchor"]) {
            Hint::Coordinates
        } else if says(&["embed", "feature", "pooler", "sentence", "hidden", "repr", "vector"]) {
            Hint::Embedding
        } else if says(&["logit", "prob", "class", "label"]) {
            Hint::Classes
        } else {
            Hint::None
        }
    }
}

/// Widths of vectors that embeddings have, and numbers of classes seldom: multiples of 64 from 128 on.
fn is_embedding_width(width: Option<i64>) -> bool {
    width.is_some_and(|w| w >= 128 && w % 64 == 0)
}

/// The fewest characters of an alphabet: maps of anchors have fewer classes.
const ALPHABET: i64 = 20;

struct Look<'a> {
    graph: &'a Graph,
    reads_text: bool,
}

impl Look<'_> {
    fn meaning(&self, output: &Output) -> Meaning {
        let fact = self.graph.fact(output.port);
        let Some(dims) = fact.dims() else { return Meaning::Values };
        let made = self.maker(output.port);
        let op = self.graph.op(made.node);
        if fact.dtype.is_some_and(|d| !d.is_float()) {
            return if matches!(op, Op::Arg(_)) { Meaning::Labels } else { Meaning::Values };
        }
        let hint = Hint::of(&output.name);
        if hint == Hint::Coordinates || matches!(op, Op::TopK(_)) {
            return Meaning::Values;
        }
        let wide = dims.iter().skip(1).filter(|d| **d != Dim::Known(1)).count();
        match (dims.len(), wide) {
            // `[T, 1, C]`: the steps of one sample come first.
            (3, 1) if dims[1] == Dim::Known(1) && dims[0] != Dim::Known(1) && !self.is_batch(&dims[0]) => {
                self.steps(output, dims, made, hint)
            }
            (0 | 1, _) => Meaning::Values,
            (_, 0) if is_sigmoid(op) => Meaning::Flags,
            (_, 0) => Meaning::Values,
            (_, 1) => {
                let width = dims.iter().skip(1).find(|d| **d != Dim::Known(1)).and_then(Dim::known);
                self.vector(width, made, hint)
            }
            (3, 2) => self.steps(output, dims, made, hint),
            (4, _) => self.picture(dims, made),
            _ => Meaning::Values,
        }
    }

    /// What makes a value, behind what only moves its elements.
    fn maker(&self, mut port: Port) -> Port {
        loop {
            let op = self.graph.op(port.node);
            let moves = matches!(
                op,
                Op::Identity(_)
                    | Op::Cast(_)
                    | Op::Dropout(_)
                    | Op::Reshape(_)
                    | Op::Flatten(_)
                    | Op::Squeeze(_)
                    | Op::Unsqueeze(_)
                    | Op::Transpose(_)
                    | Op::Quantize(_)
                    | Op::Dequantize(_)
            );
            match self.graph.operand(port.node, 0) {
                Some(from) if moves => port = from,
                _ => return port,
            }
        }
    }

    /// Whether a value is made of several, side by side.
    fn is_joined(&self, port: Port) -> bool {
        matches!(self.graph.op(self.maker(port).node), Op::Concat(_))
    }

    /// Whether an axis is the first of an input.
    fn is_batch(&self, axis: &Dim) -> bool {
        let first = |n: &NodeId| self.graph.fact((*n).into()).dims()?.first();
        self.graph.inputs().iter().filter_map(first).any(|d| d.same(axis))
    }

    /// `[N, C]`.
    fn vector(&self, width: Option<i64>, made: Port, hint: Hint) -> Meaning {
        let ambiguous = match hint {
            Hint::Embedding => Meaning::Embedding,
            Hint::Classes => Meaning::Classes,
            _ if is_embedding_width(width) => Meaning::Embedding,
            _ => Meaning::Classes,
        };
        match self.graph.op(made.node) {
            Op::Softmax(_) => Meaning::Classes,
            op if is_sigmoid(op) => Meaning::Flags,
            Op::LpNorm(_) | Op::LayerNorm(_) | Op::RmsNorm(_) | Op::Unary(Unary::Tanh) => Meaning::Embedding,
            Op::Binary(Binary::Div) if self.is_norm(made) => Meaning::Embedding,
            Op::BatchNorm(_) if hint != Hint::Classes => Meaning::Embedding,
            // Scores that are averaged over a picture, or features.
            Op::GlobalPool(_) | Op::Reduce(_) => match self.graph.operand(made.node, 0).map(|p| self.behind_relu(p)) {
                Some(Op::Conv(_)) => ambiguous,
                _ => Meaning::Embedding,
            },
            // The first token of a text stands for all of it.
            Op::Gather(_) | Op::Slice(_) if self.reads_text => Meaning::Embedding,
            Op::Gemm(_) | Op::MatMul(_) | Op::Conv(_) => ambiguous,
            Op::Binary(Binary::Add) if self.adds_to_product(made) => ambiguous,
            // Voices of several classifiers, distances, and whatever else is called so.
            _ if hint == Hint::Classes => Meaning::Classes,
            _ if hint == Hint::Embedding => Meaning::Embedding,
            _ => Meaning::Values,
        }
    }

    /// `[N, T, C]` or `[T, 1, C]`.
    fn steps(&self, output: &Output, dims: &[Dim], made: Port, hint: Hint) -> Meaning {
        let op = self.graph.op(made.node);
        let wide = dims[2].known().is_some_and(|c| c >= ALPHABET);
        match op {
            _ if self.has_boxes(output, dims) => Meaning::Values,
            Op::Softmax(_) if self.reads_text => Meaning::Positions,
            Op::Softmax(_) if wide => Meaning::Text,
            Op::LayerNorm(_) | Op::RmsNorm(_) => Meaning::Tokens,
            _ if self.reads_text && hint == Hint::Embedding => Meaning::Tokens,
            Op::MatMul(_) | Op::Gemm(_) | Op::Binary(Binary::Add) if self.reads_text => Meaning::Positions,
            // A recogniser of speech that reads a wave.
            Op::Binary(Binary::Add) if wide && self.reads_wave() && self.adds_to_product(made) => Meaning::Text,
            _ => Meaning::Values,
        }
    }

    /// `[N, C, H, W]`.
    fn picture(&self, dims: &[Dim], made: Port) -> Meaning {
        let channels = dims[1].known();
        match self.graph.op(made.node) {
            op if is_sigmoid(op) && channels == Some(1) => Meaning::Mask,
            Op::Softmax(s) if matches!(s.axis, 1 | -3) => Meaning::Mask,
            Op::Resize(_) if channels.is_some_and(|c| c > 1 && c != 3) => Meaning::Mask,
            Op::Conv(_) | Op::ConvTranspose(_)
                if channels.is_some_and(|c| c > 1 && c != 3) && self.is_input_size(dims) =>
            {
                Meaning::Mask
            }
            _ => Meaning::Values,
        }
    }

    fn is_input_size(&self, dims: &[Dim]) -> bool {
        let alike = |n: &NodeId| {
            let input = self.graph.fact((*n).into()).dims();
            input.is_some_and(|i| i.len() == 4 && i[2].same(&dims[2]) && i[3].same(&dims[3]))
        };
        self.graph.inputs().iter().any(alike)
    }

    /// Whether another output has four numbers for each of these positions, as detectors do for each anchor.
    fn has_boxes(&self, output: &Output, dims: &[Dim]) -> bool {
        let others = self.graph.outputs().iter().filter(|o| o.name != output.name);
        others.filter_map(|o| self.graph.fact(o.port).dims()).any(|other| {
            other.len() == 3 && other[2] == Dim::Known(4) && (other[1] == dims[1] || dims[1].known().is_none())
        })
    }

    fn reads_wave(&self) -> bool {
        let wave = |n: &NodeId| {
            let f = self.graph.fact((*n).into());
            f.dtype.is_some_and(|d| d.is_float()) && f.rank() == Some(2)
        };
        self.graph.inputs().iter().any(wave)
    }

    /// What makes a value, behind a rectifier.
    fn behind_relu(&self, port: Port) -> &Op {
        match self.graph.op(port.node) {
            Op::Unary(Unary::Relu) => {
                self.graph.operand(port.node, 0).map_or(self.graph.op(port.node), |p| self.graph.op(p.node))
            }
            op => op,
        }
    }

    /// Whether a sum is that of a product with a weight and a bias.
    fn adds_to_product(&self, sum: Port) -> bool {
        let operands = self.graph.operands(sum.node);
        operands.into_iter().flatten().any(|p| self.graph.op(self.maker(p).node).weight().is_some())
    }

    /// Whether a quotient is a vector over its length, or a sum over tokens divided by their number.
    fn is_norm(&self, quotient: Port) -> bool {
        let Some(mut by) = self.graph.operand(quotient.node, 1) else { return false };
        for _ in 0..6 {
            match self.graph.op(by.node) {
                Op::Reduce(r) => return matches!(r.kind, ReduceKind::L2 | ReduceKind::Sum | ReduceKind::SumSquare),
                Op::Clip(_)
                | Op::Expand(_)
                | Op::Unary(Unary::Sqrt)
                | Op::Binary(_)
                | Op::Variadic(_)
                | Op::Cast(_) => match self.graph.operand(by.node, 0) {
                    Some(from) => by = from,
                    None => return false,
                },
                _ => return false,
            }
        }
        false
    }
}

fn is_sigmoid(op: &Op) -> bool {
    matches!(op, Op::Unary(Unary::Sigmoid))
}

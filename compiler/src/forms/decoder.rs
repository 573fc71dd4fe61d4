//! Decoders with a cache of keys and values, as Hugging Face's exporters write them: numbers of tokens go in, scores of the
//! token that follows each come out, and every `past_key_values.N.key` that goes in comes out as `present.N.key`, longer by
//! the tokens of this run.

use crate::{
    error::{Error, Result},
    graph::Graph,
    node::{NodeId, Output, Port},
    op::Op,
    ops::source::given,
    tensor::{DType, Tensor},
    value::{Dim, Fact},
};
use std::{collections::HashMap, sync::Arc};

/// A value that goes in as it came out of the run before.
#[derive(Debug, Clone, PartialEq)]
pub struct Cache {
    /// The input.
    pub input: NodeId,
    /// The place of its successor among the outputs; none in a part of a decoder.
    pub output: Option<usize>,
    /// Whether it is of what the decoder is told once, in its first run: of an encoder's outputs.
    pub once: bool,
    dtype: DType,
    /// Its sizes without tokens and batch, which are 0.
    dims: Vec<usize>,
    /// The axis that counts tokens.
    axis: usize,
    /// What the size along it is called, if it is of what the decoder is told once: as many as the encoder made.
    length: Option<Arc<str>>,
}

/// Bytes of one cache at most. The sizes of heads are the file's, and nothing else bounds them.
const LARGEST_CACHE: usize = 1 << 31;

/// The sizes that stand for names in the shapes of a decoder's inputs.
pub type NamedSizes = HashMap<Arc<str>, usize>;

impl Cache {
    /// How many tokens `value`, a value of this cache, is of.
    pub fn tokens(&self, value: &Tensor) -> Option<usize> {
        value.shape().get(self.axis).copied()
    }

    /// What `value`, a value of this cache, was before the tokens from number `tokens` on: all of it where there are no more.
    ///
    /// # Errors
    /// Data for a value of another rank; limit.
    pub fn shortened(&self, value: &Tensor, tokens: usize) -> Result<Tensor> {
        let shape = value.shape();
        let before = shape.get(..self.axis).ok_or_else(|| Error::data("a cache without an axis of tokens"))?;
        let Some(long) = shape.get(self.axis).copied().filter(|long| *long > tokens) else { return Ok(value.clone()) };
        let rows: usize = before.iter().product();
        let size = value.bytes().len().checked_div(rows * long).unwrap_or(0);
        let kept = |row: usize| &value.bytes()[row * long * size..][..tokens * size];
        let kept = (0..rows).map(kept).collect::<Vec<_>>().concat();
        let mut dims = shape.to_vec();
        dims[self.axis] = tokens;
        Tensor::new(value.dtype(), dims, kept)
    }
}

/// An input that follows from how many tokens there were and are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// Ones for all tokens so far, `[batch, all]`.
    Mask,
    /// The places of the tokens of this run, `[batch, tokens]`, or `[tokens]`.
    Positions {
        /// Whether each sample has its own.
        of_each: bool,
    },
    /// Whether there were tokens before, `[1]`: decoders of two branches in one file ask for it.
    HasPast,
}

/// What makes a graph a decoder with a cache.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoder {
    /// Where the numbers of tokens go in.
    pub tokens: NodeId,
    /// The place of the scores among the outputs; none in a part of a decoder.
    pub scores: Option<usize>,
    /// The cache.
    pub caches: Vec<Cache>,
    /// Inputs that are told how far it has come, with their types.
    pub told: Vec<(NodeId, Told, DType)>,
}

/// Whether an input of this name is a cache.
fn is_cache(name: &str) -> bool {
    let ends = |ends: &str| name.ends_with(&format!(".{ends}")) || name.ends_with(&format!("_{ends}"));
    name.contains("past_key") || name.contains("past") && (ends("key") || ends("value"))
}

/// How many rows the table has of which the numbers in `input` choose some.
pub fn rows_read(graph: &Graph, input: NodeId) -> Option<i64> {
    let mut open = vec![Port::from(input)];
    while let Some(port) = open.pop() {
        for reader in graph.uses(port) {
            match graph.op(reader.node) {
                Op::Cast(_) | Op::Identity(_) | Op::Reshape(_) if reader.slot == 0 => open.push(reader.node.into()),
                Op::Gather(g) if reader.slot == 1 && g.axis == 0 => {
                    let table = graph.operand(reader.node, 0).map(|t| graph.fact(t));
                    if let Some(rows) = table.and_then(|t| t.dims()?.first()?.known()).filter(|rows| *rows > 1) {
                        return Some(rows);
                    }
                }
                _ => {}
            }
        }
    }
    None
}

/// How the sizes of some inputs are called.
#[derive(Debug, Clone, PartialEq)]
pub struct SizeNames(Vec<Vec<Option<Arc<str>>>>);

impl SizeNames {
    /// Those of `inputs` of `graph`.
    pub fn of(graph: &Graph, inputs: impl Iterator<Item = NodeId>) -> Self {
        let name = |dim: &Dim| match dim {
            Dim::Sym(name) => Some(name.clone()),
            _ => None,
        };
        let names = |input: NodeId| graph.fact(input.into()).dims().unwrap_or_default().iter().map(name).collect();
        Self(inputs.map(names).collect())
    }

    /// What they stand for where the inputs have these shapes.
    pub fn sizes<'s>(&self, shapes: impl Iterator<Item = &'s [usize]>) -> NamedSizes {
        let named = self.0.iter().zip(shapes).flat_map(|(names, shape)| names.iter().zip(shape));
        named.filter_map(|(name, size)| Some((name.clone()?, *size))).collect()
    }
}

/// The names that the output may have that is the successor of the input `past`.
fn successors(past: &str) -> [String; 3] {
    [
        past.replace("past_key_values", "present"),
        past.replace("past_key_values", "present_key_values"),
        past.replace("past", "present"),
    ]
}

impl Decoder {
    /// What makes `graph` one, if it is one whose inputs are all known.
    pub fn of(graph: &Graph) -> Option<Self> {
        let name = |n: NodeId| &graph.value(n.into()).name[..];
        let inputs: Vec<NodeId> = given(graph).collect();
        let tokens = inputs.iter().copied().find(|n| {
            let fact = graph.fact((*n).into());
            matches!(name(*n), "input_ids" | "decoder_input_ids")
                && matches!(fact.dtype, Some(DType::I64 | DType::I32))
                && fact.rank() == Some(2)
        })?;
        let (mut caches, mut told) = (vec![], vec![]);
        for input in inputs.into_iter().filter(|n| *n != tokens && is_cache(name(*n))) {
            let place = |names: &[String]| graph.outputs().iter().position(|o| names.contains(&o.name));
            let (output, fact) = (place(&successors(name(input))), graph.fact(input.into()));
            let dims = fact.dims()?;
            // The first axis counts samples, another tokens.
            let mut open = (1..dims.len()).filter(|i| dims[*i].known().is_none());
            let size = |d: &Dim| usize::try_from(d.known().unwrap_or(0)).ok();
            let sizes = dims.iter().map(size).collect::<Option<_>>()?;
            let (axis, counted) = (open.next()?, dims.len() == 4 && open.next().is_none());
            let dtype = fact.dtype.filter(|d| d.is_float() && counted)?;
            let once = name(input).contains(".encoder.");
            let length = match &dims[axis] {
                Dim::Sym(name) if once => Some(name.clone()),
                _ => None,
            };
            caches.push(Cache { input, output, once, dtype, dims: sizes, axis, length });
        }
        for input in given(graph).filter(|n| *n != tokens && !is_cache(name(*n))) {
            let fact = graph.fact(input.into());
            let counts = |d: &DType| matches!(d, DType::I64 | DType::I32 | DType::Bool);
            let (dtype, rank) = (fact.dtype.filter(counts), fact.rank()?);
            let kind = match (name(input), rank) {
                ("attention_mask" | "decoder_attention_mask", 2) => Told::Mask,
                ("position_ids", 2) => Told::Positions { of_each: true },
                ("cache_position" | "position_ids", 1) => Told::Positions { of_each: false },
                ("use_cache_branch", _) => Told::HasPast,
                // It is for the caller, and the same in every run.
                _ => continue,
            };
            told.push((input, kind, dtype?));
        }
        // Some give those of the last token alone, which say nothing of the others.
        let is_score = |o: &Output| {
            let fact = graph.fact(o.port);
            let of_all = fact.dims().is_some_and(|dims| dims.len() == 3 && dims[1].known() != Some(1));
            of_all && fact.dtype.is_none_or(|d| d.is_float())
        };
        let words = rows_read(graph, tokens);
        let is_wide =
            |o: &Output| words.is_some() && graph.fact(o.port).dims().and_then(|dims| dims.last()?.known()) == words;
        let first = |of: &dyn Fn(&Output) -> bool| graph.outputs().iter().position(|o| is_score(o) && of(o));
        let scores = first(&|o| o.name == "logits").or_else(|| first(&is_wide));
        (!caches.is_empty()).then_some(Self { tokens, scores, caches, told })
    }

    /// Takes the outputs of the cache away from a decoder: what is left is shown whole sequences at once.
    pub fn forget(graph: &mut Graph) {
        let (places, outputs) = (Self::answers(graph), graph.outputs().to_vec());
        graph.remove_outputs();
        for place in places {
            graph.add_output(&outputs[place].name, outputs[place].port);
        }
    }

    /// The places of the outputs of `graph` that are not caches.
    pub fn answers(graph: &Graph) -> Vec<usize> {
        let caches = Self::of(graph).map(|decoder| decoder.caches).unwrap_or_default();
        (0..graph.outputs().len()).filter(|place| caches.iter().all(|c| c.output != Some(*place))).collect()
    }

    /// Whether an input follows from the runs before.
    pub fn makes(&self, input: NodeId) -> bool {
        self.caches.iter().any(|c| c.input == input) || self.told.iter().any(|t| t.0 == input)
    }

    /// The cache before the first token, for `batch` samples. What it is going to be told once has the size that it will have, if
    /// `sizes` tell: its first run doesn't read it.
    ///
    /// # Errors
    /// Limit.
    pub fn empty(&self, batch: usize, sizes: &NamedSizes) -> Result<Vec<Tensor>> {
        let mut made: Vec<Tensor> = Vec::with_capacity(self.caches.len());
        for cache in &self.caches {
            let mut dims = cache.dims.clone();
            dims[0] = batch;
            dims[cache.axis] = cache.length.as_ref().and_then(|name| sizes.get(name)).copied().unwrap_or(0);
            // Those of all layers are alike, and take the room of one.
            let same = made.iter().find(|t| t.dtype() == cache.dtype && t.shape() == dims).cloned();
            made.push(match same {
                Some(same) => same,
                None => {
                    let bytes = cache.dtype.bytes(&dims).filter(|bytes| *bytes <= LARGEST_CACHE);
                    let bytes = bytes.ok_or_else(|| Error::limit(format!("a cache of sizes {dims:?} is too large")))?;
                    Tensor::new(cache.dtype, dims, vec![0; bytes])?
                }
            });
        }
        Ok(made)
    }

    /// What the inputs in [`Decoder::told`] are in a run of `tokens` tokens of `batch` samples, after `past` others.
    pub fn tell(&self, batch: usize, past: usize, tokens: usize) -> Vec<Tensor> {
        let of = |(_, kind, dtype): &(NodeId, Told, DType)| {
            let places: Vec<i64> = (past..past + tokens).map(|i| i as i64).collect();
            let (dims, values) = match kind {
                Told::Mask => (vec![batch, past + tokens], vec![1; batch * (past + tokens)]),
                Told::Positions { of_each: true } => (vec![batch, tokens], places.repeat(batch)),
                Told::Positions { of_each: false } => (vec![tokens], places),
                Told::HasPast => (vec![1], vec![i64::from(past > 0)]),
            };
            Tensor::ints(*dtype, &dims, &values)
        };
        self.told.iter().map(of).collect()
    }

    /// What is known of the inputs that `graph` makes itself, if it is a decoder, in a first run on tokens of which `known` is
    /// known among others.
    pub fn facts_beside(graph: &Graph, known: &[(NodeId, Fact)]) -> Vec<(NodeId, Fact)> {
        let Some(decoder) = Self::of(graph) else { return vec![] };
        let shape = known.iter().find(|(n, _)| *n == decoder.tokens).and_then(|(_, fact)| fact.fixed());
        let given: Vec<(NodeId, Vec<usize>)> = known.iter().filter_map(|(n, fact)| Some((*n, fact.fixed()?))).collect();
        let names = SizeNames::of(graph, given.iter().map(|(n, _)| *n));
        let sizes = names.sizes(given.iter().map(|(_, shape)| &shape[..]));
        let made = shape.and_then(|shape| decoder.beside(&shape, &sizes).ok()).unwrap_or_default();
        let fact = |t: &Tensor| Fact::new(Some(t.dtype()), Fact::of(t).shape);
        made.into_iter().map(|(n, t)| (n, fact(&t))).collect()
    }

    /// The inputs that it makes itself in a first run on tokens of this shape, `[batch, tokens]`.
    ///
    /// # Errors
    /// Data for another shape; limit.
    pub fn beside(&self, shape: &[usize], sizes: &NamedSizes) -> Result<Vec<(NodeId, Tensor)>> {
        let &[batch, tokens] = shape else {
            return Err(Error::data("a decoder is given numbers of tokens, [samples, tokens]"));
        };
        let caches = self.caches.iter().map(|c| c.input).zip(self.empty(batch, sizes)?);
        let told = self.told.iter().map(|t| t.0).zip(self.tell(batch, 0, tokens));
        Ok(caches.chain(told).collect())
    }
}

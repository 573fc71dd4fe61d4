//! Sequences of tokens on a decoder with a cache.

use compress_compiler::{
    error::{Error, Result},
    forms::decoder::Decoder,
    graph::Graph,
    node::NodeId,
    ops::source::{fed, given},
    tensor::{DType, Tensor},
};

/// As many tokens at the end of a sequence are taken one by one, unless that is more than half of it: enough to see what a
/// cache makes of them, few enough to be quick.
const STEPS: usize = 8;

/// Runs the model once, on all inputs without a default.
pub(super) type Once<'a> = dyn FnMut(&[Tensor]) -> Result<Vec<Tensor>> + 'a;

/// How a decoder is run on sequences.
pub(super) struct Decoding {
    decoder: Decoder,
    /// The inputs without a default.
    inputs: Vec<NodeId>,
    /// Those that there are data for.
    fed: Vec<NodeId>,
    /// The size of the vocabulary, where the scores tell it.
    words: Option<i64>,
    /// Whether a run may have any number of tokens.
    any_length: bool,
}

impl Decoding {
    /// How `graph` is, if it is a decoder with a cache.
    pub fn of(graph: &Graph) -> Option<Self> {
        let decoder = Decoder::of(graph)?;
        let scores = decoder.scores.and_then(|place| graph.fact(graph.outputs().get(place)?.port).dims());
        let words = scores.and_then(|dims| dims.last()?.known());
        let any_length = graph.fact(decoder.tokens.into()).dims().is_some_and(|dims| dims[1].known().is_none());
        Some(Self { decoder, inputs: given(graph).collect(), fed: fed(graph).collect(), words, any_length })
    }

    /// Whether these are the inputs of a single run.
    pub fn is_whole(&self, inputs: &[Tensor]) -> bool {
        inputs.len() != self.fed.len()
    }

    /// How many tokens of a sequence are in the inputs of a single run.
    pub fn tokens_of(&self, inputs: &[Tensor]) -> usize {
        let place = self.inputs.iter().position(|n| *n == self.decoder.tokens);
        place.and_then(|i| inputs.get(i)?.shape().get(1).copied()).unwrap_or(0)
    }

    /// Runs it on whole sequences. The outputs are the scores of all tokens, and the others of the last run.
    ///
    /// # Errors
    /// Data for tokens of another type or shape, or outside the vocabulary; what `once` raises.
    pub fn run(&self, inputs: &[Tensor], once: &mut Once) -> Result<Vec<Tensor>> {
        let of = |input: NodeId| self.fed.iter().position(|n| *n == input).and_then(|i| inputs.get(i));
        let wrong = || Error::data("a decoder is given numbers of tokens, [samples, tokens]");
        let tokens =
            of(self.decoder.tokens).filter(|t| matches!(t.dtype(), DType::I64 | DType::I32)).ok_or_else(wrong)?;
        let (&[batch, length], ids) = (tokens.shape(), tokens.as_i64().ok_or_else(wrong)?) else {
            return Err(wrong());
        };
        if batch == 0 || length == 0 {
            return Err(Error::data("a sequence without tokens"));
        }
        let outside = |id: &&i64| self.words.is_some_and(|words| !(0..words).contains(*id));
        if let (Some(id), Some(words)) = (ids.iter().find(outside), self.words) {
            return Err(Error::data(format!("token {id} is outside the model's vocabulary of {words}"))
                .help("number the tokens with the tokenizer that the model was trained with"));
        }
        let caches_out: Option<Vec<usize>> = self.decoder.caches.iter().map(|c| c.output).collect();
        // A part of a decoder makes no cache: it is shown all tokens at once, as one that takes no other number of them.
        let outputs = self.decoder.scores.zip(caches_out);
        let steps = if outputs.is_some() && self.any_length { STEPS.min(length / 2) } else { 0 };
        let mut caches = self.decoder.empty(batch)?;
        let (mut scores, mut last, mut past) = (vec![], vec![], 0);
        for count in [length - steps].into_iter().chain(std::iter::repeat_n(1, steps)) {
            let some: Vec<i64> =
                (0..batch).flat_map(|row| ids[row * length + past..][..count].iter().copied()).collect();
            let own = Tensor::ints(tokens.dtype(), &[batch, count], &some);
            let told = self.decoder.tell(batch, past, count);
            let input = |n: &NodeId| -> Result<Tensor> {
                let cache = self.decoder.caches.iter().position(|c| c.input == *n).map(|i| &caches[i]);
                let told = self.decoder.told.iter().position(|t| t.0 == *n).map(|i| &told[i]);
                let own = (*n == self.decoder.tokens).then_some(&own);
                own.or(cache).or(told).or(of(*n)).cloned().ok_or_else(|| Error::bug("an input that nobody gives"))
            };
            last = once(&self.inputs.iter().map(input).collect::<Result<Vec<_>>>()?)?;
            let Some((place, caches_out)) = &outputs else { return Ok(last) };
            let output = |i: usize| last.get(i).cloned().ok_or_else(|| Error::bug("a decoder without its outputs"));
            scores.push(output(*place)?);
            for ((cache, place), of) in caches.iter_mut().zip(caches_out).zip(&self.decoder.caches) {
                // Later runs are given what the first made of an encoder's outputs, and may return nothing for it.
                if past == 0 || !of.once {
                    *cache = output(*place)?;
                }
            }
            past += count;
        }
        if let Some(to) = outputs.and_then(|(place, _)| last.get_mut(place)) {
            *to = joined(&scores)?;
        }
        Ok(last)
    }
}

/// Values `[batch, tokens, ..]` of successive tokens as one.
fn joined(parts: &[Tensor]) -> Result<Tensor> {
    let [first, ..] = parts else { return Err(Error::bug("nothing to join")) };
    let mut shape = first.shape().to_vec();
    let size = |t: &Tensor| t.bytes().len().checked_div(shape[0]);
    let fits = |t: &Tensor| t.shape().len() == 3 && t.shape()[0] == shape[0] && t.shape()[2] == shape[2];
    if !parts.iter().all(fits) {
        return Err(Error::data("a decoder's scores are not [samples, tokens, words]"));
    }
    let rows: Vec<usize> = parts.iter().filter_map(size).collect();
    let mut bytes = Vec::with_capacity(parts.iter().map(|t| t.bytes().len()).sum());
    for row in 0..shape[0] {
        for (part, size) in parts.iter().zip(&rows) {
            bytes.extend_from_slice(&part.bytes()[row * size..][..*size]);
        }
    }
    shape[1] = parts.iter().map(|t| t.shape()[1]).sum();
    Tensor::new(first.dtype(), shape, bytes)
}

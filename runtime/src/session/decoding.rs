//! Sequences of tokens on a decoder with a cache.

use compress_compiler::{
    error::{Error, Result},
    forms::decoder::{Decoder, NamedSizes, SizeNames},
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
    /// How the sizes of those are called.
    names: SizeNames,
    dtype: DType,
    /// The size of the vocabulary, where the scores tell it.
    words: Option<i64>,
    /// Whether a run may have any number of tokens.
    any_length: bool,
    /// Where its scores and its cache come out. A part of a decoder makes no cache: it is shown all tokens at once, as one that
    /// takes no other number of them.
    places: Option<Places>,
}

/// Places among the outputs.
struct Places {
    scores: usize,
    caches: Vec<usize>,
}

/// What a decoder remembers of the tokens that it has read.
pub(super) struct Remembered {
    caches: Vec<Tensor>,
    /// How many they are.
    pub tokens: usize,
}

impl Decoding {
    /// How `graph` is, if it is a decoder with a cache.
    pub fn of(graph: &Graph) -> Option<Self> {
        let decoder = Decoder::of(graph)?;
        let scores = decoder.scores.and_then(|place| graph.fact(graph.outputs().get(place)?.port).dims());
        let words = scores.and_then(|dims| dims.last()?.known());
        let any_length = graph.fact(decoder.tokens.into()).dims().is_some_and(|dims| dims[1].known().is_none());
        let dtype = graph.fact(decoder.tokens.into()).dtype?;
        let caches: Option<Vec<usize>> = decoder.caches.iter().map(|c| c.output).collect();
        let places = decoder.scores.zip(caches).map(|(scores, caches)| Places { scores, caches });
        Some(Self {
            decoder,
            inputs: given(graph).collect(),
            fed: fed(graph).collect(),
            names: SizeNames::of(graph, fed(graph)),
            dtype,
            words,
            any_length,
            places,
        })
    }

    /// Why it can't continue a text of which it has the tokens alone, a few at a time; `None` if it can.
    pub fn why_not_alone(&self) -> Option<&'static str> {
        match () {
            () if self.places.is_none() => {
                Some("its outputs lack the scores of all tokens (logits), or a part of the cache (present)")
            }
            () if !self.any_length => Some("it takes one number of tokens only"),
            () if self.fed != [self.decoder.tokens] => Some("it has inputs beside its tokens and its cache"),
            () => None,
        }
    }

    /// The size of the vocabulary, where the scores tell it.
    pub fn words(&self) -> Option<i64> {
        self.words
    }

    /// The type of the numbers of tokens.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The scores among the outputs of a run.
    ///
    /// # Errors
    /// Bug for a decoder without.
    pub fn scores(&self, made: &[Tensor]) -> Result<Tensor> {
        let places = self.places.as_ref().ok_or_else(|| Error::bug("a decoder without scores"))?;
        output(made, places.scores)
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
        self.check(&ids)?;
        let steps = if self.places.is_some() && self.any_length { STEPS.min(length / 2) } else { 0 };
        let mut remembered = self.begin(batch, &self.names.sizes(inputs.iter().map(Tensor::shape)))?;
        let (mut scores, mut last) = (vec![], vec![]);
        for count in [length - steps].into_iter().chain(std::iter::repeat_n(1, steps)) {
            let past = remembered.tokens;
            let some: Vec<i64> =
                (0..batch).flat_map(|row| ids[row * length + past..][..count].iter().copied()).collect();
            let own = Tensor::ints(tokens.dtype(), &[batch, count], &some);
            last = self.advance(&mut remembered, own, &of, once)?;
            let Some(places) = &self.places else { return Ok(last) };
            scores.push(output(&last, places.scores)?);
        }
        if let Some(to) = self.places.as_ref().and_then(|places| last.get_mut(places.scores)) {
            *to = joined(&scores)?;
        }
        Ok(last)
    }

    /// Whether the numbers of tokens are in the vocabulary, as far as it is known.
    ///
    /// # Errors
    /// Data.
    pub fn check(&self, ids: &[i64]) -> Result<()> {
        let Some(words) = self.words else { return Ok(()) };
        match ids.iter().find(|id| !(0..words).contains(*id)) {
            None => Ok(()),
            Some(id) => Err(Error::data(format!("token {id} is outside the model's vocabulary of {words}"))
                .help("number the tokens with the tokenizer that the model was trained with")),
        }
    }

    /// What it remembers before the first token of `batch` samples.
    ///
    /// # Errors
    /// Limit.
    pub fn begin(&self, batch: usize, sizes: &NamedSizes) -> Result<Remembered> {
        Ok(Remembered { caches: self.decoder.empty(batch, sizes)?, tokens: 0 })
    }

    /// Reads the next `tokens`, `[samples, tokens]`, and returns the outputs of that run; `given` has the other inputs.
    ///
    /// # Errors
    /// What `once` raises.
    pub fn advance<'t>(
        &self,
        remembered: &mut Remembered,
        tokens: Tensor,
        given: &dyn Fn(NodeId) -> Option<&'t Tensor>,
        once: &mut Once,
    ) -> Result<Vec<Tensor>> {
        let (batch, count, past) = (tokens.shape()[0], tokens.shape()[1], remembered.tokens);
        let told = self.decoder.tell(batch, past, count);
        let input = |n: &NodeId| -> Result<Tensor> {
            let cache = self.decoder.caches.iter().position(|c| c.input == *n).map(|i| &remembered.caches[i]);
            let told = self.decoder.told.iter().position(|t| t.0 == *n).map(|i| &told[i]);
            let own = (*n == self.decoder.tokens).then_some(&tokens);
            own.or(cache).or(told).or(given(*n)).cloned().ok_or_else(|| Error::bug("an input that nobody gives"))
        };
        let made = once(&self.inputs.iter().map(input).collect::<Result<Vec<_>>>()?)?;
        let Some(places) = &self.places else { return Ok(made) };
        for ((cache, place), of) in remembered.caches.iter_mut().zip(&places.caches).zip(&self.decoder.caches) {
            // Later runs are given what the first made of an encoder's outputs, and may return nothing for it.
            if past == 0 || !of.once {
                *cache = output(&made, *place)?;
            }
        }
        remembered.tokens += count;
        Ok(made)
    }

    /// # Errors
    /// Unsupported for a decoder whose cache does not hold each token that it read: tokens can't be taken back from it.
    pub fn check_caches(&self, remembered: &Remembered) -> Result<()> {
        for (value, cache) in remembered.caches.iter().zip(&self.decoder.caches).filter(|(_, c)| !c.once) {
            let held = cache.tokens(value);
            if held != Some(remembered.tokens) {
                let what =
                    "the model can't continue a text: its cache doesn't hold a place for each token that it read";
                return Err(Error::unsupported(what));
            }
        }
        Ok(())
    }

    /// Forgets all but the first `tokens` tokens.
    ///
    /// # Errors
    /// As for [`Cache::shortened`](compress_compiler::forms::decoder::Cache::shortened).
    pub fn keep(&self, remembered: &mut Remembered, tokens: usize) -> Result<()> {
        for (value, cache) in remembered.caches.iter_mut().zip(&self.decoder.caches).filter(|(_, c)| !c.once) {
            *value = cache.shortened(value, tokens)?;
        }
        remembered.tokens = remembered.tokens.min(tokens);
        Ok(())
    }
}

/// An output of a run.
fn output(made: &[Tensor], place: usize) -> Result<Tensor> {
    made.get(place).cloned().ok_or_else(|| Error::bug("a decoder without its outputs"))
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

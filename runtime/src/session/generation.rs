//! A text that a decoder continues, token by token.

use super::{
    Session,
    decoding::{Decoding, Remembered},
};
use crate::speculation::{Decodes, Scores};
use compress_compiler::{
    error::{Error, Result},
    forms::decoder::NamedSizes,
    tensor::Tensor,
};

/// A text that a decoder with a cache has read, one sample.
pub struct Generation<'a> {
    session: &'a Session,
    decoding: &'a Decoding,
    remembered: Remembered,
}

impl<'a> Generation<'a> {
    /// Before the first token.
    ///
    /// # Errors
    /// Unsupported for a model that can't continue a text by itself; limit.
    pub(super) fn new(session: &'a Session) -> Result<Self> {
        let cannot = |why: &str| Err(Error::unsupported(format!("the model can't continue a text: {why}")));
        let Some(decoding) = &session.decoding else {
            return cannot("it is not a decoder with a cache (input_ids and past_key_values)");
        };
        if let Some(why) = decoding.why_not_alone() {
            return cannot(why);
        }
        Ok(Self { session, decoding, remembered: decoding.begin(1, &NamedSizes::new())? })
    }
}

impl Generation<'_> {
    /// The size of the vocabulary, where the model tells it.
    pub fn words(&self) -> Option<i64> {
        self.decoding.words()
    }
}

impl Decodes for Generation<'_> {
    fn tokens(&self) -> usize {
        self.remembered.tokens
    }

    fn read(&mut self, tokens: &[i64]) -> Result<Scores> {
        self.decoding.check(tokens)?;
        let own = Tensor::ints(self.decoding.dtype(), &[1, tokens.len()], tokens);
        let mut once = |inputs: &[Tensor]| self.session.once(inputs);
        let made = self.decoding.advance(&mut self.remembered, own, &|_| None, &mut once)?;
        self.decoding.check_caches(&self.remembered)?;
        let scores = self.decoding.scores(&made)?;
        match scores.shape() {
            &[1, rows, words] if rows == tokens.len() => {
                let values = scores.as_f32().ok_or_else(|| Error::data("a decoder's scores are not floats"))?;
                Ok(Scores::new(words, values.into_owned()))
            }
            other => Err(Error::data(format!("a decoder's scores are not [samples, tokens, words], but {other:?}"))),
        }
    }

    fn keep(&mut self, tokens: usize) -> Result<()> {
        self.decoding.keep(&mut self.remembered, tokens)
    }
}

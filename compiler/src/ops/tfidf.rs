//! TfIdfVectorizer over integers.

use crate::{
    attr::{Attr, Attrs, Reader},
    error::{Error, Result},
    op::{Inputs, Operator},
    tensor::DType,
    value::{Dim, Fact},
};

/// What becomes of the count of an n-gram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weighting {
    /// It stays.
    Tf,
    /// It is cut to 1, and weighted.
    Idf,
    /// It is weighted.
    TfIdf,
}

/// Counts the n-grams of a pool in sequences of integers.
#[derive(Debug, Clone, PartialEq)]
pub struct TfIdf {
    /// What becomes of a count.
    pub mode: Weighting,
    /// The least and the greatest length of an n-gram that counts.
    pub lengths: [usize; 2],
    /// How many items may be left out between two of an n-gram.
    pub max_skip: usize,
    /// Where in the pool the n-grams of each length begin.
    pub starts: Vec<i64>,
    /// The place in the output of each n-gram.
    pub places: Vec<i64>,
    /// The n-grams.
    pub pool: Vec<i64>,
    /// The weights of the outputs; 1 where empty.
    pub weights: Vec<f32>,
}

impl TfIdf {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let mode = match r.string("mode", "")?.as_str() {
            "TF" => Weighting::Tf,
            "IDF" => Weighting::Idf,
            "TFIDF" => Weighting::TfIdf,
            other => return Err(Error::malformed(format!("mode={other}"))),
        };
        let mut count = |name: &str| -> Result<usize> {
            let n = r.opt_int(name)?.and_then(|n| usize::try_from(n).ok());
            n.ok_or_else(|| Error::malformed(format!("attribute `{name}` is missing or negative")))
        };
        let (lengths, max_skip) = ([count("min_gram_length")?, count("max_gram_length")?], count("max_skip_count")?);
        let mut list = |name: &str| r.opt_ints(name).map(Option::unwrap_or_default);
        let (starts, places, pool) = (list("ngram_counts")?, list("ngram_indexes")?, list("pool_int64s")?);
        let weights = r.opt_floats("weights")?.unwrap_or_default();
        let this = Self { mode, lengths, max_skip, starts, places, pool, weights };
        if this.pool.is_empty() {
            return Err(Error::unsupported("TfIdfVectorizer over strings"));
        }
        this.grams()?;
        this.size()?;
        Ok(this)
    }

    /// The size of the output.
    ///
    /// # Errors
    /// Malformed when an n-gram has no place in it, or there are fewer weights.
    pub fn size(&self) -> Result<usize> {
        let valid = self.places.iter().all(|p| (0..1 << 27).contains(p));
        let size = self.places.iter().max().filter(|_| valid).map(|p| *p as usize + 1);
        let size = size.filter(|n| self.weights.is_empty() || self.weights.len() >= *n);
        size.ok_or_else(|| Error::malformed("ngram_indexes and weights do not fit each other"))
    }

    /// The n-grams that count, and their places.
    ///
    /// # Errors
    /// Malformed when the lists don't fit each other.
    pub fn grams(&self) -> Result<Vec<(&[i64], usize)>> {
        let misfit = || Error::malformed("ngram_counts, ngram_indexes and the pool do not fit each other");
        let mut places = self.places.iter();
        let mut out = vec![];
        for (i, start) in self.starts.iter().enumerate() {
            let bound = |v: i64| usize::try_from(v).map_err(|_| misfit());
            let end = self.starts.get(i + 1).map_or(Ok(self.pool.len()), |v| bound(*v))?;
            for gram in self.pool.get(bound(*start)?..end).ok_or_else(misfit)?.chunks_exact(i + 1) {
                let place = places.next().and_then(|p| usize::try_from(*p).ok()).ok_or_else(misfit)?;
                if (self.lengths[0]..=self.lengths[1]).contains(&gram.len()) {
                    out.push((gram, place));
                }
            }
        }
        Ok(out)
    }
}

impl Operator for TfIdf {
    fn op_type(&self) -> &str {
        "TfIdfVectorizer"
    }

    fn attrs(&self) -> Attrs {
        let mode = match self.mode {
            Weighting::Tf => "TF",
            Weighting::Idf => "IDF",
            Weighting::TfIdf => "TFIDF",
        };
        let mut a: Attrs = vec![
            ("max_gram_length", (self.lengths[1] as i64).into()),
            ("max_skip_count", (self.max_skip as i64).into()),
            ("min_gram_length", (self.lengths[0] as i64).into()),
            ("mode", mode.into()),
            ("ngram_counts", self.starts.clone().into()),
            ("ngram_indexes", self.places.clone().into()),
            ("pool_int64s", self.pool.clone().into()),
        ];
        if !self.weights.is_empty() {
            a.push(("weights", Attr::Floats(self.weights.clone())));
        }
        a
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let size = Dim::from(self.size()?);
        let shape = match x.dims(0) {
            Some([] | [_]) => Some(vec![size]),
            Some([n, _]) => Some(vec![n.clone(), size]),
            Some(d) => return Err(Error::malformed(format!("sequences of rank {}", d.len()))),
            None => None,
        };
        Ok(vec![Fact::new(Some(DType::F32), shape)])
    }

    fn since(&self) -> i64 {
        9
    }
}

//! The batches of a training job, made ahead of their use by threads of their own.
//!
//! Nothing of the set is kept: each batch is read where the set lies when its turn comes, and
//! only as many batches exist as are asked for ahead. What a batch holds depends on the options'
//! seed, the epoch and its place in it, never on who made it or when, so a job that resumes in
//! the middle of an epoch sees what it would have seen.

use super::{
    ahead::Ahead,
    augment::{Augment, Position},
    random::{Purpose, Random},
};
use crate::{
    burn::tensor::Value,
    dataset::{Batch, Dataset},
};
use compress_compiler::{
    error::{Error, Result},
    tensor::Tensor,
    words::option::REPLICAS,
};
use std::{ops::Range, sync::Arc};

/// How a [`Loader`] makes batches.
#[derive(Debug, Clone)]
pub struct LoaderOptions {
    /// The samples of a batch.
    pub batch: usize,
    /// What all random numbers follow from.
    pub seed: u64,
    /// Threads that make batches; without any, each is made by who asks for it.
    pub workers: usize,
    /// Batches that wait to be asked for, beside those that workers are at.
    pub prefetch: usize,
    /// Random changes to the samples.
    pub augment: Augment,
    /// Whether every epoch has an order of its own, rather than that of the samples given.
    pub shuffle: bool,
    /// Whether samples at the end that don't fill a batch are left out.
    pub drop_last: bool,
    /// The part of each batch that is wanted.
    pub share: Share,
}

/// Some of the parts that batches are divided into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// How many parts there are. A batch of fewer samples has a part for each.
    pub parts: usize,
    /// Which ones are meant.
    pub own: Range<usize>,
}

impl Default for Share {
    fn default() -> Self {
        Self { parts: 1, own: 0..1 }
    }
}

impl Share {
    /// The samples of each part in a batch of `len`.
    pub fn divided(&self, len: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let parts = self.parts.min(len);
        let own = self.own.start.min(parts)..self.own.end.min(parts);
        own.map(move |i| i * len / parts..(i + 1) * len / parts)
    }

    /// The samples of all of them in a batch of `len`.
    pub fn rows(&self, len: usize) -> Range<usize> {
        let mut parts = self.divided(len);
        match parts.next() {
            Some(first) => first.start..parts.last().map_or(first.end, |last| last.end),
            None => 0..0,
        }
    }
}

/// Some samples, as a step of training takes them.
#[derive(Debug, Clone, Default)]
pub struct TrainBatch {
    /// The model's inputs; the first axis counts the samples.
    pub inputs: Vec<Tensor>,
    /// The same where they are trained on, if they were sent there ahead.
    pub sent: Option<Vec<Value>>,
    /// The class of each sample, when the set has labels.
    pub labels: Option<Vec<i64>>,
    /// The class of what was mixed into each sample, when the augmentation does that, and the share that the sample kept.
    pub mix: Option<(Vec<i64>, f32)>,
    /// Where the samples are in the set.
    pub indices: Vec<usize>,
    /// The number of samples.
    pub len: usize,
    /// The samples of the whole batch, of which these may be a part.
    pub whole: usize,
    /// The place of the first of these in it.
    pub first: usize,
}

impl TrainBatch {
    /// Some of its samples, by their places in the whole batch.
    fn cut(self, rows: Range<usize>) -> Result<Self> {
        let own = rows.start - self.first..rows.end - self.first;
        let classes = |labels: Vec<i64>| labels[own.clone()].to_vec();
        Ok(Self {
            inputs: self.inputs.iter().map(|t| tensor_rows(t, self.len, &own)).collect::<Result<_>>()?,
            sent: None,
            mix: self.mix.map(|(labels, share)| (classes(labels), share)),
            labels: self.labels.map(classes),
            indices: self.indices[own.clone()].to_vec(),
            len: own.len(),
            whole: self.whole,
            first: rows.start,
        })
    }
}

/// Some of the `len` samples of `t`.
///
/// # Errors
/// Data when its first axis doesn't count them.
pub(super) fn tensor_rows(t: &Tensor, len: usize, range: &Range<usize>) -> Result<Tensor> {
    match t.shape() {
        [first, rest @ ..] if *first == len => {
            let each = t.bytes().len() / len;
            let bytes = &t.bytes()[range.start * each..range.end * each];
            Tensor::new(t.dtype(), [&[range.len()], rest].concat(), bytes.to_vec())
        }
        shape => {
            Err(Error::data(format!("a tensor of {shape:?} cannot be divided: it is not counted by {len} samples"))
                .help(format!("train on one machine, without {REPLICAS}")))
        }
    }
}

/// Makes the batches of every epoch.
pub struct Loader(Arc<Plan>);

struct Plan {
    data: Arc<Dataset>,
    samples: Vec<usize>,
    options: LoaderOptions,
}

impl Loader {
    /// A loader for these samples of a set.
    ///
    /// # Errors
    /// Usage when the options make no sense, by themselves or for the set.
    pub fn new(data: Arc<Dataset>, samples: Vec<usize>, options: LoaderOptions) -> Result<Self> {
        if options.batch == 0 {
            return Err(Error::usage("a batch needs a sample at least"));
        }
        options.augment.check(data.inputs())?;
        if !data.stacks() && (options.batch > 1 || options.augment != Augment::default()) {
            return Err(Error::usage("the inputs share no axis of samples, so a batch has one, and is not augmented")
                .help("use a batch of 1, and no augmentation"));
        }
        let loader = Self(Arc::new(Plan { data, samples, options }));
        if loader.batches() == 0 {
            let Plan { samples, options, .. } = &*loader.0;
            return Err(Error::usage(format!("{} samples fill no batch of {}", samples.len(), options.batch))
                .help("use smaller batches or more samples"));
        }
        Ok(loader)
    }

    /// The samples of a batch.
    pub fn batch(&self) -> usize {
        self.0.options.batch
    }

    /// The number of batches in an epoch.
    pub fn batches(&self) -> usize {
        let Plan { samples, options, .. } = &*self.0;
        match options.drop_last {
            true => samples.len() / options.batch,
            false => samples.len().div_ceil(options.batch),
        }
    }

    /// The batches of an epoch, without the first `from_batch`, which were there before.
    ///
    /// # Errors
    /// Usage when the epoch has not even so many; limit when a thread can't be started.
    pub fn epoch(&self, epoch: u64, from_batch: usize) -> Result<Epoch> {
        let (plan, batches) = (self.0.clone(), self.batches());
        if from_batch > batches {
            return Err(Error::usage(format!("an epoch has {batches} batches, so {from_batch} cannot be done"))
                .help("resume with the data and the batch size with which the job began"));
        }
        let LoaderOptions { seed, workers, prefetch, shuffle, .. } = plan.options;
        let mut order = plan.samples.clone();
        if shuffle {
            Random::new(seed, Purpose::Order, epoch, 0).shuffle(&mut order);
        }
        let make = move |batch| plan.batch(&order, epoch, batch);
        Ahead::new(from_batch..batches, workers, prefetch.saturating_add(workers), make).map(Epoch)
    }
}

impl Plan {
    fn batch(&self, order: &[usize], epoch: u64, batch: usize) -> Result<TrainBatch> {
        let LoaderOptions { batch: size, seed, ref augment, ref share, .. } = self.options;
        let first = batch * size;
        let whole = &order[first..order.len().min(first + size)];
        let rows = share.rows(whole.len());
        // Samples of a text are as long as the longest of the batch, and mixed samples need those that are mixed into them.
        let reads = if augment.mixup.is_some() || self.data.is_text() { 0..whole.len() } else { rows.clone() };
        if rows.is_empty() {
            return Ok(TrainBatch { whole: whole.len(), ..TrainBatch::default() });
        }
        let at = Position { seed, epoch, first: first + reads.start };
        let Batch { inputs, labels, len } = self.data.batch(&whole[reads.clone()])?;
        let (inputs, mix) = augment.mix(augment.each(inputs, at)?, len, at)?;
        let mixed = |labels: &Vec<i64>| mix.map(|m| (m.partner.iter().map(|p| labels[*p]).collect(), m.share));
        let made = TrainBatch {
            mix: labels.as_ref().and_then(mixed),
            inputs,
            sent: None,
            labels,
            indices: whole[reads.clone()].to_vec(),
            len,
            whole: whole.len(),
            first: reads.start,
        };
        if reads == rows { Ok(made) } else { made.cut(rows) }
    }
}

/// The batches of an epoch, in order, up to the first error.
///
/// Dropping it ends its threads, each of which finishes the batch that it is at.
pub struct Epoch(Ahead<TrainBatch>);

impl Iterator for Epoch {
    type Item = Result<TrainBatch>;

    fn next(&mut self) -> Option<Result<TrainBatch>> {
        self.0.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::{InputSpec, Reading};
    use compress_compiler::{error::Kind, tensor::DType, value::Dim};
    use std::fs;

    fn spec(shape: &[usize]) -> InputSpec {
        let shape = [Dim::Unknown].into_iter().chain(shape.iter().map(|n| Dim::from(*n))).collect();
        InputSpec::new("x", DType::F32, shape)
    }

    fn made_up(samples: usize) -> Arc<Dataset> {
        Arc::new(Dataset::synthetic(&[spec(&[2, 6, 6])], samples, 9).unwrap())
    }

    fn options(workers: usize) -> LoaderOptions {
        let augment = "flip,crop=2,brightness=0.1,noise=0.1,mixup=0.3".parse().unwrap();
        let share = Share::default();
        LoaderOptions { batch: 4, seed: 1, workers, prefetch: 2, augment, shuffle: true, drop_last: false, share }
    }

    type Content = (Vec<Tensor>, Option<Vec<i64>>, Option<(Vec<i64>, f32)>, Vec<usize>, usize);

    fn contents(epoch: Epoch) -> Vec<Content> {
        let plain = |b: Result<TrainBatch>| b.map(|b| (b.inputs, b.labels, b.mix, b.indices, b.len)).unwrap();
        epoch.map(plain).collect()
    }

    fn indices(loader: &Loader, epoch: u64) -> Vec<usize> {
        loader.epoch(epoch, 0).unwrap().flat_map(|b| b.unwrap().indices).collect()
    }

    #[test]
    fn any_number_of_workers_makes_the_same_batches_from_anywhere() {
        let loader = |workers| Loader::new(made_up(31), (0..30).collect(), options(workers)).unwrap();
        let expected = contents(loader(0).epoch(5, 0).unwrap());
        assert_eq!(expected.iter().map(|b| b.4).collect::<Vec<_>>(), [4, 4, 4, 4, 4, 4, 4, 2]);
        for workers in [0, 1, 2, 4] {
            let loader = loader(workers);
            assert!(expected == contents(loader.epoch(5, 0).unwrap()), "{workers} workers");
            for from in [1, 5, 8] {
                assert!(expected[from..] == contents(loader.epoch(5, from).unwrap()), "{workers} workers from {from}");
            }
            assert!(expected != contents(loader.epoch(6, 0).unwrap()));
        }
        let e = loader(1).epoch(0, 9).err().unwrap();
        assert!(e.kind() == Kind::Usage && e.message().contains("8 batches"), "{e}");
    }

    #[test]
    fn shares_are_parts_of_the_same_batches() {
        for augment in ["flip,crop=2,noise=0.1", "noise=0.1,mixup=0.3"] {
            let augment: Augment = augment.parse().unwrap();
            let loader = |share| {
                Loader::new(made_up(31), (0..30).collect(), LoaderOptions { augment, share, ..options(0) }).unwrap()
            };
            let whole = loader(Share::default());
            // The last batch has two samples, and so two parts.
            for parts in [2, 3, 4] {
                let shares: Vec<Loader> = (0..parts).map(|i| loader(Share { parts, own: i..i + 1 })).collect();
                let mut epochs: Vec<Epoch> = shares.iter().map(|loader| loader.epoch(2, 0).unwrap()).collect();
                for all in whole.epoch(2, 0).unwrap().map(Result::unwrap) {
                    let (mut samples, mut bytes) = (vec![], vec![]);
                    for epoch in &mut epochs {
                        let part = epoch.next().unwrap().unwrap();
                        assert_eq!((part.whole, part.first), (all.len, if part.len > 0 { samples.len() } else { 0 }));
                        samples.extend(part.indices);
                        part.inputs.iter().for_each(|t| bytes.extend_from_slice(t.bytes()));
                    }
                    assert_eq!((samples, &bytes[..]), (all.indices, all.inputs[0].bytes()), "{parts} parts");
                }
            }
        }
    }

    #[test]
    fn each_sample_comes_once_in_an_order_of_the_epoch() {
        let samples: Vec<usize> = (0..50).map(|i| i * 2).collect();
        let loader = |o| Loader::new(made_up(100), samples.clone(), o).unwrap();
        let shuffled = loader(options(2));
        let orders = [indices(&shuffled, 0), indices(&shuffled, 1), indices(&loader(options(0)), 0)];
        assert!(orders[0] == orders[2] && orders[0] != orders[1]);
        assert_ne!(orders[0], indices(&loader(LoaderOptions { seed: 2, ..options(1) }), 0));
        for mut order in orders {
            assert_ne!(order, samples);
            order.sort_unstable();
            assert_eq!(order, samples);
        }
        let ordered = loader(LoaderOptions { shuffle: false, ..options(1) });
        assert_eq!(indices(&ordered, 3), samples);
        // The samples are the same then, but not what augmentation makes of them.
        let [a, b] = [0, 1].map(|epoch| ordered.epoch(epoch, 0).unwrap().next().unwrap().unwrap());
        assert!(a.inputs != b.inputs);
        let dropping = loader(LoaderOptions { drop_last: true, ..options(1) });
        assert_eq!((dropping.batches(), indices(&dropping, 0).len()), (12, 48));
        assert_eq!(indices(&dropping, 0), indices(&shuffled, 0)[..48]);
    }

    #[test]
    fn what_makes_no_batches_is_refused() {
        let refused = |data, samples, o| {
            let e = Loader::new(data, samples, o).err().unwrap();
            assert_eq!(e.kind(), Kind::Usage, "{e}");
            e.to_string()
        };
        refused(made_up(9), vec![0], LoaderOptions { batch: 0, ..options(0) });
        refused(made_up(9), vec![], options(0));
        let e = refused(made_up(9), vec![0, 1, 2], LoaderOptions { drop_last: true, ..options(0) });
        assert!(e.contains("3 samples fill no batch of 4"), "{e}");
        let rows = Arc::new(Dataset::synthetic(&[spec(&[7])], 9, 0).unwrap());
        assert!(refused(rows.clone(), vec![0], options(0)).contains("pictures"));
        let mixed = LoaderOptions { augment: "mixup=1".parse().unwrap(), ..options(0) };
        assert!(Loader::new(rows, vec![0], mixed).is_ok());
        let fixed = InputSpec::new("x", DType::F32, vec![]);
        let alone = Arc::new(Dataset::synthetic(&[fixed], 9, 0).unwrap());
        let plain = LoaderOptions { augment: Augment::default(), ..options(0) };
        assert!(refused(alone.clone(), vec![0], plain.clone()).contains("batch of 1"));
        assert!(Loader::new(alone, vec![0], LoaderOptions { batch: 1, ..plain }).is_ok());
    }

    #[test]
    fn broken_data_is_told_and_threads_end_with_the_epoch() {
        let dir = tempfile::tempdir().unwrap();
        for i in 0..40 {
            image::GrayImage::new(6, 6).save(dir.path().join(format!("{i:02}.png"))).unwrap();
        }
        fs::write(dir.path().join("17.png"), "no picture").unwrap();
        let set = Arc::new(Dataset::open(dir.path(), &[spec(&[1, 6, 6])], &Reading::default()).unwrap());
        for workers in [0, 1, 3] {
            let ordered = LoaderOptions { shuffle: false, ..options(workers) };
            let loader = Loader::new(set.clone(), (0..40).collect(), ordered).unwrap();
            let mut epoch = loader.epoch(0, 0).unwrap();
            for _ in 0..4 {
                epoch.next().unwrap().unwrap();
            }
            let e = epoch.next().unwrap().unwrap_err();
            assert!(e.kind() == Kind::Data && e.to_string().contains("17.png"), "{e}");
            assert!(epoch.next().is_none());
            drop(epoch);
            let mut early = loader.epoch(1, 0).unwrap();
            early.next();
            drop(early);
            drop(loader);
            // No thread is left that could hold the set.
            assert_eq!(Arc::strong_count(&set), 1, "{workers} workers");
        }
    }
}

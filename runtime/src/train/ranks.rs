//! Ranks: processes that train one model together, each on a part of every batch (data-parallel training).
//!
//! All ranks hold the whole model and see the same batches in the same order; each reads, and runs, only its own samples. What these
//! teach is summed over all ranks, in an order that is the same everywhere, so that all change their weights by the same bits. The first
//! rank alone scores, tells, and writes; the others are told what it decided.

#[cfg(feature = "mpi")]
pub mod mpi;
mod sum;
#[cfg(test)]
pub(super) mod threads;

pub use sum::Word;
pub(super) use sum::{Arrived, Layout, LossAndTerms, Summing, Taught, in_tree};

use compress_compiler::{
    error::{Error, Kind, Result},
    words::option::RESUME,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    collections::BTreeSet,
    env,
    ops::Range,
    sync::{Arc, OnceLock},
    thread,
    time::{Duration, Instant},
};

/// After so long without a word, a rank that a step waits for is lost.
const PATIENCE: Duration = Duration::from_secs(300);
/// How long a rank that failed waits for others that may have too.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// The longest sleep between two looks: ranks share cores with those that compute.
const LONGEST_SLEEP: Duration = Duration::from_micros(500);

/// Bytes from a rank to another at once: MPI counts them in 32 bits.
pub const MOST_OF_A_MESSAGE: usize = i32::MAX as usize;

/// Bytes from all ranks together in one of several exchanges.
const MOST_BYTES: usize = 1 << 30;

/// What a rank sends things by: those of one lane are asked for in the same order by all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// What ranks tell each other.
    Words,
    /// Gradients, to the rank that sums them.
    Gradients,
    /// Sums of gradients, to all.
    Sums,
    /// That a rank is done.
    Ends,
}

/// How the ranks of a job reach each other.
pub trait Ranks: Send + Sync {
    /// Which one this is, from 0.
    fn rank(&self) -> usize;
    /// How many there are.
    fn count(&self) -> usize;
    /// Sends each rank its part of `bytes`, and begins to receive so many bytes from each, [`MOST_OF_A_MESSAGE`] at most.
    ///
    /// # Errors
    /// Device when the transport fails.
    fn exchange(
        &self,
        lane: Lane,
        bytes: Vec<u8>,
        parts: &[Range<usize>],
        expected: &[usize],
    ) -> Result<Box<dyn Exchange>>;
}

/// An exchange that goes on.
pub trait Exchange: Send {
    /// What the ranks sent, one behind the other, once all have.
    ///
    /// # Errors
    /// Device when the transport fails.
    fn received(&mut self) -> Result<Option<Vec<u8>>>;
    /// The ranks that did not send theirs yet, or did not take what was sent to them.
    fn missing(&self) -> Vec<usize>;
}

/// The ranks of a job as one of them sees them; by default it is alone.
#[derive(Clone, Default)]
pub struct Team {
    ranks: Option<Arc<dyn Ranks>>,
}

static TEAM: OnceLock<Team> = OnceLock::new();

/// An error as it is told to other ranks.
#[derive(Serialize, Deserialize)]
struct Failure {
    kind: u8,
    text: String,
}

impl Team {
    /// The ranks that `ranks` reaches.
    pub fn new(ranks: Arc<dyn Ranks>) -> Self {
        Self { ranks: Some(ranks) }
    }

    /// Makes this the team of the process. It can be set once.
    pub fn of_this_process(self) {
        let _ = TEAM.set(self);
    }

    /// The team of the process.
    pub fn get() -> Self {
        TEAM.get().cloned().unwrap_or_default()
    }

    /// Which rank this is, from 0.
    pub fn rank(&self) -> usize {
        self.ranks.as_ref().map_or(0, |r| r.rank())
    }

    /// How many ranks there are.
    pub fn count(&self) -> usize {
        self.ranks.as_ref().map_or(1, |r| r.count())
    }

    /// Whether this is the rank that scores, tells, and writes.
    pub fn leads(&self) -> bool {
        self.rank() == 0
    }

    /// Has the first rank find something by `what`, and all know it.
    ///
    /// # Errors
    /// The error of `what`, on all; device when the transport fails.
    pub fn told<T: Serialize + DeserializeOwned>(&self, what: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.ranks.is_none() {
            return what();
        }
        if self.leads() {
            let own = what();
            self.gather(&serialise(&own.as_ref().map_err(failure))?)?;
            return own;
        }
        let told = self.gather(&[])?.swap_remove(0);
        match deserialise::<Result<T, Failure>>(&told)? {
            Ok(found) => Ok(found),
            Err(e) => Err(e.error()),
        }
    }

    /// What the first rank has, on all.
    ///
    /// # Errors
    /// Those of [`Team::gather`].
    pub(super) fn shared(&self, what: Vec<u8>) -> Result<Vec<u8>> {
        if self.ranks.is_none() {
            return Ok(what);
        }
        Ok(self.gather(if self.leads() { &what } else { &[] })?.swap_remove(0))
    }

    /// Whether all ranks say the same.
    ///
    /// # Errors
    /// Those of [`Team::gather`].
    pub(super) fn all_say(&self, what: &[u8]) -> Result<bool> {
        Ok(self.gather(what)?.iter().all(|said| said == what))
    }

    /// Ends the job on all ranks if one of them can't begin it, or would do another job, which `digest` tells.
    ///
    /// # Errors
    /// The own one, or that of the first rank that has one; usage when the jobs differ.
    pub fn agree<T>(&self, own: Result<T>, digest: impl FnOnce(&T) -> String) -> Result<T> {
        if self.ranks.is_none() {
            return own;
        }
        let said: Result<String, Failure> = own.as_ref().map(digest).map_err(failure);
        let all = self.gather(&serialise(&said)?)?;
        let all = all.iter().map(|said| deserialise::<Result<String, Failure>>(said)).collect::<Result<Vec<_>>>()?;
        for (rank, said) in all.iter().enumerate() {
            if let Err(e) = said {
                return match own {
                    Err(own) => Err(own),
                    Ok(_) => Err(e.error().about(format!("rank {rank}"))),
                };
            }
        }
        let first = all.first().and_then(|said| said.as_ref().ok());
        match all.iter().position(|said| said.as_ref().ok() != first) {
            Some(rank) => {
                Err(Error::usage(format!("rank {rank} would train by another recipe, or on other files, than rank 0"))
                    .help("give all ranks the same files and options"))
            }
            None => own,
        }
    }

    /// Tells the others that this rank ends, by an exit code: whether all do. One that ends well waits for that; one that failed waits but
    /// a moment, as others may not know.
    pub fn ends_with_others(&self, code: u8) -> bool {
        let Some(ranks) = &self.ranks else { return true };
        let n = ranks.count();
        let Ok(mut exchange) = ranks.exchange(Lane::Ends, vec![code], &vec![0..1; n], &vec![1; n]) else {
            return false;
        };
        let began = Instant::now();
        loop {
            match exchange.received() {
                Ok(Some(_)) => return true,
                Ok(None) if code == 0 || began.elapsed() < LAST_WORDS => thread::sleep(LONGEST_SLEEP),
                _ => return false,
            }
        }
    }

    /// What every rank says, in their order.
    fn gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let n = self.count();
        let lengths = self.exchange((mine.len() as u64).to_le_bytes().to_vec(), &vec![size_of::<u64>(); n])?;
        let length = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).unwrap_or_default() as usize;
        let lengths: Vec<usize> = lengths.chunks(size_of::<u64>()).map(length).collect();
        let mut all = vec![vec![]; n];
        let most = MOST_BYTES / n;
        for from in (0..lengths.iter().copied().max().unwrap_or(0)).step_by(most) {
            let piece = |length: usize| from.min(length)..(from + most).min(length);
            let expected: Vec<usize> = lengths.iter().map(|length| piece(*length).len()).collect();
            let received = self.exchange(mine[piece(mine.len())].to_vec(), &expected)?;
            let mut rest = &received[..];
            for (whole, length) in all.iter_mut().zip(expected) {
                let (piece, others) = rest.split_at(length);
                whole.extend_from_slice(piece);
                rest = others;
            }
        }
        Ok(all)
    }

    /// The same words to each rank, and so many from each. The first rank may score for hours meanwhile.
    fn exchange(&self, bytes: Vec<u8>, expected: &[usize]) -> Result<Vec<u8>> {
        let Some(ranks) = &self.ranks else { return Ok(bytes) };
        let parts = vec![0..bytes.len(); ranks.count()];
        let mut exchange = ranks.exchange(Lane::Words, bytes, &parts, expected)?;
        let mut waiting = Waiting::default();
        loop {
            if let Some(received) = exchange.received()? {
                return Ok(received);
            }
            waiting.sleep(|| exchange.missing())?;
        }
    }
}

/// Waits for other ranks: it looks more and more seldom, and in a step gives up where one is lost.
#[derive(Default)]
struct Waiting {
    /// In a step, since when nothing came, and how long that may be.
    step: Option<(Instant, Duration)>,
    sleep: Duration,
}

impl Waiting {
    fn in_step() -> Self {
        Self { step: Some((Instant::now(), patience())), ..Self::default() }
    }

    /// Something came: the next look is soon.
    fn moved(&mut self) {
        self.step = self.step.map(|(_, patience)| (Instant::now(), patience));
        self.sleep = Duration::ZERO;
    }

    /// Sleeps; `missing` are those that are waited for.
    ///
    /// # Errors
    /// Device when a rank is lost.
    fn sleep(&mut self, missing: impl FnOnce() -> Vec<usize>) -> Result<()> {
        if let Some((since, patience)) = self.step
            && since.elapsed() > patience
        {
            let (waited, ranks) = (since.elapsed(), BTreeSet::from_iter(missing()));
            let ranks: Vec<String> = ranks.iter().map(usize::to_string).collect();
            let which = if ranks.len() == 1 { "rank" } else { "ranks" };
            return Err(Error::device(format!(
                "{which} {} gave no sign for {:.0} s",
                ranks.join(", "),
                waited.as_secs_f64()
            ))
            .help(format!("start the job again with {RESUME}: it goes on from its last checkpoint")));
        }
        match self.sleep.is_zero() {
            true => thread::yield_now(),
            false => thread::sleep(self.sleep),
        }
        self.sleep = (self.sleep * 2).clamp(Duration::from_micros(1), LONGEST_SLEEP);
        Ok(())
    }
}

/// How long a step waits for a rank.
fn patience() -> Duration {
    let seconds = env::var("COMPRESS_RANKS_PATIENCE").ok().and_then(|s| s.parse().ok());
    seconds.map_or(PATIENCE, Duration::from_secs)
}

fn failure(e: &Error) -> Failure {
    Failure { kind: e.exit_code(), text: e.to_string() }
}

impl Failure {
    fn error(&self) -> Error {
        const KINDS: [Kind; 10] = [
            Kind::Usage,
            Kind::Malformed,
            Kind::Limit,
            Kind::Unsupported,
            Kind::File,
            Kind::Data,
            Kind::Device,
            Kind::Gate,
            Kind::Interrupted,
            Kind::Bug,
        ];
        let kind = KINDS.into_iter().find(|kind| *kind as u8 == self.kind).unwrap_or(Kind::Bug);
        Error::new(kind, &self.text[..])
    }
}

fn serialise(what: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(what).map_err(|e| Error::bug(format!("what ranks tell each other: {e}")))
}

fn deserialise<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|e| Error::bug(format!("what ranks tell each other: {e}")))
}

//! What the ranks of a job do together: they go on from one checkpoint, learn from their parts of a batch, and keep the same weights.

use super::{Job, Score, Spent, State, Watcher};
use crate::train::{
    checkpoint::Checkpoint,
    loader::TrainBatch,
    ranks::Word,
    replicas::{Beside, Learning, Learnt},
    scaler::Scaler,
    teacher::Answer,
};
use compress_compiler::{
    error::{Kind, Result},
    tensor::Tensor,
    words::option::RESUME,
};
use std::{
    cell::{Cell, RefCell},
    time::{Duration, Instant},
};

/// How long a rank that was asked to stop waits for others before it keeps what was learnt: what starts ranks ends them all when it loses
/// one, and gives them but a moment.
const MOMENT: Duration = Duration::from_millis(300);

/// The clocks of a job.
#[derive(Clone, Copy)]
pub(super) struct Clocks {
    /// Seconds of earlier runs.
    pub earlier: f64,
    pub began: Instant,
    /// When the last checkpoint was written.
    pub saved: Instant,
}

/// What a job does beside a batch.
struct BesideBatch<'a, 'b> {
    job: &'a Job<'b>,
    state: &'a State,
    watcher: RefCell<&'a mut dyn Watcher>,
    clocks: Clocks,
    /// Whether a checkpoint was written meanwhile, and the seconds that it took.
    kept: Cell<Option<f64>>,
}

impl BesideBatch<'_, '_> {
    /// Writes what was learnt before the batch, once.
    fn keep(&self) -> Result<()> {
        if self.kept.get().is_some() {
            return Ok(());
        }
        let mut spent = Spent::default();
        let mut watcher = self.watcher.borrow_mut();
        self.job.save(self.state, &mut **watcher, &mut spent)?;
        self.kept.set(Some(spent.saving));
        if let Some((folder, _)) = &self.job.checkpoints {
            let (step, folder) = (self.state.step, folder.folder().display());
            watcher.warn(&format!("a checkpoint of step {step} is in {folder}: {RESUME} goes on from it"));
        }
        Ok(())
    }
}

impl Beside for BesideBatch<'_, '_> {
    fn word(&self) -> Word {
        Word {
            seconds: self.clocks.earlier + self.clocks.began.elapsed().as_secs_f64(),
            stops: self.watcher.borrow().stopped(),
            saves: self.clocks.saved.elapsed() >= self.job.options.save_every,
        }
    }

    fn waits(&self, waited: Duration) -> Result<()> {
        match waited >= MOMENT && self.watcher.borrow().stopped() {
            true => self.keep(),
            false => Ok(()),
        }
    }
}

impl Job<'_> {
    /// What a batch teaches all ranks; a batch that could not be read ends the job on all.
    ///
    /// # Errors
    /// The own ones, and those of other ranks; device when a rank is lost, behind a checkpoint.
    pub(super) fn learn(
        &mut self,
        state: &State,
        batch: Result<&TrainBatch>,
        watcher: &mut dyn Watcher,
        clocks: Clocks,
        spent: &mut Spent,
    ) -> Result<Learnt> {
        let started = Instant::now();
        let material = batch.and_then(|batch| Ok((batch, self.answer(batch)?)));
        spent.teacher += started.elapsed().as_secs_f64();
        let started = Instant::now();
        let seed = self.options.seed ^ (state.epoch << 32 | state.batch).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let scale = state.course.scaler.as_ref().map_or(1.0, Scaler::scale);
        let how = Learning { loss: &self.options.loss, seed, scale };
        let beside = BesideBatch { job: self, state, watcher: RefCell::new(watcher), clocks, kept: Cell::new(None) };
        let material = material.as_ref().map(|(batch, answer)| (*batch, answer)).map_err(Clone::clone);
        let learnt = self.replicas.learn(&self.model, how, material, &beside);
        if learnt.as_ref().is_err_and(|e| e.kind() == Kind::Device) && self.replicas.team().count() > 1 {
            beside.keep()?;
        }
        let (learnt, saving) = (learnt?, beside.kept.get().unwrap_or(0.0));
        spent.saving += saving;
        spent.exchange += learnt.waited - saving;
        spent.compute += started.elapsed().as_secs_f64() - learnt.waited;
        Ok(learnt)
    }

    /// What the teacher says of a batch.
    pub(super) fn answer(&mut self, batch: &TrainBatch) -> Result<Answer> {
        let indices = self.same_samples.then_some(&batch.indices[..]);
        match &mut self.teacher {
            Some(teacher) if batch.len > 0 => teacher.answer(&batch.inputs, indices),
            _ => Ok(Answer::default()),
        }
    }

    /// The checkpoint to go on from: the first rank reads it.
    pub(super) fn checkpoint(&self, watcher: &mut dyn Watcher) -> Result<Option<Checkpoint>> {
        let team = self.replicas.team();
        let mut found = None;
        let step = team.told(|| {
            if let Some((checkpoints, digest)) = &self.checkpoints
                && let Some((latest, warnings)) = checkpoints.latest(digest)?
            {
                warnings.iter().for_each(|w| watcher.warn(w));
                found = Some(latest);
            }
            Ok(found.as_ref().map(|found| found.step))
        })?;
        match step {
            Some(step) if team.count() > 1 => {
                let bytes = team.shared(found.map_or(Ok(vec![]), |found| found.to_bytes())?)?;
                Checkpoint::from_bytes(&bytes, step).map(Some)
            }
            _ => Ok(found),
        }
    }

    /// The score of the model: the first rank finds it.
    pub(super) fn scored(&self) -> Result<Score> {
        self.replicas.team().told(|| (self.score)(&self.model.trained()?))
    }

    /// Makes sure that all ranks have the same weights. The same gradients went into them, but CPUs of different kinds may round the step
    /// differently.
    pub(super) fn align(&mut self, watcher: &mut dyn Watcher) -> Result<()> {
        let team = self.replicas.team().clone();
        if team.count() == 1 {
            return Ok(());
        }
        let state = self.model.state()?;
        let sum = state.iter().fold(0, |sum, (_, t)| crc32c::crc32c_append(sum, t.bytes()));
        if team.all_say(&sum.to_le_bytes())? {
            return Ok(());
        }
        watcher.warn("the weights of ranks differ in their last bits, as CPUs of different kinds compute them: those of rank 0 stay");
        let bytes: Vec<u8> = state.iter().flat_map(|(_, t)| t.bytes()).copied().collect();
        let mut rest = &team.shared(bytes)?[..];
        let mut theirs = vec![];
        for (name, own) in state {
            let (bytes, others) = rest.split_at(own.bytes().len());
            theirs.push((name, Tensor::new(own.dtype(), own.shape().to_vec(), bytes.to_vec())?));
            rest = others;
        }
        self.restore(&theirs)
    }
}

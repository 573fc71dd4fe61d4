//! What a step of training takes: memory, and so how large a batch may be; and time.

use super::model::Trainable;
use crate::{burn::tensor::Value, memory};
use compress_compiler::{
    error::{Error, Kind, Result},
    ops::reduce::ReduceKind,
    tensor::Tensor,
};
use std::time::{Duration, Instant};

/// The batches by which the memory of a step is measured.
const PROBES: [usize; 2] = [16, 64];

/// The share of the free memory that a step may take.
const SHARE: f64 = 0.6;

impl Trainable {
    /// The most samples of a batch that fit into the memory that is free, up to `most`: a power of two. On the CPU it is found by
    /// training on two batches that `sample` makes and looking at what that takes. Of another device's memory nobody says what is
    /// free: batches are tried there, each half of the one before, until one fits.
    ///
    /// # Errors
    /// As for [`Trainable::forward`]; unsupported where the system doesn't tell.
    pub fn largest_batch(&self, most: usize, sample: impl Fn(usize) -> Result<Vec<Tensor>>) -> Result<usize> {
        if !self.device().is_cpu() {
            let mut size = 1 << most.max(1).ilog2();
            while let Err(e) = self.probe(&sample(size)?) {
                if e.kind() != Kind::Limit || size == 1 {
                    return Err(e);
                }
                size /= 2;
                // What was taken for the larger batch.
                self.device().give_back();
            }
            return Ok(size);
        }
        let mut taken = [0; 2];
        let sizes = [PROBES[0].min(most), PROBES[1].min(most)];
        for (size, taken) in sizes.into_iter().zip(&mut taken) {
            let inputs = sample(size)?;
            let ((), peak) = memory::peak_of(|| self.probe(&inputs))?;
            *taken = peak.ok_or_else(|| Error::unsupported("the system does not tell what memory a step takes"))?;
        }
        let free = memory::available().unwrap_or(0) as f64 * SHARE;
        let each = taken[1].saturating_sub(taken[0]) as f64 / (sizes[1] - sizes[0]).max(1) as f64;
        let fits = (sizes[1] as f64 + (free - taken[1] as f64).max(0.0) / each.max(1.0)) as usize;
        let fits = fits.clamp(1, most);
        Ok(1 << fits.ilog2())
    }

    /// A step that learns nothing: for what it takes.
    fn probe(&self, inputs: &[Tensor]) -> Result<()> {
        // While a batch is computed on a GPU the next one is there.
        let _next = (!self.device().is_cpu()).then(|| self.send(inputs)).transpose()?;
        let pass = self.forward(self.send(inputs)?, 0)?;
        let first = pass.outputs.iter().find_map(|v| if let Value::Float(x) = v { Some(x) } else { None });
        let whole = first.ok_or_else(|| Error::unsupported("no output is a float"))?.clone();
        let n = whole.elements();
        let gradients = pass.gradients(whole.reshape(&[n])?.reduce(ReduceKind::Sum, &[0], false)?)?;
        // Another device works on behind: what failed there is known when something is read.
        match gradients.into_iter().flatten().next().filter(|_| !self.device().is_cpu()) {
            Some(gradient) => gradient.detached().into_vec().map(drop),
            None => Ok(()),
        }
    }

    /// How long a step on these inputs takes.
    ///
    /// # Errors
    /// As for [`Trainable::forward`].
    pub fn duration_of_a_step(&self, inputs: &[Tensor]) -> Result<Duration> {
        // The first of all steps gets the memory of all.
        self.probe(inputs)?;
        let began = Instant::now();
        self.probe(inputs)?;
        Ok(began.elapsed())
    }
}

//! What training makes of steps.

use super::{Executable, Step};
use compress_compiler::{op::Op, ops::unary::Unary};
use std::collections::HashMap;

impl Executable {
    /// Each Relu becomes a part of the batch normalisation that it alone reads, so that what is
    /// between them is neither written nor read, forward and backward.
    pub(crate) fn with_fused_steps(mut self) -> Self {
        let mut readers: HashMap<usize, usize> = HashMap::new();
        let read = self.steps.iter().flat_map(|step| step.inputs.iter().flatten().map(|(slot, _)| *slot));
        read.chain(self.outputs.iter().copied()).for_each(|slot| *readers.entry(slot).or_default() += 1);
        let mut norms: HashMap<usize, usize> = HashMap::new();
        let mut steps: Vec<Step> = Vec::with_capacity(self.steps.len());
        for step in self.steps {
            match (&step.op, &step.inputs[..]) {
                (Op::BatchNorm(norm), _) if norm.training => {
                    if let Some(slot) = step.outputs[0]
                        && readers.get(&slot) == Some(&1)
                    {
                        norms.insert(slot, steps.len());
                    }
                }
                (Op::Unary(Unary::Relu), [Some((slot, _))]) => {
                    let before = norms.remove(slot).map(|at| &mut steps[at]);
                    if let Some(Step { rectified, outputs, .. }) = before {
                        *rectified = true;
                        outputs[0] = step.outputs[0];
                        continue;
                    }
                }
                _ => {}
            }
            steps.push(step);
        }
        self.steps = steps;
        // It knows the steps as they were.
        self.recorder = None;
        self
    }
}

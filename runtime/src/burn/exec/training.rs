//! What training makes of steps.

use super::{Executable, Step};
use crate::burn::tensor::{Value, hearing};
use compress_compiler::{op::Op, ops::unary::Unary};
use std::{collections::HashMap, ops::Range};

impl Executable {
    /// The same, where the gradients of these inputs can be [listened to](hearing::Ear), each under its number.
    pub(crate) fn heard(mut self, inputs: Range<usize>) -> Self {
        let slots = inputs.enumerate().filter_map(|(number, input)| Some((self.inputs[input].slot?, number)));
        let heard: HashMap<usize, usize> = slots.collect();
        // What is an output itself has a gradient that no step tells of.
        self.heard = heard.into_iter().filter(|(slot, _)| !self.outputs.contains(slot)).collect();
        self
    }

    /// The inputs that can be listened to or not, in the order in which their gradients are whole: those that are first read last come
    /// first.
    pub(crate) fn last_read_first(&self, inputs: Range<usize>) -> Vec<usize> {
        let first_read =
            |slot: usize| self.steps.iter().position(|s| s.inputs.iter().flatten().any(|(of, _)| *of == slot));
        let place = |number: usize| self.inputs[inputs.start + number].slot.and_then(first_read).unwrap_or(0);
        let mut numbers: Vec<usize> = (0..inputs.len()).collect();
        numbers.sort_by_cached_key(|number| std::cmp::Reverse(place(*number)));
        numbers
    }

    /// Before a step runs: what it reads of parameters is listened to.
    pub(super) fn listen(&self, step: &Step, args: &mut [Option<Value>]) {
        for (input, arg) in step.inputs.iter().zip(args) {
            let number = input.and_then(|(slot, _)| self.heard.get(&slot));
            if let (Some(number), Some(Value::Float(parameter))) = (number, &mut *arg) {
                *arg = Some(Value::Float(hearing::read(parameter.clone(), *number)));
            }
        }
        hearing::tick();
    }

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

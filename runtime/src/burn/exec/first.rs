//! Runs that are played again, and what is done before: the steps that integers of inputs go through.
//!
//! A recorded run launches the same kernels with the same sizes, so nothing in it may depend on integers, which live on the host:
//! tokens, masks. In most models few steps read them, near the inputs, and make floats of them: the rows of a table, a mask that is
//! added. These steps are done first in each run, and all others are played again on what they made.

use super::{Executable, Step, download};
use crate::{
    burn::{
        control::Run,
        inputs::{Input, complete},
        tensor::Value,
    },
    gpu::{Given, Recorder, Sizes},
};
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    op::{Op, Operator},
    tensor::{DType, Tensor},
    value::Fact,
};
use std::collections::{BTreeSet, HashMap, HashSet};

/// The steps that are done first, and the values around them, by slot.
#[derive(Default)]
pub(super) struct First {
    /// Which of the steps these are.
    is_first: Vec<bool>,
    /// Inputs of the model that they read.
    reads: HashSet<usize>,
    /// Integers that they read and that other steps make of sizes alone: they are the same in all runs of the same sizes.
    known: Vec<usize>,
    /// What the other steps begin with.
    given: Vec<usize>,
    /// Outputs of the model that other steps don't make.
    passed: HashSet<usize>,
    /// What has to be there still when it was read for the last time, as steps are done in two orders.
    pub kept: Vec<usize>,
}

/// Whether the elements of an operand may decide how large a result is. What isn't known to do otherwise does.
#[rustfmt::skip]
fn decides_sizes(step: &Step, operand: usize) -> bool {
    match step.op {
        // Kernels of ours take sizes from operands and from the graph.
        _ if step.fused.is_some() => false,
        Op::Reshape(_) | Op::Squeeze(_) | Op::Unsqueeze(_) | Op::Split(_) | Op::Slice(_) | Op::Expand(_) | Op::Tile(_)
        | Op::Reduce(_) | Op::Pad(_) | Op::Resize(_) => operand != 0,
        Op::Conv(_) | Op::ConvTranspose(_) | Op::Pool(_) | Op::GlobalPool(_) | Op::IntegerConv(_)
        | Op::Gemm(_) | Op::MatMul(_) | Op::IntegerMatMul(_) | Op::Attention(_) | Op::RotaryEmbedding(_) | Op::Einsum(_)
        | Op::BatchNorm(_) | Op::LayerNorm(_) | Op::RmsNorm(_) | Op::GroupNorm(_) | Op::InstanceNorm(_) | Op::Lrn(_)
        | Op::Unary(_) | Op::Activation(_) | Op::IsInf(_) | Op::Binary(_) | Op::Mod(_) | Op::Variadic(_) | Op::Clip(_)
        | Op::Softmax(_) | Op::Arg(_) | Op::LpNorm(_) | Op::SwiGlu(_) | Op::Quantize(_) | Op::Dequantize(_)
        | Op::Cast(_) | Op::CastLike(_) | Op::Where(_) | Op::Identity(_) | Op::Dropout(_) | Op::Trilu(_)
        | Op::Flatten(_) | Op::Transpose(_) | Op::Concat(_) | Op::Shape(_) | Op::Size(_)
        | Op::Gather(_) | Op::GatherElements(_) | Op::GatherNd(_) | Op::ScatterNd(_) | Op::ScatterElements(_) => false,
        _ => true,
    }
}

/// Slots of integers that follow from the sizes of inputs; none, where other values may decide sizes too.
fn follow_from_sizes(
    steps: &[Step],
    is_constant: &dyn Fn(usize) -> bool,
    is_int: &dyn Fn(usize) -> bool,
) -> HashSet<usize> {
    let mut sized = HashSet::new();
    for step in steps {
        // What a body does is not looked at.
        if !step.bodies.is_empty() {
            return HashSet::new();
        }
        let follows = |slot: usize| is_constant(slot) || sized.contains(&slot);
        let operands = || step.inputs.iter().enumerate().filter_map(|(i, input)| input.map(|(slot, _)| (i, slot)));
        if operands().any(|(i, slot)| decides_sizes(step, i) && !follows(slot)) {
            return HashSet::new();
        }
        let is_size = matches!(step.op, Op::Shape(_) | Op::Size(_));
        if is_size || !step.op.is_random() && operands().all(|(_, slot)| follows(slot)) {
            sized.extend(step.outputs.iter().flatten().copied().filter(|slot| is_int(*slot)));
        }
    }
    sized
}

/// Whether [`Value::input`] may leave it on the host.
fn is_on_host(input: &Input) -> bool {
    match input.fact.dtype {
        Some(DType::U8 | DType::I8) => input.fact.rank().is_none_or(|rank| rank < 2),
        dtype => dtype.is_none_or(|d| !d.is_float()),
    }
}

impl First {
    /// The steps that read integers of inputs, and the steps that these depend on.
    fn of(exe: &Executable, graph: &Graph) -> Self {
        let Executable { steps, inputs, outputs, constants, .. } = exe;
        let facts: HashMap<usize, &Fact> =
            exe.slots.iter().map(|(want, slot)| (*slot, graph.fact(want.port))).collect();
        let is_int = |slot: usize| facts.get(&slot).and_then(|f| f.dtype).is_some_and(|d| !d.is_float());
        let sized = follow_from_sizes(steps, &|slot| constants[slot].is_some(), &is_int);
        let mut first = Self::reading_integers(steps, inputs, &is_int);
        first.add_what_they_need(steps, &sized);
        let are =
            |wanted: bool| steps.iter().zip(&first.is_first).filter(move |(_, is)| **is == wanted).map(|(s, _)| s);
        let slots_read = |step: &Step| step.inputs.iter().flatten().map(|(slot, _)| *slot).collect::<Vec<_>>();
        let made = are(true).flat_map(|s| s.outputs.iter().flatten().copied());
        let there: HashSet<usize> = inputs.iter().filter_map(|i| i.slot).chain(made).collect();
        let given: BTreeSet<usize> = are(false).flat_map(slots_read).filter(|slot| there.contains(slot)).collect();
        let kept = are(true).flat_map(slots_read).filter(|slot| given.contains(slot));
        let kept = kept.chain(first.known.iter().copied()).collect();
        let passed = outputs.iter().copied().filter(|slot| there.contains(slot)).collect();
        Self { given: given.into_iter().collect(), passed, kept, ..first }
    }

    /// The steps that read integers of inputs, or that follow from these.
    fn reading_integers(steps: &[Step], inputs: &[Input], is_int: &dyn Fn(usize) -> bool) -> Self {
        let mut on_host: HashSet<usize> = inputs.iter().filter(|i| is_on_host(i)).filter_map(|i| i.slot).collect();
        let reads = on_host.clone();
        let mut is_first = vec![false; steps.len()];
        for (is_first, step) in is_first.iter_mut().zip(steps) {
            *is_first = step.inputs.iter().flatten().any(|(slot, _)| on_host.contains(slot));
            // A shape is the same in all runs of the same sizes.
            if *is_first && !matches!(step.op, Op::Shape(_) | Op::Size(_)) {
                on_host.extend(step.outputs.iter().flatten().copied().filter(|slot| is_int(*slot)));
            }
        }
        Self { is_first, reads, ..Self::default() }
    }

    /// Adds what makes operands of these steps, but for what follows from sizes.
    fn add_what_they_need(&mut self, steps: &[Step], sized: &HashSet<usize>) {
        let maker =
            |(i, step): (usize, &Step)| step.outputs.iter().flatten().map(|slot| (*slot, i)).collect::<Vec<_>>();
        let makers: HashMap<usize, usize> = steps.iter().enumerate().flat_map(maker).collect();
        let mut open: Vec<usize> = (0..steps.len()).filter(|i| self.is_first[*i]).collect();
        while let Some(i) = open.pop() {
            for (slot, _) in steps[i].inputs.iter().flatten() {
                match makers.get(slot) {
                    Some(maker) if self.is_first[*maker] => {}
                    Some(_) if sized.contains(slot) => self.known.push(*slot),
                    Some(maker) => {
                        self.is_first[*maker] = true;
                        open.push(*maker);
                    }
                    None => drop(self.reads.insert(*slot)),
                }
            }
        }
    }
}

impl Executable {
    /// Sees whether runs can be played again, and what has to be done before.
    pub(super) fn prepare_to_play(&mut self, graph: &Graph) {
        let Some(recorder) = Recorder::new(&self.device) else { return };
        let first = First::of(self, graph);
        let is_same = |step: &Step| !step.op.is_random() && step.bodies.is_empty();
        let (mut count, mut all_same) = (0, true);
        for (step, is_first) in self.steps.iter().zip(&first.is_first) {
            count += usize::from(*is_first);
            all_same &= *is_first || is_same(step);
        }
        // Where most steps have to be done anyway, little is gained.
        if all_same && count * 2 < self.steps.len() {
            (self.first, self.recorder) = (first, Some(recorder));
        }
    }

    /// The first steps, or the others.
    fn steps_that_are(&self, first: bool) -> impl Iterator<Item = &Step> {
        self.steps.iter().zip(&self.first.is_first).filter(move |(_, is)| **is == first).map(|(step, _)| step)
    }

    /// Runs it: the first steps, and the others again as they were recorded, if they were.
    ///
    /// # Errors
    /// As for [`Executable::run`].
    pub(super) fn play(&self, recorder: &Recorder, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let mut nobody = |_: usize, _: &[f32]| Ok(());
        let missing = || Error::bug("a value is read before it is computed");
        let given = complete(&self.inputs, inputs)?;
        let sizes: Sizes = given.iter().map(|t| (t.dtype(), t.shape().to_vec())).collect();
        let mut values: Vec<Option<Value>> = vec![None; self.constants.len()];
        let Some(known) = recorder.known(&sizes) else {
            values = self.feed(inputs)?;
            self.pass(self.steps.iter(), &mut values, &mut Run::new(&mut nobody), None)?;
            let known = self.first.known.iter().map(|slot| values[*slot].clone()).collect::<Option<Vec<_>>>();
            recorder.saw(sizes, known.ok_or_else(missing)?);
            return download(self.results_of(&mut values)?);
        };
        self.first.known.iter().zip(known).for_each(|(slot, value)| values[*slot] = Some(value));
        let mut tensors = HashMap::new();
        for (input, tensor) in self.inputs.iter().zip(given) {
            let Some(slot) = input.slot else { continue };
            match self.first.reads.contains(&slot) {
                true => values[slot] = Some(Value::input(tensor, &self.device)?),
                false => drop(tensors.insert(slot, tensor)),
            }
        }
        self.pass(self.steps_that_are(true), &mut values, &mut Run::new(&mut nobody), None)?;
        let there = |slot: &usize| match tensors.get(slot) {
            Some(tensor) => Ok(Given::Sent(tensor)),
            None => values[*slot].clone().map(Given::Made).ok_or_else(missing),
        };
        let given = self.first.given.iter().map(there).collect::<Result<Vec<_>>>()?;
        let made_by_others = |slot: &&usize| !self.first.passed.contains(slot);
        let made = recorder.run(&given, &|given| {
            let mut values: Vec<Option<Value>> = vec![None; self.constants.len()];
            self.first.given.iter().zip(given).for_each(|(slot, value)| values[*slot] = Some(value));
            self.pass(self.steps_that_are(false), &mut values, &mut Run::new(&mut |_, _| Ok(())), None)?;
            self.outputs.iter().filter(made_by_others).map(|slot| self.read(&mut values, *slot, false)).collect()
        })?;
        let mut made = made.into_iter();
        let outputs = self.outputs.iter().map(|slot| match self.first.passed.contains(slot) {
            true => match there(slot)? {
                Given::Sent(tensor) => Ok(tensor.clone()),
                Given::Made(value) => value.download(),
            },
            false => made.next().ok_or_else(missing),
        });
        outputs.collect()
    }
}

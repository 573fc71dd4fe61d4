//! Running a plan.

use super::{
    arena::{Split, Workspace},
    program::Program,
    steps::{Operands, Place, READS, Seen, Spent, Step, View},
};
use compress_compiler::{
    error::{Error, Result},
    tensor::DType,
};
use compress_kernels::Team;
use std::{ops::Range, time::Instant};

/// A constant of a plan.
pub(super) enum Constant {
    Float(Vec<f32>),
    Codes(Vec<u8>),
}

/// Looks at the bytes of an input's elements.
type Find = dyn Fn(&[u8]) -> Result<()> + Send + Sync;

/// What an input's elements have to be: which input, for which node, and what finds an error.
pub(super) struct Check {
    pub input: usize,
    pub label: String,
    pub find: Box<Find>,
}

/// Steps with places: what runs.
pub(super) struct Plan {
    pub checks: Vec<Check>,
    /// The most threads that work on a step.
    pub threads: usize,
    pub steps: Vec<Step>,
    pub constants: Vec<Constant>,
    /// Where each buffer begins.
    pub places: Vec<usize>,
    /// Bytes of all buffers together.
    pub memory: usize,
    /// Bytes that kernels have for themselves.
    pub scratch: usize,
    pub outputs: Vec<(View, DType, Vec<usize>)>,
    /// Values to show: after which step, by which number, where.
    pub shown: Vec<(usize, usize, View)>,
}

/// What watched values are shown to.
pub(super) type Sink<'a> = dyn FnMut(usize, &[f32]) -> Result<()> + 'a;

impl Plan {
    /// Bytes of a workspace that it needs.
    pub fn bytes(&self) -> usize {
        self.memory + self.scratch
    }

    /// Runs all steps on the bytes of the inputs, and fills those of the outputs.
    ///
    /// # Errors
    /// What a check finds; what `sink` returns.
    ///
    /// # Panics
    /// When the workspace has less than [`Plan::bytes`].
    pub fn run(
        &self,
        program: &Program,
        workspace: &mut Workspace,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
        sink: &mut Sink,
        mut spent: Option<&mut Vec<Spent>>,
    ) -> Result<()> {
        for check in &self.checks {
            (check.find)(inputs[check.input]).map_err(|e| e.at(&check.label))?;
        }
        let (memory, scratch) = workspace.bytes()[..self.bytes()].split_at_mut(self.memory);
        let source = Memory { inputs, constants: &self.constants, places: &self.places };
        let parts = self.steps.iter().map(|s| s.parts).max().unwrap_or(1);
        let _team = (parts > 1).then(|| Team::assemble(self.threads.min(parts)));
        let mut shown = self.shown.iter().peekable();
        for (i, step) in self.steps.iter().enumerate() {
            while let Some((_, place, view)) = shown.next_if(|s| s.0 == i) {
                sink(*place, bytemuck::cast_slice(source.bytes(view, size_of::<f32>(), |range| &memory[range])))?;
            }
            let started = spent.is_some().then(Instant::now);
            let Place::Buffer(b) = step.write.place else { return Err(Error::bug("a step writes to a constant")) };
            let start = self.places[b] + step.write.offset * step.size;
            let split = Split::new(memory, start..start + step.write.extent() * step.size);
            let mut reads = [None; READS];
            for (to, (view, size)) in reads.iter_mut().zip(&step.reads) {
                *to = Some(Seen { bytes: source.bytes(view, *size, |range| split.read(range)), view: *view });
            }
            let write = Some((split.write, step.write));
            (step.call)(&mut Operands { reads, write, scratch, parts: step.parts });
            if let (Some(list), Some(started)) = (spent.as_deref_mut(), started) {
                list.push(Spent {
                    node: step
                        .instruction
                        .map_or("(inputs and outputs)".into(), |l| program.instructions[l].label.clone()),
                    kernel: step.kernel,
                    ms: started.elapsed().as_secs_f64() * 1e3,
                    started,
                    worker: (0, 1),
                });
            }
        }
        for (_, place, view) in shown {
            sink(*place, bytemuck::cast_slice(source.bytes(view, size_of::<f32>(), |range| &memory[range])))?;
        }
        for ((view, dtype, _), to) in self.outputs.iter().zip(outputs) {
            to.copy_from_slice(source.bytes(view, dtype.size(), |range| &memory[range]));
            if *dtype == DType::I8 {
                to.iter_mut().for_each(|b| *b ^= 128);
            }
        }
        Ok(())
    }
}

/// Where what is read lies.
struct Memory<'a> {
    inputs: &'a [&'a [u8]],
    constants: &'a [Constant],
    places: &'a [usize],
}

impl Memory<'_> {
    fn bytes<'m>(&'m self, view: &View, size: usize, memory: impl FnOnce(Range<usize>) -> &'m [u8]) -> &'m [u8] {
        let range = view.offset * size..(view.offset + view.extent()) * size;
        match view.place {
            Place::Buffer(b) => memory(self.places[b] + range.start..self.places[b] + range.end),
            Place::Input(i) => &self.inputs[i][range],
            Place::Constant(c) => match &self.constants[c] {
                Constant::Float(v) => &bytemuck::cast_slice(v)[range],
                Constant::Codes(v) => &v[range],
            },
        }
    }
}

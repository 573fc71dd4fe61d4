//! How the samples of a batch are run: all at once, or a few at a time.
//!
//! A batch of pictures whose activations don't fit into the cache runs faster in pieces that do;
//! and threads that have samples of their own never wait for each other. That needs a model in
//! which every sample is made of its own input alone ([`Lowered::is_by_sample`]), and pays where
//! weights are read for more than one sample's sake.
//!
//! [`Lowered::is_by_sample`]: super::lowering::Lowered::is_by_sample

use super::{
    arena::{Workspace, Workspaces},
    lowering::Operand,
    plan::plan,
    program::{Given, Program},
    run::{Constant, Plan, Sink},
    steps::Spent,
};
use crate::memory;
use compress_compiler::{error::Result, graph::Graph, tensor::Tensor};
use rayon::prelude::*;
use std::{
    borrow::Cow,
    sync::{Mutex, PoisonError},
};

/// Bytes of activations that stay in a core's second-level cache.
const CACHE: usize = 1 << 20;

/// A piece's activations must be at least this share of the weights, which are read once a piece.
const ACTIVATIONS_PER_WEIGHT: f64 = 1.0 / 8.0;

/// A step with what its kernel captured.
const STEP_BYTES: usize = 1 << 10;

/// How inputs of certain shapes are run.
pub(super) struct Batch {
    /// The shapes of the outputs.
    outputs: Vec<Vec<usize>>,
    /// The outputs that are sizes.
    sizes: Vec<Tensor>,
    /// Into how many pieces a batch is cut.
    pieces: usize,
    /// How many threads take pieces.
    workers: usize,
    /// How a piece is run; none where there can be no plan.
    plan: Option<Plan>,
}

impl Batch {
    /// Plans `program` for what is `given`.
    ///
    /// # Errors
    /// Those of shape inference and of planning.
    pub fn new(program: &Program, graph: &Graph, given: &Given, threads: usize) -> Result<Self> {
        let (all, sizes) = program.shapes(graph, given)?;
        let outputs = program.outputs.iter().map(|id| all[*id].clone()).collect();
        let (pieces, workers, plan) = match Self::in_pieces(program, graph, given, &all, threads)? {
            Some(made) => made,
            None => (1, 1, plan(program, all, threads, false)?),
        };
        memory::check(plan.bytes().saturating_mul(workers), || "the activations of this batch".into())?;
        Ok(Self { outputs, sizes, pieces, workers, plan: Some(plan) })
    }

    /// Where there is no plan.
    pub fn impossible() -> Self {
        Self { outputs: vec![], sizes: vec![], pieces: 0, workers: 0, plan: None }
    }

    /// The number of pieces, of threads that take them, and the plan for one, where cutting the
    /// batch pays.
    fn in_pieces(
        program: &Program,
        graph: &Graph,
        given: &Given,
        all: &[Vec<usize>],
        threads: usize,
    ) -> Result<Option<(usize, usize, Plan)>> {
        // What is watched is shown once, as a whole.
        let Some(samples) = samples(program, all).filter(|n| *n > 1 && program.watch.is_empty()) else {
            return Ok(None);
        };
        let of = |n: usize| -> Option<Vec<Vec<usize>>> {
            let shapes = given.shapes.iter().map(|s| [&[n], &s[1..]].concat()).collect();
            let (made, _) = program.shapes(graph, &Given { shapes, beside: given.beside.clone() }).ok()?;
            // A shape that is written down somewhere may not follow.
            let follows = |(id, (a, b)): (usize, (&Vec<usize>, &Vec<usize>))| match program.is_constant(id) {
                true => a == b,
                false => a[0] == n && a[1..] == b[1..],
            };
            made.iter().zip(all).enumerate().all(follows).then_some(made)
        };
        let Some(one) = of(1) else { return Ok(None) };
        let bytes = plan(program, one, 1, true)?.memory.max(1);
        let weights: usize = program.instructions.iter().map(|l| l.op.weight_bytes()).sum();
        let pays = |n: usize| (n * bytes) as f64 >= ACTIVATIONS_PER_WEIGHT * weights as f64;
        let fits = (CACHE / bytes).clamp(1, samples);
        let share = samples / threads;
        let (most, workers) =
            if threads > 1 && share > 0 && pays(share) { (fits.min(share), threads) } else { (fits, 1) };
        let Some(n) = (1..=most).rev().find(|n| samples.is_multiple_of(*n)).filter(|n| *n < samples && pays(*n)) else {
            return Ok(None);
        };
        let (pieces, inner) = (samples / n, if workers > 1 { 1 } else { threads });
        let Some(shapes) = of(n) else { return Ok(None) };
        Ok(Some((pieces, workers.min(pieces), plan(program, shapes, inner, true)?)))
    }

    /// Bytes that this takes, about. One without a plan takes some too: there may be any number of them.
    pub fn bytes(&self) -> usize {
        let of = |plan: &Plan| {
            let constants = plan.constants.iter().map(|constant| match constant {
                Constant::Float(v) => size_of_val(&v[..]),
                Constant::Codes(v) => v.len(),
            });
            plan.steps.len() * STEP_BYTES + constants.sum::<usize>()
        };
        STEP_BYTES + self.plan.as_ref().map_or(0, of)
    }

    /// Runs all pieces; `None` where there is no plan.
    ///
    /// # Errors
    /// What `sink` returns.
    pub fn run(
        &self,
        program: &Program,
        workspaces: &Workspaces,
        inputs: &[&Tensor],
        sink: &mut Sink,
        spent: Option<&mut Vec<Spent>>,
    ) -> Result<Option<Vec<Tensor>>> {
        let Some(plan) = &self.plan else { return Ok(None) };
        // Mapped tensors may lie anywhere; what is not aligned is copied.
        let aligned: Vec<Cow<[u8]>> = inputs
            .iter()
            .map(|t| match t.as_f32() {
                Some(Cow::Owned(v)) => Cow::Owned(bytemuck::cast_slice(&v).to_vec()),
                _ => Cow::Borrowed(t.bytes()),
            })
            .collect();
        let types = program.outputs.iter().map(|id| program.values[*id].dtype);
        let made: Vec<_> = types.zip(self.outputs.iter().cloned()).collect();
        let mut bytes: Vec<Vec<u8>> =
            made.iter().map(|(t, dims)| vec![0; dims.iter().product::<usize>() * t.size()]).collect();
        let mut pieces = pieces(self.pieces, &aligned, &mut bytes).into_iter();
        let mut spaces = workspaces.take(self.workers, plan.bytes());
        let done = match (&mut spaces[..], spent) {
            ([space], mut spent) => pieces.try_for_each(|(inputs, mut outputs)| {
                plan.run(program, space, &inputs, &mut outputs, sink, spent.as_deref_mut())
            }),
            (spaces, Some(spent)) => timed(plan, program, spaces, pieces.collect(), spent),
            (spaces, None) => {
                let open = Mutex::new(pieces);
                let next = || open.lock().unwrap_or_else(PoisonError::into_inner).next();
                spaces.par_iter_mut().try_for_each(|space| {
                    while let Some((inputs, mut outputs)) = next() {
                        plan.run(program, space, &inputs, &mut outputs, &mut |_, _| Ok(()), None)?;
                    }
                    Ok(())
                })
            }
        };
        workspaces.put_back(spaces);
        done?;
        let tensors = made.into_iter().zip(bytes).map(|((dtype, dims), bytes)| Tensor::new(dtype, dims, bytes));
        let mut tensors: Vec<Tensor> = tensors.collect::<Result<_>>()?;
        for ((place, _), size) in program.sizes.iter().zip(&self.sizes) {
            tensors.insert(*place, size.clone());
        }
        Ok(Some(tensors))
    }
}

/// Runs all pieces, each on the thread that has its turn, so that runs can be compared; and tells the steps of all threads.
fn timed(
    plan: &Plan,
    program: &Program,
    spaces: &mut [Workspace],
    pieces: Vec<Piece>,
    spent: &mut Vec<Spent>,
) -> Result<()> {
    let workers = spaces.len();
    let mut shares: Vec<Vec<Piece>> = (0..workers).map(|_| vec![]).collect();
    pieces.into_iter().enumerate().for_each(|(i, piece)| shares[i % workers].push(piece));
    let work = |(worker, (space, share)): (usize, (&mut Workspace, Vec<Piece>))| {
        let mut own = vec![];
        for (inputs, mut outputs) in share {
            plan.run(program, space, &inputs, &mut outputs, &mut |_, _| Ok(()), Some(&mut own))?;
        }
        own.iter_mut().for_each(|s| (s.ms, s.worker) = (s.ms / workers as f64, (worker, workers)));
        Ok(own)
    };
    let all: Vec<Vec<Spent>> = spaces.par_iter_mut().zip(shares).enumerate().map(work).collect::<Result<_>>()?;
    spent.extend(all.into_iter().flatten());
    Ok(())
}

/// The bytes of a piece's inputs and outputs.
type Piece<'a> = (Vec<&'a [u8]>, Vec<&'a mut [u8]>);

/// Cuts inputs and outputs into `n` pieces of equal size.
fn pieces<'a>(n: usize, inputs: &'a [Cow<[u8]>], outputs: &'a mut [Vec<u8>]) -> Vec<Piece<'a>> {
    let mut out: Vec<Piece> = (0..n).map(|_| (vec![], vec![])).collect();
    for all in inputs {
        let size = all.len() / n;
        out.iter_mut().enumerate().for_each(|(i, piece)| piece.0.push(&all[i * size..][..size]));
    }
    for all in outputs {
        let size = all.len() / n;
        let mut rest = &mut all[..];
        for piece in &mut out {
            let (own, behind) = rest.split_at_mut(size);
            piece.1.push(own);
            rest = behind;
        }
    }
    out
}

/// How many samples there are along the first axis of all values, if each is made of its own.
fn samples(program: &Program, all: &[Vec<usize>]) -> Option<usize> {
    let n = *all[*program.inputs.first()?].first()?;
    let has = |id: usize| program.is_constant(id) || all[id].first() == Some(&n);
    let operand = |id: &usize| Operand { dims: &all[*id], is_constant: program.is_constant(*id) };
    let by_sample = |l: &super::program::Instruction| {
        l.op.is_by_sample(&l.inputs.iter().map(operand).collect::<Vec<_>>(), &all[l.output])
    };
    let ends = program.outputs.iter().all(|id| !program.is_constant(*id));
    (ends && (0..all.len()).all(has) && program.instructions.iter().all(by_sample)).then_some(n)
}

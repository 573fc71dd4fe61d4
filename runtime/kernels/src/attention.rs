//! Attention: weights of keys, which are the softmax of their products with queries, and sums of values by these weights
//! (Vaswani et al., "Attention is all you need", 2017).
//!
//! A block of queries is taken through all three steps while the cache holds its scores: they are never in memory as a
//! whole, as in FlashAttention (Dao et al., 2022), but a row of them is there at once, so that its greatest is known
//! from the start. Sums of values are divided by that of the weights at the end: before that, they may be as large as the
//! number of keys times the largest value.

use crate::{
    GemmF, Isa, Rows, RowsMut,
    conv::{aligned, bytes},
    elementwise::{scale_rows, weigh_rows},
    gemv::{Raw, dots, sums},
    team::join,
};
use std::ops::Range;

/// Bytes of the scores of a block of queries.
const SCORES: usize = 128 << 10;

/// The most queries of a block.
const BLOCK: usize = 64;

/// Queries up to which keys and values are read where they lie: to pack them takes as long as to multiply them by so many.
const FEW: usize = 3;

/// What becomes of scores before the softmax.
#[derive(Debug, Clone, Copy)]
pub enum Mask<'a> {
    /// Something is added to them.
    Added(Rows<'a, f32>),
    /// Those for which `condition` isn't `keeps` become `other`.
    Kept {
        /// 0, or not.
        condition: Rows<'a, u8>,
        /// Whether it is what isn't 0 that keeps scores.
        keeps: bool,
        /// What the others become.
        other: f32,
    },
}

/// The most masks of a head.
pub const MASKS: usize = 2;

/// What a head reads.
#[derive(Debug, Clone, Copy)]
pub struct Head<'a> {
    /// A row a query.
    pub queries: Rows<'a, f32>,
    /// A row a key, or a column.
    pub keys: Rows<'a, f32>,
    /// A row a value.
    pub values: Rows<'a, f32>,
    /// Masks in the order in which they apply, each with a row for every query or for all, and a column for every key or for
    /// all.
    pub masks: [Option<Mask<'a>>; MASKS],
}

/// The sizes of heads, and what they have in common.
#[derive(Debug, Clone, Copy)]
pub struct Heads {
    /// Features of a query and a key.
    pub depth: usize,
    /// How many keys.
    pub keys: usize,
    /// Features of a value.
    pub width: usize,
    /// Whether keys are rows, rather than columns.
    pub keys_are_rows: bool,
    /// What products are multiplied by.
    pub scale: f32,
    /// Whether the weights of a query become 0 where the softmax is NaN, as where it sees no key.
    pub guarded: bool,
}

/// Attention of heads of certain sizes.
#[derive(Debug)]
pub struct Attention {
    isa: Isa,
    heads: Heads,
    products: GemmF,
    averages: GemmF,
    /// Where sums begin.
    zeros: Vec<f32>,
}

impl Attention {
    /// Attention of such heads.
    ///
    /// # Panics
    /// When the machine doesn't have `isa`, or there are no keys, or no features.
    pub fn new(isa: Isa, heads: Heads) -> Self {
        let products = GemmF::new(isa, heads.depth, heads.keys, heads.keys_are_rows);
        let averages = GemmF::new(isa, heads.keys, heads.width, false);
        Self { isa, heads, products, averages, zeros: vec![0.0; heads.keys.max(heads.width)] }
    }

    /// Queries of a block, of so many.
    fn block(&self, queries: usize) -> usize {
        (SCORES / (size_of::<f32>() * self.heads.keys)).clamp(8, BLOCK).min(queries.max(1))
    }

    /// Bytes of scratch memory that one thread needs.
    fn own_scratch(&self, queries: usize) -> usize {
        let rows = self.block(queries);
        match queries {
            ..=FEW => bytes::<f32>(self.heads.keys),
            _ => {
                let products = self.products.scratch(rows, 1) + self.averages.scratch(rows, 1);
                products + bytes::<f32>(rows * self.heads.keys) + bytes::<f32>(rows)
            }
        }
    }

    /// Bytes of scratch memory for heads of so many queries.
    pub fn scratch(&self, queries: usize, threads: usize) -> usize {
        threads.max(1) * self.own_scratch(queries)
    }

    /// Multiply-accumulates of a head of so many queries.
    pub fn macs(&self, queries: usize) -> u64 {
        (queries * self.heads.keys * (self.heads.depth + self.heads.width)) as u64
    }

    /// Computes `n` heads, which `of` gives, into `y`, one below the other, in `threads` parts.
    ///
    /// # Panics
    /// When operands don't fit, or `scratch` is too small.
    pub fn run<'a>(
        &self,
        n: usize,
        of: impl Fn(usize) -> Head<'a> + Sync,
        y: RowsMut<f32>,
        scratch: &mut [u8],
        threads: usize,
    ) {
        let queries = y.rows().checked_div(n).unwrap_or(0);
        assert_eq!((y.rows(), y.width()), (n * queries, self.heads.width), "{n} heads");
        if queries == 0 {
            return;
        }
        let run = Run { at: self, of: &of, queries, block: self.block(queries) };
        let scratch = &mut scratch[..self.scratch(queries, threads)];
        run.divide(0..n * queries.div_ceil(run.block), y, scratch, threads.max(1));
    }
}

/// One run.
struct Run<'r, F> {
    at: &'r Attention,
    of: &'r F,
    /// Of a head.
    queries: usize,
    /// Queries of a block.
    block: usize,
}

impl<'a, F: Fn(usize) -> Head<'a> + Sync> Run<'_, F> {
    /// Head `i`.
    ///
    /// # Panics
    /// When its operands don't fit.
    fn head(&self, i: usize) -> Head<'a> {
        let (head, of) = ((self.of)(i), &self.at.heads);
        let keys = if of.keys_are_rows { (of.keys, of.depth) } else { (of.depth, of.keys) };
        assert_eq!((head.queries.rows(), head.queries.width()), (self.queries, of.depth), "queries");
        assert_eq!((head.keys.rows(), head.keys.width()), keys, "keys");
        assert_eq!((head.values.rows(), head.values.width()), (of.keys, of.width), "values");
        head
    }

    /// The head of a block, and which of its queries the block has.
    fn place(&self, block: usize) -> (usize, Range<usize>) {
        let blocks = self.queries.div_ceil(self.block);
        let first = block % blocks * self.block;
        (block / blocks, first..(first + self.block).min(self.queries))
    }

    fn divide(&self, blocks: Range<usize>, y: RowsMut<f32>, scratch: &mut [u8], threads: usize) {
        let left = threads / 2;
        if left == 0 {
            return self.one_by_one(blocks, y, scratch);
        }
        let at = blocks.start + blocks.len() * left / threads;
        let rows: usize = (blocks.start..at).map(|block| self.place(block).1.len()).sum();
        let (y_a, y_b) = y.split_at(rows);
        let (scratch_a, scratch_b) = scratch.split_at_mut(scratch.len() / threads * left);
        join(
            || self.divide(blocks.start..at, y_a, scratch_a, left),
            || self.divide(at..blocks.end, y_b, scratch_b, threads - left),
        );
    }

    fn one_by_one(&self, blocks: Range<usize>, mut y: RowsMut<f32>, scratch: &mut [u8]) {
        let Attention { isa, heads, products, averages, .. } = self.at;
        if self.queries <= FEW {
            for block in blocks {
                let (head, queries) = self.place(block);
                let (own, rest) = y.split_at(queries.len());
                self.few(&self.head(head), queries, own, aligned(scratch));
                y = rest;
            }
            return;
        }
        let (for_keys, scratch) = scratch.split_at_mut(bytes::<f32>(products.packed()));
        let (for_values, scratch) = scratch.split_at_mut(bytes::<f32>(averages.packed()));
        let (for_scores, scratch) = scratch.split_at_mut(bytes::<f32>(self.block * heads.keys));
        let (for_factors, scratch) = scratch.split_at_mut(bytes::<f32>(self.block));
        let (keys, values) = (aligned::<f32>(for_keys), aligned::<f32>(for_values));
        let (scores, factors) = (aligned::<f32>(for_scores), aligned::<f32>(for_factors));
        let mut packed = (None, None);
        for block in blocks {
            let (head, queries) = self.place(block);
            let Head { queries: q, keys: k, values: v, masks } = self.head(head);
            // Several heads of queries may have the same keys and values.
            let from = (Some(k.data().as_ptr()), Some(v.data().as_ptr()));
            if packed.0 != from.0 {
                products.pack(k, keys);
            }
            if packed.1 != from.1 {
                averages.pack(v, values);
            }
            packed = from;
            let (mut own, rest) = y.split_at(queries.len());
            let n = queries.len();
            let factors = &mut factors[..n];
            products.multiply(q.part(queries.start, n), keys, RowsMut::dense(scores, n, heads.keys), scratch, 1);
            let rows = RowsMut::dense(scores, n, heads.keys);
            weigh_rows(*isa, rows, queries.start, heads.scale, masks, heads.guarded, factors);
            averages.multiply(Rows::dense(scores, n, heads.keys), values, own.reborrow(), scratch, 1);
            scale_rows(*isa, own, factors);
            y = rest;
        }
    }

    /// A few queries, one after the other: keys and values are read where they lie.
    fn few(&self, head: &Head, queries: Range<usize>, mut y: RowsMut<f32>, scores: &mut [f32]) {
        let Heads { keys, keys_are_rows, scale, guarded, .. } = self.at.heads;
        let (isa, zeros, scores) = (self.at.isa, &self.at.zeros, &mut scores[..keys]);
        for (i, query) in queries.enumerate() {
            let q = head.queries.row(query);
            match keys_are_rows {
                true => dots(isa, q, raw(head.keys), &zeros[..keys], scores),
                false => sums(isa, q, raw(head.keys), &zeros[..keys], scores),
            }
            let mut factor = [0.0];
            weigh_rows(isa, RowsMut::dense(scores, 1, keys), query, scale, head.masks, guarded, &mut factor);
            sums(isa, scores, raw(head.values), &zeros[..self.at.heads.width], y.row(i));
            y.row(i).iter_mut().for_each(|v| *v *= factor[0]);
        }
    }
}

/// Floats as their bytes.
fn raw(x: Rows<f32>) -> Rows<Raw> {
    // SAFETY: a float is four bytes, which need no alignment.
    let data = unsafe { std::slice::from_raw_parts(x.data().as_ptr().cast::<Raw>(), x.data().len()) };
    Rows::new(data, x.rows(), x.width(), x.stride())
}

#[cfg(test)]
mod tests;

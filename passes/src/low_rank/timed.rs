//! Whether thinner weights make the model faster here.

use super::{
    Site,
    ranks::{Chosen, Curve, choose},
};
use compress_compiler::{
    error::Result,
    graph::Graph,
    pass::{Context, Outcome, Skipped, Stopwatch},
    verify::verify,
    words::option::CUT_ANYWAY,
};
use std::collections::BTreeMap;

/// The share of the time which its multiply-accumulates would take that factors have to save.
const PAYS: f64 = 0.05;

/// Lets only those weights become factors that make the model faster here.
pub(super) struct Timed<'a> {
    pub g: &'a Graph,
    pub sites: &'a [Site],
    /// What the model costs.
    pub whole: f64,
    /// Makes factors of a weight.
    pub factored: &'a dyn Fn(&mut Graph, usize, usize) -> Result<()>,
    pub cx: &'a Context<'a>,
}

impl Timed<'_> {
    /// The ranks under a budget, and a sentence where nothing pays.
    pub fn choose(
        &self,
        curves: &mut [Curve],
        budget: f64,
        watch: &dyn Stopwatch,
        out: &mut Outcome,
    ) -> Result<(Vec<Chosen>, Option<String>)> {
        let shapes: Vec<String> = self.sites.iter().map(|site| site.shape(self.g)).collect();
        loop {
            let chosen = choose(curves, budget);
            // Those of the same shape with the same rank or a lower one gain as much or more.
            let mut highest: BTreeMap<&str, (usize, Vec<usize>)> = BTreeMap::new();
            for (i, rank) in chosen.iter().enumerate().filter_map(|(i, c)| Some((i, curves[i].ranks[(*c)?]))) {
                let of = highest.entry(&shapes[i]).or_default();
                of.0 = of.0.max(rank);
                of.1.push(i);
            }
            let mut slow = vec![];
            for (done, (shape, (rank, sites))) in highest.iter().enumerate() {
                self.cx.check()?;
                (self.cx.progress)("time", done, highest.len());
                if !self.pays(watch, curves, sites, *rank)? {
                    slow.push((*shape, *rank));
                }
            }
            (self.cx.progress)("time", highest.len(), highest.len());
            if slow.is_empty() {
                let none = chosen.iter().all(Option::is_none);
                let why = format!("with thinner weights the model is no faster here; {CUT_ANYWAY} makes them anyway");
                for (i, _) in curves.iter().enumerate().filter(|(_, curve)| curve.ranks.is_empty()) {
                    out.skipped.push(Skipped {
                        rule: "low-rank".into(),
                        node: self.sites[i].name(self.g),
                        reason: why.clone(),
                    });
                }
                return Ok((chosen, none.then_some(why)));
            }
            for (curve, shape) in curves.iter_mut().zip(&shapes) {
                if let Some((_, rank)) = slow.iter().find(|(slow, _)| slow == shape) {
                    // Few of many ranks are tried: each takes some seconds.
                    let stays = curve.ranks.iter().take_while(|r| **r <= rank / 2).count();
                    curve.ranks.truncate(stays);
                    curve.worse.truncate(stays);
                }
            }
        }
    }

    /// Whether factors of this rank for these weights, which are alike, make the model faster.
    fn pays(&self, watch: &dyn Stopwatch, curves: &[Curve], sites: &[usize], rank: usize) -> Result<bool> {
        let mut with = self.g.clone();
        let mut saved = 0.0;
        for i in sites {
            (self.factored)(&mut with, *i, rank)?;
            saved += curves[*i].whole - curves[*i].each * rank as f64;
        }
        with.infer_all()?;
        let (without, with) = (verify(self.g)?, verify(&with)?);
        let share = saved / self.whole.max(f64::MIN_POSITIVE);
        // Other work on the machine can hide what is saved, but not twice.
        for _ in 0..2 {
            let [slow, fast] = watch.compare([&without, &with])?;
            if slow - fast > PAYS * slow * share {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

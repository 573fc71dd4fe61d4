//! Pruning of whole channels: units of the dependency graph are scored, chosen under a budget, and sliced away.

use super::{
    cut::Cut,
    groups::Groups,
    reconstruct::resolve,
    recover,
    score::{ChannelSaliency, Scored},
    select::Selection,
};
use crate::{clean::Clean, layers::excluded};
use compress_compiler::{
    choice,
    error::Result,
    graph::Graph,
    pass::{Context, Outcome, Pass, Skipped},
    words::counted,
    words::option::PRUNE_CHANNELS,
};
use regex::Regex;
use std::collections::BTreeMap;

/// What a cut is measured by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ChannelBudget {
    /// Multiply-accumulates of one sample.
    #[default]
    Macs,
    /// Elements of constants.
    Parameters,
    /// The time of a run here.
    Latency,
}

choice!(ChannelBudget, "budget of channels", [
    Macs "macs" "multiply-accumulates",
    Parameters "parameters" "elements of constants",
    Latency "latency" "the time of a run on this machine",
]);

/// Which channels are removed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Channels {
    /// The fraction to remove.
    pub fraction: f64,
    /// Of what.
    pub of: ChannelBudget,
    /// Which go first.
    pub by: ChannelSaliency,
    /// Those that stay are a multiple of this; where nothing is said, of 16 or a quarter of a small group.
    pub round: Option<usize>,
    /// Whether only what makes the model faster here goes.
    pub pays: bool,
    /// In how many cuts, each of the same share of what is left, with training between them.
    pub cuts: usize,
}

/// Removes channels.
#[derive(Debug)]
pub struct PruneChannels {
    /// Which.
    pub channels: Channels,
    /// Layers to leave alone.
    pub exclude: Vec<Regex>,
    /// Whether the layers that read what stays are solved for on calibration data.
    pub reconstruct: bool,
    /// Whether the model is trained after each cut, and if so whether it is an error when it can't be.
    pub train: Option<bool>,
    /// Whether a training follows, so that there is none after the last cut.
    pub followed: bool,
}

/// The share of the training that the last of several cuts gets; the others share the rest.
const LAST: f64 = 0.5;

/// By how much more may be left than was asked for without a word.
const MISSED: f64 = 0.005;

/// And before it counts as something that was not done.
const SLACK: f64 = 0.05;

impl Pass for PruneChannels {
    fn name(&self) -> &'static str {
        "channels"
    }

    fn is_exact(&self) -> bool {
        false
    }

    fn run(&self, g: &mut Graph, cx: &Context) -> Result<Outcome> {
        let mut out = Outcome::default();
        let cuts = if self.train.is_some() { self.channels.cuts.max(1) } else { 1 };
        let mut course = Course::default();
        for i in 1..=cuts {
            course.stays = (1.0 - self.channels.fraction).powf(i as f64 / cuts as f64);
            self.cut(g, cx, &mut course, &mut out)?;
            if course.layers.is_empty() {
                // A later cut asks for more, and may find a step that pays.
                continue;
            }
            if let Some(must) = self.train.filter(|_| i < cuts || !self.followed) {
                let share = match cuts {
                    1 => 1.0,
                    _ if i < cuts => (1.0 - LAST) / (cuts - 1) as f64,
                    _ => LAST,
                };
                let name = if i < cuts { "between cuts" } else { "recover" };
                out.add(recover::train(g, (name, share), vec![], None, must, cx)?);
            }
        }
        out.warnings.push(self.tell(&course, &out));
        out.undone.extend(self.missed(&course));
        out.edits += course.layers.len();
        Ok(out)
    }
}

/// How far cuts have come.
#[derive(Default)]
struct Course {
    /// What is to stay after the next, as a fraction.
    stays: f64,
    /// What there was of what the budget is one of, and what is left of it.
    size: Option<[f64; 2]>,
    /// The channels of layers, before and after.
    layers: BTreeMap<String, [usize; 2]>,
    /// Why nothing went the last time, where that was measured.
    slow: Option<String>,
}

impl PruneChannels {
    /// Removes what the next budget asks for.
    fn cut(&self, g: &mut Graph, cx: &Context, course: &mut Course, out: &mut Outcome) -> Result<()> {
        let groups = Groups::find(g)?;
        let mut open = vec![];
        // What a later cut leaves alone is what the whole of them does.
        out.skipped.clear();
        for group in &groups.groups {
            // A layer that is left alone keeps the channels that it reads, too.
            let mut around = groups.makers(group).chain(groups.readers(group));
            let spared = around.find_map(|l| excluded(g, l, &self.exclude));
            match spared.or_else(|| groups.closed(g, group)) {
                None => open.push(group),
                Some(reason) => {
                    let node = groups.name(g, group);
                    out.skipped.push(Skipped { rule: self.name().into(), node, reason });
                }
            }
        }
        let dense = g.clone();
        let scored = Scored { g: &dense, all: &groups, groups: &open };
        let mut selection = Selection::new(&self.channels, &scored, self.reconstruct, cx)?;
        let now = selection.size(&Cut::new(&groups))?;
        let [whole, left] = course.size.get_or_insert([now, now]);
        let cut = match selection.choose((*whole * course.stays).min(now), out)? {
            Ok(cut) => cut,
            Err(slow) => {
                course.slow = Some(slow);
                return Ok(());
            }
        };
        let told = selection.tell(&cut);
        if told.is_empty() {
            return Ok(());
        }
        *left = selection.size(&cut)?;
        for (layer, [before, after]) in told {
            course.layers.entry(layer).or_insert([before, after])[1] = after;
        }
        if let Some(calibrator) = cx.calibrator.filter(|_| self.reconstruct) {
            let keep = cut.mask(g);
            resolve(g, &dense, &keep, calibrator, cx)?;
        }
        cut.apply(g)?;
        out.add(Clean.run(g, cx)?);
        Ok(())
    }

    /// What of what was asked for was not done, in a sentence.
    fn missed(&self, course: &Course) -> Option<String> {
        let Some([whole, left]) = course.size.filter(|_| !course.layers.is_empty()) else {
            return Some("asked for fewer channels: none were removed".into());
        };
        let (removed, wanted) = (1.0 - left / whole.max(f64::MIN_POSITIVE), self.channels.fraction);
        (self.channels.of == ChannelBudget::Macs && removed < wanted - SLACK).then(|| {
            format!(
                "asked to remove channels worth {:.0}% of the multiply-accumulates: {:.0}% are gone",
                100.0 * wanted,
                100.0 * removed
            )
        })
    }

    /// What went, in a sentence.
    fn tell(&self, course: &Course, out: &Outcome) -> String {
        let asked = format!("{PRUNE_CHANNELS} {}", self.channels.fraction);
        let Some([whole, left]) = course.size.filter(|_| !course.layers.is_empty()) else {
            let none = "no group of channels can lose a whole rounding step; `passes` in the report says why";
            return format!("{asked} removed nothing: {}", course.slow.as_deref().unwrap_or(none));
        };
        let size = match self.channels.of {
            ChannelBudget::Macs => format!("{left} of {whole} multiply-accumulates"),
            ChannelBudget::Parameters => format!("{left} of {whole} parameters"),
            ChannelBudget::Latency => format!("{left:.3} of {whole:.3} ms"),
        };
        let layers: Vec<String> = course.layers.iter().map(|(name, [a, b])| format!("{name} {a} -> {b}")).collect();
        let (share, wanted) = (left / whole.max(f64::MIN_POSITIVE), 1.0 - self.channels.fraction);
        let missed = match share > wanted + MISSED {
            true => format!(", more than the {:.1}% asked for, as no more may go or would pay", 100.0 * wanted),
            false => String::new(),
        };
        format!(
            "{asked} left {size} ({:.1}%{missed}): {}; left alone: {} of layers (see `passes` in the report)",
            100.0 * share,
            layers.join(", "),
            counted(out.skipped.len(), "group"),
        )
    }
}

//! Which weights may be pruned, and which of their elements stay.

use crate::layers::{Layer, ends, excluded, layers, obstacle};
use compress_compiler::{
    error::Result, graph::Graph, node::NodeId, pass::Skipped, serde_as_text, words::option::PRUNE_ENDS,
};
use regex::Regex;
use std::{collections::BTreeSet, fmt, str::FromStr};

/// What the user said of which layers to prune.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// Layers to leave alone.
    pub exclude: Vec<Regex>,
    /// Whether the first and last layers are pruned too.
    pub ends: bool,
}

impl Scope {
    /// The constants that may be pruned, and the layers that are left alone, with the reasons. Never biases or norms.
    ///
    /// # Errors
    /// Malformed when the graph has a cycle.
    pub fn prunable(&self, g: &Graph, rule: &str) -> Result<(Vec<NodeId>, Vec<Skipped>)> {
        let all = layers(g)?;
        let guarded = if self.ends { Default::default() } else { ends(g, &all) };
        let mut skipped = vec![];
        // A weight shared by several layers is one weight; it is left alone if any of them is.
        let mut spared: BTreeSet<NodeId> = BTreeSet::new();
        for l in &all {
            let of_end = || format!("first or last layer; {PRUNE_ENDS} prunes it too");
            let reason = excluded(g, l, &self.exclude).or_else(|| obstacle(g, l));
            let Some(reason) = reason.or_else(|| guarded.contains(&l.node).then(of_end)) else { continue };
            spared.insert(l.weight);
            skipped.push(Skipped { rule: rule.into(), node: g.node(l.node).display_name().into(), reason });
        }
        let weights: BTreeSet<NodeId> = all.iter().map(|l: &Layer| l.weight).filter(|w| !spared.contains(w)).collect();
        Ok((weights.into_iter().collect(), skipped))
    }
}

/// Masks under which `fraction` of all elements together go, those of the lowest scores; of equal scores the first.
/// The highest of each layer stays: a layer of zeros would compute a constant.
pub fn highest(scores: &[Vec<f32>], fraction: f64) -> Vec<Vec<bool>> {
    let count: usize = scores.iter().map(Vec::len).sum();
    let mut left = (fraction * count as f64).round() as usize;
    let mut keep: Vec<Vec<bool>> = scores.iter().map(|s| vec![true; s.len()]).collect();
    if left == 0 {
        return keep;
    }
    let mut all: Vec<f32> = scores.concat();
    let threshold = *all.select_nth_unstable_by(left - 1, f32::total_cmp).1;
    left -= scores.iter().flatten().filter(|s| s.total_cmp(&threshold).is_lt()).count();
    for (scores, keep) in scores.iter().zip(&mut keep) {
        let best = (0..scores.len()).max_by(|a, b| scores[*a].total_cmp(&scores[*b]));
        for (i, (s, keep)) in scores.iter().zip(keep).enumerate() {
            let equal = s.total_cmp(&threshold).is_eq();
            let goes = s.total_cmp(&threshold).is_lt() || equal && left > 0;
            left -= usize::from(equal && left > 0);
            *keep = !goes || best == Some(i);
        }
    }
    keep
}

/// `N:M`: N zeros in every M elements along the input channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pattern {
    /// Zeros.
    pub zeros: usize,
    /// Elements of a group.
    pub of: usize,
}

/// The largest group of a pattern: no hardware has larger ones.
const LARGEST_GROUP: usize = 64;

impl FromStr for Pattern {
    type Err = &'static str;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let numbers = s.split_once(':').and_then(|(n, m)| Some((n.parse().ok()?, m.parse().ok()?)));
        let (zeros, of) = numbers.ok_or("not a pattern such as 2:4")?;
        match (1..of).contains(&zeros) && of <= LARGEST_GROUP {
            true => Ok(Self { zeros, of }),
            false => Err("not a pattern N:M with at least 1 zero, more elements than zeros, and at most 64 elements"),
        }
    }
}

serde_as_text!(Pattern);

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}:{}", self.zeros, self.of)
    }
}

/// Which zeros there may be: so many in each group, and of each element its group.
#[derive(Debug, Clone)]
pub struct Groups {
    /// The most zeros of a group.
    pub zeros: usize,
    /// The group of each element.
    pub of: Vec<usize>,
}

impl Groups {
    /// How many zeros there are when each group has its share.
    pub fn total(&self) -> usize {
        self.of.iter().max().map_or(0, |last| (last + 1) * self.zeros)
    }
}

/// The mask of one layer under which `zeros` elements go, those of the lowest scores, and of equal scores the first; of
/// each group no more than it may lose.
pub fn lowest(scores: &[f64], zeros: usize, groups: Option<&Groups>) -> Vec<bool> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*a].total_cmp(&scores[*b]));
    let mut keep = vec![true; scores.len()];
    match groups {
        None => order.iter().take(zeros).for_each(|i| keep[*i] = false),
        Some(groups) => {
            let mut gone = vec![0; groups.of.iter().max().map_or(0, |last| last + 1)];
            let may = |i: &&usize| {
                let gone = &mut gone[groups.of[**i]];
                *gone += 1;
                *gone <= groups.zeros
            };
            order.iter().filter(may).take(zeros).for_each(|i| keep[*i] = false);
        }
    }
    keep
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_lose_their_share() {
        let scores = [0.4, 0.3, 0.2, 0.1, 5.0, 6.0, 7.0, 8.0];
        let groups = Groups { zeros: 2, of: vec![0, 0, 0, 0, 1, 1, 1, 1] };
        assert_eq!(groups.total(), 4);
        let [f, t] = [false, true];
        assert_eq!(lowest(&scores, 4, None), [f, f, f, f, t, t, t, t]);
        assert_eq!(lowest(&scores, 4, Some(&groups)), [t, t, f, f, f, f, t, t]);
        assert_eq!(lowest(&scores, 3, Some(&groups)), [t, t, f, f, f, t, t, t]);
    }

    #[test]
    fn patterns() {
        assert_eq!("2:4".parse(), Ok(Pattern { zeros: 2, of: 4 }));
        for bad in ["", "2", "2:", ":4", "0:4", "4:4", "5:4", "2:4:8", "-1:4", "2:128", "half"] {
            assert!(bad.parse::<Pattern>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_lowest_of_all_layers_go_and_none_is_emptied() {
        let scores = [vec![3.0, 1.0, 5.0], vec![0.5, 0.25], vec![1.0, 1.0, 9.0]];
        let kept = |fraction| highest(&scores, fraction);
        assert_eq!(kept(0.0), [vec![true; 3], vec![true; 2], vec![true; 3]]);
        assert_eq!(kept(0.5), [vec![true, false, true], vec![true, false], vec![false, true, true]]);
        assert_eq!(kept(1.0), [vec![false, false, true], vec![true, false], vec![false, false, true]]);
        // Which goes does not depend on how many go.
        for (a, b) in kept(0.4).concat().into_iter().zip(kept(0.7).concat()) {
            assert!(a || !b);
        }
    }
}

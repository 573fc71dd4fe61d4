//! Groups of channels of which the least salient are gone.

use super::{Answers, ChannelSensitivity, Without};
use crate::{
    clean::Clean,
    layers::excluded,
    prune::{
        cut::Cut,
        groups::{Group, Groups},
        mask::Scope,
        score::{ChannelSaliency, Scored},
    },
};
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::NodeId,
    pass::{Context, Pass},
};
use std::collections::HashMap;

/// The place of a layer's group.
type Places = HashMap<NodeId, usize>;

/// The fractions that are tried.
const FRACTIONS: [f64; 2] = [0.25, 0.5];

/// What is left when channels of one group go, those of the smallest weights; and the place of the group of each layer.
pub(super) fn of(
    g: &Graph,
    scope: &Scope,
    answers: &Answers,
    cx: &Context,
) -> Result<(Vec<ChannelSensitivity>, Places)> {
    let all = Groups::find(g)?;
    let is_open = |group: &&Group| {
        let mut around = all.makers(group).chain(all.readers(group));
        around.all(|l| excluded(g, l, &scope.exclude).is_none()) && all.closed(g, group).is_none()
    };
    let open: Vec<&Group> = all.groups.iter().filter(is_open).collect();
    let scores = Scored { g, all: &all, groups: &open }.scores(ChannelSaliency::L2, cx)?;
    let (mut found, mut places) = (vec![], Places::new());
    for (i, (group, scores)) in open.iter().zip(scores).enumerate() {
        (cx.progress)("channels", i, open.len());
        let mut order: Vec<usize> = (0..scores.len()).filter(|u| all.obstacle(&group.units[*u]).is_none()).collect();
        order.sort_by(|a, b| scores[*a].total_cmp(&scores[*b]));
        let without = |fraction: f64| {
            let mut cut = Cut::new(&all);
            let count = (fraction * order.len() as f64).round() as usize;
            for unit in &order[..count] {
                cut.remove(&group.units[*unit]);
            }
            let mut narrow = g.clone();
            cut.apply(&mut narrow)?;
            Clean.run(&mut narrow, cx)?;
            Ok(Without { fraction, left: answers.left(&narrow, cx)? })
        };
        places.extend(all.makers(group).map(|l| (l.node, found.len())));
        found.push(ChannelSensitivity {
            nodes: all.makers(group).map(|l| g.node(l.node).display_name().into()).collect(),
            channels: order.len(),
            cut: FRACTIONS.into_iter().map(without).collect::<Result<_>>()?,
        });
    }
    (cx.progress)("channels", open.len(), open.len());
    Ok((found, places))
}

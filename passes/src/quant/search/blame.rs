//! Which layers the noise comes from, and why.

use super::{Best, Search, groups::groups, limits::USUAL_DB};
use crate::quant::equalise::Group;
use compress_compiler::{
    error::Result,
    node::Port,
    words::option::{MAX_DROP, MIN_SQNR},
};

/// Layers that are named at most.
const NAMED: usize = 3;

/// A range is this many times as wide as that of nearly all values, or a channel as the median one: then that is why.
const WIDE: f32 = 3.0;

/// A sentence that says what was reached, and what keeps the model from its goal.
pub(super) fn of(search: &Search, best: &Best) -> Result<String> {
    let db = search.limits.goal.db(&best.likeness);
    let asked = match (search.limits.goal.sqnr_db, search.limits.goal.drop) {
        (Some(wanted), _) => format!("{MIN_SQNR} {wanted} was not reached on the samples that the search holds out"),
        (None, Some(most)) => {
            format!("{MAX_DROP} {:.3}% was not reached on the samples that the search holds out", 100.0 * most)
        }
        (None, None) => {
            format!(
                "{USUAL_DB} dB was not reached at the cost of a tenth of what INT8 gains in time or in size ({MIN_SQNR} asks for it at any cost)"
            )
        }
    };
    let noise = search.noise.borrow();
    let plan = search.values(&best.variant)?;
    let mut left: Vec<_> = plan.layers.iter().filter_map(|l| Some((l, *noise.get(&l.node)?))).collect();
    left.sort_by(|a, b| b.1.total_cmp(&a.1));
    let groups = groups(search, &best.variant)?;
    let g = &best.variant.graph;
    let named: Vec<String> = left
        .iter()
        .take(NAMED)
        .map(|(l, _)| {
            let cause = g.operand(l.node, 0).and_then(|x| cause(best, groups.iter().find(|g| g.input == x), x));
            format!("`{}`{}", g.node(l.node).display_name(), cause.map_or(String::new(), |why| format!(" ({why})")))
        })
        .collect();
    let most = if named.is_empty() { String::new() } else { format!("; most noise is from {}", named.join(", ")) };
    Ok(format!("{asked}: {db:.1} dB{most}"))
}

/// Why the input of a layer takes codes badly.
fn cause(best: &Best, group: Option<&Group>, input: Port) -> Option<String> {
    let whole = best.variant.seen.extremes(input)?;
    let nearly = best.variant.seen.most(input)?;
    let reach = |(low, high): (f32, f32)| high.max(-low);
    if reach(whole) > WIDE * reach(nearly) {
        return Some(format!(
            "outliers: its input is between {:.3} and {:.3}, 99.99% of it between {:.3} and {:.3}",
            whole.0, whole.1, nearly.0, nearly.1
        ));
    }
    let mut widest = group?.widest();
    widest.sort_by(f32::total_cmp);
    let (median, most) = (widest[widest.len() / 2], widest[widest.len() - 1]);
    let dead = widest.iter().filter(|w| **w == 0.0).count();
    match () {
        () if dead * 2 > widest.len() => {
            Some(format!("{dead} of the {} channels of its input are always zero", widest.len()))
        }
        () if most > WIDE * median => {
            Some(format!("a channel of its input is {:.0} times as wide as the median one", most / median))
        }
        () => None,
    }
}

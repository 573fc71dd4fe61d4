//! LSTM layers that stay in floats.

use super::{Best, Search, remedies::Proposal};
use crate::quant::recurrent;
use compress_compiler::{error::Result, node::NodeId, words::counted};

/// Why LSTM layers stay in floats.
const NO_GAIN: &str = "codes cost more accuracy in it than they gain";

/// All LSTM layers in floats that are computed by codes: those of few states are no slower so.
pub(super) fn in_floats(search: &Search, best: &Best) -> Result<Vec<Proposal>> {
    if !search.int8.target.capabilities().lstm_by_codes {
        return Ok(vec![]);
    }
    let mut variant = best.variant.clone();
    let g = &variant.graph;
    let by_codes: Vec<NodeId> = recurrent::by_codes(g, &search.int8.exclude, &variant.choices).collect();
    if by_codes.is_empty() {
        return Ok(vec![]);
    }
    variant.choices.float.extend(by_codes.iter().map(|n| (*n, NO_GAIN)));
    Ok(vec![Proposal::of(format!("{} in floats", counted(by_codes.len(), "LSTM layer")), variant)])
}

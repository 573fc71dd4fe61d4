//! Quantisation to INT8: static in QDQ form, or [`dynamic`], by the range of each run.
//!
//! A [`scheme`] says which codes numbers become. [`observe`] watches activations, [`calibrators`] choose their ranges,
//! [`ptq`] decides what is quantised, [`qdq`] writes it into the graph.

pub mod calibrators;
mod choices;
mod clipped;
mod columns;
pub mod dynamic;
mod equalise;
pub mod layer_forms;
pub mod observe;
mod params;
pub mod ptq;
mod qdq;
mod recurrent;
pub mod reduce_range;
mod rounding;
pub mod scheme;
pub mod search;
mod seen;
mod storage;
pub mod tables;
mod two_terms;
mod values;
pub mod weight_only;

use crate::target::Target;
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    node::NodeId,
    op::Op,
    words::option::INT8,
};
use scheme::Scheme;

/// Whether a graph can be quantised, of which `stored` says that weights may be codes already.
///
/// # Errors
/// Unsupported for what is quantised already, and codes that the target can't run.
pub(crate) fn feasible(g: &Graph, target: Target, scheme: &Scheme, stored: bool) -> Result<()> {
    let is_weight = |g: &Graph, n: NodeId| g.operand(n, 0).is_some_and(|p| g.constant(p).is_some());
    let has_codes = |g: &Graph, n: NodeId| match g.op(n) {
        Op::Quantize(_) | Op::DynamicQuantize(_) => true,
        Op::Dequantize(_) => !(stored && is_weight(g, n)),
        _ => false,
    };
    let is_quantised = |g: &Graph| g.operators().any(|n| has_codes(g, n));
    if g.and_bodies().into_iter().any(is_quantised) {
        let help = format!("give the FP32 model, or drop {INT8}");
        return Err(Error::unsupported("the model is quantised already").help(help));
    }
    target.obstacle(scheme).map_or(Ok(()), |why| {
        let error = Error::unsupported(why);
        Err(match scheme.activations.are_dynamic() {
            true => error.help(format!("static {INT8} runs there")),
            false => error,
        })
    })
}

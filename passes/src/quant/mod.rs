//! Static quantisation to INT8 in QDQ form.
//!
//! A [`scheme`] says which codes numbers become. [`observe`] watches activations, [`calibrators`] choose their ranges,
//! [`ptq`] decides what is quantised, [`qdq`] writes it into the graph.

pub mod calibrators;
mod choices;
mod clipped;
mod columns;
mod equalise;
pub mod observe;
mod params;
pub mod ptq;
mod qdq;
mod recurrent;
pub mod reduce_range;
mod rounding;
pub mod scheme;
pub mod search;
mod storage;
pub mod tables;
mod two_terms;
mod values;
pub mod weight_only;

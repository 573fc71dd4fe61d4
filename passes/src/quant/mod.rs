//! Static post-training quantisation to INT8 in QDQ form.
//!
//! [`observe`] watches activations, [`ptq`] decides what is quantised and how, [`qdq`] writes
//! it into the graph.

pub mod observe;
mod params;
pub mod ptq;
mod qdq;

//! A page for people: one file of HTML that needs no network, no font and no script to be read.
//!
//! Names in a model are whatever its author wrote: `maud` escapes them, and the page allows nothing but what is inside of it.

mod chart;
mod layers;
mod page;
mod passes;
mod result;
mod search;
mod sweep;
mod training;

pub use result::html;
pub use search::search_html;
pub use sweep::sweep_html;
pub use training::training_html;

//! A report as the files that others read: a page of a pull request, a page for people, a test result, metrics.

mod html;
mod junit;
mod markdown;
mod openmetrics;

pub use html::{html, sweep_html, training_html};
pub use junit::junit;
pub use markdown::markdown;
pub use openmetrics::openmetrics;

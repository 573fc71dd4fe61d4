//! A report as others read it: a page of a pull request, a page for people, a test result, metrics, a run in a tracking server.

mod gauges;
mod html;
mod junit;
mod markdown;
mod mlflow;
mod openmetrics;

pub use html::{html, search_html, sweep_html, training_html};
pub use junit::junit;
pub use markdown::markdown;
pub use mlflow::{Mlflow, Run};
pub use openmetrics::openmetrics;

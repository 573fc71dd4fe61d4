//! A report as the files that others read: a page of a pull request, a test result, metrics.

mod junit;
mod markdown;
mod openmetrics;

pub use junit::junit;
pub use markdown::markdown;
pub use openmetrics::openmetrics;

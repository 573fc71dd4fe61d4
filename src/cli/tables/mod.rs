//! Results as text.

mod bench;
mod devices;
mod explain;
mod inspect;
mod report;
mod search;
mod sensitivity;
mod sweep;
mod work;

pub use bench::figures;
pub use devices::devices;
pub use explain::explained;
pub use inspect::{groups, inspection};
pub use report::{headline, report};
pub use search::search;
pub use sensitivity::sensitivity;
pub use sweep::sweep;
pub use work::{bisection, intent};

use crate::{AnswersReport, Merged, shown};
use compress_compiler::words::counted;

/// Which answers of a teacher were found.
pub fn answers(r: &AnswersReport) -> String {
    let (samples, bytes) = (counted(r.samples, "sample"), shown::bytes(r.bytes as usize));
    format!("{}: {samples} of {} answered\n  written: {}, {bytes}\n", r.teacher, r.of, r.file)
}

/// What parts make together.
pub fn merged(merged: &Merged) -> String {
    match merged {
        Merged::Sweep(report) => sweep(report),
        Merged::Search(report) => search(report),
        Merged::Sensitivity(report) => sensitivity(report),
    }
}

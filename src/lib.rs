//! `compress` makes ONNX models smaller and faster, and measures what that costs.
//!
//! A **job** is a recipe and a call of `run`. There are twelve: [`Compress`] prunes, quantises and trains a model;
//! [`Sweep`] does so by several fractions, and [`Search`] in many ways; [`Check`] compares two models; [`Bench`] times one; [`Explain`] says
//! where its time goes; [`Inspect`] looks at one; [`Sensitivity`] measures its layers; [`Distill`] trains one for hours; [`Draft`] makes a
//! small model that guesses for a large one; [`Answers`] keeps what a teacher says; [`Merge`] puts parts of a job together. A recipe is plain
//! data: the command line, a TOML file and the report of a job all hold the same struct, and [`Recipe`] is any of them.
//!
//! ```no_run
//! use compress::{Compress, Event, values::{Fraction, Int8}};
//!
//! # fn main() -> compress::Result<()> {
//! let prune = Some(Fraction::try_from(0.5)?);
//! let job = Compress { model: "model.onnx".into(), int8: Some(Int8::Static), prune, ..Compress::default() };
//! let report = job.run(&mut |event: Event| println!("{event:?}"))?;
//! println!("{:?}", report.accuracy);
//! # Ok(())
//! # }
//! ```
//!
//! # What a job tells
//!
//! [`Events`] hears of the steps of a job, and says whether it is to stop. `()` hears nothing, and a closure hears all:
//!
//! ```
//! use compress::{Event, Inspect, Kind};
//!
//! let mut lines = 0;
//! let job = Inspect { model: "nowhere.onnx".into(), ..Inspect::default() };
//! let error = job.run(&mut |_: Event| lines += 1).unwrap_err();
//! assert_eq!(error.kind(), Kind::File);
//! ```
//!
//! Nothing but [`cli`], the command, prints or ends the process. A job that fails or stops leaves no half-written file; its [`Error`] names
//! the file, the node and the way out.
//!
//! # Results
//!
//! [`Compress::run`] and [`Check::run`] make a [`Report`], whose fields are those of `report.json`. A gate that failed is
//! part of the report, not an error, until [`Report::verdict`] makes it one.
//!
//! # Inside
//!
//! The graph and ONNX are in `compress-compiler`, the passes in `compress-passes`, executors and training in
//! `compress-runtime`. The jobs here put them together: `data.rs` chooses samples, `measure.rs` runs models in front of
//! them, `assess.rs` collects what is measured of a result, `gates.rs` judges it.

#![warn(missing_docs)]
// A reader that went away is not an error: the command's `terminal` writes, and does not panic.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod answers;
mod assess;
mod baseline;
mod bench;
mod check;
mod command;
mod compress;
mod data;
mod deployed;
mod devices;
mod distill;
mod draft;
mod drafting;
mod evaluator;
mod events;
mod explain;
mod facts;
mod files;
mod fit;
mod gates;
mod given;
mod inspect;
mod kept;
mod measure;
mod merge;
mod model;
mod plot;
mod recipe;
mod remarks;
mod rows;
mod saturation;
mod score;
mod search;
mod sensitivity;
mod shard;
mod sizes;
mod sweep;

pub mod cli;
pub mod formats;
pub mod options;
pub mod report;
pub mod shown;
pub mod values;

pub use answers::{Answers, AnswersReport};
pub use bench::{
    BatchTime, Bench, Bound, Ceilings, CopySpeed, Figures, NodeTime, Profile, ProfiledPart, RunningGpu, Timed,
};
pub use check::Check;
pub use compress::{Bisection, Compress, Expected, Intent, PlannedPass, Shares};
pub use compress_compiler::{
    error::{Error, Kind, Result},
    storage::{Blob, Storage},
    tensor::{DType, Tensor},
    words::write_options,
};
pub use compress_passes::{
    bisect::{Culprit, PassEffect},
    quant::calibrators::Calibration,
    target::Target,
};
pub use compress_runtime::{
    dataset::{Given, GivenItem},
    onnxruntime::offer as offer_onnxruntime,
};
pub use devices::{Cpu, Devices, Missing};
pub use distill::{Ablation, Distill, LossWeights, TrainFigures, TrainIntent, TrainReport, TrainSpeed};
pub use draft::Draft;
pub use drafting::{DraftOptions, Drafted, Drafting, Tried};
pub use events::{Event, Events, Step, TrainProgress};
pub use explain::{EngineTime, Explain, Explained, ExplainedPart, KernelWork, Remedy, Work};
pub use given::{DataSource, Evaluate, Scorer};
pub use inspect::{ChannelGroup, Inspect, Inspected, Inspection, Signature};
pub use merge::{Merge, Merged};
pub use model::Model;
pub use recipe::Recipe;
pub use report::Report;
pub use saturation::{CutOff, Saturation};
pub use search::{Objectives, Outcome, Reached, Search, SearchPoint, SearchReport, Strategy, Wish};
pub use sensitivity::{Sensitivity, SensitivityReport};
pub use shard::Shard;
pub use sweep::{Fractions, Sweep};

//! `docs/report.schema.json` follows from the reports. `UPDATE_GOLDEN=1 cargo test --test report_schema` writes it.

use compress::{
    Ablation, AnswersReport, ChannelGroup, Explained, Figures, Inspection, Intent, Report, SearchReport,
    SensitivityReport, TrainIntent, TrainReport, report::SweepReport,
};
use schemars::{JsonSchema, generate::SchemaSettings};
use std::path::PathBuf;

/// A report of the command `compress`, in a file or on standard output. Later versions may add fields.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, clippy::large_enum_variant, reason = "the types alone count")]
enum AnyReport {
    /// Of a compression, or of `compress check`.
    Report(Report),
    /// Of a compression by several fractions.
    Sweep(SweepReport),
    /// Of `compress search`.
    Search(SearchReport),
    /// Of `compress distill`.
    Train(TrainReport),
    /// Of `compress answers`.
    Answers(AnswersReport),
    /// Of `compress bench`.
    Bench(Figures),
    /// Of `compress explain`.
    Explain(Explained),
    /// Of `compress inspect`.
    Inspect(Inspection),
    /// Of `compress inspect`, of groups of channels.
    Groups(Vec<ChannelGroup>),
    /// Of `compress sensitivity`.
    Sensitivity(SensitivityReport),
    /// The plan of a compression.
    Plan(Intent),
    /// The plans of a compression by several fractions.
    SweepPlan(Vec<Intent>),
    /// The plan of `compress distill`.
    TrainPlan(TrainIntent),
    /// Of `compress distill` with `--ablate-data`.
    Ablation(Ablation),
}

#[test]
fn the_schema_has_the_fields_of_the_reports() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/report.schema.json");
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let schema = settings.into_generator().into_root_schema_for::<AnyReport>();
    let made = serde_json::to_string_pretty(&schema).unwrap() + "\n";
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == made, "{} is not what the reports have: UPDATE_GOLDEN=1 writes it", path.display());
}

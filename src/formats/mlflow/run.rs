//! What a tracking server is told of a job.

use crate::{
    Report, TrainReport,
    formats::{gauges::gauges, markdown},
    report::{FileFacts, Recorded},
};
use compress_compiler::error::{Error, Result};
use serde_json::{Value, json};
use std::{
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};
use toml::Value as Toml;

/// How many bytes the values of parameters and tags may have, as all versions of MLflow take them.
const PARAMETER: usize = 500;
const TAG: usize = 5000;

/// A job as a run of MLflow.
pub struct Run {
    pub(super) name: String,
    pub(super) params: Vec<Value>,
    pub(super) metrics: Vec<Value>,
    pub(super) tags: Vec<Value>,
}

impl Run {
    /// A compression or a check: its figures, the options of the job, and the report in Markdown as the description.
    pub fn of_report(r: &Report) -> Self {
        let metric = r.accuracy.as_ref().map(|a| a.metric.to_string());
        let tags = [
            ("mlflow.note.content", Some(markdown(r))),
            ("compress.accuracy.metric", metric),
            ("compress.unusable", r.unusable.clone()),
        ];
        let metrics = gauges(r).into_iter().filter_map(|g| metric_of(g.name, g.value, 0)).collect();
        Self::of(&r.recipe, &r.input, r.output.as_ref(), metrics, tags)
    }

    /// A training: its scores, and its course, as the `metrics.jsonl` in `folder` has it.
    ///
    /// # Errors
    /// File when the course can't be read.
    pub fn of_training(r: &TrainReport, folder: &Path) -> Result<Self> {
        let (t, path) = (&r.training, folder.join("metrics.jsonl"));
        let course =
            std::fs::read_to_string(&path).map_err(|e| Error::file(format!("cannot be read: {e}")).in_file(&path))?;
        let last = [("score_before", t.before, 0), ("score_after", t.after, t.steps), ("seconds", t.seconds, t.steps)];
        let last = last.into_iter().filter_map(|(name, value, step)| metric_of(name, value, step));
        let metrics = course.lines().flat_map(of_step).chain(last).collect();
        let tags = [
            (
                "mlflow.note.content",
                Some([&[t.bound.clone()][..], t.advice.as_slice(), &r.warnings].concat().join("\n\n")),
            ),
            ("compress.score.metric", Some(t.metric.to_string())),
            ("compress.teacher", r.teacher.as_ref().map(|t| t.path.clone())),
        ];
        Ok(Self::of(&r.recipe, &r.input, Some(&r.output), metrics, tags))
    }

    fn of<const N: usize>(
        recipe: &Recorded,
        input: &FileFacts,
        output: Option<&FileFacts>,
        metrics: Vec<Value>,
        tags: [(&str, Option<String>); N],
    ) -> Self {
        let plain = |value: &Toml| value.as_str().map_or_else(|| value.to_string(), String::from);
        let file = |file: &FileFacts| (Some(file.path.clone()), Some(file.sha256.clone()));
        let ((read, read_sha256), (made, made_sha256)) = (file(input), output.map_or((None, None), file));
        let every = [
            ("mlflow.source.name", Some("compress".into())),
            ("compress.version", Some(recipe.version.clone())),
            ("compress.input", read),
            ("compress.input.sha256", read_sha256),
            ("compress.output", made),
            ("compress.output.sha256", made_sha256),
        ];
        let model = &output.unwrap_or(input).path;
        Self {
            name: Path::new(model).file_name().map_or(model.into(), |name| name.to_string_lossy()).into_owned(),
            params: recipe.run.iter().map(|(key, value)| pair(key, &plain(value), PARAMETER)).collect(),
            metrics,
            tags: every.into_iter().chain(tags).filter_map(|(key, value)| Some(pair(key, &value?, TAG))).collect(),
        }
    }
}

/// The metrics of a line of the course. A line that is cut off has none.
fn of_step(line: &str) -> Vec<Value> {
    let record: Value = serde_json::from_str(line).unwrap_or_default();
    let step = record["step"].as_u64().unwrap_or_default();
    let told =
        record.as_object().into_iter().flatten().filter(|(key, _)| !["step", "epoch", "batch"].contains(&&key[..]));
    told.filter_map(|(key, value)| metric_of(key, value.as_f64()?, step)).collect()
}

/// A value of a metric. JSON has no number for those that are not finite; the least is the score of answers that are not numbers.
fn metric_of(key: &str, value: f64, step: u64) -> Option<Value> {
    let is_number = value.is_finite() && value != f64::MIN;
    is_number.then(|| json!({ "key": key, "value": value, "timestamp": now(), "step": step }))
}

/// A name with its value, of which so many bytes count.
fn pair(key: &str, value: &str, most: usize) -> Value {
    json!({ "key": key, "value": &value[..value.floor_char_boundary(most)] })
}

/// Milliseconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

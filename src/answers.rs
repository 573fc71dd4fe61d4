//! The answers of a teacher, found once, perhaps by several machines, and kept for the jobs that learn from them.

use crate::{
    data::Sets,
    events::{Events, Monitor, watched},
    facts::sha256,
    files,
    given::DataSource,
    options::{DataOptions, ReadOptions, Threads, within},
    shard::Shard,
    values::Count,
};
use clap::Args;
use compress_compiler::{
    error::{Error, Result},
    forms::decoder::Decoder,
    graph::Graph,
    onnx::{self, Model, SourceFile},
    words::option,
};
use compress_runtime::{
    dataset::{Preprocess, USUAL_TOKENS},
    device::DeviceChoice,
    session::{Backend, EngineChoice},
    train::{stored::AnswersWriter, teacher::Teacher},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::{fs, path::PathBuf};

/// Finds what a teacher answers to data, once for all jobs that learn from it (`distill --answers`).
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Answers {
    /// The teacher, an ONNX model.
    pub teacher: PathBuf,
    /// The data that will be trained on.
    #[arg(long, value_name = "PATH", required = true)]
    pub data: DataSource,
    /// The folder for the answers [default: TEACHER with .answers].
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Answer a part of the samples alone, e.g. 2/4: others answer the rest, into the same folder.
    #[arg(long, value_name = "I/N")]
    pub shard: Option<Shard>,
    /// How pictures become inputs, as for compress MODEL.
    #[arg(long, value_name = "HOW")]
    pub preprocess: Option<Preprocess>,
    /// The tokenizer of text, a tokenizer.json [default: the one beside the model; bytes for a model of 256 words].
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// Tokens of a sample of text [default: 128].
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub tokens: Option<Count<1_048_576>>,
    /// Where to run: cpu, cuda, metal, vulkan (with :N for another than the first), or auto.
    #[arg(long)]
    pub device: Option<DeviceChoice>,
    /// Threads on the CPU [default: one a core].
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub threads: Option<Threads>,
    /// How models are read.
    #[command(flatten)]
    #[serde(flatten)]
    pub read: ReadOptions,
    /// Overwrite what exists.
    #[arg(long)]
    #[serde(skip)]
    pub force: bool,
}

/// Which answers were found.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct AnswersReport {
    /// The teacher.
    pub teacher: String,
    /// The file of the answers.
    pub file: String,
    /// Samples that were answered.
    pub samples: usize,
    /// Samples of the data.
    pub of: usize,
    /// The outputs.
    pub outputs: Vec<String>,
    /// Bytes of the file.
    pub bytes: u64,
}

impl Answers {
    /// Runs the teacher, and writes the file when all samples are answered.
    ///
    /// # Errors
    /// Usage for a part without samples; file when the answers can't be written, or are there already; unsupported for answers that depend
    /// on other samples of a batch; whatever reading and running the model can raise; interrupted when `events` asks to stop.
    pub fn run(&self, events: &mut dyn Events) -> Result<AnswersReport> {
        let file = self.file();
        files::free(&file, self.force, &option::OUTPUT.to_string())?;
        files::made(&self.output())?;
        watched(events, |monitor| within(self.threads, false, || self.find(monitor)))
    }

    /// The folder of the answers.
    pub fn output(&self) -> PathBuf {
        self.output.clone().unwrap_or_else(|| self.teacher.with_extension("answers"))
    }

    /// The file of the answers.
    pub(crate) fn file(&self) -> PathBuf {
        let Shard { index, of } = self.shard.unwrap_or(Shard { index: 0, of: 1 });
        self.output().join(format!("{}-of-{of}.safetensors", index + 1))
    }

    fn find(&self, monitor: &Monitor) -> Result<AnswersReport> {
        let in_model = |e: Error| e.in_file(&self.teacher);
        let backend = Backend::open(self.device.unwrap_or_default(), EngineChoice::Auto, None)?;
        let model = onnx::read_with(&self.teacher, &(&self.read).into())?;
        let text = DataOptions::of(Some(self.data.clone()), self.tokenizer.as_ref(), self.tokens);
        let data = DataOptions { preprocess: self.preprocess.clone(), ..text }.beside(&self.teacher)?;
        let sets = Sets::open_running(&data, &[], &model.graph, usize::MAX, 0, (false, &backend)).map_err(in_model)?;
        let count = sets.calibration.set.len();
        let Shard { index, of } = self.shard.unwrap_or(Shard { index: 0, of: 1 });
        let own: Vec<usize> = (count * index / of..count * (index + 1) / of).collect();
        if own.is_empty() {
            let what = format!("{} {}/{of}: there are {count} samples", option::SHARD, index + 1);
            return Err(Error::usage(what).help("divide them into no more parts than that"));
        }
        let outputs = outputs(&model.graph);
        let described = described(&model, &sets.calibration.set.digest()?, &data)?;
        let mut teacher = Teacher::new(&self.teacher, &model.graph, &[], &backend, 0)?;
        let mut writer = AnswersWriter::new(outputs.clone())?;
        let answered = own.len();
        let samples = sets.calibration.with(own);
        let progress = monitor.step("answer", answered);
        for indices in samples.indices.chunks(samples.batch) {
            monitor.check()?;
            // A model with a fixed batch takes no less: the last one is filled up, and what is answered to that is left out.
            let mut filled = indices.to_vec();
            filled.resize(if samples.set.fixed_batch().is_some() { samples.batch } else { indices.len() }, indices[0]);
            let batch = samples.set.batch(&filled)?;
            let answer = teacher.answer(&batch.inputs, None).map_err(|e| samples.unfit_if_given(e))?;
            writer.add(&batch.inputs, indices, &answer.outputs).map_err(in_model)?;
            progress.advance(indices.len());
        }
        drop(progress);
        let file = self.file();
        let bytes = writer.finish(&file, &described)?;
        let (teacher, file) = (self.teacher.display().to_string(), file.display().to_string());
        Ok(AnswersReport { teacher, file, samples: answered, of: count, outputs, bytes })
    }
}

/// The names of the outputs: a decoder gives no cache.
pub(crate) fn outputs(teacher: &Graph) -> Vec<String> {
    let mut teacher = teacher.clone();
    Decoder::forget(&mut teacher);
    teacher.outputs().iter().map(|output| output.name.clone()).collect()
}

/// All that answers depend on, in JSON: the teacher, the data by its digest, and how that becomes inputs.
///
/// # Errors
/// File when the tokenizer can't be read.
pub(crate) fn described(teacher: &Model, data: &str, reading: &DataOptions) -> Result<String> {
    let bytes = |path: &PathBuf| {
        fs::read(path)
            .map_err(|e| Error::file(format!("cannot be read: {e}")).in_file(path))
            .map(|bytes| sha256(&bytes))
    };
    let DataOptions { preprocess, tokenizer, tokens, .. } = reading;
    let of = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "teacher": teacher.source().files().iter().map(SourceFile::sha256).collect::<Vec<_>>(),
        "data": data,
        "preprocess": preprocess.as_ref().map(ToString::to_string),
        "tokenizer": tokenizer.as_ref().map(bytes).transpose()?,
        "tokens": reading.has_text().then(|| tokens.map_or(USUAL_TOKENS, |n| n.get())),
    });
    Ok(of.to_string())
}

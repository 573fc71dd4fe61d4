//! What a draft gains: a small decoder that guesses the tokens of a large one (speculative decoding).

use crate::{
    data::Samples,
    events::Monitor,
    gates, measure,
    report::{Gate, Verdict},
    shown,
    values::{Count, Positive, Share},
};
use clap::Args;
use compress_compiler::{
    error::{Error, Result},
    onnx::Model,
    verify::verify,
    words::option::{DATA, DRAFT_TOKENS, DRAFTS_FOR, EVAL, MIN_ACCEPTANCE, MIN_SPEEDUP, TEMPERATURE, TOKENS},
};
use compress_runtime::{
    bench::Ratio,
    session::{Backend, Generation, Session},
    speculation::{Choosing, Decodes, Tally, decode, random, speculate},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{
    path::Path,
    time::{Duration, Instant},
};

/// How a draft is judged.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct DraftOptions {
    /// Tokens that the draft guesses before each run of the model [default: the fastest of 1 to 8].
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub draft_tokens: Option<Count<64>>,
    /// The temperature at which tokens are sampled [default: 1].
    #[arg(long, value_name = "T", allow_hyphen_values = true)]
    pub temperature: Option<Positive>,
    /// Fail (exit 9) when the model accepts a smaller share of the guesses, greedily or sampled, e.g. 60%.
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true)]
    pub min_acceptance: Option<Share>,
}

/// What a draft gains.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct Drafting {
    /// Texts of which the first half may be continued.
    pub texts: usize,
    /// Tokens of each half, of the longest text.
    pub tokens: usize,
    /// Where it ran.
    pub device: String,
    /// Which executor ran it.
    pub engine: String,
    /// Threads the executor may use.
    pub threads: usize,
    /// Continued by the most probable tokens.
    pub greedy: Drafted,
    /// Continued by chance.
    pub sampled: Drafted,
    /// Drafts that were made, of which the fastest is this one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tried: Vec<Tried>,
    /// The place of this one among them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chosen: Option<usize>,
}

impl Drafting {
    /// What a user should know of it.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let Drafted { same, continued, .. } = self.greedy;
        let differ = same.filter(|same| *same < continued).map(|same| {
            format!(
                "WARNING: with the draft {} of {} greedy texts are others: the model rounds otherwise in a run on several tokens \
                 than in one on each, as where ranges are those of each run (INT8)",
                continued - same,
                continued
            )
        });
        let slow = self.slows().then(|| "WARNING: the model is slower with the draft than alone".to_string());
        differ.into_iter().chain(slow).collect()
    }

    /// Whether the model is slower with the draft, both ways.
    pub(crate) fn slows(&self) -> bool {
        [&self.greedy, &self.sampled].iter().all(|drafted| drafted.interval[1] < 1.0)
    }
}

/// A draft that was made and tried.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct Tried {
    /// Layers that it has.
    pub layers: usize,
    /// What its weights are: `floats`, or what was asked for to make codes of them.
    pub weights: &'static str,
    /// The size of its file.
    pub bytes: usize,
    /// What it gains greedily, on texts that chose between the drafts.
    pub greedy: Drafted,
    /// The same by chance.
    pub sampled: Drafted,
}

impl Tried {
    pub(crate) fn new(layers: usize, weights: &'static str, bytes: usize, measured: Drafting) -> Self {
        Self { layers, weights, bytes, greedy: measured.greedy, sampled: measured.sampled }
    }

    /// How many times as fast the model is with it, over both ways to choose tokens.
    pub(crate) fn speedup(&self) -> f64 {
        (self.greedy.speedup * self.sampled.speedup).sqrt()
    }
}

/// What a draft gains in one way to choose tokens.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct Drafted {
    /// Where tokens are chosen by chance, the temperature.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Tokens that the draft guesses before each run of the model.
    pub draft_tokens: usize,
    /// The share of the guesses that the model accepts; those behind a rejected one it doesn't judge.
    pub acceptance: f64,
    /// Tokens that a run of the model makes.
    pub tokens_per_run: f64,
    /// Tokens in a second by the model alone.
    pub alone_tokens_per_second: f64,
    /// The same with the draft, whose reading of the prompt counts.
    pub tokens_per_second: f64,
    /// How many times as fast it is: the median of all texts.
    pub speedup: f64,
    /// Between which bounds that lies, with a confidence of 95%.
    pub interval: [f64; 2],
    /// Texts that were continued; a few texts are continued several times.
    pub continued: usize,
    /// Of greedy ones those that are the same with the draft. Others differ as a run on several tokens rounds otherwise than one on
    /// each: where two tokens are as probable, or where ranges are those of each run (INT8).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub same: Option<usize>,
}

/// Texts that are continued, at most; those of the first trials; and for how long texts are continued, once there are a few.
const TEXTS: usize = 32;
const TRIED: usize = 2;
const TIME: Duration = Duration::from_secs(20);
const FEWEST: usize = 6;
/// Tokens of a text at least, and tokens that all texts are continued by: fewer tell nothing.
const SHORTEST: usize = 4;
const LEAST: usize = 100;
/// Trials of a number of guesses.
const TRIALS: usize = 2;
/// Numbers of guesses that are tried.
const AHEAD: [usize; 6] = [1, 2, 3, 4, 6, 8];

impl DraftOptions {
    /// Refuses them where there is no draft.
    ///
    /// # Errors
    /// Usage.
    pub(crate) fn needs_a_draft(&self) -> Result<()> {
        let asked = [
            (DRAFT_TOKENS, self.draft_tokens.is_some()),
            (TEMPERATURE, self.temperature.is_some()),
            (MIN_ACCEPTANCE, self.min_acceptance.is_some()),
        ];
        match asked.into_iter().find(|(_, given)| *given) {
            None => Ok(()),
            Some((option, _)) => Err(Error::usage(format!("{option} has no effect without {DRAFTS_FOR}"))),
        }
    }

    /// Refuses a gate whose figure would follow from chance.
    ///
    /// # Errors
    /// Usage.
    pub(crate) fn check(&self) -> Result<()> {
        match self.min_acceptance.is_some() && self.draft_tokens.is_none() {
            true => Err(Error::usage(format!(
                "{MIN_ACCEPTANCE} needs {DRAFT_TOKENS}: how many guesses hold follows from their number, which is otherwise chosen by time"
            ))),
            false => Ok(()),
        }
    }

    /// Finds out whether `model` can be measured on samples.
    ///
    /// # Errors
    /// As for [`DraftOptions::measure`].
    pub(crate) fn feasible(
        &self,
        (model, path): (&Model, &Path),
        sets: [&Samples; 2],
        backend: &Backend,
    ) -> Result<()> {
        sets.into_iter().try_for_each(|samples| texts(samples).map(drop))?;
        Session::of_model(model, backend).and_then(|s| s.generation().map(drop)).map_err(|e| e.in_file(path))
    }

    /// Has `model` continue the first halves of samples, alone and with `draft`; both with the files that they are from.
    ///
    /// # Errors
    /// Data for texts that are too short, or made up; unsupported for a model that can't continue a text; whatever running them
    /// can raise; interrupted.
    pub(crate) fn measure(
        &self,
        (model, draft): ((&Model, &Path), (&Model, &Path)),
        samples: &Samples,
        (backend, seed): (&Backend, u64),
        monitor: &Monitor,
    ) -> Result<Drafting> {
        if samples.synthetic {
            let what = format!("{DRAFTS_FOR} needs text: how many guesses hold on made-up tokens says nothing");
            return Err(Error::data(what).help(format!("give {DATA} or {EVAL}")));
        }
        let ready = |(model, path): (&Model, &Path)| {
            let session = match backend.runs_any_operator() {
                true => Session::of_model(model, backend),
                false => Session::new(&verify(&measure::simplified(&model.graph, monitor)?)?, backend, &[]),
            };
            let session = session.and_then(|session| session.generation().map(drop).map(|()| session));
            session.map_err(|e| e.in_file(path))
        };
        let texts = texts(samples)?;
        let pair = Pair { model: ready(model)?, draft: ready(draft)?, seed, monitor };
        let words = [&pair.model, &pair.draft].map(|session| session.generation().ok().and_then(|text| text.words()));
        if let [Some(own), Some(drafted)] = words
            && own != drafted
        {
            let what = format!("the draft knows {drafted} tokens, the model {own}");
            return Err(Error::data(what).in_file(draft.1).help("both have to be trained with the same tokenizer"));
        }
        let temperature = self.temperature.map_or(1.0, |t| t.get());
        let of = |choosing| pair.drafted(&texts, choosing, self.draft_tokens.map(|n| n.get()));
        Ok(Drafting {
            texts: texts.len(),
            tokens: texts.iter().map(|text| text.len() / 2).max().unwrap_or(0),
            device: backend.device.describe(),
            engine: backend.engine.to_string(),
            threads: measure::threads(&backend.device),
            greedy: of(Choosing::Greedy)?,
            sampled: of(Choosing::Sampling { temperature })?,
            tried: vec![],
            chosen: None,
        })
    }

    /// The gates of a draft.
    pub(crate) fn judged(&self, drafting: &Drafting, min_speedup: Option<Positive>) -> Vec<Gate> {
        let ways = [("greedy", &drafting.greedy), ("sampled", &drafting.sampled)];
        let accepted = self.min_acceptance.map(|limit| limit.get()).into_iter().flat_map(|limit| {
            ways.map(|(way, drafted)| {
                let verdict = if drafted.acceptance >= limit { Verdict::Passed } else { Verdict::Failed };
                let shown = format!("{way} {}", shown::percent(drafted.acceptance));
                let limit_shown = shown::percent(limit);
                Gate::new(MIN_ACCEPTANCE, limit_shown, limit, shown, drafted.acceptance, verdict).of_figure(way)
            })
        });
        let fast = min_speedup.map(|limit| limit.get()).into_iter().flat_map(|limit| {
            ways.map(|(way, drafted)| {
                let (value, interval) = (drafted.speedup, drafted.interval);
                let shown = format!("{way} {}", shown::speedup(value, interval));
                let verdict = gates::speedup(value, interval, limit);
                Gate::new(MIN_SPEEDUP, format!("{limit}x"), limit, shown, value, verdict).of_figure(way)
            })
        });
        accepted.chain(fast).collect()
    }
}

/// The tokens of samples that are long enough.
fn texts(samples: &Samples) -> Result<Vec<Vec<i64>>> {
    let mut texts = vec![];
    for i in samples.indices.iter().take(TEXTS) {
        let batch = samples.set.batch(&[*i])?;
        let tokens = batch.inputs.first().and_then(|tokens| tokens.as_i64());
        texts.extend(tokens.map(|tokens| tokens.to_vec()).filter(|tokens| tokens.len() >= SHORTEST));
    }
    let help = format!("give more or longer texts, or a larger {TOKENS}");
    if texts.is_empty() {
        return Err(Error::data(format!("no text has {SHORTEST} tokens: half of a text is continued")).help(help));
    }
    let all: usize = texts.iter().map(|text| text.len() / 2).sum();
    if all < LEAST {
        let what = format!("there are {all} tokens to be guessed: fewer than {LEAST} tell nothing");
        return Err(Error::data(what).help(help));
    }
    Ok(texts)
}

/// Two decoders that continue texts.
struct Pair<'a> {
    model: Session,
    draft: Session,
    seed: u64,
    monitor: &'a Monitor<'a>,
}

/// A text that was continued twice.
struct Continued {
    alone: Duration,
    drafted: Duration,
    tally: Tally,
    same: bool,
}

impl Pair<'_> {
    /// What the draft gains with `ahead` guesses, or with as many as are the fastest.
    fn drafted(&self, texts: &[Vec<i64>], choosing: Choosing, ahead: Option<usize>) -> Result<Drafted> {
        // More can't be guessed.
        let longest = texts.iter().map(|text| text.len() / 2).max().unwrap_or(1);
        let numbers: Vec<usize> = AHEAD.into_iter().filter(|ahead| *ahead < longest).collect();
        // Texts that choose the number are not measured on, where there are enough.
        let (chosen_on, texts) = if texts.len() > TRIED + FEWEST { texts.split_at(TRIED) } else { (texts, texts) };
        let tried = |ahead: usize| -> Result<Duration> {
            let trials = chosen_on.iter().cycle().take(TRIED);
            trials.map(|text| Ok(self.with_draft(text, choosing, (ahead, 0))?.0)).sum()
        };
        // Makes plans and fills caches.
        tried(numbers.last().copied().unwrap_or(1))?;
        let ahead = match ahead {
            Some(ahead) => ahead.min(longest - 1).max(1),
            None => {
                let mut least = vec![Duration::MAX; numbers.len()];
                for _ in 0..TRIALS {
                    for (least, ahead) in least.iter_mut().zip(&numbers) {
                        *least = tried(*ahead)?.min(*least);
                    }
                }
                least.into_iter().zip(numbers).min().map_or(1, |(_, ahead)| ahead)
            }
        };
        let began = Instant::now();
        let mut all = vec![];
        // A few texts are continued several times, so that there is an interval.
        for round in 0..texts.len().max(FEWEST) {
            if round >= FEWEST && began.elapsed() >= TIME {
                break;
            }
            all.push(self.continued(&texts[round % texts.len()], choosing, (ahead, round))?);
        }
        let mut tally = Tally::default();
        all.iter().for_each(|made| tally += made.tally);
        let faster = |c: &Continued| c.alone.as_secs_f64() / c.drafted.as_secs_f64();
        let ratio = Ratio::of(all.iter().map(faster).collect());
        // Those of one text, so that they tell what the ratio tells.
        let far = |c: &&Continued| (faster(c) / ratio.middle).ln().abs();
        let middle = all.iter().min_by(|a, b| far(a).total_cmp(&far(b)));
        let speed =
            |of: fn(&Continued) -> Duration| middle.map_or(0.0, |c| c.tally.tokens as f64 / of(c).as_secs_f64());
        let (greedy, temperature) = match choosing {
            Choosing::Greedy => (true, None),
            Choosing::Sampling { temperature } => (false, Some(temperature)),
        };
        Ok(Drafted {
            temperature,
            draft_tokens: ahead,
            acceptance: tally.accepted as f64 / tally.judged.max(1) as f64,
            tokens_per_run: tally.tokens as f64 / tally.runs.max(1) as f64,
            alone_tokens_per_second: speed(|c| c.alone),
            tokens_per_second: speed(|c| c.drafted),
            speedup: ratio.middle,
            interval: [ratio.low, ratio.high],
            continued: all.len(),
            same: greedy.then(|| all.iter().filter(|c| c.same).count()),
        })
    }

    /// Continues the first half of a text, alone and with guesses. Every second round begins with the guesses.
    fn continued(&self, text: &[i64], choosing: Choosing, (ahead, round): (usize, usize)) -> Result<Continued> {
        self.monitor.check()?;
        let (alone, drafted) = match round % 2 {
            0 => (self.alone(text, choosing, round)?, self.with_draft(text, choosing, (ahead, round))?),
            _ => {
                let drafted = self.with_draft(text, choosing, (ahead, round))?;
                (self.alone(text, choosing, round)?, drafted)
            }
        };
        Ok(Continued { alone: alone.0, same: alone.1 == drafted.1, drafted: drafted.0, tally: drafted.2 })
    }

    /// The model in front of the first half of a text, whose last token it reads in the first run that is timed; and how many tokens are
    /// to follow.
    fn begun(&self, text: &[i64]) -> Result<(Generation<'_>, Vec<i64>, usize)> {
        let count = text.len() / 2;
        let prompt = &text[..text.len() - count];
        let mut model = self.model.generation()?;
        if prompt.len() > 1 {
            model.read(&prompt[..prompt.len() - 1])?;
        }
        Ok((model, prompt.to_vec(), count))
    }

    fn alone(&self, text: &[i64], choosing: Choosing, round: usize) -> Result<(Duration, Vec<i64>)> {
        let (mut model, mut made, count) = self.begun(text)?;
        let began = Instant::now();
        decode(&mut model, &mut made, count, choosing, &mut random(self.seed.wrapping_add(round as u64)))?;
        Ok((began.elapsed(), made))
    }

    fn with_draft(
        &self,
        text: &[i64],
        choosing: Choosing,
        (ahead, round): (usize, usize),
    ) -> Result<(Duration, Vec<i64>, Tally)> {
        self.monitor.check()?;
        let ((mut model, mut made, count), mut draft) = (self.begun(text)?, self.draft.generation()?);
        let random = &mut random(self.seed.wrapping_add(round as u64));
        let began = Instant::now();
        let tally = speculate((&mut model, &mut draft), &mut made, (count, ahead), choosing, random)?;
        Ok((began.elapsed(), made, tally))
    }
}

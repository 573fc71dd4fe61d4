//! Which layers to leave out of INT8, where a result is slower than its original.

use super::ExplainedPart;
use crate::{
    compress::{CompressPlan, Opened},
    data::Samples,
    events::Monitor,
    measure::{self, Pace},
    report::{Report, Speed},
};
use compress_compiler::{
    error::Result,
    onnx::Model,
    verify::verify,
    words::option::{EXCLUDE, INT8},
};
use compress_passes::Options;
use compress_runtime::session::{Backend, Session};
use schemars::JsonSchema;
use serde::Serialize;
use std::time::Duration;

/// How much longer a layer has to take in integers to be one that loses, and to be one that does not gain.
const LOSES: f64 = 1.1;
const GAINS: f64 = 0.9;
/// For how long each way is timed beside the original, about.
const TIME: Duration = Duration::from_secs(2);
/// By how much a way has to be faster to be worth a word.
const WORTH: f64 = 1.03;
/// Names that are written out.
const NAMED: usize = 3;

/// Layers that are better left in floats, and what that gave when it was tried.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct Remedy {
    /// The layers; none where it helps to quantise the original anew.
    pub layers: Vec<String>,
    /// The expression that excludes them, and nothing else.
    pub exclude: String,
    /// Whether these are all layers in INT8.
    pub is_all: bool,
    /// How many times as fast as the original the result is.
    pub now: f64,
    /// How many times as fast it is without INT8 in these layers.
    pub then: f64,
    /// Between which bounds that lies, with a confidence of 95%.
    pub interval: [f64; 2],
}

impl Remedy {
    /// What is to be done.
    pub fn sentence(&self) -> String {
        let named: Vec<String> = self.layers.iter().take(NAMED).map(|l| format!("`{l}`")).collect();
        let more = match self.layers.len().saturating_sub(NAMED) {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        let [low, high] = self.interval;
        let gained = format!(
            "{:.2}x as fast as the original ({low:.2}x to {high:.2}x, measured), not {:.2}x",
            self.then, self.now
        );
        match () {
            () if self.layers.is_empty() => format!("quantised anew by {INT8}, the result is {gained}"),
            () if self.is_all => format!(
                "no layer gains from integers on ONNX Runtime. Without INT8 the result is {gained}: leave the model in floats \
                 where its speed counts more than its size"
            ),
            () => format!(
                "{}{more} {} nothing from integers on ONNX Runtime. Without them in INT8 the result is {gained}: \
                 {INT8} with {EXCLUDE} '{}'",
                named.join(", "),
                if self.layers.len() == 1 { "gains" } else { "gain" },
                self.exclude
            ),
        }
    }
}

/// Tries to leave out what is slower in integers, then what is not faster either, then all of INT8, and tells the best way; `now` is how fast
/// the result is, made of `parts`, and `without` tells how fast it is with further layers in floats. `None` where nothing of
/// that measurably helps.
///
/// # Errors
/// Those of `without`.
pub fn find(now: f64, parts: &[ExplainedPart], without: &dyn Fn(&[String]) -> Result<Speed>) -> Result<Option<Remedy>> {
    let layers = |of: &dyn Fn(&ExplainedPart) -> bool| -> Vec<String> {
        parts.iter().filter(|p| of(p)).flat_map(|p| p.layers.iter().cloned()).collect()
    };
    let by_codes = |p: &ExplainedPart| p.onnxruntime.as_ref().is_some_and(|w| w.int8);
    let slower = |than: f64| {
        layers(&|p| match (&p.onnxruntime, p.against_ms) {
            (Some(work), Some(before)) => work.int8 && work.ms > before * than,
            _ => false,
        })
    };
    let (losing, idle) = (slower(LOSES), slower(GAINS));
    let (all, kept) = (layers(&by_codes), layers(&|p| p.onnxruntime.is_some() && !by_codes(p)));
    // A file of other tools may be slower than what is made anew.
    let anew = without(&kept)?;
    let proves = |speed: &Speed, than: f64| speed.speedup > than * WORTH && speed.interval[0] > now;
    let remedy = |layers: Vec<String>, speed: &Speed| Remedy {
        exclude: expression(&layers),
        is_all: !layers.is_empty() && layers.len() == all.len(),
        layers,
        now,
        then: speed.speedup,
        interval: speed.interval,
    };
    let mut best = proves(&anew, now).then(|| remedy(vec![], &anew));
    let mut ways = vec![losing, idle, all.clone()];
    ways.dedup();
    for layers in ways.into_iter().filter(|layers| !layers.is_empty()) {
        // What a search left in floats stays there.
        let speed = without(&[&layers[..], &kept].concat())?;
        if proves(&speed, best.as_ref().map_or(now.max(anew.speedup), |b| b.then)) {
            best = Some(remedy(layers, &speed));
        }
    }
    Ok(best)
}

/// What quantises a model anew, and times it.
pub struct Trial<'a> {
    pub opened: &'a Opened,
    pub plan: &'a CompressPlan<'a>,
    pub samples: &'a Samples,
    /// ONNX Runtime.
    pub backend: &'a Backend,
    pub batch: usize,
    pub monitor: &'a Monitor<'a>,
}

impl Trial<'_> {
    /// How fast the result is without INT8 in some layers. What else a search would decide takes too long to decide again.
    ///
    /// # Errors
    /// Whatever compressing and running the model can raise; interrupted.
    pub fn without(&self, layers: &[String]) -> Result<Speed> {
        let Self { opened, plan, monitor, .. } = self;
        let expression = Some(expression(layers)).filter(|e| !e.is_empty()).and_then(|e| regex::Regex::new(&e).ok());
        let options = opened.options(plan);
        let exclude = options.exclude.iter().cloned().chain(expression).collect();
        let options = Options { exclude, reconstruct: false, training: None, search: None, qat: false, ..options };
        self.speed(&opened.compile(plan, &plan.pipeline(&options), &mut Report::default(), monitor)?)
    }

    /// How fast a model is beside the original.
    ///
    /// # Errors
    /// Whatever running them can raise; interrupted.
    pub fn speed(&self, made: &Model) -> Result<Speed> {
        let Self { opened, samples, backend, batch, monitor, .. } = self;
        let make = |i: usize| match i {
            0 => Session::of_model(&opened.original, backend),
            _ => Session::new(&verify(&made.graph)?, &backend.of(made), &[]),
        };
        let pace = Pace { batch: *batch, time: TIME, as_is: true, one_at_a_time: false };
        measure::speed(&make, &opened.original.graph, samples, &pace, backend, monitor)
    }
}

/// An expression for these names, empty for none: one that matches nothing would match layers without a name.
fn expression(names: &[String]) -> String {
    if names.is_empty() {
        return String::new();
    }
    let names: Vec<String> = names.iter().map(|name| regex::escape(name)).collect();
    format!("^({})$", names.join("|"))
}

#[cfg(test)]
mod tests {
    use super::super::Work;
    use super::*;

    fn part(layer: &str, int8: bool, ms: f64, against_ms: f64) -> ExplainedPart {
        let work = Work { kernels: vec![], ms, share: 0.0, int8, conversions_ms: 0.0 };
        ExplainedPart {
            node: layer.into(),
            op: "Conv".into(),
            macs: 1,
            nodes: vec![layer.into()],
            layers: vec![layer.into()],
            ours: None,
            onnxruntime: Some(work),
            against_ms: Some(against_ms),
            float_because: None,
        }
    }

    fn speed(speedup: f64, low: f64) -> Speed {
        let interval = [low, speedup + (speedup - low)];
        Speed {
            device: String::new(),
            engine: String::new(),
            threads: 1,
            batch: 1,
            inputs: String::new(),
            as_is: true,
            before_ms: 1.0,
            after_ms: 1.0,
            speedup,
            interval,
            rounds: 6,
            p90: [1.0; 2],
            slowest_clock: None,
        }
    }

    #[test]
    fn the_better_way_is_told() {
        // The first is slower in integers, the second as fast, the third faster, the fourth in floats already.
        let parts = [
            part("a.1", true, 2.0, 1.0),
            part("b", true, 1.0, 1.0),
            part("c", true, 1.0, 3.0),
            part("d", false, 1.0, 1.0),
        ];
        let asked = std::cell::RefCell::new(vec![]);
        let of = |fast: [f64; 4], low: f64| {
            let without = |layers: &[String]| {
                asked.borrow_mut().push(layers.join(" "));
                Ok(speed(fast[layers.len() - 1], low))
            };
            find(0.9, &parts, &without).unwrap()
        };
        let best = of([0.9, 1.2, 1.5, 1.0], 1.1).unwrap();
        assert_eq!((&best.layers[..], best.then), (&["a.1".to_string(), "b".into()][..], 1.5));
        assert_eq!(best.exclude, r"^(a\.1|b)$");
        assert_eq!(*asked.borrow(), ["d", "a.1 d", "a.1 b d", "a.1 b c d"], "what is in floats stays there");
        assert_eq!(of([0.9, 1.2, 1.2, 1.0], 1.1).unwrap().layers, ["a.1"], "no more than is worth it");
        assert!(of([0.9, 0.91, 0.91, 0.91], 0.905).is_none(), "it has to help");
        assert!(of([0.9, 1.2, 1.5, 1.0], 0.5).is_none(), "and measurably so");
        let anew = of([1.6, 1.2, 1.5, 1.0], 1.1).unwrap();
        assert!(anew.layers.is_empty() && anew.then == 1.6, "what is made anew may be faster without exclusions");
        let floats = of([0.9, 0.9, 0.91, 1.0], 0.95).unwrap();
        assert!(floats.is_all && floats.sentence().starts_with("no layer gains"), "the original is as fast as itself");
        assert_eq!(expression(&[]), "", "it would match layers without a name");
        assert!(find(0.9, &parts[2..], &|_| Ok(speed(0.9, 0.8))).unwrap().is_none());
        let sentence = best.sentence();
        assert!(sentence.contains("`a.1`, `b` gain nothing") && sentence.contains("1.50x"), "{sentence}");
    }
}

//! The metrics, one list of them, and which of them a model is measured by.

use super::{
    kinds::{Best, Facts, classes, noise, overlap, program, text, tokens, vectors},
    meaning::{Answers, Meaning},
};
use compress_compiler::{
    choice::Choice,
    choice_with_facts,
    error::{Error, Result},
    serde_as_text,
    words::{Unit, any_of, option},
};
use std::{fmt, str::FromStr};

// Where several metrics take outputs of the same meaning, the first that needs no labels is the usual one.
choice_with_facts!(
    /// A measure of how good answers are: beside labels, or beside those of the original.
    Metric, "metric", pub(super) Facts,
    [
        /// The share of samples whose label has the largest score.
        Top1 "top1" "right classes, by labels" classes::TOP1;
        /// The share of samples whose label is among the five largest scores.
        Top5 "top5" "right classes among the five best, by labels" classes::TOP5;
        /// The share of samples, or positions, for which both models choose the same class.
        Agreement "agreement" "the same class as the original" classes::AGREEMENT;
        /// The mean cosine of the angle between the embeddings; of tokens, between their means.
        Cosine "cosine" "embeddings; of tokens, their masked mean" vectors::COSINE;
        /// The share of tokens for which both models find the same next one the most likely.
        NextToken "next-token" "the same most likely next token as the original" tokens::NEXT_TOKEN;
        /// The perplexity: the exponential of the mean negative log-likelihood of each next token of the data.
        Perplexity "perplexity" "perplexity of the data's next tokens" tokens::PERPLEXITY;
        /// The mean divergence of the distribution of each next token from the original's (Kullback and Leibler), in nats.
        Kl "kl" "divergence of next tokens from the original, in nats" tokens::KL;
        /// The share of each sample's ten nearest neighbours, by cosine, that stay its nearest ten.
        Recall10 "recall@10" "nearest neighbours kept, of embeddings" vectors::RECALL10;
        /// Intersection over union of masks, on average over samples.
        Iou "iou" "masks" overlap::IOU;
        /// The share of samples that read the same.
        Text "text" "samples read as before (CTC)" text::TEXT;
        /// Signal to quantisation noise of the output, in decibels.
        Sqnr "sqnr" "signal to noise of any output, in dB" noise::SQNR;
        /// The largest absolute difference.
        MaxError "max-error" "the largest difference of any output" noise::MAX_ERROR;
        /// What a program of the user's own prints.
        Score "score" "what a program of the user's own prints" program::SCORE;
    ]
);

impl Metric {
    /// How its values are read.
    pub fn unit(self) -> Unit {
        self.facts().unit
    }

    /// Whether labels say what is right.
    pub fn needs_labels(self) -> bool {
        self.facts().labelled
    }

    /// Whether the data says what is right, so that a model is good or bad by itself: labels do, and the tokens of a text.
    pub fn judges_alone(self) -> bool {
        self.needs_labels() || self == Self::Perplexity
    }

    /// Whether 1 is the best: what it is below 1, or below what it was, is a drop.
    pub fn is_share(self) -> bool {
        self.facts().best == Best::One
    }

    /// Whether a larger value is better.
    pub fn rises(self) -> bool {
        self.facts().best != Best::Low
    }

    /// The metric for outputs of this meaning, without labels.
    fn of(meaning: Meaning) -> Self {
        let suits = |m: &&Metric| !m.needs_labels() && m.facts().takes.contains(&meaning);
        Self::ALL.iter().find(suits).copied().unwrap_or(Metric::Sqnr)
    }

    /// What an output has to be taken for, whatever it seems to be.
    fn takes(self, seems: Meaning) -> Meaning {
        match self.facts().takes {
            takes if takes.contains(&seems) => seems,
            takes => takes.first().copied().unwrap_or(seems),
        }
    }
}

/// The metrics that can be asked for by name, as a sentence lists them.
pub fn metrics() -> String {
    let named = Metric::ALL.iter().filter(|m| **m != Metric::Score);
    any_of(&named.map(|m| m.name_of()).collect::<Vec<_>>())
}

/// A metric that a user asks for, of an output perhaps: `cosine`, `iou:masks`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The metric.
    pub metric: Metric,
    /// The output's name.
    pub output: Option<String>,
}

serde_as_text!(Wanted);

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match &self.output {
            Some(output) => write!(f, "{}:{output}", self.metric),
            None => write!(f, "{}", self.metric),
        }
    }
}

impl FromStr for Wanted {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        let (name, output) = s.split_once(':').map_or((s, None), |(name, output)| (name, Some(output.to_string())));
        match name.parse()? {
            Metric::Score => Err(Error::usage("the metric `score` is what a program prints")
                .help(format!("name the program: {} COMMAND", option::SCORE))),
            metric => Ok(Self { metric, output }),
        }
    }
}

/// What a model is measured by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measure {
    /// The metric.
    pub metric: Metric,
    /// The output that it looks at.
    pub output: usize,
    /// What that output is taken for.
    pub meaning: Meaning,
}

impl Answers {
    /// What a model with these outputs is measured by: `wanted`, else what suits the output that means most.
    ///
    /// # Errors
    /// Usage for an output that is not there; data for a metric by labels where there are none.
    pub fn measure(&self, wanted: Option<&Wanted>, labelled: bool) -> Result<Measure> {
        let Some(Wanted { metric, output }) = wanted else { return Ok(self.usual(labelled)) };
        if metric.needs_labels() && !labelled {
            return Err(Error::data(format!("the metric `{metric}` needs labels")).help(format!(
                "give them with {} or {}",
                option::EVAL,
                option::DATA
            )));
        }
        let place = match output {
            Some(name) => self.outputs.iter().position(|o| o.name == *name).ok_or_else(|| {
                let names: Vec<&str> = self.outputs.iter().map(|o| &o.name[..]).collect();
                Error::usage(format!("no output is called `{name}`")).help(format!("outputs: {}", names.join(", ")))
            })?,
            // The first that suits it best, else the first.
            None => {
                let suits = |o: &super::meaning::Answer| metric.takes(o.meaning) == o.meaning;
                self.outputs.iter().position(suits).unwrap_or(0)
            }
        };
        let seems = self.outputs.get(place).map_or(Meaning::Values, |o| o.meaning);
        Ok(Measure { metric: *metric, output: place, meaning: metric.takes(seems) })
    }

    fn usual(&self, labelled: bool) -> Measure {
        let of = |m: Meaning| self.outputs.iter().position(|o| o.meaning == m);
        if let Some(output) = of(Meaning::Classes).filter(|_| labelled) {
            return Measure { metric: Metric::Top1, output, meaning: Meaning::Classes };
        }
        let order = [
            Meaning::NextToken,
            Meaning::Classes,
            Meaning::Text,
            Meaning::Labels,
            Meaning::Positions,
            Meaning::Mask,
            Meaning::Embedding,
            Meaning::Tokens,
            Meaning::Flags,
        ];
        let found = order.into_iter().find_map(|m| Some((m, of(m)?)));
        let (meaning, output) = found.unwrap_or((Meaning::Values, 0));
        Measure { metric: Metric::of(meaning), output, meaning }
    }

    /// The output that holds class scores, if one does.
    pub fn classes(&self) -> Option<usize> {
        self.outputs.iter().position(|o| o.meaning == Meaning::Classes)
    }
}

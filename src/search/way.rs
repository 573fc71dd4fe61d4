//! A way to compress a model: what of a recipe the search decides.

use super::Search;
use crate::{
    compress::Compress,
    options::MeasureOptions,
    values::{Count, Finite, FormRule, Fraction, Int8, Whole},
};
use compress_compiler::{choice::Choice, error::Result};
use compress_passes::{
    quant::{calibrators::Calibration, layer_forms::LayerForm, search::Effort, weight_only::WeightFormat},
    sensitivity::LayerAlone,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What most layers become.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// They stay in floats.
    Float,
    /// Static INT8.
    Int8,
    /// INT8 by the ranges of each run.
    Dynamic,
    /// Floats, with weights in blocks of 8 bits.
    WeightsInt8,
    /// Floats, with weights in blocks of 4 bits.
    WeightsInt4,
}

/// How much work is put into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Care {
    /// One rule for the ranges of all layers.
    Quick,
    /// The search of INT8 for ranges, rounding and forms. No training.
    Careful,
    /// The same, and so many epochs of training.
    Trained(usize),
}

/// A way to compress a model.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Way {
    /// What layers become.
    pub form: Form,
    /// Layers of INT8 that stay in floats, by their places in the table, where one rule does it.
    pub float: BTreeSet<usize>,
    /// Layers of INT8 whose weights are stored in 4 bits instead.
    pub four: BTreeSet<usize>,
    /// The decibels that the search of INT8 aims for, 0 where nobody says.
    pub aim: usize,
    /// How ranges are chosen, where one rule does it.
    pub calibration: Option<String>,
    /// The weights to set to zero, in hundredths.
    pub zeros: usize,
    /// The multiply-accumulates to remove with channels, in hundredths.
    pub channels: usize,
    /// The work that is put into it.
    pub care: Care,
}

/// The hundredths that are tried, of zeros and of channels.
pub const ZEROS: [usize; 8] = [0, 30, 50, 60, 70, 80, 90, 95];
/// See [`ZEROS`].
pub const CHANNELS: [usize; 9] = [0, 10, 20, 30, 40, 50, 60, 70, 80];
/// Decibels that the search of INT8 aims for.
pub const AIMS: [usize; 6] = [0, 15, 20, 25, 35, 40];
/// Epochs of training at most, where nobody says.
const EPOCHS: usize = 16;

/// Epochs that are tried up to `most`: each rung is four times as long as the one before.
pub fn rungs(most: Option<usize>) -> Vec<usize> {
    let most = most.unwrap_or(EPOCHS);
    let mut rungs: Vec<usize> =
        std::iter::successors(Some(1), |n: &usize| n.checked_mul(4)).take_while(|n| *n < most).collect();
    rungs.extend((most > 0).then_some(most));
    rungs
}

impl Way {
    /// Layers become `form`, and that is all.
    pub fn plain(form: Form) -> Self {
        let (float, four) = Default::default();
        Self { form, float, four, aim: 0, calibration: None, zeros: 0, channels: 0, care: Care::Quick }
    }

    /// The same way without what has no effect.
    pub fn settled(mut self) -> Self {
        if self.form != Form::Int8 {
            self.float.clear();
            self.four.clear();
        }
        self.float = &self.float - &self.four;
        let (quantises, prunes) = (self.form == Form::Int8, self.prunes());
        if matches!(self.care, Care::Trained(_)) && !(quantises && self.four.is_empty() || prunes) {
            self.care = Care::Careful;
        }
        if !quantises && !prunes {
            self.care = Care::Quick;
        }
        // Without ranges to find there is no quick way.
        if prunes && !quantises && self.care == Care::Quick {
            self.care = Care::Careful;
        }
        if !quantises || self.care != Care::Quick {
            self.calibration = None;
        }
        // The search of INT8 finds these itself: more of them for a higher aim.
        if self.care != Care::Quick {
            self.float.clear();
        }
        if !quantises || self.care == Care::Quick {
            self.aim = 0;
        }
        self
    }

    /// The recipe of the way, for the search's model and data; layers are those of `table`.
    ///
    /// # Errors
    /// Bug where a name makes no rule.
    pub fn recipe(&self, search: &Search, table: &[LayerAlone], validation: Option<usize>) -> Result<Compress> {
        let rule = |form: LayerForm| move |layer: &usize| FormRule::exactly(&table[*layer].node, form);
        let rules =
            self.four.iter().map(rule(LayerForm::WeightsInt4)).chain(self.float.iter().map(rule(LayerForm::Float)));
        let share =
            |hundredths: usize| (hundredths > 0).then(|| Fraction::try_from(hundredths as f64 / 100.0)).transpose();
        let qat = self.epochs() > 0 && self.form == Form::Int8 && self.four.is_empty();
        let calibration = self.calibration.as_ref().map(|name| Calibration::named(name)).transpose()?;
        Ok(Compress {
            model: search.model.clone(),
            int8: match self.form {
                Form::Int8 => Some(Int8::Static),
                Form::Dynamic => Some(Int8::Dynamic),
                Form::Float | Form::WeightsInt8 | Form::WeightsInt4 => None,
            },
            qat,
            weights: match self.form {
                Form::WeightsInt8 => Some(WeightFormat::Int8),
                Form::WeightsInt4 => Some(WeightFormat::Int4),
                Form::Float | Form::Int8 | Form::Dynamic => None,
            },
            layer: rules.collect::<Result<_>>()?,
            prune: share(self.zeros)?,
            prune_channels: share(self.channels)?,
            effort: match self.care {
                Care::Quick if self.form == Form::Int8 => Effort::Quick,
                _ => Effort::Normal,
            },
            epochs: (self.prunes() || qat).then(|| Whole::try_from(self.epochs())).transpose()?,
            calibration,
            aim: (self.aim > 0).then(|| Finite::try_from(self.aim as f64)).transpose()?,
            exclude: if self.changes() { search.exclude.clone() } else { vec![] },
            target: if search.target.is_for_codes() && self.form == Form::Float {
                Default::default()
            } else {
                search.target
            },
            validation_samples: validation.map(Count::try_from).transpose()?,
            data: search.data.clone(),
            measures: MeasureOptions { metric: search.metric.clone(), ..MeasureOptions::default() },
            on: search.on.clone(),
            read: search.read.clone(),
            ..Compress::default()
        })
    }

    /// What of it decides how weights and channels go, before anything becomes codes; nothing where none goes.
    pub fn beginning(&self) -> Option<(usize, usize, usize)> {
        self.prunes().then(|| (self.zeros, self.channels, self.epochs()))
    }

    /// Whether weights or channels go.
    pub fn prunes(&self) -> bool {
        self.zeros > 0 || self.channels > 0
    }

    /// Whether it is what `--int8` does alone.
    pub fn is_int8(&self) -> bool {
        *self == Self { care: Care::Careful, ..Self::plain(Form::Int8) }
    }

    /// Whether it trains codes, and nothing has gone that training could bring back.
    pub fn trains_codes(&self) -> bool {
        self.epochs() > 0 && !self.prunes()
    }

    /// Epochs of training.
    pub fn epochs(&self) -> usize {
        if let Care::Trained(epochs) = self.care { epochs } else { 0 }
    }

    /// Whether any layer becomes something else.
    fn changes(&self) -> bool {
        self.form != Form::Float || self.prunes()
    }

    /// The way in words.
    pub fn says(&self) -> String {
        let count =
            |n: usize, what: &str| (n > 0).then(|| format!("{n} layer{} {what}", if n == 1 { "" } else { "s" }));
        let form = match self.form {
            Form::Float => "floats",
            Form::Int8 => "INT8",
            Form::Dynamic => "dynamic INT8",
            Form::WeightsInt8 => "weights in 8 bits",
            Form::WeightsInt4 => "weights in 4 bits",
        };
        let layers = [count(self.float.len(), "in floats"), count(self.four.len(), "in 4 bits")];
        let with: Vec<String> = layers.into_iter().flatten().collect();
        let form = if with.is_empty() { form.to_string() } else { format!("{form} with {}", with.join(" and ")) };
        let share = |n: usize, what: &str| (n > 0).then(|| format!("{n}% {what}"));
        let care = match self.care {
            Care::Quick if self.form == Form::Int8 => Some(match &self.calibration {
                Some(name) => format!("one rule ({name})"),
                None => "one rule".into(),
            }),
            Care::Quick | Care::Careful => None,
            Care::Trained(1) => Some("1 epoch".into()),
            Care::Trained(n) => Some(format!("{n} epochs")),
        };
        let aim = (self.aim > 0).then(|| format!("aimed at {} dB", self.aim));
        let parts =
            [Some(form), aim, share(self.zeros, "zeros"), share(self.channels, "fewer multiply-accumulates"), care];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_has_no_parts_without_effect() {
        let of = |form: Form, care: Care| {
            let (float, four) = ([0, 1].into(), [1].into());
            Way { float, four, aim: 35, calibration: Some("mse".into()), care, ..Way::plain(form) }.settled()
        };
        assert_eq!(of(Form::Dynamic, Care::Trained(4)), Way::plain(Form::Dynamic));
        let quick = of(Form::Int8, Care::Quick);
        assert_eq!((quick.float.len(), quick.four.len(), quick.aim), (1, 1, 0), "a layer has one form");
        assert!(quick.calibration.is_some());
        let careful = of(Form::Int8, Care::Trained(4));
        assert_eq!((careful.care, careful.aim), (Care::Careful, 35), "codes of 4 bits are not trained");
        assert!(careful.float.is_empty() && careful.calibration.is_none(), "the search of INT8 finds both");
        let pruned = Way { zeros: 50, ..Way::plain(Form::Float) }.settled();
        assert_eq!(pruned.care, Care::Careful);
    }
}

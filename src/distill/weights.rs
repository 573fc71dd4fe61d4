//! The weights of the parts of a loss: an option for each, whichever there are.

use crate::values::NotNegative;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, value_parser};
use compress_compiler::choice::Choice;
use compress_runtime::train::loss::Term;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{IgnoredAny, MapAccess, Visitor},
};
use std::fmt;

/// The weights that were asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LossWeights([Option<NotNegative>; Term::ALL.len()]);

impl LossWeights {
    /// The same with a weight for a part.
    pub fn with(mut self, term: Term, weight: NotNegative) -> Self {
        self.0[term as usize] = Some(weight);
        self
    }

    /// The parts that have a weight of their own.
    pub fn asked(&self) -> impl Iterator<Item = (Term, NotNegative)> {
        Term::ALL.iter().zip(self.0).filter_map(|(term, weight)| Some((*term, weight?)))
    }
}

impl Args for LossWeights {
    fn augment_args(command: Command) -> Command {
        let option = |term: &Term| {
            let help = format!("The weight of {}", term.means());
            let arg = Arg::new(term.name()).long(term.name()).value_name("WEIGHT").help(help);
            arg.allow_hyphen_values(true).value_parser(value_parser!(NotNegative))
        };
        command.args(Term::ALL.iter().map(option))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for LossWeights {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut weights = Self::default();
        weights.update_from_arg_matches(matches)?;
        Ok(weights)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for term in Term::ALL {
            if let Some(weight) = matches.get_one(term.name()) {
                *self = self.with(*term, *weight);
            }
        }
        Ok(())
    }
}

impl Serialize for LossWeights {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.asked())
    }
}

impl<'de> Deserialize<'de> for LossWeights {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Keys)
    }
}

/// Reads the keys that are parts of a loss, and leaves the others of the recipe alone.
struct Keys;

impl<'de> Visitor<'de> for Keys {
    type Value = LossWeights;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("options")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LossWeights, A::Error> {
        let mut weights = LossWeights::default();
        while let Some(key) = map.next_key::<String>()? {
            match key.parse::<Term>() {
                Ok(term) => weights = weights.with(term, map.next_value()?),
                Err(_) => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(weights)
    }
}

//! The remedies, in the order in which they are tried.

use super::{
    Best, Search, bias, equalise, limits::Price, options, placement, ranges, recurrent, storage, training, weights,
};
use crate::quant::ptq::Variant;
use compress_compiler::error::Result;

/// A remedy: what it proposes, and when a proposal is kept.
#[derive(Clone, Copy)]
pub(super) struct Remedy {
    pub name: &'static str,
    pub price: Price,
    /// Decibels by which the answers have to get better; below 0, those that they may lose.
    pub margin_db: f64,
    /// Whether each proposal costs more than the one before, and keeps more.
    pub climbs: bool,
    /// What to try, given the best way so far.
    pub propose: Propose,
}

pub(super) type Make = Box<dyn FnOnce(&Search) -> Result<Variant>>;

/// Something to try. It is made when it is tried: each may have weights of its own, and only some are tried.
pub(super) struct Proposal {
    pub what: String,
    /// Whether it is predicted to be enough, of those that each cost more than the one before.
    pub is_enough: bool,
    pub make: Make,
}

impl Proposal {
    pub fn of(what: String, variant: Variant) -> Self {
        Self { what, is_enough: false, make: Box::new(|_| Ok(variant)) }
    }
}

const RANGES: Remedy = Remedy::new("ranges", Price::None, 0.5, ranges::of_all);
/// It goes first: where the first layers answer with much noise, nothing shows of what other remedies bring to those after them.
const STEM: Remedy = Remedy::new("stem", Price::Little, 0.2, placement::stems);
const PLACEMENT: Remedy = Remedy::new("placement", Price::None, 0.2, placement::ways);
const RECURRENT: Remedy = Remedy::new("recurrent", Price::None, 0.2, recurrent::in_floats);
const EQUALISE: Remedy = Remedy::new("equalise", Price::None, 0.1, equalise::folded);
const SMOOTH: Remedy = Remedy::new("smooth", Price::Any, 0.2, equalise::smoothed);
/// Each layer answers better with such weights, also where that does not show beside the noise of others yet.
const ROUNDING: Remedy = Remedy::new("rounding", Price::None, -0.3, weights::rounded);
const BIAS: Remedy = Remedy::new("bias", Price::None, 0.1, bias::corrected);
const VALUES: Remedy = Remedy::new("values", Price::None, 0.2, ranges::of_values);
const FORMS: Remedy = Remedy::new("forms", Price::Any, 0.2, options::mixed).climbing();
/// What they cost for what they keep is little then, or a goal was asked for.
const RECURRENT_AT_ANY_PRICE: Remedy = RECURRENT.at(Price::Any).climbing();
/// The search counts on it from the start: layers in floats take as little room as others. The noise of these weights alone decides;
/// whatever changes draws the rounding of all values behind it anew, which is worth so much by chance.
pub(super) const STORAGE: Remedy = Remedy::new("storage", Price::None, -1.0, storage::as_codes);
const TRAINING: Remedy = Remedy::new("training", Price::None, 0.1, training::trained);

type Propose = fn(&Search, &Best) -> Result<Vec<Proposal>>;

impl Remedy {
    const fn new(name: &'static str, price: Price, margin_db: f64, propose: Propose) -> Self {
        Self { name, price, margin_db, climbs: false, propose }
    }

    const fn climbing(self) -> Self {
        Self { climbs: true, ..self }
    }

    const fn at(self, price: Price) -> Self {
        Self { price, ..self }
    }
}

/// The remedies, in the order in which they are tried.
pub(super) const NORMAL: &[Remedy] = &[
    STEM,
    RANGES,
    PLACEMENT,
    RECURRENT,
    EQUALISE,
    SMOOTH,
    ROUNDING,
    BIAS,
    VALUES,
    FORMS,
    ROUNDING,
    BIAS,
    RECURRENT_AT_ANY_PRICE,
    STORAGE,
];
/// What training brings need not be bought with layers in floats.
pub(super) const BEST: &[Remedy] = &[
    STEM,
    RANGES,
    PLACEMENT,
    RECURRENT,
    EQUALISE,
    SMOOTH,
    ROUNDING,
    BIAS,
    VALUES,
    FORMS.at(Price::Little),
    ROUNDING,
    BIAS,
    TRAINING,
    FORMS,
    TRAINING,
    RECURRENT_AT_ANY_PRICE,
    STORAGE,
];

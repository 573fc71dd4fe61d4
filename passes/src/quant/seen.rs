//! What calibration saw of the values of a graph.

use super::{
    calibrators::{MINMAX, PERCENTILE},
    observe::{Histogram, Observer},
    reduce_range::Channels,
    values::QuantisedValues,
};
use compress_compiler::node::Port;
use std::{collections::HashMap, sync::Arc};

/// What calibration saw of values.
#[derive(Default)]
pub(super) struct Seen {
    /// By the place of their plan.
    pub values: HashMap<(usize, Port), Arc<Observer>>,
    /// The ranges of channels of what the layers of the graph itself read, where they decide of scales.
    pub channels: Channels,
}

impl Seen {
    /// The extremes of a value of the graph itself.
    pub fn extremes(&self, port: Port) -> Reach {
        self.values.get(&(0, port))?.range(MINMAX, 1.0)
    }

    /// How often a value of the graph itself was where, if that was counted.
    pub fn histogram(&self, port: Port) -> Option<Histogram> {
        let histogram = self.values.get(&(0, port))?.histogram();
        (histogram.count > 0 && !histogram.bins.is_empty()).then_some(histogram)
    }

    /// The range of nearly all of it.
    pub fn most(&self, port: Port) -> Reach {
        self.values.get(&(0, port))?.range(PERCENTILE, 1.0)
    }

    /// The same, but that of a value of the graph itself all that is known are the ranges of its channels.
    pub fn with(&self, port: Port, channels: Vec<(f32, f32)>) -> Self {
        let (mut values, mut known) = (self.values.clone(), self.channels.clone());
        let (low, high) = channels.iter().fold((0f32, 0f32), |a, b| (a.0.min(b.0), a.1.max(b.1)));
        values.insert((0, port), Arc::new(Observer::between(low, high)));
        known.insert(port, channels.into());
        Self { values, channels: known }
    }

    /// What was seen of the values that plans want, if all of them were watched.
    pub fn of(&self, plans: &[QuantisedValues]) -> Option<Self> {
        let wanted = |(i, plan): (usize, &QuantisedValues)| plan.wanted.iter().map(|p| (i, *p)).collect::<Vec<_>>();
        let wanted = plans.iter().enumerate().flat_map(wanted);
        let values = wanted.map(|at| Some((at, self.values.get(&at)?.clone()))).collect::<Option<_>>()?;
        Some(Self { values, channels: self.channels.clone() })
    }

    /// The same, and of `new` what is known of `port`: it has its values.
    pub fn alike(mut self, port: Port, new: Port) -> Self {
        if let Some(observer) = self.values.get(&(0, port)).cloned() {
            self.values.insert((0, new), observer);
        }
        if let Some(channels) = self.channels.get(&port).cloned() {
            self.channels.insert(new, channels);
        }
        self
    }

    /// The same, with some range for each of `ports` that was not watched.
    pub fn filled<'a>(&self, ports: impl IntoIterator<Item = &'a Port>) -> Self {
        let mut values = self.values.clone();
        for port in ports {
            values.entry((0, *port)).or_insert_with(|| Arc::new(Observer::between(0.0, 1.0)));
        }
        Self { values, channels: self.channels.clone() }
    }
}

/// A value's range on the calibration data, if it was reached.
pub(super) type Reach = Option<(f32, f32)>;

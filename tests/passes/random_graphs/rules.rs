//! Counts the changes that passes make, by rule, from their trace.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, Mutex},
};
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

/// How often each rule made a change.
pub type Counts = Arc<Mutex<BTreeMap<String, usize>>>;

/// Listens to [`compress_compiler::pass::Edits`].
pub struct Listener(pub Counts);

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata) -> bool {
        metadata.target() == "compress_compiler::pass"
    }
    fn new_span(&self, _: &Attributes) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event) {
        event.record(&mut Rule(&self.0));
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Rule<'a>(&'a Counts);

impl Visit for Rule<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "rule" {
            let mut counts = self.0.lock().unwrap_or_else(|e| e.into_inner());
            *counts.entry(value.into()).or_default() += 1;
        }
    }
    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}

//! The value of `int8`.

use compress_compiler::choice;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Where the ranges of activations come from that `int8` makes codes of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Int8 {
    /// From calibration.
    Static,
    /// From each run.
    Dynamic,
}

choice!(Int8, "way to quantise", [
    Static "static" "ranges that calibration finds: QDQ, for every runtime",
    Dynamic "dynamic" "the range of each run: products of matrices alone, without calibration",
]);

/// Writes it in a recipe, where `true` stands for static and `false` for none.
pub fn serialize<S: Serializer>(int8: &Option<Int8>, to: S) -> Result<S::Ok, S::Error> {
    match int8 {
        Some(Int8::Dynamic) => Int8::Dynamic.serialize(to),
        other => other.is_some().serialize(to),
    }
}

/// Reads it from a recipe.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Int8>, D::Error> {
    match toml::Value::deserialize(from)? {
        toml::Value::Boolean(on) => Ok(on.then_some(Int8::Static)),
        other => Int8::deserialize(other).map(Some).map_err(serde::de::Error::custom),
    }
}

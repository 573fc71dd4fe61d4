//! Forms of single layers, as a user names them: a rule is an expression for names, and the form of the layers that it matches.

use super::weight_only::WeightFormat;
use crate::layers::{is_excluded, is_left_out};
use compress_compiler::{choice, graph::Graph, node::NodeId, words::option::LAYER};
use regex::Regex;

/// What a layer becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerForm {
    /// It computes in floats. With INT8, its weight is stored in fewer bits where the answers don't tell.
    Float,
    /// It multiplies codes of 8 bits.
    Int8,
    /// It computes in floats, its weight is stored in blocks of 8 bits.
    WeightsInt8,
    /// It computes in floats, its weight is stored in blocks of 4 bits.
    WeightsInt4,
}

choice!(LayerForm, "form of a layer", [
    Float "float" "it computes in floats",
    Int8 "int8" "it multiplies codes of 8 bits",
    WeightsInt8 "weights-int8" "it computes in floats, its weight is stored in 8 bits",
    WeightsInt4 "weights-int4" "it computes in floats, its weight is stored in 4 bits",
]);

impl LayerForm {
    /// What its weight alone becomes, if that alone does.
    pub fn weights(self) -> Option<WeightFormat> {
        match self {
            Self::Float | Self::Int8 => None,
            Self::WeightsInt8 => Some(WeightFormat::Int8),
            Self::WeightsInt4 => Some(WeightFormat::Int4),
        }
    }
}

/// Which layers have a form of their own.
#[derive(Debug, Clone)]
pub struct LayerRule {
    /// Matches the name of the layer's node, or of its weight.
    pub name: Regex,
    /// What the layer becomes.
    pub form: LayerForm,
}

/// Whether some layers may get weights in blocks by `rules`.
pub(crate) fn store_weights(rules: &[LayerRule]) -> bool {
    rules.iter().any(|rule| rule.form.weights().is_some())
}

/// The form of a layer by the first of `rules` that matches it.
pub(crate) fn form_of(g: &Graph, layer: NodeId, rules: &[LayerRule]) -> Option<LayerForm> {
    let matches = |rule: &&LayerRule| is_left_out(g, layer, std::slice::from_ref(&rule.name));
    rules.iter().find(matches).map(|rule| rule.form)
}

/// The form of a node that reads `constant`, by the first of `rules` that matches the name of either.
pub(crate) fn form_by_name(g: &Graph, node: NodeId, constant: &str, rules: &[LayerRule]) -> Option<LayerForm> {
    let matches = |rule: &&LayerRule| is_excluded(g, node, constant, std::slice::from_ref(&rule.name));
    rules.iter().find(matches).map(|rule| rule.form)
}

/// Why a layer is not quantised to INT8, if a rule gives it another form.
pub(crate) fn not_int8(g: &Graph, layer: NodeId, rules: &[LayerRule]) -> Option<String> {
    let form = form_of(g, layer, rules).filter(|form| *form != LayerForm::Int8);
    form.map(|form| format!("{LAYER} says {form}"))
}

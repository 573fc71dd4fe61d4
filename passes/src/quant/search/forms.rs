//! Forms that the input of products may have: their channels share one scale, and a few wide ones spoil it for the others.

use crate::quant::{columns, equalise::Group, ptq::Variant};
use compress_compiler::error::Result;
use std::rc::Rc;

/// What may be done to the input of products, beyond smoothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// So many of its widest channels are multiplied in floats.
    Columns(usize),
    /// It is quantised in two terms.
    TwoTerms,
    /// So many of its widest channels are multiplied in floats, and the others quantised in two terms.
    Both(usize),
}

/// The forms to try.
pub(super) const FORMS: [Form; 4] = [Form::Columns(4), Form::Columns(16), Form::TwoTerms, Form::Both(16)];

/// Gives the input of a group another form; `false` where that can't be done.
pub(super) fn reshape(variant: &mut Variant, group: &Group, form: Form) -> Result<bool> {
    // Where the layer before was split, its sum stands for what it made.
    let input = variant.graph.operand(group.layers[0].node, 0).unwrap_or(group.input);
    if let Form::Columns(count) | Form::Both(count) = form
        && count * 4 > group.channels.len()
    {
        return Ok(false);
    }
    // Of what two terms leave over, all channels have all codes, which may need larger scales.
    for l in &group.layers {
        variant.choices.rounded.remove(&l.weight);
        variant.choices.biases.remove(&l.node);
    }
    match form {
        Form::TwoTerms => {
            variant.choices.two_terms.insert(input);
        }
        Form::Columns(count) | Form::Both(count) => {
            if matches!(form, Form::Both(_)) {
                variant.choices.two_terms.insert(input);
            }
            let widest = group.widest();
            let mut order: Vec<usize> = (0..widest.len()).collect();
            order.sort_by(|a, b| widest[*b].total_cmp(&widest[*a]));
            let mut channels = order[..count].to_vec();
            channels.sort();
            let added = columns::split(&mut variant.graph, input, &group.layers, &channels)?;
            let mut seen = variant.seen.with(input, group.without(&channels));
            for (l, (product, sum)) in group.layers.iter().zip(added) {
                variant.choices.float.insert(product, WIDE);
                variant.choices.sums.insert(sum);
                seen = seen.alike(l.node.into(), sum.into());
            }
            variant.seen = Rc::new(seen);
        }
    }
    Ok(true)
}

const WIDE: &str = "it multiplies the widest channels in floats";

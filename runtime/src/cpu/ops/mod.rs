//! Lowerings, one file a family of operators: how a value is recognised, and the steps that make it.

mod attention;
mod constant;
mod dynamic;
mod elementwise;
mod gathered;
mod grouped;
mod logic;
mod lookup;
mod matmul;
mod movement;
mod norm;
mod pick;
mod pool;
mod product;
mod quant;
mod recurrent;
mod reduce;
mod resample;
mod rotary;
mod rows;
mod transposed;

pub(crate) use pool::average_window;
pub(crate) use product::{Sliding, Weight};

use super::{
    lowering::{Form, Lowering, Want},
    scope::{Scope, is_constant},
};

/// How the value `want` is made; `None` for what only Burn can make.
pub(super) fn lowering<'g>(s: &Scope<'g>, want: Want) -> Option<Lowering<'g>> {
    if is_constant(s.graph, want.port) {
        return constant::lowering(s, want);
    }
    let found = |lowering: Option<Lowering<'g>>| lowering.filter(|l| !s.on_device || l.device.is_some());
    match want.form {
        // An integer kernel's sums become floats at no cost; other floats come from codes last.
        Form::Float if s.on_device => found(product::float(s, want.port))
            .or_else(|| found(quant::dequantize(s, want.port)))
            .or_else(|| found(elementwise::lowering(s, want.port)))
            .or_else(|| found(rows::lowering(s, want.port))),
        Form::Float => product::float(s, want.port)
            .or_else(|| dynamic::product(s, want.port))
            .or_else(|| transposed::lowering(s, want.port))
            .or_else(|| quant::dequantize(s, want.port))
            .or_else(|| pool::lowering(s, want))
            .or_else(|| lookup::float(s, want.port))
            .or_else(|| gathered::lowering(s, want.port))
            .or_else(|| quant::widened(s, want.port))
            .or_else(|| rotary::lowering(s, want.port))
            .or_else(|| rows::root_mean_square(s, want.port))
            .or_else(|| elementwise::lowering(s, want.port))
            .or_else(|| rows::lowering(s, want.port))
            .or_else(|| norm::lowering(s, want.port))
            .or_else(|| attention::lowering(s, want.port))
            .or_else(|| grouped::lowering(s, want.port))
            .or_else(|| matmul::lowering(s, want.port))
            .or_else(|| recurrent::lowering(s, want.port))
            .or_else(|| reduce::lowering(s, want.port))
            .or_else(|| resample::lowering(s, want.port))
            .or_else(|| logic::lowering(s, want))
            .or_else(|| dynamic::by_own_range(s, want))
            .or_else(|| movement::lowering(s, want)),
        Form::Codes => found(quant::quantize(s, want.port))
            .or_else(|| found(pool::lowering(s, want)))
            .or_else(|| found(logic::lowering(s, want)))
            .or_else(|| found(dynamic::by_own_range(s, want)))
            .or_else(|| found(lookup::codes(s, want.port)))
            .or_else(|| found(movement::lowering(s, want))),
    }
}

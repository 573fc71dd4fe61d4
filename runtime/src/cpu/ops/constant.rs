//! Constants that other operators read as values.

use crate::cpu::{
    lowering::{Form, Lowered, Lowering, Operand, ValueId, Want},
    plan::Planner,
    scope::Scope,
};
use compress_compiler::{
    error::Result,
    tensor::{DType, Tensor},
};

struct Constant(Tensor);

pub(super) fn lowering<'g>(s: &Scope<'g>, want: Want) -> Option<Lowering<'g>> {
    let fits = match (want.form, s.graph.fact(want.port).dtype?) {
        (Form::Float, dtype) => dtype == DType::F32,
        (Form::Codes, dtype) => matches!(dtype, DType::U8 | DType::I8 | DType::Bool),
    };
    let value = s.constant_later(want.port);
    fits.then(|| Lowering::with(vec![], move |_| Ok(Constant(value()?))))
}

impl Lowered for Constant {
    fn is_by_sample(&self, _inputs: &[Operand], _output: &[usize]) -> bool {
        true
    }

    fn is_constant(&self) -> bool {
        true
    }

    fn plan(&self, p: &mut Planner, _inputs: &[ValueId], output: ValueId) -> Result<()> {
        p.constant(output, &self.0)
    }
}

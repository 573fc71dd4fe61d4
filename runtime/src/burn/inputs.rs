//! What a graph is given: checked against its signature.

use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    node::Port,
    op::Op,
    tensor::{DType, Tensor},
    value::{Dim, Fact},
};
use std::collections::HashMap;

/// An input: what is known of it, and what it is when it isn't given.
pub(crate) struct Input {
    pub name: String,
    /// `None` where nobody reads the input.
    pub slot: Option<usize>,
    pub fact: Fact,
    default: Option<Tensor>,
}

/// The tensor for each of `inputs`. Those with a default may all be left out of `given`.
///
/// # Errors
/// Data when what is given doesn't fit the signature.
pub(crate) fn complete<'a>(inputs: &'a [Input], given: &'a [Tensor]) -> Result<Vec<&'a Tensor>> {
    let required = inputs.iter().filter(|i| i.default.is_none()).count();
    let all = given.len() == inputs.len();
    if !all && given.len() != required {
        let names: Vec<&str> = inputs.iter().map(|i| &i.name[..]).collect();
        return Err(Error::data(format!("{} inputs given, the model takes {required}", given.len()))
            .help(format!("its inputs are {}", names.join(", "))));
    }
    let mut given = given.iter();
    let mut symbols = HashMap::new();
    let mut of = |input: &'a Input| {
        let tensor = match &input.default {
            Some(default) if !all => default,
            _ => given.next().ok_or_else(|| Error::bug("inputs were counted wrongly"))?,
        };
        input.check(tensor.dtype(), tensor.shape(), &mut symbols)?;
        Ok(tensor)
    };
    inputs.iter().map(&mut of).collect()
}

impl Input {
    /// That of a value of `graph`, which is kept in `slot`.
    pub fn of(graph: &Graph, port: Port, slot: Option<usize>) -> Self {
        let default = if let Op::Input(i) = graph.op(port.node) { i.default.clone() } else { None };
        let value = graph.value(port);
        Self { name: value.name.clone(), slot, fact: value.fact.clone(), default }
    }

    /// The error for a tensor that isn't one of these.
    pub fn differs(&self, dtype: DType, shape: &[usize]) -> Error {
        Error::data(format!("input `{}` is {}, the given tensor is {dtype}{shape:?}", self.name, self.fact))
    }

    /// Checks the type and the shape of what is given; names of sizes stand for one number each.
    ///
    /// # Errors
    /// Data when they differ.
    pub fn check<'a>(&'a self, dtype: DType, shape: &[usize], symbols: &mut HashMap<&'a str, usize>) -> Result<()> {
        let wrong = || Err(self.differs(dtype, shape));
        if self.fact.dtype.is_some_and(|d| d != dtype) {
            return wrong();
        }
        let Some(dims) = self.fact.dims() else { return Ok(()) };
        if dims.len() != shape.len() {
            return wrong();
        }
        for (dim, &n) in dims.iter().zip(shape) {
            let fits = match dim {
                Dim::Known(k) => *k == n as i64,
                Dim::Sym(s) => *symbols.entry(s).or_insert(n) == n,
                Dim::Unknown => true,
            };
            if !fits {
                return wrong();
            }
        }
        Ok(())
    }
}

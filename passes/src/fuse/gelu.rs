//! GELU, which exporters write as arithmetic around Erf or Tanh, becomes one operator.

use super::shared;
use compress_compiler::{
    error::Result,
    forms::gelu::Gelu,
    graph::Graph,
    node::NodeId,
    ops::activation::Activation,
    pass::Context,
    rewrite::{Edit, Rule, Verdict},
};

pub(super) struct FindGelu {
    /// The newest opset that the model can move to.
    pub(super) newest: i64,
}

impl Rule for FindGelu {
    fn name(&self) -> &'static str {
        "gelu"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["Mul", "Add", "Div"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        let Some(Gelu { x, tanh, gate }) = Gelu::of(graph, node) else { return Ok(Verdict::No) };
        if self.newest < 20 {
            return Ok(Verdict::Skip("the model can't move to opset 20, which has it".into()));
        }
        if graph.only_use(gate).is_none() {
            return Ok(shared(graph, gate));
        }
        let mut edit = Edit::new();
        let gelu = edit.node(&graph.node(node).name, Activation::Gelu { tanh }, &[Some(x.into())]);
        edit.replace(node.into(), gelu);
        Ok(Verdict::Apply(edit))
    }
}

//! Where this program was built for no GPU.

use crate::{burn::fused::Fusion, cpu::Want, device::Device};
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::{NodeId, Port},
};
use std::{collections::HashSet, marker::PhantomData};

/// Makes nothing.
pub struct Fuser<'g>(PhantomData<&'g Graph>);

impl<'g> Fuser<'g> {
    /// For no nodes.
    pub fn new(
        _graph: &'g Graph,
        _order: &[NodeId],
        _part: &'g dyn Fn(NodeId) -> bool,
        _pinned: &'g HashSet<Port>,
        _device: &'g Device,
    ) -> Self {
        Self(PhantomData)
    }

    /// No value.
    ///
    /// # Errors
    /// None.
    pub fn fuse(&self, _want: Want) -> Result<Option<Fusion>> {
        Ok(None)
    }
}

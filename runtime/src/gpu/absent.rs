//! Where this program was built for no GPU.

use crate::{
    burn::{fused::Fusion, tensor::Value},
    cpu::Want,
    device::Device,
};
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::{NodeId, Port},
    tensor::{DType, Tensor},
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

/// There is none.
pub enum Range {}

impl Range {
    /// None.
    pub fn begin(_: &Device, _: &str) -> Option<Self> {
        None
    }
}

/// What a thread holds while it reads from a device.
pub struct Reading;

/// Nothing is recorded that a read could disturb.
///
/// # Errors
/// None.
#[allow(clippy::unnecessary_wraps, reason = "with GPUs there may be an error")]
pub fn reading() -> Result<Reading> {
    Ok(Reading)
}

/// Types and sizes of the inputs of a model.
pub type Sizes = Vec<(DType, Vec<usize>)>;

/// What a run begins with.
#[allow(dead_code, clippy::large_enum_variant, reason = "nothing is recorded")]
pub enum Given<'a> {
    /// An input.
    Sent(&'a Tensor),
    /// A value.
    Made(Value),
}

/// There is none.
pub enum Recorder {}

impl Recorder {
    /// None.
    pub fn new(_: &Device) -> Option<Self> {
        None
    }

    /// There is none.
    ///
    /// # Errors
    /// None.
    pub fn run(&self, _: &[Given], _: &dyn Fn(Vec<Value>) -> Result<Vec<Value>>) -> Result<Vec<Tensor>> {
        match *self {}
    }

    /// There is none.
    pub fn known(&self, _: &Sizes) -> Option<Vec<Value>> {
        match *self {}
    }

    /// There is none.
    pub fn saw(&self, _: Sizes, _: Vec<Value>) {
        match *self {}
    }
}

/// There is none.
pub enum Timer {}

/// There is none.
pub enum Elapsed {}

impl Timer {
    /// None.
    pub fn start(_: &Device) -> Option<Self> {
        None
    }

    /// There is none.
    pub fn stop(self) -> Option<Elapsed> {
        match self {}
    }
}

impl Elapsed {
    /// There is none.
    pub fn ms(self) -> Option<f64> {
        match self {}
    }
}

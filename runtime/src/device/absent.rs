//! Where this program was built for no GPU.

use super::{About, Api, Device};
use burn::backend::DispatchDevice;
use compress_compiler::error::Result;

/// There is none.
#[derive(Debug, Clone)]
pub enum Gpu {}

/// No device has it.
pub fn has_tensor_cores(_: &DispatchDevice) -> bool {
    false
}

/// None.
pub fn found(_: Api) -> Vec<Gpu> {
    vec![]
}

impl Gpu {
    /// There is none.
    pub fn name(&self) -> String {
        match *self {}
    }

    /// There is none.
    ///
    /// # Errors
    /// None.
    pub fn about(&self) -> Result<About> {
        match *self {}
    }

    pub(super) fn why_not(&self) -> Option<String> {
        match *self {}
    }

    pub(super) fn open(&self) -> Result<Device> {
        match *self {}
    }
}

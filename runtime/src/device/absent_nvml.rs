//! Where this program was built without CUDA.

use super::{Device, load::Load};

/// There is none.
pub(super) enum Meter {}

impl Meter {
    /// None.
    pub(super) fn of(_: &Device) -> Option<Self> {
        None
    }

    /// There is none.
    pub(super) fn load(&self) -> Load {
        match *self {}
    }

    /// There is none.
    pub(super) fn joules(&self) -> Option<f64> {
        match *self {}
    }
}

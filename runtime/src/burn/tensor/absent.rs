//! Where this program was built for no GPU.

use super::Prim;

/// None is.
pub fn on_gpu(_: &Prim) -> bool {
    false
}

/// The CPU doesn't.
pub fn drops_nan(_: &Prim) -> bool {
    false
}

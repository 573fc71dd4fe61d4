//! By what the loss is multiplied in 16 bits, so that small gradients are not rounded to zero.

use serde::{Deserialize, Serialize};

/// The scale to begin with.
const START: f32 = 65536.0;
/// The lowest scale: gradients that overflow without any scale have grown too large for other reasons.
const LOWEST: f32 = 1.0;
/// The highest scale: it still leaves room for a loss in 32 bits.
const HIGHEST: f32 = 1e30;
/// After so many batches without an overflow a higher scale is tried.
const PATIENCE: u32 = 2000;

/// The scale of the loss, which follows what gradients bear. Powers of two only change exponents.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scaler {
    scale: f32,
    /// Batches since it last changed.
    good: u32,
}

impl Default for Scaler {
    fn default() -> Self {
        Self { scale: START, good: 0 }
    }
}

impl Scaler {
    /// The scale.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// Takes note of gradients that were numbers, or not. `false` when no lower scale is left to try.
    pub fn saw(&mut self, finite: bool) -> bool {
        self.good = if finite { self.good + 1 } else { 0 };
        match finite {
            false if self.scale <= LOWEST => return false,
            false => self.scale /= 2.0,
            true if self.good == PATIENCE => {
                self.good = 0;
                self.scale = if self.scale < HIGHEST { self.scale * 2.0 } else { self.scale };
            }
            true => {}
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_falls_at_once_and_rises_slowly() {
        let mut scaler = Scaler::default();
        assert!(scaler.saw(false) && scaler.saw(false) && scaler.scale() == START / 4.0);
        for _ in 1..PATIENCE {
            assert!(scaler.saw(true) && scaler.scale() == START / 4.0);
        }
        // What a checkpoint keeps is all of it.
        let text = serde_json::to_string(&scaler).unwrap();
        let mut scaler: Scaler = serde_json::from_str(&text).unwrap();
        assert!(scaler.saw(true) && scaler.scale() == START / 2.0);
        // An overflow begins the count anew.
        assert!(scaler.saw(true) && scaler.saw(false) && scaler.scale() == START / 4.0);
        for _ in 1..PATIENCE {
            scaler.saw(true);
        }
        assert_eq!(scaler.scale(), START / 4.0);
    }

    #[test]
    fn it_ends_where_nothing_is_scaled() {
        let mut scaler = Scaler::default();
        let falls = (0..100).take_while(|_| scaler.saw(false)).count();
        assert_eq!((falls, scaler.scale()), (16, 1.0));
    }
}

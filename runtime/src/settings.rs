//! Lists of settings on the command line, such as `flip,crop=4`.

use compress_compiler::error::{Error, Result};
use std::fmt;

/// Far beyond any model's picture; it keeps a mistyped size from becoming a huge allocation.
const MAX_PIXELS: usize = 16_384;

/// A kind of list.
pub(crate) struct Settings {
    /// What is set.
    pub(crate) of: &'static str,
    /// What can be said, for those who said something else.
    pub(crate) known: &'static str,
}

impl Settings {
    /// Hands each setting of `text` and its value to `set`, which tells whether there is such a one.
    pub(crate) fn each<'a>(
        &self,
        text: &'a str,
        mut set: impl FnMut(&'a str, Option<&'a str>) -> Result<bool>,
    ) -> Result<()> {
        let mut seen = Vec::new();
        for part in text.split(',').map(str::trim) {
            let (key, value) = match part.split_once('=') {
                Some((key, value)) => (key.trim(), Some(value.trim())),
                None => (part, None),
            };
            if seen.contains(&key) {
                return Err(self.bad(format!("`{key}` is given twice")));
            }
            seen.push(key);
            if !set(key, value)? {
                return Err(self.bad(format!("`{part}` is not understood")));
            }
        }
        Ok(())
    }

    pub(crate) fn bad(&self, message: impl fmt::Display) -> Error {
        Error::usage(format!("{}: {message}", self.of)).help(format!("known are {}", self.known))
    }

    pub(crate) fn pixels(&self, key: &str, text: &str) -> Result<usize> {
        match text.parse() {
            Ok(v) if (1..=MAX_PIXELS).contains(&v) => Ok(v),
            _ => Err(self.bad(format!("`{key}={text}` is not a number of pixels from 1 to {MAX_PIXELS}"))),
        }
    }

    pub(crate) fn number(&self, key: &str, text: &str) -> Result<f32> {
        match text.trim().parse::<f32>() {
            Ok(v) if v.is_finite() => Ok(v),
            _ => Err(self.bad(format!("{key}: `{text}` is not a finite number"))),
        }
    }

    pub(crate) fn positive(&self, key: &str, text: &str) -> Result<f32> {
        match self.number(key, text)? {
            v if v > 0.0 => Ok(v),
            _ => Err(self.bad(format!("{key}: `{text}` is not above zero"))),
        }
    }
}

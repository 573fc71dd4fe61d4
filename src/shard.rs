//! Jobs that several machines share: each does a part, and `compress merge` puts the parts together.

use compress_compiler::serde_as_text;
use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

/// A part of a job that several machines share: `2/4` is the second of four.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shard {
    /// Which it is, from 0.
    pub index: usize,
    /// How many there are.
    pub of: usize,
}

/// More than any cluster has machines.
const MOST: usize = 100_000;

impl Shard {
    /// Whether this part has the `i`th of the pieces of a job, from 0: pieces are dealt out in turn.
    pub fn has(self, i: usize) -> bool {
        i % self.of == self.index
    }

    /// All parts.
    pub fn all(of: usize) -> impl Iterator<Item = Self> {
        (0..of).map(move |index| Self { index, of })
    }

    /// A file or a folder of this part, named after that of the whole: `model.report.json` becomes `model.2-of-4.report.json`.
    pub(crate) fn of_path(self, whole: &Path, extension: &str) -> PathBuf {
        whole.with_extension(format!("{}-of-{}.{extension}", self.index + 1, self.of))
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let parts = s.split_once('/').and_then(|(i, of)| Some((i.parse::<usize>().ok()?, of.parse::<usize>().ok()?)));
        match parts {
            Some((i, of)) if (1..=of).contains(&i) && of <= MOST => Ok(Self { index: i - 1, of }),
            _ => Err(format!("not a part such as 2/4, the second of four (at most {MOST})")),
        }
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}/{}", self.index + 1, self.of)
    }
}

serde_as_text!(Shard);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_each_piece_once() {
        let parts: Vec<Shard> = Shard::all(3).collect();
        assert!((0..20).all(|i| parts.iter().filter(|part| part.has(i)).count() == 1));
        assert_eq!("2/3".parse(), Ok(parts[1]));
        assert_eq!(parts[1].of_path(Path::new("a/m.onnx"), "report.json"), Path::new("a/m.2-of-3.report.json"));
    }

    #[test]
    fn what_is_not_a_part_is_refused() {
        for wrong in ["", "1", "0/3", "4/3", "-1/3", "1/0", "1/3/3", "1/999999999"] {
            assert!(wrong.parse::<Shard>().is_err(), "{wrong}");
        }
    }
}

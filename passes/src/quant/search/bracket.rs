//! Finds the first of many that is enough, where all after it are as well, by few tries.

/// Where the first is that is enough. The tries begin where it is expected, go on from there in longer and longer strides,
/// and halve what is left once one is known to be enough and one before it not to be.
pub(super) struct Bracket {
    /// All before `low` are not enough; `high` and all after it are, or are beyond the end.
    low: usize,
    high: usize,
    next: usize,
    stride: usize,
    /// Whether some were not enough, and some were.
    found: [bool; 2],
}

impl Bracket {
    /// Of `count`, of which the one at `expected` is expected to be the first that is enough.
    pub fn new(count: usize, expected: usize) -> Self {
        Self { low: 0, high: count, next: expected, stride: 1, found: [false; 2] }
    }

    /// The place to try next, if the first is not known yet. No place is tried twice.
    pub fn next(&self) -> Option<usize> {
        (self.low < self.high).then(|| self.next.clamp(self.low, self.high - 1))
    }

    /// Takes in whether that at `at`, the place to try, is enough.
    pub fn tell(&mut self, at: usize, is_enough: bool) {
        if is_enough {
            self.high = at
        } else {
            self.low = at + 1
        }
        self.found[usize::from(is_enough)] = true;
        self.next = match self.found {
            [true, true] => self.low.midpoint(self.high),
            _ if is_enough => at.saturating_sub(self.stride),
            _ => at + self.stride,
        };
        self.stride *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The places that are tried, and the first that is enough.
    fn tried(count: usize, expected: usize, first: usize) -> (Vec<usize>, usize) {
        let (mut bracket, mut tried) = (Bracket::new(count, expected), vec![]);
        while let Some(at) = bracket.next() {
            tried.push(at);
            bracket.tell(at, at >= first);
        }
        (tried, bracket.high)
    }

    #[test]
    fn the_first_is_found_by_few_tries_from_any_expectation() {
        for count in 0..=64 {
            for expected in 0..=count {
                for first in 0..=count {
                    let (places, found) = tried(count, expected, first);
                    assert_eq!(found, first, "of {count}, expected at {expected}");
                    let most = 2 * (count.max(1).ilog2() as usize + 1) + 1;
                    assert!(places.len() <= most, "{places:?} of {count} for {first}, expected at {expected}");
                }
            }
        }
    }

    #[test]
    fn a_true_expectation_takes_two_tries() {
        assert_eq!(tried(30, 12, 12).0, [12, 11]);
    }

    #[test]
    fn strides_get_longer_until_the_first_is_between() {
        assert_eq!(tried(64, 4, 23).0, [4, 5, 7, 11, 19, 35, 27, 23, 21, 22]);
    }
}

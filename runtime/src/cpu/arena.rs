//! The memory in which values live while a plan runs.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Places begin at multiples of this many bytes: a cache line, and a vector.
pub(super) const ALIGN: usize = 64;

#[derive(Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C, align(64))]
struct Line([u8; ALIGN]);

/// Memory in which a plan runs. It begins at a multiple of [`ALIGN`].
#[derive(Default)]
pub(super) struct Workspace(Vec<Line>);

impl Workspace {
    /// Makes it hold `len` bytes, whatever they are.
    fn grow(&mut self, len: usize) {
        let lines = len.div_ceil(ALIGN);
        if self.0.len() < lines {
            // What was there goes first: it is of no use, and both together would be more.
            self.0 = vec![];
            self.0 = vec![Line([0; ALIGN]); lines];
        }
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}

/// The workspaces of a session that are not in use. Its parts run one after another and none
/// leaves anything behind in them, so a run needs one for each thread that takes pieces, and they
/// get as large as the plan that needs most. Runs at the same time have their own.
#[derive(Default)]
pub(crate) struct Workspaces(Mutex<Vec<Workspace>>);

impl Workspaces {
    /// Takes `n` of `len` bytes, those that were put back last if there are so many.
    pub(super) fn take(&self, n: usize, len: usize) -> Vec<Workspace> {
        let mut taken = {
            let mut idle = self.idle();
            let others = idle.len().saturating_sub(n);
            idle.split_off(others)
        };
        taken.resize_with(n, Workspace::default);
        taken.iter_mut().for_each(|w| w.grow(len));
        taken
    }

    pub(super) fn put_back(&self, taken: Vec<Workspace>) {
        self.idle().extend(taken);
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Workspace>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When a value is needed: from the step that makes it to the last that reads it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Life {
    pub bytes: usize,
    pub first: usize,
    pub last: usize,
}

/// Gives every value a place, so that none overlaps another that is needed at the same time:
/// each takes the smallest hole that holds it when it is made. Returns where they begin, and the
/// size of the whole.
pub(super) fn assign(lives: &[Life]) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..lives.len()).collect();
    order.sort_by_key(|i| (lives[*i].first, std::cmp::Reverse(lives[*i].bytes)));
    let mut ends: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    let (mut holes, mut places, mut top) = (Holes::default(), vec![0; lives.len()], 0);
    for i in order {
        let life = lives[i];
        let size = life.bytes.next_multiple_of(ALIGN);
        while let Some(entry) = ends.first_entry().filter(|e| *e.key() < life.first) {
            for ended in entry.remove() {
                holes.add(places[ended], lives[ended].bytes.next_multiple_of(ALIGN));
            }
        }
        places[i] = holes.take(size).unwrap_or_else(|| {
            // The arena grows, from the hole at its end if there is one.
            let at = holes.take_last(top).unwrap_or(top);
            top = at + size;
            at
        });
        ends.entry(life.last).or_default().push(i);
    }
    (places, top)
}

/// The free ranges of an arena, none of which touches another.
#[derive(Default)]
struct Holes {
    /// Their sizes by where they begin.
    sizes: BTreeMap<usize, usize>,
    by_size: BTreeSet<(usize, usize)>,
}

impl Holes {
    fn insert(&mut self, at: usize, size: usize) {
        self.sizes.insert(at, size);
        self.by_size.insert((size, at));
    }

    fn remove(&mut self, at: usize) -> Option<usize> {
        let size = self.sizes.remove(&at)?;
        self.by_size.remove(&(size, at));
        Some(size)
    }

    /// Frees a range.
    fn add(&mut self, mut at: usize, mut size: usize) {
        if size == 0 {
            return;
        }
        if let Some((before, room)) = self.sizes.range(..at).next_back().map(|(a, r)| (*a, *r))
            && before + room == at
        {
            self.remove(before);
            (at, size) = (before, size + room);
        }
        if let Some(room) = self.remove(at + size) {
            size += room;
        }
        self.insert(at, size);
    }

    /// Takes `size` bytes of the smallest hole that has them.
    fn take(&mut self, size: usize) -> Option<usize> {
        let (room, at) = *self.by_size.range((size, 0)..).next()?;
        self.remove(at);
        if room > size {
            self.insert(at + size, room - size);
        }
        Some(at)
    }

    /// Takes the hole that ends at `top`.
    fn take_last(&mut self, top: usize) -> Option<usize> {
        let (at, room) = self.sizes.last_key_value().map(|(a, r)| (*a, *r))?;
        (at + room == top).then(|| {
            self.remove(at);
            at
        })
    }
}

/// One range to write and the rest to read.
pub(super) struct Split<'a> {
    before: &'a [u8],
    /// What may be written.
    pub write: &'a mut [u8],
    behind: &'a [u8],
    end: usize,
}

impl<'a> Split<'a> {
    pub fn new(memory: &'a mut [u8], write: Range<usize>) -> Self {
        let (before, rest) = memory.split_at_mut(write.start);
        let (middle, behind) = rest.split_at_mut(write.len());
        Self { before, write: middle, behind, end: write.end }
    }

    /// The bytes at `range`.
    ///
    /// # Panics
    /// When it overlaps what is written: a plan that says so is wrong.
    pub fn read(&self, range: Range<usize>) -> &'a [u8] {
        match range.start.checked_sub(self.end) {
            Some(start) if range.start >= self.end => &self.behind[start..range.end - self.end],
            _ => &self.before[range],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lives_together_lies_apart_and_holes_are_used_again() {
        let life = |bytes, first, last| Life { bytes, first, last };
        // A chain of three, the middle one large; the last fits where the first was.
        let (places, top) = assign(&[life(64, 0, 1), life(640, 1, 2), life(60, 2, 3)]);
        assert_eq!((places, top), (vec![0, 64, 0], 704));
        // Neighbouring holes become one.
        let (places, top) = assign(&[life(64, 0, 1), life(64, 0, 1), life(64, 0, 9), life(128, 2, 3)]);
        assert_eq!((places[3], top), (0, 192));
    }

    #[test]
    fn workspaces_are_used_again_and_grow() {
        let spaces = Workspaces::default();
        let sizes = |taken: &mut Vec<Workspace>| taken.iter_mut().map(|w| w.bytes().len()).collect::<Vec<_>>();
        let mut two = spaces.take(2, 100);
        assert_eq!(sizes(&mut two), [128, 128]);
        assert!(two.iter_mut().all(|w| w.bytes().as_ptr().addr().is_multiple_of(ALIGN)));
        spaces.put_back(two);
        let mut one = spaces.take(1, 300);
        assert_eq!(sizes(&mut one), [320]);
        // While that is in use, others are taken; afterwards all are there.
        let mut others = spaces.take(2, 64);
        assert_eq!(sizes(&mut others), [128, 64]);
        spaces.put_back(one);
        spaces.put_back(others);
        let mut all = spaces.take(3, 1);
        assert_eq!(sizes(&mut all), [320, 128, 64]);
        assert!(spaces.take(1, 0)[0].bytes().is_empty());
    }

    #[test]
    fn no_two_values_overlap_while_both_are_needed() {
        let mut state = 7u32;
        let mut random = |n: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % n
        };
        let lives: Vec<Life> = (0..300)
            .map(|_| {
                let first = random(100) as usize;
                Life { bytes: random(1000) as usize, first, last: first + random(20) as usize }
            })
            .collect();
        let (places, top) = assign(&lives);
        for (i, a) in lives.iter().enumerate() {
            assert!(places[i] + a.bytes <= top);
            for (j, b) in lives.iter().enumerate().skip(i + 1) {
                let together = a.first <= b.last && b.first <= a.last;
                let apart = places[i] + a.bytes <= places[j] || places[j] + b.bytes <= places[i];
                assert!(!together || apart || a.bytes == 0 || b.bytes == 0, "{i} and {j}");
            }
        }
    }
}

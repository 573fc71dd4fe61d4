//! Ranks that are threads of one process, for tests.

use super::{Exchange, Lane, Ranks, Team};
use compress_compiler::error::{Error, Result};
use std::{
    collections::HashMap,
    ops::Range,
    sync::{Arc, Mutex},
};

/// What is under way: by the exchange that it belongs to, sender and receiver.
type Post = Arc<Mutex<HashMap<(Nth, usize, usize), Vec<u8>>>>;

/// Exchanges on a lane belong together in the order in which each rank begins them, whoever's message comes first: as MPI has it.
type Nth = (u8, usize);

struct Thread {
    rank: usize,
    count: usize,
    post: Post,
    /// How many exchanges this rank began on each lane.
    begun: Mutex<HashMap<u8, usize>>,
}

struct Under {
    nth: Nth,
    to: usize,
    expected: Vec<usize>,
    came: Vec<Option<Vec<u8>>>,
    post: Post,
}

/// So many ranks.
pub fn teams(count: usize) -> Vec<Team> {
    let post = Post::default();
    (0..count)
        .map(|rank| Team::new(Arc::new(Thread { rank, count, post: post.clone(), begun: Mutex::default() })))
        .collect()
}

impl Ranks for Thread {
    fn rank(&self) -> usize {
        self.rank
    }

    fn count(&self) -> usize {
        self.count
    }

    fn exchange(
        &self,
        lane: Lane,
        bytes: Vec<u8>,
        parts: &[Range<usize>],
        expected: &[usize],
    ) -> Result<Box<dyn Exchange>> {
        let (mut post, mut begun) = (self.post.lock().unwrap(), self.begun.lock().unwrap());
        let begun = begun.entry(lane as u8).or_default();
        let nth = (lane as u8, *begun);
        *begun += 1;
        for (to, part) in parts.iter().enumerate() {
            post.insert((nth, self.rank, to), bytes[part.clone()].to_vec());
        }
        let came = vec![None; self.count];
        let post = self.post.clone();
        Ok(Box::new(Under { nth, to: self.rank, expected: expected.to_vec(), came, post }))
    }
}

impl Exchange for Under {
    fn received(&mut self) -> Result<Option<Vec<u8>>> {
        let mut post = self.post.lock().unwrap();
        for (from, came) in self.came.iter_mut().enumerate().filter(|(_, came)| came.is_none()) {
            *came = post.remove(&(self.nth, from, self.to));
        }
        if self.came.iter().any(Option::is_none) {
            return Ok(None);
        }
        if self.came.iter().zip(&self.expected).any(|(came, length)| came.as_ref().is_none_or(|c| c.len() != *length)) {
            return Err(Error::bug("a rank sent other lengths than were expected"));
        }
        Ok(Some(self.came.drain(..).flatten().flatten().collect()))
    }

    fn missing(&self) -> Vec<usize> {
        (0..self.came.len()).filter(|from| self.came[*from].is_none()).collect()
    }
}

#[test]
fn a_message_belongs_to_one_exchange() {
    let teams = teams(2);
    let begin = |rank: usize, what: u8| {
        let ranks = teams[rank].ranks.as_ref().unwrap();
        ranks.exchange(Lane::Sums, vec![what; 2], &[0..1, 1..2], &[1, 1]).unwrap()
    };
    let (mut first, mut second) = (begin(0, 1), begin(0, 2));
    assert_eq!(first.received().unwrap(), None);
    let _of_other = begin(1, 3);
    // It is the first exchange that the message came for, though the second is asked sooner.
    assert_eq!(second.received().unwrap(), None);
    assert_eq!(first.received().unwrap(), Some(vec![1, 3]));
}

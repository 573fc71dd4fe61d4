//! Ranks that are threads of one process, for tests.

use super::{Exchange, Lane, Ranks, Team};
use compress_compiler::error::{Error, Result};
use std::{
    collections::{HashMap, VecDeque},
    ops::Range,
    sync::{Arc, Mutex},
};

/// What is under way: by lane, sender and receiver.
type Post = Arc<Mutex<HashMap<(u8, usize, usize), VecDeque<Vec<u8>>>>>;

struct Thread {
    rank: usize,
    count: usize,
    post: Post,
}

struct Under {
    lane: u8,
    to: usize,
    expected: Vec<usize>,
    came: Vec<Option<Vec<u8>>>,
    post: Post,
}

/// So many ranks.
pub fn teams(count: usize) -> Vec<Team> {
    let post = Post::default();
    (0..count).map(|rank| Team::new(Arc::new(Thread { rank, count, post: post.clone() }))).collect()
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
        let mut post = self.post.lock().unwrap();
        for (to, part) in parts.iter().enumerate() {
            post.entry((lane as u8, self.rank, to)).or_default().push_back(bytes[part.clone()].to_vec());
        }
        let came = vec![None; self.count];
        let post = self.post.clone();
        Ok(Box::new(Under { lane: lane as u8, to: self.rank, expected: expected.to_vec(), came, post }))
    }
}

impl Exchange for Under {
    fn received(&mut self) -> Result<Option<Vec<u8>>> {
        let mut post = self.post.lock().unwrap();
        for (from, came) in self.came.iter_mut().enumerate().filter(|(_, came)| came.is_none()) {
            *came = post.get_mut(&(self.lane, from, self.to)).and_then(VecDeque::pop_front);
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

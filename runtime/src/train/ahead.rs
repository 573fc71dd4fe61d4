//! Things made ahead of their use, by threads of their own.

use compress_compiler::error::{Error, Result};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::{
    any::Any,
    collections::VecDeque,
    ops::Range,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver},
    },
    thread::{self, JoinHandle},
};

type Make<T> = dyn Fn(usize) -> Result<T> + Send + Sync;

/// `make(i)` for each `i` of a range, in order, up to the first error.
///
/// A bounded number of them is in the making or ready at any time. They are made on a pool of
/// threads apart from rayon's global one, which whoever uses them keeps busy meanwhile; what
/// `make` itself divides by rayon is divided among the threads of that pool.
pub(super) struct Ahead<T> {
    make: Arc<Make<T>>,
    todo: Range<usize>,
    /// In order, those in the making or ready.
    pending: VecDeque<Receiver<Result<T>>>,
    bound: usize,
    workers: Option<Workers>,
}

impl<T: Send + 'static> Ahead<T> {
    /// Starts making. Without workers, each is made when it is asked for, by who asks.
    pub(super) fn new(
        range: Range<usize>,
        workers: usize,
        bound: usize,
        make: impl Fn(usize) -> Result<T> + Send + Sync + 'static,
    ) -> Result<Self> {
        let workers = (workers > 0).then(|| Workers::new(workers)).transpose()?;
        let mut ahead =
            Self { make: Arc::new(make), todo: range, pending: VecDeque::new(), bound: bound.max(1), workers };
        ahead.order();
        Ok(ahead)
    }

    /// Has workers make as many as may be there at once.
    fn order(&mut self) {
        let Some(workers) = &self.workers else { return };
        while self.pending.len() < self.bound
            && let Some(i) = self.todo.next()
        {
            let (answer, pending) = mpsc::channel();
            let (make, stopped) = (self.make.clone(), workers.stopped.clone());
            workers.spawn(move || {
                if !stopped.load(Ordering::Relaxed) {
                    let made = panic::catch_unwind(AssertUnwindSafe(|| make(i)));
                    // Nobody listens once the iterator is dropped.
                    let _ = answer.send(made.unwrap_or_else(|panic| Err(panicked(&*panic))));
                }
            });
            self.pending.push_back(pending);
        }
    }
}

impl<T: Send + 'static> Iterator for Ahead<T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        let made = match &self.workers {
            None => (self.make)(self.todo.next()?),
            Some(_) => {
                let answer = self.pending.pop_front()?.recv();
                answer.unwrap_or_else(|_| Err(Error::bug("a worker went away")))
            }
        };
        match &made {
            Ok(_) => self.order(),
            Err(_) => {
                self.todo = 0..0;
                self.pending.clear();
                self.workers = None;
            }
        }
        Some(made)
    }
}

/// Threads that end when this is dropped, before it is gone: what they are at they finish, and
/// what is `stopped` by then they don't begin.
struct Workers {
    pool: Option<ThreadPool>,
    threads: Vec<JoinHandle<()>>,
    stopped: Arc<AtomicBool>,
}

impl Workers {
    fn new(count: usize) -> Result<Self> {
        let mut threads = Vec::new();
        let pool = ThreadPoolBuilder::new()
            .num_threads(count)
            .spawn_handler(|worker| {
                let named = thread::Builder::new().name(format!("loader-{}", worker.index()));
                threads.push(named.spawn(|| worker.run())?);
                Ok(())
            })
            .build()
            .map_err(|e| Error::limit(format!("{count} threads for loading data cannot be started: {e}")))?;
        Ok(Self { pool: Some(pool), threads, stopped: Arc::default() })
    }

    fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        if let Some(pool) = &self.pool {
            pool.spawn(job);
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        // The threads end once the pool is gone and no job is left.
        self.pool = None;
        for thread in self.threads.drain(..) {
            // A panic was told of where it happened.
            let _ = thread.join();
        }
    }
}

fn panicked(panic: &(dyn Any + Send)) -> Error {
    let said = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    Error::bug(format!("a worker that loads data panicked: {}", said.unwrap_or("it said nothing")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use compress_compiler::error::Kind;
    use std::sync::{Mutex, atomic::AtomicUsize};

    #[test]
    fn all_come_in_order_and_never_too_many_at_once() {
        for (workers, bound) in [(0, 2), (1, 1), (2, 3), (4, 2), (3, 50)] {
            let started = Arc::new(AtomicUsize::new(0));
            let made = started.clone();
            let ahead = Ahead::new(3..40, workers, bound, move |i| {
                made.fetch_add(1, Ordering::SeqCst);
                // Those that come later are ready sooner.
                thread::sleep(std::time::Duration::from_micros(40 * (4 - i as u64 % 4)));
                Ok(i)
            });
            for (given, i) in ahead.unwrap().enumerate() {
                assert_eq!(i.unwrap(), given + 3);
                // `order` ran after this one was given.
                assert!(started.load(Ordering::SeqCst) <= given + 1 + bound, "{workers} workers");
            }
            assert_eq!(started.load(Ordering::SeqCst), 37);
        }
    }

    #[test]
    fn errors_and_panics_reach_who_asks_and_end_it() {
        for workers in [0, 1, 3] {
            let mut ahead = Ahead::new(0..9, workers, 4, |i| match i {
                2 => Err(Error::data("bad")),
                i => Ok(i),
            })
            .unwrap();
            assert_eq!((ahead.next().unwrap().unwrap(), ahead.next().unwrap().unwrap()), (0, 1));
            assert_eq!(ahead.next().unwrap().unwrap_err().kind(), Kind::Data);
            assert!(ahead.next().is_none() && ahead.next().is_none());
        }
        let mut ahead = Ahead::new(0..9, 2, 4, |i| if i == 1 { panic!("at {i}") } else { Ok(i) }).unwrap();
        ahead.next().unwrap().unwrap();
        let e = ahead.next().unwrap().unwrap_err();
        assert!(e.kind() == Kind::Bug && e.message().contains("panicked: at 1"), "{e}");
        assert!(ahead.next().is_none());
    }

    #[test]
    fn dropping_it_ends_the_threads() {
        let held = Arc::new(Mutex::new(Vec::new()));
        let log = held.clone();
        let mut ahead = Ahead::new(0..1000, 2, 500, move |i| {
            thread::sleep(std::time::Duration::from_millis(10));
            log.lock().unwrap().push(i);
            Ok(i)
        })
        .unwrap();
        ahead.next().unwrap().unwrap();
        drop(ahead);
        // The closure went with the last thread, and most of what was ordered was never begun.
        assert_eq!(Arc::strong_count(&held), 1);
        assert!(held.lock().unwrap().len() < 400);
    }
}

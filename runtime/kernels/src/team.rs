//! Threads that stay awake while a plan runs.
//!
//! A layer takes microseconds; to wake a thread that sleeps takes longer. So [`Team::assemble`]
//! wakes helpers once, and until the team is released they look for work in a few slots without
//! going to sleep. [`join`] offers half of its work in such a slot. Nobody has to come: what no
//! helper has taken when the other half is done, the caller does itself.
//!
//! A thread that waits for a half which another thread took does other work that is on offer, such as
//! parts of that half: of one run, a slow core holds the others up by one part at most. Threads can't
//! wait in a circle: a half begins later than the work that waits for it, and what a thread takes while
//! it waits begins later still. No work may wait for a lock that a caller of [`join`] holds.

use std::{
    any::Any,
    cell::UnsafeCell,
    hint, mem,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    ptr,
    sync::{
        LazyLock, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering},
    },
    thread::{self, Thread, ThreadId},
    time::Instant,
};

/// How many works can be on offer at once: helpers empty slots faster than they are filled.
const SLOTS: usize = 16;

/// How often a helper looks for work before it lets other programs run, or goes to sleep when no
/// team is assembled: about a millisecond, so that it is there after steps that one thread does,
/// and when the next run follows soon.
const LOOKS_FOR_WORK: u32 = 40_000;

/// How often a caller looks whether its work is done before it lets others run: who does it may be
/// waiting for a processor.
const LOOKS_FOR_RESULTS: u32 = 2_000;

/// Teams that are assembled.
static TEAMS: AtomicUsize = AtomicUsize::new(0);
/// Threads that help, all teams alike.
static HELPERS: Mutex<Vec<Thread>> = Mutex::new(vec![]);
static OFFERS: [Slot; SLOTS] = [const { Slot(AtomicPtr::new(ptr::null_mut())) }; SLOTS];

/// Where work is offered; one cache line, and the one that is fetched with it.
#[repr(align(128))]
struct Slot(AtomicPtr<Job>);

/// Half of a [`join`], in the frame of that call, whose other variables are in other cache lines.
#[repr(align(128))]
struct Job {
    body: *mut (dyn FnMut() + Send),
    outcome: UnsafeCell<Result<(), Box<dyn Any + Send>>>,
    done: AtomicBool,
}

/// Whether helpers write down what they do.
static TRACING: AtomicBool = AtomicBool::new(false);
/// What they wrote down.
static TRACE: Mutex<Vec<Helped>> = Mutex::new(vec![]);

/// Work that a helper did.
#[derive(Debug, Clone, Copy)]
pub struct Helped {
    /// The helper.
    pub thread: ThreadId,
    /// When it took the work.
    pub began: Instant,
    /// When it was done.
    pub ended: Instant,
}

/// Does `work`, and tells what helpers did meanwhile, for this call or others.
pub fn traced<T>(work: impl FnOnce() -> T) -> (T, Vec<Helped>) {
    TRACING.store(true, Ordering::Relaxed);
    let done = work();
    TRACING.store(false, Ordering::Relaxed);
    (done, mem::take(&mut *TRACE.lock().unwrap_or_else(PoisonError::into_inner)))
}

/// Helpers that are awake, until it is dropped.
#[derive(Debug)]
pub struct Team(());

impl Team {
    /// Wakes helpers, so that there are `threads` with the caller, but no more than processors:
    /// who looks for work would only take time from who has some.
    pub fn assemble(threads: usize) -> Self {
        static PROCESSORS: LazyLock<usize> = LazyLock::new(|| thread::available_parallelism().map_or(1, Into::into));
        Self::of(threads.min(*PROCESSORS))
    }

    fn of(threads: usize) -> Self {
        TEAMS.fetch_add(1, Ordering::Relaxed);
        let mut helpers = HELPERS.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = threads.saturating_sub(1);
        while helpers.len() < wanted {
            // Work gets done with fewer threads too.
            let Ok(started) = thread::Builder::new().name("kernels".into()).spawn(help) else { break };
            helpers.push(started.thread().clone());
        }
        helpers.iter().take(wanted).for_each(Thread::unpark);
        Self(())
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        TEAMS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a helper does all its life.
fn help() {
    let mut patience = Patience(LOOKS_FOR_WORK);
    loop {
        let began = TRACING.load(Ordering::Relaxed).then(Instant::now);
        if do_what_is_on_offer() {
            if let Some(began) = began {
                let helped = Helped { thread: thread::current().id(), began, ended: Instant::now() };
                TRACE.lock().unwrap_or_else(PoisonError::into_inner).push(helped);
            }
            patience = Patience(LOOKS_FOR_WORK);
        } else if patience.is_over() && TEAMS.load(Ordering::Relaxed) == 0 {
            thread::park();
            patience = Patience(LOOKS_FOR_WORK);
        } else {
            patience.wait();
        }
    }
}

/// Does one work that is on offer, if there is any.
fn do_what_is_on_offer() -> bool {
    let Some(job) = OFFERS.iter().find_map(Slot::take) else { return false };
    // SAFETY: whoever takes a job out of its slot is the only one to have it, and its frame stays
    // until it is done.
    unsafe { Job::run(job) };
    true
}

/// Does `a` and `b`, `b` on another thread if a team is assembled and one of it comes.
///
/// # Panics
/// When one of them does, after both have ended.
pub(crate) fn join(a: impl FnOnce(), b: impl FnOnce() + Send) {
    let mut b = Some(b);
    let mut b = || b.take().into_iter().for_each(|b| b());
    let body: *mut (dyn FnMut() + Send + '_) = &mut b;
    // SAFETY: only the lifetime is another. This call doesn't end, nor unwind, before the job was
    // taken back or is done: nobody calls `body` later.
    let body = unsafe { mem::transmute::<*mut (dyn FnMut() + Send + '_), *mut (dyn FnMut() + Send)>(body) };
    let job = Job { body, outcome: UnsafeCell::new(Ok(())), done: AtomicBool::new(false) };
    let is_team = TEAMS.load(Ordering::Relaxed) > 0;
    let Some(slot) = OFFERS.iter().find(|s| is_team && s.offer(&job)) else {
        a();
        return b();
    };
    let first = catch_unwind(AssertUnwindSafe(a));
    // What is done is in no slot: to look there would only fetch another cache line.
    let second = if !job.is_done() && slot.take_back(&job) {
        if first.is_ok() {
            b();
        }
        Ok(())
    } else {
        job.wait()
    };
    if let Err(panic) = first.and(second) {
        resume_unwind(panic);
    }
}

impl Slot {
    /// Offers a job, if nothing is on offer here.
    fn offer(&self, job: &Job) -> bool {
        let job = ptr::from_ref(job).cast_mut();
        self.0.load(Ordering::Relaxed).is_null()
            && self.0.compare_exchange(ptr::null_mut(), job, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Takes a job. It may be another than the one first seen at its address: it is a job on offer
    /// all the same.
    fn take(&self) -> Option<*mut Job> {
        let job = self.0.load(Ordering::Relaxed);
        if job.is_null() {
            return None;
        }
        // What is taken, not what was looked at: another job may lie at the same address by now.
        self.0.compare_exchange(job, ptr::null_mut(), Ordering::Acquire, Ordering::Relaxed).ok()
    }

    /// Takes the caller's own job, if nobody has.
    fn take_back(&self, job: &Job) -> bool {
        let job = ptr::from_ref(job).cast_mut();
        self.0.compare_exchange(job, ptr::null_mut(), Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

impl Job {
    /// # Safety
    /// The caller took it out of its slot, and runs it once.
    unsafe fn run(job: *mut Self) {
        // SAFETY: the frame that it lies in waits for `done`, and only this thread touches `body`
        // and `outcome` before.
        unsafe {
            *(*job).outcome.get() = catch_unwind(AssertUnwindSafe(|| (*(*job).body)()));
            // The last touch: the frame may go.
            (*job).done.store(true, Ordering::Release);
        }
    }

    fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Waits for who took it, and does other work meanwhile.
    fn wait(&self) -> Result<(), Box<dyn Any + Send>> {
        let mut patience = Patience(LOOKS_FOR_RESULTS);
        while !self.is_done() {
            if do_what_is_on_offer() {
                patience = Patience(LOOKS_FOR_RESULTS);
            } else {
                patience.wait();
            }
        }
        // SAFETY: it is done, so who took it touches it no more, and it is in no slot.
        mem::replace(unsafe { &mut *self.outcome.get() }, Ok(()))
    }
}

/// Waits busily so many times, then politely.
struct Patience(u32);

impl Patience {
    fn is_over(&self) -> bool {
        self.0 == 0
    }

    fn wait(&mut self) {
        if self.is_over() {
            thread::yield_now();
        } else {
            self.0 -= 1;
            hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum of `numbers` by recursive halves.
    fn sum(numbers: &[u64], least: usize) -> u64 {
        if numbers.len() <= least {
            return numbers.iter().sum();
        }
        let (a, b) = numbers.split_at(numbers.len() / 2);
        let (mut x, mut y) = (0, 0);
        join(|| x = sum(a, least), || y = sum(b, least));
        x + y
    }

    fn numbers(n: u64) -> Vec<u64> {
        (0..n).map(|i| i * i % 1009).collect()
    }

    #[test]
    fn all_work_is_done_once() {
        let numbers = numbers(3000);
        let want = numbers.iter().sum::<u64>();
        assert_eq!(sum(&numbers, 10), want, "without a team");
        for threads in 1..=8 {
            let _team = Team::of(threads);
            for least in [1, 2, 7, 100, 2000] {
                for _ in 0..20 {
                    assert_eq!(sum(&numbers, least), want, "{threads} threads, {least}");
                }
            }
        }
    }

    #[test]
    fn many_small_works_one_after_the_other() {
        for threads in [2, 3, 8] {
            let _team = Team::of(threads);
            let (mut a, mut b) = (0u64, 0u64);
            for _ in 0..200_000 {
                join(|| a += 1, || b += 2);
            }
            assert_eq!((a, b), (200_000, 400_000));
        }
    }

    #[test]
    fn teams_at_the_same_time_share_helpers() {
        let numbers = numbers(500);
        let want = numbers.iter().sum::<u64>();
        thread::scope(|s| {
            for threads in 1..=6 {
                let numbers = &numbers;
                s.spawn(move || {
                    for _ in 0..300 {
                        let _team = Team::of(threads);
                        let _nested = Team::of(2);
                        assert_eq!(sum(numbers, 3), want);
                    }
                });
            }
        });
    }

    /// Works halves of halves, down to `works` of one each.
    fn each(works: std::ops::Range<usize>, work: &(impl Fn(usize) + Sync)) {
        let middle = works.start + works.len() / 2;
        if middle == works.start {
            return work(middle);
        }
        join(|| each(works.start..middle, work), || each(middle..works.end, work));
    }

    #[test]
    fn a_slow_thread_holds_others_up_by_one_work() {
        const WORKS: usize = 16;
        /// How often a work looks whether all others are done, which they are not where other tests fill the slots.
        const LOOKS: usize = 100_000;
        let _team = Team::of(2);
        let caller = thread::current().id();
        let others_are_done_first = || {
            let (done, is_held, first) = (AtomicUsize::new(0), AtomicBool::new(false), AtomicUsize::new(0));
            each(0..WORKS, &|_| {
                if thread::current().id() != caller && !is_held.swap(true, Ordering::Relaxed) {
                    let all = || done.load(Ordering::Relaxed) == WORKS - 1;
                    let _ = (0..LOOKS).find(|_| {
                        all() || {
                            thread::yield_now();
                            false
                        }
                    });
                    first.store(done.load(Ordering::Relaxed), Ordering::Relaxed);
                } else if !is_held.load(Ordering::Relaxed) {
                    // Gives a helper time to take a half.
                    thread::yield_now();
                }
                done.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(done.into_inner(), WORKS);
            first.into_inner() == WORKS - 1
        };
        let tried = |_| {
            let found = others_are_done_first();
            if !found {
                // Where other programs have all cores, a helper needs a while to come.
                thread::sleep(std::time::Duration::from_millis(2));
            }
            found
        };
        assert!((0..1000).any(tried), "one thread waits for another that has work to give away");
    }

    #[test]
    fn helpers_come_and_sleep_and_come_again() {
        for _ in 0..5 {
            let team = Team::of(2);
            let caller = thread::current().id();
            let mut by = caller;
            // Now and then they are busy with what other tests have for them.
            while by == caller {
                join(thread::yield_now, || by = thread::current().id());
            }
            drop(team);
            thread::sleep(std::time::Duration::from_millis(2));
        }
    }

    #[test]
    fn panics_reach_the_caller_when_both_halves_have_ended() {
        let _team = Team::of(4);
        for i in 0..2000 {
            let (at_a, at_b) = (i % 3 != 1, i % 3 != 0);
            let (mut a_ended, mut b_ended) = (false, false);
            let done = catch_unwind(AssertUnwindSafe(|| {
                join(
                    || {
                        a_ended = true;
                        // Gives a helper time to take the other half, now and then.
                        (0..i % 500).for_each(|_| hint::spin_loop());
                        if at_a {
                            resume_unwind(Box::new("a"));
                        }
                    },
                    || {
                        b_ended = true;
                        if at_b {
                            resume_unwind(Box::new("b"));
                        }
                    },
                );
            }));
            let said = *done.unwrap_err().downcast::<&str>().unwrap();
            assert_eq!(said, if at_a { "a" } else { "b" });
            assert!(a_ended && (b_ended || at_a));
        }
        assert_eq!(sum(&numbers(1000), 1), numbers(1000).iter().sum::<u64>(), "helpers live on");
    }
}

//! Ranks over MPI, whichever implementation the system has.

use super::{Exchange, Lane, Ranks, Team};
use compress_compiler::error::{Error, Result};
use mpi::{
    Threading,
    datatype::Equivalence,
    environment::Universe,
    ffi,
    topology::SimpleCommunicator,
    traits::{AsRaw, Communicator},
};
use std::{ffi::c_int, ops::Range, sync::Arc};

/// MPI, from its beginning to its end. All ranks end together.
pub struct Session(Universe);

impl Session {
    /// Joins the ranks that this process was started with.
    ///
    /// # Errors
    /// Device when MPI can't be started, or not for several threads.
    pub fn join() -> Result<(Self, Team)> {
        let failed = || Error::device("MPI could not be started for several threads");
        let (universe, threading) = mpi::initialize_with_threading(Threading::Multiple).ok_or_else(failed)?;
        if threading != Threading::Multiple {
            return Err(failed().help("use an MPI that was built with MPI_THREAD_MULTIPLE"));
        }
        let world = universe.world();
        let lane = || {
            let lane = world.duplicate();
            // SAFETY: the communicator is valid, and the handler is one of MPI's own.
            unsafe { ffi::MPI_Comm_set_errhandler(lane.as_raw(), ffi::RSMPI_ERRORS_RETURN) };
            lane
        };
        let ranks = Arc::new(Processes { words: lane(), gradients: lane(), sums: lane(), ends: lane() });
        Ok((Self(universe), Team::new(ranks)))
    }

    /// Ends all ranks at once.
    pub fn abort(&self, code: u8) -> ! {
        self.0.world().abort(code.into())
    }
}

/// The ranks of one world; each lane is a communicator of its own.
struct Processes {
    words: SimpleCommunicator,
    gradients: SimpleCommunicator,
    sums: SimpleCommunicator,
    ends: SimpleCommunicator,
}

// SAFETY: MPI was started for several threads; each lane has its exchanges begun by one at a time.
unsafe impl Send for Processes {}
// SAFETY: as above.
unsafe impl Sync for Processes {}

/// An exchange and its buffers, which MPI reads and writes until its requests are done. They stay where they are: moving a `Vec` doesn't
/// move what it holds.
struct Messages {
    requests: Vec<Message>,
    sent: Vec<u8>,
    received: Vec<u8>,
}

/// A message from a rank or to it.
struct Message {
    request: ffi::MPI_Request,
    rank: usize,
    done: bool,
}

// SAFETY: MPI was started for several threads, and the requests are tested by one at a time.
unsafe impl Send for Messages {}

impl Ranks for Processes {
    fn rank(&self) -> usize {
        self.words.rank() as usize
    }

    fn count(&self) -> usize {
        self.words.size() as usize
    }

    fn exchange(
        &self,
        lane: Lane,
        bytes: Vec<u8>,
        parts: &[Range<usize>],
        expected: &[usize],
    ) -> Result<Box<dyn Exchange>> {
        let lane = match lane {
            Lane::Words => &self.words,
            Lane::Gradients => &self.gradients,
            Lane::Sums => &self.sums,
            Lane::Ends => &self.ends,
        };
        let (own, byte) = (self.rank(), u8::equivalent_datatype());
        let mut messages = Messages { requests: vec![], sent: bytes, received: vec![0; expected.iter().sum()] };
        let mut from = 0;
        for (rank, (part, length)) in parts.iter().zip(expected).enumerate() {
            let (part, place) = (&messages.sent[part.clone()], &mut messages.received[from..from + length]);
            from += length;
            if rank == own {
                place.copy_from_slice(part);
                continue;
            }
            let (to, incoming) = (small(rank)?, small(*length)?);
            let outgoing = small(part.len())?;
            // Messages from one rank to another come in the order in which they were sent, so all have one tag. Empty ones are not sent.
            for (count, is_sent) in [(incoming, false), (outgoing, true)] {
                // SAFETY: what is overwritten below is a constant of MPI.
                let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
                // SAFETY: `part` and `place` are as long as is said, and are kept with the request until MPI is done with them.
                let code = unsafe {
                    match is_sent {
                        _ if count == 0 => continue,
                        true => ffi::MPI_Isend(
                            part.as_ptr().cast(),
                            count,
                            byte.as_raw(),
                            to,
                            0,
                            lane.as_raw(),
                            &mut request,
                        ),
                        false => ffi::MPI_Irecv(
                            place.as_mut_ptr().cast(),
                            count,
                            byte.as_raw(),
                            to,
                            0,
                            lane.as_raw(),
                            &mut request,
                        ),
                    }
                };
                messages.requests.push(Message { request, rank, done: false });
                checked(code)?;
            }
        }
        Ok(Box::new(messages))
    }
}

impl Exchange for Messages {
    fn received(&mut self) -> Result<Option<Vec<u8>>> {
        for message in self.requests.iter_mut().filter(|message| !message.done) {
            let mut done = 0;
            // SAFETY: the request goes on.
            checked(unsafe { ffi::MPI_Test(&mut message.request, &mut done, ffi::RSMPI_STATUS_IGNORE) })?;
            message.done = done != 0;
        }
        Ok(self.is_done().then(|| std::mem::take(&mut self.received)))
    }

    fn missing(&self) -> Vec<usize> {
        self.requests.iter().filter(|message| !message.done).map(|message| message.rank).collect()
    }
}

impl Messages {
    fn is_done(&self) -> bool {
        self.requests.iter().all(|message| message.done)
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        if !self.is_done() {
            // MPI may still write there: the job ends with an error, and the process soon.
            std::mem::forget(std::mem::take(&mut self.sent));
            std::mem::forget(std::mem::take(&mut self.received));
        }
    }
}

/// A count of bytes as MPI takes it.
fn small(n: usize) -> Result<c_int> {
    c_int::try_from(n).map_err(|_| Error::bug(format!("an exchange of {n} bytes")))
}

fn checked(code: c_int) -> Result<()> {
    match code {
        0 => Ok(()),
        code => Err(Error::device(format!("MPI failed with code {code}: a rank may be lost"))),
    }
}

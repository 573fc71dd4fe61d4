//! Runs that are recorded once and played again: all that a run launches becomes one graph ([CUDA
//! graphs](https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-graphs)), so that a run is one launch instead of hundreds. For
//! small models these take most of the time.
//!
//! What is played again is what was launched: so sizes have to be the same, and integers on the host, which may be shapes and indices,
//! too. Where integers come from inputs, the interpreter does the steps that read them before. A run that reads a value back fails to be recorded, and is done step by step as before.

use super::Range;
use crate::{burn::tensor::Value, device::Device};
use ::burn::backend::DispatchDevice;
use burn_cubecl::CubeDevice;
use compress_compiler::{
    error::{Error, Result},
    tensor::{DType, Tensor},
};
use cubecl::client::Graph;
use std::{
    cell::Cell,
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard},
    thread::{self, ThreadId},
};

/// Runs before one is recorded, besides the first of the same sizes: what comes once or twice isn't worth it.
const BEFORE: usize = 1;
/// Recordings of one model: each keeps the memory that its run took.
const MOST: usize = 4;
/// Different sizes that are counted.
const COUNTED: usize = 64;
/// Bytes of the inputs of a run that is recorded. What a larger one computes takes far longer than its launches, and much memory.
const LARGEST: usize = 4 << 20;

/// A thread that waits for the device breaks what is recorded on another: reads and recordings wait for each other.
static READS: RwLock<()> = RwLock::new(());

thread_local! {
    /// Whether this thread, one of the device's own, records a run.
    static RECORDS: Cell<bool> = const { Cell::new(false) };
}

/// For as long as it lives, this thread records.
struct Records;

impl Records {
    fn begin() -> Self {
        RECORDS.set(true);
        Self
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        RECORDS.set(false);
    }
}

/// What a thread holds while it reads from a device.
///
/// # Errors
/// Unsupported, in a run that is recorded.
pub fn reading() -> Result<RwLockReadGuard<'static, ()>> {
    match RECORDS.get() {
        true => Err(Error::unsupported("reading a value of a run that is recorded")),
        false => Ok(READS.read().unwrap_or_else(PoisonError::into_inner)),
    }
}

/// What a run begins with.
// A box would cost an allocation each time.
#[allow(clippy::large_enum_variant)]
pub enum Given<'a> {
    /// An input of the model, which still has to be sent.
    Sent(&'a Tensor),
    /// A value.
    Made(Value),
}

impl Given<'_> {
    fn value(&self, device: &Device) -> Result<Value> {
        match self {
            Self::Sent(t) => Value::input(t, device),
            Self::Made(value) => Ok(value.clone()),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Sent(t) => t.bytes().len(),
            Self::Made(value) => value.shape().iter().product::<usize>() * size_of::<f32>(),
        }
    }

    /// What has to be the same for a recorded run to be played.
    fn same(&self) -> Same {
        match self {
            Self::Sent(t) => (t.dtype(), t.shape().to_vec(), None),
            Self::Made(Value::Int(ints)) => (ints.dtype, ints.shape.clone(), Some(ints.data.clone())),
            Self::Made(value) => (value.dtype(), value.shape().to_vec(), None),
        }
    }
}

/// Types and sizes of the inputs of a model.
pub type Sizes = Vec<(DType, Vec<usize>)>;

/// Type and sizes of a value, and its elements if the host has them.
type Same = (DType, Vec<usize>, Option<Arc<Vec<i64>>>);

/// The recorded runs of a model.
pub struct Recorder {
    device: Device,
    cube: CubeDevice,
    /// The thread that sent the constants. Each thread has a stream of its own, and one that is recorded can't wait for others.
    thread: ThreadId,
    /// By types and sizes of inputs, what follows from these alone.
    follow: Mutex<HashMap<Sizes, Vec<Value>>>,
    recordings: Mutex<HashMap<Vec<Same>, State>>,
}

enum State {
    Seen(usize),
    Recorded(Recording),
    Never,
}

/// A run. The graph reads these inputs and writes these outputs; CubeCL keeps other values of the run where they are.
struct Recording {
    graph: Graph,
    inputs: Vec<Value>,
    outputs: Vec<Value>,
}

/// Makes outputs of what is given.
pub type Run<'a> = dyn Fn(Vec<Value>) -> Result<Vec<Value>> + Sync + 'a;

impl Recorder {
    /// For a device that can play runs again.
    pub fn new(device: &Device) -> Option<Self> {
        match device.burn() {
            DispatchDevice::Cube(cube @ CubeDevice::Cuda(_)) => Some(Self {
                device: device.clone(),
                cube: cube.clone(),
                thread: thread::current().id(),
                follow: Mutex::new(HashMap::new()),
                recordings: Mutex::new(HashMap::new()),
            }),
            _ => None,
        }
    }

    /// What the first run of these inputs found to follow from their sizes.
    pub fn known(&self, sizes: &Sizes) -> Option<Vec<Value>> {
        self.follow.lock().unwrap_or_else(PoisonError::into_inner).get(sizes).cloned()
    }

    /// Keeps what the first run of these inputs found.
    pub fn saw(&self, sizes: Sizes, known: Vec<Value>) {
        let mut follow = self.follow.lock().unwrap_or_else(PoisonError::into_inner);
        if follow.len() < COUNTED {
            follow.insert(sizes, known);
        }
    }

    /// The outputs of `run` for `given`, played again where such a run was recorded.
    ///
    /// # Errors
    /// What `run`, sending and reading raise.
    pub fn run(&self, given: &[Given], run: &Run) -> Result<Vec<Tensor>> {
        let outputs = match self.play(given, run)? {
            Some(outputs) => outputs,
            None => run(given.iter().map(|g| g.value(&self.device)).collect::<Result<_>>()?)?,
        };
        outputs.into_iter().map(Value::download).collect()
    }

    /// The outputs by a recorded run; `None` where there is none.
    fn play(&self, given: &[Given], run: &Run) -> Result<Option<Vec<Value>>> {
        let bytes = given.iter().map(Given::bytes).sum::<usize>();
        if self.thread != thread::current().id() || bytes > LARGEST {
            return Ok(None);
        }
        // Only the thread that made the model comes here.
        let mut recordings = self.recordings.lock().unwrap_or_else(PoisonError::into_inner);
        let same: Vec<Same> = given.iter().map(Given::same).collect();
        let recorded = recordings.values().filter(|state| matches!(state, State::Recorded(_))).count();
        if recordings.len() >= COUNTED && !recordings.contains_key(&same) {
            return Ok(None);
        }
        let state = recordings.entry(same).or_insert(State::Seen(0));
        match state {
            State::Never => return Ok(None),
            State::Seen(runs) if *runs < BEFORE || recorded >= MOST => {
                *runs = (*runs + 1).min(BEFORE);
                return Ok(None);
            }
            State::Seen(_) => *state = self.record(given, run)?.map_or(State::Never, State::Recorded),
            State::Recorded(recording) => {
                for (input, given) in recording.inputs.iter().zip(given) {
                    match given {
                        Given::Sent(t) => input.refill(t)?,
                        // Integers are the same.
                        Given::Made(Value::Int(_)) => {}
                        Given::Made(value) => input.copy_from(value)?,
                    }
                }
            }
        }
        let State::Recorded(recording) = state else { return Ok(None) };
        let _range = Range::begin(&self.device, "a recorded run");
        // SAFETY: the recording keeps the handles of its inputs and outputs, the model those of its constants, and CubeCL the pages of
        // all other values; one thread alone plays it, on one stream.
        if unsafe { recording.graph.replay() }.is_err() {
            *state = State::Never;
            return Ok(None);
        }
        Ok(Some(recording.outputs.clone()))
    }

    /// Records a run on copies of what is given, which the recording keeps.
    fn record(&self, given: &[Given], run: &Run) -> Result<Option<Recording>> {
        let mut inputs = vec![];
        for given in given {
            match given.value(&self.device)?.copied() {
                Some(input) => inputs.push(input),
                None => return Ok(None),
            }
        }
        let client = self.cube.client();
        let _no_reads = READS.write().unwrap_or_else(PoisonError::into_inner);
        // Other threads' work would be recorded too, or break the recording: it waits.
        let recorded = client.exclusive(|| {
            // This runs on the device's thread, in the place of the one that waits for it here.
            let _records = Records::begin();
            self.record_alone(&inputs, run)
        });
        Ok(recorded.ok().flatten().map(|(graph, outputs)| Recording { graph, inputs, outputs }))
    }

    fn record_alone(&self, inputs: &[Value], run: &Run) -> Option<(Graph, Vec<Value>)> {
        let client = self.cube.client();
        client.graph_prepare().ok()?;
        // Burn may panic where a device refuses something; the recording has to end all the same.
        let run = || catch_unwind(AssertUnwindSafe(|| run(inputs.to_vec()).ok())).ok().flatten();
        // The run before the recording leaves the memory that this one takes.
        let prepared = run().map(drop).is_some() && client.start_capture().is_ok();
        let outputs = if prepared { run() } else { None };
        // Also where something failed: the stream would record all that follows.
        let graph = client.stop_capture().ok();
        Some((graph?, outputs?))
    }
}

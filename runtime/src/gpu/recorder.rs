//! Runs that are recorded once and played again: all that a run launches becomes one graph ([CUDA
//! graphs](https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-graphs)), so that a run is one launch instead of hundreds. For
//! small models these take most of the time.
//!
//! What is played again is what was launched: so sizes have to be the same, and nothing may depend on what values are. Inputs of
//! integers, which live on the host, may change shapes and indices; a run with such inputs isn't recorded. A run that reads a value
//! back fails to be recorded, and is done step by step as before.

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
    sync::{Mutex, PoisonError, RwLock, RwLockReadGuard},
    thread::{self, ThreadId},
};

/// Runs of the same sizes before one is recorded: what comes once or twice isn't worth it.
const BEFORE: usize = 2;
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

/// Types and sizes of inputs.
type Sizes = Vec<(DType, Vec<usize>)>;

/// The recorded runs of a model.
pub struct Recorder {
    cube: CubeDevice,
    /// The thread that sent the constants. Each thread has a stream of its own, and one that is recorded can't wait for others.
    thread: ThreadId,
    known: Mutex<HashMap<Sizes, State>>,
}

enum State {
    Seen(usize),
    Recorded(Recording),
    Never,
}

/// A run. The graph reads these inputs and writes these outputs; CubeCL keeps other values of the run where they are.
struct Recording {
    graph: Graph,
    inputs: Vec<Option<Value>>,
    outputs: Vec<Value>,
}

/// Makes outputs of inputs by slot.
pub type Run<'a> = dyn Fn(Vec<Option<Value>>) -> Result<Vec<Value>> + Sync + 'a;

impl Recorder {
    /// For a device that can play runs again.
    pub fn new(device: &Device) -> Option<Self> {
        match device.burn() {
            DispatchDevice::Cube(cube @ CubeDevice::Cuda(_)) => {
                Some(Self { cube: cube.clone(), thread: thread::current().id(), known: Mutex::new(HashMap::new()) })
            }
            _ => None,
        }
    }

    /// The outputs for `given`, whose places among slots `slots` says, by a recorded run; `None` where there is none. `feed` sends what
    /// is given, `run` makes outputs of that.
    ///
    /// # Errors
    /// What reading outputs raises.
    pub fn run(
        &self,
        given: &[&Tensor],
        slots: &[Option<usize>],
        feed: impl FnOnce() -> Result<Vec<Option<Value>>>,
        run: &Run,
    ) -> Result<Option<Vec<Tensor>>> {
        let bytes = given.iter().map(|t| t.bytes().len()).sum::<usize>();
        if self.thread != thread::current().id() || bytes > LARGEST {
            return Ok(None);
        }
        // Only the thread that made the model comes here.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let sizes: Sizes = given.iter().map(|t| (t.dtype(), t.shape().to_vec())).collect();
        let recorded = known.values().filter(|state| matches!(state, State::Recorded(_))).count();
        if known.len() >= COUNTED && !known.contains_key(&sizes) {
            return Ok(None);
        }
        let state = known.entry(sizes).or_insert(State::Seen(0));
        match state {
            State::Never => return Ok(None),
            State::Seen(runs) if *runs < BEFORE || recorded >= MOST => {
                *runs = (*runs + 1).min(BEFORE);
                return Ok(None);
            }
            State::Seen(_) => {
                *state = self.record(feed()?, run).map_or(State::Never, State::Recorded);
            }
            State::Recorded(recording) => {
                for (t, slot) in given.iter().zip(slots) {
                    if let Some(input) = slot.and_then(|slot| recording.inputs[slot].as_ref()) {
                        input.refill(t)?;
                    }
                }
            }
        }
        let State::Recorded(recording) = state else { return Ok(None) };
        // SAFETY: the recording keeps the handles of its inputs and outputs, the model those of its constants, and CubeCL the pages of
        // all other values; one thread alone plays it, on one stream.
        if unsafe { recording.graph.replay() }.is_err() {
            *state = State::Never;
            return Ok(None);
        }
        recording.outputs.iter().cloned().map(Value::download).collect::<Result<Vec<_>>>().map(Some)
    }

    /// Records a run on `inputs`, which the recording keeps.
    fn record(&self, inputs: Vec<Option<Value>>, run: &Run) -> Option<Recording> {
        if !inputs.iter().flatten().all(Value::is_refillable) {
            return None;
        }
        let alone = inputs.into_iter().map(|v| v.map(Value::on_device_alone).transpose());
        let inputs: Vec<Option<Value>> = alone.collect::<Result<_>>().ok()?;
        let client = self.cube.client();
        let _no_reads = READS.write().unwrap_or_else(PoisonError::into_inner);
        // Other threads' work would be recorded too, or break the recording: it waits.
        let recorded = client.exclusive(|| {
            // This runs on the device's thread, in the place of the one that waits for it here.
            let _records = Records::begin();
            self.record_alone(&inputs, run)
        });
        let (graph, outputs) = recorded.ok()??;
        Some(Recording { graph, inputs, outputs })
    }

    fn record_alone(&self, inputs: &[Option<Value>], run: &Run) -> Option<(Graph, Vec<Value>)> {
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

//! Work of streams, and graphs of it: what a stream is asked for while it is captured is written down, and done each time that the
//! graph is launched.
//!
//! A stream is captured in the global mode alone, in which calls that could wait for it, or that allocate, are errors wherever they
//! come from ([Stream capture](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html)).

use super::{INVALID_VALUE, Outcome, Pointer, SUCCESS, put, record::record};
use std::{
    collections::HashMap,
    ffi::{c_int, c_uint},
    sync::{Arc, Mutex, MutexGuard},
};

/// What a capture forbids.
pub const CAPTURE_UNSUPPORTED: Outcome = 900;
/// An event or a stream that is not of the capture.
pub const CAPTURE_ISOLATION: Outcome = 905;
/// A capture that was not begun.
const ILLEGAL_STATE: Outcome = 401;

/// Kinds of nodes, numbers of `CUgraphNodeType`.
#[derive(Clone, Copy)]
pub enum Kind {
    Kernel = 0,
    Copy = 1,
    Fill = 2,
}

/// A part of a graph.
pub struct Node {
    kind: Kind,
    work: Box<dyn Fn() -> Outcome + Send + Sync>,
}

/// What a stream is asked for while it is captured.
struct Capture {
    nodes: Vec<Node>,
    /// Whether something was asked for that can't be captured.
    broken: bool,
}

static CAPTURES: Mutex<Option<HashMap<usize, Capture>>> = Mutex::new(None);

fn captures() -> MutexGuard<'static, Option<HashMap<usize, Capture>>> {
    CAPTURES.lock().unwrap_or_else(|e| e.into_inner())
}

/// Whether a stream is captured.
pub fn is_captured(stream: Pointer) -> bool {
    captures().as_ref().is_some_and(|all| all.contains_key(&(stream as usize)))
}

/// Does some work of a stream, or writes it down.
pub fn ask(stream: Pointer, kind: Kind, work: impl Fn() -> Outcome + Send + Sync + 'static) -> Outcome {
    if let Some(capture) = captures().as_mut().and_then(|all| all.get_mut(&(stream as usize))) {
        capture.nodes.push(Node { kind, work: Box::new(work) });
        return SUCCESS;
    }
    work()
}

/// The error for what no capture allows, while there is one: it ends that capture.
pub fn forbidden(call: &str) -> Option<Outcome> {
    let mut all = captures();
    let open = all.as_mut().filter(|all| !all.is_empty())?;
    eprintln!("cuda double: {call} while a stream is captured");
    open.values_mut().for_each(|capture| capture.broken = true);
    Some(CAPTURE_UNSUPPORTED)
}

/// Begins to write down what a stream is asked for.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamBeginCapture_v2(stream: Pointer, mode: c_int) -> Outcome {
    let mut all = captures();
    let all = all.get_or_insert_default();
    if mode != 0 || all.contains_key(&(stream as usize)) {
        return INVALID_VALUE;
    }
    all.insert(stream as usize, Capture { nodes: vec![], broken: false });
    SUCCESS
}

/// The graph of what was written down.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamEndCapture(stream: Pointer, to: *mut Pointer) -> Outcome {
    let Some(capture) = captures().as_mut().and_then(|all| all.remove(&(stream as usize))) else {
        return ILLEGAL_STATE;
    };
    if capture.broken {
        // SAFETY: as the API says.
        unsafe { put(to, std::ptr::null_mut()) };
        return CAPTURE_UNSUPPORTED + 1;
    }
    let graph: Arc<Vec<Node>> = Arc::new(capture.nodes);
    // SAFETY: as the API says.
    unsafe { put(to, Box::into_raw(Box::new(graph)).cast()) }
}

/// # Safety
/// It was made by `cuStreamEndCapture` or `cuGraphInstantiateWithFlags`.
unsafe fn graph_of<'a>(graph: Pointer) -> &'a Arc<Vec<Node>> {
    // SAFETY: as the caller says.
    unsafe { &*graph.cast::<Arc<Vec<Node>>>() }
}

/// A graph that can be launched.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphInstantiateWithFlags(to: *mut Pointer, graph: Pointer, _: u64) -> Outcome {
    // SAFETY: it was made by `cuStreamEndCapture`.
    let graph = unsafe { graph_of(graph) }.clone();
    // SAFETY: as the API says.
    unsafe { put(to, Box::into_raw(Box::new(graph)).cast()) }
}

/// Numbers of a graph's nodes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphGetNodes(graph: Pointer, to: *mut *const Node, count: *mut usize) -> Outcome {
    // SAFETY: it was made by `cuStreamEndCapture`.
    let graph = unsafe { graph_of(graph) };
    if to.is_null() {
        // SAFETY: as the API says.
        return unsafe { put(count, graph.len()) };
    }
    // SAFETY: the caller has room for as many as it says.
    unsafe {
        for (i, node) in graph.iter().take(*count).enumerate() {
            to.add(i).write(node);
        }
    }
    SUCCESS
}

/// What a node does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphNodeGetType(node: *const Node, to: *mut c_int) -> Outcome {
    // SAFETY: `cuGraphGetNodes` gave it, and its graph lives.
    unsafe { put(to, (*node).kind as c_int) }
}

/// Does the work of a graph, in its order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphLaunch(graph: Pointer, stream: Pointer) -> Outcome {
    if is_captured(stream) {
        return CAPTURE_UNSUPPORTED;
    }
    // SAFETY: it was made by `cuGraphInstantiateWithFlags`.
    let graph = unsafe { graph_of(graph) };
    record(&format!("{{\"graph\": {}}}", graph.len()));
    graph.iter().map(|node| (node.work)()).find(|outcome| *outcome != SUCCESS).unwrap_or(SUCCESS)
}

/// A graph is where it has to be.
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphUpload(_: Pointer, _: Pointer) -> Outcome {
    SUCCESS
}

/// A graph is no longer needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphDestroy(graph: Pointer) -> Outcome {
    // SAFETY: it was made here, and the caller has given it up.
    drop(unsafe { Box::from_raw(graph.cast::<Arc<Vec<Node>>>()) });
    SUCCESS
}

/// A graph is no longer needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphExecDestroy(graph: Pointer) -> Outcome {
    // SAFETY: as for `cuGraphDestroy`.
    unsafe { cuGraphDestroy(graph) }
}

/// Whether a stream is captured.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(stream: Pointer, to: *mut c_uint) -> Outcome {
    // SAFETY: as the API says.
    unsafe { put(to, c_uint::from(is_captured(stream))) }
}

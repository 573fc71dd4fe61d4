//! What a stream is asked for while it is captured.

use std::{
    ffi::{c_int, c_uint, c_void},
    ptr::null_mut,
    sync::Mutex,
};
// The functions below are of this library.
use cuda as _;

type Pointer = *mut c_void;

unsafe extern "C" {
    safe fn cuStreamBeginCapture_v2(stream: Pointer, mode: c_int) -> c_int;
    fn cuStreamEndCapture(stream: Pointer, graph: *mut Pointer) -> c_int;
    fn cuStreamIsCapturing(stream: Pointer, found: *mut c_uint) -> c_int;
    fn cuStreamWaitEvent(stream: Pointer, event: Pointer, flags: c_uint) -> c_int;
    fn cuGraphInstantiateWithFlags(exec: *mut Pointer, graph: Pointer, flags: u64) -> c_int;
    fn cuGraphGetNodes(graph: Pointer, nodes: *mut Pointer, count: *mut usize) -> c_int;
    fn cuGraphNodeGetType(node: Pointer, kind: *mut c_int) -> c_int;
    fn cuGraphLaunch(exec: Pointer, stream: Pointer) -> c_int;
    fn cuGraphDestroy(graph: Pointer) -> c_int;
    fn cuGraphExecDestroy(exec: Pointer) -> c_int;
    fn cuEventCreate(event: *mut Pointer, flags: c_uint) -> c_int;
    fn cuEventRecord(event: Pointer, stream: Pointer) -> c_int;
    fn cuEventDestroy_v2(event: Pointer) -> c_int;
    fn cuMemAlloc_v2(to: *mut Pointer, bytes: usize) -> c_int;
    fn cuMemFree_v2(at: Pointer) -> c_int;
    fn cuMemcpyHtoDAsync_v2(to: Pointer, from: *const u8, bytes: usize, stream: Pointer) -> c_int;
    fn cuMemcpyDtoHAsync_v2(to: *mut u8, from: Pointer, bytes: usize, stream: Pointer) -> c_int;
    fn cuMemsetD8Async(to: Pointer, value: u8, bytes: usize, stream: Pointer) -> c_int;
    safe fn cuStreamSynchronize(stream: Pointer) -> c_int;
}

/// A capture is of the whole process.
static ONE: Mutex<()> = Mutex::new(());
const STREAM: Pointer = 0x77 as Pointer;
const OTHER: Pointer = 0x78 as Pointer;
const UNSUPPORTED: c_int = 900;
const ISOLATION: c_int = 905;

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(|e| e.into_inner())
}

#[test]
fn a_graph_does_its_work_each_time_and_not_before() {
    let _alone = alone();
    let (mut device, mut graph, mut exec) = (null_mut(), null_mut(), null_mut());
    let (mut from, mut to) = ([7u8; 8], [1u8; 8]);
    // SAFETY: all pointers are of what is declared here, and live until the end.
    unsafe {
        assert_eq!(cuMemAlloc_v2(&mut device, 8), 0);
        assert_eq!(cuStreamBeginCapture_v2(STREAM, 0), 0);
        let mut captured = 0;
        assert_eq!((cuStreamIsCapturing(STREAM, &mut captured), captured), (0, 1));
        assert_eq!((cuStreamIsCapturing(OTHER, &mut captured), captured), (0, 0));
        assert_eq!(cuMemcpyHtoDAsync_v2(device, from.as_ptr(), 8, STREAM), 0);
        assert_eq!(cuMemsetD8Async(device, 9, 2, STREAM), 0);
        assert_eq!(cuMemcpyDtoHAsync_v2(to.as_mut_ptr(), device, 8, STREAM), 0);
        assert_eq!(cuStreamEndCapture(STREAM, &mut graph), 0);
        assert_eq!(to, [1; 8]);
        let (mut nodes, mut count) = ([null_mut(); 4], 0);
        assert_eq!((cuGraphGetNodes(graph, null_mut(), &mut count), count), (0, 3));
        assert_eq!(cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count), 0);
        let kinds = [0, 1, 2].map(|i| {
            let mut kind = -1;
            assert_eq!(cuGraphNodeGetType(nodes[i], &mut kind), 0);
            kind
        });
        // A copy, a fill, a copy.
        assert_eq!(kinds, [1, 2, 1]);
        assert_eq!(cuGraphInstantiateWithFlags(&mut exec, graph, 0), 0);
        assert_eq!(cuGraphDestroy(graph), 0);
        for v in [7, 5] {
            from.fill(v);
            std::hint::black_box(&from);
            assert_eq!(cuGraphLaunch(exec, STREAM), 0);
            assert_eq!(to, [9, 9, v, v, v, v, v, v]);
        }
        assert_eq!((cuGraphExecDestroy(exec), cuMemFree_v2(device)), (0, 0));
    }
}

#[test]
fn what_could_wait_or_allocate_ends_a_capture() {
    let _alone = alone();
    let mut graph = null_mut();
    let calls: [&dyn Fn() -> c_int; 2] = [&|| cuStreamSynchronize(OTHER), &|| {
        let mut at = null_mut();
        // SAFETY: the pointer is of this function.
        unsafe { cuMemAlloc_v2(&mut at, 8) }
    }];
    for call in calls {
        assert_eq!(cuStreamBeginCapture_v2(STREAM, 0), 0);
        assert_eq!(call(), UNSUPPORTED);
        // SAFETY: as above.
        assert_eq!(unsafe { cuStreamEndCapture(STREAM, &mut graph) }, UNSUPPORTED + 1);
        assert!(graph.is_null());
    }
    // SAFETY: as above.
    assert_eq!(unsafe { cuStreamEndCapture(STREAM, &mut graph) }, 401);
    assert_eq!(cuStreamSynchronize(OTHER), 0);
}

#[test]
fn events_are_of_a_capture_or_of_none() {
    let _alone = alone();
    let (mut inside, mut outside, mut graph) = (null_mut(), null_mut(), null_mut());
    // SAFETY: all pointers are of what is declared here.
    unsafe {
        assert_eq!((cuEventCreate(&mut inside, 0), cuEventCreate(&mut outside, 0)), (0, 0));
        assert_eq!(cuEventRecord(outside, OTHER), 0);
        assert_eq!(cuStreamBeginCapture_v2(STREAM, 0), 0);
        assert_eq!(cuEventRecord(inside, STREAM), 0);
        assert_eq!(cuStreamWaitEvent(STREAM, inside, 0), 0);
        assert_eq!(cuStreamWaitEvent(OTHER, outside, 0), 0);
        assert_eq!(cuStreamWaitEvent(STREAM, outside, 0), ISOLATION);
        assert_eq!(cuStreamWaitEvent(OTHER, inside, 0), ISOLATION);
        assert_eq!(cuStreamEndCapture(STREAM, &mut graph), UNSUPPORTED + 1);
        assert_eq!((cuEventDestroy_v2(inside), cuEventDestroy_v2(outside)), (0, 0));
    }
}

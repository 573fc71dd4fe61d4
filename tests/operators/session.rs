//! Both executors together: what one cannot run the other does, and nobody sees the difference.

use compress_compiler::{
    graph::Graph,
    node::{Port, Site},
    tensor::Tensor,
    text,
    verify::verify,
};
use compress_runtime::session::{Backend, Session};
use rayon::prelude::*;
use std::{
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::Duration,
};

/// Convolutions, a Concat of what others read too, a residual, and a Softplus, which only Burn has.
const NET: &str = r#"graph "net" {
  input %x: f32[N,3,64,64]
  const %w1: f32[16,3,3,3] = random(1)
  const %w2: f32[16,16,3,3] = random(2)
  const %w3: f32[8,16,1,1] = random(3)
  const %w4: f32[24,1,3,3] = random(4)
  const %w5: f32[24,10] = random(5)
  %a = Conv(%x, %w1) {pads=[1, 1, 1, 1], strides=[2, 2]} "a"
  %ra = Relu(%a) "ra"
  %b = Conv(%ra, %w2) {pads=[1, 1, 1, 1]} "b"
  %sum = Add(%b, %ra) "sum"
  %soft = Softplus(%sum) "soft"
  %c = Conv(%soft, %w3) "c"
  %joined = Concat(%c, %sum) {axis=1} "joined"
  %d = Conv(%joined, %w4) {group=24, pads=[1, 1, 1, 1]} "d"
  %p = GlobalAveragePool(%d) "p"
  %flat = Flatten(%p) {axis=1} "flat"
  %y = MatMul(%flat, %w5) "y"
  output %y
  output %c
}"#;

fn net() -> Graph {
    text::parse(NET).unwrap()
}

fn samples(n: usize) -> Tensor {
    let size = 3 * 64 * 64;
    let data: Vec<f32> = (0..n * size).map(|i| ((i * 2_654_435_761) % 1000) as f32 / 500.0 - 1.0).collect();
    Tensor::f32(&[n, 3, 64, 64], &data)
}

fn session(graph: &Graph, backend: &Backend, watch: &[Port]) -> Session {
    let watch: Vec<Site> = watch.iter().map(|port| Site::from(*port)).collect();
    Session::new(&verify(graph).unwrap(), backend, &watch).unwrap()
}

#[track_caller]
fn near(a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), b.len());
    let largest = b.iter().fold(0f32, |m, v| m.max(v.abs()));
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        assert!((a - b).abs() <= 1e-5 * largest, "element {i} is {a}, not {b}");
    }
}

#[test]
fn a_batch_gives_what_its_samples_give() {
    let graph = net();
    for n in [1, 2, 7, 12] {
        let all = session(&graph, &Backend::cpu(), &[]).run(&[samples(n)]).unwrap();
        let burn = session(&graph, &Backend::burn(), &[]).run(&[samples(n)]).unwrap();
        for (a, b) in all.iter().zip(&burn) {
            assert_eq!(a.shape(), b.shape());
            near(&a.as_f32().unwrap(), &b.as_f32().unwrap());
        }
    }
}

/// Functions behind products, which compute them: SiLU and HardSwish in one node and in two, Gelu behind a sum, bounds and
/// LeakyRelu behind transposed convolutions, and some whose argument somebody else reads too.
const FUNCTIONS: &str = r#"graph "functions" {
  input %x: f32[N,3,64,64]
  const %w1: f32[16,3,3,3] = random(1)
  const %w2: f32[16,1,3,3] = random(2)
  const %w3: f32[16,16,1,1] = random(3)
  const %w4: f32[16,40] = random(4)
  const %w5: f32[40,40] = random(5)
  const %w6: f32[16,8,4,4] = random(6)
  const %w7: f32[8,1,2,2] = random(7)
  const %b7: f32[1] = random(8)
  %a = Conv(%x, %w1) {pads=[1, 1, 1, 1], strides=[2, 2]} "a"
  %sa = Sigmoid(%a) "sa"
  %silu = Mul(%a, %sa) "silu"
  %b = Conv(%silu, %w2) {group=16, pads=[1, 1, 1, 1]} "b"
  %hb = HardSigmoid(%b) {alpha=0.16666667, beta=0.5} "hb"
  %swish = Mul(%hb, %b) "swish"
  %c = Conv(%swish, %w3) "c"
  %sc = Sigmoid(%c) "sc"
  %gated = Mul(%c, %sc) "gated"
  %sum = Add(%c, %gated) "sum"
  %d = Conv(%sum, %w3) "d"
  %residual = Add(%d, %swish) "residual"
  %hard = HardSwish(%residual) "hard"
  %up = ConvTranspose(%hard, %w6) {pads=[1, 1, 1, 1], strides=[2, 2]} "up"
  %bounded = Relu(%up) "bounded"
  %mask = ConvTranspose(%bounded, %w7, %b7) {strides=[2, 2]} "mask"
  %shown = LeakyRelu(%mask) {alpha=0.1} "shown"
  %p = GlobalAveragePool(%hard) "p"
  %flat = Flatten(%p) {axis=1} "flat"
  %e = MatMul(%flat, %w4) "e"
  %gelu = Gelu(%e) "gelu"
  %f = MatMul(%gelu, %w5) "f"
  %y = Tanh(%f) "y"
  %z = Relu(%f) "z"
  output %y
  output %z
  output %sc
  output %shown
}"#;

#[test]
fn functions_behind_products_are_those_of_their_results() {
    let graph = text::parse(FUNCTIONS).unwrap();
    for n in [1, 5] {
        let ours = session(&graph, &Backend::cpu(), &[]).run(&[samples(n)]).unwrap();
        let burn = session(&graph, &Backend::burn(), &[]).run(&[samples(n)]).unwrap();
        for (a, b) in ours.iter().zip(&burn) {
            near(&a.as_f32().unwrap(), &b.as_f32().unwrap());
        }
    }
    let names: Vec<Port> = graph.operators().map(Port::from).collect();
    session(&graph, &Backend::cpu(), &names).observe(&[samples(2)], &mut |_, _| Ok(())).unwrap();
}

#[test]
fn batches_may_change_and_may_be_empty() {
    let graph = net();
    let session = session(&graph, &Backend::cpu(), &[]);
    let first = session.run(&[samples(3)]).unwrap();
    for n in [1, 5, 0, 2, 8, 1] {
        assert_eq!(session.run(&[samples(n)]).unwrap()[0].shape(), [n, 10]);
    }
    assert_eq!(session.run(&[samples(3)]).unwrap(), first);
}

#[test]
fn watched_values_are_shown_as_onnx_has_them() {
    let graph = net();
    let watch: Vec<Port> =
        graph.operators().map(Port::from).chain(graph.inputs().iter().map(|i| Port::from(*i))).collect();
    let seen = |backend: &Backend| {
        let mut seen: Vec<Vec<f32>> = vec![vec![]; watch.len()];
        session(&graph, backend, &watch)
            .observe(&[samples(2)], &mut |i, v| {
                assert!(seen[i].is_empty(), "shown twice");
                seen[i] = v.to_vec();
                Ok(())
            })
            .unwrap();
        seen
    };
    for (a, b) in seen(&Backend::cpu()).iter().zip(seen(&Backend::burn())) {
        assert!(!a.is_empty());
        near(a, &b);
    }
}

#[test]
fn many_threads_may_run_one_session_at_once() {
    let session = session(&net(), &Backend::cpu(), &[]);
    let want: Vec<_> = (0..6).map(|n| session.run(&[samples(n)]).unwrap()).collect();
    thread::scope(|s| {
        for first in 0..4 {
            let (session, want) = (&session, &want);
            s.spawn(move || {
                for n in (first..first + 24).map(|i| i % want.len()) {
                    assert_eq!(session.run(&[samples(n)]).unwrap(), want[n]);
                }
            });
        }
    });
}

/// Threads of Rayon's that wait for the pieces of a batch begin other tasks meanwhile: here more runs of the session
/// that they are in.
#[test]
fn tasks_of_rayon_may_run_one_session() {
    let (done, wait) = channel();
    let tasks = || {
        let session = session(&net(), &Backend::cpu(), &[]);
        let want: Vec<_> = (0..13).map(|n| session.run(&[samples(n)]).unwrap()).collect();
        (0..200).into_par_iter().map(|i| i * 5 % want.len()).for_each(|n| {
            assert_eq!(session.run(&[samples(n)]).unwrap(), want[n]);
        });
    };
    let runner = thread::spawn(move || {
        rayon::ThreadPoolBuilder::new().num_threads(4).build().unwrap().install(tasks);
        done.send(()).unwrap();
    });
    // Threads that wait for each other would never say so; one that panics hangs up.
    assert_ne!(wait.recv_timeout(Duration::from_secs(120)), Err(RecvTimeoutError::Timeout), "a deadlock");
    runner.join().unwrap();
}

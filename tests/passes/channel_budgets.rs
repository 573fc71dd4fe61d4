//! Structured pruning: how many channels go, and which.

use compress_compiler::{
    error::Result,
    graph::Graph,
    node::NodeId,
    pass::{Context, Outcome, Pass, Stopwatch, Trained, Trainer, Training, Tuning, Weight},
    text,
    verify::Verified,
};
use compress_passes::{
    layers::layers,
    prune::{
        score::ChannelSaliency,
        structured::{ChannelBudget, Channels, PruneChannels},
    },
    simplify,
};
use compress_runtime::burn::BurnInterpreter;
use std::cell::RefCell;

/// The output channels of each layer.
fn sizes(g: &Graph) -> Vec<usize> {
    layers(g).unwrap().iter().map(|l| g.constant(l.weight.into()).unwrap().shape()[0]).collect()
}

/// Removes a fraction of the multiply-accumulates in one cut.
fn of_macs(fraction: f64) -> Channels {
    Channels { fraction, of: ChannelBudget::Macs, by: ChannelSaliency::L2, round: None, pays: false, cuts: 1 }
}

fn pass(channels: Channels) -> PruneChannels {
    PruneChannels { channels, exclude: vec![], reconstruct: false, train: None, followed: false }
}

/// A machine on which each layer takes what a test says of its channels.
struct Machine(fn(&str, usize) -> f64);

impl Stopwatch for Machine {
    fn compare(&self, graphs: [&Verified; 2]) -> Result<[f64; 2]> {
        Ok(graphs.map(|g| {
            let layers = layers(g).unwrap();
            layers.iter().zip(sizes(g)).map(|(l, n)| self.0(g.node(l.node).display_name(), n)).sum()
        }))
    }
}

const TWO: &str = r#"graph "two" {
  input %x: f32[N,3,8,8]
  const %w0: f32[32,3,3,3] = random(1)
  const %w1: f32[32,32,3,3] = random(2)
  const %w2: f32[5,32,1,1] = random(3)
  %a = Conv(%x, %w0) "a"
  %r = Relu(%a)
  %b = Conv(%r, %w1) "b"
  %s = Relu(%b)
  %y = Conv(%s, %w2) "y"
  output %y
}"#;

/// Takes note of the share of the training that each is to have, and trains nothing.
struct Shares(RefCell<Vec<f64>>);

impl Trainer for Shares {
    fn tune(&self, _: &mut Graph, _: Tuning) -> Result<(u64, usize)> {
        unreachable!("nothing is searched here")
    }

    fn train(&self, _: &mut Graph, training: Training) -> Result<Trained> {
        self.0.borrow_mut().push(training.share);
        Ok(Trained::default())
    }

    fn saliency(&self, _: &Graph, _: &[NodeId]) -> Result<Vec<Weight>> {
        Ok(vec![])
    }
}

#[test]
fn what_the_last_cut_leaves_is_trained_to_the_end() {
    // Below 16 channels nothing is faster: the second cut finds nothing that pays.
    let machine = Machine(|_, n| n.max(16) as f64);
    let mut g = text::parse(TWO).unwrap();
    let channels = Channels { round: Some(8), pays: true, cuts: 2, ..of_macs(0.9) };
    let pass = PruneChannels { train: Some(true), ..pass(channels) };
    let (interpreter, trainer) = (BurnInterpreter::cpu(), Shares(RefCell::default()));
    let cx = Context { stopwatch: Some(&machine), trainer: Some(&trainer), ..Context::new(&interpreter) };
    let out = pass.run(&mut g, &cx).unwrap();
    assert_eq!(*trainer.0.borrow(), [0.5, 0.5]);
    let [told] = &out.warnings[..] else { panic!("{:?}", out.warnings) };
    assert!(told.contains("32 -> 16") && told.contains("more than the 10.0% asked for"), "{told}");
}

/// Prunes half of the multiply-accumulates on a machine; the channels of the layers then, and what the pass says.
fn pruned_on(machine: &Machine, of: ChannelBudget) -> (Vec<usize>, Outcome) {
    let mut g = text::parse(TWO).unwrap();
    let interpreter = BurnInterpreter::cpu();
    let cx = Context { stopwatch: Some(machine), ..Context::new(&interpreter) };
    let out = pass(Channels { of, pays: true, ..of_macs(0.5) }).run(&mut g, &cx).unwrap();
    (sizes(&g), out)
}

#[test]
fn rounding_takes_no_step_more_than_the_budget_asks_for() {
    // Positions: 36 of `a`, 16 of the others.
    let macs = |a: usize, b: usize| (36 * 27 * a + 16 * (9 * a * b + 5 * b)) as f64;
    for (percent, step) in (5..70).flat_map(|percent| [(percent, 8), (percent, 16)]) {
        let fraction = f64::from(percent) / 100.0;
        let mut g = text::parse(TWO).unwrap();
        let channels = Channels { round: Some(step), ..of_macs(fraction) };
        pass(channels).run(&mut g, &Context::new(&BurnInterpreter::cpu())).unwrap();
        let [a, b, 5] = sizes(&g)[..] else { panic!("{g}") };
        let budget = macs(32, 32) * (1.0 - fraction);
        assert!(macs(a, b) <= budget && a % step == 0 && b % step == 0, "{fraction}: {a}, {b}");
        assert!(a == 32 || macs(a + step, b) > budget, "{fraction}: {a}, {b}");
        assert!(b == 32 || macs(a, b + step) > budget, "{fraction}: {a}, {b}");
    }
}

#[test]
fn others_make_up_for_a_layer_that_gets_no_faster() {
    let (sizes, out) =
        pruned_on(&Machine(|name, n| if name == "b" { 1000.0 } else { n as f64 * 30.0 }), ChannelBudget::Macs);
    assert_eq!(sizes, [8, 32, 5]);
    let alone: Vec<&str> = out.skipped.iter().filter(|s| s.reason.contains("no faster")).map(|s| &s.node[..]).collect();
    assert_eq!(alone, ["b"]);
}

#[test]
fn cuts_follow_the_steps_of_kernels() {
    // Sixteen channels at a time: 24 take as long as 32.
    let (sizes, _) = pruned_on(&Machine(|_, n| n.div_ceil(16) as f64 * 100.0), ChannelBudget::Macs);
    assert!(sizes[..2].iter().all(|n| n % 16 == 0) && sizes[..2].contains(&16), "{sizes:?}");
}

#[test]
fn a_machine_on_which_nothing_pays_keeps_everything() {
    let (sizes, out) = pruned_on(&Machine(|_, _| 1.0), ChannelBudget::Macs);
    assert_eq!(sizes, [32, 32, 5]);
    assert!(out.warnings[0].contains("no faster here"), "{:?}", out.warnings);
}

#[test]
fn time_is_a_budget() {
    // `b` is slow, and takes four of its five parts of the time.
    let (sizes, _) =
        pruned_on(&Machine(|name, n| n as f64 * if name == "b" { 4.0 } else { 1.0 }), ChannelBudget::Latency);
    let time = |a: usize, b: usize| (a + 4 * b + 5) as f64;
    assert!(time(sizes[0], sizes[1]) <= 0.5 * time(32, 32) && sizes[1] <= 16, "{sizes:?}");
}

#[test]
fn scales_of_folded_normalisation_choose_channels_in_every_cut() {
    let mut g = text::parse(
        r#"graph "slim" {
  input %x: f32[N,3,8,8]
  const %w0: f32[4,3,1,1] = random(1)
  const %scale: f32[4] = [0.1, 4.0, 0.2, -3.0]
  const %shift: f32[4] = random(2)
  const %mean: f32[4] = random(3)
  const %var: f32[4] = [1.0, 10000.0, 1.0, 10000.0]
  const %half: f32[1] = [0.5]
  const %w1: f32[5,4,1,1] = [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]
  %a = Conv(%x, %w0) "a"
  %n = BatchNormalization(%a, %scale, %shift, %mean, %var)
  %h = Mul(%n, %half)
  %r = Relu(%h)
  %y = Conv(%r, %w1) "y"
  output %y
}"#,
    )
    .unwrap();
    let (interpreter, trainer) = (BurnInterpreter::cpu(), Shares(RefCell::default()));
    let cx = Context { trainer: Some(&trainer), ..Context::new(&interpreter) };
    simplify(&mut g, &cx).unwrap();
    let channels = Channels { by: ChannelSaliency::Scale, cuts: 3, ..of_macs(0.7) };
    PruneChannels { train: Some(true), ..pass(channels) }.run(&mut g, &cx).unwrap();
    assert_eq!(trainer.0.borrow().len(), 3);
    let read = layers(&g).unwrap().last().map(|l| g.constant(l.weight.into()).unwrap().as_f32().unwrap().into_owned());
    // The second channel has the largest scale, though not the largest weights.
    assert_eq!(read, Some(vec![1.0; 5]), "{g}");
}

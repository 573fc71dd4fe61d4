//! Pruning without training: layer by layer, such that each layer's output on calibration data stays what it was.
//!
//! First, every layer says at which error it would have how many zeros, on the inputs that it has in the dense model;
//! that decides how many each gets. Then they are pruned in order: a layer reads what the pruned ones before it make, and
//! is solved to answer as the dense model does.

use super::{
    budget::allocate,
    mask::{Groups, Pattern, lowest},
    solve::{Problem, Sparse},
};
use crate::{
    layers::{Layer, layers},
    moments::{Bias, Inputs, Moments, enough, observe},
    weight_matrix::WeightMatrix,
};
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
    ops::gemm::Gemm,
    part::only,
    pass::{Calibrator, Context},
    tensor::Tensor,
    verify::verify,
};
use std::collections::BTreeMap;

/// Layers with more inputs have their smallest weights zeroed: the moments of their inputs would take too much memory and time.
const MOST_INPUTS: usize = 2304;

/// Channels of layers with more inputs are weighed one by one, as if nothing made up for them: letting them go one after the
/// other takes time by the cube of this.
const MOST_TOGETHER: usize = 1200;

/// Bytes of moments that are gathered at a time.
const MOMENTS_BYTES: usize = 256 << 20;

/// How many zeros.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Budget {
    /// A fraction of all weights together.
    Fraction(f64),
    /// The same fraction of the weights of each layer.
    Layers(f64),
    /// The same in every group of every layer.
    Pattern(Pattern),
}

/// What was done to a weight.
pub struct Done {
    /// The constant.
    pub weight: NodeId,
    /// How many of its elements are zero.
    pub zeros: usize,
    /// How many it has.
    pub elements: usize,
    /// Why its smallest elements went and the others are as they were, if that is so.
    pub by_magnitude: Option<String>,
}

/// A weight to prune, and what is known of who reads it.
struct Task {
    weight: NodeId,
    users: Vec<Layer>,
    layout: WeightMatrix,
    /// How its readers read, or why that doesn't help.
    inputs: Result<Inputs, String>,
    bias: Option<NodeId>,
    /// Whether outputs that are wanted can be told: those of one layer, without a bias that stays as it is.
    answered: bool,
    groups: Option<Groups>,
}

/// Samples to reconstruct on, and the multiply-accumulates of doing so beyond which there are fewer: some minutes on two
/// cores. Of too few, second moments tell nothing.
const SAMPLES: usize = 1024;
const MACS: u64 = 30_000_000_000_000;
const LEAST_SAMPLES: usize = 32;

/// On how many samples a model is reconstructed in some minutes, 1,024 at most.
///
/// # Errors
/// Malformed when the graph has a cycle.
pub fn affordable_samples(g: &Graph) -> Result<usize> {
    // Each layer is solved on what the layers before it make, in the dense model and in the pruned one: half of each.
    let macs: u64 = g.operators().map(|n| g.macs(n)).sum();
    let cost = macs.saturating_mul(layers(g)?.len() as u64).max(1);
    Ok(((MACS / cost) as usize).clamp(LEAST_SAMPLES, SAMPLES))
}

/// Prunes `weights` on calibration data.
///
/// # Errors
/// Whatever running the graph can raise; interrupted.
pub fn reconstruct(
    g: &mut Graph,
    weights: &[NodeId],
    budget: Budget,
    calibrator: &dyn Calibrator,
    cx: &Context,
) -> Result<Vec<Done>> {
    let dense = g.clone();
    let mut tasks = tasks(g, weights, budget)?;
    let zeros = match budget {
        Budget::Pattern(_) => tasks.iter().map(|t| t.groups.as_ref().map_or(0, Groups::total)).collect(),
        // One element of each stays.
        Budget::Layers(f) => tasks.iter().map(|t| share(f, t.layout.len()).min(t.layout.len() - 1)).collect(),
        Budget::Fraction(fraction) => {
            let all: usize = tasks.iter().map(|t| t.layout.len()).sum();
            let known =
                cx.known(&dense, format!("curves of {weights:?}"), || curves(&dense, &mut tasks, calibrator, cx))?;
            let Curves { each, obstacles } = &*known;
            for (task, why) in tasks.iter_mut().zip(obstacles).filter_map(|(task, why)| Some((task, why.clone()?))) {
                task.inputs = Err(why);
            }
            allocate(each, share(fraction, all))
        }
    };
    let mut done = vec![];
    let all = tasks.len();
    for (i, (mut task, zeros)) in tasks.into_iter().zip(zeros).enumerate() {
        (cx.progress)("solve", i, all);
        prune(g, &dense, &mut task, &Goal::Zeros(zeros), calibrator, cx)?;
        let by_magnitude = task.inputs.err();
        done.push(Done { weight: task.weight, zeros, elements: task.layout.len(), by_magnitude });
    }
    (cx.progress)("solve", all, all);
    Ok(done)
}

/// Solves for what `keep` leaves of weights of `g`, so that layers answer as those of `dense` do.
///
/// # Errors
/// Whatever running the graphs can raise; interrupted.
pub fn resolve(
    g: &mut Graph,
    dense: &Graph,
    keep: &BTreeMap<NodeId, Vec<bool>>,
    calibrator: &dyn Calibrator,
    cx: &Context,
) -> Result<()> {
    let weights: Vec<NodeId> = keep.keys().copied().collect();
    let tasks = tasks(g, &weights, Budget::Fraction(0.0))?;
    let all = tasks.len();
    for (i, mut task) in tasks.into_iter().enumerate() {
        (cx.progress)("solve", i, all);
        let goal = Goal::Keep(task.layout.matrix(&keep[&task.weight]));
        prune(g, dense, &mut task, &goal, calibrator, cx)?;
    }
    (cx.progress)("solve", all, all);
    Ok(())
}

/// What it costs, in parts of the energy of a layer's output, to do without sets of its input channels, one after the
/// other: of each weight for which there are such sets.
///
/// # Errors
/// Whatever running the graph can raise; interrupted.
pub(crate) fn channel_costs(
    g: &Graph,
    sets: &BTreeMap<NodeId, Vec<Vec<usize>>>,
    calibrator: &dyn Calibrator,
    cx: &Context,
) -> Result<BTreeMap<NodeId, Vec<f64>>> {
    let weights: Vec<NodeId> = sets.keys().copied().collect();
    let mut costs = BTreeMap::new();
    each_problem(g, &mut tasks(g, &weights, Budget::Fraction(0.0))?, calibrator, cx, &mut |task, weight, problem| {
        let taps = task.layout.taps;
        let columns = |set: &Vec<usize>| set.iter().flat_map(|c| c * taps..(c + 1) * taps).collect();
        let sets: Vec<Vec<usize>> = sets[&task.weight].iter().map(columns).collect();
        let of = match problem {
            Some((problem, energy)) => {
                let of = if task.layout.columns() > MOST_TOGETHER {
                    let each = weight.len() / problem.parts.len();
                    let parts = problem.parts.iter().zip(weight.chunks(each)).map(|(p, w)| p.alone(w, &sets));
                    parts.reduce(|a, b| a.iter().zip(b).map(|(a, b)| a + b).collect()).unwrap_or_default()
                } else {
                    problem.leave(&sets)?
                };
                of.into_iter().map(|cost| cost / energy).collect()
            }
            None => {
                let square = |set: &Vec<usize>| -> f64 {
                    weight.chunks(task.layout.columns()).flat_map(|row| set.iter().map(|c| row[*c] * row[*c])).sum()
                };
                let all: f64 = weight.iter().map(|w| w * w).sum();
                sets.iter().map(|set| square(set) / all.max(f64::MIN_POSITIVE)).collect()
            }
        };
        costs.insert(task.weight, of);
        Ok(())
    })?;
    Ok(costs)
}

fn share(fraction: f64, of: usize) -> usize {
    (fraction * of as f64).round() as usize
}

/// The weights in the order in which they are read first.
fn tasks(g: &Graph, weights: &[NodeId], budget: Budget) -> Result<Vec<Task>> {
    let mut tasks: Vec<Task> = vec![];
    for l in layers(g)?.into_iter().filter(|l| weights.contains(&l.weight)) {
        if let Some(task) = tasks.iter_mut().find(|t| t.weight == l.weight) {
            // One weight, several inputs: each reader is to answer as it would have.
            (task.bias, task.answered) = (None, false);
            task.users.push(l);
            continue;
        }
        let Some(layout) = WeightMatrix::of(g, &l) else { continue };
        let groups = match budget {
            Budget::Fraction(_) | Budget::Layers(_) => None,
            Budget::Pattern(p) => layout.groups(p).map(|of| Groups { zeros: p.zeros, of }),
        };
        let (inputs, bias) = (inputs(g, &l, layout), bias(g, &l, layout));
        let answered = bias.is_some() || is_plain(g, &l);
        tasks.push(Task { weight: l.weight, users: vec![l], layout, inputs, bias, answered, groups });
    }
    Ok(tasks)
}

fn inputs(g: &Graph, l: &Layer, layout: WeightMatrix) -> Result<Inputs, String> {
    if layout.columns() > MOST_INPUTS {
        return Err(format!("it has {} inputs, more than {MOST_INPUTS}", layout.columns()));
    }
    Inputs::of(g, l, layout).ok_or_else(|| "its input is transposed".into())
}

/// Whether a layer is its weight times its inputs, and nothing else.
fn is_plain(g: &Graph, l: &Layer) -> bool {
    let scaled = matches!(g.op(l.node), Op::Gemm(Gemm { alpha, .. }) if *alpha != 1.0);
    !scaled && l.axes.bias.is_none_or(|slot| g.operand(l.node, slot).is_none())
}

/// The bias of a layer, where it may be changed.
fn bias(g: &Graph, l: &Layer, layout: WeightMatrix) -> Option<NodeId> {
    let port = g.operand(l.node, l.axes.bias?)?;
    let scaled = matches!(g.op(l.node), Op::Gemm(Gemm { alpha, beta, .. }) if *alpha != 1.0 || *beta != 1.0);
    let tensor = g.constant(port)?;
    // What has one column is added to rows.
    let a_row = tensor.len() == layout.rows && tensor.shape().last() == Some(&layout.rows);
    let sound = a_row && !scaled && g.only_use(port).is_some() && tensor.is_finite() == Some(true);
    sound.then_some(port.node)
}

/// The errors that each weight would have at how many zeros, in parts of its output's energy.
struct Curves {
    each: Vec<Vec<(usize, f64)>>,
    /// Why the inputs of a weight tell nothing, where they don't.
    obstacles: Vec<Option<String>>,
}

fn curves(dense: &Graph, tasks: &mut [Task], calibrator: &dyn Calibrator, cx: &Context) -> Result<Curves> {
    let mut each = vec![];
    each_problem(dense, tasks, calibrator, cx, &mut |_, weight, problem| {
        each.push(match problem {
            Some((p, energy)) => p.curve()?.into_iter().map(|(zeros, error)| (zeros, error / energy)).collect(),
            None => by_magnitude(weight),
        });
        Ok(())
    })?;
    Ok(Curves { each, obstacles: tasks.iter().map(|task| task.inputs.as_ref().err().cloned()).collect() })
}

/// What to do with a weight, its matrix, and what there is to solve for it: the problem and the energy of its output.
type Solving<'a> = dyn FnMut(&Task, &[f64], Option<(Problem, f64)>) -> Result<()> + 'a;

/// Gathers what layers of `dense` read, as many at a time as memory allows, and hands on, weight by weight, what there is to
/// solve.
fn each_problem(
    dense: &Graph,
    tasks: &mut [Task],
    calibrator: &dyn Calibrator,
    cx: &Context,
    with: &mut Solving,
) -> Result<()> {
    let bytes = |t: &Task| t.inputs.as_ref().map_or(0, |i| i.groups() * t.layout.columns().pow(2) * size_of::<f64>());
    let all = tasks.len();
    (cx.progress)("weigh", 0, all);
    let mut rest = tasks;
    while !rest.is_empty() {
        let mut total = 0;
        let fits = |t: &&Task| {
            total += bytes(t);
            total <= MOMENTS_BYTES
        };
        let (now, later) = rest.split_at_mut(rest.iter().take_while(fits).count().max(1));
        rest = later;
        let moments = gather(dense, None, now, calibrator)?;
        let before = all - rest.len() - now.len();
        for (i, (task, moments)) in now.iter_mut().zip(moments).enumerate() {
            if before + i > 0 {
                (cx.progress)("weigh", before + i, all);
            }
            let weight = matrix(dense, task);
            let problem = problem(task, &moments, &weight, Bias::Free, cx);
            with(task, &weight, problem)?;
        }
    }
    (cx.progress)("weigh", all, all);
    Ok(())
}

/// The curve of a weight whose inputs are not known: as if they were noise.
fn by_magnitude(weight: &[f64]) -> Vec<(usize, f64)> {
    let mut squares: Vec<f64> = weight.iter().map(|v| v * v).collect();
    squares.sort_by(f64::total_cmp);
    let energy: f64 = squares.iter().sum::<f64>().max(f64::MIN_POSITIVE);
    let step = squares.len().div_ceil(64);
    let mut lost = 0.0;
    let mut curve = vec![];
    // All but the last, which stays.
    for (i, square) in squares.iter().enumerate().take(squares.len().saturating_sub(1)) {
        lost += square / energy;
        if i % step == 0 || i + 2 == squares.len() {
            curve.push((i + 1, lost));
        }
    }
    curve
}

/// What the readers of each weight read in `pruned`, or in the dense model, together with what they answer there.
fn gather(
    dense: &Graph,
    pruned: Option<&Graph>,
    tasks: &[Task],
    calibrator: &dyn Calibrator,
) -> Result<Vec<Vec<Moments>>> {
    let read = pruned.unwrap_or(dense);
    let known: Vec<(usize, &Inputs, Port)> = (tasks.iter().enumerate())
        .filter_map(|(i, t)| t.inputs.as_ref().ok().map(|inputs| (i, inputs, t)))
        .flat_map(|(i, inputs, t)| t.users.iter().filter_map(move |l| Some((i, inputs, read.operand(l.node, 0)?))))
        .collect();
    let mut moments: Vec<Vec<Moments>> =
        tasks.iter().map(|t| t.inputs.as_ref().map(Moments::none).unwrap_or_default()).collect();
    if known.is_empty() {
        return Ok(moments);
    }
    let read = only(read, &known.iter().map(|k| k.2).collect::<Vec<_>>());
    let answers = pruned.filter(|_| tasks.iter().any(|t| t.answered));
    let answered = answers.map(|_| only(dense, &tasks.iter().map(|t| t.users[0].node.into()).collect::<Vec<_>>()));
    let read = verify(&read)?;
    let answered = answered.as_ref().map(verify).transpose()?;
    let graphs: Vec<_> = [Some(&read), answered.as_ref()].into_iter().flatten().collect();
    let samples = calibrator.samples();
    calibrator.run(&graphs, samples, &mut |made| {
        for (x, (i, inputs, _)) in made[0].iter().zip(&known) {
            let y = made.get(1).filter(|_| tasks[*i].answered).map(|y| &y[*i]);
            let layer = tasks[*i].users[0].node;
            observe(inputs, &mut moments[*i], x, y, enough(inputs, samples))
                .map_err(|e| e.at(dense.node(layer).label()))?;
        }
        Ok(())
    })?;
    Ok(moments)
}

fn matrix(g: &Graph, task: &Task) -> Vec<f64> {
    let stored = g.constant(task.weight.into()).and_then(Tensor::as_f32).unwrap_or_default();
    task.layout.matrix(&stored).into_iter().map(f64::from).collect()
}

/// What to solve for a weight, and the energy of its output; `None` where its inputs tell nothing.
fn problem<'a>(
    task: &mut Task,
    moments: &[Moments],
    weight: &[f64],
    bias: Bias,
    cx: &Context<'a>,
) -> Option<(Problem<'a>, f64)> {
    if task.inputs.is_ok() && moments.iter().any(Moments::are_void) {
        task.inputs = Err("its inputs on calibration data are not all numbers".into());
    }
    task.inputs.as_ref().ok()?;
    let bias = match (task.bias, bias) {
        (None, Bias::Wanted) if task.answered => Bias::Answered,
        (None, _) => Bias::Kept,
        (Some(_), bias) => bias,
    };
    let each = weight.len() / moments.len();
    let parts: Vec<_> = moments.iter().zip(weight.chunks(each)).map(|(m, w)| m.rows(w, &bias)).collect();
    let energy: f64 = parts.iter().flat_map(|p| &p.energy).sum();
    Some((Problem { parts, stopped: cx.stopped }, energy.max(f64::MIN_POSITIVE)))
}

/// What is to stay of a weight.
enum Goal {
    /// All but so many elements.
    Zeros(usize),
    /// These elements of its matrix.
    Keep(Vec<bool>),
}

fn prune(
    g: &mut Graph,
    dense: &Graph,
    task: &mut Task,
    goal: &Goal,
    calibrator: &dyn Calibrator,
    cx: &Context,
) -> Result<()> {
    cx.check()?;
    if matches!(goal, Goal::Zeros(0)) {
        return Ok(());
    }
    let moments = gather(dense, Some(g), std::slice::from_ref(task), calibrator)?.remove(0);
    let weight = matrix(g, task);
    let masked = |keep: &[bool]| {
        let values = weight.iter().zip(keep).map(|(v, k)| if *k { *v } else { 0.0 }).collect();
        Sparse { values, error: 0.0 }
    };
    let sparse = match (problem(task, &moments, &weight, Bias::Wanted, cx), goal) {
        (Some((p, _)), Goal::Zeros(zeros)) => p.prune(*zeros, task.groups.as_ref())?,
        (Some((p, _)), Goal::Keep(keep)) => p.solve(keep)?.0,
        (None, Goal::Keep(keep)) => masked(keep),
        (None, Goal::Zeros(zeros)) => {
            let squares: Vec<f64> = weight.iter().map(|v| v * v).collect();
            masked(&lowest(&squares, *zeros, task.groups.as_ref()))
        }
    };
    if let (Some(bias), Ok(_)) = (task.bias, &task.inputs) {
        let each = weight.len() / moments.len();
        let values: Vec<f32> = moments.iter().zip(sparse.values.chunks(each)).flat_map(|(m, w)| m.bias(w)).collect();
        set(g, bias, &values)?;
    }
    let values: Vec<f32> = sparse.values.iter().map(|v| *v as f32).collect();
    set(g, task.weight, &task.layout.stored(&values))
}

fn set(g: &mut Graph, constant: NodeId, values: &[f32]) -> Result<()> {
    let old = g.constant(constant.into()).ok_or_else(|| Error::bug("a weight is not a constant any more"))?;
    let new = Tensor::f32(old.shape(), values);
    g.set_constant(constant, new);
    Ok(())
}

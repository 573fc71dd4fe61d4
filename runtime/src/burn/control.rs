//! Control flow: runs the graphs inside If, Loop and Scan.

use super::{
    exec::{Executable, Sink},
    host::IntArray,
    kernels::{self, Args},
    tensor::Value,
};
use crate::{cpu::Spent, device::Device, memory};
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    op::{Op, Operator},
    ops::{
        concat::Concat,
        control::{Loop, Scan},
        flex_attention::FlexAttention,
    },
    tensor::{DType, Tensor},
    value,
    verify::{Verified, verify},
    words::option::CHECK,
};

/// What runs a graph inside of an operator.
pub(crate) enum Body {
    Burn(Box<Executable>),
    Other(Box<dyn Branch>),
}

/// What may run a branch of an If in Burn's place.
pub(crate) trait Branch: Send + Sync {
    /// Runs it on inputs that are what inference says of them; `spent` is told how long each node took.
    ///
    /// # Errors
    /// What a kernel raises, naming the node.
    fn run(&self, inputs: &[&Tensor], spent: Option<&mut Vec<Spent>>) -> Result<Vec<Tensor>>;

    /// Whether it reads an input; of another any tensor may be given.
    fn reads(&self, input: usize) -> bool;
}

/// Makes what runs a branch, where there is something better than Burn.
pub(crate) type Branches<'a> = dyn Fn(&Verified) -> Result<Option<Box<dyn Branch>>> + 'a;

/// Repetitions of all loops of one run together: a loop that never ends must.
const MAX_TRIPS: u64 = 1_000_000;

/// One run of a graph, with all that run inside it.
pub struct Run<'a, 'b> {
    /// What loops repeated so far.
    trips: u64,
    /// What watched values are shown to.
    pub sink: &'a mut Sink<'b>,
}

impl<'a, 'b> Run<'a, 'b> {
    /// A run that begins.
    pub fn new(sink: &'a mut Sink<'b>) -> Self {
        Self { trips: 0, sink }
    }

    /// # Errors
    /// Limit, when there were too many.
    fn count(&mut self) -> Result<()> {
        self.check(1)?;
        self.trips += 1;
        Ok(())
    }

    /// # Errors
    /// Limit, when `more` would be too many.
    fn check(&self, more: u64) -> Result<()> {
        if self.trips.saturating_add(more) > MAX_TRIPS {
            return Err(Error::limit(format!("its loops repeat more than {MAX_TRIPS} times"))
                .help(format!("if they do end, {CHECK} none compresses the model without running it")));
        }
        Ok(())
    }
}

/// The graphs inside `op`, made ready to run. `branches` may run those of an If, whose inputs may be constants: those that
/// `constant` has of the slots of `op`.
///
/// # Errors
/// As [`Executable::new`], naming the node inside; what `branches` raises.
pub fn prepare(
    op: &Op,
    constant: &dyn Fn(usize) -> Option<Tensor>,
    device: &Device,
    branches: &Branches,
) -> Result<Vec<Body>> {
    let one = |graph: &Graph| {
        // Repetitions of loops are counted over the whole run, which what runs a branch does not see.
        let repeats = |g: &Graph| g.operators().any(|n| matches!(g.op(n), Op::Loop(_) | Op::Scan(_)));
        let other = match op {
            Op::If(_) if !graph.and_bodies().into_iter().any(repeats) => {
                let mut own = graph.clone();
                for (i, input) in graph.inputs().iter().enumerate() {
                    // The first operand is the condition.
                    if let Some(t) = constant(1 + i) {
                        let t = own.add_constant(&graph.value((*input).into()).name, t);
                        own.redirect((*input).into(), t.into(), &[]);
                    }
                }
                branches(&verify(&own)?)?
            }
            _ => None,
        };
        Ok(match other {
            Some(other) => Body::Other(other),
            None => Body::Burn(Box::new(Executable::new(&verify(graph)?, device)?)),
        })
    };
    op.bodies().into_iter().map(|b| one(b.graph())).collect()
}

/// Runs an operator with `bodies`; `spent` is told how long each node took of what runs a branch in Burn's place.
///
/// # Errors
/// What the bodies raise; malformed when a condition is none.
pub fn eval(
    op: &Op,
    bodies: &[Body],
    args: Vec<Option<Value>>,
    device: &Device,
    run: &mut Run,
    spent: Option<&mut Vec<Spent>>,
) -> Result<Vec<Value>> {
    match (op, bodies) {
        (Op::If(_), [yes, no]) => branch([yes, no], args, device, run, spent),
        (Op::Loop(op), [Body::Burn(body)]) => repeat(op, body, args, run),
        (Op::Scan(op), [Body::Burn(body)]) => scan(op, body, args, run),
        (Op::FlexAttention(op), bodies) => flex_attention(op, bodies, args, device, run),
        _ => Err(Error::bug(format!("{} has {} bodies", op.op_type(), bodies.len()))),
    }
}

fn flex_attention(
    op: &FlexAttention,
    bodies: &[Body],
    mut args: Vec<Option<Value>>,
    device: &Device,
    run: &mut Run,
) -> Result<Vec<Value>> {
    let captured = given(args.split_off(args.len().min(3)).into_iter())?;
    // There may be but one of the two.
    let body = |stage: usize| if op.score_mod.is_some() { bodies.get(stage) } else { bodies.first() };
    kernels::flex_attention(op, Args::new(args, device), &mut |stage, x| {
        let Some(Body::Burn(body)) = body(stage) else {
            return Err(Error::bug("a graph of FlexAttention is missing"));
        };
        let inputs = std::iter::once(x).chain(captured.iter().cloned()).collect();
        body.run_body(inputs, run)?.pop().ok_or_else(|| Error::bug("a body without outputs"))
    })
}

fn given(values: impl Iterator<Item = Option<Value>>) -> Result<Vec<Value>> {
    values.map(|v| v.ok_or_else(|| Error::malformed("an input is missing"))).collect()
}

/// The truth in a tensor of one element.
fn holds(v: Value) -> Result<bool> {
    match v.into_ints()?.data[..] {
        [v] => Ok(v != 0),
        _ => Err(Error::malformed("a condition has not one element")),
    }
}

fn branch(
    [yes, no]: [&Body; 2],
    args: Vec<Option<Value>>,
    device: &Device,
    run: &mut Run,
    spent: Option<&mut Vec<Spent>>,
) -> Result<Vec<Value>> {
    let mut args = given(args.into_iter())?.into_iter();
    let condition = args.next().ok_or_else(|| Error::malformed("an If without condition"))?;
    match if holds(condition)? { yes } else { no } {
        Body::Burn(body) => body.run_body(args.collect(), run),
        Body::Other(body) => {
            let unread = || Tensor::f32(&[0], &[]);
            let args = args.enumerate().map(|(i, v)| if body.reads(i) { v.download() } else { Ok(unread()) });
            let args = args.collect::<Result<Vec<_>>>()?;
            let made = body.run(&args.iter().collect::<Vec<_>>(), spent)?;
            made.iter().map(|t| Value::input(t, device)).collect()
        }
    }
}

/// Whether a loop goes on whatever its body computes: the condition is handed on, or always true.
fn goes_on(body: &Graph) -> bool {
    let Some(output) = body.outputs().first() else { return false };
    let mut port = output.port;
    while let (Op::Identity(_), [Some(operand)]) = (body.op(port.node), &body.operands(port.node)[..]) {
        port = *operand;
    }
    body.inputs().get(1) == Some(&port.node)
        || body.constant(port).is_some_and(|t| t.as_i64().is_some_and(|v| v == [1]))
}

fn repeat(op: &Loop, body: &Executable, args: Vec<Option<Value>>, run: &mut Run) -> Result<Vec<Value>> {
    let (states, captures) = (op.states(), op.body.captures());
    let mut args = args.into_iter();
    let most = match args.next().flatten() {
        None => i64::MAX,
        Some(v) => match v.into_ints()?.data[..] {
            [n] => n,
            _ => return Err(Error::malformed("the trip count has not one element")),
        },
    };
    let mut go = args.next().flatten().map_or(Ok(true), holds)?;
    let mut state = given(args)?;
    let captured = state.split_off(state.len().checked_sub(captures).unwrap_or(states));
    if go && most > 0 && goes_on(op.body.graph()) {
        // Known before any work is done.
        run.check(most as u64)?;
    }
    let mut rows = Rows::default();
    // Some exporters declare the number of the repetition and the condition as lists of one element.
    let shape = |input: usize| body.rank(input).filter(|rank| *rank == 1).map_or(vec![], |_| vec![1]);
    let single = |dtype, input, v| Value::Int(IntArray::new(dtype, shape(input), vec![v]));
    let mut i = 0;
    while go && i < most {
        run.count()?;
        let mut inputs = vec![single(DType::I64, 0, i), single(DType::Bool, 1, 1)];
        inputs.append(&mut state);
        inputs.extend(captured.iter().cloned());
        let mut made = body.run_body(inputs, run)?.into_iter();
        go = holds(made.next().ok_or_else(|| Error::malformed("a body without outputs"))?)?;
        state.extend(made.by_ref().take(states));
        rows.add(made)?;
        i += 1;
    }
    if i == 0 && body.results().len() > 1 + states {
        // Nothing was made, so only inference can say how each row would have looked.
        for fact in &body.results()[1 + states..] {
            let shape: Option<Vec<usize>> = fact
                .dims()
                .and_then(|d| d.iter().map(|d| d.known().map_or(Some(0), |n| usize::try_from(n).ok())).collect());
            let (Some(dtype), Some(mut shape)) = (fact.dtype, shape) else {
                return Err(Error::unsupported("a Loop that never runs and whose results have no known type"));
            };
            shape.insert(0, 0);
            state.push(kernels::empty_value(dtype, &shape, body.device())?);
        }
        return Ok(state);
    }
    for row in rows.values {
        state.push(stack(row, 0, body.device())?);
    }
    Ok(state)
}

/// What a loop gathers, a list for each output.
#[derive(Default)]
struct Rows {
    values: Vec<Vec<Value>>,
    bytes: usize,
    /// The bytes for which memory was last asked for.
    asked: usize,
}

impl Rows {
    /// Bytes that any value takes, without its elements.
    const VALUE: usize = 512;
    /// After so many more bytes it is asked whether there is memory.
    const STEP: usize = 64 << 20;

    /// Adds one value to each list.
    ///
    /// # Errors
    /// Limit, when memory runs out.
    fn add(&mut self, made: impl Iterator<Item = Value>) -> Result<()> {
        for (i, value) in made.enumerate() {
            let wide = matches!(value, Value::Int(_)) || value.dtype() == DType::F64;
            let elements: usize = value.shape().iter().product();
            self.bytes += Self::VALUE + elements * if wide { 8 } else { 4 };
            if self.values.len() <= i {
                self.values.push(vec![]);
            }
            self.values[i].push(value);
        }
        if self.bytes - self.asked >= Self::STEP {
            self.asked = self.bytes;
            // Joined they take as much again.
            memory::check(self.bytes, || "joining what its repetitions gathered".into())?;
        }
        Ok(())
    }
}

/// Joins values along a new axis.
fn stack(values: Vec<Value>, axis: i64, device: &Device) -> Result<Value> {
    let rank = values.first().map_or(0, |v| v.shape().len());
    let axis = value::axis(axis, rank + 1)?;
    let rows = values.into_iter().map(|v| {
        let mut shape = v.shape().to_vec();
        shape.insert(axis, 1);
        v.reshape(&shape).map(Some)
    });
    let args = Args::new(rows.collect::<Result<_>>()?, device);
    one(kernels::eval(&Concat { axis: axis as i64 }.into(), args)?)
}

fn one(values: Vec<Value>) -> Result<Value> {
    values.into_iter().next().ok_or_else(|| Error::bug("a kernel made nothing"))
}

fn scan(op: &Scan, body: &Executable, args: Vec<Option<Value>>, run: &mut Run) -> Result<Vec<Value>> {
    let mut state = given(args.into_iter())?;
    let captured = state.split_off(op.states() + op.sequences);
    let sequences = state.split_off(op.states());
    let axes = sequences
        .iter()
        .enumerate()
        .map(|(i, s)| value::axis(op.input_axes.get(i).copied().unwrap_or(0), s.shape().len()));
    let axes = axes.collect::<Result<Vec<_>>>()?;
    let lengths: Vec<usize> = sequences.iter().zip(&axes).map(|(s, a)| s.shape()[*a]).collect();
    let length = lengths.first().copied().unwrap_or(0);
    if lengths.iter().any(|l| *l != length) {
        return Err(Error::malformed(format!("its sequences have the lengths {lengths:?}")));
    }
    let reversed = |directions: &[i64], i: usize| directions.get(i) == Some(&1);
    let mut rows = Rows::default();
    for step in 0..length {
        run.count()?;
        let mut inputs = std::mem::take(&mut state);
        for (i, (sequence, axis)) in sequences.iter().zip(&axes).enumerate() {
            let at = if reversed(&op.input_directions, i) { length - 1 - step } else { step };
            inputs.push(sequence.clone().entry(*axis, at)?);
        }
        inputs.extend(captured.iter().cloned());
        let mut made = body.run_body(inputs, run)?.into_iter();
        state.extend(made.by_ref().take(op.states()));
        rows.add(made)?;
    }
    if length == 0 && body.results().len() > op.states() {
        return Err(Error::unsupported("a Scan of an empty sequence"));
    }
    for (i, mut row) in rows.values.into_iter().enumerate() {
        if reversed(&op.output_directions, i) {
            row.reverse();
        }
        state.push(stack(row, op.output_axes.get(i).copied().unwrap_or(0), body.device())?);
    }
    Ok(state)
}

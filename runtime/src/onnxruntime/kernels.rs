//! The kernels that ONNX Runtime ran: its optimised graph, with the time that its profiler saw for each node.

use super::{
    Provider, Session, library,
    session::{commit, configured, unset},
};
use crate::bench::Pace;
use compress_compiler::{
    error::{Error, Kind, Result},
    onnx::{FileNode, Model, listing},
    tensor::Tensor,
};
use serde::{Deserialize, de::IgnoredAny};
use std::{collections::HashMap, fs, io::BufReader, path::Path};

/// The largest profile that is read, in bytes.
const LARGEST: u64 = 256 << 20;
/// Calls of nodes that are looked at, about.
const MOST_CALLS: usize = 200_000;
/// The accuracy_level with which MatMulNBits multiplies in 8-bit integers.
const INTEGERS: i64 = 4;
/// Operators that run graphs inside them.
const OUTER: &[&str] = &["If", "Loop", "Scan"];

/// A node of ONNX Runtime's optimised graph that ran.
#[derive(Debug, Clone)]
pub struct Ran {
    /// The node, as the optimised graph has it.
    pub node: FileNode,
    /// What the profiler calls it: its name, or if it has none, its operator with a number.
    pub label: String,
    /// The element types of the tensors that it read, by ONNX Runtime's names: `float`, `uint8`.
    pub types: Vec<String>,
    /// Milliseconds of a run, but for those of the nodes inside: the mean of the faster half of all runs.
    pub ms: f64,
    /// The nodes of the graphs inside it that ran.
    pub inside: Vec<Ran>,
}

impl Ran {
    /// The kernel's name: the operator, with `nchwc.` before those that work on blocks of channels.
    pub fn kernel(&self) -> String {
        match self.node.domain.strip_prefix("com.microsoft.") {
            Some(domain) => format!("{domain}.{}", self.node.op),
            None => self.node.op.clone(),
        }
    }

    /// Whether it works on 8-bit codes, as the types that it read say; or it rounds floats to codes, and multiplies these. What
    /// rounds to codes, or makes floats of them alone, does not.
    pub fn on_codes(&self) -> bool {
        let code = |t: &&String| matches!(&t[..], "uint8" | "int8");
        let rounds = match &self.node.op[..] {
            "MatMulNBits" => self.node.int("accuracy_level") == Some(INTEGERS),
            op => op.starts_with("DynamicQuantize"),
        };
        !self.converts() && (rounds || self.types.first().filter(code).is_some())
    }

    /// Whether it changes the type or the layout of a value, and computes nothing.
    pub fn converts(&self) -> bool {
        let rounds = matches!(&self.node.op[..], "QuantizeLinear" | "DequantizeLinear" | "DynamicQuantizeLinear");
        rounds || matches!(&self.node.op[..], "ReorderInput" | "ReorderOutput" | "Transpose" | "Cast")
    }
}

/// Runs `models` on `inputs` by turns with ONNX Runtime's profiler, and tells each node of the graphs that it made of them, in
/// their order.
///
/// # Errors
/// As for [`Session::new`](super::Session::new) and [`Session::run`](super::Session::run); interrupted; file when there is no
/// room for the profile.
pub fn ran(models: &[&Model], provider: Provider, inputs: &[Tensor], pace: &Pace) -> Result<Vec<Vec<Ran>>> {
    let no_room = |e: std::io::Error| Error::file(format!("no folder for the profile: {e}"));
    let folder = tempfile::Builder::new().prefix("compress-profile-").tempdir().map_err(no_room)?;
    let graph = |i: usize| folder.path().join(format!("optimised_{i}.onnx"));
    let mut sessions = vec![];
    for (i, model) in models.iter().enumerate() {
        let builder = configured(&library::loaded(None)?.environment, provider)?;
        let builder = builder.with_optimized_model_path(graph(i)).map_err(|e| unset(&e))?;
        let builder = builder.with_profiling(folder.path().join(format!("profile_{i}"))).map_err(|e| unset(&e))?;
        sessions.push(commit(builder, model)?);
    }
    // The profiler keeps no more than a million calls.
    let nodes = models.iter().map(|m| m.graph.operators().count()).max().unwrap_or(1).max(1);
    let pace = Pace { runs: pace.runs.min(MOST_CALLS / nodes).max(2), ..*pace };
    pace.each(sessions.len(), |i| sessions[i].run(inputs).map(drop))?;
    let one = |(i, session): (usize, Session)| {
        let profile = session.end_profile()?;
        let nodes = listing(&graph(i)).map_err(|e| match e.kind() {
            Kind::File => Error::unsupported("ONNX Runtime did not write the graph that it runs"),
            _ => e,
        })?;
        let runs = runs(&profile)?;
        let ran = timed(nodes, &runs.iter().map(|calls| calls.iter().collect()).collect::<Vec<_>>());
        match ran.iter().any(|r| r.ms > 0.0) {
            true => Ok(ran),
            false => Err(Error::unsupported("the profiler of ONNX Runtime saw none of the nodes")),
        }
    };
    sessions.into_iter().enumerate().map(one).collect()
}

/// What the profiler saw of one call of a node.
#[derive(Debug)]
struct Call {
    node: String,
    op: String,
    types: Vec<String>,
    /// When it began, in microseconds.
    began: f64,
    /// Milliseconds.
    ms: f64,
    /// The calls of nodes of the graphs inside it.
    inside: Vec<Call>,
}

/// An event of the profile, as far as it is read.
#[derive(Deserialize)]
struct Event {
    name: Option<String>,
    /// When it began, in microseconds.
    ts: Option<f64>,
    /// Microseconds.
    dur: Option<f64>,
    args: Option<Args>,
}

#[derive(Deserialize)]
struct Args {
    op_name: Option<String>,
    /// For each tensor that was read its type, with its sizes.
    input_type_shape: Option<Vec<HashMap<String, IgnoredAny>>>,
}

/// The calls of each run of the outermost graph.
fn runs(path: &Path) -> Result<Vec<Vec<Call>>> {
    let unread = |why: &dyn std::fmt::Display| Error::file(format!("the profile of ONNX Runtime: {why}"));
    if fs::metadata(path).map_err(|e| unread(&e))?.len() > LARGEST {
        return Err(Error::limit(
            "the profile of ONNX Runtime is too large: the model has too many nodes, or loops too often",
        ));
    }
    let file = BufReader::new(fs::File::open(path).map_err(|e| unread(&e))?);
    let events: Vec<Event> = serde_json::from_reader(file).map_err(|e| unread(&e))?;
    Ok(by_run(events))
}

/// The calls of each run. An event stands where it ended: those of a run before it, those inside a node before its own.
fn by_run(events: Vec<Event>) -> Vec<Vec<Call>> {
    let (mut runs, mut open) = (vec![], vec![]);
    for event in events {
        if event.name.as_deref() == Some("model_run") {
            runs.push(std::mem::take(&mut open));
        } else if let Some(mut call) = call(event) {
            if OUTER.contains(&&call.op[..]) {
                let first = open.iter().rposition(|c: &Call| c.began < call.began).map_or(0, |last| last + 1);
                call.inside = open.split_off(first);
            }
            open.push(call);
        }
    }
    runs
}

fn call(event: Event) -> Option<Call> {
    let args = event.args?;
    let types = args.input_type_shape.into_iter().flatten().filter_map(|one| one.into_keys().next()).collect();
    let node = event.name?.strip_suffix("_kernel_time")?.to_string();
    Some(Call { node, op: args.op_name?, types, began: event.ts?, ms: event.dur? / 1e3, inside: vec![] })
}

/// The nodes with the calls of all runs that are theirs.
fn timed(nodes: Vec<FileNode>, runs: &[Vec<&Call>]) -> Vec<Ran> {
    let own = own(&nodes, runs);
    let one = |(mut node, runs): (FileNode, Vec<Vec<&Call>>)| {
        let inner = |c: &&Call| c.inside.iter().map(|c| c.ms).sum::<f64>();
        let mut times: Vec<f64> = runs.iter().map(|calls| calls.iter().map(|c| c.ms - inner(c)).sum()).collect();
        times.sort_by(f64::total_cmp);
        let faster = &times[..times.len().div_ceil(2)];
        let ms = faster.iter().sum::<f64>() / faster.len().max(1) as f64;
        let within: Vec<Vec<&Call>> = runs.iter().map(|calls| calls.iter().flat_map(|c| &c.inside).collect()).collect();
        let mut inside = timed(std::mem::take(&mut node.inside), &within);
        inside.retain(|ran| !ran.label.is_empty());
        let (label, types) = match runs.iter().flatten().next() {
            Some(call) => (call.node.clone(), call.types.clone()),
            None => Default::default(),
        };
        Ran { node, label, types, ms, inside }
    };
    nodes.into_iter().zip(own).map(one).collect()
}

/// For each node its calls in each run. Nodes that share a name and an operator are called in their order.
fn own<'a>(nodes: &[FileNode], runs: &[Vec<&'a Call>]) -> Vec<Vec<Vec<&'a Call>>> {
    let mut places: HashMap<(&str, &str), Vec<usize>> = HashMap::new();
    for (i, n) in nodes.iter().enumerate() {
        places.entry((&n.name, &n.op)).or_default().push(i);
    }
    let mut own = vec![vec![vec![]; runs.len()]; nodes.len()];
    // The profiler makes a name for a node that has none, the same in every run.
    let mut made_up: HashMap<&str, HashMap<&str, usize>> = HashMap::new();
    for (run, calls) in runs.iter().enumerate() {
        let mut called: HashMap<(&str, &str), usize> = HashMap::new();
        for call in calls {
            let (name, op) = (&call.node[..], &call.op[..]);
            let (places, place) = match places.get(&(name, op)) {
                Some(places) => {
                    let count = called.entry((name, op)).or_default();
                    *count += 1;
                    (places, (*count - 1) % places.len())
                }
                None => {
                    let Some(places) = places.get(&("", op)) else { continue };
                    let names = made_up.entry(op).or_default();
                    let next = names.len();
                    (places, *names.entry(name).or_insert(next))
                }
            };
            if let Some(node) = places.get(place) {
                own[*node][run].push(*call);
            }
        }
    }
    own
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, op: &str, inside: Vec<FileNode>) -> FileNode {
        let (name, op) = (name.into(), op.into());
        FileNode { name, op, domain: String::new(), inputs: vec![], outputs: vec![], ints: vec![], inside }
    }

    fn event(name: &str, op: &str, began: f64, dur: f64) -> Event {
        let args = Args { op_name: Some(op.into()), input_type_shape: None };
        Event { name: Some(format!("{name}_kernel_time")), ts: Some(began), dur: Some(dur), args: Some(args) }
    }

    /// Two runs of a graph with a loop, which turns twice: no node has a name.
    #[test]
    fn nodes_inside_a_loop_have_their_own_time() {
        let mut events = vec![];
        for start in [0.0, 10_000.0] {
            events.push(event("Add_0", "Add", start, 1000.0));
            for turn in [2000.0, 3000.0] {
                events.push(event("Add_0", "Add", start + turn, 100.0));
                events.push(event("Add_1", "Add", start + turn + 100.0, 200.0));
            }
            events.push(event("Loop_1", "Loop", start + 1000.0, 4000.0));
            events.push(event("Add_2", "Add", start + 6000.0, 3000.0));
            events.push(Event { name: Some("model_run".into()), ts: None, dur: None, args: None });
        }
        // A run that the profiler did not see the end of.
        events.push(event("Add_0", "Add", 30_000.0, 9000.0));
        let add = || node("", "Add", vec![]);
        let runs = by_run(events);
        let runs: Vec<Vec<&Call>> = runs.iter().map(|calls| calls.iter().collect()).collect();
        let ran = timed(vec![add(), node("", "Loop", vec![add(), add(), node("", "Mul", vec![])]), add()], &runs);
        let told = |ran: &[Ran]| ran.iter().map(|r| (r.label.clone(), (r.ms * 1e3).round())).collect::<Vec<_>>();
        let named = |name: &str, us: f64| (name.to_string(), us);
        assert_eq!(told(&ran), [named("Add_0", 1000.0), named("Loop_1", 3400.0), named("Add_2", 3000.0)]);
        assert_eq!(
            told(&ran[1].inside),
            [named("Add_0", 200.0), named("Add_1", 400.0)],
            "and what never ran is not told"
        );
    }

    #[test]
    fn nodes_of_one_name_are_called_in_their_order() {
        let run = || Event { name: Some("model_run".into()), ts: None, dur: None, args: None };
        let events = vec![event("a", "Relu", 0.0, 1.0), event("a", "Relu", 1.0, 2.0), run()];
        let runs = by_run(events);
        let runs: Vec<Vec<&Call>> = runs.iter().map(|calls| calls.iter().collect()).collect();
        let ran = timed(vec![node("a", "Relu", vec![]), node("a", "Relu", vec![])], &runs);
        assert_eq!(ran.iter().map(|r| r.ms * 1e3).collect::<Vec<_>>(), [1.0, 2.0]);
    }
}

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
use std::{
    collections::{HashMap, HashSet},
    fs,
    io::BufReader,
    path::Path,
};

/// The largest profile that is read, in bytes.
const LARGEST: u64 = 256 << 20;
/// Calls of nodes that are looked at, about.
const MOST_CALLS: usize = 200_000;

/// A node of ONNX Runtime's optimised graph that ran.
#[derive(Debug, Clone)]
pub struct Ran {
    /// The node, as the optimised graph has it.
    pub node: FileNode,
    /// The element types of the tensors that it read, by ONNX Runtime's names: `float`, `uint8`.
    pub types: Vec<String>,
    /// Milliseconds of a run: the mean of the faster half of all runs.
    pub ms: f64,
}

impl Ran {
    /// The kernel's name: the operator, with `nchwc.` before those that work on blocks of channels.
    pub fn kernel(&self) -> String {
        match self.node.domain.strip_prefix("com.microsoft.") {
            Some(domain) => format!("{domain}.{}", self.node.op),
            None => self.node.op.clone(),
        }
    }

    /// Whether it works on 8-bit codes, as the types that it read say. What rounds to codes, or makes floats of them alone,
    /// does not.
    pub fn on_codes(&self) -> bool {
        let code = |t: &&String| matches!(&t[..], "uint8" | "int8");
        !self.converts() && (self.types.first().filter(code).is_some() || self.node.op.starts_with("DynamicQuantize"))
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
        let ran = timed(nodes, &events(&profile)?);
        match ran.iter().any(|r| r.ms > 0.0) {
            true => Ok(ran),
            false => Err(Error::unsupported("the profiler of ONNX Runtime saw none of the nodes")),
        }
    };
    sessions.into_iter().enumerate().map(one).collect()
}

/// What the profiler saw of one call of a node.
struct Call {
    node: String,
    op: String,
    types: Vec<String>,
    ms: f64,
}

/// An event of the profile, as far as it is read.
#[derive(Deserialize)]
struct Event {
    name: Option<String>,
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

fn events(path: &Path) -> Result<Vec<Call>> {
    let unread = |why: &dyn std::fmt::Display| Error::file(format!("the profile of ONNX Runtime: {why}"));
    if fs::metadata(path).map_err(|e| unread(&e))?.len() > LARGEST {
        return Err(Error::limit(
            "the profile of ONNX Runtime is too large: the model has too many nodes, or loops too often",
        ));
    }
    let file = BufReader::new(fs::File::open(path).map_err(|e| unread(&e))?);
    let events: Vec<Event> = serde_json::from_reader(file).map_err(|e| unread(&e))?;
    Ok(events.into_iter().filter_map(call).collect())
}

fn call(event: Event) -> Option<Call> {
    let args = event.args?;
    let types = args.input_type_shape.into_iter().flatten().filter_map(|one| one.into_keys().next()).collect();
    let node = event.name?.strip_suffix("_kernel_time")?.to_string();
    Some(Call { node, op: args.op_name?, types, ms: event.dur? / 1e3 })
}

/// The nodes with the calls that are theirs: by name and operator, and those that share both in their order.
fn timed(nodes: Vec<FileNode>, calls: &[Call]) -> Vec<Ran> {
    let names: HashSet<&str> = nodes.iter().map(|n| &n.name[..]).collect();
    let mut called: HashMap<(&str, &str), Vec<&Call>> = HashMap::new();
    for call in calls {
        // The profiler makes a name for a node that has none.
        let name = names.get(&call.node[..]).copied().unwrap_or_default();
        called.entry((name, &call.op)).or_default().push(call);
    }
    let mut alike: HashMap<(&str, &str), Vec<usize>> = HashMap::new();
    for (i, n) in nodes.iter().enumerate() {
        alike.entry((&n.name, &n.op)).or_default().push(i);
    }
    let mut seen: Vec<(Vec<String>, f64)> = vec![(vec![], 0.0); nodes.len()];
    for (key, places) in &alike {
        let Some(calls) = called.get(key) else { continue };
        for (k, place) in places.iter().enumerate() {
            let own: Vec<&Call> = calls.iter().copied().skip(k).step_by(places.len()).collect();
            let mut times: Vec<f64> = own.iter().map(|c| c.ms).collect();
            times.sort_by(f64::total_cmp);
            let faster = &times[..times.len().div_ceil(2)];
            let types = own.first().map(|c| c.types.clone()).unwrap_or_default();
            seen[*place] = (types, faster.iter().sum::<f64>() / faster.len().max(1) as f64);
        }
    }
    nodes.into_iter().zip(seen).map(|(node, (types, ms))| Ran { node, types, ms }).collect()
}

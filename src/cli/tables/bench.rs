//! How fast a model is.

use super::explain::counted_names;
use crate::{Bound, Figures, NodeTime, Profile, RunningGpu, Timed, bench::FAR, shown};
use compress_compiler::words::counted;
use std::collections::BTreeMap;

/// Nodes that are listed; --json has all.
const SLOWEST: usize = 10;

/// The nodes or kernels that take longest, with their share.
fn slowest(nodes: &[NodeTime], name: impl Fn(&NodeTime) -> &str, most: usize) -> Vec<(String, f64, usize)> {
    let mut sums: BTreeMap<&str, (f64, usize)> = BTreeMap::new();
    for n in nodes {
        let sum = sums.entry(name(n)).or_default();
        *sum = (sum.0 + n.ms, sum.1 + 1);
    }
    let mut list: Vec<(String, f64, usize)> = sums.into_iter().map(|(n, (ms, k))| (n.into(), ms, k)).collect();
    list.sort_by(|a, b| b.1.total_cmp(&a.1));
    list.truncate(most);
    list
}

/// How fast a model is, for people.
pub fn figures(f: &Figures) -> String {
    let line = |t: &Timed| {
        format!(
            "median {:.3} ms, p90 {:.3} ms, {:.0} samples/s ({}, {}, {})",
            t.median_ms,
            t.p90_ms,
            t.samples_per_second,
            t.device,
            t.engine,
            counted(t.threads, "thread")
        )
    };
    let asked = f.asked_batch.map_or(String::new(), |asked| format!(" (the device has no memory for {asked})"));
    let mut out = format!("{}: batch {}{asked}, {} runs\n  {}\n", f.model, f.batch, f.runs, line(&f.on));
    if let Some(d) = &f.on.decoding {
        out += &format!(
            "  {} tokens at once: {:.0} tokens/s; then {:.3} ms a token, {:.0} tokens/s, {:.1} GB/s of weights\n",
            d.prompt, d.prompt_tokens_per_second, d.token_ms, d.tokens_per_second, d.weights_gb_per_second
        );
    }
    if let (Some(r), Some(d)) = (&f.reference, f.max_relative_difference) {
        let apart = match d == FAR {
            true => "outputs can't be compared (other sizes or types, or numbers that are not finite)".into(),
            false => format!("outputs differ by {d:.1e} relative"),
        };
        out += &format!("  {}\n  {:.2}x, {apart}\n", line(r), r.median_ms / f.on.median_ms);
    }
    if let Some(p) = &f.profile {
        return out + &profile(p, &f.on.device);
    }
    let all: f64 = f.on.nodes.iter().map(|n| n.ms).sum();
    for (title, list) in [
        ("kernel", slowest(&f.on.nodes, |n| &n.kernel, usize::MAX)),
        ("node", slowest(&f.on.nodes, |n| &n.node, SLOWEST)),
    ] {
        out += &format!("\n  {:>9}  share  calls  {title}\n", "least ms");
        for (name, ms, calls) in list {
            out += &format!("  {ms:>9.4}  {:>4.0}%  {calls:>5}  {name}\n", 100.0 * ms / all);
        }
    }
    out
}

/// Parts of a profile that are listed; --json has all.
const LISTED: usize = 20;
/// Letters of a name.
const NAME: usize = 60;

/// The share of a run below which a GPU waits more than it computes.
const BUSY: f64 = 0.5;

/// What the driver says of a GPU that runs a model again and again.
fn running(gpu: &RunningGpu) -> String {
    let load = &gpu.load;
    let shown = [
        load.busy.map(|busy| format!("busy {:.0}% of the time", 100.0 * busy)),
        load.watts.map(|watts| format!("{watts:.0} W")),
        gpu.joules_per_sample.map(|joules| match joules < 1.0 {
            true => format!("{:.3} mJ a sample", 1e3 * joules),
            false => format!("{joules:.3} J a sample"),
        }),
        load.celsius.map(|degrees| format!("{degrees} °C")),
        load.clock_mhz.zip(load.highest_clock_mhz).map(|(mhz, most)| format!("{mhz:.0} of {most} MHz")),
        load.peak_bytes.zip(load.memory_bytes).map(|(used, all)| {
            format!(
                "{} of {} of its memory in use by all programs",
                shown::bytes(used as usize),
                shown::bytes(all as usize)
            )
        }),
    ];
    let shown: Vec<String> = shown.into_iter().flatten().collect();
    if shown.is_empty() {
        return String::new();
    }
    let slowed = load.slowed().map_or(String::new(), |why| format!("  note: {why}\n"));
    format!("  run after run for {:.1} s, its driver says: {}\n{slowed}", load.seconds, shown.join(", "))
}

/// A profile beside the ceilings of the machine.
fn profile(p: &Profile, device: &str) -> String {
    let c = &p.ceilings;
    let copies: Vec<String> =
        c.copies.iter().map(|copy| format!("{:.1} GB/s of {}", copy.gbs, shown::bytes(copy.bytes))).collect();
    let mut out = format!(
        "\n  ceilings of {}, measured: {:.0} GFLOP/s of floats, {:.0} Gop/s of 8-bit codes (products of matrices)\n  \
         copies: {}\n",
        if p.gpu_busy.is_some() { device } else { "this machine" },
        c.gflops,
        c.int8_gops,
        copies.join(", ")
    );
    out += &c.transfers_gbs.map_or(String::new(), |gbs| format!("  to it and back: {gbs:.1} GB/s\n"));
    let bytes = |n: u64| shown::bytes(n as usize);
    out += &format!("  memory: weights {}, activations {}", bytes(p.weight_bytes), bytes(p.activation_bytes));
    out += &p.process_peak_bytes.map_or("\n".into(), |peak| format!("; the process had {} at most\n", bytes(peak)));
    if let (Some(bytes), Some(busy)) = (p.gpu_bytes, p.gpu_busy) {
        out += &format!(
            "  of its memory {} are held; node by node it computes {:.0}% of a run",
            shown::bytes(bytes as usize),
            100.0 * busy
        );
        out += match busy < BUSY {
            true => ": the rest are launches and the way of inputs and outputs, of which larger batches have fewer\n",
            false => "\n",
        };
    }
    out += &p.gpu.as_ref().map_or(String::new(), running);
    out += &format!("  {:.3} ms in kernels, {:.0}% of what the ceilings allow\n", p.ms, 100.0 * p.of_ceiling);
    out += &format!(
        "\n  {:>9}  share  {:>8}  {:>6}  {:<8}  of it  {:<28}  node\n",
        "ms", "GFLOP/s", "GB/s", "bound by", "kernels"
    );
    for part in p.parts.iter().take(LISTED) {
        let gflops = part.gflops.map_or("-".into(), |g| format!("{g:.1}"));
        let bound = match part.bound {
            _ if part.of_ceiling.is_none() => "-",
            Bound::Compute => "compute",
            Bound::Memory => "memory",
        };
        let of_it = part.of_ceiling.map_or("-".into(), |share| format!("{:.0}%", 100.0 * share));
        let op = if part.op.is_empty() { String::new() } else { format!(" ({})", part.op) };
        out += &format!(
            "  {:>9.4}  {:>4.0}%  {gflops:>8}  {:>6.1}  {bound:<8}  {:>5}  {:<28}  {}{op}\n",
            part.ms,
            100.0 * part.share,
            part.gbs,
            of_it,
            counted_names(&part.kernels),
            shown::shortened(&part.node, NAME)
        );
    }
    if p.parts.len() > LISTED {
        out += &format!("  and {} more parts\n", p.parts.len() - LISTED);
    }
    out += &format!("\n  {:>5}  {:>10}  {:>10}\n", "batch", "median ms", "samples/s");
    for b in &p.batches {
        let best = if b.batch == p.best_batch && p.batches.len() > 1 {
            "  the smallest with about the most samples a second"
        } else {
            ""
        };
        out += &format!("  {:>5}  {:>10.3}  {:>10.0}{best}\n", b.batch, b.median_ms, b.samples_per_second);
    }
    out
}

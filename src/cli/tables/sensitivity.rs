//! How much each layer minds being compressed.

use crate::{SensitivityReport, shown::percent};
use compress_compiler::{
    judge::{Likeness, decibels},
    words::counted,
};
use compress_passes::sensitivity::{ChannelSensitivity, CurvePoint, LayerSensitivity, Left, Without};
use std::fmt::Write as _;

/// Rows of values and of the curve that are listed; --json has all.
const VALUES: usize = 8;
const POINTS: usize = 10;

/// Characters of a name.
const WIDEST: usize = 44;

/// The layers, the noisiest values, and the curve, for people.
pub fn sensitivity(r: &SensitivityReport) -> String {
    let Some(found) = &r.found else {
        let (judged, file) = (r.judged.unwrap_or_default(), r.file.as_deref().unwrap_or_default());
        let graphs = counted(judged, "graph");
        return format!(
            "{}: {graphs} judged\n  written: {file}; `compress merge` makes the figures of all parts\n",
            r.model
        );
    };
    let mut t = format!(
        "{}: signal to noise in dB when one layer alone is changed\n  (of a typical sample of {}, before a last Softmax or Sigmoid)\n",
        r.model, found.samples
    );
    t += &layers(&found.layers, &found.channels);
    if found.inside > 0 {
        let _ = writeln!(t, "  {} inside If, Loop or Scan stay as they are", counted(found.inside, "layer"));
    }
    if !found.values.is_empty() {
        t += "\nnoisiest values in codes, alone\n";
        let _ = writeln!(t, "  {:WIDEST$}{:>12}{:>10}{:>24}", "value", "kind", "dB", "range");
    }
    for v in found.values.iter().take(VALUES) {
        let kind = if v.is_weight { "weight" } else { "activation" };
        let range = format!("{:.3} .. {:.3}", v.range.0, v.range.1);
        let _ = writeln!(t, "  {:WIDEST$}{kind:>12}{:>10}{range:>24}", short(&v.name), cell(Some(&v.left)));
    }
    t += &curve(&found.curve);
    let _ = writeln!(t, "\nplot: {}", r.plot.as_deref().unwrap_or("none"));
    t
}

fn layers(layers: &[LayerSensitivity], channels: &[ChannelSensitivity]) -> String {
    if layers.is_empty() {
        return "  the model has no layers\n".into();
    }
    let all: u64 = layers.iter().map(|l| l.macs).sum();
    let heads = |first: Option<&[Without]>, what: &str| -> Vec<String> {
        first.unwrap_or_default().iter().map(|f| format!("{:.0}% {what}", 100.0 * f.fraction)).collect()
    };
    let zeros = heads(layers.iter().map(|l| &l.zeros[..]).find(|z| !z.is_empty()), "zero");
    let cut = heads(channels.first().map(|c| &c.cut[..]), "cut");
    let head: String = ["INT8".into()].iter().chain(&zeros).chain(&cut).map(|h| format!("{h:>10}")).collect();
    let mut t = format!("  {:WIDEST$}{:>10}{:>9}{head}\n", "layer", "operator", "of MACs");
    for l in layers {
        let cells = |all: &[Without], count: usize| -> String {
            (0..count).map(|i| format!("{:>10}", cell(all.get(i).map(|f| &f.left)))).collect()
        };
        let _ = writeln!(
            t,
            "  {:WIDEST$}{:>10}{:>9}{:>10}{}{}",
            short(&l.node),
            l.op,
            percent(l.macs as f64 / all.max(1) as f64),
            cell(l.int8.as_ref()),
            cells(&l.zeros, zeros.len()),
            cells(l.channels.map_or(&[], |i| &channels[i].cut), cut.len()),
        );
    }
    let shared = channels.iter().filter(|c| c.nodes.len() > 1).count();
    if shared > 0 {
        let _ = writeln!(
            t,
            "  {} of channels are made by several layers, which lose them together",
            counted(shared, "group")
        );
    }
    let mut why: Vec<&str> = layers.iter().filter_map(|l| l.int8_obstacle.as_deref()).collect();
    why.sort();
    why.dedup();
    for why in why {
        let count = layers.iter().filter(|l| l.int8_obstacle.as_deref() == Some(why)).count();
        let _ = writeln!(t, "  not for INT8: {}: {why}", counted(count, "layer"));
    }
    t
}

fn curve(points: &[CurvePoint]) -> String {
    if points.len() < 2 {
        return String::new();
    }
    let mut t = String::from("\nINT8 with layers in floats, those first that make the most noise for what they gain\n");
    let _ = writeln!(
        t,
        "  {:>9}{:>14}{:>13}{:>15}{:>12}  the layer that joins",
        "in floats", "predicted dB", "measured dB", "of outputs dB", "speed-up"
    );
    let step = points.len().div_ceil(POINTS);
    for (i, p) in points.iter().enumerate() {
        if i % step != 0 && p.measured.is_none() && i + 1 < points.len() {
            continue;
        }
        let db = |v: Option<f64>| v.map_or("-".into(), |v| format!("{v:.1}"));
        let predicted =
            if i + 1 == points.len() && p.predicted_db.is_none() { "equal".into() } else { db(p.predicted_db) };
        let _ = writeln!(
            t,
            "  {:>9}{predicted:>14}{:>13}{:>15}{:>12}  {}",
            p.float_layers,
            p.measured.map_or("-".into(), |m| cell(Some(&m))),
            db(p.measured.and_then(|m| m.sqnr_db)),
            format!("{:.2}x", p.predicted_speedup),
            short(p.layer.as_deref().unwrap_or_default()),
        );
    }
    t += "  the speed-up is a prediction for ONNX Runtime, from costs of its operators that were measured once\n";
    t
}

fn cell(left: Option<&Left>) -> String {
    // What lies beyond is not counted.
    let most = decibels(Likeness::LEAST);
    match left.map(|left| (left.lost, left.typical_db)) {
        None => "-".into(),
        Some((true, _)) => "lost".into(),
        Some((_, None)) => "equal".into(),
        Some((_, Some(db))) if db > most - 0.05 => format!(">{most:.0}"),
        Some((_, Some(db))) if db < 0.05 => "<0".into(),
        Some((_, Some(db))) => format!("{db:.1}"),
    }
}

/// The end of a name that is long: names begin alike.
fn short(name: &str) -> String {
    let count = name.chars().count();
    match count < WIDEST {
        true => name.into(),
        false => format!("…{}", name.chars().skip(count + 2 - WIDEST).collect::<String>()),
    }
}

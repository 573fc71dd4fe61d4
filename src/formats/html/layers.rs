//! The layers of a result: the error of each as a plot, and all that is known of each in a table.

use super::chart::{Axis, Chart, Mark, Sign, key};
use crate::{
    report::{LayerFacts, LayerKernel, Report},
    shown::shortened,
};
use compress_compiler::words::counted;
use maud::{Markup, html};

/// The rows of the table take no more bytes than this, so that a page stays small.
const ROOM: usize = 340_000;

/// Dots of the plot. Of more layers, those with the most error have one.
const DOTS: usize = 3000;

/// Longer names lose their middle.
const NAME: usize = 80;

/// Precisions that have a colour of their own; the others share the last.
const SERIES: usize = 4;

/// A column of the table. It is left out where no layer has a value.
struct Column {
    title: &'static str,
    /// What it says, for an engineer who sees it for the first time.
    explains: &'static str,
    value: Value,
}

enum Value {
    Text(fn(&LayerFacts) -> String),
    /// A number with so many decimals.
    Number(fn(&LayerFacts) -> Option<f64>, usize),
    /// A large number, in the unit that suits the largest: the unit alone, then with its prefixes.
    Scaled(fn(&LayerFacts) -> f64, [&'static str; 4]),
}

/// The columns after the position of the layer. What is to be shown of a layer besides is a row here.
const COLUMNS: &[Column] = &[
    Column { title: "Layer", explains: "the name of its node", value: Value::Text(|l| shortened(&l.node, NAME)) },
    Column { title: "Operator", explains: "the operator of ONNX", value: Value::Text(|l| l.op.clone()) },
    Column {
        title: "Precision",
        explains: "the type that its weights are stored in; int8 weights: the codes are widened before they are used",
        value: Value::Text(|l| l.precision.clone()),
    },
    Column {
        title: "Zeros, %",
        explains: "the share of its weights that is zero (sparsity)",
        value: Value::Number(|l| Some(100.0 * l.sparsity), 1),
    },
    Column {
        title: "SQNR, dB",
        explains: "signal to quantisation noise of its output beside the original's: a higher value is better, and 6 dB more mean half the error",
        value: Value::Number(|l| l.sqnr_db, 1),
    },
    Column {
        title: "MACs",
        explains: "multiply-accumulates of one sample",
        value: Value::Scaled(|l| l.macs as f64, ["", "k", "M", "G"]),
    },
    Column {
        title: "Weights",
        explains: "the size of its weights, zeros included",
        value: Value::Scaled(|l| (l.live_bytes + l.dead_bytes) as f64, ["B", "kB", "MB", "GB"]),
    },
    Column {
        title: "Time, µs",
        explains: "how long a run takes for it on our runtime, with what is computed in one go with it; empty where that counts at another layer",
        value: Value::Number(|l| microseconds(&l.kernel), 1),
    },
    Column { title: "Kernel", explains: "what computes it on our runtime", value: Value::Text(|l| name(&l.kernel)) },
    Column {
        title: "Time there, µs",
        explains: "the same on ONNX Runtime, by its profiler",
        value: Value::Number(|l| microseconds(&l.deployed), 1),
    },
    Column {
        title: "Kernel of ONNX Runtime",
        explains: "what computes it there, as the graph has it that ONNX Runtime made of the file",
        value: Value::Text(|l| name(&l.deployed)),
    },
    Column {
        title: "Floats because",
        explains: "why ONNX Runtime multiplies in floats",
        value: Value::Text(|l| l.float_because.clone().unwrap_or_default()),
    },
];

fn microseconds(kernel: &Option<LayerKernel>) -> Option<f64> {
    Some(1e3 * kernel.as_ref()?.ms?)
}

fn name(kernel: &Option<LayerKernel>) -> String {
    kernel.as_ref().map(|k| shortened(&k.kernel, NAME)).unwrap_or_default()
}

/// A column for these layers: its title with the unit, what it says, and the text of a cell.
struct Cells {
    title: String,
    explains: &'static str,
    number: bool,
    text: Box<dyn Fn(&LayerFacts) -> String>,
}

impl Column {
    fn cells(&self, layers: &[LayerFacts]) -> Option<Cells> {
        let cells = |title: String, number, text| Some(Cells { title, explains: self.explains, number, text });
        match self.value {
            Value::Text(of) => {
                layers.iter().any(|l| !of(l).is_empty()).then_some(())?;
                cells(self.title.into(), false, Box::new(of))
            }
            Value::Number(of, decimals) => {
                layers.iter().any(|l| of(l).is_some()).then_some(())?;
                let text = move |l: &LayerFacts| of(l).map_or(String::new(), |v| format!("{v:.decimals$}"));
                cells(self.title.into(), true, Box::new(text))
            }
            Value::Scaled(of, units) => {
                let most = layers.iter().map(of).fold(0.0, f64::max);
                (most > 0.0).then_some(())?;
                let power = ((most.log10() / 3.0) as usize).min(units.len() - 1);
                let unit = 1000f64.powi(power as i32);
                let decimals = if power == 0 { 0 } else { 3 };
                let text = move |l: &LayerFacts| format!("{:.decimals$}", of(l) / unit);
                let title = if units[power].is_empty() {
                    self.title.into()
                } else {
                    format!("{}, {}", self.title, units[power])
                };
                cells(title, true, Box::new(text))
            }
        }
    }
}

/// The plot of the error and the table of the layers; nothing where there are none.
pub fn layers(r: &Report) -> Markup {
    let all = &r.layers;
    if all.is_empty() {
        return html! {};
    }
    let columns: Vec<Cells> = COLUMNS.iter().filter_map(|c| c.cells(all)).collect();
    let rows = rows(all, &columns);
    let hidden = all.len() - rows.len();
    html! {
        (plot(all))
        p.legend { "A layer is an operator with weights. The columns:" }
        ul.legend { @for c in &columns { li { strong { (c.title) } ": " (c.explains) } } }
        @if hidden > 0 {
            p {
                strong { (counted(rows.len(), "layer")) " of " (all.len()) " shown" }
                ": those with the most multiply-accumulates. The report in JSON has the other " (hidden) "."
            }
        }
        p.filter hidden {
            label for="filter" { "Show layers whose row has" }
            " "
            input #filter type="search" autocomplete="off" aria-controls="layer-rows";
            " "
            span #filtered role="status" {}
        }
        div.scroll.tall tabindex="0" role="group" aria-label="Layers" {
            table.sortable {
                thead { tr {
                    th.num scope="col" aria-sort="ascending" { button type="button" disabled { "No." } }
                    @for c in &columns { th scope="col" .num[c.number] { button type="button" disabled { (c.title) } } }
                } }
                tbody #layer-rows { @for row in &rows { (row) } }
            }
        }
    }
}

/// The rows of as many layers as there is room for, those with the most work first to get some, in the order of the model.
fn rows(all: &[LayerFacts], columns: &[Cells]) -> Vec<Markup> {
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by_key(|i| std::cmp::Reverse((all[*i].macs, all[*i].live_bytes + all[*i].dead_bytes)));
    let mut taken = 0;
    let mut rows: Vec<(usize, Markup)> = vec![];
    for i in order {
        let row = html! {
            tr {
                td { (i + 1) }
                @for (at, c) in columns.iter().enumerate() {
                    @let text = (c.text)(&all[i]);
                    @if at == 0 { th scope="row" { (text) } }
                    @else if c.number { td { (text) } }
                    @else { td.text { (text) } }
                }
            }
        };
        taken += row.0.len();
        if taken > ROOM {
            break;
        }
        rows.push((i, row));
    }
    rows.sort_by_key(|(i, _)| *i);
    rows.into_iter().map(|(_, row)| row).collect()
}

/// Signal to noise by layer.
fn plot(all: &[LayerFacts]) -> Markup {
    let mut known: Vec<(usize, &LayerFacts, f64)> =
        all.iter().enumerate().filter_map(|(i, l)| Some((i, l, l.sqnr_db.filter(|db| db.is_finite())?))).collect();
    let unknown = all.len() - known.len();
    known.sort_by(|a, b| a.2.total_cmp(&b.2));
    let hidden = known.len().saturating_sub(DOTS);
    known.truncate(DOTS);
    let Some((_, worst, least)) = known.first().copied() else { return html! {} };
    let mut precisions: Vec<&str> = vec![];
    for (_, l, _) in &known {
        if !precisions.contains(&&l.precision[..]) {
            precisions.push(&l.precision);
        }
    }
    let count = |p: &str| known.iter().filter(|(_, l, _)| l.precision == p).count();
    precisions.sort_by_key(|p| std::cmp::Reverse(count(p)));
    let series = |l: &LayerFacts| precisions.iter().position(|p| *p == l.precision).unwrap_or(0).min(SERIES - 1);
    let dots = (0..SERIES.min(precisions.len())).map(|s| {
        let of = known.iter().filter(|(_, l, _)| series(l) == s);
        Mark::Dots(s, of.map(|(i, _, db)| ((i + 1) as f64, *db)).collect())
    });
    let mut besides = String::new();
    if unknown > 0 {
        besides += &format!(
            " {} without such a figure: the original has no value to compare with, or both are equal.",
            counted(unknown, "layer")
        );
    }
    if hidden > 0 {
        besides += &format!(" {} with less error are not plotted.", counted(hidden, "layer"));
    }
    let worst = format!(
        "The layer with the most error is {} ({}, {}) with {least:.1} dB.{besides}",
        shortened(&worst.node, NAME),
        worst.op,
        worst.precision
    );
    let across = Axis::new("layer, in the order of the model", [1.0, all.len() as f64].into_iter(), true);
    let chart = Chart {
        says: format!(
            "Signal to quantisation noise of each layer in decibels. {worst} The table below has values by layer."
        ),
        across: across.between(0.0, (all.len() + 1) as f64),
        up: Axis::new("SQNR of the output, dB (higher is better)", known.iter().map(|(.., db)| *db), false),
        marks: dots.collect(),
    };
    let names = |s: usize| if s + 1 == SERIES { precisions[s..].join(", ") } else { precisions[s].to_string() };
    html! {
        figure {
            h3 { "Error by layer" }
            @if precisions.len() > 1 { (key((0..SERIES.min(precisions.len())).map(|s| (Sign::Dot(s), names(s))))) }
            (chart.svg())
            figcaption { (worst) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(i: usize) -> LayerFacts {
        LayerFacts {
            node: format!("/model/encoder/layer.{i}/<attention>/self/query/MatMul"),
            op: "MatMul".into(),
            precision: "int8".into(),
            sparsity: 0.5,
            live_bytes: 1000,
            dead_bytes: 24,
            skips_zeros: None,
            sqnr_db: Some(i as f64 / 100.0),
            macs: (i as u64) << 20,
            ..LayerFacts::default()
        }
    }

    #[test]
    fn a_page_of_many_layers_stays_small_and_says_what_it_leaves_out() {
        let report = Report { layers: (0..20_000).map(layer).collect(), ..Report::default() };
        let page = layers(&report).0;
        assert!(page.len() < 420_000, "{}", page.len());
        assert!(page.contains("of 20000 shown") && page.contains("17000 layers with less error are not plotted"));
        assert!(page.contains("layer.19999/") && !page.contains("layer.3/"));
        assert!(!page.contains("<attention>") && page.contains("&lt;attention&gt;"));
    }

    #[test]
    fn a_column_without_a_value_is_left_out() {
        let none = LayerFacts { sqnr_db: None, macs: 0, ..layer(1) };
        let page = layers(&Report { layers: vec![none], ..Report::default() }).0;
        assert!(!page.contains("SQNR, dB") && !page.contains("MACs") && page.contains("Weights, kB"));
    }
}

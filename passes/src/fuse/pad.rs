//! A border of zeros moves into the padding of the window that follows.

use super::{ints, shared};
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::NodeId,
    op::Op,
    ops::{
        pad::{Pad, PadMode},
        pool::PoolKind,
        window::{AutoPad, Window},
    },
    pass::Context,
    rewrite::{Edit, Rule, Verdict},
};

/// `Conv(Pad(x))` is one Conv; so with AveragePool where it counts padding as zeros.
pub(super) struct PadWindow;

impl Rule for PadWindow {
    fn name(&self) -> &'static str {
        "pad-window"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["Conv", "AveragePool"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        let Some(x) = graph.operand(node, 0) else { return Ok(Verdict::No) };
        let (Op::Pad(pad), Some(data)) = (graph.op(x.node), graph.operand(x.node, 0)) else { return Ok(Verdict::No) };
        let mut op = graph.op(node).clone();
        let window = match &mut op {
            Op::Conv(c) => &mut c.window,
            Op::Pool(p) if p.kind == PoolKind::Average => &mut p.window,
            _ => return Ok(Verdict::No),
        };
        if pad.mode != PadMode::Constant || !is_zero(graph, x.node) {
            return Ok(Verdict::Skip("its input is padded with something else than zeros".into()));
        }
        let Some(border) = border(graph, x.node) else { return Ok(Verdict::No) };
        if window.auto_pad != AutoPad::NotSet || !widen(window, &border) {
            return Ok(Verdict::Skip("the padding of its input is not one it can have itself".into()));
        }
        if let (Op::Pool(old), Op::Pool(new)) = (graph.op(node), &mut op) {
            let bare = old.window.pads.iter().all(|p| *p == 0);
            // Runtimes refuse a window that may see nothing but padding.
            let n = new.kernel.len();
            let visible = new.window.pads.iter().enumerate().all(|(i, p)| *p < new.kernel[i % n]);
            if !(bare || old.count_include_pad) || old.window.ceil_mode || !visible {
                return Ok(Verdict::Skip("its average would count other elements".into()));
            }
            new.count_include_pad = true;
        }
        if graph.only_use(x).is_none() {
            return Ok(shared(graph, x));
        }
        let mut operands: Vec<_> = graph.operands(node).into_iter().map(|p| p.map(Into::into)).collect();
        operands[0] = Some(data.into());
        let mut edit = Edit::new();
        let fused = edit.node(&graph.node(node).name, op, &operands);
        edit.replace(node.into(), fused);
        Ok(Verdict::Apply(edit))
    }
}

/// Whether the value that `pad` fills in is zero.
fn is_zero(graph: &Graph, pad: NodeId) -> bool {
    let Some(value) = graph.operand(pad, 2) else { return true };
    let Some(t) = graph.constant(value) else { return false };
    t.as_f32().is_some_and(|v| v.iter().all(|v| *v == 0.0))
}

/// (begin, end) for each spatial axis, if they are known and no other axis has a border.
fn border(graph: &Graph, pad: NodeId) -> Option<Vec<(i64, i64)>> {
    let rank = graph.fact(graph.operand(pad, 0)?).rank().filter(|r| *r > 2)?;
    let axes = match graph.operand(pad, 3) {
        Some(port) => Some(ints(graph, port)?),
        None => None,
    };
    let all = Pad::resolve(rank, &ints(graph, graph.operand(pad, 1)?)?, axes.as_deref()).ok()?;
    (all[..2] == [(0, 0); 2]).then(|| all[2..].to_vec())
}

/// Adds `border` to the window's padding; false when that cannot be.
fn widen(window: &mut Window, border: &[(i64, i64)]) -> bool {
    let n = border.len();
    window.pads.resize(2 * n, 0);
    for (i, (begin, end)) in border.iter().enumerate() {
        for (pad, more) in [(i, begin), (n + i, end)] {
            window.pads[pad] = window.pads[pad].saturating_add(*more);
            if *more < 0 || window.pads[pad] > i32::MAX as i64 {
                return false;
            }
        }
    }
    true
}

//! What lowerings may look at: a part of a graph.

use super::{lowering::Want, ops};
use crate::burn::kernels::dequantize_constant;
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
    ops::{binary::Binary, cast::Cast, pad::PadMode, pool::PoolKind, resize::Interpolation, unary::Unary},
    tensor::{DType, Tensor},
    value::Dim,
};
use std::collections::{HashMap, HashSet};

/// What codes stand for: `(code - zero) * scale`, the codes being unsigned.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Affine {
    pub scale: f32,
    pub zero: u8,
}

impl Affine {
    /// The code of `x`.
    pub fn quantize(self, x: f32) -> u8 {
        (f64::from((x / self.scale).round_ties_even()) + f64::from(self.zero)).clamp(0.0, 255.0) as u8
    }

    /// What `code` stands for.
    pub fn dequantize(self, code: u8) -> f32 {
        f32::from(i16::from(code) - i16::from(self.zero)) * self.scale
    }
}

/// How many nodes that follow each other are taken together at most.
pub(super) const CHAIN: usize = 8;

/// The nodes that are lowered together.
pub(super) struct Scope<'g> {
    pub graph: &'g Graph,
    /// The nodes.
    part: &'g dyn Fn(NodeId) -> bool,
    /// Values that must exist as they are: outputs, and those that are watched.
    pinned: &'g HashSet<Port>,
    /// What the codes of floats stand for, where floats have codes.
    codes: HashMap<Port, Affine>,
    /// Whether they are lowered for a device, which has fewer kernels.
    pub on_device: bool,
}

impl<'g> Scope<'g> {
    /// The nodes of `order` that are in `part`.
    pub fn new(
        graph: &'g Graph,
        order: &[NodeId],
        part: &'g dyn Fn(NodeId) -> bool,
        pinned: &'g HashSet<Port>,
        on_device: bool,
    ) -> Self {
        let mut this = Self { graph, part, pinned, codes: HashMap::new(), on_device };
        for &id in order.iter().filter(|id| part(**id)) {
            let Some(affine) = this.affine(id) else { continue };
            for slot in 0..graph.node(id).outputs.len() {
                let port = Port { node: id, slot };
                this.codes.insert(port, affine);
                let made = |s: &Self| {
                    s.codes(port).is_some_and(|(want, _)| want.port != port)
                        || ops::lowering(s, Want::codes(port)).is_some()
                };
                if !made(&this) {
                    this.codes.remove(&port);
                }
            }
        }
        this
    }

    /// What the codes of a node's outputs stand for, if they have any.
    fn affine(&self, id: NodeId) -> Option<Affine> {
        let g = self.graph;
        let of = |slot: usize| g.operand(id, slot).and_then(|p| self.codes.get(&p).copied());
        match g.op(id) {
            Op::Dequantize(op) => {
                let q = g.operand(id, 0)?;
                if g.constant(q).is_some() || op.grain.block != 0 {
                    return None;
                }
                self.parameters(g.operand(id, 1)?, g.operand(id, 2), g.fact(q).dtype?)
            }
            Op::Pool(op) if op.kind == PoolKind::Max && !op.indices => of(0),
            Op::GlobalPool(op) if op.kind == PoolKind::Max => of(0),
            Op::Resize(op) if op.mode == Interpolation::Nearest => of(0),
            Op::Unary(Unary::Relu) => of(0),
            // Bounds between two codes would be rounded twice.
            Op::Clip(_) => of(0).filter(|a| {
                let exact = |v: f32| a.dequantize(a.quantize(v)) == v || v < a.dequantize(0) || v > a.dequantize(255);
                self.bounds(id).is_some_and(|(low, high)| exact(low) && exact(high))
            }),
            Op::Pad(op) if op.mode == PadMode::Constant => {
                let value = g.operand(id, 2).map_or(Some(0.0), |v| self.scalar(v))?;
                of(0).filter(|a| a.dequantize(a.quantize(value)) == value)
            }
            Op::Reshape(_)
            | Op::Flatten(_)
            | Op::Squeeze(_)
            | Op::Unsqueeze(_)
            | Op::Identity(_)
            | Op::Transpose(_)
            | Op::Slice(_)
            | Op::Split(_) => of(0),
            Op::Concat(_) => {
                let n = g.operands(id).len();
                let first = of(0)?;
                (1..n).all(|slot| of(slot) == Some(first)).then_some(first)
            }
            _ => None,
        }
    }

    /// Scale and zero point of 8-bit codes of type `dtype`: one each, constant, and sound.
    pub fn parameters(&self, scale: Port, zero: Option<Port>, dtype: DType) -> Option<Affine> {
        let scale = self.graph.constant(scale).filter(|t| t.len() == 1 && t.dtype() == DType::F32)?.as_f32()?[0];
        let zero = match zero {
            None => 0,
            Some(z) => self.graph.constant(z).filter(|t| t.len() == 1 && t.dtype() == dtype)?.as_i64()?[0],
        };
        let zero = match dtype {
            DType::U8 => zero,
            DType::I8 => zero + 128,
            _ => return None,
        };
        (scale.is_finite() && scale > 0.0).then_some(Affine { scale, zero: u8::try_from(zero).ok()? })
    }

    /// Whether a node is lowered here.
    pub fn has(&self, id: NodeId) -> bool {
        (self.part)(id)
    }

    /// Whether a value must exist as it is.
    pub fn is_pinned(&self, port: Port) -> bool {
        self.pinned.contains(&port) || self.graph.is_output(port)
    }

    /// The node that makes a value which nobody else reads and which need not exist.
    pub fn inner(&self, port: Port) -> Option<NodeId> {
        let is_read_once = match self.on_device {
            true => self.graph.only_use(port).is_some(),
            // Who wants its shape alone is told that by the plan.
            false => !self.graph.is_output(port) && self.graph.element_uses(port).len() == 1,
        };
        (self.has(port.node) && !self.pinned.contains(&port) && is_read_once).then_some(port.node)
    }

    /// Whether a value has two readers, and need not exist once both are one.
    pub fn is_read_twice_here(&self, port: Port) -> bool {
        let free = self.has(port.node) && !self.pinned.contains(&port) && !self.graph.is_output(port);
        free && self.graph.uses(port).len() == 2
    }

    /// Whether all that read what codes stand for, or some of it first, take values in their order: what has channels is most
    /// often read by pixels, but not by these.
    pub fn is_read_in_order(&self, codes: Port) -> bool {
        let g = self.graph;
        let in_order = |id: NodeId| {
            matches!(
                g.op(id),
                Op::MatMul(_)
                    | Op::Gemm(_)
                    | Op::Transpose(_)
                    | Op::Reshape(_)
                    | Op::Flatten(_)
                    | Op::Squeeze(_)
                    | Op::Unsqueeze(_)
            )
        };
        g.uses(codes).iter().all(|reader| match g.op(reader.node) {
            Op::Dequantize(_) => g.uses(Port { node: reader.node, slot: 0 }).iter().all(|r| in_order(r.node)),
            _ => in_order(reader.node),
        })
    }

    /// The codes of a float value, and what they stand for.
    pub fn codes(&self, port: Port) -> Option<(Want, Affine)> {
        let affine = *self.codes.get(&port)?;
        let at = match self.graph.op(port.node) {
            Op::Dequantize(_) => self.graph.operand(port.node, 0)?,
            _ => port,
        };
        Some((Want::codes(at), affine))
    }

    /// Whether a value is itself made of 8-bit integers.
    pub fn has_codes(&self, port: Port) -> bool {
        matches!(self.graph.fact(port).dtype, Some(DType::U8 | DType::I8))
    }

    /// A constant, also one behind DequantizeLinear, when it is wanted: quantised ones are large once they are floats.
    pub fn constant_later(&self, port: Port) -> impl Fn() -> Result<Tensor> + use<'g> {
        let graph = self.graph;
        move || constant(graph, port).ok_or_else(|| Error::bug("a constant").at(graph.node(port.node).label()))
    }

    /// Whether a value is a float constant, perhaps behind DequantizeLinear.
    pub fn is_constant(&self, port: Port) -> bool {
        self.graph.fact(port).dtype == Some(DType::F32) && is_constant(self.graph, port)
    }

    /// The only element of a constant.
    pub fn scalar(&self, port: Port) -> Option<f32> {
        self.graph.constant(port).filter(|t| t.len() == 1)?.as_f32().map(|v| v[0])
    }

    /// The rank of a value.
    pub fn rank(&self, port: Port) -> Option<usize> {
        self.graph.fact(port).rank()
    }

    /// Whether two values surely have the same shape.
    pub fn same_shape(&self, a: Port, b: Port) -> bool {
        match (self.graph.fact(a).dims(), self.graph.fact(b).dims()) {
            (Some(a), Some(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b): (&Dim, &Dim)| a.same(b)),
            _ => false,
        }
    }

    /// Goes back from `port` over Relu and Clip whose results nobody else needs: the value
    /// before them, and the bounds that they set.
    pub fn unclamped(&self, mut port: Port) -> (Port, f32, f32) {
        let (mut low, mut high) = (f32::NEG_INFINITY, f32::INFINITY);
        // In a chain of them each would go back over all before it.
        for _ in 0..CHAIN {
            let bounds = if self.has(port.node) { self.bounds(port.node) } else { None };
            let (Some((l, h)), Some(before)) = (bounds, self.graph.operand(port.node, 0)) else { break };
            if self.inner(before).is_none() {
                break;
            }
            (low, high, port) = (l.clamp(low, high), h.clamp(low, high), before);
        }
        (port, low, high)
    }

    /// The bounds that a Relu or Clip sets.
    pub fn bounds(&self, id: NodeId) -> Option<(f32, f32)> {
        match self.graph.op(id) {
            Op::Unary(Unary::Relu) => Some((0.0, f32::INFINITY)),
            Op::Clip(_) => {
                let bound = |slot: usize, none: f32| match self.graph.operand(id, slot) {
                    Some(p) => self.scalar(p),
                    None => Some(none),
                };
                let (low, high) = (bound(1, f32::NEG_INFINITY)?, bound(2, f32::INFINITY)?);
                (low <= high).then_some((low, high))
            }
            _ => None,
        }
    }
}

/// A constant, or what DequantizeLinear makes of constants.
pub(crate) fn constant(g: &Graph, port: Port) -> Option<Tensor> {
    if let Some(t) = g.constant(port) {
        return Some(t.clone());
    }
    let operand = |slot| g.operand(port.node, slot);
    if widens(g, port.node) {
        let t = g.constant(operand(0)?)?;
        return Some(Tensor::f32(t.shape(), &t.as_f32()?));
    }
    if let Some((codes, scales)) = scaled(g, port.node) {
        return scale_channels(g.constant(codes)?, g.constant(scales)?);
    }
    let Op::Dequantize(op) = g.op(port.node) else { return None };
    let (x, scale) = (g.constant(operand(0)?)?, g.constant(operand(1)?)?);
    let zero = match operand(2) {
        Some(z) => Some(g.constant(z)?),
        None => None,
    };
    dequantize_constant(op, x, scale, zero).ok()
}

/// Whether a node makes 32-bit floats of a constant of 16 bits, as which weights may be stored.
fn widens(g: &Graph, node: NodeId) -> bool {
    let is_half = |p: Port| g.constant(p).is_some_and(|t| matches!(t.dtype(), DType::F16 | DType::BF16));
    matches!(g.op(node), Op::Cast(c) if c.to == DType::F32) && g.operand(node, 0).is_some_and(is_half)
}

/// The codes and the scales of a node that multiplies widened codes by the scales of channels, as which weights may be stored.
fn scaled(g: &Graph, node: NodeId) -> Option<(Port, Port)> {
    let (Op::Binary(Binary::Mul), Some(widened), Some(scales)) = (g.op(node), g.operand(node, 0), g.operand(node, 1))
    else {
        return None;
    };
    let Op::Cast(Cast { to: DType::F32, .. }) = g.op(widened.node) else { return None };
    let codes = g.operand(widened.node, 0)?;
    let (shape, by) = (g.constant(codes).filter(|t| t.dtype() == DType::I8)?.shape(), g.constant(scales)?);
    let fits = !shape.is_empty()
        && by.shape().len() == shape.len()
        && by.shape().iter().zip(shape).all(|(s, n)| *s == 1 || s == n);
    (fits && by.dtype() == DType::F32).then_some((codes, scales))
}

/// Codes times scales, which are broadcast to them.
fn scale_channels(codes: &Tensor, scales: &Tensor) -> Option<Tensor> {
    let (values, by) = (codes.bytes(), scales.as_f32()?);
    let (dims, own) = (codes.shape(), scales.shape());
    // The last axis along which scales differ: from there on all have one, before it places are counted.
    let last = own.iter().rposition(|n| *n != 1).map_or(0, |axis| axis + 1);
    let inner = dims[last..].iter().product::<usize>().max(1);
    let mut place = vec![0; last];
    let mut floats = Vec::with_capacity(values.len());
    for run in values.chunks(inner) {
        let at = place.iter().zip(own).fold(0, |at, (i, n)| at * n + if *n == 1 { 0 } else { *i });
        floats.extend(run.iter().map(|code| f32::from(code.cast_signed()) * by[at]));
        for axis in (0..last).rev() {
            place[axis] += 1;
            if place[axis] < dims[axis] {
                break;
            }
            place[axis] = 0;
        }
    }
    Some(Tensor::f32(dims, &floats))
}

/// Whether a value is constant, or made of constants by DequantizeLinear, Cast, or Cast and Mul.
pub(crate) fn is_constant(g: &Graph, port: Port) -> bool {
    g.constant(port).is_some()
        || widens(g, port.node)
        || scaled(g, port.node).is_some()
        || matches!(g.op(port.node), Op::Dequantize(_))
            && g.operands(port.node).into_iter().flatten().all(|p| g.constant(p).is_some())
}

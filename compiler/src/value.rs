//! What is known of a value before anything runs: its type, its shape, and for small
//! integer tensors its elements.

use crate::{
    error::{Error, Result},
    tensor::{DType, Tensor},
};
use std::{fmt, sync::Arc};

/// Integer tensors with more elements than this carry no propagated elements: shape
/// arithmetic is never longer, and the cost of inference stays linear.
pub const MAX_ELEMS: usize = 256;

/// A dimension, or one element of a shape-like integer tensor.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Dim {
    /// A number. Negative only as an element, e.g. the -1 of a Reshape.
    Known(i64),
    /// A named unknown such as `batch`; equal names are equal sizes.
    Sym(Arc<str>),
    /// Nothing is known.
    Unknown,
}

/// How the name of the lesser of two sizes begins.
const LESSER: &str = "min(";

impl Dim {
    /// The number, if known.
    pub fn known(&self) -> Option<i64> {
        match self {
            Dim::Known(n) => Some(*n),
            _ => None,
        }
    }

    /// Whether both are surely the same size.
    pub fn same(&self, other: &Dim) -> bool {
        self == other && *self != Dim::Unknown
    }

    /// The lesser of this and `n`, by name where this has one: what a table of `n` rows has for so many.
    pub fn at_most(&self, n: i64) -> Dim {
        match self {
            Dim::Known(own) => Dim::Known(*own.min(&n)),
            Dim::Sym(name) if !name.starts_with(LESSER) => Dim::Sym(format!("{LESSER}{name}, {n})").into()),
            _ => Dim::Unknown,
        }
    }

    /// Whether this is the lesser of `other` and a number. Where both are broadcast, either they are equal, or the number is 1.
    fn is_lesser_of(&self, other: &Dim) -> bool {
        let (Dim::Sym(own), Dim::Sym(other)) = (self, other) else { return false };
        let inner = own.strip_prefix(LESSER).and_then(|rest| rest.strip_suffix(')')?.rsplit_once(", "));
        inner.is_some_and(|(name, _)| *name == **other)
    }

    /// The product; a symbol survives a factor of 1.
    pub fn times(&self, other: &Dim) -> Dim {
        match (self, other) {
            (Dim::Known(1), d) | (d, Dim::Known(1)) => d.clone(),
            _ => self.zip(other, i64::checked_mul),
        }
    }

    /// `f` of two known numbers; unknown otherwise, and on overflow.
    pub fn zip(&self, other: &Dim, f: impl Fn(i64, i64) -> Option<i64>) -> Dim {
        match (self.known(), other.known()) {
            (Some(a), Some(b)) => f(a, b).map_or(Dim::Unknown, Dim::Known),
            _ => Dim::Unknown,
        }
    }
}

impl From<usize> for Dim {
    fn from(n: usize) -> Self {
        Dim::Known(n as i64)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Dim::Known(n) => write!(f, "{n}"),
            Dim::Sym(s) => f.write_str(s),
            Dim::Unknown => f.write_str("?"),
        }
    }
}

/// A shape: `None` when not even the rank is known.
pub type Shape = Option<Vec<Dim>>;

/// What inference knows of one value.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Fact {
    /// The element type, if known.
    pub dtype: Option<DType>,
    /// The shape, if known.
    pub shape: Shape,
    /// The elements of a small integer tensor in row-major order, each perhaps unknown.
    pub elems: Option<Vec<Dim>>,
    /// The elements of a small float constant, which Resize needs for its shape.
    pub floats: Option<Vec<f32>>,
}

impl Fact {
    /// A value of `dtype` and `shape`, its elements unknown.
    pub fn new(dtype: Option<DType>, shape: Shape) -> Self {
        Self { dtype, shape, elems: None, floats: None }
    }

    /// What is known of a constant: everything, with elements when small.
    pub fn of(t: &Tensor) -> Self {
        let small = (t.len() <= MAX_ELEMS).then_some(t);
        let elems = small.and_then(Tensor::as_i64).map(|v| v.into_iter().map(Dim::Known).collect());
        let floats = small.filter(|t| t.shape().len() <= 1).and_then(Tensor::as_f32).map(|v| v.into_owned());
        Self { dtype: Some(t.dtype()), shape: Some(t.shape().iter().map(|&d| Dim::from(d)).collect()), elems, floats }
    }

    /// An `i64` tensor with the given elements: a vector, or a scalar when `scalar`.
    pub fn elems(elems: Vec<Dim>, scalar: bool) -> Self {
        let shape = if scalar { vec![] } else { vec![Dim::from(elems.len())] };
        let elems = (elems.len() <= MAX_ELEMS).then_some(elems);
        Self { dtype: Some(DType::I64), shape: Some(shape), elems, floats: None }
    }

    /// Without elements that the type cannot hold: what they became by wrapping around is not known.
    pub(crate) fn wrapped(mut self) -> Self {
        let range = self.dtype.and_then(DType::int_range);
        if let (Some((low, high)), Some(elems)) = (range, &mut self.elems) {
            let lost = |d: &Dim| d.known().is_some_and(|n| n < low || n > high);
            elems.iter_mut().filter(|d| lost(d)).for_each(|d| *d = Dim::Unknown);
        }
        self
    }

    /// Whether both shapes are known, and equal.
    pub fn has_shape_of(&self, other: &Fact) -> bool {
        match (self.dims(), other.dims()) {
            (Some(a), Some(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.same(b)),
            _ => false,
        }
    }

    /// The rank, if known.
    pub fn rank(&self) -> Option<usize> {
        self.shape.as_ref().map(Vec::len)
    }

    /// The dimensions, if the rank is known.
    pub fn dims(&self) -> Option<&[Dim]> {
        self.shape.as_deref()
    }

    /// The shape as numbers, if every dimension is known.
    pub fn fixed(&self) -> Option<Vec<usize>> {
        self.dims()?.iter().map(|d| d.known().and_then(|n| usize::try_from(n).ok())).collect()
    }

    /// The elements as numbers, if every one is known.
    pub fn known_elems(&self) -> Option<Vec<i64>> {
        self.elems.as_ref()?.iter().map(Dim::known).collect()
    }

    /// This fact with everything filled in that `other` knows and this doesn't.
    ///
    /// # Errors
    /// Malformed when the two contradict each other.
    pub fn refined(mut self, other: &Fact) -> Result<Self> {
        self.refine(other)?;
        Ok(self)
    }

    /// Fills in what `other` knows and this fact doesn't.
    ///
    /// # Errors
    /// Malformed when the two contradict each other; then nothing changed.
    pub(crate) fn refine(&mut self, other: &Fact) -> Result<()> {
        self.agrees(other)?;
        self.dtype = self.dtype.or(other.dtype);
        match (&mut self.shape, &other.shape) {
            (shape @ None, b) => *shape = b.clone(),
            (Some(a), Some(b)) => {
                for (x, y) in a.iter_mut().zip(b) {
                    // A number never overrides a symbol: exporters leave the batch they traced with
                    // in value_info, and a dynamic batch must stay dynamic.
                    if *x == Dim::Unknown {
                        *x = y.clone();
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks that nothing in `other`, which was declared, contradicts this fact, which was
    /// inferred.
    ///
    /// # Errors
    /// Malformed when something does.
    pub fn agrees(&self, other: &Fact) -> Result<()> {
        if let (Some(a), Some(b)) = (self.dtype, other.dtype)
            && a != b
        {
            return Err(Error::malformed(format!("declared {b}, but the operator gives {a}")));
        }
        if let (Some(a), Some(b)) = (&self.shape, &other.shape) {
            let differ = |x: &Dim, y: &Dim| matches!((x, y), (Dim::Known(x), Dim::Known(y)) if x != y);
            if a.len() != b.len() || a.iter().zip(b).any(|(x, y)| differ(x, y)) {
                return Err(Error::malformed(format!(
                    "declared shape {}, but the operator gives {}",
                    show_shape(&other.shape),
                    show_shape(&self.shape)
                )));
            }
        }
        Ok(())
    }
}

fn show_shape(shape: &Shape) -> String {
    match shape {
        Some(dims) => {
            format!("[{}]", dims.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
        }
        None => "[*]".into(),
    }
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.dtype {
            Some(d) => write!(f, "{d}")?,
            None => f.write_str("?")?,
        }
        f.write_str(&show_shape(&self.shape))
    }
}

/// The shape two operands broadcast to (ONNX multidirectional broadcasting).
///
/// # Errors
/// Malformed when two known dimensions neither agree nor are 1.
pub fn broadcast(a: &Shape, b: &Shape) -> Result<Shape> {
    let (Some(a), Some(b)) = (a, b) else { return Ok(None) };
    let rank = a.len().max(b.len());
    let at = |s: &[Dim], i: usize| (i + s.len()).checked_sub(rank).map_or(Dim::Known(1), |i| s[i].clone());
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (x, y) if x.same(&y) => Ok(x),
            (Dim::Known(1), y) => Ok(y),
            (x, Dim::Known(1)) => Ok(x),
            (Dim::Known(x), Dim::Known(y)) => Err(Error::malformed(format!("dimensions {x} and {y} do not broadcast"))),
            // A known size above 1 wins: the other side must be it or 1.
            (x @ Dim::Known(_), _) | (_, x @ Dim::Known(_)) => Ok(x),
            // As positions are: a row of a table for each of so many, if it has so many rows.
            (x, y) if y.is_lesser_of(&x) => Ok(x),
            (x, y) if x.is_lesser_of(&y) => Ok(y),
            _ => Ok(Dim::Unknown),
        })
        .collect::<Result<Vec<_>>>()
        .map(Some)
}

/// `sizes`, when they can be those of a shape.
///
/// # Errors
/// Malformed when one is negative.
pub fn sizes(sizes: &[Dim]) -> Result<&[Dim]> {
    match sizes.iter().find(|d| d.known().is_some_and(|n| n < 0)) {
        None => Ok(sizes),
        Some(n) => Err(Error::malformed(format!("an axis of {n}"))),
    }
}

/// `axis` counted from the front.
///
/// # Errors
/// Malformed when it lies outside `-rank..rank`.
pub fn axis(axis: i64, rank: usize) -> Result<usize> {
    let r = rank as i64;
    if axis < -r || axis >= r {
        return Err(Error::malformed(format!("axis {axis} is out of range for rank {rank}")));
    }
    Ok(if axis < 0 { axis + r } else { axis } as usize)
}

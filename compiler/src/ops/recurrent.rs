//! RNN, GRU, LSTM: one layer over a sequence, in one or both directions.

use super::conv::size;
use crate::{
    attr::{Attr, Attrs, Reader},
    error::{Error, Result},
    op::{Inputs, Operator},
    value::{Dim, Fact},
};
use std::ops::RangeInclusive;

/// What one step computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cell {
    /// `H = f(X W' + H R' + b)`
    Rnn,
    /// Gates z, r, h.
    Gru {
        /// Whether the reset gate is applied after the product with R, not before.
        linear_before_reset: bool,
    },
    /// Gates i, o, f, c.
    Lstm {
        /// Whether the forget gate is `1 - i`.
        input_forget: bool,
    },
}

impl Cell {
    /// How many gates W and R hold.
    pub fn gates(self) -> usize {
        match self {
            Self::Rnn => 1,
            Self::Gru { .. } => 3,
            Self::Lstm { .. } => 4,
        }
    }

    fn defaults(self) -> &'static [&'static str] {
        match self {
            Self::Rnn => &["Tanh"],
            Self::Gru { .. } => &["Sigmoid", "Tanh"],
            Self::Lstm { .. } => &["Sigmoid", "Tanh", "Tanh"],
        }
    }
}

/// The order in which a sequence is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the first element on.
    Forward,
    /// From the last element on.
    Reverse,
    /// Both; the results are side by side.
    Bidirectional,
}

impl Direction {
    /// The directions in the order of the weights; true is backwards.
    pub fn passes(self) -> &'static [bool] {
        match self {
            Self::Forward => &[false],
            Self::Reverse => &[true],
            Self::Bidirectional => &[false, true],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Reverse => "reverse",
            Self::Bidirectional => "bidirectional",
        }
    }
}

/// A gate's activation, with both parameters whether it has them or not.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GateActivation {
    /// The function.
    pub kind: GateKind,
    /// The first parameter.
    pub alpha: f32,
    /// The second parameter.
    pub beta: f32,
}

macro_rules! kinds {
    ($($name:ident $alpha:expr, $beta:expr;)*) => {
        /// The functions that a gate can have.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum GateKind { $($name),* }

        impl GateKind {
            fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),* }
            }

            /// The function called `name`; ONNX Runtime takes any case, so files have any.
            fn from_name(name: &str) -> Option<Self> {
                [$(Self::$name),*].into_iter().find(|k| k.name().eq_ignore_ascii_case(name))
            }

            /// The defaults of the parameters that the function has.
            fn parameters(self) -> (Option<f32>, Option<f32>) {
                match self { $(Self::$name => ($alpha, $beta)),* }
            }
        }
    };
}

kinds! {
    Relu None, None;
    Tanh None, None;
    Sigmoid None, None;
    Affine Some(1.0), Some(0.0);
    LeakyRelu Some(0.01), None;
    ThresholdedRelu Some(1.0), None;
    ScaledTanh Some(1.0), Some(1.0);
    HardSigmoid Some(0.2), Some(0.5);
    Elu Some(1.0), None;
    Softsign None, None;
    Softplus None, None;
}

/// Inputs: X, W, R, B, sequence_lens, initial_h, and for LSTM initial_c, P.
/// Outputs: Y, Y_h, and for LSTM Y_c.
#[derive(Debug, Clone, PartialEq)]
pub struct Recurrent {
    /// What one step computes.
    pub cell: Cell,
    /// The order in which the sequence is read.
    pub direction: Direction,
    /// Whether the batch is the first axis of X, Y and the states (`layout=1`).
    pub batch_first: bool,
    /// The size of the state, where the file says it; it is R's last axis.
    pub hidden_size: Option<i64>,
    /// For each direction its activations: f, g, h as far as the cell has them.
    pub activations: Vec<GateActivation>,
    /// Limits the activations' inputs to `-clip..=clip`.
    pub clip: Option<f32>,
}

impl Recurrent {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let cell = match r.op_type.as_str() {
            "RNN" => Cell::Rnn,
            "GRU" => Cell::Gru { linear_before_reset: r.flag("linear_before_reset", false)? },
            _ => Cell::Lstm { input_forget: r.flag("input_forget", false)? },
        };
        let direction = match r.string("direction", "forward")?.as_str() {
            "forward" => Direction::Forward,
            "reverse" => Direction::Reverse,
            "bidirectional" => Direction::Bidirectional,
            other => return Err(Error::malformed(format!("direction={other}"))),
        };
        let clip = r.float("clip", 0.0)?;
        Ok(Self {
            activations: activations(r, cell, direction)?,
            batch_first: r.opset >= 14 && r.flag("layout", false)?,
            hidden_size: r.opt_int("hidden_size")?,
            clip: (clip > 0.0).then_some(clip),
            cell,
            direction,
        })
    }

    /// Whether its cell is that of the paper, an LSTM or a GRU with the usual functions, which nothing limits.
    pub fn is_usual(&self) -> bool {
        use GateKind::{Sigmoid, Tanh};
        let usual: &[GateKind] = match self.cell {
            Cell::Lstm { input_forget: false } => &[Sigmoid, Tanh, Tanh],
            Cell::Gru { .. } => &[Sigmoid, Tanh],
            _ => return false,
        };
        let each = self.activations.chunks(usual.len());
        self.clip.is_none() && each.into_iter().all(|f| f.iter().map(|f| f.kind).eq(usual.iter().copied()))
    }

    /// The number of directions.
    pub fn directions(&self) -> usize {
        self.direction.passes().len()
    }
}

fn activations(r: &mut Reader, cell: Cell, direction: Direction) -> Result<Vec<GateActivation>> {
    let names = r.opt_strings("activations")?.unwrap_or_default();
    let (alphas, betas) = (r.opt_floats("activation_alpha")?, r.opt_floats("activation_beta")?);
    let (mut alphas, mut betas) = (alphas.into_iter().flatten(), betas.into_iter().flatten());
    let count = cell.defaults().len() * direction.passes().len();
    let defaults = cell.defaults().iter().cycle().take(count).map(|n| n.to_string());
    let names: Vec<String> = if names.is_empty() { defaults.collect() } else { names };
    if names.len() != count {
        return Err(Error::unsupported(format!("{} activations, where {count} are needed", names.len())));
    }
    names
        .iter()
        .map(|name| {
            let kind = GateKind::from_name(name);
            let kind = kind.ok_or_else(|| Error::unsupported(format!("the activation `{name}`")))?;
            // Values are consumed in the order of the functions that take one.
            let next = |values: &mut dyn Iterator<Item = f32>, default: Option<f32>| match default {
                Some(d) => values.next().unwrap_or(d),
                None => 0.0,
            };
            let (alpha, beta) = kind.parameters();
            Ok(GateActivation { kind, alpha: next(&mut alphas, alpha), beta: next(&mut betas, beta) })
        })
        .collect()
}

impl Operator for Recurrent {
    fn op_type(&self) -> &str {
        match self.cell {
            Cell::Rnn => "RNN",
            Cell::Gru { .. } => "GRU",
            Cell::Lstm { .. } => "LSTM",
        }
    }

    fn attrs(&self) -> Attrs {
        let mut a: Attrs = vec![];
        if self.direction != Direction::Forward {
            a.push(("direction", self.direction.name().into()));
        }
        if let Some(h) = self.hidden_size {
            a.push(("hidden_size", h.into()));
        }
        let defaults = self.cell.defaults().iter().cycle();
        if self.activations.iter().zip(defaults).any(|(a, d)| a.kind.name() != *d) {
            a.push(("activations", Attr::Strs(self.activations.iter().map(|a| a.kind.name().into()).collect())));
            let with = |has: fn(&GateActivation) -> Option<f32>| self.activations.iter().filter_map(has).collect();
            let alphas: Vec<f32> = with(|a| a.kind.parameters().0.map(|_| a.alpha));
            let betas: Vec<f32> = with(|a| a.kind.parameters().1.map(|_| a.beta));
            a.extend((!alphas.is_empty()).then_some(("activation_alpha", Attr::Floats(alphas))));
            a.extend((!betas.is_empty()).then_some(("activation_beta", Attr::Floats(betas))));
        }
        a.extend(self.clip.map(|c| ("clip", c.into())));
        if self.batch_first {
            a.push(("layout", 1i64.into()));
        }
        match self.cell {
            Cell::Gru { linear_before_reset: true } => a.push(("linear_before_reset", true.into())),
            Cell::Lstm { input_forget: true } => a.push(("input_forget", true.into())),
            _ => {}
        }
        a
    }

    fn arity(&self) -> RangeInclusive<usize> {
        3..=if let Cell::Lstm { .. } = self.cell { 8 } else { 6 }
    }

    fn parameters(&self) -> &'static [usize] {
        &[1, 2, 3, 7]
    }

    fn max_outputs(&self) -> usize {
        if let Cell::Lstm { .. } = self.cell { 3 } else { 2 }
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        for (slot, rank) in [(0, 3), (1, 3), (2, 3), (3, 2), (4, 1), (5, 3), (6, 3), (7, 2)] {
            if let Some(dims) = x.dims(slot)
                && dims.len() != rank
            {
                return Err(Error::malformed(format!("input {slot} of rank {}, not {rank}", dims.len())));
            }
        }
        let at = |slot: usize, axis: usize| x.dims(slot).and_then(|d| d.get(axis)).cloned().unwrap_or(Dim::Unknown);
        let directions = Dim::from(self.directions());
        for slot in [1, 2, 3] {
            if at(slot, 0).zip(&directions, |a, b| Some((a != b) as i64)) == Dim::Known(1) {
                return Err(Error::malformed(format!(
                    "input {slot} is for {} directions, not {directions}",
                    at(slot, 0)
                )));
            }
        }
        let hidden = match (at(2, 2), self.hidden_size) {
            (Dim::Known(n), Some(h)) if n != h => {
                return Err(Error::malformed(format!("hidden_size {h}, but R is for {n}")));
            }
            (Dim::Known(n), _) | (_, Some(n)) => Dim::Known(n),
            (other, None) => other,
        };
        let (first, second) = (at(0, 0), at(0, 1));
        let (batch, length) = if self.batch_first { (first, second) } else { (second, first) };
        let (y, state) = if self.batch_first {
            (vec![batch.clone(), length, directions.clone(), hidden.clone()], vec![batch, directions, hidden])
        } else {
            (vec![length, directions.clone(), batch.clone(), hidden.clone()], vec![directions, batch, hidden])
        };
        let dtype = x.get(0).dtype;
        let mut facts = vec![Fact::new(dtype, Some(y))];
        facts.extend((1..self.max_outputs()).map(|_| Fact::new(dtype, Some(state.clone()))));
        Ok(facts)
    }

    fn since(&self) -> i64 {
        if self.batch_first { 14 } else { 7 }
    }

    fn macs(&self, x: &Inputs, _outputs: &[&Fact]) -> u64 {
        let steps = size(x.dims(0).map(|d| &d[..d.len().min(2)]));
        steps.saturating_mul(size(x.dims(1)).saturating_add(size(x.dims(2))))
    }
}

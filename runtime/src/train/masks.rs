//! Weights of which elements stay zero while the others are trained.
//!
//! What is masked at first follows from the weights: an element that is zero. Masks only ever grow.

use super::model::Parameter;
use crate::{burn::tensor::Float, device::Device};
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    node::NodeId,
    pass::{Masking, Weight},
    tensor::Tensor,
};

/// The share of a training in which masks grow. The rest is for the weights that stay.
const GROWTH: f64 = 0.5;

/// How often masks grow in that time.
const TIMES: f64 = 50.0;

/// The share of an element's saliency that stays in a step.
const STAYS: f32 = 0.95;

/// Masks over parameters.
pub struct Masks<'a> {
    masked: Vec<Masked>,
    masking: Option<Masking<'a>>,
    /// How often masks should have grown when they grew last.
    grown: f64,
}

struct Masked {
    /// The parameter's place.
    at: usize,
    /// 1 where an element stays, else 0.
    keep: Float,
    /// The same at first.
    first: Float,
    saliency: Option<Float>,
}

impl Masked {
    fn new(at: usize, keep: Vec<f32>, parameter: &Parameter, device: &Device) -> Result<Self> {
        let first = Float::from_vec(keep, parameter.value.shape(), device)?;
        Ok(Self { at, keep: first.clone(), first, saliency: None })
    }
}

impl<'a> Masks<'a> {
    /// Masks the zeros of those parameters that are constants among `nodes`.
    ///
    /// # Errors
    /// Device, when reading or writing fails.
    pub fn new(
        parameters: &[Parameter],
        nodes: &[NodeId],
        masking: Option<Masking<'a>>,
        device: &Device,
    ) -> Result<Self> {
        let masked = parameters.iter().enumerate().filter(|(_, p)| nodes.contains(&p.node()));
        let masked = masked.map(|(at, p)| {
            let keep = p.value.view(|v| Ok(v.iter().map(|v| f32::from(*v != 0.0)).collect()))?;
            Masked::new(at, keep, p, device)
        });
        Ok(Self { masked: masked.collect::<Result<_>>()?, masking, grown: f64::NEG_INFINITY })
    }

    /// Masks the elements of weights that are zero in `graph`, which may be others than those that the training begins with.
    ///
    /// # Errors
    /// Device, when writing fails.
    pub fn as_in(graph: &Graph, parameters: &[Parameter], device: &Device) -> Result<Self> {
        let mut masked = vec![];
        for (at, p) in parameters.iter().enumerate().filter(|(_, p)| p.decays()) {
            let Some(weight) = graph.constant(p.node().into()).and_then(Tensor::as_f32) else { continue };
            if weight.contains(&0.0) {
                let keep = weight.iter().map(|v| f32::from(*v != 0.0)).collect();
                masked.push(Masked::new(at, keep, p, device)?);
            }
        }
        Ok(Self { masked, masking: None, grown: f64::NEG_INFINITY })
    }

    /// Forgets all growth.
    pub(super) fn begin_again(&mut self) {
        self.grown = f64::NEG_INFINITY;
        for m in &mut self.masked {
            (m.keep, m.saliency) = (m.first.clone(), None);
        }
    }

    /// Whether masks grow no more: only then does a score tell how good the result is.
    pub fn are_final(&self) -> bool {
        self.masking.is_none() || self.grown >= TIMES
    }

    /// Adds the saliencies of a step, before the step.
    ///
    /// # Errors
    /// None: gradients have the shapes of parameters.
    pub fn feel(&mut self, parameters: &[Parameter], gradients: &[Option<Float>]) -> Result<()> {
        if self.are_final() || !self.masking.as_ref().is_some_and(|m| m.by_saliency) {
            return Ok(());
        }
        for m in &mut self.masked {
            let Some(gradient) = &gradients[m.at] else { continue };
            let now = gradient.clone().mul(parameters[m.at].value.clone())?.abs();
            m.saliency = Some(match m.saliency.take() {
                Some(before) => before.mul_scalar(STAYS).add(now.mul_scalar(1.0 - STAYS))?,
                None => now,
            });
        }
        Ok(())
    }

    /// After a step, when the share `done` of the training is over: masks grow if it is time, and what is masked is
    /// zero again.
    ///
    /// # Errors
    /// Device, when reading or writing fails.
    pub fn apply(&mut self, done: f64, parameters: &mut [Parameter], device: &Device) -> Result<()> {
        // Shares of a training are sums of fractions, which may end just below a time.
        let at = (done / GROWTH * TIMES + 1e-9).floor();
        let time = !self.are_final() && at > self.grown;
        if let Some(masking) = self.masking.as_mut().filter(|_| time) {
            let weight = |m: &Masked| {
                let p = &parameters[m.at];
                let saliency = m.saliency.as_ref().map(|f| f.view(|v| Ok(v.to_vec()))).transpose()?.unwrap_or_default();
                Ok(Weight { node: p.node(), values: p.value.view(|v| Ok(v.to_vec()))?, saliency })
            };
            let weights = self.masked.iter().map(weight).collect::<Result<Vec<_>>>()?;
            let chosen = (masking.choose)((done / GROWTH).min(1.0), &weights)?;
            if chosen.len() != weights.len() {
                return Err(Error::bug(format!("{} masks for {} weights", chosen.len(), weights.len())));
            }
            for (m, keep) in self.masked.iter_mut().zip(chosen) {
                let keep = keep.into_iter().map(f32::from).collect();
                m.keep = Float::from_vec(keep, parameters[m.at].value.shape(), device)?;
            }
            self.grown = at;
        }
        for m in &self.masked {
            let p = &mut parameters[m.at];
            p.value = p.value.clone().mul(m.keep.clone())?;
        }
        Ok(())
    }
}

//! Pass "low-rank": a product with a weight becomes two with thin ones, which take fewer multiply-accumulates together
//! (docs/low-rank.md).

mod factors;
mod ranks;
mod timed;
mod write;

use crate::{
    Factorised,
    layers::{Layer, excluded, layers, obstacle},
    moments::{Inputs, Reads, gather, together},
    prune::recover,
    weight_matrix::WeightMatrix,
};
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    node::NodeId,
    op::{Op, Operator},
    pass::{Context, Outcome, Pass, Skipped, reasons},
    verify::verify,
    words::{
        counted,
        option::{DATA, LOW_RANK},
    },
};
use factors::Spectrum;
use ranks::{Curve, choose, cost};
use regex::Regex;
use std::{borrow::Cow, collections::BTreeMap};
use timed::Timed;

/// Ranks are multiples of this, for which kernels are fast, where nothing else is said.
const STEP: usize = 16;

/// The most outputs or inputs, whichever are fewer, of a weight that may become factors: the work grows with their cube.
const MOST: usize = 8192;

/// What a rank misses that is less than this is rounding.
const NOTHING: f64 = 1e-9;

/// Multiply-accumulates of all samples on which it is measured how much the answers mind what each weight misses: some seconds on
/// two cores; and the fewest samples.
const JUDGED: f64 = 4e11;
const FEWEST: usize = 4;

/// By how much more may be left than was asked for without a word.
const MISSED: f64 = 0.005;

/// The pass "low-rank".
#[derive(Debug)]
pub struct LowRank {
    /// What is asked for.
    pub of: Factorised,
    /// Layers to leave alone.
    pub exclude: Vec<Regex>,
    /// Whether the model is trained then, and whether it must be.
    pub train: Option<bool>,
    /// Whether a pass before left it to this one to train.
    pub deferred: bool,
    /// Whether a later pass trains it.
    pub followed: bool,
}

/// A weight that may become factors.
struct Site {
    /// The layers that multiply by it.
    readers: Vec<Layer>,
    layout: WeightMatrix,
    inputs: Inputs,
    /// What they cost.
    cost: f64,
}

impl Site {
    fn of(g: &Graph, layer: Layer, cost: f64) -> std::result::Result<Self, String> {
        if let Some(why) = obstacle(g, &layer) {
            return Err(why);
        }
        match g.op(layer.node) {
            Op::MatMul(_) | Op::Gemm(_) => {}
            Op::Conv(conv) if conv.group == 1 => {}
            _ => return Err("only products and convolutions of one group become factors".into()),
        }
        let layout = WeightMatrix::of(g, &layer).ok_or("its weight isn't a matrix")?;
        if layout.taps > 1 {
            return Err("its window has several taps".into());
        }
        if layout.rows.min(layout.columns()) > MOST {
            return Err(format!("both its sides are over {MOST}, of which finding factors takes hours"));
        }
        let inputs = Inputs::of(g, &layer, layout).ok_or("its input is transposed")?;
        Ok(Self { readers: vec![layer], layout, inputs, cost })
    }

    fn weight<'g>(&self, g: &'g Graph) -> Result<Cow<'g, [f32]>> {
        let tensor = g.constant(self.readers[0].weight.into());
        tensor.and_then(|t| t.as_f32()).ok_or_else(|| Error::bug("a weight is not a constant of f32"))
    }

    fn reads(&self, g: &Graph) -> Reads<'_> {
        let ports = self.readers.iter().filter_map(|l| g.operand(l.node, 0)).collect();
        Reads { node: self.readers[0].node, inputs: &self.inputs, ports }
    }

    /// What one rank costs.
    fn each(&self) -> f64 {
        let (rows, columns) = (self.layout.rows, self.layout.columns());
        self.cost * (rows + columns) as f64 / (rows * columns) as f64
    }

    /// The multiples of `step` at which factors cost less than the weight.
    fn ranks(&self, step: usize) -> Vec<usize> {
        let (rows, columns) = (self.layout.rows, self.layout.columns());
        (1..).map(|i| i * step).take_while(|rank| rank * (rows + columns) < rows * columns).collect()
    }

    fn name(&self, g: &Graph) -> String {
        self.readers.iter().map(|l| g.node(l.node).display_name()).collect::<Vec<_>>().join(" + ")
    }

    /// What decides whether factors pay: the layers and their sizes.
    fn shape(&self, g: &Graph) -> String {
        let ops: Vec<&str> = self.readers.iter().map(|l| g.op(l.node).op_type()).collect();
        format!("{} {}x{} {}", ops.join(" "), self.layout.rows, self.layout.columns(), self.cost)
    }
}

/// Multiply-accumulates of nodes; where sizes are not known, the elements of weights.
struct Costs {
    macs: BTreeMap<NodeId, f64>,
    of_weights: bool,
}

impl Costs {
    fn of_graph(g: &Graph, sized: &Graph, layers: &[Layer]) -> Self {
        let macs: BTreeMap<NodeId, f64> = sized.operators().map(|n| (n, sized.macs_with_bodies(n) as f64)).collect();
        let of_weights = layers.iter().any(|l| macs.get(&l.node).is_none_or(|macs| *macs == 0.0));
        let elements = |l: &Layer| g.constant(l.weight.into()).map_or(0, |t| t.shape().iter().product::<usize>());
        match of_weights {
            true => Self { macs: layers.iter().map(|l| (l.node, elements(l) as f64)).collect(), of_weights },
            false => Self { macs, of_weights },
        }
    }

    fn of(&self, node: NodeId) -> f64 {
        self.macs.get(&node).copied().unwrap_or_default()
    }

    fn all(&self) -> f64 {
        self.macs.values().sum()
    }
}

impl Pass for LowRank {
    fn name(&self) -> &'static str {
        "low-rank"
    }

    fn is_exact(&self) -> bool {
        false
    }

    fn run(&self, g: &mut Graph, cx: &Context) -> Result<Outcome> {
        let mut out = Outcome::default();
        let all = layers(g)?;
        let sized = cx.calibrator.map(|c| c.sized(g)).transpose()?;
        let costs = Costs::of_graph(g, sized.as_ref().unwrap_or(g), &all);
        let sites = self.sites(g, &all, &costs, &mut out);
        let spectra = self.spectra(g, &sites, cx, &mut out)?;
        let mut curves: Vec<Curve> =
            sites.iter().zip(&spectra).map(|(site, spectrum)| self.curve(site, spectrum)).collect();
        let fixed = costs.all() - sites.iter().map(|site| site.cost).sum::<f64>();
        let budget = costs.all() * (1.0 - self.of.fraction) - fixed;
        let factored = |g: &mut Graph, i: usize, rank: usize| -> Result<()> {
            let (site, spectrum) = (&sites[i], &spectra[i]);
            let factors = spectrum.factors((&site.weight(g)?, &site.layout), rank);
            write::replace(g, &site.readers, (&site.layout, &factors, rank), cx)
        };
        if let Some(judges) = cx.judges.filter(|_| self.of.by_data) {
            let judge = judges.beside(&verify(g)?)?;
            let samples = (JUDGED / costs.all() / sites.len().max(1) as f64) as usize;
            for (i, curve) in curves.iter_mut().enumerate() {
                cx.check()?;
                (cx.progress)("weigh", i, sites.len());
                curve.weigh(1.0 - self.of.fraction, &mut |rank| {
                    let mut one = g.clone();
                    factored(&mut one, i, rank)?;
                    one.infer_all()?;
                    Ok(judge.judge(&verify(&one)?, samples.max(FEWEST))?.inner)
                })?;
            }
            (cx.progress)("weigh", sites.len(), sites.len());
        }
        let timed = Timed { g, sites: &sites, whole: costs.all(), factored: &factored, cx };
        let (chosen, slow) = match (cx.stopwatch, self.of.pays) {
            (Some(watch), true) => timed.choose(&mut curves, budget, watch, &mut out)?,
            _ => (choose(&curves, budget), None),
        };
        let left = fixed + cost(&curves, &chosen);
        let ranks: Vec<(usize, usize)> =
            (0..sites.len()).filter_map(|i| Some((i, curves[i].ranks[chosen[i]?]))).collect();
        let told = |(i, rank): &(usize, usize)| {
            let site: &Site = &sites[*i];
            format!("{} {rank} of {}", site.name(g), site.layout.rows.min(site.layout.columns()))
        };
        let told: Vec<String> = ranks.iter().map(told).collect();
        let stays = |i: &usize| chosen[*i].is_none() && !curves[*i].ranks.is_empty();
        for i in (0..sites.len()).filter(stays) {
            let reason = "thinner weights of other layers cost the answers less".into();
            out.skipped.push(self.skipped(sites[i].name(g), reason));
        }
        let factorised: usize = ranks.iter().map(|(i, _)| sites[*i].readers.len()).sum();
        for (i, rank) in &ranks {
            cx.check()?;
            factored(g, *i, *rank)?;
        }
        out.edits = ranks.len();
        self.tell(&told, [costs.all(), left], (costs.of_weights, slow), all.len() - factorised, &mut out);
        if let Some(must) = self.train.filter(|_| !self.followed && (self.deferred || !ranks.is_empty())) {
            out.add(recover::train(g, (self.name(), 1.0), vec![], None, must, cx)?);
        }
        Ok(out)
    }
}

impl LowRank {
    fn skipped(&self, node: String, reason: String) -> Skipped {
        Skipped { rule: self.name().into(), node, reason }
    }

    fn step(&self) -> usize {
        self.of.round.unwrap_or(STEP)
    }

    /// The weights that may become factors; says of the others why not.
    fn sites(&self, g: &Graph, all: &[Layer], costs: &Costs, out: &mut Outcome) -> Vec<Site> {
        let mut sites: Vec<Site> = vec![];
        for layer in all {
            let site = match excluded(g, layer, &self.exclude) {
                Some(why) => Err(why),
                None => Site::of(g, *layer, costs.of(layer.node)),
            };
            let step = self.step();
            let site = site.and_then(|site| match site.ranks(step).is_empty() {
                true => Err(format!("factors of rank {step} would cost at least as much as its weight")),
                false => Ok(site),
            });
            let others = sites.iter_mut().find(|other| other.readers[0].weight == layer.weight);
            match (site, others) {
                (Ok(site), None) => sites.push(site),
                (Ok(site), Some(other)) => {
                    other.readers.extend(site.readers);
                    other.cost += site.cost;
                }
                (Err(reason), _) => {
                    out.skipped.push(self.skipped(g.node(layer.node).label(), reason));
                }
            }
        }
        for node in g.operators() {
            let inside =
                g.op(node).bodies().into_iter().flat_map(|body| layers(body.graph()).unwrap_or_default()).count();
            if inside > 0 {
                let reason = format!("weights of {} inside it stay whole", counted(inside, "layer"));
                out.skipped.push(self.skipped(g.node(node).label(), reason));
            }
        }
        // All readers of a weight or none, and all in the same way.
        sites.retain(|site| {
            let reads = |l: &&Layer| l.weight == site.readers[0].weight;
            let order = |l: &Layer| (l.axes.slot, l.axes.output, l.axes.input);
            let same = site.readers.iter().all(|l| order(l) == order(&site.readers[0]));
            let all = all.iter().filter(reads).count() == site.readers.len();
            let reason = match (same, all) {
                (true, true) => return true,
                (false, _) => "the layers that share its weight read it in different orders",
                (true, false) => "its weight is shared with a layer that stays",
            };
            out.skipped.push(self.skipped(site.name(g), reason.into()));
            false
        });
        sites
    }

    /// How the outputs of each weight vary, on data where there are some.
    fn spectra(&self, g: &Graph, sites: &[Site], cx: &Context, out: &mut Outcome) -> Result<Vec<Spectrum>> {
        let calibrator = cx.calibrator.filter(|_| self.of.by_data);
        let mut spectra = vec![];
        let mut unseen = 0;
        while spectra.len() < sites.len() {
            let left = &sites[spectra.len()..];
            let now = &left[..together(left.iter().map(|site| &site.layout))];
            let reads: Vec<Reads> = now.iter().map(|site| site.reads(g)).collect();
            let moments = match calibrator {
                Some(calibrator) => gather(g, &reads, calibrator)?,
                None => now.iter().map(|_| None).collect(),
            };
            for (site, moments) in now.iter().zip(moments) {
                cx.check()?;
                (cx.progress)("factorise", spectra.len(), sites.len());
                let h = moments.map(|moments| moments[0].second(false).0);
                unseen += usize::from(h.is_none());
                let most = site.ranks(self.step()).last().copied().unwrap_or_default();
                let spectrum = Spectrum::of((&site.weight(g)?, &site.layout), h.as_deref(), most, &|| cx.check());
                spectra.push(spectrum.map_err(|e| e.at(g.node(site.readers[0].node).label()))?);
            }
        }
        match calibrator {
            Some(_) if unseen > 0 => out.warnings.push(format!(
                "{}: what {} reads was not seen, or has too many values: the weights alone decided on it",
                self.name(),
                counted(unseen, "layer")
            )),
            None if !sites.is_empty() => out.warnings.push(format!(
                "NO DATA: the weights alone decided on ranks; accuracy may be far lower than with what layers read. Give {DATA}"
            )),
            _ => {}
        }
        Ok(spectra)
    }

    fn curve(&self, site: &Site, spectrum: &Spectrum) -> Curve {
        let (ranks, missed) = (site.ranks(self.step()), spectrum.missed());
        let worse = ranks.iter().map(|rank| if missed[*rank] < NOTHING { 0.0 } else { missed[*rank] }).collect();
        Curve { whole: site.cost, each: site.each(), ranks, worse }
    }

    /// What was done, in a sentence, and what of what was asked for was not.
    fn tell(
        &self,
        done: &[String],
        [whole, left]: [f64; 2],
        (of_weights, slow): (bool, Option<String>),
        stay: usize,
        out: &mut Outcome,
    ) {
        let asked = format!("{LOW_RANK} {}", self.of.fraction);
        if done.is_empty() {
            let why = slow.unwrap_or_else(|| reasons(&out.skipped));
            out.undone.push(format!("asked for {asked}: no weight became two thinner ones ({why})"));
            return;
        }
        let what = if of_weights { "elements of weights" } else { "multiply-accumulates" };
        let (share, wanted) = (left / whole.max(f64::MIN_POSITIVE), 1.0 - self.of.fraction);
        if share > wanted + MISSED {
            let gone = 100.0 * (1.0 - share);
            out.undone.push(format!(
                "asked for {asked}: {gone:.1}% of the {what} are gone, as no more {} (`passes` in the report)",
                if self.of.pays { "may go or would make the model faster here" } else { "may go" }
            ));
        }
        out.warnings.push(format!(
            "{asked} left {left} of {whole} {what} ({:.1}%). Ranks: {}; left alone: {} (see `passes` in the report)",
            100.0 * share,
            done.join(", "),
            counted(stay, "layer"),
        ));
    }
}

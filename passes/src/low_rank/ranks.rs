//! Which rank each weight gets under a budget.

use compress_compiler::error::Result;

/// A weight, as the choice sees it.
pub(super) struct Curve {
    /// What it costs as it is.
    pub whole: f64,
    /// What it costs for each rank.
    pub each: f64,
    /// The ranks that it may have, from few to many; all cost less than the whole.
    pub ranks: Vec<usize>,
    /// By how much each of them makes the answers worse.
    pub worse: Vec<f64>,
}

/// The place of a rank in [`Curve::ranks`]; none for a weight that stays whole.
pub(super) type Chosen = Option<usize>;

impl Curve {
    /// Puts what each rank misses in relation to how much the answers of the model mind that, which `noise` measures at the rank that
    /// leaves about the fraction `stays` of the cost: noise in the answers grows with it in proportion.
    ///
    /// # Errors
    /// Those of `noise`.
    pub fn weigh(&mut self, stays: f64, noise: &mut dyn FnMut(usize) -> Result<f64>) -> Result<()> {
        let few = self.ranks.iter().take_while(|rank| self.each * **rank as f64 <= stays * self.whole).count();
        let at = few.saturating_sub(1);
        if let (Some(rank), Some(missed)) = (self.ranks.get(at), self.worse.get(at)) {
            let weight = noise(*rank)? / missed.max(1e-12);
            self.worse.iter_mut().for_each(|worse| *worse *= weight);
        }
        Ok(())
    }

    fn cost(&self, chosen: Chosen) -> f64 {
        chosen.map_or(self.whole, |i| self.each * self.ranks[i] as f64)
    }

    fn worse(&self, chosen: Chosen) -> f64 {
        chosen.map_or(0.0, |i| self.worse[i])
    }

    fn cheapest(&self) -> Chosen {
        (!self.ranks.is_empty()).then_some(0)
    }

    fn choices(&self) -> impl Iterator<Item = Chosen> + '_ {
        (0..self.ranks.len()).map(Some).chain([None])
    }
}

/// What all weights cost.
pub(super) fn cost(curves: &[Curve], chosen: &[Chosen]) -> f64 {
    curves.iter().zip(chosen).map(|(curve, c)| curve.cost(*c)).sum()
}

/// Parts of the budget that costs are counted in: so many for each weight, and at most. What is left over is less than a part for
/// each weight.
const PARTS: usize = 256;
const MOST_PARTS: usize = 32_768;

/// The ranks that make the answers least worse while all weights together cost at most `budget`, or as little as they can: a knapsack
/// of which each weight takes one choice, filled weight by weight.
pub(super) fn choose(curves: &[Curve], budget: f64) -> Vec<Chosen> {
    let parts = (PARTS * curves.len()).min(MOST_PARTS);
    // For each number of parts, how much worse the answers are at least, of the weights so far.
    let mut worst = vec![0.0; parts + 1];
    let mut taken: Vec<Vec<Option<Chosen>>> = vec![];
    for curve in curves {
        let mut next = vec![f64::INFINITY; parts + 1];
        let mut by = vec![None; parts + 1];
        for choice in curve.choices() {
            let (Some(costs), worse) = (in_parts(curve.cost(choice), budget, parts), curve.worse(choice)) else {
                continue;
            };
            for (at, before) in (costs..=parts).zip(&worst) {
                if before + worse < next[at] {
                    (next[at], by[at]) = (before + worse, Some(choice));
                }
            }
        }
        worst = next;
        taken.push(by);
    }
    let mut left = parts;
    let mut chosen = vec![];
    for (curve, by) in curves.iter().zip(&taken).rev() {
        let Some(choice) = by[left] else {
            return curves.iter().map(Curve::cheapest).collect();
        };
        left -= in_parts(curve.cost(choice), budget, parts).unwrap_or(left);
        chosen.push(choice);
    }
    chosen.reverse();
    chosen
}

/// A cost in parts of the budget, rounded up; `None` beyond all.
fn in_parts(cost: f64, budget: f64, parts: usize) -> Option<usize> {
    let share = (cost / budget.max(f64::MIN_POSITIVE) * parts as f64).ceil();
    (share <= parts as f64).then_some(share as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(decay: f64) -> Curve {
        let ranks: Vec<usize> = (1..=6).map(|i| 16 * i).collect();
        let worse = ranks.iter().map(|r| (-(*r as f64) * decay).exp()).collect();
        Curve { whole: 3200.0, each: 32.0, ranks, worse }
    }

    #[test]
    fn the_budget_is_met_and_used() {
        let curves: Vec<Curve> = (1..8).map(|i| curve(0.01 * f64::from(i))).collect();
        let all = 7.0 * 3200.0;
        for part in [0.3, 0.5, 0.8, 0.95] {
            let cost = cost(&curves, &choose(&curves, part * all));
            assert!(cost <= part * all && cost >= part * all - 512.0, "{part}: {cost}");
        }
    }

    #[test]
    fn weights_stay_whole_where_that_is_enough() {
        assert_eq!(choose(&[curve(0.01), curve(0.1)], 6400.0), [None, None]);
    }

    #[test]
    fn too_little_gives_the_least() {
        assert_eq!(choose(&[curve(0.01), curve(0.1)], 10.0), [Some(0), Some(0)]);
    }

    #[test]
    fn the_best_of_few_is_that_of_a_search() {
        let curves = [curve(0.02), curve(0.05), curve(0.005)];
        let budget = 5000.0;
        let mut all: Vec<[Chosen; 3]> = vec![];
        for a in curves[0].choices() {
            for b in curves[1].choices() {
                all.extend(curves[2].choices().map(|c| [a, b, c]));
            }
        }
        let worse = |c: &[Chosen]| curves.iter().zip(c).map(|(curve, c)| curve.worse(*c)).sum::<f64>();
        let best =
            all.iter().filter(|c| cost(&curves, &c[..]) <= budget).map(|c| worse(c)).fold(f64::INFINITY, f64::min);
        assert!((worse(&choose(&curves, budget)) - best).abs() < 1e-9);
    }
}

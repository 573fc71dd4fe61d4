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

    fn choices(&self) -> impl Iterator<Item = Chosen> + '_ {
        (0..self.ranks.len()).map(Some).chain([None])
    }

    /// The best where a unit of cost is worth `price`.
    fn at(&self, price: f64) -> Chosen {
        let sum = |c: &Chosen| self.worse(*c) + price * self.cost(*c);
        self.choices().min_by(|a, b| sum(a).total_cmp(&sum(b))).flatten()
    }
}

/// What all weights cost.
pub(super) fn cost(curves: &[Curve], chosen: &[Chosen]) -> f64 {
    curves.iter().zip(chosen).map(|(curve, c)| curve.cost(*c)).sum()
}

/// The ranks that make the answers least worse while all weights together cost at most `budget`, or as little as they can. The same
/// price of a unit of cost holds for all (Lagrange), then what is left of the budget goes where it helps most.
pub(super) fn choose(curves: &[Curve], budget: f64) -> Vec<Chosen> {
    let at = |price: f64| curves.iter().map(|curve| curve.at(price)).collect::<Vec<_>>();
    let within = |chosen: &[Chosen]| cost(curves, chosen) <= budget;
    let none = vec![None; curves.len()];
    if within(&none) {
        return none;
    }
    // Prices that are far too low and far too high, whatever the units.
    let (mut low, mut high) = (-60.0, 60.0);
    for _ in 0..64 {
        let middle = f64::midpoint(low, high);
        if within(&at(f64::exp2(middle))) { high = middle } else { low = middle }
    }
    let mut chosen = at(f64::exp2(high));
    while let Some((i, better)) = upgrade(curves, &chosen, budget) {
        chosen[i] = better;
    }
    chosen
}

/// The change for the better that is worth most for what it costs, of those that the budget allows.
fn upgrade(curves: &[Curve], chosen: &[Chosen], budget: f64) -> Option<(usize, Chosen)> {
    let left = budget - cost(curves, chosen);
    let mut best = (0.0, None);
    for (i, (curve, now)) in curves.iter().zip(chosen).enumerate() {
        for to in curve.choices() {
            let (costs, helps) = (curve.cost(to) - curve.cost(*now), curve.worse(*now) - curve.worse(to));
            let worth = helps / costs.max(f64::MIN_POSITIVE);
            if costs <= left && helps > 0.0 && worth > best.0 {
                best = (worth, Some((i, to)));
            }
        }
    }
    best.1
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
            let chosen = choose(&curves, part * all);
            let cost = cost(&curves, &chosen);
            assert!(cost <= part * all && cost >= part * all - 512.0, "{part}: {cost}");
            // What is forgotten fastest gets the lowest rank.
            let ranks: Vec<usize> = chosen.iter().map(|c| c.map_or(100, |i| i)).collect();
            assert!(ranks.is_sorted_by(|a, b| a >= b), "{ranks:?}");
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
        let all: Vec<[Chosen; 3]> = curves[0]
            .choices()
            .flat_map(|a| {
                curves[1].choices().flat_map(move |b| curves[2].choices().map(move |c| [a, b, c])).collect::<Vec<_>>()
            })
            .collect();
        let worse = |c: &[Chosen]| curves.iter().zip(c).map(|(curve, c)| curve.worse(*c)).sum::<f64>();
        let best =
            all.iter().filter(|c| cost(&curves, &c[..]) <= budget).map(|c| worse(c)).fold(f64::INFINITY, f64::min);
        assert!(worse(&choose(&curves, budget)) <= 1.1 * best);
    }
}

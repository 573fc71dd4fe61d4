//! What a way to quantise costs, and what it may cost.

use compress_compiler::judge::{Likeness, decibels};

/// What the answers have to keep. Without any figure it is [`USUAL_DB`], as far as that costs little of what INT8 gains.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Goal {
    /// Signal to noise, in decibels.
    pub sqnr_db: Option<f64>,
    /// The most that the metric may drop.
    pub drop: Option<f64>,
}

/// Signal to noise that is enough where nobody asked for more.
pub(super) const USUAL_DB: f64 = 30.0;

/// The samples that are searched on flatter what was found on them: a goal has to hold by this margin.
const MARGIN_DB: f64 = 1.0;

/// Below this, answers are of little use, and remedies may cost anything.
const USABLE_DB: f64 = 20.0;

/// Part of the gain, in time and in size, that remedies may cost where nobody asked for more accuracy.
const MOST_COST: f64 = 0.1;

/// They may cost a tenth of the speed-up too, but no more than this part of the gain in time.
const MOST_OF_TIME: f64 = 0.2;

/// A gain in time of a smaller part can't be told from none.
const LEAST_GAIN: f64 = 0.05;

/// What is given up of a smaller gain in time is counted as if it were so large: else next to nothing would count as much.
const TELLING_GAIN: f64 = 0.2;

impl Goal {
    fn is_asked(&self) -> bool {
        *self != Self::default()
    }

    /// The signal to noise that the goal is about: of the worst output if it was asked for, since a gate looks at that.
    pub(super) fn db(&self, likeness: &Likeness) -> f64 {
        decibels(if self.is_asked() { likeness.worst } else { likeness.noise })
    }

    /// Whether the answers fall short, on the samples that are judged, of the goal itself.
    pub(super) fn is_missed(&self, likeness: &Likeness) -> bool {
        !self.is_reached(likeness) && (self.is_asked() || self.db(likeness) < USUAL_DB)
    }

    pub(super) fn is_reached(&self, likeness: &Likeness) -> bool {
        let wanted = if self.is_asked() { self.sqnr_db } else { Some(USUAL_DB) };
        wanted.is_none_or(|db| self.db(likeness) >= db + MARGIN_DB)
            && self.drop.is_none_or(|most| likeness.drop.is_some_and(|drop| drop <= most))
    }
}

/// What a way takes, in parts of what the floats do.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cost {
    pub time: f64,
    pub size: f64,
}

/// What a remedy may cost at a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Price {
    /// It costs nothing.
    None,
    /// No more than [`Limits::is_dear`] says.
    Little,
    /// The same, or anything as long as a goal that was asked for is not reached or the answers are of little use.
    Any,
}

/// How far a way has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Standing {
    /// It costs more than it may.
    TooDear,
    /// Its answers are of little use, or not what was asked for.
    Short,
    /// It costs more than a little, and its answers are of use.
    Dear,
    /// It costs little, and its answers are of use.
    Near,
    /// It keeps what it has to.
    Reached,
}

/// What a search wants, and what that may cost.
pub(super) struct Limits {
    pub goal: Goal,
    /// What it takes to run every layer that can be in codes so.
    start: Cost,
}

impl Limits {
    pub fn new(goal: Goal, start: Cost) -> Self {
        Self { goal, start }
    }

    /// The part of what quantisation gains that a way gives up, in time and in size.
    pub fn given_up(&self, cost: Cost) -> f64 {
        self.time(cost) + self.size(cost)
    }

    fn time(&self, cost: Cost) -> f64 {
        (cost.time - self.start.time) / (1.0 - self.start.time).max(TELLING_GAIN)
    }

    fn size(&self, cost: Cost) -> f64 {
        (cost.size - self.start.size) / (1.0 - self.start.size).max(LEAST_GAIN)
    }

    pub fn is_dear(&self, cost: Cost) -> bool {
        cost.time > self.start.time + self.most_time() || self.size(cost) > MOST_COST
    }

    /// The time that remedies may cost where nobody asked for more accuracy, in parts of that of the floats.
    fn most_time(&self) -> f64 {
        let gain = (1.0 - self.start.time).max(LEAST_GAIN);
        let slower = self.start.time / (1.0 - MOST_COST) - self.start.time;
        if gain > LEAST_GAIN { slower.clamp(MOST_COST * gain, MOST_OF_TIME * gain) } else { MOST_COST * gain }
    }

    /// The part of the gain that may be given up in time.
    fn most_given_up(&self) -> f64 {
        self.most_time() / (1.0 - self.start.time).max(TELLING_GAIN)
    }

    /// Whether a way with this prediction would reach the goal, or give up all that it may.
    pub fn may_be_enough(&self, db: f64, given_up: f64) -> bool {
        let wanted = self.goal.sqnr_db.unwrap_or(USUAL_DB) + MARGIN_DB;
        db >= wanted || !self.goal.is_asked() && given_up > self.most_given_up() && db >= USABLE_DB
    }

    /// How far a way has come that a remedy of this price made.
    pub fn standing(&self, likeness: &Likeness, cost: Cost, price: Price) -> Standing {
        let (is_reached, is_dear) = (self.goal.is_reached(likeness), self.is_dear(cost));
        match price {
            Price::Little if is_dear => Standing::TooDear,
            _ if is_reached && (!is_dear || self.goal.is_asked()) => Standing::Reached,
            _ if self.goal.is_asked() || likeness.sqnr_db() < USABLE_DB => Standing::Short,
            _ if is_dear => Standing::Dear,
            _ => Standing::Near,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(time: f64, size: f64) -> Cost {
        Cost { time, size }
    }

    fn at(db: f64) -> Likeness {
        let noise = 10f64.powf(-db / 10.0);
        Likeness { noise, worst: noise, inner: noise, strong: noise, typical: noise, drop: None }
    }

    #[test]
    fn a_tenth_of_the_gain_may_be_given_up_in_time_and_in_size() {
        let limits = Limits::new(Goal::default(), cost(0.5, 0.3));
        assert!(!limits.is_dear(cost(0.54, 0.36)));
        assert!(limits.is_dear(cost(0.56, 0.3)), "time");
        assert!(limits.is_dear(cost(0.5, 0.38)), "size");
        assert!((limits.given_up(cost(1.0, 1.0)) - 2.0).abs() < 1e-9, "floats give up all");
    }

    #[test]
    fn a_tenth_of_a_small_speed_up_is_a_fifth_of_the_gain_at_most() {
        let limits = Limits::new(Goal::default(), cost(0.57, 0.3));
        assert!(!limits.is_dear(cost(0.63, 0.3)), "1.75x becomes 1.58x");
        assert!(limits.is_dear(cost(0.64, 0.3)));
        let limits = Limits::new(Goal::default(), cost(0.8, 0.3));
        assert!(!limits.is_dear(cost(0.839, 0.3)) && limits.is_dear(cost(0.841, 0.3)));
    }

    #[test]
    fn floats_that_are_faster_than_codes_don_t_pay_for_their_size() {
        let limits = Limits::new(Goal::default(), cost(1.09, 0.36));
        assert!(limits.is_dear(cost(0.9, 0.8)), "faster floats don't pay for the size");
        assert!(!limits.is_dear(cost(1.09, 0.4)));
        assert!(limits.is_dear(cost(1.2, 0.4)), "but no way may be slower yet");
    }

    #[test]
    fn answers_of_little_use_may_cost_anything() {
        let limits = Limits::new(Goal::default(), cost(0.5, 0.3));
        let (little, much) = (cost(0.52, 0.3), cost(0.8, 0.6));
        assert_eq!(limits.standing(&at(12.0), much, Price::Any), Standing::Short);
        assert_eq!(limits.standing(&at(12.0), much, Price::Little), Standing::TooDear);
        assert_eq!(limits.standing(&at(25.0), much, Price::Any), Standing::Dear);
        assert_eq!(limits.standing(&at(25.0), little, Price::Any), Standing::Near);
        assert_eq!(limits.standing(&at(32.0), little, Price::Any), Standing::Reached);
        assert_eq!(limits.standing(&at(32.0), much, Price::Any), Standing::Dear, "nobody asked for it");
    }

    #[test]
    fn a_goal_that_was_asked_for_holds_in_the_worst_output_at_any_cost() {
        let limits = Limits::new(Goal { sqnr_db: Some(25.0), drop: None }, cost(0.5, 0.3));
        let much = cost(0.9, 0.9);
        assert_eq!(limits.standing(&at(26.5), much, Price::Any), Standing::Reached);
        assert_eq!(limits.standing(&at(25.5), much, Price::Any), Standing::Short, "by a margin");
        let uneven = Likeness { worst: 0.01, ..at(40.0) };
        assert_eq!(limits.standing(&uneven, much, Price::Any), Standing::Short);
    }
}

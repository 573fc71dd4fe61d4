//! Speculative decoding: a small model, the draft, guesses tokens one by one, and the model reads all guesses in one run.
//!
//! Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding (2023), algorithm 1. A guess that the
//! model would have made with a lower probability than the draft is rejected by chance, and replaced: the text has exactly
//! the distribution of the model's own.

use compress_compiler::error::{Error, Result};
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// How a token is chosen by its scores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Choosing {
    /// The one with the highest score, the first of equals.
    Greedy,
    /// At random, with the probabilities that the scores give after a division by the temperature.
    Sampling {
        /// 1 leaves the model's probabilities as they are; more makes rare tokens more probable.
        temperature: f64,
    },
}

/// Scores of the tokens that may follow each token that was read.
pub struct Scores {
    words: usize,
    values: Vec<f32>,
}

impl Scores {
    /// Of `words` values a token.
    pub fn new(words: usize, values: Vec<f32>) -> Self {
        Self { words, values }
    }

    /// Of the last `count` tokens.
    fn last(&self, count: usize) -> Result<impl Iterator<Item = &[f32]>> {
        let rows = self.values.len().checked_div(self.words).unwrap_or(0);
        let from = rows.checked_sub(count).ok_or_else(|| Error::bug("fewer scores than tokens"))?;
        Ok(self.values[from * self.words..].chunks_exact(self.words.max(1)))
    }
}

/// A model that reads a text token by token, and remembers it.
pub trait Decodes {
    /// How many tokens it has read.
    fn tokens(&self) -> usize;

    /// Reads on, and returns the scores behind each of these tokens.
    ///
    /// # Errors
    /// What running the model raises.
    fn read(&mut self, tokens: &[i64]) -> Result<Scores>;

    /// Forgets all but the first `tokens` tokens.
    ///
    /// # Errors
    /// What cutting its cache raises.
    fn keep(&mut self, tokens: usize) -> Result<()>;
}

/// Random numbers that follow from a seed, on every machine.
pub fn random(seed: u64) -> impl RngCore {
    ChaCha8Rng::seed_from_u64(seed)
}

/// Probabilities of the tokens of a vocabulary.
type Chances = Vec<f64>;

impl Choosing {
    /// The probabilities that it makes of scores.
    ///
    /// # Errors
    /// Data for scores that are not numbers.
    fn chances(self, scores: &[f32]) -> Result<Chances> {
        let mut best = 0;
        for (i, score) in scores.iter().enumerate() {
            if score.is_nan() || *score == f32::INFINITY {
                return Err(Error::data("a score of a next token is not a number"));
            }
            if *score > scores[best] {
                best = i;
            }
        }
        let top = f64::from(*scores.get(best).ok_or_else(|| Error::data("a decoder without words"))?);
        if top == f64::NEG_INFINITY {
            return Err(Error::data("no next token is possible"));
        }
        let mut chances: Chances = match self {
            Self::Greedy => (0..scores.len()).map(|i| f64::from(u8::from(i == best))).collect(),
            Self::Sampling { temperature } => {
                scores.iter().map(|s| ((f64::from(*s) - top) / temperature).exp()).collect()
            }
        };
        let all: f64 = chances.iter().sum();
        chances.iter_mut().for_each(|chance| *chance /= all);
        Ok(chances)
    }
}

/// A token with these weights, which need not sum to 1.
fn drawn(weights: &[f64], random: &mut dyn RngCore) -> usize {
    let mut left = random.random::<f64>() * weights.iter().sum::<f64>();
    let mut last = 0;
    for (token, weight) in weights.iter().enumerate().filter(|(_, weight)| **weight > 0.0) {
        if left < *weight {
            return token;
        }
        left -= weight;
        last = token;
    }
    // Rounding may leave a rest.
    last
}

/// What the model makes of a guess of the draft.
enum Verdict {
    Accepted,
    /// The token in its place.
    Replaced(usize),
}

/// Judges `guess`, which the draft drew from `drafted`, where the model would draw from `own`.
fn judged(guess: usize, drafted: &[f64], own: &[f64], random: &mut dyn RngCore) -> Verdict {
    if random.random::<f64>() * drafted[guess] < own[guess] {
        return Verdict::Accepted;
    }
    let rest: Chances = own.iter().zip(drafted).map(|(own, drafted)| (own - drafted).max(0.0)).collect();
    // Nothing is left where both are equal but for rounding.
    let weights = if rest.iter().any(|weight| *weight > 0.0) { &rest } else { own };
    Verdict::Replaced(drawn(weights, random))
}

/// What became of guesses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Guesses of the draft that the model judged: those behind a rejected one it doesn't.
    pub judged: usize,
    /// Those that it accepted.
    pub accepted: usize,
    /// Runs of the model.
    pub runs: usize,
    /// Tokens that were made.
    pub tokens: usize,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.judged += other.judged;
        self.accepted += other.accepted;
        self.runs += other.runs;
        self.tokens += other.tokens;
    }
}

/// Has `model` read the part of `text` that it doesn't know yet, and returns its probabilities behind the last `count` tokens.
fn read(model: &mut dyn Decodes, text: &[i64], count: usize, choosing: Choosing) -> Result<Vec<Chances>> {
    let new = text.get(model.tokens()..).filter(|new| new.len() >= count);
    let new = new.ok_or_else(|| Error::bug("a decoder has read tokens that were taken back"))?;
    model.read(new)?.last(count)?.map(|scores| choosing.chances(scores)).collect()
}

/// Has `model` continue `text`, which has a token at least, by `count` tokens, one in each run.
///
/// # Errors
/// What reading raises; data for scores that are not numbers.
pub fn decode(
    model: &mut dyn Decodes,
    text: &mut Vec<i64>,
    count: usize,
    choosing: Choosing,
    random: &mut dyn RngCore,
) -> Result<()> {
    for _ in 0..count {
        let own = read(model, text, 1, choosing)?;
        text.push(drawn(&own[0], random) as i64);
    }
    Ok(())
}

/// Has `model` continue `text`, which has a token at least, by `count` tokens, of which `draft` guesses up to `ahead` before each
/// run of the model. Greedily, that is the text of [`decode`]; by chance it has the same distribution.
///
/// # Errors
/// What reading raises; data for scores that are not numbers, and for vocabularies of two sizes.
pub fn speculate(
    (model, draft): (&mut dyn Decodes, &mut dyn Decodes),
    text: &mut Vec<i64>,
    (count, ahead): (usize, usize),
    choosing: Choosing,
    random: &mut dyn RngCore,
) -> Result<Tally> {
    let end = text.len() + count;
    let mut tally = Tally { tokens: count, ..Tally::default() };
    while text.len() < end {
        let known = text.len();
        // The run of the model makes one token by itself.
        let guesses = ahead.min(end - known - 1);
        let mut drafted = Vec::with_capacity(guesses);
        for _ in 0..guesses {
            let chances = read(draft, text, 1, choosing)?.remove(0);
            text.push(drawn(&chances, random) as i64);
            drafted.push(chances);
        }
        let own = read(model, text, guesses + 1, choosing)?;
        tally.runs += 1;
        if drafted.iter().any(|drafted| drafted.len() != own[0].len()) {
            return Err(Error::data(format!(
                "the draft knows {} tokens, the model {}",
                drafted[0].len(),
                own[0].len()
            ))
            .help("both have to be trained with the same tokenizer"));
        }
        let mut next = None;
        for (i, drafted) in drafted.iter().enumerate() {
            tally.judged += 1;
            match judged(text[known + i] as usize, drafted, &own[i], random) {
                Verdict::Accepted => tally.accepted += 1,
                Verdict::Replaced(token) => {
                    text.truncate(known + i);
                    next = Some(token);
                    break;
                }
            }
        }
        let next = next.unwrap_or_else(|| drawn(&own[guesses], random));
        model.keep(text.len())?;
        draft.keep(text.len())?;
        text.push(next as i64);
    }
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{Just, Strategy, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};

    /// A model whose next token depends on the last two tokens by a table of scores.
    struct Table<'a> {
        words: usize,
        scores: &'a [f32],
        text: Vec<i64>,
    }

    impl<'a> Table<'a> {
        fn new(words: usize, scores: &'a [f32]) -> Self {
            Self { words, scores, text: vec![] }
        }
    }

    impl Decodes for Table<'_> {
        fn tokens(&self) -> usize {
            self.text.len()
        }

        fn read(&mut self, tokens: &[i64]) -> Result<Scores> {
            let mut values = vec![];
            for token in tokens {
                self.text.push(*token);
                let before = self.text.len().checked_sub(2).map_or(0, |i| self.text[i]);
                let row = before as usize * self.words + *token as usize;
                values.extend_from_slice(&self.scores[row * self.words..][..self.words]);
            }
            Ok(Scores::new(self.words, values))
        }

        fn keep(&mut self, tokens: usize) -> Result<()> {
            self.text.truncate(tokens);
            Ok(())
        }
    }

    const WORDS: usize = 3;
    const SCORES: usize = WORDS * WORDS * WORDS;

    fn tables() -> impl Strategy<Value = (Vec<f32>, Vec<f32>)> {
        let scores = || prop::collection::vec(prop_oneof![-3f32..3.0, Just(f32::NEG_INFINITY)], SCORES);
        (scores(), scores()).prop_map(|(mut a, mut b)| {
            // Something has to be possible behind each token.
            for scores in [&mut a, &mut b] {
                scores.chunks_exact_mut(WORDS).for_each(|row| row[0] = row[0].max(-3.0));
            }
            (a, b)
        })
    }

    /// The chance of each token that follows a guess, by the rule that judges: all ways to come to it, added up.
    fn chances_of_a_judged_guess(drafted: &[f64], own: &[f64]) -> Chances {
        let kept: Chances = own.iter().zip(drafted).map(|(own, drafted)| own.min(*drafted)).collect();
        let rest: Chances = own.iter().zip(drafted).map(|(own, drafted)| (own - drafted).max(0.0)).collect();
        let (rejected, all) = (1.0 - kept.iter().sum::<f64>(), rest.iter().sum::<f64>());
        let by_chance = |rest: f64| if all > 0.0 { rejected * rest / all } else { 0.0 };
        kept.iter().zip(&rest).map(|(kept, rest)| kept + by_chance(*rest)).collect()
    }

    /// The statistic of Pearson's test of counts against chances, and its degrees of freedom.
    fn chi_squared(counts: &[usize], chances: &[f64]) -> (f64, usize) {
        let all: usize = counts.iter().sum();
        let terms = counts.iter().zip(chances).filter(|(_, chance)| **chance > 0.0).map(|(count, chance)| {
            let expected = chance * all as f64;
            (*count as f64 - expected).powi(2) / expected
        });
        let terms: Vec<f64> = terms.collect();
        (terms.iter().sum(), terms.len().saturating_sub(1))
    }

    /// The chance of each text of `count` tokens behind token 0, as the model alone makes them.
    fn chances_of_texts(scores: &[f32], count: usize, choosing: Choosing) -> Chances {
        let texts = WORDS.pow(count as u32);
        let of = |text: usize| {
            let tokens: Vec<i64> = (0..count).map(|i| (text / WORDS.pow(i as u32) % WORDS) as i64).collect();
            let mut model = Table::new(WORDS, scores);
            let mut chance = 1.0;
            for (last, next) in [0].iter().chain(&tokens).zip(&tokens) {
                let made = model.read(&[*last]).expect("a table reads");
                let row = made.last(1).expect("a row").next().expect("a row");
                chance *= choosing.chances(row).expect("numbers")[*next as usize];
            }
            chance
        };
        (0..texts).map(of).collect()
    }

    proptest! {
        #[test]
        fn a_judged_guess_has_the_distribution_of_the_model((a, b) in tables(), temperature in 0.3f64..3.0) {
            let choosing = Choosing::Sampling { temperature };
            for (own, drafted) in a.chunks_exact(WORDS).zip(b.chunks_exact(WORDS)) {
                let (own, drafted) = (choosing.chances(own)?, choosing.chances(drafted)?);
                for (made, own) in chances_of_a_judged_guess(&drafted, &own).iter().zip(&own) {
                    prop_assert!((made - own).abs() < 1e-12);
                }
            }
        }

        #[test]
        fn greedily_a_draft_changes_nothing((a, b) in tables(), ahead in 0usize..6, count in 0usize..20, seed: u64) {
            let random = &mut random(seed);
            let (mut alone, mut drafted) = (vec![0, 1], vec![0, 1]);
            decode(&mut Table::new(WORDS, &a), &mut alone, count, Choosing::Greedy, random)?;
            let both: (&mut dyn Decodes, &mut dyn Decodes) = (&mut Table::new(WORDS, &a), &mut Table::new(WORDS, &b));
            let tally = speculate(both, &mut drafted, (count, ahead), Choosing::Greedy, random)?;
            prop_assert_eq!(alone, drafted);
            prop_assert_eq!(tally.tokens, count);
            // A run makes one token of its own, and keeps what it accepts.
            prop_assert_eq!(tally.runs + tally.accepted, count);
        }

        #[test]
        fn a_model_accepts_all_of_its_own_guesses((a, _) in tables(), seed: u64) {
            let random = &mut random(seed);
            let both: (&mut dyn Decodes, &mut dyn Decodes) = (&mut Table::new(WORDS, &a), &mut Table::new(WORDS, &a));
            let tally = speculate(both, &mut vec![0], (12, 3), Choosing::Sampling { temperature: 1.0 }, random)?;
            prop_assert_eq!(tally, Tally { judged: 9, accepted: 9, runs: 3, tokens: 12 });
        }
    }

    #[test]
    fn texts_have_the_distribution_of_the_model() {
        const TOKENS: usize = 4;
        const TEXTS: usize = 40_000;
        let random = &mut random(7);
        for case in 0..6 {
            let scores =
                |random: &mut dyn RngCore| (0..SCORES).map(|_| random.random_range(-2f32..2.0)).collect::<Vec<_>>();
            let (a, b) = (scores(random), scores(random));
            let choosing = Choosing::Sampling { temperature: [0.7, 1.0, 1.5][case % 3] };
            let mut counts = vec![0; WORDS.pow(TOKENS as u32)];
            for _ in 0..TEXTS {
                let mut text = vec![0];
                let both: (&mut dyn Decodes, &mut dyn Decodes) =
                    (&mut Table::new(WORDS, &a), &mut Table::new(WORDS, &b));
                speculate(both, &mut text, (TOKENS, 1 + case % 3), choosing, random).expect("tables decode");
                let number = text[1..].iter().rev().fold(0, |n, token| n * WORDS + *token as usize);
                counts[number] += 1;
            }
            let (far, free) = chi_squared(&counts, &chances_of_texts(&a, TOKENS, choosing));
            // Six standard deviations of the statistic above its mean.
            let bound = free as f64 + 6.0 * (2.0 * free as f64).sqrt();
            assert!(far < bound, "case {case}: {far} against {bound}");
            let (as_draft, _) = chi_squared(&counts, &chances_of_texts(&b, TOKENS, choosing));
            assert!(as_draft > bound, "case {case} can't tell the draft from the model");
        }
    }

    #[test]
    fn scores_that_are_not_numbers_are_refused() {
        for scores in [[f32::NAN, 0.0], [f32::INFINITY, 0.0], [f32::NEG_INFINITY; 2]] {
            assert!(Choosing::Greedy.chances(&scores).is_err());
        }
        assert!(Choosing::Greedy.chances(&[]).is_err());
    }

    #[test]
    fn vocabularies_of_two_sizes_are_refused() {
        let (small, large) = ([0.0; 8], [0.0; 27]);
        let both: (&mut dyn Decodes, &mut dyn Decodes) = (&mut Table::new(3, &large), &mut Table::new(2, &small));
        let made = speculate(both, &mut vec![0], (4, 2), Choosing::Greedy, &mut random(0));
        let message = made.expect_err("they differ").to_string();
        assert!(message.contains("the draft knows 2 tokens, the model 3"), "{message}");
    }
}

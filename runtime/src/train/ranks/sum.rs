//! Sums what a batch teaches over all ranks, while they still compute.
//!
//! Gradients come in the order in which the backward pass finds them, the last layers first. Several make a bucket. Of a bucket that is
//! complete, each rank gets one segment from all others, sums it, and sends the sum to all (reduce-scatter and all-gather): so a rank sends
//! and receives twice its gradients, whatever the number of ranks. Sums are taken in a tree whose shape depends on the number of parts
//! alone.

use super::{Exchange, LONGEST_SLEEP, Lane, MOST_OF_A_MESSAGE, PATIENCE, Team, Waiting};
use compress_compiler::{
    error::{Error, Result},
    words::option::LORA,
};
use std::{
    ops::Range,
    sync::mpsc::{Receiver, RecvTimeoutError},
};

/// Bytes that make a bucket, and those of each rank's segment where there are so many ranks that messages would be small.
const BUCKET: usize = 256 << 10;
const SEGMENT: usize = 64 << 10;
/// Parts of a loss at most.
const TERMS: usize = 16;

/// What the first rank decides, told with every batch; any rank may stop the job.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Word {
    /// Seconds that the job has run for, earlier runs included.
    pub seconds: f64,
    /// Whether the user asked to stop.
    pub stops: bool,
    /// Whether it is time for a checkpoint.
    pub saves: bool,
}

/// A loss, and its terms before their weights.
pub type LossAndTerms = (f64, Vec<f32>);

/// What ranks tell each other of a batch besides what they sum.
pub struct Taught {
    /// The loss and its parts, in proportion to the samples; `None` when it was not a number.
    pub loss: Option<LossAndTerms>,
    pub word: Word,
    /// Whether there is an error, which is told next.
    pub failed: bool,
}

/// Something to sum that a part of the batch found: which, by which of the rank's parts, and the numbers, `None` where the loss doesn't
/// depend on it.
pub struct Arrived {
    pub item: usize,
    pub part: usize,
    pub values: Option<Vec<f32>>,
}

/// The things that are summed, in the order in which they come.
#[derive(Debug, Clone)]
pub struct Layout {
    /// The numbers of each, one behind the other.
    places: Vec<Range<usize>>,
    /// The items of each bucket.
    buckets: Vec<Range<usize>>,
}

impl Layout {
    /// Items of so many numbers, for so many ranks.
    ///
    /// # Errors
    /// Limit where a rank would get more of a bucket than MPI can count.
    pub fn of(sizes: impl IntoIterator<Item = usize>, ranks: usize) -> Result<Self> {
        let enough = BUCKET.max(ranks * SEGMENT);
        let (mut places, mut buckets): (Vec<Range<usize>>, Vec<Range<usize>>) = (vec![], vec![]);
        let (mut end, mut begun) = (0, 0);
        for size in sizes {
            places.push(end..end + size);
            end += size;
            if (end - places[begun].start) * size_of::<f32>() >= enough {
                buckets.push(begun..places.len());
                begun = places.len();
            }
        }
        if begun < places.len() {
            buckets.push(begun..places.len());
        }
        let this = Self { places, buckets };
        let segments = (0..this.buckets.len()).map(|bucket| this.numbers(bucket).len().div_ceil(ranks));
        let most = size_of::<f32>() * segments.max().unwrap_or(0);
        if ranks > 1 && most > MOST_OF_A_MESSAGE {
            let what = format!(
                "the gradient of a weight has {most} bytes for each of {ranks} ranks, and MPI sends {MOST_OF_A_MESSAGE} at most"
            );
            return Err(Error::limit(what).help(format!("start more ranks, or train low-rank updates with {LORA}")));
        }
        Ok(this)
    }

    fn numbers(&self, bucket: usize) -> Range<usize> {
        let items = &self.buckets[bucket];
        self.places[items.start].start..self.places[items.end - 1].end
    }
}

/// The sum of several, in a tree: any power of two that stand side by side have the same sum wherever they are summed.
///
/// # Errors
/// Those of `add`.
pub fn in_tree<T>(mut items: Vec<T>, add: &dyn Fn(T, T) -> Result<T>) -> Result<Option<T>> {
    if items.len() < 2 {
        return Ok(items.pop());
    }
    let right = items.split_off(items.len().next_power_of_two() / 2);
    match (in_tree(items, add)?, in_tree(right, add)?) {
        (Some(a), Some(b)) => add(a, b).map(Some),
        (a, b) => Ok(a.or(b)),
    }
}

fn added(mut a: Vec<f32>, b: Vec<f32>) -> Result<Vec<f32>> {
    a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
    Ok(a)
}

/// Where a bucket is.
enum State {
    /// So many of its items are yet to come.
    Filling(usize),
    /// This rank's segment is on its way here.
    Gathering(Box<dyn Exchange>),
    /// The sums are.
    Sharing(Box<dyn Exchange>),
    Done,
}

/// A sum over all ranks.
pub struct Summing<'a> {
    team: &'a Team,
    layout: &'a Layout,
    /// What came of each item, by part.
    arrived: Vec<Vec<Option<Option<Vec<f32>>>>>,
    present: Vec<bool>,
    numbers: Vec<f32>,
    states: Vec<State>,
}

impl<'a> Summing<'a> {
    pub fn new(team: &'a Team, layout: &'a Layout, parts: usize) -> Self {
        let filling = |items: &Range<usize>| State::Filling(items.len() * parts);
        Self {
            team,
            layout,
            arrived: layout.places.iter().map(|_| (0..parts).map(|_| None).collect()).collect(),
            present: vec![false; layout.places.len()],
            numbers: vec![0.0; layout.places.last().map_or(0, |place| place.end)],
            states: layout.buckets.iter().map(filling).collect(),
        }
    }

    /// Sums what comes until nothing more does, tells the others what was `taught` then, and waits until all ranks have all: the sum of
    /// each item, `None` where no rank has it, and what the ranks were taught together.
    ///
    /// # Errors
    /// Device when a rank is lost, or the transport fails; a bug when something never came.
    pub fn run(
        mut self,
        from: &Receiver<Arrived>,
        taught: &Receiver<Taught>,
    ) -> Result<(Vec<Option<Vec<f32>>>, Taught)> {
        loop {
            self.advance()?;
            match from.recv_timeout(if self.is_exchanging() { LONGEST_SLEEP } else { PATIENCE }) {
                Ok(arrived) => self.put(arrived)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let taught = taught.recv().map_err(|_| Error::bug("a rank was taught nothing"))?;
        if taught.failed {
            self.give_up();
        }
        if self.states.iter().any(|state| matches!(state, State::Filling(missing) if *missing > 0)) {
            return Err(Error::bug("a part of a batch gave not all gradients"));
        }
        let mut telling = self.tell(&taught)?;
        let mut told = None;
        let mut waiting = Waiting::in_step();
        loop {
            if told.is_none() {
                told = telling.received()?;
            }
            let moved = self.advance()?;
            match &told {
                Some(told) if self.states.iter().all(|state| matches!(state, State::Done)) => return self.ended(told),
                _ if moved => waiting.moved(),
                _ => waiting.sleep(|| self.missing(&*telling))?,
            }
        }
    }

    /// The ranks that this one waits for.
    fn missing(&self, telling: &dyn Exchange) -> Vec<usize> {
        let exchanges = self.states.iter().filter_map(|state| match state {
            State::Gathering(exchange) | State::Sharing(exchange) => Some(&**exchange),
            State::Filling(_) | State::Done => None,
        });
        exchanges.chain([telling]).flat_map(Exchange::missing).collect()
    }

    /// What did not come never will.
    fn give_up(&mut self) {
        self.states
            .iter_mut()
            .filter(|state| matches!(state, State::Filling(_)))
            .for_each(|state| *state = State::Filling(0));
    }

    fn is_exchanging(&self) -> bool {
        self.states.iter().any(|state| matches!(state, State::Gathering(_) | State::Sharing(_)))
    }

    fn put(&mut self, Arrived { item, part, values }: Arrived) -> Result<()> {
        let bucket = self.layout.buckets.partition_point(|items| items.end <= item);
        let slot = self.arrived.get_mut(item).and_then(|parts| parts.get_mut(part)).filter(|slot| slot.is_none());
        match (slot, self.states.get_mut(bucket)) {
            (Some(slot), Some(State::Filling(missing))) if *missing > 0 => {
                *slot = Some(values);
                *missing -= 1;
            }
            _ => return Err(Error::bug(format!("gradient {item} of part {part} came twice"))),
        }
        if self.arrived[item].iter().all(Option::is_some) {
            let found = self.arrived[item].drain(..).flatten().flatten().collect();
            if let Some(sum) = in_tree(found, &added)? {
                self.present[item] = true;
                self.numbers[self.layout.places[item].clone()].copy_from_slice(&sum);
            }
        }
        Ok(())
    }

    /// Goes on with each bucket as far as it can. On a lane all ranks begin with the first bucket and go on in order.
    fn advance(&mut self) -> Result<bool> {
        let Some(ranks) = &self.team.ranks else { return Err(Error::bug("one rank sums with nobody")) };
        let (me, n) = (ranks.rank(), ranks.count());
        let (mut moved, mut may_gather, mut may_share) = (false, true, true);
        for bucket in 0..self.states.len() {
            let numbers = self.layout.numbers(bucket);
            let segment = |i: usize| i * numbers.len() / n..(i + 1) * numbers.len() / n;
            let bytes = |range: Range<usize>| range.start * size_of::<f32>()..range.end * size_of::<f32>();
            let next = match &mut self.states[bucket] {
                State::Filling(0) if may_gather => {
                    let all = bytemuck::cast_slice(&self.numbers[numbers.clone()]).to_vec();
                    let parts: Vec<Range<usize>> = (0..n).map(|i| bytes(segment(i))).collect();
                    let own = bytes(segment(me)).len();
                    Some(State::Gathering(ranks.exchange(Lane::Gradients, all, &parts, &vec![own; n])?))
                }
                State::Gathering(exchange) if may_share => match exchange.received()? {
                    Some(received) => {
                        let own = bytes(segment(me)).len();
                        let floats = |piece: &[u8]| bytemuck::pod_collect_to_vec::<u8, f32>(piece);
                        // A bucket of fewer numbers than ranks has empty segments.
                        let each = (0..n).map(|i| floats(&received[i * own..(i + 1) * own])).collect();
                        let sum = in_tree(each, &added)?.unwrap_or_default();
                        let expected: Vec<usize> = (0..n).map(|i| bytes(segment(i)).len()).collect();
                        let sum = bytemuck::cast_slice(&sum).to_vec();
                        let parts = vec![0..sum.len(); n];
                        Some(State::Sharing(ranks.exchange(Lane::Sums, sum, &parts, &expected)?))
                    }
                    None => None,
                },
                State::Sharing(exchange) => match exchange.received()? {
                    Some(received) => {
                        self.numbers[numbers.clone()]
                            .copy_from_slice(&bytemuck::pod_collect_to_vec::<u8, f32>(&received));
                        Some(State::Done)
                    }
                    None => None,
                },
                State::Filling(_) | State::Gathering(_) | State::Done => None,
            };
            moved |= next.is_some();
            self.states[bucket] = match next {
                Some(next) => next,
                None => std::mem::replace(&mut self.states[bucket], State::Done),
            };
            may_gather &= !matches!(self.states[bucket], State::Filling(_));
            may_share &= matches!(self.states[bucket], State::Sharing(_) | State::Done);
        }
        Ok(moved)
    }

    /// Tells the others what this rank was taught.
    fn tell(&self, taught: &Taught) -> Result<Box<dyn Exchange>> {
        let Some(ranks) = &self.team.ranks else { return Err(Error::bug("one rank tells nobody")) };
        let head = Head::of(taught)?;
        let mut bytes = bytemuck::bytes_of(&head).to_vec();
        bytes.extend(self.present.iter().map(|present| u8::from(*present)));
        let (n, length) = (ranks.count(), bytes.len());
        ranks.exchange(Lane::Words, bytes, &vec![0..length; n], &vec![length; n])
    }

    /// The sums, and what was told.
    fn ended(mut self, told: &[u8]) -> Result<(Vec<Option<Vec<f32>>>, Taught)> {
        let items = self.present.len();
        let mut heads = vec![];
        for told in told.chunks(size_of::<Head>() + items) {
            let (head, present) = told.split_at(size_of::<Head>());
            heads.push(bytemuck::pod_read_unaligned::<Head>(head));
            self.present.iter_mut().zip(present).for_each(|(all, one)| *all |= *one == 1);
        }
        let values = self.layout.places.iter().zip(&self.present);
        let values = values.map(|(place, present)| present.then(|| self.numbers[place.clone()].to_vec())).collect();
        let any = |flag: u32| heads.iter().any(|head| head.flags & flag != 0);
        let first = heads.first().map_or_else(Word::default, Head::word);
        // Whichever rank is asked to stop, all do.
        let (word, failed) = (Word { stops: any(STOPS), ..first }, any(FAILED));
        let loss = match heads.iter().all(|head| head.flags & LEARNT != 0) {
            true => in_tree(heads, &|a, b| Ok(a.plus(&b)))?.map(|sum| (sum.loss, sum.terms.to_vec())),
            false => None,
        };
        Ok((values, Taught { loss, word, failed }))
    }
}

const LEARNT: u32 = 1;
const STOPS: u32 = 2;
const SAVES: u32 = 4;
const FAILED: u32 = 8;

/// [`Taught`] as it is sent.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Head {
    loss: f64,
    seconds: f64,
    terms: [f32; TERMS],
    flags: u32,
    _unused: u32,
}

impl Head {
    fn of(taught: &Taught) -> Result<Self> {
        let Word { seconds, stops, saves } = taught.word;
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        let flags =
            flag(taught.loss.is_some(), LEARNT) | flag(stops, STOPS) | flag(saves, SAVES) | flag(taught.failed, FAILED);
        let (loss, given) = taught.loss.as_ref().map_or((0.0, &[][..]), |(loss, terms)| (*loss, &terms[..]));
        let mut terms = [0.0; TERMS];
        let places = terms.get_mut(..given.len()).ok_or_else(|| Error::bug("a loss of too many terms"))?;
        places.copy_from_slice(given);
        Ok(Self { loss, seconds, terms, flags, _unused: 0 })
    }

    fn word(&self) -> Word {
        Word { seconds: self.seconds, stops: self.flags & STOPS != 0, saves: self.flags & SAVES != 0 }
    }

    fn plus(mut self, other: &Self) -> Self {
        self.loss += other.loss;
        self.terms.iter_mut().zip(other.terms).for_each(|(a, b)| *a += b);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::{super::threads::teams, *};
    use compress_compiler::error::Kind;
    use std::{sync::mpsc, thread};

    #[test]
    fn what_mpi_cannot_count_is_a_limit() {
        let huge = 1 << 30;
        assert_eq!(Layout::of([3, huge], 2).unwrap_err().kind(), Kind::Limit);
        assert!(Layout::of([3, huge], 4).is_ok() && Layout::of([3, huge], 1).is_ok());
    }

    #[test]
    fn buckets_are_summed_over_ranks_and_parts() {
        // Several buckets, one of fewer numbers than ranks, and one of an item that is larger than a bucket.
        let sizes = [100_000, 3, BUCKET, 1, 150_000, 200_000, 2];
        let (ranks, parts) = (3, 2);
        let layout = Layout::of(sizes, ranks).unwrap();
        assert!(layout.buckets.len() > 3, "{:?}", layout.buckets);
        // Small integers have exact sums.
        let value = |rank: usize, part: usize, item: usize, i: usize| ((7 * rank + 3 * part + item + i) % 13) as f32;
        // No rank has item 3, and one rank alone has item 5.
        let is_there = |rank: usize, item: usize| item != 3 && (item != 5 || rank == 1);
        let found = thread::scope(|scope| {
            let work = |(rank, team): (usize, Team)| {
                let layout = &layout;
                scope.spawn(move || {
                    let ((send, from), (tell, told)) = (mpsc::channel(), mpsc::channel());
                    for (item, size) in sizes.into_iter().enumerate() {
                        for part in 0..parts {
                            let values = (0..size).map(|i| value(rank, part, item, i)).collect();
                            let values = is_there(rank, item).then_some(values);
                            send.send(Arrived { item, part, values }).unwrap();
                        }
                    }
                    let word = Word { seconds: rank as f64, stops: rank == 0, saves: rank == 1 };
                    tell.send(Taught { loss: Some((1.0, vec![rank as f32, 2.0])), word, failed: rank == 2 }).unwrap();
                    drop((send, tell));
                    Summing::new(&team, layout, parts).run(&from, &told).unwrap()
                })
            };
            let begun: Vec<_> = teams(ranks).into_iter().enumerate().map(work).collect();
            begun.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
        });
        for (sums, taught) in found {
            assert!(taught.failed);
            assert_eq!(taught.word, Word { seconds: 0.0, stops: true, saves: false });
            let (loss, terms) = taught.loss.unwrap();
            assert_eq!((loss, &terms[..2]), (3.0, &[3.0, 6.0][..]));
            for (item, sum) in sums.into_iter().enumerate() {
                let of = |i: usize| {
                    (0..ranks * parts)
                        .filter(|n| is_there(n / parts, item))
                        .map(|n| value(n / parts, n % parts, item, i))
                        .sum()
                };
                let expected = (item != 3).then(|| (0..sizes[item]).map(of).collect::<Vec<f32>>());
                assert!(sum == expected, "item {item}");
            }
        }
    }

    #[test]
    fn a_loss_that_is_no_number_on_one_rank_is_none_on_all() {
        let layout = Layout::of([4], 2).unwrap();
        let taught = thread::scope(|scope| {
            let work = |(rank, team): (usize, Team)| {
                let layout = &layout;
                scope.spawn(move || {
                    let ((send, from), (tell, told)) = (mpsc::channel(), mpsc::channel());
                    let values = (rank == 0).then(|| vec![1.0; 4]);
                    send.send(Arrived { item: 0, part: 0, values }).unwrap();
                    let loss = (rank == 0).then(|| (1.0, vec![]));
                    tell.send(Taught { loss, word: Word::default(), failed: false }).unwrap();
                    drop((send, tell));
                    Summing::new(&team, layout, 1).run(&from, &told).unwrap().1
                })
            };
            let begun: Vec<_> = teams(2).into_iter().enumerate().map(work).collect();
            begun.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(taught.iter().all(|taught| taught.loss.is_none()));
    }

    #[test]
    fn halves_of_a_tree_are_trees() {
        let show = |n: usize| {
            let items = (0..n).map(|i| i.to_string()).collect();
            in_tree(items, &|a: String, b: String| Ok(format!("({a}{b})"))).unwrap().unwrap_or_default()
        };
        assert_eq!([0, 1, 2, 3, 6].map(show), ["", "0", "(01)", "((01)2)", "(((01)(23))(45))"]);
    }
}

//! Changes at random.

use crate::wire::{Field, Kind, Value, parse, write};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};

/// Numbers at which code goes wrong.
const NUMBERS: [i64; 20] = [
    0,
    1,
    -1,
    2,
    -2,
    3,
    7,
    8,
    28,
    64,
    255,
    65536,
    i32::MAX as i64,
    i32::MIN as i64,
    u32::MAX as i64,
    1 << 40,
    1 << 62,
    i64::MAX - 1,
    i64::MAX,
    i64::MIN,
];
const FLOATS: [f32; 10] = [0.0, -0.0, 1.0, -1.0, 0.5, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 1e-45];

pub struct Mutator {
    rng: StdRng,
    corpus: Vec<Vec<u8>>,
    /// Names and other short strings of the corpus.
    words: Vec<Vec<u8>>,
}

impl Mutator {
    pub fn new(seed: u64, corpus: &[Vec<u8>]) -> Self {
        let mut words = vec![b"".to_vec()];
        for model in corpus {
            collect(&parse(Kind::Model, model).unwrap_or_default(), &mut words);
        }
        words.sort();
        words.dedup();
        Self { rng: StdRng::seed_from_u64(seed), corpus: corpus.to_vec(), words }
    }

    /// Starts from this input too.
    pub fn keep(&mut self, input: Vec<u8>) {
        self.corpus.push(input);
    }

    pub fn len(&self) -> usize {
        self.corpus.len()
    }

    fn pick(&mut self) -> Vec<u8> {
        self.corpus.choose(&mut self.rng).cloned().unwrap_or_default()
    }

    /// Bytes changed, cut out, repeated.
    pub fn bytes(&mut self) -> Vec<u8> {
        let mut out = self.pick();
        for _ in 0..self.rng.random_range(1..6) {
            let at = self.rng.random_range(0..=out.len());
            let end = (at + self.rng.random_range(1..16)).min(out.len());
            match self.rng.random_range(0..5) {
                0 if at < out.len() => out[at] = self.rng.random(),
                1 if at < out.len() => out[at] ^= 1 << self.rng.random_range(0..8),
                2 => drop(out.drain(at..end)),
                3 => {
                    let copy = out[at..end].to_vec();
                    out.splice(at..at, copy);
                }
                _ => {
                    let other = self.pick();
                    let from = self.rng.random_range(0..=other.len());
                    out.splice(at..end, other[from..(from + 8).min(other.len())].iter().copied());
                }
            }
        }
        out
    }

    /// Words and numbers of a text changed, lines moved.
    pub fn text(&mut self) -> Vec<u8> {
        let text = String::from_utf8_lossy(&self.pick()).into_owned();
        let mut parts: Vec<String> =
            text.split_inclusive([' ', ',', '(', ')', '[', ']', '\n']).map(str::to_owned).collect();
        let other = String::from_utf8_lossy(&self.pick()).into_owned();
        let others: Vec<&str> = other.split_inclusive([' ', ',', '(', ')', '[', ']', '\n']).collect();
        for _ in 0..self.rng.random_range(1..5) {
            let at = self.rng.random_range(0..=parts.len());
            match self.rng.random_range(0..4) {
                0 if at < parts.len() => drop(parts.remove(at)),
                1 if at < parts.len() => {
                    parts[at] = NUMBERS.choose(&mut self.rng).map(i64::to_string).unwrap_or_default()
                }
                2 if at < parts.len() => {
                    let to = self.rng.random_range(0..parts.len());
                    parts.swap(at, to);
                }
                _ => parts.insert(at, others.choose(&mut self.rng).unwrap_or(&"{").to_string()),
            }
        }
        parts.concat().into_bytes()
    }

    /// Fields of a message changed, anywhere in its tree.
    pub fn model(&mut self) -> Vec<u8> {
        let source = self.pick();
        let Some(mut tree) = parse(Kind::Model, &source) else { return self.bytes() };
        for _ in 0..self.rng.random_range(1..5) {
            let lists = count(&tree);
            let at = self.rng.random_range(0..lists);
            let other = parse(Kind::Model, &self.pick()).unwrap_or_default();
            if let Some((kind, fields)) = list(Kind::Model, &mut tree, &mut { at }) {
                self.fields(kind, fields, &other);
            }
        }
        write(&tree)
    }

    fn fields(&mut self, kind: Kind, fields: &mut Vec<Field>, other: &[Field]) {
        let rng = &mut self.rng;
        let at = rng.random_range(0..=fields.len());
        match rng.random_range(0..10) {
            0 if at < fields.len() => drop(fields.remove(at)),
            1 if at < fields.len() => fields.push(fields[at].clone()),
            2 if at < fields.len() => {
                let to = rng.random_range(0..fields.len());
                fields.swap(at, to);
            }
            3 => {
                // What stands in the same place of another model.
                let mut other = other.to_vec();
                let lists = count(&other);
                let from = rng.random_range(0..lists);
                for skipped in 0..lists {
                    if let Some((k, found)) = list(Kind::Model, &mut other, &mut { (from + skipped) % lists })
                        && k == kind
                        && let Some(field) = found.choose(rng)
                    {
                        fields.insert(at, field.clone());
                        break;
                    }
                }
            }
            4 => {
                let number = rng.random_range(1..25);
                let value = *NUMBERS.choose(rng).unwrap_or(&0);
                fields.insert(at, Field { number, value: Value::Number(value as u64) });
            }
            _ if at < fields.len() => self.value(&mut fields[at].value),
            _ => {}
        }
    }

    fn value(&mut self, value: &mut Value) {
        let rng = &mut self.rng;
        match value {
            Value::Number(n) => {
                *n = match rng.random_range(0..4) {
                    0 => n.wrapping_add(1),
                    1 => n.wrapping_sub(1),
                    2 => n.wrapping_neg(),
                    _ => *NUMBERS.choose(rng).unwrap_or(&0) as u64,
                }
            }
            Value::Fixed32(n) => *n = FLOATS.choose(rng).unwrap_or(&0.0).to_bits(),
            Value::Fixed64(n) => *n = rng.random(),
            Value::Bytes(b) => match rng.random_range(0..4) {
                0 if !b.is_empty() => {
                    let at = rng.random_range(0..b.len());
                    b[at] = rng.random();
                }
                1 => b.truncate(b.len() / 2),
                2 => b.extend_from_within(..),
                _ => *b = self.words.choose(rng).cloned().unwrap_or_default(),
            },
            Value::Message(_, fields) => fields.clear(),
        }
    }
}

/// The short strings in a tree.
fn collect(fields: &[Field], words: &mut Vec<Vec<u8>>) {
    for f in fields {
        match &f.value {
            Value::Bytes(b) if b.len() <= 32 => words.push(b.clone()),
            Value::Message(_, inner) => collect(inner, words),
            _ => {}
        }
    }
}

/// The number of messages in a tree, itself included.
fn count(fields: &[Field]) -> usize {
    let inner = fields.iter().map(|f| if let Value::Message(_, inner) = &f.value { count(inner) } else { 0 });
    1 + inner.sum::<usize>()
}

/// Message number `at` of a tree.
fn list<'a>(kind: Kind, fields: &'a mut Vec<Field>, at: &mut usize) -> Option<(Kind, &'a mut Vec<Field>)> {
    if *at == 0 {
        return Some((kind, fields));
    }
    *at -= 1;
    for f in fields {
        if let Value::Message(kind, inner) = &mut f.value {
            let here = count(inner);
            if *at < here {
                return list(*kind, inner, at);
            }
            *at -= here;
        }
    }
    None
}

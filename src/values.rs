//! Values of options: numbers with their bounds, sizes, times. One parser for the command line and for recipes.

pub(crate) mod int8;

pub use int8::Int8;

use compress_compiler::{choice::Choice, error::Error, serde_as_text};
use compress_passes::quant::layer_forms::{LayerForm, LayerRule};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Visitor};
use std::{fmt, marker::PhantomData, str::FromStr, time::Duration};

/// Reads a number as if it were text: in a recipe both mean the same.
struct AsText<T>(PhantomData<T>);

impl<T: FromStr<Err = String>> Visitor<'_> for AsText<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a number, or text with one and its unit")
    }

    fn visit_str<E: serde::de::Error>(self, s: &str) -> Result<T, E> {
        s.parse().map_err(|why| E::custom(format!("`{s}`: {why}")))
    }

    fn visit_f64<E: serde::de::Error>(self, v: f64) -> Result<T, E> {
        self.visit_str(&v.to_string())
    }

    fn visit_i64<E: serde::de::Error>(self, v: i64) -> Result<T, E> {
        self.visit_str(&v.to_string())
    }

    fn visit_u64<E: serde::de::Error>(self, v: u64) -> Result<T, E> {
        self.visit_str(&v.to_string())
    }
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $parse:expr, $write:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
        pub struct $name(f64);

        impl $name {
            /// The number.
            pub fn get(self) -> f64 {
                self.0
            }
        }

        impl TryFrom<f64> for $name {
            type Error = Error;

            fn try_from(v: f64) -> Result<Self, Error> {
                Self(v).to_string().parse().map_err(|why: String| Error::usage(format!("{v}: {why}")))
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(s: &str) -> Result<Self, String> {
                let parse: fn(&str) -> Result<f64, String> = $parse;
                parse(s).map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
                let write: fn(f64, &mut fmt::Formatter) -> fmt::Result = $write;
                write(self.0, f)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                match self.to_string().parse::<f64>() {
                    Ok(_) => to.serialize_f64(self.0),
                    Err(_) => to.collect_str(self),
                }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_any(AsText(PhantomData))
            }
        }
    };
}

fn number(s: &str, fits: impl Fn(f64) -> bool) -> Option<f64> {
    s.parse().ok().filter(|v| fits(*v))
}

fn plain(v: f64, f: &mut fmt::Formatter) -> fmt::Result {
    write!(f, "{v}")
}

number! {
    /// A fraction of what can't go altogether: from 0 to below 1.
    Fraction,
    |s| number(s, |v| (0.0..1.0).contains(&v)).ok_or("not a fraction from 0 to below 1".into()),
    plain
}

number! {
    /// A number above 0.
    Positive,
    |s| number(s, |v| v.is_finite() && v > 0.0).ok_or("not a positive number".into()),
    plain
}

number! {
    /// A number from 0 on.
    NotNegative,
    |s| number(s, |v| v.is_finite() && v >= 0.0).ok_or("not a number from 0 on".into()),
    plain
}

number! {
    /// Any number.
    Finite,
    |s| number(s, f64::is_finite).ok_or("not a number".into()),
    plain
}

number! {
    /// A score, or a share such as `95%`.
    Score,
    |s| match s.strip_suffix('%') {
        Some(p) => number(p.trim(), f64::is_finite).map(|v| v / 100.0),
        None => number(s, f64::is_finite),
    }
    .ok_or("not a number".into()),
    plain
}

/// Larger bare numbers may be meant as percents.
const PLAIN_SHARE: f64 = 0.1;

number! {
    /// A share: `1%` or `0.01`. Large shares have to be percents, as `0.5` may mean both.
    Share,
    share,
    |v, f| if v < PLAIN_SHARE { plain(v, f) } else { write!(f, "{}%", percents(v)) }
}

fn share(s: &str) -> Result<f64, String> {
    match s.strip_suffix('%') {
        Some(p) => number(p.trim(), |v| (0.0..=100.0).contains(&v)).map(|v| v / 100.0),
        None => match number(s, |v| (0.0..=100.0).contains(&v)) {
            Some(v) if v > 1.0 => return Err(format!("write {s}% for percents, or a share such as 0.01")),
            Some(v) if v >= PLAIN_SHARE => {
                return Err(format!("it may mean {s}% or {}%: write one of them", 100.0 * v));
            }
            share => share,
        },
    }
    .ok_or_else(|| "not a share such as 1% or 0.01".into())
}

/// The percents of which `share` is the share, to the last bit.
fn percents(share: f64) -> f64 {
    let near = share * 100.0;
    let around = [near, near.next_down(), near.next_up()];
    around.into_iter().find(|p| p / 100.0 == share).unwrap_or(near)
}

number! {
    /// Milliseconds: `5ms`, `800us`, `1.5s`.
    Milliseconds,
    |s| {
        let units = [("ms", 1.0), ("us", 1e-3), ("s", 1e3)];
        let (digits, unit) = units.iter().find_map(|(u, f)| Some((s.strip_suffix(u)?, *f))).unwrap_or((s, 0.0));
        let found = number(digits.trim(), |v| v > 0.0 && v.is_finite() && unit > 0.0);
        found.map(|v| v * unit).ok_or("not a time such as 5ms, 800us or 1.5s".into())
    },
    |v, f| write!(f, "{v}ms")
}

/// Sizes below are meant in another unit.
const PLAIN_BYTES: f64 = 1000.0;

number! {
    /// Bytes: `30MB`, `512kB`, `1.5GB` or their number.
    Bytes,
    bytes,
    |v, f| if v < PLAIN_BYTES { write!(f, "{v}B") } else { plain(v, f) }
}

fn bytes(s: &str) -> Result<f64, String> {
    if number(s, |v| v > 0.0 && v < PLAIN_BYTES).is_some() {
        return Err(format!("{s} bytes are less than any model has: write a unit, such as {s}MB"));
    }
    let digits = s.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match s[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => Some(1.0),
        "k" | "kb" => Some(1e3),
        "m" | "mb" => Some(1e6),
        "g" | "gb" => Some(1e9),
        "kib" => Some(1024.0),
        "mib" => Some(1024.0 * 1024.0),
        "gib" => Some(1024.0 * 1024.0 * 1024.0),
        _ => None,
    };
    let value = number(digits.trim(), |v| v > 0.0).zip(unit).map(|(value, unit)| value * unit);
    value.filter(|v| v.is_finite()).ok_or_else(|| "not a size such as 30MB".into())
}

/// A time: `90s`, `30m`, `1.5h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time(Duration);

impl Time {
    /// The time.
    pub fn get(self) -> Duration {
        self.0
    }
}

impl From<Duration> for Time {
    fn from(time: Duration) -> Self {
        Self(time)
    }
}

impl FromStr for Time {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let digits = s.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = match &s[digits.len()..] {
            "s" | "" => Some(1.0),
            "m" | "min" => Some(60.0),
            "h" => Some(3600.0),
            "d" => Some(86400.0),
            _ => None,
        };
        let value = number(digits.trim(), |v| v > 0.0).zip(unit).map(|(value, unit)| value * unit);
        let time = value.and_then(|v| Duration::try_from_secs_f64(v).ok());
        time.map(Self).ok_or_else(|| "not a time such as 90s, 30m or 8h".into())
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}s", self.0.as_secs_f64())
    }
}

serde_as_text!(Time);

/// A whole number from `LEAST` to `MOST`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Whole<const LEAST: usize, const MOST: usize>(usize);

/// A count of things of which there is at least one.
pub type Count<const MOST: usize = 1_000_000> = Whole<1, MOST>;

impl<const LEAST: usize, const MOST: usize> Whole<LEAST, MOST> {
    /// The number.
    pub fn get(self) -> usize {
        self.0
    }
}

impl<const LEAST: usize, const MOST: usize> TryFrom<usize> for Whole<LEAST, MOST> {
    type Error = Error;

    fn try_from(n: usize) -> Result<Self, Error> {
        n.to_string().parse().map_err(|why: String| Error::usage(format!("{n}: {why}")))
    }
}

impl<const LEAST: usize, const MOST: usize> FromStr for Whole<LEAST, MOST> {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let found = s.parse().ok().filter(|n| (LEAST..=MOST).contains(n));
        found.map(Self).ok_or_else(|| format!("not a whole number from {LEAST} to {MOST}"))
    }
}

impl<const LEAST: usize, const MOST: usize> fmt::Display for Whole<LEAST, MOST> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl<const LEAST: usize, const MOST: usize> Serialize for Whole<LEAST, MOST> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(self.0 as u64)
    }
}

impl<'de, const LEAST: usize, const MOST: usize> Deserialize<'de> for Whole<LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(AsText(PhantomData))
    }
}

/// The seed of every random choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seed(pub u64);

impl FromStr for Seed {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        s.parse().map(Self).map_err(|_| "not a whole number from 0 to 2^64 - 1".into())
    }
}

impl fmt::Display for Seed {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl Serialize for Seed {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        // TOML's integers end there.
        match i64::try_from(self.0) {
            Ok(seed) => to.serialize_i64(seed),
            Err(_) => to.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for Seed {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(AsText(PhantomData))
    }
}

/// How many samples a batch has: a number, or `auto` for the most that fit the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batch {
    /// A number of samples.
    Fixed(Count<65_536>),
    /// As many as fit the memory.
    Auto,
}

impl FromStr for Batch {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "auto" => Ok(Self::Auto),
            n => n.parse().map(Self::Fixed).map_err(|_| "not a number of samples from 1 to 65536, nor auto".into()),
        }
    }
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Fixed(n) => write!(f, "{n}"),
            Self::Auto => f.write_str("auto"),
        }
    }
}

impl Serialize for Batch {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fixed(n) => n.serialize(to),
            Self::Auto => to.serialize_str("auto"),
        }
    }
}

impl<'de> Deserialize<'de> for Batch {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(AsText(PhantomData))
    }
}

/// The sizes of an input: `image=1x3x224x224`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputShape {
    /// The input.
    pub name: String,
    /// Its sizes, the first that of the batch.
    pub sizes: Vec<usize>,
}

impl FromStr for InputShape {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let (name, sizes) = s.rsplit_once(['=', ':']).ok_or("not an input and its sizes, such as image=1x3x224x224")?;
        let sizes = sizes.split(['x', ',']).map(|n| n.trim().parse().ok().filter(|n| *n > 0));
        let sizes = sizes.collect::<Option<Vec<usize>>>().ok_or("sizes are whole numbers, such as 1x3x224x224")?;
        Ok(Self { name: name.into(), sizes })
    }
}

impl fmt::Display for InputShape {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let sizes: Vec<String> = self.sizes.iter().map(usize::to_string).collect();
        write!(f, "{}={}", self.name, sizes.join("x"))
    }
}

serde_as_text!(InputShape);

/// A regular expression for names.
#[derive(Debug, Clone)]
pub struct Filter(regex::Regex);

impl Filter {
    /// The expression.
    pub fn get(&self) -> &regex::Regex {
        &self.0
    }
}

impl PartialEq for Filter {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl FromStr for Filter {
    type Err = regex::Error;

    fn from_str(s: &str) -> Result<Self, regex::Error> {
        regex::Regex::new(s).map(Self)
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.0.as_str())
    }
}

serde_as_text!(Filter);

/// The form of layers: `REGEX=FORM`.
#[derive(Debug, Clone, PartialEq)]
pub struct FormRule {
    /// Matches the names of their nodes, or of their weights.
    pub name: Filter,
    /// What they become.
    pub form: LayerForm,
}

impl FormRule {
    /// The rule for the layer of this name alone.
    pub(crate) fn exactly(name: &str, form: LayerForm) -> Result<Self, Error> {
        let name = format!("^{}$", regex::escape(name));
        Ok(Self { name: name.parse().map_err(|e: regex::Error| Error::bug(e.to_string()))?, form })
    }

    /// The rule, as passes take it.
    pub(crate) fn rule(&self) -> LayerRule {
        LayerRule { name: self.name.get().clone(), form: self.form }
    }
}

impl FromStr for FormRule {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let forms: Vec<&str> = LayerForm::ALL.iter().map(|form| form.name_of()).collect();
        let wrong = || format!("not an expression and a form such as ^head$=float; forms: {}", forms.join(", "));
        let (name, form) = s.rsplit_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(wrong)?;
        let name = name.parse().map_err(|e: regex::Error| e.to_string())?;
        Ok(Self { name, form: LayerForm::named(form).map_err(|_| wrong())? })
    }
}

impl fmt::Display for FormRule {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}={}", self.name, self.form)
    }
}

serde_as_text!(FormRule);

/// A value of the student, and the value of the teacher that it is to be like: `STUDENT=TEACHER`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matched {
    /// The name in the student.
    pub student: String,
    /// The name in the teacher.
    pub teacher: String,
}

impl FromStr for Matched {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s.split_once('=') {
            Some((student, teacher)) if !student.is_empty() && !teacher.is_empty() => {
                Ok(Self { student: student.into(), teacher: teacher.into() })
            }
            _ => Err("not two values such as STUDENT_VALUE=TEACHER_VALUE".into()),
        }
    }
}

impl fmt::Display for Matched {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}={}", self.student, self.teacher)
    }
}

serde_as_text!(Matched);

#[cfg(test)]
mod tests;

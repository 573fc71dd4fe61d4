//! Numbers on the command line: fractions, sizes, times.

use std::time::Duration;

/// A fraction of what can't go altogether.
pub fn fraction(s: &str) -> Result<f64, &'static str> {
    number(s, |v| (0.0..1.0).contains(&v)).ok_or("not a fraction from 0 to below 1")
}

/// How many times as fast.
pub fn ratio(s: &str) -> Result<f64, &'static str> {
    number(s, |v| v.is_finite() && v > 0.0).ok_or("not a positive number")
}

/// A weight of something, 0 for none.
pub fn not_negative(s: &str) -> Result<f64, &'static str> {
    number(s, |v| v.is_finite() && v >= 0.0).ok_or("not a number from 0 on")
}

/// `90s`, `30m`, `1.5h`.
pub fn duration(s: &str) -> Result<Duration, &'static str> {
    let digits = s.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &s[digits.len()..] {
        "s" | "" => Some(1.0),
        "m" | "min" => Some(60.0),
        "h" => Some(3600.0),
        "d" => Some(86400.0),
        _ => None,
    };
    let value = number(digits.trim(), |v| v > 0.0).zip(unit).map(|(value, unit)| value * unit);
    value.and_then(|v| Duration::try_from_secs_f64(v).ok()).ok_or("not a time such as 90s, 30m or 8h")
}

pub fn seed(s: &str) -> Result<u64, &'static str> {
    s.parse().map_err(|_| "not a whole number from 0 to 2^64 - 1")
}

fn number(s: &str, fits: impl Fn(f64) -> bool) -> Option<f64> {
    s.parse().ok().filter(|v| fits(*v))
}

/// Any number.
pub fn finite(s: &str) -> Result<f64, &'static str> {
    number(s, f64::is_finite).ok_or("not a number")
}

/// A score, or a share such as `95%`.
pub fn score(s: &str) -> Result<f64, &'static str> {
    match s.strip_suffix('%') {
        Some(p) => finite(p.trim()).map(|v| v / 100.0),
        None => finite(s),
    }
}

/// `5ms`, `800us`, `1.5s`: milliseconds.
pub fn milliseconds(s: &str) -> Result<f64, &'static str> {
    let units = [("ms", 1.0), ("us", 1e-3), ("s", 1e3)];
    let (digits, unit) = units.iter().find_map(|(u, f)| Some((s.strip_suffix(u)?, *f))).unwrap_or((s, 0.0));
    number(digits.trim(), |v| v > 0.0 && v.is_finite() && unit > 0.0)
        .map(|v| v * unit)
        .ok_or("not a time such as 5ms, 800us or 1.5s")
}

/// Larger bare numbers may be meant as percents.
const PLAIN_SHARE: f64 = 0.1;

/// `1%` or `0.01`.
pub fn percent(s: &str) -> Result<f64, String> {
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

/// Sizes below are meant in another unit.
const PLAIN_BYTES: f64 = 1000.0;

/// `30MB`, `512kB`, `1.5GB` or a number of bytes.
pub fn bytes(s: &str) -> Result<f64, String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_sizes() {
        assert_eq!(percent("1%").unwrap(), 0.01);
        assert_eq!(percent("0.01").unwrap(), 0.01);
        assert!(percent("0.5").is_err() && percent("1").is_err() && percent("50%").unwrap() == 0.5);
        assert_eq!((milliseconds("800us").unwrap(), milliseconds("1.5s").unwrap()), (0.8, 1500.0));
        assert!(milliseconds("5").is_err() && milliseconds("-1ms").is_err());
        assert!(percent("120%").is_err() && percent("one").is_err() && percent("NaN").is_err());
        assert_eq!(bytes("30MB").unwrap(), 30e6);
        assert_eq!(bytes("1.5 GiB").unwrap(), 1.5 * 1024f64.powi(3));
        assert!(bytes("30").unwrap_err().contains("30MB") && bytes("4096").unwrap() == 4096.0);
        assert!(percent("1").unwrap_err().contains("1% or 100%") && percent("3").unwrap_err().contains("3%"));
        assert!(bytes("-3").is_err() && bytes("5 apples").is_err() && bytes("MB").is_err());
    }
}

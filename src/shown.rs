//! Numbers and names as people read them.

use std::time::Duration;

/// A size for people.
pub fn bytes(n: usize) -> String {
    match n as f64 {
        b if b >= 1e9 => format!("{:.2} GB", b / 1e9),
        b if b >= 1e6 => format!("{:.2} MB", b / 1e6),
        b if b >= 1e3 => format!("{:.1} kB", b / 1e3),
        _ => format!("{n} B"),
    }
}

/// A large count for people.
pub fn count(n: u64) -> String {
    match n as f64 {
        c if c >= 1e9 => format!("{:.2} G", c / 1e9),
        c if c >= 1e6 => format!("{:.2} M", c / 1e6),
        c if c >= 1e3 => format!("{:.1} k", c / 1e3),
        _ => n.to_string(),
    }
}

/// A time for people.
pub fn duration(d: Duration) -> String {
    match d.as_secs() {
        s if s >= 5400 => format!("{:.1} h", s as f64 / 3600.0),
        s if s >= 90 => format!("{:.0} min", s as f64 / 60.0),
        _ => format!("{:.0} s", d.as_secs_f64().max(1.0)),
    }
}

/// A share for people.
pub fn percent(share: f64) -> String {
    format!("{:.2}%", share * 100.0)
}

/// A ratio of speeds, and the bounds between which it lies.
pub fn speedup(ratio: f64, [low, high]: [f64; 2]) -> String {
    format!("{ratio:.2}x ({low:.2}x to {high:.2}x)")
}

/// A time of some milliseconds.
pub fn milliseconds(ms: f64) -> String {
    if ms < 1.0 { format!("{:.1} µs", 1e3 * ms) } else { format!("{ms:.2} ms") }
}

/// A number to so many digits.
pub fn digits(number: f64, digits: usize) -> String {
    let rounded = format!("{number:.*e}", digits.saturating_sub(1)).parse::<f64>();
    rounded.unwrap_or(number).to_string()
}

/// A text of so many characters at most, without its middle if it has more.
pub fn shortened(text: &str, most: usize) -> String {
    // Names are what somebody wrote into a file: they may hold commands for a terminal.
    let text: String = text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect();
    let length = text.chars().count();
    if length <= most {
        return text;
    }
    let ends = most / 2;
    let (first, last): (String, String) =
        (text.chars().take(ends).collect(), text.chars().skip(length - ends).collect());
    format!("{first} … {last}")
}

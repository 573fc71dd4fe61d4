//! Charts as SVG that has the width of the page: text keeps its size on a phone, and colours follow the page's.
//!
//! Across, places are percents of the width; the marks are in an SVG of their own, which is stretched.

use maud::{Markup, html};
use std::fmt::Write as _;

/// The height of what is plotted, in pixels.
const HEIGHT: f64 = 180.0;

/// The width of the stretched marks, in units of their own.
const WIDTH: f64 = 1000.0;

/// Spaces between the ticks of an axis, about.
const SPACES: f64 = 5.0;

/// Marks over two axes.
pub struct Chart {
    /// The chart in a sentence, for those who don't see it.
    pub says: String,
    pub across: Axis,
    pub up: Axis,
    pub marks: Vec<Mark>,
}

/// A range of numbers, and which of them are written.
pub struct Axis {
    /// Its quantity, and the unit.
    pub title: String,
    pub low: f64,
    pub high: f64,
    ticks: Vec<(f64, String)>,
}

/// Something in a chart; the number is that of its colour and shape, from 0.
pub enum Mark {
    /// A line through points, by rising first coordinate.
    Line(usize, Vec<(f64, f64)>),
    /// A dot for each point.
    Dots(usize, Vec<(f64, f64)>),
    /// Bars from the lower end of the axis: where each begins, how wide and how high it is.
    Bars(usize, Vec<(f64, f64, f64)>),
    /// A dashed line at a height.
    Level(f64),
    /// A dashed line at a place across.
    Edge(f64),
    /// A name beside a point.
    Name((f64, f64), String),
}

impl Axis {
    /// An axis for these values, all finite, that begins and ends with a tick. `whole` says that there is nothing between
    /// whole numbers.
    pub fn new(title: impl Into<String>, values: impl Iterator<Item = f64>, whole: bool) -> Self {
        let (mut low, mut high) = values.fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)));
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        if high - low <= 1e-9 * high.abs().max(low.abs()) {
            let around = if whole { 1.0 } else { (0.1 * high.abs()).max(1e-6) };
            (low, high) = (low - around, high + around);
        }
        let step = step((high - low) / SPACES);
        let step = if whole { step.max(1.0) } else { step };
        let (first, last) = ((low / step).floor(), (high / step).ceil());
        let ticks = (0..=(last - first) as usize).map(|i| (first + i as f64) * step).map(|v| (v, number(v, step)));
        Self { title: title.into(), low: first * step, high: last * step, ticks: ticks.collect() }
    }

    /// The same for percents: nothing is below 0 or above 100.
    pub fn of_percents(title: impl Into<String>, values: impl Iterator<Item = f64>) -> Self {
        let axis = Self::new(title, values, false);
        let (low, high) = (axis.low.max(0.0), axis.high.min(100.0));
        axis.between(low, high)
    }

    /// The powers of ten from that of `least` on to 1, as percents: the axis is of their logarithms.
    pub fn of_shares(title: &str, least: f64) -> Self {
        let low = least.max(1e-12).log10().floor();
        let every = if low < -4.0 { 2 } else { 1 };
        let ticks = (low as i32..=0).rev().step_by(every).map(|p| (f64::from(p), percent(p)));
        Self { title: title.into(), low, high: 0.0, ticks: ticks.collect() }
    }

    /// The same axis, from one end to the other and no further.
    pub fn between(self, low: f64, high: f64) -> Self {
        let ticks = self.ticks.into_iter().filter(|(v, _)| (low..=high).contains(v)).collect();
        Self { low, high, ticks, ..self }
    }

    fn part(&self, v: f64) -> f64 {
        ((v - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }
}

/// The least of 1, 2 and 5 times a power of ten that is not less.
fn step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0].map(|n| n * power).into_iter().find(|s| *s >= least * 0.999).unwrap_or(10.0 * power)
}

/// A number on an axis with ticks so far apart.
fn number(v: f64, step: f64) -> String {
    let digits = -step.log10().floor();
    match v.abs() {
        // 0 may come out of the sum as a little less.
        a if a < step / 2.0 => "0".into(),
        a if digits > 4.0 || a >= 1e6 => format!("{v:.0e}"),
        _ => format!("{v:.*}", digits.max(0.0) as usize),
    }
}

/// A power of ten as percent.
fn percent(power: i32) -> String {
    match power {
        -6.. => format!("{:.*}%", (-2 - power).max(0) as usize, 10f64.powi(power + 2)),
        _ => format!("1e{}%", power + 2),
    }
}

impl Chart {
    pub fn svg(&self) -> Markup {
        let y = |v: f64| (HEIGHT * (1.0 - self.up.part(v)) * 10.0).round() / 10.0;
        let at = |v: f64| format!("{:.2}%", 100.0 * self.across.part(v));
        html! {
            svg.chart height=(HEIGHT) role="img" aria-label=(self.says) {
                text.title x="-52" y="-24" { (self.up.title) }
                @for (v, text) in &self.up.ticks {
                    line.grid x1="0" x2="100%" y1=(y(*v)) y2=(y(*v)) {}
                    text.up x="-8" y=(y(*v)) dy="4" { (text) }
                }
                @for (v, text) in &self.across.ticks {
                    line.tick x1=(at(*v)) x2=(at(*v)) y1=(HEIGHT) y2=(HEIGHT + 4.0) {}
                    text.across x=(at(*v)) y=(HEIGHT + 18.0) { (text) }
                }
                text.across.title x="50%" y=(HEIGHT + 38.0) { (self.across.title) }
                svg.marks viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none" width="100%" height=(HEIGHT) {
                    @for mark in &self.marks { (self.path(mark)) }
                }
                @for mark in &self.marks {
                    @if let Mark::Name(point, name) = mark {
                        @let before = self.across.part(point.0) > 0.9;
                        text.name.before[before] x=(at(point.0)) y=(y(point.1)) dx=(if before { -7 } else { 7 }) dy="15" { (name) }
                    }
                }
            }
        }
    }

    fn path(&self, mark: &Mark) -> Markup {
        let x = |v: f64| (WIDTH * self.across.part(v) * 10.0).round() / 10.0;
        let y = |v: f64| (HEIGHT * (1.0 - self.up.part(v)) * 10.0).round() / 10.0;
        let (class, series, mut d) = match mark {
            Mark::Line(series, _) => ("line", *series, String::new()),
            Mark::Dots(series, _) => ("dots", *series, String::new()),
            Mark::Bars(series, _) => ("bars", *series, String::new()),
            Mark::Level(v) => ("dashed", 0, format!("M0 {0}H{WIDTH}", y(*v))),
            Mark::Edge(v) => ("dashed", 0, format!("M{0} 0V{HEIGHT}", x(*v))),
            Mark::Name(..) => return html! {},
        };
        match mark {
            Mark::Line(_, points) => {
                for (i, (a, b)) in points.iter().enumerate() {
                    let _ = write!(d, "{}{} {}", if i == 0 { 'M' } else { 'L' }, x(*a), y(*b));
                }
            }
            Mark::Dots(_, points) => points.iter().for_each(|(a, b)| {
                let _ = write!(d, "M{} {}h0", x(*a), y(*b));
            }),
            Mark::Bars(_, bars) => bars.iter().for_each(|(from, width, high)| {
                let (left, right) = (x(*from), x(from + width));
                let _ = write!(d, "M{left} {HEIGHT}V{}H{right}V{HEIGHT}z", y(*high));
            }),
            Mark::Level(_) | Mark::Edge(_) | Mark::Name(..) => {}
        }
        html! { path class={ (class) " s" (series) } d=(d) {} }
    }
}

/// What stands for something in a chart.
pub enum Sign {
    /// The dots of a series.
    Dot(usize),
    /// A dashed line.
    Dashes,
}

/// What signs mean.
pub fn key(signs: impl Iterator<Item = (Sign, String)>) -> Markup {
    html! {
        ul.key {
            @for (sign, means) in signs {
                li {
                    svg width="16" height="12" viewBox="0 0 16 12" aria-hidden="true" {
                        @match sign {
                            Sign::Dot(series) => path class={ "dots s" (series) } d="M8 6h0" {}
                            Sign::Dashes => path.dashed d="M0 6h16" {}
                        }
                    }
                    (means)
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_begins_and_ends_with_round_numbers() {
        let texts = |a: &Axis| a.ticks.iter().map(|(_, text)| text.clone()).collect::<Vec<_>>();
        let axis = Axis::new("dB", [12.3, 47.0].into_iter(), false);
        assert_eq!(texts(&axis), ["10", "20", "30", "40", "50"]);
        assert_eq!(texts(&Axis::new("epoch", [0.0, 2.0].into_iter(), true)), ["0", "1", "2"]);
        assert_eq!(texts(&Axis::new("loss", [0.011, 0.0].into_iter(), false)), ["0", "0.005", "0.010", "0.015"]);
        assert_eq!(texts(&Axis::of_shares("share", 0.002)), ["100%", "10%", "1%", "0.1%"]);
    }

    #[test]
    fn an_axis_has_a_width_whatever_the_values() {
        for values in [&[][..], &[0.0], &[7.0, 7.0], &[1e-300, 2e-300], &[f64::MAX / 4.0, -f64::MAX / 4.0]] {
            let axis = Axis::new("", values.iter().copied(), false);
            assert!(axis.high > axis.low && axis.ticks.len() < 20, "{values:?}: {} {}", axis.low, axis.high);
        }
    }
}

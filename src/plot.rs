//! A plot as an SVG file that needs nothing else.

use std::fmt::Write;

/// One line of points.
pub struct Plot {
    pub title: String,
    /// What the axes show.
    pub across: String,
    pub up: String,
    /// By rising first coordinate.
    pub points: Vec<(f64, f64)>,
    /// A level to compare with.
    pub original: Option<f64>,
}

/// The size of the picture, and the frame within: left, top, right, bottom.
const SIZE: (f64, f64) = (640.0, 400.0);
const FRAME: [f64; 4] = [70.0, 40.0, 620.0, 345.0];

/// The plot as SVG.
pub fn svg(plot: &Plot) -> String {
    let [left, top, right, bottom] = FRAME;
    let finite = |p: &&(f64, f64)| p.0.is_finite() && p.1.is_finite();
    let points: Vec<(f64, f64)> = plot.points.iter().filter(finite).copied().collect();
    let across = Axis::of(points.iter().map(|p| p.0));
    let up = Axis::of(points.iter().map(|p| p.1).chain(plot.original));
    let x = |v: f64| left + across.part(v) * (right - left);
    let y = |v: f64| bottom - up.part(v) * (bottom - top);
    let (width, height) = SIZE;
    let mut s = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let mut text = |at: (f64, f64), anchor: &str, more: &str, what: &str| {
        let _ = writeln!(
            s,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\"{more}>{}</text>",
            at.0,
            at.1,
            escaped(what)
        );
    };
    let (middle, centre) = ((left + right) / 2.0, (top + bottom) / 2.0);
    text((middle, top - 16.0), "middle", " font-size=\"15\"", &plot.title);
    text((middle, bottom + 42.0), "middle", "", &plot.across);
    text((16.0, centre), "middle", &format!(" transform=\"rotate(-90 16 {centre})\""), &plot.up);
    across.ticks().for_each(|v| text((x(v), bottom + 18.0), "middle", "", &across.label(v)));
    up.ticks().for_each(|v| text((left - 8.0, y(v) + 4.0), "end", "", &up.label(v)));
    if let Some(original) = plot.original {
        text((right - 4.0, y(original) - 5.0), "end", " fill=\"#666\"", "original");
    }
    let mut path = |d: String, style: &str| {
        let _ = writeln!(s, "<path d=\"{d}\" fill=\"none\" {style}/>");
    };
    let grid = "stroke=\"#ddd\"";
    across.ticks().for_each(|v| path(format!("M{:.1} {top}V{bottom}", x(v)), grid));
    up.ticks().for_each(|v| path(format!("M{left} {:.1}H{right}", y(v)), grid));
    path(format!("M{left} {top}V{bottom}H{right}"), "stroke=\"black\"");
    if let Some(original) = plot.original {
        path(format!("M{left} {:.1}H{right}", y(original)), "stroke=\"#666\" stroke-dasharray=\"5 4\"");
    }
    let line: Vec<String> = points.iter().map(|p| format!("{:.1} {:.1}", x(p.0), y(p.1))).collect();
    if !line.is_empty() {
        path(format!("M{}", line.join("L")), "stroke=\"#1f5fa8\" stroke-width=\"2\"");
    }
    for p in &points {
        let _ = writeln!(s, "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\" fill=\"#1f5fa8\"/>", x(p.0), y(p.1));
    }
    s + "</svg>\n"
}

/// A range with round numbers at its ends.
struct Axis {
    from: f64,
    to: f64,
    step: f64,
}

impl Axis {
    fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let (low, high) = (values.clone().fold(f64::MAX, f64::min), values.fold(f64::MIN, f64::max));
        let (low, high) = match () {
            _ if low > high => (0.0, 1.0),
            // Not above: what is drawn most is a percentage.
            _ if low == high => (low - 1.0, high),
            _ => (low, high),
        };
        // About six steps of 1, 2 or 5 times a power of ten.
        let rough = (high - low) / 6.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|s| s * power).find(|s| *s >= rough).unwrap_or(10.0 * power);
        Self { from: (low / step).floor() * step, to: (high / step).ceil() * step, step }
    }

    fn part(&self, v: f64) -> f64 {
        (v - self.from) / (self.to - self.from)
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        let count = ((self.to - self.from) / self.step).round() as usize;
        (0..=count).map(|i| self.from + self.step * i as f64)
    }

    fn label(&self, v: f64) -> String {
        let digits = (-self.step.log10().floor()).max(0.0) as usize;
        format!("{v:.digits$}")
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_and_steps_are_round() {
        let ticks = |values: &[f64]| {
            let axis = Axis::of(values.iter().copied());
            axis.ticks().map(|v| axis.label(v)).collect::<Vec<_>>()
        };
        assert_eq!(ticks(&[50.0, 70.0, 90.0]), ["50", "60", "70", "80", "90"]);
        assert_eq!(ticks(&[98.61, 99.44]), ["98.6", "98.8", "99.0", "99.2", "99.4", "99.6"]);
        assert_eq!(ticks(&[100.0]), ["99.0", "99.2", "99.4", "99.6", "99.8", "100.0"]);
        assert_eq!(ticks(&[]).len(), 6);
    }

    #[test]
    fn names_are_escaped() {
        let plot = Plot {
            title: "a<b>&c".into(),
            across: "x".into(),
            up: "y".into(),
            points: vec![(1.0, 2.0), (2.0, f64::NAN)],
            original: None,
        };
        let svg = svg(&plot);
        assert!(svg.contains("a&lt;b&gt;&amp;c") && svg.matches("<circle").count() == 1 && !svg.contains("NaN"));
    }
}

//! A plot as an SVG file that needs nothing else.

use compress_compiler::error::{Error, Result};
use plotters::{
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};
use std::{error, ops::Range};

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

/// The size of the picture.
const SIZE: (u32, u32) = (640, 400);
const LINE: RGBColor = RGBColor(0x1f, 0x5f, 0xa8);
const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);
const LEVEL: RGBColor = RGBColor(0x66, 0x66, 0x66);
const FONT: &str = "sans-serif";

/// The plot as SVG; points that are not finite are left out.
///
/// # Errors
/// A bug when it can't be drawn.
pub fn svg(plot: &Plot) -> Result<String> {
    let mut svg = String::new();
    draw(plot, SVGBackend::with_string(&mut svg, SIZE)).map_err(|e| Error::bug(format!("the plot: {e}")))?;
    Ok(svg)
}

fn draw<'a>(plot: &Plot, backend: SVGBackend<'a>) -> Result<(), Box<dyn error::Error + 'a>> {
    let points = plot.points.iter().copied().filter(|p| p.0.is_finite() && p.1.is_finite());
    let points: Vec<(f64, f64)> = points.collect();
    let across = range(points.iter().map(|p| p.0));
    let up = range(points.iter().map(|p| p.1).chain(plot.original));
    let root = backend.into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .margin(20)
        .caption(&plot.title, (FONT, 15))
        .set_label_area_size(LabelAreaPosition::Left, 55)
        .set_label_area_size(LabelAreaPosition::Bottom, 40)
        .build_cartesian_2d(across.clone(), up)?;
    let mut mesh = chart.configure_mesh();
    mesh.x_labels(7)
        .y_labels(7)
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .x_desc(&plot.across)
        .y_desc(&plot.up);
    mesh.x_label_formatter(&shown).y_label_formatter(&shown);
    mesh.label_style((FONT, 12)).axis_desc_style((FONT, 13)).draw()?;
    if let Some(level) = plot.original {
        let ends = [(across.start, level), (across.end, level)];
        chart.draw_series(DashedLineSeries::new(ends, 5, 4, LEVEL.into()))?;
        let above = TextStyle::from((FONT, 12)).color(&LEVEL).pos(Pos::new(HPos::Right, VPos::Bottom));
        chart.draw_series([Text::new("original", ends[1], above)])?;
    }
    chart.draw_series(LineSeries::new(points.iter().copied(), LINE.stroke_width(2)))?;
    chart.draw_series(points.into_iter().map(|p| Circle::new(p, 4, LINE.filled())))?;
    root.present()?;
    Ok(())
}

/// A number on an axis, without the noise of its last digits.
fn shown(v: &f64) -> String {
    ((v * 1e6).round() / 1e6).to_string()
}

/// A range that shows all values, and is not empty.
fn range(values: impl Iterator<Item = f64> + Clone) -> Range<f64> {
    let (low, high) = (values.clone().fold(f64::MAX, f64::min), values.fold(f64::MIN, f64::max));
    match () {
        () if low > high => 0.0..1.0,
        () if low == high => low - 1.0..low + 1.0,
        () => low - 0.05 * (high - low)..high + 0.05 * (high - low),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_and_values_that_are_not_finite_left_out() {
        let plot = Plot {
            title: "a<b>&c".into(),
            across: "x".into(),
            up: "y".into(),
            points: vec![(1.0, 2.0), (2.0, f64::NAN)],
            original: None,
        };
        let svg = svg(&plot).unwrap();
        assert!(
            svg.contains("a&lt;b&gt;&amp;c") && svg.matches("<circle").count() == 1 && !svg.contains("NaN"),
            "{svg}"
        );
    }

    #[test]
    fn a_plot_without_points_has_axes() {
        let plot = Plot { title: String::new(), across: "x".into(), up: "y".into(), points: vec![], original: None };
        assert!(svg(&plot).unwrap().contains("0.5"));
    }
}

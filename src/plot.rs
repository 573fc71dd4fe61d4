//! A plot as an SVG file that needs nothing else.

use compress_compiler::error::{Error, Result};
use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};
use std::{error, ops::Range};

/// Lines over two axes.
pub struct Chart {
    pub title: String,
    /// What the axes show.
    pub across: String,
    pub up: String,
    /// One at least; names are shown if there are several.
    pub lines: Vec<Line>,
    /// A level to compare with, and its name.
    pub level: Option<(f64, String)>,
}

/// One line of points.
pub struct Line {
    pub name: String,
    /// By rising first coordinate.
    pub points: Vec<(f64, f64)>,
}

/// The size of a chart.
const SIZE: (u32, u32) = (640, 400);
/// Colours that people with any colour vision tell apart (Okabe and Ito 2008).
const COLOURS: [RGBColor; 4] =
    [RGBColor(0x00, 0x72, 0xb2), RGBColor(0xd5, 0x5e, 0x00), RGBColor(0x00, 0x9e, 0x73), RGBColor(0xcc, 0x79, 0xa7)];
const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);
const LEVEL: RGBColor = RGBColor(0x66, 0x66, 0x66);
const FONT: &str = "sans-serif";

/// The charts as SVG, one below the other; points that are not finite are left out.
///
/// # Errors
/// A bug when they can't be drawn.
pub fn svg(charts: &[Chart]) -> Result<String> {
    let mut svg = String::new();
    let size = (SIZE.0, SIZE.1 * charts.len().max(1) as u32);
    draw_all(charts, SVGBackend::with_string(&mut svg, size)).map_err(|e| Error::bug(format!("the plot: {e}")))?;
    Ok(svg)
}

type Drawn<'a> = Result<(), Box<dyn error::Error + 'a>>;

fn draw_all<'a>(charts: &[Chart], backend: SVGBackend<'a>) -> Drawn<'a> {
    let root = backend.into_drawing_area();
    root.fill(&WHITE)?;
    for (chart, area) in charts.iter().zip(root.split_evenly((charts.len(), 1))) {
        draw(chart, &area)?;
    }
    root.present()?;
    Ok(())
}

fn draw<'a>(of: &Chart, area: &DrawingArea<SVGBackend<'a>, Shift>) -> Drawn<'a> {
    let finite = |line: &Line| line.points.iter().copied().filter(|p| p.0.is_finite() && p.1.is_finite()).collect();
    let lines: Vec<Vec<(f64, f64)>> = of.lines.iter().map(finite).collect();
    let level = of.level.as_ref().map(|(v, _)| *v);
    let across = range(lines.iter().flatten().map(|p| p.0));
    let up = range(lines.iter().flatten().map(|p| p.1).chain(level));
    let mut chart = ChartBuilder::on(area)
        .margin(20)
        .caption(&of.title, (FONT, 15))
        .set_label_area_size(LabelAreaPosition::Left, 55)
        .set_label_area_size(LabelAreaPosition::Bottom, 40)
        .build_cartesian_2d(across.clone(), up)?;
    let mut mesh = chart.configure_mesh();
    mesh.x_labels(7).y_labels(7).light_line_style(TRANSPARENT).bold_line_style(GRID).x_desc(&of.across).y_desc(&of.up);
    mesh.x_label_formatter(&shown).y_label_formatter(&shown);
    mesh.label_style((FONT, 12)).axis_desc_style((FONT, 13)).draw()?;
    if let Some((level, name)) = &of.level {
        let ends = [(across.start, *level), (across.end, *level)];
        chart.draw_series(DashedLineSeries::new(ends, 5, 4, LEVEL.into()))?;
        let above = TextStyle::from((FONT, 12)).color(&LEVEL).pos(Pos::new(HPos::Right, VPos::Bottom));
        chart.draw_series([Text::new(name.clone(), ends[1], above)])?;
    }
    for ((points, line), colour) in lines.into_iter().zip(&of.lines).zip(COLOURS.into_iter().cycle()) {
        let drawn = chart.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?;
        if of.lines.len() > 1 {
            let key = move |(x, y)| PathElement::new([(x, y), (x + 15, y)], colour.stroke_width(2));
            drawn.label(line.name.clone()).legend(key);
        }
        chart.draw_series(points.into_iter().map(|p| Circle::new(p, 3, colour.filled())))?;
    }
    if of.lines.len() > 1 {
        chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.8))
            .border_style(GRID)
            .label_font((FONT, 12))
            .draw()?;
    }
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
        let points = vec![(1.0, 2.0), (2.0, f64::NAN)];
        let svg = svg(&[chart("a<b>&c", vec![("", points)])]).unwrap();
        assert!(
            svg.contains("a&lt;b&gt;&amp;c") && svg.matches("<circle").count() == 1 && !svg.contains("NaN"),
            "{svg}"
        );
    }

    #[test]
    fn a_plot_without_points_has_axes() {
        assert!(svg(&[chart("", vec![("", vec![])])]).unwrap().contains("0.5"));
    }

    #[test]
    fn several_lines_have_names() {
        let lines = || vec![("first line", vec![(0.0, 1.0)]), ("second line", vec![(1.0, 2.0)])];
        let svg = svg(&[chart("a", lines()), chart("b", lines())]).unwrap();
        assert_eq!(svg.matches("second line").count(), 2);
        assert!(svg.contains("height=\"800\""), "{svg}");
    }

    fn chart(title: &str, lines: Vec<(&str, Vec<(f64, f64)>)>) -> Chart {
        let lines = lines.into_iter().map(|(name, points)| Line { name: name.into(), points }).collect();
        Chart { title: title.into(), across: "x".into(), up: "y".into(), lines, level: None }
    }
}

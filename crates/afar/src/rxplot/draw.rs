//! Draws curves as SVG: panels below each other on one axis of time. However many points there are, a plot stays small: in a
//! column of pixels only the smallest and the largest are drawn, and of marks that would cover each other one.

use super::curves::{Curves, Point, bytes};
use crate::trace::Heading;
use plotters::coord::Shift;
use plotters::prelude::*;
use std::collections::HashSet;
use std::error::Error;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn Error>>;

/// Size of the plot, pixels.
const WIDTH: u32 = 1200;
const TITLE: u32 = 58;
/// Height of the first panel, of each other one, and of the time's labels below the last.
const TALL: u32 = 430;
const LOW: u32 = 170;
const AXIS: u32 = 36;
/// Room left of the panels for labels, and right of them.
const LEFT: u32 = 84;
const RIGHT: u32 = 24;
/// The place where the legend begins, from the left of the panel: behind the longest title.
const LEGEND: u32 = 320;
/// Columns of pixels that a curve has.
const COLUMNS: f64 = (WIDTH - LEFT - RIGHT) as f64;
/// Marks nearer to each other than this are drawn once.
const MARK: f64 = 3.0;

/// Told apart by eyes that do not see red and green as others do (the palette of Okabe and Ito).
const BLUE: RGBColor = RGBColor(0, 114, 178);
const GREEN: RGBColor = RGBColor(0, 158, 115);
const RED: RGBColor = RGBColor(204, 40, 0);
const ORANGE: RGBColor = RGBColor(230, 159, 0);
const GREY: RGBColor = RGBColor(150, 150, 150);
const INK: RGBColor = RGBColor(60, 60, 60);

/// The look of a series.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    /// A line that stays until the next point.
    Steps,
    /// A line from point to point.
    Line,
    /// A cross, or a dot, at each point.
    Crosses,
    Dots,
}

struct Series<'a> {
    label: &'static str,
    colour: RGBColor,
    style: Style,
    points: &'a [Point],
}

struct Panel<'a> {
    title: &'static str,
    /// The upper end of the values; 0 for what the series have.
    top: f64,
    label: fn(&f64) -> String,
    series: Vec<Series<'a>>,
    /// Lines from bottom to top: timeouts and the like.
    moments: Vec<(&'static str, RGBColor, &'a [f64])>,
}

/// The plot as SVG text.
pub(super) fn svg(heading: &Heading, curves: &Curves) -> Result<String, Box<dyn Error>> {
    let rtt_points: Vec<Point> =
        curves.rtt.iter().flat_map(|(at, min, max)| [(*at, *min), (*at, *max)]).collect();
    let panels = panels(curves, &rtt_points);
    let height = TITLE + TALL + LOW * (panels.len() as u32 - 1) + AXIS;
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE)?;
        let (title, mut rest) = root.split_vertically(TITLE);
        draw_title(&title, heading, curves)?;
        let last = panels.len() - 1;
        for (i, panel) in panels.iter().enumerate() {
            let axis = if i == last { AXIS } else { 0 };
            let (area, below) = rest.split_vertically(if i == 0 { TALL } else { LOW } + axis);
            draw_panel(&area, panel, curves.duration, axis, if i == 0 { &curves.phases } else { &[] })?;
            rest = below;
        }
        root.present()?;
    }
    Ok(text)
}

fn panels<'a>(curves: &'a Curves, rtt: &'a [Point]) -> Vec<Panel<'a>> {
    let series = |label, colour, style, points: &'a [Point]| Series { label, colour, style, points };
    let top = curves.highest.last().map_or(1.0, |(_, seq)| *seq) * 1.04;
    let (highest, next, again) = match curves.is_sender {
        true => ("sent", "acknowledged up to", "sent again"),
        false => ("received", "acknowledged up to", "came late"),
    };
    let mut panels = vec![Panel {
        title: if curves.is_sender { "packets sent" } else { "packets received" },
        top,
        label: |n| format!("{n:.0}"),
        series: vec![
            series("window offered", GREY, Style::Steps, &curves.allowed),
            series(highest, BLUE, Style::Steps, &curves.highest),
            series(next, GREEN, Style::Steps, &curves.next),
            series(again, ORANGE, Style::Dots, &curves.again),
            series("found lost", RED, Style::Crosses, &curves.lost),
        ],
        moments: vec![("asked the peer", GREY, &curves.probes), ("timeout", RED, &curves.timeouts)],
    }];
    let mut add = |title, label, series: Vec<Series<'a>>| {
        if series.iter().any(|s| !s.points.is_empty()) {
            panels.push(Panel { title, top: 0.0, label, series, moments: Vec::new() });
        }
    };
    let flight = vec![
        series("congestion window", ORANGE, Style::Steps, &curves.window),
        series("in flight", BLUE, Style::Steps, &curves.in_flight),
    ];
    add("bytes in flight on the path", |n| bytes(*n), flight);
    let behind = vec![series("received, not yet acknowledged in order", BLUE, Style::Steps, &curves.behind)];
    add("packets behind the first that is missing", |n| format!("{n:.0}"), behind);
    let rate = vec![
        series("paced at", ORANGE, Style::Steps, &curves.pacing),
        series("arriving", BLUE, Style::Line, &curves.arriving),
    ];
    add("rate, Mbit/s", |n| short(n / 1e6), rate);
    add("round trip, ms", |n| short(*n), vec![series("measured", BLUE, Style::Dots, rtt)]);
    panels
}

/// A number with as many digits as it needs.
fn short(n: f64) -> String {
    if n >= 10.0 || n == 0.0 { format!("{n:.0}") } else { format!("{n:.2}") }
}

fn font(size: u32, colour: RGBColor) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&colour)
}

fn draw_title(area: &Area<'_>, heading: &Heading, curves: &Curves) -> Drawn {
    let who = if heading.role == "client" { "A call to" } else { "A call from" };
    let title = format!("{who} {}: {}", heading.peer, curves.summary());
    area.draw(&Text::new(title, (LEFT as i32, 12), font(17, INK)))?;
    let mut notes = Vec::new();
    if heading.span_ns > 0 {
        notes.push(format!("added up over {} each", time(heading.span_ns as f64 / 1e9)));
    }
    if heading.marks_left_out > 0 {
        notes.push(format!("{} more losses and resends were not recorded", heading.marks_left_out));
    }
    area.draw(&Text::new(notes.join("; "), (LEFT as i32, 36), font(13, GREY)))?;
    Ok(())
}

fn time(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.1} s"),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.0} µs", s * 1e6),
    }
}

fn draw_panel(
    area: &Area<'_>,
    panel: &Panel<'_>,
    duration: f64,
    axis: u32,
    phases: &[(f64, String)],
) -> Drawn {
    let right = if duration > 0.0 { duration } else { 1e-3 };
    let highest = panel.series.iter().flat_map(|s| s.points).map(|p| p.1).fold(0.0, f64::max);
    let top = if panel.top > 0.0 { panel.top } else { highest * 1.1 };
    let top = if top > 0.0 { top } else { 1.0 };
    let (_, height) = area.dim_in_pixel();
    let pixels = f64::from(height - axis).max(1.0);
    let mut chart = ChartBuilder::on(area)
        .set_label_area_size(LabelAreaPosition::Left, LEFT)
        .set_label_area_size(LabelAreaPosition::Bottom, axis)
        .margin_right(RIGHT)
        .margin_top(24)
        .build_cartesian_2d(0.0..right, 0.0..top)?;
    let label_time = move |at: &f64| {
        if right >= 2.0 { format!("{} s", short_time(*at)) } else { format!("{} ms", short_time(at * 1e3)) }
    };
    let mut mesh = chart.configure_mesh();
    mesh.light_line_style(TRANSPARENT)
        .bold_line_style(RGBColor(228, 228, 228))
        .axis_style(GREY)
        .x_labels(10)
        .y_labels(if height > 300 { 8 } else { 4 })
        .label_style(font(13, INK))
        .x_label_formatter(&label_time)
        .y_label_formatter(&panel.label);
    mesh.draw()?;
    area.draw(&Text::new(panel.title, (LEFT as i32 + 2, 5), font(14, INK)))?;
    for (_, colour, moments) in &panel.moments {
        let mut seen = HashSet::new();
        let lines = moments.iter().filter(|at| seen.insert((*at / right * COLUMNS / MARK) as i64));
        let style = colour.mix(0.5).stroke_width(1);
        chart.draw_series(lines.map(|at| PathElement::new([(*at, 0.0), (*at, top)], style)))?;
    }
    for series in panel.series.iter().filter(|s| !s.points.is_empty()) {
        let colour = series.colour;
        // Only what is in the panel: the offered window may end far above it.
        let inside = |p: &Point| (p.0, p.1.min(top));
        match series.style {
            Style::Steps | Style::Line => {
                let points: Vec<Point> = series.points.iter().map(inside).collect();
                let points = if series.style == Style::Steps { steps(&points) } else { points };
                let style = colour.stroke_width(if series.label == "window offered" { 1 } else { 2 });
                chart.draw_series(LineSeries::new(thin(&points, right), style))?;
            }
            Style::Dots => {
                let points = sparse(series.points, right, top, pixels);
                chart.draw_series(points.into_iter().map(|p| Circle::new(p, 2, colour.filled())))?;
            }
            Style::Crosses => {
                let points = sparse(series.points, right, top, pixels);
                let style = colour.stroke_width(1);
                chart.draw_series(points.into_iter().map(|p| Cross::new(p, 3, style)))?;
            }
        }
    }
    draw_phases(&chart, phases, right, top)?;
    draw_legend(area, panel)?;
    Ok(())
}

/// Draws the names of the colours, right of the panel's title: over the curves they would hide them.
fn draw_legend(area: &Area<'_>, panel: &Panel<'_>) -> Drawn {
    let series = panel.series.iter().filter(|s| !s.points.is_empty()).map(|s| (s.label, s.colour, s.style));
    let moments = panel.moments.iter().filter(|m| !m.2.is_empty()).map(|m| (m.0, m.1, Style::Line));
    let mut x = (LEFT + LEGEND) as i32;
    for (label, colour, style) in series.chain(moments) {
        let y = 12;
        match style {
            Style::Steps | Style::Line => {
                area.draw(&PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)))?;
            }
            Style::Dots => area.draw(&Circle::new((x + 12, y), 3, colour.filled()))?,
            Style::Crosses => area.draw(&Cross::new((x + 12, y), 3, colour.stroke_width(1)))?,
        }
        area.draw(&Text::new(label, (x + 24, 6), font(13, INK)))?;
        x += 44 + 7 * label.len() as i32;
    }
    Ok(())
}

/// The names of the controller's phases, where each begins, but for those that have no room.
fn draw_phases(
    chart: &ChartContext<
        '_,
        SVGBackend<'_>,
        Cartesian2d<plotters::coord::types::RangedCoordf64, plotters::coord::types::RangedCoordf64>,
    >,
    phases: &[(f64, String)],
    right: f64,
    top: f64,
) -> Drawn {
    let mut free_from = f64::MIN;
    for (at, name) in phases {
        let at_pixel = at / right * COLUMNS;
        if at_pixel >= free_from {
            chart.plotting_area().draw(&Text::new(name.clone(), (*at, top), font(12, GREY)))?;
            free_from = at_pixel + 8.0 * name.chars().count() as f64 + 6.0;
        }
    }
    Ok(())
}

fn short_time(n: f64) -> String {
    let text = format!("{n:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A line that keeps each value until the next.
fn steps(points: &[Point]) -> Vec<Point> {
    let mut out = Vec::with_capacity(2 * points.len());
    for (i, point) in points.iter().enumerate() {
        if i > 0 {
            out.push((point.0, points[i - 1].1));
        }
        out.push(*point);
    }
    out
}

/// The same line with at most four points in each column of pixels: the first, the smallest, the largest, the last.
fn thin(points: &[Point], right: f64) -> Vec<Point> {
    let column = |p: &Point| (p.0 / right * COLUMNS) as i64;
    let mut out = Vec::new();
    for group in points.chunk_by(|a, b| column(a) == column(b)) {
        let by_value = |a: &&Point, b: &&Point| a.1.total_cmp(&b.1);
        let ends =
            [group.first(), group.iter().min_by(by_value), group.iter().max_by(by_value), group.last()];
        for point in ends.into_iter().flatten() {
            if out.last() != Some(point) {
                out.push(*point);
            }
        }
    }
    out
}

/// One of those points that would be drawn over each other.
fn sparse(points: &[Point], right: f64, top: f64, pixels: f64) -> Vec<Point> {
    let mut seen = HashSet::new();
    let cell = |p: &Point| ((p.0 / right * COLUMNS / MARK) as i64, (p.1 / top * pixels / MARK) as i64);
    points.iter().filter(|p| seen.insert(cell(p))).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::TraceFile;
    use crate::trace::tests::sample;

    #[test]
    fn a_plot_has_what_the_trace_has() {
        let file = TraceFile::from(&sample());
        let svg = svg(&file.heading, &Curves::of(&file)).unwrap();
        for text in [
            "192.0.2.1:7009",
            "found lost",
            "sent again",
            "timeout",
            "startup",
            "in flight",
            "paced at",
            "round trip",
        ] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(svg.contains("added up over 50 µs each") && svg.contains("3 more losses"));
    }

    #[test]
    fn a_trace_of_nothing_is_drawn_all_the_same() {
        let mut file = TraceFile::from(&sample());
        file.lines.clear();
        assert!(svg(&file.heading, &Curves::of(&file)).unwrap().ends_with("</svg>\n"));
    }

    #[test]
    fn a_plot_stays_small_however_long_the_call() {
        let file = TraceFile::from(&sample());
        let mut curves = Curves::of(&file);
        curves.duration = 100.0;
        let wave = |i: u32| (f64::from(i) / 10_000.0, f64::from(i % 977) * 1000.0);
        let many: Vec<Point> = (0..1_000_000).map(wave).collect();
        curves.in_flight = many.clone();
        curves.highest = (0..1_000_000).map(|i| (f64::from(i) / 10_000.0, f64::from(i))).collect();
        (curves.lost, curves.again) = (curves.highest.clone(), curves.highest.clone());
        let svg = svg(&file.heading, &curves).unwrap();
        assert!(svg.len() < 1 << 20, "{} bytes", svg.len());
    }

    #[test]
    fn thinning_keeps_every_peak() {
        let mut points: Vec<Point> = (0..100_000).map(|i| (f64::from(i) / 100_000.0, 1.0)).collect();
        points[54_321].1 = 9.0;
        points[76_543].1 = 0.0;
        let thinned = thin(&points, 1.0);
        assert!(thinned.len() <= 4 * COLUMNS as usize + 4);
        assert!(thinned.contains(&points[54_321]) && thinned.contains(&points[76_543]));
    }
}

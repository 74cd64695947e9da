//! Plots as SVG text: horizontal bars with the spread of their runs, and curves. Colours come from the page's style.

use std::fmt::Write;

use crate::record::short;

/// Width of a plot, pixels.
const WIDTH: f64 = 860.0;
/// Room for the labels of bars.
const LABELS: f64 = 270.0;
/// Room for the figures behind bars.
const FIGURES: f64 = 70.0;
const BAR: f64 = 16.0;
const BAR_STEP: f64 = 24.0;
/// Room below a plot for its axis.
const AXIS: f64 = 34.0;
const CURVES_HEIGHT: f64 = 240.0;
/// Room left of curves for their axis.
const CURVES_LEFT: f64 = 50.0;

/// A bar.
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) value: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// Ours: drawn in another colour than what stands beside it.
    pub(crate) is_ours: bool,
}

/// Bars below each other, with the goal as a line.
pub(crate) fn bars(bars: &[Bar], goal: Option<f64>, unit: &str) -> String {
    let top = bars.iter().map(|bar| bar.high).chain(goal).fold(0.0, f64::max) * 1.02;
    let scale = (WIDTH - LABELS - FIGURES) / if top > 0.0 { top } else { 1.0 };
    let height = bars.len() as f64 * BAR_STEP;
    let mut out = begin(height + AXIS);
    for (i, bar) in bars.iter().enumerate() {
        let y = i as f64 * BAR_STEP + 4.0;
        let (middle, end) = (y + BAR / 2.0, LABELS + bar.value * scale);
        let class = if bar.is_ours { "ours" } else { "other" };
        let label = escape(&bar.label);
        let _ = write!(
            out,
            "<text x='{:.0}' y='{:.1}' class='end'>{label}</text>\
             <rect class='{class}' x='{LABELS:.0}' y='{y:.1}' width='{:.1}' height='{BAR:.0}'/>\
             <line class='spread' x1='{:.1}' y1='{middle:.1}' x2='{:.1}' y2='{middle:.1}'/>\
             <text x='{:.1}' y='{:.1}'>{}</text>",
            LABELS - 6.0,
            middle + 4.0,
            end - LABELS,
            LABELS + bar.low * scale,
            LABELS + bar.high * scale,
            end.max(LABELS + bar.high * scale) + 5.0,
            middle + 4.0,
            short(bar.value)
        );
    }
    for tick in ticks(top) {
        let x = LABELS + tick * scale;
        let _ = write!(
            out,
            "<line class='grid' x1='{x:.1}' y1='0' x2='{x:.1}' y2='{height:.0}'/>\
             <text class='middle' x='{x:.1}' y='{:.0}'>{}</text>",
            height + 14.0,
            short(tick)
        );
    }
    if let Some(goal) = goal {
        let x = LABELS + goal * scale;
        let _ = write!(out, "<line class='goal' x1='{x:.1}' y1='0' x2='{x:.1}' y2='{height:.0}'/>");
    }
    let _ =
        write!(out, "<text x='{LABELS:.0}' y='{:.0}' class='end'>{} </text>", height + 14.0, escape(unit));
    out + "</svg>\n"
}

/// Some points that make a line.
pub(crate) struct Line<'a> {
    pub(crate) points: &'a [(f64, f64)],
    /// Which of the colours, 0 or 1.
    pub(crate) colour: usize,
}

/// Lines over each other, with the goal as a horizontal line; `right` is where the x axis ends.
pub(crate) fn curves(
    lines: &[Line<'_>],
    right: f64,
    goal: Option<f64>,
    x_name: &str,
    y_name: &str,
) -> String {
    let highest = lines.iter().flat_map(|line| line.points).map(|point| point.1);
    let top = highest.chain(goal).fold(0.0, f64::max) * 1.05;
    let x_scale = (WIDTH - CURVES_LEFT - 10.0) / if right > 0.0 { right } else { 1.0 };
    let y_scale = CURVES_HEIGHT / if top > 0.0 { top } else { 1.0 };
    let place = |(x, y): (f64, f64)| (CURVES_LEFT + x * x_scale, CURVES_HEIGHT - y * y_scale);
    let mut out = begin(CURVES_HEIGHT + AXIS);
    let edge = WIDTH - 10.0;
    for tick in ticks(top) {
        let (_, y) = place((0.0, tick));
        let _ = write!(
            out,
            "<line class='grid' x1='{CURVES_LEFT:.0}' y1='{y:.1}' x2='{edge:.0}' y2='{y:.1}'/>\
             <text class='end' x='{:.0}' y='{:.1}'>{}</text>",
            CURVES_LEFT - 5.0,
            y + 4.0,
            short(tick)
        );
    }
    for tick in ticks(right) {
        let (x, _) = place((tick, 0.0));
        let y = CURVES_HEIGHT + 14.0;
        let _ = write!(out, "<text class='middle' x='{x:.1}' y='{y:.0}'>{}</text>", short(tick));
    }
    if let Some(goal) = goal {
        let (_, y) = place((0.0, goal));
        let _ =
            write!(out, "<line class='goal' x1='{CURVES_LEFT:.0}' y1='{y:.1}' x2='{edge:.0}' y2='{y:.1}'/>");
    }
    for line in lines {
        out += &format!("<polyline class='line{}' points='", line.colour);
        for point in line.points.iter().filter(|point| point.0 <= right) {
            let (x, y) = place(*point);
            let _ = write!(out, "{x:.1},{y:.1} ");
        }
        out += "'/>";
    }
    let _ = write!(
        out,
        "<text class='end' x='{edge:.0}' y='{:.0}'>{}</text><text x='{:.0}' y='12'>{}</text>",
        CURVES_HEIGHT + 30.0,
        escape(x_name),
        CURVES_LEFT + 4.0,
        escape(y_name)
    );
    out + "</svg>\n"
}

/// Text that may stand in HTML and SVG, also between quotes.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('\'', "&#39;")
        .replace('"', "&quot;")
}

fn begin(height: f64) -> String {
    format!("<svg viewBox='0 0 {WIDTH:.0} {height:.0}' role='img'>")
}

/// Round numbers from 0 to `top`, about five.
fn ticks(top: f64) -> Vec<f64> {
    if !top.is_finite() || top <= 0.0 {
        return vec![0.0];
    }
    let rough = top / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or(10.0 * power);
    (0..=(top / step) as usize).map(|i| i as f64 * step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_numbers() {
        assert_eq!(ticks(965.0), [0.0, 200.0, 400.0, 600.0, 800.0]);
        assert_eq!(ticks(1.0), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(ticks(0.0), [0.0]);
    }

    #[test]
    fn nothing_to_draw_is_drawn_all_the_same() {
        assert!(bars(&[], None, "Mbit/s").ends_with("</svg>\n"));
        assert!(curves(&[], 0.0, Some(1.0), "<x>", "y").contains("&lt;x&gt;"));
    }
}

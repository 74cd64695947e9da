//! Plots as SVG text: bars with the spread of their runs, marks of several series in rows, and curves. Colours are variables of
//! the page's style (`page.rs`), so that a plot is as light or dark as the page. What is drawn is others' to say.

use std::error::Error;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::page::escape;
use crate::summary::{Summary, short};

/// Width of a plot, pixels.
const WIDTH: i32 = 860;
/// Room for the labels of rows.
const LABELS: i32 = 290;
/// Room for the figures behind bars.
const FIGURES: i32 = 70;
/// Thickness of a bar, and the distance of two.
const BAR: i32 = 16;
const ROW: i32 = 24;
/// Room above rows for a line of the legend, and below a plot for its axis.
const LEGEND: i32 = 20;
const AXIS: i32 = 36;
const CURVES_HEIGHT: i32 = 240;
/// Room left of curves for their axis.
const CURVES_LEFT: i32 = 50;
/// Half of a mark's size.
const MARK: i32 = 5;
/// The width of a letter, about: SVG is measured where it is shown.
const LETTER: i32 = 7;
/// Values that are further apart than this are drawn on a logarithmic axis, if none is zero.
const LOG_FROM: f64 = 30.0;

/// Colours as they are drawn, each with the variable that it stands for in the page's style, and what that is on a light page. No two are alike.
const FOREGROUND: RGBColor = RGBColor(1, 1, 1);
const GRID: RGBColor = RGBColor(2, 2, 2);
const GOAL: RGBColor = RGBColor(3, 3, 3);
const OURS: RGBColor = RGBColor(4, 4, 4);
const OTHER: RGBColor = RGBColor(5, 5, 5);
const MIXED: RGBColor = RGBColor(6, 6, 6);
const THIRD: RGBColor = RGBColor(7, 7, 7);
const VARIABLES: [(RGBColor, &str, &str); 7] = [
    (FOREGROUND, "--fg", "#23272b"),
    (GRID, "--grid", "#dfe3e8"),
    (GOAL, "--goal", "#c0392b"),
    (OURS, "--ours", "#2a6fb0"),
    (OTHER, "--other", "#98a2ad"),
    (MIXED, "--second", "#c97a1b"),
    (THIRD, "--good", "#2c7a3f"),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn Error>>;

/// The maker to whom a series belongs, which its colour shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// afar.
    Ours,
    /// OpenAFS.
    Other,
    /// OpenAFS and ours together.
    Mixed,
    /// Anything else that stands beside: TCP, the local disk.
    Third,
}

impl Family {
    fn colour(self) -> RGBColor {
        match self {
            Family::Ours => OURS,
            Family::Other => OTHER,
            Family::Mixed => MIXED,
            Family::Third => THIRD,
        }
    }
}

/// A bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// The text that stands left of it.
    pub label: String,
    /// The value at which it ends.
    pub value: f64,
    /// The least and the most of the runs.
    pub low: f64,
    /// See [`Self::low`].
    pub high: f64,
    /// Its colour.
    pub family: Family,
}

/// Bars below each other, with the goal as a line.
pub fn bars(bars: &[Bar], goal: Option<f64>, unit: &str) -> String {
    let top = bars.iter().map(|bar| bar.high).chain(goal).fold(0.0, f64::max) * 1.02;
    let height = bars.len() as i32 * ROW;
    let scale = Scale::linear(top, LABELS, WIDTH - FIGURES);
    draw(height + AXIS, |area| {
        axis_below(area, &scale, 0, height, unit)?;
        for (bar, top) in bars.iter().zip((4..).step_by(ROW as usize)) {
            let middle = top + BAR / 2;
            let end = scale.at(bar.value);
            text(area, &bar.label, (LABELS - 6, middle), HPos::Right)?;
            let corners = [(LABELS, top), (end, top + BAR)];
            area.draw(&Rectangle::new(corners, bar.family.colour().filled()))?;
            line(area, [(scale.at(bar.low), middle), (scale.at(bar.high), middle)], FOREGROUND, 2)?;
            let behind = end.max(scale.at(bar.high)) + 5;
            text(area, &short(bar.value), (behind, middle), HPos::Left)?;
        }
        upright(area, &scale, goal, 0, height)
    })
}

/// The values of one thing in all rows.
#[derive(Clone, Debug)]
pub struct Series {
    /// As it is called in the legend.
    pub name: String,
    /// Its colour; who comes later in a family has other marks.
    pub family: Family,
    /// A value for each row, where there is one.
    pub values: Vec<Option<Summary>>,
}

/// A mark for each series in each row, at its median, with the spread as a line; on a logarithmic axis if they are far apart.
pub fn marks(rows: &[String], series: &[Series], unit: &str) -> String {
    let values = || series.iter().flat_map(|one| one.values.iter().flatten());
    let high = values().map(|value| value.max).fold(0.0, f64::max);
    let low = values().map(|value| value.min).fold(f64::INFINITY, f64::min);
    let scale = if low > 0.0 && high / low > LOG_FROM {
        Scale::logarithmic(low, high, LABELS, WIDTH - 30)
    } else {
        Scale::linear(high * 1.02, LABELS, WIDTH - 30)
    };
    let styles: Vec<_> = series.iter().enumerate().map(|(i, one)| (one, mark_style(series, i))).collect();
    let legend = legend_places(series);
    let above = legend.last().map_or(0, |(_, y)| y + LEGEND);
    let bottom = above + rows.len() as i32 * ROW;
    draw(bottom + AXIS, |area| {
        for ((one, style), place) in styles.iter().zip(&legend) {
            mark(area, (place.0, place.1 + LEGEND / 2), *style)?;
            text(area, &one.name, (place.0 + 10, place.1 + LEGEND / 2), HPos::Left)?;
        }
        axis_below(area, &scale, above, bottom, unit)?;
        for (index, row) in rows.iter().enumerate() {
            let middle = above + index as i32 * ROW + ROW / 2;
            text(area, row, (LABELS - 8, middle), HPos::Right)?;
            line(area, [(LABELS, middle), (WIDTH - 30, middle)], GRID, 1)?;
            // The first series last: it is what it is about.
            for (one, style) in styles.iter().rev() {
                let Some(value) = one.values.get(index).copied().flatten() else { continue };
                line(area, [(scale.at(value.min), middle), (scale.at(value.max), middle)], style.0, 2)?;
                mark(area, (scale.at(value.median), middle), *style)?;
            }
        }
        Ok(())
    })
}

/// The look of a series' marks: its colour, and which of its family it is.
type MarkStyle = (RGBColor, usize);

fn mark_style(series: &[Series], index: usize) -> MarkStyle {
    let family = series[index].family;
    let before = series[..index].iter().filter(|one| one.family == family).count();
    (family.colour(), before)
}

fn mark(area: &Area<'_>, (x, y): (i32, i32), (colour, which): MarkStyle) -> Drawn {
    match which % 3 {
        0 => area.draw(&Circle::new((x, y), MARK, colour.filled()))?,
        1 => area.draw(&Circle::new((x, y), MARK, colour.stroke_width(2)))?,
        _ => {
            let corners = [(x - MARK, y - MARK), (x + MARK, y + MARK)];
            area.draw(&Rectangle::new(corners, colour.stroke_width(2)))?;
        }
    }
    Ok(())
}

/// The places of the legend's entries, in lines.
fn legend_places(series: &[Series]) -> Vec<(i32, i32)> {
    let (mut x, mut y) = (LABELS + MARK, 0);
    let mut places = Vec::new();
    for one in series {
        let width = 26 + one.name.chars().count() as i32 * LETTER;
        if x + width > WIDTH && x > LABELS + MARK {
            (x, y) = (LABELS + MARK, y + LEGEND);
        }
        places.push((x, y));
        x += width;
    }
    places
}

/// Some points that make a line.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    /// Each an x and a y, in order of x.
    pub points: &'a [(f64, f64)],
    /// The number of the colour, 0 or 1.
    pub colour: usize,
}

/// Lines over each other, with the goal as a horizontal line; `right` is where the x axis ends.
pub fn curves(lines: &[Line<'_>], right: f64, goal: Option<f64>, x_name: &str, y_name: &str) -> String {
    let highest = lines.iter().flat_map(|line| line.points).map(|point| point.1);
    let top = highest.chain(goal).fold(0.0, f64::max) * 1.05;
    let across = Scale::linear(right, CURVES_LEFT, WIDTH - 10);
    let up = Scale::linear(top, CURVES_HEIGHT, 0);
    draw(CURVES_HEIGHT + AXIS, |area| {
        for tick in up.ticks() {
            let y = up.at(tick);
            line(area, [(CURVES_LEFT, y), (WIDTH - 10, y)], GRID, 1)?;
            text(area, &short(tick), (CURVES_LEFT - 5, y), HPos::Right)?;
        }
        for tick in across.ticks() {
            text(area, &short(tick), (across.at(tick), CURVES_HEIGHT + 10), HPos::Center)?;
        }
        if let Some(goal) = goal {
            dashed(area, (CURVES_LEFT, up.at(goal)), (WIDTH - 10, up.at(goal)))?;
        }
        for one in lines {
            let colour = if one.colour == 0 { OURS } else { MIXED };
            let inside = one.points.iter().filter(|point| point.0 <= right);
            let points: Vec<_> = inside.map(|(x, y)| (across.at(*x), up.at(*y))).collect();
            area.draw(&PathElement::new(points, colour.stroke_width(1)))?;
        }
        text(area, x_name, (WIDTH - 10, CURVES_HEIGHT + 26), HPos::Right)?;
        text(area, y_name, (CURVES_LEFT + 4, 8), HPos::Left)
    })
}

/// A map from values to pixels.
struct Scale {
    low: f64,
    high: f64,
    from: i32,
    to: i32,
    is_logarithmic: bool,
}

impl Scale {
    /// A linear scale from 0 on.
    fn linear(high: f64, from: i32, to: i32) -> Scale {
        let high = if high.is_finite() && high > 0.0 { high } else { 1.0 };
        Scale { low: 0.0, high, from, to, is_logarithmic: false }
    }

    fn logarithmic(low: f64, high: f64, from: i32, to: i32) -> Scale {
        Scale { low: low / 1.3, high: high * 1.3, from, to, is_logarithmic: true }
    }

    fn at(&self, value: f64) -> i32 {
        let share = if self.is_logarithmic {
            (value.max(self.low) / self.low).log10() / (self.high / self.low).log10()
        } else {
            value / self.high
        };
        self.from + (share.clamp(0.0, 1.0) * f64::from(self.to - self.from)).round() as i32
    }

    fn ticks(&self) -> Vec<f64> {
        if !self.is_logarithmic {
            return ticks(self.high);
        }
        let decades = (self.low.log10().floor() as i32)..=(self.high.log10().ceil() as i32);
        let steps: &[f64] = if decades.clone().count() > 4 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let all = decades.flat_map(|decade| steps.iter().map(move |step| step * 10f64.powi(decade)));
        all.filter(|tick| (self.low..=self.high).contains(tick)).collect()
    }
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

/// Lines from the top to the bottom of some rows, and below them what they stand for.
fn axis_below(area: &Area<'_>, scale: &Scale, top: i32, bottom: i32, unit: &str) -> Drawn {
    for tick in scale.ticks() {
        let x = scale.at(tick);
        line(area, [(x, top), (x, bottom)], GRID, 1)?;
        text(area, &short(tick), (x, bottom + 12), HPos::Center)?;
    }
    let note = if scale.is_logarithmic { format!("{unit} (logarithmic)") } else { unit.to_string() };
    text(area, &note, (WIDTH - 30, bottom + 28), HPos::Right)
}

/// The goal in rows.
fn upright(area: &Area<'_>, scale: &Scale, goal: Option<f64>, top: i32, bottom: i32) -> Drawn {
    let Some(goal) = goal else { return Ok(()) };
    dashed(area, (scale.at(goal), top), (scale.at(goal), bottom))
}

fn dashed(area: &Area<'_>, from: (i32, i32), to: (i32, i32)) -> Drawn {
    const DASH: i32 = 8;
    let length = (to.0 - from.0).max(to.1 - from.1);
    let along = |at: i32| if to.0 > from.0 { (from.0 + at, from.1) } else { (from.0, from.1 + at) };
    for start in (0..length).step_by(DASH as usize) {
        line(area, [along(start), along((start + DASH * 5 / 8).min(length))], GOAL, 2)?;
    }
    Ok(())
}

fn line(area: &Area<'_>, points: [(i32, i32); 2], colour: RGBColor, width: u32) -> Drawn {
    Ok(area.draw(&PathElement::new(points.to_vec(), colour.stroke_width(width)))?)
}

/// Its middle at this height; `side` is where it is beside the point.
fn text(area: &Area<'_>, words: &str, at: (i32, i32), side: HPos) -> Drawn {
    let style = ("sans-serif", 12).into_font().color(&FOREGROUND).pos(Pos::new(side, VPos::Center));
    Ok(area.draw(&Text::new(words.to_string(), at, style))?)
}

/// A plot as a file of its own: dark on white, wherever it is shown.
pub fn alone(plot: &str) -> String {
    let mut svg = plot.to_string();
    for (_, variable, colour) in VARIABLES {
        svg = svg.replace(&format!("var({variable})"), colour);
    }
    let Some(end) = svg.find('>') else { return svg };
    svg.insert_str(end + 1, "\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>");
    svg
}

/// A picture of this height, with the page's colours.
fn draw(height: i32, paint: impl FnOnce(&Area<'_>) -> Drawn) -> String {
    let mut svg = String::new();
    let drawn = {
        let area = SVGBackend::with_string(&mut svg, (WIDTH as u32, height as u32)).into_drawing_area();
        paint(&area).and_then(|()| Ok(area.present()?))
    };
    if let Err(error) = drawn {
        return format!("<p class='warn'>{}</p>\n", escape(&format!("this could not be drawn: {error}")));
    }
    for (RGBColor(red, green, blue), variable, _) in VARIABLES {
        svg = svg.replace(&format!("\"#{red:02X}{green:02X}{blue:02X}\""), &format!("\"var({variable})\""));
    }
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_numbers() {
        assert_eq!(ticks(965.0), [0.0, 200.0, 400.0, 600.0, 800.0]);
        assert_eq!(ticks(1.0), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(ticks(0.0), [0.0]);
        assert_eq!(Scale::logarithmic(2.5, 150.0, 0, 100).ticks(), [2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        assert_eq!(Scale::logarithmic(0.01, 5000.0, 0, 100).ticks().first(), Some(&0.01));
    }

    #[test]
    fn values_are_where_they_belong() {
        let scale = Scale::logarithmic(1.3, 1000.0 / 1.3, 0, 300);
        assert_eq!([1.0, 10.0, 100.0, 1000.0, 0.0].map(|value| scale.at(value)), [0, 100, 200, 300, 0]);
        let up = Scale::linear(50.0, 240, 0);
        assert_eq!([0.0, 25.0, 50.0].map(|value| up.at(value)), [240, 120, 0]);
    }

    #[test]
    fn nothing_to_draw_is_drawn_all_the_same() {
        assert!(bars(&[], None, "Mbit/s").ends_with("</svg>\n"));
        assert!(marks(&[], &[], "s").ends_with("</svg>\n"));
        assert!(curves(&[], 0.0, Some(1.0), "<x>", "y").contains("&lt;x&gt;"));
    }

    #[test]
    fn colours_are_the_pages() {
        let value = Summary { median: 2.0, min: 1.0, max: 300.0, runs: 3 };
        let series =
            Series { name: "afar".to_string(), family: Family::Ours, values: vec![Some(value), None] };
        let svg = marks(&["one".to_string(), "two".to_string()], &[series], "s");
        assert!(svg.contains("var(--ours)") && svg.contains("logarithmic"), "{svg}");
        assert!(!svg.contains('#'), "{svg}");
        let alone = alone(&svg);
        assert!(alone.contains("#2a6fb0") && !alone.contains("var("), "{alone}");
    }
}

//! The report: one HTML file without anything beside it, made from the records of a folder. Shows goals, bars and
//! tables of each experiment, and the curves of those that have some.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::error::Error;
use crate::experiments::EXPERIMENTS;
use crate::record::{Record, Row, Summary, short};
use crate::svg::{self, Bar, Line, escape};

/// The name of the report's file.
pub(crate) const FILE_NAME: &str = "report.html";

const STYLE: &str = "
:root { color-scheme: light dark; --fg: #222; --soft: #777; --grid: #ddd; --ours: #2a6fb0; --other: #aab4bf;
  --goal: #c0392b; --second: #c97a1b; --good: #2c7a3f; }
@media (prefers-color-scheme: dark) { :root { --fg: #ddd; --soft: #999; --grid: #444; --ours: #5b9bd5; --other: #6b7680;
  --goal: #e06c5c; --second: #e0a050; --good: #6bbf7b; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--fg); max-width: 900px; margin: 2em auto; padding: 0 1em; }
h2 { margin-top: 2.5em; border-bottom: 1px solid var(--grid); }
p.soft, td.soft { color: var(--soft); } p.warn { color: var(--goal); font-weight: bold; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; margin: 1em 0; }
th, td { text-align: right; padding: 2px 8px; border-bottom: 1px solid var(--grid); vertical-align: top; }
th.text, td.text { text-align: left; } .met { color: var(--good); } .missed { color: var(--goal); font-weight: bold; }
svg { width: 100%; height: auto; margin: 0.5em 0; } svg text { font: 12px system-ui, sans-serif; fill: var(--fg); }
svg .end { text-anchor: end; } svg .middle { text-anchor: middle; } .ours { fill: var(--ours); } .other { fill: var(--other); }
.spread { stroke: var(--fg); stroke-width: 2; } .grid { stroke: var(--grid); opacity: 0.6; }
.goal { stroke: var(--goal); stroke-width: 1.5; stroke-dasharray: 5 3; }
.line0, .line1 { fill: none; stroke-width: 1.2; opacity: 0.75; } .line0 { stroke: var(--ours); } .line1 { stroke: var(--second); }
";

/// Makes the report of the records in this folder, and writes it there.
pub(crate) fn write(folder: &Path) -> Result<(), Error> {
    let mut records = Vec::new();
    for experiment in EXPERIMENTS {
        records.extend(Record::read(folder, experiment.name)?);
    }
    let path = folder.join(FILE_NAME);
    fs::write(&path, html(&records)).map_err(|e| Error::setup(format!("writing {}: {e}", path.display())))
}

fn html(records: &[Record]) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang='en'><meta charset='utf-8'><title>afar: measurements</title>\n<style>{STYLE}</style>\n\
         <h1>afar: measurements</h1>\n\
         <p>Bars are medians of the runs that count, the dark line their spread, the dashed line the goal. All figures, runs and \
         commands are in the JSON files beside this one.</p>\n"
    );
    if records.is_empty() {
        out += "<p>There are no records yet.</p>\n";
    }
    summary(records, &mut out);
    for record in records {
        section(record, &mut out);
    }
    out + "</html>\n"
}

fn summary(records: &[Record], out: &mut String) {
    *out += "<h2>Goals</h2>\n<div class='scroll'><table><tr><th class='text'>Goal<th>measured<th class='text'>\
        <th class='text'></tr>\n";
    for verdict in records.iter().flat_map(|record| &record.verdicts) {
        let (class, word) = if verdict.is_met { ("met", "met") } else { ("missed", "missed") };
        let measured = verdict.measured.map_or("-".to_string(), short);
        let _ = writeln!(
            out,
            "<tr><td class='text'>{}<td>{measured}<td class='text {class}'>{word}<td class='text soft'>{}</tr>",
            escape(&verdict.claim),
            escape(&verdict.note)
        );
    }
    *out += "</table></div>\n";
}

fn section(record: &Record, out: &mut String) {
    let setting = &record.setting;
    let _ =
        writeln!(out, "<h2 id='{0}'>{1} <small>({0})</small></h2>", record.experiment, escape(&record.title));
    if record.is_quick {
        *out += "<p class='warn'>A quick run: it shows that the experiment works, not how fast anything is.</p>\n";
    }
    if !record.was_quiet_at_start {
        *out += "<p class='warn'>The machine had other work when this began.</p>\n";
    }
    if !record.is_complete() {
        *out += "<p class='warn'>Some rows have fewer valid runs than they should.</p>\n";
    }
    let _ = writeln!(out, "<p>{}</p>\n<p>{}</p>", escape(&record.method), escape(&record.placement));
    let machine = format!(
        "{}. afar {}, {}, Linux {}, {}, libopenafs-dev {}. {}, {} cores, {} MiB. Load average at the start: {}.",
        setting.date,
        setting.afar,
        setting.rustc,
        setting.kernel,
        setting.iperf3,
        setting.libopenafs,
        setting.cpu,
        setting.cores,
        setting.memory_mib,
        setting.load_average
    );
    let _ = writeln!(out, "<p class='soft'>{}</p>", escape(&machine));
    headlines(record, out);
    curves(record, out);
    table(record, out);
}

/// Bars of the headline's figure, and of those that end like it ("second call, RTTs" beside "first call, RTTs").
fn headlines(record: &Record, out: &mut String) {
    let unit = |figure: &str| figure.rsplit(", ").next().unwrap_or_default().to_string();
    let wanted = unit(&record.headline);
    let mut figures: Vec<&String> =
        record.rows.iter().flat_map(|row| row.figures.keys()).filter(|name| unit(name) == wanted).collect();
    figures.sort();
    figures.dedup();
    for figure in figures {
        let bars: Vec<Bar> =
            record.rows.iter().filter_map(|row| bar(row, row.figures.get(figure)?)).collect();
        // One goal for all rows, or none that could be drawn.
        let side = figure.strip_suffix(&wanted).unwrap_or_default().trim_end_matches(", ");
        let mut bounds = record.verdicts.iter().filter(|v| v.claim.contains(side)).map(|v| v.bound);
        let goal = bounds.next().filter(|first| bounds.all(|bound| bound == *first));
        if figure != &wanted {
            let _ = writeln!(out, "<h3>{}</h3>", escape(figure));
        }
        *out += &svg::bars(&bars, goal, &wanted);
    }
}

fn bar(row: &Row, summary: &Summary) -> Option<Bar> {
    let stands_beside = |value: &str| {
        let with_itself = value.starts_with("OpenAFS") && !value.contains("afar");
        with_itself || value.starts_with("TCP") || value.ends_with("from OpenAFS")
    };
    Some(Bar {
        label: row.name(),
        value: summary.median,
        low: summary.min,
        high: summary.max,
        is_ours: !row.labels.iter().any(|(_, value)| stands_beside(value)),
    })
}

/// How an experiment's curves are drawn.
struct Axes {
    goal: Option<f64>,
    /// Where the x axis ends.
    right: f64,
    x: &'static str,
    y: &'static str,
}

/// Those of an experiment whose curves end at `last`.
fn axes(experiment: &str, last: f64) -> Axes {
    match experiment {
        "ramp" => Axes {
            goal: Some(0.9 * crate::network::CEILING_MBIT),
            // What comes later than this is level.
            right: last.min(30.0),
            x: "round trips since the call's first packet",
            y: "Mbit/s over one RTT",
        },
        "share" => Axes { goal: None, right: last, x: "seconds", y: "Mbit/s" },
        "crowd" => Axes { goal: None, right: last, x: "% of the probes", y: "ms at most" },
        _ => Axes { goal: None, right: last, x: "connections", y: "MB" },
    }
}

/// The curves of each row: all its valid runs over each other.
fn curves(record: &Record, out: &mut String) {
    for row in &record.rows {
        let names: Vec<&str> =
            row.valid_runs().next().into_iter().flat_map(|r| &r.curves).map(|c| &*c.name).collect();
        if names.is_empty() {
            continue;
        }
        let mut lines = Vec::new();
        for curve in row.valid_runs().flat_map(|run| &run.curves) {
            let colour = names.iter().position(|name| *name == curve.name).unwrap_or(0).min(1);
            lines.push(Line { points: &curve.points, colour });
        }
        let last =
            lines.iter().filter_map(|line| line.points.last()).map(|point| point.0).fold(0.0, f64::max);
        let Axes { goal, right, x, y } = axes(&record.experiment, last);
        let first = names.first().copied().unwrap_or_default();
        let second = names.get(1).copied().unwrap_or_default();
        let _ = writeln!(
            out,
            "<h3>{}</h3><p class='soft'>Blue: {}; orange: {}; all runs that count.</p>",
            escape(&row.name()),
            escape(first),
            escape(second)
        );
        *out += &svg::curves(&lines, right, goal, x, y);
    }
}

/// All figures of all rows, median and spread.
fn table(record: &Record, out: &mut String) {
    let mut figures: Vec<&String> = record.rows.iter().flat_map(|row| row.figures.keys()).collect();
    figures.sort_by_key(|name| (**name != record.headline, *name));
    figures.dedup();
    let Some(first) = record.rows.first() else { return };
    *out += "<div class='scroll'><table><tr>";
    for (name, _) in &first.labels {
        let _ = write!(out, "<th class='text'>{}", escape(name));
    }
    *out += "<th>runs";
    for figure in &figures {
        let _ = write!(out, "<th>{}", escape(figure));
    }
    *out += "</tr>\n";
    for row in &record.rows {
        *out += "<tr>";
        for (_, value) in &row.labels {
            let _ = write!(out, "<td class='text'>{}", escape(value));
        }
        let valid = row.valid_runs().count();
        let not_counted = row.runs.len() - valid;
        let _ = write!(out, "<td{}>{valid}", if valid < row.wanted { " class='missed'" } else { "" });
        if not_counted > 0 {
            let _ = write!(out, " (+{not_counted} invalid)");
        }
        for figure in &figures {
            match row.figures.get(*figure) {
                None => *out += "<td>",
                Some(s) if s.min == s.max => *out += &format!("<td>{}", short(s.median)),
                Some(s) => {
                    *out += &format!(
                        "<td>{}<br><small>{}–{}</small>",
                        short(s.median),
                        short(s.min),
                        short(s.max)
                    );
                }
            }
        }
        *out += "</tr>\n";
    }
    *out += "</table></div>\n";
    for row in &record.rows {
        for run in row.runs.iter().filter(|run| !run.problems.is_empty()) {
            let counts = if run.is_valid { "counts" } else { "does not count" };
            let text = format!(
                "{}, run {}.{} ({counts}): {}",
                row.name(),
                run.repeat,
                run.attempt,
                run.problems.join("; ")
            );
            let _ = writeln!(out, "<p class='soft'>{}</p>", escape(&text));
        }
    }
}

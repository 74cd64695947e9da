//! The report: one HTML file without anything beside it, made from the records of a folder, and a picture for the README. Of each experiment it shows what was
//! found, the goals, a plot, the curves of those that have some, a table, how it was measured and the commands; light or dark as its reader has it.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use plots::{Bar, Family, Line, Series, begin_page, escape};

use crate::error::Error;
use crate::experiments::EXPERIMENTS;
use crate::findings;
use crate::record::{Record, Row, Summary, Verdict, short};

/// The name of the report's file.
pub(crate) const FILE_NAME: &str = "report.html";
/// The experiment whose plot is also a picture for the README, and that file's name.
const PICTURED: &str = "hot";
const PICTURE_NAME: &str = "hot.svg";

/// Makes the report of the records in this folder, and writes it there.
pub(crate) fn write(folder: &Path) -> Result<(), Error> {
    let mut records = Vec::new();
    for experiment in EXPERIMENTS {
        records.extend(Record::read(folder, experiment.name)?);
    }
    let store = |name: &str, text: String| {
        let path = folder.join(name);
        fs::write(&path, text).map_err(|e| Error::setup(format!("writing {}: {e}", path.display())))
    };
    for record in records.iter().filter(|record| record.experiment == PICTURED) {
        let compared = record.compared.as_deref().unwrap_or_default();
        store(PICTURE_NAME, plots::alone(&marks(record, compared)))?;
    }
    store(FILE_NAME, html(&records))
}

fn html(records: &[Record]) -> String {
    let mut out = begin_page("afar: measurements");
    out += "<p>What AFS is blamed for, measured on one machine, with what stands beside it in the same run: ratios mean more than figures. \
        Bars and marks are medians of the runs that count, the line through them is their spread, a dashed line the goal. 'Again' is \
        the same measured once more: what differs between the two is noise. All figures, runs and commands are in the JSON files \
        beside this one.</p>\n";
    if records.is_empty() {
        return out + "<p>There are no records yet.</p>\n</html>\n";
    }
    out += "<nav><ul>\n";
    for record in records {
        let _ = writeln!(out, "<li><a href='#{}'>{}</a>", record.experiment, escape(&record.title));
    }
    out += "</ul></nav>\n";
    summary(records, &mut out);
    for record in records {
        section(record, &mut out);
    }
    out + "</html>\n"
}

fn summary(records: &[Record], out: &mut String) {
    let all = || records.iter().flat_map(|record| &record.verdicts);
    let (met, count) = (all().filter(|verdict| verdict.is_met).count(), all().count());
    let _ = writeln!(out, "<h2>Goals</h2>\n<p class='lead'>{met} of {count} goals were met.</p>");
    let missed: Vec<_> = records.iter().filter(|record| record.verdicts.iter().any(|v| !v.is_met)).collect();
    if !missed.is_empty() {
        *out += "<p>Missed:</p>\n";
        verdicts(missed.iter().flat_map(|record| &record.verdicts).filter(|verdict| !verdict.is_met), out);
    }
}

fn verdicts<'a>(verdicts: impl Iterator<Item = &'a Verdict>, out: &mut String) {
    *out += "<div class='scroll'><table><tr><th class='text'>Goal<th>measured<th class='text'>\
        <th class='text'>beside it</tr>\n";
    for verdict in verdicts {
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
    if let Some(finding) = findings::of(record) {
        let _ = writeln!(out, "<p class='lead'>{}</p>", escape(&finding));
    }
    if record.is_quick {
        *out += "<p class='warn'>A quick run: it shows that the experiment works, not how fast anything is.</p>\n";
    }
    if !record.was_quiet_at_start {
        *out += "<p class='warn'>The machine had other work when this began.</p>\n";
    }
    if record.is_unfinished {
        *out += "<p class='warn'>It was interrupted: rows are missing. <code>--resume</code> measures them.</p>\n";
    }
    if !record.is_complete() {
        *out += "<p class='warn'>Some rows have fewer valid runs than they should.</p>\n";
    }
    if !record.verdicts.is_empty() {
        verdicts(record.verdicts.iter(), out);
    }
    match record.compared.as_deref() {
        Some(label) => *out += &marks(record, label),
        None => headlines(record, out),
    }
    curves(record, out);
    table(record, out);
    let resumed: String = record.resumed.iter().map(|date| format!(", resumed {date}")).collect();
    let machine = format!(
        "{}{resumed}. afar {}, {}, Linux {}, {}, libopenafs-dev {}. {}, {} cores, {} MiB. Load average at the start: {}. {} {}",
        setting.date,
        setting.afar,
        setting.rustc,
        setting.kernel,
        setting.iperf3,
        setting.libopenafs,
        setting.cpu,
        setting.cores,
        setting.memory_mib,
        setting.load_average,
        setting.idle_cores,
        setting.free_memory
    );
    let _ = writeln!(
        out,
        "<details><summary>How it was measured</summary><p>{}</p>\n<p>{}</p>\n<p class='soft'>{}</p></details>",
        escape(&record.method),
        escape(&record.placement),
        escape(&machine)
    );
    commands(record, out);
}

/// The commands, row by row, of the first run that counts.
fn commands(record: &Record, out: &mut String) {
    let mut lines = String::new();
    for row in &record.rows {
        let Some(run) = row.valid_runs().next().filter(|run| !run.commands.is_empty()) else { continue };
        let _ = writeln!(lines, "# {}", row.name());
        for command in &run.commands {
            let _ = writeln!(lines, "{command}");
        }
    }
    if lines.is_empty() {
        return;
    }
    let again = format!("make bench ARGS={}", record.experiment);
    let _ = writeln!(
        out,
        "<details><summary>Commands (all of it: <code>{again}</code>)</summary><pre>{}</pre></details>",
        escape(&lines)
    );
}

/// A mark for each value of the compared label, in a row for each combination of the others.
fn marks(record: &Record, compared: &str) -> String {
    let mut names: Vec<String> = Vec::new();
    let mut rows: Vec<String> = Vec::new();
    let split = |row: &Row| {
        let name = row.labels.iter().find(|(label, _)| label == compared).map(|(_, value)| value.clone());
        let others = row.labels.iter().filter(|(label, _)| label != compared);
        (name.unwrap_or_default(), others.map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(", "))
    };
    for row in &record.rows {
        let (name, rest) = split(row);
        if !names.contains(&name) {
            names.push(name);
        }
        if !rows.contains(&rest) {
            rows.push(rest);
        }
    }
    let value = |name: &str, rest: &str| {
        let row = record.rows.iter().find(|row| split(row) == (name.to_string(), rest.to_string()))?;
        row.figures.get(&record.headline).copied()
    };
    let series: Vec<Series> = names
        .iter()
        .map(|name| Series {
            name: name.clone(),
            family: family(&[name.as_str()]),
            values: rows.iter().map(|rest| value(name, rest)).collect(),
        })
        .collect();
    plots::marks(&rows, &series, &record.headline)
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
        *out += &plots::bars(&bars, goal, &wanted);
    }
}

fn bar(row: &Row, summary: &Summary) -> Option<Bar> {
    let values: Vec<&str> = row.labels.iter().map(|(_, value)| value.as_str()).collect();
    Some(Bar {
        label: row.name(),
        value: summary.median,
        low: summary.min,
        high: summary.max,
        family: family(&values),
    })
}

/// The family of a row with these labels, by the names in them.
fn family(values: &[&str]) -> Family {
    let any = |is: fn(&str) -> bool| values.iter().any(|value| is(value));
    if any(|value| value.contains("OpenAFS") && value.contains("afar")) {
        Family::Mixed
    } else if any(|value| {
        value.starts_with("OpenAFS") || value.starts_with("afsd") || value.ends_with("from OpenAFS")
    }) {
        Family::Other
    } else if any(|value| value.starts_with("TCP") || value.starts_with("local")) {
        Family::Third
    } else {
        Family::Ours
    }
}

/// The axes of an experiment's curves.
struct Axes {
    goal: Option<f64>,
    /// The end of the x axis.
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
        "meanwhile" => Axes { goal: None, right: last, x: "% of the reads", y: "ms at most" },
        "crowd" | "hot" => Axes { goal: None, right: last, x: "% of the probes", y: "ms at most" },
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
        *out += &plots::curves(&lines, right, goal, x, y);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Run;
    use std::collections::BTreeMap;

    fn row(labels: [&str; 2], values: &[f64]) -> Row {
        let [what, who] = labels.map(str::to_string);
        let mut row = Row::new(&[("what", what), ("who", who)], values.len());
        for value in values {
            let figures = BTreeMap::from([("s".to_string(), *value)]);
            let commands = vec!["afar mount <here>".to_string()];
            row.push(Run { is_valid: true, figures, commands, ..Run::default() });
        }
        row
    }

    fn record(compared: Option<&str>) -> Record {
        let mut record = Record {
            experiment: "sizes".to_string(),
            headline: "s".to_string(),
            compared: compared.map(str::to_string),
            ..Record::default()
        };
        for (who, values) in [("afar", [1.0, 1.5, 2.0]), ("OpenAFS", [90.0, 100.0, 120.0])] {
            record.rows.push(row(["a hundred files", who], &values));
        }
        record.at_least("faster", Some(1.0), 2.0, "times", "");
        record
    }

    #[test]
    fn a_report_needs_nothing_beside_it() {
        for compared in [None, Some("who")] {
            let html = html(&[record(compared)]);
            assert!(!html.contains("src=") && !html.contains("url("), "{html}");
            let elsewhere = html.replace("http://www.w3.org/2000/svg", "");
            assert!(!elsewhere.contains("http"), "{elsewhere}");
            assert!(html.contains("afar mount &lt;here&gt;"), "{html}");
            assert!(html.contains("0 of 1 goals") && html.contains("<svg"), "{html}");
        }
    }

    #[test]
    fn compared_values_stand_in_one_row() {
        let html = html(&[record(Some("who"))]);
        assert_eq!(html.matches(">\na hundred files\n<").count(), 1, "{html}");
        assert!(html.contains("logarithmic"));
    }

    #[test]
    fn colours_tell_whose_it_is() {
        let of = |value: &str| family(&["12.5 ms", value]);
        assert_eq!(of("afar"), Family::Ours);
        assert_eq!(of("OpenAFS, tuned"), Family::Other);
        assert_eq!(of("OpenAFS's client, afar's server"), Family::Mixed);
        assert_eq!(of("TCP bbr"), Family::Third);
        assert_eq!(of("128 KiB calls from OpenAFS"), Family::Other);
    }
}

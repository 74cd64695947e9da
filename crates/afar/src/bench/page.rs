//! The figures of `afar bench`: as text, as JSON, and as a page with plots that needs nothing beside it.

use crate::dates;
use plots::{Bar, Family, Summary, begin_page, escape, short};
use serde_json::{Value, json};
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// The measurements of one place.
#[derive(Clone, Debug)]
pub(super) struct Row {
    what: &'static str,
    unit: &'static str,
    place: String,
    values: Vec<f64>,
    summary: Summary,
}

impl Row {
    /// None where nothing could be measured.
    pub(super) fn of(what: &'static str, unit: &'static str, place: &str, values: Vec<f64>) -> Option<Self> {
        let summary = Summary::of(values.clone())?;
        Some(Self { what, unit, place: place.to_owned(), values, summary })
    }
}

/// All of them.
#[derive(Clone, Debug)]
pub(super) struct Figures {
    /// The bytes of the large file.
    pub(super) bytes: u64,
    /// The number of small files.
    pub(super) files: u32,
    pub(super) rows: Vec<Row>,
}

impl Figures {
    /// The things that were measured, in order, each once.
    fn whats(&self) -> Vec<(&'static str, &'static str)> {
        let mut whats = Vec::new();
        for row in &self.rows {
            if !whats.contains(&(row.what, row.unit)) {
                whats.push((row.what, row.unit));
            }
        }
        whats
    }

    /// A line for each row.
    pub(super) fn text(&self) -> String {
        let width = self.rows.iter().map(|row| row.place.chars().count()).max().unwrap_or(0);
        let mut text = String::new();
        for (what, unit) in self.whats() {
            let _ = writeln!(text, "{what}, {unit}");
            for row in self.rows.iter().filter(|row| row.what == what) {
                let Summary { median, min, max, .. } = row.summary;
                let _ = writeln!(
                    text,
                    "  {:width$}  {:>8}  ({} to {})",
                    row.place,
                    short(median),
                    short(min),
                    short(max)
                );
            }
        }
        text
    }

    /// Returns all that is known.
    pub(super) fn json(&self) -> Value {
        let rows = self.rows.iter().map(|row| {
            json!({
                "what": row.what, "unit": row.unit, "place": row.place, "median": row.summary.median, "min": row.summary.min,
                "max": row.summary.max, "values": row.values,
            })
        });
        json!({
            "afar": env!("CARGO_PKG_VERSION"),
            "time": dates::now(),
            "kernel": kernel(),
            "large_file_bytes": self.bytes,
            "small_files": self.files,
            "rows": rows.collect::<Vec<_>>(),
        })
    }

    fn html(&self) -> String {
        let mut page = begin_page("afar bench");
        let _ = writeln!(
            page,
            "<p>The bars are medians, the lines show the spread. The rows with 'again' are a second measurement of the same folder: the difference is noise. One large \
             file of {} MB, {} small files of 8,192 bytes each. afar {}, Linux {}.</p>",
            self.bytes / 1_000_000,
            self.files,
            env!("CARGO_PKG_VERSION"),
            escape(&kernel())
        );
        for (what, unit) in self.whats() {
            let _ = writeln!(page, "<h2>{}, {}</h2>", escape(what), escape(unit));
            let first = self.rows.iter().find(|row| row.what == what).map(|row| row.place.clone());
            let first = first.unwrap_or_default();
            let bars: Vec<Bar> = self
                .rows
                .iter()
                .filter(|row| row.what == what)
                .map(|row| Bar {
                    label: row.place.clone(),
                    value: row.summary.median,
                    low: row.summary.min,
                    high: row.summary.max,
                    family: if row.place.starts_with(&first) { Family::Ours } else { Family::Other },
                })
                .collect();
            page += &plots::bars(&bars, None, unit);
        }
        page + "</html>\n"
    }

    /// Writes both files into this folder; says which.
    pub(super) fn write(&self, folder: &Path) -> Result<String, String> {
        let mut said = String::new();
        for (name, text) in
            [("afar-bench.json", format!("{:#}\n", self.json())), ("afar-bench.html", self.html())]
        {
            let path = folder.join(name);
            fs::write(&path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
            let _ = writeln!(said, "{}", path.display());
        }
        Ok(said)
    }
}

fn kernel() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    release.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_told_in_three_ways() {
        let row = |place, values| Row::of("large file written and closed", "MB/s", place, values).unwrap();
        let rows = vec![row("/afs/<x>", vec![100.0, 120.0, 90.0]), row("/tmp", vec![900.0])];
        let figures = Figures { bytes: 200_000_000, files: 200, rows };
        assert!(figures.text().contains("  /afs/<x>       100  (90 to 120)\n"), "{}", figures.text());
        assert_eq!(figures.json()["rows"][0]["values"], json!([100.0, 120.0, 90.0]));
        let html = figures.html();
        assert!(
            html.contains("/afs/&lt;x&gt;") && html.contains("<svg") && html.ends_with("</html>\n"),
            "{html}"
        );
        assert!(Row::of("nothing", "s", "/tmp", Vec::new()).is_none());
    }
}

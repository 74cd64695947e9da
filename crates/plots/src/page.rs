//! The frame of a page: one HTML file without anything beside it, light or dark as its reader has it.

/// Colours, which plots name, and the rest.
const STYLE: &str = "
:root { color-scheme: light dark; --bg: #fff; --fg: #23272b; --soft: #6b7480; --grid: #dfe3e8; --ours: #2a6fb0; --other: #98a2ad;
  --goal: #c0392b; --second: #c97a1b; --good: #2c7a3f; --band: #f5f7f9; }
@media (prefers-color-scheme: dark) { :root { --bg: #16191c; --fg: #dcdfe2; --soft: #949da6; --grid: #353b41; --ours: #5b9bd5;
  --other: #7d8790; --goal: #e06c5c; --second: #e0a050; --good: #6bbf7b; --band: #1d2125; } }
html { background: var(--bg); } body { font: 16px/1.55 system-ui, sans-serif; color: var(--fg); max-width: 920px; margin: 2em auto 4em; padding: 0 1em; }
h1 { margin-bottom: 0.2em; } h2 { margin-top: 2.8em; padding-bottom: 0.2em; border-bottom: 1px solid var(--grid); }
h2 small { color: var(--soft); font-weight: normal; font-size: 60%; } a { color: var(--ours); }
p.lead { font-size: 110%; } p.soft, td.soft, li.soft { color: var(--soft); } p.soft { font-size: 13px; }
p.warn { color: var(--goal); font-weight: bold; } nav ul { columns: 2; padding-left: 1.2em; margin: 0.5em 0; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; margin: 1em 0; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 3px 9px; border-bottom: 1px solid var(--grid); vertical-align: top; }
tr:nth-child(even) td { background: var(--band); } th { vertical-align: bottom; font-weight: 600; }
th.text, td.text { text-align: left; } .met { color: var(--good); } .missed { color: var(--goal); font-weight: bold; }
td small { color: var(--soft); white-space: nowrap; } details { margin: 0.6em 0; } summary { cursor: pointer; color: var(--soft); }
pre { font-size: 12px; overflow-x: auto; background: var(--band); padding: 0.6em 0.8em; }
svg { width: 100%; height: auto; margin: 0.5em 0; } svg text { font: 12px system-ui, sans-serif; }
";

/// The beginning of a page with this title and style; `</html>` ends it.
pub fn begin_page(title: &str) -> String {
    format!(
        "<!doctype html>\n<html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width, initial-scale=1'>\
         <title>{0}</title>\n<style>{STYLE}</style>\n<h1>{0}</h1>\n",
        escape(title)
    )
}

/// Text that may stand in HTML and SVG, also between quotes.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('\'', "&#39;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_is_text() {
        let page = begin_page("fast & <good>");
        assert!(page.contains("<title>fast &amp; &lt;good&gt;</title>"), "{page}");
        assert!(!page.contains("url(") && !page.contains("http"), "{page}");
    }
}

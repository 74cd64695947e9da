//! The activity of several servers: rates from two looks at each, added up over the servers, as tables of text.

use super::sample::{Row, Sample};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::time::Instant;

/// Rows of each kind that a server tells at most: a list that is shorter has all there are.
const TOLD_AT_MOST: usize = 200;

/// A list of a sample.
type List = fn(&Sample) -> &[Row];
/// The name of a row.
type Name = fn(&Row) -> String;

/// The kind of rows that is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum View {
    Volumes,
    Users,
    Clients,
    Procedures,
    Waiting,
}

impl View {
    pub(crate) const ALL: [Self; 5] =
        [Self::Volumes, Self::Users, Self::Clients, Self::Procedures, Self::Waiting];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Volumes => "volumes",
            Self::Users => "users",
            Self::Clients => "clients",
            Self::Procedures => "procedures",
            Self::Waiting => "waiting",
        }
    }
}

/// The column by which rows are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sort {
    Calls,
    Bytes,
    Latency,
    Failed,
    Name,
}

impl Sort {
    pub(crate) const ALL: [(char, Self, &'static str); 5] = [
        ('c', Self::Calls, "calls"),
        ('b', Self::Bytes, "bytes"),
        ('l', Self::Latency, "latency"),
        ('f', Self::Failed, "failures"),
        ('n', Self::Name, "name"),
    ];
}

/// The text that is shown as a table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) head: Vec<&'static str>,
    pub(crate) rows: Vec<Vec<String>>,
}

/// The amount of something that is done in a second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Rate {
    pub(crate) calls: f64,
    pub(crate) failed: f64,
    pub(crate) stored: f64,
    pub(crate) fetched: f64,
    /// The time that calls took, together.
    pub(crate) seconds: f64,
}

impl Rate {
    fn between(before: Option<&Row>, now: &Row, seconds: f64) -> Self {
        let none = Row::default();
        // Whoever counts less than before has begun anew.
        let before = before.filter(|before| before.calls <= now.calls).unwrap_or(&none);
        let rate = |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds;
        Self {
            calls: rate(before.calls, now.calls),
            failed: rate(before.failed, now.failed),
            stored: rate(before.stored_bytes, now.stored_bytes),
            fetched: rate(before.fetched_bytes, now.fetched_bytes),
            seconds: (now.seconds - before.seconds).max(0.0) / seconds,
        }
    }

    fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.failed += other.failed;
        self.stored += other.stored;
        self.fetched += other.fetched;
        self.seconds += other.seconds;
    }

    /// The mean time of a call, in milliseconds.
    fn latency(&self) -> f64 {
        if self.calls > 0.0 { 1000.0 * self.seconds / self.calls } else { 0.0 }
    }

    fn columns(&self) -> [String; 5] {
        let latency = if self.calls > 0.0 { format!("{:.2}", self.latency()) } else { String::new() };
        [count(self.calls), count(self.failed), bytes(self.fetched), bytes(self.stored), latency]
    }
}

const RATES: [&str; 5] = ["calls/s", "failed/s", "fetched B/s", "stored B/s", "ms/call"];

/// A server, and the last two looks at it.
#[derive(Debug)]
struct Server {
    /// As it was named.
    name: String,
    now: Option<(Instant, Sample)>,
    before: Option<(Instant, Sample)>,
    /// The reason why the last look failed.
    error: Option<String>,
}

impl Server {
    /// Both looks, and the seconds between them.
    fn looks(&self) -> Option<(&Sample, &Sample, f64)> {
        let ((then, before), (at, now)) = (self.before.as_ref()?, self.now.as_ref()?);
        Some((before, now, at.duration_since(*then).as_secs_f64().max(1e-3)))
    }

    fn sample(&self) -> Option<&Sample> {
        self.now.as_ref().map(|(_, sample)| sample)
    }
}

/// All servers.
#[derive(Debug)]
pub(crate) struct Model {
    servers: Vec<Server>,
    /// What waits on this machine.
    here: Option<String>,
}

impl Model {
    pub(crate) fn new(servers: &[String]) -> Self {
        let server = |name: &String| Server { name: name.clone(), now: None, before: None, error: None };
        Self { servers: servers.iter().map(server).collect(), here: None }
    }

    /// Takes a look at a server.
    pub(crate) fn note(&mut self, server: usize, at: Instant, sample: Result<Sample, String>) {
        let Some(server) = self.servers.get_mut(server) else { return };
        match sample {
            Ok(sample) => {
                server.before = server.now.replace((at, sample));
                server.error = None;
            }
            Err(error) => (server.now, server.before, server.error) = (None, None, Some(error)),
        }
    }

    /// Takes the line of the client of this machine, if something waits there.
    pub(crate) fn note_here(&mut self, line: Option<String>) {
        self.here = line;
    }

    /// True if each server has been looked at twice, or cannot be.
    pub(crate) fn is_measured(&self) -> bool {
        self.servers.iter().all(|server| server.before.is_some() || server.error.is_some())
    }

    /// The cells.
    pub(crate) fn cell(&self) -> String {
        let mut cells: Vec<&str> =
            self.servers.iter().filter_map(Server::sample).map(|s| s.cell.as_str()).collect();
        cells.dedup();
        cells.join(", ")
    }

    /// What is told beside the tables: what waits on this machine, and the reasons why servers could not be looked at.
    pub(crate) fn remarks(&self) -> impl Iterator<Item = &str> {
        self.here
            .as_deref()
            .into_iter()
            .chain(self.servers.iter().filter_map(|server| server.error.as_deref()))
    }

    /// A line for each server.
    pub(crate) fn servers(&self) -> Table {
        let head =
            ["server", "host"].into_iter().chain(RATES).chain(["clients", "promises", "waiting"]).collect();
        let row = |server: &Server| {
            let Some(sample) = server.sample() else {
                let state = if server.error.is_some() { "no answer" } else { "..." };
                return vec![server.name.clone(), state.to_owned()];
            };
            let mut rate = Rate::default();
            if let Some((before, now, seconds)) = server.looks() {
                let of_files = Rate::between(Some(&before.total), &now.total, seconds);
                rates(&before.procedures, &now.procedures, seconds, name_of_procedure)
                    .for_each(|(_, of_procedure)| rate.add(of_procedure));
                (rate.stored, rate.fetched) = (of_files.stored, of_files.fetched);
            }
            let more = [sample.clients_known, sample.promises, sample.waiting_count].map(|n| n.to_string());
            [server.name.clone(), sample.host.clone()].into_iter().chain(rate.columns()).chain(more).collect()
        };
        Table { head, rows: self.servers.iter().map(row).collect() }
    }

    /// The table that is to be seen, sorted.
    pub(crate) fn table(&self, view: View, sort: Sort) -> Table {
        let (list, name): (List, Name) = match view {
            View::Volumes => (|sample| &sample.volumes, |row| format!("{} ({})", row.name, row.id)),
            View::Users => (|sample| &sample.users, |row| row.name.clone()),
            View::Clients => (|sample| &sample.clients, |row| row.address.clone()),
            View::Procedures => (|sample| &sample.procedures, name_of_procedure),
            View::Waiting => return self.waiting(),
        };
        let mut all: BTreeMap<String, (Rate, usize)> = BTreeMap::new();
        for (before, now, seconds) in self.servers.iter().filter_map(Server::looks) {
            for (name, rate) in rates(list(before), list(now), seconds, name) {
                let row = all.entry(name).or_default();
                row.0.add(rate);
                row.1 += 1;
            }
        }
        let mut all: Vec<_> = all.into_iter().collect();
        // What is the same stays in the order of names.
        let by = |key: fn(&Rate) -> f64, all: &mut Vec<(String, (Rate, usize))>| {
            all.sort_by(|(_, (a, _)), (_, (b, _))| key(b).total_cmp(&key(a)));
        };
        match sort {
            Sort::Calls => by(|rate| rate.calls, &mut all),
            Sort::Bytes => by(|rate| rate.stored + rate.fetched, &mut all),
            Sort::Latency => by(Rate::latency, &mut all),
            Sort::Failed => by(|rate| rate.failed, &mut all),
            Sort::Name => {}
        }
        let several = self.servers.len() > 1;
        let head = [view.name()].into_iter().chain(RATES).chain(several.then_some("servers")).collect();
        let row = |(name, (rate, servers)): (String, (Rate, usize))| {
            [name].into_iter().chain(rate.columns()).chain(several.then(|| servers.to_string())).collect()
        };
        Table { head, rows: all.into_iter().map(row).collect() }
    }

    /// Calls that wait, and clients that were told to come again.
    fn waiting(&self) -> Table {
        let mut rows: Vec<(f64, Vec<String>)> = Vec::new();
        for (server, sample) in self.servers.iter().filter_map(|server| Some((server, server.sample()?))) {
            for call in &sample.waiting {
                let more = call.awaited_count.saturating_sub(call.awaited.len());
                let mut whom = call.awaited.join(" ");
                if more > 0 {
                    let _ = write!(whom, " and {more} more");
                }
                let file = match (call.volume, call.vnode) {
                    (Some(volume), Some(vnode)) => format!("{volume}.{vnode}"),
                    _ => String::new(),
                };
                let seconds = format!("{:.1}", call.seconds);
                let who = format!("{} {}", call.user, call.client);
                rows.push((
                    call.seconds,
                    vec![seconds, who, call.reason.clone(), file, whom, server.name.clone()],
                ));
            }
        }
        rows.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut rows: Vec<_> = rows.into_iter().map(|(_, row)| row).collect();
        for (server, sample) in self.servers.iter().filter_map(|server| Some((server, server.sample()?))) {
            for refused in &sample.refused {
                let why = format!("{}: told {} times to come again", refused.why, refused.count);
                let volume = refused.volume.map_or_else(String::new, |volume| volume.to_string());
                let ago = format!("{:.0} ago", refused.seconds_ago);
                rows.push(vec![ago, refused.client.clone(), why, volume, String::new(), server.name.clone()]);
            }
        }
        Table { head: vec!["seconds", "who", "waits for", "file", "of", "server"], rows }
    }

    /// All of it as text.
    pub(crate) fn text(&self, rows: usize) -> String {
        let mut text = self.servers().text(usize::MAX);
        for view in View::ALL {
            let table = self.table(view, Sort::Calls);
            if !table.rows.is_empty() {
                text += "\n";
                text += &table.text(rows);
            }
        }
        self.remarks().for_each(|remark| text += &format!("\n{remark}\n"));
        text
    }
}

fn name_of_procedure(row: &Row) -> String {
    format!("{}.{}", row.interface, row.name)
}

/// The rates of the rows of a list, by name.
fn rates<'a>(
    before: &'a [Row],
    now: &'a [Row],
    seconds: f64,
    name: fn(&Row) -> String,
) -> impl Iterator<Item = (String, Rate)> + 'a {
    let known: HashMap<String, &Row> = before.iter().map(|row| (name(row), row)).collect();
    let was_complete = before.len() < TOLD_AT_MOST;
    now.iter().filter_map(move |row| {
        let name = name(row);
        let before = known.get(&name).copied();
        // What was not told before may have been done long ago.
        (before.is_some() || was_complete).then(|| (name, Rate::between(before, row, seconds)))
    })
}

fn count(number: f64) -> String {
    match number {
        0.0 => "0".to_owned(),
        n if n < 10.0 => format!("{n:.1}"),
        n => format!("{n:.0}"),
    }
}

/// A number with a prefix of the powers of 1000.
fn bytes(mut number: f64) -> String {
    for prefix in ["", "k", "M", "G", "T"] {
        if number < 1000.0 {
            return format!(
                "{}{prefix}",
                if prefix.is_empty() { format!("{number:.0}") } else { format!("{number:.1}") }
            );
        }
        number /= 1000.0;
    }
    format!("{number:.0}P")
}

impl Table {
    /// The table in columns: the first to the left, the others as they are.
    fn text(&self, rows: usize) -> String {
        let mut widths: Vec<usize> = self.head.iter().map(|head| head.chars().count()).collect();
        let shown = &self.rows[..rows.min(self.rows.len())];
        for row in shown {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut text = String::new();
        let head: Vec<String> = self.head.iter().map(|head| (*head).to_owned()).collect();
        for row in std::iter::once(&head).chain(shown) {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            text += cells.collect::<Vec<_>>().join("  ").trim_end();
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn row(name: &str, calls: u64, fetched_bytes: u64) -> Row {
        Row { name: name.to_owned(), calls, fetched_bytes, seconds: calls as f64 / 100.0, ..Row::default() }
    }

    fn model(looks: &[&[Vec<Row>]]) -> Model {
        let names: Vec<_> = (0..looks.len()).map(|n| format!("s{n}")).collect();
        let (mut model, began) = (Model::new(&names), Instant::now());
        for (server, looks) in looks.iter().enumerate() {
            for (seconds, users) in (0..).zip(looks.iter()) {
                let sample = Sample { users: users.clone(), ..Sample::default() };
                model.note(server, began + Duration::from_secs(2 * seconds), Ok(sample));
            }
        }
        model
    }

    fn names(model: &Model, sort: Sort) -> Vec<String> {
        model.table(View::Users, sort).rows.into_iter().map(|mut row| row.swap_remove(0)).collect()
    }

    #[test]
    fn figures_are_of_the_time_between_two_looks_and_sorted_as_wished() {
        let model =
            model(&[&[vec![row("a", 100, 0), row("b", 5, 0)], vec![row("a", 110, 0), row("b", 6, 8000)]]]);
        let table = model.table(View::Users, Sort::Calls);
        assert_eq!(table.rows[0], ["a", "5.0", "0", "0", "0", "10.00"]);
        assert_eq!(table.rows[1], ["b", "0.5", "0", "4.0k", "0", "10.00"]);
        assert_eq!(names(&model, Sort::Bytes), ["b", "a"]);
        assert_eq!(names(&model, Sort::Name), ["a", "b"]);
    }

    #[test]
    fn the_same_user_at_several_servers_is_one_row() {
        let looks = [vec![row("a", 0, 0)], vec![row("a", 8, 0)]];
        let model = model(&[&looks, &looks]);
        assert_eq!(model.table(View::Users, Sort::Calls).rows, [["a", "8.0", "0", "0", "0", "10.00", "2"]]);
    }

    #[test]
    fn what_began_anew_counts_from_nothing_and_what_was_not_told_before_not_yet() {
        let began_anew = model(&[&[vec![row("a", 100, 0)], vec![row("a", 4, 0), row("new", 2, 0)]]]);
        let rows = began_anew.table(View::Users, Sort::Calls).rows;
        assert_eq!((rows[0][1].as_str(), rows[1][1].as_str()), ("2.0", "1.0"));
        let many: Vec<_> = (0..TOLD_AT_MOST).map(|n| row(&format!("u{n}"), 1, 0)).collect();
        let now = [&many[1..], &[row("old", 1_000_000, 0)][..]].concat();
        assert!(!names(&model(&[&[many, now]]), Sort::Calls).contains(&"old".to_owned()));
    }

    #[test]
    fn a_server_that_does_not_answer_is_told() {
        let mut model = model(&[&[vec![row("a", 1, 0)], vec![row("a", 2, 0)]], &[]]);
        assert!(!model.is_measured());
        model.note(1, Instant::now(), Err("s1: refused".to_owned()));
        assert!(model.is_measured());
        let text = model.text(20);
        assert!(text.contains("s1      no answer\n") && text.ends_with("\ns1: refused\n"), "{text}");
    }
}

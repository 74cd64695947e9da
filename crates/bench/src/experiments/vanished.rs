//! The time that a writer waits for clients that hold promises and answer no more.

use std::time::Duration;

use crate::cells::{CELLS_TEXT, Cells, KINDS, PLACEMENT_CELL};
use crate::error::Error;
use crate::lab::{Cell, Lab, interleave};
use crate::record::{Record, Run, short};
use crate::sys;
use crate::tools::{Place, Stack};

/// Clients that vanish.
const CLIENTS: &str = "30";
/// The ways to vanish: the process is gone, so that the network says that nobody is there; or it stands still and
/// nothing is said.
const WAYS: [&str; 2] = ["killed", "silent"];
/// The longest time that a writer should wait, seconds.
const GOAL_S: f64 = 2.0;
/// OpenAFS's writer has waited 35 s.
const TIMEOUT: Duration = Duration::from_secs(300);
/// The figure that counts.
const FIRST_CREATE: &str = "first CreateFile, s";

pub(crate) fn run(lab: &Lab, record: &mut Record) -> Result<(), Error> {
    record.headline = FIRST_CREATE.into();
    record.placement = format!(
        "{PLACEMENT_CELL} The clients that vanish are one process in another namespace, behind a bridge."
    );
    record.method = format!(
        "{CELLS_TEXT} {CLIENTS} clients (one process, a port and a UUID each) have a promise for a directory. Then the process is killed, or \
         stopped by SIGSTOP ('silent'), and a client that the server knows makes a file in that directory; then a second one. A new \
         volume for each run. Repetitions in turns."
    );
    let cells = Cells::start(lab)?;
    let cells = &cells;
    let mut compared = Vec::new();
    for way in WAYS {
        for (name, who) in KINDS.into_iter().take(2) {
            let labels = [("clients were", way.to_string()), ("server", name.to_string())];
            compared.push(Cell::new(labels, move |lab| measure(lab, cells, who, way == "killed")));
        }
    }
    interleave(lab, record, &compared, lab.repeats(3))?;
    for way in WAYS {
        let [ours, theirs] = [KINDS[0].0, KINDS[1].0].map(|name| record.median(FIRST_CREATE, &[way, name]));
        let note = format!("OpenAFS: {} s", theirs.map_or("-".to_string(), short));
        let claim = format!("A writer after {CLIENTS} clients that were {way}");
        record.at_most(&claim, ours, GOAL_S, "s", &note);
    }
    Ok(())
}

fn measure(lab: &Lab, cells: &Cells, who: Stack, kills: bool) -> Result<Run, Error> {
    let served = cells.of(who)?;
    let volume = served.volume(lab, "vanished")?;
    let clients = served.cell().clients().map_err(Error::Run)?;
    let hold = served.client(lab, "hold", [&volume, CLIENTS]);
    let mut holding = hold.start(Place::In(&clients), &lab.interrupt)?;
    holding.wait_for_line("ready", TIMEOUT)?;
    if kills {
        sys::kill(holding.id());
    } else {
        sys::freeze(holding.id());
    }
    let touch = |name: &str| -> Result<_, Error> {
        let client = served.client(lab, "touch", [&volume, name]);
        Ok((served.measure(lab, &client, TIMEOUT)?.number("seconds"), client))
    };
    let first = touch("first");
    let second = touch("second");
    if !kills {
        // It would answer late what it was asked.
        sys::kill(holding.id());
    }
    drop(holding);
    let ((first, client), (second, _)) = (first?, second?);
    served.remove("vanished")?;
    let figures = [(FIRST_CREATE.to_string(), first), ("second CreateFile, s".to_string(), second)];
    Ok(Run {
        is_valid: first.is_finite() && second.is_finite(),
        figures: figures.into(),
        commands: vec![hold.to_string(), client.to_string()],
        ..Run::default()
    })
}

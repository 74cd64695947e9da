//! The list of commands (interop/cell/commands.txt), by Debian's tools, in two cells, OpenAFS's and ours: they have to say the same. When
//! one is tampered with then, it has to be found out, or the rules of the comparison take away too much.

use std::sync::Arc;

use afar_interop::cell::{Cell, Machine, Servers};
use afar_interop::commands::{self, Difference, Entry, Outcome};
use afar_interop::lab::Lab;
use afar_interop::suite::{Case, Trouble, Verdict, Weight};

/// The list must have this many, so that nobody makes it pass by shortening it.
const LEAST_COMMANDS: usize = 80;

/// Done to OpenAFS's cell behind the list, and a command of the list that must show it.
const TAMPERING: &[(&str, &str)] = &[
    ("pts createuser mallory -id 1900 -localauth", "pts listentries -localauth"),
    ("pts setmax -group -500 -localauth", "pts listmax -localauth"),
    ("vos create 10.88.0.1 a extra -localauth", "vos listvol 10.88.0.1 -localauth"),
    ("bos adduser 10.88.0.1 mallory -localauth", "bos listusers 10.88.0.1 -localauth"),
    ("bos setrestart 10.88.0.1 -time 4:00 -general -localauth", "bos getrestart 10.88.0.1 -localauth"),
];

/// Commands whose output by our cell is not a stock one's, and why.
const KNOWN: &[(&str, &str)] = &[
    ("bos getrestart 10.88.0.1 -localauth", "the stock cell's BosConfig sets a time, and ours has none"),
    (
        "bos getrestricted 10.88.0.1 -localauth",
        "on purpose: nothing of our servers can be changed by this service",
    ),
];

/// All cases of this module.
pub(crate) fn cases(lab: &Arc<Lab>) -> Vec<Case> {
    let lab = Arc::clone(lab);
    let name = "commands/ours_answers_as_a_stock_cell_does_until_that_is_changed";
    vec![Case::new(name, Weight::Waiting, move || ours_with_stock(&lab))]
}

fn ours_with_stock(lab: &Lab) -> Verdict {
    let entries = list(lab)?;
    let stock = lab.cell(&Machine::new(Servers::Stock))?;
    let ours = lab.cell(&lab.compared(lab.our_servers()?))?;
    let (said, ours) = (run(&stock, &entries)?, run(&ours, &entries)?);
    let (known, found): (Vec<_>, Vec<_>) =
        commands::compare(&entries, &said, &ours).into_iter().partition(|difference| {
            let line = difference.entry.words.join(" ");
            KNOWN.iter().any(|(command, _)| *command == line)
        });
    if known.len() != KNOWN.len() {
        let known: String = known.iter().map(ToString::to_string).collect();
        return Err(format!("of the commands known to differ only these do:\n{known}").into());
    }
    expect_none(&found, entries.len())?;
    TAMPERING.iter().try_for_each(|(change, command)| {
        let at = entries.iter().position(|entry| entry.words.join(" ") == *command);
        let at = at.ok_or_else(|| format!("{command:?} is not in the list"))?;
        let entry = std::slice::from_ref(&entries[at]);
        let before = run(&stock, entry)?;
        stock.expect(change)?;
        match commands::compare(entry, &before, &run(&stock, entry)?).is_empty() {
            true => Err(format!("{change:?} is not seen in {command:?}").into()),
            false => Ok(()),
        }
    })
}

fn list(lab: &Lab) -> Result<Vec<Entry>, Trouble> {
    let entries = commands::parse(&lab.read("interop/cell/commands.txt")?)?;
    if entries.len() < LEAST_COMMANDS {
        return Err(
            format!("the list has {} commands, and should have {LEAST_COMMANDS}", entries.len()).into()
        );
    }
    Ok(entries)
}

fn run(cell: &Cell, entries: &[Entry]) -> Result<Vec<Outcome>, Trouble> {
    Ok(commands::run(cell, entries)?)
}

fn expect_none(found: &[Difference], commands: usize) -> Verdict {
    if found.is_empty() {
        return Ok(());
    }
    let all: String = found.iter().map(ToString::to_string).collect();
    Err(format!("{} of {commands} commands differ (- stock, + the other):\n{all}", found.len()).into())
}

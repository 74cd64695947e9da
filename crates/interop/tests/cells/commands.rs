//! The list of commands (interop/cell/commands.txt), by Debian's tools, in two cells: OpenAFS's and OpenAFS's have to say the
//! same, or the rules of the comparison are not enough; one that was tampered with has to be found out, or they are too
//! much; and OpenAFS's and ours are what it is for.

use std::sync::Arc;
use std::thread;

use afar_interop::cell::{Cell, Machine, Servers};
use afar_interop::commands::{self, Difference, Entry, Outcome};
use afar_interop::lab::Lab;
use afar_interop::suite::{Case, Trouble, Verdict, Weight};

/// The list must have this many, so that nobody makes it pass by shortening it.
const LEAST_COMMANDS: usize = 80;

/// Done to a cell before the list, and a command of the list that must show it.
const TAMPERING: &[(&str, &str)] = &[
    ("pts createuser mallory -id 1900 -localauth", "pts listentries -localauth"),
    ("pts setmax -group -500 -localauth", "pts creategroup staff -localauth"),
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
    type Check = fn(&Lab) -> Verdict;
    let checks: [(&str, Check); 2] = [
        ("stock_cells_answer_alike_and_a_changed_one_does_not", stock_with_stock),
        ("ours_answers_as_a_stock_cell_does", ours_with_stock),
    ];
    let case = |(name, check): (&str, Check)| {
        let lab = Arc::clone(lab);
        Case::new(format!("commands/{name}"), Weight::Busy, move || check(&lab))
    };
    checks.into_iter().map(case).collect()
}

fn stock_with_stock(lab: &Lab) -> Verdict {
    let entries = list(lab)?;
    let stock = || lab.cell(&Machine::new(Servers::Stock));
    let (one, other) = (stock()?, stock()?);
    let tampered = stock()?;
    for (change, _) in TAMPERING {
        tampered.expect(change)?;
    }
    let (one, other, tampered) = thread::scope(|scope| {
        let entries = &entries;
        let other = scope.spawn(move || run(&other, entries));
        let tampered = scope.spawn(move || run(&tampered, entries));
        (run(&one, entries), other.join(), tampered.join())
    });
    let joined = |result: thread::Result<Result<_, Trouble>>| {
        result.unwrap_or_else(|_| Err("a thread panicked".to_owned().into()))
    };
    let (one, other, tampered) = (one?, joined(other)?, joined(tampered)?);
    expect_none(&commands::compare(&entries, &one, &other), entries.len())?;
    let found = commands::compare(&entries, &one, &tampered);
    for (change, command) in TAMPERING {
        let is_found = found.iter().any(|difference| difference.entry.words.join(" ") == *command);
        if !is_found {
            return Err(format!("{change:?} before the list is not seen in {command:?}").into());
        }
    }
    Ok(())
}

fn ours_with_stock(lab: &Lab) -> Verdict {
    let entries = list(lab)?;
    let stock = lab.cell(&Machine::new(Servers::Stock))?;
    let ours = lab.cell(&Machine::new(lab.our_servers()?))?;
    let (stock, ours) = (run(&stock, &entries)?, run(&ours, &entries)?);
    let (known, found): (Vec<_>, Vec<_>) =
        commands::compare(&entries, &stock, &ours).into_iter().partition(|difference| {
            let line = difference.entry.words.join(" ");
            KNOWN.iter().any(|(command, _)| *command == line)
        });
    if known.len() != KNOWN.len() {
        let known: String = known.iter().map(ToString::to_string).collect();
        return Err(format!("of the commands known to differ only these do:\n{known}").into());
    }
    expect_none(&found, entries.len())
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

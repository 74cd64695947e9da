//! The databases of a cell that go from OpenAFS's servers to ours and back, as files: whoever serves them, Debian's `vos`
//! and `pts` are told the same.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use afar_interop::cell::{Cell, Machine, Servers};
use afar_interop::lab::Lab;
use afar_interop::process::{self, Running};
use afar_interop::suite::{Case, Trouble, Verdict, Weight};

/// All cases of this module.
pub(crate) fn cases(lab: &Arc<Lab>) -> Vec<Case> {
    let (first, second) = (Arc::clone(lab), Arc::clone(lab));
    vec![
        Case::new("databases/go_from_openafs_to_ours_and_back", Weight::Waiting, move || {
            there_and_back(&first)
        }),
        Case::new(
            "databases/a_group_of_more_members_than_a_list_has_room_for_loses_none",
            Weight::Waiting,
            move || large_group(&second),
        ),
    ]
}

/// Servers start, and stop, within some seconds.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Names of which there are volumes.
const VOLUMES: usize = 40;

/// Users, of which each second one has a group.
const USERS: usize = 40;

/// Commands whose look-ups are compared, at least.
const LOOKUPS_MIN: usize = 100;

/// Where OpenAFS's servers have their databases in a cell.
pub(crate) const FILES: &str = "/var/lib/openafs/db";

/// Where ours have theirs there.
pub(crate) const STATE: &str = "/var/lib/openafs/afar";

/// What fills the databases. `#` is every number, `%` every second one; with `...` behind it a command has all of them.
const FILLING: &[&str] = &[
    "vos setaddrs -uuid 00aabbcc-1122-3344-55-66-778899aabbcc -host 10.89.7.1 10.89.7.2 10.89.7.3",
    "vos setaddrs -uuid 01aabbcc-1122-3344-55-66-778899aabbcc -host 10.89.8.1",
    "vos create 10.88.0.1 a vol.# -maxquota 0",
    "vos addsite 10.88.0.1 a vol.%",
    "vos backup vol.1",
    "vos lock vol.2",
    "vos remove 10.88.0.1 a vol.7",
    "vos changeaddr 10.89.8.1 -remove",
    "pts createuser admin -id 1",
    "pts adduser admin system:administrators",
    "pts createuser -name user#...",
    "pts creategroup user%:team -owner user%",
    "pts creategroup staff -owner admin",
    "pts creategroup user11:orphan -owner user11",
    "pts adduser -user user#... -group staff",
    "pts adduser -user user%... -group user2:team",
    "pts adduser -user user39 -group user%:team...",
    "pts adduser user2:team user4:team",
    "pts adduser user4:team user6:team",
    "pts adduser user4:team user8:team",
    "pts adduser user4:team user10:team",
    "pts removeuser user5 staff",
    "pts setfields user2:team -access SOMar",
    "pts setfields user3 -groupquota 7",
    "pts creategroup system:authuser@other.test",
    "pts createuser joe@other.test",
    "pts delete user11",
    "pts delete user12",
    "pts rename user13 renamed",
    "pts setmax -user 5000",
];

/// What is asked. `#` as above.
const LOOKUPS: &[&str] = &[
    "vos listvldb -noresolve",
    "vos listvldb -nosort -noresolve",
    "vos listvldb -locked -noresolve",
    "vos listvldb -server 10.89.7.1 -noresolve",
    "vos listaddrs -noresolve -printuuid",
    "vos listvldb -name vol.# -noresolve",
    "vos listvldb -name vol.%.readonly -noresolve",
    "vos examine vol.1 -noresolve",
    "vos examine vol.7 -noresolve",
    "pts listentries -users -groups",
    "pts listmax",
    "pts examine user#... -noauth",
    "pts examine user#...",
    "pts membership user#...",
    "pts examine user%:team...",
    "pts membership user%:team...",
    "pts membership user%:team... -supergroups",
    "pts listowned user#",
    "pts listowned 0",
    "pts examine system:administrators anonymous joe@other.test renamed user11:orphan",
    "pts membership system:authuser@other.test",
    "pts membership staff -expandgroups",
];

/// Changes that each of the servers gets when it has the databases; `NAME` is whose it is.
const CHANGES: &[&str] = &[
    "pts createuser NAME",
    "pts createuser NAME.gone",
    "pts creategroup NAME:team -owner NAME",
    "pts adduser NAME NAME:team",
    "pts adduser NAME.gone NAME:team",
    "pts removeuser NAME NAME:team",
    "pts delete NAME.gone",
    "vos create 10.88.0.1 a NAME.old -maxquota 0",
    "vos create 10.88.0.1 a NAME.new -maxquota 0",
    "vos addsite 10.88.0.1 a NAME.new",
    "vos remove 10.88.0.1 a NAME.old",
    "vos lock NAME.new",
];

/// A pattern with each of its numbers.
fn lines(pattern: &str, count: usize) -> Vec<String> {
    if let Some(word) = pattern.split(' ').find(|word| word.ends_with("...")) {
        let all = lines(word.trim_end_matches('.'), count).join(" ");
        return vec![pattern.replace(word, &all)];
    }
    let (mark, step) = if pattern.contains('%') { ("%", 2) } else { ("#", 1) };
    if !pattern.contains(mark) {
        return vec![pattern.to_owned()];
    }
    (step..=count).step_by(step).map(|n| pattern.replace(mark, &n.to_string())).collect()
}

fn count_of(pattern: &str) -> usize {
    if pattern.starts_with("vos") { VOLUMES } else { USERS }
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// What all look-ups say.
fn answers(cell: &Cell) -> Result<Vec<(String, String)>, Trouble> {
    let mut answers = Vec::new();
    for line in LOOKUPS.iter().flat_map(|pattern| lines(pattern, count_of(pattern))) {
        let line = if line.ends_with("-noauth") { line } else { format!("{line} -localauth") };
        let said = cell.run(&words(&line))?;
        let mut text = said.stdout;
        if line.starts_with("pts listowned") {
            // Their order is that in which the groups were given to their owner, of which a database of ours knows nothing.
            let mut sorted: Vec<&str> = text.lines().collect();
            sorted.sort_unstable();
            text = sorted.join("\n");
        }
        answers.push((line, format!("{:?}\n{text}{}", said.status, said.stderr)));
    }
    if answers.len() < LOOKUPS_MIN {
        return Err(format!("only {} look-ups were made", answers.len()).into());
    }
    Ok(answers)
}

/// The answers without what no call tells: when a volume was locked. An entry without a time is not locked.
fn without_locks(answers: Vec<(String, String)>) -> Vec<(String, String)> {
    answers.into_iter().filter(|(line, _)| !line.contains("-locked")).collect()
}

fn compare(whose: &str, now: &[(String, String)], before: &[(String, String)]) -> Verdict {
    for ((line, now), (_, before)) in now.iter().zip(before) {
        if now != before {
            return Err(format!("{line}: {whose} says\n{now}\nand before it was\n{before}").into());
        }
    }
    Ok(())
}

/// Our database servers in a cell, while OpenAFS's are stopped.
pub(crate) struct OurDatabases<'a> {
    cell: &'a Cell,
    server: Option<Running>,
}

impl<'a> OurDatabases<'a> {
    pub(crate) fn start(cell: &'a Cell, afar: &str) -> Result<Self, Trouble> {
        let words = [afar, "server", "--state", STATE, "--config-dir", "/etc/openafs/server"];
        let rest = ["--roles", "pt,vl", "--bind", "10.88.0.1"];
        let server = process::start(&mut cell.command(&[&words[..], &rest].concat()))?;
        let this = Self { cell, server: Some(server) };
        for _ in 0..TIMEOUT.as_millis() / 100 {
            if cell.expect("pts listmax -localauth").is_ok()
                && cell.expect("vos listaddrs -localauth").is_ok()
            {
                return Ok(this);
            }
            thread::sleep(Duration::from_millis(100));
        }
        Err("our databases do not answer".to_owned().into())
    }

    pub(crate) fn stop(mut self) -> Verdict {
        self.end("-TERM")
    }

    fn end(&mut self, signal: &str) -> Verdict {
        let Some(server) = self.server.take() else { return Ok(()) };
        end(self.cell, "srv", "afar", signal)?;
        drop(server);
        Ok(())
    }
}

/// Ends all processes of a machine that run a program, by a signal, and waits until they have ended.
pub(crate) fn end(cell: &Cell, machine: &str, program: &str, signal: &str) -> Verdict {
    let run = |words: &[&str]| process::run(&mut cell.command_at(machine, words), TIMEOUT);
    run(&["pkill", signal, "-x", program])?;
    for _ in 0..TIMEOUT.as_millis() / 20 {
        if run(&["pgrep", "-x", program])?.status != Some(0) {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(20));
    }
    Err(format!("{program} on {machine} does not end").into())
}

impl Drop for OurDatabases<'_> {
    fn drop(&mut self) {
        let _ = self.end("-KILL");
    }
}

/// Starts OpenAFS's database servers, or stops them, and waits until they are. Servers that start have an entry of this volume.
pub(crate) fn set_stock(cell: &Cell, run: bool, volume: &str) -> Verdict {
    if !run {
        cell.expect("bos stop 10.88.0.1 ptserver vlserver -wait -localauth")?;
        return Ok(());
    }
    for server in ["ptserver", "vlserver"] {
        cell.expect(&format!("bos start 10.88.0.1 {server} -localauth"))?;
    }
    wait_for_stock(cell, volume)
}

/// Waits until OpenAFS's database servers take changes, and have an entry of this volume.
pub(crate) fn wait_for_stock(cell: &Cell, volume: &str) -> Verdict {
    let mut why = String::new();
    // Several of them elect a sync site first, which takes a minute and a half.
    let end = Instant::now() + 4 * TIMEOUT;
    while Instant::now() < end {
        // A lock needs a server that takes changes.
        let ready = ["pts setmax -user 6000 -localauth", &format!("vos unlock {volume} -localauth")];
        match ready.iter().try_for_each(|line| cell.expect(line).map(drop)) {
            Ok(()) => return Ok(()),
            Err(error) => why = error,
        }
        thread::sleep(Duration::from_millis(200));
    }
    Err(format!("OpenAFS's database servers do not take changes: {why}").into())
}

/// What OpenAFS's tools that check databases complain of.
fn check_files(cell: &Cell) -> Verdict {
    let said = cell.run(&["vldb_check", "-database", &format!("{FILES}/vldb.DB0")])?;
    // The random calls set flags of sites that nobody knows, which OpenAFS's server takes.
    let is_known =
        |line: &&str| !line.starts_with("address ") || line.ends_with("unknown RW/RO index serverFlag");
    let text = format!("{}{}", said.stdout, said.stderr);
    if let Some(line) = text.lines().find(|line| !is_known(line)) {
        return Err(format!("vldb_check says: {line}").into());
    }
    if !text.contains("Scanning ") {
        return Err(format!("vldb_check says only {text}").into());
    }
    let said = cell.run(&["prdb_check", "-database", &format!("{FILES}/prdb.DB0")])?;
    // Nor do random calls care where the next ids are looked for.
    let is_known = |line: &str| line.contains("self owning") || line.starts_with("Database's max ");
    match said.stderr.lines().find(|line| !is_known(line)) {
        Some(line) => Err(format!("prdb_check says: {line}").into()),
        None => Ok(()),
    }
}

fn change(cell: &Cell, name: &str) -> Verdict {
    CHANGES.iter().try_for_each(|line| {
        cell.expect(&format!("{} -localauth", line.replace("NAME", name))).map(drop)?;
        Ok(())
    })
}

/// The path of `afar`.
pub(crate) fn program(lab: &Lab) -> Result<String, Trouble> {
    let afar = std::path::PathBuf::from(lab.afar()?.get_program());
    let afar = afar.canonicalize().map_err(|error| format!("{}: {error}", afar.display()))?;
    Ok(afar.display().to_string())
}

fn there_and_back(lab: &Lab) -> Verdict {
    let cell = lab.cell(&Machine::new(Servers::Stock))?;
    let afar = program(lab)?;
    for line in FILLING.iter().flat_map(|pattern| lines(pattern, count_of(pattern))) {
        cell.expect(&format!("{line} -localauth"))?;
    }
    // Entries of all kinds, at servers that are not there.
    cell.expect("touch /var/lib/openafs/local/NoAuth")?;
    for service in ["vl", "pr"] {
        let mut talk = cell.clients()?.command(env!("CARGO_BIN_EXE_celldb"));
        let talked = process::run(talk.args(["talk", service, "10.88.0.1", "7", "1500"]), 5 * TIMEOUT)?;
        if talked.status != Some(0) {
            return Err(format!("the calls that fill the databases: {}", talked.stderr).into());
        }
    }
    cell.expect("rm /var/lib/openafs/local/NoAuth")?;
    let of_openafs = answers(&cell)?;
    // Of the last one too, though there is no user11 any more.
    for (line, wanted) in [
        ("vos listvldb ", "vol.40"),
        ("vos listvldb ", "RO Site"),
        ("pts examine user1 ", "Name: user40,"),
        ("pts membership user1 ", "Groups user40 "),
        ("pts membership user2:team ", "Members of user40:team "),
    ] {
        let said = of_openafs.iter().find(|(asked, _)| asked.starts_with(line)).map(|(_, said)| said);
        if !said.is_some_and(|said| said.contains(wanted)) {
            return Err(format!("{line} does not say {wanted:?}, but {said:?}").into());
        }
    }

    // The servers tell the same as their files. Entries that no look-up finds are told by none.
    let from = format!("{afar} import --from 10.88.0.1 --state {STATE}");
    let told = cell.expect(&format!("{from} --dry-run"))?;
    if !told.contains("groups without an owner") || told.contains("hash chain") {
        return Err(format!("of the servers of OpenAFS we say {told}").into());
    }
    cell.expect(&from)?;
    set_stock(&cell, false, "vol.40")?;
    let ours = OurDatabases::start(&cell, &afar)?;
    compare(
        "our server with what theirs told",
        &without_locks(answers(&cell)?),
        &without_locks(of_openafs.clone()),
    )?;
    ours.stop()?;

    let files = format!("--vldb {FILES}/vldb.DB0 --prdb {FILES}/prdb.DB0 --state {STATE}");
    let told = cell.expect(&format!("{afar} import {files} --dry-run"))?;
    if !told.contains("groups without an owner") || told.contains("hash chain") {
        return Err(format!("of the files of OpenAFS we say {told}").into());
    }
    cell.expect(&format!("{afar} import {files} --replace"))?;
    let ours = OurDatabases::start(&cell, &afar)?;
    compare("our server", &answers(&cell)?, &of_openafs)?;
    change(&cell, "ours")?;
    let of_ours = answers(&cell)?;
    ours.stop()?;

    cell.expect(&format!("{afar} export {files} --force"))?;
    check_files(&cell)?;
    set_stock(&cell, true, "vol.40")?;
    // What set_stock has changed.
    let not_max = |answers: Vec<(String, String)>| {
        answers.into_iter().filter(|(line, _)| !line.starts_with("pts listmax")).collect::<Vec<_>>()
    };
    compare("OpenAFS's server", &not_max(answers(&cell)?), &not_max(of_ours))?;
    change(&cell, "theirs")?;
    set_stock(&cell, false, "vol.40")?;
    check_files(&cell)
}

/// Members of a group, one more than OpenAFS's server puts into a list.
const MANY: usize = 5_001;

/// Bytes before the database in its file (docs/notes of Ubik's files).
const UBIK_HEADER_BYTES: usize = 64;

/// Names in one command: few enough that it ends in time on a busy machine, as each is a transaction that is forced to disk.
const AT_ONCE: usize = 100;

/// Such commands side by side: each waits for the server most of the time.
const FILLERS: usize = 4;

/// The import collects a group's members from their own lists, from OpenAFS's servers and from ours, if no list has all of them.
fn large_group(lab: &Lab) -> Verdict {
    let cell = lab.cell(&Machine::new(Servers::Stock))?;
    let afar = program(lab)?;
    cell.expect("pts creategroup crowd -owner system:administrators -localauth")?;
    let names: Vec<String> = (1..=MANY).map(|number| format!("u{number}")).collect();
    let parts: Vec<String> = names.chunks(AT_ONCE).map(|part| part.join(" ")).collect();
    let fill = |first: usize| {
        parts.iter().skip(first).step_by(FILLERS).try_for_each(|part| {
            cell.expect(&format!("pts createuser -name {part} -localauth"))?;
            cell.expect(&format!("pts adduser -user {part} -group crowd -localauth")).map(drop)
        })
    };
    thread::scope(|scope| {
        let fillers: Vec<_> = (0..FILLERS).map(|first| scope.spawn(move || fill(first))).collect();
        fillers.into_iter().try_for_each(|filler| {
            filler.join().unwrap_or_else(|_| Err("who fills the group panicked".to_owned()))
        })
    })?;
    let other = format!("{STATE}.of-ours");
    let import = |state: &str| cell.expect(&format!("{afar} import --from 10.88.0.1 --state {state}"));
    import(STATE)?;
    set_stock(&cell, false, "")?;
    let ours = OurDatabases::start(&cell, &afar)?;
    let counted = cell.expect("pts examine crowd -localauth")?;
    if !counted.contains(&format!("membership: {MANY},")) {
        return Err(format!("of the group our server says {counted}").into());
    }
    for number in [1, MANY / 2, MANY - 1, MANY] {
        let groups = cell.expect(&format!("pts membership u{number} -localauth"))?;
        if !groups.lines().any(|line| line.trim() == "crowd") {
            return Err(format!("u{number} is in {groups}").into());
        }
    }
    import(&other)?;
    ours.stop()?;
    let export = |state: &str| {
        let file = format!("{state}/prdb");
        cell.expect(&format!("{afar} export --prdb {file} --state {state}")).map(|_| file)
    };
    let files = [export(STATE)?, export(&other)?];
    for file in &files {
        let said = cell.run(&["prdb_check", "-database", file])?;
        if let Some(line) = said.stderr.lines().find(|line| !line.contains("self owning")) {
            return Err(format!("prdb_check says of {file}: {line}").into());
        }
    }
    // Both have the same members: what was told by OpenAFS's server, and what ours tells of it. Ubik's header is passed over, as it
    // has the second in which a file was written.
    let skip = format!("--ignore-initial={UBIK_HEADER_BYTES}");
    if cell.run(&["cmp", &skip, &files[0], &files[1]])?.status != Some(0) {
        return Err("what our server tells of the group is not what it was told".to_owned().into());
    }
    Ok(())
}

//! Our vos, pts, bos, fs and afsio against Debian's: the same commands in two cells that are alike, where ours have to print and
//! do what Debian's do, line by line; in cells of OpenAFS's servers, and in cells of ours. What the commands are is in
//! interop/cell/commands.txt and interop/cell/suites.txt, and in interop/cell/motion.txt for cells with two file servers.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use afar_interop::cell::{Cell, Machine, Servers};
use afar_interop::commands::{self, Entry};
use afar_interop::lab::Lab;
use afar_interop::process;
use afar_interop::suite::{Case, Trouble, Verdict, Weight};
use serde_json::Value;

/// Where the lists are, and that of commands about two servers.
const LISTS: [&str; 2] = ["interop/cell/commands.txt", "interop/cell/suites.txt"];
const MOTION: &str = "interop/cell/motion.txt";

/// The suites that the lists have commands of.
const SUITES: [&str; 5] = ["vos", "pts", "bos", "fs", "afsio"];

/// Verbs of Debian's suites that ours do not have. Each has to be missing, and no other.
const NOT_BUILT: &[(&str, &[&str])] = &[];

/// Verbs of the suites together, less than which would mean that the lists were not read.
const VERBS_MIN: usize = 150;

/// Commands that have no verbs, whose options are compared.
const SINGLE: [&str; 2] = ["tokens", "cmdebug"];

/// What is typed into `pts interactive`, with a file that is read from there.
const LINES: &str = "listmax\n  examine\tadmin\nexamine nobodyhere\nsource FILE\n\nnosuchverb\nhelp \"a b\nsleep\n\
                     membership \"system:administrators\" 'admin'\nsleep 0\nexamine admin -noauth\nlistmax\nquit\nlistmax\n";

/// What is in that file. Its last line has no end.
const FILE: &str = "listentries -groups\nlistowned admin";

/// Commands of the lists whose output is not Debian's on purpose, and why.
const ON_PURPOSE: &[(&str, &str)] = &[
    (
        "pts examine system:administrators system:anyuser system:authuser -localauth",
        "behind an administrator, all that Debian's shows have an unlimited quota",
    ),
    (
        "vos listvol 10.88.0.1 a -format -extended -localauth",
        "Debian's counts no volumes there, and says that none are online",
    ),
];

/// The same about volumes that move. Who does not know whether a move was made gives the same command again.
const MOVED_BEFORE: &[(&str, &str)] = &[(
    "vos move go 10.88.0.1 a 10.88.0.3 a -localauth",
    "the volume has moved already, which Debian's says is an error",
)];

/// Commands compared at least; far fewer would mean that the lists were not read.
const COMMANDS_MIN: usize = 60;
const MOTION_MIN: usize = 40;

/// How a line of help begins that is about what only ours have.
const ONLY_OURS: &str = "Only in afar: ";

/// What has to give JSON: the command, and what has to be found in it.
const JSON: &[(&str, &str)] = &[
    ("vos listpart 10.88.0.1", "/partitions/0"),
    ("vos partinfo 10.88.0.1", "/partitions/0/total_kib"),
    ("vos listvol 10.88.0.1", "/volumes/0/quota_kib"),
    ("vos listvol 10.88.0.1 -extended", "/volumes/0/reads/same_net"),
    ("vos listvol 10.88.0.1 -fast", "/volumes/0/id"),
    ("vos listvldb", "/0/sites/0/partition"),
    ("vos listvldb -name root.cell", "/0/rw_id"),
    ("vos examine root.cell", "/volumes/0/status"),
    ("vos listaddrs", "/0/addresses/0"),
    ("vos status 10.88.0.1", ""),
    ("vos create 10.88.0.1 a moving", "/rw_id"),
    ("vos addsite 10.88.0.1 a moving", "/added_site_of"),
    ("vos release moving", "/sites/0/server"),
    ("vos copy moving 10.88.0.1 a moved 10.88.0.1 a", "/copy_id"),
    ("vos changeloc 10.88.0.1 a moved", "/changed_location_of"),
    ("vos remove -id moving", "/removed"),
    ("vos remove -id moved", "/removed"),
    ("vos create 10.88.0.1 a json", "/rw_id"),
    ("vos backup json", "/backup_id"),
    ("vos offline 10.88.0.1 a json", "/offline"),
    ("vos online 10.88.0.1 a json", "/online"),
    ("vos lock json", "/locked"),
    ("vos unlock json", "/unlocked"),
    ("vos lock json", "/locked"),
    ("vos unlockvldb", "/unlocked/0"),
    ("vos addsite 10.88.0.1 a json", "/added_site_of"),
    ("vos remsite 10.88.0.1 a json", "/removed_site_of"),
    ("vos setfields json -maxquota 7000", "/quota_kib"),
    ("vos size json -dump", "/dump_bytes"),
    ("vos clone json -toname json.clone", "/clone_id"),
    ("vos rename json other", "/old_name"),
    ("vos backupsys -prefix other -dryrun", "/would_back_up/0"),
    ("vos backupsys -prefix other", "/backed_up/0"),
    ("vos delentry other -dryrun", "/would_delete/0"),
    ("vos delentry -prefix other -server 10.88.0.1", "/deleted/0"),
    ("vos syncvldb 10.88.0.1 -dryrun", "/would_change"),
    ("vos syncvldb 10.88.0.1", "/changed"),
    ("vos syncvldb -volume other", "/entries"),
    ("vos syncserv 10.88.0.1", "/entries"),
    ("vos zap 10.88.0.1 a other -backup", "/zapped_backup"),
    ("vos delentry other", "/deleted/0"),
    ("vos create 10.88.0.1 a json", "/rw_id"),
    ("vos remove -id json", "/removed"),
    ("pts examine admin", "/0/flags"),
    ("pts membership system:administrators", "/0/members/0"),
    ("pts listowned admin", "/0/owned"),
    ("pts listentries -groups", "/0/owner_id"),
    ("pts listmax", "/max_user_id"),
    ("pts createuser json", "/0/id"),
    ("pts creategroup json:json -owner json", "/0/id"),
    ("pts adduser json json:json", "/0/group"),
    ("pts setfields json json:json -access SOM-- -groupquota 5", "/1/flags"),
    ("pts removeuser json json:json", "/0/user"),
    ("pts rename json:json json:other", "/old_name"),
    ("pts chown json:other admin", "/owner"),
    ("pts delete admin:other json", "/1/id"),
    ("pts setmax -user 70000", "/max_user_id"),
    ("bos status 10.88.0.1", "/0/state"),
    ("bos listhosts 10.88.0.1", "/hosts/0"),
    ("bos listusers 10.88.0.1", "/superusers/0"),
    ("bos listkeys 10.88.0.1", "/keys"),
    ("bos getrestart 10.88.0.1", "/general"),
    ("bos getrestricted 10.88.0.1", "/restricted"),
    ("bos getdate 10.88.0.1 vlserver", "/0/file"),
];

/// All cases of this module.
pub(crate) fn cases(lab: &Arc<Lab>) -> Vec<Case> {
    type Check = fn(&Lab) -> Verdict;
    let checks: [(&str, Check); 6] = [
        ("print_and_do_what_debians_do", |lab| compare_all(lab, &Servers::Stock)),
        ("print_and_do_what_debians_do_with_our_servers", |lab| compare_all(lab, &lab.our_servers()?)),
        ("move_volumes_as_debians_do", |lab| compare_motion(lab, &Servers::Stock)),
        ("move_volumes_as_debians_do_with_our_servers", |lab| compare_motion(lab, &lab.our_servers()?)),
        ("help_as_debians_do", compare_help),
        ("pts_reads_lines_as_debians_does", compare_lines),
    ];
    let case = |(name, check): (&str, Check)| {
        let lab = Arc::clone(lab);
        Case::new(format!("suites/{name}"), Weight::Waiting, move || check(&lab))
    };
    checks.into_iter().map(case).collect()
}

/// Our program under the names of the suites.
struct Links(PathBuf);

impl Links {
    fn new(lab: &Lab, name: &str) -> Result<Self, Trouble> {
        let program = PathBuf::from(lab.afar()?.get_program());
        let program = program.canonicalize().map_err(|error| format!("{}: {error}", program.display()))?;
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let made = fs::create_dir_all(&folder).and_then(|()| {
            SUITES.iter().chain(&SINGLE).try_for_each(|suite| symlink(&program, folder.join(suite)))
        });
        made.map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(Self(folder))
    }

    fn path(&self, suite: &str) -> String {
        self.0.join(suite).display().to_string()
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The commands of lists that are for the suites, in order.
fn entries(lab: &Lab, lists: &[&str], least: usize) -> Result<Vec<Entry>, Trouble> {
    let mut all = Vec::new();
    for list in lists {
        all.extend(commands::parse(&lab.read(list)?).map_err(|error| format!("{list}: {error}"))?);
    }
    all.retain(|entry| SUITES.contains(&entry.words[0].as_str()));
    if all.len() < least {
        return failed(format!("{lists:?} have {} commands for the suites", all.len()));
    }
    Ok(all)
}

/// The same commands, with our programs.
fn with_ours(entries: &[Entry], links: &Links) -> Vec<Entry> {
    let ours = |entry: &Entry| {
        let mut entry = entry.clone();
        entry.words[0] = links.path(&entry.words[0]);
        entry
    };
    entries.iter().map(ours).collect()
}

/// All that one server is enough for.
fn compare_all(lab: &Lab, servers: &Servers) -> Verdict {
    let cell = || lab.cell(&lab.compared(servers.clone()));
    let links = Links::new(lab, if *servers == Servers::Stock { "suites" } else { "suites-ours" })?;
    let our_cell =
        compare_in_cells(&entries(lab, &LISTS, COMMANDS_MIN)?, (cell()?, cell()?), &links, ON_PURPOSE)?;
    check_json(&our_cell, &links)
}

/// The commands about volumes that move between two servers.
fn compare_motion(lab: &Lab, servers: &Servers) -> Verdict {
    let cell = || -> Result<Cell, Trouble> {
        let cell = lab.cell(&lab.compared(servers.clone()))?;
        cell.join(3, &lab.compared(servers.clone()))?;
        Ok(cell)
    };
    let links = Links::new(lab, if *servers == Servers::Stock { "motion" } else { "motion-ours" })?;
    compare_in_cells(&entries(lab, &[MOTION], MOTION_MIN)?, (cell()?, cell()?), &links, MOVED_BEFORE)
        .map(drop)
}

/// Debian's programs in the first cell and ours in the other, which is given back.
fn compare_in_cells(
    entries: &[Entry],
    (debians_cell, our_cell): (Cell, Cell),
    links: &Links,
    differ_on_purpose: &[(&str, &str)],
) -> Result<Cell, Trouble> {
    let ours = with_ours(entries, links);
    let (debian, afar) = thread::scope(|scope| {
        let debian = scope.spawn(|| commands::run(&debians_cell, entries));
        let afar = commands::run(&our_cell, &ours);
        (debian.join().unwrap_or_else(|_| Err("a thread panicked".to_owned())), afar)
    });
    let (debian, afar) = (debian?, afar?);
    let (on_purpose, differences): (Vec<_>, Vec<_>) =
        commands::compare(entries, &debian, &afar).into_iter().partition(|difference| {
            let line = difference.entry.words.join(" ");
            differ_on_purpose.iter().any(|(command, _)| *command == line)
        });
    if on_purpose.len() != differ_on_purpose.len() {
        return failed(format!("of what differs on purpose, only these do: {on_purpose:?}"));
    }
    println!("suites: {} commands compared, {} differ", entries.len(), differences.len());
    if !differences.is_empty() {
        let shown: Vec<String> = differences.iter().map(ToString::to_string).collect();
        let count = (differences.len(), entries.len());
        return failed(format!("{} of {} commands differ:\n{}", count.0, count.1, shown.concat()));
    }
    Ok(our_cell)
}

fn failed<T>(message: impl Into<String>) -> Result<T, Trouble> {
    Err(Trouble::Failed(message.into()))
}

/// Everything that has facts has them as JSON too.
fn check_json(cell: &Cell, links: &Links) -> Verdict {
    for (line, pointer) in JSON {
        let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        words[0] = links.path(&words[0]);
        words.extend(["-localauth".to_owned(), "--json".to_owned()]);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let done = cell.run(&words)?;
        let parsed: Result<Value, _> = serde_json::from_str(&done.stdout);
        match parsed {
            Ok(value) if done.status == Some(0) && value.pointer(pointer).is_some() => {}
            parsed => return failed(format!("{line} --json: {parsed:?} has no {pointer}: {done:?}")),
        }
    }
    Ok(())
}

// ---- help, for which no cell is needed

fn compare_help(lab: &Lab) -> Verdict {
    lab.rxdebug()?;
    let links = Links::new(lab, "help")?;
    let mut compared = 0;
    for suite in SUITES {
        let ours = |words: &[&str]| run(Command::new(links.path(suite)).args(words));
        let debians = |words: &[&str]| run(Command::new(suite).args(words));
        let listed = ours(&["help"])?;
        let verbs = listed.lines().skip(1).filter_map(|line| line.split_whitespace().next());
        for verb in verbs.filter(|verb| !own_verbs(suite).contains(verb)) {
            for words in [vec!["help", verb], vec![verb, "-help"]] {
                let (ours, debians) = (ours(&words)?, debians(&words)?);
                let ours: Vec<&str> = ours.lines().filter(|line| !line.starts_with(ONLY_OURS)).collect();
                let debians: Vec<&str> = debians.lines().collect();
                if ours != debians {
                    return failed(format!("{suite} {words:?}: ours {ours:#?}, Debian's {debians:#?}"));
                }
                compared += 1;
            }
        }
    }
    if compared < COMMANDS_MIN {
        return failed(format!("only {compared} helps were compared"));
    }
    compare_verbs(&links)?;
    SINGLE.iter().try_for_each(|command| compare_options(&links, command))
}

/// Debian's list of verbs against ours: what is missing has to be known to be.
fn compare_verbs(links: &Links) -> Verdict {
    let mut compared = 0;
    for suite in SUITES {
        let [debians, ours] = [suite.to_owned(), links.path(suite)].map(|program| verbs(&program));
        let (debians, ours) = (debians?, ours?);
        let known = NOT_BUILT.iter().find(|(name, _)| *name == suite).map_or(&[][..], |(_, verbs)| verbs);
        let missing: Vec<&String> = debians.iter().filter(|verb| !ours.contains(verb)).collect();
        let beyond: Vec<&String> = ours.iter().filter(|verb| !debians.contains(verb)).collect();
        if missing != known || beyond != own_verbs(suite) {
            return failed(format!(
                "{suite}: ours has no {missing:?}, where {known:?} is known of, and has {beyond:?} beyond Debian's"
            ));
        }
        compared += debians.len();
    }
    println!("suites: Debian's have {compared} verbs");
    if compared < VERBS_MIN {
        return failed(format!("Debian's suites list {compared} verbs"));
    }
    Ok(())
}

/// The verbs of a suite that Debian's does not have.
fn own_verbs(suite: &str) -> &'static [&'static str] {
    match suite {
        "fs" => &["pin", "restore", "snapshots", "whatwaits"],
        "vos" => &["snapshot", "undelete"],
        _ => &[],
    }
}

/// The verbs of a suite, in its order.
fn verbs(program: &str) -> Result<Vec<String>, Trouble> {
    let listed = run(Command::new(program).arg("help"))?;
    let verbs = listed.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    Ok(verbs.map(str::to_owned).collect())
}

/// A command without verbs has Debian's options, with what they mean.
fn compare_options(links: &Links, command: &str) -> Verdict {
    let debians = run(Command::new(command).arg("-help"))?;
    let ours = run(Command::new(links.path(command)).arg("-help"))?;
    let ours: String =
        ours.lines().filter(|line| !line.starts_with(ONLY_OURS)).map(|line| format!("{line}\n")).collect();
    if ours != debians || !debians.starts_with(&format!("Usage: {command} ")) {
        return failed(format!("{command} -help: ours {ours}, Debian's {debians}"));
    }
    Ok(())
}

// ---- commands from lines

/// What is typed into `pts interactive`, and read from files.
fn compare_lines(lab: &Lab) -> Verdict {
    let cell = lab.cell(&Machine::new(Servers::Stock))?;
    let links = Links::new(lab, "lines")?;
    let at = |name: &str| links.0.join(name).display().to_string();
    let (lines, file, last) = (at("lines.txt"), at("file.txt"), at("last.txt"));
    let write = |path: &str, text: &str| {
        fs::write(path, text).map_err(|error| Trouble::Failed(format!("{path}: {error}")))
    };
    write(&lines, &LINES.replace("FILE", &file))?;
    write(&file, FILE)?;
    write(&last, &format!("source {file}\nsource {lines}\nlistmax\n"))?;
    cell.expect("pts createuser admin -id 1 -localauth")?;
    cell.expect("pts creategroup admin:own -owner admin -localauth")?;
    let missing = at("missing.txt");
    for (words, input) in [
        (&["interactive", "-localauth"][..], &lines),
        (&["in", "-localauth", "-force"], &last),
        (&["source", &last, "-localauth"], &missing),
        (&["source", &missing, "-localauth"], &missing),
        (&["interactive", "-config", "/nonexistent"], &lines),
    ] {
        let both = ["pts".to_owned(), links.path("pts")].map(|program| {
            let input = if Path::new(input).exists() { input } else { "/dev/null" };
            let run_with = ["bash", "-c", "input=$1; shift; exec \"$@\" < \"$input\"", "-", input, &program];
            let done = cell.run(&[&run_with[..], words].concat())?;
            let kept = |text: &str| -> Vec<String> {
                text.lines().filter(|line| !line.contains(ONLY_OURS)).map(str::to_owned).collect()
            };
            Ok::<_, Trouble>((done.status, kept(&done.stdout), kept(&done.stderr)))
        });
        let [debians, ours] = both;
        let (debians, ours) = (debians?, ours?);
        if debians != ours {
            return failed(format!("pts {words:?}: ours {ours:#?}, Debian's {debians:#?}"));
        }
        let shown = debians.1.iter().filter(|line| line.starts_with("Max user id is ")).count();
        if words[0] == "interactive" && words.contains(&"-localauth") && shown != 2 {
            return failed(format!("Debian's did not do what the lines say: {debians:#?}"));
        }
    }
    Ok(())
}

/// What a command prints, all of it.
fn run(command: &mut Command) -> Result<String, Trouble> {
    let done = process::run(command, Duration::from_secs(60))?;
    Ok(format!("{}{}", done.stdout, done.stderr))
}

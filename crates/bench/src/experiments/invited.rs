//! The day of a small site (`site.rs`) without Kerberos: the server's ports are forwarded by a router, three machines that have joined by
//! invitations are behind another, whose ports change in the middle. Encrypted beside the same in the clear, and then a change after a pause.

use std::path::{Path, PathBuf};
use std::time::Duration;

use linkem::Namespace;

use super::site::{GOT, IMAGE, IMAGE_RATE, RTT, STALLED, Size, prepare, three};
use crate::error::Error;
use crate::folder::folder;
use crate::lab::{Cell, Lab, interleave};
use crate::mounts::{Mount, OurCell, Scene};
use crate::nat::{self, Home, MAPPING_S};
use crate::network::LinkSpec;
use crate::record::{Record, Run, short};
use crate::tools::{Invocation, Place};

/// The three users, each with one machine.
const USERS: [&str; 3] = ["alice", "bob", "carol"];
/// The thirds of the film that are over when the router starts anew.
const CHANGES_AFTER: u64 = 2;
/// The file that somebody changes after the pause.
const WATCHED: &str = "watched";
/// The longest time of a command, and until a change is seen.
const TIMEOUT: Duration = Duration::from_secs(60);

const SEEN: &str = "another's change is seen after, s";

/// How data travel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    /// The level of the machines' devices, by rxgk.
    Crypt,
    /// Anonymous calls, without the devices' keys.
    Clear,
}

pub(crate) fn run(lab: &Lab, record: &mut Record) -> Result<(), Error> {
    let (size, pause) = (Size::of(lab), pause(lab));
    record.headline = STALLED.into();
    record.placement = "Three clients, each a process with a cache of its own in a namespace of its own, behind one router (netfilter's masquerade), which is A of an \
        emulated link of 12.5 ms RTT, 1 Gbit/s, 50 ms queue, no loss. The server is in B, behind a router that forwards ports 7000, 7002 and 7003. Nothing is pinned, \
        niceness 0, all on the cores of this machine."
        .into();
    record.method = format!(
        "`afar up`, three times `afar invite` and `afar join`. {} The second client reads the image once. 'crypt': as the devices, by rxgk. 'clear': the same \
         machines without their devices' keys, anonymously (rxnull). Mappings of both routers end after {MAPPING_S} s without a packet. When {CHANGES_AFTER} thirds of the film \
         are over, the clients' router forgets all mappings and gives out other ports. After the film, alice's machine reads a byte of the image, and then nothing happens for {} s; then somebody beside the server writes a \
         file that alice's machine has in its cache, and the time is from the beginning of that until alice's machine shows its new length.",
        size.text(),
        pause.as_secs(),
    );
    let cells: Vec<Cell<'_>> = [(Level::Crypt, "crypt"), (Level::Clear, "clear")]
        .into_iter()
        .map(|(level, name)| Cell::new([("level", name.to_string())], move |lab| day(lab, level, size)))
        .collect();
    interleave(lab, record, &cells, lab.repeats(3))?;
    let found = record.clone();
    let of = |level: &str, figure: &str| found.median(figure, &[level]);
    let note = |figure: &str| {
        let [crypt, clear] = ["crypt", "clear"].map(|level| of(level, figure).map_or("-".into(), short));
        format!("crypt {crypt}, clear {clear}")
    };
    let share = |figure: &str| Some(of("crypt", figure)? / of("clear", figure)? * 100.0);
    record.at_most(
        "A film through NAT, encrypted, beside an image and an annex",
        of("crypt", STALLED),
        0.0,
        "s without a picture",
        &note(STALLED),
    );
    for (what, figure) in [("The image", IMAGE_RATE), ("The annex", GOT)] {
        let claim = format!("{what}, encrypted, beside the same in the clear");
        record.at_least(&claim, share(figure), 95.0, "%", &note(figure));
    }
    record.at_most(
        "A change by another after a pause, through NAT",
        of("crypt", SEEN),
        2.0,
        "s",
        &note(SEEN),
    );
    Ok(())
}

/// The pause after the film: longer than two mappings last.
fn pause(lab: &Lab) -> Duration {
    Duration::from_secs(lab.choose(2 * u64::from(MAPPING_S) + 5, 2))
}

/// One such day, with a cell of its own.
fn day(lab: &Lab, level: Level, size: Size) -> Result<Run, Error> {
    let (cell, folders) = (OurCell::new()?, folder("joined"));
    let link = LinkSpec::wan(RTT).start()?;
    let home = Home::behind(&link, USERS.len() as u8)?;
    nat::forward_ports(&link)?;
    let (own, public) = (nat::SERVER.to_string(), linkem::ADDRESS_B.to_string());
    let scene = Scene::open_with(lab, &cell, link, None, &["--bind", &own, "--public", &public])?;
    let near = Mount::afar(lab, scene.near(), &cell.client(), None)?;
    prepare(lab, near.path(), size)?;
    let watched = near.file(WATCHED);
    write(lab, &watched, "old")?;

    let mount = |number: usize| {
        let (user, machine) = (USERS[number], &home.machines()[number]);
        let joined = folders.path().join(user);
        join(lab, &cell, scene.near(), user, machine, &joined)?;
        let config = if level == Level::Crypt { joined } else { without_key(&joined)? };
        let mount = Mount::afar(lab, Place::In(machine), &cell.client().configured(config), None)?;
        check_tokens(lab, &mount, level).map(|()| mount)
    };
    let mounts = [mount(0)?, mount(1)?, mount(2)?];
    length(lab, &mounts[0].file(WATCHED), 3)?;
    let spent = || scene.server_cpu_s() + mounts.iter().map(Mount::cpu_s).sum::<f64>();
    let before = spent();
    let mut run = three(lab, &mounts, "read", size, || {
        lab.interrupt.sleep(Duration::from_secs(size.film_s * CHANGES_AFTER / 3))?;
        home.change_ports()
    })?;
    let mut figure = |name: &str, value: f64| run.figures.insert(name.to_string(), value);
    figure("CPU of servers and clients, s", spent() - before);
    // Her machine may have made no call since the router started anew, and would make one within three minutes.
    shell(lab, "head -c 1 \"$1\" > \"$2\"", &[&mounts[0].file(IMAGE), "/dev/null"])?;
    lab.interrupt.sleep(pause(lab))?;
    let began = write(lab, &watched, "newer")?;
    figure(SEEN, length(lab, &mounts[0].file(WATCHED), 5)? - began);
    for mount in mounts.into_iter().chain([near]) {
        mount.stop()?;
    }
    run.commands.insert(0, scene.command().to_string());
    Ok(run)
}

/// Has a machine join the cell as this user.
fn join(
    lab: &Lab,
    cell: &OurCell,
    near: Place<'_>,
    user: &str,
    machine: &Namespace,
    to: &Path,
) -> Result<(), Error> {
    let (keys, public) =
        (cell.state().join("etc/server").display().to_string(), linkem::ADDRESS_B.to_string());
    let afar = || Invocation::new(lab.tools.afar());
    let invite =
        afar().and(["invite", user, "--no-home", "--servers", &public, "--localauth", "--config", &keys]);
    let line = invite.start(near, &lab.interrupt)?.finish(TIMEOUT)?;
    let join = afar().and(["join", "--name", user, "--folder", &to.display().to_string()]);
    let mut joining = join.start(Place::In(machine), &lab.interrupt)?;
    joining.say(line.trim())?;
    joining.finish(TIMEOUT).map(drop)
}

/// The folder of a machine that has joined, but for its key.
fn without_key(joined: &Path) -> Result<PathBuf, Error> {
    let folder = joined.join("anonymous");
    let copied = std::fs::create_dir(&folder).and_then(|()| {
        ["ThisCell", "CellServDB"]
            .iter()
            .try_for_each(|name| std::fs::copy(joined.join(name), folder.join(name)).map(drop))
    });
    copied.map_err(|e| Error::run(format!("a folder without a key: {e}")))?;
    Ok(folder)
}

/// A run at level crypt in which a machine is anonymous would be none.
fn check_tokens(lab: &Lab, mount: &Mount, level: Level) -> Result<(), Error> {
    let said = shell(
        lab,
        "cd \"$1\" && \"$2\" tokens",
        &[&mount.file(""), &lab.tools.afar().display().to_string()],
    )?;
    let has_token = said.contains("rxgk tokens for ") && said.contains("(crypt, ");
    match has_token == (level == Level::Crypt) {
        true => Ok(()),
        false => Err(Error::run(format!("a client has other tokens than it should: {said}"))),
    }
}

/// Writes a text as all of a file; the time when that began, in seconds since 1970.
fn write(lab: &Lab, file: &str, text: &str) -> Result<f64, Error> {
    seconds(&shell(lab, "date +%s.%N && printf %s \"$2\" > \"$1\"", &[file, text])?)
}

/// Waits until a file is so long; the time when it was.
fn length(lab: &Lab, file: &str, bytes: u64) -> Result<f64, Error> {
    const SCRIPT: &str = "until [ \"$(stat -c %s \"$1\")\" = \"$2\" ]; do sleep 0.02; done; date +%s.%N";
    seconds(&shell(lab, SCRIPT, &[file, &bytes.to_string()])?)
}

fn seconds(said: &str) -> Result<f64, Error> {
    said.trim().parse().map_err(|_| Error::run(format!("date said {said}")))
}

/// Runs a script with these arguments; what it says.
fn shell(lab: &Lab, script: &str, arguments: &[&str]) -> Result<String, Error> {
    let command = Invocation::new(Path::new("sh")).and(["-c", script, "sh"]).and(arguments);
    command.start(Place::Here, &lab.interrupt)?.finish(TIMEOUT)
}

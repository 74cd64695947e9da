//! `vos restore`: makes a volume of a dump, or brings one up to date with it, from a file or from the standard input. How it is done is in
//! `afs_admin::restore`.

use super::backup::locate;
use super::progress::Progress;
use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::codes::Code;
use crate::dates;
use crate::printer::{complain, say};
use crate::standard_input;
use afs_admin::entry::{BadName, Entry, Kind, base_name, check_name};
use afs_admin::restore::{self, DateOf, Dump, Event, Left, Order, RestoreFailure, Step};
use afs_admin::volumes::StreamError;
use afs_admin::{Error, remove};
use afs_wire::abort::{VDISKFULL, VL_NOENT};
use afs_wire::ids::{AfsTime, PartitionId, VolumeId};
use bytes::Bytes;
use serde_json::json;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::net::Ipv4Addr;

/// The bytes that are read at once.
const PIECE_BYTES: usize = 64 << 10;

/// The fate of a volume that exists already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Overwrite {
    Abort,
    Full,
    Incremental,
}

/// The volume that is to be restored, as far as its entry says something of it.
struct Volume {
    id: Option<VolumeId>,
    parent: Option<VolumeId>,
    is_full: bool,
    /// The fate that the user asked for, or answered.
    overwrite: Option<Overwrite>,
}

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let id = given.word("id").map(|text| given_id(vos, text)).transpose()?;
    let overwrite = choice(vos, given, "overwrite", |word| match word {
        "a" | "abort" => Some(Overwrite::Abort),
        "f" | "full" => Some(Overwrite::Full),
        "i" | "inc" | "increment" | "incremental" => Some(Overwrite::Incremental),
        _ => None,
    })?;
    let creation = choice(vos, given, "creation", date_of)?;
    let last_update = choice(vos, given, "lastupdate", date_of)?;
    let (machine, partition_name) =
        (given.word("server").unwrap_or_default(), given.word("partition").unwrap_or_default());
    let server = vos.server(machine, "server", Stop::EXITED)?;
    let partition = vos.partition(partition_name, Stop::EXITED)?;
    vos.check_partition(server, partition, partition_name, Stop::EXITED)?;
    let name = given.word("name").unwrap_or_default();
    check(vos, name)?;
    let path = given.word("file");
    let mut file = path.map(|path| open(vos, path)).transpose()?;
    let kind = if given.has("readonly") { Kind::ReadOnly } else { Kind::ReadWrite };
    let place = (server, partition);
    let volume = volume(vos, name, kind, id, place, overwrite, file.is_some())?;
    let order = Order {
        server,
        partition,
        name: base_name(name),
        kind,
        id: volume.id,
        parent: volume.parent,
        is_full: volume.is_full,
        stays_offline: given.has("offline"),
        creation: creation.unwrap_or(match volume.overwrite {
            Some(Overwrite::Full) => DateOf::Now,
            _ => DateOf::Previous,
        }),
        last_update: last_update.unwrap_or(DateOf::Dump),
        now: AfsTime(dates::now()),
        keeps_previous: given.has("nodelete"),
        may_lose_level: given.has("force"),
    };
    let from = path.unwrap_or("the standard input");
    let (id, bytes) = match &mut file {
        Some(file) => {
            check_end(file).map_err(|error| not_read(vos, from, &error))?;
            let length = file.metadata().ok().map(|metadata| metadata.len());
            check_room(vos, &order, from, length.unwrap_or(0))?;
            let progress = vos.progress(length);
            // A file can be read twice, and what came of it before need not be sent again.
            let again = path.filter(|_| file.metadata().is_ok_and(|metadata| metadata.is_file()));
            let again = again.map(|path| open(vos, path)).transpose()?;
            let source = |mut file: File, progress| {
                move || read(&mut file).inspect(|piece| count(progress, piece.len()))
            };
            let file = file.try_clone().map_err(|error| not_read(vos, from, &error))?;
            restore(vos, &order, from, source(file, Some(&progress)), again.map(|file| source(file, None)))
        }
        None => {
            standard_input::get().map_err(|error| not_read(vos, from, &error))?;
            let mut input = io::stdin().lock();
            let progress = vos.progress(None);
            let source = || read(&mut input).inspect(|piece| progress.add(piece.len()));
            restore(vos, &order, from, source, None)
        }
    }?;
    if vos.json {
        vos.printer.say_json(&json!({
            "name": name,
            "id": id.0,
            "server": server.to_string(),
            "partition": partition.to_string(),
            "bytes": bytes,
        }));
    } else {
        say!(vos.printer, "Restored volume {name} on {machine} {partition}\n");
    }
    Ok(())
}

fn given_id(vos: &Vos, text: &str) -> Result<VolumeId, Stop> {
    match vos.volume_id(text) {
        Ok(Some(id)) => return Ok(VolumeId(id)),
        Ok(None) => complain!(vos.printer, "vos: can't find volume '{text}'\n"),
        Err(code) => vos.print_error(code),
    }
    Err(Stop::EXITED)
}

fn date_of(word: &str) -> Option<DateOf> {
    match word {
        "d" | "dump" => Some(DateOf::Dump),
        "k" | "keep" => Some(DateOf::Previous),
        "n" | "new" => Some(DateOf::Now),
        _ => None,
    }
}

fn choice<T>(
    vos: &Vos,
    given: &Given,
    option: &str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, Stop> {
    let Some(word) = given.word(option) else { return Ok(None) };
    match parse(word) {
        Some(choice) => Ok(Some(choice)),
        None => {
            complain!(vos.printer, "vos: {word} is not a valid argument to -{option}\n");
            Err(Stop::EXITED)
        }
    }
}

fn check(vos: &Vos, name: &str) -> Done {
    match check_name(name) {
        Ok(()) => return Ok(()),
        Err(BadName::TooLong) => {
            complain!(vos.printer, "vos: the name of the volume {name} exceeds the size limit\n");
        }
        Err(BadName::Suffix) => {
            complain!(vos.printer, "Illegal volume name {name}, should not end in .readonly or .backup\n");
        }
        // OpenAFS's takes the number for an id, and then gives that volume the number as its name.
        Err(BadName::Number) => {
            complain!(vos.printer, "Illegal volume name {name}, should not be a number\n");
        }
    }
    Err(Stop::EXITED)
}

fn open(vos: &Vos, path: &str) -> Result<File, Stop> {
    File::open(path).map_err(|_| {
        complain!(vos.printer, "Can't access file {path}\n");
        Stop::EXITED
    })
}

/// Finds the volume in the database, and what is to become of one that is there: an answer to a question, if no option says it.
fn volume(
    vos: &Vos,
    name: &str,
    kind: Kind,
    id: Option<VolumeId>,
    place: (Ipv4Addr, PartitionId),
    overwrite: Option<Overwrite>,
    is_file: bool,
) -> Result<Volume, Stop> {
    let would_not_replace = matches!(overwrite, Some(Overwrite::Abort | Overwrite::Incremental));
    let entry = match vos.entry_by_name(name) {
        Ok(entry) => entry,
        Err(code) if code.0 == VL_NOENT.0 => {
            if would_not_replace {
                complain!(vos.printer, "Volume does not exist; Will perform a full restore\n");
            }
            return Ok(Volume { id, parent: None, is_full: true, overwrite });
        }
        Err(code) => {
            complain!(vos.printer, "Could not fetch the VLDB entry for the volume {name}\n");
            vos.print_error(code);
            vos.print_diagnostics("restore", code);
            return Err(Stop::EXITED);
        }
    };
    let known = Some(entry.id(kind)).filter(|id| id.0 != 0);
    let (id, parent) = (known.or(id), Some(entry.id(Kind::ReadWrite)));
    let label = if kind == Kind::ReadOnly { "RO" } else { "RW" };
    if !entry.sites.iter().any(|site| site.is(kind)) {
        if would_not_replace {
            complain!(vos.printer, "{label} Volume does not exist; Will perform a full restore\n");
        }
        return Ok(Volume { id, parent, is_full: true, overwrite });
    }
    let number = id.map_or(0, |id| id.0);
    let is_elsewhere = is_elsewhere(vos, number, place)?;
    let overwrite = match overwrite {
        Some(overwrite) => overwrite,
        None if is_file => ask(vos, name, &entry, kind, is_elsewhere),
        None => {
            complain!(
                vos.printer,
                "Volume exists and no -overwrite option specified; Aborting restore command\n"
            );
            return Err(Stop::EXITED);
        }
    };
    match overwrite {
        Overwrite::Abort => {
            complain!(vos.printer, "Volume exists; Aborting restore command\n");
            return Err(Stop::EXITED);
        }
        Overwrite::Full => {
            complain!(vos.printer, "Volume exists; Will delete and perform full restore\n");
        }
        Overwrite::Incremental if is_elsewhere => {
            complain!(
                vos.printer,
                "{label} volume {number} already exists on a different server/part; not allowed\n"
            );
            return Err(Stop::EXITED);
        }
        Overwrite::Incremental => {}
    }
    Ok(Volume { id, parent, is_full: overwrite == Overwrite::Full, overwrite: Some(overwrite) })
}

/// Tells whether the entry says that the volume is at another place.
fn is_elsewhere(vos: &Vos, id: u32, (server, partition): (Ipv4Addr, PartitionId)) -> Result<bool, Stop> {
    let found = locate(vos, id, Stop::EXITED)?;
    let is_same_server = vos.is_same_server(found.server, server).map_err(|code| {
        let number = i32::from_ne_bytes(found.server.octets());
        complain!(
            vos.printer,
            "Failed to get info about server's {number} address(es) from vlserver (err={}); aborting call!\n",
            code.0
        );
        Stop::EXITED
    })?;
    Ok(!is_same_server || found.partition != partition)
}

fn ask(vos: &Vos, name: &str, entry: &Entry, kind: Kind, is_elsewhere: bool) -> Overwrite {
    let id = entry.id(kind);
    if is_elsewhere {
        complain!(vos.printer, "The volume {name} {id} already exists on a different server/part\n");
        vos.printer.complain("Do you want to do a full restore or abort? [fa](a): ");
    } else {
        complain!(vos.printer, "The volume {name} {id} already exists in the VLDB\n");
        vos.printer.complain("Do you want to do a full/incremental restore or abort? [fia](a): ");
    }
    let mut answer = String::new();
    match io::stdin().read_line(&mut answer).ok().and(answer.chars().next()) {
        Some('f' | 'F') => Overwrite::Full,
        Some('i' | 'I') => Overwrite::Incremental,
        _ => Overwrite::Abort,
    }
}

// ---- the dump

fn read(from: &mut impl Read) -> io::Result<Bytes> {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match from.read(&mut piece) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(length) => {
                piece.truncate(length);
                return Ok(piece.into());
            }
        }
    }
}

fn count(progress: Option<&Progress>, bytes: usize) {
    if let Some(progress) = progress {
        progress.add(bytes);
    }
}

/// Looks at the end of a file before anything is changed. One that ends too early is read, to tell where and in what.
fn check_end(file: &mut File) -> io::Result<()> {
    if !file.metadata()?.is_file() {
        return Ok(());
    }
    let mut last = [0; 4];
    let length = file.seek(SeekFrom::End(0))?;
    if length >= 4 {
        file.seek(SeekFrom::End(-4))?;
        file.read_exact(&mut last)?;
    }
    file.rewind()?;
    if !restore::ends_a_dump(last) {
        Dump::begin(|| read(file))?.check_rest()?;
        file.rewind()?;
    }
    Ok(())
}

/// Says why there is no dump to be restored.
fn not_read(vos: &Vos, from: &str, error: &io::Error) -> Stop {
    complain!(vos.printer, "vos: {from}: {error}; {}\n", Left::Nothing);
    vos.print_diagnostics("restore", code_of(error));
    Stop::EXITED
}

/// The code that OpenAFS's servers have for a dump that is none.
fn code_of(error: &io::Error) -> Code {
    match error.kind() {
        ErrorKind::InvalidData => Code::VOLSERREAD_DUMPERROR,
        _ => Code(error.raw_os_error().unwrap_or(Code::EIO.0)),
    }
}

// ---- restoring it

/// Makes sure that a new volume fits, before anything is sent. A volume that is there may need less than the whole dump, and so does one of
/// which a part came before.
fn check_room(vos: &Vos, order: &Order<'_>, from: &str, bytes: u64) -> Done {
    let Order { server, partition, name, .. } = *order;
    let is_there = order.id.is_some_and(|id| !matches!(vos.has_volume(server, partition, id.0), Ok(false)));
    let has_part = || {
        let halves = vos.caller.run(vos.volumes.halves(server, partition)).unwrap_or_default();
        halves.iter().any(|half| half.name.to_string() == name)
    };
    let Ok(info) = vos.caller.run(vos.volumes.partition_info(server, partition)) else { return Ok(()) };
    let free = u64::try_from(info.free).unwrap_or(0);
    if is_there || bytes / 1024 <= free || has_part() {
        return Ok(());
    }
    complain!(
        vos.printer,
        "vos: no space on partition {partition} of {} to restore volume {name}: {from} has {} KiB, and {free} KiB are free\n",
        vos.host(server),
        bytes / 1024
    );
    Err(Stop::EXITED)
}

/// Restores the volume. Says its id, and how long the dump was.
fn restore<S: FnMut() -> io::Result<Bytes>>(
    vos: &Vos,
    order: &Order<'_>,
    from: &str,
    source: S,
    again: Option<S>,
) -> Result<(VolumeId, u64), Stop> {
    let dump = Dump::begin(source).map_err(|error| not_read(vos, from, &error))?;
    let mut dump = match again {
        Some(again) => dump.with_copy(again),
        None => dump,
    };
    let cancel = vos.cancel();
    let tell = |event: Event<'_>| tell(vos, order, event);
    let restored = vos.caller.run(restore::restore(&vos.vldb, &vos.volumes, order, &mut dump, cancel, tell));
    restored.map(|id| (id, dump.length())).map_err(|failure| {
        let code = match &failure.error {
            StreamError::Server(error) => Code(error.code().0),
            StreamError::Local(error) => code_of(error),
        };
        complain_of(vos, order, from, &failure, code);
        vos.print_error(code);
        vos.print_diagnostics("restore", code);
        Stop::EXITED
    })
}

fn tell(vos: &Vos, order: &Order<'_>, event: Event<'_>) {
    match event {
        Event::Begins { name, id } => {
            let (host, partition) = (vos.host(order.server), order.partition);
            say!(vos.printer, "Restoring volume {name} Id {id} on server {host} partition {partition} ..");
            vos.printer.flush();
        }
        Event::Replaces(id) => vos.tell(&format!("Deleting the previous volume {id} ...")),
        Event::HasPrevious(_) | Event::PreviousIsRemoved => vos.tell(" done\n"),
        Event::IsReady(_) => {
            vos.printer.say(" done\n");
            vos.printer.flush();
        }
        Event::MakesEntry => vos.tell("------- Creating a new VLDB entry ------- \n"),
        Event::ChangesEntry(entry) => {
            vos.tell("Updating the existing VLDB entry\n------- Old entry -------\n");
            show(vos, entry);
            vos.tell("------- New entry -------\n");
        }
        Event::KeepsPrevious(id, server) => {
            let host = vos.host(server);
            vos.tell(&format!("Not deleting the previous volume {id} on server {host}, ..."));
        }
        Event::RemovesPrevious(id, server, partition) => {
            let host = vos.host(server);
            vos.tell(&format!(
                "Deleting the previous volume {id} on server {host}, partition {partition} ...Deleting the volume {id} ..."
            ));
        }
        Event::HasEntry(entry) => show(vos, entry),
    }
}

fn show(vos: &Vos, entry: &Entry) {
    if vos.verbose {
        vos.show_entry(entry);
    }
}

/// Says what failed, in the words of OpenAFS's, and what is left if that is not nothing.
fn complain_of(vos: &Vos, order: &Order<'_>, from: &str, failure: &RestoreFailure, code: Code) {
    let name = order.name;
    match &failure.error {
        StreamError::Local(error) => {
            complain!(vos.printer, "\nvos: {from}: {error}; {}\n", failure.left);
            return complain_of_ends(vos, failure);
        }
        StreamError::Server(Error::Cancelled) => {
            complain!(vos.printer, "\nvos: {failure}\n");
            return complain_of_ends(vos, failure);
        }
        StreamError::Server(_) => {}
    }
    let plain = |text: String| vos.printer.complain(&text);
    match failure.step {
        Step::FetchByName => plain(format!("Could not fetch the VLDB entry for the volume {name}\n")),
        Step::TakeId => plain(format!("Could not get an Id for the volume {name}\n")),
        Step::HasReadWrite => plain(format!("Entry for ReadWrite volume {name} already exists!\n")),
        Step::NoReadOnlyId => plain(format!("Existing entry for volume {name} has no ReadOnly ID\n")),
        Step::Begin(id) => vos.print_failure(code, &format!("Failed to start transaction on {id}\n")),
        Step::GetOldStatus(id) => {
            vos.print_failure(code, &format!("Could not get timestamp from volume {id}\n"));
        }
        Step::Compare(_) => plain(format!("\nvos: {failure}\n")),
        Step::Make(id) => vos.print_failure(code, &format!("Could not create new volume {id}\n")),
        Step::Send(_) if code == Code(VDISKFULL.0) => {
            let (partition, host) = (order.partition, vos.host(order.server));
            complain!(
                vos.printer,
                "vos: partition {partition} of {host} is full: choose another one, or make room there\n"
            );
        }
        Step::Send(_) => plain("rx_EndCall Failed \n".to_owned()),
        Step::GetStatus(id) => {
            plain(format!("Could not get status information about the volume {id}\n"));
        }
        Step::SetIdentity(id) => plain(format!("Could not set the right type and IDs on {id}\n")),
        Step::SetCreationDate(id) => plain(format!("Could not set the 'creation' date on {id}\n")),
        Step::SetUpdateDate(id) => plain(format!("Could not set the 'last updated' date on {id}\n")),
        Step::SetState(id) => plain(format!("Could not mark {id} online\n")),
        Step::FetchEntry(id) => {
            plain(format!("Could not fetch the entry for volume number {id} from VLDB \n"));
        }
        Step::MakeEntry(id) => {
            plain(format!("Could not create the VLDB entry for volume number {id}  \n"));
        }
        Step::LockEntry(id) => plain(format!("Could not lock the entry for volume number {id} \n")),
        Step::CompareSites(_) => {
            let number = i32::from_ne_bytes(order.server.octets());
            let what = format!(
                "Failed to get info about server's {number} address(es) from vlserver (err={})\n",
                code.0
            );
            vos.print_failure(code, &what);
        }
        Step::ReplaceEntry(id) => {
            plain(format!("Could not update the entry for volume number {id}  \n"));
        }
        Step::End(id) => plain(format!("Could not end transaction on {id}\n")),
        Step::RemovePrevious(id) => match failure.not_removed.as_ref().map(|failure| failure.step) {
            Some(remove::Step::SetFlags) => {
                vos.print_failure(code, &format!("Could not set flags on volume {id} \n"));
            }
            Some(remove::Step::Delete) => {
                vos.print_failure(code, &format!("Could not delete volume {id}\n"));
            }
            Some(remove::Step::End) => {
                plain(format!("Could not end transaction on the volume {id} \n"));
            }
            Some(remove::Step::Begin) | None => {
                vos.print_failure(code, &format!("Failed to start transaction on {id}\n"));
            }
        },
    }
    if failure.left != Left::Nothing && !matches!(failure.step, Step::Compare(_)) {
        complain!(vos.printer, "vos: {}\n", failure.left);
    }
    complain_of_ends(vos, failure);
}

fn complain_of_ends(vos: &Vos, failure: &RestoreFailure) {
    if failure.not_unlocked.is_some() {
        complain!(vos.printer, "vos: the lock of the VLDB entry was not released: do it with vos unlock\n");
    }
    if failure.not_ended.is_some() {
        complain!(
            vos.printer,
            "vos: the transaction was not ended: the volume is busy until the server ends it after some minutes\n"
        );
    }
}

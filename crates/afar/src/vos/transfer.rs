//! The messages of `vos move`, `copy` and `shadow` about their steps, and the places that their options name.

use super::progress::Progress;
use super::{Stop, Vos};
use crate::classic::Given;
use crate::codes::Code;
use crate::printer::{complain, say};
use afs_admin::Error;
use afs_admin::steps::Event;
use afs_admin::transfer::{Place, Step, TransferFailure};
use afs_admin::volumes::SnapshotLimit;
use afs_wire::abort::VOLSERBADOP;
use afs_wire::ids::VolumeId;
use std::net::Ipv4Addr;

/// The place of a volume and the place where it is to be, with the servers' names as they were given.
pub(super) struct Way<'a> {
    pub(super) from_name: &'a str,
    pub(super) from: Place,
    pub(super) to_name: &'a str,
    pub(super) to: Place,
}

/// Finds the servers and partitions of the options.
pub(super) fn way<'a>(vos: &Vos, given: &'a Given, stop: Stop) -> Result<Way<'a>, Stop> {
    let word = |option| given.word(option).unwrap_or_default();
    let (from_name, to_name) = (word("fromserver"), word("toserver"));
    let from_server = vos.server(from_name, "server", stop)?;
    let to_server = vos.server(to_name, "server", stop)?;
    let place = |server, option| {
        let partition = vos.partition(word(option), stop)?;
        vos.check_partition(server, partition, word(option), stop)?;
        Ok(Place { server, partition })
    };
    let from = place(from_server, "frompartition")?;
    let to = place(to_server, "topartition")?;
    Ok(Way { from_name, from, to_name, to })
}

/// The bar of what servers send to each other, from the beginning of the step to its end.
pub(super) struct Sending<'a> {
    vos: &'a Vos,
    server: Ipv4Addr,
    /// Bytes of the volume.
    bytes: u64,
    progress: Option<Progress>,
}

impl<'a> Sending<'a> {
    pub(super) fn new(vos: &'a Vos, way: &Way<'_>, bytes: u64) -> Self {
        Self { vos, server: way.from.server, bytes, progress: None }
    }

    pub(super) fn handle(&mut self, event: Event<Step>) {
        let (volume, bytes) = match event {
            Event::Begins(Step::Send { clone, .. }) => (clone, Some(self.bytes)),
            Event::Begins(Step::SendAll(id)) => (id, Some(self.bytes)),
            // Of what has changed nobody knows how much it is.
            Event::Begins(Step::SendChanges(id) | Step::SendSnapshot(id)) => (id, None),
            Event::Begins(_) | Event::IsDone(_) => {
                self.progress = None;
                return;
            }
        };
        self.progress = Some(self.vos.progress_of_sending(self.server, volume.0, bytes));
    }
}

/// KiB that the snapshots of a volume take along with it, beside what the volume has.
pub(super) fn carried_kib(vos: &Vos, way: &Way<'_>, id: u32) -> i64 {
    let limit =
        |place: Place| vos.wait(vos.volumes.snapshot_limit(place.server, place.partition, VolumeId(id)));
    // Another make's server takes none. One of ours says that it has no such volume yet.
    match (limit(way.from), limit(way.to)) {
        (Ok(Some(SnapshotLimit { held_kib: Some(held), .. })), Ok(Some(_)) | Err(_)) => {
            i64::try_from(held).unwrap_or(i64::MAX)
        }
        _ => 0,
    }
}

/// Makes sure that the volume is there, and fits where it is to be with so many KiB more. Says how many bytes it has.
pub(super) fn check_space(
    vos: &Vos,
    way: &Way<'_>,
    id: u32,
    verb: &str,
    carried_kib: i64,
    stop: Stop,
) -> Result<u64, Stop> {
    let Place { server, partition } = way.to;
    let info = vos.partition_info(server, partition).map_err(|_| {
        complain!(vos.printer, "vos: cannot access partition {partition}\n");
        stop
    })?;
    let volume = vos.volume(way.from.server, way.from.partition, id).map_err(|_| {
        complain!(vos.printer, "vos:cannot access volume {id}\n");
        stop
    })?;
    let is_same_partition = way.from == way.to;
    if !is_same_partition && i64::from(volume.size).saturating_add(carried_kib) > info.free {
        let along = match carried_kib {
            0 => String::new(),
            held => format!(" with its snapshots, which hold {held} K"),
        };
        complain!(
            vos.printer,
            "vos: no space on target partition {partition} to {verb} volume {id}{along}\n"
        );
        return Err(stop);
    }
    Ok(u64::try_from(volume.size).unwrap_or(0) * 1024)
}

/// Says what begins and what is done, if `-verbose` is given.
pub(super) fn tell(vos: &Vos, event: Event<Step>) {
    match event {
        Event::Begins(step) => {
            if let Some(text) = doing(step) {
                vos.tell(&text);
            }
        }
        Event::IsDone(Step::SendChanges(_) | Step::SendAll(_)) => vos.tell("  done\n"),
        Event::IsDone(step) => {
            if doing(step).is_some() {
                vos.tell(" done\n");
            }
        }
    }
}

/// The same of a copy, where a volume that is in the way is called otherwise.
pub(super) fn tell_of_copy(vos: &Vos, event: Event<Step>) {
    match event {
        Event::Begins(Step::RemoveExisting(id)) => {
            vos.tell(&format!("Deleting pre-existing volume {id} on destination ..."));
        }
        Event::IsDone(Step::RemoveExisting(id)) => vos.tell(&format!(
            " done\nEnding transaction on pre-existing volume {id} on destination ... done\n"
        )),
        event => tell(vos, event),
    }
}

fn doing(step: Step) -> Option<String> {
    Some(match step {
        Step::BeginSource(id) | Step::BeginSourceAgain(id) => {
            format!("Starting transaction on source volume {id} ...")
        }
        Step::TakeCloneId(id) => format!("Allocating new volume id for clone of volume {id} ..."),
        Step::TakeCopyId(id) => format!("Allocating new volume id for copy of volume {id} ..."),
        Step::Clone(id) => format!("Cloning source volume {id} ..."),
        Step::EndSource(id) => format!("Ending the transaction on the source volume {id} ..."),
        Step::BeginClone(id) => format!("Starting transaction on the cloned volume {id} ..."),
        Step::SetCloneState(id) => format!("Setting flags on cloned volume {id} ..."),
        Step::GetCloneStatus(id) => format!("Getting status of cloned volume {id} ..."),
        Step::GetTargetStatus(id) => format!("Getting status of pre-existing volume {id} ..."),
        Step::RemoveExisting(id) => format!("Deleting pre-existing destination volume {id} ..."),
        Step::Make(id) => format!("Creating the destination volume {id} ..."),
        Step::SetTargetState(id) => format!("Setting volume flags on destination volume {id} ..."),
        Step::Send { clone, to } => {
            format!("Dumping from clone {clone} on source to volume {to} on destination ...")
        }
        Step::SendSnapshot(id) => format!("Sending snapshot {id} to destination ..."),
        Step::KeepSnapshot(id) => format!("Keeping snapshot {id} on destination ..."),
        Step::EndClone(id) => format!("Ending transaction on cloned volume {id} ..."),
        Step::SendChanges(id) => {
            format!("Doing the incremental dump from source to destination for volume {id} ...")
        }
        Step::SendAll(id) => format!("Doing the dump from source to destination for volume {id} ..."),
        Step::TakeOffline(id) => format!("Setting volume flags on old source volume {id} ..."),
        Step::SetState(id) => format!("Setting volume flags on destination volume {id} ..."),
        Step::EndTarget(id) => format!("Ending transaction on destination volume {id} ..."),
        Step::ReplaceEntry(id) => format!("Releasing lock on VLDB entry for volume {id} ..."),
        Step::SetForwarding(id) => format!("Setting forwarding pointer for volume {id} ..."),
        Step::RemoveSource(id) => format!("Deleting old volume {id} on source ..."),
        Step::EndOldSource(id) => format!("Ending transaction on old volume {id} on the source ..."),
        Step::EndSourceAgain(id) => format!("Ending transaction on source volume {id} ..."),
        Step::RemoveBackup(id) => format!("Deleting source backup volume {id} ..."),
        Step::RemoveClone(id) => format!("Deleting cloned volume {id} ..."),
        Step::RemoveLeftover(id) => format!("Deleting leftover volume {id} ..."),
        Step::RemoveLeftoverBackup(id) => format!("Deleting leftover backup volume {id} ..."),
        Step::FetchEntry(_)
        | Step::Lock(_)
        | Step::Compare(_)
        | Step::Look(_)
        | Step::GetName(_)
        | Step::BeginTarget(_)
        | Step::MakeEntry(_)
        | Step::Unlock(_) => return None,
    })
}

/// Says what failed, in the words of OpenAFS's, and what is left.
pub(super) fn complain_of(vos: &Vos, verb: &str, failure: &TransferFailure) {
    let code = Code(failure.error.code().0);
    match (failure.step, &failure.error) {
        (_, Error::Cancelled) => complain!(vos.printer, "\nvos: {}\n", failure.error),
        (Step::Compare(_), error) | (Step::RemoveLeftover(_), error @ Error::Local { .. }) => {
            complain!(vos.printer, "vos: {error}\n")
        }
        // What the server is to be sent it would not keep.
        (step, error @ Error::Local { code: VOLSERBADOP, .. }) => {
            complain!(vos.printer, "{}\nvos: {error}\n", not_done(step));
        }
        (step, _) => vos.print_failure(code, &format!("{}\n", not_done(step))),
    }
    if !matches!(failure.step, Step::FetchEntry(_) | Step::Lock(_) | Step::Compare(_) | Step::Unlock(_)) {
        say!(
            vos.printer,
            "vos {verb}: operation interrupted, cleanup in progress...\nclear transaction contexts\n\
             cleanup complete - user verify desired result\n"
        );
    }
    for left in &failure.left {
        complain!(vos.printer, "vos: {left}\n");
    }
    if failure.not_unlocked.is_some() {
        complain!(vos.printer, "vos: the lock of the VLDB entry was not released: do it with vos unlock\n");
    }
}

fn not_done(step: Step) -> String {
    match step {
        Step::FetchEntry(id) => format!("Could not fetch the entry for the volume  {id} from the VLDB "),
        Step::Lock(id) => format!("Could not lock entry for volume {id} "),
        Step::Compare(id) => format!("The volume {id} is not on the specified site. "),
        Step::Look(id) => format!("Could not fetch the information about volume {id} from the server"),
        Step::BeginSource(id) => format!("Failed to create transaction on the volume {id}"),
        Step::TakeCloneId(id) => format!("Could not get an ID for the clone of volume {id} from the VLDB"),
        Step::TakeCopyId(id) => format!("Could not get an ID for the copy of volume {id} from the VLDB"),
        Step::Clone(id) => format!("Failed to clone the source volume {id}"),
        Step::GetName(id) => format!("Failed to get the name of the volume {id}"),
        Step::EndSource(id) | Step::EndSourceAgain(id) => {
            format!("Failed to end the transaction on the source volume {id}")
        }
        Step::BeginClone(id) => format!("Failed to start a transaction on the cloned volume{id}"),
        Step::SetCloneState(id) => format!("Could not set flags on the cloned volume {id}"),
        Step::GetCloneStatus(id) => format!("Failed to get the status of the cloned volume {id}"),
        Step::BeginTarget(id) => format!("Failed to start transaction on {id}"),
        Step::GetTargetStatus(id) => format!("Failed to get the status of the pre-existing volume {id}"),
        Step::RemoveExisting(id) => {
            format!("Could not delete the pre-existing volume {id} on destination")
        }
        Step::Make(id) => format!("Failed to create the destination volume {id}"),
        Step::SetTargetState(id) => format!("Failed to set the flags on the destination volume {id}"),
        Step::Send { to, .. } => format!("Failed to move data for the volume {to}"),
        Step::SendSnapshot(id) => format!("Failed to move data for snapshot {id}"),
        Step::KeepSnapshot(id) => format!("Failed to keep snapshot {id} on the destination"),
        Step::EndClone(id) => format!("Failed to end the transaction on the cloned volume {id}"),
        Step::BeginSourceAgain(id) => format!("Failed to create a transaction on the source volume {id}"),
        Step::SendChanges(_) => {
            "Failed to do the incremental dump from rw volume on old site to rw volume on newsite".to_owned()
        }
        Step::SendAll(_) => {
            "Failed to do the dump from rw volume on old site to rw volume on newsite".to_owned()
        }
        Step::TakeOffline(_) => "Failed to set the flags to make old source volume offline".to_owned(),
        Step::SetState(_) => "Failed to set the flags to make destination volume online".to_owned(),
        Step::EndTarget(id) => format!("Failed to end the transaction on the destination volume {id}"),
        Step::ReplaceEntry(id) | Step::Unlock(id) => {
            format!(" Could not release the lock on the VLDB entry for the volume {id} ")
        }
        Step::SetForwarding(id) => format!("Failed to set the forwarding pointer for the volume {id}"),
        Step::RemoveSource(id) => format!("Failed to delete the old volume {id} on source"),
        Step::EndOldSource(id) => {
            format!("Failed to end the transaction on the old volume {id} on the source")
        }
        Step::RemoveBackup(id)
        | Step::RemoveClone(id)
        | Step::RemoveLeftover(id)
        | Step::RemoveLeftoverBackup(id) => format!("Could not delete volume {id}"),
        Step::MakeEntry(id) => format!("Could not create the VLDB entry for the volume {id}"),
    }
}

//! `vos undelete`: brings a removed volume back, with its name, its id and its entry in the volume location database. Servers of ours keep what a
//! removed volume was for some days.

use super::show_volume::name_of;
use super::snapshot::Placed;
use super::sync::How;
use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::codes::Code;
use crate::dates::{parse_utc, utc_of};
use crate::printer::{complain, say};
use afs_admin::entry::{Kind, NAME_MAX, check_name};
use afs_wire::afsvol::{SnapshotInfo, SnapshotType};
use afs_wire::ids::{AfsTime, PartitionId, VolumeId};
use serde_json::json;
use std::net::Ipv4Addr;

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let (server, left) = find(vos, given)?;
    let (id, name) = identity(vos, &left, given.word("toname"))?;
    vos.may_begin().map_err(|_| Stop::RETURNED)?;
    vos.caller.run(vos.volumes.undelete(server, &left, VolumeId(id), &name)).map_err(|error| {
        complain!(vos.printer, "vos: volume {} was not brought back: {error}\n", left.parent);
        Stop::RETURNED
    })?;
    let (host, partition) = (vos.host(server), left.partition);
    let entered = vos.volume(server, partition, id).and_then(|volume| {
        let how = How { updates: true, tells: false };
        vos.check_volume(&volume, server, partition, how, &mut 0, None)
    });
    if let Err(code) = entered {
        vos.print_error(code);
        complain!(
            vos.printer,
            "vos: volume {id} is back on server {host} partition {partition}, but has no entry in the VLDB: \
             'vos syncvldb {host} {partition} -volume {id}' makes one\n"
        );
        return Err(Stop::RETURNED);
    }
    say!(vos.printer, "Volume {id} ({name}) is back on server {host} partition {partition}\n");
    if vos.json {
        vos.printer.say_json(&json!({
            "undeleted": left.parent.0,
            "id": id,
            "name": name,
            "server": server.to_string(),
            "partition": partition.to_string(),
        }));
    }
    Ok(())
}

/// Finds the removed volume at the server that is given, or at all.
fn find(vos: &Vos, given: &Given) -> Result<Placed, Stop> {
    let text = given.word("id").unwrap_or_default();
    let id = text.parse().ok().map(VolumeId);
    let time = match given.word("time") {
        None => None,
        Some(text) => Some(AfsTime(parse_utc(text).ok_or_else(|| {
            complain!(vos.printer, "vos: '{text}' is no time of a removal, such as 2026-11-28T030000Z\n");
            Stop::RETURNED
        })?)),
    };
    // A name is not asked for: each server lists all.
    let asked = id.unwrap_or(VolumeId(0));
    let mut found = match given.word("server") {
        Some(name) => {
            let server = vos.server(name, "server", Stop::RETURNED)?;
            let found = vos.caller.run(vos.volumes.snapshots(server, asked));
            found.map(|all| all.into_iter().map(|left| (server, left)).collect())
        }
        None => vos.caller.run(vos.volumes.snapshots_elsewhere(&vos.vldb, Ipv4Addr::UNSPECIFIED, asked)),
    }
    .map_err(|error| {
        complain!(vos.printer, "vos: {error}\n");
        Stop::RETURNED
    })?;
    found.retain(|(_, left): &Placed| {
        left.kind == SnapshotType::REMOVED
            && id.map_or_else(|| name_of(&left.name) == text, |id| left.parent == id)
            && time.is_none_or(|time| left.made == time)
    });
    match &found[..] {
        [one] => Ok(one.clone()),
        [] => {
            complain!(
                vos.printer,
                "vos: no server that answers keeps a removed volume {text}: 'vos listvol SERVER -snapshots' shows what a server keeps\n"
            );
            Err(Stop::RETURNED)
        }
        several => {
            complain!(
                vos.printer,
                "vos: several removed volumes are kept that fit {text}: give the ID of one, or -time\n"
            );
            for (server, left) in several {
                let (host, time) = (vos.host(*server), utc_of(left.made.0));
                complain!(vos.printer, "    {} removed {time} {host} {}\n", left.parent, left.partition);
            }
            Err(Stop::RETURNED)
        }
    }
}

/// The id and the name that the volume gets: those that it had, unless another volume has them by now. With a new name it may get a new id.
fn identity(vos: &Vos, left: &SnapshotInfo, new_name: Option<&str>) -> Result<(u32, String), Stop> {
    let id = left.parent.0;
    let name = new_name.map_or_else(|| name_of(&left.name), str::to_owned);
    if check_name(&name).is_err() {
        complain!(
            vos.printer,
            "vos: '{name}' is no name for a volume: at most {NAME_MAX} bytes, no number, not ending in .readonly or .backup\n"
        );
        return Err(Stop::RETURNED);
    }
    let stopped = |code: Code| {
        vos.print_error(code);
        Stop::RETURNED
    };
    let entry = match vos.entry_by_id(id, None) {
        Ok(entry) => Some(entry),
        Err(Code::VL_NOENT) => None,
        Err(code) => return Err(stopped(code)),
    };
    // Replicas may have stayed.
    let is_its_own = entry.as_ref().is_some_and(|entry| {
        entry.id(Kind::ReadWrite).0 == id && !entry.has(Kind::ReadWrite) && entry.name == name
    });
    match vos.entry_by_name(&name) {
        Err(Code::VL_NOENT) => {}
        Ok(_) if is_its_own => {}
        Ok(entry) => {
            let other = entry.id(Kind::ReadWrite);
            complain!(
                vos.printer,
                "vos: volume {other} is called {name} now: bring volume {id} back under another name, with -toname\n"
            );
            return Err(Stop::RETURNED);
        }
        Err(code) => return Err(stopped(code)),
    }
    if entry.is_none() || is_its_own {
        return Ok((id, name));
    }
    if new_name.is_none() {
        complain!(
            vos.printer,
            "vos: another volume has the ID {id} by now: bring it back under another name, with -toname\n"
        );
        return Err(Stop::RETURNED);
    }
    Ok((vos.new_volume_ids(1).map_err(stopped)?, name))
}

impl Vos {
    /// What a volume has left that was removed from a place last.
    pub(super) fn removed_at(
        &self,
        server: Ipv4Addr,
        partition: PartitionId,
        id: u32,
    ) -> Option<SnapshotInfo> {
        let found = self.snapshots_at(server, partition, id).into_iter();
        found.filter(|left| left.kind == SnapshotType::REMOVED).max_by_key(|left| left.made)
    }

    /// Says until when a volume that was removed can be brought back.
    pub(super) fn tell_of_undelete(&self, server: Ipv4Addr, partition: PartitionId, id: u32) {
        if let Some(left) = self.removed_at(server, partition, id) {
            let until = utc_of(left.until.0);
            say!(self.printer, "Volume {id} can be brought back until {until}: vos undelete {id}\n");
        }
    }
}

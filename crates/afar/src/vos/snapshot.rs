//! `vos snapshot`: makes, lists and removes snapshots of a volume, and sets the schedule by which its server does; and what other verbs say of
//! those that stay when their volume goes. [`publish`] gives them names, and [`snapshot_limit`] has what they may hold.
//! Servers of ours have them.

use super::{Done, Stop, Vos, publish, snapshot_limit};
use crate::classic::Given;
use crate::codes::Code;
use crate::dates::{parse_utc, utc_of};
use crate::printer::{complain, say};
use afs_admin::Error;
use afs_admin::entry::{Kind, Site};
use afs_wire::abort::{VOLSERBADOP, VOLSERVOLBUSY, VVOLEXISTS};
use afs_wire::afsvol::{AttachFlags, SnapshotInfo, SnapshotSchedule, SnapshotType};
use afs_wire::errno::Errno;
use afs_wire::ids::{AfsTime, PartitionId, VolumeId};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// A snapshot, and its server.
pub(super) type Placed = (Ipv4Addr, SnapshotInfo);

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let action = given.word("action").unwrap_or_default();
    let action = match action {
        "create" => create,
        "list" => list,
        "remove" => remove,
        "schedule" => schedule,
        "publish" => publish::publish,
        "unpublish" => publish::unpublish,
        other => {
            complain!(
                vos.printer,
                "vos: say create, list, remove, schedule, publish or unpublish, not '{other}'\n"
            );
            return Err(Stop::RETURNED);
        }
    };
    let text = given.word("id").unwrap_or_default();
    let id = vos.known_volume_id(text, Stop::RETURNED, || {
        format!("Unknown volume ID or name '{text}': of a volume that was removed, give the ID")
    })?;
    action(vos, given, id)
}

/// The site of a read-write volume.
fn site_of(vos: &Vos, id: u32) -> Result<Site, Stop> {
    let entry = vos.entry_by_id(id, None).map_err(|code| {
        complain!(vos.printer, "Could not fetch the entry for volume number {id} from VLDB \n");
        vos.print_error(code);
        Stop::RETURNED
    })?;
    let site = entry.read_write_site().filter(|_| entry.kind_of(VolumeId(id)) == Kind::ReadWrite);
    site.ok_or_else(|| {
        complain!(vos.printer, "vos: volume {id} is no read-write volume: only these have snapshots\n");
        Stop::RETURNED
    })
}

fn create(vos: &Vos, _: &Given, id: u32) -> Done {
    let Site { server, partition, .. } = site_of(vos, id)?;
    let made = vos.caller.run(async {
        let new = vos.vldb.new_volume_ids(1).await?;
        let begun = vos.volumes.begin(server, partition, VolumeId(id), AttachFlags::READ_ONLY).await;
        let transaction = begun?;
        let made = vos.volumes.make_snapshot(transaction, new).await;
        let ended = vos.volumes.end_well(transaction).await;
        made.and_then(|made| ended.map(|()| (new.0, made)))
    });
    let (snapshot, made) = made.map_err(|error| failed(vos, id, &error))?;
    let time = utc_of(made.0);
    say!(vos.printer, "Created snapshot {time} of volume {id}\n");
    if vos.json {
        vos.printer.say_json(&json!({ "id": id, "snapshot_id": snapshot, "time": time }));
    }
    Ok(())
}

fn failed(vos: &Vos, id: u32, error: &Error) -> Stop {
    match error.code() {
        VVOLEXISTS => {
            complain!(vos.printer, "vos: volume {id} has a snapshot of this second already: try again\n")
        }
        VOLSERVOLBUSY => {
            complain!(vos.printer, "vos: volume {id} is busy with another volume operation: try again\n")
        }
        _ => complain!(vos.printer, "vos: {error}\n"),
    }
    Stop::RETURNED
}

fn list(vos: &Vos, given: &Given, id: u32) -> Done {
    let found = find(vos, given, id)?;
    say!(vos.printer, "Snapshots of volume {id}: {}\n", found.len());
    for (server, snapshot) in &found {
        let (time, by, note) = (utc_of(snapshot.made.0), kind_of(snapshot), note_of(snapshot));
        let (host, partition) = (vos.host(*server), snapshot.partition);
        let (id, size) = (snapshot.volid.0, snapshot.used_kib);
        say!(vos.printer, "{time} {id:>10} {size:>10} K {by:<9} {host} {partition}{note}\n");
    }
    let home = vos.entry_by_id(id, None).ok().and_then(|entry| entry.read_write_site());
    let limit = home.filter(|_| !found.is_empty()).and_then(|site| vos.snapshot_limit(site, id));
    if let Some(limit) = limit {
        say!(vos.printer, "They {}\n", snapshot_limit::words(limit));
    }
    if vos.json {
        let shown: Vec<Value> = found.iter().map(as_json).collect();
        let limit = snapshot_limit::as_json(limit);
        vos.printer.say_json(&json!({ "id": id, "snapshots": shown, "limit": limit }));
    }
    Ok(())
}

pub(super) fn as_json((server, snapshot): &Placed) -> Value {
    json!({
        "time": utc_of(snapshot.made.0),
        "id": snapshot.volid.0,
        "parent_id": snapshot.parent.0,
        "name": super::show_volume::name_of(&snapshot.name),
        "used_kib": snapshot.used_kib,
        "scheduled": snapshot.kind == SnapshotType::SCHEDULED,
        "kind": kind_of(snapshot),
        "until": (snapshot.until != AfsTime(0)).then(|| utc_of(snapshot.until.0)),
        "server": server.to_string(),
        "partition": snapshot.partition.to_string(),
    })
}

pub(super) fn kind_of(snapshot: &SnapshotInfo) -> &'static str {
    match snapshot.kind {
        SnapshotType::MANUAL => "manual",
        SnapshotType::SCHEDULED => "scheduled",
        SnapshotType::REMOVED => "removed",
        SnapshotType::PUBLISHED => "published",
        _ => "unknown",
    }
}

/// What a line about a snapshot says at its end.
pub(super) fn note_of(snapshot: &SnapshotInfo) -> String {
    match snapshot.kind {
        SnapshotType::REMOVED => format!(" until {}", utc_of(snapshot.until.0)),
        SnapshotType::PUBLISHED => format!(" as {}", super::show_volume::name_of(&snapshot.name)),
        _ => String::new(),
    }
}

/// The times that are given.
pub(super) fn times(vos: &Vos, given: &Given, id: u32) -> Result<Vec<u32>, Stop> {
    let times = given.words("time");
    if times.is_empty() {
        complain!(vos.printer, "vos: say which snapshots of volume {id}, by their times\n");
        return Err(Stop::RETURNED);
    }
    let parse = |text: &str| {
        parse_utc(text).ok_or_else(|| {
            complain!(vos.printer, "vos: '{text}' is no time of a snapshot, such as 2026-11-28T030000Z\n");
            Stop::RETURNED
        })
    };
    times.into_iter().map(parse).collect()
}

fn remove(vos: &Vos, given: &Given, id: u32) -> Done {
    let times = times(vos, given, id)?;
    let found = find(vos, given, id)?;
    let mut done = Ok(());
    let mut removed = Vec::new();
    for time in times {
        let fits: Vec<&Placed> =
            found.iter().filter(|(_, snapshot)| snapshot.made == AfsTime(time)).collect();
        let time = utc_of(time);
        if fits.is_empty() {
            complain!(
                vos.printer,
                "vos: volume {id} has no snapshot {time}: 'vos snapshot list {id}' shows those that it has\n"
            );
            done = Err(Stop::RETURNED);
        }
        for (server, snapshot) in fits {
            match remove_one(vos, *server, snapshot) {
                Ok(()) => {
                    say!(vos.printer, "Removed snapshot {time} of volume {id}\n");
                    removed.push(time.clone());
                }
                Err(_) => done = Err(Stop::RETURNED),
            }
        }
    }
    if vos.json {
        vos.printer.say_json(&json!({ "id": id, "removed_snapshots": removed }));
    }
    done
}

/// Shows the schedule of a volume and the limit of its snapshots, or sets what is given of them.
fn schedule(vos: &Vos, given: &Given, id: u32) -> Done {
    let site = site_of(vos, id)?;
    let Site { server, partition, .. } = site;
    let explain = |error| failed(vos, id, &error);
    let look = || vos.caller.run(vos.volumes.schedule(server, partition, VolumeId(id))).map_err(explain);
    let (mut is_own, mut wanted) = look()?;
    let counts = [
        ("hourly", &mut wanted.hourly),
        ("daily", &mut wanted.daily),
        ("weekly", &mut wanted.weekly),
        ("monthly", &mut wanted.monthly),
    ];
    let mut is_set = false;
    for (name, count) in counts {
        let Some(text) = given.word(name) else { continue };
        is_set = true;
        *count = text.parse().map_err(|_| {
            complain!(vos.printer, "vos: -{name} {text} is no number of snapshots\n");
            Stop::RETURNED
        })?;
    }
    if is_set && given.has("default") {
        complain!(vos.printer, "vos: give -default or numbers, not both\n");
        return Err(Stop::RETURNED);
    }
    let wants_schedule = is_set || given.has("default");
    let limit_kib = given.word("limit").map(|text| snapshot_limit::parse(vos, text)).transpose()?;
    if wants_schedule || limit_kib.is_some() {
        let set = vos.caller.run(async {
            let begun = vos.volumes.begin(server, partition, VolumeId(id), AttachFlags::READ_ONLY).await;
            let transaction = begun?;
            let mut set = Ok(());
            if wants_schedule {
                set = vos.volumes.set_schedule(transaction, Some(wanted).filter(|_| is_set)).await;
            }
            if let (Ok(()), Some(limit_kib)) = (&set, limit_kib) {
                set = vos.volumes.set_snapshot_limit(transaction, limit_kib).await;
            }
            let ended = vos.volumes.end_well(transaction).await;
            set.and(ended)
        });
        match set {
            Err(error) if error.code().0 == Errno::EINVAL.0 => {
                complain!(vos.printer, "vos: a schedule keeps at most 2048 snapshots of a volume\n");
                return Err(Stop::RETURNED);
            }
            set => set.map_err(explain)?,
        }
        (is_own, wanted) = look()?;
    }
    let SnapshotSchedule { hourly, daily, weekly, monthly } = wanted;
    let whose = if is_own { "its own" } else { "the server's" };
    say!(
        vos.printer,
        "Schedule of volume {id} ({whose}): hourly {hourly}, daily {daily}, weekly {weekly}, monthly {monthly}\n"
    );
    let limit = vos.snapshot_limit(site, id);
    if let Some(limit) = limit {
        say!(vos.printer, "Its snapshots {}\n", snapshot_limit::words(limit));
    }
    if vos.json {
        vos.printer.say_json(&json!({
            "id": id,
            "own": is_own,
            "hourly": hourly,
            "daily": daily,
            "weekly": weekly,
            "monthly": monthly,
            "limit": snapshot_limit::as_json(limit),
        }));
    }
    Ok(())
}

/// Removes a snapshot. Complains if it cannot.
pub(super) fn remove_one(vos: &Vos, server: Ipv4Addr, snapshot: &SnapshotInfo) -> Result<(), Code> {
    let SnapshotInfo { partition, volid, .. } = *snapshot;
    if snapshot.kind == SnapshotType::PUBLISHED {
        let (name, time) = (super::show_volume::name_of(&snapshot.name), utc_of(snapshot.made.0));
        let parent = snapshot.parent;
        complain!(
            vos.printer,
            "vos: snapshot {time} of volume {parent} is published as {name}: 'vos snapshot unpublish {parent} {time}' first\n"
        );
        return Err(Code(VOLSERBADOP.0));
    }
    vos.caller.run(vos.volumes.remove_snapshot(server, partition, volid)).map_err(|error| {
        failed(vos, volid.0, &error);
        Code(error.code().0)
    })
}

/// The snapshots of a volume: at the server that is given, or else at the volume's own and at all others.
pub(super) fn find(vos: &Vos, given: &Given, id: u32) -> Result<Vec<Placed>, Stop> {
    let explain = |error| failed(vos, id, &error);
    let at = |server| {
        let found = vos.caller.run(vos.volumes.snapshots(server, VolumeId(id)));
        let found = found.map_err(explain)?;
        Ok::<_, Stop>(found.into_iter().map(|snapshot| (server, snapshot)).collect::<Vec<_>>())
    };
    if let Some(name) = given.word("server") {
        return at(vos.server(name, "server", Stop::RETURNED)?);
    }
    // One that was removed has no entry.
    let home = vos.entry_by_id(id, None).ok().and_then(|entry| entry.read_write_site());
    let mut found = home.map_or(Ok(Vec::new()), |site| at(site.server))?;
    let home = home.map_or(Ipv4Addr::UNSPECIFIED, |site| site.server);
    let elsewhere = vos.volumes.snapshots_elsewhere(&vos.vldb, home, VolumeId(id));
    found.extend(vos.caller.run(elsewhere).map_err(explain)?);
    found.sort_by_key(|(server, snapshot)| (snapshot.made, *server, snapshot.volid));
    Ok(found)
}

impl Vos {
    /// The snapshots that a volume has on a partition. Nobody who asks for them does so for their sake, so an error is none of them.
    pub(super) fn snapshots_at(
        &self,
        server: Ipv4Addr,
        partition: PartitionId,
        id: u32,
    ) -> Vec<SnapshotInfo> {
        let mut found = self.wait(self.volumes.snapshots(server, VolumeId(id))).unwrap_or_default();
        found.retain(|snapshot| snapshot.partition == partition);
        found
    }

    /// Says which snapshots of a volume are where it is not any more.
    pub(super) fn warn_of_snapshots(&self, server: Ipv4Addr, partition: PartitionId, id: u32) {
        let mut left = self.snapshots_at(server, partition, id);
        left.retain(|snapshot| snapshot.kind != SnapshotType::REMOVED);
        let left = left.len();
        if left > 0 {
            let host = self.host(server);
            complain!(
                self.printer,
                "WARNING: snapshots of volume {id} stay on server {host} partition {partition} ({left}): \
                 'vos snapshot list {id}' shows them\n"
            );
        }
    }

    /// The snapshots of a volume at its site and elsewhere, as far as servers say it.
    pub(super) fn all_snapshots(&self, site: Site, id: u32) -> Vec<Placed> {
        let here = self.wait(self.volumes.snapshots(site.server, VolumeId(id))).unwrap_or_default();
        let elsewhere = self.volumes.snapshots_elsewhere(&self.vldb, site.server, VolumeId(id));
        let elsewhere = self.wait(elsewhere).unwrap_or_default();
        here.into_iter().map(|snapshot| (site.server, snapshot)).chain(elsewhere).collect()
    }

    /// Says where snapshots are and how many, in lines or in fields. Those of another partition than the volume's are named as such.
    pub(super) fn show_snapshots(&self, site: Site, found: &[Placed], has_fields: bool) {
        let mut counts: BTreeMap<(Ipv4Addr, PartitionId), usize> = BTreeMap::new();
        for (server, snapshot) in found {
            *counts.entry((*server, snapshot.partition)).or_default() += 1;
        }
        for ((server, partition), count) in counts {
            let host = self.host(server);
            if has_fields {
                say!(self.printer, "snapshots\t{count}\t{server}\t{partition}\n");
                continue;
            }
            let is_here = (server, partition) == (site.server, site.partition);
            let note = if is_here { "" } else { ", where the volume is no more" };
            say!(
                self.printer,
                "    number of snapshots -> {count} on server {host} partition {partition}{note}\n"
            );
        }
    }
}

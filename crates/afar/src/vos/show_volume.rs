//! A volume of a volume server, as `vos` prints it: a line, a paragraph, fields for programs, or JSON.

use super::Vos;
use crate::dates::date_of;
use crate::output::harmless;
use crate::printer::say;
use afs_wire::afsvol::{VOK, VolintInfo};
use afs_wire::ids::{AfsTime, PartitionId, SecurityLevel, VolumeType};
use serde_json::{Value, json};
use std::net::Ipv4Addr;

/// The status of a volume that another transaction has.
pub(super) const VBUSY: i32 = 110;

/// The mark in OpenAFS's headers of a volume that the next salvage removes.
const DESTROY_ME: u8 = 0xd3;

/// The number of volumes, and those that could not be shown.
#[derive(Debug, Default)]
pub(super) struct Totals {
    pub(super) online: usize,
    pub(super) offline: usize,
    pub(super) busy: usize,
    pub(super) busy_ids: Vec<u32>,
    pub(super) broken_ids: Vec<u32>,
}

impl Totals {
    /// Counts a volume of this status; whether it can be shown.
    pub(super) fn count(&mut self, id: u32, status: i32, is_online: bool) -> bool {
        match status {
            VOK if is_online => self.online += 1,
            VOK => self.offline += 1,
            VBUSY => {
                self.busy += 1;
                self.busy_ids.push(id);
            }
            _ => {
                self.offline += 1;
                self.broken_ids.push(id);
            }
        }
        status == VOK
    }
}

/// Two letters for a kind, or none.
pub(super) const fn letters(kind: VolumeType) -> Option<&'static str> {
    match kind {
        VolumeType::READ_WRITE => Some("RW"),
        VolumeType::READ_ONLY => Some("RO"),
        VolumeType::BACKUP => Some("BK"),
        _ => None,
    }
}

/// A volume's name, made harmless.
pub(super) fn name_of(name: &[u8]) -> String {
    harmless(&String::from_utf8_lossy(name))
}

/// Dates of a volume in the paragraph.
pub(super) struct Dates {
    pub(super) creation: AfsTime,
    pub(super) copy: AfsTime,
    pub(super) backup: AfsTime,
    pub(super) access: AfsTime,
    pub(super) update: AfsTime,
}

impl Vos {
    pub(super) fn date(&self, time: AfsTime) -> String {
        date_of(i64::from(time.0), &self.zone)
    }

    /// Shows the volumes that could not be shown, the last found first.
    pub(super) fn show_problems(&self, totals: &Totals) {
        for id in totals.busy_ids.iter().rev() {
            say!(self.printer, "**** Volume {id} is busy ****\n");
        }
        for id in totals.broken_ids.iter().rev() {
            say!(self.printer, "**** Could not attach volume {id} ****\n");
        }
    }

    /// A line: name, id, kind, size, state.
    pub(super) fn show_volume_line(&self, volume: &VolintInfo, totals: &mut Totals) {
        if totals.count(volume.volid.0, volume.status, volume.in_use == 1) {
            let kind = letters(volume.kind).map_or(String::new(), |kind| format!("{kind} "));
            let (name, state) = (name_of(volume.name.text()), state_of(volume));
            say!(self.printer, "{name:<32} {:>10} {kind}{:>10} K {state}\n", volume.volid.0, volume.size);
        }
    }

    /// A paragraph. Problems stand in it if `shows_problems`.
    pub(super) fn show_volume_paragraph(
        &self,
        volume: &VolintInfo,
        server: Ipv4Addr,
        partition: PartitionId,
        totals: &mut Totals,
        shows_problems: bool,
        level: SecurityLevel,
    ) {
        let id = volume.volid.0;
        if totals.count(id, volume.status, volume.in_use == 1) {
            let kind = letters(volume.kind).map_or(String::new(), |kind| format!("{kind} "));
            let (name, state) = (name_of(volume.name.text()), state_of(volume));
            say!(self.printer, "{name:<32} {id:>10} {kind}{:>10} K  {state}\n", volume.size);
            say!(self.printer, "    {} {partition} \n", self.resolved(server));
            let ids = [volume.parent_id.0, volume.clone_id.0, volume.backup_id.0];
            let dates = Dates {
                creation: volume.creation_date,
                copy: volume.copy_date,
                backup: volume.backup_date,
                access: volume.access_date,
                update: volume.update_date,
            };
            self.show_header(ids, volume.maxquota, level, &dates, volume.day_use);
        } else if shows_problems {
            match volume.status {
                VBUSY => say!(self.printer, "**** Volume {id} is busy ****\n"),
                _ => say!(self.printer, "**** Could not attach volume {id} ****\n"),
            }
        }
        say!(self.printer, "\n");
    }

    /// The part of the paragraph that is the same with statistics.
    pub(super) fn show_header(
        &self,
        ids: [u32; 3],
        maxquota: i32,
        level: SecurityLevel,
        dates: &Dates,
        day_use: i32,
    ) {
        let [parent, clone, backup] = ids;
        say!(self.printer, "    RWrite {parent:>10} ROnly {clone:>10} Backup {backup:>10} \n");
        say!(self.printer, "    MaxQuota {maxquota:>10} K \n");
        if let Some(level) = level_of(level) {
            say!(self.printer, "    Level    {level:>10}\n");
        }
        let or_never = |time: AfsTime| if time.0 == 0 { "Never".to_owned() } else { self.date(time) };
        say!(self.printer, "    Creation    {}\n", self.date(dates.creation));
        say!(self.printer, "    Copy        {}\n", self.date(dates.copy));
        say!(self.printer, "    Backup      {}\n", or_never(dates.backup));
        if dates.access.0 != 0 {
            say!(self.printer, "    Last Access {}\n", self.date(dates.access));
        }
        say!(self.printer, "    Last Update {}\n", or_never(dates.update));
        say!(self.printer, "    {day_use} accesses in the past day (i.e., vnode references)\n");
    }

    /// Fields, one a line.
    pub(super) fn show_volume_fields(&self, volume: &VolintInfo, server: Ipv4Addr, partition: PartitionId) {
        let out = &self.printer;
        if volume.status == VOK {
            say!(out, "name\t\t{}\n", name_of(volume.name.text()));
        }
        say!(out, "id\t\t{}\n", volume.volid.0);
        say!(out, "serv\t\t{server}\t{}\n", self.resolved(server));
        say!(out, "part\t\t{partition}\n");
        match volume.status {
            VOK => say!(out, "status\t\tOK\n"),
            VBUSY => {
                say!(out, "status\t\tBUSY\n");
                return;
            }
            _ => {
                say!(out, "status\t\tUNATTACHABLE\n");
                return;
            }
        }
        let yes = |is: bool| if is { "Y" } else { "N" };
        say!(out, "backupID\t{}\n", volume.backup_id.0);
        say!(out, "parentID\t{}\n", volume.parent_id.0);
        say!(out, "cloneID\t\t{}\n", volume.clone_id.0);
        say!(out, "inUse\t\t{}\n", yes(volume.in_use != 0));
        say!(out, "needsSalvaged\t{}\n", yes(volume.needs_salvaged != 0));
        say!(out, "destroyMe\t{}\n", yes(volume.destroy_me == DESTROY_ME));
        say!(out, "type\t\t{}\n", letters(volume.kind).unwrap_or("?"));
        for (name, time) in [
            ("creationDate", volume.creation_date),
            ("accessDate", volume.access_date),
            ("updateDate", volume.update_date),
            ("backupDate", volume.backup_date),
            ("copyDate", volume.copy_date),
        ] {
            say!(out, "{name}\t{:<9}\t{}\n", time.0, self.date(time));
        }
        let unsigned = i32::cast_unsigned;
        let flags = match unsigned(volume.flags) {
            0 => "0".to_owned(),
            flags => format!("{flags:#x}"),
        };
        say!(out, "flags\t\t{flags}\t(Optional)\n");
        say!(out, "diskused\t{}\n", unsigned(volume.size));
        say!(out, "maxquota\t{}\n", unsigned(volume.maxquota));
        say!(out, "minquota\t{}\t(Optional)\n", unsigned(volume.spare0));
        say!(out, "filecount\t{}\n", unsigned(volume.filecount));
        say!(out, "dayUse\t\t{}\n", unsigned(volume.day_use));
        say!(out, "weekUse\t\t{}\t(Optional)\n", unsigned(volume.spare1));
        say!(out, "spare2\t\t{}\t(Optional)\n", unsigned(volume.spare2));
        say!(out, "spare3\t\t{}\t(Optional)\n", unsigned(volume.spare3));
    }

    /// All of the volume.
    pub(super) fn volume_as_json(
        &self,
        volume: &VolintInfo,
        server: Ipv4Addr,
        partition: PartitionId,
    ) -> Value {
        let time = |time: AfsTime| Some(time.0).filter(|time| *time != 0);
        let id = |id: afs_wire::ids::VolumeId| Some(id.0).filter(|id| *id != 0);
        let mut object = json!({
            "id": volume.volid.0,
            "server": server.to_string(),
            "partition": partition.to_string(),
            "status": match volume.status {
                VOK => "ok",
                VBUSY => "busy",
                _ => "unattachable",
            },
        });
        if volume.status != VOK {
            return object;
        }
        let more = json!({
            "name": name_of(volume.name.text()),
            "type": letters(volume.kind),
            "online": volume.in_use == 1,
            "needs_salvage": volume.needs_salvaged == 1,
            "parent_id": id(volume.parent_id),
            "clone_id": id(volume.clone_id),
            "backup_id": id(volume.backup_id),
            "created": time(volume.creation_date),
            "copied": time(volume.copy_date),
            "backed_up": time(volume.backup_date),
            "accessed": time(volume.access_date),
            "updated": time(volume.update_date),
            "accesses_today": volume.day_use,
            "files": volume.filecount,
            "quota_kib": volume.maxquota,
            "used_kib": volume.size,
        });
        if let (Some(object), Value::Object(more)) = (object.as_object_mut(), more) {
            object.extend(more);
        }
        object
    }
}

/// The word for a volume's level, unless it is the one that every volume has.
pub(super) fn level_of(level: SecurityLevel) -> Option<&'static str> {
    level.word().filter(|_| level != SecurityLevel::CLEAR)
}

fn state_of(volume: &VolintInfo) -> String {
    let state = if volume.in_use == 1 { "On-line" } else { "Off-line" };
    let salvage = if volume.needs_salvaged == 1 { "**needs salvage**" } else { "" };
    format!("{state}{salvage}")
}

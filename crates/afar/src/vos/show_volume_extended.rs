//! A volume of a volume server with its statistics, as `vos` prints it with `-extended`.

use super::Vos;
use super::show_volume::{Dates, Totals, VBUSY, letters, name_of};
use crate::printer::say;
use afs_wire::afsvol::{VOK, VolintXInfo};
use afs_wire::ids::{PartitionId, SecurityLevel};
use serde_json::{Value, json};
use std::net::Ipv4Addr;

/// The names of the times since the last change, by which changes are counted.
const AGES: [&str; 6] = ["0-60 sec ", "1-10 min ", "10min-1hr", "1hr-1day ", "1day-1wk ", "> 1wk    "];

/// The names of the reads and writes that are counted.
const NETWORKS: [&str; 4] = ["same_net", "same_net_auth", "diff_net", "diff_net_auth"];

impl Vos {
    /// A paragraph. Problems stand in it if `shows_problems`.
    pub(super) fn show_extended_paragraph(
        &self,
        volume: &VolintXInfo,
        server: Ipv4Addr,
        partition: PartitionId,
        totals: &mut Totals,
        shows_problems: bool,
        level: SecurityLevel,
    ) {
        let (out, id) = (&self.printer, volume.volid.0);
        if totals.count(id, volume.status, volume.in_use == 1) {
            let kind = letters(volume.kind).map_or(String::new(), |kind| format!("{kind} "));
            let state = if volume.in_use == 1 { "On-line" } else { "Off-line" };
            let (name, size, files) = (name_of(volume.name.text()), volume.size, volume.filecount);
            say!(out, "{name:<32} {id:>10} {kind}{size:>10} K used {files} files {state}\n");
            say!(out, "    {} {partition} \n", self.resolved(server));
            let ids = [volume.parent_id.0, volume.clone_id.0, volume.backup_id.0];
            let dates = Dates {
                creation: volume.creation_date,
                copy: volume.copy_date,
                backup: volume.backup_date,
                access: volume.access_date,
                update: volume.update_date,
            };
            self.show_header(ids, volume.maxquota, level, &dates, volume.day_use);
            self.show_tables(volume);
        } else if shows_problems {
            match volume.status {
                VBUSY => say!(out, "**** Volume {id} is busy ****\n"),
                _ => say!(out, "**** Could not attach volume {id} ****\n"),
            }
        }
        say!(out, "\n");
    }

    fn show_tables(&self, volume: &VolintXInfo) {
        let out = &self.printer;
        let edge = "          |-------------------------------------------|\n";
        let line = "          |----------|----------|----------|----------|\n";
        let row = |label: &str, [a, b, c, d]: [i32; 4]| {
            say!(out, "{label} | {a:>8} | {b:>8} | {c:>8} | {d:>8} |\n");
        };
        say!(out, "\n                      Raw Read/Write Stats\n{edge}");
        say!(out, "          |    Same Network     |    Diff Network     |\n{line}");
        say!(out, "          |  Total   |   Auth   |   Total  |   Auth   |\n{line}");
        row("Reads    ", volume.stat_reads);
        row("Writes   ", volume.stat_writes);
        say!(out, "{edge}\n                   Writes Affecting Authorship\n{edge}");
        say!(out, "          |   File Authorship   | Directory Authorship|\n{line}");
        say!(out, "          |   Same   |   Diff   |    Same  |   Diff   |\n{line}");
        for (i, age) in AGES.iter().enumerate() {
            let files = (volume.stat_file_same_author[i], volume.stat_file_diff_author[i]);
            let folders = (volume.stat_dir_same_author[i], volume.stat_dir_diff_author[i]);
            row(age, [files.0, files.1, folders.0, folders.1]);
        }
        say!(out, "{edge}");
    }

    /// Fields, one a line.
    pub(super) fn show_extended_fields(
        &self,
        volume: &VolintXInfo,
        server: Ipv4Addr,
        partition: PartitionId,
        totals: &mut Totals,
    ) {
        let (out, id) = (&self.printer, volume.volid.0);
        if !totals.count(id, volume.status, volume.in_use == 1) {
            return;
        }
        let unsigned = i32::cast_unsigned;
        say!(out, "name\t\t{}\n", name_of(volume.name.text()));
        say!(out, "id\t\t{id}\n");
        say!(out, "serv\t\t{server}\t{}\n", self.resolved(server));
        say!(out, "part\t\t{partition}\n");
        say!(out, "status\t\tOK\n");
        say!(out, "backupID\t{}\n", volume.backup_id.0);
        say!(out, "parentID\t{}\n", volume.parent_id.0);
        say!(out, "cloneID\t\t{}\n", volume.clone_id.0);
        say!(out, "inUse\t\t{}\n", if volume.in_use != 0 { "Y" } else { "N" });
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
        say!(out, "diskused\t{}\n", unsigned(volume.size));
        say!(out, "maxquota\t{}\n", unsigned(volume.maxquota));
        say!(out, "filecount\t{}\n", unsigned(volume.filecount));
        say!(out, "dayUse\t\t{}\n", unsigned(volume.day_use));
        for (what, counts) in [("reads", volume.stat_reads), ("writes", volume.stat_writes)] {
            for (network, count) in NETWORKS.iter().zip(counts) {
                say!(out, "{what}_{network}\t{count:>8}\n");
            }
        }
        // The last of the six is left out there too.
        for i in 0..5 {
            say!(out, "file_same_author_idx_{}\t{:>8}\n", i + 1, volume.stat_file_same_author[i]);
            say!(out, "file_diff_author_idx_{}\t{:>8}\n", i + 1, volume.stat_file_diff_author[i]);
            say!(out, "dir_same_author_idx_{}\t{:>8}\n", i + 1, volume.stat_dir_same_author[i]);
            say!(out, "dir_dif_author_idx_{}\t{:>8}\n", i + 1, volume.stat_dir_diff_author[i]);
        }
    }

    /// The statistics.
    pub(super) fn extended_as_json(
        &self,
        volume: &VolintXInfo,
        server: Ipv4Addr,
        partition: PartitionId,
    ) -> Value {
        let counts = |counts: [i32; 4]| -> Value {
            NETWORKS.iter().zip(counts).map(|(name, count)| ((*name).to_owned(), json!(count))).collect()
        };
        json!({
            "id": volume.volid.0,
            "name": if volume.status == VOK { Some(name_of(volume.name.text())) } else { None },
            "server": server.to_string(),
            "partition": partition.to_string(),
            "status": match volume.status {
                VOK => "ok",
                VBUSY => "busy",
                _ => "unattachable",
            },
            "type": letters(volume.kind),
            "online": volume.in_use == 1,
            "parent_id": volume.parent_id.0,
            "clone_id": volume.clone_id.0,
            "backup_id": volume.backup_id.0,
            "created": volume.creation_date.0,
            "copied": volume.copy_date.0,
            "backed_up": volume.backup_date.0,
            "accessed": volume.access_date.0,
            "updated": volume.update_date.0,
            "accesses_today": volume.day_use,
            "files": volume.filecount,
            "quota_kib": volume.maxquota,
            "used_kib": volume.size,
            "reads": counts(volume.stat_reads),
            "writes": counts(volume.stat_writes),
            "file_changes_same_author": volume.stat_file_same_author,
            "file_changes_other_author": volume.stat_file_diff_author,
            "directory_changes_same_author": volume.stat_dir_same_author,
            "directory_changes_other_author": volume.stat_dir_diff_author,
        })
    }
}

//! What the snapshots of a volume hold, and may hold: how `vos snapshot` and `vos examine` say it, and what `-limit` sets.

use super::{Stop, Vos};
use crate::numbers::{self, BadNumber};
use crate::printer::{complain, say};
use afs_admin::entry::Site;
use afs_admin::volumes::SnapshotLimit;
use afs_wire::ids::VolumeId;
use serde_json::{Value, json};

/// Reads the value of `-limit`: KiB, 0 for none, or `quota`, which is no own limit.
pub(super) fn parse(vos: &Vos, text: &str) -> Result<Option<u32>, Stop> {
    if text == "quota" {
        return Ok(None);
    }
    match numbers::parse_kib(text) {
        Ok(limit_kib) => Ok(Some(limit_kib.unsigned_abs())),
        Err(bad) => {
            match bad {
                BadNumber::NoNumber => {
                    complain!(vos.printer, "vos: -limit {text} is no size, such as 10G, and not 'quota'\n")
                }
                BadNumber::OutOfRange { .. } => complain!(vos.printer, "vos: -limit {text} {bad}\n"),
            }
            Err(Stop::RETURNED)
        }
    }
}

/// In words, as the end of a sentence about the snapshots.
pub(super) fn words(limit: SnapshotLimit) -> String {
    let held = limit.held_kib.map_or("? K (being counted)".to_owned(), |held| format!("{held} K"));
    let whose = if limit.is_own { "its own limit" } else { "the quota" };
    match limit.limit_kib {
        0 => format!("hold {held}, without a limit ({whose})"),
        most => format!("hold {held} of at most {most} K ({whose})"),
    }
}

pub(super) fn as_json(limit: Option<SnapshotLimit>) -> Value {
    limit.map_or(Value::Null, |SnapshotLimit { is_own, limit_kib, held_kib }| {
        json!({ "own": is_own, "limit_kib": limit_kib, "held_kib": held_kib })
    })
}

impl Vos {
    /// The limit of the volume at a site, if its server knows it. Nobody who looks asks for it alone, so an error is none.
    pub(super) fn snapshot_limit(&self, site: Site, id: u32) -> Option<SnapshotLimit> {
        self.wait(self.volumes.snapshot_limit(site.server, site.partition, VolumeId(id))).ok().flatten()
    }

    /// Says it at the end of what is said of a volume, in a line or in fields.
    pub(super) fn show_snapshot_limit(&self, limit: SnapshotLimit, has_fields: bool) {
        if has_fields {
            let held = limit.held_kib.map_or("?".to_owned(), |held| held.to_string());
            say!(self.printer, "snapshotsHold\t{held}\t{}\n", limit.limit_kib);
        } else {
            say!(self.printer, "    snapshots {}\n", words(limit));
        }
    }
}

//! The volume of a file: `examine`, `setquota`, `setvol`. How full volumes are is in `quota`.

use super::errors::{EINVAL, Failure};
use super::place::Links;
use super::{FAILURE, Fs, Served, Target};
use crate::classic::Given;
use crate::numbers::{BadNumber, parse_kib};
use crate::output::harmless;
use crate::printer::{complain, say};
use afs_wire::control::{self, VolumeChanges};
use afs_wire::ids::AfsFid;
use afs_wire::rxafs::{AfsFetchVolumeStatus, Message};
use serde_json::{Value, json};

/// Messages of a volume are shorter than this, in bytes: so much has the volume's header in OpenAFS.
const MESSAGE_MAX: usize = 128;

/// A volume, as its file server describes it.
pub(super) struct Volume {
    pub(super) name: String,
    pub(super) status: AfsFetchVolumeStatus,
    offline_message: String,
    fid: AfsFid,
}

impl Volume {
    /// The volume of a path.
    pub(super) fn of(target: &Target) -> Result<Self, Failure> {
        let Served { client, place } = Served::at(&target.path, Links::Follow)?;
        let fid = place.fid;
        let reply = client.call(&control::GetVolumeStatus { place })?;
        let text = |bytes: &[u8]| harmless(&String::from_utf8_lossy(bytes));
        Ok(Self {
            name: text(&reply.name),
            status: reply.status,
            offline_message: text(&reply.offline_message),
            fid,
        })
    }

    /// The volume, for `--json`.
    pub(super) fn as_json(&self, target: &Target) -> Value {
        let AfsFetchVolumeStatus {
            vid, max_quota, blocks_in_use, part_blocks_avail, part_max_blocks, ..
        } = self.status;
        json!({
            "path": target.shown,
            "fid": self.fid.to_string(),
            "volume": vid.0,
            "name": self.name,
            "offline_message": self.offline_message,
            "quota_kib": max_quota,
            "used_kib": blocks_in_use,
            "partition_available_kib": part_blocks_avail,
            "partition_size_kib": part_max_blocks,
        })
    }
}

/// `fs examine`.
pub(super) fn examine(fs: &Fs, given: &Given) -> u8 {
    let mut told = Vec::new();
    let status = fs.each(&Target::all_or_here(given), |target| {
        let volume = Volume::of(target)?;
        if given.has("json") {
            told.push(volume.as_json(target));
            return Ok(());
        }
        let Volume { name, status, offline_message, fid } = volume;
        say!(fs.printer, "File {} ({fid}) contained in volume {}\n", target.shown, fid.volume);
        say!(fs.printer, "Volume status for vid = {} named {name}\n", status.vid);
        if !offline_message.is_empty() {
            say!(fs.printer, "Current offline message is {offline_message}\n");
        }
        match status.max_quota {
            0 => say!(fs.printer, "Current disk quota is unlimited\n"),
            quota => say!(fs.printer, "Current disk quota is {quota}\n"),
        }
        say!(fs.printer, "Current blocks used are {}\n", status.blocks_in_use);
        say!(
            fs.printer,
            "The partition has {} blocks available out of {}\n\n",
            status.part_blocks_avail,
            status.part_max_blocks
        );
        Ok(())
    });
    if given.has("json") {
        fs.printer.say_json(&Value::Array(told));
    }
    status
}

/// `fs setquota`.
pub(super) fn set_quota(fs: &Fs, given: &Given) -> u8 {
    change(fs, given, given.word("max"), None)
}

/// `fs setvol`.
pub(super) fn set(fs: &Fs, given: &Given) -> u8 {
    change(fs, given, given.word("max"), given.word("offlinemsg"))
}

fn change(fs: &Fs, given: &Given, quota: Option<&str>, message: Option<&str>) -> u8 {
    let mut status = 0;
    for target in &Target::all_or_here(given) {
        let mut changes = VolumeChanges::NONE;
        let max_quota = match quota.map(parse_kib) {
            Some(Ok(quota)) => {
                changes |= VolumeChanges::MAX_QUOTA;
                quota
            }
            Some(Err(bad @ BadNumber::OutOfRange { .. })) => {
                complain!(fs.printer, "fs: the quota {} {bad}\n", quota.unwrap_or_default());
                status = FAILURE;
                continue;
            }
            Some(Err(BadNumber::NoNumber)) => {
                complain!(fs.printer, "fs: bad integer specified for quota.\n");
                status = FAILURE;
                continue;
            }
            None => 0,
        };
        if message.is_some_and(|message| message.len() >= MESSAGE_MAX) {
            complain!(fs.printer, "fs: message must be shorter than {MESSAGE_MAX} characters\n");
            status = FAILURE;
            continue;
        }
        if message.is_some() {
            changes |= VolumeChanges::OFFLINE_MESSAGE;
        }
        let changed = Message::try_from(message.unwrap_or_default())
            .map_err(|_| Failure::Errno(EINVAL))
            .and_then(|offline_message| {
                let Served { client, place } = Served::at(&target.path, Links::Follow)?;
                client
                    .call(&control::SetVolumeStatus { place, changes, max_quota, offline_message })
                    .map(drop)
            });
        if let Err(failure) = changed {
            fs.complain(&failure, Some(&target.shown));
            status = FAILURE;
        }
    }
    status
}

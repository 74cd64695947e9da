//! The room that volumes have left, as their servers told it last, less what was closed here since: with write-behind nobody else tells a program
//! that the quota is used up. A store asks nobody here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use afs_wire::abort;
use afs_wire::ids::VolumeId;
use afs_wire::rxafs::{AfsFetchVolumeStatus, GetVolumeStatus, StoreData64};
use rx_proto::time::Instant;
use rxgen::Rpc;

use crate::data::files::{FileData, Files, lock};
use afs_reach::error::Error;
use afs_reach::fid::{CellIndex, Fid, User};

/// What a server has told is asked for again when something is closed so much later.
const ASKED_EVERY: Duration = Duration::from_secs(10);

/// With less than this left a close waits for the server, which alone knows how much a file takes.
const MARGIN: u64 = 64 << 10;

/// The room in all volumes in which something was closed.
#[derive(Debug, Default)]
pub(crate) struct Rooms {
    volumes: Mutex<HashMap<(CellIndex, VolumeId), Room>>,
}

#[derive(Debug)]
struct Room {
    /// Bytes that were left when the server was asked; `None` as long as it has not answered.
    left: Option<u64>,
    /// Bytes that were closed since, or waited then.
    taken: u64,
    asked_at: Instant,
}

impl Rooms {
    /// Takes so many bytes of what is left in a volume, if there are so many as far as known; and whether its server is to be asked.
    fn take(&self, volume: (CellIndex, VolumeId), bytes: u64, now: Instant) -> (bool, bool) {
        let mut volumes = lock(&self.volumes);
        let is_new = !volumes.contains_key(&volume);
        let room = volumes.entry(volume).or_insert(Room { left: None, taken: 0, asked_at: now });
        let is_to_ask = is_new || now.since(room.asked_at) >= ASKED_EVERY;
        if is_to_ask {
            room.asked_at = now;
        }
        let taken = room.taken.saturating_add(bytes);
        let fits = room.left.is_none_or(|left| taken.saturating_add(MARGIN) <= left);
        if fits {
            room.taken = taken;
        }
        (fits, is_to_ask)
    }

    /// A server has told what is left, at a time when so many bytes waited.
    fn note(&self, volume: (CellIndex, VolumeId), left: u64, waiting: u64) {
        if let Some(room) = lock(&self.volumes).get_mut(&volume) {
            (room.left, room.taken) = (Some(left), waiting);
        }
    }
}

impl Files {
    /// True if what a program closes has room in its volume, as far as known.
    pub(super) fn has_room_there(self: &Arc<Self>, data: &FileData, user: User) -> bool {
        let fid = data.vnode.fid;
        let bytes = data.change(|file| file.dirty_bytes()).unwrap_or(0);
        let (fits, is_to_ask) = self.rooms.take((fid.cell, fid.volume), bytes, self.now());
        if is_to_ask {
            let me = Arc::downgrade(self);
            self.calls.runtime.spawn(Box::pin(async move {
                if let Some(files) = me.upgrade() {
                    files.ask_for_room(fid, user).await;
                }
            }));
        }
        fits
    }

    async fn ask_for_room(&self, fid: Fid, user: User) {
        let who = self.users.who(user, fid.cell);
        let waiting = self.bytes_behind();
        // Who may not ask, or has no server, learns nothing.
        if let Ok(answer) = self.calls.call(who, fid, GetVolumeStatus { volume: fid.volume }).await {
            self.rooms.note((fid.cell, fid.volume), left(&answer.reply.status), waiting);
        }
    }

    /// The error of a close for which there is no room, when no server can be asked.
    pub(super) fn no_room(fid: Fid) -> Error {
        Error::Refused { rpc: StoreData64::NAME, fid, code: abort::VOVERQUOTA }
    }
}

/// The bytes that a volume has left: of its quota, if it has one, and on its partition.
fn left(status: &AfsFetchVolumeStatus) -> u64 {
    // Servers count in words with a sign; what is beyond shows as negative, and is much.
    let kib = |number: i32| u64::try_from(number).unwrap_or(u64::MAX >> 10);
    let of_quota = match status.max_quota {
        0 => u64::MAX >> 10,
        quota => kib(quota).saturating_sub(kib(status.blocks_in_use)),
    };
    of_quota.min(kib(status.part_blocks_avail)) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME: (CellIndex, VolumeId) = (CellIndex(1), VolumeId(7));

    fn at(seconds: u64) -> Instant {
        Instant::ORIGIN + Duration::from_secs(seconds)
    }

    #[test]
    fn what_was_closed_since_the_server_told_what_is_left_is_reckoned_with() {
        let rooms = Rooms::default();
        assert_eq!(rooms.take(VOLUME, 1 << 30, at(0)), (true, true), "nothing is known yet");
        rooms.note(VOLUME, MARGIN + 1000, 300);
        assert_eq!(rooms.take(VOLUME, 700, at(1)), (true, false));
        assert_eq!(rooms.take(VOLUME, 1, at(2)), (false, false), "all is taken");
        assert_eq!(rooms.take(VOLUME, 0, at(10)), (true, true), "it is asked for again");
        rooms.note(VOLUME, MARGIN + 1000, 0);
        assert_eq!(rooms.take(VOLUME, 1000, at(11)), (true, false), "somebody has made room");
    }

    #[test]
    fn a_volume_without_a_quota_has_what_its_partition_has() {
        let status =
            AfsFetchVolumeStatus { max_quota: 0, blocks_in_use: 50, part_blocks_avail: 7, ..status() };
        assert_eq!(left(&status), 7 << 10);
        assert_eq!(left(&AfsFetchVolumeStatus { max_quota: 52, ..status }), 2 << 10);
        assert_eq!(left(&AfsFetchVolumeStatus { max_quota: 40, ..status }), 0, "over quota");
        assert_eq!(left(&AfsFetchVolumeStatus { part_blocks_avail: -1, ..status }), u64::MAX >> 10 << 10);
    }

    fn status() -> AfsFetchVolumeStatus {
        AfsFetchVolumeStatus {
            vid: VOLUME.1,
            parent_id: VOLUME.1,
            online: 1,
            in_service: 1,
            blessed: 1,
            needs_salvage: 0,
            kind: afs_wire::rxafs::VolumeStatusType::READ_WRITE,
            min_quota: 0,
            max_quota: 0,
            blocks_in_use: 0,
            part_blocks_avail: 0,
            part_max_blocks: 0,
        }
    }
}

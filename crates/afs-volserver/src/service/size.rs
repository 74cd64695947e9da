//! The size of a dump of a volume, by the layout of the stream (Volume service notes 5).

use afs_volume::{Kind, VnodeStatus, Volume, VolumeError, VolumeHeader};
use afs_wire::ids::{AfsTime, SecurityLevel, VnodeNumber};

/// A tag alone.
const TAG: u64 = 1;
/// A tag and a byte, a 16-bit and a 32-bit number.
const BYTE: u64 = TAG + 1;
const SHORT: u64 = TAG + 2;
const LONG: u64 = TAG + 4;
/// An access list, as it is in memory.
const ACL: u64 = TAG + 192;
/// Files of this size and above have their length in two words.
const LARGE: u64 = 1 << 32;
/// Vnodes that are asked for at once.
const BATCH: usize = 1024;

/// Bytes of a dump of what has changed since `from`; 0 is everything.
pub(super) fn dump_size(volume: &Volume, from: AfsTime) -> Result<u64, VolumeError> {
    let mut bytes = frame(&volume.header());
    let mut next = 1;
    loop {
        let vnodes = volume.vnodes(VnodeNumber(next), BATCH)?;
        let Some(last) = vnodes.last() else { return Ok(bytes) };
        bytes += vnodes.iter().map(|status| vnode(status, from)).sum::<u64>();
        let Some(after) = last.id.vnode.0.checked_add(1) else { return Ok(bytes) };
        next = after;
    }
}

/// The header of the dump, that of the volume, and the end.
fn frame(header: &VolumeHeader) -> u64 {
    let text = |text: &str| TAG + text.len() as u64 + 1;
    let info = &header.info;
    let dump = TAG + 8 + LONG + text(&info.name) + SHORT + 8;
    // i v u p c q m d f a o C A U E B D Z; s b t; n O M; W with its seven days.
    let volume = TAG
        + 18 * LONG
        + 3 * BYTE
        + text(&info.name)
        + text(&info.offline_message)
        + text("")
        + SHORT
        + 7 * 4;
    // With a mark before it.
    let level = if info.level == SecurityLevel::CLEAR { 0 } else { TAG + LONG };
    let schedule = if info.schedule.is_some() { TAG + 1 + 4 + 4 * 2 } else { 0 };
    let limit = if info.snapshot_limit_kib.is_some() { TAG + 1 + 4 + 4 } else { 0 };
    dump + volume + schedule + limit + level + TAG + 4
}

fn vnode(status: &VnodeStatus, from: AfsTime) -> u64 {
    let begin = TAG + 8;
    let is_directory = status.kind == Kind::Directory;
    if !is_directory && status.server_mod_time < from {
        return begin;
    }
    let group = if status.group.0 == 0 { 0 } else { LONG };
    // t; l b; v m a o p s.
    let attributes = BYTE + 2 * SHORT + 6 * LONG + group + if is_directory { ACL } else { 0 };
    let length = if status.length < LARGE { LONG } else { LONG + 4 };
    begin + attributes + length + status.length
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_volume::VnodeId;
    use afs_wire::ids::{DataVersion, Uniquifier, ViceId};

    fn status(kind: Kind, length: u64) -> VnodeStatus {
        let id = VnodeId { vnode: VnodeNumber(2), unique: Uniquifier(2) };
        VnodeStatus {
            id,
            kind,
            link_count: 1,
            length,
            data_version: DataVersion(1),
            author: ViceId(1),
            owner: ViceId(1),
            group: ViceId(0),
            mode: 0o644,
            parent: VnodeId::ROOT,
            client_mod_time: AfsTime(5),
            server_mod_time: AfsTime(5),
        }
    }

    #[test]
    fn a_vnode_takes_its_attributes_and_its_data() {
        assert_eq!(vnode(&status(Kind::File, 100), AfsTime(0)), 9 + 2 + 6 + 30 + 5 + 100);
        assert_eq!(vnode(&status(Kind::File, 100), AfsTime(6)), 9, "it has not changed since");
        assert_eq!(vnode(&status(Kind::Directory, 2048), AfsTime(6)), 9 + 2 + 6 + 30 + 193 + 5 + 2048);
        assert_eq!(vnode(&status(Kind::File, LARGE), AfsTime(0)) - LARGE, 9 + 2 + 6 + 30 + 9);
        let with_group = VnodeStatus { group: ViceId(7), ..status(Kind::File, 0) };
        assert_eq!(vnode(&with_group, AfsTime(0)), 9 + 2 + 6 + 35 + 5);
    }
}

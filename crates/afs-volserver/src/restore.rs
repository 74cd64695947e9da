//! A dump that fills a volume as it comes (Volume service notes 5.4). Blocks on the disk, and knows nothing of calls. The volume is what the
//! dump says when all of it has come, and otherwise what it was.

use afs_dump::{DumpError, Event, Reader, VnodeAttributes, VnodeKind, VnodeRecord, VolumeHeader};
use afs_volume::{Kind, Restore, Schedule, VnodeId, VnodeStatus, VolumeError, VolumeInfo, VolumeKind};
use afs_wire::ids::{Uniquifier, VnodeNumber, VolumeId};
use std::fmt;

use crate::service::UTILITY_IS_RUNNING;

/// Most bytes of a message that a volume has.
const MESSAGE_MAX: usize = 127;

/// The reason why a volume was not restored.
#[derive(Debug)]
pub(crate) enum RestoreFailed {
    /// The stream that came is no whole dump.
    Dump(DumpError),
    /// The volume cannot have it.
    Volume {
        /// The bytes of the dump that were read.
        offset: u64,
        error: VolumeError,
    },
}

impl fmt::Display for RestoreFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dump(error) => error.fmt(f),
            Self::Volume { offset, error } => write!(f, "before byte {offset} of the dump: {error}"),
        }
    }
}

/// The fields of the volume's header that are not the dump's (Volume service notes 5.4).
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) name: String,
    pub(crate) kind: VolumeKind,
    pub(crate) clone: VolumeId,
}

/// A restore that is going on.
pub(crate) struct Filler {
    reader: Reader,
    restore: Restore,
    header: VolumeHeader,
    identity: Identity,
    /// The file whose first bytes have come before, and how many.
    rest: Option<(VnodeNumber, u64)>,
}

impl Filler {
    pub(crate) fn new(restore: Restore, identity: Identity, rest: Option<(VnodeNumber, u64)>) -> Self {
        Self { reader: Reader::new(), restore, header: VolumeHeader::default(), identity, rest }
    }

    /// Keeps nothing of what came.
    pub(crate) fn give_up(self) {
        self.restore.give_up();
    }

    /// Takes the next bytes of the dump.
    pub(crate) fn feed(&mut self, mut input: &[u8]) -> Result<(), RestoreFailed> {
        loop {
            let offset = self.reader.offset();
            let restore = &mut self.restore;
            let Some(event) = self.reader.next(&mut input).map_err(RestoreFailed::Dump)? else {
                return Ok(());
            };
            let mut lacking = None;
            let taken = match event {
                Event::Dump(_) | Event::End => Ok(()),
                Event::Volume(header) => {
                    self.header = header.clone();
                    Ok(())
                }
                Event::Vnode(VnodeRecord { fid, attributes: None }) => restore.unchanged(fid.vnode),
                Event::Vnode(VnodeRecord { fid, attributes: Some(attributes) }) => {
                    let id = VnodeId { vnode: fid.vnode, unique: fid.unique };
                    lacking = self.rest.filter(|(vnode, _)| *vnode == fid.vnode).map(|(_, bytes)| bytes);
                    match lacking {
                        Some(bytes) => restore.rest_of_vnode(status(id, attributes), bytes),
                        None => {
                            restore.vnode(status(id, attributes), attributes.acl.clone().unwrap_or_default())
                        }
                    }
                }
                Event::Data(data) => restore.write(data),
            };
            taken.map_err(|error| RestoreFailed::Volume { offset, error })?;
            if let Some(bytes) = lacking {
                self.reader.lacks(bytes).map_err(RestoreFailed::Dump)?;
            }
        }
    }

    /// Ends the restore when all of the dump has come.
    pub(crate) fn finish(self) -> Result<(), RestoreFailed> {
        self.reader.finish().map_err(RestoreFailed::Dump)?;
        let offset = self.reader.offset();
        let info = info(self.restore.volume().header().info, &self.header, self.identity);
        let committed = self.restore.commit(info, self.header.next_unique);
        committed.map(drop).map_err(|error| RestoreFailed::Volume { offset, error })
    }
}

/// The header of a volume that has had one before.
fn info(before: VolumeInfo, header: &VolumeHeader, identity: Identity) -> VolumeInfo {
    let Identity { name, kind, clone } = identity;
    let mut offline_message = message(&header.offline_message);
    if offline_message == UTILITY_IS_RUNNING {
        // Of the volume that was dumped, at that time.
        offline_message.clear();
    }
    // A replica has the level of what was released. A dump of long ago takes no level from a volume.
    let level = match kind {
        VolumeKind::ReadWrite => header.level.max(before.level),
        VolumeKind::ReadOnly | VolumeKind::Backup | VolumeKind::Snapshot { .. } => header.level,
    };
    // The same of a schedule and a limit of snapshots, which are only a read-write volume's.
    let (schedule, snapshot_limit_kib) = match kind {
        VolumeKind::ReadWrite => (
            before.schedule.or(header.schedule.map(Schedule::of)),
            before.snapshot_limit_kib.or(header.snapshot_limit_kib),
        ),
        VolumeKind::ReadOnly | VolumeKind::Backup | VolumeKind::Snapshot { .. } => (None, None),
    };
    VolumeInfo {
        name,
        kind,
        clone,
        level,
        schedule,
        snapshot_limit_kib,
        owner: header.owner,
        account: header.account,
        max_quota_kib: header.max_quota_kib,
        min_quota_kib: header.min_quota_kib,
        creation_date: header.creation_date,
        access_date: header.access_date,
        update_date: header.update_date,
        expiration_date: header.expiration_date,
        backup_date: header.backup_date,
        in_service: header.in_service && header.blessed,
        offline_message,
        motd: message(&header.motd),
        // Its id's relatives, when this copy was made, who used it; and whether it is half-made, as long as nobody says that it is not
        // (`SetFlags`): one that was to replace another one is not to be found beside that after a start.
        ..before
    }
}

/// A message, as far as a volume can have it.
fn message(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let end = (0..=text.len().min(MESSAGE_MAX)).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    text[..end].to_owned()
}

fn status(id: VnodeId, attributes: &VnodeAttributes) -> VnodeStatus {
    VnodeStatus {
        id,
        kind: match attributes.kind {
            VnodeKind::File => Kind::File,
            VnodeKind::Directory => Kind::Directory,
            VnodeKind::Symlink => Kind::Symlink,
        },
        link_count: attributes.link_count.into(),
        length: attributes.length.unwrap_or(0),
        data_version: attributes.data_version,
        author: attributes.author,
        owner: attributes.owner,
        group: attributes.group,
        mode: attributes.mode & 0o7777,
        // The dump does not tell the uniquifier.
        parent: VnodeId { vnode: attributes.parent, unique: Uniquifier(0) },
        client_mod_time: attributes.client_mod_time,
        server_mod_time: attributes.server_mod_time,
    }
}

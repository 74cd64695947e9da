//! The lengths of files, which may differ from what there is of their data.

use crate::group;
use crate::keys::Part;
use crate::records::CHUNK;
use crate::records::{Layout, VnodeRecord};
use crate::{Volume, VolumeError};

/// The length that fits a file's data, so that all of them are shown. `None` if nobody can tell.
pub(super) fn length(volume: &Volume, record: &VnodeRecord) -> Result<Option<u64>, VolumeError> {
    let (status, number) = (&record.status, record.status.id.vnode);
    let found = match record.layout {
        Layout::Pages => return Ok(Some(status.length)),
        Layout::Inline => volume.part(number, Part::Inline).map(|row| row.map_or(0, |row| row.len() as u64)),
        Layout::Chunks => {
            let (store, group) = (&volume.shared.store, volume.group.id);
            group::chunks(store, group, number, volume.view(), 0..=u32::MAX).map(|chunks| {
                let ends = chunks.into_iter().filter_map(|(n, _, chunk)| {
                    let length = chunk.filter(|chunk| chunk.length > 0)?.length;
                    Some(u64::from(n) * CHUNK + u64::from(length))
                });
                ends.max().unwrap_or(0).max(status.length)
            })
        }
    };
    match found {
        Ok(length) => Ok(Some(length)),
        Err(VolumeError::Damaged { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

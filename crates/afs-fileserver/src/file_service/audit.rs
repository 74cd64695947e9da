//! The audit log's words for changes: the vnode, the name, and what is set. What callers send may be any bytes, and is written so that it is one
//! line of text.

use std::any::Any;
use std::fmt::Write;

use afs_wire::rxafs::{self, AfsStoreVolumeStatus, StoreVolumeMask};
use afs_wire::status::{AfsStoreStatus, StoreMask};

/// The words for the arguments of a change; nothing for other calls.
pub(super) fn words(args: &dyn Any) -> Option<String> {
    macro_rules! found {
        ($( $rpc:ident ($args:ident) => $words:expr; )*) => { $(
            if let Some($args) = args.downcast_ref::<rxafs::$rpc>() {
                return Some($words);
            }
        )* };
    }
    found! {
        OldStoreACL(a) => format!("{}: {}", a.fid, a.access_list.trim_ascii_end().escape_ascii());
        StoreACL(a) => format!("{}: {}", a.fid, a.access_list.trim_ascii_end().escape_ascii());
        SetVolumeStatus(a) => format!("volume {}{}", a.volume, of_volume(&a.status, [&a.name, &a.offline_message, &a.motd]));
        FlushCPS(a) => {
            let ids = a.ids.iter().map(|id| format!("user {id}"));
            let addresses = a.addrs.iter().map(|address| format!("host {address}"));
            ids.chain(addresses).collect::<Vec<_>>().join(", ")
        };
        StoreData(a) => stored(a.fid, a.pos.into(), a.length.into(), a.file_length.into(), &a.status);
        StoreData64(a) => stored(a.fid, a.pos, a.length, a.file_length, &a.status);
        StoreStatus(a) => format!("{}{}", a.fid, of_vnode(&a.status));
        RemoveFile(a) => format!("{} in {}", a.name.escape_ascii(), a.dir);
        CreateFile(a) => format!("{} in {}{}", a.name.escape_ascii(), a.dir, of_vnode(&a.status));
        Rename(a) => format!(
            "{} in {} to {} in {}", a.old_name.escape_ascii(), a.old_dir, a.new_name.escape_ascii(), a.new_dir
        );
        Symlink(a) => format!(
            "{} in {} to {}{}",
            a.name.escape_ascii(), a.dir, a.contents.escape_ascii(), of_vnode(&a.status)
        );
        Link(a) => format!("{} in {} to {}", a.name.escape_ascii(), a.dir, a.existing);
        MakeDir(a) => format!("{} in {}{}", a.name.escape_ascii(), a.dir, of_vnode(&a.status));
        RemoveDir(a) => format!("{} in {}", a.name.escape_ascii(), a.dir);
    }
    None
}

fn stored(
    fid: impl std::fmt::Display,
    from: u64,
    bytes: u64,
    length: u64,
    status: &AfsStoreStatus,
) -> String {
    format!("{fid}, {bytes} bytes from {from} on, its length becomes {length}{}", of_vnode(status))
}

/// The attributes that are set, if any.
fn of_vnode(status: &AfsStoreStatus) -> String {
    let mut text = String::new();
    let mut set = |bit, words: String| {
        if status.mask.contains(bit) {
            let _ = write!(text, ", {words}");
        }
    };
    set(StoreMask::MOD_TIME, format!("modified at {}", status.client_mod_time.0));
    set(StoreMask::OWNER, format!("owner {}", status.owner));
    set(StoreMask::GROUP, format!("group {}", status.group));
    set(StoreMask::MODE, format!("mode {:04o}", status.unix_mode_bits));
    text
}

/// What is set of a volume: quota and texts.
fn of_volume(status: &AfsStoreVolumeStatus, texts: [&[u8]; 3]) -> String {
    let mut text = String::new();
    if status.mask.contains(StoreVolumeMask::MAX_QUOTA) {
        let _ = write!(text, ", quota {} KiB", status.max_quota);
    }
    if status.mask.contains(StoreVolumeMask::MIN_QUOTA) {
        let _ = write!(text, ", reserved {} KiB", status.min_quota);
    }
    for (what, bytes) in ["name", "offline message", "message of the day"].into_iter().zip(texts) {
        if !bytes.is_empty() {
            let _ = write!(text, ", {what} {}", bytes.escape_ascii());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use afs_wire::ids::{AfsFid, AfsTime, VolumeId};
    use rxgen::xdr::XdrString;

    use super::*;

    #[test]
    fn changes_read_as_words_on_one_line() {
        let dir = AfsFid::root_of(VolumeId(7));
        let name = |text: &str| XdrString::new(text).unwrap();
        let mask = StoreMask::MODE | StoreMask::MOD_TIME;
        let status = AfsStoreStatus {
            mask,
            unix_mode_bits: 0o644,
            client_mod_time: AfsTime(9),
            ..AfsStoreStatus::default()
        };
        let made = rxafs::CreateFile { dir, name: name("a\nb"), status };
        assert_eq!(words(&made).unwrap(), "a\\nb in 7.1.1, modified at 9, mode 0644");
        let stored = rxafs::StoreData64 {
            fid: dir,
            status: AfsStoreStatus::default(),
            pos: 1,
            length: 2,
            file_length: 3,
        };
        assert_eq!(words(&stored).unwrap(), "7.1.1, 2 bytes from 1 on, its length becomes 3");
        assert_eq!(words(&rxafs::GetTime {}), None);
    }
}

//! The directories that a program will list next as it goes through a tree. `directory` decides whether a program
//! goes through a tree, and which of these directories are here already.

use afs_wire::directory::{Directory, Entry};
use afs_wire::ids::LocalFid;

/// Directories that are prefetched for a program that goes through a tree, in each of the orders in which programs do: by place
/// (`find`) and by name (`ls -R`). Each takes two round trips, and to read what is there hardly any.
const WALK_AHEAD: usize = 4;

/// Entries of a directory, beyond which what comes next by name is not looked for: it costs a look at all of them each time.
const WALK_ENTRIES_MAX: usize = 4000;

/// The directories that come after one in the directory that it is in, by place and by name.
pub(super) fn next_directories<B: AsRef<[u8]>>(siblings: &Directory<B>, listed: LocalFid) -> Vec<LocalFid> {
    let is_directory = |entry: &Entry<'_>| !entry.is_dot() && entry.fid.vnode.is_directory();
    let Some(own) = siblings.entries().take(WALK_ENTRIES_MAX).find(|entry| entry.fid == listed) else {
        return Vec::new();
    };
    let by_place = siblings.entries_from(own.next()).take(WALK_ENTRIES_MAX).filter(&is_directory);
    let mut next: Vec<_> = by_place.take(WALK_AHEAD).map(|entry| entry.fid).collect();
    let mut by_name: Vec<_> = siblings
        .entries()
        .take(WALK_ENTRIES_MAX)
        .filter(|entry| entry.name > own.name && is_directory(entry))
        .collect();
    by_name.sort_unstable_by_key(|entry| entry.name);
    next.extend(by_name.iter().take(WALK_AHEAD).map(|entry| entry.fid));
    next.sort_unstable();
    next.dedup();
    next
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_wire::ids::{Uniquifier, VnodeNumber};

    /// Directories have odd numbers of vnodes.
    fn fid(vnode: u32) -> LocalFid {
        LocalFid { vnode: VnodeNumber(vnode), unique: Uniquifier(1) }
    }

    fn directory(entries: &[(&str, u32)]) -> Directory<Vec<u8>> {
        let mut directory = Directory::new(fid(1), fid(1));
        for &(name, vnode) in entries {
            directory.insert(name.as_bytes(), fid(vnode)).unwrap();
        }
        directory
    }

    #[test]
    fn those_that_follow_by_place_and_by_name_come_next_and_no_files() {
        let siblings = directory(&[("d", 3), ("a", 5), ("b", 7), ("file", 8), ("e", 9), ("c", 11)]);
        assert_eq!(next_directories(&siblings, fid(5)), [3, 7, 9, 11].map(fid));
        assert_eq!(next_directories(&siblings, fid(9)), [11].map(fid), "the last by name, then c by place");
        assert_eq!(next_directories(&siblings, fid(13)), [], "it is not there any more");
    }

    #[test]
    fn no_more_are_prefetched_than_a_few_in_each_order() {
        let names: Vec<_> = (0..40u32).map(|n| (format!("{:02}", n * 7 % 40), 2 * n + 3)).collect();
        let entries: Vec<_> = names.iter().map(|(name, vnode)| (&**name, *vnode)).collect();
        let next = next_directories(&directory(&entries), fid(3));
        assert!((WALK_AHEAD..=2 * WALK_AHEAD).contains(&next.len()), "{next:?}");
    }
}

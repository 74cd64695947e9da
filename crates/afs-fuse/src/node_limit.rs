//! Keeps the number of nodes bounded. The kernel keeps what it has looked up for as long as the machine has memory to
//! spare, and each node costs us some. Beyond the bound, the kernel is asked to let go of the nodes that it has asked
//! us about least of late. It says by FORGET what it lets go of, and looks that up again when a program comes by.
//!
//! Kernels before Linux 6.18 cannot be asked that. There the names of closed files are taken from the kernel, and the
//! files go with their names. Directories stay, as a program whose current folder went would find itself nowhere. While
//! something is mounted below, nothing is taken, as it might be mounted on a file.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fuse_dev::{NodeId, Notifier};

use crate::file_system::FileSystem;
use crate::kernel_locks::KernelLocks;
use crate::nodes::{Forget, Unused};

/// Nodes of one turn: some 100 microseconds of the kernel's time.
const AT_ONCE: usize = 512;

/// The room that is made free in addition when there are too many nodes, as one part in so many of the bound, so that
/// it is not done for each new node.
const MORE_ROOM: usize = 16;

/// The first pause when the kernel has let go of none, and the longest: all that it has may be in use.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(1));

/// Runs until it is dropped.
pub(crate) async fn keep_bounded(fs: Arc<FileSystem>, mount: PathBuf) {
    let nodes = &fs.nodes;
    let mut pause = PAUSE.0;
    loop {
        if nodes.len() <= nodes.limit() {
            nodes.over_limit.notified().await;
        }
        let goal = nodes.limit() - nodes.limit() / MORE_ROOM;
        while nodes.len() > goal {
            let before = nodes.len();
            let (of, at) = (Arc::clone(&fs), mount.clone());
            // A notice may have to wait for a lock of the kernel's.
            let told = tokio::task::spawn_blocking(move || {
                let unused = of.nodes.least_used(AT_ONCE);
                let_go(&of.notifier, &of.in_flight.locks, &unused, || has_mounts_below(&at))
            });
            match told.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "the kernel was not asked to let go of files"),
                Err(_) => return,
            }
            // What it lets go of it says by and by.
            tokio::time::sleep(pause).await;
            pause = if nodes.len() < before { PAUSE.0 } else { (pause * 2).min(PAUSE.1) };
        }
    }
}

fn let_go(
    notifier: &Notifier,
    locks: &KernelLocks,
    unused: &[Unused],
    is_risky: impl FnOnce() -> bool,
) -> io::Result<()> {
    if notifier.can_prune() {
        let ids: Vec<NodeId> = unused.iter().map(|unused| unused.id).collect();
        return notifier.prune(&ids);
    }
    if is_risky() {
        return Err(io::Error::other("something is mounted below"));
    }
    for (dir, name) in names_of_files(unused) {
        locks.wait(&Forget::Name(dir, name.to_vec()));
        notifier.drop_name(dir, OsStr::from_bytes(name))?;
    }
    Ok(())
}

fn names_of_files(unused: &[Unused]) -> impl Iterator<Item = (NodeId, &[u8])> {
    let files = unused.iter().filter(|unused| !unused.is_directory);
    files.flat_map(|unused| unused.places.iter().map(|(dir, name)| (*dir, name.as_slice())))
}

fn has_mounts_below(mount: &Path) -> bool {
    let mounts = fuse_dev::mount_points();
    // Where it cannot be known, it is taken to be so.
    mounts.map_or(true, |mounts| mounts.iter().any(|m| m.path != mount && m.path.starts_with(mount)))
}

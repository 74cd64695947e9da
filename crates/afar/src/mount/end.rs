//! How a mount ends: by order, because somebody has unmounted it, or because somebody has cut its connection to the kernel. The last of these
//! takes the cells away from everybody without anybody having wanted that, so they are to come back.

use afs_fuse::Mount;
use std::path::Path;
use std::time::Duration;

/// The interval at which it is checked whether the mount is over.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Looks after which a mount that is over and still listed was not unmounted: `umount -f` cuts the connection first, and then unmounts.
const LOOKS: u32 = 10;

/// The end of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The process was told to stop.
    Told,
    /// Somebody has unmounted it.
    Unmounted,
    /// It is still there, and the kernel asks nothing any more.
    Cut,
}

/// Waits until a mount is over; says how it has ended.
pub(crate) async fn of(mount: &Mount) -> End {
    while !mount.is_over() {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    for _ in 0..LOOKS {
        if !mount.is_listed() {
            return End::Unmounted;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    End::Cut
}

/// What has happened to a mount that was [cut](End::Cut).
pub(crate) fn cut(path: &Path) -> String {
    format!(
        "{}: somebody has cut its connection to the kernel ('umount -f' of a mount in use and 'abort' below /sys/fs/fuse/connections do \
         that), so programs get 'Transport endpoint is not connected' there",
        path.display()
    )
}

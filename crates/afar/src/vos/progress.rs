//! The progress of a volume on its way, on a terminal: what comes here or goes from here, and what servers say of what they send to each
//! other.

use super::Vos;
use crate::progress::bar;
use afs_wire::afsvol::PACKET_BYTES;
use indicatif::ProgressBar;
use std::io::{self, IsTerminal};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::sleep;

/// The time between two questions to a server.
const ASK_EVERY: Duration = Duration::from_millis(300);

/// A bar that is there as long as this.
pub(super) struct Progress {
    bar: ProgressBar,
    task: Option<AbortHandle>,
}

impl Vos {
    /// A bar for so many bytes, if that is known. Nobody sees it where the standard error is no terminal, or is used for something else.
    pub(super) fn progress(&self, bytes: Option<u64>) -> Progress {
        Progress { bar: bar(bytes, self.has_bar()), task: None }
    }

    /// True if there is a terminal that shows nothing else.
    fn has_bar(&self) -> bool {
        !self.verbose && !self.json && io::stderr().is_terminal()
    }

    /// A bar for a volume that its server sends to others: the server is asked how much it has sent.
    pub(super) fn progress_of_sending(&self, server: Ipv4Addr, volume: u32, bytes: Option<u64>) -> Progress {
        let mut progress = self.progress(bytes);
        if self.has_bar() {
            let servers = Arc::clone(&self.volumes);
            let bar = progress.bar.clone();
            progress.task = Some(self.caller.beside(async move {
                loop {
                    sleep(ASK_EVERY).await;
                    let Ok(transactions) = servers.transactions(server).await else { continue };
                    let sending = transactions.iter().find(|transaction| {
                        transaction.volid.0 == volume
                            && transaction.last_proc_name.text().starts_with(b"Forward")
                    });
                    if let Some(sending) = sending.filter(|sending| sending.call_valid != 0) {
                        bar.set_position(u64::try_from(sending.transmit_next).unwrap_or(0) * PACKET_BYTES);
                    }
                }
            }));
        }
        progress
    }
}

impl Progress {
    /// Adds so many bytes to those that have come.
    pub(super) fn add(&self, bytes: usize) {
        self.bar.inc(bytes as u64);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
        self.bar.finish_and_clear();
    }
}

//! A file changes: which hosts are told at once, for which it is remembered, and what becomes of messages that are not answered. Who
//! was promised something of the file is in [`callbacks`](crate::callbacks).

use afs_wire::ids::AfsFid;
use rx_proto::time::Instant;

use super::host::Host;
use super::{Delivery, HostId, Hosts, Message, Outcome};

impl Hosts {
    /// The hosts have to be told that the file has changed. Returns whom to tell now, and what; for those that are known not
    /// to answer, it is remembered. Every message returned is to be reported with [`handle_break`](Self::handle_break).
    pub fn breaks(&mut self, hosts: &[HostId], fid: AfsFid) -> Vec<Delivery> {
        let mut deliveries = Vec::new();
        for id in hosts {
            let Some(host) = self.hosts.get_mut(id) else { continue };
            if host.reset_pending && host.down.is_some() {
                continue;
            }
            if host.down.is_some() {
                Self::delay(host, fid, self.limits.delayed_breaks);
                continue;
            }
            let message = if host.reset_pending { Message::Reset } else { Message::Break(vec![fid]) };
            deliveries.push(host.delivery(*id, message, false));
        }
        deliveries
    }

    /// Takes the outcome of a message of [`breaks`](Self::breaks). One that was not answered is remembered, and the host not
    /// waited for until it is heard of.
    pub fn handle_break(&mut self, now: Instant, delivery: &Delivery, outcome: Outcome) {
        let Some(host) = self.hosts.get_mut(&delivery.host) else { return };
        match (&delivery.message, outcome) {
            (Message::Break(fids), Outcome::NoAnswer) => {
                for fid in fids {
                    Self::delay(host, *fid, self.limits.delayed_breaks);
                }
                self.note_silence(now, delivery.host);
            }
            _ => drop(self.handle_delivery(now, delivery, outcome)),
        }
    }

    fn delay(host: &mut Host, fid: AfsFid, limit: usize) {
        if host.reset_pending {
            return;
        }
        host.delayed.insert(fid);
        if host.delayed.len() > limit {
            host.delayed.clear();
            host.reset_pending = true;
        }
    }
}

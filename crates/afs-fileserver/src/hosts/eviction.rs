//! Eviction of hosts when their table is nearly full: they are told first where that matters, and in an order in which a machine
//! that makes up thousands of clients loses its own before those of others.
//!
//! Below the limit by [`SPARE`] hosts are chosen to go: those that hold nothing at once, the others once they have been told to
//! forget. At the limit those that were chosen before and did not answer go untold: should they call again, they are new, and told
//! then.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;

use rx_proto::time::Instant;

use super::{HostId, Hosts};

/// The part of the table that is cleared at once, as choosing takes a look at all hosts; and that is left for those who come while others
/// are told.
const SPARE: usize = 16;

impl Hosts {
    /// Makes room before a host is added.
    pub(super) fn make_room(&mut self, now: Instant) {
        let limit = self.limits.hosts.max(1);
        let spare = (limit / SPARE).max(1);
        if self.hosts.len() >= limit {
            for id in self.first_to_go(spare) {
                self.forget(id);
            }
            self.until_look = 0;
        }
        if self.hosts.len() + spare < limit {
            self.until_look = 0;
            return;
        }
        if self.until_look > 0 {
            self.until_look -= 1;
            return;
        }
        self.until_look = spare / 4;
        for id in self.first_to_go(spare) {
            let host = self.hosts.get_mut(&id).expect("it was chosen from those that are there");
            if !host.holds_something() {
                self.forget(id);
            } else if !host.is_leaving {
                host.is_leaving = true;
                self.drop_promises(id);
                self.schedule(id, now);
            }
        }
    }

    /// Returns so many hosts in the order in which they go: those chosen before; those that their machine has too many of; those that
    /// hold nothing; those that were heard of least recently.
    fn first_to_go(&self, count: usize) -> Vec<HostId> {
        let mut hosts: Vec<_> = self
            .hosts
            .iter()
            .map(|(id, host)| (Reverse(host.holds_something()), Reverse(host.last_heard), *id))
            .collect();
        // The most worth keeping first, so that a machine's surplus is counted from there.
        hosts.sort_unstable();
        let mut machines: HashMap<IpAddr, usize> = HashMap::new();
        let mut order: Vec<_> = hosts
            .into_iter()
            .map(|(holds, heard, id)| {
                let host = &self.hosts[&id];
                let of_machine = machines.entry(host.address.ip()).or_default();
                *of_machine += 1;
                let surplus = of_machine.saturating_sub(self.limits.same_machine);
                (Reverse(host.is_leaving), Reverse(surplus), Reverse(holds), Reverse(heard), id)
            })
            .collect();
        order.sort_unstable();
        order.into_iter().take(count).map(|(_, _, _, _, id)| id).collect()
    }
}

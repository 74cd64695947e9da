//! Which start of a client is alive. A change that an earlier one has asked for may come late, as it was on its way or has waited here, and
//! would undo what the client has done since. So when a start changes something that is not known to be alive, it has to show that it is, and from
//! then on all others have to, once. An address says nothing of that, and an epoch does not say which of two is the newer one.

use std::net::SocketAddr;

use rx_proto::ids::Epoch;

use super::{EPOCHS_MAX, Hosts};

impl Hosts {
    /// True if the client of this epoch at an address is known to be alive. The first that changes something is taken to be.
    pub fn is_alive(&mut self, address: SocketAddr, epoch: Epoch) -> bool {
        let host = self.by_address.get(&address).and_then(|id| self.hosts.get_mut(id));
        host.is_none_or(|host| {
            if host.alive.is_empty() {
                host.alive.push(epoch);
            }
            host.alive.contains(&epoch)
        })
    }

    /// The client of this epoch at an address has shown that it is alive.
    pub fn note_alive(&mut self, address: SocketAddr, epoch: Epoch) {
        let host = self.by_address.get(&address).and_then(|id| self.hosts.get_mut(id));
        let Some(host) = host.filter(|host| !host.alive.contains(&epoch)) else { return };
        let formerly = &mut host.formerly_alive;
        match formerly.iter().position(|former| *former == epoch) {
            // There are several, as behind a translator of addresses.
            Some(place) => drop(formerly.remove(place)),
            None => {
                formerly.append(&mut host.alive);
                formerly.drain(..formerly.len().saturating_sub(EPOCHS_MAX));
            }
        }
        host.alive.push(epoch);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{HostLimits, Identity};
    use super::*;
    use rx_proto::time::Instant;

    #[test]
    fn after_a_new_start_an_earlier_one_has_to_show_once_that_it_is_alive() {
        let address = SocketAddr::from(([10, 0, 0, 1], 7001));
        let [one, two, three] = [1, 2, 3].map(Epoch);
        let mut hosts = Hosts::new(HostLimits::default());
        assert!(hosts.is_alive(address, two), "nothing is known of this address");
        let identity = Identity { uuid: None, capabilities: 0 };
        hosts.handle_call(Instant::ORIGIN, address, one);
        hosts.handle_identity(Instant::ORIGIN, address, one, Some(identity));
        assert!(hosts.is_alive(address, one) && !hosts.is_alive(address, two));
        hosts.note_alive(address, two);
        assert!(hosts.is_alive(address, two) && !hosts.is_alive(address, one));
        hosts.note_alive(address, one);
        assert!(hosts.is_alive(address, one) && hosts.is_alive(address, two), "there are two");
        hosts.note_alive(address, three);
        let are_alive = [one, two, three].map(|epoch| hosts.is_alive(address, epoch));
        assert_eq!(are_alive, [false, false, true]);
    }
}

//! What goes wrong with a cell over an etcd: members and servers that die, hang, are slow, and do not reach each other, one at a time or
//! together.

use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;

use super::EtcdCell;
pub(crate) use crate::mounted::number;

/// The faults of members that have networks of their own: all that there can be here, before one comes again.
#[derive(Debug, Default)]
pub(crate) struct Apart {
    slows_networks: bool,
    slows_disks: bool,
    left: Vec<usize>,
}

impl Apart {
    pub(crate) fn new(slows_networks: bool, slows_disks: bool) -> Self {
        Self { slows_networks, slows_disks, left: Vec::new() }
    }

    fn next(&mut self, random: &mut StdRng) -> usize {
        if self.left.is_empty() {
            let can_be = |kind: &usize| match kind {
                0..4 => true,
                4 | 5 => self.slows_networks,
                _ => self.slows_disks,
            };
            self.left = (0..8).filter(can_be).collect();
        }
        self.left.swap_remove(random.random_range(0..self.left.len()))
    }
}

impl EtcdCell {
    /// One fault, and its end.
    pub(crate) async fn fault(&mut self, random: &mut StdRng) {
        let seconds = Duration::from_millis(random.random_range(500..4000));
        let (member, server) = (random.random_range(0..3), random.random_range(0..3));
        let kind = random.random_range(if self.ways.is_empty() { 0..9 } else { 0..12 });
        println!("fault {kind}: member {member}, server {server}, {seconds:?}");
        match kind {
            0 => {
                self.etcd.kill(member);
                tokio::time::sleep(seconds).await;
                self.etcd.restart(member);
            }
            1 => {
                self.etcd.stop(member, true);
                tokio::time::sleep(seconds).await;
                self.etcd.stop(member, false);
            }
            2 => {
                self.kill(server);
                tokio::time::sleep(seconds).await;
                self.start(server);
            }
            3 => {
                self.servers[server].as_ref().unwrap().signal("STOP");
                tokio::time::sleep(seconds).await;
                self.servers[server].as_ref().unwrap().signal("CONT");
            }
            // The leader, so that there is an election, with a server.
            4 => {
                let leader = self.etcd.leader().unwrap_or(member);
                self.etcd.kill(leader);
                self.kill(server);
                tokio::time::sleep(seconds).await;
                self.start(server);
                self.etcd.restart(leader);
            }
            5 => {
                let leader = self.etcd.leader().unwrap_or(member);
                self.etcd.stop(leader, true);
                self.servers[server].as_ref().unwrap().signal("STOP");
                tokio::time::sleep(seconds).await;
                self.servers[server].as_ref().unwrap().signal("CONT");
                tokio::time::sleep(seconds / 2).await;
                self.etcd.stop(leader, false);
            }
            // A member whose disk, network and processor are slow: it runs a quarter of the time, in pieces.
            6 => {
                let leader = self.etcd.leader().unwrap_or(member);
                for _ in 0..seconds.as_millis() / 200 {
                    self.etcd.stop(leader, true);
                    tokio::time::sleep(Duration::from_millis(150)).await;
                    self.etcd.stop(leader, false);
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
            // A server that is as slow.
            7 => {
                for _ in 0..seconds.as_millis() / 200 {
                    self.servers[server].as_ref().unwrap().signal("STOP");
                    tokio::time::sleep(Duration::from_millis(150)).await;
                    self.servers[server].as_ref().unwrap().signal("CONT");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
            // A server without a way to etcd.
            9 => {
                self.ways[server].iter().for_each(|way| way.cut(true));
                tokio::time::sleep(seconds).await;
                self.ways[server].iter().for_each(|way| way.cut(false));
            }
            // A member that no server has a way to.
            10 => {
                self.ways.iter().for_each(|ways| ways[member].cut(true));
                tokio::time::sleep(seconds).await;
                self.ways.iter().for_each(|ways| ways[member].cut(false));
            }
            // A server far away from etcd.
            11 => {
                self.ways[server].iter().for_each(|way| way.slow_down(100));
                tokio::time::sleep(seconds).await;
                self.ways[server].iter().for_each(|way| way.slow_down(0));
            }
            // Two of three: nobody may change anything, and look-ups go on.
            _ => {
                let other = (member + 1) % 3;
                self.etcd.kill(member);
                self.etcd.stop(other, true);
                tokio::time::sleep(seconds).await;
                self.etcd.stop(other, false);
                self.etcd.restart(member);
            }
        }
    }

    /// A fault between the members of an etcd that have networks of their own, or of a member's network or disk, and its end. How many syncs
    /// were slow, if it was of a disk and long enough for some.
    pub(crate) async fn fault_apart(&mut self, random: &mut StdRng, faults: &mut Apart) -> Option<usize> {
        let seconds = Duration::from_millis(random.random_range(500..6000));
        let kind = faults.next(random);
        let leader = self.etcd.leader().unwrap_or_default();
        let (other, third) = ((leader + 1) % 3, (leader + 2) % 3);
        let one = random.random_range(0..3);
        let kilobits = random.random_range(50..1000);
        println!("fault {kind}: member {leader} leads, {seconds:?}");
        let cuts: &[(usize, usize)] = match kind {
            // The leader by itself, which clients reach: it must not take what it is the only one to know.
            0 => &[(leader, other), (other, leader), (leader, third), (third, leader)],
            // Two that only the third reaches.
            1 => &[(leader, other), (other, leader)],
            // A leader whose words get through, and who hears nothing.
            2 => &[(other, leader), (third, leader)],
            // No two of them.
            3 => &[(0, 1), (1, 0), (1, 2), (2, 1), (0, 2), (2, 0)],
            _ => &[],
        };
        cuts.iter().for_each(|(from, to)| self.etcd.cut(*from, *to, true));
        let far: &[usize] = match kind {
            4 => &[leader],
            5 => &[0, 1, 2],
            _ => &[],
        };
        far.iter().for_each(|member| self.etcd.slow_network(*member, Some(kilobits)).unwrap());
        let slow: &[usize] = match kind {
            6 => &[leader],
            7 => &[leader, one],
            _ => &[],
        };
        let mut members: Vec<usize> = slow.to_vec();
        members.dedup();
        let delay = Duration::from_millis(random.random_range(50..1500));
        let mut disks: Vec<_> =
            members.iter().map(|member| self.etcd.slow_disk(*member, delay).unwrap()).collect();
        tokio::time::sleep(seconds).await;
        let slow = (!disks.is_empty()).then(|| disks.iter_mut().map(|disk| disk.syncs()).sum());
        if let Some(slow) = slow {
            println!("{slow} syncs took {delay:?}");
        }
        drop(disks);
        far.iter().for_each(|member| self.etcd.slow_network(*member, None).unwrap());
        cuts.iter().for_each(|(from, to)| self.etcd.cut(*from, *to, false));
        // One that has not ended is not counted.
        slow.filter(|_| seconds >= 3 * delay)
    }
}

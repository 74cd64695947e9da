//! The search for a cell's database servers: what is asked, and what the answers mean. A question that no name server answers, or that one
//! fails at, does not end it: old ones and filters refuse SRV, and know AFSDB.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use futures_util::future::join_all;

use crate::order::{Host, ordered};
use crate::{Answer, Kind, NoAnswer, Question, Record, Resolver};

/// A service that a cell has (RFC 5864).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// The location of volumes.
    Location,
    /// The protection database. A cell that does not list its servers has them beside those of the locations, at the usual port.
    Protection,
}

impl Service {
    /// The name at which a cell lists the servers.
    const fn name(self) -> &'static str {
        match self {
            Self::Location => "_afs3-vlserver._udp",
            Self::Protection => "_afs3-prserver._udp",
        }
    }

    /// The port at which its servers usually are, in cells of OpenAFS's and ours.
    pub const fn usual_port(self) -> u16 {
        match self {
            Self::Location => 7003,
            Self::Protection => 7002,
        }
    }
}

/// The AFSDB subtype of AFS.
const AFS: u16 = 1;

/// Hosts of a cell that are looked at, and addresses of each.
const HOSTS_MAX: usize = 16;
const ADDRESSES_MAX: usize = 8;
/// Servers of a cell, as many as OpenAFS knows: a zone that anybody may make should not fill the client's tables.
const SERVERS_MAX: usize = 8;

/// The shortest and the longest time for which servers are kept, whatever the DNS says: a look-up for each call would help nobody, and
/// a wrong entry must pass.
const LIFE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(7 * 24 * 3600));

/// A database server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DbSocket {
    /// The address of the service.
    pub socket: SocketAddrV4,
    /// Its place in the order in which servers are to be asked, from 0. Those of one place are equal to the site.
    pub place: u16,
}

/// The DNS's answer about a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellServers {
    /// Its servers, in order; at least one.
    pub servers: Vec<DbSocket>,
    /// The time for which that counts.
    pub life: Duration,
}

/// The reason why a cell was not found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotFound {
    /// The DNS says that there is no such cell.
    Missing,
    /// The DNS does not answer, or says that it cannot tell.
    Silent(NoAnswer),
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// These are to be asked, best at once; each answer goes to [`Search::handle_answer`].
    Ask(Vec<Question>),
    /// It has ended: see [`Search::servers`].
    Done,
}

/// The search for a cell's servers: SRV of the service, without any that of the location service, then AFSDB, and then the hosts' addresses.
///
/// Call [`Self::step`] and answer what it asks until it says that it is done, then [`Self::servers`].
#[derive(Debug)]
pub struct Search {
    cell: String,
    service: Service,
    default_port: u16,
    stage: Stage,
    hosts: Vec<Host>,
    addresses: BTreeMap<String, Option<Vec<Ipv4Addr>>>,
    ttl_seconds: u32,
    silent: Option<NoAnswer>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Srv(Service),
    Afsdb,
    Addresses,
    Done,
}

impl Search {
    /// The search for a cell; `default_port` is where the servers of records listen that have no port for the service.
    pub fn new(cell: &str, service: Service, default_port: u16) -> Self {
        Self {
            cell: cell.trim_end_matches('.').to_ascii_lowercase(),
            service,
            default_port,
            stage: Stage::Srv(service),
            hosts: Vec::new(),
            addresses: BTreeMap::new(),
            ttl_seconds: u32::MAX,
            silent: None,
        }
    }

    /// Returns the next step.
    pub fn step(&self) -> Step {
        let one = |name, kind| Step::Ask(vec![Question { name, kind }]);
        match self.stage {
            Stage::Srv(service) => one(format!("{}.{}", service.name(), self.cell), Kind::Srv),
            Stage::Afsdb => one(self.cell.clone(), Kind::Afsdb),
            Stage::Addresses => {
                let open = self.addresses.iter().filter(|(_, known)| known.is_none());
                Step::Ask(
                    open.map(|(name, _)| Question { name: name.clone(), kind: Kind::Address }).collect(),
                )
            }
            Stage::Done => Step::Done,
        }
    }

    /// Takes the answer to a question of the present step.
    pub fn handle_answer(&mut self, question: &Question, answer: Result<Answer, NoAnswer>) {
        let answer = match answer {
            Ok(answer) => answer,
            Err(silent) => {
                self.silent.get_or_insert(silent);
                match (self.stage, question.kind) {
                    (Stage::Addresses, Kind::Address) => self.note_addresses(&question.name, Vec::new()),
                    (Stage::Srv(service), Kind::Srv) => self.stage = after(service),
                    (_, Kind::Srv | Kind::Afsdb | Kind::Address) => self.stage = Stage::Done,
                }
                return;
            }
        };
        if !answer.records.is_empty() {
            self.ttl_seconds = self.ttl_seconds.min(answer.ttl_seconds);
        }
        let records = answer.records.into_iter();
        match question.kind {
            Kind::Srv => {
                let Stage::Srv(asked) = self.stage else { return };
                if records.len() == 0 {
                    self.stage = after(asked);
                    return;
                }
                // Of another service the hosts count, and not its port.
                let other_port = (asked != self.service).then_some(self.default_port);
                self.begin_addresses(records.filter_map(|record| match record {
                    Record::Srv { priority, weight, port, target } if port != 0 && !target.is_empty() => {
                        let (port, name) = (other_port.unwrap_or(port), target.to_ascii_lowercase());
                        Some(Host { priority, weight, port, name })
                    }
                    Record::Srv { .. } | Record::Afsdb { .. } | Record::Address(_) => None,
                }));
            }
            Kind::Afsdb => {
                let port = self.default_port;
                self.begin_addresses(records.filter_map(|record| match record {
                    Record::Afsdb { subtype: AFS, host } if !host.is_empty() => {
                        Some(Host { priority: 0, weight: 0, port, name: host.to_ascii_lowercase() })
                    }
                    Record::Srv { .. } | Record::Afsdb { .. } | Record::Address(_) => None,
                }));
            }
            Kind::Address => {
                let addresses = records.filter_map(|record| match record {
                    Record::Address(address) if is_usable(address) => Some(address),
                    Record::Srv { .. } | Record::Afsdb { .. } | Record::Address(_) => None,
                });
                self.note_addresses(&question.name, addresses.take(ADDRESSES_MAX).collect());
            }
        }
    }

    fn begin_addresses(&mut self, hosts: impl Iterator<Item = Host>) {
        let mut hosts: Vec<_> = hosts.collect();
        hosts.sort_by_key(|host| host.priority);
        hosts.truncate(HOSTS_MAX);
        self.addresses = hosts.iter().map(|host| (host.name.clone(), None)).collect();
        self.stage = if hosts.is_empty() { Stage::Done } else { Stage::Addresses };
        self.hosts = hosts;
    }

    fn note_addresses(&mut self, name: &str, addresses: Vec<Ipv4Addr>) {
        if let Some(known) = self.addresses.get_mut(name) {
            *known = Some(addresses);
        }
        if self.addresses.values().all(Option::is_some) {
            self.stage = Stage::Done;
        }
    }

    /// Returns what was found, once it is done. `below(n)` is a number less than n, by chance.
    ///
    /// # Errors
    ///
    /// Why nothing was.
    pub fn servers(self, below: &mut dyn FnMut(u32) -> u32) -> Result<CellServers, NotFound> {
        let mut servers: Vec<DbSocket> = Vec::new();
        for (place, host) in ordered(self.hosts, below) {
            for &address in self.addresses.get(&host.name).into_iter().flatten().flatten() {
                let socket = SocketAddrV4::new(address, host.port);
                if servers.len() < SERVERS_MAX && servers.iter().all(|known| known.socket != socket) {
                    servers.push(DbSocket { socket, place });
                }
            }
        }
        match self.silent {
            _ if !servers.is_empty() => {
                let life = Duration::from_secs(self.ttl_seconds.into()).clamp(LIFE.0, LIFE.1);
                Ok(CellServers { servers, life })
            }
            Some(silent) => Err(NotFound::Silent(silent)),
            None => Err(NotFound::Missing),
        }
    }
}

/// The next question when there are no records of a service.
fn after(service: Service) -> Stage {
    match service {
        Service::Protection => Stage::Srv(Service::Location),
        Service::Location => Stage::Afsdb,
    }
}

/// True if a server can be there. Loopback addresses count: cells for trying are there.
fn is_usable(address: Ipv4Addr) -> bool {
    !(address.is_unspecified() || address.is_multicast() || address.is_broadcast())
}

/// Looks the servers of a cell up; `default_port` is where those listen whose port the DNS does not say. `below(n)` is a number less than n, by
/// chance.
///
/// # Errors
///
/// Why there are none.
pub async fn look_up(
    resolver: &dyn Resolver,
    cell: &str,
    (service, default_port): (Service, u16),
    below: &mut (dyn FnMut(u32) -> u32 + Send),
) -> Result<CellServers, NotFound> {
    let mut search = Search::new(cell, service, default_port);
    while let Step::Ask(questions) = search.step() {
        let asked = questions.into_iter().map(|question| async {
            let answer = resolver.ask(question.clone()).await;
            (question, answer)
        });
        for (question, answer) in join_all(asked).await {
            search.handle_answer(&question, answer);
        }
    }
    search.servers(below)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn srv(priority: u16, weight: u16, port: u16, target: &str) -> Record {
        Record::Srv { priority, weight, port, target: target.to_owned() }
    }

    fn afsdb(subtype: u16, host: &str) -> Record {
        Record::Afsdb { subtype, host: host.to_owned() }
    }

    fn address(last: u8) -> Record {
        Record::Address(Ipv4Addr::new(192, 0, 2, last))
    }

    type Scripted = (&'static str, Result<(u32, Vec<Record>), &'static str>);

    /// Returns the result of a search with these answers, by question; all else has none. Also returns the questions, in order.
    fn search(script: Vec<Scripted>) -> (Result<CellServers, NotFound>, Vec<String>) {
        search_for(Service::Location, script)
    }

    fn search_for(service: Service, script: Vec<Scripted>) -> (Result<CellServers, NotFound>, Vec<String>) {
        let mut asked = Vec::new();
        let mut search = Search::new("One.Test", service, service.usual_port());
        while let Step::Ask(questions) = search.step() {
            for question in questions {
                let text = question.to_string();
                let answer = match script.iter().find(|(about, _)| *about == text) {
                    Some((_, Ok((ttl_seconds, records)))) => {
                        Ok(Answer { records: records.clone(), ttl_seconds: *ttl_seconds })
                    }
                    Some((_, Err(why))) => Err(NoAnswer((*why).to_owned())),
                    None => Ok(Answer::default()),
                };
                search.handle_answer(&question, answer);
                asked.push(text);
            }
        }
        (search.servers(&mut |_| 0), asked)
    }

    fn server(place: u16, last: u8, port: u16) -> DbSocket {
        DbSocket { socket: SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, last), port), place }
    }

    const SRV: &str = "SRV of _afs3-vlserver._udp.one.test";
    const PR_SRV: &str = "SRV of _afs3-prserver._udp.one.test";

    #[test]
    fn srv_records_give_servers_by_priority_with_their_ports_for_the_shortest_time() {
        let (found, asked) = search(vec![
            (SRV, Ok((600, vec![srv(20, 0, 7003, "b.one.test"), srv(10, 0, 17003, "A.one.test")]))),
            ("A of a.one.test", Ok((300, vec![address(1), address(2)]))),
            ("A of b.one.test", Ok((900, vec![address(3)]))),
        ]);
        let servers = vec![server(0, 1, 17003), server(0, 2, 17003), server(1, 3, 7003)];
        assert_eq!(found, Ok(CellServers { servers, life: Duration::from_secs(300) }));
        assert_eq!(asked, [SRV, "A of a.one.test", "A of b.one.test"], "and no AFSDB");
    }

    #[test]
    fn without_srv_records_those_of_afsdb_count_that_are_of_afs() {
        let (found, asked) = search(vec![
            ("AFSDB of one.test", Ok((0, vec![afsdb(1, "a.one.test"), afsdb(2, "dce.one.test")]))),
            ("A of a.one.test", Ok((86_400, vec![address(1)]))),
        ]);
        let servers = vec![server(0, 1, 7003)];
        assert_eq!(found, Ok(CellServers { servers, life: LIFE.0 }), "a TTL of 0 does not ask each time");
        assert_eq!(asked, [SRV, "AFSDB of one.test", "A of a.one.test"]);
    }

    #[test]
    fn protection_servers_have_records_of_their_own_or_are_where_the_location_servers_are() {
        let of_vl = || (SRV, Ok((600, vec![srv(0, 0, 7103, "vl.one.test")])));
        let addresses = || {
            [
                ("A of pt.one.test", Ok((600, vec![address(1)]))),
                ("A of vl.one.test", Ok((600, vec![address(2)]))),
            ]
        };
        let found = |mut script: Vec<Scripted>| {
            script.extend(addresses());
            search_for(Service::Protection, script).0.map(|found| found.servers)
        };
        let own = (PR_SRV, Ok((600, vec![srv(0, 0, 7102, "pt.one.test")])));
        assert_eq!(found(vec![own, of_vl()]), Ok(vec![server(0, 1, 7102)]));
        assert_eq!(found(vec![of_vl()]), Ok(vec![server(0, 2, 7002)]), "the port is the other service's");
        assert_eq!(found(vec![(PR_SRV, Err("refused")), of_vl()]), Ok(vec![server(0, 2, 7002)]));
        let afsdb = ("AFSDB of one.test", Ok((600, vec![afsdb(1, "vl.one.test")])));
        assert_eq!(found(vec![afsdb]), Ok(vec![server(0, 2, 7002)]));
    }

    /// Old and filtering name servers do not know SRV, and say SERVFAIL, NOTIMP or REFUSED.
    #[test]
    fn a_cell_whose_srv_records_cannot_be_had_is_found_by_afsdb() {
        let (found, asked) = search(vec![
            (SRV, Err("ServerFailure")),
            ("AFSDB of one.test", Ok((600, vec![afsdb(1, "a.one.test")]))),
            ("A of a.one.test", Ok((600, vec![address(1)]))),
        ]);
        assert_eq!(found.map(|found| found.servers), Ok(vec![server(0, 1, 7003)]), "{asked:?}");
    }

    #[test]
    fn a_target_that_is_the_root_says_that_there_is_no_such_service() {
        let (found, asked) = search(vec![
            (SRV, Ok((600, vec![srv(0, 0, 0, "")]))),
            ("AFSDB of one.test", Ok((600, vec![afsdb(1, "a.one.test")]))),
        ]);
        assert_eq!((found, asked.len()), (Err(NotFound::Missing), 1));
    }

    #[test]
    fn a_name_that_is_no_cell_is_missing_after_two_questions() {
        let (found, asked) = search(vec![]);
        assert_eq!((found, asked.len()), (Err(NotFound::Missing), 2));
        let (found, _) = search(vec![(SRV, Ok((600, vec![srv(0, 0, 7003, "ghost.one.test")])))]);
        assert_eq!(found, Err(NotFound::Missing), "its host has no address");
    }

    #[test]
    fn silence_is_not_absence_and_one_address_is_enough() {
        let silent = |why: &str| Err(NotFound::Silent(NoAnswer(why.to_owned())));
        assert_eq!(search(vec![(SRV, Err("timeout"))]).0, silent("timeout"));
        assert_eq!(search(vec![("AFSDB of one.test", Err("refused"))]).0, silent("refused"));
        let hosts = || (SRV, Ok((600, vec![srv(0, 0, 7003, "a.one.test"), srv(1, 0, 7003, "b.one.test")])));
        let (found, _) = search(vec![
            hosts(),
            ("A of a.one.test", Err("timeout")),
            ("A of b.one.test", Ok((60, vec![address(2)]))),
        ]);
        assert_eq!(found.unwrap().servers, [server(1, 2, 7003)]);
        assert_eq!(search(vec![hosts(), ("A of b.one.test", Err("timeout"))]).0, silent("timeout"));
    }

    #[test]
    fn no_more_hosts_are_asked_about_than_a_few_the_best_first() {
        let many = (0..200).map(|number| srv(200 - number, 0, 7003, &format!("h{number}.one.test")));
        let (_, asked) = search(vec![(SRV, Ok((600, many.collect())))]);
        assert_eq!(asked.len(), 1 + HOSTS_MAX);
        assert!(asked.contains(&"A of h199.one.test".to_owned()), "{asked:?}");
    }

    #[test]
    fn a_cell_has_no_more_servers_than_openafs_would_know() {
        let hosts = (0..4).map(|number| srv(number, 0, 7003, &format!("h{number}.one.test")));
        let mut script = vec![(SRV, Ok((600, hosts.collect())))];
        let names = ["A of h0.one.test", "A of h1.one.test", "A of h2.one.test", "A of h3.one.test"];
        for (number, name) in (0..).zip(names) {
            script.push((name, Ok((600, (0..3).map(|n| address(10 * number + n)).collect()))));
        }
        let servers = search(script).0.unwrap().servers;
        let lasts: Vec<u8> = servers.iter().map(|server| server.socket.ip().octets()[3]).collect();
        assert_eq!(lasts, [0, 1, 2, 10, 11, 12, 20, 21], "the best of them");
    }
}

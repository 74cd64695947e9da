//! Questions and answers as bytes (RFC 1035). Whether an answer came from whom it should is left to `system`, which checks where it is
//! from, by which number, and that it is about what was asked.

use std::net::Ipv4Addr;

use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, QCLASS, QTYPE, RCODE, TYPE, header_buffer};

use crate::{Answer, Kind, NoAnswer, Question, Record};

/// CNAME records that are followed from one name to the next within an answer.
const ALIASES_MAX: usize = 8;

/// The least that a record takes: a name of one byte, type, class, time to live and length.
const RECORD_MIN_BYTES: usize = 11;

/// The message that a server sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Received {
    /// The answer.
    Answer(Answer),
    /// It does not fit into a datagram.
    Truncated,
    /// The server cannot tell.
    Failed(NoAnswer),
}

fn type_of(kind: Kind) -> TYPE {
    match kind {
        Kind::Srv => TYPE::SRV,
        Kind::Afsdb => TYPE::AFSDB,
        Kind::Address => TYPE::A,
    }
}

/// A question as it is sent, under a number. `None` for what cannot be a name.
pub(crate) fn encode(id: u16, question: &Question) -> Option<Vec<u8>> {
    let mut packet = Packet::new_query(id);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    let name = Name::new(&question.name).ok()?;
    let asked =
        simple_dns::Question::new(name, QTYPE::TYPE(type_of(question.kind)), QCLASS::CLASS(CLASS::IN), false);
    packet.questions.push(asked);
    packet.build_bytes_vec().ok()
}

/// Reads what came from a server; `None` if it is no answer to this question under this number.
pub(crate) fn decode(id: u16, question: &Question, bytes: &[u8]) -> Option<Received> {
    let counts = [
        header_buffer::questions(bytes).ok()?,
        header_buffer::answers(bytes).ok()?,
        header_buffer::name_servers(bytes).ok()?,
        header_buffer::additional_records(bytes).ok()?,
    ];
    // So that a few bytes do not have room made for many thousand records.
    let records: usize = counts[1..].iter().map(|&count| usize::from(count)).sum();
    if counts[0] != 1 || records * RECORD_MIN_BYTES > bytes.len() || header_buffer::id(bytes).ok()? != id {
        return None;
    }
    let flags = |flag| header_buffer::has_flags(bytes, flag).unwrap_or(false);
    if !flags(PacketFlag::RESPONSE) {
        return None;
    }
    if flags(PacketFlag::TRUNCATION) {
        return Some(Received::Truncated);
    }
    let packet = Packet::parse(bytes).ok()?;
    let asked = packet.questions.first()?;
    let is_same = text(&asked.qname)?.eq_ignore_ascii_case(&question.name)
        && asked.qtype == QTYPE::TYPE(type_of(question.kind));
    if !is_same {
        return None;
    }
    Some(match packet.rcode() {
        RCODE::NoError => Received::Answer(answer(question, &packet)),
        RCODE::NameError => Received::Answer(Answer::default()),
        other => Received::Failed(NoAnswer(format!("{other:?}"))),
    })
}

/// The records of the name that was asked for, and of what it is another name for.
fn answer(question: &Question, packet: &Packet<'_>) -> Answer {
    let mut name = question.name.clone();
    let mut ttl_seconds = u32::MAX;
    for _ in 0..ALIASES_MAX {
        let own = || {
            let is_own =
                |owner: &Name<'_>| text(owner).is_some_and(|owner| owner.eq_ignore_ascii_case(&name));
            packet.answers.iter().filter(move |record| is_own(&record.name) && record.class == CLASS::IN)
        };
        let mut records = Vec::new();
        for record in own() {
            if let Some(read) = record_of(question.kind, &record.rdata) {
                ttl_seconds = ttl_seconds.min(record.ttl);
                records.push(read);
            }
        }
        if !records.is_empty() {
            return Answer { records, ttl_seconds };
        }
        let alias = own().find_map(|record| match &record.rdata {
            RData::CNAME(alias) => Some((text(&alias.0)?, record.ttl)),
            _ => None,
        });
        let Some((target, ttl)) = alias else { break };
        ttl_seconds = ttl_seconds.min(ttl);
        name = target;
    }
    Answer::default()
}

fn record_of(kind: Kind, data: &RData<'_>) -> Option<Record> {
    match (kind, data) {
        (Kind::Srv, RData::SRV(srv)) => Some(Record::Srv {
            priority: srv.priority,
            weight: srv.weight,
            port: srv.port,
            target: text(&srv.target)?,
        }),
        (Kind::Afsdb, RData::AFSDB(afsdb)) => {
            Some(Record::Afsdb { subtype: afsdb.subtype, host: text(&afsdb.hostname)? })
        }
        (Kind::Address, RData::A(a)) => Some(Record::Address(Ipv4Addr::from_bits(a.address))),
        _ => None,
    }
}

/// A name as text, if it is one of letters, digits, `-` and `_`: nothing else names a host or a cell, and nothing needs quoting.
fn text(name: &Name<'_>) -> Option<String> {
    let mut text = String::new();
    for label in name.as_bytes() {
        if !label.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')) {
            return None;
        }
        if !text.is_empty() {
            text.push('.');
        }
        text.extend(label.iter().map(|&byte| char::from(byte)));
    }
    Some(text)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    use simple_dns::ResourceRecord;
    use simple_dns::rdata::{A, AFSDB, CNAME, SRV};

    pub(crate) fn question(kind: Kind, name: &str) -> Question {
        Question { name: name.to_owned(), kind }
    }

    /// An answer as a server makes it.
    pub(crate) fn reply(
        id: u16,
        question: &Question,
        records: &[(&'static str, u32, RData<'static>)],
    ) -> Vec<u8> {
        let sent = encode(id, question).unwrap();
        let mut packet = Packet::parse(&sent).unwrap().into_reply();
        for (name, ttl, data) in records {
            let name = Name::new(name).unwrap();
            packet.answers.push(ResourceRecord::new(name, CLASS::IN, *ttl, data.clone()));
        }
        packet.build_bytes_vec_compressed().unwrap()
    }

    fn srv() -> RData<'static> {
        let target = Name::new("db.one.test").unwrap();
        RData::SRV(SRV { priority: 1, weight: 2, port: 7003, target })
    }

    fn a(last: u8) -> RData<'static> {
        RData::A(A { address: Ipv4Addr::new(192, 0, 2, last).to_bits() })
    }

    #[test]
    fn answers_are_read_with_their_shortest_time() {
        let asked = question(Kind::Srv, "_afs3-vlserver._udp.one.test");
        let bytes = reply(7, &asked, &[("_AFS3-VLSERVER._udp.one.test", 300, srv())]);
        let srv = Record::Srv { priority: 1, weight: 2, port: 7003, target: "db.one.test".to_owned() };
        let read = Received::Answer(Answer { records: vec![srv], ttl_seconds: 300 });
        assert_eq!(decode(7, &asked, &bytes), Some(read));
        assert_eq!(decode(8, &asked, &bytes), None, "another question's");
        assert_eq!(decode(7, &question(Kind::Srv, "other.test"), &bytes), None);
        assert_eq!(decode(7, &asked, &encode(7, &asked).unwrap()), None, "no reply");
        let asked = question(Kind::Afsdb, "one.test");
        let afsdb = AFSDB { subtype: 1, hostname: Name::new("db.one.test").unwrap() };
        let bytes = reply(7, &asked, &[("one.test", 60, RData::AFSDB(afsdb))]);
        let afsdb = Record::Afsdb { subtype: 1, host: "db.one.test".to_owned() };
        let read = Received::Answer(Answer { records: vec![afsdb], ttl_seconds: 60 });
        assert_eq!(decode(7, &asked, &bytes), Some(read));
    }

    #[test]
    fn another_name_of_a_host_is_followed_and_records_of_others_do_not_count() {
        let asked = question(Kind::Address, "db.one.test");
        let alias = |to| RData::CNAME(CNAME(Name::new(to).unwrap()));
        let bytes = reply(
            7,
            &asked,
            &[("evil.test", 9, a(66)), ("db.one.test", 30, alias("x.one.test")), ("x.one.test", 90, a(1))],
        );
        let read = Answer { records: vec![Record::Address(Ipv4Addr::new(192, 0, 2, 1))], ttl_seconds: 30 };
        assert_eq!(decode(7, &asked, &bytes), Some(Received::Answer(read)));
        let bytes = reply(7, &asked, &[("db.one.test", 30, alias("db.one.test"))]);
        assert_eq!(decode(7, &asked, &bytes), Some(Received::Answer(Answer::default())), "it leads nowhere");
    }

    #[test]
    fn what_does_not_exist_what_is_cut_off_and_what_failed_are_told_apart() {
        let asked = question(Kind::Address, "db.one.test");
        let with = |change: &dyn Fn(&mut Packet<'_>)| {
            let sent = encode(7, &asked).unwrap();
            let mut packet = Packet::parse(&sent).unwrap().into_reply();
            change(&mut packet);
            decode(7, &asked, &packet.build_bytes_vec().unwrap())
        };
        let none = with(&|packet| *packet.rcode_mut() = RCODE::NameError);
        assert_eq!(none, Some(Received::Answer(Answer::default())));
        assert_eq!(with(&|packet| packet.set_flags(PacketFlag::TRUNCATION)), Some(Received::Truncated));
        let failed = with(&|packet| *packet.rcode_mut() = RCODE::ServerFailure);
        assert!(matches!(failed, Some(Received::Failed(_))), "{failed:?}");
    }

    #[test]
    fn damaged_answers_are_none_and_break_nothing() {
        let seed = 4;
        println!("seed {seed}");
        let mut chance = StdRng::seed_from_u64(seed);
        let asked = question(Kind::Srv, "_afs3-vlserver._udp.one.test");
        let good =
            reply(7, &asked, &[("_afs3-vlserver._udp.one.test", 300, srv()), ("db.one.test", 1, a(1))]);
        for _ in 0..200_000 {
            let mut bytes = good.clone();
            for _ in 0..chance.random_range(1..6) {
                let place = chance.random_range(0..bytes.len());
                bytes[place] = chance.random();
            }
            bytes.truncate(chance.random_range(0..=bytes.len()));
            drop(decode(7, &asked, &bytes));
        }
        let mut many = good;
        many[6..8].copy_from_slice(&[0xff, 0xff]);
        assert_eq!(decode(7, &asked, &many), None, "it cannot hold so many");
    }

    #[test]
    fn what_cannot_be_a_name_is_not_asked() {
        assert_eq!(encode(7, &question(Kind::Address, &"a".repeat(64))), None);
        assert_eq!(encode(7, &question(Kind::Address, &"a.".repeat(200))), None);
    }
}

//! The JSON that `rxdebug -json` prints: the same facts as the text. Records without ids and flags are taken over from
//! their tables in `rx_proto::debug`, field by field and under those names.

use super::{Facts, Failure, Query};
use rx_proto::debug::{
    ConnectionSide, DebugConnection, DebugKind, DebugPeer, SecurityKind, SecurityStats, Value as Field,
};
use serde_json::{Map, Value, json};
use std::net::SocketAddr;

/// The answer to `-version`.
pub(super) fn version(server: SocketAddr, version: &str) -> Value {
    json!({ "host": server.ip().to_string(), "port": server.port(), "version": version })
}

/// The other facts. A part that was not asked for, or that the server does not know, is missing.
pub(super) fn facts(query: &Query, facts: &Facts) -> Value {
    let mut all = Map::new();
    all.insert("host".into(), json!(query.address.ip().to_string()));
    all.insert("port".into(), json!(query.address.port()));
    let failed_at = facts.failure.as_ref().map(|failure| failure.kind);
    if failed_at != Some(DebugKind::STATS) {
        let mut stats = record(facts.stats.fields());
        stats.insert("version".into(), json!(facts.stats.version.0.escape_ascii().to_string()));
        all.insert("stats".into(), Value::Object(stats));
    }
    if let Some((statistics, _)) = &facts.statistics {
        all.insert("rx_statistics".into(), Value::Object(record(statistics.fields())));
    }
    if let Some(connections) = &facts.connections {
        all.insert("connections".into(), connections.iter().map(connection).collect());
        all.insert("skipped_dallying".into(), json!(facts.skipped));
    }
    if let Some(peers) = &facts.peers {
        all.insert("peers".into(), peers.iter().map(peer).collect());
    }
    if !facts.unsupported.is_empty() {
        let words = facts.unsupported.iter().map(|kind| json!(kind.word()));
        all.insert("unsupported".into(), words.collect());
    }
    if let Some(Failure { kind, error }) = &facts.failure {
        all.insert("error".into(), json!({ "question": kind.word(), "text": error.to_string() }));
    }
    Value::Object(all)
}

fn connection(c: &DebugConnection) -> Value {
    let calls = (0..c.call_number.len()).map(|channel| {
        json!({
            "number": c.call_number[channel].0,
            "state": word(c.call_state[channel].word(), c.call_state[channel].0),
            "mode": word(c.call_mode[channel].word(), c.call_mode[channel].0),
            "flags": words(c.call_flags[channel].words()),
            "queues": words(c.call_other[channel].words()),
        })
    });
    json!({
        "host": c.host.to_string(),
        "port": c.port,
        "epoch": format!("{:08x}", c.epoch.0),
        "cid": format!("{:08x}", c.cid.0),
        "side": match c.side {
            ConnectionSide::CLIENT => "client",
            _ => "server",
        },
        "serial": c.serial.0,
        "error": c.error.0,
        "nat_mtu": c.nat_mtu,
        "flags": words(c.flags.words()),
        "security_index": c.security_index.0,
        "security": security(&c.sec_stats),
        "calls": calls.collect::<Value>(),
    })
}

/// `null` if the class says nothing.
fn security(s: &SecurityStats) -> Value {
    if s.kind == SecurityKind::SILENT {
        return Value::Null;
    }
    let mut all = record(s.fields());
    all.insert("kind".into(), word(s.kind.word(), s.kind.0));
    all.insert("level".into(), word(s.level.word(), s.level.0));
    all.insert("flags".into(), words(s.flags.words()));
    Value::Object(all)
}

fn peer(p: &DebugPeer) -> Value {
    Value::Object(record(p.fields()))
}

fn record(fields: Vec<(&'static str, Field)>) -> Map<String, Value> {
    fields.into_iter().map(|(name, value)| (name.to_owned(), field(value))).collect()
}

fn field(value: Field) -> Value {
    match value {
        Field::Number(number) => json!(number),
        Field::Address(address) => json!(address.to_string()),
        Field::List(values) => values.into_iter().map(field).collect(),
        Field::Record(fields) => Value::Object(record(fields)),
    }
}

/// A number by its word, if it has one.
fn word(word: Option<&'static str>, number: u8) -> Value {
    word.map_or(json!(number), |word| json!(word))
}

fn words(words: impl Iterator<Item = &'static str>) -> Value {
    words.map(Value::from).collect()
}

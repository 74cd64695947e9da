//! The bodies of DEBUG and VERSION packets: what is read writes back as it was, as far as it was there; older layouts too.

use crate::shape::Shape;
use rx_proto::debug::{
    DebugConnection, DebugPeer, DebugRequest, DebugStats, DebugVersion, RxStatistics, VERSION_LEN,
    parse_version, version_body,
};

/// Layouts of a connection: none of the features, each that matters, and one of a future server.
const VERSIONS: [DebugVersion; 5] = [
    DebugVersion(0),
    DebugVersion::SECURITY_STATS,
    DebugVersion::ALIGNED_CONNECTIONS,
    DebugVersion::CURRENT,
    DebugVersion(255),
];

/// See the module.
pub fn run(input: &[u8]) -> u64 {
    let mut shape = Shape::EMPTY;
    if let Ok(question) = DebugRequest::parse(input) {
        assert_eq!(question.to_bytes(), input[..DebugRequest::LEN]);
        shape = shape.with(question.kind.word().map_or(0, |w| w.len() as u64));
    }
    if let Ok(stats) = DebugStats::parse(input) {
        check(input, DebugStats::LEN, |out| stats.encode(out));
        drop(format!("{stats:?} {:?}", stats.fields()));
        shape = shape.with(VERSIONS.iter().filter(|v| stats.version.has(**v)).count() as u64);
    }
    for version in VERSIONS {
        let Ok(connection) = DebugConnection::parse(input, version) else { continue };
        drop(format!("{connection:?} {:?}", connection.fields()));
        let mut out = Vec::new();
        connection.encode(version, &mut out);
        let again = DebugConnection::parse(&out, version).expect("we read what we write");
        if version.has(DebugVersion::ALIGNED_CONNECTIONS) {
            check(input, DebugConnection::LEN, |out| connection.encode(version, out));
            assert_eq!(again, connection);
        }
        assert_eq!((again.cid, again.call_other), (connection.cid, connection.call_other));
        shape =
            shape.with(u64::from(connection.is_end())).with(connection.call_state[0].word().is_some().into());
    }
    if let Ok(peer) = DebugPeer::parse(input) {
        check(input, DebugPeer::LEN, |out| peer.encode(out));
        drop(format!("{peer:?} {:?}", peer.fields()));
        shape = shape.with(u64::from(peer.is_end()));
    }
    if let Ok(statistics) = RxStatistics::parse(input) {
        check(input, RxStatistics::LEN, |out| statistics.encode(out));
        drop(format!("{statistics:?} {:?}", statistics.fields()));
    }
    let text = parse_version(input);
    assert_eq!(version_body(&text)[VERSION_LEN - 1], 0);
    shape.with_count(text.len()).with_count(input.len()).feature()
}

/// A record is as long as the layout of today says, begins as the input, and has zeros for what was not there.
fn check(input: &[u8], len: usize, encode: impl FnOnce(&mut Vec<u8>)) {
    let mut out = Vec::new();
    encode(&mut out);
    let there = input.len().min(len);
    assert_eq!(out.len(), len);
    assert_eq!(out[..there], input[..there]);
    assert!(out[there..].iter().all(|byte| *byte == 0));
}

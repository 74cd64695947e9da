//! The text that `rxdebug` prints. People's scripts read it, so it has the words, blanks and order of OpenAFS's
//! (observed: 1.8.9, against its own server and against one that plays every version letter). It differs where that one's numbers
//! come out wrong: file descriptors beyond 127 are not negative here, the timeout and skew of a peer are as the server
//! says, and the connections of servers before version `M` are read in the layout of those.

use super::filter::KAD;
use super::{Facts, Failure, Query};
use rx_proto::debug::{
    CallQueues, CallState, Clock, ConnectionSide, DebugConnection, DebugKind, DebugPeer, DebugStats,
    DebugVersion, PACKET_TYPES, RxStatistics, SecurityFlags, SecurityKind, SecurityStats,
};
use rx_proto::ids::Epoch;
use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

/// The packet types 1 to 13 as they are called in the statistics.
const TYPE_NAMES: [&str; PACKET_TYPES] = [
    "data",
    "ack",
    "busy",
    "abort",
    "ackall",
    "challenge",
    "response",
    "debug",
    "params",
    "unused",
    "unused",
    "unused",
    "version",
];

/// Warns on the standard error that the server does not know a question.
pub(super) fn warn(kind: DebugKind) {
    match kind {
        DebugKind::ANY_CONNECTION => eprintln!(
            "WARNING: Server doesn't support retrieval of all connections,\n         getting only interesting instead."
        ),
        DebugKind::RX_STATISTICS => eprintln!("WARNING: Server doesn't support retrieval of Rx statistics"),
        _ => eprintln!("WARNING: Server doesn't support retrieval of peers"),
    }
}

/// All that is printed behind the line "Trying".
pub(super) fn facts(query: &Query, facts: &Facts, now: SystemTime) -> String {
    let mut out = String::new();
    write_facts(&mut out, query, facts, now).expect("a String takes all");
    out
}

fn write_facts(out: &mut String, query: &Query, facts: &Facts, now: SystemTime) -> std::fmt::Result {
    let failed_at = facts.failure.as_ref().map(|Failure { kind, .. }| *kind);
    if failed_at == Some(DebugKind::STATS) {
        return writeln!(out, "getstats call failed with code -1");
    }
    let version = facts.stats.version;
    write_stats(out, &facts.stats)?;
    if let Some((statistics, len)) = &facts.statistics {
        if *len < RxStatistics::LEN {
            writeln!(out, "WARNING: returned Rx statistics of unexpected size (got {len})")?;
        }
        write_statistics(out, statistics, &facts.stats)?;
    }
    if failed_at == Some(DebugKind::RX_STATISTICS) {
        return writeln!(out, "rxstats call failed with code -1");
    }
    if let Some(connections) = &facts.connections {
        write_conditions(out, query)?;
        connections.iter().try_for_each(|one| write_connection(out, one, version, now))?;
        if matches!(failed_at, Some(DebugKind::CONNECTION | DebugKind::ANY_CONNECTION)) {
            return writeln!(out, "getconn call failed with code -1");
        }
        writeln!(out, "Done.")?;
        if query.filter.skips_dallying {
            writeln!(out, "Skipped {} dallying connections.", facts.skipped)?;
        }
    }
    if let Some(peers) = &facts.peers {
        peers.iter().try_for_each(|one| write_peer(out, one, query.is_long))?;
        if failed_at.is_some() {
            return writeln!(out, "getpeer call failed with code -1");
        }
        writeln!(out, "Done.")?;
    }
    Ok(())
}

fn write_stats(out: &mut String, s: &DebugStats) -> std::fmt::Result {
    write!(out, "Free packets: {}", s.n_free_packets)?;
    if s.version.has(DebugVersion::PACKETS) {
        write!(out, "/{}", s.n_packets)?;
    }
    let (reclaims, calls, fds) = (s.packet_reclaims, s.calls_executed, s.used_fds);
    writeln!(out, ", packet reclaims: {reclaims}, calls: {calls}, used FDs: {fds}")?;
    let not = if s.waiting_for_packets == 0 { "not " } else { "" };
    writeln!(out, "{not}waiting for packets.")?;
    if s.version.has(DebugVersion::WAITING) {
        writeln!(out, "{} calls waiting for a thread", s.n_waiting)?;
    }
    if s.version.has(DebugVersion::IDLE_THREADS) {
        writeln!(out, "{} threads are idle", s.idle_threads)?;
    }
    if s.version.has(DebugVersion::WAITED) {
        writeln!(out, "{} calls have waited for a thread", s.n_waited)?;
    }
    Ok(())
}

/// Most counters are printed without a sign: they wrap at 2³².
fn write_statistics(out: &mut String, s: &RxStatistics, stats: &DebugStats) -> std::fmt::Result {
    let u = |counter: i32| counter as u32;
    let (free, allocs) = (stats.n_free_packets, s.packet_requests);
    write!(out, "rx stats: free packets {free}, allocs {allocs}, alloc-failures(")?;
    let (rcv, send, ack) =
        (s.receive_pkt_alloc_failures, s.send_pkt_alloc_failures, s.special_pkt_alloc_failures);
    if stats.version.has(DebugVersion::PACKET_TYPES) {
        let (rcv_cbuf, send_cbuf) = (s.receive_cbuf_pkt_alloc_failures, s.send_cbuf_pkt_alloc_failures);
        writeln!(out, "rcv {}/{},send {}/{},ack {})", u(rcv), u(rcv_cbuf), u(send), u(send_cbuf), u(ack))?;
    } else {
        writeln!(out, "rcv {},send {},ack {})", u(rcv), u(send), u(ack))?;
    }
    let (greedy, bogus, host) = (u(s.socket_greedy), u(s.bogus_packet_on_read), s.bogus_host);
    write!(out, "   greedy {greedy}, bogusReads {bogus} (last from host {host:x}), ")?;
    let (none, no_buffers) = (u(s.no_packet_on_read), u(s.no_packet_buffers_on_read));
    write!(out, "noPackets {none}, noBuffers {no_buffers}, ")?;
    writeln!(out, "selects {}, sendSelects {}", u(s.selects), u(s.send_selects))?;
    write_by_type(out, "packets read", &s.packets_read)?;
    let (data, ack, dup) = (u(s.data_packets_read), u(s.ack_packets_read), u(s.dup_packets_read));
    write!(out, "   other read counters: data {data}, ack {ack}, dup {dup} ")?;
    writeln!(out, "spurious {} dally {}", u(s.spurious_packets_read), u(s.ignore_packet_dally))?;
    write_by_type(out, "packets sent", &s.packets_sent)?;
    let (ack, data, again) = (u(s.ack_packets_sent), u(s.data_packets_sent), u(s.data_packets_re_sent));
    write!(out, "   other send counters: ack {ack}, data {data} (not resends), resends {again}, ")?;
    writeln!(out, "pushed {}, acked&ignored {}", u(s.data_packets_pushed), u(s.ignore_acked_packet))?;
    let (refused, fatal) = (u(s.net_send_failures), u(s.fatal_errors));
    writeln!(out, "   \t(these should be small) sendFailed {refused}, fatalErrors {fatal}")?;
    if s.n_rtt_samples != 0 {
        let mean = s.total_rtt.seconds() / f64::from(s.n_rtt_samples);
        writeln!(out, "   Average rtt is {mean:.3}, with {} samples", s.n_rtt_samples)?;
        let (min, max) = (s.min_rtt.seconds(), s.max_rtt.seconds());
        writeln!(out, "   Minimum rtt is {min:.3}, maximum is {max:.3}")?;
    }
    let (servers, clients, peers) = (s.n_server_conns, s.n_client_conns, s.n_peer_structs);
    write!(out, "   {servers} server connections, {clients} client connections, {peers} peer structs, ")?;
    writeln!(out, "{} call structs, {} free call structs", s.n_call_structs, s.n_free_call_structs)
}

fn write_by_type(out: &mut String, title: &str, counters: &[i32; PACKET_TYPES]) -> std::fmt::Result {
    write!(out, "   {title}: ")?;
    for (name, counter) in TYPE_NAMES.iter().zip(counters) {
        write!(out, "{name} {} ", *counter as u32)?;
    }
    out.write_char('\n')
}

fn write_conditions(out: &mut String, query: &Query) -> std::fmt::Result {
    let filter = &query.filter;
    if filter.only_server {
        writeln!(out, "Showing only server connections")?;
    }
    if filter.only_client {
        writeln!(out, "Showing only client connections")?;
    }
    if let Some(auth) = filter.only_auth {
        writeln!(out, "Showing only {} connections", auth.word())?;
    }
    if let Some(host) = filter.only_host {
        writeln!(out, "Showing only connections from host {host}")?;
    }
    if let Some(port) = filter.only_port {
        writeln!(out, "Showing only connections on port {port}")?;
    }
    Ok(())
}

fn write_connection(
    out: &mut String,
    c: &DebugConnection,
    version: DebugVersion,
    now: SystemTime,
) -> std::fmt::Result {
    write!(out, "Connection from host {}, port {}, ", c.host, c.port)?;
    match c.epoch {
        Epoch(0) => write!(out, "cid {:x}", c.cid.0)?,
        Epoch(epoch) => write!(out, "Cuid {epoch:x}/{:x}", c.cid.0)?,
    }
    if c.error.0 != 0 {
        write!(out, ", error {}", c.error.0)?;
    }
    write!(out, "\n  serial {},  natMTU {}, ", c.serial.0 as i32, c.nat_mtu)?;
    if c.flags.0 != 0 {
        out.write_str("flags")?;
        c.flags.words().try_for_each(|word| write!(out, " {word}"))?;
        out.write_str(", ")?;
    }
    let side = if c.side == ConnectionSide::CLIENT { "client" } else { "server" };
    writeln!(out, "security index {}, {side} conn", c.security_index.0)?;
    if version.has(DebugVersion::SECURITY_STATS) {
        write_security(out, c, now)?;
    }
    (0..c.call_number.len()).try_for_each(|channel| write_call(out, c, channel))
}

fn write_security(out: &mut String, c: &DebugConnection, now: SystemTime) -> std::fmt::Result {
    let s: &SecurityStats = &c.sec_stats;
    match s.kind {
        SecurityKind::SILENT if c.security_index == KAD => {
            writeln!(out, "  no GetStats procedure for security object")
        }
        SecurityKind::SILENT => Ok(()),
        SecurityKind::NULL => writeln!(out, "  rxnull level={}, flags={}", s.level.0, s.flags.0),
        SecurityKind::VAB => writeln!(out, "  rxvab level={}, flags={}", s.level.0, s.flags.0),
        SecurityKind::KAD => {
            write!(out, "  rxkad: level {}", s.level.word().unwrap_or("unknown"))?;
            if s.flags.0 != 0 {
                out.write_str(", flags")?;
                s.flags.words().try_for_each(|word| write!(out, " {word}"))?;
            }
            if s.expires != 0 {
                let now = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
                let hours = (f64::from(s.expires) - now as f64) / 3600.0;
                write!(out, ", expires in {hours:.1} hours")?;
            }
            out.write_char('\n')?;
            if s.flags.contains(SecurityFlags::UNALLOCATED) {
                return Ok(());
            }
            writeln!(out, "  Received {} bytes in {} packets", s.bytes_received, s.packets_received)?;
            writeln!(out, "  Sent {} bytes in {} packets", s.bytes_sent, s.packets_sent)
        }
        _ => writeln!(out, "  unknown"),
    }
}

fn write_call(out: &mut String, c: &DebugConnection, channel: usize) -> std::fmt::Result {
    let state = c.call_state[channel];
    write!(out, "    call {channel}: # {}, state ", c.call_number[channel].0 as i32)?;
    if state == CallState::NOT_INITIALIZED {
        return writeln!(out, "not initialized");
    }
    if let Some(word) = state.word() {
        write!(out, "{word}, ")?;
    }
    write!(out, "mode: {}", c.call_mode[channel].word().unwrap_or("unknown"))?;
    let flags = c.call_flags[channel];
    if flags.0 != 0 {
        out.write_str(", flags:")?;
        flags.words().try_for_each(|word| write!(out, " {word}"))?;
    }
    let queues: CallQueues = c.call_other[channel];
    queues.words().try_for_each(|word| write!(out, ", {word}"))?;
    out.write_char('\n')
}

fn write_peer(out: &mut String, p: &DebugPeer, is_long: bool) -> std::fmt::Result {
    let halves = |bytes: u64| (bytes >> 32, bytes & 0xffff_ffff);
    writeln!(out, "Peer at host {}, port {}", p.host, p.port)?;
    writeln!(out, "\tifMTU {}\tnatMTU {}\tmaxMTU {}", p.if_mtu, p.nat_mtu, p.max_mtu)?;
    writeln!(out, "\tpackets sent {}\tpacket resends {}", p.n_sent as u32, p.re_sends as u32)?;
    let (high, low) = halves(p.bytes_sent);
    writeln!(out, "\tbytes sent high {high} low {low}")?;
    let (high, low) = halves(p.bytes_received);
    writeln!(out, "\tbytes received high {high} low {low}")?;
    writeln!(out, "\trtt {} msec, rtt_dev {} msec", (p.rtt >> 3) as u32, (p.rtt_dev >> 2) as u32)?;
    let Clock { sec, usec } = p.timeout;
    writeln!(out, "\ttimeout {}.{:03} sec", sec as u32, usec as u32 / 1000)?;
    if is_long {
        writeln!(out, "\tin/out packet skew: {}/{}", p.in_packet_skew, p.out_packet_skew)?;
        writeln!(out, "\tcongestion window {}, MTU {}", p.cwind, p.mtu)?;
        let (current, interface, max) = (p.n_dgram_packets, p.if_dgram_packets, p.max_dgram_packets);
        writeln!(out, "\tcurrent/if/max jumbogram size: {current}/{interface}/{max}")?;
    }
    Ok(())
}

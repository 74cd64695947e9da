//! The output of `cmdebug`, in the form of OpenAFS's.

use crate::dates::date_of;
use afs_wire::ids::HostAddr;
use afs_wire::rxafs::Capabilities;
use afs_wire::rxafscb::{AfsDbCacheEntry64, AfsDbLockDesc, InterfaceAddr};
use jiff::tz::TimeZone;
use std::net::Ipv4Addr;

/// The bits of a lock's states.
const READ: i8 = 1;
const WRITE: i8 = 2;
const SHARED: i8 = 4;

/// The kinds of entries, by number.
const KINDS: [&str; 7] = [
    "normal file",
    "mount point",
    "volume root",
    "directory",
    "symlink",
    "microsoft dfs link",
    "invalid link",
];

/// The meanings of the bits of an entry's states.
const STATES: [(i8, &str); 7] = [
    (1, "stat'd"),
    (2, "backup"),
    (4, "read-only"),
    (8, "mt pt valid"),
    (0x10, "pending core"),
    (0x40, "wait-for-store"),
    (-0x80, "mapped"),
];

/// True if a lock is held, or waited for.
pub(super) const fn is_locked(lock: &AfsDbLockDesc) -> bool {
    lock.wait_states != 0 || lock.excl_locked != 0 || lock.num_waiting != 0 || lock.readers_reading != 0
}

/// The state of a lock.
pub(super) fn lock(lock: &AfsDbLockDesc) -> String {
    let mut text = String::from("(");
    if lock.wait_states == 0 {
        text += "none_waiting";
    }
    for (bit, words) in [(READ, "reader_waiting"), (WRITE, "writer_waiting"), (SHARED, "upgrade_waiting")] {
        if lock.wait_states & bit != 0 {
            text += words;
        }
    }
    if lock.excl_locked != 0 {
        for (bit, words) in [(WRITE, ", write_locked"), (SHARED, ", upgrade_locked")] {
            if lock.excl_locked & bit != 0 {
                text += words;
            }
        }
        text += &format!("(pid:{} at:{})", lock.pid_writer, lock.src_indicator);
    }
    if lock.readers_reading != 0 {
        text += &format!(", {} read_locks(pid:{})", lock.readers_reading, lock.pid_last_reader);
    }
    if lock.num_waiting != 0 {
        text += &format!(", {} waiters", lock.num_waiting);
    }
    text + ")"
}

/// An entry of the cache; with a time zone, its times for people to read.
pub(super) fn entry(entry: &AfsDbCacheEntry64, cell: Option<&str>, zone: Option<&TimeZone>) -> String {
    let fid = entry.net_fid;
    // Signed, as there.
    let [volume, vnode, unique] = [fid.volume.0, fid.vnode.0, fid.unique.0].map(u32::cast_signed);
    if entry.addr == 0 {
        return format!(
            "Proc {vnode:>4} sleeping at {:08x}, pri {:>3}\n",
            fid.volume.0,
            unique.wrapping_sub(25)
        );
    }
    let mut text =
        format!("** Cache entry @ 0x{:08x} for {}.{volume}.{vnode}.{unique}", entry.addr, entry.cell);
    if let Some(cell) = cell {
        text += &format!(" [{cell}]");
    }
    text += "\n";
    if is_locked(&entry.lock) {
        text += &format!("    locks: {}\n", lock(&entry.lock));
    }
    text += &format!(
        "    {:>12} bytes  DV {:>12}  refcnt {:>5}\n",
        entry.length.cast_unsigned(),
        entry.data_version,
        entry.ref_count
    );
    let expires = entry.cb_expires.0;
    text += &format!("    callback {:08x}\texpires ", entry.callback);
    text += &match zone {
        // The empty line is there too.
        Some(zone) => format!("{}\n\n", date_of(expires.into(), zone)),
        None => format!("{expires}\n"),
    };
    text += &format!("    {} opens\t{} writers\n    ", entry.opens, entry.writers);
    text += &kind(entry.mvstat);
    text += &format!("\n    states (0x{:x})", i32::from(entry.states));
    for (bit, words) in STATES {
        if entry.states & bit != 0 {
            text += &format!(", {words}");
        }
    }
    text + "\n"
}

/// The kind of an entry.
pub(super) fn kind(mvstat: i8) -> String {
    let known = usize::try_from(mvstat).ok().and_then(|number| KINDS.get(number));
    known.map_or_else(|| format!("bogus mvstat {mvstat}"), |kind| (*kind).to_owned())
}

/// The identity of a cache manager, its addresses, and what it can do.
pub(super) fn interfaces(interfaces: &InterfaceAddr, capabilities: &[u32]) -> String {
    let mut text = format!("UUID: {}\nHost interfaces:\n", interfaces.uuid);
    for (i, address) in interfaces.addresses().iter().enumerate() {
        text += &address.to_string();
        let (mask, mtu) = (interfaces.subnet_masks[i], interfaces.mtus[i]);
        if mask != HostAddr(0) {
            text += &format!(", netmask {mask}");
        }
        if mtu != 0 {
            text += &format!(", MTU {mtu}");
        }
        text += "\n";
    }
    if let Some(first) = capabilities.first() {
        text += "Capabilities:\n";
        if Capabilities(*first).contains(Capabilities::ERRORTRANS) {
            text += "Error Translation\n";
        }
        text += "\n";
    }
    text
}

/// The settings of a cache.
pub(super) fn config(words: &[u32; super::CONFIG_WORDS]) -> String {
    let [chunk_files, statuses, data, volumes, first_chunk, other_chunk, size_kib, sets_time, is_memory] =
        words.map(u32::cast_signed);
    let first = if first_chunk == other_chunk { String::new() } else { format!(" (first: {first_chunk})") };
    format!(
        "Chunk files:   {chunk_files}\n\
         Stat caches:   {statuses}\n\
         Data caches:   {data}\n\
         Volume caches: {volumes}\n\
         Chunk size:    {other_chunk}{first}\n\
         Cache size:    {size_kib} kB\n\
         Set time:      {}\n\
         Cache type:    {}\n",
        if sets_time == 0 { "no" } else { "yes" },
        if is_memory == 0 { "disk" } else { "memory" }
    )
}

/// A cell, as in a CellServDB. `name_of` is empty for an address that has no name.
pub(super) fn cell(name: &str, servers: &[HostAddr], name_of: impl Fn(Ipv4Addr) -> String) -> String {
    let mut text = format!(">{name:<23}#{name}\n");
    for server in servers {
        text += &format!("{:<28}#{}\n", server.to_string(), name_of(server.ip()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_wire::ids::{AfsFid, AfsTime, Uniquifier, VnodeNumber, VolumeId};
    use rxgen::xdr::Uuid;

    const UNLOCKED: AfsDbLockDesc = AfsDbLockDesc {
        wait_states: 0,
        excl_locked: 0,
        readers_reading: 0,
        num_waiting: 0,
        spare: 0,
        pid_last_reader: 0,
        pid_writer: 0,
        src_indicator: 0,
    };

    const ENTRY: AfsDbCacheEntry64 = AfsDbCacheEntry64 {
        addr: 0x1234,
        cell: 1,
        net_fid: AfsFid { volume: VolumeId(536_870_912), vnode: VnodeNumber(1), unique: Uniquifier(1) },
        length: 5_000_000_000,
        data_version: 7,
        lock: UNLOCKED,
        callback: 0,
        cb_expires: AfsTime(0),
        ref_count: 2,
        opens: 1,
        writers: 0,
        mvstat: 2,
        states: 5,
    };

    #[test]
    fn an_entry_is_told_as_openafs_does() {
        assert_eq!(
            entry(&ENTRY, Some("lab.test"), None),
            concat!(
                "** Cache entry @ 0x00001234 for 1.536870912.1.1 [lab.test]\n",
                "      5000000000 bytes  DV            7  refcnt     2\n",
                "    callback 00000000\texpires 0\n",
                "    1 opens\t0 writers\n",
                "    volume root\n",
                "    states (0x5), stat'd, read-only\n",
            )
        );
        let dated = entry(&ENTRY, None, Some(&TimeZone::UTC));
        assert!(dated.contains("for 1.536870912.1.1\n"));
        assert!(dated.contains("expires Thu Jan  1 00:00:00 1970\n\n    1 opens"));
        let odd = entry(&AfsDbCacheEntry64 { mvstat: 9, states: -0x7f, ..ENTRY }, None, None);
        assert!(odd.ends_with("    bogus mvstat 9\n    states (0xffffff81), stat'd, mapped\n"));
    }

    #[test]
    fn what_has_no_address_is_a_process() {
        let fid = AfsFid { volume: VolumeId(0xabc), vnode: VnodeNumber(12), unique: Uniquifier(30) };
        let process = AfsDbCacheEntry64 { addr: 0, net_fid: fid, ..ENTRY };
        assert_eq!(entry(&process, None, None), "Proc   12 sleeping at 00000abc, pri   5\n");
    }

    #[test]
    fn locks_are_told_by_who_waits_and_who_holds() {
        for (state, text) in [
            (UNLOCKED, "(none_waiting)"),
            (
                AfsDbLockDesc { wait_states: 3, num_waiting: 2, ..UNLOCKED },
                "(reader_waitingwriter_waiting, 2 waiters)",
            ),
            (
                AfsDbLockDesc { excl_locked: 2, pid_writer: 77, src_indicator: 55, ..UNLOCKED },
                "(none_waiting, write_locked(pid:77 at:55))",
            ),
            (
                AfsDbLockDesc { readers_reading: 1, pid_last_reader: 9, ..UNLOCKED },
                "(none_waiting, 1 read_locks(pid:9))",
            ),
        ] {
            assert_eq!(lock(&state), text);
            assert_eq!(is_locked(&state), state != UNLOCKED);
        }
    }

    #[test]
    fn interfaces_have_what_is_known_of_them() {
        let uuid = Uuid {
            time_low: 0x1234_5678,
            time_mid: 0x9abc,
            time_hi_and_version: 0x4def,
            clock_seq_hi_and_reserved: 0x80,
            clock_seq_low: 1,
            node: [1, 2, 3, 4, 5, 6],
        };
        let mut all = InterfaceAddr::new(uuid, &[HostAddr(0x0a58_0001), HostAddr(0x0a58_0002)]);
        all.subnet_masks[0] = HostAddr(0xffff_ff00);
        all.mtus[0] = 1500;
        assert_eq!(
            interfaces(&all, &[1]),
            "UUID: 12345678-9abc-4def-80-01-010203040506\nHost interfaces:\n\
             10.88.0.1, netmask 255.255.255.0, MTU 1500\n10.88.0.2\nCapabilities:\nError Translation\n\n"
        );
        assert!(interfaces(&all, &[]).ends_with("10.88.0.2\n"));
    }

    #[test]
    fn a_configuration_has_nine_words() {
        assert_eq!(
            config(&[1000, 2000, 3000, 200, 1 << 18, 1 << 20, 100_000, 0, 1]),
            "Chunk files:   1000\nStat caches:   2000\nData caches:   3000\nVolume caches: 200\n\
             Chunk size:    1048576 (first: 262144)\nCache size:    100000 kB\nSet time:      no\n\
             Cache type:    memory\n"
        );
    }

    #[test]
    fn a_cell_is_told_as_in_its_file() {
        let lines = cell("lab.test", &[HostAddr(0x0a58_0001)], |_| "db1".to_owned());
        assert_eq!(lines, ">lab.test               #lab.test\n10.88.0.1                   #db1\n");
    }
}

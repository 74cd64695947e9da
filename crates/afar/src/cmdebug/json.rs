//! The output of `cmdebug -json`: the same facts under names.

use super::text;
use afs_wire::ids::HostAddr;
use afs_wire::rxafscb::{AfsDbCacheEntry64, AfsDbLockDesc, InterfaceAddr};
use serde_json::{Value, json};

pub(super) fn lock(name: Option<&str>, lock: &AfsDbLockDesc) -> Value {
    let mut value = json!({
        "is_locked": text::is_locked(lock),
        "wait_states": lock.wait_states,
        "exclusively_locked": lock.excl_locked,
        "readers": lock.readers_reading,
        "waiting": lock.num_waiting,
        "writer_pid": lock.pid_writer,
        "last_reader_pid": lock.pid_last_reader,
        "locked_at": lock.src_indicator,
    });
    if let Some(name) = name {
        value["name"] = json!(name);
    }
    value
}

pub(super) fn entry(entry: &AfsDbCacheEntry64, cell: Option<&str>) -> Value {
    json!({
        "address": entry.addr.cast_unsigned(),
        "cell": cell,
        "cell_number": entry.cell,
        "volume": entry.net_fid.volume.0,
        "vnode": entry.net_fid.vnode.0,
        "uniquifier": entry.net_fid.unique.0,
        "length": entry.length,
        "data_version": entry.data_version,
        "lock": lock(None, &entry.lock),
        "callback": entry.callback.cast_unsigned(),
        "callback_expires": entry.cb_expires.0,
        "references": entry.ref_count,
        "opens": entry.opens,
        "writers": entry.writers,
        "kind": text::kind(entry.mvstat),
        "states": entry.states.cast_unsigned(),
    })
}

pub(super) fn interfaces(interfaces: &InterfaceAddr, capabilities: &[u32]) -> Value {
    let addresses = interfaces.addresses().iter().enumerate().map(|(i, address)| {
        json!({
            "address": address.to_string(),
            "netmask": interfaces.subnet_masks[i].to_string(),
            "mtu": interfaces.mtus[i],
        })
    });
    json!({
        "uuid": interfaces.uuid.to_string(),
        "interfaces": addresses.collect::<Value>(),
        "capabilities": capabilities,
    })
}

pub(super) fn config(words: &[u32; super::CONFIG_WORDS]) -> Value {
    let [chunk_files, statuses, data, volumes, first_chunk, other_chunk, size_kib, sets_time, is_memory] =
        *words;
    json!({
        "chunk_files": chunk_files,
        "stat_caches": statuses,
        "data_caches": data,
        "volume_caches": volumes,
        "first_chunk_bytes": first_chunk,
        "chunk_bytes": other_chunk,
        "cache_size_kib": size_kib,
        "sets_time": sets_time != 0,
        "is_memory_cache": is_memory != 0,
    })
}

pub(super) fn cell(name: &str, servers: &[HostAddr]) -> Value {
    let servers: Vec<_> = servers.iter().map(HostAddr::to_string).collect();
    json!({ "cell": name, "servers": servers })
}

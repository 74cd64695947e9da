//! `vos status`: the transactions that a volume server has.

use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::output::harmless;
use crate::printer::{complain, say};
use afs_wire::afsvol::{AttachFlags, TransDebugInfo, VolumeFlags};
use serde_json::{Value, json};

/// The words for how a volume is attached.
const ATTACHED: &[(AttachFlags, &str)] = &[
    (AttachFlags::OFFLINE, "offline "),
    (AttachFlags::BUSY, "busy "),
    (AttachFlags::READ_ONLY, "readonly "),
    (AttachFlags::CREATE, "create "),
    (AttachFlags::CREATE_VOLUME_ID, "create volid "),
];

/// The words for the state of a volume.
const STATES: &[(VolumeFlags, &str)] = &[
    (VolumeFlags::DELETE_ON_SALVAGE, "deleteOnSalvage "),
    (VolumeFlags::OUT_OF_SERVICE, "outOfService "),
    (VolumeFlags::DELETED, "deleted "),
];

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let machine = given.word("server").unwrap_or_default();
    let server = vos.server(machine, "host", Stop::EXITED)?;
    let transactions = vos.transactions(server).map_err(|code| {
        complain!(vos.printer, "Could not access status information about the server\n");
        vos.print_error(code);
        vos.print_diagnostics("status", code);
        Stop::EXITED
    })?;
    if vos.json {
        vos.printer.say_json(&Value::Array(transactions.iter().map(as_json).collect()));
        return Ok(());
    }
    match transactions.len() {
        0 => say!(vos.printer, "No active transactions on {machine}\n"),
        count => say!(vos.printer, "Total transactions: {count}\n"),
    }
    transactions.iter().for_each(|transaction| show(vos, transaction));
    Ok(())
}

fn attached(transaction: &TransDebugInfo) -> AttachFlags {
    AttachFlags(i32::from(transaction.iflags))
}

fn state(transaction: &TransDebugInfo) -> VolumeFlags {
    VolumeFlags(i32::from(transaction.vflags))
}

fn show(vos: &Vos, transaction: &TransDebugInfo) {
    let out = &vos.printer;
    let line = "--------------------------------------\n";
    say!(out, "{line}transaction: {}  created: {}\n", transaction.tid.0, vos.date(transaction.creation_time));
    say!(out, "lastActiveTime: {}\n", vos.date(transaction.time));
    if transaction.return_code != 0 {
        say!(out, "returnCode: {}\n", i64::from(transaction.return_code).cast_unsigned());
    }
    if transaction.iflags != 0 {
        let words = ATTACHED.iter().filter(|(flag, _)| attached(transaction).contains(*flag));
        say!(out, "attachFlags:  {}\n", words.map(|(_, word)| *word).collect::<String>());
    }
    if transaction.vflags != 0 {
        let words = STATES.iter().filter(|(flag, _)| state(transaction).contains(*flag));
        say!(out, "volumeStatus: {}\n", words.map(|(_, word)| *word).collect::<String>());
    }
    if transaction.tflags != 0 {
        say!(out, "transactionFlags: delete\n");
    }
    say!(
        out,
        "volume: {}  partition: {}  procedure: {}\n",
        transaction.volid.0,
        transaction.partition,
        procedure(transaction)
    );
    if transaction.call_valid != 0 {
        let (read, sent) = (transaction.read_next, transaction.transmit_next);
        let received = vos.date(transaction.last_receive_time);
        say!(out, "packetRead: {}  lastReceiveTime: {received}\n", i64::from(read).cast_unsigned());
        let sent_at = vos.date(transaction.last_send_time);
        say!(out, "packetSend: {}  lastSendTime: {sent_at}\n", i64::from(sent).cast_unsigned());
    }
    say!(out, "{line}\n");
}

fn procedure(transaction: &TransDebugInfo) -> String {
    harmless(&String::from_utf8_lossy(transaction.last_proc_name.text()))
}

fn as_json(transaction: &TransDebugInfo) -> Value {
    let attached_words: Vec<&str> = ATTACHED
        .iter()
        .filter(|(flag, _)| attached(transaction).contains(*flag))
        .map(|(_, word)| word.trim_end())
        .collect();
    let states: Vec<&str> = STATES
        .iter()
        .filter(|(flag, _)| state(transaction).contains(*flag))
        .map(|(_, word)| word.trim_end())
        .collect();
    json!({
        "transaction": transaction.tid.0,
        "created": transaction.creation_time.0,
        "last_active": transaction.time.0,
        "return_code": transaction.return_code,
        "volume": transaction.volid.0,
        "partition": transaction.partition.to_string(),
        "procedure": procedure(transaction),
        "attached": attached_words,
        "state": states,
        "is_deleted": transaction.tflags != 0,
    })
}

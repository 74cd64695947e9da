//! What the logs say of an administrator's order: a line of the audit log for each, and a line of the log, as the VolserLog of OpenAFS's servers
//! has it, for those that make, change, send or remove a volume. Both name the volume, in words of its own: nothing of how the program
//! calls its types.

use std::fmt::{Display, Write};
use std::net::SocketAddr;

use afs_wire::abort::{Described, VOLSERBAD_ACCESS};
use afs_wire::afsvol::{AttachFlags, VolumeFlags};
use afs_wire::ids::{AfsTime, PartitionId, TransId, VolumeId, VolumeType};
use rxgen::{Abort, Rpc, ServerCall};

use super::VolumeService;

/// The target of the log's lines about orders. Only superusers make them.
pub const ORDERS: &str = "afs_volserver::orders";

/// The target of the log's lines about volumes that clients see come and go. They belong to the file server, as OpenAFS's has them.
pub const OF_VOLUMES: &str = "afs_fileserver::volumes";

/// Procedures that are too many for the log, as each command calls them, or change what nobody looks for there. The audit log has them.
const NOT_IN_LOG: &[&str] =
    &["TransCreate", "EndTrans", "SetFlags", "SetIdsTypes", "SetDate", "SetInfo", "SetForwarding"];

/// An order, and the volume that it is about, as far as that is known before it is carried out.
#[derive(Debug)]
pub(super) struct About {
    trans: Option<TransId>,
    volume: Option<VolumeId>,
    name: Option<String>,
    partition: Option<PartitionId>,
    details: String,
}

/// The caller of an order.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    name: String,
    peer: SocketAddr,
}

impl Caller {
    pub(super) fn of<R: Rpc>(call: &ServerCall<'_, R>) -> Self {
        Self { name: call.security().to_owned(), peer: call.peer() }
    }

    /// The name in the security class's notation; empty: anonymous.
    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

impl About {
    /// Tells how it went.
    pub(super) fn tell(&self, rpc: &'static str, caller: &Caller, code: i32) {
        let Self { trans, volume, name, partition, .. } = self;
        let what = self.to_string();
        let who = Some(&*caller.name).filter(|who| !who.is_empty()).unwrap_or("anonymous");
        let (volume, trans) = (volume.map(|id| id.0), trans.map(|id| id.0));
        let partition = partition.map(|id| id.to_string());
        tracing::info!(
            target: "audit",
            rpc, what, volume, name, partition, trans, caller = who, peer = %caller.peer, code,
            "volume operation"
        );
        match Abort(code) {
            // What strangers are refused is in the audit log, which keeps it short.
            VOLSERBAD_ACCESS => {}
            _ if NOT_IN_LOG.contains(&rpc) => {}
            Abort(0) => tracing::info!(target: ORDERS, "Volser: {rpc}: {what}, by {who}"),
            code => {
                tracing::warn!(target: ORDERS, "Volser: {rpc}: {what}, by {who}, failed: {}", Described(code))
            }
        }
    }
}

impl Display for About {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut separator = "";
        if let Some(volume) = self.volume {
            write!(f, "volume {volume}")?;
            if let Some(name) = &self.name {
                write!(f, " ({name})")?;
            }
            if let Some(partition) = self.partition {
                write!(f, " on {partition}")?;
            }
            separator = ", ";
        }
        if let Some(trans) = self.trans {
            write!(f, "{separator}transaction {trans}")?;
            separator = ": ";
        } else if self.volume.is_some() {
            separator = ": ";
        }
        if !self.details.is_empty() {
            write!(f, "{separator}{}", self.details)?;
        }
        Ok(())
    }
}

impl VolumeService {
    /// An order in a transaction.
    pub(super) fn in_transaction(&self, trans: TransId, details: impl Into<String>) -> About {
        let found = self.shared.transactions().by_id(trans).map(|t| (t.partition, t.volume));
        match found {
            Some((partition, volume)) => About { trans: Some(trans), ..self.on(partition, volume, details) },
            None => About {
                trans: Some(trans),
                volume: None,
                name: None,
                partition: None,
                details: details.into(),
            },
        }
    }

    /// An order about a volume of a partition, which may not be there.
    pub(super) fn on(&self, partition: PartitionId, volume: VolumeId, details: impl Into<String>) -> About {
        let name = self.shared.partitions.get(partition).and_then(|on| on.volume(volume).ok());
        let name = name.map(|volume| volume.name());
        About { trans: None, volume: Some(volume), name, partition: Some(partition), details: details.into() }
    }

    /// An order that makes a volume of this name.
    pub(super) fn making(
        &self,
        partition: PartitionId,
        volume: VolumeId,
        name: &[u8],
        details: String,
    ) -> About {
        let name = Some(printable(name)).filter(|name| !name.is_empty());
        About { trans: None, volume: Some(volume), name, partition: Some(partition), details }
    }
}

/// A text of a caller's that may be anything.
pub(super) fn printable(text: &[u8]) -> String {
    text.escape_ascii().to_string()
}

/// A kind of volume in words.
pub(super) fn kind(kind: VolumeType) -> String {
    match kind {
        VolumeType::READ_WRITE => "read-write".to_owned(),
        VolumeType::READ_ONLY => "read-only".to_owned(),
        VolumeType::BACKUP => "backup".to_owned(),
        VolumeType(other) => format!("kind {other}"),
    }
}

/// What a dump has.
pub(super) fn changed_since(from: AfsTime) -> String {
    match from {
        AfsTime(0) => "all of it".to_owned(),
        AfsTime(seconds) => format!("what has changed since {seconds}"),
    }
}

/// A list of the bits that are set, in words; what has no word is a number.
fn words(bits: i32, known: &[(i32, &str)], none: &str) -> String {
    let mut text = String::new();
    let mut rest = bits;
    for (bit, word) in known {
        if rest & bit != 0 {
            rest &= !bit;
            let _ = write!(text, "{}{word}", if text.is_empty() { "" } else { ", " });
        }
    }
    if rest != 0 {
        let _ = write!(text, "{}{rest:#x}", if text.is_empty() { "" } else { ", " });
    }
    if text.is_empty() { none.to_owned() } else { text }
}

/// What a transaction keeps clients from.
pub(super) fn attach(flags: AttachFlags) -> String {
    let known = [
        (AttachFlags::OFFLINE.0, "offline meanwhile"),
        (AttachFlags::BUSY.0, "busy meanwhile"),
        (AttachFlags::READ_ONLY.0, "to be read"),
        (AttachFlags::CREATE.0, "to be made"),
    ];
    words(flags.0, &known, "for nothing")
}

/// The state that a volume gets.
pub(super) fn state(flags: VolumeFlags) -> String {
    let known = [
        (VolumeFlags::OUT_OF_SERVICE.0, "out of service"),
        (VolumeFlags::DELETE_ON_SALVAGE.0, "to be removed when the server starts"),
        (VolumeFlags::DELETED.0, "removed"),
    ];
    words(flags.0, &known, "in service")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_reads_as_words_whatever_of_it_is_known() {
        let about = |trans, volume, name: Option<&str>, details: &str| About {
            trans,
            volume,
            name: name.map(str::to_owned),
            partition: volume.map(|_| PartitionId(0)),
            details: details.to_owned(),
        };
        let volume = Some(VolumeId(536_870_918));
        for (order, expected) in [
            (about(Some(TransId(7)), None, None, ""), "transaction 7"),
            (about(Some(TransId(7)), None, None, "in service"), "transaction 7: in service"),
            (
                about(Some(TransId(7)), volume, Some("user.x"), "in service"),
                "volume 536870918 (user.x) on /vicepa, transaction 7: in service",
            ),
            (about(None, volume, None, ""), "volume 536870918 on /vicepa"),
        ] {
            assert_eq!(order.to_string(), expected);
        }
        assert_eq!(state(VolumeFlags::NONE), "in service");
        assert_eq!(state(VolumeFlags(0x13)), "out of service, to be removed when the server starts, 0x10");
        assert_eq!(attach(AttachFlags::BUSY), "busy meanwhile");
        assert_eq!(printable(b"a\nb\xff"), "a\\nb\\xff");
    }
}

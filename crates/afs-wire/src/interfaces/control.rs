//! CONTROL, what `fs` and `tokens` ask of a client on the same machine, over a Unix stream socket. An interface of our own:
//! OpenAFS's commands use an ioctl that only its kernel module answers, but what is asked and what is answered is the same
//! (Control notes).
//!
//! A message is its length in bytes as a word, then so many bytes ([`framed`], [`frame_length`]). A request is the opcode and
//! the arguments, as on the wire of any interface; an answer is a word, 0 or the errno of the failure, and after 0 the
//! results. Answers come in the order of requests. Who asks is known from the socket's peer credentials, and never from
//! what is said.

use super::rxafs::{AfsFetchVolumeStatus, AfsOpaque, Message};
use crate::ids::{AfsFid, AfsTime, HostAddr, Name, Path, ViceId};
use crate::rights::Rights;
use rxgen::xdr::{
    DecodeError, Decoder, Opaque, OpaqueFixed, OutOfBounds, Uuid, WireSize, Xdr, XdrArray, XdrString,
};
use rxgen::{interface, wire_enum, wire_struct};
use std::fmt;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// Longest message, in bytes: the longest there is, a list of [`SERVERS_MAX`] servers with ranks, has 64 KiB.
pub const FRAME_MAX: usize = 128 << 10;
/// Most servers in a list. The VLDB has place for 255, with up to 15 addresses each; a client may know several cells.
pub const SERVERS_MAX: usize = 8192;
/// Most database servers of a cell.
pub const CELL_SERVERS_MAX: usize = 64;
/// Most values that `@sys` may have.
pub const SYSNAMES_MAX: usize = 16;
/// Longest ticket, in bytes (Security notes 2.3).
pub const TICKET_MAX: usize = 12_000;
/// Longest token of rxgk, in bytes, as servers take it.
pub const RXGK_TOKEN_MAX: usize = 16_384;
/// Most tokens that somebody may have.
pub const TOKENS_MAX: usize = 64;

/// Most files that were put aside in an answer. The next ones are asked for by the number of the last.
pub const PUT_ASIDE_MAX: usize = 16;
/// Most bytes of such a file in an answer.
pub const PIECE_MAX: usize = 64 << 10;

/// Most pins in an answer. The next ones are asked for by their place in the list.
pub const PINS_AT_ONCE: usize = 8;

/// The cell of what a client makes up itself: its dynamic root. As OpenAFS calls it.
pub const DYNROOT: &str = "dynroot";

/// Servers, or addresses of this machine.
pub type Addresses = XdrArray<HostAddr, SERVERS_MAX>;
/// Database servers of a cell, as named when the cell is made known.
pub type CellServerList = XdrArray<HostAddr, CELL_SERVERS_MAX>;
/// Servers and their ranks.
pub type RankedServers = XdrArray<RankedServer, SERVERS_MAX>;
/// Values of `@sys`.
pub type SysNames = XdrArray<Name, SYSNAMES_MAX>;
/// The tokens that somebody holds.
pub type Tokens = XdrArray<HeldToken, TOKENS_MAX>;
/// Files that were put aside.
pub type PutAside = XdrArray<Aside, PUT_ASIDE_MAX>;
/// Some of the bytes of one.
pub type Piece = Opaque<PIECE_MAX>;
/// Files and directories that are pinned.
pub type Pins = XdrArray<Pinned, PINS_AT_ONCE>;
/// A path of this machine.
pub type LocalPath = XdrString<4096>;

wire_enum! {
    /// The servers that are meant.
    enum ServerKind: u32 {
        /// File servers.
        0 FILE;
        /// Volume location servers.
        1 LOCATION;
    }

    /// The cells whose servers `CheckServers` checks.
    enum CheckScope: u32 {
        /// Those of the client's own cell.
        0 OWN_CELL;
        /// Those of the cell that is named.
        1 CELL;
        /// Those of all cells.
        2 ALL;
    }

    /// What is set about waiting for the server, with write-behind.
    enum StoreBehind: u32 {
        /// Nothing: what is set above counts.
        0 INHERIT;
        /// Closes and changes of names wait for the server.
        1 OFF;
        /// They do not, and what was closed outlasts a loss of power.
        2 ALWAYS;
        /// They do not, and a loss of power takes at most the last seconds of what was closed.
        3 SECOND;
    }

    /// The reason why nothing of a pin, or nothing more, can be fetched now.
    enum PinTrouble: u32 {
        /// There is none.
        0 NONE;
        /// It was not gone through yet since the client began.
        1 NEW;
        /// The server does not answer.
        2 AWAY;
        /// The user, as who they were when they pinned it, has no token that is good.
        3 NO_TOKEN;
        /// It is no longer there.
        4 GONE;
        /// Something else, which is in the client's log.
        5 FAILED;
    }
}

wire_bits! {
    /// Special properties of a cell.
    CellFlags(u32) {
        /// Programs in it do not run as their owner.
        2 NO_SUID;
    }

    /// The fields of `SetVolumeStatus` that count.
    VolumeChanges(u32) {
        /// `max_quota`.
        1 MAX_QUOTA;
        /// `offline_message`.
        2 OFFLINE_MESSAGE;
    }
}

wire_struct! {
    /// A file, directory, symbolic link or mount point, wherever it is.
    struct Place {
        /// The cell's name.
        cell: Name,
        /// The file that it is there.
        fid: AfsFid,
    }

    /// A cell that the client knows.
    struct KnownCell {
        /// Its name.
        name: Name,
        /// Its database servers.
        servers: CellServerList,
        /// Its special properties.
        flags: CellFlags,
    }

    /// A server and its rank: of the servers of a volume the one with the lowest is asked first.
    #[derive(Copy)]
    struct RankedServer {
        /// Its address.
        address: HostAddr,
        /// Its rank, from 0 to 65535.
        rank: u32,
    }

    /// The use of the cache, and its limits.
    #[derive(Copy, Default)]
    struct CacheUse {
        /// The limit of what is kept, in KiB.
        size_kib: u64,
        /// The size of what is kept, in KiB.
        used_kib: u64,
        /// The part of it that no server has yet, in KiB.
        dirty_kib: u64,
        /// The number of files with data in the cache.
        files: u64,
        /// Files that could not be stored and were put aside.
        conflicts: u64,
        /// Entries of the table of statuses.
        statuses: u64,
    }

    /// What was written or changed here and no server has yet.
    #[derive(Copy, Default)]
    struct Waiting {
        /// The number of changes of names and attributes.
        changes: u64,
        /// The time of the oldest of these, and of what was closed with write-behind; 0 without any.
        oldest: AfsTime,
        /// The number of files with data.
        files: u64,
        /// The number of bytes of these data.
        bytes: u64,
        /// Files that could not be stored and were put aside.
        conflicts: u64,
        /// True if what waits is not sent, as somebody has paused that.
        is_paused: bool,
    }

    /// Data that were written and could not be stored.
    struct Aside {
        /// Its number in the client's cache.
        number: u64,
        /// The cell.
        cell: Name,
        /// The file that it was written to; of what was made here and never reached a server, a number that no server gives.
        fid: AfsFid,
        /// The version that it was written on.
        version: u64,
        /// The local user who wrote it.
        user: u32,
        /// The length of the file.
        length: u64,
        /// The bytes of it that were written; the others may read as zeros.
        written: u64,
        /// The reason why it could not be stored.
        why: LocalPath,
    }

    /// A file, or a directory with what is below it, that somebody has pinned, and what is in the cache of it.
    struct Pinned {
        /// The file or directory.
        place: Place,
        /// The local user who has pinned it.
        user: u32,
        /// The path from the client's root; empty if it is not known.
        path: LocalPath,
        /// Files in it.
        files: u64,
        /// Those of which all data are here.
        files_here: u64,
        /// Bytes of all files.
        bytes: u64,
        /// Those of files that are here.
        bytes_here: u64,
        /// Files and directories for which pins have no room.
        no_room: u64,
        /// Those that the user may not read.
        no_rights: u64,
        /// Those that could not be had for other reasons.
        failed: u64,
        /// Mount points, behind which nothing is pinned.
        mount_points: u64,
        /// The path below the pin of the first that is missing.
        example: LocalPath,
        /// The trouble with all of it.
        trouble: PinTrouble,
        /// The time when all of it was here last; 0 if it never was since the client began.
        complete: AfsTime,
    }

    /// A ticket for a cell with what its owner needs to show it, of rxkad (Security notes 2).
    struct GivenToken {
        /// The cell.
        cell: Name,
        /// The name of its owner in the cell, for messages.
        holder: Name,
        /// The owner's number in the cell; [`ViceId::ANONYMOUS`] where it is not known.
        id: ViceId,
        /// The form of the ticket, or the version of the DES key that it is encrypted with.
        kvno: i32,
        /// The key that is in the ticket.
        session_key: SessionKey,
        /// The time from which it is good.
        start: AfsTime,
        /// The time until which it is good.
        end: AfsTime,
        /// The ticket.
        ticket: Opaque<TICKET_MAX>,
    }

    /// A token of rxgk for a cell with what its owner needs to show it (rxgk notes 5).
    struct GivenRxgk {
        /// The cell.
        cell: Name,
        /// The enctype of the secret.
        enctype: i32,
        /// The secret that is in the token.
        secret: RxgkSecret,
        /// The number of the level of its connections.
        level: u32,
        /// Seconds for which a transport key is used; 0 for ever.
        lifetime: u32,
        /// Bytes for which a transport key is used, as a power of two; 0 for any number.
        bytelife: u32,
        /// The time until which it is good, in steps of 100 ns since 1970.
        expiration: i64,
        /// The token.
        token: Opaque<RXGK_TOKEN_MAX>,
    }

    /// A ticket for a cell.
    struct HeldToken {
        /// The cell.
        cell: Name,
        /// The owner: a name of the cell's, or `AFS ID` and a number.
        holder: Name,
        /// The holder's number in the cell; [`ViceId::ANONYMOUS`] where the client does not know it.
        id: ViceId,
        /// The time until which it is good.
        expires: AfsTime,
    }
}

/// The key of a token. Forgotten when dropped, and never printed.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct SessionKey(pub [u8; 8]);

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey(..)")
    }
}

impl Xdr for SessionKey {
    const SIZE: WireSize = OpaqueFixed::<8>::SIZE;

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        OpaqueFixed::<8>::decode(decoder).map(|bytes| Self(bytes.0))
    }
}

/// The secret of a token of rxgk. Forgotten when dropped, and never printed.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct RxgkSecret(pub Vec<u8>);

impl fmt::Debug for RxgkSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RxgkSecret(..)")
    }
}

impl RxgkSecret {
    /// Longest secret, in bytes.
    pub const MAX: usize = 64;
}

impl Xdr for RxgkSecret {
    const SIZE: WireSize = Opaque::<{ Self::MAX }>::SIZE;

    fn encode(&self, out: &mut Vec<u8>) {
        (self.0.len() as u32).encode(out);
        out.extend_from_slice(&self.0);
        out.resize(out.len() + self.0.len().wrapping_neg() % 4, 0);
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Opaque::<{ Self::MAX }>::decode(decoder).map(|bytes| Self(bytes.to_vec()))
    }
}

interface! {
    /// Requests to a client on the same machine. Service and port mean nothing here.
    Control on service 0 port 0 {
        // ---- the client

        /// Tells which client this is, and where it keeps its configuration.
         1 About () -> (version: Name, uuid: Uuid, cell_serv_db: LocalPath);

        // ---- files and directories

        /// The access list that governs a place, as text.
        10 GetAcl (place: Place) -> (access_list: AfsOpaque);
        /// Sets the access list of a directory.
        11 SetAcl (place: Place, access_list: AfsOpaque);
        /// Tells what the caller may do there.
        12 GetCallerAccess (place: Place) -> (rights: Rights);
        /// The servers that have the volume of a place, the one that is asked first in front.
        13 WhereIs (place: Place) -> (servers: Addresses);
        /// The volume of a place.
        14 GetVolumeStatus (place: Place)
            -> (status: AfsFetchVolumeStatus, name: Name, offline_message: Message, motd: Message);
        /// Changes the volume of a place. The quota is in KiB, 0 for none.
        15 SetVolumeStatus (place: Place, changes: VolumeChanges, max_quota: i32, offline_message: Message);

        // ---- mount points

        /// Reads a mount point of a directory: `#`, or `%` for the read-write volume, then the volume, perhaps after its
        /// cell and a colon; without the dot at the end. `EINVAL` where the name is none.
        20 ReadMountPoint (dir: Place, name: Name) -> (target: Path);
        /// Makes a mount point. The target is as above.
        21 MakeMountPoint (dir: Place, name: Name, target: Path);
        /// Removes a mount point, and nothing else.
        22 RemoveMountPoint (dir: Place, name: Name);
        /// Forgets where a mount point leads.
        23 FlushMountPoint (dir: Place, name: Name);

        // ---- what is kept

        /// Forgets data and status of a place.
        30 Flush (place: Place);
        /// Forgets data and status of all that is kept of a place's volume.
        31 FlushVolume (place: Place);
        /// Forgets all data and status.
        32 FlushAll ();
        /// Forgets which volumes names stand for, and where they are.
        33 CheckVolumes ();
        /// Tells how much is kept.
        34 GetCacheUse () -> (cache: CacheUse);
        /// Sets how much may be kept, in KiB; 0 is what it was at the start. For the superuser.
        35 SetCacheSize (size_kib: u64);

        /// Tells what waits for servers.
        36 GetWaiting () -> (waiting: Waiting);
        /// Lists what the caller has written that could not be stored and was put aside, for the superuser also others', with numbers above
        /// this one.
        37 ListPutAside (above: u64) -> (files: PutAside);
        /// Reads some of it; nothing at its end. `ENOENT` where there is none of this number that is the caller's.
        38 ReadPutAside (number: u64, position: u64) -> (piece: Piece);
        /// Removes it.
        39 DropPutAside (number: u64);

        // ---- servers

        /// Tells which servers do not answer. The client asks the servers first, unless the caller wants what the client knows already.
        40 CheckServers (scope: CheckScope, cell: Name, is_fast: bool) -> (down: Addresses);
        /// Tells how often servers that are down are asked, in seconds; another number than 0 changes it. That is for the
        /// superuser.
        41 ProbeInterval (seconds: u32) -> (old_seconds: u32);
        /// Servers and their ranks.
        42 GetServerRanks (kind: ServerKind) -> (servers: RankedServers);
        /// Sets ranks. For the superuser.
        43 SetServerRanks (kind: ServerKind, servers: RankedServers);

        // ---- cells

        /// The client's own cell.
        50 GetOwnCell () -> (name: Name);
        /// A cell, by its place in the list; `EDOM` behind the last.
        51 GetCell (index: u32) -> (cell: KnownCell);
        /// A cell, by its name, the beginning of it or an alias.
        52 FindCell (name: Name) -> (cell: KnownCell);
        /// Makes a cell known until the client ends, or gives it other servers. An empty `linked` is none. For the superuser.
        53 NewCell (name: Name, servers: CellServerList, linked: Name);
        /// Says what is special about a cell. For the superuser.
        54 SetCellFlags (name: Name, flags: CellFlags);
        /// Another name of a cell, by its place in the list; `EDOM` behind the last.
        55 GetAlias (index: u32) -> (alias: Name, cell: Name);
        /// Gives a cell another name. For the superuser.
        56 NewAlias (alias: Name, cell: Name);

        // ---- the caller and the machine

        /// Lists the tokens that the caller has to show to servers.
        60 ListTokens () -> (tokens: Tokens);
        /// The values of `@sys`; some change them. That is for the superuser.
        61 SysName (new_names: SysNames) -> (names: SysNames);
        /// Addresses of this machine that servers are told.
        62 GetClientAddresses () -> (addresses: Addresses);
        /// Tells whether traffic with servers is encrypted.
        63 GetCrypt () -> (is_on: bool);
        /// Sets that. For the superuser.
        64 SetCrypt (is_on: bool);
        /// Gives the caller a token, in place of the one that the caller has for its cell. Nothing changes if it is the same, unless it is
        /// forced. `ENOENT` for a cell that the client does not know.
        65 SetToken (token: GivenToken, is_forced: bool) -> (is_new: bool);
        /// Takes the caller's token for a cell away, or for an empty name all tokens. How many there were.
        66 ForgetTokens (cell: Name) -> (count: u32);
        /// Makes a PAG for the caller, with this group, which no other PAG has. Who is in it has its tokens, and none of the user's.
        /// `EAGAIN` when the caller has too many.
        67 NewPag () -> (group: u32);
        /// Ends the PAG that the caller is in, as at the end of a session: its tokens are gone. What was written with them and is not
        /// stored yet waits for another token of the same person's. `EINVAL` outside of PAGs.
        68 EndPag ();
        /// The caller's token for the cell of exactly this name, with its key. `ENOTCONN` where there is none.
        69 GetToken (cell: Name) -> (token: GivenToken);
        /// Tells what the caller's user has written that is not stored before there is another token of the same person's: files, and
        /// bytes in them.
        70 GetUnstored () -> (files: u32, bytes: u64);
        /// Tells how the client sees the caller: the group of their PAG, 0 outside of PAGs, and whether the client makes the caller's tickets for
        /// the cell of exactly this name itself, from the cell's key.
        71 GetCaller (cell: Name) -> (pag: u32, is_made_here: bool);
        /// Says that another client of this machine has made a PAG for a user, so that it is the same session here. For the superuser. `EAGAIN`
        /// when the number is somebody else's here, or when the user has too many.
        72 AdoptPag (group: u32, uid: u32);
        /// Gives the caller a token of rxgk, beside the token that the caller has for its cell. It is of the same person, and is shown instead of
        /// that to all servers that have rxgk. `ENOTCONN` where there is no token.
        73 SetRxgk (token: GivenRxgk);
        /// The caller's token of rxgk for the cell of exactly this name, with its secret. `ENOTCONN` where there is none.
        74 GetRxgk (cell: Name) -> (token: GivenRxgk);
        /// Gives the caller a token of rxgk alone, in place of what the caller has for its cell; holder and number are the owner's, as those of
        /// other tokens. `ENOENT` for a cell that the client does not know.
        75 SetOnlyRxgk (holder: Name, id: ViceId, token: GivenRxgk);

        // ---- write-behind

        /// What is set for a directory, for its volume, and for the mount; and what counts in the directory, `OFF` or a mode.
        80 GetStoreBehind (dir: Place)
            -> (own: StoreBehind, volume: StoreBehind, mount: StoreBehind, counts: StoreBehind);
        /// Sets it for a directory and what is below it in the volume, or for the volume of a directory. For the superuser, the user who runs the
        /// client, and those who may administer the directory, or the root directory of the volume. `EROFS` for a volume that nobody writes to,
        /// `EOPNOTSUPP` if the client has no cache folder.
        81 SetStoreBehind (dir: Place, is_volume: bool, setting: StoreBehind);
        /// Has what was changed and closed wait until this is taken back or the client ends, or not any more. For the superuser and the user who
        /// runs the client.
        82 PauseStoreBehind (is_paused: bool);
        /// Answers when all that was changed and closed in the volume of a place before is at the server.
        83 SettleVolume (place: Place);

        // ---- pins

        /// Keeps a file, or a directory with what is below it in its volume, in the cache. `EACCES` if the caller may not read it, `ENOSPC` if too
        /// much is pinned, `EOPNOTSUPP` if the client has no cache folder.
        90 Pin (place: Place);
        /// Takes the caller's pin back; for the superuser those of all users. `EPERM` if only others have pinned it, `ENODATA` if nobody has.
        91 Unpin (place: Place);
        /// Lists what the caller has pinned, for the superuser what all have, from a place in the list on.
        92 ListPins (from: u32) -> (pins: Pins);
    }
}

impl Place {
    /// A place of a cell.
    ///
    /// # Errors
    ///
    /// The cell's name is longer than names are.
    pub fn new(cell: &str, fid: AfsFid) -> Result<Self, OutOfBounds> {
        Ok(Self { cell: Name::new(cell)?, fid })
    }
}

/// Bytes of the length in front of a message.
pub const FRAME_HEADER: usize = 4;

/// A message as it is sent.
///
/// # Panics
///
/// The message is longer than [`FRAME_MAX`], which no message of this interface is.
#[must_use]
pub fn framed(message: &[u8]) -> Vec<u8> {
    assert!(message.len() <= FRAME_MAX, "no procedure has arguments or results of this size");
    let mut frame = Vec::with_capacity(FRAME_HEADER + message.len());
    frame.extend_from_slice(&(message.len() as u32).to_be_bytes());
    frame.extend_from_slice(message);
    frame
}

/// The number of bytes that follow; `None` where that is more than a message has.
#[must_use]
pub fn frame_length(header: [u8; FRAME_HEADER]) -> Option<usize> {
    let length = usize::try_from(u32::from_be_bytes(header)).ok()?;
    (length <= FRAME_MAX).then_some(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rxgen::Interface;

    #[test]
    fn every_message_fits_into_a_frame() {
        for rpc in Control::RPCS {
            for size in [rpc.args_size, rpc.results_size] {
                assert!(size.max <= FRAME_MAX - 4, "{}: {size:?}", rpc.name);
            }
        }
    }

    #[test]
    fn the_key_of_a_token_is_in_no_text() {
        assert_eq!(format!("{:?}", SessionKey([0x61; 8])), "SessionKey(..)");
        assert_eq!(format!("{:?}", RxgkSecret(vec![0x61; 32])), "RxgkSecret(..)");
    }

    #[test]
    fn a_frame_says_how_long_its_message_is() {
        let frame = framed(b"message");
        let (header, message) = frame.split_first_chunk().unwrap();
        assert_eq!(frame_length(*header), Some(7));
        assert_eq!(message, b"message");
        assert_eq!(frame_length([0xff; 4]), None);
        assert_eq!(frame_length((FRAME_MAX as u32 + 1).to_be_bytes()), None);
    }
}

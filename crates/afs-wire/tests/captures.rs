//! What stock peers sent each other (the captures of `rx-proto`'s tests), read and written again: arguments and results of
//! every call in clear, the access lists and directories in them, the codes of those that failed.

use afs_wire::abort::Described;
use afs_wire::acl::{Acl, AclText, STORED_SIZE};
use afs_wire::directory::{Directory, Entry, PAGE_SIZE};
use afs_wire::ids::{AfsFid, DataVersion, LocalFid, ViceId};
use afs_wire::interfaces::{INTERFACES, InterfaceInfo};
use afs_wire::rights::Rights;
use afs_wire::status::FileType;
use afs_wire::{Abort, rxafs};
use rx_captures::conversation::{Call, Conversation};
use rxgen::xdr::from_bytes;
use rxgen::{Decoder, Rpc, RpcInfo, Split, Xdr};
use std::collections::{BTreeMap, BTreeSet};

/// A captured call of a procedure.
struct Captured {
    /// Where it is, for messages.
    at: String,
    interface: &'static str,
    rpc: &'static RpcInfo,
    /// The request, behind the opcode.
    request: Vec<u8>,
    /// All that the server sent, if the call succeeded and nothing is missing.
    reply: Option<Vec<u8>>,
    aborted: Option<Abort>,
}

impl Captured {
    /// A call of a known procedure; `None` for every other opcode.
    fn new(
        at: &str,
        interface: &'static InterfaceInfo,
        request: &[u8],
        reply: Option<Vec<u8>>,
        aborted: Option<Abort>,
    ) -> Option<Self> {
        let (opcode, args) = request.split_first_chunk()?;
        let rpc = rxgen::rpc::find(interface.rpcs, u32::from_be_bytes(*opcode))?;
        let at = format!("{at}, {}.{}", interface.name, rpc.name);
        Some(Self { at, interface: interface.name, rpc, request: args.to_vec(), reply, aborted })
    }

    /// The data that the server sent, and the results.
    fn parts(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        let mut bytes = self.reply.clone()?;
        let data = match (self.interface, self.rpc.opcode) {
            ("Rxafs", rxafs::FetchData::OPCODE) => 4 + from_bytes::<u32>(&bytes[..4]).unwrap() as usize,
            ("Rxafs", rxafs::FetchData64::OPCODE) => 8 + from_bytes::<u64>(&bytes[..8]).unwrap() as usize,
            _ if self.rpc.split == Some(Split::FromServer) => bytes.len(),
            _ => 0,
        };
        let results = bytes.split_off(data);
        Some((bytes, results))
    }
}

/// The interface that a connection is for: service 1 is several, told apart by the port.
fn interface_of(service: u16, port: u16) -> Option<&'static InterfaceInfo> {
    let name = match (service, port) {
        (1, 7000) => "Rxafs",
        (1, 7007) => "Bozo",
        (1, _) => "Rxafscb",
        (4, _) => "AfsVol",
        (50, _) => "Vote",
        (52, _) => "Vl",
        (73, _) => "Pr",
        _ => return None,
    };
    INTERFACES.iter().find(|interface| interface.name == name)
}

/// Every complete call in clear of a procedure that there is. Connections with rxkad are in clear at its lowest level;
/// at the others the opcodes are noise, and the connection is left out.
fn calls_in_clear() -> Vec<Captured> {
    let mut all = Vec::new();
    for name in rx_captures::CAPTURES {
        for conversation in Conversation::all_of(&rx_captures::capture(name)) {
            let Some(interface) = interface_of(conversation.service.0, conversation.server.port()) else {
                continue;
            };
            let calls: Vec<Call> = conversation.calls();
            let complete = calls.iter().filter(|call| call.request.is_complete());
            let known: Vec<Captured> =
                complete.clone().filter_map(|call| captured(name, interface, call)).collect();
            if conversation.security.0 == 0 || known.len() == complete.count() {
                all.extend(known);
            }
        }
    }
    all
}

fn captured(name: &str, interface: &'static InterfaceInfo, call: &Call) -> Option<Captured> {
    let aborted = call.aborted.map(|code| Abort(code.0));
    let reply = (aborted.is_none() && call.reply.is_complete()).then(|| call.reply.bytes());
    Captured::new(&format!("{name} frame {}", call.frame), interface, &call.request.bytes(), reply, aborted)
}

/// The calls of `captures/decrypted.txt`.
fn decrypted_calls() -> Vec<Captured> {
    let lines = include_str!("captures/decrypted.txt").lines().zip(1..);
    let read = |(line, number): (&str, u32)| {
        let mut words = line.split(' ');
        let mut word = || words.next().unwrap_or_else(|| panic!("line {number} of decrypted.txt is cut"));
        let (name, service, port) = (word(), word().parse().unwrap(), word().parse().unwrap());
        let (request, reply) = (unhex(word()), word());
        let (reply, aborted) = match reply {
            "abort" => (None, Some(Abort(word().parse().unwrap()))),
            "-" => (Some(Vec::new()), None),
            reply => (Some(unhex(reply)), None),
        };
        let interface = interface_of(service, port).expect("a known service");
        Captured::new(&format!("{name}, line {number}"), interface, &request, reply, aborted)
            .expect("a known opcode")
    };
    lines.filter(|(line, _)| !line.starts_with('#')).map(read).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn calls() -> Vec<Captured> {
    calls_in_clear().into_iter().chain(decrypted_calls()).collect()
}

fn recoded(
    decode: fn(&mut Decoder<'_>) -> Result<Vec<u8>, rxgen::DecodeError>,
    bytes: &[u8],
    at: &str,
) -> usize {
    let mut decoder = Decoder::new(bytes);
    let again = decode(&mut decoder).unwrap_or_else(|error| panic!("{at}: {error}"));
    let read = decoder.offset();
    assert_eq!(again, bytes[..read], "{at}: written again it is something else");
    read
}

#[test]
fn arguments_and_results_of_stock_peers_are_read_and_written_again_alike() {
    let mut seen: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for captured in calls() {
        let Captured { at, interface, rpc, request, aborted, .. } = &captured;
        // A server that was sent something malformed on purpose aborts so.
        if *aborted == Some(Abort::SS_UNMARSHAL) {
            continue;
        }
        let count = seen.entry(format!("{interface}.{}", rpc.name)).or_default();
        let read = recoded(rpc.decode_args, request, at);
        if rpc.split != Some(Split::FromClient) {
            assert_eq!(read, request.len(), "{at}: something is left of the arguments");
        }
        count.0 += 1;
        if let Some((_, results)) = captured.parts() {
            assert_eq!(recoded(rpc.decode_results, &results, at), results.len(), "{at}: something is left");
            count.1 += 1;
        }
    }
    println!("{} procedures: {seen:#?}", seen.len());
    let (requests, replies) = seen.values().fold((0, 0), |sum, n| (sum.0 + n.0, sum.1 + n.1));
    assert!(requests > 600 && replies > 550, "{requests} requests, {replies} replies");
    let interfaces: BTreeSet<&str> = seen.keys().filter_map(|name| name.split('.').next()).collect();
    assert_eq!(interfaces, BTreeSet::from(["AfsVol", "Bozo", "Pr", "Rxafs", "Rxafscb", "Vl", "Vote"]));
    assert!(seen.len() >= 75, "{} procedures", seen.len());
}

#[test]
fn codes_that_stock_servers_abort_with_have_a_meaning() {
    let codes: BTreeSet<i32> =
        calls().iter().filter_map(|captured| captured.aborted).map(|code| code.0).collect();
    assert!(codes.len() > 15, "{codes:?}");
    for code in codes {
        let text = Described(Abort(code)).to_string();
        assert!(!text.starts_with("aborted with code"), "{text}");
    }
}

#[test]
fn access_lists_of_stock_peers_are_read_and_written_again_alike() {
    let (mut fetched, mut stored) = (0, 0);
    for captured in calls() {
        let text = match captured.rpc.opcode {
            rxafs::FetchACL::OPCODE if captured.interface == "Rxafs" => {
                let Some((_, results)) = captured.parts() else { continue };
                fetched += 1;
                from_bytes::<rxafs::reply::FetchACL>(&results).unwrap().access_list
            }
            rxafs::OldStoreACL::OPCODE if captured.interface == "Rxafs" => {
                stored += 1;
                from_bytes::<rxafs::OldStoreACL>(&captured.request).unwrap().access_list
            }
            _ => continue,
        };
        let acl = AclText::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", captured.at));
        // Servers put a tab between name and rights, `fs setacl` a blank.
        let theirs: Vec<u8> = text.iter().map(|&byte| if byte == b' ' { b'\t' } else { byte }).collect();
        assert_eq!(acl.to_bytes(), Ok(theirs), "{}", captured.at);
    }
    assert!(fetched > 2 && stored > 2, "{fetched} fetched, {stored} stored");
}

/// The directory that a call fetched whole.
fn fetched_directory(captured: &Captured) -> Option<(AfsFid, DataVersion, Vec<u8>)> {
    let (mut data, results) = captured.parts().filter(|_| captured.interface == "Rxafs")?;
    let (fid, status, prefix) = match captured.rpc.opcode {
        rxafs::FetchData::OPCODE => {
            let reply: rxafs::reply::FetchData = from_bytes(&results).unwrap();
            (from_bytes::<rxafs::FetchData>(&captured.request).unwrap().fid, reply.status, 4)
        }
        rxafs::FetchData64::OPCODE => {
            let reply: rxafs::reply::FetchData64 = from_bytes(&results).unwrap();
            (from_bytes::<rxafs::FetchData64>(&captured.request).unwrap().fid, reply.status, 8)
        }
        _ => return None,
    };
    let data = data.split_off(prefix);
    let is_whole = status.file_type == FileType::DIRECTORY && data.len() as u64 == status.length;
    is_whole.then_some((fid, status.data_version, data))
}

/// The directories that clients fetched whole, and where.
fn directories() -> Vec<(String, AfsFid, Vec<u8>)> {
    let of = |captured: Captured| fetched_directory(&captured).map(|(fid, _, data)| (captured.at, fid, data));
    calls().into_iter().filter_map(of).collect()
}

fn entries_of(directory: &Directory<impl AsRef<[u8]>>) -> Vec<(Vec<u8>, LocalFid)> {
    directory.entries().map(|Entry { name, fid, .. }| (name.to_vec(), fid)).collect()
}

#[test]
fn directories_of_stock_servers_have_no_faults() {
    let directories = directories();
    assert!(directories.len() > 30, "{}", directories.len());
    for (at, fid, bytes) in directories {
        assert_eq!(bytes.len() % PAGE_SIZE, 0, "{at}");
        let directory = Directory::parse(&bytes[..]).unwrap_or_else(|error| panic!("{at}: {error}"));
        assert_eq!(directory.check(), [], "{at}");
        assert_eq!(directory.lookup(b".").map(|entry| entry.fid), Some(fid.local()), "{at}");
        for entry in directory.entries() {
            assert_eq!(directory.lookup(entry.name), Some(entry), "{at}");
        }
    }
}

/// What a directory means, with the bytes that mean nothing set to zero: slots of names that were removed, and what
/// stands behind the end of a name.
fn without_remains(bytes: &[u8]) -> Vec<u8> {
    let directory = Directory::parse(bytes).unwrap();
    let mut clean: Vec<u8> = bytes.iter().map(|_| 0).collect();
    for page in 0..directory.pages() {
        let reserved = if page == 0 { 13 * 32 } else { 32 };
        let at = page * PAGE_SIZE;
        clean[at..at + reserved].copy_from_slice(&bytes[at..at + reserved]);
    }
    for entry in directory.entries() {
        let at = usize::from(entry.slot.0) * 32;
        let end = at + 12 + entry.name.len();
        clean[at..end].copy_from_slice(&bytes[at..end]);
    }
    clean
}

/// The names of these directories went into their slots one after the other, so that making them again in the order of
/// the slots makes the same chains, maps and slots; where names had been removed, the chains may be in another order.
#[test]
fn directories_made_by_us_are_those_of_stock_servers_byte_by_byte() {
    let (mut same, mut long) = (BTreeSet::new(), 0);
    for (at, fid, bytes) in directories() {
        let theirs = Directory::parse(&bytes[..]).unwrap();
        let parent = theirs.lookup(b"..").unwrap().fid;
        let entries = entries_of(&theirs);
        let others = entries.iter().skip(2).map(|(name, fid)| (&name[..], *fid));
        let ours = Directory::build(fid.local(), parent, others).unwrap();
        assert_eq!(entries_of(&ours), entries, "{at}");
        if ours.bytes() == without_remains(&bytes) {
            same.insert(fid);
            long = long.max(entries.len());
        }
    }
    assert!(same.len() >= 5 && long >= 6, "{} directories, of up to {long} entries: {same:?}", same.len());
}

/// What a captured call did to a directory, and the version that the directory had then.
enum Edit {
    Insert(Vec<u8>, LocalFid),
    Remove(Vec<u8>),
    Rename(Vec<u8>, Vec<u8>),
}

impl Edit {
    fn of(captured: &Captured) -> Option<(AfsFid, DataVersion, Self)> {
        let (_, results) = captured.parts().filter(|_| captured.interface == "Rxafs")?;
        let args = &captured.request;
        macro_rules! reading {
            ($rpc:ident, |$args:ident, $reply:ident| $edit:expr) => {{
                let $args: rxafs::$rpc = from_bytes(args).unwrap();
                let $reply: rxafs::reply::$rpc = from_bytes(&results).unwrap();
                Some($edit)
            }};
        }
        match captured.rpc.opcode {
            rxafs::CreateFile::OPCODE => reading!(CreateFile, |args, reply| {
                (
                    args.dir,
                    reply.dir_status.data_version,
                    Self::Insert(args.name.into_bytes(), reply.fid.local()),
                )
            }),
            rxafs::MakeDir::OPCODE => reading!(MakeDir, |args, reply| {
                (
                    args.dir,
                    reply.dir_status.data_version,
                    Self::Insert(args.name.into_bytes(), reply.fid.local()),
                )
            }),
            rxafs::Symlink::OPCODE => reading!(Symlink, |args, reply| {
                (
                    args.dir,
                    reply.dir_status.data_version,
                    Self::Insert(args.name.into_bytes(), reply.fid.local()),
                )
            }),
            rxafs::Link::OPCODE => reading!(Link, |args, reply| {
                (
                    args.dir,
                    reply.dir_status.data_version,
                    Self::Insert(args.name.into_bytes(), args.existing.local()),
                )
            }),
            rxafs::RemoveFile::OPCODE => reading!(RemoveFile, |args, reply| {
                (args.dir, reply.dir_status.data_version, Self::Remove(args.name.into_bytes()))
            }),
            rxafs::RemoveDir::OPCODE => reading!(RemoveDir, |args, reply| {
                (args.dir, reply.dir_status.data_version, Self::Remove(args.name.into_bytes()))
            }),
            rxafs::Rename::OPCODE => reading!(Rename, |args, reply| {
                let (old, new) = (args.old_name.into_bytes(), args.new_name.into_bytes());
                let edit =
                    if args.old_dir == args.new_dir { Self::Rename(old, new) } else { Self::Remove(old) };
                (args.old_dir, reply.old_dir_status.data_version, edit)
            }),
            _ => None,
        }
    }

    fn apply(&self, directory: &mut Directory) {
        match self {
            Self::Insert(name, fid) => {
                directory.insert(name, *fid).unwrap();
            }
            Self::Remove(name) => {
                directory.remove(name).unwrap();
            }
            Self::Rename(old, new) => {
                let (fid, _) = directory.remove(old).unwrap();
                directory.remove(new);
                directory.insert(new, fid).unwrap();
            }
        }
    }
}

/// A client may make the change to its own copy of a directory: here every copy that a client fetched, with the changes
/// of other captured calls, becomes what some client fetched later.
#[test]
fn our_changes_make_of_a_stock_directory_what_the_stock_server_made_of_it() {
    let capture_of = |captured: &Captured| captured.at.split(' ').next().map(str::to_owned);
    let mut edits = BTreeMap::new();
    for captured in calls_in_clear() {
        if let Some((dir, version, edit)) = Edit::of(&captured) {
            edits.insert((capture_of(&captured), dir, version), edit);
        }
    }
    let mut fetched = BTreeMap::new();
    for captured in calls_in_clear() {
        if let Some((fid, version, data)) = fetched_directory(&captured) {
            fetched.insert((capture_of(&captured), fid, version), without_remains(&data));
        }
    }
    let mut steps = 0;
    for ((capture, fid, version), bytes) in &fetched {
        let mut directory = Directory::parse(bytes.clone()).unwrap();
        let mut version = *version;
        while let Some(edit) = edits.get(&(capture.clone(), *fid, version.next())) {
            version = version.next();
            edit.apply(&mut directory);
            if let Some(theirs) = fetched.get(&(capture.clone(), *fid, version)) {
                assert_eq!(
                    without_remains(directory.bytes()),
                    *theirs,
                    "{capture:?}, {fid}, version {version}"
                );
                steps += 1;
            }
        }
    }
    assert!(steps > 50, "{steps}");
}

/// The access list of the root directory in a dump that a stock volume server made.
#[test]
fn the_access_list_in_a_stock_dump_is_read_and_written_again_alike() {
    let dump = include_bytes!("captures/05-demo.dump");
    let begin = [0, 0, 0, 44, 0, 0, 0, 1, 0, 0, 0, 3];
    let at = dump.windows(begin.len()).position(|bytes| bytes == begin).unwrap();
    let stored: &[u8; STORED_SIZE] = dump[at..at + STORED_SIZE].try_into().unwrap();
    let acl = Acl::from_stored(stored).unwrap();
    assert!(acl.positive.contains(&(ViceId::SYSTEM_ADMINISTRATORS, Rights::ALL)), "{acl:?}");
    assert_eq!(acl.to_stored().as_ref(), Ok(stored));
}

/// So that a type that is added to a declaration cannot have a size of its own that is wrong.
#[test]
fn sizes_of_results_are_those_that_were_captured() {
    for captured in calls() {
        let Some((_, results)) = captured.parts() else { continue };
        let size = captured.rpc.results_size;
        assert!((size.min..=size.max).contains(&results.len()), "{}: {size:?}", captured.at);
    }
    assert_eq!(<rxafs::reply::FetchStatus as Xdr>::SIZE.min, 120);
}

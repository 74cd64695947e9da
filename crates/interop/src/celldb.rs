//! Random calls to a server of the cell's databases, so that two servers can be compared call by call: the same seed makes
//! the same calls, and what a server says depends on nothing but those. Made from few names, ids and addresses, so that
//! they meet; left out is what servers may differ in (times, places in files).

use std::net::Ipv4Addr;

use afs_wire::ids::{HostAddr, PartitionId, ViceId, VolumeId, VolumeType};
use afs_wire::{pt, vl};
use rx::{Endpoint, EndpointConfig, Peer, PeerLimits, RpcError};
use rx_proto::ids::ServiceId;
use rx_proto::security::Null;
use rxgen::xdr::{CharVec, Uuid, XdrArray, XdrString};
use rxgen::{Interface, Rpc};

/// The service that is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Talk {
    /// Volume locations.
    Vl,
    /// Users and groups.
    Pr,
}

/// Makes calls and says what came of each, a line a call.
///
/// # Errors
///
/// When the server does not answer.
pub async fn talk(what: Talk, address: Ipv4Addr, seed: u64, count: usize) -> Result<Vec<String>, String> {
    let endpoint = Endpoint::bind((Ipv4Addr::UNSPECIFIED, 0).into(), EndpointConfig::default())
        .map_err(|error| format!("cannot bind a port: {error}"))?;
    let (service, port) = match what {
        Talk::Vl => (vl::Vl::SERVICE_ID, vl::Vl::PORT),
        Talk::Pr => (pt::Pr::SERVICE_ID, pt::Pr::PORT),
    };
    let peer =
        endpoint.peer((address, port).into(), ServiceId(service), PeerLimits::default(), || Box::new(Null));
    let mut talker = Talker { peer, random: seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1, lines: Vec::new() };
    for _ in 0..count {
        match what {
            Talk::Vl => talker.vl().await?,
            Talk::Pr => talker.pr().await?,
        }
    }
    Ok(talker.lines)
}

struct Talker {
    peer: Peer,
    random: u64,
    lines: Vec<String>,
}

const NAMES: [&str; 8] = ["root.afs", "a", "b", "user.x", "user.y", "bad name", "q-1_2", "b.backup"];

impl Talker {
    fn below(&mut self, limit: u32) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        ((self.random >> 33) as u32) % limit
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u32) as usize]
    }

    /// Makes a call; its results as text, or the code.
    async fn call<R>(&mut self, args: R, show: impl FnOnce(R::Reply) -> String) -> Result<(), String>
    where
        R: Rpc + std::fmt::Debug,
    {
        let line = match self.peer.rpc(&args).await {
            Ok(reply) => show(reply),
            Err(error @ RpcError::Call { .. }) if error.code().0 != 0 && error.code().0.abs() > 100 => {
                format!("code {}", error.code().0)
            }
            Err(error) => return Err(format!("{args:?}: {error}")),
        };
        self.lines.push(format!("{} {args:?} -> {line}", R::NAME));
        Ok(())
    }

    fn id(&mut self) -> VolumeId {
        VolumeId(0x2000_0000 + self.below(24))
    }

    fn kind(&mut self) -> VolumeType {
        VolumeType(self.of(&[-1, -1, -1, 0, 1, 2, 3]))
    }

    fn server(&mut self) -> HostAddr {
        HostAddr(0x0a58_0100 + self.below(8))
    }

    fn name(&mut self) -> &'static str {
        self.of(&NAMES)
    }

    fn partition(&mut self) -> PartitionId {
        PartitionId(if self.one_in(30) { self.of(&[-1, 256]) } else { self.below(3) as i32 })
    }

    fn site_flags(&mut self) -> vl::SiteFlags {
        vl::SiteFlags(if self.one_in(30) {
            self.of(&[-1, 0x81])
        } else {
            self.of(&[2, 4, 4, 0x22, 0x23, 8, 0])
        })
    }

    fn entry(&mut self) -> vl::NvldbEntry {
        let mut entry = vl::NvldbEntry {
            name: CharVec::from_text(self.name()).expect("short"),
            n_servers: if self.one_in(20) { self.of(&[0, 14, -1, 13]) } else { 1 + self.below(4) as i32 },
            server_number: [HostAddr(0x0a58_0100); vl::NMAXNSERVERS],
            server_partition: [PartitionId(0); vl::NMAXNSERVERS],
            server_flags: [vl::SiteFlags(0); vl::NMAXNSERVERS],
            volume_id: [self.id(), VolumeId(0), VolumeId(0)],
            clone_id: VolumeId(self.below(3)),
            flags: vl::EntryFlags(self.of(&[0x1000, 0x3000, 0x7000, 0x5000, 0x4000, 0x1020, 0])),
            match_index: 0,
            spares: [0; 8],
        };
        for kind in 1..3 {
            if self.one_in(2) {
                entry.volume_id[kind] = self.id();
            }
        }
        for site in 0..vl::NMAXNSERVERS {
            entry.server_number[site] = self.server();
            entry.server_partition[site] = self.partition();
            entry.server_flags[site] = self.site_flags();
        }
        entry
    }

    fn old_entry(&mut self) -> vl::VldbEntry {
        let new = self.entry();
        vl::VldbEntry {
            name: new.name,
            spares3: 0,
            n_servers: new.n_servers,
            server_number: std::array::from_fn(|site| new.server_number[site]),
            server_partition: std::array::from_fn(|site| new.server_partition[site]),
            server_flags: std::array::from_fn(|site| new.server_flags[site]),
            volume_id: new.volume_id,
            clone_id: new.clone_id,
            flags: new.flags,
        }
    }

    fn update(&mut self) -> vl::VldbUpdateEntry {
        let mask = self.of(&[1, 4, 8, 0x10, 0x20, 0x20, 0x20, 0x80, 0x100, 0x200, 0x24, 0x1d]);
        vl::VldbUpdateEntry {
            mask: vl::UpdateMask(mask),
            name: CharVec::from_text(self.name()).expect("short"),
            spares3: self.id().0 as i32,
            flags: vl::EntryFlags(self.of(&[0x1000, 0x3000])),
            read_only_id: self.id(),
            backup_id: self.id(),
            clone_id: self.id(),
            n_modified_repsites: self.of(&[1, 1, 2, 3, 0, 9]),
            repsites_mask: std::array::from_fn(|_| {
                vl::RepSiteMask(self.of(&[0x100, 0x200, 0x200, 0x400, 0x800, 0x1000, 0x300]))
            }),
            repsites_target_server: std::array::from_fn(|_| self.server()),
            repsites_target_part: std::array::from_fn(|_| self.partition()),
            repsites_new_server: std::array::from_fn(|_| self.server()),
            repsites_new_part: std::array::from_fn(|_| self.partition()),
            repsites_new_flags: std::array::from_fn(|_| self.site_flags()),
        }
    }

    fn uuid(&mut self) -> Uuid {
        Uuid {
            time_low: 1 + self.below(3),
            time_mid: 0x8001,
            time_hi_and_version: 7,
            clock_seq_hi_and_reserved: 0xaa,
            clock_seq_low: 3,
            node: [1, 2, 0xff, 4, 5, 6],
        }
    }

    fn addresses(&mut self) -> vl::BulkAddrs {
        let count = self.of(&[1, 1, 1, 2, 3, 0]);
        XdrArray::new((0..count).map(|_| self.server()).collect()).expect("few")
    }

    fn attributes(&mut self) -> vl::VldbListByAttributes {
        vl::VldbListByAttributes {
            mask: vl::ListMask(self.of(&[0, 1, 2, 3, 8, 0x10, 0x13, 0x12])),
            server: self.server(),
            partition: PartitionId(self.below(3) as i32),
            spares3: 0,
            volumeid: self.id(),
            flag: vl::EntryFlags(self.of(&[0x1000, 0x2000, 0x1f0])),
        }
    }

    fn release(&mut self) -> vl::ReleaseType {
        vl::ReleaseType(self.of(&[0, 7, 7, 1, 2, 3, 4, 8]))
    }

    async fn vl(&mut self) -> Result<(), String> {
        let (volid, kind, release) = (self.id(), self.kind(), self.release());
        let name = XdrString::new(self.name()).expect("short");
        match self.below(27) {
            0..=2 => {
                let entry = self.entry();
                self.call(vl::CreateEntryN { entry }, |_| "ok".into()).await
            }
            3 => {
                let entry = self.old_entry();
                self.call(vl::CreateEntry { entry }, |_| "ok".into()).await
            }
            4 => self.call(vl::DeleteEntry { volid, kind }, |_| "ok".into()).await,
            5 => self.call(vl::GetEntryByID { volid, kind }, |reply| format!("{reply:?}")).await,
            6 => self.call(vl::GetEntryByIDN { volid, kind }, |reply| format!("{reply:?}")).await,
            7 => {
                let names =
                    ["536870915", "", "99999999999999999999999", "root.afs.readonly", "user.x.backup"];
                let name = XdrString::new(self.of(&names)).expect("short");
                self.call(vl::GetEntryByNameN { name }, |reply| format!("{reply:?}")).await
            }
            8 => {
                // Stock servers go on counting where the last server in the same place of their file was.
                let show = |mut reply: vl::reply::GetEntryByNameU| {
                    reply.entry.server_unique = [0; vl::NMAXNSERVERS];
                    format!("{reply:?}")
                };
                self.call(vl::GetEntryByNameU { name }, show).await
            }
            9 => self.call(vl::GetEntryByNameO { name }, |reply| format!("{reply:?}")).await,
            10 => {
                let bump_count = self.of(&[0, 1, 3, 0x8000_0000]);
                self.call(vl::GetNewVolumeId { bump_count }, |reply| format!("{reply:?}")).await
            }
            11 => {
                let mut entry = self.old_entry();
                if !self.one_in(4) {
                    entry.volume_id[0] = volid;
                }
                self.call(vl::ReplaceEntry { volid, kind, entry, release }, |_| "ok".into()).await
            }
            12 => self.replace(volid, kind, release).await,
            13 | 14 => {
                let update = self.update();
                self.call(vl::UpdateEntry { volid, kind, update, release }, |_| "ok".into()).await
            }
            15 => {
                let update = self.update();
                self.call(vl::UpdateEntryByName { name, update, release }, |_| "ok".into()).await
            }
            16 => {
                let operation = vl::EntryFlags(self.of(&[0x10, 0x20, 0x80, 0, 0x30]));
                self.call(vl::SetLock { volid, kind, operation }, |_| "ok".into()).await
            }
            17 => self.call(vl::ReleaseLock { volid, kind, release }, |_| "ok".into()).await,
            18 => {
                let attributes = self.attributes();
                self.call(vl::ListAttributes { attributes }, |reply| format!("{reply:?}")).await
            }
            19 => {
                let attributes = self.attributes();
                self.call(vl::ListAttributesN { attributes }, |reply| format!("{reply:?}")).await
            }
            20 => {
                let attributes = self.attributes();
                let name = self.of(&["", ".*", "user.*", "[ab]", "root.afs.readonly", "\\(", ".*backup"]);
                let name = XdrString::new(name).expect("short");
                let asked = vl::ListAttributesN2 { attributes, name, start_index: 0 };
                self.call(asked, |reply| format!("{reply:?}")).await
            }
            21 => {
                let attributes = self.attributes();
                self.call(vl::LinkedListN { attributes }, |reply| format!("{reply:?}")).await
            }
            22 => {
                let attributes = self.attributes();
                self.call(vl::LinkedList { attributes }, |reply| format!("{reply:?}")).await
            }
            23 => {
                let (old, new) = (self.server(), self.server());
                let removes = self.one_in(2);
                let old = if removes { HostAddr(u32::MAX) } else { old };
                self.call(vl::ChangeAddr { old, new }, |_| "ok".into()).await
            }
            24 => {
                let (uuid, addrs) = (self.uuid(), self.addresses());
                self.call(vl::RegisterAddrs { uuid, spare1: 0, addrs }, |_| "ok".into()).await
            }
            25 => {
                let by = vl::ListAddrByAttributes {
                    mask: vl::AddrMask(self.of(&[1, 2, 4, 3, 0])),
                    ipaddr: self.server(),
                    index: self.of(&[0, 1, 2, 3, 4, 254, 255]),
                    spare1: 0,
                    uuid: self.uuid(),
                };
                let show = |reply: vl::reply::GetAddrsU| format!("{} {:?}", reply.uuid, reply.addrs);
                self.call(vl::GetAddrsU { by }, show).await
            }
            _ => self.list().await,
        }
    }

    /// Stock servers let this form of replacing make a second entry of a name.
    async fn replace(
        &mut self,
        volid: VolumeId,
        kind: VolumeType,
        release: vl::ReleaseType,
    ) -> Result<(), String> {
        let Ok(old) = self.peer.rpc(&vl::GetEntryByIDN { volid, kind }).await else { return Ok(()) };
        let mut entry = self.entry();
        entry.name = old.entry.name;
        entry.volume_id[0] = old.entry.volume_id[0];
        if self.one_in(10) {
            let name = format!("renamed.{}", self.lines.len());
            entry.name = CharVec::from_text(name).expect("short");
        }
        self.call(vl::ReplaceEntryN { volid, kind, entry, release }, |_| "ok".into()).await
    }

    /// Lists all entries, one after the other; their order counts.
    async fn list(&mut self) -> Result<(), String> {
        let (mut previous_index, mut names) = (0, Vec::new());
        loop {
            let listed = self.peer.rpc(&vl::ListEntryN { previous_index }).await;
            let listed = listed.map_err(|error| format!("listing: {error}"))?;
            if listed.next_index == 0 {
                break;
            }
            previous_index = listed.next_index;
            names.push(String::from_utf8_lossy(listed.entry.name.text()).into_owned());
        }
        self.lines.push(format!("ListEntryN -> {names:?}"));
        Ok(())
    }

    fn vice_id(&mut self) -> ViceId {
        let system = [-204, -101, -102, -203, -205, 32766, 0, 1, i32::MIN];
        ViceId(match self.below(5) {
            0 => self.of(&system),
            1 | 2 => -206 - self.below(12) as i32,
            _ => 1 + self.below(12) as i32,
        })
    }

    fn principal(&mut self) -> pt::PrName {
        let names = [
            "u1",
            "u2",
            "u3",
            "U4",
            "u1:g",
            "u2:g",
            "u3:h",
            "admin:x",
            "system:y",
            "plain",
            "a:b:c",
            "10.88.0.1",
            "10.88.0.0",
            "10.0.0.0",
            "system:authuser@other.cell",
            "me@other.cell",
            "you@other.cell",
            "you@nowhere",
        ];
        XdrString::new(self.of(&names)).expect("short")
    }

    async fn pr(&mut self) -> Result<(), String> {
        let (id, gid, owner, name) = (self.vice_id(), self.vice_id(), self.vice_id(), self.principal());
        let owner = if self.one_in(2) { ViceId(0) } else { owner };
        match self.below(26) {
            0..=3 => {
                let flag = self.of(&[0, 0, 2, 2, 2, 16, 4]);
                self.call(pt::NewEntry { name, flag, owner }, |reply| format!("{reply:?}")).await
            }
            // Stock servers make an entry of the number that stands for none.
            4 if id.0 != i32::MIN => self.call(pt::INewEntry { name, id, owner }, |_| "ok".into()).await,
            5..=8 => self.call(pt::AddToGroup { uid: id, gid }, |_| "ok".into()).await,
            9 => self.call(pt::RemoveFromGroup { id, gid }, |_| "ok".into()).await,
            10 => {
                let text = std::str::from_utf8(&name).expect("ASCII").to_owned();
                let names = [text.as_str(), "u1", "nobody", "u2@x", "anonymous"]
                    .map(|name| CharVec::from_text(name).expect("short"));
                let names = XdrArray::new(names.to_vec()).expect("few");
                self.call(pt::NameToID { names }, |reply| format!("{reply:?}")).await
            }
            11 => {
                let ids = XdrArray::new(vec![id, gid, owner]).expect("few");
                self.call(pt::IDToName { ids }, |reply| format!("{reply:?}")).await
            }
            12 => self.call(pt::Delete { id }, |_| "ok".into()).await,
            13 => self.call(pt::GetCPS { id }, |reply| sorted(&reply.ids)).await,
            14 => {
                let host = HostAddr(self.of(&[0x0a58_0001, 0x0a58_0002, 0x0a01_0203, 0x0b00_0001]));
                self.call(pt::GetCPS2 { id: if id.0 == i32::MIN { gid } else { id }, host }, |reply| {
                    sorted(&reply.ids)
                })
                .await
            }
            15 => {
                let host = HostAddr(self.of(&[0x0a58_0001, 0x0a58_0002, 0x0a01_0203, 0x0b00_0001]));
                self.call(pt::GetHostCPS { host }, |reply| sorted(&reply.ids)).await
            }
            16 => self.call(pt::ListMax {}, |reply| format!("{reply:?}")).await,
            17 => {
                let gflag = self.of(&[0, 2]);
                let id =
                    ViceId(if gflag == 0 { self.of(&[0, 5, 40, -9]) } else { self.of(&[-206, -230, 9]) });
                self.call(pt::SetMax { id, gflag }, |_| "ok".into()).await
            }
            18 | 19 => self.call(pt::ListEntry { id }, |reply| format!("{reply:?}")).await,
            20 => {
                let new_id = if self.one_in(4) { gid } else { ViceId(0) };
                let name = if self.one_in(2) { XdrString::default() } else { name };
                self.call(pt::ChangeEntry { id, name, owner, new_id }, |_| "ok".into()).await
            }
            21 => self.call(pt::ListElements { id }, |reply| format!("{reply:?}")).await,
            22 => self.call(pt::IsAMemberOf { uid: id, gid }, |reply| format!("{reply:?}")).await,
            23 => {
                let mask = pt::SetFieldsMask(self.of(&[0xff, 0x80, 0, i32::MIN, 0x4000_0000, 0x13]));
                let (flags, ngroups, nusers) =
                    (self.below(256) as i32, self.of(&[-1, 0, 1, 7]), self.of(&[3, -5]));
                let args = pt::SetFieldsEntry { id, mask, flags, ngroups, nusers, spare1: 0, spare2: 0 };
                self.call(args, |_| "ok".into()).await
            }
            24 => self.call(pt::ListOwned { id, last: 0 }, |reply| format!("{reply:?}")).await,
            _ => {
                let flags = pt::ListEntriesFlags(self.of(&[1, 2, 3]));
                let show = |reply: pt::reply::ListEntries| {
                    let entry = |entry: &pt::PrListEntry| {
                        format!(
                            "{} {:?} {:?}",
                            entry.id,
                            String::from_utf8_lossy(entry.name.text()),
                            entry.owner
                        )
                    };
                    format!("{:?}", reply.entries.iter().map(entry).collect::<Vec<_>>())
                };
                self.call(pt::ListEntries { flags, start_index: 0 }, show).await
            }
        }
    }
}

/// Ids as a set: stock servers return one twice that is there for two reasons.
fn sorted(ids: &pt::IdList) -> String {
    let mut ids: Vec<i32> = ids.iter().map(|id| id.0).collect();
    ids.dedup();
    format!("{ids:?}")
}

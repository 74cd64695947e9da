//! How a cell's database servers are asked where volumes and file servers are.

use std::net::IpAddr;

use afs_wire::Uuid;
use afs_wire::ids::{HostAddr, VolumeId};
use afs_wire::vl::{
    AddrMask, GetAddrsU, GetEntryByNameN, GetEntryByNameU, ListAddrByAttributes, NvldbEntry, UvldbEntry, Vl,
    VlName,
};
use rxgen::Rpc;

use super::{Asking, Vldb};
use crate::cells::Cell;
use crate::fid::CellIndex;
use crate::remote::{Asked, Calls, Failure, QUICK_ANSWER_TIMEOUT, call_once};
use crate::users::Purpose;

impl Calls {
    /// Asks a cell's database servers, whichever answers.
    async fn ask_location<R: Rpc>(&self, cell: &Cell, args: R) -> Result<R::Reply, Failure> {
        let refreshed = self.dns.refreshed(cell).await;
        let cell = refreshed.as_deref().unwrap_or(cell);
        let asked = Asked::Servers(&cell.location_servers);
        loop {
            let who = self.users.anybody_with_rxgk(cell.index);
            let asking = self.ask(asked, who, Purpose::Read, |attempt| {
                let peer = self.connections.showing::<Vl>(attempt.socket, who, attempt.shown.as_ref());
                let args = &args;
                async move { call_once(&peer, args, QUICK_ANSWER_TIMEOUT).await }
            });
            match asking.await {
                // It is the token of somebody else, perhaps: the next who has a good one is asked as, and nobody in the end.
                Err(failure) if failure.is_of_token() => {}
                answer => return answer.map(|(reply, _)| reply),
            }
        }
    }
}

impl Vldb for Calls {
    fn entry<'a>(&'a self, cell: &'a Cell, name: VlName) -> Asking<'a, UvldbEntry> {
        Box::pin(
            async move { self.ask_location(cell, GetEntryByNameU { name }).await.map(|reply| reply.entry) },
        )
    }

    fn entry_without_uuids<'a>(&'a self, cell: &'a Cell, name: VlName) -> Asking<'a, NvldbEntry> {
        Box::pin(
            async move { self.ask_location(cell, GetEntryByNameN { name }).await.map(|reply| reply.entry) },
        )
    }

    fn addresses<'a>(&'a self, cell: &'a Cell, uuid: Uuid) -> Asking<'a, Vec<HostAddr>> {
        let by =
            ListAddrByAttributes { mask: AddrMask::UUID, ipaddr: HostAddr(0), index: 0, spare1: 0, uuid };
        Box::pin(
            async move { self.ask_location(cell, GetAddrsU { by }).await.map(|reply| reply.addrs.to_vec()) },
        )
    }

    fn note_host(&self, addresses: &[IpAddr]) {
        self.connections.endpoint().know_host(addresses);
    }

    fn note_read_only(&self, cell: CellIndex, volume: VolumeId) {
        self.volumes.get_or_add(cell, volume).set_read_only(true);
    }
}

//! The answer to each request of the control interface, as the user who asks.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use afs_cache::Conflict;
use afs_config::{CellAlias, CellName};
use afs_wire::Errno;
use afs_wire::control::{
    self, Addresses, CellFlags, CellServerList, CheckScope, DYNROOT, HeldToken, KnownCell, Place,
    RankedServer, RankedServers, SysNames, Tokens, VolumeChanges, reply,
};
use afs_wire::ids::{self, AfsFid, AfsTime, HostAddr, Uniquifier, ViceId, VnodeNumber, VolumeId};
use afs_wire::rxafs::AfsOpaque;
use rx_security::ticket::TICKET_MIN;
use rxgen::xdr::OutOfBounds;
use rxgen::{Abort, Serve, ServerCall};

use super::Session;
use crate::service::volumes::{CellInfo, ServerInfo, SetVolume};
use afs_reach::error::Error;
use afs_reach::fid::{CellIndex, Fid, Pag, User};
use afs_reach::table::{PROBE_MAX, ServerKind};
use afs_reach::users::{Holder, TokenInfo, kept};

/// Results, or the errno that the command is told.
pub(super) type Answer<R> = Result<R, Abort>;

/// A handler: the request, what is done, the results.
macro_rules! answer {
    ($name:ident, |$session:ident, $args:pat_param| $body:expr) => {
        impl Serve<control::$name> for Session {
            async fn serve(
                &self,
                _: ServerCall<'_, control::$name>,
                $args: control::$name,
            ) -> Answer<reply::$name> {
                let $session = self;
                $body
            }
        }
    };
}

pub(super) use answer;

impl Session {
    /// Returns the vnode that is meant: for a mount point, the directory that is mounted.
    pub(super) async fn fid(&self, place: &Place) -> Answer<Fid> {
        let fid = self.named_fid(place).await?;
        self.client.target(self.user, fid).await.map_err(failed)
    }

    /// Returns the vnode that is named, whatever it is.
    pub(super) async fn named_fid(&self, place: &Place) -> Answer<Fid> {
        let cell = self.cell(&place.cell).await?;
        Ok(self.client.inner.vnodes.local_ids.shown(Fid::new(cell, place.fid)))
    }

    async fn cell(&self, name: &ids::Name) -> Answer<CellIndex> {
        let name = text(name);
        if name == DYNROOT {
            return Ok(CellIndex::DYNROOT);
        }
        self.client.find_cell_anywhere(&name).await.map(|cell| cell.index).map_err(failed)
    }

    /// The files that were put aside and that the caller may see.
    fn conflicts(&self) -> Vec<Conflict> {
        let mut conflicts = self.client.conflicts();
        conflicts.retain(|conflict| self.uid == 0 || conflict.writer == self.uid);
        conflicts
    }

    fn conflict(&self, number: u64) -> Answer<Conflict> {
        let found = self.conflicts().into_iter().find(|conflict| conflict.number == number);
        found.ok_or(errno(Errno::ENOENT))
    }

    /// Refuses everybody but the superuser and the user who runs the client.
    pub(super) fn check_owner(&self) -> Answer<()> {
        if self.uid == self.owner { Ok(()) } else { self.check_superuser() }
    }

    /// Refuses everybody but the superuser.
    fn check_superuser(&self) -> Answer<()> {
        if self.uid == 0 { Ok(()) } else { Err(errno(Errno::EACCES)) }
    }
}

pub(super) const fn errno(errno: Errno) -> Abort {
    Abort(errno.0)
}

pub(super) fn failed(error: Error) -> Abort {
    tracing::debug!(%error, "asked for through the control socket");
    match error {
        // Words of their own in `fs`: a cell, or a volume, that is not there.
        Error::NoVolume { .. } | Error::NoSite { .. } => errno(Errno::ENODEV),
        error => errno(error.errno()),
    }
}

/// There is no PAG for somebody.
pub(super) fn no_pag(error: Error) -> Abort {
    match error {
        Error::Invalid { .. } => {
            tracing::debug!(%error, "asked for through the control socket");
            errno(Errno::EAGAIN)
        }
        error => failed(error),
    }
}

fn too_long(_: OutOfBounds) -> Abort {
    errno(Errno::E2BIG)
}

fn text(name: &ids::Name) -> String {
    String::from_utf8_lossy(name).into_owned()
}

fn name(text: &str) -> Answer<ids::Name> {
    ids::Name::try_from(text).map_err(too_long)
}

/// IPv4 addresses, as the interface has them; there are no others in AFS's databases.
fn addresses(all: impl IntoIterator<Item = IpAddr>) -> Answer<Addresses> {
    let ipv4 = |address| match address {
        IpAddr::V4(address) => Some(HostAddr::from(address)),
        IpAddr::V6(_) => None,
    };
    Addresses::new(all.into_iter().filter_map(ipv4).collect()).map_err(too_long)
}

// ---- the client

answer!(About, |session, control::About {}| {
    let file = session.about.cell_serv_db.to_string_lossy().into_owned();
    Ok(reply::About {
        version: name(&session.about.version)?,
        uuid: session.client.uuid(),
        cell_serv_db: control::LocalPath::new(file).map_err(too_long)?,
    })
});

// ---- files and directories

answer!(GetAcl, |session, control::GetAcl { place }| {
    let fid = session.fid(&place).await?;
    let (list, _) = session.client.access_list(session.user, fid).await.map_err(failed)?;
    let mut list = list.to_vec();
    // As servers end it.
    list.push(0);
    Ok(reply::GetAcl { access_list: AfsOpaque::new(list).map_err(too_long)? })
});

answer!(SetAcl, |session, control::SetAcl { place, access_list }| {
    let fid = session.fid(&place).await?;
    session.client.set_access_list(session.user, fid, &access_list).await.map_err(failed)?;
    Ok(reply::SetAcl {})
});

answer!(GetCallerAccess, |session, control::GetCallerAccess { place }| {
    let fid = session.fid(&place).await?;
    let rights = session.client.status(session.user, fid).await.map_err(failed)?.rights;
    Ok(reply::GetCallerAccess { rights })
});

answer!(WhereIs, |session, control::WhereIs { place }| {
    let fid = session.fid(&place).await?;
    if fid.is_made_up() {
        return Err(errno(Errno::EINVAL));
    }
    let volume = session.client.volume_info(fid.cell, fid.volume).await.map_err(failed)?;
    Ok(reply::WhereIs { servers: addresses(volume.servers.iter().map(|server| server.ip()))? })
});

answer!(GetVolumeStatus, |session, control::GetVolumeStatus { place }| {
    let fid = session.fid(&place).await?;
    let volume = session.client.volume_status(session.user, fid).await.map_err(failed)?;
    Ok(reply::GetVolumeStatus {
        status: volume.status,
        name: volume.name,
        offline_message: volume.offline_message,
        motd: volume.motd,
    })
});

answer!(SetVolumeStatus, |session, args| {
    let control::SetVolumeStatus { place, changes, max_quota, offline_message } = args;
    let fid = session.fid(&place).await?;
    let set = SetVolume {
        max_quota: changes.contains(VolumeChanges::MAX_QUOTA).then_some(max_quota),
        offline_message: changes
            .contains(VolumeChanges::OFFLINE_MESSAGE)
            .then(|| String::from_utf8_lossy(&offline_message).into_owned()),
        motd: None,
    };
    session.client.set_volume_status(session.user, fid, &set).await.map_err(failed)?;
    Ok(reply::SetVolumeStatus {})
});

// ---- mount points

/// The last character of a mount point's text.
const END: char = '.';

impl Session {
    /// Returns the text of a mount point, without the dot at its end; `EINVAL` where the name is no mount point's.
    async fn mount_text(&self, dir: Fid, name: &ids::Name) -> Answer<String> {
        let mut text = self.client.mount_text(self.user, dir, name).await.map_err(|error| match error {
            Error::NotALink { .. } => errno(Errno::EINVAL),
            error => failed(error),
        })?;
        // Whatever it is: old tools ended with a newline.
        text.pop();
        Ok(text)
    }
}

answer!(ReadMountPoint, |session, control::ReadMountPoint { dir, name }| {
    let dir = session.fid(&dir).await?;
    let target = session.mount_text(dir, &name).await?;
    Ok(reply::ReadMountPoint { target: ids::Path::new(target).map_err(too_long)? })
});

answer!(MakeMountPoint, |session, control::MakeMountPoint { dir, name, target }| {
    let dir = session.fid(&dir).await?;
    let mut text = std::str::from_utf8(&target).map_err(|_| errno(Errno::EINVAL))?.to_owned();
    text.push(END);
    session.client.make_mount(session.user, dir, &name, &text).await.map_err(failed)?;
    Ok(reply::MakeMountPoint {})
});

answer!(RemoveMountPoint, |session, control::RemoveMountPoint { dir, name }| {
    let dir = session.fid(&dir).await?;
    session.mount_text(dir, &name).await?;
    session.client.remove_mount(session.user, dir, &name).await.map_err(failed)?;
    Ok(reply::RemoveMountPoint {})
});

answer!(FlushMountPoint, |session, control::FlushMountPoint { dir, name }| {
    let dir = session.fid(&dir).await?;
    session.mount_text(dir, &name).await?;
    let mount_point = session.client.lookup(session.user, dir, &name).await.map_err(failed)?.fid;
    session.client.flush(session.user, mount_point).await;
    Ok(reply::FlushMountPoint {})
});

// ---- what is kept

answer!(Flush, |session, control::Flush { place }| {
    let fid = session.fid(&place).await?;
    session.client.flush(session.user, fid).await;
    Ok(reply::Flush {})
});

answer!(FlushVolume, |session, control::FlushVolume { place }| {
    let fid = session.fid(&place).await?;
    session.client.flush_volume(fid.cell, fid.volume).await;
    Ok(reply::FlushVolume {})
});

answer!(FlushAll, |session, control::FlushAll {}| {
    // It costs all users what they have in the cache.
    session.check_owner()?;
    session.client.flush_all().await;
    Ok(reply::FlushAll {})
});

answer!(CheckVolumes, |session, control::CheckVolumes {}| {
    session.client.forget_locations().await;
    Ok(reply::CheckVolumes {})
});

answer!(GetWaiting, |session, control::GetWaiting {}| {
    Ok(reply::GetWaiting { waiting: session.client.waiting() })
});

answer!(ListPutAside, |session, control::ListPutAside { above }| {
    let mut conflicts = session.conflicts();
    conflicts.retain(|conflict| conflict.number > above);
    conflicts.truncate(control::PUT_ASIDE_MAX);
    let told = conflicts.into_iter().map(|conflict| {
        Ok(control::Aside {
            number: conflict.number,
            cell: ids::Name::new(&*conflict.cell)?,
            fid: AfsFid {
                volume: VolumeId(conflict.volume),
                vnode: VnodeNumber(conflict.vnode),
                unique: Uniquifier(conflict.unique),
            },
            version: conflict.version,
            user: conflict.writer,
            length: conflict.length,
            written: conflict.written(),
            why: control::LocalPath::new(conflict.why)?,
        })
    });
    let told: Result<Vec<_>, OutOfBounds> = told.collect();
    Ok(reply::ListPutAside { files: told.and_then(control::PutAside::new).map_err(too_long)? })
});

answer!(ReadPutAside, |session, control::ReadPutAside { number, position }| {
    let (client, conflict) = (session.client.clone(), session.conflict(number)?);
    let read =
        rx::blocking::on_a_thread(move || client.read_conflict(&conflict, position, control::PIECE_MAX));
    let piece = control::Piece::new(read.await.map_err(failed)?).map_err(too_long)?;
    Ok(reply::ReadPutAside { piece })
});

answer!(DropPutAside, |session, control::DropPutAside { number }| {
    let (client, conflict) = (session.client.clone(), session.conflict(number)?);
    rx::blocking::on_a_thread(move || client.remove_conflict(&conflict)).await.map_err(failed)?;
    Ok(reply::DropPutAside {})
});

answer!(GetCacheUse, |session, control::GetCacheUse {}| {
    Ok(reply::GetCacheUse { cache: session.client.cache_use() })
});

answer!(SetCacheSize, |session, control::SetCacheSize { size_kib }| {
    session.check_superuser()?;
    // What `fs` has words for: a cache in memory.
    session.client.set_cache_size(size_kib).map_err(|_| errno(Errno::EROFS))?;
    Ok(reply::SetCacheSize {})
});

// ---- servers

answer!(CheckServers, |session, control::CheckServers { scope, cell, is_fast }| {
    let cell = match scope {
        CheckScope::ALL => None,
        CheckScope::CELL => Some(session.cell(&cell).await?),
        _ => session.client.own_cell(),
    };
    let servers = match is_fast {
        true => session.client.servers(),
        false => session.client.check_servers(cell).await,
    };
    let is_meant = |server: &&ServerInfo| server.is_down && cell.is_none_or(|cell| server.cell == cell);
    let mut down: Vec<IpAddr> = servers.iter().filter(is_meant).map(|server| server.address.ip()).collect();
    // One machine may serve both kinds.
    down.sort_unstable();
    down.dedup();
    Ok(reply::CheckServers { down: addresses(down)? })
});

answer!(ProbeInterval, |session, control::ProbeInterval { seconds }| {
    if seconds != 0 {
        session.check_superuser()?;
    }
    // It follows from how long a server is down: from half a second to this.
    let old_seconds = u32::try_from(PROBE_MAX.as_secs()).unwrap_or(u32::MAX);
    if seconds != 0 && seconds != old_seconds {
        return Err(errno(Errno::EOPNOTSUPP));
    }
    Ok(reply::ProbeInterval { old_seconds })
});

fn kind_of(kind: control::ServerKind) -> Answer<ServerKind> {
    match kind {
        control::ServerKind::FILE => Ok(ServerKind::File),
        control::ServerKind::LOCATION => Ok(ServerKind::Location),
        _ => Err(errno(Errno::EINVAL)),
    }
}

answer!(GetServerRanks, |session, control::GetServerRanks { kind }| {
    let kind = kind_of(kind)?;
    // An address may be that of servers of several cells. Ranks may be set for servers that were not heard of yet.
    let mut ranks: BTreeMap<_, _> = session
        .client
        .ranks_set(kind)
        .into_iter()
        .filter_map(|(address, rank)| match address {
            IpAddr::V4(address) => Some((address, rank)),
            IpAddr::V6(_) => None,
        })
        .collect();
    for server in session.client.servers().iter().filter(|server| server.kind == kind) {
        if let IpAddr::V4(address) = server.address.ip() {
            ranks.insert(address, server.rank);
        }
    }
    let ranked = ranks.into_iter().map(|(address, rank)| RankedServer { address: address.into(), rank });
    Ok(reply::GetServerRanks { servers: RankedServers::new(ranked.collect()).map_err(too_long)? })
});

answer!(SetServerRanks, |session, control::SetServerRanks { kind, servers }| {
    session.check_superuser()?;
    let kind = kind_of(kind)?;
    for server in servers.iter() {
        session.client.set_rank(IpAddr::V4(server.address.ip()), kind, server.rank);
    }
    Ok(reply::SetServerRanks {})
});

// ---- cells

/// The flags of each cell: set-uid bits count in none, as every mount is `nosuid`.
const FLAGS: CellFlags = CellFlags::NO_SUID;

fn known(cell: CellInfo) -> Answer<KnownCell> {
    // As many as there is place for: `fs` lists them, and asks them where it has to know more than the client.
    let servers = cell.servers.into_iter().take(control::CELL_SERVERS_MAX).map(HostAddr::from).collect();
    let servers = CellServerList::new(servers).map_err(too_long)?;
    Ok(KnownCell { name: name(cell.name.as_str())?, servers, flags: FLAGS })
}

/// The one at a place of a list; `EDOM` behind the last.
fn at<T>(all: Vec<T>, index: u32) -> Answer<T> {
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    all.into_iter().nth(index).ok_or(errno(Errno::EDOM))
}

answer!(GetOwnCell, |session, control::GetOwnCell {}| {
    Ok(reply::GetOwnCell { name: name(session.client.config().cell.as_str())? })
});

answer!(GetCell, |session, control::GetCell { index }| {
    Ok(reply::GetCell { cell: known(at(session.client.cells(), index)?)? })
});

answer!(FindCell, |session, control::FindCell { name }| {
    let cell = session.client.find_cell_anywhere(&text(&name)).await.map_err(failed)?;
    Ok(reply::FindCell { cell: known(cell)? })
});

answer!(NewCell, |session, control::NewCell { name, servers, linked }| {
    session.check_superuser()?;
    let servers: Vec<Ipv4Addr> = servers.iter().map(|server| server.ip()).collect();
    let cell_name = |name: &ids::Name| CellName::new(&text(name)).ok_or(errno(Errno::EINVAL));
    let linked = if linked.is_empty() { None } else { Some(cell_name(&linked)?) };
    if servers.is_empty() {
        return Err(errno(Errno::EINVAL));
    }
    session.client.set_cell(&cell_name(&name)?, linked, &servers).await.map_err(failed)?;
    Ok(reply::NewCell {})
});

answer!(SetCellFlags, |session, control::SetCellFlags { name, flags }| {
    session.check_superuser()?;
    session.client.find_cell(&text(&name)).map_err(failed)?;
    // What is so already can be set.
    if flags != FLAGS {
        return Err(errno(Errno::EOPNOTSUPP));
    }
    Ok(reply::SetCellFlags {})
});

answer!(GetAlias, |session, control::GetAlias { index }| {
    let CellAlias { alias, cell } = at(session.client.aliases(), index)?;
    Ok(reply::GetAlias { alias: name(&alias)?, cell: name(cell.as_str())? })
});

answer!(NewAlias, |session, control::NewAlias { alias, cell }| {
    session.check_superuser()?;
    session.client.add_alias(&text(&alias), &text(&cell)).await.map_err(failed)?;
    Ok(reply::NewAlias {})
});

// ---- the caller and the machine

/// The holder of a token, as `tokens` prints it: with a number as OpenAFS's cache manager has it, and with a name where the token was made
/// here.
fn told_holder(user: User, token: &TokenInfo) -> String {
    match (&token.holder, token.is_made_here) {
        (Holder { id: Some(id), .. }, _) => format!("AFS ID {id}"),
        (Holder { name, .. }, true) => name.clone(),
        (Holder { .. }, false) => format!("Unix UID {}", user.uid),
    }
}

answer!(ListTokens, |session, control::ListTokens {}| {
    let tokens: Result<Vec<HeldToken>, Abort> = session
        .client
        .tokens(session.user)
        .into_iter()
        .take(control::TOKENS_MAX)
        .map(|token| {
            let cell = session.client.cell_name(token.cell);
            Ok(HeldToken {
                cell: name(cell.as_ref().map_or("", CellName::as_str))?,
                holder: name(&told_holder(session.user, &token))?,
                id: token.holder.id.unwrap_or(ViceId::ANONYMOUS),
                expires: AfsTime(token.end.0),
            })
        })
        .collect();
    Ok(reply::ListTokens { tokens: Tokens::new(tokens?).map_err(too_long)? })
});

answer!(SetToken, |session, control::SetToken { token, is_forced }| {
    let (holder, given) = kept::taken(&token);
    if given.end <= given.start || given.ticket.len() < TICKET_MIN {
        return Err(errno(Errno::EINVAL));
    }
    let cell = text(&token.cell);
    // It may be in the DNS, and nobody here have looked it up.
    session.client.inner.dns.cell_named(&cell).await.map_err(failed)?;
    let is_new = session.client.log_in(session.user, &cell, holder, given, is_forced);
    Ok(reply::SetToken { is_new: is_new.map_err(failed)? })
});

answer!(GetToken, |session, control::GetToken { cell }| {
    // Of no other cell than the one that is named, so neither an alias nor a beginning counts.
    let held = session.client.held_token(session.user, &text(&cell));
    let (holder, token) = held.ok_or(errno(Errno::ENOTCONN))?;
    let cell = text(&cell);
    Ok(reply::GetToken { token: kept::given(&cell, &holder, &token).map_err(too_long)? })
});

answer!(SetRxgk, |session, control::SetRxgk { token }| {
    let given = kept::taken_rxgk(&token).ok_or(errno(Errno::EINVAL))?;
    let is_set = session.client.log_in_by_rxgk(session.user, &text(&token.cell), given);
    is_set.then_some(reply::SetRxgk {}).ok_or(errno(Errno::ENOTCONN))
});

answer!(SetOnlyRxgk, |session, control::SetOnlyRxgk { holder, id, token }| {
    let given = kept::taken_rxgk(&token).ok_or(errno(Errno::EINVAL))?;
    let (cell, holder) = (text(&token.cell), kept::holder_of(&holder, id));
    let done = session.client.log_in_by_rxgk_alone(session.user, &cell, holder, given).await;
    done.map(|()| reply::SetOnlyRxgk {}).map_err(failed)
});

answer!(GetRxgk, |session, control::GetRxgk { cell }| {
    let cell = text(&cell);
    let held = session.client.held_rxgk(session.user, &cell).ok_or(errno(Errno::ENOTCONN))?;
    Ok(reply::GetRxgk { token: kept::given_rxgk(&cell, &held).map_err(too_long)? })
});

answer!(GetUnstored, |session, control::GetUnstored {}| {
    let (files, bytes) = session.client.waiting_for_a_token(session.user);
    Ok(reply::GetUnstored { files, bytes })
});

answer!(ForgetTokens, |session, control::ForgetTokens { cell }| {
    let cell = if cell.is_empty() { None } else { Some(session.cell(&cell).await?) };
    let count = session.client.log_out(session.user, cell);
    Ok(reply::ForgetTokens { count: u32::try_from(count).unwrap_or(u32::MAX) })
});

answer!(NewPag, |session, control::NewPag {}| {
    // For the user who asks, also if that is a program of theirs that adds the group: whatever it is, it is theirs alone.
    let pag = session.new_pag().await?;
    Ok(reply::NewPag { group: pag.group() })
});

answer!(AdoptPag, |session, control::AdoptPag { group, uid }| {
    session.check_superuser()?;
    let pag = Pag::of_group(group).ok_or(errno(Errno::EINVAL))?;
    session.client.adopt_pag(pag, uid).map_err(no_pag)?;
    Ok(reply::AdoptPag {})
});

answer!(GetCaller, |session, control::GetCaller { cell }| {
    let tokens = session.client.tokens(session.user);
    let name_of = |token: &TokenInfo| session.client.cell_name(token.cell);
    let is_meant =
        |token: &TokenInfo| name_of(token).is_some_and(|name| name.as_str().as_bytes() == &cell[..]);
    let is_made_here = tokens.iter().any(|token| token.is_made_here && is_meant(token));
    Ok(reply::GetCaller { pag: session.user.pag.map_or(0, Pag::group), is_made_here })
});

answer!(EndPag, |session, control::EndPag {}| {
    if session.user.pag.is_none() {
        return Err(errno(Errno::EINVAL));
    }
    session.client.end_pag(session.user);
    Ok(reply::EndPag {})
});

answer!(SysName, |session, control::SysName { new_names }| {
    if !new_names.is_empty() {
        session.check_superuser()?;
        session.client.set_sysnames(new_names.iter().map(text).collect()).await;
    }
    let names: Result<Vec<ids::Name>, Abort> =
        session.client.sysnames().iter().map(|sysname| name(sysname)).collect();
    Ok(reply::SysName { names: SysNames::new(names?).map_err(too_long)? })
});

answer!(GetClientAddresses, |session, control::GetClientAddresses {}| {
    // Of a client that takes calls on all addresses, none is told: servers know the one that they are called from.
    let own = session.client.address().ip();
    let told = if own.is_unspecified() { None } else { Some(own) };
    Ok(reply::GetClientAddresses { addresses: addresses(told)? })
});

answer!(GetCrypt, |session, control::GetCrypt {}| {
    Ok(reply::GetCrypt { is_on: session.client.is_encrypting() })
});

answer!(SetCrypt, |session, control::SetCrypt { is_on }| {
    session.check_superuser()?;
    session.client.set_encrypting(is_on);
    Ok(reply::SetCrypt {})
});

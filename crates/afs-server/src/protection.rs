//! Questions of the file service to the protection database: in this process, or of the cell's servers.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use afs_admin::DatabaseServers;
use afs_celldb::Database;
use afs_celldb::caller::{Authority as _, Caller, Identity};
use afs_celldb::ptdb::{PtError, Ptdb, Rules};
use afs_fileserver::{Answer, Membership, Protection, ProtectionError};
use afs_wire::ids::{HostAddr, ViceId};
use afs_wire::pt::{GetCPS, GetHostCPS, IDToName, IdList, NameList, NameToID, PR_MAXNAMELEN, PrNameVec};
use rxgen::Abort;
use rxgen::xdr::{CharVec, XdrArray};

use crate::authority::CellAuthority;

/// PRNOENT.
const NO_ENTRY: i32 = afs_wire::abort::PRNOENT.0;

/// Names asked for in one call: some thousand are more than an access list has.
const MAX_NAMES: usize = 1024;

/// The database of this process.
#[derive(Debug)]
pub(crate) struct LocalProtection {
    pub(crate) database: Arc<Database<Ptdb>>,
    pub(crate) rules: Rules,
    pub(crate) authority: Arc<CellAuthority>,
}

/// The caller of these requests: this server itself.
const SELF: Caller = Caller { identity: Identity::Cell, is_superuser: true };

impl LocalProtection {
    async fn ask<T>(
        &self,
        ask: impl FnOnce(&Ptdb, &Rules) -> Result<T, PtError>,
    ) -> Result<T, ProtectionError> {
        let current = self.database.catch_up().await;
        current.map_err(|error| ProtectionError { reason: error.to_string() })?;
        self.database
            .read(|ptdb| ask(ptdb, &self.rules))
            .map_err(|error| ProtectionError { reason: Abort(error.code()).to_string() })
    }

    fn id_of(&self, ptdb: &Ptdb, name: &str) -> Option<ViceId> {
        let name = name.to_ascii_lowercase();
        let id = ViceId(ptdb.name_to_id(name.as_bytes(), |realm| self.authority.is_local_realm(realm)));
        (id != ViceId::ANONYMOUS || name == "anonymous").then_some(id)
    }
}

impl Protection for LocalProtection {
    fn membership<'a>(&'a self, identity: &'a str) -> Answer<'a, Membership> {
        Box::pin(async move {
            self.ask(|ptdb, rules| {
                let Some(id) = self.id_of(ptdb, identity) else {
                    return Ok(Membership::anonymous());
                };
                let groups = ptdb.get_cps(rules, &SELF, id.0)?;
                Ok(Membership { id, groups: groups.into_iter().map(ViceId).collect() })
            })
            .await
        })
    }

    fn host_groups(&self, host: IpAddr) -> Answer<'_, Vec<ViceId>> {
        Box::pin(async move {
            let Some(address) = v4(host) else { return Ok(Vec::new()) };
            let groups = self.ask(|ptdb, rules| ptdb.host_cps(rules, &SELF, address.to_bits())).await?;
            Ok(groups.into_iter().map(ViceId).collect())
        })
    }

    fn ids(&self, names: Vec<String>) -> Answer<'_, Vec<Option<ViceId>>> {
        Box::pin(async move {
            self.ask(|ptdb, _| Ok(names.iter().map(|name| self.id_of(ptdb, name)).collect())).await
        })
    }

    fn names(&self, ids: Vec<ViceId>) -> Answer<'_, Vec<String>> {
        Box::pin(async move {
            let ids: Vec<i32> = ids.into_iter().map(|id| id.0).collect();
            let names = self.ask(|ptdb, rules| ptdb.id_to_name(rules, &SELF, &ids)).await?;
            Ok(names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect())
        })
    }

    fn is_superuser(&self, identity: &str) -> bool {
        self.authority.is_superuser(identity)
    }
}

/// The database servers of the cell.
pub(crate) struct RemoteProtection {
    pub(crate) servers: DatabaseServers,
    pub(crate) authority: Arc<CellAuthority>,
}

impl Protection for RemoteProtection {
    fn membership<'a>(&'a self, identity: &'a str) -> Answer<'a, Membership> {
        Box::pin(async move {
            let ids = self.ids(vec![identity.to_owned()]).await?;
            let Some(id) = ids.into_iter().next().flatten() else { return Ok(Membership::anonymous()) };
            let groups = self.servers.call(&GetCPS { id }).await.map_err(failed)?.ids.to_vec();
            Ok(Membership { id, groups })
        })
    }

    fn host_groups(&self, host: IpAddr) -> Answer<'_, Vec<ViceId>> {
        Box::pin(async move {
            let Some(address) = v4(host) else { return Ok(Vec::new()) };
            match self.servers.call(&GetHostCPS { host: HostAddr::from(address) }).await {
                Ok(reply) => Ok(reply.ids.to_vec()),
                // Stock servers know no such host, and say so.
                Err(error) if error.code().0 == NO_ENTRY => Ok(Vec::new()),
                Err(error) => Err(failed(error)),
            }
        })
    }

    fn ids(&self, names: Vec<String>) -> Answer<'_, Vec<Option<ViceId>>> {
        Box::pin(async move {
            let mut ids = Vec::new();
            for names in names.chunks(MAX_NAMES) {
                // A name that is too long is nobody's; a shorter one that is not there either stands for it.
                let vec = |name: &String| -> PrNameVec {
                    CharVec::from_text(name.to_ascii_lowercase()).unwrap_or(CharVec([b'?'; PR_MAXNAMELEN]))
                };
                let list: NameList =
                    XdrArray::new(names.iter().map(vec).collect::<Vec<_>>()).map_err(too_many)?;
                let reply = self.servers.call(&NameToID { names: list }).await.map_err(failed)?;
                let known = |(name, id): (&String, &ViceId)| {
                    (*id != ViceId::ANONYMOUS || name.eq_ignore_ascii_case("anonymous")).then_some(*id)
                };
                ids.extend(names.iter().zip(reply.ids.iter()).map(known));
            }
            Ok(ids)
        })
    }

    fn names(&self, ids: Vec<ViceId>) -> Answer<'_, Vec<String>> {
        Box::pin(async move {
            let mut names = Vec::new();
            for ids in ids.chunks(MAX_NAMES) {
                let list: IdList = XdrArray::new(ids.to_vec()).map_err(too_many)?;
                let reply = self.servers.call(&IDToName { ids: list }).await.map_err(failed)?;
                names
                    .extend(reply.names.iter().map(|name| String::from_utf8_lossy(name.text()).into_owned()));
            }
            Ok(names)
        })
    }

    fn is_superuser(&self, identity: &str) -> bool {
        self.authority.is_superuser(identity)
    }
}

fn v4(host: IpAddr) -> Option<Ipv4Addr> {
    match host.to_canonical() {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    }
}

fn failed(error: impl std::fmt::Display) -> ProtectionError {
    ProtectionError { reason: error.to_string() }
}

fn too_many(_: impl std::fmt::Display) -> ProtectionError {
    failed("more names or ids than a call can have")
}

//! The overseer's service (BOZO, Overseer notes): tells `bos` what runs here. The roles of this process look like the servers of
//! OpenAFS that they take the place of, so that scripts that watch those go on.
//!
//! What superusers change or order is in `changes`, superusers themselves here. Everything else is refused: superusers are told that
//! this server does not have the procedure, others that they may not.

mod changes;
pub(crate) mod instances;
mod salvage;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::UNIX_EPOCH;

use afs_config::{BosConfig, Cell, KTime};
use afs_wire::abort::{BZACCESS, BZBADTYPE, BZDOM, BZIO, BZNOENT, BZSYNTAX};
use afs_wire::bos::{
    AddKey, AddSUser, BnodeFlags, BnodeStatus, BozoKey, BozoKeyInfo, BozoNetKTime, BozoStatus, BozoString,
    DeleteBnode, DeleteKey, DeleteSUser, EnumerateInstance, Exec, GetCellHost, GetCellName, GetDates,
    GetInstanceInfo, GetInstanceParm, GetInstanceStrings, GetRestartTime, GetRestrictedMode, GetStatus,
    Install, KTimeMask, ListKeys, ListSUsers, Prune, RestartTimeKind, SetCellName, SetNoAuthFlag,
    SetRestartTime, SetRestrictedMode, UnInstall, reply,
};
use afs_wire::ids::AfsTime;
use rx::blocking::on_a_thread;
use rx_security::keys::KeyType;
use rxgen::xdr::{CharVec, XdrString};
use rxgen::{Abort, Serve, ServerCall};

use crate::authority::{BadUser, CellAuthority, UserChange};
use crate::classes::Classes;
use crate::log::Recent;
use crate::orders::Orders;
use changes::{BAD_KEY, Requester};
use instances::{Instance, Instances, Shown};
pub(crate) use salvage::Salvager;

/// The state that the service tells of.
#[derive(Debug)]
pub(crate) struct Overseer {
    pub(crate) authority: Arc<CellAuthority>,
    /// The cell's entry of CellServDB, as it was at the start.
    pub(crate) cell: Cell,
    /// The file CellServDB.
    pub(crate) cells: PathBuf,
    /// Held while that file is changed.
    pub(crate) changes_cells: Arc<Mutex<()>>,
    /// The last lines of the log.
    pub(crate) recent: Recent,
    pub(crate) audit_file: PathBuf,
    /// The channel on which the program is told to end.
    pub(crate) orders: Orders,
    /// Has the keys, as they are at the time.
    pub(crate) classes: Classes,
    pub(crate) instances: Arc<Instances>,
    pub(crate) salvager: Arc<Salvager>,
    /// The program, whose age is told.
    pub(crate) program: PathBuf,
    /// The source of restart times.
    pub(crate) bos_config: BosConfig,
}

impl Overseer {
    fn instance(&self, name: &BozoString) -> Result<&Instance, Abort> {
        self.instances.get(name).ok_or(BZNOENT)
    }

    /// The facts about an instance, for clients: a check that runs, or a role.
    fn shown(&self, name: &BozoString) -> Result<Shown, Abort> {
        self.salvager.shown(name).map_or_else(|| self.instance(name).map(Instance::shown), Ok)
    }
}

/// That a superuser is there already, and that one is not: errors of the system, observed.
const IS_THERE: Abort = Abort(17);
const IS_NOT_THERE: Abort = Abort(2);

impl Overseer {
    /// Changes the UserList, for a superuser.
    async fn change_user(&self, who: &Requester, name: &BozoString, change: UserChange) -> Result<(), Abort> {
        self.check(who)?;
        let (name, authority) = (name.to_vec(), Arc::clone(&self.authority));
        // The disk is waited for elsewhere.
        on_a_thread(move || authority.change_user(&name, change)).await.map_err(|bad| match bad {
            BadUser::NoName => BZSYNTAX,
            BadUser::IsThere => IS_THERE,
            BadUser::IsNotThere => IS_NOT_THERE,
            BadUser::File(error) => {
                tracing::error!(%error, "the UserList cannot be changed: let it and its folder belong to the server's user");
                BZIO
            }
        })
    }
}

impl Serve<AddSUser> for Overseer {
    async fn serve(&self, call: ServerCall<'_, AddSUser>, args: AddSUser) -> Result<reply::AddSUser, Abort> {
        let who = Requester::of(&call);
        let result = self.change_user(&who, &args.name, UserChange::Add).await;
        self.audited(&who, &args.name.to_string(), result)?;
        Ok(reply::AddSUser {})
    }
}

impl Serve<DeleteSUser> for Overseer {
    async fn serve(
        &self,
        call: ServerCall<'_, DeleteSUser>,
        args: DeleteSUser,
    ) -> Result<reply::DeleteSUser, Abort> {
        let who = Requester::of(&call);
        let result = self.change_user(&who, &args.name, UserChange::Remove).await;
        self.audited(&who, &args.name.to_string(), result)?;
        Ok(reply::DeleteSUser {})
    }
}

fn string(text: &str) -> BozoString {
    let mut end = text.len().min(afs_wire::bos::BOZO_BSSIZE - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    XdrString::new(&text.as_bytes()[..end]).unwrap_or_default()
}

/// The code that ends a list of superusers: none of the overseer's table (observed: `bos listusers` takes BZDOM for a failure).
const NO_MORE_USERS: Abort = Abort(1);

fn at<T>(items: &[T], index: impl TryInto<usize>) -> Result<&T, Abort> {
    index.try_into().ok().and_then(|index| items.get(index)).ok_or(BZDOM)
}

impl Serve<GetStatus> for Overseer {
    async fn serve(&self, _: ServerCall<'_, GetStatus>, args: GetStatus) -> Result<reply::GetStatus, Abort> {
        let Shown { status, description, .. } = self.shown(&args.instance)?;
        Ok(reply::GetStatus { status, description: string(description) })
    }
}

impl Serve<EnumerateInstance> for Overseer {
    async fn serve(
        &self,
        _: ServerCall<'_, EnumerateInstance>,
        args: EnumerateInstance,
    ) -> Result<reply::EnumerateInstance, Abort> {
        let names = self.instances.all.iter().map(|instance| instance.name);
        let names: Vec<&str> = names.chain(self.salvager.started().map(|_| salvage::NAME)).collect();
        Ok(reply::EnumerateInstance { name: string(at(&names, args.index)?) })
    }
}

impl Serve<GetInstanceInfo> for Overseer {
    async fn serve(
        &self,
        _: ServerCall<'_, GetInstanceInfo>,
        args: GetInstanceInfo,
    ) -> Result<reply::GetInstanceInfo, Abort> {
        let shown = self.shown(&args.instance)?;
        let goal = |runs: bool| if runs { BnodeStatus::NORMAL } else { BnodeStatus::SHUTDOWN };
        let status = BozoStatus {
            goal: goal(shown.goal),
            file_goal: goal(shown.file_goal),
            proc_start_time: shown.started,
            proc_starts: shown.starts,
            last_any_exit: shown.last_exit,
            last_error_exit: AfsTime(0),
            error_code: 0,
            error_signal: 0,
            flags: BnodeFlags::NONE,
            spare: [0; 8],
        };
        Ok(reply::GetInstanceInfo { kind: string(shown.kind), status })
    }
}

impl Serve<GetInstanceParm> for Overseer {
    async fn serve(
        &self,
        _: ServerCall<'_, GetInstanceParm>,
        args: GetInstanceParm,
    ) -> Result<reply::GetInstanceParm, Abort> {
        let instance = self.instance(&args.instance)?;
        Ok(reply::GetInstanceParm { parm: string(at(&instance.commands, args.num)?) })
    }
}

impl Serve<GetInstanceStrings> for Overseer {
    async fn serve(
        &self,
        _: ServerCall<'_, GetInstanceStrings>,
        args: GetInstanceStrings,
    ) -> Result<reply::GetInstanceStrings, Abort> {
        self.instance(&args.instance)?;
        let none = || string("");
        Ok(reply::GetInstanceStrings { error_name: none(), spare1: none(), spare2: none(), spare3: none() })
    }
}

impl Serve<ListSUsers> for Overseer {
    async fn serve(
        &self,
        _: ServerCall<'_, ListSUsers>,
        args: ListSUsers,
    ) -> Result<reply::ListSUsers, Abort> {
        let users = self.authority.users();
        let mut name = at(&users.users, args.index).map_err(|_| NO_MORE_USERS)?.to_bytes();
        name.truncate(afs_wire::bos::BOZO_BSSIZE - 1);
        Ok(reply::ListSUsers { name: XdrString::new(name).unwrap_or_default() })
    }
}

impl Serve<ListKeys> for Overseer {
    /// Versions only: a key that is asked for over the network is a key that is lost.
    async fn serve(&self, call: ServerCall<'_, ListKeys>, args: ListKeys) -> Result<reply::ListKeys, Abort> {
        if !self.authority.is_superuser(call.security()) {
            return Err(BZACCESS);
        }
        // Stock overseers know keys of the old kind only, by this procedure.
        let keys = self.classes.keys();
        let mut kvnos: Vec<i32> =
            keys.iter().filter(|key| key.kind == KeyType::RXKAD).map(|key| key.kvno).collect();
        kvnos.sort_unstable();
        let kvno = *at(&kvnos, args.index)?;
        let info = BozoKeyInfo { mod_sec: AfsTime(0), mod_usec: 0, key_checksum: 0, spare2: 0 };
        Ok(reply::ListKeys { kvno, key: BozoKey { data: CharVec([0; 8]) }, info })
    }
}

impl Serve<GetCellName> for Overseer {
    async fn serve(
        &self,
        _: ServerCall<'_, GetCellName>,
        _: GetCellName,
    ) -> Result<reply::GetCellName, Abort> {
        Ok(reply::GetCellName { name: string(self.cell.name.as_str()) })
    }
}

impl Serve<GetCellHost> for Overseer {
    async fn serve(
        &self,
        _: ServerCall<'_, GetCellHost>,
        args: GetCellHost,
    ) -> Result<reply::GetCellHost, Abort> {
        let cell = self.hosts().await;
        let server = at(&cell.servers, args.index)?;
        let name = server.name.clone().unwrap_or_else(|| server.address.to_string());
        Ok(reply::GetCellHost { name: string(&if server.is_clone { format!("[{name}]") } else { name }) })
    }
}

impl Serve<GetDates> for Overseer {
    /// There is one program, whatever it is asked for by; what else is on this machine is nobody's business.
    async fn serve(&self, _: ServerCall<'_, GetDates>, _: GetDates) -> Result<reply::GetDates, Abort> {
        let modified = self.program.metadata().and_then(|m| m.modified()).ok();
        let seconds = modified.and_then(|m| m.duration_since(UNIX_EPOCH).ok()).map_or(0, |d| d.as_secs());
        Ok(reply::GetDates { new_time: AfsTime(seconds as u32), bak_time: AfsTime(0), old_time: AfsTime(0) })
    }
}

impl Serve<GetRestartTime> for Overseer {
    async fn serve(
        &self,
        _: ServerCall<'_, GetRestartTime>,
        args: GetRestartTime,
    ) -> Result<reply::GetRestartTime, Abort> {
        // The service manager restarts, if anybody does.
        let KTime { mask, hour, min, sec, day } = match args.kind {
            RestartTimeKind::GENERAL => self.bos_config.restart_time,
            RestartTimeKind::NEW_BINARY => self.bos_config.check_binaries_time,
            _ => return Err(BZBADTYPE),
        };
        let time = BozoNetKTime { mask: KTimeMask(mask), hour, minute: min, second: sec, day };
        Ok(reply::GetRestartTime { time })
    }
}

impl Serve<GetRestrictedMode> for Overseer {
    /// No command can be started and no process made from afar, which is what restricted means to scripts. Superusers can still
    /// change the UserList and CellServDB, stop and start roles, have volumes checked, and have the process end or start again.
    async fn serve(
        &self,
        _: ServerCall<'_, GetRestrictedMode>,
        _: GetRestrictedMode,
    ) -> Result<reply::GetRestrictedMode, Abort> {
        Ok(reply::GetRestrictedMode { mode: 1 })
    }
}

impl Serve<AddKey> for Overseer {
    /// Refuses the key: this procedure can send only keys of DES, and nobody should use these any more.
    async fn serve(&self, call: ServerCall<'_, AddKey>, args: AddKey) -> Result<reply::AddKey, Abort> {
        let who = Requester::of(&call);
        let result = self.check(&who).and_then(|()| {
            tracing::warn!(
                "'bos addkey' can only send keys of DES, which are refused: add a key with 'afar key add' on each server"
            );
            Err(BAD_KEY)
        });
        self.audited(&who, &format!("version {}", args.kvno), result)
    }
}

/// Procedures that nobody may call here.
macro_rules! refuse {
    ($($rpc:ident)*) => { $(
        impl Serve<$rpc> for Overseer {
            async fn serve(&self, call: ServerCall<'_, $rpc>, _: $rpc) -> Result<reply::$rpc, Abort> {
                let who = Requester::of(&call);
                let result = self.check(&who).and(Err(Abort::OPCODE));
                self.audited(&who, "refused", result)
            }
        }
    )* };
}

refuse! {
    DeleteBnode DeleteKey SetCellName SetNoAuthFlag Install UnInstall Exec Prune SetRestartTime
    SetRestrictedMode
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_out_of_range_ends_a_list() {
        assert_eq!(at(&[1, 2], 1i32), Ok(&2));
        for index in [-1, 2, i32::MAX] {
            assert_eq!(at(&[1, 2], index), Err(BZDOM));
        }
    }
}

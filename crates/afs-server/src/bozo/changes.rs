//! Changes and requests of superusers through the overseer's service, beside those of superusers themselves: the cell's database
//! servers in CellServDB, logs, which roles run, and that the process starts again. Every call is in the audit log.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use afs_config::{Cell, CellName, CellServDb, DbServer, MAX_FILE_BYTES, Problem};
use afs_wire::abort::{BZACCESS, BZBUSY, BZDOM, BZIO, BZNOENT};
use afs_wire::bos::{
    AddCellHost, BnodeStatus, BozoString, DeleteCellHost, GetLog, ReBozo, Restart, RestartAll, SetStatus,
    SetTStatus, ShutdownAll, StartupAll, WaitAll, reply,
};
use rx::blocking::on_a_thread;
use rxgen::{Abort, Rpc, Serve, ServerCall};

use super::Overseer;
use super::instances::NotSet;
use crate::authority::replace;
use crate::orders::Order;

/// AFSCONF_FAILURE: the host's address is not known.
const NO_ADDRESS: Abort = Abort(70_354_688);
/// AFSCONF_NOTFOUND: the host is not in CellServDB.
const NO_HOST: Abort = Abort(70_354_689);
/// AFSCONF_FULL: CellServDB has no room for another server of the cell.
const NO_ROOM: Abort = Abort(70_354_694);
/// AFSCONF_BADKEY: the key does not meet requirements.
pub(super) const BAD_KEY: Abort = Abort(70_354_697);

/// The part of the audit log that clients get: its end, in bytes.
const AUDIT_BYTES: u64 = 1 << 20;

/// A change of the cell's list of database servers.
#[derive(Debug)]
enum HostChange {
    Add(DbServer),
    /// The removal of one, by name or address.
    Remove(String),
}

/// The maker of a call, and the call.
#[derive(Debug)]
pub(super) struct Requester {
    rpc: &'static str,
    identity: String,
    peer: SocketAddr,
}

impl Requester {
    pub(super) fn of<R: Rpc>(call: &ServerCall<'_, R>) -> Self {
        Self { rpc: R::NAME, identity: call.security().to_owned(), peer: call.peer() }
    }
}

impl Overseer {
    /// Writes down what came of a call.
    pub(super) fn audited<T>(
        &self,
        who: &Requester,
        what: &str,
        result: Result<T, Abort>,
    ) -> Result<T, Abort> {
        let caller = Some(who.identity.as_str()).filter(|who| !who.is_empty()).unwrap_or("anonymous");
        let (rpc, peer, code) = (who.rpc, who.peer, result.as_ref().err().map_or(0, |code| code.0));
        tracing::info!(target: "audit", rpc, what, caller, %peer, code, "overseer");
        result
    }

    pub(super) fn check(&self, who: &Requester) -> Result<(), Abort> {
        if self.authority.is_superuser(&who.identity) { Ok(()) } else { Err(BZACCESS) }
    }

    /// Gives an order, which is refused where the program does not obey.
    fn order(&self, who: &Requester, order: Order) -> Result<(), Abort> {
        self.check(who)?;
        if self.orders.give(order) { Ok(()) } else { Err(Abort::OPCODE) }
    }

    async fn change_hosts(&self, change: HostChange) -> Result<(), Abort> {
        let (file, cell) = (self.cells.clone(), self.cell.name.clone());
        let turn = Arc::clone(&self.changes_cells);
        on_a_thread(move || change_file(&file, &turn, &cell, &change)).await
    }

    /// The cell as CellServDB has it now.
    pub(super) async fn hosts(&self) -> Cell {
        let (file, cell) = (self.cells.clone(), self.cell.clone());
        on_a_thread(move || {
            let cells = CellServDb::read(&file).unwrap_or_default().cells;
            cells.into_iter().find(|found| found.name == cell.name).unwrap_or(cell)
        })
        .await
    }

    /// A role is to run, or not to; `for_good`, after a restart too. Refused where the program is not the overseer's own, as by
    /// `afar up`.
    async fn set(
        &self,
        who: &Requester,
        name: &BozoString,
        status: BnodeStatus,
        for_good: bool,
    ) -> Result<(), Abort> {
        self.check(who)?;
        let name = self.instance(name)?.name;
        let goal = match status {
            BnodeStatus::NORMAL => true,
            BnodeStatus::SHUTDOWN => false,
            _ => return Err(BZDOM),
        };
        if !self.orders.are_obeyed() {
            // They run.
            return if goal { Ok(()) } else { Err(Abort::OPCODE) };
        }
        self.instances.set(name, goal, for_good).await.map_err(|why| not_set(name, &why))
    }

    /// Lets all roles run for now as they do after a restart, or none.
    async fn set_all(&self, who: &Requester, goal: bool) -> Result<(), Abort> {
        self.check(who)?;
        if !self.orders.are_obeyed() {
            // They run.
            return if goal { Ok(()) } else { Err(Abort::OPCODE) };
        }
        let mut result = Ok(());
        for instance in &self.instances.all {
            if !goal || instance.state().file_goal {
                let set = self.instances.set(instance.name, goal, false).await;
                result = result.and(set.map_err(|why| not_set(instance.name, &why)));
            }
        }
        result
    }

    /// The process starts again, unless the role is stopped: then that is started.
    async fn restart(&self, who: &Requester, name: &BozoString) -> Result<(), Abort> {
        self.check(who)?;
        if self.instance(name)?.state().goal {
            return self.order(who, Order::Restart);
        }
        self.set(who, name, BnodeStatus::NORMAL, false).await
    }

    async fn wait(&self, who: &Requester) -> Result<(), Abort> {
        self.check(who)?;
        self.instances.wait().await;
        Ok(())
    }

    async fn log(&self, name: &str) -> Result<Vec<u8>, Abort> {
        let name = name.rsplit('/').next().unwrap_or(name);
        if name == "AuditLog" {
            let file = self.audit_file.clone();
            return on_a_thread(move || end_of(&file)).await.map_err(|_| BZNOENT);
        }
        if name == "SalvageLog" || name == "SalsrvLog" {
            return self.salvager.log().ok_or(BZNOENT);
        }
        self.recent.log(name).ok_or(BZNOENT)
    }
}

/// The code for what was not stopped or started.
fn not_set(name: &str, why: &NotSet) -> Abort {
    match why {
        NotSet::Held => BZBUSY,
        NotSet::File(error) => {
            tracing::error!(instance = name, %error, "the list of stopped roles cannot be written: make the state folder belong to the server's user");
            BZIO
        }
    }
}

/// The last lines of a file.
fn end_of(file: &Path) -> io::Result<Vec<u8>> {
    let mut file = fs::File::open(file)?;
    let length = file.metadata()?.len();
    let begin = length.saturating_sub(AUDIT_BYTES);
    file.seek(SeekFrom::Start(begin))?;
    let mut bytes = Vec::new();
    file.take(AUDIT_BYTES).read_to_end(&mut bytes)?;
    if begin > 0 {
        // What comes first is a part of a line.
        let end = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |end| end + 1);
        bytes.drain(..end);
    }
    Ok(bytes)
}

/// The database server that a name stands for, which is in brackets if it has no vote.
async fn find(name: String) -> Result<DbServer, Abort> {
    let inner = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let (is_clone, host) = (inner.is_some(), inner.unwrap_or(&name).to_owned());
    let is_word = |host: &str| {
        !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || c.is_control() || c == '#')
    };
    if !is_word(&host) {
        return Err(NO_ADDRESS);
    }
    if let Ok(address) = host.parse() {
        return Ok(DbServer { address, name: None, is_clone });
    }
    let asked = host.clone();
    let found = on_a_thread(move || {
        let mut all = (asked.as_str(), 0).to_socket_addrs().ok()?;
        all.find_map(|address| match address.ip() {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        })
    });
    let address: Ipv4Addr = found.await.ok_or(NO_ADDRESS)?;
    Ok(DbServer { address, name: Some(host), is_clone })
}

/// Changes CellServDB. One change at a time, in `turn`: each begins with what the one before it wrote.
fn change_file(file: &Path, turn: &Mutex<()>, cell: &CellName, change: &HostChange) -> Result<(), Abort> {
    let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
    let failed = |error: io::Error| {
        tracing::error!(file = %file.display(), %error, "CellServDB cannot be changed: let it and its folder belong to the server's user");
        BZIO
    };
    let text = changed(&fs::read(file).map_err(failed)?, cell, change).ok_or(NO_HOST)?;
    // A server does not start with a file that cannot be read.
    let is_small = text.len() as u64 <= MAX_FILE_BYTES;
    match CellServDb::parse(&String::from_utf8_lossy(&text), file) {
        Ok(_) if is_small => replace(file, &text).map_err(failed),
        Err(error) if !matches!(error.problem, Problem::TooManyServers(_)) => {
            tracing::error!(%error, "CellServDB is not changed: mend it first");
            Err(BZIO)
        }
        Ok(_) | Err(_) => Err(NO_ROOM),
    }
}

/// CellServDB with the servers of a cell changed; all other lines stay as they are, byte for byte: comments may be in any
/// encoding. `None` if what is to be removed is not there.
fn changed(text: &[u8], cell: &CellName, change: &HostChange) -> Option<Vec<u8>> {
    let lines: Vec<&[u8]> = text.split_inclusive(|byte| *byte == b'\n').collect();
    // As all of CellServDB is read: what is not UTF-8 is replaced.
    let parsed = |before: &str, line: &[u8]| {
        let line = before.to_owned() + &String::from_utf8_lossy(line);
        CellServDb::parse(&line, Path::new("")).ok()?.cells.pop()
    };
    let begins = |line: &[u8]| line.trim_ascii_start().starts_with(b">");
    let is_cell = |line: &&[u8]| begins(line) && parsed("", line).is_some_and(|parsed| parsed.name == *cell);
    // Of a cell that stands there twice the last counts.
    let first = lines.iter().rposition(is_cell)? + 1;
    let end = lines[first..].iter().position(|line| begins(line)).map_or(lines.len(), |count| first + count);
    let server = |line: &[u8]| parsed(">x\n", line)?.servers.pop();
    let is_the_same = |line: &&[u8]| {
        server(line).is_some_and(|server| match change {
            HostChange::Add(new) => server.address == new.address,
            HostChange::Remove(host) => {
                server.address.to_string() == *host
                    || server.name.is_some_and(|name| name.eq_ignore_ascii_case(host))
            }
        })
    };
    let (same, others): (Vec<&[u8]>, Vec<&[u8]>) = lines[first..end].iter().copied().partition(is_the_same);
    let mut block = others.concat();
    match change {
        HostChange::Remove(_) if same.is_empty() => return None,
        HostChange::Remove(_) => {}
        HostChange::Add(DbServer { address, name, is_clone }) => {
            if !block.is_empty() && !block.ends_with(b"\n") {
                block.push(b'\n');
            }
            let (open, close) = if *is_clone { ("[", "]") } else { ("", "") };
            let name = name.clone().unwrap_or_else(|| address.to_string());
            block.extend_from_slice(format!("{open}{address}{close} #{name}\n").as_bytes());
        }
    }
    let mut text = lines[..first].concat();
    if !text.ends_with(b"\n") {
        text.push(b'\n');
    }
    text.extend(block);
    text.extend(lines[end..].concat());
    Some(text)
}

impl Serve<AddCellHost> for Overseer {
    async fn serve(
        &self,
        call: ServerCall<'_, AddCellHost>,
        args: AddCellHost,
    ) -> Result<reply::AddCellHost, Abort> {
        let (who, name) = (Requester::of(&call), args.name.to_string());
        let result = async {
            self.check(&who)?;
            self.change_hosts(HostChange::Add(find(name.clone()).await?)).await
        };
        let result = result.await;
        self.audited(&who, &name, result)?;
        Ok(reply::AddCellHost {})
    }
}

impl Serve<DeleteCellHost> for Overseer {
    async fn serve(
        &self,
        call: ServerCall<'_, DeleteCellHost>,
        args: DeleteCellHost,
    ) -> Result<reply::DeleteCellHost, Abort> {
        let (who, name) = (Requester::of(&call), args.name.to_string());
        let host = name.trim_start_matches('[').trim_end_matches(']').to_owned();
        let result = async {
            self.check(&who)?;
            self.change_hosts(HostChange::Remove(host)).await
        };
        let result = result.await;
        self.audited(&who, &name, result)?;
        Ok(reply::DeleteCellHost {})
    }
}

impl Serve<GetLog> for Overseer {
    async fn serve(&self, mut call: ServerCall<'_, GetLog>, args: GetLog) -> Result<reply::GetLog, Abort> {
        let (who, name) = (Requester::of(&call), args.name.to_string());
        let result = async {
            self.check(&who)?;
            self.log(&name).await
        };
        let result = result.await;
        let mut log = self.audited(&who, &name, result)?;
        // The log's bytes, and a NUL behind them: so none may be among them.
        log.retain(|byte| *byte != 0);
        log.push(0);
        call.send_data(&log).await?;
        Ok(reply::GetLog {})
    }
}

/// Procedures without a result, and what each does: on the call, with its arguments.
macro_rules! orders {
    ($( $rpc:ident |$this:ident, $call:ident, $args:ident| ($what:expr) $does:expr; )*) => { $(
        impl Serve<$rpc> for Overseer {
            async fn serve(&self, $call: ServerCall<'_, $rpc>, $args: $rpc) -> Result<reply::$rpc, Abort> {
                let ($this, $call) = (self, &Requester::of(&$call));
                let result = $does;
                self.audited($call, &$what, result)?;
                Ok(reply::$rpc {})
            }
        }
    )* };
}

orders! {
    RestartAll |this, call, _args| ("all") this.order(call, Order::Restart);
    ReBozo |this, call, _args| ("all") this.order(call, Order::Restart);
    Restart |this, call, args| (args.instance.to_string()) this.restart(call, &args.instance).await;
    ShutdownAll |this, call, _args| ("all") this.set_all(call, false).await;
    StartupAll |this, call, _args| ("all") this.set_all(call, true).await;
    SetStatus |this, call, args| (args.instance.to_string()) this.set(call, &args.instance, args.status, true).await;
    SetTStatus |this, call, args| (args.instance.to_string()) this.set(call, &args.instance, args.status, false).await;
    WaitAll |this, call, _args| ("all") this.wait(call).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_lab::real::folder::Folder;

    const CELLS: &str = "# ours\n>lab.test #the lab\n192.0.2.1 #one.lab.test\n# a comment\n[192.0.2.2] #two.lab.test\n\
                         >other.test\n192.0.2.1 #one.other.test\n";

    fn change(text: &str, change: HostChange) -> Option<String> {
        let text = changed(text.as_bytes(), &CellName::new("lab.test").unwrap(), &change)?;
        Some(String::from_utf8(text).unwrap())
    }

    fn server(address: [u8; 4], name: Option<&str>, is_clone: bool) -> HostChange {
        HostChange::Add(DbServer { address: address.into(), name: name.map(str::to_owned), is_clone })
    }

    #[test]
    fn hosts_are_added_and_removed_in_the_own_cell_and_other_lines_stay() {
        let added = change(CELLS, server([192, 0, 2, 3], Some("three.lab.test"), true)).unwrap();
        let line = "[192.0.2.3] #three.lab.test\n";
        assert_eq!(added, CELLS.replace(">other.test", &format!("{line}>other.test")));
        assert_eq!(change(&added, HostChange::Remove("THREE.lab.test".to_owned())).unwrap(), CELLS);
        assert_eq!(change(&added, HostChange::Remove("192.0.2.3".to_owned())).unwrap(), CELLS);
        let removed = change(CELLS, HostChange::Remove("one.lab.test".to_owned())).unwrap();
        assert_eq!(removed, CELLS.replacen("192.0.2.1 #one.lab.test\n", "", 1));
        assert_eq!(change(CELLS, HostChange::Remove("one.other.test".to_owned())), None);
    }

    #[test]
    fn a_host_that_is_there_is_replaced_and_a_file_without_its_last_line_end_is_mended() {
        let again = change(CELLS, server([192, 0, 2, 2], None, false)).unwrap();
        assert!(again.contains("192.0.2.2 #192.0.2.2\n") && !again.contains("[192.0.2.2]"), "{again}");
        let cut = ">lab.test #x";
        assert_eq!(
            change(cut, server([1, 2, 3, 4], None, false)).unwrap(),
            ">lab.test #x\n1.2.3.4 #1.2.3.4\n"
        );
        assert_eq!(change(">other.test\n", server([1, 2, 3, 4], None, false)), None);
    }

    #[test]
    fn a_cell_whose_name_begins_with_ours_is_left_alone() {
        let other = ">lab.test.example\n192.0.2.1 #one\n";
        let text = format!(">lab.test\n192.0.2.1 #one\n{other}");
        let removed = change(&text, HostChange::Remove("one".to_owned())).unwrap();
        assert_eq!(removed, format!(">lab.test\n{other}"));
        assert_eq!(change(other, HostChange::Remove("one".to_owned())), None);
    }

    #[test]
    fn changes_at_once_all_count_and_too_many_servers_are_refused() {
        let folder = Folder::new("hosts");
        let (file, turn, cell) =
            (folder.join("CellServDB"), Mutex::new(()), CellName::new("lab.test").unwrap());
        let comment = b">lab.test #f\xfcr alle\n";
        fs::write(&file, comment).unwrap();
        let add = |n: u8| change_file(&file, &turn, &cell, &server([192, 0, 2, n], None, false));
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..64).map(|n| scope.spawn(move || add(n))).collect();
            all.into_iter().for_each(|one| one.join().unwrap().unwrap());
        });
        let full = fs::read(&file).unwrap();
        assert!(full.starts_with(comment), "bytes that are not UTF-8 stay");
        assert_eq!(CellServDb::read(&file).unwrap().cells[0].servers.len(), 64);
        assert_eq!(add(64), Err(NO_ROOM));
        fs::write(&file, ">lab.test\n>a/b\n").unwrap();
        assert_eq!(add(1), Err(BZIO));
    }

    #[tokio::test]
    async fn names_that_would_be_other_lines_are_refused() {
        for name in ["", "[]", "a b", "a\n>evil.test", "a#b", "[a\t]"] {
            assert_eq!(find(name.to_owned()).await.unwrap_err(), NO_ADDRESS, "{name:?}");
        }
        let clone = find("[192.0.2.7]".to_owned()).await.unwrap();
        assert!(clone.is_clone && clone.address == Ipv4Addr::new(192, 0, 2, 7));
    }
}

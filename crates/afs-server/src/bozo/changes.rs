//! What superusers change and ask for through the overseer's service, beside superusers themselves: the cell's database servers in
//! CellServDB, logs, and that the process ends or starts again. Every call is in the audit log.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::Path;

use afs_config::{Cell, CellName, CellServDb, DbServer};
use afs_wire::abort::{BZACCESS, BZIO, BZNOENT};
use afs_wire::bos::{
    AddCellHost, BnodeStatus, BozoString, DeleteCellHost, GetLog, ReBozo, Restart, RestartAll, SetStatus,
    SetTStatus, ShutdownAll, StartupAll, WaitAll, reply,
};
use rx::blocking::on_a_thread;
use rxgen::{Abort, Rpc, Serve, ServerCall};

use super::Overseer;
use crate::authority::replace;
use crate::orders::Order;

/// AFSCONF_FAILURE: the host's address is not known.
const NO_ADDRESS: Abort = Abort(70_354_688);
/// AFSCONF_NOTFOUND: the host is not in CellServDB.
const NO_HOST: Abort = Abort(70_354_689);

/// How much of the audit log is told: its end, in bytes.
const AUDIT_BYTES: u64 = 1 << 20;

/// What is done to the cell's database servers.
#[derive(Debug)]
enum HostChange {
    Add(DbServer),
    /// By name or address.
    Remove(String),
}

/// Who makes a call, and which.
#[derive(Debug)]
struct Who {
    rpc: &'static str,
    identity: String,
    peer: SocketAddr,
}

impl Who {
    fn of<R: Rpc>(call: &ServerCall<'_, R>) -> Self {
        Self { rpc: R::NAME, identity: call.security().to_owned(), peer: call.peer() }
    }
}

impl Overseer {
    /// Writes down what came of a call.
    fn audited<T>(&self, who: &Who, what: &str, result: Result<T, Abort>) -> Result<T, Abort> {
        let caller = Some(who.identity.as_str()).filter(|who| !who.is_empty()).unwrap_or("anonymous");
        let (rpc, peer, code) = (who.rpc, who.peer, result.as_ref().err().map_or(0, |code| code.0));
        tracing::info!(target: "audit", rpc, what, caller, %peer, code, "overseer");
        result
    }

    fn check(&self, who: &Who) -> Result<(), Abort> {
        if self.authority.is_superuser(&who.identity) { Ok(()) } else { Err(BZACCESS) }
    }

    /// Gives an order, which is refused where the program does not obey.
    fn order(&self, who: &Who, order: Order) -> Result<(), Abort> {
        self.check(who)?;
        if self.orders.give(order) { Ok(()) } else { Err(Abort::OPCODE) }
    }

    async fn change_hosts(&self, change: HostChange) -> Result<(), Abort> {
        let (file, cell) = (self.cells.clone(), self.cell.name.clone());
        on_a_thread(move || {
            let failed = |error: io::Error| {
                tracing::error!(file = %file.display(), %error, "CellServDB cannot be changed: let it and its folder belong to the server's user");
                BZIO
            };
            let text = fs::read_to_string(&file).map_err(failed)?;
            let text = changed(&text, &cell, &change).ok_or(NO_HOST)?;
            replace(&file, &text).map_err(failed)
        })
        .await
    }

    /// The cell as CellServDB has it now.
    pub(super) async fn hosts(&self) -> Cell {
        let (file, cell) = (self.cells.clone(), self.cell.clone());
        on_a_thread(move || {
            let found =
                CellServDb::read(&file).ok().and_then(|cells| cells.find(cell.name.as_str()).cloned());
            found.unwrap_or(cell)
        })
        .await
    }

    /// A process is to run, or not to: those that there are do, and stay.
    fn set(&self, who: &Who, instance: &BozoString, status: BnodeStatus) -> Result<(), Abort> {
        self.check(who)?;
        self.instance(instance)?;
        if status == BnodeStatus::NORMAL { Ok(()) } else { Err(Abort::OPCODE) }
    }

    async fn log(&self, name: &str) -> Result<Vec<u8>, Abort> {
        let name = name.rsplit('/').next().unwrap_or(name);
        if name == "AuditLog" {
            let file = self.audit_file.clone();
            return on_a_thread(move || end_of(&file)).await.map_err(|_| BZNOENT);
        }
        self.recent.log(name).ok_or(BZNOENT)
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

/// The text of CellServDB with the servers of a cell changed; all other lines stay as they are. `None` if what is to be removed
/// is not there.
fn changed(text: &str, cell: &CellName, change: &HostChange) -> Option<String> {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let begins = |line: &str| line.trim_start().starts_with('>');
    let is_cell = |line: &&str| {
        begins(line)
            && CellServDb::parse(line, Path::new("")).is_ok_and(|cells| cells.find(cell.as_str()).is_some())
    };
    // Of a cell that stands there twice the last counts.
    let first = lines.iter().rposition(is_cell)? + 1;
    let end = lines[first..].iter().position(|line| begins(line)).map_or(lines.len(), |count| first + count);
    let server = |line: &str| {
        let cells = CellServDb::parse(&format!(">x\n{line}"), Path::new("")).ok()?;
        cells.cells.into_iter().next()?.servers.into_iter().next()
    };
    let is_the_same = |line: &&str| {
        server(line).is_some_and(|server| match change {
            HostChange::Add(new) => server.address == new.address,
            HostChange::Remove(host) => {
                server.address.to_string() == *host
                    || server.name.is_some_and(|name| name.eq_ignore_ascii_case(host))
            }
        })
    };
    let (same, others): (Vec<&str>, Vec<&str>) = lines[first..end].iter().copied().partition(is_the_same);
    let mut block = others.concat();
    match change {
        HostChange::Remove(_) if same.is_empty() => return None,
        HostChange::Remove(_) => {}
        HostChange::Add(DbServer { address, name, is_clone }) => {
            if !block.is_empty() && !block.ends_with('\n') {
                block.push('\n');
            }
            let (open, close) = if *is_clone { ("[", "]") } else { ("", "") };
            let name = name.clone().unwrap_or_else(|| address.to_string());
            block += &format!("{open}{address}{close} #{name}\n");
        }
    }
    let mut before = lines[..first].concat();
    if !before.ends_with('\n') {
        before.push('\n');
    }
    Some(before + &block + &lines[end..].concat())
}

impl Serve<AddCellHost> for Overseer {
    async fn serve(
        &self,
        call: ServerCall<'_, AddCellHost>,
        args: AddCellHost,
    ) -> Result<reply::AddCellHost, Abort> {
        let (who, name) = (Who::of(&call), args.name.to_string());
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
        let (who, name) = (Who::of(&call), args.name.to_string());
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
        let (who, name) = (Who::of(&call), args.name.to_string());
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
                let ($this, $call) = (self, &Who::of(&$call));
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
    Restart |this, call, args| (args.instance.to_string()) {
        this.check(call).and_then(|()| this.instance(&args.instance).map(drop)).and_then(|()| this.order(call, Order::Restart))
    };
    ShutdownAll |this, call, _args| ("all") this.order(call, Order::Stop);
    StartupAll |this, call, _args| ("all") this.check(call);
    SetStatus |this, call, args| (args.instance.to_string()) this.set(call, &args.instance, args.status);
    SetTStatus |this, call, args| (args.instance.to_string()) this.set(call, &args.instance, args.status);
    WaitAll |this, call, _args| ("all") this.check(call);
}

#[cfg(test)]
mod tests {
    use super::*;

    const CELLS: &str = "# ours\n>lab.test #the lab\n192.0.2.1 #one.lab.test\n# a comment\n[192.0.2.2] #two.lab.test\n\
                         >other.test\n192.0.2.1 #one.other.test\n";

    fn change(text: &str, change: HostChange) -> Option<String> {
        changed(text, &CellName::new("lab.test").unwrap(), &change)
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

    #[tokio::test]
    async fn names_that_would_be_other_lines_are_refused() {
        for name in ["", "[]", "a b", "a\n>evil.test", "a#b", "[a\t]"] {
            assert_eq!(find(name.to_owned()).await.unwrap_err(), NO_ADDRESS, "{name:?}");
        }
        let clone = find("[192.0.2.7]".to_owned()).await.unwrap();
        assert!(clone.is_clone && clone.address == Ipv4Addr::new(192, 0, 2, 7));
    }
}

//! What superusers change and order with `bos` at a server of ours: database servers, logs, and that it starts again.

mod server_process;

use std::net::Ipv4Addr;
use std::process::{Command, Output};

use server_process::{ServerProcess, StateFolder};

struct Site {
    state: StateFolder,
    server: ServerProcess,
}

impl Site {
    fn new() -> Self {
        let state = StateFolder::new("bos");
        let server = ServerProcess::start(&state, &[]);
        Self { state, server }
    }

    fn address(&self) -> Ipv4Addr {
        self.server.address
    }

    /// A verb of `bos`, with the arguments behind the server.
    fn bos(&self, verb: &str, more: &str, who: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_afar"));
        command.args(["bos", verb, &self.address().to_string()]).args(more.split_whitespace()).arg(who);
        command.arg("-config").arg(self.state.path().join("etc/server")).output().unwrap()
    }

    fn does(&self, verb: &str, more: &str) -> String {
        let output = self.bos(verb, more, "-localauth");
        assert!(output.status.success() && output.stderr.is_empty(), "{verb} {more}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The code in what is complained of.
    fn refuses(&self, verb: &str, more: &str, who: &str) -> String {
        let output = self.bos(verb, more, who);
        assert!(!output.stderr.is_empty(), "{verb} {more}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn audit(&self) -> String {
        std::fs::read_to_string(self.state.path().join("audit.log")).unwrap()
    }
}

#[test]
fn database_servers_are_added_to_cellservdb_and_removed() {
    let site = Site::new();
    let file = site.state.path().join("etc/server/CellServDB");
    let before = std::fs::read_to_string(&file).unwrap();
    site.does("addhost", "192.0.2.77");
    site.does("addhost", "192.0.2.78 -clone");
    let listed = site.does("listhosts", "");
    assert!(listed.contains("192.0.2.77") && listed.contains("[192.0.2.78]"), "{listed}");
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(text, format!("{before}192.0.2.77 #192.0.2.77\n[192.0.2.78] #192.0.2.78\n"));
    site.does("removehost", "192.0.2.77 192.0.2.78");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), before);
    assert!(site.refuses("removehost", "192.0.2.77", "-localauth").contains("could not find entry"));
    assert!(site.refuses("addhost", "192.0.2.79", "-noauth").contains("you are not authorized"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), before);
    let audit = site.audit();
    for begin in ["\"rpc\":\"AddCellHost\",\"what\":\"192.0.2.77\"", "\"rpc\":\"DeleteCellHost\""] {
        assert!(audit.contains(begin), "{audit}");
    }
}

#[test]
fn logs_are_told_to_superusers_by_the_names_that_they_have_with_openafs() {
    let site = Site::new();
    let log = site.does("getlog", "BosLog");
    assert!(log.contains("ready"), "{log}");
    site.does("adduser", "bob");
    assert!(site.does("getlog", "AuditLog").contains("\"rpc\":\"AddSUser\",\"what\":\"bob\""));
    site.does("getlog", "/var/log/openafs/FileLog");
    site.refuses("getlog", "../../etc/passwd", "-localauth");
    assert!(site.refuses("getlog", "BosLog", "-noauth").contains("not authorized"));
}

#[test]
fn it_starts_again_as_the_same_process_and_ends_when_it_is_told_to() {
    let mut site = Site::new();
    let pid = site.server.pid();
    site.refuses("restart", "-all", "-noauth");
    site.does("startup", "");
    site.does("start", "vlserver");
    site.refuses("stop", "vlserver", "-localauth");
    for more in ["-all", "-bosserver", "dafs"] {
        site.does("restart", more);
        let line = site.server.next_line();
        assert!(line.starts_with("ready "), "{more}: {line}");
        assert_eq!(site.server.pid(), pid);
        assert!(site.does("status", "").contains("vlserver"));
    }
    site.does("shutdown", "");
    assert!(site.server.wait().success(), "a stop is no failure, so that systemd lets it be");
    assert!(site.audit().contains("\"rpc\":\"ShutdownAll\""));
}

//! Options of OpenAFS's servers, from the `parm` lines of a BosConfig, in a server that runs: what it answers differs from what
//! one without them answers. That each option of OpenAFS's is known is checked in `crates/interop`, what each sets in `afs_server`.

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::process::{Command, Output};

use crate::mounted::{Folder, ServerProcess, own_address, server_command, suite};
use afs_lab::caller::{Client, Credentials};
use afs_wire::ids::{AfsFid, PartitionId, VolumeId};
use rx_security::KeySet;

const CELL: &str = "parm.test";
const VOLUME: VolumeId = VolumeId(536_870_915);
/// What a server that is read-only answers: EROFS as a UAE number.
const READ_ONLY: i32 = 49733405;

/// A server and its state.
struct Cell {
    state: Folder,
    server: ServerProcess,
}

impl Cell {
    fn start(name: &str, prepare: impl Fn(&Folder, &mut Command)) -> Self {
        let state = Folder::new(name);
        let address = own_address();
        let folder = state.path().display().to_string();
        let mut command =
            server_command(["--bind", &address.to_string(), "--state", &folder, "--cell", CELL]);
        prepare(&state, &mut command);
        command.stderr(File::create(state.path().join("log")).unwrap());
        let server = ServerProcess::of(command, address);
        Self { state, server }
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.state.path().join(name)).unwrap_or_default()
    }

    /// Runs a command of our suites against the server, as nobody or as the superuser.
    fn suite(&self, line: &str, rights: &str) -> Output {
        suite(&self.state, line, &[("SERVER", self.server.address)], rights).output().unwrap()
    }

    /// True if nobody may do it. The superuser always may.
    fn keeps_from_nobody(&self, line: &str) -> bool {
        let allowed = self.suite(line, "-localauth");
        assert!(allowed.status.success(), "{line}: {}", String::from_utf8_lossy(&allowed.stderr));
        !self.suite(line, "-noauth").status.success()
    }

    /// The code with which the making of a file ends, 0 if it is made.
    async fn create(&self) -> i32 {
        let keys = KeySet::load(&self.state.path().join("etc/server")).unwrap();
        let client = Client::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let superuser = Credentials::superuser(&keys).unwrap();
        client
            .volume_server(self.server.address, &superuser)
            .create(PartitionId(0), "v", VOLUME)
            .await
            .unwrap();
        let files =
            client.file_server(self.server.address, &Credentials::user("admin", CELL, &keys).unwrap());
        let made = files.create_file(AfsFid::root_of(VOLUME), "file").await;
        made.err().map_or(0, |error| error.code().unwrap_or_else(|| panic!("{error}")))
    }

    /// What options decide: who may ask what, whether files may be made, the rights of new entries, and where the audit log is.
    async fn answers(&self) -> (Vec<bool>, i32, String, bool) {
        let asked = ["vos listvldb", "vos listvol SERVER", "pts examine system:anyuser"];
        let kept = asked.iter().map(|line| self.keeps_from_nobody(line)).collect();
        let created = self.create().await;
        assert!(self.suite("pts createuser somebody", "-localauth").status.success());
        let examined = self.suite("pts examine somebody", "-localauth");
        let text = String::from_utf8_lossy(&examined.stdout).into_owned();
        let flags = text.split("flags: ").nth(1).and_then(|rest| rest.split(',').next()).unwrap_or(&text);
        (kept, created, flags.to_owned(), self.read("elsewhere.log").contains("CreateVolume"))
    }
}

/// The file, with the options.
fn write_bos_config(state: &Folder) -> String {
    let folder = state.path().display();
    let text = format!(
        "restrictmode 0\nrestarttime 16 0 0 0 0\ncheckbintime 16 0 0 0 0\n\
         bnode simple ptserver 1\nparm /usr/lib/openafs/ptserver -restrict_anonymous -default_access SOm-- S-M--\nend\n\
         bnode simple vlserver 1\nparm /usr/lib/openafs/vlserver -p 20 -restricted_query admin\nend\n\
         bnode dafs dafs 1\n\
         parm /usr/lib/openafs/dafileserver -L -readonly -d 25 -auditlog {folder}/elsewhere.log\n\
         parm /usr/lib/openafs/davolserver -restricted_query admin\n\
         parm /usr/lib/openafs/salvageserver\nparm /usr/lib/openafs/dasalvager\nend\n"
    );
    state.write("BosConfig", &text).display().to_string()
}

fn check_with_options(cell: &Cell, answers: &(Vec<bool>, i32, String, bool)) {
    assert_eq!(*answers, (vec![true; 3], READ_ONLY, "SOm--".to_owned(), true));
    let log = cell.read("log");
    for said in ["-p does nothing here: calls are tasks", "-L does nothing here", "DEBUG"] {
        assert!(log.contains(said), "no {said:?} in:\n{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn options_of_a_bos_config_are_in_effect_in_a_running_server() {
    let plain = Cell::start("parm-none", |_, _| ());
    assert_eq!(plain.answers().await, (vec![false; 3], 0, "S----".to_owned(), false));
    assert!(plain.server.stop().success());

    let named = Cell::start("parm-named", |state, command| {
        command.args(["--bos-config", &write_bos_config(state)]);
    });
    check_with_options(&named, &named.answers().await);
    assert!(named.server.stop().success());

    let in_file = Cell::start("parm-file", |state, command| {
        let text = format!("[server]\nbos_config = \"{}\"\n", write_bos_config(state));
        command.arg("--config").arg(state.write("server.toml", &text));
    });
    check_with_options(&in_file, &in_file.answers().await);
    assert!(in_file.server.stop().success());
}

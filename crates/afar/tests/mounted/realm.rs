//! A cell with a real KDC, mounted for all users of the machine, and users of it. What is tried there is for the tests.

use super::{Cell, Folder, Process, can_mount, is_root, open, own_address, succeed};
use afs_lab::peers::kdc::{self, Kdc, Realm};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The realm of the cell that `afar up` makes.
pub(crate) const REALM: &str = "AFAR.LOCAL";

/// Its servers' principal.
pub(crate) const SERVICE: &str = "afs/afar.local";

/// A user of this machine.
#[derive(Clone, Copy)]
pub(crate) struct Local {
    pub(crate) uid: u32,
    pub(crate) name: &'static str,
}

pub(crate) const ROOT: Local = Local { uid: 0, name: "admin" };
pub(crate) const ALICE: Local = Local { uid: 60_001, name: "alice" };
pub(crate) const BOB: Local = Local { uid: 60_002, name: "bob" };

pub(crate) const NOBODY: Local = Local { uid: 65_534, name: "nobody" };

/// A cell with a realm, mounted for all users of the machine.
pub(crate) struct Scene {
    pub(crate) kdc: Kdc,
    pub(crate) realm: Folder,
    pub(crate) mount: PathBuf,
    pub(crate) program: PathBuf,
    mounted: Process,
    pub(crate) cell: Cell,
}

impl Scene {
    /// `None`, told as skipped, where there can be none.
    pub(crate) fn new() -> Option<Self> {
        Self::with("aes256-cts")
    }

    /// The same with a service key of a kind.
    pub(crate) fn with(kind: &str) -> Option<Self> {
        Self::of(kind, Kdc::start)
    }

    /// The same with another KDC.
    pub(crate) fn of(
        kind: &str,
        start: impl FnOnce(&Path, &Realm<'_>) -> Result<Kdc, String>,
    ) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        if !is_root() {
            return super::skip("it takes root to be several users");
        }
        if let Err(why) = kdc::available() {
            return super::skip(&why);
        }
        let realm = Folder::new("realm");
        open(&realm.join("."));
        let program = realm.join("afar");
        super::copy_program(&program);
        let address = own_address();
        let kdc = start(&realm.join("."), &Realm { name: REALM, address, more: "" }).unwrap();
        for user in [ROOT, ALICE, BOB] {
            kdc.add_user(user.name).unwrap();
        }
        let mut cell = Cell::new("kerberos");
        open(&cell.folder.join("."));
        let scene_key = cell.folder.join("state/etc/server/rxkad.keytab");
        kdc.add_service(SERVICE, kind, &scene_key).unwrap();
        cell.restart();
        let (process, _) = cell.mount("mnt");
        let mount = cell.folder.join("mnt/afar.local");
        for user in [ALICE, BOB] {
            let mut command = super::afar(["pts", "createuser", user.name, "-localauth", "-config"]);
            command.arg(cell.folder.join("state/etc/server"));
            succeed(command);
        }
        Some(Self { kdc, realm, mount, program, mounted: process, cell })
    }

    /// A command as a user of this machine, with a credential cache of their own.
    pub(crate) fn command(&self, user: Local, program: &Path) -> Command {
        let mut command = Command::new(program);
        self.kdc.prepare(&mut command);
        command.env("KRB5CCNAME", format!("FILE:{}", self.cache(user).display()));
        command.env_remove("NOTIFY_SOCKET").env("HOME", "/nonexistent").stdin(Stdio::null());
        self.means(&mut command, "mnt");
        command.uid(user.uid).gid(user.uid);
        command
    }

    /// Has a command mean one of the cell's mounts. Other tests have mounts of their own, and tokens are for all of them.
    pub(crate) fn means(&self, command: &mut Command, mount: &str) {
        let mount = self.cell.folder.join(mount);
        command.env("AFAR_SOCKET", super::socket_of(&mount)).current_dir(mount.join("afar.local"));
    }

    /// The client's process.
    pub(crate) fn client(&self) -> u32 {
        self.mounted.pid()
    }

    /// Where it listens.
    pub(crate) fn socket(&self) -> PathBuf {
        super::socket_of(&self.cell.folder.join("mnt"))
    }

    /// In a folder of the user's: the library makes a new file when a ticket is renewed.
    pub(crate) fn cache(&self, user: Local) -> PathBuf {
        let folder = self.realm.join(format!("of-{}", user.name));
        fs::create_dir_all(&folder).unwrap();
        chown(&folder, Some(user.uid), Some(user.uid)).unwrap();
        folder.join("ccache")
    }

    pub(crate) fn afar(&self, user: Local, words: &[&str]) -> Command {
        let mut command = self.command(user, &self.program);
        command.args(words);
        command
    }

    /// Runs one of our commands as a user; it has to succeed.
    pub(crate) fn run(&self, user: Local, words: &[&str]) -> String {
        succeed(self.afar(user, words))
    }

    /// A ticket-granting ticket for a principal, in the cache of a user of this machine.
    pub(crate) fn kinit_as(&self, user: Local, principal: &str, options: &[&str]) {
        let cache = format!("FILE:{}", self.cache(user).display());
        self.kdc.kinit(principal, &[&["-c", &cache], options].concat()).unwrap();
        chown(self.cache(user), Some(user.uid), Some(user.uid)).unwrap();
    }

    pub(crate) fn kinit(&self, user: Local) {
        self.kinit_as(user, user.name, &[]);
    }

    /// What a shell says and whether it succeeds, as a user, in a folder of the cell.
    pub(crate) fn shell(&self, user: Local, text: &str) -> Output {
        let mut command = self.command(user, Path::new("bash"));
        command.args(["-c", text, "bash"]).arg(&self.mount).env("PATH", "/usr/bin:/bin");
        super::run(command)
    }

    pub(crate) fn can(&self, user: Local, text: &str) -> bool {
        self.shell(user, text).status.success()
    }

    /// Waits until a user can do something, or cannot.
    pub(crate) fn until(&self, user: Local, text: &str, can: bool) {
        until!(
            self.can(user, text) == can,
            "{text}: still {can:?} as {}; {}",
            user.name,
            self.cell.log("mnt")
        );
    }

    pub(crate) fn tokens(&self, user: Local) -> Vec<Value> {
        let told: Value = serde_json::from_str(&self.run(user, &["tokens", "-json"])).unwrap();
        told.as_array().unwrap().clone()
    }

    /// A folder in which only one user may do anything.
    pub(crate) fn private_folder(&self, of: Local) {
        self.kinit(ROOT);
        self.run(ROOT, &["aklog"]);
        let folder = self.mount.join("scratch").join(of.name);
        fs::create_dir(&folder).unwrap();
        let folder = folder.display().to_string();
        let list = ["fs", "setacl", &folder, of.name, "all", "system:anyuser", "none", "-clear"];
        self.run(ROOT, &list);
        self.run(ROOT, &["unlog"]);
    }
}

/// A command that has to fail with a status; what it complains of.
pub(crate) fn fail(command: Command, status: i32) -> String {
    let shown = format!("{command:?}");
    let output = super::run(command);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{shown}: {said}");
    said
}

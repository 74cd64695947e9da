//! `afar import` and `afar export`: what they say, refuse and leave behind. What is read of the files is `afs_celldb`'s and tested there;
//! that OpenAFS's servers take what is written, in `crates/interop`.

use crate::mounted::{self, our_program};
use std::fs;
use std::path::Path;
use std::process::Output;

use afs_lab::real::cell::Cell;
use afs_lab::real::folder::Folder;
use serde_json::Value;

const VLDB: &[u8] = include_bytes!("../../afs-celldb/tests/data/vldb.DB0");
const PRDB: &[u8] = include_bytes!("../../afs-celldb/tests/data/prdb.DB0");

/// A folder with the files, which goes with it.
struct Files(Folder);

impl Files {
    fn new(name: &str) -> Self {
        let folder = Folder::new(name);
        folder.write("vldb.DB0", VLDB);
        folder.write("prdb.DB0", PRDB);
        Self(folder)
    }

    fn afar(&self, line: &str) -> Output {
        let mut command = our_program();
        command.args(line.split_whitespace()).current_dir(&self.0).output().unwrap()
    }

    fn good(&self, line: &str) -> String {
        let output = self.afar(line);
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// What a command that fails says.
    fn bad(&self, line: &str) -> String {
        let output = self.afar(line);
        assert_eq!(output.status.code(), Some(1), "{line}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

const IMPORT: &str = "import --vldb vldb.DB0 --prdb prdb.DB0 --state state";

#[test]
fn a_dry_run_tells_what_is_odd_and_changes_nothing() {
    let folder = Files::new("dry");
    let told = folder.good(&format!("{IMPORT} --dry-run"));
    assert!(told.contains("vldb.DB0: 7 volumes on 4 servers\n"), "{told}");
    assert!(told.contains("prdb.DB0: 63 users, 27 groups, 2 users of other cells\n"), "{told}");
    assert!(told.contains("2 groups without an owner: kept\n      carol:one (-210)\n"), "{told}");
    assert!(told.ends_with("nothing was changed\n"), "{told}");
    assert!(!folder.0.join("state").exists());
    let told: Value = serde_json::from_str(&folder.good(&format!("{IMPORT} --dry-run --json"))).unwrap();
    assert_eq!((&told["vldb"]["volumes"], &told["prdb"]["odd"][0]["count"]), (&7.into(), &2.into()));
}

#[test]
fn what_was_imported_is_exported_as_the_same() {
    let folder = Files::new("round");
    folder.good(IMPORT);
    folder.good("export --vldb vldb.new.DB0 --prdb prdb.new.DB0 --state state");
    let told = |vldb: &str, prdb: &str| {
        folder.good(&format!("import --vldb {vldb} --prdb {prdb} --dry-run")).replace(".new.DB0", ".DB0")
    };
    assert_eq!(told("vldb.new.DB0", "prdb.new.DB0"), told("vldb.DB0", "prdb.DB0"));
    // The first volume's ids and flags are where they were, behind headers and servers.
    let first = 64 + 132_120 + 8192;
    assert_eq!(fs::read(folder.0.join("vldb.new.DB0")).unwrap()[first..][..16], VLDB[first..][..16]);
}

/// A backup asks servers, and cannot stop them.
#[test]
fn servers_that_run_export_what_their_store_has() {
    let mut cell = Cell::new("export-from");
    let folder = Files::new("export-from");
    let state = cell.folder.join("state");
    let (state, address) = (state.display(), cell.address);
    folder.good(&format!(
        "export --vldb asked.DB0 --prdb users-asked.DB0 --from {address} --keys {state}/etc/server"
    ));
    let error = folder.bad(&format!("export --prdb none.DB0 --from {address} --keys {state}"));
    assert!(error.contains("has no key of the cell"), "{error}");
    cell.servers.kill();
    folder.good(&format!("export --vldb stored.DB0 --prdb users-stored.DB0 --state {state}"));
    let told = |name: &str| {
        let line = format!("import --vldb {name}.DB0 --prdb users-{name}.DB0 --dry-run");
        folder.good(&line).replace(name, "")
    };
    let asked = told("asked");
    assert_eq!(asked, told("stored"));
    assert!(asked.starts_with(".DB0: 4 volumes on 1 servers\nusers-.DB0: 2 users"), "{asked}");
}

#[test]
fn databases_with_contents_are_replaced_only_if_that_is_asked_for() {
    let folder = Files::new("replace");
    folder.good(IMPORT);
    let said = folder.bad(IMPORT);
    assert!(said.contains("the VLDB has contents already") && said.contains("--replace"), "{said}");
    folder.good(&format!("{IMPORT} --replace"));
}

#[test]
fn an_import_that_one_database_refuses_does_not_fill_the_other() {
    let folder = Files::new("both");
    folder.good("import --prdb prdb.DB0 --state state");
    let said = folder.bad(IMPORT);
    assert!(said.contains("the PTDB has contents already"), "{said}");
    folder.good("import --vldb vldb.DB0 --state state");
}

#[test]
fn a_file_that_is_none_is_named_and_nothing_is_changed() {
    let folder = Files::new("none");
    fs::write(folder.0.join("prdb.DB0"), &PRDB[..1000]).unwrap();
    let said = folder.bad(IMPORT);
    assert!(said.contains("prdb.DB0: it ends after 936 bytes"), "{said}");
    assert!(!folder.0.join("state").exists());
    assert!(folder.bad("import --vldb nothing.DB0").contains("nothing.DB0"));
    assert!(folder.bad("import").contains("give --vldb FILE"));
    assert!(folder.bad("export --vldb new.DB0 --state nothing").contains("there is no such state folder"));
}

#[test]
fn an_export_replaces_no_file_unasked_and_leaves_no_log_of_another_database() {
    let folder = Files::new("export");
    folder.good(IMPORT);
    let said = folder.bad("export --vldb vldb.DB0 --state state");
    assert!(said.contains("vldb.DB0 exists already"), "{said}");
    assert_eq!(fs::read(folder.0.join("vldb.DB0")).unwrap(), VLDB);
    fs::write(folder.0.join("vldb.DBSYS1"), [0; 80]).unwrap();
    let said = folder.bad("export --vldb vldb.DB0 --state state --force");
    assert!(said.contains("vldb.DBSYS1") && said.contains("remove it"), "{said}");
    fs::write(folder.0.join("vldb.DBSYS1"), [0; 64]).unwrap();
    folder.good("export --vldb vldb.DB0 --state state --force");
    // What somebody put where the new file is made first.
    fs::write(folder.0.join("other"), "kept").unwrap();
    std::os::unix::fs::symlink("other", folder.0.join("vldb.DB0.new")).unwrap();
    folder.good("export --vldb vldb.DB0 --state state --force");
    assert_eq!(fs::read(folder.0.join("other")).unwrap(), b"kept");
    assert!(!folder.0.join("vldb.DB0").is_symlink());
}

/// Root made the databases the server's user's by the names that this user had put there.
#[test]
fn a_link_in_the_state_folder_does_not_lead_root_elsewhere() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
    if !mounted::is_root() {
        return mounted::skip("it takes root");
    }
    const SERVER: u32 = 65_534;
    let folder = Files::new("link");
    let there = Folder::new("link");
    let (state, outside) = (there.join("state"), there.join("outside"));
    for folder in [&state, &outside] {
        fs::create_dir_all(folder).unwrap();
    }
    fs::write(outside.join("file"), "root's").unwrap();
    fs::set_permissions(&outside, fs::Permissions::from_mode(0o755)).unwrap();
    chown(&state, Some(SERVER), Some(SERVER)).unwrap();
    let state = state.display().to_string();
    let import = format!("import --vldb vldb.DB0 --prdb prdb.DB0 --state {state}");
    folder.good(&import);
    let owner = |path: &Path| fs::symlink_metadata(path).unwrap().uid();
    let databases = there.join("state/databases");
    assert_eq!((owner(&databases), owner(&databases.join("cell.redb"))), (SERVER, SERVER));
    folder.good(&format!("export --vldb out.DB0 --state {state}"));
    assert_eq!(owner(&folder.0.join("out.DB0")), 0, "what root asks for is root's");

    fs::remove_dir_all(&databases).unwrap();
    symlink(&outside, &databases).unwrap();
    for line in [import, format!("export --vldb other.DB0 --state {state}")] {
        folder.bad(&line);
    }
    let names: Vec<_> = fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["file"]);
    assert_eq!((owner(&outside), owner(&outside.join("file"))), (0, 0));
    assert_eq!(fs::metadata(&outside).unwrap().mode() & 0o777, 0o755);
}

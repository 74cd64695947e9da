//! Repositories in a bucket of S3. The server is versitygw, where `scripts/tools.sh --s3` has built it.

use crate::backups::fill;
use crate::lab::{Lab, Place, contents, large, link_afar};
use afs_lab::real::address::own_address;
use afs_lab::real::afar::words;
use afs_lab::real::folder::Folder;
use afs_lab::real::process::{Process, Running, find};
use afs_lab::real::wait::PATIENCE;
use afs_lab::until;
use std::collections::BTreeMap;
use std::fs;
use std::mem;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PORT: u16 = 7070;

const REGION: &str = "us-east-1";

const BUCKET: &str = "backups";

/// An access key and its secret.
type Key = (&'static str, &'static str);

/// The server's administrator.
const ADMINISTRATOR: Key = ("administrator", "administrators-secret");

/// May do with a bucket what `Server::allow` says.
const WRITER: Key = ("writer", "writers-secret");

/// A server that has a bucket.
struct Server {
    process: Process,
    address: Ipv4Addr,
    folder: Folder,
}

impl Server {
    /// `None` where it was not built.
    fn new(name: &str) -> Option<Self> {
        if !program().exists() {
            return afs_lab::skipped::skip_this("there is no versitygw: scripts/tools.sh --s3 builds it");
        }
        if find("curl").is_none() {
            return afs_lab::skipped::skip_this("there is no curl");
        }
        let folder = Folder::below(Path::new(env!("CARGO_TARGET_TMPDIR")), name).showing("server.log");
        folder.inner("data");
        folder.inner("users");
        let address = own_address();
        let process = serve(&folder, address);
        let server = Self { process, address, folder };
        server.put("", "");
        Some(server)
    }

    fn url(&self) -> String {
        format!("http://{}:{PORT}", self.address)
    }

    /// A repository in the bucket, for who has this key.
    fn place(&self, (key, secret): Key) -> Place {
        let options = [("bucket", BUCKET), ("endpoint", &self.url()), ("region", REGION)];
        let environment =
            [("AWS_ACCESS_KEY_ID", key), ("AWS_SECRET_ACCESS_KEY", secret), ("AWS_DEFAULT_REGION", REGION)];
        Place {
            repository: "opendal:s3".into(),
            arguments: options.map(|(name, value)| format!("--option={name}={value}")).into(),
            restic: format!("s3:{}/{BUCKET}", self.url()).into(),
            environment: environment.map(|(name, value)| (name, value.to_owned())).into(),
        }
    }

    /// Makes the bucket, or something of it.
    fn put(&self, query: &str, body: &str) {
        let (key, secret) = ADMINISTRATOR;
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--fail-with-body", "--request", "PUT"]);
        command.args(["--aws-sigv4", &format!("aws:amz:{REGION}:s3"), "--user", &format!("{key}:{secret}")]);
        command.args(["--header", "x-amz-content-sha256: UNSIGNED-PAYLOAD"]);
        command.args(["--data-binary", body, &format!("{}/{BUCKET}{query}", self.url())]);
        let output = command.output().expect("there is curl");
        assert!(output.status.success(), "{}", words(&output));
    }

    /// Lets WRITER do this in the bucket.
    fn allow(&self, actions: &[&str]) {
        let ((key, secret), (writer, writers_secret)) = (ADMINISTRATOR, WRITER);
        let mut command = Command::new(program());
        command.args(["admin", "--access", key, "--secret", secret, "--endpoint-url", &self.url()]);
        command.args(["create-user", "--access", writer, "--secret", writers_secret, "--role", "user"]);
        let output = command.output().expect("it is built");
        assert!(output.status.success(), "{}", words(&output));
        let actions = actions.join("\", \"");
        self.put(
            "?policy=",
            &format!(
                r#"{{"Version": "2012-10-17", "Statement": [{{"Effect": "Allow", "Principal": {{"AWS": ["{writer}"]}},
                "Action": ["{actions}"], "Resource": ["arn:aws:s3:::{BUCKET}", "arn:aws:s3:::{BUCKET}/*"]}}]}}"#
            ),
        );
    }

    /// The requests with these words that it has answered.
    fn requests(&self, of: &[&str]) -> usize {
        let log = fs::read_to_string(self.folder.join("access.log")).expect("it has one");
        log.lines().filter(|line| of.iter().all(|word| line.contains(word))).count()
    }
}

fn program() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools/bin/versitygw")
}

fn serve(folder: &Folder, address: Ipv4Addr) -> Process {
    let at = |name: &str| folder.join(name);
    let log = fs::File::options().create(true).append(true).open(at("server.log")).expect("there is room");
    let ((key, secret), port) = (ADMINISTRATOR, format!("{address}:{PORT}"));
    let mut command = Command::new(program());
    command.args(["--access", key, "--secret", secret, "--region", REGION, "--port", &port, "--quiet"]);
    command.arg("--iam-dir").arg(at("users")).arg("--access-log").arg(at("access.log"));
    command.arg("posix").arg(at("data")).stdin(Stdio::null());
    let mut process = Process::of(command.stdout(log.try_clone().expect("it is open")).stderr(log));
    until!(TcpStream::connect((address, PORT)).is_ok() || !process.is_running(), "versitygw does not answer");
    assert!(process.is_running(), "versitygw has ended");
    process
}

#[test]
fn a_bucket_has_what_a_folder_has_and_restic_reads_it() {
    let Some(server) = Server::new("s3-round") else { return };
    let mut lab = Lab::at(server.place(ADMINISTRATOR), "backup-s3");
    let root = fill(&lab, "data");
    let first = lab.backup(&["run", "data"]);
    assert!(first.starts_with("data: backed up: "), "{first}");
    let file = lab.file(root, "changes", b"first");
    lab.backup(&["run", "data"]);
    lab.store(file, b"second");
    lab.backup(&["run", "data"]);
    assert_eq!(lab.backups().len(), 3);
    lab.backup(&["verify"]);
    let ours = contents(&lab.restored("data", "ours"));
    assert!(ours.len() > 30, "{:?}", ours.keys());

    // The same volume, saved in a folder.
    let folder = Place::folder(lab.folder.join("repository"));
    let bucket = mem::replace(&mut lab.place, folder);
    lab.backup(&["init"]);
    lab.backup(&["run", "data"]);
    let theirs = contents(&lab.restored("data", "of-the-folder"));
    // The header names the clone that was dumped.
    let files = |all: &BTreeMap<PathBuf, String>| {
        all.iter()
            .filter(|(path, _)| !path.ends_with("data.header"))
            .map(|(path, text)| (path.clone(), text.clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(files(&theirs), files(&ours));
    lab.place = bucket;

    let one = lab.cell.address.to_string();
    lab.backup(&["restore", "data", "--volume", "copy", "--server", &one, "--partition", "a"]);
    assert!(lab.vos("vos examine copy").contains("copy"));

    assert_eq!(lab.backup(&["prune", "--keep-last", "2"]), "kept 2 backups and forgot 1\n");
    lab.backup(&["verify"]);
    assert_eq!(contents(&lab.restored("data", "after-prune")), ours);
    let Some(_) = lab.restic(&["check", "--read-data"]) else { return };
    let to = lab.folder.join("restic");
    lab.restic(&["restore", "latest", "--target", to.to_str().expect("it is text")]);
    assert_eq!(contents(&to), ours);
}

/// What docs/backup.md says against thieves.
#[test]
fn a_run_needs_no_right_to_delete_in_a_bucket() {
    let Some(server) = Server::new("s3-rights") else { return };
    let mut lab = Lab::at(server.place(ADMINISTRATOR), "backup-s3-rights");
    let root = lab.volume("data");
    let file = lab.file(root, "file", b"first");
    server.allow(&["s3:GetBucketLocation", "s3:ListBucket", "s3:GetObject", "s3:PutObject"]);
    let administrator = mem::replace(&mut lab.place, server.place(WRITER));
    // As the unit gets it: from a file that only root reads.
    let keys = format!("[default]\naws_access_key_id = {}\naws_secret_access_key = {}\n", WRITER.0, WRITER.1);
    let keys = lab.folder.write("keys", &keys).to_str().expect("it is text").to_owned();
    lab.place.environment = vec![("AWS_SHARED_CREDENTIALS_FILE", keys)];
    lab.place.arguments.push(format!("--cache={}", lab.folder.join("cache").display()));
    let afar = link_afar().to_str().expect("it is text").to_owned();
    for text in ["first", "second"] {
        lab.store(file, text.as_bytes());
        lab.backup(&["run", "data", "--databases", "--afar", &afar]);
    }
    assert_eq!(server.requests(&["DeleteObject"]), 0);
    assert_eq!(server.requests(&["PutObject", "locks/"]), 0, "a lock would have to be deleted");
    assert!(server.requests(&["PutObject", "snapshots/"]) >= 4);
    let refused = lab.try_backup(&["prune", "--keep-last", "1"]);
    let told = words(&refused);
    assert!(!refused.status.success(), "{told}");
    let expected =
        [&format!("the bucket {BUCKET} at {}: deleting snapshots/", server.url()), "may not do that"];
    assert!(expected.iter().all(|text| told.contains(*text)), "{told}");
    lab.place = administrator;
    assert_eq!(lab.backup(&["prune", "--keep-last", "1"]), "kept 2 backups and forgot 2\n");
    lab.backup(&["verify"]);
}

#[test]
fn a_wrong_access_key_and_a_missing_bucket_are_told_of() {
    let Some(server) = Server::new("s3-key") else { return };
    let mut lab = Lab::at(server.place(ADMINISTRATOR), "backup-s3-key");
    let at = server.url();
    let refused = |lab: &Lab, command: &str, words_expected: &[&str]| {
        let output = lab.try_backup(&[command]);
        let told = words(&output);
        assert!(!output.status.success(), "{told}");
        assert!(words_expected.iter().all(|text| told.contains(text)), "{told}");
    };
    for wrong in [("nobody", "administrators-secret"), ("administrator", "another")] {
        lab.place = server.place(wrong);
        for command in ["list", "verify", "init"] {
            refused(&lab, command, &[&format!("the bucket {BUCKET} at {at}: "), "AWS_SECRET_ACCESS_KEY"]);
        }
    }
    lab.place = server.place(ADMINISTRATOR);
    lab.place.arguments[0] = "--option=bucket=another".to_owned();
    refused(&lab, "init", &[&format!("the bucket another at {at}: "), "NoSuchBucket"]);
    lab.place.arguments.remove(0);
    refused(&lab, "list", &["the bucket that --option names: "]);
}

#[test]
fn a_server_of_s3_that_dies_in_a_run_fails_it_and_the_next_run_is_whole() {
    let Some(mut server) = Server::new("s3-killed") else { return };
    let lab = Lab::at(server.place(ADMINISTRATOR), "backup-s3-killed");
    let root = lab.volume("data");
    let large = large();
    lab.file(root, "large", &large);
    let begun = || server.requests(&["ListObjects", "index"]);
    let before = begun();
    let run = Running::start(&mut lab.command(&["run", "data"])).expect("it is built");
    // Then it dumps the volume, and then it writes.
    until!(begun() > before, "it does not read the index");
    server.process.kill();
    let output = run.finish(PATIENCE).unwrap_or_else(|problem| panic!("{problem}"));
    let told = words(&output);
    assert!(!output.status.success(), "{told}");
    let expected = [&format!("the bucket {BUCKET} at {}: writing ", server.url()), "Connection refused"];
    assert!(expected.iter().all(|text| told.contains(*text)), "{told}");

    // Nobody is there from the beginning.
    let output = lab.try_backup(&["run", "data"]);
    let told = words(&output);
    assert!(!output.status.success() && told.contains("Connection refused"), "{told}");

    server.process = serve(&server.folder, server.address);
    assert_eq!(lab.backups().len(), 0, "there is no snapshot of the run that failed");
    lab.backup(&["run", "data"]);
    lab.backup(&["verify"]);
    let restored = fs::read(lab.restored("data", "restored").join("data/large")).expect("it was restored");
    assert!(restored == large);
    lab.restic(&["check", "--read-data"]);
}

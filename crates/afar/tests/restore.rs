//! `vos restore` against a server: what was dumped is there again, and a dump that is damaged changes nothing.

use crate::mounted::{Folder, ServerProcess, our_program, suite, words};
use std::fs;
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use afs_lab::caller::{Client, Credentials, FileServer};
use afs_wire::ids::{AfsFid, VolumeId};
use rx_security::KeySet;
use serde_json::Value;

const CELL: &str = "restore.test";

/// A server, and somebody who may write to all of it.
struct Cell {
    state: Folder,
    server: ServerProcess,
    /// The files are those of its connections.
    _client: Client,
    files: FileServer,
}

impl Cell {
    fn new() -> Self {
        let state = Folder::new("restore");
        let server = ServerProcess::start(&state, &["--cell", CELL]);
        let keys = KeySet::load(&state.path().join("etc/server")).unwrap();
        let client = Client::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let files = client.file_server(server.address, &Credentials::user("admin", CELL, &keys).unwrap());
        Self { state, server, _client: client, files }
    }

    /// A command of `vos`; `SERVER` stands for the server's address.
    fn vos(&self, line: &str) -> Command {
        suite(&self.state, &format!("vos {line}"), &[("SERVER", self.server.address)], "-localauth")
    }

    fn does(&self, line: &str) -> String {
        let output = self.vos(line).output().unwrap();
        assert!(output.status.success(), "{line}: {}", words(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn create(&self, name: &str) -> VolumeId {
        id_of(&self.does(&format!("create SERVER a {name} -json")))
    }

    fn volume(&self, name: &str) -> VolumeId {
        id_of(&self.does(&format!("listvldb -name {name} -json")))
    }

    async fn write(&self, volume: VolumeId, name: &str, bytes: &[u8]) -> AfsFid {
        let fid = self.files.create_file(AfsFid::root_of(volume), name).await.unwrap().fid;
        self.files.store(fid, 0, bytes.to_vec(), bytes.len() as u64).await.unwrap();
        fid
    }

    async fn read(&self, volume: VolumeId, fid: AfsFid) -> Vec<u8> {
        self.files.fetch(AfsFid { volume, ..fid }, 0, 1 << 30).await.unwrap()
    }

    fn dump(&self, name: &str, options: &str) -> Vec<u8> {
        let output = self.vos(&format!("dump {name}{options}")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    /// What the partition and the database have, and that nobody has to wait.
    fn volumes(&self) -> String {
        assert!(self.does("status SERVER").starts_with("No active transactions"));
        self.does("listvol SERVER -quiet") + &self.does("listvldb")
    }

    /// Bytes that the volume service has received from all peers.
    fn bytes_received(&self) -> u64 {
        let mut command = our_program();
        let address = self.server.address.to_string();
        command.arg0("/usr/bin/rxdebug").args([&address, "7005", "-peers", "-long"]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", words(&output));
        let received = |line: &str| {
            let (_, numbers) = line.split_once("bytes received")?;
            let numbers: Vec<u64> = numbers.split([' ', ';']).filter_map(|word| word.parse().ok()).collect();
            Some(numbers[0] << 32 | numbers[1])
        };
        words(&output).lines().filter_map(received).sum()
    }

    /// Restores a dump that breaks off after these bytes, when they have arrived.
    fn restore_begin(&self, name: &str, begin: &[u8]) -> Output {
        let mut command = self.vos(&format!("restore SERVER a {name}"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let before = self.bytes_received();
        let mut child = command.spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        pipe.write_all(begin).unwrap();
        // The last of them are in the pipe and in vos; the file that is cut off is longer than that.
        until!(self.bytes_received() >= before + begin.len() as u64 - 256 * 1024, "they do not arrive");
        std::thread::sleep(Duration::from_millis(500));
        drop(pipe);
        child.wait_with_output().unwrap()
    }

    /// Restores what the file has, by its name or as the standard input.
    fn restore(&self, line: &str, file: &Path, as_input: bool) -> Output {
        let mut command = self.vos(&format!("restore SERVER a {line}"));
        if as_input {
            command.stdin(fs::File::open(file).unwrap());
        } else {
            command.arg("-file").arg(file);
        }
        command.output().unwrap()
    }
}

fn id_of(json: &str) -> VolumeId {
    let value: Value = serde_json::from_str(json).unwrap();
    let id = value.pointer("/rw_id").or_else(|| value.pointer("/0/rw_id")).unwrap();
    VolumeId(id.as_u64().unwrap().try_into().unwrap())
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 / 5) as u8).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_goes_from_dump_to_restore_through_a_pipe_has_the_same_files() {
    let cell = Cell::new();
    let first = cell.create("first");
    let mut written = Vec::new();
    for length in [0, 1, 5000, 3_000_000] {
        let bytes = pattern(length);
        written.push((cell.write(first, &format!("file{length}"), &bytes).await, bytes));
    }
    let mut dump = cell.vos("dump first").stdout(Stdio::piped()).spawn().unwrap();
    let mut restore = cell.vos("restore SERVER a second -verbose");
    let restored = restore.stdin(dump.stdout.take().unwrap()).output().unwrap();
    assert!(dump.wait().unwrap().success());
    assert!(restored.status.success(), "{}", words(&restored));
    let second = cell.volume("second");
    let said = String::from_utf8_lossy(&restored.stdout).into_owned();
    let address = cell.server.address;
    assert!(said.starts_with(&format!("Restoring volume second Id {second} on server ")), "{said}");
    assert!(said.ends_with(&format!("Restored volume second on {address} /vicepa\n")), "{said}");
    for (fid, bytes) in written {
        assert!(cell.read(second, fid).await == bytes, "{fid:?}");
    }
    let root = AfsFid::root_of(first);
    assert!(cell.read(second, root).await == cell.read(first, root).await, "the names");
    cell.write(second, "later", b"it can be written").await;
    cell.volumes();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dump_that_is_cut_or_damaged_changes_nothing_and_the_message_names_the_byte() {
    let cell = Cell::new();
    let volume = cell.create("kept");
    cell.write(volume, "file", &pattern(300_000)).await;
    let dump = cell.dump("kept", "");
    cell.write(volume, "later", b"what the dump has not").await;
    let (before, volumes) = (cell.dump("kept", ""), cell.volumes());

    let mut damaged = dump.clone();
    let (middle, end) = (dump.len() - 150_000, dump.len());
    // The version of the root directory's access list.
    let list = [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0];
    let version = damaged.windows(16).position(|bytes| bytes == list).expect("a list of one entry");
    damaged[version + 3] = 9;
    let mut cases: Vec<(String, Vec<u8>, String)> = [0, 3, 40, middle, end - 3]
        .map(|cut| {
            let fault = format!("byte {cut} of the dump: the dump ends here");
            (format!("cut at {cut}"), dump[..cut].to_vec(), fault)
        })
        .into();
    cases.push(("damaged".to_owned(), damaged, "of the dump: the access list of directory".to_owned()));
    for (case, bytes, fault) in cases {
        let file = cell.state.path().join("dump");
        fs::write(&file, bytes).unwrap();
        for line in ["new", "kept -overwrite full", "kept -overwrite incremental"] {
            for as_input in [false, true] {
                let output = cell.restore(line, &file, as_input);
                let said = words(&output);
                assert_eq!(output.status.code(), Some(1), "{case}, {line}: {said}");
                assert!(said.contains(&fault), "{case}, {line}: {said}");
                assert!(said.contains("Error in vos restore command"), "{case}, {line}: {said}");
                assert_eq!(cell.volumes(), volumes, "{case}, {line}: {said}");
                assert!(cell.dump("kept", "") == before, "{case}, {line}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_changed_brings_a_copy_up_to_date_and_does_not_replace_a_volume() {
    let cell = Cell::new();
    let (source, file) = (cell.create("source"), cell.state.path().join("dump"));
    cell.write(source, "first", b"one").await;
    fs::write(&file, cell.dump("source", "")).unwrap();
    let made = cell.restore("copy", &file, false);
    assert!(made.status.success(), "{}", words(&made));
    let second = cell.write(source, "second", b"two").await;
    fs::write(&file, cell.dump("source", " -time 2001-01-01")).unwrap();
    let volumes = cell.volumes();
    let refused = cell.restore("copy -overwrite full", &file, false);
    assert_eq!(refused.status.code(), Some(1));
    assert!(words(&refused).contains("restore it as incremental"), "{}", words(&refused));
    assert_eq!(cell.volumes(), volumes);
    let updated = cell.restore("copy -overwrite incremental", &file, false);
    assert!(updated.status.success(), "{}", words(&updated));
    assert_eq!(cell.read(cell.volume("copy"), second).await, b"two");

    // Without an option, a command that cannot ask replaces nothing.
    for as_input in [false, true] {
        let asked = cell.restore("copy", &file, as_input);
        assert_eq!(asked.status.code(), Some(1), "{}", words(&asked));
        assert!(words(&asked).contains("Aborting restore command"), "{}", words(&asked));
    }
    // A read-only volume that has no other.
    fs::write(&file, cell.dump("source", "")).unwrap();
    let made = cell.restore("lonely -readonly", &file, false);
    assert!(made.status.success(), "{}", words(&made));
    assert!(cell.does("listvldb -name lonely").contains("ROnly:"), "{}", cell.does("listvldb -name lonely"));
    // A volume that stays offline.
    let made = cell.restore("asleep -offline -json", &file, false);
    assert!(made.status.success(), "{}", words(&made));
    let said: Value = serde_json::from_slice(&made.stdout).unwrap();
    assert_eq!(said["bytes"], fs::metadata(&file).unwrap().len());
    assert_eq!(said["id"], cell.volume("asleep").0);
    let listed = cell.does("listvol SERVER a");
    assert!(listed.lines().any(|line| line.starts_with("asleep ") && line.contains("Off-line")), "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_that_was_cut_off_goes_on_with_what_came_and_takes_nothing_of_another_dump() {
    goes_on(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_of_the_standard_input_goes_on_too() {
    goes_on(true).await;
}

/// Restores with the dump in a file, or as the standard input.
async fn goes_on(as_input: bool) {
    let cell = Cell::new();
    let first = cell.create("first");
    let mut written = Vec::new();
    for length in [0, 5000, 300_000, 1_500_000, 3_000_000] {
        written.push((cell.write(first, &format!("file{length}"), &pattern(length)).await, pattern(length)));
    }
    let file = cell.state.path().join("dump");
    let whole = cell.dump("first", "");
    let before = cell.volumes();
    let id_told = |output: &Output| -> u32 {
        let said = words(output);
        let after = said.split(" Id ").nth(1).unwrap_or_else(|| panic!("{said}"));
        after.split(' ').next().unwrap().parse().unwrap()
    };
    let begin = &whole[..whole.len() - 1_500_000];
    let cut = cell.restore_begin("second", begin);
    assert_eq!(cut.status.code(), Some(1));
    assert_eq!(cell.volumes(), before, "nobody sees what came");
    let listed = cell.does("listvol SERVER a -half");
    let id = id_told(&cut);
    assert!(listed.contains("partition /vicepa: 1 \n"), "{listed}");
    assert!(
        listed.lines().any(|line| line.starts_with("second ") && line.contains(&format!(" {id} RW since "))),
        "{listed}"
    );
    let halves: Value = serde_json::from_str(&cell.does("listvol SERVER -half -json")).unwrap();
    assert_eq!(halves["half_made"][0]["id"], id, "{halves}");
    fs::write(&file, &whole).unwrap();
    let before = cell.bytes_received();
    let restored = cell.restore("second", &file, as_input);
    assert!(restored.status.success(), "{}", words(&restored));
    let sent = cell.bytes_received() - before;
    // The last file has come in part. A dump that can be read once has to send all of it.
    let rest = if as_input { 3_000_000 } else { 3_000_000 - (1 << 20) };
    // On a busy machine packets are sent again.
    assert!(sent < rest + 280_000, "{sent} bytes were sent, and {rest} were missing");
    assert_eq!(id_told(&restored), id_told(&cut), "the id that was taken is the volume's");
    assert!(cell.does("listvol SERVER a -half").contains("partition /vicepa: 0 \n"));
    let second = cell.volume("second");
    for (fid, bytes) in &written {
        assert!(cell.read(second, *fid).await == *bytes, "{fid:?}");
    }
    // Another dump in which one byte of a file differs, and nothing else.
    assert_eq!(cell.restore_begin("third", begin).status.code(), Some(1));
    let mut other = whole.clone();
    let at = whole.len() - 2_000_000;
    other[at] ^= 1;
    fs::write(&file, &other).unwrap();
    let restored = cell.restore("third", &file, as_input);
    assert!(restored.status.success(), "{}", words(&restored));
    let third = cell.volume("third");
    let (fid, bytes) = written.last().unwrap();
    let found = cell.read(third, *fid).await;
    assert_eq!(found.iter().zip(bytes).filter(|(a, b)| a != b).count(), 1, "it is the other dump's file");
    for (fid, bytes) in &written[..4] {
        assert!(cell.read(third, *fid).await == *bytes, "{fid:?}");
    }
    assert!(cell.dump("third", "").len() == whole.len());
}

//! `afar top` at a cell under load: what it prints for scripts, and that it can be used in a terminal.

use crate::mounted::{self, Folder, Process, can_mount, own_address, up};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// A cell with a mount, in which somebody writes and reads until it is dropped.
struct Busy {
    _process: Process,
    _folder: Folder,
    metrics: SocketAddr,
    stops: Arc<AtomicBool>,
    worker: Option<JoinHandle<()>>,
}

impl Busy {
    fn start() -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let (folder, address) = (Folder::new("top"), own_address());
        let (metrics, mount) = (SocketAddr::from((address, 9160)), folder.join("mnt"));
        let mut command = up(&folder, address, &["--metrics", &metrics.to_string(), "--mount"]);
        command.arg(&mount);
        let process = Process::start(command, Some(mount.clone()));
        let stops = Arc::new(AtomicBool::new(false));
        let worker = std::thread::spawn({
            let (stops, place) = (Arc::clone(&stops), mount.join("afar.local/scratch"));
            move || {
                for number in 0.. {
                    if stops.load(Ordering::Relaxed) {
                        return;
                    }
                    let file = place.join(format!("file{}", number % 5));
                    fs::write(&file, vec![7; 50_000]).unwrap();
                    fs::remove_file(file).unwrap();
                }
            }
        });
        Some(Self { _folder: folder, _process: process, metrics, stops, worker: Some(worker) })
    }

    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.metrics).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::Relaxed);
        if let Some(worker) = self.worker.take() {
            let ended = worker.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the load went on until here");
        }
    }
}

fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_afar"))
}

/// The line of a table that begins with this, as words.
fn line<'a>(text: &'a str, begin: &str) -> Vec<&'a str> {
    let found = text.lines().find(|line| line.starts_with(begin));
    found.unwrap_or_else(|| panic!("no line begins with {begin} in:\n{text}")).split_whitespace().collect()
}

#[test]
fn scripts_are_told_who_does_what_at_a_cell_under_load() {
    let Some(busy) = Busy::start() else { return };
    let at = busy.metrics.to_string();
    let figure = |word: &str| word.trim_end_matches(['k', 'M']).parse::<f64>().unwrap();
    let look = || {
        let mut command = Command::new(program());
        let output = command.args(["top", "--once", "--interval", "5", &at]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}{}", output.stderr.escape_ascii());
        text
    };
    // On a busy machine nothing may be stored meanwhile.
    let is_stored = |text: &str| {
        let found = text.lines().find(|line| line.starts_with("Rxafs.StoreData64"));
        found.is_some_and(|line| figure(line.split_whitespace().nth(1).unwrap()) > 0.0)
    };
    let mut text;
    until!(
        {
            text = look();
            is_stored(&text)
        },
        "nothing is stored: {text}"
    );
    let server = line(&text, &at);
    assert!(figure(server[2]) > 0.0, "calls: {server:?}");
    let volume = line(&text, "scratch (");
    assert!(figure(volume[2]) > 0.0 && volume[5].ends_with(['k', 'M']), "calls and bytes stored: {volume:?}");
    assert!(figure(volume[6]) > 0.0, "latency: {volume:?}");
    assert!(figure(line(&text, "Rxafs.StoreData64")[1]) > 0.0);
    assert!(text.contains("\nusers ") && text.contains("\nclients "), "{text}");
    // A server that is not there is told beside one that is.
    let output =
        Command::new(program()).args(["top", "--once", "--interval", "1", &at, "127.0.0.1:1"]).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    assert!(text.contains("127.0.0.1:1") && text.contains("no answer"), "{text}");
}

#[test]
fn it_can_be_used_in_a_terminal() {
    if !Path::new("/usr/bin/script").exists() {
        return mounted::skip("there is no script, of Debian's bsdutils");
    }
    let Some(busy) = Busy::start() else { return };
    let command =
        format!("stty rows 40 columns 120; {} top --interval 1 {}", program().display(), busy.metrics);
    let mut command_line = Command::new("script");
    command_line.args(["-qfec", &command, "/dev/null"]).env("TERM", "xterm");
    let mut process = command_line.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut keys, mut screen) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
    let mut seen = Vec::new();
    let mut until = |text: &str| {
        let begin = seen.len();
        let mut piece = [0; 4096];
        while !String::from_utf8_lossy(&seen[begin..]).contains(text) {
            let len = screen.read(&mut piece).unwrap();
            assert!(len > 0, "ended before {text} was seen: {}", seen.escape_ascii());
            seen.extend_from_slice(&piece[..len]);
        }
    };
    // Only what differs is drawn, so a blank may be missing between two words.
    until("scratch");
    keys.write_all(b"4").unwrap();
    until("procedures");
    keys.write_all(b"q").unwrap();
    assert!(process.wait().unwrap().success());
}

#[test]
fn the_json_is_as_documented_and_read_only() {
    let Some(busy) = Busy::start() else { return };
    let answer = busy.get("/top.json");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(
        head.contains("Content-Type: application/json\r\n") && head.contains("default-src 'none'"),
        "{head}"
    );
    let told: serde_json::Value = serde_json::from_str(body).unwrap();
    let page =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/seeing.md")).unwrap();
    for (key, value) in told.as_object().unwrap() {
        assert!(page.contains(&format!("`{key}`")), "{key} is not in docs/seeing.md");
        let row = value.get(0).unwrap_or(value);
        for key in row.as_object().into_iter().flat_map(|row| row.keys()) {
            assert!(page.contains(&format!("`{key}`")), "{key} is not in docs/seeing.md");
        }
    }
    assert!(told["total"]["calls"].as_u64().unwrap() > 0);
}

#[test]
fn a_browser_shows_the_page_and_its_policy_keeps_nothing_of_it_from_running() {
    require!(mounted::needs(&["chromium"]));
    let Some(busy) = Busy::start() else { return };
    let profile = Folder::new("chromium");
    let mut browser = Command::new("chromium");
    browser.args([
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=10000",
        "--dump-dom",
    ]);
    browser
        .args(["--enable-logging=stderr", &format!("--user-data-dir={}", profile.join("profile").display())]);
    let output = browser.arg(format!("http://{}/top", busy.metrics)).output().unwrap();
    let (page, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(page.contains("<td class=\"text\">scratch ("), "{page}");
    assert!(!said.contains("CONSOLE"), "{said}");
}

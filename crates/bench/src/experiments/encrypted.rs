//! One call in the clear and encrypted, beside TLS: how fast, and for how much CPU time. On loopback, and over a link of 1 Gbit/s.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use afs_lab::real::folder::Folder;
use rx_security::KeySet;
use rx_security::keys::{EncType, Key};

use super::{DIRECTIONS, rtt_text};
use crate::error::Error;
use crate::lab::{Cell, Lab, interleave};
use crate::network::{Ends, LINK_TEXT, LOOPBACK, LinkSpec, over_link};
use crate::record::{Record, Run};
use crate::tools::Stack;
use crate::transfer::{self, Window};

/// One call after the other of so many bytes.
const CALL_BYTES: &str = "4000000000";
const RTT: Duration = Duration::from_micros(12_500);
/// The rate that is hoped for on loopback, Mbit/s.
const GOAL_MBIT: f64 = 4000.0;
/// Bytes of the file that is fetched by TLS, on loopback and over the link: some seconds of what that carries.
const TLS_BYTES: [u64; 2] = [16_000_000_000, 1_250_000_000];
/// Our calls: what they are called, and what makes them so.
const CLASSES: [(&str, Option<(&str, EncType)>); 6] = [
    ("clear", None),
    ("rxkad crypt", Some(("rxkad", EncType::AES256))),
    ("rxgk crypt, aes128-sha1", Some(("rxgk", EncType::AES128))),
    ("rxgk crypt, aes256-sha1", Some(("rxgk", EncType::AES256))),
    ("rxgk crypt, aes128-sha256", Some(("rxgk", EncType::AES128_SHA256))),
    ("rxgk crypt, aes256-sha384", Some(("rxgk", EncType::AES256_SHA384))),
];
const TLS: &str = "TLS 1.3";

pub(crate) fn run(lab: &Lab, record: &mut Record) -> Result<(), Error> {
    let window = lab.choose(Window::new(1, 6), Window::new(1, 2));
    let (omit, measure) = (window.omit.as_secs(), window.measure.as_secs());
    record.headline = "Mbit/s".into();
    record.placement =
        "Server and client are processes of their own, not pinned, niceness 0, on the cores of this machine."
            .into();
    record.method = format!(
        "rxperf with packets as large as the way takes, one call at a time of {CALL_BYTES} bytes; {measure} s are measured after {omit} s that are \
         not. The cell's key says which cipher rxgk has. TLS 1.3: openssl s_server -WWW with its defaults (AES-256-GCM) sends a file of zeros, as \
         curl's report says how fast from the first byte on. CPU seconds per gigabyte (10^9 bytes) are those of the whole process, user and kernel. \
         The link: {LINK_TEXT} Repetitions in turns."
    );
    // In memory, where what is read of a file of zeros takes no room.
    let keys = Folder::below(Path::new("/dev/shm"), "encrypted");
    let folders = CLASSES.iter().map(|(name, class)| keys_of(keys.path(), name, class.map(|(_, kind)| kind)));
    let folders = folders.collect::<Result<Vec<_>, _>>()?;
    make_certificate(keys.path())?;
    let mut cells = Vec::new();
    for far in [false, true] {
        let way = if far { format!("1 Gbit/s, {}", rtt_text(RTT)) } else { "loopback".to_owned() };
        for ((name, class), keys) in CLASSES.into_iter().zip(&folders) {
            for direction in DIRECTIONS {
                let options = if class.is_some() { vec!["--keys", keys] } else { vec![] };
                let client = lab.tools.rxperf_client(Stack::Afar).and(["-c", direction, "-b", CALL_BYTES]);
                let client =
                    client.and(&options).and(class.map_or(vec![], |(class, _)| vec!["--class", class]));
                let client = client.and(window.rxperf());
                let labels =
                    [("way", way.clone()), ("who", name.to_owned()), ("direction", direction.to_owned())];
                cells.push(Cell::new(labels, move |lab| {
                    let server = transfer::server(Stack::Afar, &options);
                    over(lab, far, |lab, ends| transfer::rxperf(lab, ends, &server, &client, window))
                }));
            }
        }
        let labels = [("way", way), ("who", TLS.to_owned()), ("direction", "recv".to_owned())];
        let (home, bytes) = (keys.path(), TLS_BYTES[usize::from(far)]);
        cells.push(Cell::new(labels, move |lab| {
            over(lab, far, |lab, ends| transfer::tls(lab, ends, home, bytes))
        }));
    }
    interleave(lab, record, &cells, lab.repeats(3))?;
    for (name, class) in CLASSES {
        if class.is_none_or(|(class, _)| class != "rxgk") {
            continue;
        }
        for direction in DIRECTIONS {
            let measured = record.median("Mbit/s", &["loopback", name, direction]);
            let tls = record.median("Mbit/s", &["loopback", TLS]);
            let note = tls.map(|tls| format!("TLS: {tls:.0}")).unwrap_or_default();
            record.at_least(
                &format!("One call on loopback, {name}, {direction}"),
                measured,
                GOAL_MBIT,
                "Mbit/s",
                &note,
            );
        }
    }
    Ok(())
}

/// A run on the loopback interface, or over the link.
fn over(lab: &Lab, far: bool, run: impl FnOnce(&Lab, Ends<'_>) -> Result<Run, Error>) -> Result<Run, Error> {
    if far { over_link(lab, &LinkSpec::wan(RTT), run) } else { run(lab, LOOPBACK) }
}

/// A folder with keys of a kind for both classes.
fn keys_of(home: &Path, name: &str, kind: Option<EncType>) -> Result<String, Error> {
    let failed = |what: String| Error::setup(format!("keys for {name}: {what}"));
    let folder = home.join(name.replace([' ', ','], "-"));
    std::fs::create_dir(&folder).map_err(|e| failed(e.to_string()))?;
    if let Some(kind) = kind {
        let secret = vec![7; kind.key_len().unwrap_or_default()];
        let keys = KeySet::of([Key::rxkad_krb5(1, EncType::AES256, &[7; 32]), Key::rxgk(1, kind, &secret)]);
        keys.and_then(|keys| keys.save(&folder)).map_err(|e| failed(e.to_string()))?;
    }
    Ok(folder.display().to_string())
}

fn make_certificate(home: &Path) -> Result<(), Error> {
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=lab.test", "-days", "2"])
        .args(["-keyout", "key.pem", "-out", "cert.pem"])
        .current_dir(home)
        .output()
        .map_err(|e| Error::setup(format!("openssl: {e}")))?;
    match made.status.success() {
        true => Ok(()),
        false => Err(Error::setup(format!("openssl req: {}", String::from_utf8_lossy(&made.stderr).trim()))),
    }
}

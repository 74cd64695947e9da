//! `mount.afar`: what `mount -t afar` runs, and systemd for a line of fstab. It starts `afar mount` in the background, and comes back when that
//! has mounted. The source is the folder of configuration; options that are not `mount`'s are those of `afar mount`.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};

/// The name of the program, through a link.
pub(crate) const NAME: &str = "mount.afar";

/// The status for a mount that has failed: mount(8), "EXIT STATUS".
const FAILED: u8 = 32;

/// A source for which the usual folders of configuration are looked through.
const USUAL: &str = "none";

/// Options that fstab has for others than the file system, or that are always so.
const NOT_OURS: [&str; 24] = [
    "_netdev",
    "async",
    "atime",
    "auto",
    "defaults",
    "dev",
    "diratime",
    "exec",
    "group",
    "loud",
    "noatime",
    "noauto",
    "nodev",
    "nodiratime",
    "nofail",
    "norelatime",
    "nosuid",
    "nouser",
    "owner",
    "relatime",
    "rw",
    "silent",
    "user",
    "users",
];

/// Options that would promise what the mount does not do.
const REFUSED: [&str; 7] = ["bind", "dirsync", "noexec", "remount", "ro", "suid", "sync"];

/// Mounts, as `mount.afar SOURCE DIR [-o OPTIONS]`.
pub(crate) fn run(args: &[OsString]) -> ExitCode {
    match parse(args).and_then(|words| words.map_or(Ok(()), |words| start(&words))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{NAME}: {error}");
            ExitCode::from(FAILED)
        }
    }
}

/// The arguments of `afar mount`; `None` if nothing is to be done.
fn parse(args: &[OsString]) -> Result<Option<Vec<OsString>>, String> {
    let (mut places, mut options, mut is_fake) = (Vec::new(), String::new(), false);
    let mut rest = args.iter();
    while let Some(word) = rest.next() {
        match word.to_str() {
            Some("-o") => {
                let more = rest.next().and_then(|more| more.to_str()).ok_or("-o needs options")?;
                options = format!("{options},{more}");
            }
            // The kind, and a namespace into which `mount` itself has gone.
            Some("-t" | "-N") => {
                rest.next();
            }
            Some(flags) if flags.starts_with('-') && flags.len() > 1 => is_fake |= flags.contains('f'),
            _ => places.push(word),
        }
    }
    let [source, mount] = places[..] else {
        return Err(format!(
            "usage: {NAME} SOURCE DIR [-o OPTIONS]; SOURCE is the folder with ThisCell and CellServDB, or {USUAL}"
        ));
    };
    if is_fake {
        return Ok(None);
    }
    let mut words = vec![OsString::from("mount"), mount.clone()];
    if source != USUAL {
        words.extend([OsStr::new("--config"), source].map(OsStr::to_owned));
    }
    for option in options.split(',').filter(|option| !option.is_empty()) {
        let (name, value) =
            option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        if NOT_OURS.contains(&name) || name.starts_with("x-") || name.starts_with("X-") || name == "comment" {
            continue;
        }
        if REFUSED.contains(&name) {
            return Err(format!("the option {name} cannot be had: take it out of fstab"));
        }
        words.push(format!("--{}", name.replace('_', "-")).into());
        words.extend(value.map(OsString::from));
    }
    Ok(Some(words))
}

/// Where the client logs: to the journal, if systemd has given this process that, else to the system's log. Whoever reads what this process
/// says would wait for the end of the client otherwise.
fn log() -> Stdio {
    let own = rustix::fs::fstat(io::stderr()).map(|stat| format!("{}:{}", stat.st_dev, stat.st_ino));
    if std::env::var_os("JOURNAL_STREAM").is_some_and(|stream| own.is_ok_and(|own| stream == *own)) {
        return Stdio::inherit();
    }
    let mut logger = Command::new("logger");
    logger.args(["--tag", "afar"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    logger.spawn().ok().and_then(|logger| logger.stdin).map_or_else(Stdio::null, Stdio::from)
}

/// Starts the client, and waits until it has mounted.
fn start(words: &[OsString]) -> Result<(), String> {
    // The client is not to end with the terminal of the person who mounts. This fails for the leader of a group, whom a shell has started.
    let _ = rustix::process::setsid();
    let failed = |error: io::Error| format!("the client cannot be started: {error}");
    let program = std::env::current_exe().map_err(failed)?;
    let mut command = Command::new(program);
    command.args(words).current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log());
    let mut client = command.spawn().map_err(failed)?;
    let stdout = client.stdout.take().expect("it is piped");
    let mut lines = BufReader::new(stdout).lines();
    if lines.any(|line| line.is_ok_and(|line| line.starts_with("ready "))) {
        return Ok(());
    }
    let status = client.wait().map_err(failed)?;
    Err(format!("the client has not mounted ({status}): the system's log says why ('journalctl -t afar')"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(args: &[&str]) -> Result<Option<Vec<String>>, String> {
        let args: Vec<_> = args.iter().map(OsString::from).collect();
        let text = |words: Vec<OsString>| words.into_iter().map(|word| word.into_string().unwrap()).collect();
        parse(&args).map(|words| words.map(text))
    }

    #[test]
    fn a_line_of_fstab_becomes_the_command_line_of_the_client() {
        let options = "rw,_netdev,nofail,x-systemd.automount,cache-size=10G,no_afsdb,memory=256M";
        let said = words(&["/etc/openafs", "/afs", "-n", "-o", options]).unwrap().unwrap();
        let expected = [
            "mount",
            "/afs",
            "--config",
            "/etc/openafs",
            "--cache-size",
            "10G",
            "--no-afsdb",
            "--memory",
            "256M",
        ];
        assert_eq!(said, expected);
        assert_eq!(words(&["none", "/afs", "-t", "afar"]).unwrap().unwrap(), ["mount", "/afs"]);
        assert_eq!(words(&["none", "/afs", "-nf"]).unwrap(), None, "mount -f does all but that");
    }

    #[test]
    fn what_a_mount_does_not_do_is_refused() {
        assert!(words(&["none", "/afs", "-o", "ro"]).unwrap_err().contains("the option ro cannot be had"));
        assert!(words(&["/afs"]).unwrap_err().contains("usage"));
    }
}

//! Web servers whose documents are in a mount, all of them cached, beside the same documents on the local disk and in an empty FUSE mount
//! of it: Apache and nginx as Debian has them.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::far::work;
use crate::error::Error;
use crate::folder::folder;
use crate::lab::{Cell, Lab, interleave};
use crate::mounts::{Mount, OurCell, Scene};
use crate::network::LinkSpec;
use crate::record::{Record, Run, short};
use crate::tools::{Invocation, Place};
use crate::workers::stream;

const SERVERS: [&str; 2] = ["apache", "nginx"];
/// The places of documents; the local disk twice for the noise. No FUSE file system can save what an empty FUSE mount takes.
const PLACES: [&str; 4] = ["local", "local again", "empty mount", "afar"];
/// A page, a photograph and an image: name and bytes.
const DOCUMENTS: [(&str, u64); 3] = [("8 KiB", 8192), ("1 MB", 1_000_000), ("50 MB", 50_000_000)];
/// Clients that ask at once.
const AT_ONCE: &str = "8";
const TIMEOUT: Duration = Duration::from_secs(120);
/// As fast as from the local disk, but for the noise.
const GOAL: f64 = 0.9;

const RATE: &str = "requests/s";

pub(crate) fn run(lab: &Lab, record: &mut Record) -> Result<(), Error> {
    let seconds: u64 = lab.choose(5, 1);
    record.headline = RATE.into();
    record.compared = Some("documents".into());
    record.placement =
        "Web server, client, mount and `ab` are processes on the cores of this machine, not pinned, niceness 0; connections go over the loopback interface."
            .into();
    record.method = format!(
        "Debian's apache2 (event) and nginx with their defaults and one document root, which is a folder in a mount of our cell or one on the disk that has the \
         mount's cache, or the latter through 'empty mount', a FUSE file system on our fuse-dev that serves a local folder with the same flags as the client's mount. `ab` asks {AT_ONCE} at a time with keepalive for one document again and again for {seconds} s, after 1 s that does not count: all of it is in the cache and in memory. \
         Repetitions in turns; 'local again' is the same as 'local', so that the difference is noise."
    );
    let local = folder("local");
    let cell = OurCell::new()?;
    let scene = Scene::open(lab, &cell, &LinkSpec::none())?;
    let mount = Mount::afar(lab, scene.near(), &cell.client(), None)?;
    let empty = Mount::mirror(lab, local.path(), None)?;
    for (name, bytes) in DOCUMENTS {
        for folder in [local.path(), mount.path()] {
            let file = folder.join(file_of(name)).display().to_string();
            work(lab, &[stream::NAME, "write", &file, &bytes.to_string()], TIMEOUT)?;
        }
    }
    let roots = [local.path(), local.path(), empty.path(), mount.path()];
    let mut cells = Vec::new();
    for server in SERVERS {
        for (name, _) in DOCUMENTS {
            for (place, root) in PLACES.into_iter().zip(roots) {
                let labels = [
                    ("server", server.to_string()),
                    ("document", name.to_string()),
                    ("documents", place.to_string()),
                ];
                cells.push(Cell::new(labels, move |lab| once(lab, server, name, root, seconds)));
            }
        }
    }
    interleave(lab, record, &cells, lab.repeats(5))?;
    drop(cells);
    for server in SERVERS {
        for (name, _) in DOCUMENTS {
            let [one, again, empty, ours] = PLACES.map(|place| record.median(RATE, &[server, name, place]));
            let ratio = ours.zip(one).map(|(ours, one)| ours / one);
            let [a, b, c, d] = [ours, one, again, empty].map(|value| value.map_or("-".to_string(), short));
            let note = format!("requests/s: afar {a}, local {b} and {c}, an empty FUSE mount {d}");
            record.at_least(
                &format!("{server}, {name} from the mount, against the local disk"),
                ratio,
                GOAL,
                "times",
                &note,
            );
        }
    }
    Ok(())
}

fn file_of(document: &str) -> String {
    document.replace(' ', "")
}

fn once(lab: &Lab, server: &str, document: &str, root: &Path, seconds: u64) -> Result<Run, Error> {
    let work = folder(server);
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let port = port.map_err(|e| Error::run(format!("a free port: {e}")))?.port();
    let serve = match server {
        "apache" => apache(work.path(), root, port)?,
        _ => nginx(work.path(), root, port)?,
    };
    let serving = serve.start(Place::Here, &lab.interrupt)?;
    let url = format!("http://127.0.0.1:{port}/{}", file_of(document));
    let ab = |seconds: u64| {
        let time = seconds.to_string();
        Invocation::new(Path::new("ab")).and(["-q", "-k", "-c", AT_ONCE, "-t", &time, "-n", "10000000", &url])
    };
    let deadline = Instant::now() + TIMEOUT;
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        if Instant::now() > deadline {
            return Err(Error::run(format!("{serve} does not listen")));
        }
        lab.interrupt.sleep(Duration::from_millis(20))?;
    }
    ab(1).start(Place::Here, &lab.interrupt)?.finish(TIMEOUT)?;
    let said = ab(seconds).start(Place::Here, &lab.interrupt)?.finish(TIMEOUT)?;
    // Servers may end by the signal that they are asked with.
    serving.stop_however(TIMEOUT)?;
    let number = |what: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(what));
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok())
            .ok_or_else(|| Error::run(format!("ab does not say {what}")))
    };
    let mut run =
        Run { is_valid: true, commands: vec![serve.to_string(), ab(seconds).to_string()], ..Run::default() };
    run.figures.insert(RATE.into(), number("Requests per second:")?);
    run.figures.insert("MB/s".into(), number("Transfer rate:")? * 1024.0 / 1e6);
    // Errors, and answers that are none.
    let failures = number("Failed requests:")?;
    let refused = said.lines().any(|line| line.starts_with("Non-2xx responses"));
    if failures > 0.0 || refused {
        run.is_valid = false;
        run.problems.push(format!(
            "{failures} requests failed{}",
            if refused { ", others were refused" } else { "" }
        ));
    }
    Ok(run)
}

fn write(path: PathBuf, text: &str) -> Result<String, Error> {
    fs::write(&path, text).map_err(|e| Error::setup(format!("writing {}: {e}", path.display())))?;
    Ok(path.display().to_string())
}

fn nginx(work: &Path, root: &Path, port: u16) -> Result<Invocation, Error> {
    // As root: nobody else may get at the folders of whoever builds this.
    let text = format!(
        "user root;\nworker_processes auto;\ndaemon off;\npid {0}/pid;\nerror_log {0}/error.log;\nevents {{ worker_connections 768; }}\n\
         http {{\n sendfile on;\n tcp_nopush on;\n access_log off;\n keepalive_requests 1000000;\n client_body_temp_path {0}/b;\n proxy_temp_path {0}/p;\n \
         fastcgi_temp_path {0}/f;\n uwsgi_temp_path {0}/u;\n scgi_temp_path {0}/s;\n server {{ listen 127.0.0.1:{port}; root {1}; }}\n}}\n",
        work.display(),
        root.display()
    );
    let config = write(work.join("nginx.conf"), &text)?;
    Ok(Invocation::new(Path::new("nginx")).and([
        "-c",
        &config,
        "-e",
        &work.join("error.log").display().to_string(),
    ]))
}

fn apache(work: &Path, root: &Path, port: u16) -> Result<Invocation, Error> {
    let text = format!(
        "ServerRoot {0}\nServerName localhost\nListen 127.0.0.1:{port}\nPidFile {0}/pid\nErrorLog {0}/error.log\n\
         LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so\nLoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so\n\
         User www-data\nGroup www-data\nDefaultRuntimeDir {0}\nKeepAlive On\nMaxKeepAliveRequests 0\nDocumentRoot {1}\n<Directory />\n Require all granted\n</Directory>\n",
        work.display(),
        root.display()
    );
    let config = write(work.join("apache.conf"), &text)?;
    Ok(Invocation::new(Path::new("apache2")).and(["-f", &config, "-D", "FOREGROUND"]))
}

//! `afar mount`: the client of the cells that a folder of configuration names, OpenAFS's too, in the foreground. Its options are ours
//! and those of OpenAFS's `afsd`; what became of the latter is in `mount/afsd.rs`.

mod afsd;
pub(crate) mod device;
pub(crate) mod end;
pub(crate) mod helper;
mod key_holder;

use crate::classic::{Command, Given, Opt};
use crate::{
    callback_wait, client_uuid, control_socket, hangup, kept_tokens, metrics, mount_point, output, private,
    runtime,
};
use afs_client::config::Cache;
use afs_client::join::Device;
use afs_client::{Client, Config, Fsync, WriteBehind, memory};
use afs_config::{AfsConf, AfsdOptions, CacheInfo, ClientFolder};
use afs_dns::SystemResolver;
use afs_fuse::{Mount, Options, Owner};
use afs_server::config::Log;
use afs_server::log;
use afs_server::notify::ServiceManager;
use afsd::AfsdSettings;
use end::End;
use rustix::process::geteuid;
use rx::{Runtime, TokioRuntime};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Most bytes of the cache, unless `-cache-size`, `-blocks` or cacheinfo say otherwise.
const CACHE_BYTES: u64 = 10 << 30;

/// The smallest cache that is of use: some files of a few MiB, and what is dirty.
const CACHE_MIN_BYTES: u64 = 16 << 20;

/// Most threads that answer the kernel.
const THREADS_MAX: usize = 64;

/// Most days that a client goes on without its servers.
const DAYS_MAX: u64 = 365;

/// The time that work for which nobody waits may take when all else has ended.
pub(crate) const END_TIMEOUT: Duration = Duration::from_secs(2);

/// What the command does, as lists of commands and its help say it.
pub(crate) const ABOUT: &str = "runs the client, which mounts the cells that the configuration names";

static COMMAND: Command = Command { name: "mount", options: &afsd::OPTIONS };

/// Options of ours, besides those of `afsd`; `DIR` is the first value without an option.
pub(super) const OURS: [Opt; 17] = [
    Opt::single("config", "folder with ThisCell and CellServDB, as -confdir; default /etc/openafs").ours(),
    Opt::single("cache", "folder of the cache, as -cachedir").ours(),
    Opt::single("cache-size", "limit of the cache, such as 10G").ours(),
    Opt::single("memory", "maximum memory for tables and caches, such as 256M; default 1G").ours(),
    Opt::single("metrics", "address at which metrics can be fetched over HTTP, such as 127.0.0.1:9161")
        .ours(),
    Opt::flag("allow-other", "let all users of the machine use the mount; the default if root mounts it")
        .ours(),
    Opt::flag(
        "private",
        "let only the user who mounts it use the mount; the default unless that user is root",
    )
    .ours(),
    Opt::flag("no-afsdb", "do not ask the DNS for cells that CellServDB does not have").ours(),
    Opt::flag(
        "localauth",
        "act as a user of the cell, with the cell's key in server/KeyFileExt below the folder of -config",
    )
    .ours(),
    Opt::single("as", "user for -localauth, default the first in server/UserList").ours(),
    Opt::single("log", "filter for log messages, such as info or warn,afs_reach=debug").ours(),
    Opt::flag("show-snapshots", "list .snapshots in the root directories of volumes").ours(),
    Opt::flag("no-passthrough", "read all files through the page cache").ours(),
    Opt::single(
        "write-behind",
        "always or second: close, create, rename and the like do not wait for the server; what was closed outlasts a loss of power at once, or within two seconds. They exclude programs of this machine only",
    )
    .ours(),
    Opt::single(
        "offline-max",
        "days for which the client shows what it knows of write-behind trees, and of what fs pin keeps, while a server is away, 0 to 365; default 7",
    )
    .ours(),
    Opt::single(
        "fsync",
        "what fsync means in write-behind trees: server, or journal-when-away (default): once the server has been away for 5 seconds, fsync returns when this machine's disk has the data",
    )
    .ours(),
    Opt::single("threads", "threads that answer the kernel from memory, 1 to 64; default 2").ours(),
];

/// Runs the client until SIGTERM, SIGINT, its terminal is closed, or somebody unmounts it or cuts its connection.
pub(crate) fn run(args: &[OsString]) -> ExitCode {
    private::begin();
    let given = match COMMAND.start(ABOUT, args) {
        Ok(given) => given,
        Err(status) => return status,
    };
    if let Err(misuse) = given.check_text() {
        return misuse.report();
    }
    match start(&given) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("afar mount: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The settings from the command line and the configuration files.
struct Plan {
    path: PathBuf,
    client: Config,
    cache: Option<(PathBuf, u64)>,
    /// The file that the cells are from.
    cells: PathBuf,
    settings: AfsdSettings,
    /// True if the DNS is asked for cells that the file does not have.
    asks_dns: bool,
    /// The address of the metrics.
    metrics: Option<SocketAddr>,
    /// The folder of a machine that has joined the cell, and its key.
    device: Option<(PathBuf, Device)>,
    /// The user who mounts, if they have another number in the cell.
    owner: Option<Owner>,
    /// True if the kernel may read files of the cache by itself.
    passthrough: bool,
    /// Threads that answer the kernel, if not as many as usual.
    threads: Option<usize>,
}

fn start(given: &Given) -> Result<(), String> {
    let filter = given.word("log").unwrap_or("warn").to_owned();
    log::begin(&Log { filter, ..Log::default() }, None, false)?;
    let is_root = geteuid().is_root();
    let plan = plan(given, is_root)?;
    for note in mount_point::prepare(&plan.path)?.iter().chain(&plan.settings.notes) {
        tracing::warn!("{note}");
    }
    let runtime = runtime::start()?;
    let allow_other = (is_root || given.has("allow-other")) && !given.has("private");
    let outcome = runtime.block_on(run_until_told(plan, allow_other));
    // A thread that sends the kernel a notice may wait for a request, which is answered when the task for it is dropped.
    runtime.shutdown_timeout(END_TIMEOUT);
    outcome
}

/// Combines the options, the configuration folder and the files of OpenAFS's startup script in it into a plan.
fn plan(given: &Given, is_root: bool) -> Result<Plan, String> {
    let folder = match given.word("config").or(given.word("confdir")) {
        Some(folder) => PathBuf::from(folder),
        None => ["/etc/openafs", "/etc/afar"]
            .iter()
            .map(PathBuf::from)
            .find(|folder| folder.join("ThisCell").exists())
            .ok_or(
                "there is no ThisCell in /etc/openafs or /etc/afar: name the configuration folder with --config DIR",
            )?,
    };
    let mut settings = AfsdSettings::default();
    if let Some(words) = startup_options(&folder)? {
        settings.read_words(&words)?;
    }
    settings.read(given)?;
    let info = match CacheInfo::read(&folder.join("cacheinfo")) {
        Ok(info) => Some(info),
        Err(error) if error.is_missing() => None,
        Err(error) => return Err(error.to_string()),
    };
    let client = ClientFolder::read(&folder).map_err(|error| error.to_string())?;
    let mut client = Config::of_folder(client);
    callback_wait::of_client(&mut client)?;
    if let Some(text) = given.word("memory") {
        client.set_memory(memory_bytes(text)?);
    }
    client.write_behind = given.word("write-behind").map(write_behind).transpose()?;
    if let Some(text) = given.word("offline-max") {
        client.offline_max = days(text)?;
    }
    if let Some(text) = given.word("fsync") {
        client.fsync = fsync(text)?;
    }
    if let Some(dynroot) = settings.dynroot {
        client.dynroot = dynroot;
    }
    client.shows_snapshots = given.has("show-snapshots");
    let asks_dns = settings.afsdb.unwrap_or(client.dynroot);
    if let Some(fakestat) = settings.fakestat {
        client.fakestat = fakestat;
    }
    if let Some(volume) = &settings.root_volume {
        client.root_volume.clone_from(volume);
    }
    if let Some(entries) = settings.status_entries {
        client.status_entries = entries;
    }
    let owner = key_holder::log_in(given, &folder, &mut client)?;
    let mut device = if given.has("localauth") { None } else { device::of_folder(&folder)? };
    let owner = owner.or_else(|| device::owner(device.as_mut()?, &client));
    let path = settings.mount.clone().or(info.as_ref().map(|info| info.mount.clone()));
    let path = path.ok_or("say where to mount: afar mount DIR")?;
    let path = std::path::absolute(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let cache = match settings.no_cache {
        true => None,
        false => Some(cache_of(given, &settings, info.as_ref(), is_root)?),
    };
    let metrics = given.word("metrics").map(|text| {
        text.parse().map_err(|_| {
            format!("--metrics {text}: this must be an address and a port, such as 127.0.0.1:9161")
        })
    });
    let metrics = metrics.transpose()?;
    let threads = given.word("threads").map(thread_count).transpose()?;
    Ok(Plan {
        path,
        client,
        cache,
        cells: folder.join("CellServDB"),
        settings,
        asks_dns,
        metrics,
        device,
        owner,
        passthrough: !given.has("no-passthrough"),
        threads,
    })
}

/// The number of threads that an option asks for.
fn thread_count(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=THREADS_MAX).contains(count));
    count.ok_or_else(|| format!("--threads {text}: a number from 1 to {THREADS_MAX} is expected"))
}

/// The kind of write-behind that an option asks for.
fn write_behind(text: &str) -> Result<WriteBehind, String> {
    match text {
        "always" => Ok(WriteBehind::Always),
        "second" => Ok(WriteBehind::Second),
        _ => Err(format!("--write-behind {text}: always or second is expected")),
    }
}

/// The meaning of `fsync` that an option asks for.
fn fsync(text: &str) -> Result<Fsync, String> {
    match text {
        "server" => Ok(Fsync::Server),
        "journal-when-away" => Ok(Fsync::JournalWhenAway),
        _ => Err(format!("--fsync {text}: server or journal-when-away is expected")),
    }
}

/// The time that an option gives in days.
fn days(text: &str) -> Result<Duration, String> {
    let days = text.parse().ok().filter(|days| *days <= DAYS_MAX);
    let days: u64 =
        days.ok_or_else(|| format!("--offline-max {text}: days are expected, from 0 to {DAYS_MAX}"))?;
    Ok(Duration::from_secs(days * 24 * 3600))
}

/// The memory that an option gives a client, or a whole cell.
pub(crate) fn memory_bytes(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)
        .ok_or_else(|| format!("--memory {text}: this must be a number with K, M, G or T, such as 256M"))?;
    if bytes < memory::LEAST_BYTES {
        return Err(format!("--memory {text} is too little: give at least {}M", memory::LEAST_BYTES >> 20));
    }
    Ok(bytes)
}

/// The folder of the cache, and its limit.
fn cache_of(
    given: &Given,
    settings: &AfsdSettings,
    info: Option<&CacheInfo>,
    is_root: bool,
) -> Result<(PathBuf, u64), String> {
    let own = || -> Option<PathBuf> {
        if is_root {
            return Some(PathBuf::from("/var/cache/afar"));
        }
        let folder = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache"))).map(|at| at.join("afar"))
    };
    let named = given.word("cache").map(PathBuf::from).or(settings.cache.clone());
    // cacheinfo's folder is OpenAFS's, whose cache has another format: only its limit is taken.
    let folder = named.or_else(own).ok_or("HOME is not set: say where the cache is with --cache DIR")?;
    let folder = std::path::absolute(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    private::folder(&folder).map_err(|error| {
        format!("cannot make the cache {}: {error}; choose another folder with --cache", folder.display())
    })?;
    let limit = match given.word("cache-size") {
        Some(text) => parse_bytes(text).ok_or_else(|| {
            format!("--cache-size {text}: this must be a number with K, M, G or T, such as 10G")
        })?,
        None => match settings.cache_bytes.or(info.map(|info| info.size_kib << 10)) {
            Some(bytes) => bytes,
            None => cache_limit(&folder),
        },
    };
    if limit < CACHE_MIN_BYTES {
        return Err(format!(
            "a cache of {limit} bytes is too small: give at least {}M",
            CACHE_MIN_BYTES >> 20
        ));
    }
    Ok((folder, limit))
}

/// The options that OpenAFS's startup script would give to `afsd`.
fn startup_options(folder: &Path) -> Result<Option<Vec<String>>, String> {
    let mut conf = AfsConf::default();
    for name in ["afs.conf", "afs.conf.client"] {
        match conf.read(&folder.join(name)) {
            Err(error) if !error.is_missing() => return Err(error.to_string()),
            Ok(()) | Err(_) => {}
        }
    }
    match conf.options().map_err(|error| error.to_string())? {
        AfsdOptions::Automatic => Ok(None),
        AfsdOptions::Words(words) => Ok(Some(words)),
    }
}

/// The limit of a cache in this folder when nobody sets one: [`CACHE_BYTES`], but no more than half of what is free.
pub(crate) fn cache_limit(folder: &Path) -> u64 {
    let Ok(stat) = rustix::fs::statvfs(folder) else { return CACHE_BYTES };
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    CACHE_BYTES.min(free / 2).max(CACHE_MIN_BYTES)
}

/// A number of bytes, with K, M, G or T for powers of 1024.
fn parse_bytes(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()?.to_ascii_uppercase() {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        b'T' => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

async fn run_until_told(plan: Plan, allow_other: bool) -> Result<(), String> {
    let listen = |kind| signal(kind).map_err(|error| format!("cannot wait for signals: {error}"));
    let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    let mut hangup = hangup::Hangup::listen()?;
    let manager = ServiceManager::at(std::env::var_os("NOTIFY_SOCKET").as_deref())
        .map_err(|error| format!("NOTIFY_SOCKET cannot be used: {error}"))?;
    let Plan {
        path,
        mut client,
        cache,
        cells,
        device,
        owner,
        metrics,
        asks_dns,
        passthrough,
        threads,
        settings: _,
    } = plan;
    let exporter = metrics::begin(metrics);
    let mut options = Options::new(&path);
    options.owners = owner.into_iter().collect();
    options.allow_other = allow_other;
    if !passthrough {
        options.passthrough_min_bytes = None;
    }
    if let Some(threads) = threads {
        options.threads = threads;
    }
    let cache_folder = cache.as_ref().map(|(folder, _)| folder.clone());
    if let Some((folder, limit_bytes)) = cache {
        crate::cache_lock::wait(&folder).await;
        options.cache_is_stacked = mount_point::is_stacked(&folder);
        let uuid = TokioRuntime::current().seed().and_then(|seed| client_uuid::of_folder(&folder, seed));
        client.uuid = Some(uuid.map_err(|error| format!("the cache {}: {error}", folder.display()))?);
        client.cache = Some(Cache { folder, limit_bytes });
    }
    if asks_dns {
        let seed = TokioRuntime::current().seed();
        let seed = seed.map_err(|error| format!("cannot get random numbers: {error}"))?;
        client.dns = Some(Arc::new(SystemResolver::new(seed)));
    }
    let cell = client.cell.clone();
    let client = Client::start(client).await.map_err(|error| error.to_string())?;
    if let Some((folder, device)) = device {
        device::log_in(&client, folder, device).await?;
    }
    kept_tokens::keep(&client, &path);
    let offer = control_socket::offer(&client, &path, cache_folder.as_deref(), cells);
    options.source.clone_from(&offer.source);
    let mount = match Mount::start(&client, &options) {
        Ok(mount) => mount,
        Err(error) => {
            client.shut_down().await;
            return Err(error.to_string());
        }
    };
    metrics::serve(exporter, vec![metrics::of_client(&client, &mount)], Vec::new()).await?;
    let _ = output::write(&format!("ready cell={cell} mount={}\n", path.display()));
    manager.ready(&format!("{} is mounted", path.display()));
    let end = tokio::select! {
        _ = terminate.recv() => End::Told,
        _ = interrupt.recv() => End::Told,
        () = hangup.told() => End::Told,
        end = end::of(&mount) => end,
    };
    manager.stopping();
    drop(offer);
    // It waits for the kernel, which may wait for the client.
    match tokio::task::spawn_blocking(move || mount.unmount()).await {
        Ok(Ok(true)) => {}
        Ok(Ok(false)) => {
            tracing::warn!(mount = %path.display(), "the mount is still in use: programs that have files open in it will get errors");
        }
        Ok(Err(error)) => tracing::error!(mount = %path.display(), %error, "cannot unmount"),
        Err(error) => tracing::error!(mount = %path.display(), %error, "cannot unmount"),
    }
    client.shut_down().await;
    match end {
        End::Told | End::Unmounted => Ok(()),
        // Not a success: whoever watches over this process, such as systemd, is to start it again.
        End::Cut => Err(format!("{}; start 'afar mount' again", end::cut(&path))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_numbers_with_a_unit() {
        assert_eq!(parse_bytes("10G"), Some(10 << 30));
        assert_eq!(parse_bytes("512m"), Some(512 << 20));
        assert_eq!(parse_bytes("4096"), Some(4096));
        for bad in ["", "G", "-1", "1.5G", "99999999T"] {
            assert_eq!(parse_bytes(bad), None, "{bad}");
        }
    }
}

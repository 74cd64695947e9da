//! Our client as a mount, `afar mount`, in a process of its own.

use std::fs::OpenOptions;
use std::path::Path;
use std::process::{Command, Stdio};

use super::process::Process;

/// Starts `afar mount` of the cells that a folder of configuration names, with a cache in a folder. What it logs is added to a file.
///
/// # Errors
///
/// When it does not say that it is ready.
pub fn start(
    mut afar: Command,
    at: &Path,
    config: &Path,
    cache: &Path,
    log: &Path,
    more: &[&str],
) -> Result<Process, String> {
    let file = OpenOptions::new().append(true).create(true).open(log);
    let file = file.map_err(|error| format!("{}: {error}", log.display()))?;
    afar.arg("mount").arg(at).arg("--config").arg(config).arg("--cache").arg(cache).args(more);
    afar.env_remove("NOTIFY_SOCKET").stdin(Stdio::null()).stderr(file);
    let said = |problem| format!("{problem}: {}", std::fs::read_to_string(log).unwrap_or_default());
    Ok(Process::saying(&mut afar, "ready ").map_err(said)?.mounting(at.to_owned()))
}

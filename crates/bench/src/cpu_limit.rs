//! Holds a process to a share of a core, by a control group of its own: so a server can be short of CPU time while its clients on
//! the same machine are not. Works with either version of control groups; which of them there is, is seen by its files.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// The time after which the share begins anew, µs: shorter than the round trips of crowds, so that waiting for it is a part of
/// one.
const PERIOD: u32 = 5000;
const GROUPS: &str = "/sys/fs/cgroup";

/// The limit, while it lives.
pub(crate) struct CpuLimit {
    group: PathBuf,
    process: u32,
}

impl CpuLimit {
    /// Holds a process, with all its threads, to `share` of a core.
    ///
    /// Errors: there are no control groups for CPU time, or they are not ours to make.
    pub(crate) fn hold(process: u32, share: f64) -> Result<CpuLimit, Error> {
        let quota = (f64::from(PERIOD) * share) as u32;
        let name = format!("afar-bench-{process}");
        let all = Path::new(GROUPS);
        let is_unified = all.join("cgroup.controllers").exists();
        let (group, settings) = if is_unified {
            write(&all.join("cgroup.subtree_control"), "+cpu")?;
            (all.join(name), vec![("cpu.max", format!("{quota} {PERIOD}"))])
        } else {
            let settings = [("cpu.cfs_period_us", PERIOD), ("cpu.cfs_quota_us", quota)];
            (all.join("cpu").join(name), settings.map(|(name, value)| (name, value.to_string())).into())
        };
        fs::create_dir(&group).map_err(|e| Error::setup(format!("making {}: {e}", group.display())))?;
        let limit = CpuLimit { group, process };
        for (name, value) in settings {
            write(&limit.group.join(name), &value)?;
        }
        write(&limit.group.join("cgroup.procs"), &process.to_string())?;
        Ok(limit)
    }
}

impl Drop for CpuLimit {
    fn drop(&mut self) {
        // A group goes only when it is empty. A process that has ended has left it.
        let outside = self.group.parent().map(|all| all.join("cgroup.procs"));
        let _ = outside.map(|all| fs::write(all, self.process.to_string()));
        if let Err(error) = fs::remove_dir(&self.group) {
            eprintln!("afar-bench: {} is left: {error}", self.group.display());
        }
    }
}

fn write(file: &Path, value: &str) -> Result<(), Error> {
    fs::write(file, value).map_err(|e| Error::setup(format!("writing '{value}' to {}: {e}", file.display())))
}

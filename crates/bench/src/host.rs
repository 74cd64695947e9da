//! Settings of this machine that are made and set back: a virtual machine's host is kept from taking cores and memory away while they
//! wait, and tells how much it took; settings of the kernel.

use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::error::Error;
use crate::machine;

/// The time for which an idle core looks for work before it goes back to the host. Longer than packets of one transfer are apart.
const POLL: Duration = Duration::from_millis(2);

/// Keeps idle cores of a virtual machine at hand while it lives.
///
/// A core that halts goes back to the host, and comes late when a packet wakes it: on a host with other guests a link of
/// 1 Gbit/s lost an eighth of the cores' time in this way, and none of it once idle cores polled
/// (`guest_halt_poll_ns` of Linux's haltpoll driver, whose own default is 0.2 ms). Nothing that is measured pays for it: an
/// idle core's time is nobody's.
pub(crate) struct Awake {
    /// The file and what it held before, if it was changed.
    before: Option<(PathBuf, String)>,
}

impl Awake {
    /// Has idle cores poll, where the kernel can be told so; elsewhere it does nothing.
    pub(crate) fn start() -> Awake {
        let file = PathBuf::from("/sys/module/haltpoll/parameters/guest_halt_poll_ns");
        let before = fs::read_to_string(&file).ok().map(|text| text.trim().to_string());
        let is_short =
            |text: &String| text.parse::<u128>().is_ok_and(|nanoseconds| nanoseconds < POLL.as_nanos());
        let before =
            before.filter(is_short).filter(|_| fs::write(&file, POLL.as_nanos().to_string()).is_ok());
        Awake { before: before.map(|text| (file, text)) }
    }

    /// The state of idle cores, for the record; empty where they do as ever.
    pub(crate) fn describe(&self) -> String {
        match &self.before {
            Some((_, before)) => {
                format!(
                    "Idle cores poll for {POLL:?} before they halt (guest_halt_poll_ns, {before} before)."
                )
            }
            None => String::new(),
        }
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        if let Some((file, before)) = &self.before
            && let Err(error) = fs::write(file, before)
        {
            eprintln!("afar-bench: {} could not be set back to {before}: {error}", file.display());
        }
    }
}

/// A setting of the whole machine's kernel, set back when this goes.
pub(crate) struct KernelSetting {
    file: PathBuf,
    before: String,
}

impl KernelSetting {
    /// Sets it: `name` as under /proc/sys.
    pub(crate) fn set(name: &str, value: &str) -> Result<KernelSetting, Error> {
        let file = Path::new("/proc/sys").join(name);
        let failed = |e| Error::setup(format!("setting {name} to {value}: {e}"));
        let before = fs::read_to_string(&file).map_err(failed)?.trim().to_string();
        fs::write(&file, value).map_err(failed)?;
        Ok(KernelSetting { file, before })
    }
}

impl Drop for KernelSetting {
    fn drop(&mut self) {
        if let Err(error) = fs::write(&self.file, &self.before) {
            let KernelSetting { file, before } = self;
            eprintln!("afar-bench: {} could not be set back to {before}: {error}", file.display());
        }
    }
}

/// Free memory that is to be at hand when a run begins: several times what one takes, since the host takes it back bit by bit.
const AT_HAND: usize = 4 << 30;
/// The feature of a balloon by which free pages are given back to the host (virtio 1.2, 5.5.3: VIRTIO_BALLOON_F_REPORTING).
const REPORTS_FREE_PAGES: usize = 5;

/// Free memory that the host takes back, two seconds after it was freed and later, where the machine has such a balloon.
///
/// Then the first touch of a page costs its user a way to the host and back: measured, a gigabyte that is written to a file
/// took 2.2 s of CPU time where the host had taken the memory back, and 0.18 s where it had just been free. Who was measured first
/// after a pause paid for all.
pub(crate) struct FreeMemory {
    is_taken: bool,
}

impl FreeMemory {
    /// Looks whether the host takes any. Quick runs, whose figures nobody compares, put up with it.
    pub(crate) fn look(is_quick: bool) -> FreeMemory {
        let devices = fs::read_dir("/sys/bus/virtio/drivers/virtio_balloon").into_iter().flatten().flatten();
        let mut features =
            devices.filter_map(|device| fs::read_to_string(device.path().join("features")).ok());
        let is_taken = features.any(|bits| bits.as_bytes().get(REPORTS_FREE_PAGES) == Some(&b'1'));
        FreeMemory { is_taken: is_taken && !is_quick }
    }

    /// Has some of it back for what is begun now, by using and freeing it.
    pub(crate) fn take_back(&self) {
        if self.is_taken {
            drop(black_box(vec![1u8; AT_HAND.min(available() / 2)]));
        }
    }

    /// The measure against it, for the record; empty where it is nothing.
    pub(crate) fn describe(&self) -> String {
        if !self.is_taken {
            return String::new();
        }
        let gib = AT_HAND >> 30;
        format!("The host takes free memory back: {gib} GiB of it are written to and freed before each run.")
    }
}

/// Bytes of memory that programs can have.
fn available() -> usize {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = machine::field(&text, "MemAvailable").and_then(|text| text.strip_suffix(" kB")?.parse().ok());
    kib.map_or(0, |kib: usize| kib << 10)
}

/// The processors' time that the host has given to others so far, summed over the cores, in clock ticks; 0 on a machine of
/// one's own.
pub(crate) fn stolen_ticks() -> u64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let mut fields = stat.lines().next().unwrap_or_default().split_whitespace();
    // cpu, user, nice, system, idle, iowait, irq, softirq, steal: proc_stat(5).
    fields.nth(8).and_then(|ticks| ticks.parse().ok()).unwrap_or(0)
}

/// The share of the cores' time that the host has given to others during a run of this length, %.
pub(crate) fn stolen_share(ticks: u64, ticks_per_second: f64, elapsed: Duration) -> f64 {
    let cores = thread::available_parallelism().map_or(1, |n| n.get()) as f64;
    100.0 * ticks as f64 / ticks_per_second / elapsed.as_secs_f64().max(1e-3) / cores
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_that_is_gone_half_the_time_is_half_its_share() {
        let cores = thread::available_parallelism().map_or(1, |n| n.get()) as f64;
        let share = stolen_share(500, 100.0, Duration::from_secs(10));
        assert!((share - 50.0 / cores).abs() < 1e-9, "{share}");
    }
}

//! `bos salvage`: volumes and partitions are checked, as `afar fsck` does. `bos` asks an overseer for it by having it make a process
//! that runs once, with the command line of a program of OpenAFS's; then it waits until that is gone, and fetches its log.
//!
//! Nothing is mended: volumes need that neither after a crash nor after a loss of power, and what a failed disk has lost comes from a
//! backup or a replica.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use afs_volserver::{Partitions, Unchecked, VolumeService};
use afs_volume::Partition;
use afs_volume::fsck::{self, Report};
use afs_wire::abort::{BZBADTYPE, BZBUSY, BZEXISTS, BZNOCREATE};
use afs_wire::bos::{BnodeStatus, CreateBnode, reply};
use afs_wire::ids::{AfsTime, PartitionId, VolumeId};
use rx::Runtime;
use rx::blocking::on_a_thread;
use rxgen::{Abort, Serve, ServerCall};

use super::Overseer;
use super::changes::Requester;
use super::instances::{Instances, Served, Shown};

/// The name of the process in `bos`.
pub(crate) const NAME: &str = "salvage-tmp";
/// The programs that it names.
const PROGRAMS: [&str; 3] = ["salvager", "dasalvager", "salvageserver"];
/// Options behind which there is a value. They say how to mend, or how fast, and count for nothing here.
const WITH_VALUE: [&str; 4] = ["-parallel", "-tmpdir", "-orphans", "-datelogs"];

/// After this time, a partition in which something is wrong is checked once more: what is swept in the background has gone on.
const SECOND_LOOK: Duration = Duration::from_secs(2);

/// The part of the server that is to be checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    All,
    Partition(PartitionId),
    Volume(PartitionId, VolumeId),
}

impl Work {
    /// Reads a command line; `None` if it is of another program or names what cannot be.
    fn parse(command: &str) -> Option<Self> {
        let mut words = command.split_whitespace();
        let program = words.next()?.rsplit('/').next()?;
        if !PROGRAMS.contains(&program) {
            return None;
        }
        let mut places = Vec::new();
        while let Some(word) = words.next() {
            if WITH_VALUE.contains(&word) {
                words.next()?;
            } else if !word.starts_with('-') {
                places.push(word);
            }
        }
        match places[..] {
            [] => Some(Self::All),
            [partition] => PartitionId::parse(partition).map(Self::Partition),
            [partition, volume] => {
                let volume = volume.parse().ok().filter(|id| *id != 0)?;
                Some(Self::Volume(PartitionId::parse(partition)?, VolumeId(volume)))
            }
            [..] => None,
        }
    }
}

/// The check that runs, and what the last one has found.
#[derive(Debug, Default)]
pub(crate) struct Salvager(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    started: Option<AfsTime>,
    log: Option<String>,
}

impl Salvager {
    /// The time since which a check runs, if one does.
    pub(crate) fn started(&self) -> Option<AfsTime> {
        self.lock().started
    }

    /// The facts that are told of a check that runs, if this is its name.
    pub(crate) fn shown(&self, name: &[u8]) -> Option<Shown> {
        let started = self.started().filter(|_| name == NAME.as_bytes())?;
        Some(Shown {
            kind: "cron",
            status: BnodeStatus::NORMAL,
            description: "running now",
            goal: true,
            file_goal: true,
            started,
            starts: 1,
            last_exit: AfsTime(0),
        })
    }

    /// The findings of the last check.
    pub(crate) fn log(&self) -> Option<Vec<u8>> {
        self.lock().log.clone().map(String::into_bytes)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Overseer {
    /// Begins a check. A whole partition is only checked while the file server is stopped, as `bos salvage` stops it; it stays so until the
    /// check ends.
    async fn salvage(&self, args: &CreateBnode) -> Result<(), Abort> {
        if args.instance[..] != *NAME.as_bytes() {
            // Which roles there are, the configuration says.
            return Err(Abort::OPCODE);
        }
        if args.kind[..] != *b"cron" {
            return Err(BZBADTYPE);
        }
        let work = Work::parse(&args.p1.to_string()).ok_or(BZNOCREATE)?;
        let Served { volume_service, partitions, runtime, .. } = self.instances.served().ok_or(BZNOCREATE)?;
        let partitions = partitions.clone().ok_or(BZNOCREATE)?;
        {
            let mut state = self.salvager.lock();
            if state.started.is_some() {
                return Err(BZEXISTS);
            }
            state.started = Some(self.instances.now());
        }
        let ends = Ends(Arc::clone(&self.salvager), Arc::clone(&self.instances));
        if !matches!(work, Work::Volume(..)) && !self.instances.hold().await {
            return Err(BZBUSY);
        }
        self.salvager.lock().log = None;
        let (salvager, service) = (Arc::clone(&self.salvager), volume_service.clone());
        let then = Arc::clone(runtime);
        runtime.spawn(Box::pin(async move {
            let _ends = ends;
            let log = check(work, &partitions, service.as_ref(), &then).await;
            salvager.lock().log = Some(log);
        }));
        Ok(())
    }
}

/// The process is gone when it is dropped, whatever has become of the check.
struct Ends(Arc<Salvager>, Arc<Instances>);

impl Drop for Ends {
    fn drop(&mut self) {
        // First, so that whoever has waited for the end can start it.
        self.1.release();
        self.0.lock().started = None;
    }
}

/// Checks what was asked for, and says what was found.
async fn check(
    work: Work,
    partitions: &Partitions,
    service: Option<&VolumeService>,
    runtime: &Arc<dyn Runtime>,
) -> String {
    let mut log = String::new();
    match work {
        Work::Volume(at, id) => {
            let result = match service {
                Some(service) => service.check(at, id).await,
                None => Err(Unchecked::Failed("this server has no role 'vol'".to_owned())),
            };
            match result {
                Ok(report) => write(&mut log, &format!("volume {id} of {at}"), &report),
                Err(why) => {
                    let why = match why {
                        Unchecked::NoVolume => "it is not there".to_owned(),
                        Unchecked::Busy => {
                            "another operation works on it: try again when that has ended".to_owned()
                        }
                        Unchecked::Failed(why) => why,
                    };
                    log = format!("volume {id} of {at} was not checked: {why}\n");
                }
            }
        }
        Work::Partition(at) => match partitions.get(at) {
            Some(partition) => check_partition(at, partition, runtime, &mut log).await,
            None => log = format!("{at} was not checked: it is not there\n"),
        },
        Work::All => {
            for (at, partition) in partitions.iter() {
                check_partition(at, partition, runtime, &mut log).await;
            }
        }
    }
    log
}

async fn check_partition(
    at: PartitionId,
    partition: &Partition,
    runtime: &Arc<dyn Runtime>,
    log: &mut String,
) {
    let look = || {
        let partition = partition.clone();
        on_a_thread(move || fsck::check(&partition))
    };
    let mut result = look().await;
    if result.as_ref().is_ok_and(|report| !report.is_clean()) {
        runtime.sleep_until(runtime.now() + SECOND_LOOK).await;
        let again = look().await;
        // Each may have found thousands of things.
        result = on_a_thread(move || {
            let mut report = result?;
            report.keep_common(&again?);
            Ok(report)
        })
        .await;
    }
    match result {
        Ok(report) => write(log, &at.to_string(), &report),
        // A `String` takes everything.
        Err(error) => drop(writeln!(log, "{at} was not checked: {error}")),
    }
}

fn write(log: &mut String, what: &str, report: &Report) {
    for finding in &report.findings {
        let _ = writeln!(log, "{finding}");
    }
    let wrong = report.findings.len() as u64 + report.more_findings;
    let found = match wrong {
        0 => "nothing is wrong".to_owned(),
        n => format!("{n} things are wrong, and nothing was changed: restore what is damaged from a backup"),
    };
    let _ = writeln!(log, "{what}: {} volumes, {} vnodes: {found}", report.volumes, report.vnodes);
    if wrong > 0 {
        tracing::error!(what, wrong, "a check has found something wrong: see 'bos getlog SERVER SalvageLog'");
    }
}

impl Serve<CreateBnode> for Overseer {
    async fn serve(
        &self,
        call: ServerCall<'_, CreateBnode>,
        args: CreateBnode,
    ) -> Result<reply::CreateBnode, Abort> {
        let who = Requester::of(&call);
        let result = async {
            self.check(&who)?;
            self.salvage(&args).await
        };
        let result = result.await;
        self.audited(&who, &format!("{}: {}", args.instance, args.p1), result)?;
        Ok(reply::CreateBnode {})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_of_bos_say_what_is_to_be_checked() {
        let a = PartitionId(0);
        for (command, expected) in [
            (
                "/usr/afs/bin/salvageserver -client /vicepa 536870918",
                Some(Work::Volume(a, VolumeId(536_870_918))),
            ),
            ("/usr/afs/bin/salvager /vicepa 5 -parallel 4", Some(Work::Volume(a, VolumeId(5)))),
            ("/usr/afs/bin/salvager -force /vicepa -orphans attach", Some(Work::Partition(a))),
            ("/usr/afs/bin/dasalvager -force /vicepz -tmpdir /tmp", Some(Work::Partition(PartitionId(25)))),
            ("/usr/afs/bin/salvager -force  -salvagedirs", Some(Work::All)),
            ("/usr/afs/bin/salvager -force x/y", None),
            ("/usr/afs/bin/salvager /vicepa 0", None),
            ("/usr/afs/bin/salvager /vicepa name", None),
            ("/usr/afs/bin/salvager -force /vicepa -parallel", None),
            ("/bin/rm -rf /vicepa", None),
            ("", None),
        ] {
            assert_eq!(Work::parse(command), expected, "{command}");
        }
    }
}

//! Releasing a volume: its replicas get what it has now. `vos release` does it here, in the order of OpenAFS's (Volume service notes, release),
//! so that either can go on where the other was interrupted.
//!
//! The volume is cloned, and the clone is sent to all sites at once, to each what has changed since its last release. From its first site on
//! the entry says which sites have the new release (`NEW_REP_SITE`); clients use those alone. A site that fails does not stop the others: the
//! entry goes on to say that it has an old release, and the next order brings all of the volume there. What is decided before anything is
//! done is in the module `plan`.

mod plan;
mod sites;

use std::fmt;

use afs_wire::abort::{VL_RERELEASE, VNOVOL, VOLSERBADNAME, VOLSERBADOP, VOLSERNOVOL};
use afs_wire::afsvol::{AttachFlags, VolserStatus, VolumeFlags};
use afs_wire::ids::{AfsTime, SecurityLevel, VolumeId};
use afs_wire::vl::{EntryFlags, ReleaseType, SiteFlags};

pub use plan::{Plan, Reason};
pub use sites::{FullBecause, SiteEvent, SiteStep};

use crate::cancel::Cancel;
use crate::entry::{Entry, Kind, NAME_MAX, Site};
use crate::error::Error;
use crate::remove::remove;
use crate::steps::{self, since, surely};
use crate::vldb::LocationDb;
use crate::volumes::{NewClone, Transaction, VolumeServers};

/// The name of a clone that is no replica.
const CLONE_NAME: &str = "readonly-clone-temp";

/// The volume that is to be released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// The read-write volume.
    pub volume: VolumeId,
    /// True if it is cloned anew whatever has come before (`-force-reclone`).
    pub is_recloned: bool,
    /// The same, and everything is sent (`-force`).
    pub is_full: bool,
}

/// An event while a volume is released.
#[derive(Debug)]
pub enum Event<'a> {
    /// This is its entry, locked.
    HasEntry(&'a Entry),
    /// The plan of what is going to be done.
    HasPlan(&'a Plan),
    /// A release of the new sites alone was thought of: whether the volume has changed since the last release.
    HasChanged(bool),
    /// A step begins.
    Begins(Step),
    /// It is done.
    IsDone(Step),
    /// Something happens at the sites.
    Site(SiteEvent<'a>),
}

impl From<steps::Event<Step>> for Event<'_> {
    fn from(event: steps::Event<Step>) -> Self {
        match event {
            steps::Event::Begins(step) => Self::Begins(step),
            steps::Event::IsDone(step) => Self::IsDone(step),
        }
    }
}

/// A step of releasing a volume, in the order in which they are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Locking the entry.
    Lock(VolumeId),
    /// Asking for the entry.
    FetchEntry(VolumeId),
    /// Looking whether the volume can be released: its name is too long.
    CheckName(VolumeId),
    /// The same: it is no read-write volume.
    CheckKind(VolumeId),
    /// The same: it has no sites.
    CheckSites(VolumeId),
    /// Taking an id for the replicas.
    TakeId(VolumeId),
    /// Writing that into the entry.
    ReplaceFirst(VolumeId),
    /// Asking for the state of the volume.
    Look(VolumeId),
    /// Removing a clone that cannot be used again.
    RemoveOldClone(VolumeId),
    /// Beginning a transaction on the volume.
    BeginSource(VolumeId),
    /// Making the clone.
    Clone {
        /// The clone.
        clone: VolumeId,
        /// True if it is a replica.
        is_replica: bool,
    },
    /// Making it anew from what the volume has now.
    Reclone {
        /// The clone.
        clone: VolumeId,
        /// True if it is a replica.
        is_replica: bool,
    },
    /// Asking for the state of the volume that was cloned.
    GetSourceStatus(VolumeId),
    /// Ending the transaction on it.
    EndSource(VolumeId),
    /// Beginning a transaction on the clone that is a replica.
    BeginReplica(VolumeId),
    /// Bringing that online.
    BringOnline(VolumeId),
    /// Ending the transaction on it.
    EndReplica(VolumeId),
    /// Writing into the entry that this site has the release.
    ReplaceSecond(VolumeId),
    /// Beginning a transaction on the clone, which is sent.
    BeginClone(VolumeId),
    /// Asking for its state.
    GetCloneStatus(VolumeId),
    /// Sending it to a group of sites.
    Send(VolumeId),
    /// Writing into the entry which sites have the release.
    ReplaceEntry(VolumeId),
    /// Ending the transaction on the clone.
    EndClone(VolumeId),
    /// Sending it to all sites: some have failed.
    Sites(VolumeId),
    /// Removing the clone.
    RemoveClone(VolumeId),
    /// Writing into the entry that all have the release.
    ReplaceLast(VolumeId),
    /// Releasing the lock.
    Unlock(VolumeId),
}

/// The reason why a volume was not released, or not to all sites. The next order goes on.
#[derive(Debug)]
pub struct ReleaseFailure {
    /// The step that failed.
    pub step: Step,
    /// The reason.
    pub error: Error,
    /// Sites that have not got the release.
    pub missing: Vec<Site>,
    /// The reason why the entry's lock could not be released.
    pub not_unlocked: Option<Error>,
}

impl fmt::Display for ReleaseFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)?;
        for (n, site) in self.missing.iter().enumerate() {
            let word = if n == 0 { "; not released to" } else { "," };
            write!(f, "{word} {} {}", site.server, site.partition)?;
        }
        match &self.not_unlocked {
            Some(_) => write!(f, "; the lock of the entry was not released: do it with vos unlock"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ReleaseFailure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// A step that failed.
type Failed = (Step, Error);

fn at(step: Step) -> impl FnOnce(Error) -> Failed {
    move |error| (step, error)
}

/// Releases a volume, and tells of what happens. Says its entry as it is then.
///
/// # Errors
///
/// The step that failed, and the sites that have not got the release.
pub async fn release(
    vldb: &LocationDb,
    servers: &VolumeServers,
    order: Order,
    cancel: &Cancel,
    tell: impl FnMut(Event<'_>),
) -> Result<Entry, ReleaseFailure> {
    let volume = order.volume;
    match vldb.set_lock(volume, Some(Kind::ReadWrite), EntryFlags::OP_RELEASE).await {
        Ok(()) => {}
        // The last release was not completed. This one goes on with it.
        Err(error) if error.code() == VL_RERELEASE => {}
        Err(error) => {
            let step = Step::Lock(volume);
            return Err(ReleaseFailure { step, error, missing: Vec::new(), not_unlocked: None });
        }
    }
    let entry = match vldb.entry_by_id(volume, Some(Kind::ReadWrite)).await {
        Ok(entry) => entry,
        Err(error) => {
            let not_unlocked = vldb.release_lock(volume, Some(Kind::ReadWrite)).await.err();
            let step = Step::FetchEntry(volume);
            return Err(ReleaseFailure { step, error, missing: Vec::new(), not_unlocked });
        }
    };
    let mut release =
        Release { vldb, servers, order, cancel, tell, entry, temporary: None, has_begun: false };
    let (step, error) = match release.run().await {
        Ok(entry) => {
            let unlocked = vldb.release_lock(volume, Some(Kind::ReadWrite)).await;
            let failed = |error| {
                let step = Step::Unlock(volume);
                ReleaseFailure { step, error, missing: Vec::new(), not_unlocked: None }
            };
            return unlocked.map(|()| entry).map_err(failed);
        }
        Err(failed) => failed,
    };
    let mut missing = Vec::new();
    let mut goes_on = false;
    if release.has_begun {
        let entry = &release.entry;
        let (replicas, is_new) = (Kind::ReadOnly, SiteFlags::NEW_REP_SITE);
        let (done, left): (Vec<Site>, Vec<Site>) =
            entry.sites.iter().filter(|site| site.is(replicas)).partition(|site| site.flags.contains(is_new));
        missing = left;
        // If nobody has this release, all have the last one still.
        goes_on = !done.is_empty();
        if goes_on {
            // The kind of the lock stays until the lock is released, as a mark that this release is not complete.
            let _ = vldb.replace_entry(volume, Kind::ReadWrite, entry, ReleaseType::TIMESTAMP).await;
        }
    }
    if let Some((site, clone)) = release.temporary.filter(|_| !goes_on) {
        // Nobody needs it any more. If it cannot be removed, the next release does it.
        let _ = remove(servers, site.server, site.partition, clone).await;
    }
    let not_unlocked = vldb.release_lock(volume, Some(Kind::ReadWrite)).await.err();
    Err(ReleaseFailure { step, error, missing, not_unlocked })
}

struct Release<'a, T> {
    vldb: &'a LocationDb,
    servers: &'a VolumeServers,
    order: Order,
    cancel: &'a Cancel,
    tell: T,
    /// The entry as it is to be written.
    entry: Entry,
    /// The clone that this release has made, if it is no replica.
    temporary: Option<(Site, VolumeId)>,
    /// True if the entry no longer says what was released before.
    has_begun: bool,
}

/// The volume and its clone, as they are while it is released.
struct Source {
    /// The site of the read-write volume.
    site: Site,
    /// The clone.
    clone: VolumeId,
    /// The site of the clone if it is a replica.
    replica: Option<usize>,
}

impl<T: FnMut(Event<'_>)> Release<'_, T> {
    async fn step<R>(
        &mut self,
        step: Step,
        work: impl Future<Output = Result<R, Error>>,
    ) -> Result<R, Failed> {
        self.cancel.check().map_err(at(step))?;
        self.step_surely(step, work).await
    }

    /// Takes a step also if the release is to stop: what was begun would be left half done.
    async fn step_surely<R>(
        &mut self,
        step: Step,
        work: impl Future<Output = Result<R, Error>>,
    ) -> Result<R, Failed> {
        let taken = surely(&mut self.tell, step, work).await;
        taken.map_err(|failed| (failed.step, failed.error))
    }

    /// Writes the entry, also if the release is to stop: what it says is so.
    async fn write_entry(&mut self, step: Step, release: ReleaseType) -> Result<(), Failed> {
        let (vldb, volume, entry) = (self.vldb, self.order.volume, self.entry.clone());
        self.step_surely(step, vldb.replace_entry(volume, Kind::ReadWrite, &entry, release)).await
    }

    /// Says the entry as it is then.
    async fn run(&mut self) -> Result<Entry, Failed> {
        let (servers, volume) = (self.servers, self.order.volume);
        let site = self.check().await?;
        let plan = self.plan(site).await?;
        (self.tell)(Event::HasPlan(&plan));
        let read_only = self.entry.id(Kind::ReadOnly);
        let replica = self.replica_beside(site).await?;
        let clone = if plan.is_complete || self.entry.clone_id == VolumeId(0) {
            read_only
        } else {
            self.entry.clone_id
        };
        let source = Source { site, clone, replica };
        let new_only = plan.may_be_new_only && !self.has_changed(&source).await?;
        if plan.may_be_new_only {
            (self.tell)(Event::HasChanged(!new_only));
        }
        let before = self.entry.sites.clone();
        let created = if plan.is_complete {
            self.make_clone(&source, new_only, &before).await?
        } else {
            self.status_of_source(site).await?.creation_date
        };
        self.set_flags(&plan, new_only);
        self.entry.clone_id = clone;
        self.has_begun = true;
        if let Some(replica) = replica.filter(|_| plan.is_complete) {
            self.bring_online(clone).await?;
            self.entry.sites[replica].flags = SiteFlags::RO_VOL | SiteFlags::NEW_REP_SITE;
            self.entry.set_exists(Kind::ReadOnly, true);
            self.write_entry(Step::ReplaceSecond(volume), ReleaseType::NONE).await?;
        }
        let begin = servers.begin(site.server, site.partition, clone, AttachFlags::BUSY);
        let transaction = match self.step(Step::BeginClone(clone), begin).await {
            Err((step, error)) if error.code() == VNOVOL => {
                let what = format!("the clone {clone} of the last release is gone: release with -force");
                return Err((step, Error::Local { what, code: VOLSERNOVOL }));
            }
            begun => begun?,
        };
        let sent = self.send(transaction, &plan, &before, new_only, created).await;
        let is_temporary = replica.is_none();
        let mut removed = Ok(());
        if is_temporary && sent.is_ok() {
            removed = servers.delete(transaction).await.map_err(at(Step::RemoveClone(clone)));
        }
        let ended = servers.end(transaction).await.map_err(at(Step::EndClone(clone)));
        sent?;
        removed?;
        ended?;
        let entry = &mut self.entry;
        entry.clone_id = VolumeId(0);
        for site in &mut entry.sites {
            site.flags = if site.is(Kind::ReadOnly) { SiteFlags::RO_VOL } else { SiteFlags::RW_VOL };
        }
        self.write_entry(Step::ReplaceLast(volume), ReleaseType::ALL).await?;
        Ok(self.entry.clone())
    }

    /// Checks that the volume can be released, and returns its site. Its replicas have an id then.
    async fn check(&mut self) -> Result<Site, Failed> {
        let (vldb, volume) = (self.vldb, self.order.volume);
        let refuse = |step, what: String, code| Err((step, Error::Local { what, code }));
        let entry = self.entry.clone();
        if entry.name.len() > NAME_MAX {
            let what = format!("the name {} is too long for that of a replica", entry.name);
            return refuse(Step::CheckName(volume), what, VOLSERBADNAME);
        }
        let Some(site) = entry.read_write_site().filter(|_| entry.id(Kind::ReadWrite) == volume) else {
            let what = format!("volume {volume} is no read-write volume");
            return refuse(Step::CheckKind(volume), what, VOLSERBADOP);
        };
        if !entry.sites.iter().any(|site| site.is(Kind::ReadOnly)) {
            let what = format!("volume {volume} has no sites for replicas");
            return refuse(Step::CheckSites(volume), what, VOLSERBADOP);
        }
        (self.tell)(Event::HasEntry(&entry));
        if entry.id(Kind::ReadOnly) == VolumeId(0) {
            let id = vldb.new_volume_ids(1).await.map_err(at(Step::TakeId(volume)))?;
            self.entry.set_id(Kind::ReadOnly, id);
            let entry = self.entry.clone();
            let replaced = vldb.replace_entry(volume, Kind::ReadWrite, &entry, ReleaseType::NONE).await;
            replaced.map_err(at(Step::ReplaceFirst(volume)))?;
        }
        Ok(site)
    }

    /// Decides what is to be done, and asks servers where that depends on what they have.
    async fn plan(&mut self, site: Site) -> Result<Plan, Failed> {
        let (servers, order) = (self.servers, self.order);
        let mut plan = Plan::of(&self.entry, order);
        if plan.is_complete {
            return Ok(plan);
        }
        let source = self.status_of_source(site).await?;
        let clone = match self.entry.clone_id {
            VolumeId(0) => self.entry.id(Kind::ReadOnly),
            clone => clone,
        };
        match servers.begin(site.server, site.partition, clone, AttachFlags::BUSY).await {
            Err(error) if error.code() == VNOVOL => plan.complete_because(Reason::CloneIsMissing),
            Err(error) => return Err((Step::BeginClone(clone), error)),
            Ok(transaction) => {
                let status = servers.status(transaction).await;
                // It ends by itself after some minutes.
                let _ = servers.end(transaction).await;
                let status = status.map_err(at(Step::GetCloneStatus(clone)))?;
                if source.creation_date > status.creation_date {
                    plan.complete_because(Reason::SourceWasReplaced(order.volume));
                }
            }
        }
        Ok(plan)
    }

    async fn status_of_source(&self, site: Site) -> Result<VolserStatus, Failed> {
        let (servers, volume) = (self.servers, self.order.volume);
        let begun = servers.begin(site.server, site.partition, volume, AttachFlags::BUSY).await;
        let transaction = begun.map_err(at(Step::BeginSource(volume)))?;
        let status = servers.status(transaction).await;
        let ended = servers.end_well(transaction).await;
        let status = status.map_err(at(Step::GetSourceStatus(volume)))?;
        ended.map_err(at(Step::EndSource(volume)))?;
        Ok(status)
    }

    /// The site of a replica beside the read-write volume: the clone is that replica.
    async fn replica_beside(&mut self, at_site: Site) -> Result<Option<usize>, Failed> {
        let (vldb, volume) = (self.vldb, self.order.volume);
        let sites = self.entry.sites.clone();
        for (index, site) in sites.iter().enumerate() {
            if site.is(Kind::ReadOnly)
                && site.partition == at_site.partition
                && vldb.is_same_server(site.server, at_site.server).await.map_err(at(Step::Look(volume)))?
            {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    /// Tells whether the volume may have changed since its replicas were released.
    async fn has_changed(&mut self, source: &Source) -> Result<bool, Failed> {
        let (servers, volume) = (self.servers, self.order.volume);
        let read_only = self.entry.id(Kind::ReadOnly);
        let sites = self.entry.sites.clone();
        let look = servers.volume(source.site.server, source.site.partition, volume).await;
        let updated = look.map_err(at(Step::Look(volume)))?.update_date;
        // It is no change of contents, and has no date. A server that knows no levels gets none.
        let level = servers.level(source.site.server, source.site.partition, volume).await;
        let level = level.map_err(at(Step::Look(volume)))?.unwrap_or(SecurityLevel::CLEAR);
        for site in sites.iter().filter(|site| plan::is_released(site)) {
            match servers.volume(site.server, site.partition, read_only).await {
                Ok(replica) if since(replica.creation_date) > updated => {}
                // One that cannot be asked gets the release as all others do.
                Ok(_) | Err(_) => return Ok(true),
            }
            let there = servers.level(site.server, site.partition, read_only).await;
            if there.is_ok_and(|there| there.is_some_and(|there| there != level)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Makes the clone. Says when the contents of the volume were made.
    async fn make_clone(
        &mut self,
        source: &Source,
        new_only: bool,
        before: &[Site],
    ) -> Result<AfsTime, Failed> {
        let (servers, volume) = (self.servers, self.order.volume);
        let Source { site, clone, replica } = *source;
        let look = servers.has_volume(site.server, site.partition, clone).await;
        let mut exists = look.map_err(at(Step::Look(volume)))?;
        let is_unused = replica.is_none_or(|index| before[index].flags.contains(SiteFlags::DONT_USE));
        if exists && is_unused {
            let removed = remove(servers, site.server, site.partition, clone).await;
            removed.map_err(|failure| (Step::RemoveOldClone(clone), failure.error))?;
            exists = false;
        }
        if exists && new_only {
            return Ok(self.status_of_source(site).await?.creation_date);
        }
        self.cancel.check().map_err(at(Step::BeginSource(volume)))?;
        let begun = servers.begin(site.server, site.partition, volume, AttachFlags::BUSY).await;
        let transaction = begun.map_err(at(Step::BeginSource(volume)))?;
        let cloned = self.clone_in(transaction, source, exists).await;
        let ended = servers.end_well(transaction).await.map_err(at(Step::EndSource(volume)));
        cloned.and_then(|date| ended.map(|()| date))
    }

    async fn clone_in(
        &mut self,
        transaction: Transaction,
        source: &Source,
        exists: bool,
    ) -> Result<AfsTime, Failed> {
        let (servers, volume, clone) = (self.servers, self.order.volume, source.clone);
        let is_replica = source.replica.is_some();
        if exists {
            self.step(Step::Reclone { clone, is_replica }, servers.reclone(transaction, clone)).await?;
        } else {
            let name =
                if is_replica { format!("{}.readonly", self.entry.name) } else { CLONE_NAME.to_owned() };
            let new = NewClone { id: clone, kind: Kind::ReadOnly, name: &name };
            let step = Step::Clone { clone, is_replica };
            self.cancel.check().map_err(at(step))?;
            self.temporary = (!is_replica).then_some((source.site, clone));
            self.step_surely(step, servers.clone_volume(transaction, new)).await?;
        }
        let status = self.step_surely(Step::GetSourceStatus(volume), servers.status(transaction)).await?;
        Ok(status.creation_date)
    }

    /// Says in the entry which sites are still to come. Written with the first site that has the release.
    fn set_flags(&mut self, plan: &Plan, new_only: bool) {
        if !plan.is_complete {
            return;
        }
        for site in &mut self.entry.sites {
            site.flags = match site.is(Kind::ReadOnly) {
                false => SiteFlags::RW_VOL | SiteFlags::NEW_REP_SITE,
                true if new_only && plan::is_released(site) => SiteFlags::RO_VOL | SiteFlags::NEW_REP_SITE,
                true => SiteFlags::RO_VOL | SiteFlags::DONT_USE,
            };
        }
    }

    /// Brings the clone that is a replica online, also if the release is to stop: nobody is served from it until then.
    async fn bring_online(&mut self, clone: VolumeId) -> Result<(), Failed> {
        let servers = self.servers;
        let Some(site) = self.entry.read_write_site() else { return Ok(()) };
        let begin = servers.begin(site.server, site.partition, clone, AttachFlags::OFFLINE);
        let transaction = self.step_surely(Step::BeginReplica(clone), begin).await?;
        let set = servers.set_flags(transaction, VolumeFlags::NONE);
        let set = self.step_surely(Step::BringOnline(clone), set).await;
        let ended = self.step_surely(Step::EndReplica(clone), servers.end_well(transaction)).await;
        set.and(ended)
    }
}

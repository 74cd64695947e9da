//! Sending a clone to the sites of its replicas. All are opened at once, and get the clone in one call each group: those that need
//! everything are not sent together with those that need a little. A site that does not answer is not waited for.

use std::pin::pin;
use std::time::Duration;

use afs_wire::abort::{VNOVOL, VOLSERBADRELEASE};
use afs_wire::afsvol::{AttachFlags, VolumeFlags};
use afs_wire::errno::Errno;
use afs_wire::ids::{AfsTime, VolumeId};
use afs_wire::vl::{ReleaseType, SiteFlags};
use futures_util::future::{Either, join_all, select};
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::{Event, Failed, Plan, Release, Step};
use crate::entry::{Kind, Site};
use crate::error::Error;
use crate::remove::remove;
use crate::steps::since;
use crate::volumes::{Identity, Transaction, VolumeServers};

/// The time for which sites that answer wait for those that do not. A server that is there answers in a round trip.
const WAIT: Duration = Duration::from_secs(2);

/// Sites get one dump if the dates from which they need it are not further apart, in seconds: so it is with OpenAFS's.
const TOGETHER: u32 = 900;

/// The reason why a site gets everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FullBecause {
    /// It was asked for.
    Forced,
    /// The site is new.
    SiteIsNew,
    /// The last release has not reached it.
    LastFailed,
    /// It had no volume.
    WasMade,
    /// The read-write volume was made after the site's last release.
    SourceWasReplaced,
}

/// The step that is done at a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SiteStep {
    /// Removing a volume that is not to be used.
    RemoveUnused,
    /// Beginning a transaction on the replica.
    Begin,
    /// Making the replica.
    Make,
    /// Having it removed if its server ends.
    SetState,
    /// Asking for its state.
    GetStatus,
    /// Sending it the clone.
    Send,
    /// Setting its name, kind and relatives.
    SetIdentity,
    /// Bringing it online.
    BringOnline,
    /// Ending the transaction on it.
    End,
}

/// An event at sites.
#[derive(Debug)]
pub enum SiteEvent<'a> {
    /// A replica was made to be filled.
    IsMade(Site, VolumeId),
    /// The replica that is there will be brought up to date.
    IsThere(Site, VolumeId),
    /// It gets everything.
    GetsAll(FullBecause),
    /// The clone is being sent.
    Sends {
        /// The clone.
        clone: VolumeId,
        /// The replica.
        to: VolumeId,
        /// The sites of the replica.
        sites: &'a [Site],
        /// The time since which changes are sent; 0 is everything.
        since: AfsTime,
    },
    /// A site has failed.
    HasFailed(Site, SiteStep, &'a Error),
}

/// A replica that can be filled.
struct Opened {
    /// The index of the site in the entry.
    index: usize,
    transaction: Transaction,
    since: AfsTime,
    full_because: Option<FullBecause>,
    is_made: bool,
    is_second_try: bool,
}

/// The volume that all sites are opened for.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    read_only: VolumeId,
    identity: Identity<'a>,
    is_full: bool,
    is_recovery: bool,
    new_only: bool,
    /// The time when the contents of the read-write volume were made.
    created: AfsTime,
}

type SiteFailed = (usize, SiteStep, Error);

impl<T: FnMut(Event<'_>)> Release<'_, T> {
    /// Sends the clone to all sites that are to get it. A failure of a site is told at the end.
    pub(super) async fn send(
        &mut self,
        clone: Transaction,
        plan: &Plan,
        before: &[Site],
        new_only: bool,
        created: AfsTime,
    ) -> Result<(), Failed> {
        let (servers, volume) = (self.servers, self.order.volume);
        let clone_id = self.entry.clone_id;
        let status = servers.status(clone).await;
        status.map_err(|error| (Step::GetCloneStatus(clone_id), error))?;
        let name = format!("{}.readonly", self.entry.name);
        let read_only = self.entry.id(Kind::ReadOnly);
        let (kind, none) = (Kind::ReadOnly, VolumeId(0));
        let wanted = Wanted {
            read_only,
            identity: Identity { name: &name, kind, parent: volume, clone: none, backup: none },
            is_full: plan.is_full,
            is_recovery: !plan.is_complete,
            new_only,
            created,
        };
        let sites = self.entry.sites.clone();
        let is_to_come =
            |site: &Site| site.is(Kind::ReadOnly) && !site.flags.contains(SiteFlags::NEW_REP_SITE);
        let mut opening: FuturesUnordered<_> = sites
            .iter()
            .enumerate()
            .filter(|(_, site)| is_to_come(site))
            .map(|(index, site)| {
                open(servers, wanted, index, *site, before[index].flags.contains(SiteFlags::DONT_USE), false)
            })
            .collect();
        let mut has_failed = false;
        // Sites that came to be open, or failed, while others were sent to.
        let mut meanwhile = Vec::new();
        loop {
            let mut opened = Vec::new();
            let mut deadline = None;
            loop {
                let next = match meanwhile.pop() {
                    Some(next) => next,
                    None => match self.next_opened(&mut opening, &mut deadline).await {
                        Some(next) => next,
                        None => break,
                    },
                };
                match next {
                    Ok(site) => {
                        self.tell_opened(&sites[site.index], read_only, &site);
                        opened.push(site);
                        let runtime = servers.runtime();
                        deadline.get_or_insert_with(|| runtime.now() + WAIT);
                    }
                    Err((index, step, error)) => {
                        has_failed = true;
                        (self.tell)(Event::Site(SiteEvent::HasFailed(sites[index], step, &error)));
                    }
                }
            }
            if opened.is_empty() {
                break;
            }
            for group in groups(opened) {
                let sent = self.send_to(clone, clone_id, wanted, group, &sites);
                let again = while_opening(&mut opening, &mut meanwhile, sent).await;
                let again = match again {
                    Ok((again, all_well)) => {
                        has_failed |= !all_well;
                        again
                    }
                    Err(failure) => {
                        // Whatever is open elsewhere ends by itself after some minutes.
                        return Err(failure);
                    }
                };
                for (index, is_made) in again {
                    // What was made and got nothing is no older release: it is made once more.
                    opening.push(open(servers, wanted, index, sites[index], is_made, true));
                }
            }
        }
        if has_failed {
            let what = format!("volume {volume} was not released to all of its sites");
            return Err((Step::Sites(volume), Error::Local { what, code: VOLSERBADRELEASE }));
        }
        Ok(())
    }

    /// The next site that can be filled, or cannot; `None` when there is none, or when those that can have waited long enough.
    async fn next_opened<F: Future<Output = Result<Opened, SiteFailed>>>(
        &self,
        opening: &mut FuturesUnordered<F>,
        deadline: &mut Option<rx_proto::time::Instant>,
    ) -> Option<Result<Opened, SiteFailed>> {
        let Some(deadline) = *deadline else { return opening.next().await };
        let timer = self.servers.runtime().sleep_until(deadline);
        match select(opening.next(), timer).await {
            Either::Left((next, _)) => next,
            Either::Right(_) => None,
        }
    }

    fn tell_opened(&mut self, site: &Site, id: VolumeId, opened: &Opened) {
        let event = if opened.is_made { SiteEvent::IsMade(*site, id) } else { SiteEvent::IsThere(*site, id) };
        (self.tell)(Event::Site(event));
        if let Some(because) = opened.full_because {
            (self.tell)(Event::Site(SiteEvent::GetsAll(because)));
        }
    }

    /// Sends the clone to sites that need it from about the same date. Says which are to be tried again, as they were not open any more, and
    /// whether the replica was made there; and whether all others have it.
    async fn send_to(
        &mut self,
        clone: Transaction,
        clone_id: VolumeId,
        wanted: Wanted<'_>,
        group: Vec<Opened>,
        sites: &[Site],
    ) -> Result<(Vec<(usize, bool)>, bool), Failed> {
        let (servers, volume) = (self.servers, self.order.volume);
        let to: Vec<Transaction> = group.iter().map(|opened| opened.transaction).collect();
        let since = group.iter().map(|opened| opened.since).min().unwrap_or(AfsTime(0));
        let places: Vec<Site> = group.iter().map(|opened| sites[opened.index]).collect();
        let (id, sites_to) = (wanted.read_only, &places[..]);
        (self.tell)(Event::Site(SiteEvent::Sends { clone: clone_id, to: id, sites: sites_to, since }));
        let sending = servers.forward_to_all(clone, since, &to, wanted.identity);
        let sent = match self.cancel.check() {
            Ok(()) => self.cancel.or_break_off(sending).await,
            Err(error) => Err(error),
        };
        let results = match &sent {
            Ok(results) => results.clone(),
            Err(error) => group.iter().map(|_| Err(error.clone())).collect(),
        };
        let closed = group.iter().zip(results).map(|(opened, result)| close(servers, wanted, opened, result));
        let closed = join_all(closed).await;
        let mut again = Vec::new();
        let mut all_well = true;
        for (opened, result) in group.iter().zip(closed) {
            match result {
                Ok(()) => self.entry.sites[opened.index].flags = SiteFlags::RO_VOL | SiteFlags::NEW_REP_SITE,
                Err((SiteStep::Send, error))
                    if error.code().0 == Errno::ENOENT.0 && !opened.is_second_try =>
                {
                    again.push((opened.index, opened.is_made));
                }
                // A clone with a later snapshot beside it cannot be filled: it gives way to a replica that is made for this.
                Err((SiteStep::Send, error))
                    if error.code().0 == Errno::EROFS.0 && !opened.is_made && !opened.is_second_try =>
                {
                    again.push((opened.index, true));
                }
                Err((step, error)) => {
                    all_well = false;
                    (self.tell)(Event::Site(SiteEvent::HasFailed(sites[opened.index], step, &error)));
                }
            }
        }
        let has_some = self
            .entry
            .sites
            .iter()
            .any(|site| site.is(Kind::ReadOnly) && site.flags.contains(SiteFlags::NEW_REP_SITE));
        if has_some {
            self.entry.set_exists(Kind::ReadOnly, true);
            self.write_entry(Step::ReplaceEntry(volume), ReleaseType::NONE).await?;
        }
        match sent {
            Err(Error::Cancelled) => Err((Step::Send(volume), Error::Cancelled)),
            _ => Ok((again, all_well)),
        }
    }
}

/// Runs work while sites go on to open, and keeps the sites that have opened: a transaction that is begun and not used ends after some
/// minutes, and a group may take hours.
async fn while_opening<F: Future, T>(
    opening: &mut FuturesUnordered<F>,
    meanwhile: &mut Vec<F::Output>,
    work: impl Future<Output = T>,
) -> T {
    let mut work = pin!(work);
    while !opening.is_empty() {
        match select(work, opening.next()).await {
            Either::Left((result, _)) => return result,
            Either::Right((next, rest)) => {
                meanwhile.extend(next);
                work = rest;
            }
        }
    }
    work.await
}

/// Opens a replica, or makes one.
async fn open(
    servers: &VolumeServers,
    wanted: Wanted<'_>,
    index: usize,
    site: Site,
    is_unused: bool,
    is_second_try: bool,
) -> Result<Opened, SiteFailed> {
    let Site { server, partition, .. } = site;
    let id = wanted.read_only;
    let failed = |step| move |error| (index, step, error);
    let goes_on = is_unused && has_a_part(servers, site, id).await;
    if is_unused && !goes_on {
        match remove(servers, server, partition, id).await {
            Err(failure) if !failure.is_missing() => {
                return Err((index, SiteStep::RemoveUnused, failure.error));
            }
            Ok(()) | Err(_) => {}
        }
    }
    let opened = |transaction, since: AfsTime, full_because, is_made| Opened {
        index,
        transaction,
        since,
        full_because,
        is_made,
        is_second_try,
    };
    let transaction = match servers.begin(server, partition, id, AttachFlags::OFFLINE).await {
        Err(error) if error.code() == VNOVOL => {
            let made = servers.create_to_fill(server, partition, id, wanted.identity).await;
            let transaction = made.map_err(failed(SiteStep::Make))?;
            let half_made = VolumeFlags::DELETE_ON_SALVAGE | VolumeFlags::OUT_OF_SERVICE;
            if let Err(error) = servers.set_flags(transaction, half_made).await {
                give_up(servers, transaction, true).await;
                return Err((index, SiteStep::SetState, error));
            }
            let because = if wanted.is_full {
                FullBecause::Forced
            } else if wanted.new_only {
                FullBecause::SiteIsNew
            } else if wanted.is_recovery {
                FullBecause::LastFailed
            } else {
                FullBecause::WasMade
            };
            return Ok(opened(transaction, AfsTime(0), Some(because), true));
        }
        begun => begun.map_err(failed(SiteStep::Begin))?,
    };
    match servers.status(transaction).await {
        Ok(status) => {
            let because = if wanted.is_full {
                Some(FullBecause::Forced)
            } else if wanted.is_recovery && !goes_on {
                Some(FullBecause::LastFailed)
            } else {
                (wanted.created > since(status.creation_date)).then_some(FullBecause::SourceWasReplaced)
            };
            let from = if because.is_some() { AfsTime(0) } else { since(status.update_date) };
            Ok(opened(transaction, from, because, false))
        }
        Err(error) => {
            give_up(servers, transaction, false).await;
            Err((index, SiteStep::GetStatus, error))
        }
    }
}

/// True if a replica that is not to be used shows all of an older release, and has a part of this one. OpenAFS's servers keep no such
/// parts.
async fn has_a_part(servers: &VolumeServers, site: Site, id: VolumeId) -> bool {
    let halves = servers.halves(site.server, site.partition).await;
    halves.is_ok_and(|halves| halves.iter().any(|half| half.volume == id))
}

/// Finishes a replica that has got the clone, or not.
async fn close(
    servers: &VolumeServers,
    wanted: Wanted<'_>,
    opened: &Opened,
    sent: Result<(), Error>,
) -> Result<(), (SiteStep, Error)> {
    let transaction = opened.transaction;
    let finished = match sent {
        Err(error) => Err((SiteStep::Send, error)),
        Ok(()) => match servers.set_identity(transaction, wanted.identity).await {
            Err(error) => Err((SiteStep::SetIdentity, error)),
            Ok(()) => {
                let set = servers.set_flags(transaction, VolumeFlags::NONE).await;
                set.map_err(|error| (SiteStep::BringOnline, error))
            }
        },
    };
    match finished {
        Ok(()) => servers.end_well(transaction).await.map_err(|error| (SiteStep::End, error)),
        Err(failure) => {
            give_up(servers, transaction, opened.is_made).await;
            Err(failure)
        }
    }
}

/// Lets a replica go that has not got the clone. One that was made for it is removed.
async fn give_up(servers: &VolumeServers, transaction: Transaction, is_made: bool) {
    if is_made {
        // Otherwise its server does it when it starts again, or the next release.
        let _ = servers.delete(transaction).await;
    }
    // It ends by itself after some minutes.
    let _ = servers.end(transaction).await;
}

/// Sites that get one dump, those that need least first.
fn groups(mut opened: Vec<Opened>) -> Vec<Vec<Opened>> {
    opened.sort_by_key(|site| (site.since, site.index));
    let mut groups: Vec<Vec<Opened>> = Vec::new();
    for site in opened {
        match groups.last_mut() {
            Some(group) if belongs(group[0].since, site.since) => group.push(site),
            _ => groups.push(vec![site]),
        }
    }
    groups.reverse();
    groups
}

const fn belongs(first: AfsTime, other: AfsTime) -> bool {
    // Whoever needs everything is not sent less, and nobody else is sent everything.
    if first.0 == 0 { other.0 == 0 } else { other.0 - first.0 <= TOGETHER }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_wire::ids::TransId;
    use std::net::Ipv4Addr;

    #[test]
    fn sites_that_need_everything_do_not_slow_down_those_that_need_little() {
        let site = |(index, since)| Opened {
            index,
            transaction: Transaction { server: Ipv4Addr::LOCALHOST, id: TransId(1) },
            since: AfsTime(since),
            full_because: None,
            is_made: false,
            is_second_try: false,
        };
        let grouped = |dates: &[u32]| -> Vec<Vec<usize>> {
            let opened = dates.iter().copied().enumerate().map(site).collect();
            groups(opened).iter().map(|group| group.iter().map(|site| site.index).collect()).collect()
        };
        assert_eq!(grouped(&[5000, 0, 5900, 0, 5901]), [vec![4], vec![0, 2], vec![1, 3]]);
        assert_eq!(grouped(&[0, 1]), [vec![1], vec![0]]);
        assert!(grouped(&[]).is_empty());
    }
}

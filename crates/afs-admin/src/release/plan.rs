//! The plan of a release, by its entry: clone the volume anew and send it to all sites, or go on with a release that was not completed.

use afs_wire::ids::VolumeId;
use afs_wire::vl::SiteFlags;

use super::Order;
use crate::entry::{Entry, Kind, Site};

/// The reason why the volume is cloned anew, and all sites get the release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It was asked for.
    Forced,
    /// The last release was completed.
    LastIsComplete,
    /// The last release has reached all sites.
    AllAreNew,
    /// The read-write volume was replaced after the last release had begun.
    SourceWasReplaced(VolumeId),
    /// The clone of the last release is gone.
    CloneIsMissing,
}

/// The plan of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// True if the volume is cloned anew and all sites get the release. Otherwise those that the last release has not reached get that one.
    pub is_complete: bool,
    /// The reasons.
    pub reasons: Vec<Reason>,
    /// True if it is enough to send to sites that never had a release, if the volume has not changed.
    pub may_be_new_only: bool,
    /// True if everything is sent.
    pub is_full: bool,
}

/// True if a replica was released to a site.
pub(super) const fn is_released(site: &Site) -> bool {
    site.is(Kind::ReadOnly) && !site.flags.contains(SiteFlags::DONT_USE)
}

impl Plan {
    pub(super) fn of(entry: &Entry, order: Order) -> Self {
        let replicas: Vec<&Site> = entry.sites.iter().filter(|site| site.is(Kind::ReadOnly)).collect();
        let new = replicas.iter().filter(|site| site.flags.contains(SiteFlags::NEW_REP_SITE)).count();
        let unreleased = replicas.iter().filter(|site| !is_released(site)).count();
        let is_forced = order.is_full || order.is_recloned;
        let mut reasons = Vec::new();
        if is_forced {
            reasons.push(Reason::Forced);
        }
        if new == 0 {
            reasons.push(Reason::LastIsComplete);
        } else if new == replicas.len() {
            reasons.push(Reason::AllAreNew);
        }
        let may_be_new_only =
            !is_forced && !reasons.is_empty() && 0 < unreleased && unreleased < replicas.len();
        Self { is_complete: !reasons.is_empty(), reasons, may_be_new_only, is_full: order.is_full }
    }

    pub(super) fn complete_because(&mut self, reason: Reason) {
        self.is_complete = true;
        self.reasons.push(reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_wire::ids::PartitionId;
    use afs_wire::vl::EntryFlags;
    use std::net::Ipv4Addr;

    const RO: SiteFlags = SiteFlags::RO_VOL;
    const NEW: SiteFlags = SiteFlags::RO_VOL.union(SiteFlags::NEW_REP_SITE);
    const NOT_RELEASED: SiteFlags = SiteFlags::RO_VOL.union(SiteFlags::DONT_USE);

    fn plan(replicas: &[SiteFlags], order: Order) -> Plan {
        let site = |flags| Site { server: Ipv4Addr::LOCALHOST, partition: PartitionId(0), flags };
        let mut sites = vec![site(SiteFlags::RW_VOL)];
        sites.extend(replicas.iter().map(|flags| site(*flags)));
        let ids = [VolumeId(0); 3];
        let entry = Entry { name: String::new(), sites, ids, clone_id: VolumeId(0), flags: EntryFlags::NONE };
        Plan::of(&entry, order)
    }

    #[test]
    fn a_release_that_was_not_completed_is_gone_on_with() {
        let order = Order { volume: VolumeId(1), is_recloned: false, is_full: false };
        let first = plan(&[NOT_RELEASED, NOT_RELEASED], order);
        assert_eq!((first.is_complete, &first.reasons[..]), (true, &[Reason::LastIsComplete][..]));
        assert!(!first.may_be_new_only);
        assert!(plan(&[RO, RO], order).is_complete && !plan(&[RO, RO], order).may_be_new_only);
        assert!(plan(&[RO, NOT_RELEASED], order).may_be_new_only);
        let broken_off = plan(&[NEW, NOT_RELEASED], order);
        assert!(!broken_off.is_complete && broken_off.reasons.is_empty() && !broken_off.may_be_new_only);
        assert_eq!(plan(&[NEW, NEW], order).reasons, [Reason::AllAreNew]);
        let forced = plan(&[NEW, NOT_RELEASED], Order { is_recloned: true, ..order });
        assert_eq!((forced.is_complete, forced.reasons, forced.is_full), (true, vec![Reason::Forced], false));
        let forced = plan(&[RO, NOT_RELEASED], Order { is_full: true, ..order });
        assert!(forced.is_full && !forced.may_be_new_only);
    }
}

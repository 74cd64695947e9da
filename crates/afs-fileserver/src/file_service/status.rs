//! Status: of one vnode, of several, and setting it.

use afs_volume::Kind as VnodeKind;
use afs_wire::ids::AfsFid;
use afs_wire::rxafs::{self, AfsBulkStats, AfsCbs, reply};
use afs_wire::status::{AfsCallBack, AfsFetchStatus, AfsVolSync, StoreMask};
use rxgen::Abort;

use super::{Outcome, Session, handlers};
use crate::access;
use crate::callbacks::Kind;
use crate::failure::Failure;

handlers! {
    FetchStatus fetch_one_status;
    BulkStatus bulk_status;
    InlineBulkStatus inline_bulk_status;
    StoreStatus store_status;
    GiveUpCallBacks give_up_callbacks;
    GiveUpAllCallBacks give_up_all_callbacks;
}

impl Session {
    async fn fetch_one_status(&self, args: rxafs::FetchStatus) -> Outcome<reply::FetchStatus> {
        let (status, callback, sync) = self.status_of(args.fid, Kind::Single)?;
        self.server.statistics.note_fetch();
        Ok(reply::FetchStatus { status, callback, sync })
    }

    fn status_of(&self, fid: AfsFid, kind: Kind) -> Outcome<(AfsFetchStatus, AfsCallBack, AfsVolSync)> {
        let volume = self.volume(fid)?;
        let (status, callback) = self.promised(&volume, fid, kind, || {
            let seen = self.look(&volume, fid)?;
            access::fetch_status(&self.caller(), &seen.subject, || self.volume_owner(&volume))?;
            Ok(self.fetch_status(fid, &seen.status, seen.granted))
        })?;
        Ok((status, callback, Self::sync(&volume)))
    }

    async fn bulk_status(&self, args: rxafs::BulkStatus) -> Outcome<reply::BulkStatus> {
        let (mut statuses, mut callbacks) = (Vec::new(), Vec::new());
        let mut sync = AfsVolSync::default();
        for fid in args.fids.iter() {
            let (status, callback, of_volume) = self.status_of(*fid, Kind::Bulk)?;
            statuses.push(status);
            callbacks.push(callback);
            sync = of_volume;
        }
        self.server.statistics.note_fetch();
        let (statuses, callbacks) = arrays(statuses, callbacks);
        Ok(reply::BulkStatus { statuses, callbacks, sync })
    }

    async fn inline_bulk_status(&self, args: rxafs::InlineBulkStatus) -> Outcome<reply::InlineBulkStatus> {
        let (mut statuses, mut callbacks) = (Vec::new(), Vec::new());
        let mut sync = AfsVolSync::default();
        for fid in args.fids.iter() {
            let (status, callback) = match self.status_of(*fid, Kind::Bulk) {
                Ok((status, callback, of_volume)) => {
                    sync = of_volume;
                    (status, callback)
                }
                Err(failure) => {
                    let Abort(code) = failure.abort(self.translates());
                    (AfsFetchStatus::failed(code), AfsCallBack::NONE)
                }
            };
            statuses.push(status);
            callbacks.push(callback);
        }
        self.server.statistics.note_fetch();
        let (statuses, callbacks) = arrays(statuses, callbacks);
        Ok(reply::InlineBulkStatus { statuses, callbacks, sync })
    }

    async fn store_status(&self, args: rxafs::StoreStatus) -> Outcome<reply::StoreStatus> {
        let rxafs::StoreStatus { fid, status } = args;
        let volume = self.writable(fid)?;
        let lock = self.lock_vnode(fid).await;
        let seen = self.look(&volume, fid)?;
        access::store_status(&self.caller(), &seen.subject, &status)?;
        if seen.status.kind == VnodeKind::Symlink && status.mask.contains(StoreMask::MODE) {
            return Err(Failure::INVALID);
        }
        let (set, stamp) = (self.to_set(&status), self.stamp());
        let stored =
            self.change(&volume, move |volume| volume.set_status((&fid).into(), &set, stamp)).await?;
        drop(lock);
        self.server.statistics.note_store();
        self.tell_others(fid, self.break_deadline()).await;
        Ok(reply::StoreStatus {
            status: self.fetch_status(fid, &stored, seen.granted),
            sync: Self::sync(&volume),
        })
    }

    async fn give_up_callbacks(&self, args: rxafs::GiveUpCallBacks) -> Outcome<reply::GiveUpCallBacks> {
        if args.callbacks.len() > args.fids.len() {
            return Err(Failure::INVALID);
        }
        self.server.clients.gave_up(self.host(), &args.fids);
        Ok(reply::GiveUpCallBacks {})
    }

    async fn give_up_all_callbacks(
        &self,
        _args: rxafs::GiveUpAllCallBacks,
    ) -> Outcome<reply::GiveUpAllCallBacks> {
        self.server.clients.farewell(self.host());
        Ok(reply::GiveUpAllCallBacks {})
    }
}

fn arrays(statuses: Vec<AfsFetchStatus>, callbacks: Vec<AfsCallBack>) -> (AfsBulkStats, AfsCbs) {
    let fits = "as many as there were fids";
    (AfsBulkStats::new(statuses).expect(fits), AfsCbs::new(callbacks).expect(fits))
}

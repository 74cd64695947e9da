//! Access lists as clients see and set them: text with names, where vnodes hold ids.

use afs_volume::Kind;
use afs_wire::ids::AfsFid;
use afs_wire::rxafs::{self, AfsOpaque, reply};
use afs_wire::status::{AfsFetchStatus, AfsVolSync};

use super::{Outcome, Session, handlers, volume_owner};
use crate::access;
use crate::acl;
use crate::failure::Failure;

handlers! {
    FetchACL fetch_acl;
    OldStoreACL old_store_acl;
    StoreACL store_acl;
}

impl Session {
    async fn fetch_acl(&self, args: rxafs::FetchACL) -> Outcome<reply::FetchACL> {
        let fid = args.fid;
        let volume = self.volume(fid)?;
        let seen = self.look(&volume, fid)?;
        access::status(&self.caller(), &seen.subject, || volume_owner(&volume))?;
        let (_, list) = volume.status_and_acl((&fid).into())?;
        let ids = list.positive.iter().chain(&list.negative).map(|(id, _)| *id).collect();
        let names = self.server.memberships.database().names(ids).await.map_err(|_| Failure::INVALID)?;
        let text = acl::to_text(&list, &names);
        self.server.statistics.note_fetch();
        Ok(reply::FetchACL {
            access_list: AfsOpaque::new(text).map_err(|_| Failure::TOO_BIG)?,
            status: self.fetch_status(fid, &seen.status, seen.granted),
            sync: Self::sync(&volume),
        })
    }

    async fn old_store_acl(&self, args: rxafs::OldStoreACL) -> Outcome<reply::OldStoreACL> {
        let (status, sync) = self.set_acl(args.fid, &args.access_list).await?;
        Ok(reply::OldStoreACL { status, sync })
    }

    /// The newer form wants the text to end with a NUL (File service notes 10).
    async fn store_acl(&self, args: rxafs::StoreACL) -> Outcome<reply::StoreACL> {
        if args.access_list.last() != Some(&0) {
            return Err(Failure::INVALID);
        }
        let (status, sync) = self.set_acl(args.fid, &args.access_list).await?;
        Ok(reply::StoreACL { status, sync })
    }

    async fn set_acl(&self, fid: AfsFid, text: &[u8]) -> Outcome<(AfsFetchStatus, AfsVolSync)> {
        let volume = self.writable(fid)?;
        let turn = self.server.turns.take(fid).await;
        let seen = self.look(&volume, fid)?;
        if seen.status.kind != Kind::Directory {
            return Err(Failure::NOT_DIRECTORY);
        }
        access::store_acl(&self.caller(), &seen.subject, || volume_owner(&volume))?;
        let entries = acl::parse(text).ok_or(Failure::INVALID)?;
        let names = entries.names();
        let ids = self.server.memberships.database().ids(names).await.map_err(|_| Failure::INVALID)?;
        let list = entries.with_ids(&ids).ok_or(Failure::INVALID)?;
        let stamp = self.stamp();
        let stored = self.change(&volume, move |volume| volume.set_acl((&fid).into(), &list, stamp)).await?;
        drop(turn);
        self.server.statistics.note_store();
        self.tell_others(fid, self.break_deadline()).await;
        // What the caller may do now is told, not what he might before.
        let granted = self.look(&volume, fid).map_or(seen.granted, |seen| seen.granted);
        Ok((self.fetch_status(fid, &stored, granted), Self::sync(&volume)))
    }
}

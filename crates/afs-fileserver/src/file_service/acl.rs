//! Access lists as clients see and set them: text with names, where vnodes hold ids.

use std::any::Any;

use afs_volume::Kind;
use afs_wire::acl::{Acl, AclText};
use afs_wire::ids::{AfsFid, ViceId};
use afs_wire::rights::Rights;
use afs_wire::rxafs::{self, AfsOpaque, reply};
use afs_wire::status::{AfsFetchStatus, AfsVolSync};

use super::{Outcome, Session, handlers, volume_owner};
use crate::access;
use crate::failure::Failure;

handlers! {
    FetchACL fetch_acl;
    OldStoreACL old_store_acl;
    StoreACL store_acl;
}

/// What the audit log has of a call that sets an access list, whose text is bytes like others to the protocol; nothing of
/// other calls.
pub(super) fn to_audit(args: &dyn Any) -> Option<String> {
    let old = args.downcast_ref::<rxafs::OldStoreACL>().map(|args| (args.fid, &args.access_list));
    let (fid, list) =
        old.or_else(|| args.downcast_ref::<rxafs::StoreACL>().map(|args| (args.fid, &args.access_list)))?;
    Some(format!("{fid}: {}", list.trim_ascii_end().escape_ascii()))
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
        let text = with_names(&list, names).to_bytes().map_err(|_| Failure::TOO_BIG)?;
        self.server.statistics.note_fetch();
        Ok(reply::FetchACL {
            access_list: AfsOpaque::new(text).map_err(|_| Failure::TOO_BIG)?,
            status: self.fetch_status(fid, &seen.status, seen.granted),
            sync: Self::sync(&volume),
        })
    }

    /// The text may lack its NUL here, as old clients have it.
    async fn old_store_acl(&self, args: rxafs::OldStoreACL) -> Outcome<reply::OldStoreACL> {
        if !self.server.takes_old_acls {
            return Err(Failure::NOT_OWNER);
        }
        let mut text = args.access_list.into_bytes();
        text.push(0);
        let (status, sync) = self.set_acl(args.fid, &text).await?;
        Ok(reply::OldStoreACL { status, sync })
    }

    async fn store_acl(&self, args: rxafs::StoreACL) -> Outcome<reply::StoreACL> {
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
        let text = AclText::parse(text).map_err(|_| Failure::INVALID)?;
        let names = text.positive.iter().chain(&text.negative).map(|(name, _)| name.clone()).collect();
        let ids = self.server.memberships.database().ids(names).await.map_err(|_| Failure::INVALID)?;
        let list = with_ids(&text, &ids).ok_or(Failure::INVALID)?;
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

/// The list as text has it, given the names of its ids, positive entries first.
fn with_names(list: &Acl, names: Vec<String>) -> AclText {
    let mut names = names.into_iter();
    let mut named = |entries: &[(ViceId, Rights)]| {
        let named = |(_, rights): &(ViceId, Rights)| Some((names.next()?, *rights));
        entries.iter().map_while(named).collect()
    };
    AclText { positive: named(&list.positive), negative: named(&list.negative) }
}

/// The list as vnodes have it, if each name has an id.
fn with_ids(text: &AclText, ids: &[Option<ViceId>]) -> Option<Acl> {
    let mut ids = ids.iter();
    let mut numbered = |entries: &[(String, Rights)]| {
        let entry = |(_, rights): &(String, Rights)| Some(((*ids.next()?)?, *rights));
        entries.iter().map(entry).collect::<Option<Vec<_>>>()
    };
    Some(Acl { positive: numbered(&text.positive)?, negative: numbered(&text.negative)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_reads_as_it_was_written() {
        let list = Acl {
            positive: vec![(ViceId::SYSTEM_ADMINISTRATORS, Rights(127)), (ViceId::SYSTEM_ANYUSER, Rights(9))],
            negative: vec![(ViceId(5), Rights(2))],
        };
        let names = ["system:administrators", "system:anyuser", "user1"].map(str::to_owned);
        let text = with_names(&list, names.to_vec());
        let bytes = text.to_bytes().unwrap();
        assert_eq!(bytes, b"2\n1\nsystem:administrators\t127\nsystem:anyuser\t9\nuser1\t2\n\0");
        let ids = [ViceId::SYSTEM_ADMINISTRATORS, ViceId::SYSTEM_ANYUSER, ViceId(5)].map(Some);
        assert_eq!(with_ids(&AclText::parse(&bytes).unwrap(), &ids), Some(list));
        assert_eq!(with_ids(&text, &[ids[0], None, ids[2]]), None, "a name that nobody has");
    }
}

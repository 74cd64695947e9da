//! Access lists as clients see and set them: text with names, where vnodes hold ids.
//!
//! The text has a limit (1024 bytes), which names that grew after the list was set may pass, and blanks separate its words. Stock
//! servers answer E2BIG then, and nobody can see or mend the list. Here an id stands for a name that does not fit, as it does
//! for a user who is no more; and is taken for one again, if there is such a user.

use afs_volume::Kind;
use afs_wire::acl::{Acl, AclError, AclText, NAME_MAX};
use afs_wire::ids::{AfsFid, ViceId};
use afs_wire::rights::Rights;
use afs_wire::rxafs::{self, AfsOpaque, reply};
use afs_wire::status::{AfsFetchStatus, AfsVolSync};

use super::{Outcome, Session, handlers};
use crate::access;
use crate::failure::Failure;
use crate::protection::ProtectionError;

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
        access::status(&self.caller(), &seen.subject, || self.volume_owner(&volume))?;
        let (_, list) = volume.status_and_acl((&fid).into())?;
        let ids = list.positive.iter().chain(&list.negative).map(|(id, _)| *id).collect();
        let names = self.server.memberships.database().names(ids).await.map_err(|_| Failure::INVALID)?;
        let text = that_fits(&list, names).ok_or(Failure::TOO_BIG)?;
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
        let lock = self.lock_vnode(fid).await;
        let seen = self.look(&volume, fid)?;
        if seen.status.kind != Kind::Directory {
            return Err(Failure::NOT_DIRECTORY);
        }
        access::store_acl(&self.caller(), &seen.subject, || self.volume_owner(&volume))?;
        let text = AclText::parse(text).map_err(|_| Failure::INVALID)?;
        let names: Vec<String> =
            text.positive.iter().chain(&text.negative).map(|(name, _)| name.clone()).collect();
        let ids = self.ids_of(names).await.map_err(|_| Failure::INVALID)?;
        let list = with_ids(&text, &ids).ok_or(Failure::INVALID)?;
        let stamp = self.stamp();
        let stored = self.change(&volume, move |volume| volume.set_acl((&fid).into(), &list, stamp)).await?;
        drop(lock);
        self.server.statistics.note_store();
        let until = self.break_deadline();
        self.tell_others(fid, until).await;
        self.tell_of_snapshots(&volume, until).await;
        // What the caller may do now is told, not what he might before.
        let granted = self.look(&volume, fid).map_or(seen.granted, |seen| seen.granted);
        Ok((self.fetch_status(fid, &stored, granted), Self::sync(&volume)))
    }

    /// The ids of names. A number that is nobody's name stands for the user or group with that id, if there is one.
    async fn ids_of(&self, names: Vec<String>) -> Result<Vec<Option<ViceId>>, ProtectionError> {
        let database = self.server.memberships.database();
        let mut ids = database.ids(names.clone()).await?;
        let numbers: Vec<(usize, ViceId)> = names
            .iter()
            .enumerate()
            .filter(|(at, _)| ids.get(*at).is_some_and(Option::is_none))
            .filter_map(|(at, name)| Some((at, ViceId(name.parse().ok()?))))
            .collect();
        if numbers.is_empty() {
            return Ok(ids);
        }
        let known = database.names(numbers.iter().map(|(_, id)| *id).collect()).await?;
        for ((at, id), name) in numbers.into_iter().zip(known) {
            if name != id.to_string() {
                ids[at] = Some(id);
            }
        }
        Ok(ids)
    }
}

/// The list's text, with ids for names that cannot be in it, and for the longest if it does not fit otherwise.
fn that_fits(list: &Acl, names: Vec<String>) -> Option<Vec<u8>> {
    let ids = list.positive.iter().chain(&list.negative).map(|(id, _)| *id);
    let mut names: Vec<(String, ViceId)> = names.into_iter().zip(ids).collect();
    for (name, id) in &mut names {
        if name.is_empty() || name.len() > NAME_MAX || name.bytes().any(|b| b.is_ascii_whitespace() || b == 0)
        {
            *name = id.to_string();
        }
    }
    loop {
        let text = with_names(list, names.iter().map(|(name, _)| name.clone()).collect());
        match text.to_bytes() {
            Ok(bytes) => return Some(bytes),
            Err(AclError::TooLong) => {}
            Err(_) => return None,
        }
        let (name, id) = names.iter_mut().max_by_key(|(name, _)| name.len())?;
        let number = id.to_string();
        if name.len() <= number.len() {
            return None;
        }
        *name = number;
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
    fn ids_stand_for_names_that_do_not_fit() {
        let list = |count| Acl {
            positive: (1..count).map(|n| (ViceId(n), Rights(9))).collect(),
            negative: vec![(ViceId(count), Rights(127))],
        };
        let shown = |names: &[String]| {
            let bytes = that_fits(&list(names.len() as i32), names.to_vec()).unwrap();
            assert!(bytes.len() <= afs_wire::ids::AFSOPAQUEMAX);
            let text = AclText::parse(&bytes).unwrap();
            text.positive.into_iter().chain(text.negative).map(|(name, _)| name).collect::<Vec<_>>()
        };
        let odd = ["", "bob 7", "two\nlines", "nul\0", &"n".repeat(64), "fine"].map(str::to_owned);
        assert_eq!(shown(&odd), ["1", "2", "3", "4", "5", "fine"]);
        let mut long: Vec<String> = (1..=20).map(|n| format!("u{n}{}", "0".repeat(60 - n))).collect();
        long[19] = "short".to_owned();
        let told = shown(&long);
        let numbers = told.iter().filter(|name| name.parse::<i32>().is_ok()).count();
        assert!((1..10).contains(&numbers), "{told:?}");
        assert!(told[..numbers].iter().all(|name| name.parse::<i32>().is_ok()), "the longest: {told:?}");
        assert_eq!(told[19], "short");
    }

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

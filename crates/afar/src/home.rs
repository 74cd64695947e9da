//! The home of a user: a volume with a quota, its place in the tree, and the user's rights on it. `afar invite` makes one for a user who has
//! none. Nobody but the user and the administrators has rights in it.
//!
//! The user becomes the owner of the volume's root last. So a home whose making was cut off is gone on with, and one that is complete is
//! left as it is, wherever it is mounted.

use crate::tree::{Tree, mount_text};
use afs_admin::create::{NewVolume, create};
use afs_admin::entry::{Entry, Kind, NAME_MAX, Site, check_name};
use afs_admin::vldb::LocationDb;
use afs_admin::volumes::VolumeServers;
use afs_admin::{Cancel, Login, Offers};
use afs_wire::abort::VL_NOENT;
use afs_wire::ids::{AfsFid, ViceId};
use afs_wire::rights::Rights;
use afs_wire::status::StoreMask;
use rx::Endpoint;

/// The volume below whose root homes are.
const ROOT: &str = "root.cell";

/// The folder for homes in that root, as `afar up` has it.
const FOLDER: &str = "user";

/// What homes are made with.
pub(crate) struct Homes<'a> {
    pub(crate) endpoint: &'a Endpoint,
    pub(crate) locations: &'a LocationDb,
    pub(crate) volumes: &'a VolumeServers,
    /// What servers of files are called with: somebody who may write in the cell's root.
    pub(crate) offers: &'a Offers,
}

/// A home that is to be there.
pub(crate) struct Home<'a> {
    pub(crate) user: &'a str,
    pub(crate) id: ViceId,
    /// 0 for none.
    pub(crate) quota_kib: i32,
}

/// What was done.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Made {
    /// The user has one: nothing.
    Nothing,
    /// A home, at this path below the cell's root; clients that take read-only copies of that see it after a release.
    Home { path: String, needs_release: bool },
}

/// The volume of a user's home.
///
/// # Errors
///
/// If no volume can have the name.
pub(crate) fn volume_of(user: &str) -> Result<String, String> {
    let name = format!("user.{user}");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let is_good = user.starts_with(|c: char| c.is_ascii_alphanumeric()) && user.chars().all(is_plain);
    if !is_good || check_name(&name).is_err() {
        return Err(format!(
            "no volume can be called {name}: names of volumes have letters, digits, '.', '-' and '_', and at most {NAME_MAX} of them. \
             Choose another name for the user, or leave the home out with --no-home"
        ));
    }
    Ok(name)
}

impl Homes<'_> {
    /// The volume at the top of the cell, and where it is written.
    ///
    /// # Errors
    ///
    /// If the cell has none yet, or the database does not answer.
    pub(crate) async fn root(&self) -> Result<(Entry, Site), String> {
        let Some(entry) = self.entry(ROOT).await? else {
            return Err(format!(
                "the cell has no volume {ROOT} yet, in which homes are: make it with 'afar vos create SERVER a {ROOT}', or leave the home \
                 out with --no-home"
            ));
        };
        let site = entry.read_write_site();
        let site = site.ok_or_else(|| {
            format!("the volume {ROOT} has no read-write site: see 'afar vos examine {ROOT}'")
        })?;
        Ok((entry, site))
    }

    async fn entry(&self, name: &str) -> Result<Option<Entry>, String> {
        match self.locations.entry_by_name(name).await {
            Ok(entry) => Ok(Some(entry)),
            Err(error) if error.code() == VL_NOENT => Ok(None),
            Err(error) => Err(format!("cannot look the volume {name} up: {error}")),
        }
    }

    async fn tree(&self, site: Site) -> Result<Tree, String> {
        let login: Login = self.offers.login_for(site.server).await.map_err(|error| error.to_string())?;
        Ok(Tree::new(self.endpoint, site.server, &login))
    }

    /// Makes a user's home, beside the cell's root volume, unless the user has one.
    ///
    /// # Errors
    ///
    /// Which step failed, and why; or if the volume, or the place in the tree, is somebody else's.
    pub(crate) async fn make(&self, home: &Home<'_>) -> Result<Made, String> {
        let (root, root_site) = self.root().await?;
        let volume = volume_of(home.user)?;
        let (own, site) = match self.entry(&volume).await? {
            Some(entry) => {
                let site = entry.read_write_site();
                let site = site.ok_or_else(|| format!("the volume {volume} has no read-write site"))?;
                (AfsFid::root_of(entry.id(Kind::ReadWrite)), site)
            }
            None => {
                let Site { server, partition, .. } = root_site;
                let (name, quota_kib) = (volume.as_str(), home.quota_kib);
                let new = NewVolume { name, server, partition, quota_kib, id: None, read_only_id: None };
                let made = create(self.locations, self.volumes, new, &Cancel::default(), |_| {}).await;
                let ids = made.map_err(|failure| {
                    format!("cannot make the volume {volume} on {partition} of {server}: {failure}")
                })?;
                (AfsFid::root_of(ids.read_write), root_site)
            }
        };
        let files = self.tree(site).await?;
        let owner = files.owner(own).await?;
        if owner == home.id {
            files.finish().await;
            return Ok(Made::Nothing);
        }
        // One that was made just now, here or by a command that was cut off.
        if owner != ViceId(0) || !files.is_empty(own).await? {
            return Err(format!(
                "the cell has a volume {volume} that is not {}'s: give it to the user ('chown' in a mount), remove it ('afar vos remove \
                 -id {volume}'), or leave the home out with --no-home",
                home.user
            ));
        }
        let rights = [("system:administrators", Rights::ALL), (home.user, Rights::ALL)];
        files.access_list(own, &rights).await?;

        let tree = self.tree(root_site).await?;
        let folder = tree.folder(AfsFid::root_of(root.id(Kind::ReadWrite)), FOLDER).await?;
        let text = mount_text(&volume);
        tree.mount_point(folder, home.user, &text).await?;
        let path = format!("{FOLDER}/{}", home.user);
        let there = tree.find(folder, home.user).await?;
        let is_ours = match there {
            Some(there) => !there.vnode.is_directory() && tree.data(there).await? == text.as_bytes(),
            None => false,
        };
        tree.finish().await;
        if !is_ours {
            return Err(format!(
                "there is something else at {path} in the cell already: rename it, or leave the home out with --no-home"
            ));
        }
        files.set(own, StoreMask::OWNER | StoreMask::MODE, home.id, 0o755).await?;
        files.finish().await;
        let needs_release = root.sites.iter().any(|site| site.is(Kind::ReadOnly));
        Ok(Made::Home { path, needs_release })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_user_for_whom_a_volume_can_be_named_has_a_home() {
        for user in ["alice", "a.b-c_d", "seventeen-letters"] {
            assert_eq!(volume_of(user).unwrap(), format!("user.{user}"));
        }
        for user in ["eighteen-letters--", "..", ".hidden", "a b", "bob.backup", "#x", "josé", ""] {
            assert!(volume_of(user).is_err(), "{user}");
        }
    }
}

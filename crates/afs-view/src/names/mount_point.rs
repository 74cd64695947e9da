//! Mount points: what is mounted, and crossing into it (File service notes 11, Client notes 1).
//!
//! A mount point is a symbolic link without x bits whose text is `#` (the read-only volume preferred, from within a read-only
//! volume) or `%` (the read-write volume), perhaps a cell and `:`, a volume's name or number, and a dot. Its own fid stands for the
//! directory that is mounted in everything that is asked of directories.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use afs_wire::ids::{VolumeId, VolumeType};
use rx_proto::time::Instant;

use crate::names::dynroot::{self, DynamicRoot};
use crate::names::links::Links;
use crate::vnodes::attributes::Statuses;
use crate::vnodes::mounts::Mounts;
use crate::vnodes::status::{Kind, Status, is_mount_point};
use crate::vnodes::table::Vnodes;
use crate::vnodes::vnode::{Mounted, Vnode};
use afs_reach::error::Error;
use afs_reach::fid::{Fid, User};
use afs_reach::location::{VolumeEntry, split_name};
use afs_reach::remote::Calls;

/// The time for which a mount is used without looking it up again: a read-only volume that is made for a volume shows after this
/// time.
const MOUNTED_LIFE: Duration = Duration::from_secs(600);

/// The vnode that a fid leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    /// The vnode itself.
    Itself,
    /// The root that is mounted there.
    Root(Fid),
    /// A mount point of another cell's volume, in which nobody has been.
    Unvisited,
}

/// A mount point's text, read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MountText<'a> {
    /// True if it is `%`: the read-write volume, always.
    pub(crate) is_read_write: bool,
    /// The cell, if it is not the one that the mount point is in.
    pub(crate) cell: Option<&'a str>,
    /// The volume's name without suffix, or its number in digits.
    pub(crate) volume: &'a str,
    /// The kind that the suffix says.
    pub(crate) kind: Option<VolumeType>,
}

impl<'a> MountText<'a> {
    /// Reads a link's text; `None` if it is not a mount point's.
    pub(crate) fn parse(text: &'a [u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let is_read_write = match text.as_bytes().first()? {
            b'#' => false,
            b'%' => true,
            _ => return None,
        };
        // The last byte goes, whatever it is; it is a dot, or a newline with which old tools ended.
        let rest = &text[1..];
        let rest = &rest[..rest.char_indices().last()?.0];
        let (cell, volume) = match rest.split_once(':') {
            Some((cell, volume)) => (Some(cell), volume),
            None => (None, rest),
        };
        let (volume, kind) = split_name(volume);
        let is_good = !volume.is_empty() && cell != Some("");
        is_good.then_some(Self { is_read_write, cell, volume, kind })
    }

    /// Returns the volume that is mounted; `None` if there is no volume of the kind that the mount point names. A mount point in a
    /// read-only volume, or in another cell, prefers the read-only one.
    fn volume_of(&self, entry: &VolumeEntry, is_from_read_only: bool) -> Option<VolumeId> {
        let is_number = self.volume.bytes().all(|byte| byte.is_ascii_digit());
        match self.kind {
            Some(kind) => entry.id_of(kind),
            None if is_number => self.volume.parse().ok().map(VolumeId),
            None if is_from_read_only && !self.is_read_write => {
                entry.id_of(VolumeType::READ_ONLY).or_else(|| entry.id_of(VolumeType::READ_WRITE))
            }
            None => entry.id_of(VolumeType::READ_WRITE),
        }
    }
}

/// The fids that may be mount points, and how these are crossed.
#[derive(Debug)]
pub struct MountPoints {
    /// The cells, where volumes are, and who is asked for that.
    calls: Arc<Calls>,
    vnodes: Arc<Vnodes>,
    statuses: Arc<Statuses>,
    links: Arc<Links>,
    dynamic_root: Arc<DynamicRoot>,
    pub(super) mounts: Arc<Mounts>,
    /// True if mount points of other cells are not crossed before somebody goes into them (`-fakestat`).
    is_fakestat: bool,
    /// Set before anybody has the client.
    root: OnceLock<Fid>,
}

impl MountPoints {
    /// Makes the table of mount points. Nobody has been in any yet.
    pub(crate) fn new(
        calls: Arc<Calls>,
        statuses: Arc<Statuses>,
        links: Arc<Links>,
        dynamic_root: Arc<DynamicRoot>,
        is_fakestat: bool,
    ) -> Self {
        let (vnodes, mounts) = (Arc::clone(&statuses.vnodes), Arc::clone(&statuses.invalidations.mounts));
        Self { calls, vnodes, statuses, links, dynamic_root, mounts, is_fakestat, root: OnceLock::new() }
    }

    fn now(&self) -> Instant {
        self.calls.runtime.now()
    }

    /// The root of it all.
    pub fn root(&self) -> Fid {
        self.root.get().copied().unwrap_or(dynroot::ROOT)
    }

    /// Says what the root of it all is; once.
    pub fn set_root(&self, root: Fid) {
        self.root.set(root).expect("set once, as the client starts");
    }

    /// The status of what a fid stands for, without asking anybody.
    pub fn known_status(&self, user: User, fid: Fid) -> Option<Result<Status, Error>> {
        match self.known_target(user, fid)? {
            Ok(Target::Itself) if fid.is_made_up() => Some(self.dynamic_root.status(self.now(), fid)),
            Ok(Target::Itself) => self.statuses.known_status(user, fid, fid),
            Ok(Target::Root(root)) => self.statuses.known_status(user, fid, root),
            Ok(Target::Unvisited) => Some(Ok(self.unvisited_status(fid))),
            Err(error) => Some(Err(error)),
        }
    }

    /// The status of what a fid stands for.
    ///
    /// # Errors
    ///
    /// As `Client::status`.
    pub async fn status(&self, user: User, fid: Fid) -> Result<Status, Error> {
        if let Some(known) = self.known_status(user, fid) {
            return known;
        }
        match self.target_of(user, fid, false).await? {
            Target::Itself if fid.is_made_up() => self.dynamic_root.status(self.now(), fid),
            Target::Itself => self.statuses.own_status(user, fid, fid).await,
            Target::Root(root) => match self.statuses.own_status(user, fid, root).await {
                Err(error) => {
                    let root = self.real_anew(user, fid, root, error).await?;
                    self.statuses.own_status(user, fid, root).await
                }
                told => told,
            },
            Target::Unvisited => Ok(self.unvisited_status(fid)),
        }
    }

    /// Returns the target of a fid, if it is known without asking a server.
    fn known_target(&self, user: User, fid: Fid) -> Option<Result<Target, Error>> {
        if fid.vnode.is_directory() {
            return Some(Ok(Target::Itself));
        }
        let now = self.now();
        let vnode = self.vnodes.get(fid);
        let is_away = |root: &Fid| self.vnodes.get(*root).is_some_and(|root| root.is_cut_off(now));
        let mounted =
            |vnode: &Arc<Vnode>| vnode.mounted(now).or_else(|| vnode.last_mounted().filter(is_away));
        if let Some(root) = vnode.as_ref().and_then(mounted) {
            return Some(Ok(Target::Root(root)));
        }
        if fid.is_made_up() {
            let Some(text) = self.dynamic_root.mount_text(fid) else { return Some(Ok(Target::Itself)) };
            return self.is_left_unvisited(fid, text.as_bytes()).then_some(Ok(Target::Unvisited));
        }
        let vnode = vnode?;
        let known = vnode.known(now, self.calls.users.who(user, fid.cell))?;
        if !is_mount_point(&known.status) {
            return Some(Ok(Target::Itself));
        }
        let text = vnode.link()?;
        if MountText::parse(&text).is_none() {
            return Some(Ok(Target::Itself));
        }
        self.is_left_unvisited(fid, &text).then_some(Ok(Target::Unvisited))
    }

    /// True if a mount point that nobody has been in is to be left alone: it is of another cell.
    fn is_left_unvisited(&self, fid: Fid, text: &[u8]) -> bool {
        let Some(name) = MountText::parse(text).and_then(|text| text.cell) else { return false };
        let is_other = match self.calls.cells.named(name) {
            Some(cell) => cell.index != fid.cell,
            // To look at a mount point does not ask the DNS either.
            None => self.calls.dns.asks_for(name).is_some(),
        };
        self.is_fakestat && is_other
    }

    /// Returns the target of a fid. With `visits`, a mount point is crossed that could be left alone.
    async fn target_of(&self, user: User, fid: Fid, visits: bool) -> Result<Target, Error> {
        if let Some(known) = self.known_target(user, fid) {
            match known? {
                Target::Unvisited if visits => {}
                target => return Ok(target),
            }
        }
        let text = if fid.is_made_up() {
            match self.dynamic_root.mount_text(fid) {
                Some(text) => text.into_bytes().into(),
                None => return Ok(Target::Itself),
            }
        } else {
            let status = self.statuses.own_status(user, fid, fid).await?;
            if status.kind != Kind::Symlink || status.mode & 0o111 != 0 {
                return Ok(Target::Itself);
            }
            self.links.text(user, fid).await?
        };
        let Some(mount) = MountText::parse(&text) else { return Ok(Target::Itself) };
        if !visits && self.is_left_unvisited(fid, &text) {
            return Ok(Target::Unvisited);
        }
        self.cross(fid, &mount).await.map(Target::Root)
    }

    /// The directory, or whatever else, that a fid stands for.
    pub async fn real(&self, user: User, fid: Fid) -> Result<Fid, Error> {
        match self.target_of(user, fid, true).await? {
            Target::Root(root) => Ok(root),
            Target::Itself | Target::Unvisited => Ok(fid),
        }
    }

    /// Resolves a mount point anew, after an error of what it stood for: its volume may have been made anew under its name.
    ///
    /// # Errors
    ///
    /// The error again, if it is not that or if it is no mount point; those of finding the volume.
    pub(crate) async fn real_anew(
        &self,
        user: User,
        asked: Fid,
        real: Fid,
        error: Error,
    ) -> Result<Fid, Error> {
        if asked == real || !matches!(error, Error::NoVolume { .. }) {
            return Err(error);
        }
        match self.real(user, asked).await? {
            same if same == real => Err(error),
            other => Ok(other),
        }
    }

    /// The same without asking anybody.
    pub fn known_real(&self, user: User, fid: Fid) -> Option<Fid> {
        match self.known_target(user, fid)?.ok()? {
            Target::Root(root) => Some(root),
            Target::Itself => Some(fid),
            Target::Unvisited => None,
        }
    }

    /// A mount point at which somebody has come to a volume's root, and the directory that the mount point is in.
    pub(crate) fn place_of(&self, root: Fid) -> Option<(Fid, Fid)> {
        let place =
            |mount| Some((mount, self.parent_of(mount, root, None))).filter(|(mount, dir)| dir != mount);
        self.mounts.at(root).into_iter().find_map(place)
    }

    /// True if a fid stands for this directory: it is the directory, or one of its mount points.
    pub(crate) fn is_place_of(&self, fid: Fid, real: Fid) -> bool {
        fid == real || self.mounts.at(real).contains(&fid)
    }

    /// The mount point of the volume that a name in the directory of all volumes says; `None` if it says none, or there is none.
    pub(crate) async fn of_volume(&self, name: &[u8]) -> Result<Option<Fid>, Error> {
        let Some(at) = name.iter().position(|byte| b":%".contains(byte)) else { return Ok(None) };
        let kind = if name[at] == b'%' { b'%' } else { b'#' };
        let text = [&[kind], &name[..at], b":", &name[at + 1..], b"."].concat();
        let Some(mount) = MountText::parse(&text) else { return Ok(None) };
        let cell = match self.calls.dns.cell_named(mount.cell.unwrap_or_default()).await {
            Ok(cell) => cell,
            Err(Error::NoCell { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let found = self.calls.locations.by_name(&*self.calls, &cell, mount.volume, mount.kind).await;
        let entry = match found {
            Ok(entry) => entry,
            Err(Error::NoVolume { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let volume = mount.volume_of(&entry, true);
        Ok(volume.map(|volume| dynroot::mount_of(cell.index, volume, mount.is_read_write)))
    }

    /// Finds the volume of a mount point, and remembers it.
    async fn cross(&self, fid: Fid, mount: &MountText<'_>) -> Result<Fid, Error> {
        let cell = match mount.cell {
            Some(name) => self.calls.dns.cell_named(name).await?,
            None => self.calls.cells.numbered(fid.cell)?,
        };
        let entry = self.calls.locations.by_name(&*self.calls, &cell, mount.volume, mount.kind).await?;
        let none = || Error::NoVolume { cell: cell.name.to_string(), volume: mount.volume.to_owned() };
        let is_from_read_only =
            cell.index != fid.cell || self.vnodes.volume(fid.cell, fid.volume).is_read_only();
        let volume = mount.volume_of(&entry, is_from_read_only);
        let root = Fid::root_of(cell.index, volume.ok_or_else(none)?);
        let mounted = Mounted { root, until: self.now() + MOUNTED_LIFE };
        self.vnodes.get_or_add(fid).set_mounted(Some(mounted));
        self.mounts.note(root, fid);
        Ok(root)
    }

    /// The status of a mount point in which nobody has been.
    fn unvisited_status(&self, fid: Fid) -> Status {
        Status { is_volume_root: true, ..self.dynamic_root.directory_status(self.now(), fid) }
    }

    /// The directory that a directory is in, as far as that is known here.
    pub(crate) fn parent_of(&self, asked: Fid, real: Fid, dot_dot: Option<Fid>) -> Fid {
        if real.is_snapshots() {
            return real.without_snapshots();
        }
        let of_mount = |mount: Fid| {
            if mount.is_made_up() {
                let is_of_all = mount.volume == dynroot::VOLUMES.volume && mount != dynroot::VOLUMES;
                return Some(if is_of_all { dynroot::VOLUMES } else { self.root() });
            }
            self.vnodes.parent_of(&*self.vnodes.get(mount)?)
        };
        if asked != real || asked == dynroot::VOLUMES {
            return of_mount(asked).unwrap_or(asked);
        }
        if !real.is_root() {
            return dot_dot.unwrap_or(real);
        }
        self.mounts.at(real).into_iter().find_map(of_mount).unwrap_or(real)
    }

    /// See `Client::mount_text`: of an entry of a directory.
    pub async fn text(&self, user: User, fid: Fid) -> Result<String, Error> {
        let text = if fid.is_made_up() {
            self.dynamic_root.mount_text(fid).map(|text| text.into_bytes().into())
        } else {
            let status = self.statuses.own_status(user, fid, fid).await?;
            match status.kind {
                Kind::Symlink if status.mode & 0o111 == 0 => Some(self.links.text(user, fid).await?),
                Kind::Symlink | Kind::File | Kind::Directory => None,
            }
        };
        let text = text.filter(|text| MountText::parse(text).is_some()).ok_or(Error::NotALink { fid })?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_mount_point_is_read_as_stock_clients_do() {
        let text = |is_read_write, cell, volume, kind| Some(MountText { is_read_write, cell, volume, kind });
        for (link, read) in [
            ("#root.cell.", text(false, None, "root.cell", None)),
            ("%root.cell.", text(true, None, "root.cell", None)),
            ("#one.test:root.cell.", text(false, Some("one.test"), "root.cell", None)),
            ("#user.alice.readonly.", text(false, None, "user.alice", Some(VolumeType::READ_ONLY))),
            ("#user.alice.backup.", text(false, None, "user.alice", Some(VolumeType::BACKUP))),
            ("#536870912.", text(false, None, "536870912", None)),
            ("#v\n", text(false, None, "v", None)),
            ("a link", None),
            ("#.", None),
            ("#", None),
            ("", None),
            ("#:v.", None),
            ("#c:.", None),
        ] {
            assert_eq!(MountText::parse(link.as_bytes()), read, "{link:?}");
        }
        assert_eq!(MountText::parse(b"#\xff\xfe."), None);
    }

    #[test]
    fn the_read_only_volume_is_mounted_from_read_only_volumes_and_other_cells() {
        let (both, one) = (VolumeEntry::for_tests([10, 11, 0]), VolumeEntry::for_tests([10, 0, 0]));
        for (link, entry, from_read_only, mounted) in [
            ("#v.", &both, true, Some(11)),
            ("#v.", &both, false, Some(10)),
            ("#v.", &one, true, Some(10)),
            ("%v.", &both, true, Some(10)),
            ("#v.readonly.", &both, false, Some(11)),
            ("#v.readonly.", &one, true, None),
            ("#v.backup.", &both, true, None),
            ("#11.", &both, false, Some(11)),
            ("#10.", &both, true, Some(10)),
        ] {
            let text = MountText::parse(link.as_bytes()).unwrap();
            assert_eq!(
                text.volume_of(entry, from_read_only),
                mounted.map(VolumeId),
                "{link} {from_read_only}"
            );
        }
    }
}

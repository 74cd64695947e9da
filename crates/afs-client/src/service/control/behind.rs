//! The answers to `fs storebehind` and `fs flush -wait`: what is set about waiting for the server, and who may set it.

use afs_wire::Errno;
use afs_wire::control::{self, Place, StoreBehind, reply};
use afs_wire::rights::Rights;
use rxgen::{Serve, ServerCall};

use super::Session;
use super::answers::{Answer, answer, errno, failed};
use afs_reach::fid::Fid;
use afs_view::data::store_behind::Setting;
use afs_view::data::write_behind::WriteBehind;

impl Session {
    /// A directory that can be written to, by its place.
    async fn written_dir(&self, place: &Place) -> Answer<Fid> {
        let dir = self.fid(place).await?;
        if dir.is_made_up() {
            return Err(errno(Errno::EINVAL));
        }
        if !dir.vnode.is_directory() {
            return Err(errno(Errno::ENOTDIR));
        }
        if self.client.inner.vnodes.get_or_add(dir).volume.is_read_only() {
            return Err(errno(Errno::EROFS));
        }
        Ok(dir)
    }
}

fn told_mode(mode: Option<WriteBehind>) -> StoreBehind {
    match mode {
        None => StoreBehind::OFF,
        Some(WriteBehind::Always) => StoreBehind::ALWAYS,
        Some(WriteBehind::Second) => StoreBehind::SECOND,
    }
}

fn told(setting: Option<Setting>) -> StoreBehind {
    match setting {
        None => StoreBehind::INHERIT,
        Some(Setting::Off) => StoreBehind::OFF,
        Some(Setting::On(mode)) => told_mode(Some(mode)),
    }
}

answer!(GetStoreBehind, |session, control::GetStoreBehind { dir }| {
    let dir = session.written_dir(&dir).await?;
    let behind = session.client.behind_of(session.user, dir).await.map_err(failed)?;
    Ok(reply::GetStoreBehind {
        own: told(behind.own),
        volume: told(behind.volume),
        mount: told_mode(session.client.config().write_behind),
        counts: told_mode(behind.counts),
    })
});

answer!(SetStoreBehind, |session, control::SetStoreBehind { dir, is_volume, setting }| {
    let dir = session.written_dir(&dir).await?;
    let setting = match setting {
        StoreBehind::INHERIT => None,
        StoreBehind::OFF => Some(Setting::Off),
        StoreBehind::ALWAYS => Some(Setting::On(WriteBehind::Always)),
        StoreBehind::SECOND => Some(Setting::On(WriteBehind::Second)),
        _ => return Err(errno(Errno::EINVAL)),
    };
    let governed = if is_volume { Fid::root_of(dir.cell, dir.volume) } else { dir };
    if session.check_owner().is_err() {
        // It changes what all users of this machine may rely on there.
        let status = session.client.status(session.user, governed).await.map_err(failed)?;
        if !status.rights.contains(Rights::ADMINISTER) {
            return Err(errno(Errno::EACCES));
        }
    }
    if session.client.config().cache.is_none() {
        return Err(errno(Errno::EOPNOTSUPP));
    }
    session.client.set_behind(dir, is_volume, setting).await.map_err(failed)?;
    Ok(reply::SetStoreBehind {})
});

answer!(PauseStoreBehind, |session, control::PauseStoreBehind { is_paused }| {
    session.check_owner()?;
    session.client.set_paused(is_paused);
    Ok(reply::PauseStoreBehind {})
});

answer!(SettleVolume, |session, control::SettleVolume { place }| {
    let fid = session.fid(&place).await?;
    session.client.settle_volume(fid).await.map_err(failed)?;
    Ok(reply::SettleVolume {})
});

//! The answers to `fs pin`: what is kept in the cache for a user.

use afs_wire::Errno;
use afs_wire::control::{self, LocalPath, PINS_AT_ONCE, PinTrouble, Pinned, Place, reply};
use rxgen::xdr::OutOfBounds;
use rxgen::{Serve, ServerCall};

use super::Session;
use super::answers::{Answer, answer, errno, failed};
use afs_view::pins::{Report, Told, Trouble};

/// Bytes of a path that are told.
const PATH_MAX: usize = 4096;

fn told_trouble(trouble: Trouble) -> PinTrouble {
    match trouble {
        Trouble::None => PinTrouble::NONE,
        Trouble::New => PinTrouble::NEW,
        Trouble::Away => PinTrouble::AWAY,
        Trouble::NoToken => PinTrouble::NO_TOKEN,
        Trouble::Gone => PinTrouble::GONE,
        Trouble::Failed => PinTrouble::FAILED,
    }
}

/// A path, as much of it as there is room for.
fn path(mut bytes: Vec<u8>) -> Result<LocalPath, OutOfBounds> {
    bytes.truncate(PATH_MAX);
    LocalPath::new(bytes)
}

fn told(told: Told) -> Result<Pinned, OutOfBounds> {
    let Report {
        files,
        files_here,
        bytes,
        bytes_here,
        no_room,
        no_rights,
        failed,
        mount_points,
        example,
        trouble,
        complete,
    } = told.report;
    Ok(Pinned {
        place: Place::new(&told.cell, told.fid)?,
        user: told.user,
        path: path(told.path)?,
        files,
        files_here,
        bytes,
        bytes_here,
        no_room,
        no_rights,
        failed,
        mount_points,
        example: path(example)?,
        trouble: told_trouble(trouble),
        complete,
    })
}

answer!(Pin, |session, control::Pin { place }| {
    let fid = session.fid(&place).await?;
    if session.client.config().cache.is_none() {
        return Err(errno(Errno::EOPNOTSUPP));
    }
    session.client.pin(session.user, fid).await.map_err(failed)?;
    Ok(reply::Pin {})
});

answer!(Unpin, |session, control::Unpin { place }| {
    // What is no longer there can be taken back as well.
    let fid = match session.fid(&place).await {
        Ok(fid) => fid,
        Err(_) => session.named_fid(&place).await?,
    };
    session.client.unpin(session.uid, fid).await.map_err(failed)?;
    Ok(reply::Unpin {})
});

answer!(ListPins, |session, control::ListPins { from }| {
    let pins = session.client.pins(session.uid).into_iter().skip(from as usize).take(PINS_AT_ONCE).map(told);
    let pins: Result<Vec<_>, OutOfBounds> = pins.collect();
    let pins = pins.and_then(control::Pins::new).map_err(|_| errno(Errno::E2BIG))?;
    Ok(reply::ListPins { pins })
});

//! Volumes as clients see and set them, and the calls about the server itself that carry no figures.

use std::net::IpAddr;

use afs_volume::VnodeId;
use afs_wire::ids::AfsFid;
use afs_wire::rights::Rights;
use afs_wire::rxafs::{
    self, AfsFetchVolumeStatus, Capabilities, CapabilityWords, StoreVolumeMask, VolumeStatusType, reply,
};
use rxgen::xdr::XdrString;

use super::{Outcome, Session, handlers};
use crate::failure::Failure;
use crate::locations::volume_info;

/// Longest message of a volume, in bytes: what its header holds.
const MAX_MESSAGE_BYTES: usize = 127;

handlers! {
    GetVolumeStatus get_volume_status;
    SetVolumeStatus set_volume_status;
    GetVolumeInfo get_volume_info;
    NGetVolumeInfo n_get_volume_info;
    GetRootVolume get_root_volume;
    CheckToken check_token;
    GetTime get_time;
    GetCapabilities get_capabilities;
    FlushCPS flush_cps;
    FsCmd fs_cmd;
    CallBackRxConnAddr callback_rx_conn_addr;
}

impl Session {
    async fn get_volume_status(&self, args: rxafs::GetVolumeStatus) -> Outcome<reply::GetVolumeStatus> {
        let root = AfsFid::root_of(args.volume);
        let volume = self.volume(root)?;
        let seen = self.look(&volume, root)?;
        let is_allowed = seen.granted.caller.contains(Rights::READ) || self.caller().is_administrator();
        if !is_allowed {
            return Err(Failure::ACCESS);
        }
        let space = self.server.volumes.space_of(args.volume)?;
        let header = volume.header();
        let info = header.info;
        let status = AfsFetchVolumeStatus {
            vid: args.volume,
            parent_id: info.parent,
            online: 1,
            in_service: info.in_service.into(),
            blessed: 1,
            needs_salvage: 0,
            kind: if volume.is_writable() {
                VolumeStatusType::READ_WRITE
            } else {
                VolumeStatusType::READ_ONLY
            },
            min_quota: signed(info.min_quota_kib.into()),
            max_quota: signed(info.max_quota_kib.into()),
            blocks_in_use: signed(header.used_kib),
            part_blocks_avail: signed(space.free_kib),
            part_max_blocks: signed(space.total_kib),
        };
        Ok(reply::GetVolumeStatus {
            status,
            name: string(&info.name),
            offline_message: string(&info.offline_message),
            motd: string(&info.motd),
        })
    }

    async fn set_volume_status(&self, args: rxafs::SetVolumeStatus) -> Outcome<reply::SetVolumeStatus> {
        let rxafs::SetVolumeStatus { volume, status, name, offline_message, motd } = args;
        let volume = self.writable(AfsFid::root_of(volume))?;
        if !self.caller().is_administrator() {
            return Err(Failure::ACCESS);
        }
        volume.status(VnodeId::ROOT)?;
        let has = |field| status.mask.contains(field);
        let min_quota = has(StoreVolumeMask::MIN_QUOTA).then_some(status.min_quota);
        let max_quota = has(StoreVolumeMask::MAX_QUOTA).then_some(status.max_quota);
        let quota =
            |quota: Option<i32>| quota.map(|q| u32::try_from(q).map_err(|_| Failure::INVALID)).transpose();
        let (min_quota, max_quota) = (quota(min_quota)?, quota(max_quota)?);
        let name = text(&name, afs_volume::NAME_MAX)?;
        let offline_message = text(&offline_message, MAX_MESSAGE_BYTES)?;
        let motd = text(&motd, MAX_MESSAGE_BYTES)?;
        self.change(&volume, move |volume| {
            volume.change_info(|info| {
                let replace = |field: &mut String, new: Option<String>| {
                    if let Some(new) = new {
                        *field = new;
                    }
                };
                info.min_quota_kib = min_quota.unwrap_or(info.min_quota_kib);
                info.max_quota_kib = max_quota.unwrap_or(info.max_quota_kib);
                replace(&mut info.name, name);
                replace(&mut info.offline_message, offline_message);
                replace(&mut info.motd, motd);
            })
        })
        .await?;
        Ok(reply::SetVolumeStatus {})
    }

    /// Anybody may ask, as anybody may ask the database itself.
    async fn get_volume_info(&self, args: rxafs::GetVolumeInfo) -> Outcome<reply::GetVolumeInfo> {
        let Some(locations) = &self.server.locations else { return Err(Failure::NO_VOLUME) };
        let entry = locations.entry(&args.name).await.map_err(|refused| Failure::Code(refused.0))?;
        Ok(reply::GetVolumeInfo { info: volume_info(&entry) })
    }

    /// Stock servers say that there is no such volume, of any (File service notes 6.5).
    async fn n_get_volume_info(&self, _args: rxafs::NGetVolumeInfo) -> Outcome<reply::NGetVolumeInfo> {
        Err(Failure::NO_VOLUME)
    }

    async fn get_root_volume(&self, _args: rxafs::GetRootVolume) -> Outcome<reply::GetRootVolume> {
        Err(Failure::NOT_SUPPORTED)
    }

    async fn check_token(&self, _args: rxafs::CheckToken) -> Outcome<reply::CheckToken> {
        Err(Failure::REFUSED)
    }

    async fn get_time(&self, _args: rxafs::GetTime) -> Outcome<reply::GetTime> {
        let now = self.server.clock.since_1970();
        Ok(reply::GetTime { seconds: now.as_secs() as u32, useconds: now.subsec_micros() })
    }

    async fn get_capabilities(&self, _args: rxafs::GetCapabilities) -> Outcome<reply::GetCapabilities> {
        let ours = Capabilities::ERRORTRANS | Capabilities::LARGE_FILES | Capabilities::WRITELOCKACL;
        let capabilities = CapabilityWords::new(vec![ours.0]).expect("one word fits");
        Ok(reply::GetCapabilities { capabilities })
    }

    /// Refused without translation (observed).
    async fn flush_cps(&self, args: rxafs::FlushCPS) -> Outcome<reply::FlushCPS> {
        let database = self.server.memberships.database();
        if !self.identity.as_deref().is_some_and(|identity| database.is_superuser(identity)) {
            return Err(Failure::PLAIN_NOT_OWNER);
        }
        let hosts: Vec<IpAddr> = args.addrs.iter().map(|address| address.ip().into()).collect();
        self.server.memberships.flush(&args.ids, &hosts);
        Ok(reply::FlushCPS { spare2: 0, spare3: 0 })
    }

    /// Refuses, without translation (observed): there are no commands.
    async fn fs_cmd(&self, _args: rxafs::FsCmd) -> Outcome<reply::FsCmd> {
        Err(Failure::PLAIN_INVALID)
    }

    async fn callback_rx_conn_addr(
        &self,
        _args: rxafs::CallBackRxConnAddr,
    ) -> Outcome<reply::CallBackRxConnAddr> {
        Err(Failure::NOT_OWNER)
    }
}

/// A figure in a field with a sign: the largest where it does not fit.
fn signed(value: u64) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

/// A text that the volume's header holds, without what cannot be sent.
fn string<const MAX: usize>(text: &str) -> XdrString<MAX> {
    let bytes: Vec<u8> = text.bytes().filter(|byte| *byte != 0).take(MAX).collect();
    XdrString::new(bytes).expect("neither too long nor with a NUL")
}

/// A text to be stored; an empty one leaves what there is.
fn text(bytes: &[u8], max: usize) -> Outcome<Option<String>> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let text = std::str::from_utf8(bytes).map_err(|_| Failure::INVALID)?;
    if text.len() > max { Err(Failure::INVALID) } else { Ok(Some(text.to_owned())) }
}

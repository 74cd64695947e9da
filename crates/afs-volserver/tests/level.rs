//! The level of a volume: over which connections it is dumped, and where it goes along.

use crate::support::dumps::{FULL, cookie, filled, stream_on};
use crate::support::{A, BACKUP, Lab, RO, RW, destination, text};
use afs_wire::abort::{RXKADLEVELFAIL, VNOVOL, VOLSERBAD_ACCESS, VOLSERBADOP};
use afs_wire::afsvol::{
    AttachFlags, Clone, CreateVolume, DestServer, Dump, DumpFlags, DumpV2, Forward, ForwardMultiple,
    GetLevel, GetSize, MayLoseLevel, Replica, Restore, RestoreCookie, RestoreFlags, SetLevel,
};
use afs_wire::ids::{SecurityLevel, TransId, VolumeId, VolumeType};
use rx_proto::abort::AbortCode;
use rxgen::xdr::{CharVec, XdrArray};
use std::sync::atomic::Ordering;

const CLEAR: SecurityLevel = SecurityLevel::CLEAR;
const AUTH: SecurityLevel = SecurityLevel::AUTH;
const CRYPT: SecurityLevel = SecurityLevel::CRYPT;

impl Lab {
    async fn set_level(&self, level: SecurityLevel) {
        let trans = self.begin(RW, AttachFlags::OFFLINE).await;
        self.call(SetLevel { trans, level }).await.unwrap();
        assert_eq!(self.end(trans).await, 0);
    }

    async fn level(&self, volid: VolumeId) -> SecurityLevel {
        self.call(GetLevel { partition: A, volid }).await.unwrap().level
    }

    /// Sends the read-write volume to a transaction of another server.
    async fn send(&self, to: DestServer, dest_trans: TransId, may_lose_level: bool) -> Result<(), AbortCode> {
        self.send_as(to, dest_trans, may_lose_level, cookie()).await
    }

    async fn send_as(
        &self,
        destination: DestServer,
        dest_trans: TransId,
        may_lose_level: bool,
        cookie: RestoreCookie,
    ) -> Result<(), AbortCode> {
        let trans = self.begin(RW, AttachFlags::BUSY).await;
        if may_lose_level {
            self.call(MayLoseLevel { trans }).await.unwrap();
        }
        let order = Forward { from_trans: trans, from_date: FULL, destination, dest_trans, cookie };
        let sent = self.call(order).await.map(drop);
        self.end(trans).await;
        sent
    }

    /// The same to several at once. The code for each.
    async fn send_to_all(&self, to: [(DestServer, TransId); 2], may_lose_level: bool) -> Vec<i32> {
        let destinations = to.map(|(server, trans)| Replica { trans, server }).to_vec();
        let destinations = XdrArray::new(destinations).unwrap();
        let trans = self.begin(RW, AttachFlags::BUSY).await;
        if may_lose_level {
            self.call(MayLoseLevel { trans }).await.unwrap();
        }
        let order =
            ForwardMultiple { from_trans: trans, from_date: FULL, destinations, spare: 0, cookie: cookie() };
        let sent = self.call(order).await.unwrap().results.into_vec();
        self.end(trans).await;
        sent
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_of_level_crypt_is_dumped_over_encrypted_connections_alone() {
    let lab = Lab::new();
    filled(&lab).await;
    let trans = lab.begin(RW, AttachFlags::BUSY).await;
    let clone = Clone {
        trans,
        purge_vol: VolumeId(0),
        new_type: VolumeType::BACKUP,
        new_name: text(""),
        new_vol: BACKUP,
    };
    lab.call(clone).await.unwrap();
    lab.end(trans).await;
    lab.set_level(CRYPT).await;
    for volume in [RW, BACKUP] {
        let from_trans = lab.begin(volume, AttachFlags::BUSY).await;
        for level in [CLEAR, AUTH] {
            let connection = lab.at(level);
            let refused = AbortCode(RXKADLEVELFAIL.0);
            let dump = Dump { from_trans, from_date: FULL };
            assert_eq!(stream_on(&connection, dump).await.unwrap_err(), refused, "{level:?}");
            let dump = DumpV2 { from_trans, from_date: FULL, flags: DumpFlags::OMIT_DIRS };
            assert_eq!(stream_on(&connection, dump).await.unwrap_err(), refused, "{level:?}");
        }
        let stream = stream_on(&lab.at(CRYPT), Dump { from_trans, from_date: FULL }).await.unwrap();
        let size = lab.call(GetSize { from_trans, from_date: FULL }).await.unwrap().size.dump_size;
        assert_eq!(size, stream.len() as u64, "GetSize tells it before");
        lab.end(from_trans).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_takes_its_level_along_over_connections_of_that_level() {
    let (here, there) = (Lab::new(), Lab::new());
    filled(&here).await;
    here.set_level(CRYPT).await;
    let target = there.begin_copy().await;
    here.send(there.destination(), target, false).await.unwrap();
    there.settle(target).await;
    assert_eq!((there.level(RW).await, here.levels.lock().unwrap().pop()), (CRYPT, Some(CRYPT)));
    // A replica has the level of what was released, also a lower one.
    let kind = VolumeType::READ_ONLY;
    let name = "user.x.readonly";
    let order = CreateVolume { partition: A, name: text(name), kind, parent: RW, volid: RO };
    let target = there.call(order).await.unwrap().trans;
    let as_replica = RestoreCookie { name: CharVec::from_text(name).unwrap(), kind, ..cookie() };
    here.send_as(there.destination(), target, false, as_replica.clone()).await.unwrap();
    there.settle(target).await;
    assert_eq!(there.level(RO).await, CRYPT);
    here.set_level(AUTH).await;
    let target = there.begin(RO, AttachFlags::OFFLINE).await;
    here.send_as(there.destination(), target, false, as_replica).await.unwrap();
    there.settle(target).await;
    // A read-write volume loses none by what is restored into it.
    let target = there.begin(RW, AttachFlags::OFFLINE).await;
    here.send(there.destination(), target, false).await.unwrap();
    there.settle(target).await;
    assert_eq!([there.level(RO).await, there.level(RW).await], [AUTH, CRYPT]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dump_in_a_file_keeps_the_level() {
    let (here, there) = (Lab::new(), Lab::new());
    filled(&here).await;
    here.set_level(CRYPT).await;
    let from_trans = here.begin(RW, AttachFlags::BUSY).await;
    let stream = stream_on(&here.at(CRYPT), Dump { from_trans, from_date: FULL }).await.unwrap();
    here.end(from_trans).await;
    let target = there.begin_copy().await;
    let mut call = there.connection.call().await.unwrap();
    let order = Restore { trans: target, flags: RestoreFlags::NONE, cookie: cookie() };
    call.send_request(&order).await.unwrap();
    call.write_all(&stream).await.unwrap();
    call.reply::<Restore>().await.unwrap();
    there.settle(target).await;
    assert_eq!(there.level(RW).await, CRYPT);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_knows_no_levels_gets_a_volume_with_one_only_if_it_may_lose_it() {
    let (here, there, other) = (Lab::new(), Lab::new(), Lab::new());
    filled(&here).await;
    let old = there.without_levels();
    let to = destination(old.local_addr());
    here.set_level(AUTH).await;
    let target = there.begin_copy().await;
    assert_eq!(here.send(to, target, false).await.unwrap_err(), AbortCode(VOLSERBADOP.0));
    let files = there.partitions.find(RW).unwrap().1.header().vnode_count;
    assert_eq!(files, 0, "nothing was sent");
    // Others get it.
    let replicas = [(to, target), (other.destination(), other.begin_copy().await)];
    assert_eq!(here.send_to_all(replicas, false).await, [VOLSERBADOP.0, 0]);
    assert_eq!(other.level(RW).await, AUTH);
    here.send(to, target, true).await.unwrap();
    there.settle(target).await;
    assert_eq!(there.level(RW).await, CLEAR);
    // It is lost only where it must be.
    here.send(other.destination(), replicas[1].1, true).await.unwrap();
    assert_eq!(other.level(RW).await, AUTH);
    // Without a level there is nothing to lose.
    here.set_level(CLEAR).await;
    let target = there.begin(RW, AttachFlags::OFFLINE).await;
    here.send(to, target, false).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_knows_no_levels_takes_none_from_others_that_get_the_volume_with_it() {
    let (here, there, other) = (Lab::new(), Lab::new(), Lab::new());
    filled(&here).await;
    let old = there.without_levels();
    here.set_level(AUTH).await;
    let to = [
        (destination(old.local_addr()), there.begin_copy().await),
        (other.destination(), other.begin_copy().await),
    ];
    assert_eq!(here.send_to_all(to, true).await[1], 0);
    assert_eq!(other.level(RW).await, AUTH);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_superusers_set_a_level_and_only_of_a_read_write_volume() {
    let lab = Lab::new();
    filled(&lab).await;
    let trans = lab.begin(RW, AttachFlags::BUSY).await;
    lab.fails(SetLevel { trans, level: SecurityLevel(3) }, rxgen::Abort(22)).await;
    let clone = Clone {
        trans,
        purge_vol: VolumeId(0),
        new_type: VolumeType::BACKUP,
        new_name: text(""),
        new_vol: BACKUP,
    };
    lab.call(clone).await.unwrap();
    let of_backup = lab.begin(BACKUP, AttachFlags::OFFLINE).await;
    lab.fails(SetLevel { trans: of_backup, level: AUTH }, rxgen::Abort(30)).await;
    lab.everybody.0.store(false, Ordering::Relaxed);
    lab.fails(SetLevel { trans, level: AUTH }, VOLSERBAD_ACCESS).await;
    lab.fails(MayLoseLevel { trans }, VOLSERBAD_ACCESS).await;
    assert_eq!(lab.level(RW).await, CLEAR, "anybody may ask");
    lab.fails(GetLevel { partition: A, volid: RO }, VNOVOL).await;
    let restricted = lab.beside(|config| config.is_restricted = true);
    restricted.everybody.0.store(false, Ordering::Relaxed);
    restricted.fails(GetLevel { partition: A, volid: RW }, VOLSERBAD_ACCESS).await;
}

//! Cloning and removing a volume: which calls they take, and what is said when one of them fails.

use crate::support::{SERVER, Script};
use afs_admin::clone::{self, CloneFailure, Source, make_clone};
use afs_admin::entry::Kind;
use afs_admin::remove::{self, RemoveFailure, remove};
use afs_admin::volumes::NewClone;
use afs_wire::abort::{VNOVOL, VOLSERFAILEDOP};
use afs_wire::afsvol::{Clone, DeleteVolume, EndTrans, ReClone, SetFlags, TransCreate};
use afs_wire::ids::{PartitionId, VolumeId};
use rxgen::Rpc;

const VOLUME: VolumeId = VolumeId(500);

fn remove_by(script: Script) -> (Result<(), RemoveFailure>, Vec<&'static str>) {
    script.run(|_, volumes| async move { remove(&volumes, SERVER, PartitionId(0), VOLUME).await })
}

/// What came of a clone, and what was told meanwhile.
type Cloned = (Result<(), CloneFailure>, Vec<clone::Event>);

fn clone_by(script: Script) -> (Cloned, Vec<&'static str>) {
    let cancel = script.cancel.clone();
    script.run(|_, volumes| async move {
        let source = Source { server: SERVER, partition: PartitionId(0), volume: VOLUME };
        let new = NewClone { id: VolumeId(502), kind: Kind::Backup, name: "user.alice.backup" };
        let mut told = Vec::new();
        (make_clone(&volumes, source, new, &cancel, |event| told.push(event)).await, told)
    })
}

#[test]
fn a_volume_is_taken_out_of_service_before_it_is_removed() {
    let (result, asked) = remove_by(Script::default());
    result.unwrap();
    assert_eq!(asked, [TransCreate::NAME, SetFlags::NAME, DeleteVolume::NAME, EndTrans::NAME]);
}

#[test]
fn a_volume_that_is_not_there_is_told_apart() {
    let (result, asked) = remove_by(Script::refusing(&[(TransCreate::NAME, VNOVOL)]));
    assert!(result.unwrap_err().is_missing());
    assert_eq!(asked, [TransCreate::NAME]);
}

#[test]
fn a_volume_that_is_not_removed_is_let_go() {
    for (refused, step) in
        [(SetFlags::NAME, remove::Step::SetFlags), (DeleteVolume::NAME, remove::Step::Delete)]
    {
        let (result, asked) = remove_by(Script::refusing(&[(refused, VOLSERFAILEDOP)]));
        let failure = result.unwrap_err();
        assert_eq!((failure.step, failure.not_ended), (step, None));
        assert_eq!(asked.last(), Some(&EndTrans::NAME), "nobody else has to wait for it");
    }
    let refused = [(DeleteVolume::NAME, VOLSERFAILEDOP), (EndTrans::NAME, VOLSERFAILEDOP)];
    let failure = remove_by(Script::refusing(&refused)).0.unwrap_err();
    assert_eq!(failure.step, remove::Step::Delete, "the first failure counts");
    assert!(failure.not_ended.is_some());
}

#[test]
fn a_clone_that_is_there_is_renewed() {
    let ((result, told), asked) = clone_by(Script::default());
    result.unwrap();
    let calls = [TransCreate::NAME, EndTrans::NAME, TransCreate::NAME, ReClone::NAME, EndTrans::NAME];
    assert_eq!(asked, calls);
    assert_eq!(told, [clone::Event::Recloning, clone::Event::Done]);
}

#[test]
fn a_clone_that_cannot_be_looked_for_is_not_made() {
    let ((result, told), asked) = clone_by(Script::refusing(&[(TransCreate::NAME, VOLSERFAILEDOP)]));
    assert_eq!(result.unwrap_err().step, clone::Step::Look);
    assert_eq!((asked, told), (vec![TransCreate::NAME], vec![]));
}

#[test]
fn a_volume_that_is_not_cloned_is_let_go() {
    let ((result, told), asked) = clone_by(Script::refusing(&[(ReClone::NAME, VOLSERFAILEDOP)]));
    let failure = result.unwrap_err();
    assert_eq!((failure.step, failure.not_ended), (clone::Step::Reclone, None));
    assert_eq!(told, [clone::Event::Recloning]);
    assert_eq!(asked[3..], [ReClone::NAME, EndTrans::NAME]);
    assert!(!asked.contains(&Clone::NAME));
}

//! Directory pages. An input that begins with an even byte is a list of changes to a new directory, which has to stay
//! without faults and mean what a map of names means, until one of the changes damages it. Every other input is pages as
//! they come. With damage and without, everything that reads or changes a directory has to end without a panic.

use crate::shape::Shape;
use afs_wire::directory::check::Fault;
use afs_wire::directory::{Directory, Entry, InsertError, PAGE_SIZE};
use afs_wire::ids::{LocalFid, Uniquifier, VnodeNumber};
use std::collections::BTreeMap;

/// Most changes of one input: four bytes make an entry of up to 288 and its copies in the model.
const CHANGES_MAX: usize = 500;

/// See the module.
pub fn run(input: &[u8]) -> u64 {
    match input {
        [] => Shape::EMPTY.feature(),
        [first, changes @ ..] if first % 2 == 0 => change(changes).feature(),
        [_, pages @ ..] => {
            let mut pages = pages.to_vec();
            pages.resize(pages.len().next_multiple_of(PAGE_SIZE), 0);
            read(Shape::EMPTY.with(1), pages).feature()
        }
    }
}

/// Makes a list of changes. A change is what to do, a letter, and a number from which the length of a name or a place is
/// made.
fn change(changes: &[u8]) -> Shape {
    let mut directory = Directory::new(LocalFid::ROOT, LocalFid::ROOT);
    let mut model = BTreeMap::from([(b".".to_vec(), LocalFid::ROOT), (b"..".to_vec(), LocalFid::ROOT)]);
    let mut shape = Shape::EMPTY;
    for change in changes.chunks_exact(4).take(CHANGES_MAX) {
        let [what, letter, high, low] = *change else { unreachable!("chunks of four") };
        let number = u16::from_be_bytes([high, low]);
        let name = vec![letter; usize::from(number % 300)];
        let fid = LocalFid { vnode: VnodeNumber(number.into()), unique: Uniquifier(letter.into()) };
        match what % 8 {
            0..=3 => match directory.insert(&name, fid) {
                Ok(changed) => {
                    assert!(changed.iter().all(|page| page < directory.pages()));
                    assert_eq!(model.insert(name, fid), None);
                }
                Err(InsertError::Exists) => assert!(model.contains_key(&name)),
                Err(InsertError::BadName) => assert!(name.is_empty() || letter == 0),
                Err(InsertError::NameTooLong) => assert!(name.len() > 256),
                Err(InsertError::Full) => unreachable!("CHANGES_MAX names of nine slots fill no directory"),
            },
            4 | 5 => assert_eq!(directory.remove(&name).map(|(fid, _)| fid), model.remove(&name)),
            6 => {
                let before = directory.replace(&name, fid).map(|(fid, _)| fid);
                assert_eq!(before, model.get(&name).copied());
                model.entry(name).and_modify(|named| *named = fid);
            }
            _ => {
                check(&directory, &model);
                let mut pages = directory.into_bytes();
                let at = usize::from(number) % pages.len();
                pages[at] ^= letter;
                return read(shape.with(2), pages);
            }
        }
        shape = shape.with_count(model.len()).with_count(directory.pages());
    }
    check(&directory, &model);
    Shape::EMPTY.with(3).with_count(model.len()).with_count(directory.pages())
}

/// The directory has what the model has, and nothing is wrong with it.
fn check(directory: &Directory, model: &BTreeMap<Vec<u8>, LocalFid>) {
    // Removing "." is allowed here; a server does not do that.
    let faults = directory.check();
    assert!(faults.iter().all(|fault| matches!(fault, Fault::NoDot | Fault::NoDotDot)), "{faults:?}");
    let entries: BTreeMap<Vec<u8>, LocalFid> =
        directory.entries().map(|Entry { name, fid, .. }| (name.to_vec(), fid)).collect();
    assert_eq!(&entries, model);
    assert!(model.iter().all(|(name, fid)| directory.lookup(name).is_some_and(|entry| entry.fid == *fid)));
    assert_eq!(Directory::parse(directory.bytes()).map(|read| read.pages()), Ok(directory.pages()));
}

/// Reads and changes pages that may be anything.
fn read(shape: Shape, pages: Vec<u8>) -> Shape {
    let mut directory = match Directory::parse(pages) {
        Ok(directory) => directory,
        Err(error) => return shape.with(4).with(error.to_string().as_bytes()[0].into()),
    };
    let faults = directory.check();
    let names: Vec<Vec<u8>> = directory.entries().map(|entry| entry.name.to_vec()).collect();
    let found = names.iter().filter(|name| directory.lookup(name).is_some()).count();
    if faults.is_empty() {
        assert_eq!(found, names.len(), "what stands in a slot is on its chain");
    }
    let mut shape = shape.with_count(names.len()).with_count(found).with_count(directory.pages());
    for fault in faults.iter().take(3) {
        shape = shape.with(fault.to_string().len() as u64 / 4);
    }
    for name in names.iter().take(20) {
        directory.remove(name);
    }
    for name in names.iter().take(20).map(|name| [name, &b"'"[..]].concat()) {
        let is_new = directory.lookup(&name).is_none();
        if directory.insert(&name, LocalFid::ROOT).is_ok() {
            assert!(is_new);
            assert_eq!(
                directory.lookup(&name).map(|entry| entry.fid),
                Some(LocalFid::ROOT),
                "what was made is found"
            );
        }
    }
    drop(directory.check());
    shape.with(directory.is_empty().into())
}

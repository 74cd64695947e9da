//! Access lists: as text, and as a dump has them. What is read writes back as something that reads the same.

use crate::shape::Shape;
use afs_wire::acl::{Acl, AclError, AclText, ENTRIES_MAX, NAME_MAX, STORED_SIZE};
use afs_wire::ids::ViceId;

/// See the module.
pub fn run(input: &[u8]) -> u64 {
    let shape = match AclText::parse(input) {
        Err(error) => Shape::EMPTY.with(kind(error)),
        Ok(acl) => {
            assert!(acl.positive.len() + acl.negative.len() <= ENTRIES_MAX);
            let shape = Shape::EMPTY.with_count(acl.positive.len()).with_count(acl.negative.len());
            match acl.to_bytes() {
                Ok(text) => {
                    assert_eq!(AclText::parse(&text).as_ref(), Ok(&acl));
                    shape.with(1)
                }
                // Bytes that are no text grow when they become some.
                Err(error) => {
                    let longest = acl.positive.iter().chain(&acl.negative).map(|(name, _)| name.len()).max();
                    assert!(error == AclError::TooLong || longest > Some(NAME_MAX), "{error} {acl:?}");
                    shape.with(2)
                }
            }
        }
    };
    let Some(stored) = input.first_chunk::<STORED_SIZE>() else { return shape.feature() };
    match Acl::from_stored(stored) {
        Err(error) => shape.with(kind(error)).feature(),
        Ok(acl) => {
            let again = acl.to_stored().expect("no more entries than were read");
            assert_eq!(Acl::from_stored(&again).as_ref(), Ok(&acl));
            let mut everybody: Vec<ViceId> = acl.positive.iter().map(|(id, _)| *id).collect();
            everybody.sort_unstable();
            let rights = acl.rights_of(&everybody);
            shape
                .with(3)
                .with_count(acl.positive.len())
                .with_count(acl.negative.len())
                .with(rights.is_empty().into())
                .feature()
        }
    }
}

fn kind(error: AclError) -> u64 {
    match error {
        AclError::TooLong => 10,
        AclError::NotTerminated => 11,
        AclError::BadNumber { word } => 12 + word.min(2) as u64,
        AclError::LongName { .. } => 16,
        AclError::MissingEntries => 17,
        AclError::TooManyEntries => 18,
        AclError::BadHeader => 19,
    }
}

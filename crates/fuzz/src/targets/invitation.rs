//! The line of an invitation, as people copy and type it. With an odd first byte its checksum is right, whatever stands before it.

use crate::shape::Shape;
use afs_join::{Invitation, LineError, PORT, fuzzing};

/// See the module.
pub fn run(input: &[u8]) -> u64 {
    let Some((mode, text)) = input.split_first() else { return Shape::EMPTY.feature() };
    let mut text = String::from_utf8_lossy(text).into_owned();
    if mode % 2 == 1 {
        text = fuzzing::with_checksum(&text);
    }
    let shape = Shape::EMPTY.with(u64::from(mode % 2));
    let shape = match text.parse::<Invitation>() {
        Ok(invitation) => {
            assert_eq!(invitation.to_line().parse(), Ok(invitation.clone()), "a line reads back");
            let others = invitation.servers.iter().filter(|server| server.port() != PORT).count();
            let cell = invitation.cell.as_str().len();
            shape.with(1).with_count(invitation.servers.len()).with_count(others).with_count(cell)
        }
        Err(LineError::Malformed(what)) => shape.with(2).with(what.len() as u64),
        Err(LineError::NoInvitation) => shape.with(3),
        Err(LineError::OtherForm) => shape.with(4),
        Err(LineError::CutShort) => shape.with(5),
        Err(LineError::Mistyped) => shape.with(6),
    };
    shape.feature()
}

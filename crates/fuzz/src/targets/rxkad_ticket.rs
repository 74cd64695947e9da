//! Tickets: as they come, and the content of those that were encrypted with the right key. The first byte says which.

use crate::shape::Shape;
use rx_security::keys::{EncType, Key, KeySet};
use rx_security::ticket::{self, Form, KVNO_ENCRYPTED_DATA, KVNO_TICKET, NameRules, TicketError};
use rx_security::time::UnixTime;

/// The time when all of the corpus is good.
const NOW: UnixTime = UnixTime(1_795_000_000);

/// See the module.
pub fn run(input: &[u8]) -> u64 {
    let Some((mode, bytes)) = input.split_first() else { return Shape::EMPTY.feature() };
    let rules = NameRules { allow_dotted: mode & 0x80 != 0 };
    let keys = || {
        KeySet::of([
            Key::rxkad_krb5(2, EncType::AES256, &[7; 32]),
            Key::rxkad_krb5(2, EncType::RC4, &[7; 16]),
            Key::rxkad(2, [7; 8]),
        ])
        .expect("good keys")
    };
    let result = match mode % 5 {
        0 => ticket::open(&keys(), KVNO_ENCRYPTED_DATA, bytes, NOW, rules),
        1 => ticket::open(&keys(), KVNO_TICKET, bytes, NOW, rules),
        2 => ticket::open(&keys(), 2, bytes, NOW, rules),
        3 => ticket::read(Form::V4, bytes, NOW, rules),
        _ => ticket::read(Form::Kerberos, bytes, NOW, rules),
    };
    let shape = Shape::EMPTY.with(u64::from(mode % 5));
    match result {
        Ok(opened) => {
            assert!(opened.start < opened.end);
            assert!(!opened.name.is_empty() || mode % 5 == 4);
            let parts = [&opened.name, &opened.instance, &opened.realm];
            assert!(parts.iter().all(|part| part.len() <= rx_security::identity::PART_MAX));
            parts.iter().fold(shape.with(1), |shape, part| shape.with_count(part.len())).feature()
        }
        Err(error) => {
            drop(error.to_string());
            let text = if let TicketError::Bad(text) = error { text.len() } else { 0 };
            shape.with(error.code().0 as u64).with(text as u64).feature()
        }
    }
}

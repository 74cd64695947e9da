//! Tokens of rxgk: as they come, the content of those that were sealed with the right key, and what a cache manager adds to an answer. The
//! first byte says which, and in which dialect.

use crate::shape::Shape;
use rx_security::keys::{EncType, Key, KeySet};
use rx_security::rxgk::{self, AppData, Dialect, Fault};

/// See the module.
pub fn run(input: &[u8]) -> u64 {
    let Some((mode, bytes)) = input.split_first() else { return Shape::EMPTY.feature() };
    let dialect = Dialect::ALL[usize::from(mode % 2)];
    let shape = Shape::EMPTY.with(u64::from(mode % 6));
    let refused = |fault: Fault| shape.with(fault.code(dialect).0 as u64).with(fault as u64);
    let content = match mode % 6 / 2 {
        0 => {
            let keys =
                rxgk::ENCTYPES.map(|kind| Key::rxgk(2, kind, &vec![7; kind.key_len().expect("it is known")]));
            rxgk::open(&KeySet::of(keys).expect("good keys"), dialect, bytes)
        }
        1 => rxgk::read(dialect, bytes),
        _ => {
            let shape = AppData::parse(dialect, bytes).map_or_else(refused, |data| {
                assert_eq!(AppData::parse(dialect, &data.to_bytes(dialect)), Ok(data.clone()));
                let token = data.callback.as_ref().map_or(0, |callback| callback.token.len());
                shape.with(1).with_count(data.capabilities.len()).with_count(token)
            });
            return shape.feature();
        }
    };
    let shape = content.map_or_else(refused, |content| {
        assert!(rxgk::ENCTYPES.contains(&content.secret.kind()));
        assert_eq!(content.secret.kind().key_len(), Some(content.secret.bytes().len()));
        let kind = EncType(content.secret.kind().0).0 as u64;
        let names = content.names.iter().map(|name| name.data.len() + name.display.len()).sum::<usize>();
        shape.with(kind).with(content.level.number().into()).with_count(content.names.len()).with_count(names)
    });
    shape.feature()
}

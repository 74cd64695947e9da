//! Tokens for devices that have joined the cell (Join notes): made with the cell's key for rxgk, of ten hours, and with the device's
//! number, by which servers tell a device that was revoked.

use std::sync::Arc;
use std::time::Duration;

use afs_celldb::devices::{Granted, NoToken, Randomness, TokenFor, TokenMaker};
use afs_wire::join::JoinK0;
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use rx_security::keys::{EncType, KeyType};
use rx_security::rxgk::{self, AuthName, Content, Dialect, ENCTYPES, RxgkTime, Secret};
use rx_security::{Identity, KeySet, Level, UnixTime};
use zeroize::Zeroizing;

/// How long a token is good. Devices ask for the next one before.
const LIFE: Duration = Duration::from_secs(10 * 3600);

/// How long a transport key is used, in seconds, and for how many bytes, as a power of two: as in other tokens of ours.
const KEY_LIFETIME: u32 = 36_000;
const KEY_BYTELIFE: u32 = 30;

/// Makes tokens with the newest key there is at the time.
pub(crate) fn token_maker(
    keys: impl Fn() -> Arc<KeySet> + Send + Sync + 'static,
    cell: String,
    randomness: Randomness,
) -> TokenMaker {
    Arc::new(move |wanted| make(&keys(), &cell, wanted, &randomness))
}

fn make(keys: &KeySet, cell: &str, wanted: &TokenFor, randomness: &Randomness) -> Result<Granted, NoToken> {
    let failed = |what: String| NoToken::Cell(what);
    let key = keys
        .newest(KeyType::RXGK)
        .ok_or_else(|| failed("the cell has no key for rxgk: 'afar key new' makes one".to_owned()))?;
    let mut kinds = wanted.enctypes.iter().map(|kind| EncType(*kind));
    let kind = kinds.find(|kind| ENCTYPES.contains(kind)).ok_or(NoToken::Enctype)?;
    let who = Identity::parse(&wanted.user).filter(|who| !who.is_local_superuser());
    let who = who.ok_or_else(|| failed(format!("'{}' is no name of a user", wanted.user)))?;
    let seed = randomness().map_err(|error| failed(format!("there are no random bytes: {error}")))?;
    let mut rng = StdRng::from_seed(*Zeroizing::new(seed));
    let mut bytes = Zeroizing::new(vec![0; kind.key_len().ok_or(NoToken::Enctype)?]);
    rng.fill_bytes(&mut bytes);
    let secret = Secret::new(kind, &bytes).ok_or(NoToken::Enctype)?;
    let now = UnixTime(wanted.now);
    let content = Content {
        secret,
        level: Level::Crypt,
        start: RxgkTime::of(now),
        lifetime: KEY_LIFETIME,
        bytelife: KEY_BYTELIFE,
        end: RxgkTime::of(now.plus(LIFE)),
        names: vec![AuthName::of_device(&who, cell, wanted.device)],
    };
    let dialect = Dialect::OURS;
    let token = rxgk::seal(key, dialect, &content, &mut rng);
    let token = token.ok_or_else(|| failed("the cell's key for rxgk is of no use".to_owned()))?;
    Ok(Granted {
        dialect: u32::from(dialect.index().0),
        enctype: kind.0,
        level: content.level.number(),
        lifetime: content.lifetime,
        bytelife: content.bytelife,
        expiration: content.end.0,
        secret: JoinK0(content.secret.bytes().to_vec()),
        token,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rx_security::keys::Key;

    const TODAY: u32 = 1_700_000_000;

    fn wanted(user: &str, enctypes: &[i32]) -> TokenFor {
        TokenFor { user: user.to_owned(), device: 7, enctypes: enctypes.to_vec(), now: TODAY }
    }

    fn keys() -> KeySet {
        KeySet::of([Key::rxgk(2, EncType::AES256, &[7; 32])]).unwrap()
    }

    fn make(keys: &KeySet, wanted: &TokenFor) -> Result<Granted, NoToken> {
        let randomness: Randomness = Arc::new(|| Ok([3; 32]));
        super::make(keys, "lab.test", wanted, &randomness)
    }

    #[test]
    fn a_devices_token_is_of_its_user_and_has_its_number_and_ends_after_ten_hours() {
        let granted = make(&keys(), &wanted("alice", &[1, 17, 18])).unwrap();
        let content = rxgk::open(&keys(), Dialect::OURS, &granted.token).unwrap();
        assert_eq!(content.secret.bytes(), granted.secret.0);
        assert_eq!((granted.dialect, granted.enctype, granted.level), (4, 17, 2));
        assert_eq!(content.names[0].data, AuthName::of_principal("alice@LAB.TEST").data);
        assert_eq!(content.names[0].device(), Some(7));
        assert!(content.check_times(UnixTime(TODAY + 36_000)).is_ok());
        assert!(content.check_times(UnixTime(TODAY + 36_001)).is_err());
    }

    #[test]
    fn no_token_is_made_for_the_superuser_or_without_a_key() {
        assert!(matches!(make(&keys(), &wanted("afs", &[18])), Err(NoToken::Cell(_))));
        assert!(matches!(make(&KeySet::new(), &wanted("alice", &[18])), Err(NoToken::Cell(_))));
        assert_eq!(make(&keys(), &wanted("alice", &[1, 23])).unwrap_err(), NoToken::Enctype);
    }
}

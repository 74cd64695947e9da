//! The older form of ticket, Kerberos 4's: a few strings and numbers under DES-PCBC (Security notes 3.6). It is made where a cell
//! has DES keys only.

use super::{Opened, SessionKey, TICKET_MIN, TicketError};
use crate::des;
use crate::identity::PART_MAX;
use crate::keys::{EncType, Key, KeySet, KeyType};
use crate::time::UnixTime;
use zeroize::Zeroizing;

/// One step of a short life, in seconds.
const LIFE_STEP: u32 = 5 * 60;
/// The first life that is not a number of steps but a place in [`LONG_LIVES`].
const LONG_LIFE: u8 = 128;
/// A life without end.
const LIFE_FOR_EVER: u8 = 255;
/// Long lives in seconds, from 10 hours 40 minutes to 30 days, each 7 percent longer than the one before.
const LONG_LIVES: [u32; 64] = [
    38_400, 41_055, 43_894, 46_929, 50_174, 53_643, 57_352, 61_318, 65_558, 70_091, 74_937, 80_119, 85_658,
    91_581, 97_914, 104_684, 111_922, 119_661, 127_935, 136_781, 146_239, 156_350, 167_161, 178_720, 191_077,
    204_289, 218_415, 233_517, 249_664, 266_926, 285_383, 305_116, 326_213, 348_769, 372_885, 398_668,
    426_234, 455_705, 487_215, 520_904, 556_921, 595_430, 636_601, 680_618, 727_680, 777_995, 831_789,
    889_303, 950_794, 1_016_537, 1_086_825, 1_161_973, 1_242_318, 1_328_218, 1_420_057, 1_518_247, 1_623_226,
    1_735_464, 1_855_462, 1_983_758, 2_120_925, 2_267_576, 2_424_367, 2_592_000,
];

/// Decrypts a ticket with the DES key of this version. Whether it was the right one shows in what comes out.
pub(super) fn decrypt(keys: &KeySet, kvno: i32, ticket: &[u8]) -> Result<Zeroizing<Vec<u8>>, TicketError> {
    let key = keys.get(KeyType::RXKAD, kvno, 0).ok_or(TicketError::UnknownKey { kvno, kind: EncType(0) })?;
    if !ticket.len().is_multiple_of(des::BLOCK_LEN) {
        return Err(TicketError::Bad("not a whole number of DES blocks"));
    }
    let mut plain = Zeroizing::new(ticket.to_vec());
    des::decrypt_pcbc(des_key(key), &mut plain);
    Ok(plain)
}

/// Reads what was decrypted.
pub(super) fn read(content: &[u8]) -> Result<Opened, TicketError> {
    parse(content).ok_or(TicketError::Bad("its DES key is another one, or it is damaged"))
}

/// Makes a ticket. `None` if the names are not those of one.
pub(super) fn make(key: &Key, content: &Opened) -> Option<Vec<u8>> {
    let mut out = Zeroizing::new(Vec::with_capacity(TICKET_MIN + 6 * (PART_MAX + 1)));
    out.push(0); // numbers follow with their most significant byte first
    for part in [&content.name, &content.instance, &content.realm] {
        put_text(&mut out, part)?;
    }
    out.extend_from_slice(&[0; 4]); // of no particular host
    out.extend_from_slice(&content.session_key.bytes());
    out.push(life(content.start, content.end));
    out.extend_from_slice(&content.start.0.to_be_bytes());
    put_text(&mut out, "afs")?;
    put_text(&mut out, "")?;
    let len = out.len().next_multiple_of(des::BLOCK_LEN).max(TICKET_MIN);
    out.resize(len, 0);
    let mut ticket = out.to_vec();
    des::encrypt_pcbc(des_key(key), &mut ticket);
    Some(ticket)
}

fn des_key(key: &Key) -> [u8; 8] {
    key.secret[..].try_into().expect("a set takes DES keys of eight bytes only")
}

fn parse(mut plain: &[u8]) -> Option<Opened> {
    let rest = &mut plain;
    let &[flags] = take::<1>(rest)?;
    if flags != 0 {
        return None; // 1: a host with its least significant byte first, of which none has AFS
    }
    let [name, instance, realm] = [text(rest)?, text(rest)?, text(rest)?];
    if name.is_empty() {
        return None;
    }
    take::<4>(rest)?;
    let session_key = SessionKey::new(*take::<8>(rest)?);
    let &[life] = take::<1>(rest)?;
    let start = UnixTime(u32::from_be_bytes(*take::<4>(rest)?));
    let _service = [text(rest)?, text(rest)?];
    // Padding up to the block, or to the shortest ticket.
    if rest.len() >= TICKET_MIN {
        return None;
    }
    let end = end(start, life);
    Some(Opened { session_key, name, instance, realm, start, end })
}

fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (head, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    Some(head)
}

/// A string that ends with a zero byte.
fn text(rest: &mut &[u8]) -> Option<String> {
    let len = rest.iter().take(PART_MAX + 1).position(|byte| *byte == 0)?;
    let text = std::str::from_utf8(&rest[..len]).ok()?.to_owned();
    *rest = &rest[len + 1..];
    Some(text)
}

fn put_text(out: &mut Vec<u8>, text: &str) -> Option<()> {
    if text.len() > PART_MAX || text.contains('\0') {
        return None;
    }
    out.extend_from_slice(text.as_bytes());
    out.push(0);
    Some(())
}

/// The end of a life that begins then.
fn end(start: UnixTime, life: u8) -> UnixTime {
    let seconds = match life {
        LIFE_FOR_EVER => return UnixTime::NEVER,
        LONG_LIFE.. => LONG_LIVES[usize::from(life - LONG_LIFE).min(LONG_LIVES.len() - 1)],
        _ => u32::from(life) * LIFE_STEP,
    };
    UnixTime(start.0.saturating_add(seconds))
}

/// The shortest life that lasts to the end, or else the longest.
fn life(start: UnixTime, end: UnixTime) -> u8 {
    if end == UnixTime::NEVER {
        return LIFE_FOR_EVER;
    }
    let seconds = end.0.saturating_sub(start.0);
    let short = seconds.div_ceil(LIFE_STEP);
    if short < u32::from(LONG_LIFE) {
        return short as u8;
    }
    let place = LONG_LIVES.iter().position(|life| *life >= seconds).unwrap_or(LONG_LIVES.len() - 1);
    LONG_LIFE + place as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 8] = [1, 2, 4, 7, 8, 11, 13, 14];
    const SESSION: [u8; 8] = [0xef, 2, 4, 7, 8, 11, 13, 0x10];

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
    }

    fn opened(name: &str, instance: &str, realm: &str, start: u32, end: u32) -> Opened {
        Opened {
            session_key: SessionKey::new(SESSION),
            name: name.into(),
            instance: instance.into(),
            realm: realm.into(),
            start: UnixTime(start),
            end: UnixTime(end),
        }
    }

    fn open(keys: &KeySet, kvno: i32, ticket: &[u8]) -> Result<Opened, TicketError> {
        read(&decrypt(keys, kvno, ticket)?)
    }

    /// Made by OpenAFS 1.8.9's own library.
    #[test]
    fn openafs_tickets_open() {
        let keys = KeySet::of([Key::rxkad(3, KEY)]).unwrap();
        let ticket =
            bytes("854b39e7fd5fbc8c69cfb9c84b4324ada807afcaf4a92a40a95c8aa77ea454b5c82137a9e3cda9f3");
        assert_eq!(open(&keys, 3, &ticket), Ok(opened("afs", "", "lab.test", 0, u32::MAX)));
        let ticket = bytes(
            "0e19f8dcd8b0ada4436f89fec099205da5485e239466239cca1d0ff96cb9ef6e2582cc35c2d1e00e3af713710f679f4249267c53b9b94b08",
        );
        let want = opened("user1", "admin", "LAB.TEST", 1_000_000_000, 1_000_036_000);
        assert_eq!(open(&keys, 3, &ticket), Ok(want));
        assert_eq!(open(&keys, 4, &ticket), Err(TicketError::UnknownKey { kvno: 4, kind: EncType(0) }));
    }

    /// The last block differs, as OpenAFS leaves its padding to chance.
    #[test]
    fn a_ticket_of_ours_is_openafs_ticket() {
        let content = opened("afs", "", "lab.test", 0, u32::MAX);
        let made = make(&Key::rxkad(3, KEY), &content).unwrap();
        assert_eq!(made[..32], bytes("854b39e7fd5fbc8c69cfb9c84b4324ada807afcaf4a92a40a95c8aa77ea454b5"));
        assert_eq!(made.len(), 40);
        assert_eq!(open(&KeySet::of([Key::rxkad(3, KEY)]).unwrap(), 3, &made), Ok(content));
    }

    #[test]
    fn lives_are_those_of_openafs() {
        for (seconds, want) in [
            (0, 0),
            (40_000, 129),
            (80_000, 139),
            (160_000, 150),
            (360_000, 162),
            (680_000, 171),
            (760_000, 173),
        ] {
            assert_eq!(life(UnixTime(1000), UnixTime(1000 + seconds)), want, "{seconds} s");
            assert!(end(UnixTime(1000), want).0 >= 1000 + seconds);
        }
        assert_eq!(end(UnixTime(1000), 200), UnixTime(2_593_000));
        let shown: Vec<u32> =
            (0..64).map(|i| (38_400.0 * 67.5f64.powf(f64::from(i) / 63.0)).round() as u32).collect();
        assert!(
            shown.iter().zip(LONG_LIVES).all(|(a, b)| a.abs_diff(b) <= 1),
            "the table is the series it is said to be"
        );
    }
}

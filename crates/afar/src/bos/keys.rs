//! `bos listkeys` and `removekey`: the keys of DES of a machine's servers, which are all that an overseer is asked for.

use super::{Bos, FAILURE, LIST_MAX, tell_if_cut, words};
use crate::classic::Given;
use crate::codes::Code;
use crate::dates::date_of;
use crate::numbers;
use crate::printer::{complain, say};
use afs_wire::bos::{DeleteKey, ListKeys};
use jiff::tz::TimeZone;
use serde_json::json;

pub(super) fn list(bos: &Bos, _given: &Given) -> u8 {
    let mut keys = Vec::new();
    let mut changed = 0;
    for index in 0..LIST_MAX {
        match bos.call(&ListKeys { index }) {
            Ok(reply) => {
                let (kvno, checksum) = (reply.kvno, reply.info.key_checksum);
                changed = changed.max(reply.info.mod_sec.0);
                match checksum {
                    _ if bos.json => {}
                    0 => say!(bos.printer, "key version is {kvno}\n"),
                    checksum => say!(bos.printer, "key {kvno} has cksum {checksum}\n"),
                }
                keys.push(json!({ "kvno": kvno, "checksum": (checksum != 0).then_some(checksum) }));
            }
            Err(Code::BZDOM) => break,
            Err(code) => {
                complain!(bos.printer, "bos: {} error encountered while listing keys\n", words(code));
                // So it is with OpenAFS's.
                return 0;
            }
        }
    }
    tell_if_cut(bos, keys.len());
    if bos.json {
        bos.printer.say_json(&json!({ "keys": keys }));
        return 0;
    }
    if changed != 0 {
        say!(bos.printer, "Keys last changed on {}.\n", date_of(i64::from(changed), &TimeZone::system()));
    }
    bos.printer.say("All done.\n");
    0
}

pub(super) fn remove(bos: &Bos, given: &Given) -> u8 {
    for word in given.words("kvno") {
        let removed = match numbers::parse_i32(word) {
            Ok(kvno) => bos.call(&DeleteKey { kvno }).map(drop),
            Err(error) => {
                complain!(bos.printer, "bos: {error}\n");
                return FAILURE;
            }
        };
        if let Err(code) = removed {
            complain!(bos.printer, "bos: failed to delete key {word} ({})\n", words(code));
            return FAILURE;
        }
    }
    0
}

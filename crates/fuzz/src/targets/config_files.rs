//! OpenAFS's configuration files, and the server's own: which of them is in the first byte. An error names a line that there is,
//! and what is written from what was read is read as the same.

use crate::shape::Shape;
use afs_config::{
    AddressRules, AfsConf, BosConfig, CacheInfo, CellAliases, CellServDb, ConfigError, RealmFiles, ThisCell,
    UserList,
};
use std::mem::{Discriminant, discriminant};
use std::net::Ipv4Addr;
use std::path::Path;

/// See the module.
pub fn run(input: &[u8]) -> u64 {
    let Some((mode, bytes)) = input.split_first() else { return Shape::EMPTY.feature() };
    let (text, path) = (String::from_utf8_lossy(bytes), Path::new("F"));
    let shape = Shape::EMPTY.with(u64::from(mode % 10));
    let parsed = match mode % 10 {
        0 => CellServDb::parse(&text, path).map(|db| {
            assert_eq!(CellServDb::parse(&db.to_string(), path).as_ref(), Ok(&db), "we read what we write");
            db.cells.len() + db.cells.iter().map(|cell| cell.servers.len()).sum::<usize>()
        }),
        1 => ThisCell::parse(&text, path).map(|cell| cell.0.as_str().len()),
        2 => CellAliases::parse(&text, path).map(|aliases| aliases.aliases.len()),
        3 => Ok(UserList::parse(&text).users.len()),
        4 => AddressRules::parse(&text, path).map(|rules| {
            let address = Ipv4Addr::new(10, 0, 0, 1);
            let chosen = AddressRules::select(Some(&rules), None, &[address]);
            assert_eq!(chosen.contains(&address), rules.matches(address));
            assert!(
                AddressRules::select(None, Some(&rules), &[address]).is_empty() == rules.matches(address)
            );
            rules.rules.len()
        }),
        5 => Ok(RealmFiles::parse(&text, &text).realms.len()),
        6 => BosConfig::parse(&text, path).map(|config| config.bnodes.len()),
        7 => CacheInfo::parse(&text, path).map(|info| info.size_kib.checked_ilog2().unwrap_or(0) as usize),
        8 => {
            let mut conf = AfsConf::default();
            conf.parse(&text, path).and_then(|()| conf.options()).map(|options| discriminant_of(&options))
        }
        _ => {
            return match afs_server::Config::parse(&text, path) {
                Ok(config) => shape.with(1).with_count(config.server.roles.len()).feature(),
                Err(error) => {
                    drop(error.to_string());
                    shape.with(2).feature()
                }
            };
        }
    };
    match parsed {
        Ok(count) => shape.with(100).with_count(count).feature(),
        Err(error) => {
            let ConfigError { line, problem, .. } = &error;
            assert!(line.is_none_or(|line| (1..=text.lines().count()).contains(&line)), "{error}");
            drop(error.to_string());
            shape.with_count(line.unwrap_or(0)).with(number_of(discriminant(problem))).feature()
        }
    }
}

fn discriminant_of(options: &afs_config::AfsdOptions) -> usize {
    match options {
        afs_config::AfsdOptions::Automatic => 0,
        afs_config::AfsdOptions::Words(words) => 1 + words.len(),
    }
}

/// A number for a kind of problem.
fn number_of<T>(kind: Discriminant<T>) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    kind.hash(&mut hasher);
    hasher.finish()
}

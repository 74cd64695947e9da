//! `cacheinfo`: where a client mounts, where it caches, and how much.

use std::path::{Path, PathBuf};

use crate::error::{ConfigError, Problem};
use crate::text;

/// `cacheinfo`: one line, `MOUNT:CACHE:KIB`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheInfo {
    /// The path where AFS is mounted.
    pub mount: PathBuf,
    /// The folder of the cache.
    pub cache: PathBuf,
    /// Its limit, in KiB.
    pub size_kib: u64,
}

impl CacheInfo {
    /// The first line that says something.
    ///
    /// # Errors
    ///
    /// When it has not three fields, or the last is no number.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let (number, line) =
            text::lines(text).next().ok_or_else(|| ConfigError::new(path, None, Problem::Empty))?;
        let fields: Vec<&str> = line.split(':').map(str::trim).collect();
        let &[mount, cache, size] = &fields[..] else {
            let problem = Problem::Fields { expected: "MOUNT:CACHE:KIB", found: fields.len() };
            return Err(ConfigError::new(path, number, problem));
        };
        let of = "the size of the cache in KiB";
        let size_kib = size
            .parse()
            .map_err(|_| ConfigError::new(path, number, Problem::Number { of, found: size.to_owned() }))?;
        Ok(Self { mount: mount.into(), cache: cache.into(), size_kib })
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// When it cannot be read, and as [`Self::parse`].
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(&text::read(path)?, path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cacheinfo_has_three_fields() {
        let path = Path::new("F");
        let info = CacheInfo::parse("/afs:/var/cache/openafs:50000\n", path).unwrap();
        assert_eq!(
            info,
            CacheInfo { mount: "/afs".into(), cache: "/var/cache/openafs".into(), size_kib: 50_000 }
        );
        let problem = Problem::Fields { expected: "MOUNT:CACHE:KIB", found: 2 };
        assert_eq!(CacheInfo::parse("\n/afs:/x", path), Err(ConfigError::new(path, 2, problem)));
        let error = CacheInfo::parse("/afs:/x:10G", path).unwrap_err();
        assert_eq!(error.to_string(), "F, line 1: the size of the cache in KiB is expected, not '10G'");
        assert_eq!(CacheInfo::parse("", path), Err(ConfigError::new(path, None, Problem::Empty)));
    }
}

//! The errors of VL's procedures (VLDB notes 8).

use std::fmt;

use crate::database::ChangeError;
use crate::ubik::NO_QUORUM;

macro_rules! codes {
    ($($(#[$meta:meta])* $offset:literal $name:ident $sentence:literal)*) => {
        /// The reason why a procedure was refused; the numbers are behind the error table's base, 363520.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum VlError {
            $( #[doc = $sentence] $name, )*
            /// The store of the databases has no quorum (Ubik's UNOQUORUM, which has clients ask the next server).
            NoQuorum,
        }

        impl VlError {
            /// The code of the abort.
            pub const fn code(self) -> i32 {
                match self {
                    $( Self::$name => BASE + $offset, )*
                    Self::NoQuorum => NO_QUORUM.0,
                }
            }
        }

        impl fmt::Display for VlError {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $( Self::$name => $sentence, )*
                    Self::NoQuorum => "the store of the databases has no quorum; nothing was changed",
                })
            }
        }
    };
}

/// Where VL's error table begins.
const BASE: i32 = 363_520;

codes! {
    0 IdExists "a volume has this id already"
    1 Io "the database could not be read or written"
    2 NameExists "a volume has this name already"
    3 CreateFailed "there is no room for another entry"
    4 NoEntry "there is no such entry"
    6 EntryDeleted "the entry is deleted"
    7 BadName "this is no name of a volume"
    9 BadVolumeType "this is no type of a volume"
    10 BadServer "the servers of the entry are wrong, or no server more can be known"
    11 BadPartition "this is no number of a partition"
    12 SitesFull "there is no room for another site or server"
    13 NoSite "the volume has no such site"
    14 DuplicateSite "the volume has this site already"
    17 SizeExceeded "there are more entries than can be returned at once"
    18 BadEntry "the id of the read-write volume cannot be changed"
    19 BadIdBump "so many ids cannot be given out"
    20 IdAlreadyHashed "another volume has this id already"
    21 EntryLocked "the entry is locked"
    22 BadOperation "this is no operation on a volume"
    23 BadReleaseType "this is no way to release a lock"
    24 Rerelease "a release of the volume was not finished"
    25 BadServerFlag "these are no flags of a site"
    26 Permission "only a superuser may do this"
    29 IndexRange "the index is out of range"
    30 MultipleAddresses "other servers have these addresses"
    31 BadMask "the mask asks for none or more than one"
}

impl From<ChangeError> for VlError {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::NoQuorum(error) => {
                tracing::debug!(database = "VLDB", %error, "a change was refused");
                Self::NoQuorum
            }
            ChangeError::Store(_) | ChangeError::Reload(_) | ChangeError::Contended => {
                tracing::error!(database = "VLDB", %error, "a change was not made, or it is not known whether it was");
                Self::Io
            }
        }
    }
}

impl std::error::Error for VlError {}

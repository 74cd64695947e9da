//! The errors of PR's procedures (PTDB notes 7).

use std::fmt;

use crate::database::ChangeError;
use crate::ubik::NO_QUORUM;

macro_rules! codes {
    ($($offset:literal $name:ident $sentence:literal)*) => {
        /// The reason why a procedure was refused; the numbers are behind the error table's base, 267264.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum PtError {
            $( #[doc = $sentence] $name, )*
            /// The store of the databases has no quorum (Ubik's UNOQUORUM, which has clients ask the next server).
            NoQuorum,
        }

        impl PtError {
            /// The code of the abort.
            pub const fn code(self) -> i32 {
                match self {
                    $( Self::$name => BASE + $offset, )*
                    Self::NoQuorum => NO_QUORUM.0,
                }
            }
        }

        impl fmt::Display for PtError {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $( Self::$name => $sentence, )*
                    Self::NoQuorum => "the store of the databases has no quorum; nothing was changed",
                })
            }
        }
    };
}

/// Where PR's error table begins.
const BASE: i32 = 267_264;

codes! {
    0 Exists "there is an entry of this name"
    1 IdExists "there is an entry of this id, or it is in the group already"
    2 NoIds "there are no free ids near the last one"
    3 DatabaseFailed "the database could not be read or written"
    4 NoEntry "there is no such entry"
    5 Permission "the caller may not do this"
    6 NotGroup "this is no group"
    7 NotUser "this is no user"
    8 BadName "this is no name that such an entry may have"
    9 BadArgument "an argument is out of range"
    10 NoMore "the quota is used up"
    12 GroupEmpty "the group that is to own it has no members"
    13 Inconsistent "an entry cannot be in itself"
    14 BadAddress "there is no entry at this place"
    15 TooMany "there is too much to be returned"
}

impl From<ChangeError> for PtError {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::NoQuorum(error) => {
                tracing::debug!(database = "PTDB", %error, "a change was refused");
                Self::NoQuorum
            }
            ChangeError::Store(_) | ChangeError::Reload(_) | ChangeError::Contended => {
                tracing::error!(database = "PTDB", %error, "a change was not made, or it is not known whether it was");
                Self::DatabaseFailed
            }
        }
    }
}

impl std::error::Error for PtError {}

//! Errors of Kerberos: the library is not there, or says that something failed. The meaning of its numbers is in
//! [`services`](crate::services).

use std::fmt;

use crate::sys::LIBRARY;

/// The reason why there is no Kerberos on this machine.
#[derive(Debug)]
pub enum Unusable {
    /// The library is not there, or lacks something.
    Missing(libloading::Error),
    /// It cannot read its configuration.
    Configuration(Error),
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(error) => write!(
                f,
                "MIT Kerberos's library {LIBRARY} cannot be used: {error}; install it, on Debian with 'apt-get install libkrb5-3 krb5-user'"
            ),
            Self::Configuration(error) => {
                write!(f, "Kerberos's configuration (krb5.conf) cannot be used: {error}")
            }
        }
    }
}

impl std::error::Error for Unusable {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Missing(error) => Some(error),
            Self::Configuration(error) => Some(error),
        }
    }
}

/// The library's error when something fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// Its number; [`services`](crate::services) has names for some.
    pub code: i32,
    /// Its words.
    pub text: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {}

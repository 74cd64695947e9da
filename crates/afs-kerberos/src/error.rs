//! Errors of Kerberos: the library is not there, or says that something failed. The meaning of its numbers is in
//! [`services`](crate::services).

use crate::sys::LIBRARY;

/// The reason why there is no Kerberos on this machine.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// The library is not there, or lacks something.
    #[error(
        "MIT Kerberos's library {LIBRARY} cannot be used: {0}; install it, on Debian with 'apt-get install libkrb5-3 krb5-user'"
    )]
    Missing(#[source] libloading::Error),
    /// It cannot read its configuration.
    #[error("Kerberos's configuration (krb5.conf) cannot be used: {0}")]
    Configuration(#[source] Error),
}

/// The library's error when something fails.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Error {
    /// Its number; [`services`](crate::services) has names for some.
    pub code: i32,
    /// Its words.
    pub text: String,
}

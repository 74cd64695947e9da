//! As whom a command calls servers: as nobody, or, with `-localauth`, as the cell's own superuser, whose tickets are made
//! from the key in the servers' configuration folder.

use crate::codes::Code;
use rx_proto::security::{Null, SecurityClass};
use std::path::Path;

/// As whom, and how well protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wish {
    /// `-noauth`.
    pub(crate) noauth: bool,
    /// `-localauth`.
    pub(crate) localauth: bool,
    /// Whether what is said is to be encrypted.
    pub(crate) encrypt: bool,
}

/// What makes the security of connections.
pub(crate) struct Login {
    make: Box<dyn Fn() -> Box<dyn SecurityClass>>,
    /// Whether servers know by whom they are called.
    pub(crate) is_authenticated: bool,
}

impl Login {
    /// Nobody.
    pub(crate) fn anonymous() -> Self {
        Self { make: Box::new(|| Box::new(Null)), is_authenticated: false }
    }

    /// As wished, as far as that is possible: a caller without tokens is nobody. The folder is that of the servers'
    /// configuration, where the key is.
    pub(crate) fn new(wish: Wish, folder: &Path) -> Result<Self, Code> {
        if wish.noauth || !wish.localauth {
            return Ok(Self::anonymous());
        }
        let _ = folder;
        Err(Code::ACFG_NO_SECURITY_CLASS)
    }

    /// The security of one more connection.
    pub(crate) fn security(&self) -> Box<dyn SecurityClass> {
        (self.make)()
    }
}

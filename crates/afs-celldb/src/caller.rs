//! The caller, as the databases need to know it. An [`Authority`] that the server supplies decides what the name
//! of a connection means in this cell; here it is only used.

use std::fmt;
use std::net::SocketAddr;

/// The caller of a procedure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The caller's name, for the PTDB.
    pub identity: Identity,
    /// True if the caller may administer servers: by UserList, by the cell's key, or since the server asks nobody for
    /// authentication (`-noauth`). The VLDB asks for this alone.
    pub is_superuser: bool,
}

/// A caller's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Nobody in particular.
    Anonymous,
    /// A holder of the cell's own key, as `-localauth` is: the principal `afs`.
    Cell,
    /// A user of this cell: `name` or `name.instance`, in lower case.
    Local(String),
    /// A user of another cell: `name@cell`, in lower case.
    Foreign(String),
}

impl Caller {
    /// Nobody in particular.
    pub const ANONYMOUS: Self = Self { identity: Identity::Anonymous, is_superuser: false };
}

/// Knows who callers are.
pub trait Authority: fmt::Debug + Send + Sync + 'static {
    /// The caller at `peer`, whom the security class calls `security` (empty: nobody in particular).
    fn caller(&self, peer: SocketAddr, security: &str) -> Caller;

    /// True if users of this realm are users of the cell, so that `NAME@REALM` is `NAME`.
    fn is_local_realm(&self, realm: &str) -> bool;

    /// True if nobody is asked for authentication (`-noauth`): everyone may do everything then.
    fn is_noauth(&self) -> bool;
}

/// Takes everyone for a superuser, as servers do that are started with `-noauth`: for tests, and for repairs.
#[derive(Clone, Copy, Debug)]
pub struct NoAuth;

impl Authority for NoAuth {
    fn caller(&self, _peer: SocketAddr, _security: &str) -> Caller {
        Caller { identity: Identity::Anonymous, is_superuser: true }
    }

    fn is_local_realm(&self, _realm: &str) -> bool {
        false
    }

    fn is_noauth(&self) -> bool {
        true
    }
}

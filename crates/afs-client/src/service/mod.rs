//! Requests to the client from outside of the mount. `cmdebug` looks in ([`debug`]) on the
//! client's UDP port. `fs` and `tokens` come through the control socket ([`control`]), and ask about volumes and servers
//! ([`volumes`]), cells and aliases ([`administer`]) and access lists ([`acl`]).
//!
//! The answers come from what the other folders keep; nothing is kept here.

mod acl;
mod administer;
pub mod control;
mod debug;
pub mod volumes;

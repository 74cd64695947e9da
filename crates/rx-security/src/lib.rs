//! The security classes of AFS for Rx, and the keys and tickets that they need: today rxkad (index 2) at all its levels, with
//! Kerberos 5 tickets and those that are made from a cell's key. What a class has to do is said in `rx_proto::security`.
//!
//! * [`keys`]: the keys of a cell, from OpenAFS's KeyFileExt, KeyFile and rxkad.keytab;
//! * [`ticket`]: tickets, as a server opens them and as they are made from a key ([`ticket::local_superuser`]);
//! * [`rxkad`]: the class, [`rxkad::Client`] and [`rxkad::Server`];
//! * [`identity`]: who a caller is, as service code reads it from `ServerCall::identity`.
//!
//! Left to others: tokens of users (they come from a Kerberos client), lists of superusers, and what a caller may do. Facts are
//! from docs/notes/security.md, cited as "Security notes". The crate reads no clock and makes no random numbers: both come in.
//!
//! # What to open for a change
//!
//! - The class rxkad: [`rxkad`](mod@rxkad) and the modules under it. `rx_proto::security` is the trait.
//! - Which tickets are accepted, and how the cell's own are made: [`ticket`], which has a module for each form of
//!   ticket.
//! - Principals, names, superusers, and the caller with the cell's key: [`identity`].
//! - Files of keys: [`keys`].
//! - Ciphers: [`fcrypt`] (rxkad's; `cargo run --release -p rx-security --example crypt_speed` measures it),
//!   [`kerberos`] (Kerberos's).
#![forbid(unsafe_code)]

mod des;
mod fcrypt;
pub mod identity;
mod kdf;
mod kerberos;
pub mod keys;
pub mod rxkad;
pub mod ticket;
pub mod time;

pub use identity::Identity;
pub use keys::KeySet;
pub use rxkad::Level;
pub use ticket::Token;
pub use time::UnixTime;

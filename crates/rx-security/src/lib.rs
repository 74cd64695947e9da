//! The security classes of AFS for Rx, and the keys, tickets and tokens that they need: rxkad (index 2) with Kerberos 5 tickets and
//! those that are made from a cell's key, and rxgk (index 4, and 6 in its other dialect) with tokens that are made from such a key;
//! each at all its levels. What a class has to do is said in `rx_proto::security`.
//!
//! * [`keys`]: the keys of a cell, from OpenAFS's KeyFileExt, KeyFile and rxkad.keytab;
//! * [`ticket`]: tickets, as a server opens them and as they are made from a key ([`ticket::local_superuser`]);
//! * [`rxkad`]: the class, [`rxkad::Client`] and [`rxkad::Server`];
//! * [`rxgk`]: the class, [`rxgk::Client`] and [`rxgk::Server`], and its tokens;
//! * [`gss`]: Kerberos's GSS-API mechanism, with which a client gets such a token;
//! * [`linux_key`]: a user's tokens as Linux's own AFS client takes them;
//! * [`identity`]: who a caller is, as service code reads it from `ServerCall::identity`.
//!
//! Left to others: tokens of users (they come from a Kerberos client), lists of superusers, and what a caller may do. Facts are
//! from docs/notes/security.md, cited as "Security notes", and docs/notes/rxgk.md, cited as "rxgk notes". The crate reads no clock
//! and makes no random numbers: both come in.
//!
//! # What to open for a change
//!
//! - The class rxkad: [`rxkad`](mod@rxkad) and the modules under it. `rx_proto::security` is the trait.
//! - The class rxgk: [`rxgk`](mod@rxgk) and the modules under it; its packets are in `rxgk/transport.rs`, its tokens in
//!   `rxgk/token.rs`.
//! - How a client of rxgk shows a Kerberos ticket to get a token: [`gss`].
//! - Which tickets are accepted, and how the cell's own are made: [`ticket`], which has a module for each form of
//!   ticket.
//! - Principals, names, superusers, and the caller with the cell's key: [`identity`].
//! - Files of keys: [`keys`].
//! - Ciphers: [`fcrypt`] (rxkad's), [`kerberos`] (Kerberos's, and rxgk's). `cargo run --release -p rx-security --example
//!   crypt_speed` measures both.
#![forbid(unsafe_code)]

mod des;
mod fcrypt;
pub mod gss;
pub mod identity;
mod kdf;
mod kerberos;
pub mod keys;
pub mod linux_key;
pub mod rxgk;
pub mod rxkad;
pub mod ticket;
pub mod time;

pub use identity::Identity;
pub use keys::KeySet;
pub use rxkad::Level;
pub use ticket::Token;
pub use time::UnixTime;

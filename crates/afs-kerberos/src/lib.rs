//! Kerberos for users of AFS: which tickets are asked for ([`services`]), what a user is called in a cell ([`Principal`]), and the tickets
//! themselves, from MIT Kerberos's own library ([`Kerberos`]).
//!
//! The library is opened when it is needed, so a program that can use it also runs on machines without it. Everything that is Kerberos's is
//! left to it: krb5.conf, all kinds of credential caches, referrals, other realms. What a client makes of a ticket is left to
//! `rx_security`.
//!
//! # What to open for a change
//!
//! - Which tickets `aklog` asks for: [`services`]. What users are called in a cell: [`principal`].
//! - Calls of MIT Kerberos's library: [`sys`], and nowhere else.

#![deny(unsafe_code)]

mod error;
mod library;
mod principal;
pub mod services;
mod sys;

pub use error::{Error, Unusable};
pub use library::{Ticket, TicketLife};
pub use principal::Principal;
pub use sys::{Cache, Credentials, Kerberos};

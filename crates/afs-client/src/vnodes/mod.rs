//! Vnodes and the callback promises that servers give for them: what is known of one, for how long and for whom ([`vnode`]); the table of
//! them ([`table`]); where volumes are mounted ([`mounts`]); asking for a status and setting it ([`attributes`]); waiting for a status that somebody has asked for already
//! ([`single_flight`]); and a status as programs see it ([`status`]). After a time in which the client did not run, no promise is
//! believed ([`suspended`]).
//!
//! Names in directories are left to `names`, bytes of files to `data`. Breaks of promises arrive in `service`.

pub(crate) mod attributes;
pub(crate) mod mounts;
pub(crate) mod single_flight;
pub(crate) mod status;
pub(crate) mod suspended;
pub(crate) mod table;
pub(crate) mod vnode;

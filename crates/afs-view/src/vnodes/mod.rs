//! Vnodes and the callback promises that servers give for them: what is known of one, for how long and for whom ([`vnode`]); the table of
//! them ([`table`]); the numbers of what was made here ([`local_ids`]); where volumes are mounted ([`mounts`]); asking for a status and setting it ([`attributes`]); waiting for a status that somebody has asked for already
//! ([`single_flight`]); and a status as programs see it ([`status`]). Which of them have changed since they were kept for the next run: `keeping`. After a time in which the client did not run, no promise is
//! believed ([`suspended`]).
//!
//! Names in directories are left to `names`, bytes of files to `data`. Breaks of promises arrive in `afs-client`.

pub mod attributes;
pub(crate) mod keeping;
pub mod local_ids;
pub mod mounts;
pub mod single_flight;
pub mod status;
pub mod suspended;
pub mod table;
pub mod vnode;

//! Names: looking them up ([`lookup`]), the pages of directories ([`directory`]) and which of them are listed next ([`walk`]), making,
//! renaming and removing entries ([`changes`]), the texts of links ([`links`]), crossing mount points into other volumes
//! ([`mount_point`]), and the directories that the client makes up, of cells ([`dynroot`]) and of snapshots ([`snapshots`]).
//!
//! What a name stands for is a fid; its status is left to `vnodes`. A file that is open and loses its last name is kept in `data`.

pub mod changes;
pub mod directory;
pub mod dynroot;
pub mod links;
pub mod lookup;
pub mod mount_point;
pub mod snapshots;
mod walk;

#[cfg(test)]
mod tests;

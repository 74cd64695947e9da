//! `afar-backup` with the servers of `afar up`, and with Debian's restic on what it wrote. `make` has to have built afar's program in the main
//! workspace (`scripts/test.sh` does): the servers are processes of it. The tests of repositories elsewhere are those of `make nightly`: they
//! take minutes.

mod backups;
mod damage;
mod for_user;
mod lab;
mod no_room;
mod openafs;
mod paths;
mod restores;
#[cfg(feature = "remote")]
mod s3;
#[cfg(feature = "remote")]
mod sshfs;
mod together;

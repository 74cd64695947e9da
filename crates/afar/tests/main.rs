//! The tests of this crate that use it from outside: one program, so that it is linked once and waits overlap.

#[macro_use(require, until)]
extern crate afs_lab;

mod aklog;
mod attacks;
mod bos;
mod cache_disk;
mod captured;
mod crashes;
mod database_files;
mod disk;
mod dns;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "etcd")]
mod etcd_cell;
#[cfg(feature = "etcd")]
mod etcd_faults;
#[cfg(feature = "etcd")]
mod etcd_history;
mod faults;
mod fs;
mod fsck;
mod habits;
mod homes;
mod interrupted;
mod interrupted_motion;
mod join;
mod kafs;
mod kept_open;
mod kerberos;
mod killed;
mod klog;
mod link;
#[cfg(feature = "etcd")]
mod machines;
mod memory;
mod monitoring;
mod motion;
mod motion_killed;
mod motion_resumed;
mod mounted;
mod ordinary_user;
mod pags;
mod parm;
mod pin;
mod posix;
mod random_files;
mod releases;
mod restore;
mod rights;
mod rounds;
mod rxdebug;
mod rxgk;
mod server;
mod small_cell;
mod snapshots;
mod store_behind;
mod systemd;
mod together;
mod token_ends;
mod tokens;
mod top;
mod two_servers;
mod unprivileged;
mod up;
mod user_snapshots;
mod work;

//! For the fuzz targets: the overseer's service by itself, of a cell that is nowhere. No part of what the crate offers.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use afs_celldb::rx_service;
use afs_config::{BosConfig, Cell, CellName, DbServer, RealmFiles};
use afs_wire::bos::Bozo;
use afs_wire::ids::AfsTime;
use rx::ServiceConfig;
use rx_proto::security::ServerSecurity;
use rx_security::keys::Key;
use rx_security::{KeySet, Level, UnixTime, rxkad};

use crate::authority::CellAuthority;
use crate::bozo::Overseer;
use crate::bozo::instances::Instances;
use crate::classes::Classes;
use crate::config::Role;
use crate::log::Recent;
use crate::orders::Orders;

/// The service of an overseer of all roles, whose superusers are in the folder's UserList.
///
/// # Panics
///
/// What is built in here is wrong.
pub fn overseer(folder: &Path, security: Vec<Arc<dyn ServerSecurity>>) -> ServiceConfig {
    let name = CellName::new("fuzz.test").expect("it is one");
    let servers = vec![
        DbServer { address: Ipv4Addr::new(10, 0, 0, 1), name: None, is_clone: false },
        DbServer { address: Ipv4Addr::new(10, 0, 0, 2), name: Some("db2".to_owned()), is_clone: true },
    ];
    let authority = CellAuthority::new(name.clone(), RealmFiles::parse("", ""), folder);
    let instances = Instances::new(&Role::ALL, "afar", folder.join("stopped"), || AfsTime(1));
    let instances = instances.expect("there is no such file");
    let keys = KeySet::of([Key::rxkad(1, [7; 8])]).expect("a good key");
    let options = rxkad::ServerOptions::of_cell("fuzz.test");
    let overseer = Overseer {
        authority: Arc::new(authority),
        cell: Cell { name, linked: None, comment: None, servers },
        cells: folder.join("CellServDB"),
        changes_cells: Arc::default(),
        recent: Recent::default(),
        audit_file: folder.join("audit.log"),
        orders: Orders::default(),
        classes: Classes::new(keys, options, Level::Crypt, Arc::new(|| UnixTime(1)), [1; 32]),
        instances: Arc::new(instances),
        salvager: Arc::default(),
        program: PathBuf::from("afar"),
        bos_config: BosConfig::default(),
    };
    rx_service::<Bozo, _>(Arc::new(overseer), security)
}

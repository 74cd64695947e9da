//! File servers of one kind in a cell of the other: each registers in the other's VLDB, has volumes made on it by the stock
//! tools, and keeps files.

use std::sync::Arc;

use afar_interop::cell::{Machine, Servers};
use afar_interop::lab::Lab;
use afar_interop::suite::{Case, Trouble, Verdict, Weight};
use afs_lab::caller::{AccessList, Credentials};
use afs_wire::ids::AfsFid;

use crate::scene::{Scene, told};

/// All cases of this module.
pub(crate) fn cases(lab: &Arc<Lab>) -> Vec<Case> {
    type Kind = fn(&Lab) -> Result<Servers, Trouble>;
    let stock: Kind = |_| Ok(Servers::Stock);
    let ours: Kind = |lab| lab.our_servers();
    let pairs = [("ours_in_stock", stock, ours), ("stock_in_ours", ours, stock)];
    let case = |(name, cell, joins): (&str, Kind, Kind)| {
        let lab = Arc::clone(lab);
        Case::new(format!("mixed/{name}"), Weight::Waiting, move || check(&lab, &cell(&lab)?, joins(&lab)?))
    };
    pairs.into_iter().map(case).collect()
}

fn check(lab: &Lab, cell: &Servers, joins: Servers) -> Verdict {
    let scene = Scene::new(lab, cell)?;
    let address = scene.cell.join(3, &Machine::new(joins))?;
    let listed = scene.cell.expect("vos listaddrs -noresolve -localauth")?;
    for wanted in ["10.88.0.1", "10.88.0.3"] {
        if !listed.lines().any(|line| line.trim() == wanted) {
            return Err(format!("vos listaddrs does not show {wanted}: {listed:?}").into());
        }
    }
    let volume =
        scene.volume(address, "far", &AccessList::granting([("system:anyuser", AccessList::WRITE)]))?;
    for (command, wanted) in [
        ("vos listvldb -name far -localauth", "server fs3 partition /vicepa RW Site"),
        ("vos listvol 10.88.0.3 -localauth", "On-line"),
        ("vos examine far -localauth", "On-line"),
        ("vos partinfo 10.88.0.3 -localauth", "/vicepa"),
    ] {
        let said = scene.cell.expect(command)?;
        if !said.contains(wanted) {
            return Err(format!("{command} does not say {wanted:?}: {said}").into());
        }
    }
    scene.at_clients(async || {
        let client = scene.client()?;
        let server = client.file_server(address, &Credentials::Anonymous);
        let made = server.create_file(AfsFid::root_of(volume), "f").await.map_err(told("making a file"))?;
        let bytes = vec![5; 100_000];
        server.store(made.fid, 0, bytes.clone(), 100_000).await.map_err(told("storing"))?;
        let fetched = server.fetch(made.fid, 0, 1 << 20).await.map_err(told("fetching"))?;
        server.give_up_all().await.map_err(told("giving up callbacks"))?;
        if fetched == bytes { Ok(()) } else { Err("other bytes came back".to_owned().into()) }
    })?;
    let removed = scene.cell.expect("vos remove 10.88.0.3 a far -localauth")?;
    let left = scene.cell.expect("vos listvol 10.88.0.3 -localauth")?;
    if left.contains("far ") {
        return Err(format!("the volume is still there after {removed:?}: {left}").into());
    }
    Ok(())
}

//! `vos move`, `copy`, `shadow`, `release` and `convertROtoRW` between two servers: what the database says is there, with all that was written,
//! and nothing else.

use crate::two_servers::{TwoServers, fill, has};
use afs_wire::abort;
use afs_wire::errno::Errno;
use afs_wire::ids::{AfsFid, VolumeId};
use rx_security::Level;
use rxgen::Abort;

const LENGTHS: [usize; 4] = [0, 1, 5000, 3_000_000];

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_moves_between_servers_and_partitions_with_all_that_is_in_it() {
    let mut cell = TwoServers::new("motion-move");
    let volume = cell.create("ONE", "v");
    let mut written = fill(&cell.files(0), volume, &LENGTHS).await;
    cell.does("backup v");
    let moves = [
        ("ONE a TWO a", "TWO /vicepa RW", 1),
        ("TWO a TWO b -live", "TWO /vicepb RW", 1),
        ("TWO b ONE b -live", "ONE /vicepb RW", 0),
        ("ONE b ONE a", "ONE /vicepa RW", 0),
    ];
    for (n, (way, site, server)) in moves.into_iter().enumerate() {
        let said = cell.does(&format!("move v {way} -verbose"));
        assert!(said.contains(&format!("Volume {volume} moved from")), "{said}");
        cell.agree(way);
        assert_eq!(cell.sites("v"), [site]);
        let files = cell.files(server);
        has(&files, volume, &written, way).await;
        let new = files.create_file(AfsFid::root_of(volume), &format!("after {n}")).await.unwrap().fid;
        files.store(new, 0, vec![n as u8; 70_000], 70_000).await.unwrap();
        written.push((new, vec![n as u8; 70_000]));
    }
    let said = cell.fails("move v ONE a ONE a");
    assert!(said.contains("to its home partition ignored"), "{said}");
    // A script repeats a move until it succeeds, also if the one that succeeded could not say so.
    let said = cell.does("move v TWO a ONE a");
    assert!(said.contains(&format!("Volume {volume} moved from")), "{said}");
    assert!(cell.fails("move v TWO a TWO b").contains("cannot access volume"));
    has(&cell.files(0), volume, &written, "after moves that are none").await;
    cell.agree("after moves that are none");
    cell.check("after moves");
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_and_shadows_have_what_the_volume_has() {
    let mut cell = TwoServers::new("motion-copy");
    let volume = cell.create("ONE", "v");
    let written = fill(&cell.files(0), volume, &LENGTHS).await;
    for (n, options) in ["", " -live"].into_iter().enumerate() {
        let said = cell.json(&format!("copy v ONE a copy{n} TWO b{options}"));
        let copy = VolumeId(said["copy_id"].as_u64().unwrap() as u32);
        has(&cell.files(1), copy, &written, options).await;
        cell.agree("after a copy");
    }
    assert!(cell.fails("copy v ONE a copy0 TWO a").contains("already exists"));
    // A shadow has no entry; its id is that of another volume of the database.
    let other = cell.create("ONE", "other");
    cell.does("zap ONE a other");
    cell.does("shadow v ONE a TWO a -toname other");
    has(&cell.files(1), other, &written, "a shadow").await;
    let new = cell.files(0).create_file(AfsFid::root_of(volume), "later").await.unwrap().fid;
    let said = cell.does("shadow v ONE a TWO a -toname other -incremental -verbose");
    assert!(said.contains("Getting status of pre-existing volume"), "{said}");
    has(&cell.files(1), other, &[(new, Vec::new())], "a shadow that was brought up to date").await;
    has(&cell.files(1), other, &written, "a shadow that was brought up to date").await;
    cell.check("after copies");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_reaches_all_sites_and_one_that_was_dead_gets_the_next() {
    let mut cell = TwoServers::new("motion-release");
    let volume = cell.create("ONE", "v");
    let mut written = fill(&cell.files(0), volume, &LENGTHS).await;
    assert!(cell.fails("release v").contains("has no replicas - release operation is meaningless!"));
    for server in ["ONE", "TWO"] {
        cell.does(&format!("addsite {server} a v"));
    }
    // What is older than two seconds at a release is not sent again at the next.
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    let replica = VolumeId(
        cell.json("release v")["released"]
            .as_u64()
            .map_or(0, |_| cell.json("listvldb -name v")[0]["ro_id"].as_u64().unwrap() as u32),
    );
    cell.agree("after a release");
    let change = async |cell: &TwoServers, name: &str| {
        let files = cell.files(0);
        let new = files.create_file(AfsFid::root_of(volume), name).await.unwrap().fid;
        files.store(new, 0, vec![7; 9000], 9000).await.unwrap();
        (new, vec![7; 9000])
    };
    written.push(change(&cell, "second").await);
    let said = cell.does("release v -verbose");
    assert!(said.contains(" (as of ") && said.contains("Released volume v successfully"), "{said}");
    for server in [0, 1] {
        has(&cell.files(server), replica, &written, "after the second release").await;
    }
    cell.agree("after the second release");

    written.push(change(&cell, "third").await);
    drop(cell.servers[1].take());
    let said = cell.fails("release v");
    assert!(said.contains("could not be released to the following 1 sites"), "{said}");
    has(&cell.files(0), replica, &written, "at the site that is there").await;
    let entry = cell.json("listvldb -name v");
    assert_eq!(entry[0]["locks"].as_array().map(Vec::len), Some(0));
    cell.restart(1);
    let said = cell.does("release v -verbose");
    assert!(said.contains("This is a recovery of previously failed release"), "{said}");
    has(&cell.files(1), replica, &written, "at the site that was dead").await;
    cell.agree("after a recovery");
    written.push(change(&cell, "fourth").await);
    let said = cell.does("release v -force -verbose");
    assert!(said.contains("This will be a full dump: forced"), "{said}");
    has(&cell.files(1), replica, &written, "after a full release").await;

    // Without a replica beside the volume, the clone is only for the release.
    cell.does("remove ONE a v.readonly");
    written.push(change(&cell, "fifth").await);
    let said = cell.does("release v -verbose");
    assert!(said.contains("Creating a new temporary RO clone"), "{said}");
    has(&cell.files(1), replica, &written, "from a temporary clone").await;
    cell.agree("after a release without a replica beside the volume");

    // The volume comes to the replica, which was there before.
    cell.does("move v ONE a TWO a");
    cell.does("addsite ONE b v");
    let said = cell.does("release v -verbose");
    assert!(said.contains("Re-cloning permanent RO volume"), "{said}");
    for server in [0, 1] {
        has(&cell.files(server), replica, &written, "after the volume has moved").await;
    }
    cell.agree("after a release of a volume that has moved");
    // The replica stays when the volume moves away again, and the next release reaches it.
    cell.does("remove ONE b v.readonly");
    cell.does("move v TWO a ONE a");
    written.push(change(&cell, "sixth").await);
    cell.does("release v");
    has(&cell.files(1), replica, &written, "at a replica that stayed").await;
    cell.agree("after a release to a replica that stayed");
    cell.check("after releases");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_takes_the_place_of_a_volume_that_was_lost() {
    let mut cell = TwoServers::new("motion-convert");
    for (name, options) in [("v", ""), ("w", " -keep-ro")] {
        let volume = cell.create("ONE", name);
        let written = fill(&cell.files(0), volume, &LENGTHS).await;
        cell.does(&format!("addsite TWO a {name}"));
        cell.does(&format!("release {name}"));
        let said = cell.fails(&format!("convertROtoRW TWO a {name}"));
        assert!(said.contains("VLDB indicates that a RW volume exists already on"), "{said}");
        cell.does(&format!("zap ONE a {name}"));
        cell.does(&format!("convertROtoRW TWO a {name} -force{options}"));
        cell.agree("after a conversion");
        has(&cell.files(1), volume, &written, "after a conversion").await;
        let new = cell.files(1).create_file(AfsFid::root_of(volume), "new").await.unwrap().fid;
        cell.files(1).store(new, 0, vec![1], 1).await.unwrap();
        let sites = if options.is_empty() { 1 } else { 2 };
        assert_eq!(cell.sites(name).len(), sites);
    }
    cell.check("after conversions");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_of_level_crypt_is_read_by_encrypted_calls_alone_wherever_it_goes() {
    let mut cell = TwoServers::new("motion-level");
    let volume = cell.create("ONE", "v");
    let written = fill(&cell.files(0), volume, &LENGTHS).await;
    cell.does("backup v");
    let unset = cell.does("examine v");
    assert!(!unset.contains("Level"), "{unset}");
    assert!(cell.fails("setfields v -level secret").contains("secret is none of clear, auth and crypt"));
    cell.does("setfields v -level crypt");
    let shown = cell.does("examine v");
    assert!(shown.contains("MaxQuota          0 K \n    Level         crypt\n"), "{shown}");
    assert_eq!(cell.json("examine v.backup")["volumes"][0]["level"], "crypt");
    cell.does("addsite TWO a v");
    cell.does("release v");
    cell.does("move v ONE a TWO a");
    let readonly = VolumeId(cell.json("listvldb v")[0]["ro_id"].as_u64().unwrap().try_into().unwrap());
    for id in [volume, readonly] {
        let root = AfsFid::root_of(id);
        let refused = cell.files(1).status(root).await.unwrap_err().code().map(Abort);
        assert_eq!(refused.and_then(abort::errno), Some(Errno::EACCES), "{id}");
        let encrypted = cell.files_at(1, Level::Crypt);
        has(&encrypted, id, &written, "over encrypted connections").await;
    }
    // A dump has the level, and a volume that is made of it too.
    let file = cell.state(0).join("v.dump");
    cell.does(&format!("dump v -file {}", file.display()));
    cell.does(&format!("restore ONE b restored -file {}", file.display()));
    assert_eq!(cell.json("examine restored")["volumes"][0]["level"], "crypt");
    cell.does("setfields v -level clear");
    assert_eq!(cell.does("examine v").matches("Level").count(), 0);
    has(&cell.files(1), volume, &written, "after the level was taken").await;
    cell.check("at the end");
}

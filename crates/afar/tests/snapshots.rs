//! `vos snapshot` and `vos undelete` in a cell of two servers: what a snapshot shows and survives, and what becomes of snapshots when their volume
//! moves, is released, or goes.

use crate::two_servers::{TwoServers, fill, has, words};
use afs_wire::ids::{AfsFid, VolumeId};
use serde_json::Value;

fn id(value: &Value) -> VolumeId {
    VolumeId(value.as_u64().unwrap() as u32)
}

/// Makes a snapshot of volume v, and says its id and time. In the second of the last one there is none.
fn snapshot(cell: &TwoServers) -> (VolumeId, String) {
    loop {
        let output = cell.vos("snapshot create v --json").output().unwrap();
        if output.status.success() {
            let made: Value = serde_json::from_slice(&output.stdout).unwrap();
            return (id(&made["snapshot_id"]), made["time"].as_str().unwrap().to_owned());
        }
        let said = words(&output);
        assert!(said.contains("has a snapshot of this second already: try again"), "{said}");
    }
}

/// The ids of a volume's snapshots but for what it has left, and the servers that have them.
fn listed(cell: &TwoServers, volume: VolumeId) -> Vec<(VolumeId, String)> {
    let listed = cell.json(&format!("snapshot list {volume}"));
    let one = |snapshot: &Value| (id(&snapshot["id"]), snapshot["server"].as_str().unwrap().to_owned());
    let is_made = |snapshot: &&Value| snapshot["kind"] != "removed";
    listed["snapshots"].as_array().unwrap().iter().filter(is_made).map(one).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn old_files_are_read_from_a_snapshot_by_its_id_until_it_is_removed() {
    let mut cell = TwoServers::new("snapshots");
    let volume = cell.create("ONE", "v");
    let written = fill(&cell.files(0), volume, &[0, 5000, 3_000_000]).await;
    assert_eq!(cell.does("snapshot list v"), format!("Snapshots of volume {volume}: 0\n"));
    let (first, time) = snapshot(&cell);
    let files = cell.files(0);
    for (fid, _) in &written {
        files.store(*fid, 0, vec![9; 20_000], 20_000).await.unwrap();
    }
    let (second, later) = snapshot(&cell);
    assert!(time < later && first < second);
    has(&files, first, &written, "after a change").await;
    let changed: Vec<_> = written.iter().map(|(fid, _)| (*fid, vec![9; 20_000])).collect();
    has(&files, second, &changed, "the second").await;
    let of_first = AfsFid { volume: first, ..written[1].0 };
    assert!(files.store(of_first, 0, vec![1], 1).await.is_err(), "nobody writes into it");
    assert!(files.create_file(AfsFid::root_of(first), "new").await.is_err(), "nobody writes into it");

    let shown = cell.json("snapshot list v");
    let size = |n: usize| shown["snapshots"][n]["used_kib"].as_u64().unwrap();
    // What the first one alone has: 3,005,000 bytes, as zeros are bytes too, and rows.
    let held = shown["limit"]["held_kib"].as_u64().unwrap();
    assert!((2935..2950).contains(&held), "{held}");
    let place = format!("manual    {} /vicepa\n", cell.address(0));
    assert_eq!(
        cell.does("snapshot list v -noresolve"),
        format!(
            "Snapshots of volume {volume}: 2\n{time} {first:>10} {:>10} K {place}{later} {second:>10} {:>10} K {place}\
             They hold {held} K, without a limit (the quota)\n",
            size(0),
            size(1)
        )
    );
    let all = cell.does("listvol ONE a -snapshots");
    let line = format!("{:<32} {first:>10} {:>10} K {time} manual of {volume}\n", "v", size(0));
    assert!(all.contains("partition /vicepa: 2 \n") && all.contains(&line), "{all}");
    cell.agree("no list of volumes has them");
    let said = cell.does("examine v -noresolve");
    let told = format!("    number of snapshots -> 2 on server {} partition /vicepa\n", cell.address(0));
    let told = format!("{told}    snapshots hold {held} K, without a limit (the quota)\n");
    assert!(said.ends_with(&told), "{said}");
    assert!(
        cell.fails("snapshot remove v 2001-01-01T000000Z").contains("has no snapshot 2001-01-01T000000Z")
    );
    assert!(cell.fails("snapshot remove v yesterday").contains("'yesterday' is no time of a snapshot"));
    assert!(cell.fails("snapshot remove v").contains("say which snapshots"));
    assert!(cell.fails("snapshot publish v").contains("say which snapshots"));
    assert!(cell.fails("snapshot take v").contains("not 'take'"));
    assert!(!cell.fails(&format!("remove ONE a {first}")).is_empty());
    assert!(!cell.fails(&format!("zap ONE a {first} -force")).is_empty());

    cell.restart(0);
    let files = cell.files(0);
    has(&files, first, &written, "after kill -9").await;
    let said = cell.does(&format!("snapshot remove v {time}"));
    assert_eq!(said, format!("Removed snapshot {time} of volume {volume}\n"));
    assert_eq!(listed(&cell, volume), [(second, cell.address(0).to_string())]);
    assert!(files.fetch(of_first, 0, 10).await.is_err(), "it is gone");
    has(&files, second, &changed, "the other one stays").await;
    cell.check("at the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_makes_snapshots_by_a_schedule_that_moves_along_with_the_volume() {
    let mut cell = TwoServers::new("snapshots-schedule");
    // The second server asks the first one for ids.
    let volumes = [cell.create("ONE", "v"), cell.create("TWO", "w")];
    let shown = |own, hourly, daily| {
        let whose = if own { "its own" } else { "the server's" };
        let volume = volumes[1];
        format!(
            "Schedule of volume {volume} ({whose}): hourly {hourly}, daily {daily}, weekly 0, monthly 0\n"
        )
    };
    // And below it what they hold.
    let said = |command: &str| cell.does(command).split_inclusive('\n').next().unwrap().to_owned();
    assert_eq!(said("snapshot schedule w"), shown(false, 0, 0));
    assert_eq!(said("snapshot schedule w -daily 7"), shown(true, 0, 7));
    assert_eq!(said("snapshot schedule w -hourly 24"), shown(true, 24, 7));
    let limited = cell.does("snapshot schedule w -limit 2G");
    assert_eq!(limited, shown(true, 24, 7) + "Its snapshots hold 0 K of at most 2097152 K (its own limit)\n");
    cell.does("snapshot schedule v -monthly 1");
    assert!(cell.fails("snapshot schedule w -hourly 2048").contains("at most 2048 snapshots"));
    assert!(cell.fails("snapshot schedule w -hourly often").contains("-hourly often is no number"));
    assert!(cell.fails("snapshot schedule w -hourly 1 -default").contains("not both"));
    let made = |volume: VolumeId| {
        let listed = cell.json(&format!("snapshot list {volume}"));
        listed["snapshots"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|snapshot| snapshot["scheduled"] == true)
            .count()
    };
    for volume in volumes {
        until!(made(volume) > 0, "no snapshot of volume {volume}");
    }
    cell.does("move w TWO a ONE b");
    assert_eq!(said("snapshot schedule w"), shown(true, 24, 7));
    assert_eq!(said("snapshot schedule w -default"), shown(false, 0, 0));
    let limit = cell.json("snapshot schedule w")["limit"].clone();
    assert_eq!(
        (&limit["own"], &limit["limit_kib"]),
        (&Value::from(true), &Value::from(2 << 20)),
        "it moved along"
    );
    assert!(cell.does("snapshot schedule w -limit 0").contains(", without a limit (its own limit)\n"));
    // A quota of 0 is no limit either.
    assert!(cell.does("snapshot schedule w -limit quota").contains(", without a limit (the quota)\n"));
    assert!(cell.fails("snapshot schedule w -limit much").contains("-limit much is no size"));
    cell.check("at the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_move_along_with_their_volume_and_nothing_is_lost_without_a_word() {
    let mut cell = TwoServers::new("snapshots-move");
    let volume = cell.create("ONE", "v");
    let before = fill(&cell.files(0), volume, &[0, 5000, 3_000_000]).await;
    cell.does("addsite ONE a v");
    cell.does("release v");
    let (first, _) = snapshot(&cell);
    let files = cell.files(0);
    for (fid, _) in &before[1..] {
        files.store(*fid, 0, vec![9; 20_000], 20_000).await.unwrap();
    }
    let mut written: Vec<_> = before[1..].iter().map(|(fid, _)| (*fid, vec![9; 20_000])).collect();
    let (second, _) = snapshot(&cell);
    // One with an entry of its own stays where that says it is.
    let (third, time) = snapshot(&cell);
    cell.does(&format!("snapshot publish v {time} -name then -force"));
    let times = cell.json("snapshot list v")["snapshots"].clone();
    let said = cell.vos("move v ONE a TWO a -noresolve").output().unwrap();
    let [one, two] = [0, 1].map(|n| cell.address(n).to_string());
    let warning = format!("WARNING: snapshots of volume {volume} stay on server {one} partition /vicepa (1)");
    assert!(said.status.success() && words(&said).contains(&warning), "{}", words(&said));
    assert_eq!(listed(&cell, volume), [(first, two.clone()), (second, two.clone()), (third, one.clone())]);
    let moved = cell.json("snapshot list v")["snapshots"].clone();
    for (before, after) in times.as_array().unwrap().iter().zip(moved.as_array().unwrap()) {
        for field in ["time", "kind", "name", "used_kib", "parent_id"] {
            assert_eq!(after[field], before[field], "{field} of {after}");
        }
    }
    let said = cell.does("examine v -noresolve");
    let told = [
        format!(
            "    number of snapshots -> 1 on server {one} partition /vicepa, where the volume is no more\n"
        ),
        format!("    number of snapshots -> 2 on server {two} partition /vicepa\n"),
    ];
    assert!(told.iter().all(|line| said.contains(line)), "{said}");
    has(&cell.files(1), first, &before, "after a move").await;
    has(&cell.files(1), second, &written, "after a move").await;
    has(&cell.files(0), third, &written, "where it stayed").await;
    cell.agree("after a move");

    // The replica beside the one that stayed gets the next release: it is older, and so made anew.
    let files = cell.files(1);
    let new = files.create_file(AfsFid::root_of(volume), "new").await.unwrap().fid;
    files.store(new, 0, vec![7; 9000], 9000).await.unwrap();
    written.push((new, vec![7; 9000]));
    cell.does("release v");
    let replica = id(&cell.json("listvldb -name v")[0]["ro_id"]);
    has(&cell.files(0), replica, &written, "released beside snapshots").await;
    cell.does("release v");

    // To another partition, and without a clone back to the one where one has stayed.
    cell.does("move v TWO a TWO b");
    assert_eq!(cell.json("snapshot list v")["snapshots"][0]["partition"], "/vicepb");
    has(&cell.files(1), first, &before, "on another partition").await;
    cell.does("move v TWO b ONE a -live");
    assert_eq!(listed(&cell, volume), [first, second, third].map(|id| (id, one.clone())));
    has(&cell.files(0), first, &before, "back").await;
    cell.does(&format!("snapshot unpublish v {time}"));
    cell.does("move v ONE a TWO b");
    cell.does("move v TWO b ONE a");
    assert_eq!(listed(&cell, volume), [first, second, third].map(|id| (id, one.clone())));
    cell.restart(0);
    has(&cell.files(0), first, &before, "after kill -9").await;
    cell.does("backup v");
    cell.agree("after moves");

    // Removed, the volume leaves them; who wants that has them removed.
    cell.does("remove ONE a v.readonly");
    let output = cell.vos("remove -id v -noresolve").output().unwrap();
    let warning = format!("stay on server {one} partition /vicepa (3)");
    assert!(output.status.success() && words(&output).contains(&warning), "{}", words(&output));
    assert_eq!(listed(&cell, volume).len(), 3);
    let dump = cell.state(0).join("dump");
    cell.does(&format!("dump {first} -server ONE -partition a -file {}", dump.display()));
    cell.does(&format!("restore ONE a again -file {} -overwrite full", dump.display()));
    let again = id(&cell.json("listvldb -name again")[0]["rw_id"]);
    has(&cell.files(0), again, &before, "after the volume was removed").await;
    let said = cell.json(&format!("remove ONE a {volume} -snapshots"));
    assert_eq!((&said["removed_snapshots"], &said["undelete_until"]), (&Value::from(4), &Value::Null));
    assert_eq!(listed(&cell, volume), []);
    assert!(!cell.fails(&format!("remove ONE a {volume} -snapshots")).is_empty(), "there is nothing left");
    cell.check("at the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_volume_comes_back_with_its_name_its_id_and_its_entry() {
    let mut cell = TwoServers::new("undelete");
    let volume = cell.create("TWO", "v");
    let written = fill(&cell.files(1), volume, &[0, 5000, 3_000_000]).await;
    cell.does("backup v");
    cell.does("addsite ONE a v");
    cell.does("release v");
    let before = cell.json("listvldb -name v")[0].clone();
    let said = cell.does("remove -id v");
    let until =
        said.split_once("can be brought back until ").unwrap().1.split_once(": vos undelete").unwrap().0;
    let listed = cell.does("listvol TWO a -snapshots");
    assert!(listed.contains(&format!(" removed of {volume} until {until}\n")), "{listed}");
    cell.agree("while it is removed");
    assert!(cell.fails("undelete w").contains("keeps a removed volume w"));
    cell.restart(1);
    let said = cell.does("undelete v -noresolve");
    let two = cell.address(1);
    assert_eq!(said, format!("Volume {volume} (v) is back on server {two} partition /vicepa\n"));
    let after = cell.json("listvldb -name v")[0].clone();
    for field in ["name", "rw_id", "ro_id", "rw_exists", "ro_exists"] {
        assert_eq!(after[field], before[field], "{field}");
    }
    assert_eq!(cell.sites("v").len(), 2, "the replica has stayed");
    cell.agree("after it came back");
    has(&cell.files(1), volume, &written, "after it came back").await;
    cell.does("backup v");
    cell.does("release v");
    let new = cell.files(1).create_file(AfsFid::root_of(volume), "new").await.unwrap().fid;
    cell.files(1).store(new, 0, vec![1], 1).await.unwrap();

    // The name, and then also the id, are another volume's meanwhile.
    cell.does("remove ONE a v.readonly");
    cell.does(&format!("zap TWO a {volume}"));
    cell.does("remove -id v");
    let other = cell.create("ONE", "v");
    let said = cell.fails(&format!("undelete {volume}"));
    assert!(
        said.contains(&format!("volume {other} is called v now: bring volume {volume} back under")),
        "{said}"
    );
    let said = cell.json(&format!("undelete {volume} -toname v.old"));
    assert_eq!((id(&said["id"]), &said["name"]), (volume, &Value::from("v.old")));
    cell.does("remove -id v.old");
    cell.does(&format!("create TWO b w -id {volume}"));
    let said = cell.fails("undelete v.old");
    assert!(said.contains(&format!("another volume has the ID {volume} by now")), "{said}");
    let again = id(&cell.json("undelete v.old -toname v.new")["id"]);
    assert!(![volume, other].contains(&again));
    cell.agree("beside others");
    let again_there: Vec<_> =
        written.iter().map(|(fid, data)| (AfsFid { volume: again, ..*fid }, data.clone())).collect();
    has(&cell.files(1), again, &again_there, "as another volume").await;
    cell.check("at the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_has_moved_leaves_nothing_and_one_removed_twice_is_told_apart() {
    let mut cell = TwoServers::new("undelete-moved");
    let volume = cell.create("ONE", "v");
    cell.does("move v ONE a TWO a");
    cell.does("move v TWO a TWO b");
    let left = |server: &str| {
        let listed = cell.json(&format!("listvol {server} -snapshots"));
        listed["snapshots"].as_array().unwrap().len()
    };
    assert_eq!((left("ONE"), left("TWO")), (0, 0));
    cell.does("remove -id v");
    cell.does(&format!("create ONE a v -id {volume}"));
    cell.does("remove -id v");
    assert_eq!((left("ONE"), left("TWO")), (1, 1));
    let said = cell.fails("undelete v -noresolve");
    assert!(said.contains("several removed volumes are kept that fit v"), "{said}");
    let listed = cell.json("listvol TWO -snapshots");
    let time = listed["snapshots"][0]["time"].as_str().unwrap();
    assert!(said.contains(&format!("    {volume} removed {time} {} /vicepb\n", cell.address(1))), "{said}");
    cell.does(&format!("undelete v -time {time} -server TWO"));
    assert_eq!(cell.sites("v"), ["TWO /vicepb RW"]);
    cell.does("remove -id v -snapshots");
    assert_eq!((left("ONE"), left("TWO")), (1, 0), "what is given up goes at once");
    cell.check("at the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_published_snapshot_has_a_name_and_an_entry_until_they_are_taken_back() {
    let mut cell = TwoServers::new("publish");
    let volume = cell.create("ONE", "v");
    let written = fill(&cell.files(0), volume, &[0, 5000]).await;
    let (first, time) = snapshot(&cell);
    let (second, later) = snapshot(&cell);
    let said = cell.fails(&format!("snapshot publish v {time}"));
    assert!(
        said.contains("can read it there again") && said.contains("aborted"),
        "who says nothing says no: {said}"
    );
    assert!(
        cell.fails(&format!("snapshot publish v {time} -name v -force"))
            .contains("is called v: give another name")
    );
    assert!(
        cell.fails(&format!("snapshot publish v {time} -name v.backup -force"))
            .contains("is no name for a volume")
    );
    assert!(
        cell.fails(&format!("snapshot publish v {time} {later} -force")).contains("the time of one snapshot")
    );
    assert!(cell.fails(&format!("snapshot unpublish v {time}")).contains("is not published"));
    let said = cell.does(&format!("snapshot publish v {time} -name then -force"));
    assert_eq!(said, format!("Published snapshot {time} of volume {volume} as then\n"));
    let said = cell.json(&format!("snapshot publish v {later} -force"));
    assert_eq!(said["published_as"], Value::from(format!("v.{second}")));
    cell.agree("with published snapshots");
    assert_eq!(id(&cell.json("listvldb -name then")[0]["rw_id"]), first);
    assert_eq!(cell.sites("then"), ["ONE /vicepa RW"]);
    has(&cell.files(0), first, &written, "published").await;
    let listed = cell.does("snapshot list v");
    assert!(listed.contains(" published ") && listed.contains(" as then\n"), "{listed}");
    assert!(cell.does("examine then").contains("then"));
    let said = cell.fails(&format!("snapshot publish v {time} -name other -force"));
    assert!(said.contains("is published as then already"), "{said}");

    // What would change or remove it says how that is done.
    let said = cell.fails(&format!("snapshot remove v {time}"));
    assert!(
        said.contains(&format!("is published as then: 'vos snapshot unpublish {volume} {time}' first")),
        "{said}"
    );
    let said = cell.fails("remove -id then");
    assert!(said.contains(&format!("volume {first} is snapshot {time} of volume {volume}")), "{said}");
    for refused in ["backup then", "release then", "move then ONE a TWO a"] {
        assert!(!cell.fails(refused).is_empty());
    }
    // Neither is taken for wrong by what compares servers and database.
    for sync in ["syncvldb ONE", "syncserv ONE", "syncvldb ONE -volume then"] {
        cell.does(sync);
    }
    cell.agree("after syncs");
    cell.restart(0);
    has(&cell.files(0), first, &written, "after kill -9").await;
    // It outlives the volume, and comes to no harm when that is renamed.
    cell.does("rename v w");
    let said = cell.does(&format!("snapshot unpublish w {later}"));
    assert_eq!(said, format!("Snapshot {later} of volume {volume} is not published any more\n"));
    let listed = cell.json("snapshot list w");
    assert_eq!(
        (&listed["snapshots"][1]["kind"], &listed["snapshots"][1]["name"]),
        (&Value::from("manual"), &Value::from("w"))
    );
    let output = cell.vos("remove -id w -snapshots").output().unwrap();
    assert!(words(&output).contains("is published as then"), "{}", words(&output));
    assert_eq!(listed_ids(&cell, volume), [first]);
    has(&cell.files(0), first, &written, "without the volume").await;
    cell.agree("without the volume");
    cell.does(&format!("snapshot unpublish {volume} {time}"));
    cell.does(&format!("snapshot remove {volume} {time}"));
    cell.agree("at the end");
    cell.check("at the end");
}

fn listed_ids(cell: &TwoServers, volume: VolumeId) -> Vec<VolumeId> {
    listed(cell, volume).into_iter().map(|(id, _)| id).collect()
}

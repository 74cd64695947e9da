//! What volumes say of themselves while they are used, cloned and cloned again, by OpenAFS's servers and by ours: the same, number
//! by number. And what is asked of file servers that hardly anybody asks.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use afar_interop::cell::{ADDRESS, Servers};
use afar_interop::lab::Lab;
use afar_interop::suite::{Case, Trouble, Verdict, Weight};
use afs_lab::caller::{AccessList, Client, Credentials, Error};
use afs_wire::afsvol::{ListOneVolume, VolintInfo};
use afs_wire::ids::{AfsFid, Name, PartitionId, VolumeId};
use afs_wire::rxafs::{GetVolumeInfo, NGetVolumeInfo};

use crate::scene::{Scene, told};

/// Dates have seconds.
const NEXT_SECOND: Duration = Duration::from_millis(2100);

/// All cases of this module.
pub(crate) fn cases(lab: &Arc<Lab>) -> Vec<Case> {
    type Check = fn(&Lab) -> Verdict;
    let checks: [(&str, Check); 3] = [
        ("volumes/count_their_files_and_changes_alike", |lab| alike(lab, counts)),
        ("volumes/are_told_of_by_file_servers_alike", |lab| alike(lab, info)),
        ("volumes/are_found_in_volserlog_by_the_same_words", |lab| alike(lab, logged)),
    ];
    let case = |(name, check): (&str, Check)| {
        let lab = Arc::clone(lab);
        Case::new(name, Weight::Waiting, move || check(&lab))
    };
    checks.into_iter().map(case).collect()
}

/// Has both tell, and compares.
fn alike(lab: &Lab, tell: fn(&Scene) -> Result<Vec<String>, Trouble>) -> Verdict {
    let stock = tell(&Scene::new(lab, &Servers::Stock)?)?;
    let ours = tell(&Scene::new(lab, &lab.our_servers()?)?)?;
    if stock == ours && stock.len() > 2 {
        return Ok(());
    }
    let lines = |told: &[String]| told.iter().map(|line| format!("    {line}\n")).collect::<String>();
    Err(format!("stock:\n{}ours:\n{}", lines(&stock), lines(&ours)).into())
}

/// A volume's header as the volume server lists it.
async fn listed(client: &Client, volid: VolumeId) -> Result<VolintInfo, Trouble> {
    let server = client.volume_server(ADDRESS, &Credentials::Anonymous);
    let listed = server.rpc(&ListOneVolume { partition: PartitionId(0), volid }).await;
    let entries = listed.map_err(told("listing a volume"))?.entries;
    entries.into_vec().pop().ok_or_else(|| "an empty list".to_owned().into())
}

/// What does not depend on when it was.
fn numbers(info: &VolintInfo) -> String {
    let (name, files, changes) =
        (String::from_utf8_lossy(info.name.text()).into_owned(), info.filecount, info.spare2);
    let ids = [info.parent_id, info.clone_id, info.backup_id].map(|id| id.0);
    format!("{name}: {files} files, {changes} changes, {} KiB, parent, clone and backup {ids:?}", info.size)
}

/// How the dates follow each other.
fn dates(of: &VolintInfo, original: &VolintInfo) -> String {
    let order = |a: afs_wire::ids::AfsTime, b: afs_wire::ids::AfsTime| match a.0.cmp(&b.0) {
        std::cmp::Ordering::Less => "before",
        std::cmp::Ordering::Equal => "with",
        std::cmp::Ordering::Greater => "after",
    };
    format!(
        "created {} the original, copied {} it was created, backed up {} it was created, the original {} that; changed {} the original",
        order(of.creation_date, original.creation_date),
        order(of.copy_date, of.creation_date),
        order(of.backup_date, of.creation_date),
        order(original.backup_date, of.backup_date),
        order(of.update_date, original.update_date),
    )
}

fn counts(scene: &Scene) -> Result<Vec<String>, Trouble> {
    let volume = scene.volume(ADDRESS, "counted", &AccessList::granting([("alice", AccessList::ALL)]))?;
    let mut told_of = scene.at_clients(async || {
        let client = scene.client()?;
        let alice = scene.files(&client, &scene.user("alice")?);
        let root = AfsFid::root_of(volume);
        let mut lines = Vec::new();
        let version = alice.status(root).await.map_err(told("the root's status"))?.data_version;
        lines.push(format!("the root begins with version {version}"));
        macro_rules! after {
            ($what:literal, $call:expr) => {{
                let done = $call.await.map_err(told($what))?;
                lines.push(format!("{}: {}", $what, numbers(&listed(&client, volume).await?)));
                done
            }};
        }
        after!("its list", alice.access_list(root));
        let file = after!("a file", alice.create_file(root, "a")).fid;
        after!("its data", alice.store(file, 0, b"abc".as_slice(), 3));
        after!("its mode", alice.chmod(file, 0o600));
        after!("a directory", alice.make_dir(root, "d"));
        after!("a link", alice.symlink(root, "s", "target"));
        after!("another name", alice.rename((root, "a"), (root, "b")));
        after!("a second name", alice.link(root, "c", file));
        after!("less names", alice.remove_file(root, "c"));
        after!("no file", alice.remove_file(root, "b"));
        after!("no directory", alice.remove_dir(root, "d"));
        alice.give_up_all().await.map_err(told("giving up callbacks"))?;
        Ok(lines)
    })?;
    for round in ["a backup", "another backup"] {
        thread::sleep(NEXT_SECOND);
        scene.cell.expect("vos backup counted -localauth")?;
        told_of.extend(scene.at_clients(async || {
            let client = scene.client()?;
            let original = listed(&client, volume).await?;
            let backup = listed(&client, original.backup_id).await?;
            Ok([
                format!("{round}: {}", numbers(&original)),
                format!("{round}: {}", numbers(&backup)),
                format!("{round}: {}", dates(&backup, &original)),
            ])
        })?);
    }
    told_of.push(restored(scene, "restored")?);
    Ok(told_of)
}

/// Which lines an administrator finds who looks for a volume's making, clone and end in the log.
fn logged(scene: &Scene) -> Result<Vec<String>, Trouble> {
    let volume = scene.volume(ADDRESS, "logged", &AccessList::granting([("alice", AccessList::ALL)]))?;
    scene.cell.expect("vos backup logged -localauth")?;
    scene.cell.expect(&format!("vos remove {ADDRESS} a logged -localauth"))?;
    let log = scene.cell.expect(&format!("bos getlog {ADDRESS} VolserLog -localauth"))?;
    let number = volume.to_string();
    let finds = |word: &str| {
        let found: Vec<_> =
            log.lines().filter(|line| line.contains(word) && line.contains(&number)).collect();
        match found.is_empty() {
            true => Err(format!("no {word} of {number} in\n{log}").into()),
            false => Ok(format!("{word}: {} times", found.len())),
        }
    };
    let named = format!("Volser: CreateVolume: volume {number} (logged)");
    [&named, "Volser: Clone: ", "Volser: Delete"].into_iter().map(finds).collect()
}

/// The numbers of a volume that is restored from a dump of `counted`, at first and with one file more.
fn restored(scene: &Scene, name: &str) -> Result<String, Trouble> {
    scene.cell.expect(&format!("vos dump counted -file /run/{name} -localauth"))?;
    scene.cell.expect(&format!("vos restore {ADDRESS} a {name} /run/{name} -localauth"))?;
    let entry = scene.cell.expect(&format!("vos listvldb -name {name} -quiet -localauth"))?;
    let id = entry.split("RWrite: ").nth(1).and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    let volume = VolumeId(id.ok_or_else(|| format!("no number in {entry}"))?);
    scene.at_clients(async || {
        let client = scene.client()?;
        let before = numbers(&listed(&client, volume).await?);
        let alice = scene.files(&client, &scene.user("alice")?);
        let made = alice.create_file(AfsFid::root_of(volume), "new").await;
        made.map_err(told("a file in the restored volume"))?;
        alice.give_up_all().await.map_err(told("giving up callbacks"))?;
        Ok(format!("restored: {before}, then {}", numbers(&listed(&client, volume).await?)))
    })
}

fn info(scene: &Scene) -> Result<Vec<String>, Trouble> {
    let volume = scene.volume(ADDRESS, "asked", &AccessList::granting([("alice", AccessList::ALL)]))?;
    scene.at_clients(async || {
        let client = scene.client()?;
        let server = scene.files(&client, &Credentials::Anonymous);
        let code =
            |error: Error| error.code().map_or_else(|| error.to_string(), |code| format!("code {code}"));
        let mut lines = Vec::new();
        for asked in ["nosuchvolume", "asked", &volume.0.to_string()] {
            let name = Name::try_from(asked).map_err(|error| error.to_string())?;
            let info = server.rpc(&GetVolumeInfo { name: name.clone() }).await;
            lines.push(format!(
                "GetVolumeInfo {asked}: {}",
                info.map_or_else(code, |reply| format!("{:?}", reply.info))
            ));
            let info = server.rpc(&NGetVolumeInfo { name }).await;
            lines.push(format!(
                "NGetVolumeInfo {asked}: {}",
                info.map_or_else(code, |reply| format!("{:?}", reply.info))
            ));
        }
        Ok(lines)
    })
}

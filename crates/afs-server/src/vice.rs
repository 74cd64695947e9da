//! The partitions of this server: which folders they are, opening them, and what a start finds to be done with their volumes.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use afs_fileserver::Volumes;
use afs_volserver::Partitions;
use afs_volume::{Partition, Space, Volume, VolumeError};
use afs_wire::ids::{PartitionId, VolumeId};

/// The names that OpenAFS's file servers leave at the top of a partition, beside the headers of volumes (V0536870915.vol).
const MARKS_OF_OPENAFS: [&str; 4] = ["AFSIDat", ".volheaders.lock", ".volume.lock", "Lock"];

/// A folder that is to be a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) id: PartitionId,
    pub(crate) folder: PathBuf,
    /// True if it must be a file system of its own or say that it need not: an empty folder in which a disk is to be mounted
    /// must not become a partition.
    pub(crate) must_be_mounted: bool,
}

/// The partitions that the setting `server.partitions` names; if none, those in `root`, or else a folder in the state
/// folder.
///
/// # Errors
///
/// Says which entry cannot be understood, and why.
pub(crate) fn wanted(setting: &[String], root: &Path, state: &Path) -> Result<Vec<Wanted>, String> {
    let mut wanted = Vec::new();
    for entry in setting {
        let one = match entry.split_once('=') {
            Some((name, folder)) => PartitionId::parse(name)
                .filter(|_| Path::new(folder).is_absolute())
                .map(|id| Wanted { id, folder: folder.into(), must_be_mounted: false }),
            None => Path::new(entry)
                .file_name()
                .and_then(|name| name.to_str())
                .filter(|name| name.starts_with("vicep"))
                .and_then(PartitionId::parse)
                .map(|id| Wanted { id, folder: entry.into(), must_be_mounted: true }),
        };
        let one = one.ok_or_else(|| {
            format!("'{entry}' is no partition: write a folder /vicepXX, or XX=FOLDER with an absolute path")
        })?;
        if wanted.iter().any(|other: &Wanted| other.id == one.id) {
            return Err(format!("there are two partitions {}: choose another name for one", one.id));
        }
        wanted.push(one);
    }
    if setting.is_empty() {
        wanted = found(root);
    }
    if wanted.is_empty() {
        wanted.push(Wanted { id: PartitionId(0), folder: state.join("vicepa"), must_be_mounted: false });
    }
    wanted.sort_by_key(|one| one.id);
    Ok(wanted)
}

/// The folders vicepXX of `root` that are file systems of their own, or say that they need not be.
fn found(root: &Path) -> Vec<Wanted> {
    let names = fs::read_dir(root)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let vice = names.filter(|name| name.starts_with("vicep"));
    let wanted = vice.filter_map(|name| {
        Some(Wanted { id: PartitionId::parse(&name)?, folder: root.join(name), must_be_mounted: true })
    });
    wanted.filter(|one| is_usable(&one.folder)).collect()
}

/// True if a folder is a file system of its own, or has a file that says that it need not be; one that says never is not.
fn is_usable(folder: &Path) -> bool {
    if folder.join("AlwaysAttach").exists() {
        return true;
    }
    let device = |path: &Path| path.metadata().map(|m| m.dev()).ok();
    let is_mounted = folder.parent().is_some_and(|above| device(folder) != device(above));
    is_mounted && !folder.join("NeverAttach").exists()
}

/// Opens the partitions. One that cannot be opened does not keep the others from being served: the log says why.
///
/// # Errors
///
/// When none can be opened.
pub(crate) fn open(wanted: &[Wanted], config: &afs_volume::Config) -> Result<Partitions, String> {
    let mut open = Vec::new();
    let mut last = String::new();
    for Wanted { id, folder, must_be_mounted } in wanted {
        let result = if *must_be_mounted && !is_usable(folder) {
            Err("it is not mounted: mount its file system, or make a file AlwaysAttach in it".to_owned())
        } else {
            prepare(folder, *must_be_mounted).and_then(|()| not_of_openafs(folder)).and_then(|()| {
                Partition::open(folder, config.clone()).map_err(|error| why_not_opened(&error))
            })
        };
        match result {
            Ok(partition) => {
                for loss in partition.losses() {
                    tracing::error!(partition = %id, file = %folder.join(&loss.file).display(), why = %loss.why,
                        "the log of changes is damaged: stop the server, and run 'afar fsck' on the partition to see what does \
                         not fit together any more");
                }
                for (volume, why) in partition.damaged_volumes() {
                    tracing::error!(
                        partition = %id,
                        %volume,
                        why,
                        "a volume is offline, as its metadata are damaged: restore it from a backup, after 'vos zap' \
                         with -force has removed what is left"
                    );
                }
                let (attached, not) = (partition.volumes().len(), partition.damaged_volumes().len());
                tracing::info!("Partition {id}: volumes attached: {attached}, not attached: {not}");
                open.push((*id, partition));
            }
            Err(error) => {
                last = format!("partition {id} in {} cannot be opened: {error}", folder.display());
                tracing::error!("{last}");
            }
        }
    }
    if open.is_empty() { Err(last) } else { Ok(Partitions::new(open)) }
}

/// Brings all partitions to disk, as far as that can be done: the log says which could not be.
pub(crate) fn sync(partitions: &Partitions) {
    for (id, partition) in partitions.iter() {
        if let Err(error) = partition.sync() {
            tracing::error!(partition = %id, %error, "a partition could not be brought to disk");
        }
    }
}

/// Refuses a folder in which an OpenAFS file server has its volumes, and no server of ours has any: both would write there, and
/// fill the disk for each other.
fn not_of_openafs(folder: &Path) -> Result<(), String> {
    if folder.join("rows.redb").exists() {
        return Ok(());
    }
    let names = fs::read_dir(folder).map_err(|error| error.to_string())?;
    let mut names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let is_mark = |name: &String| {
        MARKS_OF_OPENAFS.contains(&name.as_str())
            || name
                .strip_prefix('V')
                .and_then(|rest| rest.strip_suffix(".vol"))
                .is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    match names.find(is_mark) {
        None => Ok(()),
        Some(name) => Err(format!(
            "an OpenAFS file server has its volumes there ({name}): name other folders in server.partitions, or move its volumes \
             away and remove what is left"
        )),
    }
}

fn why_not_opened(error: &VolumeError) -> String {
    match error {
        VolumeError::Io { error, .. } if error.kind() == std::io::ErrorKind::WouldBlock => {
            "another process uses it: stop that first, or name another folder in server.partitions".to_owned()
        }
        other => other.to_string(),
    }
}

/// Makes the folder of a partition that need not be mounted.
fn prepare(folder: &Path, must_be_mounted: bool) -> Result<(), String> {
    if must_be_mounted {
        return Ok(());
    }
    crate::first_start::make_folder(folder, 0o700).map_err(|error| error.to_string())
}

/// Removes volumes that were being made when the server ended: nobody has been told of them.
pub(crate) fn remove_unfinished(partitions: &Partitions) {
    for (at, partition) in partitions.iter() {
        let unfinished = partition.volumes().into_iter().filter(|volume| volume.header().info.destroy_me);
        for volume in unfinished {
            let (id, name) = (volume.id(), volume.header().info.name);
            match partition.delete_volume(id) {
                Ok(()) => {
                    tracing::warn!(volume = %id, name, partition = %at, "a half-made volume was removed")
                }
                Err(error) => {
                    tracing::error!(volume = %id, %error, "a half-made volume could not be removed")
                }
            }
        }
    }
}

/// The partitions, as the file service looks for volumes in them.
#[derive(Debug)]
pub(crate) struct Served(pub(crate) Partitions);

impl Volumes for Served {
    fn volume(&self, id: VolumeId) -> Result<Arc<Volume>, VolumeError> {
        Ok(self.0.find(id)?.1)
    }

    fn snapshots_of(&self, id: VolumeId) -> Vec<VolumeId> {
        let found = self.0.iter().flat_map(|(_, partition)| partition.snapshots_of(id));
        found.map(|snapshot| snapshot.id()).collect()
    }

    fn space_of(&self, id: VolumeId) -> Result<Space, VolumeError> {
        let (at, _) = self.0.find(id)?;
        self.0.get(at).ok_or(VolumeError::NoVolume(id))?.space()
    }

    fn partitions(&self) -> Vec<(String, Space)> {
        self.0.iter().filter_map(|(id, partition)| Some((id.to_string(), partition.space().ok()?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_lab::real::folder::Folder;

    #[test]
    fn partitions_are_named_found_or_made() {
        let root = std::env::temp_dir().join(format!("afs-server-vice-{}", std::process::id()));
        fs::create_dir_all(root.join("vicepc")).unwrap();
        fs::create_dir_all(root.join("vicepb")).unwrap();
        let setting = |entries: &[&str]| entries.iter().map(|e| (*e).to_owned()).collect::<Vec<_>>();
        let ids = |entries: &[&str]| {
            let wanted = wanted(&setting(entries), &root, Path::new("/state")).unwrap();
            wanted.iter().map(|w| (w.id.0, w.folder.display().to_string())).collect::<Vec<_>>()
        };
        let default = [(0, "/state/vicepa".to_owned())];
        assert_eq!(ids(&[]), default, "folders in which nothing is mounted are none");
        fs::write(root.join("vicepc/AlwaysAttach"), "").unwrap();
        assert_eq!(ids(&[]), [(2, root.join("vicepc").display().to_string())]);
        assert_eq!(ids(&["b=/srv/x", "/vicepa"]), [(0, "/vicepa".to_owned()), (1, "/srv/x".to_owned())]);
        for bad in [&["/srv/x"][..], &["b=x"], &["1b=/x"], &["a=/x", "/vicepa"]] {
            assert!(wanted(&setting(bad), &root, &root).is_err(), "{bad:?}");
        }
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_partition_that_is_not_mounted_is_not_opened() {
        let folder = Folder::new("vice-empty");
        let wanted = [Wanted { id: PartitionId(1), folder: folder.to_path_buf(), must_be_mounted: true }];
        let error = open(&wanted, &afs_volume::Config::default()).unwrap_err();
        assert!(error.contains("/vicepb") && error.contains("it is not mounted"), "{error}");
    }

    #[test]
    fn a_partition_of_an_openafs_server_is_left_alone() {
        for mark in ["AFSIDat", "V0536870915.vol", ".volheaders.lock"] {
            let folder = std::env::temp_dir().join(format!("afs-server-vice-stock-{}", std::process::id()));
            fs::create_dir_all(folder.join(mark)).unwrap();
            let wanted = [Wanted { id: PartitionId(0), folder: folder.clone(), must_be_mounted: false }];
            let error = open(&wanted, &afs_volume::Config::default()).unwrap_err();
            assert!(error.contains("an OpenAFS file server") && error.contains(mark), "{error}");
            let names: Vec<_> = fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name()).collect();
            assert_eq!(names, [mark], "nothing was made there");
            fs::remove_dir_all(folder).unwrap();
        }
    }

    #[test]
    fn a_partition_that_another_process_uses_is_said_to_be_in_use() {
        let folder = std::env::temp_dir().join(format!("afs-server-vice-used-{}", std::process::id()));
        let wanted = [Wanted { id: PartitionId(0), folder: folder.clone(), must_be_mounted: false }];
        let config = afs_volume::Config { has_thread: false, ..afs_volume::Config::default() };
        let first = open(&wanted, &config).unwrap();
        let error = open(&wanted, &config).unwrap_err();
        assert!(error.contains("another process uses it"), "{error}");
        drop(first);
        fs::remove_dir_all(folder).unwrap();
    }
}

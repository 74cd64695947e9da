//! A file server's calls with their arguments in Rust's types: files, directories, access lists, and the data of split calls
//! (File service notes 6).

use std::ops::Deref;

use afs_wire::ids::{AfsFid, Name, Path, VolumeId};
use afs_wire::rxafs::{
    CreateFile, FetchACL, FetchData64, FetchStatus, GetVolumeStatus, GiveUpAllCallBacks, Link, MakeDir,
    OldStoreACL, RemoveDir, RemoveFile, Rename, StoreData64, StoreStatus, Symlink, reply,
};
use afs_wire::status::{AfsFetchStatus, AfsStoreStatus, StoreMask};
use bytes::Bytes;

use super::access::AccessList;
use super::client::Server;
use super::error::Error;

/// The mode of files that are made here.
pub const MODE_FILE: u32 = 0o644;

/// The mode of directories.
pub const MODE_DIRECTORY: u32 = 0o755;

/// Bytes given to the transport at once, as it asks for.
const PIECE_BYTES: usize = 128 << 10;

/// A file server, called by one identity.
#[derive(Debug, Clone)]
pub struct FileServer {
    server: Server,
}

impl Deref for FileServer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl FileServer {
    pub(crate) fn new(server: Server) -> Self {
        Self { server }
    }

    /// FetchStatus.
    ///
    /// # Errors
    ///
    /// The call's; so it is with all that follows here.
    pub async fn status(&self, fid: AfsFid) -> Result<AfsFetchStatus, Error> {
        Ok(self.rpc(&FetchStatus { fid }).await?.status)
    }

    /// CreateFile, with [`MODE_FILE`].
    ///
    /// # Errors
    ///
    /// The call's, or the name is too long.
    pub async fn create_file(&self, dir: AfsFid, file: &str) -> Result<reply::CreateFile, Error> {
        self.rpc(&CreateFile { dir, name: name(file)?, status: mode(MODE_FILE) }).await
    }

    /// MakeDir, with [`MODE_DIRECTORY`].
    ///
    /// # Errors
    ///
    /// As [`Self::create_file`].
    pub async fn make_dir(&self, dir: AfsFid, directory: &str) -> Result<reply::MakeDir, Error> {
        self.rpc(&MakeDir { dir, name: name(directory)?, status: mode(MODE_DIRECTORY) }).await
    }

    /// Symlink. A mount point is one whose target begins with `#` or `%` and whose mode has no x.
    ///
    /// # Errors
    ///
    /// As [`Self::create_file`].
    pub async fn symlink(&self, dir: AfsFid, link: &str, target: &str) -> Result<reply::Symlink, Error> {
        let bits = if target.starts_with(['#', '%']) { MODE_FILE } else { 0o777 };
        let contents = Path::new(target).map_err(|_| Error::Unsayable(format!("{target:?} as a target")))?;
        self.rpc(&Symlink { dir, name: name(link)?, contents, status: mode(bits) }).await
    }

    /// Link.
    ///
    /// # Errors
    ///
    /// As [`Self::create_file`].
    pub async fn link(&self, dir: AfsFid, link: &str, existing: AfsFid) -> Result<reply::Link, Error> {
        self.rpc(&Link { dir, name: name(link)?, existing }).await
    }

    /// Rename.
    ///
    /// # Errors
    ///
    /// As [`Self::create_file`].
    pub async fn rename(&self, from: (AfsFid, &str), to: (AfsFid, &str)) -> Result<reply::Rename, Error> {
        let (old_name, new_name) = (name(from.1)?, name(to.1)?);
        self.rpc(&Rename { old_dir: from.0, old_name, new_dir: to.0, new_name }).await
    }

    /// RemoveFile.
    ///
    /// # Errors
    ///
    /// As [`Self::create_file`].
    pub async fn remove_file(&self, dir: AfsFid, file: &str) -> Result<AfsFetchStatus, Error> {
        Ok(self.rpc(&RemoveFile { dir, name: name(file)? }).await?.dir_status)
    }

    /// RemoveDir.
    ///
    /// # Errors
    ///
    /// As [`Self::create_file`].
    pub async fn remove_dir(&self, dir: AfsFid, directory: &str) -> Result<AfsFetchStatus, Error> {
        Ok(self.rpc(&RemoveDir { dir, name: name(directory)? }).await?.dir_status)
    }

    /// StoreStatus of the mode.
    ///
    /// # Errors
    ///
    /// The call's.
    pub async fn chmod(&self, fid: AfsFid, bits: u32) -> Result<AfsFetchStatus, Error> {
        Ok(self.rpc(&StoreStatus { fid, status: mode(bits) }).await?.status)
    }

    /// FetchACL.
    ///
    /// # Errors
    ///
    /// The call's, or the text is no access list.
    pub async fn access_list(&self, dir: AfsFid) -> Result<AccessList, Error> {
        AccessList::of_wire(&self.rpc(&FetchACL { fid: dir }).await?.access_list)
    }

    /// StoreACL, by the number that all servers know (134).
    ///
    /// # Errors
    ///
    /// The call's, or the list is too long.
    pub async fn set_access_list(&self, dir: AfsFid, list: &AccessList) -> Result<(), Error> {
        self.rpc(&OldStoreACL { fid: dir, access_list: list.to_wire()? }).await?;
        Ok(())
    }

    /// GetVolumeStatus.
    ///
    /// # Errors
    ///
    /// The call's.
    pub async fn volume_status(&self, volume: VolumeId) -> Result<reply::GetVolumeStatus, Error> {
        self.rpc(&GetVolumeStatus { volume }).await
    }

    /// GiveUpAllCallBacks: what a client says that is about to end.
    ///
    /// # Errors
    ///
    /// The call's.
    pub async fn give_up_all(&self) -> Result<(), Error> {
        self.rpc(&GiveUpAllCallBacks {}).await?;
        Ok(())
    }

    /// StoreData64 of these bytes at a position; `file_length` is that of the file once all is stored.
    ///
    /// # Errors
    ///
    /// The call's.
    pub async fn store(
        &self,
        fid: AfsFid,
        pos: u64,
        bytes: impl Into<Bytes>,
        file_length: u64,
    ) -> Result<AfsFetchStatus, Error> {
        let bytes = bytes.into();
        let length = bytes.len() as u64;
        let mut rest = bytes;
        let pieces = std::iter::from_fn(move || {
            (!rest.is_empty()).then(|| rest.split_to(rest.len().min(PIECE_BYTES)))
        });
        self.store_pieces(fid, pos, (length, file_length), pieces).await
    }

    /// The same of bytes that are made on the way; `lengths` are theirs, all together, and the file's.
    ///
    /// # Errors
    ///
    /// The call's.
    ///
    /// # Panics
    ///
    /// When the pieces are not as long as was said.
    pub async fn store_pieces(
        &self,
        fid: AfsFid,
        pos: u64,
        (length, file_length): (u64, u64),
        pieces: impl Iterator<Item = Bytes>,
    ) -> Result<AfsFetchStatus, Error> {
        let mut call = self.call().await?;
        let status = AfsStoreStatus::default();
        call.send_request(&StoreData64 { fid, status, pos, length, file_length }).await?;
        let mut sent = 0;
        for piece in pieces {
            sent += piece.len() as u64;
            match call.send(piece).await {
                // It refuses, and its reply says why.
                Err(rx::CallError::NotSending { .. }) => {
                    return Ok(call.reply::<StoreData64>().await?.status);
                }
                sending => sending?,
            }
        }
        assert!(sent == length, "{sent} bytes for a store of {length}");
        Ok(call.reply::<StoreData64>().await?.status)
    }

    /// FetchData64, all in memory.
    ///
    /// # Errors
    ///
    /// The call's, or fewer bytes came than the server said.
    pub async fn fetch(&self, fid: AfsFid, pos: u64, length: u64) -> Result<Vec<u8>, Error> {
        let mut all = Vec::new();
        self.fetch_pieces(fid, pos, length, |piece| all.extend_from_slice(&piece)).await?;
        Ok(all)
    }

    /// The same, giving each piece away as it comes; how many bytes came, and the file's status.
    ///
    /// # Errors
    ///
    /// As [`Self::fetch`].
    pub async fn fetch_pieces(
        &self,
        fid: AfsFid,
        pos: u64,
        length: u64,
        mut take: impl FnMut(Bytes),
    ) -> Result<(u64, AfsFetchStatus), Error> {
        let said =
            |value: u64| i64::try_from(value).map_err(|_| Error::Unsayable(format!("{value} as a position")));
        let mut call = self.call().await?;
        call.send_request(&FetchData64 { fid, pos: said(pos)?, length: said(length)? }).await?;
        call.finish()?;
        // Two words, the high one first, then so many bytes, then the results (XDR notes 2.1).
        let mut word = [0; 8];
        call.read_exact(&mut word).await?;
        let coming = u64::from_be_bytes(word);
        let mut missing = coming;
        while missing > 0 {
            let Some(mut piece) = call.recv().await? else {
                return Err(Error::Data(rx::CallError::StreamEnded { peer: call.peer() }));
            };
            if piece.len() as u64 > missing {
                call.unread(piece.split_off(missing as usize));
            }
            missing -= piece.len() as u64;
            take(piece);
        }
        Ok((coming, call.reply::<FetchData64>().await?.status))
    }
}

fn name(text: &str) -> Result<Name, Error> {
    Name::new(text).map_err(|_| Error::Unsayable(format!("a name of {} bytes", text.len())))
}

fn mode(bits: u32) -> AfsStoreStatus {
    AfsStoreStatus { mask: StoreMask::MODE, unix_mode_bits: bits, ..AfsStoreStatus::default() }
}

//! A repository in a bucket of S3, by the crate `opendal`. rustic has a backend of the same crate; this one waits for no server for ever, takes no
//! list that broke off for a whole one, and its errors name the bucket and what its server said.

use bytes::Bytes;
use opendal::blocking::Operator;
use opendal::layers::{RetryLayer, TimeoutLayer};
use opendal::options::{ListOptions, ReadOptions};
use rustic_core::{BytesList, ErrorKind, FileType, Id, ReadBackend, RusticError, RusticResult, WriteBackend};
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::OnceLock;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// How long a server may take.
pub(crate) struct Patience {
    /// For a file that is read or written, and for a list. Most files have 32 MiB: a line of 0.5 Mbit/s is too slow for them.
    pub(crate) file: Duration,
    /// For each other answer.
    pub(crate) answer: Duration,
    /// Attempts after the first one, with pauses of 1, 2, 4 and more seconds: a server may be started again meanwhile.
    pub(crate) retries: usize,
}

impl Default for Patience {
    fn default() -> Self {
        Self { file: Duration::from_secs(600), answer: Duration::from_secs(60), retries: 6 }
    }
}

/// A bucket.
#[derive(Debug)]
pub(crate) struct Bucket {
    operator: Operator,
    /// What errors call it.
    name: String,
    /// The reason why its server was given up, if it was. It is asked no more then: a run of a thousand volumes would wait as often.
    given_up: OnceLock<String>,
    /// Requests run there.
    _runtime: Runtime,
}

impl Bucket {
    /// Opens the one that these settings of `opendal` name, without asking its server for anything.
    pub(crate) fn open(options: &BTreeMap<String, String>, patience: &Patience) -> Result<Self, String> {
        opendal::install_default();
        let bad = |error: opendal::Error| format!("the bucket that --option names: {}", error.message());
        let operator = opendal::Operator::via_iter("s3", options.clone()).map_err(bad)?;
        let timeouts = TimeoutLayer::new().with_timeout(patience.answer).with_io_timeout(patience.file);
        let operator = operator.layer(timeouts).layer(RetryLayer::new().with_max_times(patience.retries));
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
        let entered = runtime.enter();
        let operator = Operator::new(operator).map_err(bad)?;
        drop(entered);
        let endpoint = options.get("endpoint").map_or("AWS", String::as_str);
        let name = format!("the bucket {} at {endpoint}", operator.info().name());
        Ok(Self { operator, name, given_up: OnceLock::new(), _runtime: runtime })
    }

    /// Asks the server for something.
    fn ask<T>(
        &self,
        doing: &str,
        path: &str,
        request: impl FnOnce(&Operator) -> opendal::Result<T>,
    ) -> RusticResult<T> {
        let failed = |text| RusticError::new(ErrorKind::Backend, text);
        if let Some(why) = self.given_up.get() {
            return Err(failed(why.clone()));
        }
        request(&self.operator).map_err(|error| {
            let advice = match error.kind() {
                opendal::ErrorKind::PermissionDenied => {
                    "the access key (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) is wrong, or may not do that: "
                }
                _ => "",
            };
            let why = [error.kind().to_string(), error.message().to_owned(), deepest(&error)];
            let why: Vec<String> = why.into_iter().filter(|text| !text.is_empty()).collect();
            let why = why.join(": ");
            let text = format!("{}: {doing} {path}: {advice}{why}", self.name);
            if error.is_persistent() {
                self.given_up.get_or_init(|| text.clone());
            }
            failed(text)
        })
    }

    fn read(&self, path: &str, options: ReadOptions) -> RusticResult<Bytes> {
        self.ask("reading", path, |operator| operator.read_options(path, options))
            .map(|bytes| bytes.to_bytes())
    }

    /// The size of a file. No program that writes repositories makes one of 4 GiB.
    fn size(&self, path: &str, bytes: u64) -> RusticResult<u32> {
        u32::try_from(bytes).map_err(|_| {
            RusticError::new(ErrorKind::Backend, format!("{}: {path} has {bytes} bytes", self.name))
        })
    }
}

impl ReadBackend for Bucket {
    fn location(&self) -> String {
        self.name.clone()
    }

    fn list_with_size(&self, kind: FileType) -> RusticResult<Vec<(Id, u32)>> {
        if kind == FileType::Config {
            let path = path(kind, &Id::default());
            let found = self.ask("looking for", &path, |operator| match operator.stat(&path) {
                Err(error) if error.kind() == opendal::ErrorKind::NotFound => Ok(None),
                found => found.map(Some),
            })?;
            let size =
                |meta: opendal::Metadata| Ok((Id::default(), self.size(&path, meta.content_length())?));
            return found.into_iter().map(size).collect();
        }
        let folder = format!("{}/", kind.dirname());
        let options = ListOptions { recursive: true, ..Default::default() };
        let entries = self.ask("listing", &folder, |operator| operator.list_options(&folder, options))?;
        let files = entries.iter().filter(|entry| entry.metadata().is_file());
        files
            .filter_map(|entry| Some((entry, Id::parse_some(entry.name(), kind)?)))
            .map(|(entry, id)| Ok((id, self.size(entry.path(), entry.metadata().content_length())?)))
            .collect()
    }

    fn read_full(&self, kind: FileType, id: &Id) -> RusticResult<Bytes> {
        self.read(&path(kind, id), ReadOptions::default())
    }

    fn read_partial(
        &self,
        kind: FileType,
        id: &Id,
        _: bool,
        offset: u32,
        length: u32,
    ) -> RusticResult<Bytes> {
        let range = u64::from(offset)..u64::from(offset) + u64::from(length);
        self.read(&path(kind, id), ReadOptions { range: range.into(), ..Default::default() })
    }

    fn warmup_path(&self, kind: FileType, id: &Id) -> String {
        path(kind, id)
    }
}

impl WriteBackend for Bucket {
    fn write_bytes(&self, kind: FileType, id: &Id, _: bool, content: BytesList) -> RusticResult<()> {
        let path = path(kind, id);
        self.ask("writing", &path, |operator| operator.write(&path, content.into_vec())).map(drop)
    }

    fn remove(&self, kind: FileType, id: &Id, _: bool) -> RusticResult<()> {
        let path = path(kind, id);
        self.ask("deleting", &path, |operator| operator.delete(&path))
    }
}

/// The name of a file of a repository, which is restic's.
fn path(kind: FileType, id: &Id) -> String {
    let (folder, name) = (kind.dirname(), id.to_hex());
    match kind {
        FileType::Config => folder.to_owned(),
        FileType::Pack => format!("{folder}/{}/{}", &name[..2], &name[..]),
        _ => format!("{folder}/{}", &name[..]),
    }
}

/// The first cause of an error, such as that a connection is refused.
fn deepest(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |error| (*error).source());
    causes.last().map(ToString::to_string).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    type Request = fn(&Bucket, FileType, &Id) -> RusticResult<()>;

    /// A bucket that a server at this address has, which may take a second.
    fn bucket(server: &TcpListener) -> Bucket {
        let endpoint = format!("http://{}", server.local_addr().expect("it has one"));
        let options = [
            ("bucket", "backups"),
            ("endpoint", &endpoint),
            ("region", "auto"),
            ("access_key_id", "key"),
            ("secret_access_key", "secret"),
        ];
        let options = options.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let patience = Duration::from_secs(1);
        Bucket::open(&options, &Patience { file: patience, answer: patience, retries: 0 }).expect("it is one")
    }

    #[test]
    fn a_server_that_never_answers_is_given_up_and_named() {
        let silent = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let name = format!("the bucket backups at http://{}: ", silent.local_addr().expect("it has one"));
        let (id, pack) = (Id::default(), FileType::Pack);
        let requests: [Request; 6] = [
            |bucket, _, _| bucket.list_with_size(FileType::Config).map(drop),
            |bucket, pack, _| bucket.list_with_size(pack).map(drop),
            |bucket, pack, id| bucket.read_full(pack, id).map(drop),
            |bucket, pack, id| bucket.read_partial(pack, id, false, 1, 2).map(drop),
            |bucket, pack, id| bucket.write_bytes(pack, id, false, vec![7].into()),
            |bucket, pack, id| bucket.remove(pack, id, false),
        ];
        for request in requests {
            let bucket = bucket(&silent);
            let told = request(&bucket, pack, &id).expect_err("nobody answers").display_log();
            assert!(told.contains(&name) && told.contains("timeout"), "{told}");
            let again = bucket.read_full(FileType::Key, &id).expect_err("it was given up").display_log();
            assert_eq!(again, told, "nobody waits twice");
        }
    }

    /// rustic's backend took what had come for the whole list: a prune that misses snapshots removes what they need.
    #[test]
    fn a_list_that_breaks_off_is_an_error() {
        let server = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let bucket = bucket(&server);
        std::thread::spawn(move || {
            let page = "<ListBucketResult><Name>backups</Name><Prefix>snapshots/</Prefix><KeyCount>0</KeyCount><MaxKeys>1000</MaxKeys>\
                <IsTruncated>true</IsTruncated><NextContinuationToken>more</NextContinuationToken></ListBucketResult>";
            for (status, body) in [("200 OK", page), ("500 Internal Server Error", "")] {
                let (mut stream, _) = server.accept().expect("somebody calls");
                let (mut request, mut piece) = (Vec::new(), [0; 4096]);
                while !request.ends_with(b"\r\n\r\n") {
                    let length = stream.read(&mut piece).expect("it is there");
                    request.extend_from_slice(&piece[..length]);
                }
                let head = format!(
                    "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    body.len()
                );
                stream.write_all(format!("{head}{body}").as_bytes()).expect("it is there");
            }
        });
        let told = bucket.list_with_size(FileType::Snapshot).expect_err("half of it came").display_log();
        assert!(told.contains(": listing snapshots/: "), "{told}");
    }
}

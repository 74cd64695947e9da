//! Folders that go with their test.

use std::ffi::OsStr;
use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder of its own; dropped, it is removed with all that is in it, but for what is mounted there.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    shown: Option<&'static str>,
}

impl Folder {
    /// A new one among the system's temporary files; `name` says what it is for.
    ///
    /// # Panics
    ///
    /// If it cannot be made.
    pub fn new(name: &str) -> Self {
        Self::below(&std::env::temp_dir(), name)
    }

    /// Makes one in another folder, which is made too where it is not there.
    ///
    /// # Panics
    ///
    /// If it cannot be made.
    pub fn below(place: &Path, name: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = place.join(format!("afar-{name}-{}-{number}", std::process::id()));
        if path.exists() {
            // Left by an earlier process of this number.
            remove(&path);
        }
        fs::create_dir_all(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let path = path.canonicalize().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self { path, shown: None }
    }

    /// Makes a new one with these files, by name and text.
    ///
    /// # Panics
    ///
    /// If one cannot be written.
    pub fn with(name: &str, files: &[(&str, &str)]) -> Self {
        let folder = Self::new(name);
        for (file, text) in files {
            folder.write(file, text);
        }
        folder
    }

    /// Has a test that fails show this file of the folder.
    #[must_use]
    pub fn showing(mut self, name: &'static str) -> Self {
        self.shown = Some(name);
        self
    }

    /// Its path, as this also dereferences to.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a folder in it if it is not there, and gives its path.
    ///
    /// # Panics
    ///
    /// If it cannot be made.
    pub fn inner(&self, name: &str) -> PathBuf {
        let path = self.join(name);
        fs::create_dir_all(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        path
    }

    /// Writes a file in it, and gives its path.
    ///
    /// # Panics
    ///
    /// If it cannot be written.
    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.join(name);
        fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        path
    }
}

impl Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

impl AsRef<Path> for Folder {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

impl AsRef<OsStr> for Folder {
    fn as_ref(&self) -> &OsStr {
        self.path.as_os_str()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Some(name) = self.shown.filter(|_| std::thread::panicking()) {
            println!("{name}:\n{}", fs::read_to_string(self.join(name)).unwrap_or_default());
        }
        // A test that failed has more to say than that its folder is still in use.
        remove(&self.path);
    }
}

/// Removes a folder, but nothing that is mounted in it.
fn remove(path: &Path) {
    drop(Command::new("rm").args(["-rf", "--one-file-system"]).arg(path).status());
}

//! A disk in memory that can die. It keeps apart what was synced and what was not; after a power loss any part of
//! what was not is there, in any order and down to single sectors. Errors and a full disk can be had of it too.

use super::{Disk, DiskFile, folder_of};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The bytes that a disk writes at once or not at all.
const SECTOR: usize = 512;

/// The failure to simulate, and the number of operations before it that change something (writes, syncs, names).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The disk gets nothing from then on, and every operation fails: for a power loss in the midst.
    After(u64),
    /// One operation fails with an I/O error, those after it do not.
    ErrorAt(u64),
    /// Each operation that changes something fails from then on with an I/O error; reads do not.
    ErrorsFrom(u64),
    /// Each read of a file's bytes fails from now on with an I/O error that reaches so far into it; what changes something does not.
    UnreadableFrom(u64),
}

/// A bit that was flipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flip {
    /// The file.
    pub file: String,
    /// The byte in it.
    pub at: usize,
    /// True if the byte was not 0, as most bytes are that nobody uses.
    pub was_used: bool,
}

/// A disk in memory. Clones are the same disk.
#[derive(Debug, Clone)]
pub struct SimulatedDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Clone)]
struct State {
    /// Files by number; a name leads to a number.
    files: BTreeMap<u64, Contents>,
    /// The names, as the process sees them.
    names: BTreeMap<String, u64>,
    /// The names that a power loss leaves for certain.
    durable_names: BTreeMap<String, u64>,
    next: u64,
    boots: u64,
    /// Syncs that have failed since the last power loss, as the owner has said.
    distrusted: u64,
    capacity: u64,
    operations: u64,
    syncs: u64,
    refusals: u64,
    cut: Option<Cut>,
    /// The number of operations at which a copy is to be made, and the copy.
    copy_at: Option<u64>,
    copy: Option<Box<State>>,
}

#[derive(Debug, Clone, Default)]
struct Contents {
    now: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<Pending>,
}

#[derive(Debug, Clone)]
enum Pending {
    Write(usize, Vec<u8>),
    Length(usize),
}

impl Pending {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Length(length) => bytes.resize(*length, 0),
            Self::Write(position, data) => {
                let end = position + data.len();
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                bytes[*position..end].copy_from_slice(data);
            }
        }
    }
}

impl Contents {
    /// Reads the disk anew: data in memory that were not lost stay, and the rest is what the disk has.
    fn read_again(&mut self) {
        self.now.clone_from(&self.durable);
        self.pending.iter().for_each(|pending| pending.apply(&mut self.now));
    }
}

#[derive(Debug)]
struct SimulatedFile {
    state: Arc<Mutex<State>>,
    number: u64,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // A test that panicked elsewhere leaves a state that is whole.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn io_error() -> io::Error {
    io::Error::other("simulated failure of the disk")
}

fn not_found() -> io::Error {
    io::Error::from(io::ErrorKind::NotFound)
}

/// A small generator of its own, so that the crate needs none: splitmix64.
fn next_random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *seed;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl SimulatedDisk {
    /// An empty disk of so many bytes.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        let state = State {
            files: BTreeMap::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            next: 0,
            boots: 0,
            distrusted: 0,
            capacity,
            operations: 0,
            syncs: 0,
            refusals: 0,
            cut: None,
            copy_at: None,
            copy: None,
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Operations so far that changed something.
    #[must_use]
    pub fn operations(&self) -> u64 {
        lock(&self.state).operations
    }

    /// Syncs so far, of files and of folders.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        lock(&self.state).syncs
    }

    /// Operations so far that failed by a [`Cut`] or as the disk was full, also before it was found after a kill or a power loss.
    #[must_use]
    pub fn refusals(&self) -> u64 {
        lock(&self.state).refusals
    }

    /// Sets what goes wrong, counted from now, or that nothing does.
    pub fn set_cut(&self, cut: Option<Cut>) {
        let mut state = lock(&self.state);
        let now = state.operations;
        state.cut = cut.map(|cut| match cut {
            Cut::After(n) => Cut::After(now + n),
            Cut::ErrorAt(n) => Cut::ErrorAt(now + n),
            Cut::ErrorsFrom(n) => Cut::ErrorsFrom(now + n),
            Cut::UnreadableFrom(position) => Cut::UnreadableFrom(position),
        });
    }

    /// Has a copy made after so many more operations: of a moment in the midst of what goes on.
    pub fn copy_after(&self, operations: u64) {
        let mut state = lock(&self.state);
        (state.copy_at, state.copy) = (Some(state.operations + operations), None);
    }

    /// The copy, another disk, and the number of operations before it; `None` if there were not so many.
    #[must_use]
    pub fn copied(&self) -> Option<(Self, u64)> {
        let copy = lock(&self.state).copy.clone()?;
        let operations = copy.operations;
        Some((Self { state: Arc::new(Mutex::new(*copy)) }, operations))
    }

    /// Changes how much fits.
    pub fn set_capacity(&self, capacity: u64) {
        lock(&self.state).capacity = capacity;
    }

    /// The disk as it would be found if the process died now: another disk, with all that was written.
    #[must_use]
    pub fn after_kill(&self) -> Self {
        let mut state = lock(&self.state).clone();
        state.cut = None;
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Flips a bit, as a disk may that is old, in one of these files: mostly of a byte that is not 0. The seed says which.
    ///
    /// # Panics
    ///
    /// None of the files has a byte that is not 0.
    pub fn flip_bit(&self, mut seed: u64, of: impl Fn(&str) -> bool) -> Flip {
        let mut state = lock(&self.state);
        let State { names, files, .. } = &mut *state;
        let mut those: Vec<_> = names.iter().filter(|(name, _)| of(name)).collect();
        those.retain(|(_, number)| files[number].now.iter().any(|&byte| byte != 0));
        let mut below = |n: usize| (next_random(&mut seed) % n as u64) as usize;
        let (file, number) = those[below(those.len())];
        let bytes = &mut files.get_mut(number).expect("it has a name").now;
        let used: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at] != 0).collect();
        let at = if below(10) == 0 { below(bytes.len()) } else { used[below(used.len())] };
        let was_used = bytes[at] != 0;
        bytes[at] ^= 1 << below(8);
        Flip { file: file.clone(), at, was_used }
    }

    /// The disk as it could be found after a power loss now: of what was not synced any part, in whole sectors; of
    /// names that were not, made or removed, any.
    #[must_use]
    pub fn after_power_loss(&self, mut seed: u64) -> Self {
        let mut state = lock(&self.state).clone();
        state.cut = None;
        state.boots += 1;
        state.distrusted = 0;
        // How much of what was pending got through: sometimes none, sometimes all, mostly some.
        let share = next_random(&mut seed) % 5;
        let mut survives = move || next_random(&mut seed) % 4 < share;
        for contents in state.files.values_mut() {
            let mut bytes = std::mem::take(&mut contents.durable);
            for pending in contents.pending.drain(..) {
                match pending {
                    Pending::Length(length) => {
                        if survives() {
                            bytes.resize(length, 0);
                        }
                    }
                    Pending::Write(position, data) => {
                        let mut at = 0;
                        while at < data.len() {
                            let end = (at + SECTOR - (position + at) % SECTOR).min(data.len());
                            if survives() {
                                if bytes.len() < position + end {
                                    bytes.resize(position + end, 0);
                                }
                                bytes[position + at..position + end].copy_from_slice(&data[at..end]);
                            }
                            at = end;
                        }
                    }
                }
            }
            contents.durable.clone_from(&bytes);
            contents.now = bytes;
        }
        let names: BTreeSet<String> = state.names.keys().chain(state.durable_names.keys()).cloned().collect();
        for name in names {
            if state.names.get(&name) != state.durable_names.get(&name) && survives() {
                match state.names.get(&name) {
                    Some(&number) => state.durable_names.insert(name, number),
                    None => state.durable_names.remove(&name),
                };
            }
        }
        state.names.clone_from(&state.durable_names);
        Self { state: Arc::new(Mutex::new(state)) }
    }
}

impl State {
    /// Counts an operation that is about to change something. Fails if it is to fail.
    fn change(&mut self) -> io::Result<()> {
        if self.copy_at.is_some_and(|at| self.operations >= at) {
            self.copy_at = None;
            self.copy = Some(Box::new(self.clone()));
        }
        self.operations += 1;
        match self.cut {
            Some(Cut::After(n) | Cut::ErrorsFrom(n)) if self.operations > n => Err(self.refuse(io_error())),
            Some(Cut::ErrorAt(n)) if self.operations == n + 1 => Err(self.refuse(io_error())),
            _ => Ok(()),
        }
    }

    fn refuse(&mut self, error: io::Error) -> io::Error {
        self.refusals += 1;
        error
    }

    /// Fails if an operation that changes nothing is to fail.
    fn look(&mut self) -> io::Result<()> {
        match self.cut {
            Some(Cut::After(n)) if self.operations > n => Err(self.refuse(io_error())),
            _ => Ok(()),
        }
    }

    /// The bytes of files that have a name: a removed file gives its space back at once, as the process sees it.
    fn used(&self) -> u64 {
        let named: BTreeSet<u64> = self.names.values().copied().collect();
        named.iter().filter_map(|number| self.files.get(number)).map(|f| f.now.len() as u64).sum()
    }

    fn room_for(&mut self, number: u64, length: usize) -> io::Result<()> {
        let more = (length as u64).saturating_sub(self.files[&number].now.len() as u64);
        if more > 0 && self.used() + more > self.capacity {
            return Err(self.refuse(io::ErrorKind::StorageFull.into()));
        }
        Ok(())
    }

    /// Files that no name leads to are kept while a handle may read them; those that no name ever will are let go.
    fn forget(&mut self, number: u64) {
        let is_named = |names: &BTreeMap<String, u64>| names.values().any(|&n| n == number);
        if !is_named(&self.names) && !is_named(&self.durable_names) {
            self.files.remove(&number);
        }
    }

    /// Prepares a sync. One that fails (for another reason than that all is over) loses what it was to write, as on Linux: it can be
    /// read for as long as it is in memory, and no later sync writes it or fails for it.
    fn sync(&mut self, loses: impl Fn(u64) -> bool) -> io::Result<()> {
        self.syncs += 1;
        let result = self.change();
        if result.is_err() && !matches!(self.cut, Some(Cut::After(_))) {
            let lost = self.files.iter_mut().filter(|(number, _)| loses(**number));
            lost.for_each(|(_, contents)| contents.pending.clear());
        }
        result
    }

    fn contents(&mut self, number: u64) -> io::Result<&mut Contents> {
        self.files.get_mut(&number).ok_or_else(not_found)
    }
}

impl Disk for SimulatedDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = lock(&self.state);
        state.look()?;
        let number = *state.names.get(name).ok_or_else(not_found)?;
        if state.distrusted > 0 && folder_of(name).is_empty() {
            state.contents(number)?.read_again();
        }
        Ok(Arc::new(SimulatedFile { state: self.state.clone(), number }))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = lock(&self.state);
        state.change()?;
        let number = state.next;
        state.next += 1;
        state.files.insert(number, Contents::default());
        state.names.insert(name.to_owned(), number);
        Ok(Arc::new(SimulatedFile { state: self.state.clone(), number }))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = lock(&self.state);
        state.change()?;
        state.names.remove(name).ok_or_else(not_found)?;
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = lock(&self.state);
        state.change()?;
        let number = state.names.remove(from).ok_or_else(not_found)?;
        state.names.insert(to.to_owned(), number);
        Ok(())
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let mut state = lock(&self.state);
        state.look()?;
        let mut found = BTreeSet::new();
        for name in state.names.keys() {
            let below = match folder {
                "" => Some(name.as_str()),
                _ => name.strip_prefix(folder).and_then(|rest| rest.strip_prefix('/')),
            };
            found.extend(below.and_then(|b| b.split('/').next()).map(str::to_owned));
        }
        Ok(found.into_iter().collect())
    }

    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        let mut state = lock(&self.state);
        state.syncs += 1;
        state.change()?;
        let State { names, durable_names, .. } = &mut *state;
        let gone: Vec<(String, u64)> = durable_names
            .iter()
            .filter(|(name, _)| folder_of(name) == folder && !names.contains_key(*name))
            .map(|(name, &number)| (name.clone(), number))
            .collect();
        for (name, number) in names.iter().filter(|(name, _)| folder_of(name) == folder) {
            durable_names.insert(name.clone(), *number);
        }
        for (name, number) in gone {
            state.durable_names.remove(&name);
            state.forget(number);
        }
        Ok(())
    }

    fn sync_files(&self, names: &[String]) -> io::Result<()> {
        for name in names {
            match self.open(name) {
                Ok(file) => file.sync()?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        let mut state = lock(&self.state);
        state.sync(|_| true)?;
        for contents in state.files.values_mut() {
            contents.pending.clear();
            contents.durable.clone_from(&contents.now);
        }
        state.durable_names = state.names.clone();
        Ok(())
    }

    fn space(&self) -> io::Result<(u64, u64)> {
        let mut state = lock(&self.state);
        state.look()?;
        Ok((state.capacity, state.capacity.saturating_sub(state.used())))
    }

    fn boot(&self) -> io::Result<String> {
        let state = lock(&self.state);
        Ok(format!("{}.{}", state.boots, state.distrusted))
    }

    fn distrust(&self) {
        let mut state = lock(&self.state);
        // When all is over, whoever would say so is no more.
        if state.look().is_ok() {
            state.distrusted += 1;
        }
    }
}

impl DiskFile for SimulatedFile {
    fn read_at(&self, position: u64, out: &mut [u8]) -> io::Result<usize> {
        let mut state = lock(&self.state);
        state.look()?;
        if matches!(state.cut, Some(Cut::UnreadableFrom(bad)) if position + out.len() as u64 > bad) {
            return Err(state.refuse(io_error()));
        }
        let bytes = &state.contents(self.number)?.now;
        let from = usize::try_from(position).map_or(bytes.len(), |p| p.min(bytes.len()));
        let n = out.len().min(bytes.len() - from);
        out[..n].copy_from_slice(&bytes[from..from + n]);
        Ok(n)
    }

    fn write_at(&self, position: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = lock(&self.state);
        state.change()?;
        let position = usize::try_from(position).map_err(io::Error::other)?;
        state.contents(self.number)?;
        state.room_for(self.number, position + bytes.len())?;
        let contents = state.contents(self.number)?;
        if contents.now.len() < position + bytes.len() {
            contents.now.resize(position + bytes.len(), 0);
        }
        contents.now[position..position + bytes.len()].copy_from_slice(bytes);
        contents.pending.push(Pending::Write(position, bytes.to_vec()));
        Ok(())
    }

    fn length(&self) -> io::Result<u64> {
        let mut state = lock(&self.state);
        state.look()?;
        Ok(state.contents(self.number)?.now.len() as u64)
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        let mut state = lock(&self.state);
        state.change()?;
        let length = usize::try_from(length).map_err(io::Error::other)?;
        state.contents(self.number)?;
        state.room_for(self.number, length)?;
        let contents = state.contents(self.number)?;
        contents.now.resize(length, 0);
        contents.pending.push(Pending::Length(length));
        Ok(())
    }

    fn reserve(&self, length: u64) -> io::Result<()> {
        self.set_length(length)
    }

    fn punch(&self, position: u64, length: u64) -> io::Result<()> {
        // Something that no reader takes for what was there.
        let n =
            usize::try_from(length.min(self.length()?.saturating_sub(position))).map_err(io::Error::other)?;
        self.write_at(position, &vec![0xdb; n])
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = lock(&self.state);
        state.sync(|number| number == self.number)?;
        let contents = state.contents(self.number)?;
        for pending in contents.pending.drain(..) {
            pending.apply(&mut contents.durable);
        }
        Ok(())
    }
}

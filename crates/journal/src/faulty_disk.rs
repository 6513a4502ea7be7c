//! A disk in memory that behaves as badly as real ones may.
//!
//! What is written reaches the platter at a sync, or by chance before it, a sector at a time, in any
//! order. Names likewise, in order. [`FaultyDisk::lose_power`] draws what had arrived. Faults are armed by
//! counting operations down.

#![expect(clippy::unwrap_used, reason = "a disk of tests: a lock that is poisoned is a test that failed")]

use std::any::Any;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::disk::{Disk, DiskFile};

const SECTOR: usize = 512;

/// A fault of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Everything stops: each operation fails from here on.
    Power,
    /// The write puts down a part and then fails.
    ShortWrite,
    /// The file cannot grow.
    Full,
    /// The sync fails, and what it should have synced is dropped, as Linux does.
    SyncFails,
    /// The sync says yes and does nothing.
    SyncLies,
}

#[derive(Debug, Default)]
struct File {
    now: Vec<u8>,
    platter: Vec<u8>,
    /// Blocks are taken by writing, not by setting a length.
    allocated: usize,
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<u64, File>,
    names: BTreeMap<PathBuf, u64>,
    synced_names: BTreeMap<PathBuf, u64>,
    /// The names after each change since they were synced.
    name_history: Vec<BTreeMap<PathBuf, u64>>,
    next_file: u64,
    armed: Option<(u32, Fault)>,
    fired: bool,
    dead: bool,
    operations: u32,
}

/// The disk; a copy is the same disk.
#[derive(Clone, Debug, Default)]
pub struct FaultyDisk(Arc<Mutex<State>>);

#[derive(Debug)]
struct OpenFile {
    disk: FaultyDisk,
    file: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Write,
    Grow,
    Sync,
    Names,
}

impl State {
    /// Counts an operation; the fault that strikes it, if one does.
    fn strike(&mut self, operation: Operation) -> io::Result<Option<Fault>> {
        if self.dead {
            return Err(io::Error::other("no power"));
        }
        self.operations += 1;
        let Some((left, fault)) = self.armed else { return Ok(None) };
        let fits = match fault {
            Fault::Power => true,
            Fault::ShortWrite => operation == Operation::Write,
            Fault::Full => operation == Operation::Grow,
            Fault::SyncFails | Fault::SyncLies => operation == Operation::Sync,
        };
        if !fits {
            return Ok(None);
        }
        if left > 0 {
            self.armed = Some((left - 1, fault));
            return Ok(None);
        }
        self.armed = None;
        self.fired = true;
        match fault {
            Fault::Power => {
                self.dead = true;
                // The write that was under way may arrive in part; a name or a sync does not.
                if operation == Operation::Write {
                    Ok(Some(fault))
                } else {
                    Err(io::Error::other("no power"))
                }
            }
            Fault::Full => Err(io::ErrorKind::StorageFull.into()),
            _ => Ok(Some(fault)),
        }
    }

    fn restart(&mut self) {
        (self.dead, self.armed) = (false, None);
    }

    fn change_names(&mut self, change: impl FnOnce(&mut BTreeMap<PathBuf, u64>)) {
        change(&mut self.names);
        self.name_history.push(self.names.clone());
    }
}

impl FaultyDisk {
    /// The fault strikes after `left` more operations that it can strike.
    pub fn arm(&self, left: u32, fault: Fault) {
        let mut state = self.0.lock().unwrap();
        (state.armed, state.fired) = (Some((left, fault)), false);
    }

    /// True if the armed fault has struck.
    pub fn fired(&self) -> bool {
        self.0.lock().unwrap().fired
    }

    /// Power goes and comes back: `draw` decides, bit by bit, what had reached the platter.
    pub fn lose_power(&self, mut draw: impl FnMut() -> bool) {
        let mut state = self.0.lock().unwrap();
        for File { now, platter, .. } in state.files.values_mut() {
            if draw() {
                platter.resize(now.len(), 0);
            }
            for (new, old) in now.chunks(SECTOR).zip(platter.chunks_mut(SECTOR)) {
                if new != old && draw() {
                    old.copy_from_slice(&new[..old.len()]);
                }
            }
            now.clone_from(platter);
        }
        let history = std::mem::take(&mut state.name_history);
        let arrived = history.into_iter().take_while(|_| draw()).last();
        state.names = arrived.unwrap_or_else(|| state.synced_names.clone());
        state.synced_names = state.names.clone();
        state.restart();
    }

    /// The process ends; the system and its memory live on.
    pub fn kill(&self) {
        self.0.lock().unwrap().restart();
    }
}

impl DiskFile for OpenFile {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.disk.0.lock().unwrap();
        let offset = offset as usize;
        let grows = offset + bytes.len() > state.files[&self.file].allocated;
        let fault = state.strike(Operation::Write)?;
        if grows {
            state.strike(Operation::Grow)?;
        }
        let seed = state.operations as usize;
        let part = if fault.is_some() { (seed * 7919) % (bytes.len() + 1) } else { bytes.len() };
        let File { now, allocated, .. } = state.files.get_mut(&self.file).unwrap();
        *allocated = (*allocated).max(offset + part);
        if now.len() < offset + part {
            now.resize(offset + part, 0);
        }
        now[offset..offset + part].copy_from_slice(&bytes[..part]);
        if fault.is_some() { Err(io::Error::other("short write")) } else { Ok(()) }
    }

    fn set_len(&mut self, bytes: u64) -> io::Result<()> {
        let mut state = self.disk.0.lock().unwrap();
        state.strike(Operation::Names)?;
        let File { now, allocated, .. } = state.files.get_mut(&self.file).unwrap();
        now.resize(bytes as usize, 0);
        *allocated = (*allocated).min(bytes as usize);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.disk.0.lock().unwrap();
        let fault = state.strike(Operation::Sync)?;
        let File { now, platter, .. } = state.files.get_mut(&self.file).unwrap();
        match fault {
            None => platter.clone_from(now),
            Some(Fault::SyncLies) => {}
            Some(_) => {
                now.clone_from(platter);
                return Err(io::Error::other("sync failed"));
            }
        }
        Ok(())
    }
}

impl Disk for FaultyDisk {
    fn create_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, _: &Path) -> io::Result<Vec<String>> {
        let state = self.0.lock().unwrap();
        Ok(state.names.keys().filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect())
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let state = self.0.lock().unwrap();
        let file = state.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(state.files[file].now.clone())
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let state = self.0.lock().unwrap();
        let file = *state.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(OpenFile { disk: self.clone(), file }))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.0.lock().unwrap();
        state.strike(Operation::Names)?;
        let file = state.next_file;
        state.next_file += 1;
        state.files.insert(file, File::default());
        state.change_names(|names| {
            names.insert(path.to_owned(), file);
        });
        Ok(Box::new(OpenFile { disk: self.clone(), file }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.strike(Operation::Names)?;
        state.change_names(|names| {
            if let Some(file) = names.remove(from) {
                names.insert(to.to_owned(), file);
            }
        });
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.strike(Operation::Names)?;
        state.change_names(|names| {
            names.remove(path);
        });
        Ok(())
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.strike(Operation::Names)?;
        state.synced_names = state.names.clone();
        state.name_history.clear();
        Ok(())
    }

    fn lock(&self, _: &Path) -> io::Result<Option<Box<dyn Any + Send>>> {
        // Reopened by the same test over and over; the real lock has a test on the real disk.
        Ok(Some(Box::new(())))
    }
}

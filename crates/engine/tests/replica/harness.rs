//! What the cases need of an engine: how it begins, and how it crashes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use partage_core::base::id::Epoch;
use partage_engine::replica::limits::RUN_FILE_BYTES;
use partage_engine::replica::{
    Change, Direction, Engine, Error, Options, Row, SimulatedEngine, Snapshot, Store, TreeEngine,
};
use partage_service::table::replication::LogPosition;
use tempfile::TempDir;

pub type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// A machine with one disk.
pub trait Machine {
    type Engine: Engine;
    fn new() -> Self;
    fn engine(&self) -> &Self::Engine;
    /// Where the store of that name is.
    fn folder(&self, name: &str) -> PathBuf;
    /// All processes end. What they had not flushed is lost.
    fn crash(&mut self);
}

pub type StoreOf<M> = <<M as Machine>::Engine as Engine>::Store;

/// A machine with the engine of the product.
pub type Real = Trees<{ RUN_FILE_BYTES }>;

/// The same with files so small that a few rows make several levels of them.
pub type Small = Trees<600>;

pub struct Trees<const RUN_FILE: u64> {
    engine: TreeEngine,
    disk: TempDir,
}

impl<const RUN_FILE: u64> Trees<RUN_FILE> {
    fn with(disk: TempDir) -> Self {
        let options = Options { run_file_bytes: RUN_FILE, ..Options::default() };
        Trees { engine: TreeEngine::new(options), disk }
    }
}

impl<const RUN_FILE: u64> Machine for Trees<RUN_FILE> {
    type Engine = TreeEngine;

    fn new() -> Self {
        Trees::with(temporary())
    }

    fn engine(&self) -> &TreeEngine {
        &self.engine
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.disk.path().join(name)
    }

    /// The files stay as they are now, while the process that has them open goes on elsewhere.
    fn crash(&mut self) {
        let copied = temporary();
        copy(self.disk.path(), copied.path());
        *self = Trees::with(copied);
    }
}

/// A machine with the simulated engine.
pub struct Simulated(SimulatedEngine);

impl Machine for Simulated {
    type Engine = SimulatedEngine;

    fn new() -> Simulated {
        Simulated(SimulatedEngine::default())
    }

    fn engine(&self) -> &SimulatedEngine {
        &self.0
    }

    fn folder(&self, name: &str) -> PathBuf {
        PathBuf::from(name)
    }

    fn crash(&mut self) {
        self.0.crash();
    }
}

/// Runs generic cases on both engines.
macro_rules! on_both {
    ($($(#[$with:meta])* $case:ident)*) => {
        mod real {
            $(#[test] $(#[$with])* fn $case() { super::$case::<crate::harness::Real>(); })*
        }
        mod small_files {
            $(#[test] $(#[$with])* fn $case() { super::$case::<crate::harness::Small>(); })*
        }
        mod simulated {
            $(#[test] $(#[$with])* fn $case() { super::$case::<crate::harness::Simulated>(); })*
        }
    };
}
pub(crate) use on_both;

/// A folder in memory where there is one: a sync takes nothing there.
pub fn temporary() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

pub fn at(index: u64) -> LogPosition {
    let epoch = if index == 0 { Epoch(0) } else { Epoch(1 + index / 10) };
    LogPosition { epoch, index }
}

/// Applies the next group.
pub fn apply(store: &impl Store, changes: &[(&[u8], Option<&[u8]>)]) {
    let before = store.applied();
    let changes: Vec<Change<'_>> = changes.iter().map(|&(key, value)| Change { key, value }).collect();
    store.apply(before, at(before.index + 1), &changes).unwrap();
}

pub fn set(store: &impl Store, key: &[u8], value: &[u8]) {
    apply(store, &[(key, Some(value))]);
}

pub fn delete(store: &impl Store, key: &[u8]) {
    apply(store, &[(key, None)]);
}

pub fn get(store: &impl Store, key: &[u8]) -> Option<Vec<u8>> {
    store.get(key).unwrap().map(|value| value.to_vec())
}

/// All rows, and the same backwards.
pub fn rows(snapshot: &impl Snapshot) -> Map {
    let forward: Vec<Row> = snapshot.range(None, None, Direction::Forward).map(Result::unwrap).collect();
    let mut backward: Vec<Row> =
        snapshot.range(None, None, Direction::Backward).map(Result::unwrap).collect();
    backward.reverse();
    assert_eq!(forward, backward);
    assert!(forward.is_sorted_by(|a, b| a.key < b.key));
    forward.into_iter().map(|row| (row.key.to_vec(), row.value.to_vec())).collect()
}

pub fn all(store: &impl Store) -> Map {
    rows(&store.snapshot().unwrap())
}

/// Compacts until nothing is due.
pub fn compact(store: &impl Store) {
    for _ in 0..100 {
        if !store.compact().unwrap() {
            return;
        }
    }
    panic!("compaction does not end");
}

pub fn refused<T>(result: Result<T, Error>) -> Error {
    match result {
        Ok(_) => panic!("it was not refused"),
        Err(error) => error,
    }
}

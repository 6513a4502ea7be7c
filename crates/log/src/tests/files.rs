//! Real files, past the page cache and through it.

use super::{Draws, Model, append, apply, key, same, small};
use crate::{Log, LogSettings, Mode, OpenError};
use partage_journal::RealDisk;
use std::path::Path;
use std::sync::Arc;

fn write_and_read(dir: &Path, settings: LogSettings) -> Option<Mode> {
    let (mut log, recovered) = Log::open(Arc::new(RealDisk), dir, settings).unwrap();
    let mode = recovered.mode;
    let (mut draws, mut model) = (Draws::new(3), Model::new());
    for round in 0..120 {
        let group = draws.group(&model, 6);
        log.write(&group).unwrap();
        apply(&mut model, &group);
        if round % 10 == 0 {
            log.reclaim().unwrap();
        }
        if round % 40 == 39 {
            drop(log);
            let (again, recovered) = Log::open(Arc::new(RealDisk), dir, settings).unwrap();
            same(&recovered.replicas, &model, "");
            assert!(recovered.places.is_empty() && recovered.damaged.is_empty());
            log = again;
        }
    }
    assert_eq!(log.mode(), mode);
    mode
}

#[test]
fn real_files_keep_what_was_written_in_both_modes() {
    let dir = tempfile::tempdir().unwrap();
    let synced = LogSettings { try_direct: false, ..small() };
    assert_eq!(write_and_read(&dir.path().join("synced"), synced), Some(Mode::Synced));
    let direct = LogSettings { prepare_ahead: true, ..small() };
    assert!(write_and_read(&dir.path().join("direct"), direct).is_some());
    // What one mode wrote the other one goes on with.
    let (mut log, recovered) = Log::open(Arc::new(RealDisk), &dir.path().join("direct"), synced).unwrap();
    assert_eq!(recovered.mode, Some(Mode::Synced));
    log.write(&[(key(99), append(1, 1, 10))]).unwrap();
    drop(log);
    let (_, again) = Log::open(Arc::new(RealDisk), &dir.path().join("direct"), direct).unwrap();
    assert_eq!(again.replicas.len(), recovered.replicas.len() + 1);
}

#[test]
fn a_file_system_without_direct_writes_gets_syncs() {
    // In memory, where there is such a file system: some kernels open files of it past the page cache, others refuse.
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return };
    assert!(write_and_read(&dir.path().join("log"), small()).is_some());
}

#[test]
fn a_second_opening_of_a_folder_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let first = Log::open(Arc::new(RealDisk), dir.path(), small()).unwrap();
    let second = Log::open(Arc::new(RealDisk), dir.path(), small());
    assert!(matches!(second, Err(OpenError::Locked(_))));
    drop(first);
    Log::open(Arc::new(RealDisk), dir.path(), small()).unwrap();
}

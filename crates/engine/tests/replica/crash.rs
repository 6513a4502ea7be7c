//! Crashes of the real engine: a process that is killed, and every state of the folder that a write passes through.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use partage_engine::replica::limits::RUNS;
use partage_engine::replica::{Change, Engine, Error, Options, Store, TreeEngine};
use partage_service::table::replication::LogPosition;

use crate::harness::{Map, all, apply, at, compact, copy, refused, set, temporary};

const FOLDER: &str = "PARTAGE_REPLICA_FOLDER";

/// The changes of the group at an index: some keys of two hundred, one value in five stored apart.
fn group(index: u64) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let mut state = index.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let change = |number: u64| {
        let key = (number % 200).to_be_bytes().to_vec();
        let bytes = if number.is_multiple_of(5) { 5_000 } else { 80 };
        (key, (!number.is_multiple_of(7)).then(|| vec![index as u8; bytes]))
    };
    (0..8).map(|_| change(next() >> 20)).collect()
}

fn model(through: u64) -> Map {
    let mut map = Map::new();
    for (key, value) in (1..=through).flat_map(group) {
        match value {
            Some(value) => map.insert(key, value),
            None => map.remove(&key),
        };
    }
    map
}

fn apply_next(store: &impl Store) {
    let before = store.applied();
    let changes = group(before.index + 1);
    let changes: Vec<Change<'_>> =
        changes.iter().map(|(key, value)| Change { key, value: value.as_deref() }).collect();
    store.apply(before, at(before.index + 1), &changes).unwrap();
}

/// With run files so small that compaction has several levels.
fn small() -> TreeEngine {
    TreeEngine::new(Options { run_file_bytes: 4_000, ..Options::default() })
}

/// Writes, flushes and compacts until it is killed, and says what is flushed.
#[test]
#[ignore = "the process that the other test kills"]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let store = small().open(Path::new(&folder)).unwrap();
    let applied = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                let flushed = store.flush().unwrap().index;
                let mut out = std::io::stdout().lock();
                writeln!(out, "flushed {flushed}").unwrap();
            }
        });
        scope.spawn(|| {
            loop {
                if !store.compact().unwrap() {
                    std::thread::sleep(Duration::from_micros(300));
                }
            }
        });
        loop {
            apply_next(&store);
            applied.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_micros(50));
        }
    });
}

#[test]
fn a_killed_process_has_lost_only_what_was_not_flushed() {
    let disk = temporary();
    let folder = disk.path().join("store");
    let mut flushed = 0;
    for round in 0..30u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "crash::child", "--nocapture", "--test-threads=1"])
            .env(FOLDER, &folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut said = |line: Option<Result<String, std::io::Error>>| {
            let text = line?.ok()?;
            if let Some(index) = text.split("flushed ").nth(1) {
                flushed = index.parse().unwrap_or(flushed);
            }
            Some(())
        };
        for _ in 0..10 {
            said(lines.next()).unwrap();
        }
        std::thread::sleep(Duration::from_micros(round * 1_700 % 11_000));
        child.kill().unwrap();
        child.wait().unwrap();
        while said(lines.next()).is_some() {}

        let store = small().open(&folder).unwrap();
        let stored = store.flushed();
        // What the last line says may be cut off in the middle of the number, which is then less.
        assert!(stored.index >= flushed, "round {round}: {flushed} was flushed, {stored} is stored");
        assert_eq!(stored, at(stored.index));
        assert_eq!(all(&store), model(stored.index), "round {round}, up to {stored}");
        store.verify().unwrap();
        flushed = stored.index;
    }
    assert!(flushed > 100, "{flushed}");
}

/// All files below a folder, by their names in it.
fn files(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for inner in ["", "tables", "blobs"] {
        let Ok(entries) = fs::read_dir(folder.join(inner)) else { continue };
        let entries = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
        found.extend(entries.map(|path| path.strip_prefix(folder).unwrap().to_owned()));
    }
    found
}

/// Takes over some files of `from`: whole, cut, or full of zeros, as a crash leaves what was not synced.
fn take(from: &Path, to: &Path, names: &[&PathBuf], part: usize) {
    for name in names {
        let bytes = fs::read(from.join(name)).unwrap();
        let kept = match part {
            0 => bytes,
            1 => Vec::new(),
            2 => bytes[..bytes.len() / 2].to_vec(),
            3 => vec![0; bytes.len()],
            _ => [&bytes[..bytes.len() / 2], &vec![0; bytes.len() - bytes.len() / 2]].concat(),
        };
        fs::write(to.join(name), kept).unwrap();
    }
}

fn opened(folder: &Path) -> (LogPosition, Map) {
    let store = TreeEngine::default().open(folder).unwrap();
    store.verify().unwrap();
    let found = (store.flushed(), all(&store));
    // It goes on as if nothing had been.
    set(&store, b"new", b"value");
    store.flush().unwrap();
    compact(&store);
    drop(store);
    let store = TreeEngine::default().open(folder).unwrap();
    let mut more = found.1.clone();
    more.insert(b"new".to_vec(), b"value".to_vec());
    assert_eq!(all(&store), more);
    store.verify().unwrap();
    found
}

/// `before` and `after` are the folder before and behind one write, which first adds files, then renames one over `current`, and
/// then removes files.
fn check_states_between(before: &Path, after: &Path) {
    let (old, new) = (opened_copy(before), opened_copy(after));
    let (old_files, new_files) = (files(before), files(after));
    let added: Vec<&PathBuf> = new_files.difference(&old_files).collect();
    let removed: Vec<&PathBuf> = old_files.difference(&new_files).collect();
    assert!(added.iter().any(|name| name.to_string_lossy().starts_with('v')), "{added:?}");
    let mut states = 0;
    for taken in 0..=added.len() {
        for part in 0..5 {
            let disk = temporary();
            copy(before, disk.path());
            take(after, disk.path(), &added[..taken], 0);
            if part > 0 && taken < added.len() {
                take(after, disk.path(), &added[taken..=taken], part);
            }
            fs::write(disk.path().join(".tmpAb12Cd"), b"1234").unwrap();
            assert_eq!(opened(disk.path()), old, "{taken} of {added:?}, part {part}");
            assert!(!disk.path().join(".tmpAb12Cd").exists());
            states += 1;
        }
    }
    for gone in 0..=removed.len() {
        let disk = temporary();
        copy(before, disk.path());
        take(after, disk.path(), &added, 0);
        take(after, disk.path(), &[&PathBuf::from("current")], 0);
        for name in &removed[..gone] {
            fs::remove_file(disk.path().join(name)).unwrap();
        }
        assert_eq!(opened(disk.path()), new, "{gone} of {removed:?} are gone");
        states += 1;
    }
    assert!(states > 10);
}

fn opened_copy(folder: &Path) -> (LogPosition, Map) {
    let disk = temporary();
    copy(folder, disk.path());
    opened(disk.path())
}

#[test]
fn every_state_of_the_folder_is_before_or_behind_a_write() {
    let disk = temporary();
    let (folder, before) = (disk.path().join("store"), disk.path().join("before"));
    let store = TreeEngine::default().open(&folder).unwrap();
    for run in 0..6 {
        for _ in 0..6 {
            apply_next(&store);
        }
        copy(&folder, &before);
        store.flush().unwrap();
        check_states_between(&before, &folder);
        fs::remove_dir_all(&before).unwrap();
        if run >= 3 {
            copy(&folder, &before);
            if store.compact().unwrap() {
                check_states_between(&before, &folder);
            }
            fs::remove_dir_all(&before).unwrap();
        }
    }
    assert_eq!(all(&store), model(36));
}

#[test]
fn a_store_that_was_being_made_or_removed_is_new() {
    let disk = temporary();
    let folder = disk.path().join("store");
    drop(TreeEngine::default().open(&folder).unwrap());
    for name in ["v0", ".tmpAb12Cd"] {
        fs::write(folder.join(name), b"half").unwrap();
    }
    fs::remove_file(folder.join("current")).unwrap();
    let store = TreeEngine::default().open(&folder).unwrap();
    set(&store, b"key", b"value");
    store.flush().unwrap();
    drop(store);
    // Half removed: the folder has its other name, and not all of its files.
    let removed = disk.path().join("store.removed");
    fs::rename(&folder, &removed).unwrap();
    fs::remove_file(removed.join("current")).unwrap();
    let store = TreeEngine::default().open(&folder).unwrap();
    assert!(!removed.exists());
    assert_eq!(all(&store), Map::new());
    set(&store, b"key", b"value");
    store.flush().unwrap();
    drop(store);
    // A store that has lost the file is none that was being made.
    fs::remove_file(folder.join("current")).unwrap();
    let error = refused(TreeEngine::default().open(&folder));
    assert!(matches!(&error, Error::Damaged { path, .. } if path.ends_with("store/current")), "{error}");
    assert!(error.is_damage() && folder.join("tables").join("0").exists());
}

#[test]
fn a_store_to_which_a_write_has_failed_must_be_opened_again() {
    let disk = temporary();
    let folder = disk.path().join("store");
    let store = TreeEngine::default().open(&folder).unwrap();
    set(&store, b"key", b"old");
    store.flush().unwrap();
    set(&store, b"key", b"new");
    // Where the next run goes there is something else.
    let next = folder.join("tables").join("1");
    fs::create_dir(&next).unwrap();
    let error = refused(store.flush());
    assert!(matches!(error, Error::Io { .. }), "{error}");
    assert!(matches!(refused(store.flush()), Error::Broken { .. }));
    assert!(matches!(refused(store.compact()), Error::Broken { .. }));
    assert!(matches!(refused(store.apply(store.applied(), at(3), &[])), Error::Broken { .. }));
    assert_eq!(store.get(b"key").unwrap().as_deref(), Some(&b"new"[..]), "reads go on");
    assert_eq!(store.flushed(), at(1));
    drop(store);
    fs::remove_dir(&next).unwrap();
    let store = TreeEngine::default().open(&folder).unwrap();
    apply(&store, &[(b"key", Some(b"new"))]);
    assert_eq!(store.flush().unwrap(), at(2));
}

#[test]
fn runs_do_not_exceed_what_the_list_of_files_can_hold() {
    let disk = temporary();
    let folder = disk.path().join("store");
    let store = TreeEngine::default().open(&folder).unwrap();
    let mut most = 0;
    for run in 0..4 * RUNS + 20 {
        set(&store, b"key", format!("{run}").as_bytes());
        set(&store, format!("{run}").as_bytes(), b"");
        store.flush().unwrap();
        let runs = store.size().runs;
        if runs > most && runs > RUNS - 2 {
            let disk = temporary();
            copy(&folder, disk.path());
            assert_eq!(all(&TreeEngine::default().open(disk.path()).unwrap()), all(&store), "{runs} runs");
        }
        most = most.max(runs);
    }
    assert_eq!(most, RUNS);
    let rows = all(&store);
    drop(store);
    let store = TreeEngine::default().open(&folder).unwrap();
    assert_eq!(rows.len(), 4 * RUNS + 21);
    assert_eq!(all(&store), rows);
}

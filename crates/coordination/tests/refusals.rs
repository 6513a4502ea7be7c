//! What the embedded backend refuses on a real disk, in which words, and what can be saved then.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, also in its own small functions")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use partage_coordination::ClusterId;
use partage_coordination::embedded::salvage::{inspect, salvage};
use partage_coordination::embedded::{Embedded, Options};
use partage_coordination::{Advice, Coordination, Error, Key, Scope, Session, Transaction, limits};
use tempfile::TempDir;

fn options() -> Options {
    Options { cluster: Some(ClusterId(5)), step_bytes: 4096, ..Options::default() }
}

async fn open(dir: &Path) -> Result<Arc<Embedded>, Error> {
    Embedded::open(dir, options()).await
}

fn key(path: &str) -> Key {
    Key::new(path).unwrap()
}

/// A closed store with ten keys, `k/0` to `k/9`, written one by one.
async fn written() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await.unwrap();
    for number in 0..10 {
        let transaction = Transaction::new().put(&key(&format!("k/{number}")), vec![number; 100]);
        store.commit(transaction).await.unwrap();
    }
    store.close().await;
    dir
}

fn journal(dir: &TempDir) -> PathBuf {
    dir.path().join("journal-00000001")
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 4;
    std::fs::write(path, bytes).unwrap();
}

#[tokio::test]
async fn two_processes_never_share_a_directory() {
    let dir = written().await;
    let store = open(dir.path()).await.unwrap();
    let second = open(dir.path()).await.unwrap_err();
    assert_eq!(second, Error::InUse { dir: dir.path().to_owned() });
    assert!(second.to_string().contains("stop that one, or give this one a directory of its own"));
    assert!(matches!(inspect(dir.path()), Err(Error::InUse { .. })));
    store.close().await;
    open(dir.path()).await.unwrap().close().await;
}

#[tokio::test]
async fn wrong_settings_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for step_bytes in [0, 100, 513, u32::MAX] {
        let error = Embedded::open(dir.path(), Options { step_bytes, ..options() }).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
    }
    let file = dir.path().join("a file");
    std::fs::write(&file, "").unwrap();
    let error = open(&file).await.unwrap_err();
    assert!(matches!(&error, Error::Unavailable { what } if what.contains("a file")), "{error}");
}

#[tokio::test]
async fn sessions_have_a_limit() {
    let store = Embedded::in_memory();
    let ttl = std::time::Duration::from_secs(60);
    let mut sessions = Vec::new();
    for _ in 0..limits::EMBEDDED_MAX_SESSIONS {
        sessions.push(store.open_session(ttl).await.unwrap());
    }
    assert!(matches!(store.open_session(ttl).await, Err(Error::TooLarge { .. })));
    store.end_session(sessions[0]).await.unwrap();
    store.open_session(ttl).await.unwrap();
}

#[tokio::test]
async fn another_cluster_is_refused() {
    let dir = written().await;
    let other = Options { cluster: Some(ClusterId(6)), ..options() };
    let error = Embedded::open(dir.path(), other).await.unwrap_err();
    assert!(matches!(error, Error::WrongCluster { .. }), "{error}");
    let any = Options { cluster: None, ..options() };
    let store = Embedded::open(dir.path(), any).await.unwrap();
    assert_eq!(store.cluster(), ClusterId(5));
    store.close().await;
}

#[tokio::test]
async fn damage_is_named_and_nothing_is_served() {
    let dir = written().await;
    flip(&journal(&dir), 700);
    let before = std::fs::read(journal(&dir)).unwrap();
    let error = open(dir.path()).await.unwrap_err();
    let Error::Corrupt { file, offset, .. } = &error else { panic!("{error}") };
    assert_eq!(file, &journal(&dir));
    assert!((500..=700).contains(offset) && offset % 32 == 0, "{offset}");
    assert_eq!(error.advice(), Advice::CallAPerson);
    assert!(error.to_string().contains("partage check"), "{error}");
    assert_eq!(std::fs::read(journal(&dir)).unwrap(), before, "a refused file is left as it was");
}

#[tokio::test]
async fn a_missing_journal_is_not_a_new_store() {
    let dir = written().await;
    std::fs::remove_file(journal(&dir)).unwrap();
    let error = open(dir.path()).await.unwrap_err();
    assert!(matches!(&error, Error::Corrupt { what, .. } if what.contains("missing")), "{error}");
    assert!(!inspect(dir.path()).unwrap().is_sound());
}

#[tokio::test]
async fn every_flipped_bit_of_the_identity_is_found() {
    let dir = written().await;
    let path = dir.path().join("identity");
    let good = std::fs::read(&path).unwrap();
    for bit in 0..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&path, bytes).unwrap();
        let error = open(dir.path()).await.unwrap_err();
        assert!(matches!(&error, Error::Corrupt { file, .. } if *file == path), "bit {bit}: {error}");
    }
    for length in 0..good.len() {
        std::fs::write(&path, &good[..length]).unwrap();
        assert!(matches!(open(dir.path()).await, Err(Error::Corrupt { .. })), "cut to {length}");
    }
}

#[tokio::test]
async fn a_crash_between_rename_and_delete_leaves_the_newer_file() {
    let dir = written().await;
    let old = std::fs::read(journal(&dir)).unwrap();
    let small = Options { compact_bytes: 1, ..options() };
    let store = Embedded::open(dir.path(), small).await.unwrap();
    store.commit(Transaction::new().put(&key("k/new"), vec![1; 4000])).await.unwrap();
    store.close().await;
    assert!(!journal(&dir).exists(), "it was compacted");
    std::fs::write(journal(&dir), old).unwrap();
    std::fs::write(dir.path().join("journal-00000099.tmp"), "unfinished").unwrap();
    let store = open(dir.path()).await.unwrap();
    assert!(store.read(&key("k/new")).await.unwrap().is_some());
    assert!(!journal(&dir).exists() && !dir.path().join("journal-00000099.tmp").exists());
    store.close().await;
}

#[tokio::test]
async fn a_sound_directory_is_reported_so() {
    let dir = written().await;
    let report = inspect(dir.path()).unwrap();
    assert!(report.is_sound() && report.uncertain.is_empty());
    assert_eq!((report.entries.len(), report.cluster), (10, Some(ClusterId(5))));
}

#[tokio::test]
async fn what_lies_around_the_damage_is_saved() {
    let dir = written().await;
    let last = inspect(dir.path()).unwrap().version;
    flip(&journal(&dir), 700);
    let out = tempfile::tempdir().unwrap();
    let report = salvage(dir.path(), out.path()).unwrap();
    let (file, damage) = report.first_damage().unwrap();
    assert_eq!(file, journal(&dir));
    assert!((500..=700).contains(&damage.offset));
    assert_eq!(report.entries.len(), 9, "one record was damaged, one key is lost");
    let certain = report.entries.keys().filter(|key| !report.uncertain.contains(*key)).count();
    assert!((1..9).contains(&report.uncertain.len()) && certain > 0, "{:?}", report.uncertain);

    let store = open(out.path()).await.unwrap();
    let listing = store.list(&Scope::All, None, 100).await.unwrap();
    assert_eq!(listing.entries.into_iter().collect::<std::collections::BTreeMap<_, _>>(), report.entries);
    let next = store.commit(Transaction::new().put(&key("k/next"), "x")).await.unwrap();
    assert!(next > last, "a version that may have been given is not given again");
    store.close().await;
    assert!(matches!(salvage(dir.path(), out.path()), Err(Error::Invalid { .. })), "never over something");
}

#[tokio::test]
async fn salvage_survives_any_flip_and_cut() {
    let dir = written().await;
    let good = std::fs::read(journal(&dir)).unwrap();
    let full = inspect(dir.path()).unwrap().entries;
    for at in (0..good.len()).step_by(61) {
        flip(&journal(&dir), at);
        let report = inspect(dir.path()).unwrap();
        assert!(report.entries.len() + 1 >= full.len(), "one flip at {at} lost more than a record");
        assert!(report.entries.iter().all(|(key, entry)| full.get(key) == Some(entry)), "flip at {at}");
        std::fs::write(journal(&dir), &good[..at]).unwrap();
        let report = inspect(dir.path()).unwrap();
        assert!(!report.is_sound(), "cut at {at}");
        assert!(report.entries.iter().all(|(key, entry)| full.get(key) == Some(entry)), "cut at {at}");
        std::fs::write(journal(&dir), &good).unwrap();
    }
}

#[tokio::test]
async fn ephemeral_keys_do_not_outlive_the_process() {
    let dir = written().await;
    let store = open(dir.path()).await.unwrap();
    let session = Session::open(store.clone(), std::time::Duration::from_secs(60)).await.unwrap();
    let here = Transaction::new().put_ephemeral(&key("here"), "x", session.id());
    store.commit(here).await.unwrap();
    store.close().await;
    assert_eq!(inspect(dir.path()).unwrap().entries.len(), 10, "not saved either");
    let store = open(dir.path()).await.unwrap();
    assert_eq!(store.read(&key("here")).await.unwrap(), None);
    assert!(matches!(store.renew_session(session.id()).await, Err(Error::SessionEnded { .. })));
    store.close().await;
}

//! Store files of the batch job that get a second name instead of being copied.

use super::*;
use std::os::unix::fs::MetadataExt;

async fn linking() -> Bench {
    let mut bench = prebuilt().await;
    bench.options.is_linked = true;
    bench
}

fn inode(path: &Path) -> (u64, u64) {
    let found = fs::metadata(path).unwrap();
    (found.dev(), found.ino())
}

#[tokio::test]
async fn a_linked_file_is_the_sources_own_and_stays_when_the_source_is_gone() {
    let bench = linking().await;
    let (load, readers) = fetched(&bench).await.unwrap();
    assert_all_found(&load, &readers, 1_000);
    assert_eq!(
        load.progress.snapshot().bytes,
        load.progress.snapshot().bytes_in_all,
        "it was read all the same"
    );
    for partition in 0..3 {
        let name = file_name(partition);
        assert_eq!(inode(&built_file(&bench, &name)), inode(&bench.local().join(&name)));
    }
    assert_eq!(bench.unfinished(), 0);
    fs::remove_dir_all(bench.folder.path().join("built")).unwrap();
    assert_all_found(&load, &readers, 1_000);
    // What is there is not loaded again, and what is deleted here is gone here alone.
    let again = run(&load, &[0, 1, 2]).await.unwrap();
    assert_all_found(&load, &again, 1_000);
}

#[tokio::test]
async fn what_is_deleted_here_stays_in_the_source() {
    let bench = linking().await;
    fetched(&bench).await.unwrap();
    for partition in 0..3 {
        fs::remove_file(bench.local().join(file_name(partition))).unwrap();
    }
    let (load, readers) = fetched(&bench).await.unwrap();
    assert_all_found(&load, &readers, 1_000);
}

#[tokio::test]
async fn a_damaged_file_is_not_linked_but_refused() {
    let bench = linking().await;
    let path = built_file(&bench, "00001.partage");
    let whole = fs::read(&path).unwrap();
    let mut bytes = whole.clone();
    bytes[whole.len() / 2] ^= 4;
    fs::write(&path, bytes).unwrap();
    let error = fetched(&bench).await.map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("00001.partage: offset "), "{error}");
    assert!(!bench.local().join("00001.partage").exists());
    assert_eq!(bench.unfinished(), 0);
    assert!(path.exists(), "the source's own is left alone");
}

#[tokio::test]
async fn a_symbolic_link_within_the_source_is_followed_to_its_file() {
    let bench = linking().await;
    let (path, behind) = (built_file(&bench, "00001.partage"), built_file(&bench, "_behind"));
    fs::rename(&path, &behind).unwrap();
    std::os::unix::fs::symlink("_behind", &path).unwrap();
    let (load, readers) = fetched(&bench).await.unwrap();
    assert_all_found(&load, &readers, 1_000);
    let here = bench.local().join("00001.partage");
    assert!(here.symlink_metadata().unwrap().is_file());
    assert_eq!(inode(&here), inode(&behind));
}

#[tokio::test]
async fn from_another_file_system_it_is_copied() {
    let bench = linking().await;
    let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
    let version = elsewhere.path().join("set/1");
    fs::create_dir_all(&version).unwrap();
    for entry in fs::read_dir(built_file(&bench, "")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), version.join(entry.file_name())).unwrap();
    }
    assert_ne!(inode(&version).0, inode(&bench.local()).0, "this test needs a /dev/shm of its own");
    let source = Source::open(elsewhere.path().to_str().unwrap(), &Settings::new()).unwrap();
    let load = bench.load_from(&source).await.unwrap();
    let readers = run(&load, &[0, 1, 2]).await.unwrap();
    assert_all_found(&load, &readers, 1_000);
    assert_eq!(bench.unfinished(), 0);
}

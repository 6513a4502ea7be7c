//! What a restart finds, whatever was on the disk.

use partage_engine::readonly::{Builder, Options};
use partage_service::dataset::Partitioner;
use tempfile::TempDir;

use super::*;
use crate::build::file_name;

fn names() -> (DatasetName, VersionName) {
    (DatasetName::new("set").unwrap(), VersionName::new("1").unwrap())
}

fn inspection(partitions: u32, digest: u64) -> Inspection {
    let (dataset, version) = names();
    Inspection {
        dataset,
        version,
        layout: Layout { partitioner: Partitioner::HadoopBytes, partitions, digest },
        is_followed: true,
        whole: BTreeMap::new(),
        built: None,
    }
}

fn put(folder: &Path, partition: u32) {
    let mut builder = Builder::new(&folder.join(file_name(partition)), Options::default()).unwrap();
    builder.add(b"key", partition.to_string().as_bytes()).unwrap();
    builder.finish().unwrap();
}

/// A data directory with a version of 3 partitions, of which 0 and 2 are here.
fn filled() -> (TempDir, PathBuf) {
    let data = tempfile::tempdir().unwrap();
    let (store, scan) = Store::open(data.path()).unwrap();
    assert!(scan.versions.is_empty() && scan.removed.is_empty());
    let folder = store.begin(&inspection(3, 9)).unwrap();
    put(&folder, 0);
    put(&folder, 2);
    (data, folder)
}

fn reopened(data: &TempDir) -> StoreContents {
    Store::open(data.path()).unwrap().1
}

fn here(scan: &StoreContents) -> Vec<u32> {
    scan.versions.iter().flat_map(|stored| stored.partitions.keys().copied()).collect()
}

#[test]
fn s20_a_restart_finds_what_was_loaded() {
    let (data, _) = filled();
    let scan = reopened(&data);
    let stored = &scan.versions[0];
    assert_eq!((&stored.dataset, &stored.version), (&names().0, &names().1));
    assert_eq!(stored.layout, inspection(3, 9).layout);
    assert_eq!(here(&scan), [0, 2]);
    assert_eq!(stored.partitions[&2].get(b"key").unwrap().as_deref(), Some(&b"2"[..]));
    assert!(scan.removed.is_empty(), "{:?}", scan.removed);
}

#[test]
fn s20_one_process_has_it() {
    let (data, _) = filled();
    let first = Store::open(data.path()).unwrap();
    assert!(matches!(Store::open(data.path()), Err(Error::Locked(_))));
    drop(first);
    Store::open(data.path()).unwrap();
}

#[test]
fn s19_what_a_killed_process_left_is_removed() {
    let (data, folder) = filled();
    fs::write(folder.join(format!("{UNFINISHED}x")), "half").unwrap();
    fs::write(folder.join(file_name(1)), "cut off").unwrap();
    fs::write(folder.join(file_name(3)), "of another version").unwrap();
    fs::create_dir(data.path().join("datasets/.deleting-old.1")).unwrap();
    let scan = reopened(&data);
    assert_eq!(here(&scan), [0, 2]);
    assert_eq!(scan.removed.len(), 4, "{:?}", scan.removed);
    assert!(reopened(&data).removed.is_empty());
}

#[test]
fn a_version_whose_manifest_is_not_whole_is_removed() {
    let damages: [fn(&Path); 3] = [
        |folder| fs::remove_file(folder.join(MANIFEST)).unwrap(),
        |folder| {
            let text = fs::read_to_string(folder.join(MANIFEST)).unwrap();
            fs::write(folder.join(MANIFEST), text.replace("\"partitions\":3", "\"partitions\":2")).unwrap();
        },
        |folder| fs::rename(folder, folder.with_file_name("2")).unwrap(),
    ];
    for damage in damages {
        let (data, folder) = filled();
        damage(&folder);
        let scan = reopened(&data);
        assert!(scan.versions.is_empty());
        assert_eq!(scan.removed.len(), 1);
        assert!(!folder.exists() && !folder.with_file_name("2").exists());
    }
}

#[test]
fn the_same_version_is_resumed_and_another_of_its_name_begun_anew() {
    let (data, folder) = filled();
    let (store, _) = Store::open(data.path()).unwrap();
    assert_eq!(store.begin(&inspection(3, 9)).unwrap(), folder);
    assert!(folder.join(file_name(2)).exists());
    assert_eq!(store.begin(&inspection(3, 10)).unwrap(), folder);
    assert!(!folder.join(file_name(2)).exists());
}

#[test]
fn who_reads_a_version_that_is_removed_reads_on() {
    let (data, folder) = filled();
    let (store, scan) = Store::open(data.path()).unwrap();
    let (dataset, version) = names();
    store.remove(&dataset, &version).unwrap();
    assert!(!folder.exists() && !data.path().join("datasets/set").exists());
    let reader = &scan.versions[0].partitions[&0];
    assert_eq!(reader.get(b"key").unwrap().as_deref(), Some(&b"0"[..]));
    store.remove(&dataset, &version).unwrap();
    drop(store);
    assert!(reopened(&data).versions.is_empty());
}

#[test]
fn s19_a_load_that_was_killed_is_known_at_the_next_start_and_counted() {
    let data = tempfile::tempdir().unwrap();
    let (dataset, version) = names();
    let died = || Store::open(data.path()).unwrap().0.died();
    // As a process that is killed: the mark is not dropped.
    let killed = || {
        let (store, _) = Store::open(data.path()).unwrap();
        let mark = store.mark(&dataset, &version);
        let (path, text) = (mark.0.clone(), fs::read(&mark.0).unwrap());
        drop(mark);
        fs::write(path, text).unwrap();
    };
    assert_eq!(died(), []);
    killed();
    let which = (dataset.clone(), version.clone());
    assert_eq!(died(), [(which.clone(), 1)]);
    assert_eq!(died(), [(which.clone(), 1)], "a start alone is no death");
    fs::write(data.path().join("datasets/.loading-set.1"), "loading 1\n").unwrap();
    assert_eq!(died(), [(which, 2)]);
    let (store, _) = Store::open(data.path()).unwrap();
    store.forget_marks(&dataset, &[]);
    assert_eq!(store.died(), []);
    drop(store.mark(&dataset, &version));
    assert_eq!(store.died(), [], "it ended");
}

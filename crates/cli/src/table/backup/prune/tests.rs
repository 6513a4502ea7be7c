//! Prunes and backups that stop at each of their requests, for good or for a while: no backup that is there loses a chunk.

use super::*;
use crate::table::backup::marker::LIFE_MS;
use partage_core::keyspace::key::Key;
use partage_wire::table::backup::manifest::{ChunkEntry, DigestText, Manifest, ShardBackup};
use partage_wire::table::backup::rows::BackupRow;
use partage_wire::table::{KeyBytes, PlaceForm};
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// More requests than any command here makes.
const MOST: usize = 1_000;

fn content(number: u64) -> Vec<u8> {
    let mut content = Vec::new();
    BackupRow { key: &number.to_be_bytes(), value: b"v", expires_ms: None }.put(&mut content);
    content
}

fn digest(number: u64) -> ContentDigest {
    ContentDigest::of(&content(number))
}

/// Takes a backup with these chunks, as `partage table backup create` does.
async fn write(location: Location, id: String, numbers: Vec<u64>) -> Result<(), Failure> {
    let marker = Marker::put(&location, Work::Write, &id).await?;
    let work = async {
        marker.alone_with_writers().await?;
        let mut there = location.chunks().await?;
        let mut chunks = Vec::new();
        for number in numbers {
            let (content, digest) = (content(number), digest(number));
            if let Entry::Vacant(missing) = there.entry(digest) {
                missing.insert(location.put_chunk(digest, 1, content.clone().into()).await?);
            }
            let first = KeyBytes(Key::new(&number.to_be_bytes()).unwrap());
            let (content_bytes, file_bytes) = (content.len() as u64, there[&digest]);
            chunks.push(ChunkEntry { first, digest: DigestText(digest), rows: 1, content_bytes, file_bytes });
        }
        marker.put_manifest(&manifest(&id, chunks)).await
    };
    let ended = marker.during(work).await;
    marker.remove().await;
    ended
}

fn manifest(id: &str, chunks: Vec<ChunkEntry>) -> Manifest {
    let golden: serde_json::Value =
        serde_json::from_str(include_str!("../../../../../../vectors/table_backup.json")).unwrap();
    let golden = golden["manifest"].as_str().unwrap();
    let read = Manifest::open(golden.as_bytes(), "stock", "20261128T065456.789Z-3f0c9a11").unwrap();
    let begin = PlaceForm::Key(KeyBytes(Key::empty()));
    let shard = ShardBackup { shard: 1, begin, end: None, position: "1-1".into(), clock_ms: 1, chunks };
    Manifest { id: id.to_owned(), shards: vec![shard], ..read }
}

async fn pruned(location: Location, keep: usize) -> Result<Pruned, Failure> {
    let marker = Marker::put(&location, Work::Prune, "p").await?;
    let ended = marker.during(prune(&location, &Wanted { keep, table: None }, &marker)).await;
    marker.remove().await;
    ended
}

/// A location with four backups, of which neighbours have chunks in common, and a chunk of none.
async fn filled() -> (TempDir, Location) {
    let folder = TempDir::new().unwrap();
    let location = Location::create(folder.path().to_str().unwrap()).unwrap();
    for first in 0..4 {
        write(location.clone(), format!("b{first}"), vec![first, first + 1, 9]).await.unwrap();
    }
    location.put_chunk(digest(77), 1, content(77).into()).await.unwrap();
    (folder, location)
}

/// Reads all backups, each bit of them; says which there are.
async fn whole(location: &Location, what: &str) -> Vec<String> {
    let mut ids = Vec::new();
    for listed in location.backups().await.unwrap() {
        let manifest = location.manifest(&listed).await.unwrap();
        for entry in manifest.chunks() {
            let read = location.chunk(entry).await;
            assert!(read.is_ok(), "{what}: backup {} lacks a chunk: {read:?}", listed.id);
        }
        ids.push(listed.id);
    }
    ids
}

/// Lets the life of all markers end.
async fn age(location: &Location) {
    for (name, _) in location.markers().await.unwrap() {
        location.put_marker(&name, unix_ms() - LIFE_MS).await.unwrap();
    }
}

/// The same location for a command that stops after so many requests.
fn stopping(location: &Location, after: usize) -> (Location, Arc<Semaphore>) {
    let steps = Arc::new(Semaphore::new(after));
    (location.stopping(Arc::clone(&steps)), steps)
}

/// Runs a command until it has ended, or has made all requests that it may.
async fn until_it_stops<T: Send + 'static>(
    steps: &Semaphore,
    command: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    let running = tokio::spawn(command);
    while steps.available_permits() > 0 && !running.is_finished() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // The last request goes on to its end.
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    running
}

#[tokio::test]
async fn the_newest_stay_with_their_chunks_and_nothing_else() {
    let (_folder, location) = filled().await;
    let wanted = Wanted { keep: 2, table: None };
    let foreseen = foresee(&location, &wanted).await.unwrap();
    let done = pruned(location.clone(), 2).await.unwrap();
    assert_eq!(foreseen, done);
    let ids: Vec<_> = done.backups.iter().map(|listed| listed.id.as_str()).collect();
    assert_eq!((ids, done.kept, done.chunks), (vec!["b0", "b1"], 2, 3));
    assert_eq!(whole(&location, "pruned").await, ["b2", "b3"]);
    let left: BTreeSet<_> = location.chunks().await.unwrap().into_keys().collect();
    assert_eq!(left, [2, 3, 4, 9].map(digest).into());
    assert_eq!(location.markers().await.unwrap(), []);
    let other = Wanted { keep: 1, table: Some("other".into()) };
    assert_eq!(foresee(&location, &other).await.unwrap().backups, []);
    assert_eq!(pruned(location, 9).await.unwrap().chunks, 0);
}

#[tokio::test]
async fn a_prune_that_ends_at_any_request_leaves_whole_backups_and_the_next_one_removes_the_rest() {
    for after in 0..MOST {
        let (_folder, location) = filled().await;
        let (stops, steps) = stopping(&location, after);
        let running = until_it_stops(&steps, pruned(stops, 2)).await;
        let has_ended = running.is_finished();
        running.abort();
        let what = format!("after {after} requests");
        let ids = whole(&location, &what).await;
        assert!(ids.ends_with(&["b2".into(), "b3".into()]), "{what}: {ids:?}");
        // Its marker holds up others until its life is over.
        if !location.markers().await.unwrap().is_empty() {
            let busy = write(location.clone(), "b4".into(), vec![5, 77]);
            assert!(tokio::time::timeout(Duration::from_millis(50), busy).await.is_err(), "{what}");
            age(&location).await;
        }
        write(location.clone(), "b5".into(), vec![4, 5, 77]).await.unwrap();
        pruned(location.clone(), 2).await.unwrap();
        assert_eq!(whole(&location, &what).await, ["b3", "b5"], "{what}");
        let left: BTreeSet<_> = location.chunks().await.unwrap().into_keys().collect();
        assert_eq!(left, [3, 4, 5, 9, 77].map(digest).into(), "{what}");
        assert_eq!(location.markers().await.unwrap(), [], "{what}");
        if has_ended {
            assert!(after > 15, "{after}");
            return;
        }
    }
    panic!("it does not end");
}

#[tokio::test]
async fn a_backup_that_ends_at_any_request_keeps_prunes_away_until_its_marker_is_old() {
    for after in 0..MOST {
        let (_folder, location) = filled().await;
        let (stops, steps) = stopping(&location, after);
        let running = until_it_stops(&steps, write(stops, "b4".into(), vec![4, 5, 77])).await;
        let has_ended = running.is_finished();
        running.abort();
        let what = format!("after {after} requests");
        if location.markers().await.unwrap().is_empty() {
            pruned(location.clone(), 1).await.unwrap();
        } else {
            let refused = pruned(location.clone(), 1).await.unwrap_err();
            assert!(refused.what().contains("another command writes a backup"), "{what}: {refused:?}");
            assert!(location.chunks().await.unwrap().contains_key(&digest(77)), "{what}");
            age(&location).await;
            pruned(location.clone(), 1).await.unwrap();
        }
        let ids = whole(&location, &what).await;
        assert!(ids == ["b3"] || ids == ["b4"], "{what}: {ids:?}");
        write(location.clone(), "b5".into(), vec![4, 77]).await.unwrap();
        whole(&location, &what).await;
        if has_ended {
            assert!(after > 8 && ids == ["b4"], "{after}");
            return;
        }
    }
    panic!("it does not end");
}

/// Lets a command go on that has stopped, and gives what it says.
async fn end<T>(steps: &Semaphore, running: JoinHandle<T>) -> T {
    steps.add_permits(MOST);
    tokio::time::timeout(Duration::from_secs(30), running).await.expect("it ends").unwrap()
}

#[tokio::test]
async fn a_backup_and_a_prune_that_wait_for_each_other_at_any_request_leave_whole_backups() {
    // The one stops after so many requests, the other one runs until it ends or waits, and the first one goes on.
    let (mut written, mut refused) = (0, 0);
    for after in 0..MOST {
        let (_folder, location) = filled().await;
        let what = format!("the prune waits after {after} requests");
        let (stops, steps) = stopping(&location, after);
        let pruning = until_it_stops(&steps, pruned(stops, 1)).await;
        let has_ended = pruning.is_finished();
        let writing = tokio::spawn(write(location.clone(), "b4".into(), vec![1, 4, 77]));
        tokio::time::sleep(Duration::from_millis(60)).await;
        refused += usize::from(end(&steps, pruning).await.is_err());
        let wrote = tokio::time::timeout(Duration::from_secs(30), writing).await.expect("it ends").unwrap();
        wrote.unwrap_or_else(|why| panic!("{what}: {why:?}"));
        written += 1;
        assert_eq!(whole(&location, &what).await.last().unwrap(), "b4", "{what}");
        if has_ended {
            break;
        }
    }
    for after in 0..MOST {
        let (_folder, location) = filled().await;
        let what = format!("the backup waits after {after} requests");
        let (stops, steps) = stopping(&location, after);
        let writing = until_it_stops(&steps, write(stops, "b4".into(), vec![1, 4, 77])).await;
        let has_ended = writing.is_finished();
        refused += usize::from(pruned(location.clone(), 1).await.is_err());
        end(&steps, writing).await.unwrap_or_else(|why| panic!("{what}: {why:?}"));
        written += 1;
        assert_eq!(whole(&location, &what).await.last().unwrap(), "b4", "{what}");
        if has_ended {
            break;
        }
    }
    assert!(written > 20 && refused > 8, "{written} {refused}");
}

#[tokio::test]
async fn a_command_whose_marker_was_taken_for_old_gives_up() {
    let (_folder, location) = filled().await;
    let marker = Marker::put(&location, Work::Write, "slow").await.unwrap();
    marker.alone_with_writers().await.unwrap();
    age(&location).await;
    pruned(location.clone(), 4).await.unwrap();
    let failure = marker.put_manifest(&manifest("slow", Vec::new())).await.unwrap_err();
    assert!(failure.what().contains("has removed the marker"), "{failure:?}");
    assert_eq!(whole(&location, "four").await.len(), 4);
    // A marker that cannot be read may be anybody's.
    std::fs::write(_folder.path().join("markers/writer-x"), "soon").unwrap();
    assert!(pruned(location.clone(), 1).await.is_err());
    // What a backup needs that cannot be read is not known: nothing is removed.
    std::fs::remove_file(_folder.path().join("markers/writer-x")).unwrap();
    std::fs::write(_folder.path().join("tables/stock/b3"), "damaged").unwrap();
    let damaged = pruned(location.clone(), 1).await.unwrap_err();
    assert!(damaged.what().contains("b3"), "{damaged:?}");
    assert_eq!(location.backups().await.unwrap().len(), 4);
}

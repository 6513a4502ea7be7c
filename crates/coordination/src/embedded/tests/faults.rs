//! Power loss and failing disks at every single operation: nothing acknowledged is lost, and what is
//! said of an outcome is true.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use crate::embedded::{Embedded, Options};
use crate::{Coordination, Error, Expected, Key, Scope, Transaction, Version};
use partage_journal::faulty_disk::{Fault, FaultyDisk};

fn options(disk: &FaultyDisk) -> Options {
    Options { step_bytes: 1024, compact_bytes: 4096, disk: Arc::new(disk.clone()), ..Options::default() }
}

async fn open(disk: &FaultyDisk) -> Result<Arc<Embedded>, Error> {
    Embedded::open(Path::new("/d"), options(disk)).await
}

/// A different draw for each number, the same in each run.
fn draws(seed: u64) -> impl FnMut() -> bool {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 40 & 1 == 1
    }
}

/// What is known of each key: the value that was acknowledged, and those whose outcome is not known.
#[derive(Default)]
struct Known {
    certain: BTreeMap<Key, u64>,
    open: BTreeMap<Key, u64>,
}

/// Commits until something fails, and returns that; notes what became of each commit.
async fn work(store: &Embedded, known: &mut Known, rounds: u64, start: u64) -> Option<Error> {
    for round in start..start + rounds {
        let key = Key::new(format!("k{}", round % 7)).unwrap();
        let mut value = round.to_be_bytes().to_vec();
        value.resize(8 + (round as usize * 37) % 900, 0);
        match store.commit(Transaction::new().put(&key, value)).await {
            Ok(_) => {
                known.certain.insert(key, round);
            }
            Err(error) => {
                if !error.is_definite() {
                    known.open.insert(key, round);
                }
                return Some(error);
            }
        }
    }
    None
}

async fn check(store: &Embedded, known: &Known, what: &str) {
    for entry in store.list(&Scope::All, None, 100).await.unwrap().entries {
        let (key, entry) = entry;
        let found = u64::from_be_bytes(entry.value[..8].try_into().unwrap());
        let certain = known.certain.get(&key).copied();
        let open = known.open.get(&key).copied();
        assert!(
            Some(found) == certain || Some(found) == open,
            "{what}: {key} is {found}, not {certain:?} or {open:?}"
        );
    }
    for key in known.certain.keys() {
        assert!(store.read(key).await.unwrap().is_some(), "{what}: {key} is lost");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn power_may_go_at_any_operation() {
    let mut struck = 0;
    for after in 0..400 {
        let disk = FaultyDisk::default();
        disk.arm(after, Fault::Power);
        let mut known = Known::default();
        // Power may go in the first open, too; then there is nothing to lose.
        if let Ok(store) = open(&disk).await {
            let failure = work(&store, &mut known, 60, 0).await;
            assert!(failure.is_some() || !disk.fired() || known.certain.len() == 7);
            store.close().await;
        }
        struck += u32::from(disk.fired());
        for again in 0..2 {
            disk.lose_power(draws(u64::from(after) * 2 + again));
            let store = open(&disk).await.unwrap_or_else(|error| panic!("power after {after}: {error}"));
            check(&store, &known, &format!("power after {after}")).await;
            known.open.clear();
            for (key, entry) in store.list(&Scope::All, None, 100).await.unwrap().entries {
                known.certain.insert(key, u64::from_be_bytes(entry.value[..8].try_into().unwrap()));
            }
            assert_eq!(work(&store, &mut known, 10, 1000 + again * 100).await, None, "work goes on");
            store.close().await;
        }
    }
    assert!(struck > 150, "power went only {struck} times");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_failed_write_or_sync_stops_the_store_until_it_is_opened_anew() {
    for fault in [Fault::ShortWrite, Fault::SyncFails] {
        for after in 0..60 {
            let disk = FaultyDisk::default();
            let store = open(&disk).await.unwrap();
            disk.arm(after, fault);
            let mut known = Known::default();
            let failure = work(&store, &mut known, 60, 0).await;
            let what = format!("{fault:?} after {after}");
            if let Some(error) = failure {
                assert!(disk.fired());
                assert!(!error.is_definite(), "{what}: {error}");
                let later = store.commit(Transaction::new().put(&Key::new("later").unwrap(), "x")).await;
                assert!(matches!(later, Err(Error::Unavailable { .. })), "{what}: {later:?}");
                assert!(
                    store.read(&Key::new("k1").unwrap()).await.is_err(),
                    "{what}: a stopped store answers"
                );
                assert!(store.watch(Scope::All, None).await.is_err());
            }
            store.close().await;
            if after % 2 == 0 {
                disk.kill()
            } else {
                disk.lose_power(draws(u64::from(after)))
            }
            let store = open(&disk).await.unwrap_or_else(|error| panic!("{what}: {error}"));
            check(&store, &known, &what).await;
            store.close().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_full_disk_is_definite_and_passes() {
    let mut refused = 0;
    for after in 0..12 {
        let disk = FaultyDisk::default();
        let store = open(&disk).await.unwrap();
        disk.arm(after, Fault::Full);
        let mut known = Known::default();
        for start in [0, 100] {
            match work(&store, &mut known, 60, start).await {
                None => {}
                Some(Error::DiskFull { file, .. }) => {
                    assert!(file.starts_with("/d"));
                    refused += 1;
                }
                Some(error) => panic!("full after {after}: {error}"),
            }
            check(&store, &known, "the store itself").await;
        }
        assert_eq!(work(&store, &mut known, 20, 200).await, None, "there is room again");
        store.close().await;
        disk.lose_power(draws(u64::from(after)));
        let store = open(&disk).await.unwrap();
        check(&store, &known, &format!("full after {after}")).await;
        store.close().await;
    }
    assert!(refused > 3, "the disk was full only {refused} times");
}

/// A disk that lies about a sync and then loses power takes acknowledged writes: no journal can help.
/// What is left must still be a state that was, or be refused; never a mixture.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_lost_sync_is_refused_or_leaves_a_state_that_was() {
    let (mut refused, mut older) = (0, 0);
    for seed in 0..120_u64 {
        let disk = FaultyDisk::default();
        let store = open(&disk).await.unwrap();
        disk.arm(u32::try_from(seed % 30).unwrap(), Fault::SyncLies);
        let key = Key::new("k").unwrap();
        let mut states: BTreeMap<Version, Bytes> = BTreeMap::new();
        while !disk.fired() || seed % 3 == 0 && !states.len().is_multiple_of(4) {
            let value = Bytes::from(vec![states.len() as u8; (states.len() * 97) % 1500]);
            let version = store.commit(Transaction::new().put(&key, value.clone())).await.unwrap();
            states.insert(version, value);
        }
        store.close().await;
        disk.lose_power(draws(seed));
        match open(&disk).await {
            Err(Error::Corrupt { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
            Ok(store) => {
                if let Some(entry) = store.read(&key).await.unwrap() {
                    assert_eq!(states.get(&entry.version), Some(&entry.value));
                    older += u32::from(entry.version != *states.last_key_value().unwrap().0);
                }
                store.close().await;
            }
        }
    }
    assert!(refused + older > 0, "the lies were never felt");
}

/// The readers' side: nothing is visible before it is durable.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_failed_was_never_visible() {
    let disk = FaultyDisk::default();
    let store = open(&disk).await.unwrap();
    let key = Key::new("k").unwrap();
    let first = store.commit(Transaction::new().put(&key, "first")).await.unwrap();
    let mut watch = store.watch(Scope::All, Some(first)).await.unwrap();
    disk.arm(0, Fault::SyncFails);
    let failed = store.compare_and_swap(&key, Expected::At(first), Bytes::from_static(b"second")).await;
    assert!(matches!(failed, Err(Error::Indefinite { .. })));
    assert!(watch.next().await.is_err(), "a watch ends when the store stops, and has told nothing");
}

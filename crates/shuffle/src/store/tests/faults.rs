//! Power that goes, writes that stop short, full disks and failing syncs, at every operation.

use super::{batch, key, keys, open_with, unsynced};
use crate::store::{Store, StoreError};
use partage_journal::faulty_disk::{Fault, FaultyDisk};
use partage_service::shuffle::record::{Batch, BatchKey};
use partage_service::shuffle::{Durability, ShuffleId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What is known of the disk: what was stored, and what may be there without having been acknowledged.
#[derive(Default)]
struct Known {
    stored: BTreeSet<BatchKey>,
    /// What was stored and not synced, and the file in which it lies. It goes with the power.
    unsynced: BTreeMap<BatchKey, u64>,
    maybe: BTreeSet<BatchKey>,
    refused: u64,
    /// What may have gone with the power last, and how many have.
    at_risk: BTreeSet<BatchKey>,
    lost: usize,
}

impl Known {
    /// These are stored. One that is to be on disk takes those along that lie before it in its file.
    fn takes(&mut self, batches: &[(Arc<Batch>, u64)]) {
        self.unsynced.extend(batches.iter().map(|(batch, file)| (batch.key.clone(), *file)));
        let synced = batches.iter().filter(|(batch, _)| batch.durability == Durability::Disk);
        let files: BTreeSet<u64> = synced.map(|(_, file)| *file).collect();
        let synced = self.unsynced.extract_if(.., |_, file| files.contains(&*file));
        self.stored.extend(synced.map(|(key, _)| key));
    }

    fn power_goes(&mut self) {
        self.at_risk = std::mem::take(&mut self.unsynced).into_keys().collect();
        self.maybe.extend(self.at_risk.iter().cloned());
    }

    fn process_ends(&mut self) {
        self.stored.extend(std::mem::take(&mut self.unsynced).into_keys());
    }
}

/// Numbers that are the same at each run (Marsaglia: Xorshift RNGs).
struct Draws(u64);

impl Draws {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

/// Opens the store, writes groups and drops shuffles until something fails.
fn life(disk: &FaultyDisk, known: &mut Known, draws: &mut Draws, next: &mut u64) -> Result<(), StoreError> {
    let (mut store, found) = open_with(disk, 20_000)?;
    let there = keys(&found);
    assert!(known.unsynced.is_empty());
    let lost: Vec<_> = known.stored.difference(&there).collect();
    assert!(lost.is_empty(), "lost: {lost:?}");
    let strange: Vec<_> =
        there.iter().filter(|key| !known.stored.contains(*key) && !known.maybe.contains(*key)).collect();
    assert!(strange.is_empty(), "strange: {strange:?}");
    assert_eq!(found.damages, []);
    known.lost += std::mem::take(&mut known.at_risk).difference(&there).count();
    // What is there is stored from now on: the machine takes it up.
    known.stored = there;
    known.maybe.clear();
    for _ in 0..30 {
        if draws.below(8) == 0 {
            drop_one(&mut store, known, draws.below(3).into())?;
            continue;
        }
        let count = 1 + draws.below(4);
        let group: Vec<_> = (0..count)
            .map(|_| {
                *next += 1;
                let make = if draws.below(2) == 0 { batch } else { unsynced };
                make((*next % 3).into(), 1, *next, 100 + draws.below(400) as usize)
            })
            .collect();
        known.maybe.extend(group.iter().map(|batch| batch.key.clone()));
        let written = store.store(&group)?;
        let mut stored = Vec::new();
        for batch in group.iter().filter(|batch| written.stored.contains(&batch.key)) {
            assert_eq!(store.reader().read(&batch.key).as_ref(), Ok(batch));
            stored.push((Arc::clone(batch), store.reader().place(&batch.key).unwrap().file));
        }
        for key in &written.refused {
            known.maybe.remove(key);
        }
        known.refused += written.refused.len() as u64;
        known.takes(&stored);
    }
    Ok(())
}

fn drop_one(store: &mut Store, known: &mut Known, shuffle: u128) -> Result<(), StoreError> {
    // It may come back after a crash, and is dropped again then.
    let gone: Vec<_> = known.stored.extract_if(.., |key| key.stream.shuffle == ShuffleId(shuffle)).collect();
    known.maybe.extend(gone);
    known.unsynced.retain(|key, _| key.stream.shuffle != ShuffleId(shuffle));
    store.drop_shuffle(ShuffleId(shuffle))?;
    assert!(store.reader().read(&key(shuffle, 1, 1)).is_err());
    Ok(())
}

#[test]
fn what_was_acknowledged_is_there_whatever_fails_and_whenever() {
    let (mut fired, mut refused, mut lost) = (0, 0, 0);
    for fault in [Fault::Power, Fault::ShortWrite, Fault::Full, Fault::SyncFails] {
        for left in 0..60 {
            let (disk, mut known) = (FaultyDisk::default(), Known::default());
            let mut draws = Draws(0x9e37_79b9 + u64::from(left) * 77 + 1);
            let mut next = 0;
            for turn in 0..3 {
                disk.arm(left + turn, fault);
                let ended = life(&disk, &mut known, &mut draws, &mut next);
                fired += u64::from(disk.fired());
                if fault == Fault::Full {
                    // A full disk ends nothing, and the store goes on when there is room.
                    assert_eq!(ended, Ok(()));
                    disk.kill();
                    known.process_ends();
                } else {
                    assert!(ended.is_ok() || disk.fired(), "{fault:?}: {ended:?}");
                    disk.lose_power(|| draws.below(2) == 0);
                    known.power_goes();
                }
            }
            assert!(life(&disk, &mut known, &mut draws, &mut next).is_ok());
            (refused, lost) = (refused + known.refused, lost + known.lost);
        }
    }
    assert!(fired > 400 && refused > 50 && lost > 100, "{fired} faults, {refused} refused, {lost} lost");
}

#[test]
fn all_files_of_a_group_are_written_before_one_is_synced_and_a_shuffle_that_ends_is_not_waited_for() {
    let disk = FaultyDisk::default();
    let (mut store, _) = open_with(&disk, 1 << 20).unwrap();
    let group = |number| [1, 2].map(|shuffle| batch(shuffle, 1, number, 50));
    disk.arm(2, Fault::SyncFails);
    store.store(&group(1)).unwrap();
    assert!(!disk.fired(), "one sync for each of two files");
    // Each write counts twice, as its file grows: the power goes at the first sync.
    disk.arm(4, Fault::Power);
    assert!(store.store(&group(2)).is_err() && disk.fired());
    drop(store);
    disk.lose_power(|| true);
    let (mut store, found) = open_with(&disk, 1 << 20).unwrap();
    let both = |number| [1, 2].map(|shuffle| key(shuffle, 1, number));
    let all: BTreeSet<BatchKey> = [both(1), both(2)].concat().into_iter().collect();
    assert_eq!(keys(&found), all);
    // The file is removed, and that is all.
    disk.arm(1, Fault::Power);
    store.drop_shuffle(ShuffleId(1)).unwrap();
    assert!(!disk.fired());
}

#[test]
fn a_store_that_has_ended_takes_nothing_any_more() {
    let disk = FaultyDisk::default();
    let (mut store, _) = open_with(&disk, 20_000).unwrap();
    store.store(&[batch(1, 1, 1, 50)]).unwrap();
    disk.arm(0, Fault::SyncFails);
    assert!(matches!(store.store(&[batch(1, 1, 2, 50)]), Err(StoreError::Ends(_))));
    assert!(matches!(store.store(&[batch(1, 1, 3, 50)]), Err(StoreError::Ends(_))));
    assert!(matches!(store.drop_shuffle(ShuffleId(1)), Err(StoreError::Ends(_))));
    drop(store);
    let (mut store, found) = open_with(&disk, 20_000).unwrap();
    assert_eq!(keys(&found), [key(1, 1, 1)].into());
    assert_eq!(store.store(&[batch(1, 1, 3, 50)]).unwrap().stored, [key(1, 1, 3)]);
}

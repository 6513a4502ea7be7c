//! Readers of feeds against the changes that were made, over splits, merges and removals.

use super::*;
use partage_core::base::id::Epoch;
use partage_core::keyspace::hash::HashFunction;
use partage_core::keyspace::key::KeyRange;
use partage_core::keyspace::sharding::{Bounds, Slot, geometry};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;

const SETTINGS: FeedSettings =
    FeedSettings { kept_ms: 100, sharding: Sharding::KeyRange, partition_key: PartitionKey::Whole };

fn at(epoch: u64, index: u64) -> LogPosition {
    LogPosition { epoch: Epoch(epoch), index }
}

fn key(byte: u8) -> Key {
    Key::new(&[byte]).unwrap()
}

fn range(begin: u8, end: Option<u8>) -> Bounds {
    let begin = if begin == 0 { Key::empty() } else { key(begin) };
    Bounds::Keys(KeyRange::new(begin, end.map_or(Key::empty(), key)).unwrap())
}

/// A shard with its changes: the number of each is the one that the writer gave it.
#[derive(Debug, Clone)]
struct Shard {
    bounds: Bounds,
    epoch: u64,
    index: u64,
    changes: BTreeMap<Place, u64>,
    removed: Removed,
}

impl Shard {
    fn holds(&self, key: &Key) -> bool {
        self.bounds.contains(SETTINGS.position(key))
    }

    fn write(&mut self, keys: &[u8], number: &mut u64, last: &mut BTreeMap<Key, u64>) {
        self.index += 1;
        for byte in keys {
            let key = key(*byte);
            if self.holds(&key) && !self.changes.contains_key(&(at(self.epoch, self.index), key.clone())) {
                *number += 1;
                last.insert(key.clone(), *number);
                self.changes.insert((at(self.epoch, self.index), key), *number);
            }
        }
    }

    fn remove(&mut self, most: usize) {
        for _ in 0..most {
            let Some(((entry, key), _)) = self.changes.pop_first() else { return };
            self.removed.remove(SETTINGS.position(&key), entry);
        }
    }

    /// The child that holds a part of it.
    fn child(&self, bounds: Bounds) -> Shard {
        let changes = self.changes.iter().filter(|((_, key), _)| bounds.contains(SETTINGS.position(key)));
        let changes = changes.map(|(place, number)| (place.clone(), *number)).collect();
        let index = self.index + 1;
        Shard { bounds, epoch: self.epoch + 1, index, changes, removed: self.removed.clone() }
    }

    fn merged(&self, other: &Shard) -> Option<Shard> {
        let bounds = geometry::joined(&[&self.bounds, &other.bounds])?;
        let parents = [self, other].map(|parent| (Some(parent.bounds.clone()), parent.removed.clone()));
        let mut changes = self.changes.clone();
        changes.extend(other.changes.clone());
        let (epoch, index) = (self.epoch.max(other.epoch) + 1, self.index.max(other.index) + 1);
        Some(Shard { bounds, epoch, index, changes, removed: Removed::joined(parents) })
    }

    fn read(&self, progress: &Progress, most: usize) -> Result<(Vec<(Key, u64)>, Progress), Gone> {
        let newest = self.changes.keys().next_back().map(|(entry, _)| *entry);
        let reader = Reader::begin(SETTINGS, progress.within(&self.bounds), &self.removed, newest)?;
        let (mut found, mut last, mut next) = (Vec::new(), None, None);
        let from = reader.from().cloned();
        let stored = self
            .changes
            .iter()
            .filter(|((entry, key), _)| from.as_ref().is_some_and(|from| !from.has(*entry, key)));
        for (place, number) in stored {
            if found.len() == most {
                next = Some(place);
                break;
            }
            if reader.wants(place.0, &place.1) {
                found.push((place.1.clone(), *number));
            }
            last = Some(place.clone());
        }
        Ok((found, reader.end(last, next, at(self.epoch, self.index))))
    }
}

#[derive(Debug, Clone)]
enum Step {
    Write(usize, Vec<u8>),
    Remove(usize, usize),
    Split(usize, u8),
    Merge(usize),
    Read(usize, usize),
    CatchUp,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (any::<usize>(), vec(1u8..40, 1..6)).prop_map(|(shard, keys)| Step::Write(shard, keys)),
        1 => (any::<usize>(), 1usize..6).prop_map(|(shard, most)| Step::Remove(shard, most)),
        1 => (any::<usize>(), 2u8..40).prop_map(|(shard, at)| Step::Split(shard, at)),
        1 => any::<usize>().prop_map(Step::Merge),
        3 => (any::<usize>(), 1usize..5).prop_map(|(shard, most)| Step::Read(shard, most)),
        1 => Just(Step::CatchUp),
    ]
}

/// A reader, and the number of the last change that it was given of each key.
struct Follower {
    progress: Progress,
    seen: BTreeMap<Key, Vec<u64>>,
}

impl Follower {
    /// Reads a page of a shard. False: it is too late.
    fn read(&mut self, shard: &Shard, most: usize) -> bool {
        let Ok((found, to)) = shard.read(&self.progress, most) else { return false };
        for (key, number) in found {
            let seen = self.seen.entry(key).or_default();
            assert!(seen.last().is_none_or(|last| *last < number), "in order, and once: {seen:?} {number}");
            seen.push(number);
        }
        self.progress = std::mem::take(&mut self.progress).read_on(to);
        true
    }
}

/// Splits a shard, or joins it with the next one: children have later epochs.
fn reshape(shards: &mut Vec<Shard>, step: &Step) {
    match step {
        Step::Split(number, cut) => {
            let number = number % shards.len();
            let Bounds::Keys(held) = shards[number].bounds.clone() else { return };
            if let Ok(parts) = geometry::cut_keys(&held, &[key(*cut)]) {
                let parent = shards.remove(number);
                shards.extend(parts.into_iter().map(|bounds| parent.child(bounds)));
            }
        }
        Step::Merge(number) => {
            shards.sort_by(|a, b| geometry::lowest(&a.bounds).cmp(&geometry::lowest(&b.bounds)));
            let number = number % shards.len();
            if let Some(child) = shards.get(number + 1).and_then(|next| shards[number].merged(next)) {
                shards.splice(number..number + 2, [child]);
            }
        }
        _ => {}
    }
}

proptest! {
    #[test]
    fn a_reader_gets_each_change_once_and_in_order_over_splits_and_merges_or_is_told_that_it_is_late(
        steps in vec(step(), 1..120),
    ) {
        let first = Shard { bounds: range(0, None), epoch: 1, index: 0, changes: BTreeMap::new(), removed: Removed::default() };
        let (mut shards, mut number, mut last) = (vec![first], 0, BTreeMap::new());
        let mut reader = Follower { progress: Progress::begin([range(0, None)], &Since::Oldest), seen: BTreeMap::new() };
        let (mut unread_is_removed, mut is_late) = (false, false);
        for step in &steps {
            let count = shards.len();
            match step {
                Step::Write(shard, keys) => shards[shard % count].write(keys, &mut number, &mut last),
                Step::Remove(shard, most) => {
                    let shard = &mut shards[shard % count];
                    let before = shard.changes.clone();
                    shard.remove(*most);
                    let lost = before.iter().filter(|(place, _)| !shard.changes.contains_key(place));
                    for ((entry, key), number) in lost {
                        // One that is within an entry of which some is removed counts as late, whichever changes these are.
                        let is_within = |part: &Part| matches!(&part.since, Since::After(reached) if reached.key.is_some() && reached.entry == *entry);
                        unread_is_removed |= reader.progress.parts().iter().any(is_within);
                        unread_is_removed |= reader.seen.get(key).is_none_or(|seen| seen.last() < Some(number));
                    }
                }
                Step::Read(shard, most) => is_late |= !reader.read(&shards[shard % count], *most),
                Step::CatchUp => {
                    for shard in &shards {
                        is_late |= !reader.read(shard, usize::MAX);
                    }
                    if !is_late {
                        for shard in &shards {
                            for part in reader.progress.within(&shard.bounds).parts() {
                                let Since::After(reached) = &part.since else { panic!("it has read") };
                                prop_assert!(reached.key.is_none(), "one that has all has whole entries");
                            }
                        }
                    }
                }
                Step::Split(..) | Step::Merge(_) => reshape(&mut shards, step),
            }
            if is_late {
                break;
            }
        }
        if is_late {
            // What it had not read yet from the oldest on it may begin behind, and is not late then.
            prop_assert!(unread_is_removed, "it is told that it is late, and has read all that is removed");
            return Ok(());
        }
        for shard in &shards {
            prop_assert!(reader.read(shard, usize::MAX) || unread_is_removed);
        }
        if !unread_is_removed {
            let seen: Vec<u64> = reader.seen.values().flatten().copied().collect();
            prop_assert_eq!(seen.len() as u64, number, "each change");
            for (key, number) in &last {
                prop_assert_eq!(reader.seen[key].last(), Some(number));
            }
        }
    }

    #[test]
    fn progress_over_slots_and_hashes_is_cut_and_put_together_again(
        shards in 1u32..9, times in 1u32..5, number in any::<prop::sample::Index>(), points in (any::<u64>(), any::<u64>()),
    ) {
        let whole = Progress::begin(Slot::all(shards), &Since::Oldest);
        let of = shards * times;
        let slot = Bounds::Slot(Slot::new(number.index(of as usize) as u32, of).unwrap());
        let cut = whole.within(&slot);
        prop_assert_eq!(cut.parts().len(), 1);
        prop_assert_eq!(&cut.parts()[0].bounds, &slot);
        let to = Progress::begin([slot.clone()], &Since::After(Reached::all_of(at(1, 1))));
        let read = whole.read_on(to.clone());
        prop_assert_eq!(read.within(&slot), to);
        let hash = |first: u64, last: u64| Bounds::Hashes(partage_core::keyspace::key::HashRange { first, last });
        let part = hash(points.0.min(points.1), points.0.max(points.1));
        let whole = Progress::begin([hash(0, u64::MAX)], &Since::Oldest);
        let to = Progress::begin([part.clone()], &Since::After(Reached::all_of(at(1, 1))));
        let read = whole.clone().read_on(to.clone());
        prop_assert_eq!(read.within(&part), to);
        prop_assert_eq!(read.read_on(Progress::begin([part], &Since::Oldest)), whole);
    }
}

#[test]
fn a_reader_that_has_all_is_not_late_when_all_is_removed_and_another_change_comes() {
    let mut shard = Shard {
        bounds: range(0, None),
        epoch: 1,
        index: 0,
        changes: BTreeMap::new(),
        removed: Removed::default(),
    };
    let (mut number, mut last) = (0, BTreeMap::new());
    let mut reader =
        Follower { progress: Progress::begin([range(0, None)], &Since::Oldest), seen: BTreeMap::new() };
    let mut idle = Follower { progress: reader.progress.clone(), seen: BTreeMap::new() };
    shard.write(&[1, 2, 3], &mut number, &mut last);
    assert!(reader.read(&shard, 9) && idle.read(&shard, 1));
    shard.remove(9);
    assert!(shard.changes.is_empty());
    shard.write(&[1], &mut number, &mut last);
    assert!(reader.read(&shard, 9));
    assert_eq!(reader.seen[&key(1)], [1, 4]);
    assert!(!idle.read(&shard, 9), "it had read a part of the entry that is gone");
}

#[test]
fn in_a_merged_shard_the_removals_of_one_parent_do_not_make_readers_of_the_other_late() {
    let shard = |begin, end, epoch, index| Shard {
        bounds: range(begin, end),
        epoch,
        index,
        changes: BTreeMap::new(),
        removed: Removed::default(),
    };
    let (mut low, mut high) = (shard(0, Some(20), 9, 5_000), shard(20, None, 2, 7));
    let (mut number, mut last) = (0, BTreeMap::new());
    let mut reader =
        Follower { progress: Progress::begin([range(0, None)], &Since::Oldest), seen: BTreeMap::new() };
    low.write(&[1, 2], &mut number, &mut last);
    high.write(&[30, 31], &mut number, &mut last);
    assert!(reader.read(&low, 9) && reader.read(&high, 9));
    low.remove(9);
    let mut child = low.merged(&high).unwrap();
    assert!(reader.read(&child, 9), "it has all of both");
    child.write(&[1, 30], &mut number, &mut last);
    let mut late =
        Follower { progress: Progress::begin([range(0, None)], &Since::Now), seen: BTreeMap::new() };
    assert!(late.read(&child, 0));
    assert!(late.read(&child, 9) && late.seen.is_empty(), "it wants what comes from now on");
    child.remove(9);
    assert!(!reader.read(&child, 9), "two changes are gone that it lacks");
    child.write(&[2], &mut number, &mut last);
    assert!(late.read(&child, 9));
    assert_eq!(late.seen.keys().cloned().collect::<Vec<_>>(), [key(2)]);
}

#[test]
fn a_hash_function_that_a_table_is_sharded_by_says_in_which_part_a_change_is() {
    let sharding = Sharding::Fixed { hash: HashFunction::Xxh3_64, shards: 4 };
    let settings = FeedSettings { sharding, ..SETTINGS };
    let parts = Slot::all(4)
        .into_iter()
        .enumerate()
        .map(|(number, bounds)| Part { bounds, since: Since::After(Reached::all_of(at(1, number as u64))) });
    let reader = Reader::begin(settings, Progress::new(parts.collect()), &Removed::default(), None).unwrap();
    assert_eq!(reader.from(), Some(&Reached::all_of(at(1, 0))));
    for byte in 0..50 {
        let Position::Value(value) = settings.position(&key(byte)) else { panic!("a slot") };
        let slot = (value % 4) as u64;
        assert!(reader.wants(at(1, slot + 1), &key(byte)) && !reader.wants(at(1, slot), &key(byte)));
    }
}

//! Tests of the whole log: what they share.

mod damage;
mod faults;
mod files;
mod reclaim;
mod writer;

use crate::{Log, LogSettings, Record, Recovered};
use partage_core::base::id::{Epoch, PlacementId, ShardId};
use partage_core::base::name::KeyspaceName;
use partage_core::node::exchange::ReplicaKey;
use partage_journal::Disk;
use partage_service::table::replication::{Entry, EntryKind, LogPosition, LogWrite, Stored};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

const DIR: &str = "/d";

fn small() -> LogSettings {
    LogSettings {
        segment_bytes: 32 << 10,
        entry_bytes: 8 << 10,
        prepare_ahead: false,
        ..LogSettings::default()
    }
}

fn open_with(
    disk: &(impl Disk + Clone + 'static),
    settings: LogSettings,
) -> Result<(Log, Recovered), crate::OpenError> {
    Log::open(Arc::new(disk.clone()), Path::new(DIR), settings)
}

fn open(disk: &(impl Disk + Clone + 'static)) -> (Log, Recovered) {
    open_with(disk, small()).unwrap()
}

fn key(shard: u64) -> ReplicaKey {
    let keyspace =
        KeyspaceName::new(if shard.is_multiple_of(2) { "orders" } else { "a-longer-name" }).unwrap();
    ReplicaKey { keyspace, shard: ShardId(shard), placement: PlacementId(1000 + shard) }
}

fn at(epoch: u64, index: u64) -> LogPosition {
    LogPosition { epoch: Epoch(epoch), index }
}

fn entry(epoch: u64, index: u64, bytes: usize) -> Entry {
    let byte = (index as u8).wrapping_mul(31);
    Entry { position: at(epoch, index), kind: EntryKind::Write(vec![byte; bytes].into()) }
}

fn fence(epoch: u64) -> Record {
    LogWrite::Fence(Epoch(epoch)).into()
}

fn append(epoch: u64, index: u64, bytes: usize) -> Record {
    LogWrite::Append(vec![entry(epoch, index, bytes)]).into()
}

/// What each replica has.
type Model = BTreeMap<ReplicaKey, Stored>;
type Group = Vec<(ReplicaKey, Record)>;

fn apply(model: &mut Model, group: &Group) {
    for (key, record) in group {
        let stored = model.entry(key.clone()).or_default();
        match record {
            Record::Write(write) => stored.write(write.clone()),
            Record::Committed(index) => stored.committed = stored.committed.max(*index),
            Record::Forget => drop(model.remove(key)),
        }
    }
}

/// Compares, and says briefly what differs.
fn same(found: &Model, model: &Model, what: &str) {
    let brief = |stored: &Stored| {
        let ends = (stored.entries.first(), stored.entries.last());
        let ends = (ends.0.map(|entry| entry.position), ends.1.map(|entry| entry.position));
        format!("base {} fence {} committed {} {ends:?}", stored.base, stored.fence, stored.committed)
    };
    for key in model.keys().chain(found.keys()) {
        let (found, wanted) = (found.get(key), model.get(key));
        assert!(found == wanted, "{what}: {key:?} is {:?}, not {:?}", found.map(brief), wanted.map(brief));
    }
}

/// Numbers that are the same in each run.
#[derive(Debug, Clone)]
struct Draws(u64);

impl Draws {
    fn new(seed: u64) -> Draws {
        Draws(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A record that may follow on what the replica has.
    fn record(&mut self, stored: Option<&Stored>) -> Record {
        let default = Stored::default();
        let stored = stored.unwrap_or(&default);
        let end = stored.entries.last().map_or(stored.base, |entry| entry.position);
        let epoch = stored.fence.0.max(end.epoch.0).max(1);
        match self.below(24) {
            0 => fence(epoch + self.below(3)),
            1 | 2 => LogWrite::Truncate(end.index.saturating_sub(self.below(4))).into(),
            3..=6 => {
                let up_to = self.below(stored.entries.len() as u64 + 1) as usize;
                let base = up_to.checked_sub(1).map_or(stored.base, |last| stored.entries[last].position);
                LogWrite::Trim(base).into()
            }
            7 => LogWrite::Restart(at(epoch, end.index + self.below(10))).into(),
            8 | 9 => Record::Committed(end.index.saturating_sub(self.below(3))),
            10 => Record::Forget,
            _ => {
                let count = self.below(4);
                let mut entries: Vec<Entry> = (end.index + 1..=end.index + count)
                    .map(|index| {
                        let most = if self.below(6) == 0 { 3_000 } else { 120 };
                        let bytes = self.below(most) as usize;
                        entry(epoch, index, bytes)
                    })
                    .collect();
                if let Some(first) = entries.first_mut().filter(|_| self.below(5) == 0) {
                    first.kind = EntryKind::Begin;
                }
                LogWrite::Append(entries).into()
            }
        }
    }

    /// Records of some of so many replicas, each of which may follow on those before.
    fn group(&mut self, model: &Model, replicas: u64) -> Group {
        let mut model = model.clone();
        let mut group = Group::new();
        for _ in 0..=self.below(5) {
            let key = key(self.below(replicas));
            let record = self.record(model.get(&key));
            apply(&mut model, &vec![(key.clone(), record.clone())]);
            group.push((key, record));
        }
        group
    }
}

#[test]
fn what_was_written_is_found_again() {
    let disk = partage_journal::faulty_disk::FaultyDisk::default();
    let (mut log, recovered) = open(&disk);
    assert!(recovered.replicas.is_empty() && recovered.places.is_empty() && !recovered.is_unfinished);
    let mut model = Model::new();
    let mut draws = Draws::new(7);
    for round in 0..300 {
        let group = draws.group(&model, 6);
        log.write(&group).unwrap();
        apply(&mut model, &group);
        if round % 20 == 19 {
            drop(log);
            let (again, recovered) = open(&disk);
            same(&recovered.replicas, &model, &format!("round {round}"));
            assert_eq!((recovered.damaged.len(), recovered.places.len()), (0, 0));
            log = again;
        }
    }
    assert!(log.segments() > 3, "the test goes over several segments: {}", log.segments());
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    use crate::WriteError;
    let disk = partage_journal::faulty_disk::FaultyDisk::default();
    let (mut log, _) = open(&disk);
    let good = vec![(key(1), fence(2)), (key(1), append(2, 1, 10))];
    log.write(&good).unwrap();
    let mut model = Model::new();
    apply(&mut model, &good);
    let bad = [append(2, 4, 10), fence(1), LogWrite::Trim(at(2, 3)).into(), Record::Committed(3)];
    for record in bad {
        let group = vec![(key(2), append(1, 1, 10)), (key(1), append(2, 2, 10)), (key(1), record)];
        let refused = log.write(&group).unwrap_err();
        assert!(refused.is_definite() && refused.replica() == Some(&key(1)), "{refused}");
    }
    let forgotten = log.write(&[(key(1), Record::Forget), (key(1), append(2, 2, 10))]);
    assert!(matches!(forgotten, Err(WriteError::OutOfOrder { .. })));
    let large = log.write(&[(key(1), append(2, 2, (8 << 10) + 1))]).unwrap_err();
    assert!(matches!(large, WriteError::EntryTooLarge { bytes: 8193, most: 8192, .. }));
    let entries = (2..10).map(|index| entry(2, index, 4_000)).collect();
    let large = log.write(&[(key(1), LogWrite::Append(entries).into())]).unwrap_err();
    assert!(matches!(large, WriteError::GroupTooLarge { .. }), "{large}");
    let good = vec![(key(1), append(2, 2, 8 << 10))];
    log.write(&good).unwrap();
    apply(&mut model, &good);
    drop(log);
    same(&open(&disk).1.replicas, &model, "");
}

#[test]
fn a_log_of_thousands_of_replicas_is_read_in_one_go() {
    let disk = partage_journal::faulty_disk::FaultyDisk::default();
    let settings = LogSettings { segment_bytes: 1 << 20, entry_bytes: 64 << 10, ..small() };
    let (mut log, _) = open_with(&disk, settings).unwrap();
    let mut model = Model::new();
    for round in 0..4 {
        for first in (0..5_000).step_by(500) {
            let records = (first..first + 500).map(|shard| (key(shard), append(1, round + 1, 20)));
            let group: Group = records.collect();
            log.write(&group).unwrap();
            apply(&mut model, &group);
        }
    }
    drop(log);
    let (_, recovered) = open_with(&disk, settings).unwrap();
    same(&recovered.replicas, &model, "");
}

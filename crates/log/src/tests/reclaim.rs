//! Segments that no replica needs go, and what else is in them stays.

use super::{Draws, Model, append, apply, at, fence, key, open, same};
use crate::{Record, WriteError};
use partage_journal::faulty_disk::{Fault, FaultyDisk};
use partage_service::table::replication::LogWrite;

#[test]
fn fences_and_bases_stay_when_their_segments_go() {
    let disk = FaultyDisk::default();
    let (mut log, _) = open(&disk);
    let mut model = Model::new();
    for shard in 0..200 {
        let base = LogWrite::Restart(at(3, shard)).into();
        let group = vec![
            (key(shard), fence(shard + 1)),
            (key(shard), base),
            (key(shard), Record::Committed(shard / 2)),
        ];
        log.write(&group).unwrap();
        apply(&mut model, &group);
    }
    let before = log.segments();
    assert!(before > 20, "{before}");
    assert_eq!((log.can_reclaim(), log.reclaim().unwrap()), (true, before - 1));
    assert!(log.segments() <= 3);
    // Once more, so that the checkpoints themselves are carried on.
    for index in 1..60 {
        let group = vec![
            (key(1), append(200, index + 1, 3_000)),
            (key(1), LogWrite::Trim(at(200, index + 1)).into()),
        ];
        log.write(&group).unwrap();
        apply(&mut model, &group);
        log.reclaim().unwrap();
    }
    assert!(log.segments() <= 4);
    drop(log);
    let (_, recovered) = open(&disk);
    same(&recovered.replicas, &model, "");
    assert!(recovered.damaged.is_empty() && recovered.places.is_empty());
}

#[test]
fn a_replica_that_needs_an_entry_keeps_its_segment_and_is_named() {
    let disk = FaultyDisk::default();
    let (mut log, _) = open(&disk);
    log.write(&[(key(1), append(1, 1, 100)), (key(2), append(1, 1, 100)), (key(3), fence(4))]).unwrap();
    assert!(log.holding_oldest().is_empty(), "the head segment is kept anyway");
    for index in 2..30 {
        log.write(&[(key(2), append(1, index, 3_000))]).unwrap();
    }
    let segments = log.segments();
    assert!(segments > 3);
    assert_eq!(log.holding_oldest(), [key(1), key(2)]);
    log.write(&[(key(2), LogWrite::Trim(at(1, 29)).into())]).unwrap();
    assert_eq!((log.can_reclaim(), log.reclaim().unwrap()), (false, 0));
    assert_eq!(log.holding_oldest(), [key(1)]);
    log.write(&[(key(1), Record::Forget)]).unwrap();
    assert!(log.reclaim().unwrap() >= segments - 1);
    drop(log);
    let (log, recovered) = open(&disk);
    assert_eq!(recovered.replicas.keys().collect::<Vec<_>>(), [&key(3), &key(2)]);
    assert_eq!(recovered.replicas[&key(3)].fence.0, 4);
    assert_eq!(log.segments(), 1);
}

#[test]
fn a_full_disk_gets_room_from_the_log() {
    let disk = FaultyDisk::default();
    let (mut log, _) = open(&disk);
    let mut model = Model::new();
    let mut index = 0;
    // Until the next write needs a segment.
    while log.segments() < 3 || !log.can_reclaim() {
        index += 1;
        let group = vec![(key(1), append(1, index, 3_000)), (key(1), LogWrite::Trim(at(1, index)).into())];
        log.write(&group).unwrap();
        apply(&mut model, &group);
    }
    loop {
        let group = vec![(key(1), fence(index))];
        disk.arm(0, Fault::Full);
        let Err(error) = log.write(&group) else {
            apply(&mut model, &group);
            index += 1;
            continue;
        };
        assert!(matches!(error, WriteError::Full(_)), "{error}");
        break;
    }
    disk.arm(0, Fault::Full);
    assert!(log.reclaim().unwrap() >= 2, "the checkpoints go where only they may go");
    assert!(!disk.fired(), "no segment was made for them");
    drop(log);
    disk.kill();
    same(&open(&disk).1.replicas, &model, "");
}

#[test]
fn a_log_that_is_reclaimed_all_the_time_says_the_same() {
    for seed in 0..40 {
        let disk = FaultyDisk::default();
        let (mut log, _) = open(&disk);
        let mut draws = Draws::new(seed);
        let mut model = Model::new();
        let mut deleted = 0;
        for _ in 0..150 {
            let mut group = draws.group(&model, 8);
            apply(&mut model, &group);
            if draws.below(10) == 0 {
                // All replicas flush.
                for (key, stored) in model.clone() {
                    let end = stored.entries.last().map_or(stored.base, |entry| entry.position);
                    group.push((key, LogWrite::Trim(end).into()));
                }
                let trims = group[group.len() - model.len()..].to_vec();
                apply(&mut model, &trims);
            }
            log.write(&group).unwrap();
            deleted += log.reclaim().unwrap();
            if draws.below(20) == 0 {
                drop(log);
                let (again, recovered) = open(&disk);
                same(&recovered.replicas, &model, &format!("seed {seed}, {:?}", recovered.damaged));
                assert!(recovered.places.is_empty() && recovered.damaged.is_empty(), "seed {seed}");
                log = again;
            }
        }
        assert!(deleted > 2, "seed {seed}: {deleted}");
    }
}

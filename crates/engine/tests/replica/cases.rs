//! What every engine does.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use partage_engine::replica::limits::{DUE_RUNS, KEY_BYTES, ROW_OVERHEAD_BYTES, VALUE_BYTES};
use partage_engine::replica::{Change, Condition, Direction, Engine, Error, Snapshot, Store};
use partage_service::table::replication::LogPosition;

use crate::harness::{
    Machine, Map, Simulated, all, apply, at, compact, delete, get, on_both, refused, rows, set,
};

on_both! {
    a_new_store_is_empty_and_usable
    groups_are_applied_as_a_whole_or_not_at_all
    keys_may_be_any_bytes_up_to_the_limit
    a_crash_loses_exactly_what_was_not_flushed
    deletions_shadow_older_runs
    snapshots_do_not_change
    ranges_keep_their_bounds
    chunks_of_an_export_make_the_whole
    a_median_halves_the_data
    a_store_tells_its_size
    flushes_run_beside_writes_and_reads
    a_removed_store_is_gone
    positions_without_rows_are_flushed_too
}

fn a_new_store_is_empty_and_usable<M: Machine>() {
    let machine = M::new();
    let store = machine.engine().open(&machine.folder("a")).unwrap();
    assert_eq!(store.condition(), Condition::Usable { flushed: LogPosition::default() });
    assert_eq!(store.applied(), LogPosition::default());
    assert_eq!(get(&store, b""), None);
    assert_eq!(all(&store), Map::new());
    assert_eq!(store.flush().unwrap(), LogPosition::default());
    assert_eq!(store.unflushed_bytes(), 0);
    assert_eq!(store.median().unwrap(), None);
    assert!(!store.compact().unwrap());
    store.verify().unwrap();
}

fn groups_are_applied_as_a_whole_or_not_at_all<M: Machine>() {
    let machine = M::new();
    let store = machine.engine().open(&machine.folder("a")).unwrap();
    apply(&store, &[(b"a", Some(b"1")), (b"b", Some(b"2")), (b"a", Some(b"3")), (b"b", None)]);
    let whole = Map::from([(b"a".to_vec(), b"3".to_vec())]);
    assert_eq!(all(&store), whole);

    let change = [Change { key: b"c", value: Some(b"4") }];
    let ahead = store.apply(at(2), at(3), &change);
    assert!(
        matches!(refused(ahead), Error::NotNext { applied, before } if applied == at(1) && before == at(2))
    );
    let again = store.apply(at(0), at(1), &change);
    assert!(matches!(refused(again), Error::NotNext { .. }));
    let nowhere = store.apply(at(1), at(1), &change);
    assert!(matches!(refused(nowhere), Error::Backwards { .. }));
    let long = vec![0; KEY_BYTES + 1];
    let second = [change[0], Change { key: &long, value: None }];
    assert!(matches!(refused(store.apply(at(1), at(2), &second)), Error::KeyTooLong(_)));
    let long = vec![0; VALUE_BYTES + 1];
    let second = [change[0], Change { key: b"d", value: Some(&long) }];
    assert!(matches!(refused(store.apply(at(1), at(2), &second)), Error::ValueTooLong(_)));
    assert_eq!(all(&store), whole);
    assert_eq!(store.applied(), at(1));
    // Several entries of the log at a time.
    store.apply(at(1), at(20), &change).unwrap();
    assert_eq!(store.applied(), at(20));
}

fn keys_may_be_any_bytes_up_to_the_limit<M: Machine>() {
    let mut machine = M::new();
    let store = machine.engine().open(&machine.folder("a")).unwrap();
    let mut keys =
        vec![vec![], vec![0], vec![0, 0], b"\0state".to_vec(), b"state".to_vec(), vec![1], vec![2]];
    keys.extend([
        vec![255],
        vec![255; 62],
        vec![255; 63],
        vec![255; 64],
        vec![7; KEY_BYTES],
        vec![255; KEY_BYTES],
    ]);
    let mut model = Map::new();
    for (number, key) in keys.iter().enumerate() {
        let value = vec![number as u8; [0, 1, 100, 4_095, 4_096, VALUE_BYTES][number % 6]];
        set(&store, key, &value);
        model.insert(key.clone(), value);
        if number % 4 == 3 {
            store.flush().unwrap();
        }
    }
    assert_eq!(all(&store), model);
    store.flush().unwrap();
    compact(&store);
    assert_eq!(all(&store), model);
    for (key, value) in &model {
        assert_eq!(get(&store, key).as_ref(), Some(value), "a key of {} bytes", key.len());
    }
    let too_long = vec![7; KEY_BYTES + 1];
    assert_eq!(get(&store, &too_long), None);
    let snapshot = store.snapshot().unwrap();
    assert_eq!(snapshot.get(&too_long).unwrap(), None);
    drop(store);
    machine.crash();
    let store = machine.engine().open(&machine.folder("a")).unwrap();
    assert_eq!(all(&store), model);
    for key in &keys {
        delete(&store, key);
    }
    store.flush().unwrap();
    assert_eq!(all(&store), Map::new());
}

fn a_crash_loses_exactly_what_was_not_flushed<M: Machine>() {
    let mut machine = M::new();
    let mut kept = Map::new();
    for round in 0..20u8 {
        let store = machine.engine().open(&machine.folder("a")).unwrap();
        assert_eq!(all(&store), kept, "round {round}");
        assert_eq!(store.condition(), Condition::Usable { flushed: store.applied() });
        set(&store, b"round", &[round]);
        set(&store, &[round], b"flushed");
        if round % 3 == 1 {
            delete(&store, &[round - 1]);
        }
        let applied = store.applied();
        assert_eq!(store.flush().unwrap(), applied);
        assert_eq!(store.flushed(), applied);
        assert_eq!(store.unflushed_bytes(), 0);
        kept = all(&store);
        set(&store, b"round", b"lost");
        set(&store, b"lost", b"lost");
        delete(&store, &[round]);
        assert_eq!(store.flushed(), applied);
        if round % 4 == 0 {
            // Closing is no flush.
            drop(store);
        } else {
            machine.crash();
        }
    }
}

fn deletions_shadow_older_runs<M: Machine>() {
    let mut machine = M::new();
    let store = machine.engine().open(&machine.folder("a")).unwrap();
    let mut model = Map::new();
    // Runs whose keys overlap, touch, and do not.
    for run in 0..40u8 {
        for key in 0..30u8 {
            let key = [key.wrapping_mul(run / 7 + 1) % 60];
            if (run + key[0]) % 3 == 0 {
                delete(&store, &key);
                model.remove(&key[..]);
            } else if (run + key[0]) % 3 == 1 {
                set(&store, &key, &[run; 9]);
                model.insert(key.to_vec(), vec![run; 9]);
            }
        }
        store.flush().unwrap();
        if run % 9 == 8 {
            compact(&store);
        }
        assert_eq!(all(&store), model, "run {run}");
        for key in 0..60 {
            assert_eq!(get(&store, &[key]).as_ref(), model.get(&[key][..]), "run {run}, key {key}");
        }
    }
    drop(store);
    machine.crash();
    let store = machine.engine().open(&machine.folder("a")).unwrap();
    assert_eq!(all(&store), model);
    store.verify().unwrap();
}

fn snapshots_do_not_change<M: Machine>() {
    let machine = M::new();
    let store = machine.engine().open(&machine.folder("a")).unwrap();
    let mut snapshots = Vec::new();
    for round in 0..60u8 {
        set(&store, &[round % 7], &[round]);
        set(&store, b"large", &[round; 5_000]);
        if round % 5 == 0 {
            delete(&store, &[round % 6]);
        }
        let snapshot = store.snapshot().unwrap();
        assert_eq!(snapshot.position(), store.applied());
        let now = rows(&snapshot);
        snapshots.push((snapshot, now));
        if round % 3 == 0 {
            store.flush().unwrap();
        }
        if round % 8 == 0 {
            compact(&store);
        }
        if round % 4 == 3 {
            // Not the oldest first.
            snapshots.swap_remove(usize::from(round) % snapshots.len());
        }
        for (snapshot, then) in &snapshots {
            assert_eq!(&rows(snapshot), then);
            for key in 0..7 {
                assert_eq!(
                    snapshot.get(&[key]).unwrap().as_deref(),
                    then.get(&[key][..]).map(|value| &value[..])
                );
            }
        }
    }
    // A snapshot outlives its store.
    let last = all(&store);
    let snapshot = store.snapshot().unwrap();
    drop((store, snapshots));
    assert_eq!(rows(&snapshot), last);
}

fn ranges_keep_their_bounds<M: Machine>() {
    let machine = M::new();
    let store = machine.engine().open(&machine.folder("a")).unwrap();
    let keys: [&[u8]; 7] = [b"", b"\0", b"a", b"a\0", b"b", b"ba", b"\xff\xff"];
    for (number, key) in keys.iter().enumerate() {
        set(&store, key, &[number as u8]);
        if number % 2 == 0 {
            store.flush().unwrap();
        }
    }
    let model = all(&store);
    let snapshot = store.snapshot().unwrap();
    let bounds: Vec<Option<&[u8]>> =
        keys.iter().copied().map(Some).chain([None, Some(&b"aa"[..]), Some(b"\xff\xff\xff")]).collect();
    for from in &bounds {
        for to in &bounds {
            let inside = |key: &[u8]| from.is_none_or(|from| from <= key) && to.is_none_or(|to| key < to);
            let mut wanted: Vec<&Vec<u8>> = model.keys().filter(|key| inside(key)).collect();
            for direction in [Direction::Forward, Direction::Backward] {
                let found: Vec<Vec<u8>> =
                    snapshot.range(*from, *to, direction).map(|row| row.unwrap().key.to_vec()).collect();
                assert!(found.iter().eq(wanted.iter().copied()), "{from:?} to {to:?}: {found:?}");
                wanted.reverse();
            }
        }
    }
}

fn chunks_of_an_export_make_the_whole<M: Machine>() {
    let machine = M::new();
    let store = machine.engine().open(&machine.folder("a")).unwrap();
    for key in 0..50u8 {
        set(&store, &[key], &vec![key; usize::from(key)]);
        if key == 25 {
            store.flush().unwrap();
        }
    }
    let model = all(&store);
    let snapshot = store.snapshot().unwrap();
    store.flush().unwrap();
    for bytes in [0, 1, 2, 100, 1_000_000] {
        let (mut exported, mut from, mut chunks) = (Vec::new(), None, 0);
        loop {
            let chunk = snapshot.export(from.as_deref(), None, bytes).unwrap();
            let sizes: Vec<usize> = chunk.rows.iter().map(|row| row.key.len() + row.value.len()).collect();
            assert!(!sizes.is_empty());
            let without_last: usize = sizes[..sizes.len() - 1].iter().sum();
            assert!(sizes.len() == 1 || without_last < bytes, "{sizes:?} of {bytes}");
            exported.extend(chunk.rows);
            chunks += 1;
            from = chunk.next;
            if from.is_none() {
                break;
            }
        }
        let exported: Map = exported.into_iter().map(|row| (row.key.to_vec(), row.value.to_vec())).collect();
        assert_eq!(exported, model);
        assert_eq!(
            chunks,
            if bytes <= 1 {
                50
            } else if bytes > 1_000 {
                1
            } else {
                chunks
            }
        );
    }
    let half = snapshot.export(Some(&[10]), Some(&[20]), usize::MAX).unwrap();
    assert_eq!((half.rows.len(), half.next), (10, None));
}

fn a_median_halves_the_data<M: Machine>() {
    let machine = M::new();
    let store = machine.engine().open(&machine.folder("a")).unwrap();
    set(&store, b"", b"one row has no median");
    assert_eq!(store.median().unwrap(), None);
    set(&store, b"z", b"two have");
    assert_eq!(store.median().unwrap().as_deref(), Some(&b"z"[..]));
    for key in 0..1_000u32 {
        set(&store, &key.to_be_bytes(), &[0; 20]);
        if key % 300 == 0 {
            store.flush().unwrap();
        }
    }
    let median = store.median().unwrap().unwrap();
    let before = all(&store).range(..median.to_vec()).count();
    assert!((400..=600).contains(&before), "{before}");
    // By bytes, not by rows.
    set(&store, &900u32.to_be_bytes(), &[0; 100_000]);
    assert_eq!(store.median().unwrap().as_deref(), Some(&900u32.to_be_bytes()[..]));
}

fn a_store_tells_its_size<M: Machine>() {
    let machine = M::new();
    let store = machine.engine().open(&machine.folder("a")).unwrap();
    for key in 0..100u8 {
        set(&store, &[key], &[0; 100]);
    }
    assert_eq!(store.size().disk_bytes, 0);
    let unflushed = store.unflushed_bytes();
    assert!((100 * 101..=100 * (102 + ROW_OVERHEAD_BYTES)).contains(&unflushed), "{unflushed}");
    assert_eq!(store.size().unflushed_bytes, unflushed as u64);
    store.flush().unwrap();
    let size = store.size();
    assert!((10_000..30_000).contains(&size.disk_bytes), "{size:?}");
    assert!((100..=101).contains(&size.disk_rows) && size.unflushed_bytes == 0, "{size:?}");
    for _ in 0..2 * DUE_RUNS {
        set(&store, &[0], &[1; 50]);
        store.flush().unwrap();
    }
    compact(&store);
    assert!(store.size().runs < usize::from(DUE_RUNS), "{:?}", store.size());
    assert!((100..=101 + 2 * u64::from(DUE_RUNS)).contains(&store.size().disk_rows), "{:?}", store.size());
}

fn flushes_run_beside_writes_and_reads<M: Machine>() {
    let machine = M::new();
    let store = machine.engine().open(&machine.folder("a")).unwrap();
    set(&store, b"counter", &0u64.to_be_bytes());
    let (store, ended) = (&store, &AtomicBool::new(false));
    let (flushes, snapshots) = (&AtomicU64::new(0), &AtomicU64::new(0));
    let written = std::thread::scope(|scope| {
        let reading = || {
            let mut last = 0;
            while !ended.load(Ordering::Relaxed) {
                let read = |value: &[u8]| u64::from_be_bytes(value.try_into().unwrap());
                let value = read(&get(store, b"counter").unwrap());
                assert!(value >= last, "{value} after {last}");
                let snapshot = store.snapshot().unwrap();
                let one = read(&snapshot.get(b"counter").unwrap().unwrap());
                let other = snapshot.get(b"copy").unwrap().map_or(0, |value| read(&value));
                assert!(one >= value && one == other, "{one} and {other} are of one group");
                last = one;
                snapshots.fetch_add(1, Ordering::Relaxed);
            }
        };
        let working = || {
            while !ended.load(Ordering::Relaxed) {
                store.flush().unwrap();
                store.compact().unwrap();
                flushes.fetch_add(1, Ordering::Relaxed);
            }
        };
        let threads = [scope.spawn(reading), scope.spawn(working), scope.spawn(working)];
        let mut number = 0u64;
        while flushes.load(Ordering::Relaxed) < 40 || snapshots.load(Ordering::Relaxed) < 60 || number < 1_000
        {
            number += 1;
            let value = number.to_be_bytes();
            apply(store, &[(b"counter", Some(&value)), (&value, Some(&value)), (b"copy", Some(&value))]);
            if threads.iter().any(|thread| thread.is_finished()) || number == 4_000 {
                break;
            }
            std::thread::yield_now();
        }
        ended.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        number
    });
    assert_eq!(store.flush().unwrap(), at(written + 1));
    assert_eq!(get(store, b"counter"), Some(written.to_be_bytes().to_vec()));
    assert_eq!(all(store).len() as u64, written + 2, "{flushes:?} flushes, {snapshots:?} snapshots");
}

fn a_removed_store_is_gone<M: Machine>() {
    let machine = M::new();
    let (a, b) = (machine.folder("a"), machine.folder("b"));
    for folder in [&a, &b] {
        let store = machine.engine().open(folder).unwrap();
        set(&store, b"key", b"value");
        store.flush().unwrap();
    }
    machine.engine().remove(&a).unwrap();
    machine.engine().remove(&a).unwrap();
    let store = machine.engine().open(&a).unwrap();
    assert_eq!(all(&store), Map::new());
    assert_eq!(store.applied(), LogPosition::default());
    assert_eq!(all(&machine.engine().open(&b).unwrap()).len(), 1);
}

fn positions_without_rows_are_flushed_too<M: Machine>() {
    let mut machine = M::new();
    let store = machine.engine().open(&machine.folder("a")).unwrap();
    apply(&store, &[]);
    apply(&store, &[]);
    assert_eq!(store.flush().unwrap(), at(2));
    machine.crash();
    let store = machine.engine().open(&machine.folder("a")).unwrap();
    assert_eq!((store.applied(), store.flushed()), (at(2), at(2)));
    assert_eq!(all(&store), Map::new());
}

#[test]
fn a_simulated_disk_is_full_and_a_crash_ends_its_stores() {
    let mut machine = Simulated::new();
    let store = machine.engine().open(&machine.folder("a")).unwrap();
    set(&store, b"key", b"old");
    store.flush().unwrap();
    set(&store, b"key", b"new");
    machine.engine().refuse_writes(true);
    assert!(matches!(refused(store.flush()), Error::NoRoom { .. }));
    assert_eq!(get(&store, b"key"), Some(b"new".to_vec()), "reads go on");
    let again = machine.engine().open(&machine.folder("a")).unwrap();
    assert_eq!(get(&again, b"key"), Some(b"old".to_vec()));
    machine.engine().refuse_writes(false);
    assert_eq!(store.flush().unwrap(), at(2), "when there is room, it goes on");
    let again = machine.engine().open(&machine.folder("a")).unwrap();
    assert_eq!(get(&again, b"key"), Some(b"new".to_vec()));
    machine.crash();
    assert!(matches!(refused(again.get(b"key")), Error::Broken { .. }));
    assert!(matches!(refused(again.apply(at(1), at(2), &[])), Error::Broken { .. }));
}

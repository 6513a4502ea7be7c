//! A store that is filled from another replica's snapshot.

use partage_engine::replica::{Condition, Engine, Error, Row, Snapshot, Store};
use partage_service::table::replication::LogPosition;

use crate::harness::{Machine, Map, all, apply, at, compact, get, on_both, refused, set};

on_both! {
    a_filled_store_is_the_snapshot
    a_store_is_not_usable_before_the_last_chunk
    filling_goes_on_behind_the_last_key_after_a_crash
    chunks_that_do_not_fit_are_refused
    an_empty_snapshot_fills_a_store
}

fn row(key: &[u8], value: &[u8]) -> Row {
    Row { key: key.into(), value: value.into() }
}

fn keys(count: u16) -> Vec<Row> {
    (0..count).map(|key| row(&key.to_be_bytes(), &vec![7; if key % 40 == 0 { 6_000 } else { 50 }])).collect()
}

fn map(rows: &[Row]) -> Map {
    rows.iter().map(|row| (row.key.to_vec(), row.value.to_vec())).collect()
}

fn a_filled_store_is_the_snapshot<M: Machine>() {
    let machine = M::new();
    let source = machine.engine().open(&machine.folder("source")).unwrap();
    for key in 0..500u16 {
        set(&source, &key.to_be_bytes(), &[key as u8; 30]);
        if key % 150 == 0 {
            source.flush().unwrap();
        }
    }
    let snapshot = source.snapshot().unwrap();
    let model = all(&source);
    apply(&source, &[(b"later", Some(b"1")), (&[0, 0], None)]);
    let target = machine.engine().open(&machine.folder("target")).unwrap();
    let mut from = None;
    loop {
        let chunk = snapshot.export(from.as_deref(), None, 1_000).unwrap();
        target.fill(snapshot.position(), &chunk.rows, chunk.next.is_none()).unwrap();
        from = chunk.next;
        if from.is_none() {
            break;
        }
        compact(&target);
    }
    assert_eq!(all(&target), model);
    assert_eq!(target.applied(), snapshot.position());
    assert_eq!(target.condition(), Condition::Usable { flushed: snapshot.position() });
    apply(&target, &[(b"later", Some(b"1")), (&[0, 0], None)]);
    assert_eq!(all(&target), all(&source));
    target.flush().unwrap();
    compact(&target);
    assert_eq!(all(&target), all(&source));
}

fn a_store_is_not_usable_before_the_last_chunk<M: Machine>() {
    let mut machine = M::new();
    let rows = keys(30);
    for is_crashed in [false, true] {
        let mut store = machine.engine().open(&machine.folder("a")).unwrap();
        store.fill(at(9), &rows[..10], false).unwrap();
        if is_crashed {
            machine.crash();
            store = machine.engine().open(&machine.folder("a")).unwrap();
        }
        let through = Some(rows[9].key.clone());
        assert_eq!(store.condition(), Condition::Filling { position: at(9), through });
        assert_eq!((store.applied(), store.flushed()), (LogPosition::default(), LogPosition::default()));
        let is_refused = |error| matches!(error, Error::Filling { position } if position == at(9));
        assert!(is_refused(refused(store.get(&rows[0].key))));
        assert!(is_refused(refused(store.snapshot())));
        assert!(is_refused(refused(store.flush())));
        assert!(is_refused(refused(store.median())));
        assert!(is_refused(refused(store.apply(LogPosition::default(), at(1), &[]))));
        store.fill(at(9), &rows[10..], true).unwrap();
        assert_eq!(all(&store), map(&rows));
        drop(store);
        machine.crash();
        let store = machine.engine().open(&machine.folder("a")).unwrap();
        assert_eq!(all(&store), map(&rows));
        assert_eq!((store.applied(), store.flushed()), (at(9), at(9)));
        drop(store);
        machine.engine().remove(&machine.folder("a")).unwrap();
    }
}

fn filling_goes_on_behind_the_last_key_after_a_crash<M: Machine>() {
    let mut machine = M::new();
    let rows = keys(400);
    let (mut done, mut crashes) = (0, 0);
    while done < rows.len() {
        let store = machine.engine().open(&machine.folder("a")).unwrap();
        let through = match store.condition() {
            Condition::Filling { position, through } => {
                assert_eq!(position, at(77));
                through
            }
            Condition::Usable { flushed } => {
                assert_eq!((flushed, done), (LogPosition::default(), 0));
                None
            }
        };
        assert_eq!(through, done.checked_sub(1).map(|last| rows[last].key.clone()));
        for _ in 0..3 {
            let end = (done + 23).min(rows.len());
            store.fill(at(77), &rows[done..end], end == rows.len()).unwrap();
            done = end;
            if done == rows.len() {
                break;
            }
        }
        if crashes % 2 == 0 && done < rows.len() {
            store.fill(at(77), &[], false).unwrap();
            compact(&store);
        }
        machine.crash();
        crashes += 1;
    }
    assert!(crashes > 4);
    let store = machine.engine().open(&machine.folder("a")).unwrap();
    assert_eq!(all(&store), map(&rows));
    assert_eq!(store.flushed(), at(77));
}

fn chunks_that_do_not_fit_are_refused<M: Machine>() {
    let machine = M::new();
    let store = machine.engine().open(&machine.folder("a")).unwrap();
    let bad = [row(b"b", b""), row(b"b", b"")];
    assert!(matches!(refused(store.fill(at(5), &bad, false)), Error::NotSorted { row: 1 }));
    assert_eq!(store.condition(), Condition::Usable { flushed: LogPosition::default() });
    store.fill(at(5), &[row(b"b", b"1")], false).unwrap();
    for key in [b"a", b"b"] {
        assert!(matches!(refused(store.fill(at(5), &[row(key, b"")], true)), Error::NotSorted { row: 0 }));
    }
    assert!(matches!(refused(store.fill(at(6), &[row(b"c", b"")], true)), Error::NotForFilling { .. }));
    store.fill(at(5), &[row(b"c", b"2")], true).unwrap();
    assert!(matches!(refused(store.fill(at(5), &[row(b"d", b"")], true)), Error::NotForFilling { .. }));
    assert_eq!(get(&store, b"c"), Some(b"2".to_vec()));
    let written = machine.engine().open(&machine.folder("b")).unwrap();
    set(&written, b"key", b"value");
    assert!(matches!(refused(written.fill(at(5), &[], true)), Error::NotForFilling { .. }));
}

fn an_empty_snapshot_fills_a_store<M: Machine>() {
    let mut machine = M::new();
    let store = machine.engine().open(&machine.folder("a")).unwrap();
    store.fill(at(5), &[], false).unwrap();
    assert_eq!(store.condition(), Condition::Filling { position: at(5), through: None });
    machine.crash();
    let store = machine.engine().open(&machine.folder("a")).unwrap();
    assert_eq!(store.condition(), Condition::Filling { position: at(5), through: None });
    store.fill(at(5), &[], true).unwrap();
    assert_eq!(all(&store), Map::new());
    machine.crash();
    let store = machine.engine().open(&machine.folder("a")).unwrap();
    assert_eq!(store.flushed(), at(5));
    set(&store, b"key", b"value");
    assert_eq!(all(&store).len(), 1);
}

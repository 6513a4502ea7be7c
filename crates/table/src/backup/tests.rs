//! Chunks: their sizes, and what a change does to them.

use super::{Chunk, Cutter};
use partage_core::keyspace::key::Key;
use partage_wire::table::backup::ContentDigest;
use partage_wire::table::backup::messages::{CUT_LEAST_BYTES, CUT_MOST_BYTES};
use partage_wire::table::backup::rows::ROW_BYTES;
use std::collections::{BTreeMap, BTreeSet};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// The chunks of rows, each read anew from the key at which the one before says that it begins.
fn chunks(rows: &Rows) -> Vec<Chunk> {
    let (mut chunks, mut from) = (Vec::new(), Some(Key::empty()));
    while let Some(key) = from {
        let mut cutter = Cutter::new();
        let mut rest = rows.range(key.as_bytes().to_vec()..);
        let next = rest.find(|(key, value)| !cutter.add(key, value, None));
        let chunk = cutter.end(next.map(|(key, _)| Key::new(key).unwrap()));
        from = chunk.next.clone();
        chunks.push(chunk);
    }
    chunks
}

fn names(chunks: &[Chunk]) -> BTreeSet<ContentDigest> {
    chunks.iter().map(Chunk::digest).collect()
}

fn rows(count: usize, bytes: usize) -> Rows {
    (0..count).map(|number| (format!("key-{number:07}").into_bytes(), vec![7; bytes])).collect()
}

#[test]
fn chunks_have_some_mib_whatever_the_size_of_rows() {
    for (count, bytes) in [(400_000, 80), (400, 100_000), (40, 1 << 20)] {
        let rows = rows(count, bytes);
        let chunks = chunks(&rows);
        let (last, others) = chunks.split_last().unwrap();
        assert_eq!(last.next, None);
        assert_eq!(chunks.iter().map(|chunk| chunk.rows).sum::<u64>(), count as u64);
        for chunk in others {
            assert!((CUT_LEAST_BYTES..CUT_MOST_BYTES + ROW_BYTES).contains(&chunk.content.len()));
        }
        let mean = chunks.iter().map(|chunk| chunk.content.len()).sum::<usize>() / chunks.len();
        assert!((1 << 20..4 << 20).contains(&mean), "rows of {bytes}: {mean}");
    }
    assert_eq!(chunks(&Rows::new()), [Chunk { content: vec![], rows: 0, next: None }]);
}

#[test]
fn a_change_of_one_row_changes_its_chunk_and_at_most_those_beside_it() {
    let rows = rows(20_000, 2_000);
    let before = names(&chunks(&rows));
    assert!(before.len() > 10, "{}", before.len());
    let change = |change: &dyn Fn(&mut Rows)| {
        let mut rows = rows.clone();
        change(&mut rows);
        let after = names(&chunks(&rows));
        after.difference(&before).count()
    };
    let key = |number: usize| format!("key-{number:07}").into_bytes();
    for number in (0..20_000).step_by(1_777) {
        let updated = change(&|rows| drop(rows.insert(key(number), vec![8; 2_000])));
        assert!(updated == 1, "{number}: {updated}");
        let longer = change(&|rows| drop(rows.insert(key(number), vec![8; 90_000])));
        let removed = change(&|rows| drop(rows.remove(&key(number))));
        let added = change(&|rows| drop(rows.insert([key(number), vec![0]].concat(), vec![9])));
        assert!(
            [longer, removed, added].into_iter().all(|new| new <= 3),
            "{number}: {longer} {removed} {added}"
        );
    }
}

#[test]
fn a_range_that_was_cut_in_two_has_the_chunks_that_it_had_but_at_the_cut() {
    let mut rows = rows(20_000, 2_000);
    let before = names(&chunks(&rows));
    let right = rows.split_off(b"key-0010000".as_slice());
    let mut after = names(&chunks(&rows));
    after.extend(names(&chunks(&right)));
    let new = after.difference(&before).count();
    assert!(new <= 4, "{new}");
}

/// A change of where chunks end makes each table's next backup a whole one: it is not made by mistake.
#[test]
fn chunks_end_where_they_always_have() {
    let cuts: Vec<_> = chunks(&rows(20_000, 1_000)).into_iter().filter_map(|chunk| chunk.next).collect();
    let cuts: Vec<_> = cuts.iter().map(|key| std::str::from_utf8(key.as_bytes()).unwrap()).collect();
    assert_eq!(cuts[..4], ["key-0005112", "key-0006665", "key-0007431", "key-0010640"]);
}

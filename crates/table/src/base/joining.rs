//! The stores of all parents as one store, which is the base of a child.
//!
//! Rows of different parents have different keys. The outcome of one request may be there twice, as both halves of a split have
//! those of the whole: of two that differ the later one counts, on each replica alike. So rows, which are most of it, can be
//! copied while the parents still change ([`RowsCopy`], then each change), and what is left ([`rest`]) when they have closed.

use crate::limits::JOIN_REST_BYTES;
use crate::rows::{Filling, RowsError, read_definitions};
use crate::stored::changes::{decode_removed, encode_removed};
use crate::stored::values::{answered_at, decode_shard_state, encode_shard_state};
use crate::stored::{index as stored_index, keys};
use partage_core::keyspace::sharding::Bounds;
use partage_engine::replica::{Direction, Row, Rows, Snapshot, Store, TreeEngine, TreeSnapshot, TreeStore};
use partage_service::table::feed::Removed;
use partage_service::table::index::{self, Definition};
use partage_service::table::replication::LogPosition;
use partage_service::table::rows::{RequestId, ShardState};
use partage_service::table::split::inherit;
use std::collections::BTreeSet;
use std::iter::Peekable;
use std::path::Path;
use std::sync::Arc;

/// What one parent had, and its bounds, if they are known.
pub(super) type ParentStore = (Arc<TreeStore>, Option<Bounds>);

/// A store in that folder that has all of the parts as of that position; its rows are on the disk.
pub(super) fn join(
    engine: &TreeEngine,
    parts: &[ParentStore],
    folder: &Path,
    position: LogPosition,
) -> Result<Arc<TreeStore>, RowsError> {
    let snapshots = snapshots(parts)?;
    let mut joined = Joined { filling: Filling::begin(engine, folder)?, position };
    merge_rows(&snapshots, keys::ALL_ROWS_AND_ENDS, |row| joined.add(row))?;
    merge_outcomes(&snapshots, |row| joined.add(row))?;
    merge_rows(&snapshots, keys::ALL_INDEX_ENTRIES, |row| joined.add(row))?;
    indexes(&snapshots)?.into_iter().try_for_each(|row| joined.add(row))?;
    merge_rows(&snapshots, keys::ALL_CHANGES, |row| joined.add(row))?;
    removed_row(parts, &snapshots)?.into_iter().try_for_each(|row| joined.add(row))?;
    joined.end()
}

fn snapshots(parts: &[ParentStore]) -> Result<Vec<TreeSnapshot>, RowsError> {
    Ok(parts.iter().map(|(part, _)| part.snapshot()).collect::<Result<_, _>>()?)
}

/// Whether a stored record is of one row, so that one parent only has it.
pub(super) fn is_of_row(stored: &[u8]) -> bool {
    keys::row_of(stored).is_some()
}

/// The records of single rows, in the order of their keys.
const OF_ROWS: [(&[u8], &[u8]); 3] = [keys::ALL_ROWS_AND_ENDS, keys::ALL_INDEX_ENTRIES, keys::ALL_CHANGES];

/// A store that gets what some snapshots have of single rows, as of a position before the last one, step by step.
pub(crate) struct RowsCopy {
    snapshots: Vec<TreeSnapshot>,
    joined: Joined,
    /// The range of [`OF_ROWS`] that is copied now, by its place there.
    range: usize,
    /// The next record of that range; none: the first one.
    next: Option<Vec<u8>>,
}

impl RowsCopy {
    /// Begins in that folder.
    pub(super) fn begin(
        engine: &TreeEngine,
        snapshots: Vec<TreeSnapshot>,
        folder: &Path,
        position: LogPosition,
    ) -> Result<RowsCopy, RowsError> {
        let joined = Joined { filling: Filling::begin(engine, folder)?, position };
        Ok(RowsCopy { snapshots, joined, range: 0, next: None })
    }

    /// Copies records of not much more than so many bytes, and says how many they have. None: all are copied.
    pub(super) fn step(&mut self, most: usize) -> Result<Option<usize>, RowsError> {
        let Some((begin, end)) = OF_ROWS.get(self.range).copied() else { return Ok(None) };
        let (next, joined) = (self.next.take(), &mut self.joined);
        let from = next.as_deref().unwrap_or(begin);
        let (bytes, next) = merge_some(&self.snapshots, (from, end), most, |row| joined.add(row))?;
        self.range += usize::from(next.is_none());
        self.next = next;
        Ok(Some(bytes))
    }

    /// The store has all; they are on the disk.
    pub(super) fn end(self) -> Result<Arc<TreeStore>, RowsError> {
        self.joined.end()
    }
}

/// What [`RowsCopy`] leaves out: none if it is so much that all is to be joined anew.
pub(super) fn rest(parts: &[ParentStore]) -> Result<Option<Vec<Row>>, RowsError> {
    let snapshots = snapshots(parts)?;
    let (mut rows, mut bytes) = (indexes(&snapshots)?, 0);
    rows.extend(removed_row(parts, &snapshots)?);
    merge_outcomes(&snapshots, |row| {
        bytes += row.key.len() + row.value.len();
        if bytes <= JOIN_REST_BYTES {
            rows.push(row);
        }
        Ok(())
    })?;
    Ok((bytes <= JOIN_REST_BYTES).then_some(rows))
}

/// One part, record after record.
struct Source<'a> {
    rows: Peekable<Rows<'a>>,
    snapshot: &'a TreeSnapshot,
}

/// The records of each snapshot in a range of keys.
fn sources<'a>(snapshots: &'a [TreeSnapshot], (from, to): (&[u8], &[u8])) -> Vec<Source<'a>> {
    let open = |snapshot| {
        let rows = Snapshot::range(snapshot, Some(from), Some(to), Direction::Forward);
        Source { rows: rows.peekable(), snapshot }
    };
    snapshots.iter().map(open).collect()
}

/// The records of all snapshots in a range of keys, in the order of their keys: each time the next key, and the snapshots that
/// have it.
fn merge<'a>(
    snapshots: &'a [TreeSnapshot],
    range: (&[u8], &[u8]),
    mut take: impl FnMut(&[u8], Vec<(Row, &'a TreeSnapshot)>) -> Result<(), RowsError>,
) -> Result<(), RowsError> {
    let mut sources = sources(snapshots, range);
    while let Some(key) = next_key(&mut sources)? {
        let mut same = Vec::new();
        for source in &mut sources {
            let is_it = |row: &Result<Row, _>| row.as_ref().is_ok_and(|row| *row.key == *key);
            if let Some(row) = source.rows.next_if(is_it) {
                same.push((row?, source.snapshot));
            }
        }
        take(&key, same)?;
    }
    Ok(())
}

/// Records of single rows.
fn merge_rows(
    snapshots: &[TreeSnapshot],
    range: (&[u8], &[u8]),
    mut add: impl FnMut(Row) -> Result<(), RowsError>,
) -> Result<(), RowsError> {
    merge(snapshots, range, |_, same| same.into_iter().next().map_or(Ok(()), |(row, _)| add(row)))
}

/// Records of single rows, until they have so many bytes: how many these are, and the key of the next record, if there is one.
fn merge_some(
    snapshots: &[TreeSnapshot],
    range: (&[u8], &[u8]),
    most: usize,
    mut add: impl FnMut(Row) -> Result<(), RowsError>,
) -> Result<(usize, Option<Vec<u8>>), RowsError> {
    let mut sources = sources(snapshots, range);
    let mut bytes = 0;
    while let Some(key) = next_key(&mut sources)? {
        if bytes >= most {
            return Ok((bytes, Some(key)));
        }
        let mut first = None;
        for source in &mut sources {
            let is_it = |row: &Result<Row, _>| row.as_ref().is_ok_and(|row| *row.key == *key);
            if let Some(row) = source.rows.next_if(is_it) {
                let row = row?;
                first.get_or_insert(row);
            }
        }
        if let Some(row) = first {
            bytes += row.key.len() + row.value.len();
            add(row)?;
        }
    }
    Ok((bytes, None))
}

/// Outcomes of requests, and how the child stands.
fn merge_outcomes(
    snapshots: &[TreeSnapshot],
    mut add: impl FnMut(Row) -> Result<(), RowsError>,
) -> Result<(), RowsError> {
    let (mut shard_states, mut left_out) = (Vec::new(), BTreeSet::new());
    let mut answers = 0;
    merge(snapshots, keys::ALL_OUTCOMES_AND_SHARD_STATE, |key, same| {
        if *key == *keys::SHARD_STATE {
            for (row, _) in &same {
                shard_states.push(decode_shard_state(&row.value)?);
            }
            return Ok(());
        }
        if let Some(id) = keys::parse_answer(key) {
            return later_outcome(&id, same, snapshots, &mut left_out)?.map_or(Ok(()), &mut add);
        }
        if let Some(answer_of) = keys::parse_answer_of(key) {
            if left_out.contains(&answer_of) {
                return Ok(());
            }
            answers += 1;
        }
        same.into_iter().next().map_or(Ok(()), |(row, _)| add(row))
    })?;
    let shard_state = ShardState { outcomes: answers, ..inherit::shard_state(shard_states) };
    add(Row { key: keys::SHARD_STATE.into(), value: encode_shard_state(&shard_state).as_slice().into() })
}

/// The indexes of the child, by their numbers.
fn indexes(parents: &[TreeSnapshot]) -> Result<Vec<Row>, RowsError> {
    let parents: Vec<Vec<Definition>> = parents.iter().map(read_definitions).collect::<Result<_, _>>()?;
    let mut joined = index::joined(&parents);
    joined.sort_by_key(|definition| definition.id);
    let row = |definition: Definition| {
        let (key, value) = (keys::index(definition.id), stored_index::encode(&definition));
        Row { key: key.as_slice().into(), value: value.as_slice().into() }
    };
    Ok(joined.into_iter().map(row).collect())
}

/// Up to where changes are removed, of each parent for the keys that it held: none if none has removed any.
fn removed_row(parts: &[ParentStore], snapshots: &[TreeSnapshot]) -> Result<Option<Row>, RowsError> {
    let mut parents = Vec::with_capacity(parts.len());
    for ((_, bounds), snapshot) in parts.iter().zip(snapshots) {
        let removed = snapshot.get(keys::REMOVED)?.map(|bytes| decode_removed(&bytes)).transpose()?;
        parents.push((bounds.clone(), removed));
    }
    if parents.iter().all(|(_, removed)| removed.is_none()) {
        return Ok(None);
    }
    let parents = parents.into_iter().map(|(bounds, removed)| (bounds, removed.unwrap_or_default()));
    let removed = encode_removed(&Removed::joined(parents));
    Ok(Some(Row { key: keys::REMOVED.into(), value: removed.as_slice().into() }))
}

/// The lowest key that is next in a part.
fn next_key(sources: &mut [Source<'_>]) -> Result<Option<Vec<u8>>, RowsError> {
    let mut lowest: Option<Vec<u8>> = None;
    for source in sources {
        match source.rows.peek() {
            Some(Ok(row)) if lowest.as_deref().is_none_or(|lowest| *row.key < *lowest) => {
                lowest = Some(row.key.to_vec());
            }
            Some(Ok(_)) | None => {}
            Some(Err(_)) => {
                if let Some(Err(error)) = source.rows.next() {
                    return Err(error.into());
                }
            }
        }
    }
    Ok(lowest)
}

/// A part of the outcome of a request: that of the parent which has the latest one.
fn later_outcome(
    id: &RequestId,
    same: Vec<(Row, &TreeSnapshot)>,
    snapshots: &[TreeSnapshot],
    left_out: &mut BTreeSet<(u64, RequestId)>,
) -> Result<Option<Row>, RowsError> {
    let first = keys::answer(id, 0);
    let mut latest: Option<(u64, Vec<u8>, &TreeSnapshot)> = None;
    for snapshot in snapshots {
        let Some(part) = snapshot.get(&first)? else { continue };
        let one = (answered_at(&part)?, part.to_vec());
        let is_later = latest.as_ref().is_none_or(|(at, known, _)| (*at, known) < (one.0, &one.1));
        let former = match is_later {
            true => latest.replace((one.0, one.1, snapshot)).map(|(at, ..)| at),
            false => Some(one.0),
        };
        left_out.extend(former.map(|at| (at, *id)));
    }
    let Some((at, _, counts)) = latest else { return Ok(None) };
    left_out.remove(&(at, *id));
    let of_it = same.into_iter().find(|(_, snapshot)| std::ptr::eq(*snapshot, counts));
    Ok(of_it.map(|(row, _)| row))
}

/// The store that is filled, as of a position.
struct Joined {
    filling: Filling,
    position: LogPosition,
}

impl Joined {
    fn add(&mut self, row: Row) -> Result<(), RowsError> {
        self.filling.add(self.position, row)
    }

    fn end(mut self) -> Result<Arc<TreeStore>, RowsError> {
        self.filling.end(self.position)?;
        Ok(Arc::clone(self.filling.store()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::StoredRows;
    use crate::stored::write;
    use partage_core::base::id::Epoch;
    use partage_core::keyspace::key::{Key, KeyRange};
    use partage_core::keyspace::sharding::{PartitionKey, Sharding};
    use partage_engine::replica::{Engine, Options};
    use partage_service::table::feed::FeedSettings;
    use partage_service::table::replication::{Entry, EntryKind};
    use partage_service::table::rows::{
        Action, Condition, Expiry, Operation, Outcome, Records, Request, Write,
    };

    fn at(index: u64) -> LogPosition {
        LogPosition { epoch: Epoch(0), index }
    }

    const FEED: FeedSettings =
        FeedSettings { kept_ms: 20, sharding: Sharding::KeyRange, partition_key: PartitionKey::Whole };

    fn half(begin: &str, end: &str) -> Bounds {
        let [begin, end] = [begin, end].map(|key| Key::new(key.as_bytes()).unwrap());
        Bounds::Keys(KeyRange::new(begin, end).unwrap())
    }

    fn put(key: &str, request: Option<u8>, at_ms: u64) -> Write {
        let key = Key::new(key.as_bytes()).unwrap();
        let action = Action::Put(b"v".as_slice().into(), Expiry::At(at_ms + 1_000));
        let operation = Operation { key, condition: Condition::Always, action, wants_former: false };
        let request = request.map(|id| Request { id: RequestId([id; 16]), fingerprint: at_ms });
        Write { at_ms, request, operations: vec![operation] }
    }

    fn store(engine: &TreeEngine, folder: &Path, writes: &[Write]) -> Arc<TreeStore> {
        let mut rows = StoredRows::open(Arc::new(engine.open(folder).unwrap()), Some(FEED)).unwrap();
        for (index, write) in (1..).zip(writes) {
            let kind = EntryKind::Write(write::encode(write).into());
            rows.apply(&Entry { position: at(index), kind }).unwrap();
        }
        Arc::clone(rows.store())
    }

    fn all(store: &TreeStore) -> Vec<(Vec<u8>, Vec<u8>)> {
        let snapshot = store.snapshot().unwrap();
        let rows = snapshot.range(None, None, Direction::Forward).map(Result::unwrap);
        rows.map(|row| (row.key.to_vec(), row.value.to_vec())).collect()
    }

    #[test]
    fn d1_what_is_joined_has_all_rows_and_of_each_request_the_later_outcome_whatever_the_order() {
        let folder = tempfile::tempdir().unwrap();
        let engine = TreeEngine::new(Options::default());
        // Both have request 1, as halves of one shard; the right one was given request 2 a second time, later.
        let both = put("a", Some(1), 10);
        let left = [both.clone(), put("b", Some(2), 20), put("c", Some(3), 30)];
        let right = [both, put("x", Some(2), 25), put("y", None, 50), put("z", Some(4), 60)];
        let left = store(&engine, &folder.path().join("left"), &left);
        let right = store(&engine, &folder.path().join("right"), &right);
        let mut found = Vec::new();
        let (left, right) = ((left, half("", "m")), (right, half("m", "")));
        for (name, parts) in [("lr", [&left, &right]), ("rl", [&right, &left])] {
            let into = folder.path().join(name);
            let parts = parts.map(|(part, bounds)| (Arc::clone(part), Some(bounds.clone())));
            let joined = join(&engine, &parts, &into, at(9)).unwrap();
            assert_eq!((joined.flushed(), joined.applied()), (at(9), at(9)));
            found.push(all(&joined));
            let rows = StoredRows::open(joined, None).unwrap();
            let shard_state = rows.shard_state().unwrap();
            assert_eq!((shard_state.clock_ms, shard_state.outcomes), (60, 4));
            assert_eq!(rows.answers(u64::MAX, 99).unwrap().len(), 4, "one of each request");
            let two = rows.answer(&RequestId([2; 16])).unwrap().unwrap();
            assert_eq!(two.at_ms, 25);
            assert!(matches!(two.outcome, Outcome::Done { .. }));
            for key in ["a", "b", "c", "x", "y", "z"] {
                assert!(rows.row(&Key::new(key.as_bytes()).unwrap()).unwrap().is_some(), "{key}");
            }
            assert_eq!(rows.ended(u64::MAX, 99).unwrap().len(), 6);
            // Changes of both are there, and up to where those of each are removed.
            let (from, to) = keys::ALL_CHANGES;
            let snapshot = rows.store().snapshot().unwrap();
            let changes = snapshot.range(Some(from), Some(to), Direction::Forward).map(Result::unwrap);
            let changed: Vec<u8> = changes.map(|row| *row.key.last().unwrap()).collect();
            assert_eq!(changed, b"bcyz");
            let removed = rows.removed().unwrap();
            assert_eq!(removed.within(&half("", "m")), at(1));
            assert_eq!(removed.within(&half("n", "")), at(2));
        }
        assert_eq!(found[0], found[1]);
    }
}

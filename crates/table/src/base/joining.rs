//! The stores of all parents as one store, which is the base of a child.
//!
//! Rows of different parents have different keys. The outcome of one request may be there twice, as both halves of a split have
//! those of the whole: of two that differ the later one counts, on each replica alike.

use crate::limits::CHUNK_BYTES;
use crate::rows::RowsError;
use crate::stored::keys;
use crate::stored::values::{answered_at, decode_standing, encode_standing};
use partage_core::service::table::replication::LogPosition;
use partage_core::service::table::rows::{RequestId, Standing};
use partage_core::service::table::split::inherit;
use partage_engine::replica::{
    Direction, Engine, Row, Rows, Snapshot, Store, TreeEngine, TreeSnapshot, TreeStore,
};
use std::collections::BTreeSet;
use std::iter::Peekable;
use std::path::Path;
use std::sync::Arc;

/// The store that has all of the parts, on its disk, as of that position. `into`: the folder of a new one; none: the only part is
/// the store.
pub(super) fn one_store(
    engine: &TreeEngine,
    parts: Vec<Arc<TreeStore>>,
    into: Option<&Path>,
    position: LogPosition,
) -> Result<Arc<TreeStore>, RowsError> {
    let store = match (into, parts.into_iter().collect::<Vec<_>>()) {
        (None, mut parts) if parts.len() == 1 => parts.remove(0),
        (None, _) => unreachable!("several parts are joined in a new folder"),
        (Some(folder), parts) => {
            let store = Arc::new(engine.open(folder)?);
            join(&parts, &store, position)?;
            store
        }
    };
    store.flush()?;
    Ok(store)
}

/// One part, row after row.
struct Source<'a> {
    rows: Peekable<Rows<'a>>,
    snapshot: &'a TreeSnapshot,
}

fn join(parts: &[Arc<TreeStore>], into: &TreeStore, position: LogPosition) -> Result<(), RowsError> {
    let snapshots: Vec<TreeSnapshot> = parts.iter().map(|part| part.snapshot()).collect::<Result<_, _>>()?;
    let open = |snapshot| {
        let rows = Snapshot::range(snapshot, None, None, Direction::Forward);
        Source { rows: rows.peekable(), snapshot }
    };
    let mut sources: Vec<Source<'_>> = snapshots.iter().map(open).collect();
    let mut joined = Joined { into, position, chunk: Vec::new(), bytes: 0 };
    let (mut standings, mut left_out) = (Vec::new(), BTreeSet::new());
    let mut answers = 0;
    while let Some(key) = next_key(&mut sources)? {
        let mut same = Vec::new();
        for source in &mut sources {
            let is_it = |row: &Result<Row, _>| row.as_ref().is_ok_and(|row| *row.key == *key);
            if let Some(row) = source.rows.next_if(is_it) {
                same.push((row?, source.snapshot));
            }
        }
        if *key == *keys::STANDING {
            for (row, _) in &same {
                standings.push(decode_standing(&row.value)?);
            }
            continue;
        }
        if let Some(id) = keys::parse_answer(&key) {
            if let Some(row) = later_outcome(&id, same, &snapshots, &mut left_out)? {
                joined.add(row)?;
            }
            continue;
        }
        if let Some(answer_of) = keys::parse_answer_of(&key) {
            if left_out.contains(&answer_of) {
                continue;
            }
            answers += 1;
        }
        if let Some((row, _)) = same.into_iter().next() {
            joined.add(row)?;
        }
    }
    let standing = Standing { answers, ..inherit::standing(standings) };
    let standing = encode_standing(&standing).as_slice().into();
    joined.add(Row { key: keys::STANDING.into(), value: standing })?;
    joined.end()
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

/// The store that is filled.
struct Joined<'a> {
    into: &'a TreeStore,
    position: LogPosition,
    chunk: Vec<Row>,
    bytes: usize,
}

impl Joined<'_> {
    fn add(&mut self, row: Row) -> Result<(), RowsError> {
        self.bytes += row.key.len() + row.value.len();
        self.chunk.push(row);
        if self.bytes >= CHUNK_BYTES {
            self.bytes = 0;
            self.into.fill(self.position, &std::mem::take(&mut self.chunk), false)?;
        }
        Ok(())
    }

    fn end(self) -> Result<(), RowsError> {
        Ok(self.into.fill(self.position, &self.chunk, true)?)
    }
}

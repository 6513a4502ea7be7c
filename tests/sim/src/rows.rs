//! What must be so of the rows of a table whatever the clocks of its replicas show, and of a reader of its changes: core's own
//! rules, over records in memory. [`crate::mutants`] hunts with it for bugs that runs show only when clocks and leaders happen to
//! change so. Each scenario says what it saw instead, if it is not so.

use crate::table::Rows;
use partage_core::base::id::Epoch;
use partage_core::base::planted::{self, Planted};
use partage_core::keyspace::key::{Key, KeyRange};
use partage_core::keyspace::sharding::{Bounds, PartitionKey, Sharding};
use partage_core::limits;
use partage_service::table::feed::{FeedSettings, Progress, Reached, Reader, Removed, Since};
use partage_service::table::replication::LogPosition;
use partage_service::table::rows::{Action, Condition, Expiry, Operation, Value, Write};

/// What was seen instead.
type Outcome = Result<(), String>;

/// One replica. No write here has a request id, and the table keeps no changes.
#[derive(Debug, Clone, Default, PartialEq)]
struct Replica {
    rows: Rows,
    applied: u64,
}

impl Replica {
    /// Applies the next entry, of the leader of that epoch.
    fn apply(&mut self, epoch: Epoch, write: &Write) {
        self.applied += 1;
        let _nobody_asks = self.rows.apply(LogPosition { epoch, index: self.applied }, write);
    }

    /// How many of these a reader finds.
    fn found(&self, keys: &[Key]) -> usize {
        keys.iter().filter(|key| self.rows.read(key).is_some()).count()
    }
}

/// So many different keys, for a scenario.
fn keys(count: usize) -> Result<Vec<Key>, String> {
    (0..count).map(|number| Key::new(&number.to_be_bytes()).map_err(|error| format!("{error:?}"))).collect()
}

/// A write of a leader whose clock shows `at_ms`, of rows that end at `end_ms`; without keys only the clock goes on.
fn write(at_ms: u64, keys: &[Key], end_ms: u64) -> Write {
    let put = |key: &Key| Operation {
        key: key.clone(),
        condition: Condition::Always,
        action: Action::Put(Value::from(&b"1"[..]), Expiry::At(end_ms)),
        wants_former: false,
    };
    Write { at_ms, request: None, operations: keys.iter().map(put).collect() }
}

/// D3: rows end, more than one entry removes; the next leader's clock is behind, and they are gone all the same.
pub fn what_has_ended_stays_gone_under_a_leader_whose_clock_is_behind() -> Outcome {
    let keys = keys(3 * limits::EXPIRED_ROWS_REMOVED)?;
    let mut rows = Replica::default();
    rows.apply(Epoch(1), &write(900, &keys, 1_000));
    let before = rows.found(&keys);
    if before != keys.len() {
        return Err(format!("of {} rows {before} are there before their end", keys.len()));
    }
    for (epoch, clock_ms) in [(1, 1_000), (2, 950)] {
        rows.apply(Epoch(epoch), &write(clock_ms, &[], 0));
        let found = rows.found(&keys);
        if found != 0 {
            return Err(format!("D3: {found} rows are there that had ended, under epoch {epoch}"));
        }
    }
    Ok(())
}

/// D1: two replicas, one of whose clocks is half a second ahead, apply the same entries and have the same.
pub fn replicas_have_the_same_rows_whatever_their_clocks_show() -> Outcome {
    let keys = keys(4)?;
    let entries = [write(1_000, &keys, 1_200), write(1_100, &[], 0)];
    let replica = |ahead_ms: u64| {
        let mut rows = Replica::default();
        for entry in &entries {
            let own_ms = entry.at_ms + ahead_ms;
            let at_ms = if planted::is(Planted::OwnClock) { own_ms } else { entry.at_ms };
            rows.apply(Epoch(1), &Write { at_ms, ..entry.clone() });
        }
        rows
    };
    let (exact, ahead) = (replica(0), replica(500));
    if exact != ahead {
        return Err(format!("D1: one replica has {exact:?}, another {ahead:?}"));
    }
    Ok(())
}

/// D1: a reader that has read a hundred entries gets what the leader of a later epoch has written, whose log may begin with lower
/// indexes, as that of a child does; and nothing twice.
pub fn a_feed_goes_on_with_what_a_later_leader_has_written() -> Outcome {
    let sharding = Sharding::KeyRange;
    let settings = FeedSettings { kept_ms: 60_000, sharding, partition_key: PartitionKey::Whole };
    let whole = Bounds::Keys(KeyRange::all());
    let at = |epoch: u64, index: u64| LogPosition { epoch: Epoch(epoch), index };
    let progress = Progress::begin([whole], &Since::After(Reached::all_of(at(3, 100))));
    let reader = Reader::begin(settings, progress, &Removed::default(), Some(at(4, 101)));
    let reader = reader.map_err(|error| error.to_string())?;
    for key in keys(3)? {
        for (entry, is_new) in [(at(3, 99), false), (at(3, 100), false), (at(4, 7), true), (at(4, 101), true)]
        {
            if reader.wants(entry, &key) != is_new {
                return Err(format!("D1: of what was written at {entry} the reader wants {}", !is_new));
            }
        }
    }
    Ok(())
}

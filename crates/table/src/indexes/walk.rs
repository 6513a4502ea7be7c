//! Rows of an index in any order: one shard after the other is asked, until the page has as many as it may. So a page of few
//! rows asks few shards of a large table, where one in the order of values asks all.
//!
//! ```text
//!  shards, in the order of their bounds   │ done      │ ▓▓▓▓░░░░░░ segment │ later     │
//!                                                          ▲ a place in its index
//! ```
//!
//! A *segment* is what one shard held when it was begun. The token says where it begins and ends, and up to which place in the
//! index its rows were given. Shards may be split and merged between pages: all shards that have a part of the segment by then
//! are asked from that place on, and their rows merged; and rows of theirs that are outside of the segment are left out. So no
//! row that is there from the first page to the last is missed or given twice.
//!
//! Named partitions have no order of bounds, and are neither split nor merged: there a segment is a partition, in the order of
//! shard numbers. Slots of a fixed number are whole shards; a token is of no use any more when their number has changed.

use super::page::{IndexPage, Part, TableIndexScan, Wanted};
use super::shards::{Which, shards};
use super::token::IndexToken;
use super::{IndexError, Indexes};
use crate::limits;
use crate::rows::ScannedRow;
use crate::scans::Place;
use partage_core::base::id::ShardId;
use partage_core::keyspace::key::Key;
use partage_core::keyspace::sharding::{PartitionKey, Position, Sharding};
use partage_core::node::exchange::KeyspaceBrief;
use partage_service::table::index::TableState;
use tokio::time::Instant;

/// Where a segment ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    /// Where the shard ends that has the first place of the segment: that shard was not asked yet.
    OfShard,
    /// This place is the first one behind the segment.
    Before(Place),
    /// The segment goes on to the end of the table.
    OfTable,
}

/// The segment that is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Segment {
    /// A stretch of the order of shards.
    Stretch(Place, End),
    /// A named partition: the first one whose shard has this number or a higher one.
    Partition(ShardId),
}

impl Segment {
    /// The first one of a table.
    fn first(sharding: Sharding) -> Segment {
        match Place::first(sharding) {
            Some(place) => Segment::Stretch(place, End::OfShard),
            None => Segment::Partition(ShardId(0)),
        }
    }

    /// Whether a table of that sharding has such segments.
    pub(super) fn is_of(&self, sharding: Sharding) -> bool {
        match self {
            Segment::Partition(_) => sharding == Sharding::Named,
            Segment::Stretch(from, End::Before(to)) => from.is_of(sharding) && to.is_of(sharding),
            Segment::Stretch(from, _) => from.is_of(sharding),
        }
    }
}

/// The rows of a stretch.
#[derive(Debug, Clone)]
pub(super) struct Stretch {
    sharding: Sharding,
    by: PartitionKey,
    from: Place,
    to: End,
}

impl Stretch {
    pub(super) fn new(brief: &KeyspaceBrief, from: &Place, to: &End) -> Stretch {
        let (sharding, by) = (brief.sharding, brief.partition_key);
        Stretch { sharding, by, from: from.clone(), to: to.clone() }
    }

    /// Whether a row of a shard that is asked is in it.
    pub(super) fn has(&self, row: &ScannedRow) -> bool {
        let place = match self.sharding.position(self.by, row.key.as_bytes()) {
            Position::Key(key) => Place::Key(Key::new(key).unwrap_or(Key::empty())),
            Position::Point(point) => Place::Point(point),
            // These are shards as a whole.
            Position::Value(_) | Position::Name(_) => return true,
        };
        let is_before = match &self.to {
            End::Before(to) => place < *to,
            End::OfShard | End::OfTable => true,
        };
        place >= self.from && is_before
    }
}

impl Indexes {
    /// Reads a page from one shard after the other.
    ///
    /// # Errors
    /// The first of them is of no use; a later one only ends the page.
    pub(super) async fn walk(
        &self,
        asked: &TableIndexScan,
        brief: &KeyspaceBrief,
        until: Instant,
    ) -> Result<IndexPage, IndexError> {
        let token = asked.token.as_ref();
        let begun = token.and_then(|token| token.segment.clone());
        let mut segment = begun.unwrap_or_else(|| Segment::first(brief.sharding));
        let mut place = token.map_or_else(Vec::new, |token| token.place.clone());
        let mut index = token.map(|token| token.index);
        let (mut rows, mut bytes) = (Vec::new(), 0);
        let most = asked.most.clamp(1, limits::SCAN_ROWS);
        for asked_shards in 0..limits::INDEX_WALK_SHARDS {
            if rows.len() >= most || bytes >= limits::INDEX_PAGE_BYTES {
                break;
            }
            let left = most - rows.len();
            let Some(found) = self.part_of(asked, brief, (&mut segment, &mut place), left, until).await
            else {
                return Ok(IndexPage { rows, next: None });
            };
            let part = match found {
                Ok(part) => part,
                // What was read before is given, and the next page begins here.
                Err(_) if asked_shards > 0 => break,
                Err(why) => return Err(why),
            };
            if index.is_some_and(|index| index != part.index) {
                let (table, name) = (asked.table.clone(), asked.name.clone());
                return Err(match token {
                    Some(_) => IndexError::OtherIndex,
                    None => IndexError::NotReady { table, name, state: TableState::Conflicting },
                });
            }
            index = Some(part.index);
            bytes += part.rows.iter().map(size).sum::<usize>();
            rows.extend(part.rows);
            let Some((next, from)) = behind(segment, part.next, part.end) else {
                return Ok(IndexPage { rows, next: None });
            };
            (segment, place) = (next, from);
        }
        let next = index.map(|index| IndexToken {
            table: brief.name.clone(),
            first_shard: brief.first_shard,
            index,
            partition_key: None,
            segment: Some(segment),
            slots: IndexToken::slots(brief),
            place,
        });
        Ok(IndexPage { rows, next })
    }

    /// Reads on in a segment; none: there is no partition any more.
    async fn part_of(
        &self,
        asked: &TableIndexScan,
        brief: &KeyspaceBrief,
        (segment, place): (&mut Segment, &mut Vec<u8>),
        most: usize,
        until: Instant,
    ) -> Option<Result<Part, IndexError>> {
        let (which, to) = match segment {
            Segment::Stretch(from, to) => (Which::At(from), Some(&*to)),
            Segment::Partition(number) => {
                let (maps, _) = self.scans.ways();
                let all = shards(&maps, &asked.table).into_iter().map(|shard| shard.id);
                let first = all.filter(|id| *id >= *number).min()?;
                if first != *number {
                    (*number, *place) = (first, Vec::new());
                }
                (Which::One(first), None)
            }
        };
        let wanted = Wanted { which, to, place: place.as_slice(), most };
        Some(self.part(asked, brief, &wanted, until).await)
    }
}

/// Where it goes on behind a part of a segment that ends there: in the segment, at `next` of its index, or at the first place
/// of the one behind it; none: this was the last one.
fn behind(segment: Segment, next: Option<Vec<u8>>, end: End) -> Option<(Segment, Vec<u8>)> {
    match (segment, next, end) {
        (Segment::Stretch(from, _), Some(next), end) => Some((Segment::Stretch(from, end), next)),
        (Segment::Stretch(..), None, End::Before(to)) => {
            Some((Segment::Stretch(to, End::OfShard), Vec::new()))
        }
        (Segment::Stretch(..), None, End::OfShard | End::OfTable) => None,
        (Segment::Partition(number), Some(next), _) => Some((Segment::Partition(number), next)),
        (Segment::Partition(number), None, _) => {
            Some((Segment::Partition(ShardId(number.0.checked_add(1)?)), Vec::new()))
        }
    }
}

fn size(row: &ScannedRow) -> usize {
    row.key.as_bytes().len() + row.value.as_ref().map_or(0, |value| value.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Place {
        Place::Key(Key::new(text.as_bytes()).unwrap())
    }

    fn row(text: &str) -> ScannedRow {
        let key = Key::new(text.as_bytes()).unwrap();
        ScannedRow { key, value: None, version: Default::default(), expires_ms: None }
    }

    #[test]
    fn a_stretch_has_the_rows_whose_partition_keys_are_in_it() {
        let (sharding, by) = (Sharding::KeyRange, PartitionKey::UpTo { delimiter: b'/' });
        let stretch = Stretch { sharding, by, from: key("b"), to: End::Before(key("d")) };
        let has = |text| stretch.has(&row(text));
        assert!(has("b") && has("b/1") && has("c/z") && !has("a/z") && !has("d/1") && !has("d"));
        let rest = Stretch { to: End::OfTable, ..stretch.clone() };
        assert!(rest.has(&row("z")) && !rest.has(&row("a")));
    }

    #[test]
    fn a_segment_goes_on_until_its_last_shard_has_no_more() {
        let begin = || Segment::Stretch(key("b"), End::OfShard);
        let to = || End::Before(key("d"));
        let same = Some((Segment::Stretch(key("b"), to()), vec![7]));
        assert_eq!(behind(begin(), Some(vec![7]), to()), same);
        let next = Some((Segment::Stretch(key("d"), End::OfShard), vec![]));
        assert_eq!(behind(begin(), None, to()), next);
        assert_eq!(behind(begin(), None, End::OfTable), None);
        let partition = |number| Segment::Partition(ShardId(number));
        assert_eq!(behind(partition(3), None, End::OfTable), Some((partition(4), vec![])));
        assert_eq!(behind(partition(3), Some(vec![7]), End::OfTable), Some((partition(3), vec![7])));
        assert!(partition(3).is_of(Sharding::Named) && !partition(3).is_of(Sharding::KeyRange));
        assert!(begin().is_of(Sharding::KeyRange) && !begin().is_of(Sharding::Named));
        assert_eq!(Segment::first(Sharding::KeyRange), Segment::Stretch(key(""), End::OfShard));
        assert_eq!(Segment::first(Sharding::Named), partition(0));
    }
}

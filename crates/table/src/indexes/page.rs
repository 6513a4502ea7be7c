//! A page of the rows of a table in the order of an index.

use super::query::{QueryText, query_of};
use super::shards::{Which, chosen};
use super::token::IndexToken;
use super::walk::{End, Stretch};
use super::{IndexError, Indexes, not_understood};
use crate::limits;
use crate::rows::ScannedRow;
use crate::scans::{self, Place, ScanError, from_node, place, soon};
use crate::service::{Refusal, Refused};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use partage_core::base::id::ShardId;
use partage_core::base::name::{IndexName, KeyspaceName};
use partage_core::keyspace::key::Key;
use partage_core::keyspace::sharding::Sharding;
use partage_core::node::exchange::KeyspaceBrief;
use partage_service::table::index::{IndexId, Merge, TableState};
use partage_service::table::replication::Consistency;
use partage_wire::json::FixedWord;
use partage_wire::table::{KeyBytes, PlacedRow, ShardIndexAnswer, ShardIndexRequest, ShardPage};
use std::collections::{BTreeMap, BTreeSet};
use tokio::time::{Instant, sleep};

/// The order in which the rows of an index come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IndexOrder {
    /// By value, and by key where that is the same: all shards are asked for each page.
    #[default]
    Value,
    /// Shard after shard, in the order of values within each: shards are asked until the page is full.
    Any,
}

/// What a page is to have.
#[derive(Debug, Clone, PartialEq)]
pub struct TableIndexScan {
    /// The table whose rows the page has.
    pub table: KeyspaceName,
    /// The index by which they are found.
    pub name: IndexName,
    /// The values, as they were given: equals, from, to.
    pub(crate) query: QueryText,
    /// How many rows the page may have.
    pub most: usize,
    /// Whether it has the values.
    pub with_values: bool,
    /// How fresh they must be.
    pub consistency: Consistency,
    /// Only rows with the partition key of this key, whose shard alone is asked; none: all.
    pub partition_key: Option<Key>,
    /// In which order. The rows of one partition key come by value in any case.
    pub order: IndexOrder,
    /// Where to go on; none: at the first row.
    pub token: Option<IndexToken>,
}

/// A page of rows, with the token by which the next one is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexPage {
    /// The rows, in the order that was asked for; there may be none though more follow.
    pub rows: Vec<ScannedRow>,
    /// Where to go on; none: there is nothing more.
    pub next: Option<IndexToken>,
}

/// What a shard says of the index.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Has {
    Missing,
    Unfinished(FixedWord<TableState>),
    Index(u64),
    Other,
}

/// What some shards are asked for.
pub(super) struct Wanted<'a> {
    /// Which shards. Of [`Which::At`] also those behind it, up to `to`.
    pub(super) which: Which<'a>,
    /// Where the stretch ends that begins there.
    pub(super) to: Option<&'a End>,
    /// The place in the index from which on.
    pub(super) place: &'a [u8],
    /// How many rows at most.
    pub(super) most: usize,
}

impl Wanted<'_> {
    /// Whether the shards that are asked may be partitions that lack an index which others have.
    fn may_lack(&self, why: &IndexError) -> bool {
        match why {
            IndexError::NotReady { state, .. } => *state == TableState::Incomplete,
            IndexError::Missing { .. } => !matches!(self.which, Which::All),
            _ => false,
        }
    }
}

/// What these shards have.
pub(super) struct Part {
    pub(super) rows: Vec<ScannedRow>,
    /// The place in the index at which more follow; none: there is nothing more.
    pub(super) next: Option<Vec<u8>>,
    pub(super) index: IndexId,
    /// Where the stretch ends.
    pub(super) end: End,
}

/// What the shards have answered.
struct Gathered {
    merge: Merge<ScannedRow>,
    has: BTreeMap<ShardId, Has>,
    /// Where the shard behind each begins; none: it is the last one.
    after: BTreeMap<ShardId, Option<Place>>,
    /// Only rows of that; none: all.
    within: Option<Stretch>,
}

impl Gathered {
    fn take(&mut self, shard: ShardId, answer: ShardIndexAnswer) {
        let has = match answer {
            ShardIndexAnswer::Missing => Has::Missing,
            ShardIndexAnswer::Unfinished(state) => Has::Unfinished(state),
            ShardIndexAnswer::Page { index, rows, next, after } => {
                self.after.insert(shard, after.and_then(place));
                match self.add(shard, rows, next) {
                    Some(()) => Has::Index(index),
                    None => Has::Other,
                }
            }
            _ => Has::Other,
        };
        self.has.insert(shard, has);
    }

    /// Takes in what a shard has answered; none if the answer is not understood.
    fn add(&mut self, shard: ShardId, rows: Vec<PlacedRow>, next: Option<String>) -> Option<()> {
        let decode = |text: String| STANDARD.decode(text).ok();
        let next = match next {
            Some(next) => Some(decode(next)?),
            None => None,
        };
        let placed = |PlacedRow { place, row }| {
            let row = from_node(row)?;
            let bytes = row.key.as_bytes().len() + row.value.as_ref().map_or(0, |value| value.len());
            Some((decode(place)?, bytes, row))
        };
        let mut rows: Vec<(Vec<u8>, usize, ScannedRow)> =
            rows.into_iter().map(placed).collect::<Option<_>>()?;
        rows.retain(|(_, _, row)| self.within.as_ref().is_none_or(|within| within.has(row)));
        self.merge.add(shard, rows, next);
        Some(())
    }

    /// The index that all shards have.
    fn index(&self, asked: &TableIndexScan, shards: &BTreeSet<ShardId>) -> Result<IndexId, IndexError> {
        let (table, name) = (asked.table.clone(), asked.name.clone());
        let has: Vec<&Has> =
            self.has.iter().filter(|(id, _)| shards.contains(id)).map(|(_, has)| has).collect();
        if has.contains(&&Has::Other) {
            return Err(not_understood().into());
        }
        let indexes: BTreeSet<u64> = has
            .iter()
            .filter_map(|has| if let Has::Index(index) = has { Some(*index) } else { None })
            .collect();
        let missing = has.iter().filter(|has| ***has == Has::Missing).count();
        let is_dropping =
            has.iter().any(|has| matches!(has, Has::Unfinished(state) if state.is(TableState::Dropping)));
        let is_building = has.iter().any(|has| matches!(has, Has::Unfinished(_)));
        let state = match (indexes.len(), missing) {
            _ if is_dropping => TableState::Dropping,
            (_, missing) if missing == has.len() => return Err(IndexError::Missing { table, name }),
            (_, 1..) => TableState::Incomplete,
            _ if is_building => TableState::Building,
            (2.., _) => TableState::Conflicting,
            _ => TableState::Ready,
        };
        match indexes.first() {
            Some(index) if state == TableState::Ready => Ok(IndexId(*index)),
            _ => Err(IndexError::NotReady { table, name, state }),
        }
    }
}

impl Indexes {
    /// Reads a page: from all shards, from the one that has a partition key, or from one after the other. Partitions that were
    /// registered after the index was created get it first.
    ///
    /// # Errors
    /// What to mend, or that the same page may be asked for again.
    pub async fn page(&self, asked: &TableIndexScan) -> Result<IndexPage, IndexError> {
        let until = Instant::now() + limits::PATIENCE;
        query_of(&asked.query).map_err(invalid)?;
        let (maps, _) = self.scans.ways();
        let brief = scans::table(&maps.cache(), &asked.table, until).await?;
        if let Some(token) = &asked.token {
            token.check(&brief)?;
        }
        let which = match &asked.partition_key {
            None if asked.order == IndexOrder::Any => return self.walk(asked, &brief, until).await,
            None => Which::All,
            Some(key) => Which::OfKey(key),
        };
        let is_named = asked.partition_key.is_some() && brief.sharding == Sharding::Named;
        if is_named && chosen(&maps, &asked.table, which).is_empty() {
            let table = &asked.table;
            return Err(invalid(format!(
                "table {table} has no partition of the name that partition_key gives"
            )));
        }
        let place: &[u8] = asked.token.as_ref().map_or(&[], |token| token.place.as_slice());
        let wanted = Wanted { which, to: None, place, most: asked.most };
        let mut part = self.part(asked, &brief, &wanted, until).await?;
        // Rows of other partitions are looked at and left out: an empty page tells a client nothing.
        for _ in 1..limits::INDEX_WALK_SHARDS {
            let Some(place) = part.next.take_if(|_| part.rows.is_empty() && Instant::now() < until) else {
                break;
            };
            let (index, wanted) = (part.index, Wanted { which, to: None, place: &place, most: asked.most });
            part = self.part(asked, &brief, &wanted, until).await?;
            if part.index != index {
                return Err(IndexError::OtherIndex);
            }
        }
        let Part { rows, next, index, .. } = part;
        if asked.token.as_ref().is_some_and(|token| token.index != index) {
            return Err(IndexError::OtherIndex);
        }
        let (table, first_shard, partition_key) =
            (brief.name, brief.first_shard, asked.partition_key.clone());
        let next = next.map(|place| IndexToken {
            table,
            first_shard,
            index,
            partition_key,
            segment: None,
            slots: 0,
            place,
        });
        Ok(IndexPage { rows, next })
    }

    /// Reads what some shards have of a page.
    ///
    /// # Errors
    /// As of [`Indexes::page`].
    pub(super) async fn part(
        &self,
        asked: &TableIndexScan,
        brief: &KeyspaceBrief,
        wanted: &Wanted<'_>,
        until: Instant,
    ) -> Result<Part, IndexError> {
        let mut may_complete = brief.sharding == Sharding::Named;
        let mut has_completed = false;
        loop {
            let (gathered, shards, end) = self.gather(asked, brief, wanted, until).await?;
            match gathered.index(asked, &shards) {
                Err(why) if may_complete && wanted.may_lack(&why) => {
                    may_complete = false;
                    has_completed = self.complete(&asked.table).await?;
                }
                // Partitions that have just been registered have few rows.
                Err(IndexError::NotReady { state: TableState::Building, .. })
                    if has_completed && Instant::now() < until =>
                {
                    sleep(limits::LOOK_AGAIN).await;
                }
                index => {
                    let index = index?;
                    let (rows, next) = gathered.merge.end(&shards);
                    return Ok(Part { rows, next, index, end });
                }
            }
        }
    }

    /// Asks these shards for their part of the page. Says which they were, and where the stretch ends.
    async fn gather(
        &self,
        asked: &TableIndexScan,
        brief: &KeyspaceBrief,
        wanted: &Wanted<'_>,
        until: Instant,
    ) -> Result<(Gathered, BTreeSet<ShardId>, End), IndexError> {
        let request = ShardIndexRequest::Page(of_shard(asked, wanted));
        let merge = Merge::new(wanted.most.clamp(1, limits::SCAN_ROWS), limits::INDEX_PAGE_BYTES);
        let mut gathered = Gathered { merge, has: BTreeMap::new(), after: BTreeMap::new(), within: None };
        let (Which::At(from), Some(to)) = (wanted.which, wanted.to) else {
            let which = (&asked.table, wanted.which);
            let take = |shard, answer| gathered.take(shard, answer);
            let shards = self.ask_shards(which, until, &request, take).await?;
            return Ok((gathered, shards, End::OfTable));
        };
        gathered.within = Some(Stretch::new(brief, from, to));
        let (mut shards, mut at) = (BTreeSet::new(), from.clone());
        loop {
            let which = (&asked.table, Which::At(&at));
            let take = |shard, answer| gathered.take(shard, answer);
            let found = self.ask_shards(which, until, &request, take).await?;
            let after = found.iter().find_map(|shard| gathered.after.get(shard)?.clone());
            shards.extend(found);
            let end = match (after, to) {
                (Some(after), _) if after <= at => {
                    return Err(soon(format!("a node has another shard of table {}", asked.table)).into());
                }
                (Some(after), End::Before(to)) if after < *to => {
                    at = after;
                    continue;
                }
                (Some(after), End::OfTable) => {
                    at = after;
                    continue;
                }
                (Some(after), End::OfShard) => End::Before(after),
                (None, End::OfShard) => End::OfTable,
                (_, to) => to.clone(),
            };
            return Ok((gathered, shards, end));
        }
    }
}

fn invalid(why: String) -> IndexError {
    IndexError::Table(ScanError::Refused(Refused::new(Refusal::Invalid, why)))
}

fn of_shard(asked: &TableIndexScan, wanted: &Wanted<'_>) -> ShardPage {
    let (consistency, bound_ms) = match asked.consistency {
        Consistency::Linearizable => ("linearizable", None),
        Consistency::Any => ("any", None),
        Consistency::Bounded(bound_ms) => ("bounded", Some(bound_ms)),
    };
    let QueryText { equals, from, to } = asked.query.clone();
    ShardPage {
        name: asked.name.to_string(),
        equals,
        from,
        to,
        place: STANDARD.encode(wanted.place),
        limit: wanted.most as u64,
        keys_only: !asked.with_values,
        consistency: consistency.to_owned(),
        bound_ms,
        partition_key: asked.partition_key.clone().map(KeyBytes),
    }
}

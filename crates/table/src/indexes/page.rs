//! A page of the rows of a table in the order of an index.

use super::query::{QueryText, query_of};
use super::token::IndexToken;
use super::{IndexError, Indexes, not_understood};
use crate::limits;
use crate::rows::ScannedRow;
use crate::scans::{self, ScanError, from_node};
use crate::service::{Refusal, Refused};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use partage_core::base::id::ShardId;
use partage_core::base::name::{IndexName, KeyspaceName};
use partage_core::keyspace::sharding::Sharding;
use partage_core::service::table::index::{IndexId, Merge, TableState};
use partage_core::service::table::replication::Consistency;
use partage_wire::table::{PlacedRow, ShardIndexAnswer, ShardIndexRequest, ShardPage};
use std::collections::{BTreeMap, BTreeSet};
use tokio::time::{Instant, sleep};

/// What a page is to have.
#[derive(Debug, Clone, PartialEq)]
pub struct TableIndexScan {
    /// The table.
    pub table: KeyspaceName,
    /// The index.
    pub name: IndexName,
    /// The values, as they were given: equals, from, to.
    pub(crate) query: QueryText,
    /// How many rows the page may have.
    pub most: usize,
    /// Whether it has the values.
    pub with_values: bool,
    /// How fresh they must be.
    pub consistency: Consistency,
    /// Where to go on; none: at the first row.
    pub token: Option<IndexToken>,
}

/// A page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexPage {
    /// The rows, by value and key; there may be none though more follow.
    pub rows: Vec<ScannedRow>,
    /// Where to go on; none: there is nothing more.
    pub next: Option<IndexToken>,
}

/// What a shard says of the index.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Has {
    Missing,
    Unfinished(String),
    Index(u64),
    Other,
}

/// What the shards have answered.
struct Gathered {
    merge: Merge<ScannedRow>,
    has: BTreeMap<ShardId, Has>,
}

impl Gathered {
    fn take(&mut self, shard: ShardId, answer: ShardIndexAnswer) {
        let has = match answer {
            ShardIndexAnswer::Missing => Has::Missing,
            ShardIndexAnswer::Unfinished(state) => Has::Unfinished(state),
            ShardIndexAnswer::Page { index, rows, next } => match self.add(shard, rows, next) {
                Some(()) => Has::Index(index),
                None => Has::Other,
            },
            _ => Has::Other,
        };
        self.has.insert(shard, has);
    }

    /// None if it is not understood.
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
        let rows: Vec<_> = rows.into_iter().map(placed).collect::<Option<_>>()?;
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
        let is_dropping = has.iter().any(|has| matches!(has, Has::Unfinished(state) if state == "dropping"));
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
    /// Reads a page, from all shards. Partitions that were registered after the index was created get it first.
    ///
    /// # Errors
    /// What to mend, or that the same page may be asked for again.
    pub async fn page(&self, asked: &TableIndexScan) -> Result<IndexPage, IndexError> {
        let until = Instant::now() + limits::PATIENCE;
        let invalid = |why| IndexError::Table(ScanError::Refused(Refused::new(Refusal::Invalid, why)));
        query_of(&asked.query).map_err(invalid)?;
        let (maps, _) = self.scans.ways();
        let brief = scans::table(&maps.cache(), &asked.table, until).await?;
        if let Some(token) = &asked.token {
            token.check(&brief)?;
        }
        let mut may_complete = brief.sharding == Sharding::Named;
        let mut has_completed = false;
        let (gathered, shards, index) = loop {
            let (gathered, shards) = self.gather(asked, until).await?;
            match gathered.index(asked, &shards) {
                Err(IndexError::NotReady { state: TableState::Incomplete, .. }) if may_complete => {
                    may_complete = false;
                    has_completed = self.complete(&asked.table).await?;
                }
                // Partitions that have just been registered have few rows.
                Err(IndexError::NotReady { state: TableState::Building, .. })
                    if has_completed && Instant::now() < until =>
                {
                    sleep(limits::LOOK_AGAIN).await;
                }
                index => break (gathered, shards, index?),
            }
        };
        if asked.token.as_ref().is_some_and(|token| token.index != index) {
            return Err(IndexError::OtherIndex);
        }
        let (rows, next) = gathered.merge.end(&shards);
        let (table, first_shard) = (brief.name, brief.first_shard);
        let next = next.map(|place| IndexToken { table, first_shard, index, place });
        Ok(IndexPage { rows, next })
    }
}

impl Indexes {
    /// Asks all shards for their part of the page.
    async fn gather(
        &self,
        asked: &TableIndexScan,
        until: Instant,
    ) -> Result<(Gathered, BTreeSet<ShardId>), IndexError> {
        let request = ShardIndexRequest::Page(of_shard(asked));
        let most = asked.most.clamp(1, limits::SCAN_ROWS);
        let merge = Merge::new(most, limits::INDEX_PAGE_BYTES);
        let mut gathered = Gathered { merge, has: BTreeMap::new() };
        let shards = self
            .each_shard(&asked.table, until, &request, |shard, answer| gathered.take(shard, answer))
            .await?;
        Ok((gathered, shards))
    }
}

fn of_shard(asked: &TableIndexScan) -> ShardPage {
    let place = asked.token.as_ref().map(|token| STANDARD.encode(&token.place));
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
        place: place.unwrap_or_default(),
        limit: asked.most as u64,
        keys_only: !asked.with_values,
        consistency: consistency.to_owned(),
        bound_ms,
    }
}

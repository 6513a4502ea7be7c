//! Scans of whole tables, from any node: shard after shard by the map, each at its leader.
//!
//! ```text
//!  client ──► any node: Scans ──► maps: which shard is at this place, who leads it?
//!                  │  ▲
//!                  ▼  │ rows · where the shard ends
//!              leader of the shard (this node, or GET …/shards/<shard>/rows of another one)
//! ```
//!
//! The shards come in the order of their bounds. Of a table that is sharded by ranges of keys, the rows so come in the order of
//! their keys, over all shards (with a partition key that ends at a delimiter: in the order of partition keys). Of a table
//! that is sharded by hashes or slots, the rows come shard by shard, in the order of keys within each.
//!
//! A page is no snapshot of the table: each shard's part of each page is read from one state of that shard. What is there from
//! the first page to the last is found once; what is written or deleted meanwhile may be found or not.
//!
//! A filter is applied where the rows are (`filtered.rs`), so that rows that are not wanted do not travel.
//!
//! A page ends early when it has as many bytes as one shard's page may have, when it has asked [`limits::SCAN_SHARDS`]
//! shards, or when a later shard does not answer: its token goes on there.

mod filtered;
mod json;
mod peers;
mod token;

pub use crate::token_frame::TokenError;
pub(crate) use json::{for_client, for_node, from_node, place};
pub(crate) use peers::consistency_query;
pub(crate) use peers::{Peers, TABLES, refusal};
pub(crate) use token::Place;
pub use token::Token;

use crate::limits;
use crate::rows::{ScanPage, ScanRange, ScannedRow};
use crate::service::{Refusal, Refused, Tables};
use partage_core::base::id::ShardId;
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::keyspace::KeyspaceKind;
use partage_core::keyspace::key::Key;
use partage_core::keyspace::sharding::{PartitionKey, Sharding};
use partage_core::node::exchange::KeyspaceBrief;
use partage_maps::{Cache, MapsOnDemand};
use partage_service::table::filter::Filter;
use partage_service::table::replication::Consistency;
use std::sync::Arc;
use tokio::time::{Instant, timeout_at};

/// What a page of a scan of a table is to have.
#[derive(Debug, Clone, PartialEq)]
pub struct TableScan {
    /// The table, whose shards must have an order ([`ScanError::Named`]).
    pub table: KeyspaceName,
    /// Which rows, and how many of them a page may have.
    pub range: ScanRange,
    /// Which of them are wanted, by their values; none: all.
    pub filter: Option<Arc<Filter>>,
    /// How fresh they must be.
    pub consistency: Consistency,
    /// Where to go on; none: at the first row.
    pub token: Option<Token>,
}

/// A page of a scan of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TablePage {
    /// The rows; there may be none though more follow.
    pub rows: Vec<ScannedRow>,
    /// Where to go on; none: there is nothing more.
    pub next: Option<Token>,
}

/// Which rows of a shard a page is to have.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FilteredRange {
    /// The keys, and how many.
    pub(crate) range: ScanRange,
    /// Which of the rows are wanted, by their values; none: all.
    pub(crate) filter: Option<Arc<Filter>>,
}

/// Why a page was not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScanError {
    /// No map has a table of that name.
    #[error("there is no table {0}: `partage table list` lists the tables")]
    NoTable(KeyspaceName),
    /// The shards of the table have no order.
    #[error("table {0} has named partitions, which have no order: scans are for tables of other shardings")]
    Named(KeyspaceName),
    /// The token is of no use.
    #[error("{0}")]
    Token(#[from] TokenError),
    /// A shard does not answer.
    #[error("{0}")]
    Refused(#[from] Refused),
}

/// What a shard has answered.
#[derive(Debug)]
struct ShardPage {
    rows: Vec<ScannedRow>,
    next: Option<Key>,
    after: Option<Place>,
}

/// The node that is asked for a shard, which leads it by the map.
#[derive(Debug)]
struct Leader {
    shard: ShardId,
    node: NodeId,
    address: String,
}

/// Scans of tables from one node. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Scans {
    node: NodeId,
    tables: Tables,
    maps: Arc<MapsOnDemand>,
    peers: Peers,
}

impl Scans {
    /// From the node of that name, which finds maps at one of `coordinators`.
    pub fn new(node: NodeId, tables: Tables, coordinators: Vec<String>) -> Scans {
        Scans { node, tables, maps: MapsOnDemand::new(coordinators), peers: Peers::new() }
    }

    /// The maps that scans go by, and the connections to other nodes: for other requests that need both.
    pub(crate) fn ways(&self) -> (Arc<MapsOnDemand>, Peers) {
        (Arc::clone(&self.maps), self.peers.clone())
    }

    /// The node that scans: it answers for its own shards without a request.
    pub(crate) fn node(&self) -> &NodeId {
        &self.node
    }

    /// The replicas of this node.
    pub(crate) fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Reads a page.
    ///
    /// # Errors
    /// What to mend, or that the same page may be asked for again.
    pub async fn page(&self, asked: &TableScan) -> Result<TablePage, ScanError> {
        self.page_of(asked, Some).await
    }

    /// Reads a page of some of the shards: `next` says from a place on where the first of them is, if there is one.
    ///
    /// # Errors
    /// As of [`Scans::page`].
    pub(crate) async fn page_of(
        &self,
        asked: &TableScan,
        next: impl Fn(Place) -> Option<Place>,
    ) -> Result<TablePage, ScanError> {
        let until = Instant::now() + limits::PATIENCE;
        let cache = self.maps.cache();
        let brief = table(&cache, &asked.table, until).await?;
        let mut at = match &asked.token {
            Some(token) => token.clone(),
            None => begin(&brief, &asked.range)?,
        };
        at.check(&brief)?;
        let mut page = TablePage { rows: Vec::new(), next: None };
        let mut bytes = 0;
        for shards in 0..limits::SCAN_SHARDS {
            let most = asked.range.most.clamp(1, limits::SCAN_ROWS) - page.rows.len();
            if most == 0 || bytes >= limits::SCAN_BYTES {
                break;
            }
            match next(at.place.clone()) {
                Some(place) if place == at.place => {}
                Some(place) => (at.place, at.key) = (place, Key::empty()),
                None => return Ok(page),
            }
            let from = at.key.clone().max(asked.range.from.clone());
            let range = ScanRange { from, most, ..asked.range.clone() };
            let found = match self.shard(&cache, asked, &at.place, range, until).await {
                Ok(found) => found,
                // What was read before is given, and the next page waits for this shard.
                Err(_) if shards > 0 => break,
                Err(why) => return Err(why.into()),
            };
            bytes += found.rows.iter().map(size).sum::<usize>();
            page.rows.extend(found.rows);
            match (found.next, found.after) {
                (Some(key), _) => {
                    at.key = key;
                    break;
                }
                (None, Some(place)) if !is_behind(&place, &brief, &asked.range) => {
                    (at.place, at.key) = (place, Key::empty());
                }
                (None, _) => return Ok(page),
            }
        }
        page.next = Some(at);
        Ok(page)
    }

    /// Rows of the shard that is at a place: asks its leader, and again while it changes hands.
    async fn shard(
        &self,
        cache: &Cache,
        asked: &TableScan,
        place: &Place,
        range: ScanRange,
        until: Instant,
    ) -> Result<ShardPage, Refused> {
        let mut changes = cache.changes();
        loop {
            changes.mark_unchanged();
            let why = match leader(cache, &asked.table, place) {
                Some(leader) => match self.ask(&leader, asked, range.clone()).await {
                    Ok(found) if found.after.as_ref().is_none_or(|after| after > place) => return Ok(found),
                    Ok(_) => soon(format!("node {} has another shard {}", leader.node, leader.shard)),
                    Err(why) => why,
                },
                None => soon(format!("no node leads a shard of table {} at this moment", asked.table)),
            };
            let passes = matches!(why.refusal, Refusal::Soon | Refusal::TooFewInSync | Refusal::Busy);
            if !passes || Instant::now() >= until {
                return Err(why);
            }
            // Another map, or a moment, is a reason to look again.
            let _ = timeout_at(until.min(Instant::now() + limits::LOOK_AGAIN), changes.changed()).await;
        }
    }

    async fn ask(&self, leader: &Leader, asked: &TableScan, range: ScanRange) -> Result<ShardPage, Refused> {
        if leader.node != self.node {
            let filter = asked.filter.as_deref();
            return self.peers.ask(leader, &asked.table, &range, filter, asked.consistency).await;
        }
        let range = FilteredRange { range, filter: asked.filter.clone() };
        let (page, after) = self.own(&asked.table, leader.shard, range, asked.consistency).await?;
        Ok(ShardPage { rows: page.rows, next: page.next, after })
    }

    /// Rows of a shard that this node has a replica of, and where the next shard begins.
    pub(crate) async fn own(
        &self,
        table: &KeyspaceName,
        shard: ShardId,
        FilteredRange { range, filter }: FilteredRange,
        consistency: Consistency,
    ) -> Result<(ScanPage, Option<Place>), Refused> {
        let missing = || soon(format!("node {} has no replica of shard {shard} of table {table}", self.node));
        let (replica, bounds) = self.tables.replica_of(table, shard).ok_or_else(missing)?;
        let page = match filter {
            None => self.tables.scan(&replica, &range, consistency, 0).await?,
            Some(filter) => {
                let read = filtered::read_for(&range);
                let page = self.tables.scan(&replica, &read, consistency, 0).await?;
                filtered::filter(page, &range, filter).await?
            }
        };
        Ok((page, Place::behind(&bounds)))
    }
}

pub(crate) fn soon(message: String) -> Refused {
    Refused { refusal: Refusal::Soon, message }
}

fn size(row: &ScannedRow) -> usize {
    row.key.as_bytes().len() + row.value.as_ref().map_or(0, |value| value.len())
}

/// The settings of a table, when its map has come.
pub(crate) async fn table(
    cache: &Cache,
    name: &KeyspaceName,
    until: Instant,
) -> Result<KeyspaceBrief, ScanError> {
    let mut changes = cache.changes();
    let lag = Instant::now() + partage_maps::limits::LAG;
    loop {
        changes.mark_unchanged();
        let brief = cache.routes().keyspace(name.as_str()).map(|keyspace| keyspace.brief().clone());
        match brief {
            Some(brief) if brief.kind == KeyspaceKind::Table => return Ok(brief),
            Some(_) => return Err(ScanError::NoTable(name.clone())),
            None => {}
        }
        // A table that was created a moment ago may have no map here yet.
        let patience = if cache.has_heard() { lag } else { until };
        if !matches!(timeout_at(patience, changes.changed()).await, Ok(Ok(()))) {
            let no_maps = || soon("no coordinator sends this node its maps".to_owned());
            // A node that is cut off from the coordinators does not know of what was created since.
            let has_heard = cache.has_heard() && cache.is_connected();
            return Err(if has_heard { ScanError::NoTable(name.clone()) } else { no_maps().into() });
        }
    }
}

/// The replica to ask for the shard at a place: the leader knows what is latest.
fn leader(cache: &Cache, table: &KeyspaceName, place: &Place) -> Option<Leader> {
    let routes = cache.routes();
    let route = routes.route_at(table.as_str(), place.position()).ok()?;
    let node = route.leader()?.node;
    Some(Leader { shard: route.shard(), node: node.id.clone(), address: node.address.clone() })
}

/// Where a scan begins: at the first shard, or at one further on if none before it can have a key of the range.
fn begin(brief: &KeyspaceBrief, range: &ScanRange) -> Result<Token, ScanError> {
    let mut place = Place::first(brief.sharding).ok_or_else(|| ScanError::Named(brief.name.clone()))?;
    if is_in_order(brief) {
        let (from, _) = range.bounds();
        place = Place::Key(Key::new(brief.partition_key.of(from)).unwrap_or(Key::empty()));
    }
    Ok(Token { table: brief.name.clone(), first_shard: brief.first_shard, place, key: Key::empty() })
}

/// Whether no shard from that place on can have a key of the range.
fn is_behind(place: &Place, brief: &KeyspaceBrief, range: &ScanRange) -> bool {
    let (Place::Key(begin), (_, Some(to)), true) = (place, range.bounds(), is_in_order(brief)) else {
        return false;
    };
    match brief.partition_key {
        PartitionKey::Whole => begin.as_bytes() >= to.as_slice(),
        other => begin.as_bytes() > other.of(&to),
    }
}

/// Whether the order of shards is that of whole keys.
fn is_in_order(brief: &KeyspaceBrief) -> bool {
    brief.sharding == Sharding::KeyRange
        && matches!(brief.partition_key, PartitionKey::Whole | PartitionKey::Prefix { .. })
}

#[cfg(test)]
mod tests;

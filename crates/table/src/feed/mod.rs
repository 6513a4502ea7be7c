//! The change feed of a whole table, from any node: the changes of all shards, from a token on.
//!
//! ```text
//!  client ──► any node: Feeds ──► maps: who leads the shards that the token is of?
//!                  │  ▲
//!                  ▼  │ changes · how far the reader is of each shard
//!              each leader, all of its shards at once (this node, or POST …/feed/shards of another one)
//! ```
//!
//! | question | answer |
//! |---|---|
//! | order | of one key the order of its writes; of different keys of one shard that too, unless the shard was merged; of shards none |
//! | how often | once, from token to token; a reader that goes on from an older token gets the changes behind that again |
//! | what a page has | as many changes as it may, of all shards that have some; which shard comes first changes from page to page, so that none waits for ever for another |
//! | where one ends that does not follow | where each part of the table had its end when the reader began, or behind that ([`EndsLeft`]) |
//! | waiting | a leader whose shards have nothing is left to wait ([`limits::FEED_NODE_WAIT`]) before it says so; the first that has something ends the page |
//! | a shard that does not answer | the others' changes are given, and the token stays where it is for that shard. If no shard has changes, the request ends with an error after [`limits::PATIENCE`], or when it has waited |
//!
//! `core` says what a token has and when it is too old ([`partage_service::table::feed`]).

mod ends;
mod json;
mod newest;
mod own;
mod peers;
mod token;

pub use ends::EndsLeft;
pub(crate) use json::for_client;
pub(crate) use newest::NewestChanges;
pub(crate) use peers::GONE;
pub use token::FeedToken;

use crate::limits;
use crate::rows::{ChangesPage, FoundChange};
use crate::scans::{self, Peers, ScanError, Scans, TokenError};
use crate::service::{FeedStream, Refusal, Refused, Tables};
use futures::stream::{FuturesUnordered, StreamExt};
use partage_core::base::id::ShardId;
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::keyspace::key::{HashRange, KeyRange};
use partage_core::keyspace::sharding::{Bounds, Position, Sharding, Slot};
use partage_core::node::exchange::KeyspaceBrief;
use partage_maps::{Cache, MapsOnDemand};
use partage_service::table::feed::{Part, Progress, Since};
use partage_wire::table::{NodeFeedAnswer, NodeFeedRequest};
use peers::Leader;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// The place in the feed from which on a client wants changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FeedStart {
    /// The oldest that are kept.
    Oldest,
    /// Those that come from now on: the first page is empty, and has the token.
    Now,
    /// Those behind an earlier page.
    After(FeedToken),
}

/// What a page of a feed is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedRequest {
    /// The table, which must keep changes ([`FeedError::NoFeed`]).
    pub table: KeyspaceName,
    /// Only changes of this shard; none: of the whole table.
    pub shard: Option<ShardId>,
    /// Where a client's first page begins, or the token of the page before.
    pub start: FeedStart,
    /// How many changes the page may have; both interfaces allow 1 to [`limits::SCAN_ROWS`].
    pub most: usize,
    /// How long to wait where there are none; [`limits::FEED_WAIT`] at most counts.
    pub wait: Duration,
    /// Whether ends that were reached count ([`TableChanges::ended`]): leaders make sure of them.
    pub ends: bool,
}

/// A page of the feed of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableChanges {
    /// The changes, each with the shard that it was read from.
    pub changes: Vec<(ShardId, FoundChange)>,
    /// Where to go on.
    pub next: FeedToken,
    /// The bounds that were read to an end which they had after the page was asked for.
    pub ended: Vec<Bounds>,
}

/// Why a page was not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FeedError {
    /// There is no such table, or no map of it.
    #[error("{0}")]
    Table(ScanError),
    /// The table keeps no changes.
    #[error("table {0} has no feed: a table keeps changes when it is created with `--feed 10m`")]
    NoFeed(KeyspaceName),
    /// The map has no such shard.
    #[error(
        "table {0} has no shard {1} now: `partage shard list` lists its shards. After a split or a merge a token goes on without `shard`"
    )]
    NoShard(KeyspaceName, ShardId),
    /// The token is of other shards.
    #[error(
        "the token has nothing of shard {1} of table {0}: leave `shard` out, and it goes on with what it has"
    )]
    OtherShards(KeyspaceName, ShardId),
    /// The token is of no use.
    #[error("{0}")]
    Token(#[from] TokenError),
    /// The token would not fit into a request.
    #[error(
        "table {0} has more shards than one token has room for: read its shards one by one, with `shard`"
    )]
    TooManyShards(KeyspaceName),
    /// Changes behind the token are removed.
    #[error(
        "the token is too old: {0}. Take a new one with `after=now`, scan the table, and go on from that token"
    )]
    Late(String),
    /// No shard has changes, and one does not answer.
    #[error("{0}")]
    Refused(#[from] Refused),
}

impl From<ScanError> for FeedError {
    fn from(error: ScanError) -> FeedError {
        match error {
            ScanError::Refused(why) => FeedError::Refused(why),
            other => FeedError::Table(other),
        }
    }
}

/// Why a shard is not read.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Fault {
    /// Changes that the reader lacks are removed.
    Late(String),
    /// The shard does not answer.
    Refused(Refused),
}

/// What was read of a shard.
#[derive(Debug, Clone)]
struct ShardChanges {
    shard: ShardId,
    read: Result<ChangesPage, Fault>,
}

impl ShardChanges {
    /// Whether a page need not wait any longer: the shard has changes, or cannot be read.
    fn is_news(&self) -> bool {
        self.read.as_ref().map_or(true, |page| !page.changes.is_empty())
    }
}

/// What one node is asked for.
#[derive(Debug, Clone, Copy)]
struct Limits {
    most: usize,
    wait: Duration,
    ends: bool,
}

/// What the leaders have answered.
#[derive(Default)]
struct Round {
    /// How far the reader is, of those parts that were read.
    read: Vec<Part>,
    changes: Vec<(ShardId, FoundChange)>,
    bytes: usize,
    ended: Vec<Bounds>,
    refused: Option<Refused>,
    late: Option<String>,
}

/// Feeds of tables from one node. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Feeds {
    node: NodeId,
    tables: Tables,
    maps: Arc<MapsOnDemand>,
    peers: Peers,
    /// Counts requests: each begins with another shard.
    turn: Arc<AtomicUsize>,
}

impl Feeds {
    /// From the node of that name, by the maps and over the connections of its scans.
    pub fn new(node: NodeId, scans: &Scans) -> Feeds {
        let (maps, peers) = scans.ways();
        Feeds { node, tables: scans.tables().clone(), maps, peers, turn: Arc::default() }
    }

    /// Counts a stream of pages as long as that is kept.
    pub(crate) fn stream(&self) -> FeedStream {
        self.tables.feed_stream()
    }

    /// Reads a page.
    ///
    /// # Errors
    /// What to mend, or that the same page may be asked for again.
    pub async fn page(&self, asked: &FeedRequest) -> Result<TableChanges, FeedError> {
        let begun = Instant::now();
        let (patience, until) = (begun + limits::PATIENCE, begun + asked.wait.min(limits::FEED_WAIT));
        let cache = self.maps.cache();
        let brief = scans::table(&cache, &asked.table, patience).await?;
        let mut at = begin(&brief, &asked.start)?;
        let mut changes = cache.changes();
        let mut ended = Vec::new();
        loop {
            changes.mark_unchanged();
            let is_now = at.progress.parts().iter().any(|part| part.since == Since::Now);
            let most = if is_now { 0 } else { asked.most };
            let wait = match is_now {
                true => Duration::ZERO,
                false => limits::FEED_NODE_WAIT.min(until.saturating_duration_since(Instant::now())),
            };
            let leaders = self.leaders(&cache, &brief.name, &at.progress, asked.shard)?;
            let round = tokio::select! {
                round = self.round(leaders, &at, Limits { most, wait, ends: asked.ends }) => round,
                // Leaders that wait may no longer be those.
                Ok(()) = changes.changed(), if !wait.is_zero() => continue,
            };
            if let Some(why) = round.late {
                return Err(FeedError::Late(why));
            }
            ended.extend(round.ended);
            let read = Progress::new(round.read);
            at.progress = match asked.shard.filter(|_| round.refused.is_none()) {
                Some(_) => read,
                None => at.progress.read_on(read),
            };
            if let Some(shard) = asked.shard.filter(|_| at.progress.is_empty()) {
                return Err(FeedError::OtherShards(at.table, shard));
            }
            let now = Instant::now();
            match round.refused {
                _ if !round.changes.is_empty() => return page(round.changes, at, ended),
                Some(why) if now >= patience.max(until) || !passes(&why) => return Err(why.into()),
                Some(_) => {
                    // Another map, or a moment, is a reason to look again.
                    let _ = timeout_at(now + limits::LOOK_AGAIN, changes.changed()).await;
                }
                None if is_now && now < patience => sleep(limits::FEED_BURST_DELAY).await,
                None if now >= until => return page(Vec::new(), at, ended),
                None => {}
            }
        }
    }

    /// The leaders of the shards that hold what the reader wants, each with its shards; none: of those no leader is known.
    fn leaders(
        &self,
        cache: &Cache,
        table: &KeyspaceName,
        progress: &Progress,
        only: Option<ShardId>,
    ) -> Result<BTreeMap<Option<Leader>, Vec<ShardId>>, FeedError> {
        let routes = cache.routes();
        let mut leaders: BTreeMap<Option<Leader>, Vec<ShardId>> = BTreeMap::new();
        let no_table = || FeedError::Table(ScanError::NoTable(table.clone()));
        let keyspace = routes.keyspace(table.as_str()).ok_or_else(no_table)?;
        let shard_at = |position| routes.route_at(table.as_str(), position).ok().map(|route| route.shard());
        let span = span(progress).map(|(first, last)| (shard_at(first), last.and_then(shard_at)));
        let (first, last) = span.unwrap_or_default();
        let (mut is_within, mut is_behind) = (first.is_none() || only.is_some(), false);
        for route in routes.routes_of(keyspace) {
            let shard = route.shard();
            is_within |= first == Some(shard);
            if is_behind || !is_within || only.is_some_and(|only| only != shard) {
                continue;
            }
            is_behind = only.is_none() && last == Some(shard);
            let leader = route.leader().map(|replica| Leader {
                node: replica.node.id.clone(),
                address: replica.node.address.clone(),
            });
            leaders.entry(leader).or_default().push(shard);
        }
        match only {
            Some(only) if leaders.is_empty() => Err(FeedError::NoShard(table.clone(), only)),
            _ => Ok(leaders),
        }
    }

    /// Asks all leaders, side by side, until one of them has changes.
    async fn round(
        &self,
        leaders: BTreeMap<Option<Leader>, Vec<ShardId>>,
        at: &FeedToken,
        limits: Limits,
    ) -> Round {
        let mut round = Round::default();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let mut leaders: Vec<_> = leaders.into_iter().collect();
        let count = leaders.len().max(1);
        leaders.rotate_left(turn % count);
        let mut left = leaders.into_iter().map(|(leader, mut shards)| {
            let count = shards.len().max(1);
            shards.rotate_left(turn % count);
            self.ask(leader, at, shards, limits)
        });
        let mut asking: FuturesUnordered<_> = left.by_ref().take(limits::FEED_NODES).collect();
        let mut until = Instant::now() + limits.wait + limits::SHARD_ANSWER;
        while let Ok(Some(found)) = timeout_at(until, asking.next()).await {
            asking.extend(left.next());
            found.into_iter().for_each(|found| round.take(found, limits.most));
            let rest = match (round.changes.is_empty(), &round.refused) {
                (false, _) => limits::FEED_GRACE,
                (true, Some(_)) => limits::FEED_RETRY,
                (true, None) => continue,
            };
            until = until.min(Instant::now() + rest);
        }
        if !asking.is_empty() && round.changes.is_empty() && round.refused.is_none() {
            let what = "a node that leads shards of the table has not answered in time";
            round.refused = Some(Refused::new(Refusal::Soon, what));
        }
        round
    }

    /// What one leader has; none: a leader is not known.
    async fn ask(
        &self,
        leader: Option<Leader>,
        at: &FeedToken,
        shards: Vec<ShardId>,
        limits: Limits,
    ) -> Vec<ShardChanges> {
        match leader {
            Some(leader) if leader.node == self.node => {
                own::read(&self.tables, &at.table, &at.progress, shards, limits).await
            }
            Some(leader) => peers::ask(&self.peers, &leader, at, &shards, limits).await,
            None => {
                let refused = |shard: ShardId| {
                    let what = format!("no node leads shard {shard} of table {} at this moment", at.table);
                    ShardChanges { shard, read: Err(Fault::Refused(Refused::new(Refusal::Soon, what))) }
                };
                shards.into_iter().map(refused).collect()
            }
        }
    }

    /// Changes of shards that this node has replicas of, for another node.
    ///
    /// # Errors
    /// The token is none.
    pub(crate) async fn own(
        &self,
        table: &KeyspaceName,
        asked: &NodeFeedRequest,
    ) -> Result<NodeFeedAnswer, TokenError> {
        let after = FeedToken::parse(&asked.after)?;
        let wait = Duration::from_millis(asked.wait_ms).min(limits::FEED_NODE_WAIT);
        let limits = Limits { most: asked.limit.min(limits::SCAN_ROWS), wait, ends: asked.ends };
        let shards = asked.shards.iter().map(|shard| ShardId(*shard));
        let found = own::read(&self.tables, table, &after.progress, shards, limits).await;
        Ok(peers::answer(&after, found))
    }
}

impl Round {
    /// Takes what a shard has, if there is room: else the reader gets it with a later page.
    fn take(&mut self, ShardChanges { shard, read }: ShardChanges, most: usize) {
        match read {
            Ok(page) => {
                let (count, bytes) = (self.changes.len() + page.changes.len(), self.bytes + page.bytes());
                let has_room = count <= most && bytes <= limits::FEED_BYTES;
                if page.changes.is_empty() || self.changes.is_empty() || has_room {
                    self.bytes = bytes;
                    if page.is_end {
                        self.ended.extend(page.progress.parts().iter().map(|part| part.bounds.clone()));
                    }
                    self.changes.extend(page.changes.into_iter().map(|change| (shard, change)));
                    self.read.extend(page.progress.into_parts());
                }
            }
            Err(Fault::Late(why)) => self.late = Some(why),
            Err(Fault::Refused(why)) => self.refused = Some(why),
        }
    }
}

fn page(
    changes: Vec<(ShardId, FoundChange)>,
    next: FeedToken,
    ended: Vec<Bounds>,
) -> Result<TableChanges, FeedError> {
    match next.text().len() {
        0..=limits::FEED_TOKEN_CHARACTERS => Ok(TableChanges { changes, next, ended }),
        _ => Err(FeedError::TooManyShards(next.table)),
    }
}

/// Whether it may soon be otherwise.
fn passes(why: &Refused) -> bool {
    matches!(why.refusal, Refusal::Soon | Refusal::TooFewInSync | Refusal::Busy | Refusal::Stopped)
}

/// The first and the last position of what a reader wants; none: any shard may hold some.
fn span(progress: &Progress) -> Option<(Position<'_>, Option<Position<'_>>)> {
    match (&progress.parts().first()?.bounds, &progress.parts().last()?.bounds) {
        (Bounds::Keys(first), Bounds::Keys(last)) => {
            let end = (!last.end.is_empty()).then(|| Position::Key(last.end.as_bytes()));
            Some((Position::Key(first.begin.as_bytes()), end))
        }
        (Bounds::Hashes(first), Bounds::Hashes(last)) => {
            Some((Position::Point(first.first), Some(Position::Point(last.last))))
        }
        _ => None,
    }
}

/// Where a reader begins.
fn begin(brief: &KeyspaceBrief, start: &FeedStart) -> Result<FeedToken, FeedError> {
    if brief.feed_ms == 0 {
        return Err(FeedError::NoFeed(brief.name.clone()));
    }
    let since = match start {
        FeedStart::After(token) => {
            token.check(brief)?;
            return Ok(token.clone());
        }
        FeedStart::Oldest => Since::Oldest,
        FeedStart::Now => Since::Now,
    };
    let whole = match brief.sharding {
        Sharding::KeyRange => vec![Bounds::Keys(KeyRange::all())],
        Sharding::HashRange { .. } => vec![Bounds::Hashes(HashRange::ALL)],
        Sharding::Fixed { shards, .. } => Slot::all(shards),
        Sharding::Named => return Err(FeedError::Table(ScanError::Named(brief.name.clone()))),
    };
    let (table, first_shard) = (brief.name.clone(), brief.first_shard);
    Ok(FeedToken { table, first_shard, progress: Progress::begin(whole, &since) })
}

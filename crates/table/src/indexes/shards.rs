//! Asking the shards of a table: each at its leader, some at a time, and again while they change hands.

use super::{Indexes, not_understood};
use crate::limits;
use crate::scans::{Place, TABLES, refusal, soon};
use crate::service::{Refusal, Refused};
use bytes::Bytes;
use futures::stream::{self, StreamExt};
use http::{Request, StatusCode, header};
use http_body_util::Full;
use partage_core::base::id::ShardId;
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::keyspace::key::Key;
use partage_core::routing::routes::Route;
use partage_maps::MapsOnDemand;
use partage_wire::table::{ShardIndexAnswer, ShardIndexRequest};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::time::{Instant, timeout_at};

/// A node that has a replica of a shard, and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) node: NodeId,
    address: String,
}

/// A shard of the latest map.
#[derive(Debug, Clone)]
pub(super) struct Shard {
    pub(super) id: ShardId,
    pub(super) leader: Option<Holder>,
    /// All nodes that have a replica by the map, the leader among them.
    pub(super) holders: Vec<Holder>,
}

/// Which shards of a table are asked.
#[derive(Debug, Clone, Copy)]
pub(super) enum Which<'a> {
    /// Every shard of the table.
    All,
    /// The one that has the rows with the partition key of this key.
    OfKey(&'a Key),
    /// The one at this place in their order.
    At(&'a Place),
    /// The one with this number.
    One(ShardId),
}

fn shard_of(route: &Route<'_>) -> Shard {
    let holder = |node: &partage_core::node::NodeAddress| Holder {
        node: node.id.clone(),
        address: node.address.clone(),
    };
    Shard {
        id: route.shard(),
        leader: route.leader().map(|leader| holder(leader.node)),
        holders: route.replicas().map(|replica| holder(replica.node)).collect(),
    }
}

/// The shards of a table, by the latest map.
pub(super) fn shards(maps: &Arc<MapsOnDemand>, table: &KeyspaceName) -> Vec<Shard> {
    chosen(maps, table, Which::All)
}

/// Some of them.
pub(super) fn chosen(maps: &Arc<MapsOnDemand>, table: &KeyspaceName, which: Which<'_>) -> Vec<Shard> {
    let cache = maps.cache();
    let routes = cache.routes();
    let Some(keyspace) = routes.keyspace(table.as_str()) else { return Vec::new() };
    let one = match which {
        Which::All => return routes.routes_of(keyspace).map(|route| shard_of(&route)).collect(),
        Which::OfKey(key) => routes.route(table.as_str(), key.as_bytes()).ok(),
        Which::At(place) => routes.route_at(table.as_str(), place.position()).ok(),
        Which::One(id) => routes.routes_of(keyspace).find(|route| route.shard() == id),
    };
    one.map(|route| shard_of(&route)).into_iter().collect()
}

/// Whether a shard may answer when it is asked again.
fn passes(refused: &Refused) -> bool {
    // A change that was logged twice does nothing more.
    matches!(refused.refusal, Refusal::Soon | Refusal::TooFewInSync | Refusal::Busy | Refusal::Unknown)
}

impl Indexes {
    /// Asks shards, and gives each answer to `take`. Says which shards these are by now: answers of others, which were split or
    /// merged meanwhile, count for nothing.
    pub(super) async fn ask_shards(
        &self,
        (table, which): (&KeyspaceName, Which<'_>),
        until: Instant,
        request: &ShardIndexRequest,
        mut take: impl FnMut(ShardId, ShardIndexAnswer),
    ) -> Result<BTreeSet<ShardId>, Refused> {
        let (maps, _) = self.scans.ways();
        let cache = maps.cache();
        let mut changes = cache.changes();
        let mut answered = BTreeSet::new();
        loop {
            changes.mark_unchanged();
            let missing =
                chosen(&maps, table, which).into_iter().filter(|shard| !answered.contains(&shard.id));
            let asked: Vec<_> = missing.map(|shard| self.ask_leader(table, shard, request)).collect();
            let mut asked = stream::iter(asked).buffer_unordered(limits::INDEX_SHARDS);
            let mut why = soon(format!("no map of table {table} has come to this node yet"));
            while let Some((shard, answer)) = asked.next().await {
                match answer {
                    Ok(answer) => {
                        answered.insert(shard);
                        take(shard, answer);
                    }
                    Err(refused) if passes(&refused) => why = refused,
                    Err(refused) => return Err(refused),
                }
            }
            let now: BTreeSet<ShardId> =
                chosen(&maps, table, which).into_iter().map(|shard| shard.id).collect();
            if !now.is_empty() && now.is_subset(&answered) {
                return Ok(now);
            }
            if Instant::now() >= until {
                return Err(why);
            }
            // Another map, or a moment, is a reason to look again.
            let _ = timeout_at(until.min(Instant::now() + limits::LOOK_AGAIN), changes.changed()).await;
        }
    }

    pub(super) async fn ask_leader(
        &self,
        table: &KeyspaceName,
        shard: Shard,
        request: &ShardIndexRequest,
    ) -> (ShardId, Result<ShardIndexAnswer, Refused>) {
        let answer = match &shard.leader {
            Some(leader) => self.ask(table, shard.id, leader, request).await,
            None => Err(soon(format!("no node leads shard {} of table {table} at this moment", shard.id))),
        };
        (shard.id, answer)
    }

    /// Asks a node that has a replica of a shard.
    pub(super) async fn ask(
        &self,
        table: &KeyspaceName,
        shard: ShardId,
        holder: &Holder,
        request: &ShardIndexRequest,
    ) -> Result<ShardIndexAnswer, Refused> {
        if holder.node == *self.scans.node() {
            return self.own(table, shard, request).await;
        }
        let silent = |why: String| soon(format!("node {} does not answer: {why}", holder.node));
        let uri = format!("http://{}{TABLES}{table}/shards/{}/indexes", holder.address, shard.0);
        let body = serde_json::to_vec(request).map_err(|error| silent(error.to_string()))?;
        let request = Request::post(uri)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::from(Bytes::from(body)))
            .map_err(|error| silent(error.to_string()))?;
        let (_, peers) = self.scans.ways();
        let exchanged = peers.exchange(request, limits::SHARD_ANSWER_BYTES).await;
        let (status, body) = exchanged.map_err(|error| silent(error.why))?;
        match status {
            StatusCode::OK => serde_json::from_slice(&body).map_err(|_| not_understood()),
            refused => Err(refusal(&holder.node, refused, &body)),
        }
    }
}

//! Maps by push; see `maps.proto` for the rules, [`crate::publish`] for why nothing is queued.
//!
//! A router's stream is drawn by its connection: when there is room for a message, the next one is looked
//! for. No task and no channel stand behind it, and a router that takes nothing costs nothing.

use crate::lead::decision_loop::LoopStopped;
use crate::publish::Publisher;
use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use partage_core::base::id::{Generation, ShardId};
use partage_core::base::name::KeyspaceName;
use partage_core::cluster::publication::Since;
use partage_core::keyspace::map::MapDiff;
use partage_core::node::exchange::ClusterIdentity;
use partage_core::node::reconnect;
use partage_wire::map::{EncodedMaps, MapEvent, MapNews, Watch, encoded, with_brief};
use partage_wire::proto::WatchRequest;
use partage_wire::proto::maps_server::SERVICE_NAME;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::watch;
use tonic::codegen::{Body, Service, StdError, http};
use tonic::server::{Grpc, NamedService, ServerStreamingService};
use tonic::{Request, Response, Status};

/// Serves `Maps` with messages that are encoded once for all routers.
#[derive(Clone)]
pub struct MapsService {
    publisher: Arc<Publisher>,
}

impl MapsService {
    /// Serves the maps of `publisher`.
    pub fn new(publisher: Arc<Publisher>) -> MapsService {
        MapsService { publisher }
    }

    fn watch(&self, request: WatchRequest) -> Result<BoxStream<'static, Result<Bytes, Status>>, Status> {
        let watch = Watch::try_from(request).map_err(|bad| Status::invalid_argument(bad.to_string()))?;
        let subscription = MapSubscription {
            updates: self.publisher.subscribe(),
            publisher: self.publisher.clone(),
            only: watch.keyspaces,
            has: watch.known,
            briefed: BTreeSet::new(),
            nodes: 0,
            spread_ms: reconnect::router_spread_ms(0),
            identity: None,
            begun: false,
            withholds: false,
            horizon_sent: false,
            due: VecDeque::new(),
        };
        let messages = stream::unfold(subscription, |mut subscription| async {
            subscription.next().await.map(|message| (Ok(message), subscription))
        });
        Ok(messages.boxed())
    }
}

impl NamedService for MapsService {
    const NAME: &'static str = SERVICE_NAME;
}

impl<B> Service<http::Request<B>> for MapsService
where
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            if request.uri().path().strip_prefix('/') != Some(&format!("{SERVICE_NAME}/Watch")) {
                let unknown = format!("{SERVICE_NAME} has one method: Watch");
                return Ok(Status::unimplemented(unknown).into_http());
            }
            Ok(Grpc::new(EncodedMaps).server_streaming(service, request).await)
        })
    }
}

impl ServerStreamingService<WatchRequest> for MapsService {
    type Response = Bytes;
    type ResponseStream = BoxStream<'static, Result<Bytes, Status>>;
    type Future = std::future::Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<WatchRequest>) -> Self::Future {
        std::future::ready(self.watch(request.into_inner()).map(Response::new))
    }
}

/// What one router has been sent.
struct MapSubscription {
    publisher: Arc<Publisher>,
    updates: watch::Receiver<u64>,
    /// Empty = all.
    only: BTreeSet<KeyspaceName>,
    /// What the router has.
    has: BTreeMap<KeyspaceName, Generation>,
    /// Keyspaces whose settings it was sent on this stream.
    briefed: BTreeSet<KeyspaceName>,
    /// The version of the addresses that it has.
    nodes: u64,
    /// Over how long it knows that it is to spread.
    spread_ms: u64,
    /// The cluster that it was told of.
    identity: Option<ClusterIdentity>,
    begun: bool,
    /// A keyspace is in the cache, and this coordinator has no map of it to send: it led before, and the next leader,
    /// which may have the keyspace in quarantine, has not sent it. Until then the subscription names no keyspace that is
    /// gone: with that word the router would take this one for gone, too.
    withholds: bool,
    /// Whether this coordinator has told the router a horizon.
    horizon_sent: bool,
    /// Found and not taken yet; the bytes are everybody's.
    due: VecDeque<Bytes>,
}

impl MapSubscription {
    /// The next message; none while no leader gives the maps.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(message) = self.due.pop_front() {
                return Some(message);
            }
            if self.begun {
                self.updates.changed().await.ok()?;
                self.tell_cluster();
                let horizon = self.publisher.horizon();
                self.look().await.ok()?;
                if !(self.horizon_sent || self.withholds) && horizon > ShardId(0) {
                    self.send_horizon(horizon);
                }
                self.tell_spread();
            } else {
                self.publisher.current().await;
                self.tell_cluster();
                // What is created meanwhile may not be sent yet.
                let horizon = self.publisher.horizon();
                self.look().await.ok()?;
                self.begun = true;
                self.send_horizon(horizon);
                self.tell_spread();
            }
        }
    }

    /// Says that everything was sent, and with it that all keyspaces below the horizon were, or are gone.
    fn send_horizon(&mut self, horizon: ShardId) {
        let horizon = if self.withholds { ShardId(0) } else { horizon };
        self.horizon_sent = horizon > ShardId(0);
        let news = MapNews::Current(horizon);
        self.due.extend(encoded(&MapEvent { news, nodes: vec![], forgotten: vec![] }));
    }

    /// Says which cluster this is, before anything else.
    fn tell_cluster(&mut self) {
        let identity = self.publisher.identity();
        if self.identity != identity {
            self.identity.clone_from(&identity);
            let news = identity.map(|identity| MapEvent {
                news: MapNews::Cluster(identity),
                nodes: vec![],
                forgotten: vec![],
            });
            self.due.extend(news.iter().flat_map(encoded));
        }
    }

    /// Says over how long to spread, when that is new.
    fn tell_spread(&mut self) {
        let spread_ms = self.publisher.spread_ms();
        if std::mem::replace(&mut self.spread_ms, spread_ms) != spread_ms {
            let news = MapNews::Spread(spread_ms);
            self.due.extend(encoded(&MapEvent { news, nodes: vec![], forgotten: vec![] }));
        }
    }

    /// Finds whatever the router does not have.
    async fn look(&mut self) -> Result<(), LoopStopped> {
        let (addresses, version) = self.publisher.nodes_since(self.nodes);
        self.nodes = version;
        self.due.extend(addresses.iter().flat_map(|messages| messages.iter().cloned()));
        loop {
            // A whole map may be a little older than the latest: then its changes follow at once.
            let mut more = false;
            let horizon = self.publisher.horizon();
            self.withholds = false;
            // What is gone comes last: with it goes the word that all keyspaces below the horizon are sent, or are gone.
            for (name, since) in self.publisher.lacks(&self.only, &self.has) {
                if since == Since::Deleted && self.withholds {
                    continue;
                }
                more |= self.catch_up(name, since, horizon).await?;
            }
            if !more {
                return Ok(());
            }
        }
    }

    /// Takes up what leads on. Returns whether there may be more.
    async fn catch_up(
        &mut self,
        name: KeyspaceName,
        since: Since,
        horizon: ShardId,
    ) -> Result<bool, LoopStopped> {
        match since {
            Since::Nothing => {}
            Since::Changes(changes) => changes.iter().for_each(|change| self.send_change(&name, change)),
            Since::Whole => return self.send_whole(name).await,
            Since::Deleted => self.send_deletion(name, horizon),
        }
        Ok(false)
    }

    /// The first message about a keyspace has its settings.
    fn send_change(&mut self, name: &KeyspaceName, change: &Arc<MapDiff>) {
        let messages = self.publisher.messages(change);
        let mut messages = messages.iter().cloned();
        if !self.briefed.contains(name)
            && let Some(brief) = self.publisher.brief(name)
        {
            let brief = partage_core::node::exchange::KeyspaceBrief { generation: change.to, ..brief };
            self.due.extend(messages.next().map(|first| with_brief(&brief, &first)));
            self.briefed.insert(name.clone());
        }
        self.due.extend(messages);
        self.has.insert(name.clone(), change.to);
    }

    /// Returns whether the map is another one than the router has: changes may follow on it.
    async fn send_whole(&mut self, name: KeyspaceName) -> Result<bool, LoopStopped> {
        let Some(map) = self.publisher.whole(&name).await? else {
            // Deleted since, and the next update says so; or not heard of from the next leader yet.
            self.withholds = true;
            return Ok(false);
        };
        self.due.extend(map.messages.iter().cloned());
        self.briefed.insert(name.clone());
        Ok(self.has.insert(name, map.to) != Some(map.to))
    }

    fn send_deletion(&mut self, name: KeyspaceName, horizon: ShardId) {
        self.has.remove(&name);
        self.briefed.remove(&name);
        let news = MapNews::Deleted(name, horizon);
        self.due.extend(encoded(&MapEvent { news, nodes: vec![], forgotten: vec![] }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::base::id::{ShardId, TransactionId};
    use partage_core::keyspace::hash::HashFunction;
    use partage_core::keyspace::map::ShardMap;
    use partage_core::keyspace::sharding::{PartitionKey, Sharding, Slot};
    use partage_core::keyspace::{KeyspaceKind, Ownership};
    use partage_core::node::exchange::KeyspaceBrief;
    use partage_core::routing::table::RouteTable;
    use std::sync::Mutex;

    fn about_nothing(news: MapNews) -> MapEvent {
        MapEvent { news, nodes: vec![], forgotten: vec![] }
    }

    /// A map of one shard, and what publishes it.
    fn map() -> (ShardMap, KeyspaceBrief) {
        let name = KeyspaceName::new("pages").unwrap();
        let sharding = Sharding::Fixed { hash: HashFunction::Xxh3_64, shards: 1 };
        let mut map = ShardMap::empty(name.clone(), sharding, PartitionKey::default());
        let mut edit = map.edit();
        edit.create_shard(Slot::all(1)[0].clone()).unwrap();
        let diff = edit.commit(TransactionId([1; 20]));
        map.apply(&diff).unwrap();
        let brief = KeyspaceBrief {
            name,
            sharding,
            partition_key: PartitionKey::default(),
            ownership: Ownership::Exclusive,
            generation: map.generation(),
            first_shard: ShardId(1),
            durable: false,
            min_in_sync: 0,
            kind: KeyspaceKind::App,
            values: partage_core::keyspace::RowValues::Bytes,
            feed_ms: 0,
        };
        (map, brief)
    }

    /// Seen in the simulator (seed 40135, touched and durable): a coordinator had led, and stood by while the next leader had a
    /// keyspace in quarantine. It had no map of that to send, and told another that all keyspaces were sent; that one told
    /// routers that the keyspace is gone.
    #[tokio::test]
    async fn m2_d11_what_is_on_the_board_and_cannot_be_sent_is_vouched_for_when_it_can() {
        let (map, brief) = map();
        let mut table = RouteTable::default();
        table.change(Some(brief.clone()), true, &map.whole()).unwrap();
        let changed = |brief| MapNews::Changed { brief, resync: true, diff: Box::new(map.whole()) };
        let publisher = Arc::new(Publisher::default());
        let number = publisher.stand_by(Arc::new(Mutex::new(RouteTable::default())));
        publisher.pass_on(number, &table, about_nothing(changed(Some(brief.clone()))));
        publisher.pass_on(number, &table, about_nothing(MapNews::Current(ShardId(7))));
        let empty = Arc::new(Mutex::new(RouteTable::default()));
        let number = publisher.stand_by(empty.clone());
        publisher.pass_on(number, &RouteTable::default(), about_nothing(MapNews::Current(ShardId(0))));
        let mut stream = MapsService::new(publisher.clone()).watch(WatchRequest::default()).unwrap();
        assert_next(&mut stream, MapNews::Current(ShardId(0))).await;
        empty.lock().unwrap().change(Some(brief.clone()), true, &map.whole()).unwrap();
        publisher.pass_on(number, &table, about_nothing(MapNews::Nothing));
        assert_next(&mut stream, changed(Some(brief))).await;
        assert_next(&mut stream, MapNews::Current(ShardId(7))).await;
    }

    async fn assert_next(stream: &mut BoxStream<'static, Result<Bytes, Status>>, news: MapNews) {
        let message = stream.next().await.unwrap().unwrap();
        assert_eq!(vec![message], encoded(&about_nothing(news)));
    }

    #[tokio::test]
    async fn r7_routers_are_told_over_how_long_to_spread() {
        let publisher = Arc::new(Publisher::default());
        let number = publisher.stand_by(Arc::new(Mutex::new(RouteTable::default())));
        publisher.pass_on(number, &RouteTable::default(), about_nothing(MapNews::Current(ShardId(7))));
        let service = MapsService::new(publisher.clone());
        let watch = || service.watch(WatchRequest::default()).unwrap();
        let mut first = watch();
        assert_next(&mut first, MapNews::Current(ShardId(7))).await;
        let others: Vec<_> = (0..999).map(|_| watch()).collect();
        // Nothing else has happened.
        assert_next(&mut first, MapNews::Spread(205)).await;
        let mut last = watch();
        assert_next(&mut last, MapNews::Current(ShardId(7))).await;
        assert_next(&mut last, MapNews::Spread(205)).await;
        drop(others);
        publisher.pass_on(number, &RouteTable::default(), about_nothing(MapNews::Nothing));
        assert_next(&mut first, MapNews::Spread(100)).await;
    }
}

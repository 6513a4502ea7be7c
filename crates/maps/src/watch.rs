//! Keeps the maps fresh: one stream from a coordinator, made anew whenever it ends.
//!
//! ```text
//!  connect (one of several, a random one first) ── Watch with what we have ──► events ──► table ──► cache
//!        ▲                                                                          │
//!        └── a backoff with jitter, as core says (R7) ◄──── ended, or refused ◄─────┘
//! ```
//!
//! What does not follow on our maps (W4) makes the stream anew without the generation of that keyspace, so
//! that the coordinator sends the whole. A coordinator that is behind us is left for another (M2). While
//! none can be reached the cache stays as it is, for ever.

use crate::cache::{Cache, Refresh};
use crate::keep::{self, Keep};
use crate::limits;
use crate::resolve::AddressRotation;
use partage_core::base::name::KeyspaceName;
use partage_core::base::time::Millis;
use partage_core::node::reconnect::ReconnectBackoff;
use partage_core::routing::back::{Offer, Offers};
use partage_core::routing::table::{RouteTable, TableError};
use partage_dialer::{Dialer, coordinator_error};
use partage_wire::Malformed;
use partage_wire::limits::MESSAGE_BYTES;
use partage_wire::map::{Joiner, MapEvent, MapNews, Watch};
use partage_wire::proto;
use partage_wire::proto::maps_client::MapsClient;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tonic::transport::Channel;

/// Why a stream ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("the coordinator cannot be reached: {0}")]
    Unreachable(String),
    #[error("the coordinator ended the stream: {0}")]
    Closed(String),
    #[error("what the coordinator sent cannot be: {0}")]
    Malformed(#[from] Malformed),
    #[error("{0}")]
    Refused(#[from] TableError),
    #[error("keyspace {0} lags behind what its nodes know")]
    Lags(KeyspaceName),
}

/// Hears of each event right after it was taken in.
pub trait Listener: Send + 'static {
    /// `table` is as it is after `event`.
    fn taken(&mut self, table: &RouteTable, event: MapEvent);
}

/// The task that changes the maps.
pub struct Watcher {
    pub coordinators: Vec<String>,
    pub keyspaces: BTreeSet<KeyspaceName>,
    pub cache: Arc<Cache>,
    pub table: Arc<Mutex<RouteTable>>,
    pub listener: Option<Box<dyn Listener>>,
    pub keep: Option<Keep>,
    pub refreshes: mpsc::Receiver<Refresh>,
    /// Keyspaces to be asked for whole.
    pub resync: BTreeSet<KeyspaceName>,
    pub backoff: ReconnectBackoff,
    /// Since when coordinators have offered maps that are older than ours.
    pub offers: Offers,
}

impl Watcher {
    /// Of all maps of one of `coordinators`, from those in `table`.
    pub fn new(coordinators: Vec<String>, table: Arc<Mutex<RouteTable>>) -> Watcher {
        let (refresh, refreshes) = mpsc::channel(limits::REFRESHES);
        Watcher {
            coordinators,
            keyspaces: BTreeSet::new(),
            cache: Arc::new(Cache::new(refresh)),
            table,
            listener: None,
            keep: None,
            refreshes,
            resync: BTreeSet::new(),
            backoff: ReconnectBackoff::of_router(),
            offers: Offers::default(),
        }
    }

    /// Runs until it is dropped.
    pub async fn run(mut self) {
        if self.coordinators.is_empty() {
            return;
        }
        let mut which = partage_random::one_of(self.coordinators.len());
        let mut rotation = AddressRotation::begin();
        let begun = Instant::now();
        let mut said = Said::new(self.coordinators.len());
        loop {
            let before = Instant::now();
            let ended = self.follow(&rotation.url(&self.coordinators[which]).await).await;
            self.cache.connected(false);
            let now = Instant::now();
            let since_begun = Millis(now.duration_since(begun).as_millis() as u64);
            let back = matches!(ended, Ended::Refused(TableError::Back { .. }));
            let offer = back.then(|| self.offers.refused(since_begun));
            if now.duration_since(before) > limits::LASTING {
                self.backoff.connected();
                said = Said::new(self.coordinators.len());
            }
            let is_known = said.is_known(which, &ended);
            log(&self.coordinators[which], &ended, offer, is_known);
            match ended {
                // The same one has the whole of it, and has done nothing wrong.
                Ended::Refused(
                    TableError::Gap { keyspace, .. }
                    | TableError::SettingsMissing { keyspace }
                    | TableError::Layout { keyspace, .. },
                ) => {
                    self.resync.insert(keyspace);
                }
                Ended::Lags(_) => {}
                _ => {
                    which = (which + 1) % self.coordinators.len();
                    rotation.advance();
                }
            }
            let (places, lot) = (rotation.places(self.coordinators.len()), partage_random::jitter());
            let rest_ms = self.backoff.next_delay_ms(since_begun, places, lot);
            let shortest_ms = self.backoff.shortest_delay_ms(lot).min(rest_ms);
            self.rest(Duration::from_millis(rest_ms), Duration::from_millis(shortest_ms)).await;
        }
    }

    /// Rests, and for the shortest time only when a request has met a node with a later map than ours: it waits for that map.
    async fn rest(&mut self, rest: Duration, shortest: Duration) {
        let began = Instant::now();
        loop {
            tokio::select! {
                () = sleep_until(began + rest) => return,
                Some(refresh) = self.refreshes.recv() => {
                    if self.is_behind(&refresh) {
                        return sleep_until(began + shortest).await;
                    }
                }
                () = Keep::due(&mut self.keep) => self.write_kept().await,
            }
        }
    }

    async fn follow(&mut self, url: &str) -> Ended {
        match self.stream(url).await {
            Ok(never) => match never {},
            Err(ended) => ended,
        }
    }

    async fn stream(&mut self, url: &str) -> Result<std::convert::Infallible, Ended> {
        let mut client = connect(url).await?;
        let mut known = self.table().known();
        let resync = std::mem::take(&mut self.resync);
        known.retain(|name, _| !resync.contains(name));
        let watch = Watch { keyspaces: self.keyspaces.clone(), known };
        let answer = timeout(limits::COORDINATOR_CONNECT, client.watch(proto::WatchRequest::from(&watch)));
        let answer = answer.await.map_err(|_| Ended::Unreachable("no answer".to_owned()))?;
        let mut events = answer.map_err(|status| Ended::Closed(coordinator_error(&status)))?.into_inner();
        let mut joiner = Joiner::default();
        // Its cluster comes first: what one of another cluster says of our keyspaces is not to be believed.
        let ours = self.table().cluster().map(|ours| ours.cluster);
        let mut nameless = ours;
        let mut accepted = false;
        let mut lag: Option<(Refresh, Instant)> = None;
        let opened = Instant::now();
        loop {
            let due = lag.as_ref().map(|(_, at)| *at);
            tokio::select! {
                message = events.message() => {
                    let message = message.map_err(|status| Ended::Closed(coordinator_error(&status)))?;
                    let message = message.ok_or_else(|| Ended::Closed("it is over".to_owned()))?;
                    if let Some(event) = joiner.take(message)? {
                        nameless = nameless.filter(|_| !matches!(event.news, MapNews::Cluster(_)));
                        if let Some(ours) = nameless {
                            return Err(TableError::Nameless { ours }.into());
                        }
                        self.take(event)?;
                        if !std::mem::replace(&mut accepted, true) {
                            self.cache.connected(true);
                        }
                    }
                    if accepted {
                        self.cache.heard_now();
                    }
                }
                Some(refresh) = self.refreshes.recv() => {
                    if self.is_behind(&refresh) && lag.is_none() {
                        let earliest = opened + limits::REFRESH_PAUSE;
                        lag = Some((refresh, (Instant::now() + limits::LAG).max(earliest)));
                    }
                }
                () = until(due) => {
                    if let Some((refresh, _)) = lag.take().filter(|(refresh, _)| self.is_behind(refresh)) {
                        return Err(Ended::Lags(refresh.keyspace));
                    }
                }
                () = Keep::due(&mut self.keep) => self.write_kept().await,
            }
        }
    }

    async fn write_kept(&mut self) {
        if let Some(keep) = &mut self.keep {
            let events = keep::events(&lock(&self.table));
            keep.write(&events).await;
        }
    }

    fn table(&self) -> MutexGuard<'_, RouteTable> {
        lock(&self.table)
    }

    fn is_behind(&self, refresh: &Refresh) -> bool {
        let ours = self.table().map(&refresh.keyspace).map(|map| map.generation().sequence);
        ours.is_some_and(|ours| ours < refresh.sequence)
    }

    fn take(&mut self, event: MapEvent) -> Result<(), TableError> {
        let mut table = lock(&self.table);
        let told = self.listener.is_some().then(|| event.clone());
        let current = matches!(event.news, MapNews::Current(_));
        if let MapNews::Spread(spread_ms) = event.news {
            self.backoff.set_spread(spread_ms);
        }
        take(&mut table, event)?;
        self.cache.publish(table.routes());
        if current {
            self.cache.complete();
            self.offers.taken();
        }
        if let Some((listener, event)) = self.listener.as_mut().zip(told) {
            listener.taken(&table, event);
        }
        drop(table);
        if let Some(keep) = &mut self.keep {
            keep.changed();
        }
        Ok(())
    }
}

/// What was logged already, so that a cause that stays is logged once and not with every try.
struct Said {
    /// The last try reached none.
    in_vain: bool,
    /// Why each coordinator ended its last stream; none = in another way than by [`Ended::Closed`].
    closed: Vec<Option<String>>,
}

impl Said {
    fn new(coordinators: usize) -> Said {
        Said { in_vain: false, closed: vec![None; coordinators] }
    }

    /// Whether it ended before as it has ended now: after a coordinator that could not be reached, by another one that
    /// cannot be reached, or by the same one with the same words.
    fn is_known(&mut self, which: usize, ended: &Ended) -> bool {
        let was_in_vain = std::mem::replace(&mut self.in_vain, matches!(ended, Ended::Unreachable(_)));
        match ended {
            Ended::Unreachable(_) => was_in_vain,
            Ended::Closed(why) => self.closed[which].replace(why.clone()).as_ref() == Some(why),
            Ended::Malformed(_) | Ended::Refused(_) | Ended::Lags(_) => {
                self.closed[which] = None;
                false
            }
        }
    }
}

/// Says why a stream ended. `offer` is there when it was an older map; `is_known` when the same was logged before.
fn log(coordinator: &str, ended: &Ended, offer: Option<Offer>, is_known: bool) {
    match (ended, offer) {
        (_, Some(Offer::Lags)) => tracing::info!(
            %coordinator, %ended, "the coordinator lags behind: its older map is refused, and another coordinator asked"
        ),
        (_, Some(Offer::Stays(for_ms))) => tracing::error!(
            %coordinator, error = %ended, for_ms,
            "no coordinator has had the latest map for so long; routing goes on by the last maps. Either all that can be \
             reached are cut off from the leader, or the coordination state was set back, as by a restore of an older \
             copy: look with `partage check`"
        ),
        (Ended::Refused(TableError::OtherCluster { .. } | TableError::Nameless { .. }), _) => {
            tracing::error!(
                %coordinator, error = %ended,
                "the coordinator is refused, and routing goes on by the last maps: its data folder is empty or another \
                 one's, or the address is wrong; if this cluster is meant to be replaced, delete the kept maps, if \
                 there are any, and start this process anew"
            )
        }
        (_, Some(Offer::Known)) => tracing::debug!(%coordinator, %ended, "no map stream"),
        _ if is_known => tracing::debug!(%coordinator, %ended, "no map stream"),
        (Ended::Unreachable(error), _) => {
            tracing::warn!(%coordinator, error, "this coordinator is not reached; another one is tried, or the same again, and routing goes on by the last maps");
        }
        _ => tracing::info!(%coordinator, %ended, "map stream ended; making it anew"),
    }
}

/// Brings an event into the table.
pub fn take(table: &mut RouteTable, event: MapEvent) -> Result<(), TableError> {
    // Addresses first: a map that refers to them is never without.
    table.hear_of_nodes(event.nodes, &event.forgotten);
    match event.news {
        MapNews::Changed { brief, resync, diff } => table.change(brief, resync, &diff).map(|_| ()),
        MapNews::Deleted(keyspace, horizon) => {
            table.delete(&keyspace, horizon);
            Ok(())
        }
        MapNews::Cluster(identity) => table.belongs(identity),
        MapNews::Nothing | MapNews::Current(_) | MapNews::Spread(_) => Ok(()),
    }
}

fn lock(table: &Mutex<RouteTable>) -> MutexGuard<'_, RouteTable> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

async fn connect(url: &str) -> Result<MapsClient<Channel>, Ended> {
    let unreachable = |error: tonic::transport::Error| Ended::Unreachable(format!("{url}: {error}"));
    let endpoint = Dialer::MAPS.grpc(url).map_err(unreachable)?;
    let channel = timeout(limits::COORDINATOR_CONNECT, endpoint.connect()).await;
    let channel =
        channel.map_err(|_| Ended::Unreachable(format!("{url} does not answer")))?.map_err(unreachable)?;
    Ok(MapsClient::new(channel).max_decoding_message_size(MESSAGE_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::base::id::{ShardId, TransactionId};
    use partage_core::keyspace::key::KeyRange;
    use partage_core::keyspace::map::ShardMap;
    use partage_core::keyspace::sharding::{Bounds, PartitionKey, Sharding};
    use partage_core::keyspace::{KeyspaceKind, Ownership};
    use partage_core::node::exchange::KeyspaceBrief;

    fn watcher() -> Watcher {
        Watcher::new(vec!["a:1".into()], Arc::default())
    }

    fn event(news: MapNews) -> MapEvent {
        MapEvent { news, nodes: vec![], forgotten: vec![] }
    }

    #[test]
    fn r7_a_router_spreads_over_what_it_was_told() {
        let mut watcher = watcher();
        watcher.take(event(MapNews::Spread(1_638))).unwrap();
        watcher.backoff.connected();
        assert_eq!(watcher.backoff.next_delay_ms(Millis(0), 1, 1.0), 1_638);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_waits_for_a_later_map_cuts_the_rest_short() {
        let watcher = watcher();
        let cache = watcher.cache.clone();
        let keyspace: KeyspaceName = "kv".parse().unwrap();
        let rest = |watcher: Watcher| async move {
            let (mut watcher, began) = (watcher, Instant::now());
            watcher.rest(Duration::from_secs(5), Duration::from_millis(80)).await;
            (watcher, began.elapsed())
        };
        let (watcher, unhurried) = rest(watcher).await;
        assert_eq!(unhurried, Duration::from_secs(5));
        cache.refresh(keyspace.clone(), 1);
        let (watcher, unknown) = rest(watcher).await;
        assert_eq!(
            unknown,
            Duration::from_secs(5),
            "of a keyspace of which there is no map nothing is known"
        );
        let map = ShardMap::empty(keyspace.clone(), Sharding::KeyRange, PartitionKey::Whole);
        let mut edit = map.edit();
        edit.create_shard(Bounds::Keys(KeyRange::all())).unwrap();
        let diff = edit.commit(TransactionId([1; 20]));
        let brief = KeyspaceBrief {
            name: keyspace.clone(),
            sharding: Sharding::KeyRange,
            partition_key: PartitionKey::Whole,
            ownership: Ownership::Exclusive,
            generation: diff.to,
            first_shard: ShardId(1),
            durable: false,
            min_in_sync: 0,
            kind: KeyspaceKind::App,
            values: partage_core::keyspace::RowValues::Bytes,
            feed_ms: 0,
        };
        watcher.table().change(Some(brief), true, &diff).unwrap();
        cache.refresh(keyspace, diff.to.sequence + 1);
        assert_eq!(rest(watcher).await.1, Duration::from_millis(80));
    }

    #[test]
    fn m2_a_coordinator_whose_maps_are_all_taken_ends_the_row_of_older_maps() {
        let mut watcher = watcher();
        assert_eq!(watcher.offers.refused(Millis(0)), Offer::Lags);
        watcher.take(event(MapNews::Nothing)).unwrap();
        assert!(matches!(watcher.offers.refused(Millis(60_000)), Offer::Stays(60_000)));
        watcher.take(event(MapNews::Current(ShardId(4)))).unwrap();
        assert_eq!(watcher.offers.refused(Millis(120_000)), Offer::Lags);
    }
}

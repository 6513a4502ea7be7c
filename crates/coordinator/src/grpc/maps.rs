//! Maps by push; see `maps.proto` for the rules, [`crate::publish`] for why nothing is queued.

use crate::limits;
use crate::mind::{Gone, Mind};
use crate::publish::Publisher;
use partage_core::id::Generation;
use partage_core::map::MapDiff;
use partage_core::name::KeyspaceName;
use partage_core::publication::{NodesSince, Since};
use partage_wire::maps::{MapEvent, MapNews, Watch, in_parts};
use partage_wire::proto::maps_server::Maps;
use partage_wire::proto::{self, WatchRequest};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

/// Serves [`Maps`].
pub struct MapsDoor {
    mind: Mind,
    publisher: Arc<Publisher>,
}

impl MapsDoor {
    /// In front of that mind, with what it has published.
    pub fn new(mind: Mind, publisher: Arc<Publisher>) -> MapsDoor {
        MapsDoor { mind, publisher }
    }
}

#[tonic::async_trait]
impl Maps for MapsDoor {
    type WatchStream = ReceiverStream<Result<proto::MapEvent, Status>>;

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let watch =
            Watch::try_from(request.into_inner()).map_err(|bad| Status::invalid_argument(bad.to_string()))?;
        let (out, events) = mpsc::channel(limits::MAP_MESSAGES);
        let session = Session {
            mind: self.mind.clone(),
            publisher: self.publisher.clone(),
            out,
            only: watch.keyspaces,
            has: watch.known.into_iter().map(|(name, generation)| (name, Some(generation))).collect(),
            briefed: BTreeSet::new(),
            nodes: 0,
        };
        tokio::spawn(session.run());
        Ok(Response::new(ReceiverStream::new(events)))
    }
}

/// The router or the mind is gone.
struct Over;

impl From<Gone> for Over {
    fn from(_: Gone) -> Over {
        Over
    }
}

struct Session {
    mind: Mind,
    publisher: Arc<Publisher>,
    out: mpsc::Sender<Result<proto::MapEvent, Status>>,
    /// Empty = all.
    only: BTreeSet<KeyspaceName>,
    /// What the router has.
    has: BTreeMap<KeyspaceName, Option<Generation>>,
    /// Keyspaces whose settings it was sent on this stream.
    briefed: BTreeSet<KeyspaceName>,
    nodes: u64,
}

impl Session {
    async fn run(mut self) {
        let mut bell = self.publisher.bell();
        loop {
            // What rings from here on is seen after this round.
            bell.mark_unchanged();
            if self.round().await.is_err() {
                return;
            }
            tokio::select! {
                rung = bell.changed() => if rung.is_err() { return },
                () = self.out.closed() => return,
            }
        }
    }

    /// Sends whatever the router does not have.
    async fn round(&mut self) -> Result<(), Over> {
        self.send_nodes().await?;
        let all = self.publisher.keyspaces();
        let wanted = all.into_iter().filter(|name| self.only.is_empty() || self.only.contains(name));
        let names: BTreeSet<_> = wanted.chain(self.has.keys().cloned()).collect();
        for name in names {
            // A whole map may be a little older than the latest: then its changes follow at once.
            while self.catch_up(&name).await? {}
        }
        Ok(())
    }

    /// Sends what leads on from what the router has of one keyspace. Returns whether there may be more.
    async fn catch_up(&mut self, name: &KeyspaceName) -> Result<bool, Over> {
        let have = self.has.get(name).copied().flatten();
        match self.publisher.since(name, have) {
            Since::Nothing => Ok(false),
            Since::Changes(diffs) => {
                for diff in diffs {
                    self.send_diff(name, MapDiff::clone(&diff), false).await?;
                }
                Ok(false)
            }
            Since::Whole => {
                self.send_whole(name).await?;
                Ok(self.has.get(name).copied().flatten() != have)
            }
            Since::Deleted => {
                self.has.remove(name);
                self.briefed.remove(name);
                let news = MapNews::Deleted(name.clone());
                self.send(MapEvent { news, nodes: vec![], forgotten: vec![] }).await?;
                Ok(false)
            }
        }
    }

    async fn send_nodes(&mut self) -> Result<(), Over> {
        let NodesSince { changed, forgotten, version } = self.publisher.nodes_since(self.nodes);
        self.nodes = version;
        if changed.is_empty() && forgotten.is_empty() {
            return Ok(());
        }
        self.send(MapEvent { news: MapNews::Nothing, nodes: changed, forgotten }).await
    }

    async fn send_whole(&mut self, name: &KeyspaceName) -> Result<(), Over> {
        match self.publisher.whole(&self.mind, name).await? {
            Some(map) => self.send_diff(name, MapDiff::clone(&map), true).await,
            // Deleted since: the next round says so.
            None => Ok(()),
        }
    }

    async fn send_diff(&mut self, name: &KeyspaceName, diff: MapDiff, resync: bool) -> Result<(), Over> {
        let first = self.briefed.insert(name.clone());
        let brief = if first || resync { self.publisher.brief(name) } else { None };
        let brief = brief.map(|brief| partage_core::exchange::KeyspaceBrief { generation: diff.to, ..brief });
        self.has.insert(name.clone(), Some(diff.to));
        self.send(MapEvent {
            news: MapNews::Changed { brief, resync, diff: Box::new(diff) },
            nodes: vec![],
            forgotten: vec![],
        })
        .await
    }

    async fn send(&self, event: MapEvent) -> Result<(), Over> {
        for part in in_parts(&event) {
            self.out.send(Ok(part)).await.map_err(|_| Over)?;
        }
        Ok(())
    }
}

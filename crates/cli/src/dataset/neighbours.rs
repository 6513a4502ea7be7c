//! Where the other dataset nodes are, for a node that knows nothing but its coordinator: they find each other by
//! gossip, which has to begin somewhere, and the coordinator knows who has registered.
//!
//! A node registers first and then asks, so of two that start at a time one at least hears of the other. While the
//! coordinator is away, it goes to those that it saw before it was restarted. They may all have moved: so it asks the
//! coordinator again and again, and says hello to those whom it does not see.

use crate::client::ApiClient;
use partage_coordination::{Backend, Coordination, Error, Late, Listen, Target};
use partage_core::keyspace::KeyspaceKind;
use partage_dataset::node::{Membership, last_peers};
use partage_service::dataset::DatasetName;
use partage_wire::json::{Node, Nodes};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::time::sleep;

/// The author of this node's questions in the records of the coordinator.
const WHO: &str = "dataset node";

/// Between two looks at whether the coordinator has this node.
const LOOK: Duration = Duration::from_millis(100);

/// How often the node looks whether the coordinator has registered it, before that is an error: a coordinator that answers
/// registers a node in well under a second.
const LOOKS: usize = 100;

/// Between two tries to ask who else is there, until the coordinator has answered.
const MEET: Duration = Duration::from_secs(15);

/// Between two such questions after that. Of two nodes the later one to be answered hears of the other, so this is for what
/// no rule foresees; and a thousand nodes ask for a list of a thousand.
const MEET_AGAIN: Duration = Duration::from_secs(600);

/// Where peers reach this node, as soon as it listens.
pub type OwnAddress = Arc<OnceLock<String>>;

/// What gossip of a node begins with.
pub struct GossipConfig {
    /// The cluster of dataset nodes, the root of the gossip address.
    pub cluster: DatasetName,
    /// The address of `--gossip`; none: `ip`, and the port where clients ask.
    pub listen: Option<SocketAddr>,
    /// The address where clients ask: gossip is UDP, so it can use the same port number.
    pub ip: IpAddr,
    /// The file with the keys that seal gossip; none: gossip is not sealed.
    pub key_file: Option<PathBuf>,
    /// The data directory, whose local store names the nodes that this one saw last.
    pub data_dir: PathBuf,
    /// The address that the node tells others, empty until it listens.
    pub here: OwnAddress,
}

struct PeerFinder {
    client: ApiClient,
    id: String,
    config: GossipConfig,
}

/// Gossip with the nodes that serve datasets under the same coordinator.
pub fn gossip(membership: &Membership, config: GossipConfig) -> Arc<dyn Coordination> {
    let client = ApiClient { coordinator: membership.coordinators.clone(), who: WHO.to_owned() };
    let finder = Arc::new(PeerFinder { client, id: membership.id.clone(), config });
    let finding = finder.clone();
    let late = Arc::new(Late::found(Backend::Gossip, move || {
        let finder = finding.clone();
        Box::pin(async move { finder.find().await })
    }));
    tokio::spawn(meet(finder, Arc::downgrade(&late)));
    late
}

/// Says hello now and then, for as long as the node runs.
async fn meet(finder: Arc<PeerFinder>, late: Weak<Late>) {
    let mut rest = MEET;
    loop {
        sleep(rest).await;
        let Some(late) = late.upgrade() else { return };
        // The worker reports a coordinator that is away.
        let Ok((_, others)) = finder.registered().await else { continue };
        rest = MEET_AGAIN;
        let mut there = Vec::new();
        for other in others {
            // A node whose address cannot be resolved cannot be met.
            there.extend(resolved(&other.address).await.ok());
        }
        if let Err(error) = late.add_peers(&there).await {
            tracing::debug!(%error, "no other node was reached");
        }
    }
}

impl PeerFinder {
    /// This node, if it is registered, and the others that serve datasets.
    async fn registered(&self) -> Result<(Option<Node>, Vec<Node>), Error> {
        let told: Result<Nodes, _> = self.client.get("/v1/nodes").await;
        let told = told.map_err(|failure| unavailable(failure.to_string()))?;
        let (mine, others): (Vec<Node>, Vec<Node>) =
            told.nodes.into_iter().partition(|node| node.id == self.id);
        let serves = |node: &Node| node.serves(KeyspaceKind::Dataset);
        Ok((mine.into_iter().next(), others.into_iter().filter(serves).collect()))
    }

    async fn find(&self) -> Result<Target, Error> {
        for _ in 0..LOOKS {
            match self.registered().await {
                Ok((Some(mine), others)) => {
                    let others = others.into_iter().map(|node| node.address).collect();
                    return self.target(&mine.address, others).await;
                }
                // It is on its way: nothing is wrong yet.
                Ok((None, _)) => sleep(LOOK).await,
                Err(away) => return self.as_before(away).await,
            }
        }
        let id = &self.id;
        Err(unavailable(format!("the coordinator does not register node {id}: its log says why")))
    }

    /// Where no coordinator answers: the peers that the node saw last.
    async fn as_before(&self, away: Error) -> Result<Target, Error> {
        let GossipConfig { data_dir, here, .. } = &self.config;
        let data_dir = data_dir.clone();
        let known = tokio::task::spawn_blocking(move || last_peers(&data_dir)).await.unwrap_or_default();
        let Some(here) = here.get().filter(|_| !known.is_empty()) else { return Err(away) };
        tracing::info!(%away, peers = known.len(), "the others are looked for where they were last seen");
        self.target(here, known.iter().map(ToString::to_string).collect()).await
    }

    async fn target(&self, mine: &str, others: Vec<String>) -> Result<Target, Error> {
        let GossipConfig { cluster, listen, ip, key_file, .. } = &self.config;
        // An address has one host at least; a node that is alone has its own, and talks to no other.
        let is_alone = others.is_empty();
        let hosts = if is_alone { vec![mine.to_owned()] } else { others };
        let mut target = Target::parse(&format!("gossip://{}/{cluster}", hosts.join(",")))?;
        if is_alone {
            target.hosts.clear();
        }
        target.gossip_key_file.clone_from(key_file);
        target.listen = Some(match *listen {
            Some(at) => Listen { at, advertise: at },
            None => {
                let advertise = resolved(mine).await?;
                Listen { at: SocketAddr::new(*ip, advertise.port()), advertise }
            }
        });
        Ok(target)
    }
}

fn unavailable(what: String) -> Error {
    Error::Unavailable { what }
}

async fn resolved(address: &str) -> Result<SocketAddr, Error> {
    let unknown = |why: String| unavailable(format!("where {address} is: {why}"));
    let mut found = tokio::net::lookup_host(address).await.map_err(|error| unknown(error.to_string()))?;
    found.next().ok_or_else(|| unknown("the name has no address".to_owned()))
}

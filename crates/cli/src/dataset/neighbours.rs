//! Where the other dataset nodes are, for a node that was told of nothing but its coordinator: they find each other by
//! gossip, which has to begin somewhere, and the coordinator knows who has registered.
//!
//! A node registers first and then asks, so of two that start at a time one at least hears of the other.

use crate::client::Door;
use partage_coordination::{Backend, Coordination, Error, Late, Listen, Target};
use partage_core::dataset::DatasetName;
use partage_dataset::node::Membership;
use partage_wire::json::Node;
use serde::Deserialize;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

#[derive(Deserialize)]
struct Nodes {
    nodes: Vec<Node>,
}

/// Who asks, for the records of the coordinator.
const WHO: &str = "dataset node";

/// Gossip with whoever serves datasets under the same coordinator. It listens at `listen`, or else on `ip` at the port
/// where clients ask: gossip is UDP, and in nobody's way there.
pub fn gossip(
    membership: &Membership,
    cluster: &DatasetName,
    ip: IpAddr,
    listen: Option<SocketAddr>,
) -> Arc<dyn Coordination> {
    let door = Arc::new(Door { coordinator: membership.coordinators.clone(), who: WHO.to_owned() });
    let (id, cluster) = (membership.id.clone(), cluster.clone());
    Arc::new(Late::found(Backend::Gossip, move || {
        let (door, id, cluster) = (door.clone(), id.clone(), cluster.clone());
        Box::pin(async move { find(&door, &id, &cluster, ip, listen).await })
    }))
}

async fn find(
    door: &Door,
    id: &str,
    cluster: &DatasetName,
    ip: IpAddr,
    listen: Option<SocketAddr>,
) -> Result<Target, Error> {
    let unavailable = |what: String| Error::Unavailable { what };
    let told: Nodes = door.get("/v1/nodes").await.map_err(|failure| unavailable(failure.to_string()))?;
    let (mine, others): (Vec<Node>, Vec<Node>) = told.nodes.into_iter().partition(|node| node.id == id);
    let not_yet =
        || unavailable(format!("node {id} is not registered yet: others are looked for after that"));
    let mine = mine.into_iter().next().ok_or_else(not_yet)?;
    let serves = |node: &&Node| node.kinds.iter().any(|kind| kind == "dataset");
    let mut hosts: Vec<String> = others.iter().filter(serves).map(|node| node.address.clone()).collect();
    // An address has one host at least; who is alone talks to nobody.
    let is_alone = hosts.is_empty();
    hosts.extend(is_alone.then(|| mine.address.clone()));
    let mut target = Target::parse(&format!("gossip://{}/{cluster}", hosts.join(",")))?;
    if is_alone {
        target.hosts.clear();
    }
    target.listen = Some(match listen {
        Some(at) => Listen { at, advertise: at },
        None => {
            let advertise = resolved(&mine.address).await?;
            Listen { at: SocketAddr::new(ip, advertise.port()), advertise }
        }
    });
    Ok(target)
}

async fn resolved(address: &str) -> Result<SocketAddr, Error> {
    let unknown = |why: String| Error::Unavailable { what: format!("where {address} is: {why}") };
    let mut found = tokio::net::lookup_host(address).await.map_err(|error| unknown(error.to_string()))?;
    found.next().ok_or_else(|| unknown("nobody knows".to_owned()))
}

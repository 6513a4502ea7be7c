//! Posts orders to the URL that a worker announced, whenever they have changed (A14), so that a worker over
//! plain HTTP hears of them without waiting in a heartbeat.
//!
//! Best effort: what is posted is the difference to what the URL last took with a 2xx, a failed post is not
//! repeated, and whatever is missed comes with the answer to the next heartbeat. A post renews no lease:
//! only a worker's own beat does. One post at a time goes to each worker, so they never overtake each other.

use crate::lead::decision_loop::{DecisionLoop, LoopStopped};
use crate::limits;
use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use hyper::header::CONTENT_TYPE;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use partage_core::base::id::Incarnation;
use partage_core::base::name::NodeId;
use partage_core::node::exchange::Orders;
use partage_dialer::Dialer;
use partage_wire::json;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;

type HttpClient = Client<HttpConnector, Full<Bytes>>;

/// How a post ended: the version that was taken, if it was.
struct Posted {
    node: NodeId,
    taken: Option<(Incarnation, u64)>,
}

/// Posts until the decision loop is gone.
pub async fn run(decision_loop: DecisionLoop) {
    let client: HttpClient = Client::builder(TokioExecutor::new()).build(Dialer::PEER.http());
    let mut posts = JoinSet::new();
    let (mut waiting, mut busy) = (BTreeSet::new(), BTreeSet::new());
    let mut taken: BTreeMap<NodeId, (Incarnation, u64)> = BTreeMap::new();
    let mut called = decision_loop.callbacks_changed();
    loop {
        tokio::select! {
            alive = called.changed() => match alive {
                Ok(()) => waiting.append(&mut decision_loop.take_callback_nodes()),
                Err(_) => return,
            },
            Some(posted) = posts.join_next() => {
                let Ok(Posted { node, taken: version }) = posted else { continue };
                busy.remove(&node);
                match version {
                    Some(version) => taken.insert(node, version),
                    None => taken.remove(&node),
                };
            }
        }
        let ready: Vec<NodeId> = waiting.difference(&busy).cloned().collect();
        for node in ready.into_iter().take(limits::CHECKS.saturating_sub(posts.len())) {
            waiting.remove(&node);
            match orders(&decision_loop, &node, taken.get(&node).copied()).await {
                Ok(Some((url, orders))) => {
                    busy.insert(node.clone());
                    posts.spawn(post(client.clone(), node, url, orders));
                }
                Ok(None) => drop(taken.remove(&node)),
                Err(LoopStopped) => return,
            }
        }
    }
}

/// The orders that the worker's URL has not taken yet; none if it has none, or has ended.
async fn orders(
    decision_loop: &DecisionLoop,
    node: &NodeId,
    taken: Option<(Incarnation, u64)>,
) -> Result<Option<(String, Orders)>, LoopStopped> {
    let id = node.clone();
    decision_loop
        .call(move |cluster, _| {
            let record = &cluster.nodes().get(&id)?.record;
            let url = record.spec.callback.clone().filter(|_| !record.ended)?;
            let since = taken.filter(|(incarnation, _)| *incarnation == record.incarnation);
            let orders = cluster.orders_since(&id, since.map_or(0, |(_, version)| version), None)?;
            Some((url, orders))
        })
        .await
}

async fn post(client: HttpClient, node: NodeId, url: String, orders: Orders) -> Posted {
    let version = (orders.incarnation, orders.version);
    match take(client, &url, &orders).await {
        Ok(()) => Posted { node, taken: Some(version) },
        Err(why) => {
            tracing::debug!(%node, url, why, "orders could not be posted; the next heartbeat brings them");
            Posted { node, taken: None }
        }
    }
}

async fn take(client: HttpClient, url: &str, orders: &Orders) -> Result<(), String> {
    let body = serde_json::to_vec(&json::Orders::from(orders)).map_err(|error| error.to_string())?;
    let request = Request::post(url).header(CONTENT_TYPE, "application/json").body(Full::from(body));
    let request = request.map_err(|error| error.to_string())?;
    match timeout(Duration::from_millis(limits::CHECK_MS), client.request(request)).await {
        Ok(Ok(answer)) if answer.status().is_success() => Ok(()),
        Ok(Ok(answer)) => Err(format!("answered {}", answer.status())),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("did not answer within {} ms", limits::CHECK_MS)),
    }
}

//! Checks every worker back at the address it announced (A11), so that a worker which can call us but
//! which nobody can reach is given nothing.

use crate::limits;
use crate::mind::Mind;
use http_body_util::Empty;
use hyper::{Request, StatusCode};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use partage_core::id::Incarnation;
use partage_core::name::NodeId;
use partage_core::node::CheckBack;
use partage_dialer::Dialer;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

type HttpClient = Client<HttpConnector, Empty<bytes::Bytes>>;

/// Checks every `period`, and at once when a node has registered, until the mind is gone.
pub async fn run(mind: Mind, period: Duration) {
    let client: HttpClient = Client::builder(TokioExecutor::new()).build(Dialer::PEER.http());
    let slots = Arc::new(Semaphore::new(limits::CHECKS));
    let mut ticks = tokio::time::interval(period);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = mind.joined() => {}
        }
        let Ok(due) = mind.call(|cluster, at| cluster.checks_due(at.now)).await else { return };
        for (node, incarnation, address, how) in due {
            let Ok(slot) = slots.clone().acquire_owned().await else { return };
            let (mind, client) = (mind.clone(), client.clone());
            tokio::spawn(async move {
                let answered = answers(&client, &address, &how).await;
                drop(slot);
                tell(&mind, node, incarnation, answered).await;
            });
        }
    }
}

async fn tell(mind: &Mind, node: NodeId, incarnation: Incarnation, answered: bool) {
    // When the mind is gone there is nobody to tell, and `run` ends by itself.
    let _ = mind.call(move |cluster, at| cluster.checked_back(at, &node, incarnation, answered)).await;
}

async fn answers(client: &HttpClient, address: &str, how: &CheckBack) -> bool {
    let limit = Duration::from_millis(limits::CHECK_MS);
    match how {
        CheckBack::Connect => Dialer::PEER.tcp(address).await.is_ok(),
        CheckBack::Get(path) => {
            let Ok(request) = Request::get(format!("http://{address}{path}")).body(Empty::new()) else {
                return false;
            };
            matches!(timeout(limit, client.request(request)).await, Ok(Ok(answer)) if answer.status() == StatusCode::OK)
        }
    }
}

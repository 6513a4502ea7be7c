//! Checks every worker back at the address it announced (A11), so that a worker which can call us but
//! which nobody can reach is given nothing.

use crate::lead::decision_loop::DecisionLoop;
use crate::limits;
use http_body_util::Empty;
use hyper::{Request, StatusCode};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use partage_core::base::id::Incarnation;
use partage_core::base::name::NodeId;
use partage_core::node::CheckBack;
use partage_dialer::Dialer;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

type HttpClient = Client<HttpConnector, Empty<bytes::Bytes>>;

/// Checks every `period`, and at once when a node has registered, until the decision loop is gone.
pub async fn run(decision_loop: DecisionLoop, period: Duration) {
    let client: HttpClient = Client::builder(TokioExecutor::new()).build(Dialer::PEER.http());
    let slots = Arc::new(Semaphore::new(limits::CHECKS));
    let mut ticks = tokio::time::interval(period);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = decision_loop.registration_notified() => {}
        }
        let Ok(due) = decision_loop.call(|cluster, at| cluster.checks_due(at.now)).await else { return };
        for (node, incarnation, address, how) in due {
            let Ok(slot) = slots.clone().acquire_owned().await else { return };
            let (decision_loop, client) = (decision_loop.clone(), client.clone());
            tokio::spawn(async move {
                let answered = answers(&client, &address, &how).await;
                drop(slot);
                tell(&decision_loop, node, incarnation, answered).await;
            });
        }
    }
}

async fn tell(decision_loop: &DecisionLoop, node: NodeId, incarnation: Incarnation, answered: bool) {
    // When the decision loop is gone there is nobody to tell, and `run` ends by itself.
    let _ =
        decision_loop.call(move |cluster, at| cluster.checked_back(at, &node, incarnation, answered)).await;
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

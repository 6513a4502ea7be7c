//! A client of the HTTP API of a dataset node, as the commands use it.

use crate::http::{Reply, address, first_answer};
use crate::output::Failure;
use bytes::Bytes;
use clap::Args;
use hyper::header::{ACCEPT, HeaderValue};
use hyper::{HeaderMap, Method, StatusCode};
use partage_wire::dataset::status::Health;
use partage_wire::json::{ErrorBody, ErrorDetail};

/// The flag `--node`: the dataset nodes that a command asks.
#[derive(Debug, Clone, Args)]
pub struct NodeClient {
    /// Dataset nodes, as host:port separated by commas; the command asks the first one that answers
    #[arg(
        long,
        env = "PARTAGE_DATASET_NODE",
        value_delimiter = ',',
        default_value = super::serve::LISTEN,
        value_parser = address
    )]
    pub node: Vec<String>,
}

impl NodeClient {
    /// The answer of the first node that gives one; a refusal is a failure.
    pub async fn ask(&self, method: Method, path: &str, body: Bytes) -> Result<Reply, Failure> {
        let reply = self.answer(method, path, body).await?;
        if reply.status.is_success() { Ok(reply) } else { Err(self.refusal(&reply).await) }
    }

    /// What a node that refuses says; or that no dataset node is there.
    pub async fn refusal(&self, reply: &Reply) -> Failure {
        let failure = refusal(reply);
        let health = self.answer(Method::GET, "/-/health", Bytes::new()).await;
        let is_dataset_node = |health: &Reply| serde_json::from_slice::<Health>(&health.body).is_ok();
        match health {
            Ok(health) if !is_dataset_node(&health) => {
                let at = self.node.join(", ");
                Failure::usage(format!("{at} is no dataset node; it says: {}", failure.what()))
                    .help("name one with --node HOST:PORT: `partage node list` shows the addresses")
            }
            Ok(_) | Err(_) => failure,
        }
    }

    /// The answer of the first node that gives one, whatever it says.
    pub async fn answer(&self, method: Method, path: &str, body: Bytes) -> Result<Reply, Failure> {
        // Every question and order to a node may be said twice.
        let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static("application/json"))]);
        let error = match first_answer(&self.node, &method, path, &headers, &body).await {
            Ok(reply) => return Ok(reply),
            Err(error) => error,
        };
        let asked = self.node.join(", ");
        Err(Failure::not_reachable(format!("no dataset node answers at {asked}: {}", error.why))
            .help("start one with `partage dataset serve`, or name it with --node HOST:PORT"))
    }

    /// The JSON at `path`.
    pub async fn json<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        let reply = self.ask(Method::GET, path, Bytes::new()).await?;
        serde_json::from_slice(&reply.body)
            .map_err(|error| Failure::failed(format!("the answer of {path} is not understood: {error}")))
    }
}

fn refusal(reply: &Reply) -> Failure {
    let Ok(ErrorBody { error: ErrorDetail { kind, message, help, .. } }) =
        serde_json::from_slice(&reply.body)
    else {
        return Failure::failed(format!("{}: {}", reply.status, String::from_utf8_lossy(&reply.body)));
    };
    // The way out of these is a path of HTTP; a person gets a command.
    let what = message.strip_suffix(&*help).and_then(|what| what.strip_suffix(": ")).unwrap_or(&message);
    match &*kind {
        "no_dataset" => {
            return Failure::refused(what).help("`partage dataset list` shows those there are").kind(kind);
        }
        "unknown_version" | "broken_version" => return Failure::refused(what).kind(kind),
        _ => {}
    }
    match reply.status {
        StatusCode::BAD_REQUEST => Failure::usage(message),
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
            Failure::not_reachable(message)
        }
        _ => Failure::refused(message),
    }
    .kind(kind)
}

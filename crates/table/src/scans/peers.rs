//! Asking another node for rows: of a shard that it leads, or of several keys.

use super::json::{from_node, place};
use super::{Leader, ShardPage, soon};
use crate::limits;
use crate::rows::ScanRange;
use crate::service::{Refusal, Refused};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{self, Client};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_dialer::Dialer;
use partage_service::table::filter::Filter;
use partage_service::table::replication::Consistency;
use partage_wire::json::ErrorBody;
use partage_wire::table::ShardRows;
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use tokio::time::timeout;

/// The beginning of every path of a table.
pub(crate) const TABLES: &str = "/v1/tables/";

/// Other nodes, over connections that are kept for a while.
#[derive(Debug, Clone)]
pub(crate) struct Peers(Client<HttpConnector, Full<Bytes>>);

/// What another node has answered: nothing whole, and whether the request may have arrived.
#[derive(Debug)]
pub(crate) struct NoAnswer {
    pub(crate) is_sent: bool,
    pub(crate) why: String,
}

impl Peers {
    pub(super) fn new() -> Peers {
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(limits::PEER_CONNECTIONS_IDLE)
            .build(Dialer::PEER.http());
        Peers(client)
    }

    /// A page of a shard. Nothing is changed by it, so it may be asked for again whatever went wrong.
    pub(super) async fn ask(
        &self,
        leader: &Leader,
        table: &KeyspaceName,
        range: &ScanRange,
        filter: Option<&Filter>,
        consistency: Consistency,
    ) -> Result<ShardPage, Refused> {
        let silent = |why: String| soon(format!("node {} does not answer: {why}", leader.node));
        let uri = format!("http://{}{}", leader.address, path(leader, table, range, filter, consistency));
        let request = Request::get(uri).body(Full::default()).map_err(|error| silent(error.to_string()))?;
        let exchanged = self.exchange(request, limits::SHARD_ANSWER_BYTES).await;
        let (status, body) = exchanged.map_err(|error| silent(error.why))?;
        match status {
            StatusCode::OK => read(&body).ok_or_else(|| silent("its answer is not understood".to_owned())),
            refused => Err(refusal(&leader.node, refused, &body)),
        }
    }

    /// Sends a request, and reads its answer, of so many bytes at most.
    pub(crate) async fn exchange(
        &self,
        request: Request<Full<Bytes>>,
        most: usize,
    ) -> Result<(StatusCode, Bytes), NoAnswer> {
        let exchange = async {
            let not_sent =
                |error: legacy::Error| NoAnswer { is_sent: !error.is_connect(), why: error.to_string() };
            let (head, body) = self.0.request(request).await.map_err(not_sent)?.into_parts();
            let body = Limited::new(body, most).collect().await;
            let body = body.map_err(|error| NoAnswer { is_sent: true, why: error.to_string() })?;
            Ok((head.status, body.to_bytes()))
        };
        let late = |_| Err(NoAnswer { is_sent: true, why: "it took too long".to_owned() });
        timeout(limits::SHARD_ANSWER, exchange).await.unwrap_or_else(late)
    }
}

fn path(
    leader: &Leader,
    table: &KeyspaceName,
    range: &ScanRange,
    filter: Option<&Filter>,
    consistency: Consistency,
) -> String {
    let coded = |bytes: &[u8]| percent_encode(bytes, NON_ALPHANUMERIC).to_string();
    let (table, shard) = (coded(table.as_str().as_bytes()), leader.shard.0);
    let mut path = format!("{TABLES}{table}/shards/{shard}/rows?limit={}", range.most);
    path += &format!("&from={}&prefix={}", coded(range.from.as_bytes()), coded(range.prefix.as_bytes()));
    path.extend(range.to.iter().map(|to| format!("&to={}", coded(to.as_bytes()))));
    path.extend(filter.iter().map(|filter| format!("&filter={}", coded(filter.to_string().as_bytes()))));
    path += &format!("&keys_only={}&{}", !range.with_values, consistency_query(consistency));
    path
}

/// The parameters by which a request has that consistency.
pub(crate) fn consistency_query(consistency: Consistency) -> String {
    match consistency {
        Consistency::Linearizable => "consistency=linearizable".to_owned(),
        Consistency::Any => "consistency=any".to_owned(),
        Consistency::Bounded(bound_ms) => format!("consistency=bounded&bound_ms={bound_ms}"),
    }
}

fn read(body: &[u8]) -> Option<ShardPage> {
    let ShardRows { rows, next, after } = serde_json::from_slice(body).ok()?;
    let rows = rows.into_iter().map(from_node).collect::<Option<_>>()?;
    let after = match after {
        Some(after) => Some(place(after)?),
        None => None,
    };
    Some(ShardPage { rows, next: next.map(|key| key.0), after })
}

/// Why another node has not done what it was asked for.
pub(crate) fn refusal(node: &NodeId, status: StatusCode, body: &[u8]) -> Refused {
    let told = serde_json::from_slice(body).map(|ErrorBody { error }| error.message);
    let message = format!("node {node}: {}", told.unwrap_or_else(|_| status.to_string()));
    let refusal = match status {
        StatusCode::MISDIRECTED_REQUEST => Refusal::Soon,
        StatusCode::SERVICE_UNAVAILABLE => serde_json::from_slice(body)
            .ok()
            .and_then(|ErrorBody { error }| Refusal::of_word(&error.kind))
            .unwrap_or(Refusal::Soon),
        StatusCode::BAD_REQUEST => Refusal::Invalid,
        _ => Refusal::Stopped,
    };
    Refused { refusal, message }
}

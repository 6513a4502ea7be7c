//! The server's own pages, below `/-/`: health, metrics, and what an operator has it do.

use super::refusal::Refusal;
use super::request::fields;
use super::server::ThreadState;
use super::{metrics, status};
use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Method, Response, StatusCode};
use thiserror::Error;

/// Why a node does not take an order for a version.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum OrderError {
    /// The dataset or the version cannot have that name.
    #[error("{0}")]
    Name(String),
    /// The node knows no such dataset.
    #[error("there is no dataset {dataset:?} here")]
    NoDataset {
        /// The name of the dataset that the order is for.
        dataset: String,
    },
    /// Neither the source nor the node has the version.
    #[error("dataset {dataset} has no version {version}: it has {known}")]
    NoVersion {
        /// The name of the dataset.
        dataset: String,
        /// The name of the version.
        version: String,
        /// The names of the versions there are.
        known: String,
    },
    /// The node has tried to load the version, and cannot.
    #[error("version {version} of dataset {dataset} cannot be loaded: {reason}")]
    Broken {
        /// The name of the dataset.
        dataset: String,
        /// The name of the version.
        version: String,
        /// The file, the place in it, and what is wrong there.
        reason: String,
    },
    /// The node is leaving or has too much to do.
    #[error("the node is leaving or has too much to do")]
    Busy,
}

/// What an operator may have the node do. Calls return at once.
pub trait Orders: Send + Sync {
    /// Look at the source now.
    fn refresh(&self);

    /// Give clients of a dataset this version, on every node; or none in particular, but the latest.
    ///
    /// # Errors
    /// Why that cannot be.
    fn pin(&self, dataset: &str, version: Option<&str>) -> Result<(), OrderError>;

    /// Whether clients of a dataset could be given this version: what `pin` would refuse, this refuses.
    ///
    /// # Errors
    /// Why that cannot be.
    fn check_pin(&self, dataset: &str, version: Option<&str>) -> Result<(), OrderError>;

    /// What a worker of a coordinator says of itself; none where there is no coordinator.
    fn worker(&self) -> Option<serde_json::Value> {
        None
    }
}

/// Answers `/-/<name>`: health, metrics, worker; and, by POST, orders of an operator.
pub fn page(
    thread: &ThreadState,
    name: &str,
    method: &Method,
    query: Option<&str>,
) -> Result<Response<Bytes>, Refusal> {
    let is_read = method == Method::GET || method == Method::HEAD;
    match name.split_once('/').unwrap_or((name, "")) {
        ("health", "") if is_read => Ok(status::health(&thread.server)),
        ("metrics", "") if is_read => metrics::answer(&thread.server),
        ("worker", "") if is_read => worker(thread),
        ("refresh", "") if method == Method::POST => {
            orders(thread)?.refresh();
            Ok(accepted("{\"refresh\":\"begun\"}"))
        }
        ("pin", dataset) if method == Method::POST || method == Method::DELETE => {
            pin(thread, dataset, method, query)
        }
        ("health" | "metrics" | "worker", "") => Err(Refusal::method("GET, HEAD")),
        ("refresh", "") => Err(Refusal::method("POST")),
        ("pin", _) => Err(Refusal::method("POST, DELETE")),
        _ => {
            let other: String = name.chars().take(64).collect();
            let what = format!("there is no page {other:?}");
            let way_out = "health, metrics, worker, refresh and pin are there";
            Err(Refusal::new(StatusCode::NOT_FOUND, "no_page", what, way_out))
        }
    }
}

fn pin(
    thread: &ThreadState,
    dataset: &str,
    method: &Method,
    query: Option<&str>,
) -> Result<Response<Bytes>, Refusal> {
    let orders = orders(thread)?;
    if !thread.server.datasets().contains_key(dataset) {
        return Err(Refusal::no_dataset(dataset));
    }
    let fields = fields(query.unwrap_or(""))?;
    let version = fields.iter().find(|(name, _)| *name == "version");
    let version = version.map(|(_, version)| String::from_utf8_lossy(version).into_owned());
    let is_dry = fields.iter().any(|(name, value)| *name == "dry_run" && &**value == b"true");
    match (version.as_deref(), method == Method::POST) {
        (version @ Some(_), true) | (version @ None, false) if is_dry => orders.check_pin(dataset, version),
        (version @ Some(_), true) | (version @ None, false) => orders.pin(dataset, version),
        (None, true) | (Some(_), false) => {
            let what = "what clients get is not said";
            let way_out = "POST ?version=VERSION gives them that version; DELETE, without one, the latest";
            return Err(Refusal::bad("pin", what, way_out));
        }
    }
    .map_err(|why| not_pinned(dataset, &why))?;
    Ok(if is_dry { json("{\"pin\":\"would be told\"}") } else { accepted("{\"pin\":\"told\"}") })
}

fn not_pinned(dataset: &str, why: &OrderError) -> Refusal {
    let versions = format!("GET /{dataset} shows the versions there are");
    let (status, kind, way_out) = match why {
        OrderError::Name(_) => (StatusCode::BAD_REQUEST, "pin", versions),
        OrderError::NoDataset { dataset } => return Refusal::no_dataset(dataset),
        OrderError::NoVersion { .. } => (StatusCode::NOT_FOUND, "unknown_version", versions),
        OrderError::Broken { .. } => {
            let way_out = "pin another version; or mend its files, POST /-/refresh, and pin it when it is no error any more";
            (StatusCode::CONFLICT, "broken_version", way_out.to_owned())
        }
        OrderError::Busy => (StatusCode::SERVICE_UNAVAILABLE, "busy", "try again".to_owned()),
    };
    Refusal::new(status, kind, why, way_out)
}

fn orders(thread: &ThreadState) -> Result<&dyn Orders, Refusal> {
    thread.server.settings.orders.as_deref().ok_or_else(|| {
        let what = "this server serves what it was given, and takes no orders";
        Refusal::new(StatusCode::NOT_FOUND, "no_orders", what, "ask a node of a cluster")
    })
}

/// What the worker of this node says of itself, for the coordinator that checks back.
fn worker(thread: &ThreadState) -> Result<Response<Bytes>, Refusal> {
    let told = thread.server.settings.orders.as_deref().and_then(Orders::worker).ok_or_else(|| {
        let what = "this node is under no coordinator";
        Refusal::new(StatusCode::NOT_FOUND, "no_worker", what, "start it with --coordinator to have it be")
    })?;
    let mut response = Response::new(Bytes::from(format!("{told}\n")));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

fn accepted(body: &'static str) -> Response<Bytes> {
    let mut response = json(body);
    *response.status_mut() = StatusCode::ACCEPTED;
    response
}

fn json(body: &'static str) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from_static(body.as_bytes()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

//! Verbs about rows: they ask a node of tables, which asks the right one.

use super::LISTEN;
use crate::http::{Reply, address, first_answer, segment, segment_of};
use crate::output::{Failure, Output, say};
use bytes::Bytes;
use clap::Args;
use hyper::header::{ETAG, HeaderName, HeaderValue, IF_MATCH, IF_NONE_MATCH};
use hyper::{HeaderMap, Method, StatusCode};
use partage_wire::json::{ErrorBody, ErrorDetail};
use partage_wire::request::unavailable::is_not_begun;
use serde_json::json;
use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long the command asks again while a shard changes hands: longer than the coordinator takes to find a node dead.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Rest between two attempts.
pub(super) const REST: Duration = Duration::from_millis(200);

pub(super) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const EXISTED: &str = "partage-existed";
const EXPIRES_MS: &str = "partage-expires-ms";

/// Which node is asked.
#[derive(Debug, Clone, Args)]
pub struct TableNodes {
    /// Nodes of tables, as host:port separated by commas; the command asks the first one that answers
    #[arg(
        long,
        env = "PARTAGE_TABLE_NODE",
        value_delimiter = ',',
        default_value = LISTEN,
        value_parser = address
    )]
    node: Vec<String>,
}

/// Which node is asked, and for which row.
#[derive(Debug, Clone, Args)]
struct Target {
    /// Name of the table
    table: String,
    /// The key, as plain text
    key: String,
    #[command(flatten)]
    nodes: TableNodes,
}

/// When a write is done.
#[derive(Debug, Clone, Args)]
struct Conditions {
    /// Write only if the row has this version, as `get` prints it; * = only if the row is there
    #[arg(long, value_name = "VERSION", conflicts_with = "if_absent")]
    if_version: Option<String>,
    /// Write only if there is no row of the key
    #[arg(long)]
    if_absent: bool,
}

impl Conditions {
    fn headers(&self) -> Result<HeaderMap, Failure> {
        let mut headers = HeaderMap::new();
        if let Some(version) = &self.if_version {
            let tag = if version == "*" { version.clone() } else { format!("\"{version}\"") };
            let tag = HeaderValue::from_str(&tag).map_err(|_| {
                Failure::usage(format!(
                    "--if-version {version:?} is no version: `partage table get` prints it"
                ))
            })?;
            headers.insert(IF_MATCH, tag);
        }
        if self.if_absent {
            headers.insert(IF_NONE_MATCH, HeaderValue::from_static("*"));
        }
        headers.insert(IDEMPOTENCY_KEY, request_name()?);
        Ok(headers)
    }
}

/// A name for a write, by which it may be sent to another node when one has broken off.
pub(super) fn request_name() -> Result<HeaderValue, Failure> {
    let name = partage_random::bytes::<16>().map(|byte| format!("{byte:02x}")).concat();
    HeaderValue::from_str(&name).map_err(Failure::failed)
}

impl TableNodes {
    /// These nodes, each as host:port.
    pub fn at(node: Vec<String>) -> TableNodes {
        TableNodes { node }
    }

    /// The answer of the first node that gives one; asks again while a shard changes hands.
    pub(super) async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Reply, Failure> {
        let until = Instant::now() + PATIENCE;
        loop {
            let reply = first_answer(&self.node, &method, path, &headers, &body).await.map_err(|error| {
                let asked = self.node.join(", ");
                Failure::not_reachable(format!("no node of tables answers at {asked}: {}", error.why))
                    .help("start one with `partage table serve`, or name it with --node HOST:PORT")
            })?;
            let is_not_begun = reply.status == StatusCode::SERVICE_UNAVAILABLE && is_not_begun(&reply.body);
            if !is_not_begun || Instant::now() >= until {
                return Ok(reply);
            }
            sleep(REST).await;
        }
    }
}

impl Target {
    async fn ask(
        &self,
        method: Method,
        query: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Reply, Failure> {
        let (table, key) = (segment(&self.table), segment_of(self.key.as_bytes()));
        self.nodes.ask(method, &format!("/v1/tables/{table}/keys/{key}{query}"), headers, body).await
    }

    fn refusal(&self, reply: &Reply) -> Failure {
        refusal(&self.table, reply)
    }
}

/// What a node says that has not done as it was asked.
pub(super) fn refusal(table: &str, reply: &Reply) -> Failure {
    let Ok(ErrorBody { error: ErrorDetail { kind, message, .. } }) = serde_json::from_slice(&reply.body)
    else {
        return Failure::failed(format!("{}: {}", reply.status, String::from_utf8_lossy(&reply.body)));
    };
    let failure = match reply.status {
        StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE => Failure::usage(message),
        StatusCode::SERVICE_UNAVAILABLE => Failure::not_reachable(message),
        StatusCode::GATEWAY_TIMEOUT | StatusCode::BAD_GATEWAY => Failure::not_done(message),
        StatusCode::MISDIRECTED_REQUEST => Failure::refused(format!("no node serves table {table}"))
            .help("`partage table list` lists the tables"),
        _ => Failure::refused(message),
    };
    failure.kind(kind)
}

fn text_of(reply: &Reply, name: impl hyper::header::AsHeaderName) -> Option<String> {
    reply.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

fn version_of(reply: &Reply) -> Option<String> {
    text_of(reply, ETAG).map(|tag| tag.trim_matches('"').to_owned())
}

/// `partage table get`
#[derive(Debug, Args)]
pub struct GetArgs {
    #[command(flatten)]
    target: Target,
    /// How fresh: linearizable (everything acknowledged before), any, or the age in milliseconds that the answer may have
    #[arg(long, default_value = "linearizable", value_name = "WORD|MS")]
    consistency: String,
}

impl GetArgs {
    /// Runs it.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let query = match (self.consistency.as_str(), self.consistency.parse::<u64>()) {
            (_, Ok(bound_ms)) => format!("?consistency=bounded&bound_ms={bound_ms}"),
            (word @ ("linearizable" | "any"), _) => format!("?consistency={word}"),
            (other, _) => {
                return Err(Failure::usage(format!("--consistency {other:?} is not known"))
                    .help("give linearizable, any, or a number of milliseconds"));
            }
        };
        let reply = self.target.ask(Method::GET, &query, HeaderMap::new(), Bytes::new()).await?;
        // That of a row that is not there names its shard's log; of a table that no node knows it does not.
        if reply.status == StatusCode::NOT_FOUND && reply.headers.contains_key("partage-applied") {
            let Target { table, key, .. } = &self.target;
            return Err(Failure::refused(format!("table {table} has no key {key:?}")).kind("absent"));
        }
        if reply.status != StatusCode::OK {
            return Err(self.target.refusal(&reply));
        }
        if !output.is_json() {
            output.bytes(&reply.body);
            return Ok(());
        }
        let expires_ms = text_of(&reply, EXPIRES_MS).and_then(|text| text.parse::<u64>().ok());
        output.json(&json!({
            "key": self.target.key,
            "value": String::from_utf8_lossy(&reply.body),
            "version": version_of(&reply),
            "expires_ms": expires_ms,
        }))
    }
}

/// `partage table put`
#[derive(Debug, Args)]
pub struct PutArgs {
    #[command(flatten)]
    target: Target,
    /// The value, as plain text [default: what --file names]
    #[arg(conflicts_with = "file", required_unless_present = "file")]
    value: Option<String>,
    /// File whose bytes are the value; - for stdin
    #[arg(long)]
    file: Option<PathBuf>,
    /// Milliseconds after which the row ends [default: never]
    #[arg(long, value_name = "MS")]
    ttl_ms: Option<u64>,
    #[command(flatten)]
    conditions: Conditions,
}

impl PutArgs {
    fn value(&self) -> Result<Bytes, Failure> {
        let Some(file) = &self.file else { return Ok(self.value.clone().unwrap_or_default().into()) };
        let cannot = |error| Failure::usage(format!("cannot read {}: {error}", file.display()));
        if file.as_os_str() == "-" {
            let mut bytes = Vec::new();
            std::io::stdin().read_to_end(&mut bytes).map_err(cannot)?;
            return Ok(bytes.into());
        }
        std::fs::read(file).map(Bytes::from).map_err(cannot)
    }

    /// Runs it.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let query = self.ttl_ms.map(|ttl_ms| format!("?ttl_ms={ttl_ms}")).unwrap_or_default();
        let (value, headers) = (self.value()?, self.conditions.headers()?);
        let reply = self.target.ask(Method::PUT, &query, headers, value).await?;
        written(&self.target, &reply, output)
    }
}

/// `partage table delete`
#[derive(Debug, Args)]
pub struct DeleteArgs {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    conditions: Conditions,
}

impl DeleteArgs {
    /// Runs it.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let reply = self.target.ask(Method::DELETE, "", self.conditions.headers()?, Bytes::new()).await?;
        written(&self.target, &reply, output)
    }
}

fn written(target: &Target, reply: &Reply, output: &mut Output) -> Result<(), Failure> {
    if !reply.status.is_success() {
        return Err(target.refusal(reply));
    }
    let existed = text_of(reply, EXISTED).as_deref() == Some("true");
    if output.is_json() {
        return output.json(&json!({ "key": target.key, "version": version_of(reply), "existed": existed }));
    }
    match version_of(reply) {
        Some(version) => say(&format!("version {version}")),
        None if existed => say("deleted"),
        None => say("there was no such key"),
    }
    Ok(())
}

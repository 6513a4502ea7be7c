//! What a node tells of itself and of the others.

use super::source::DATASET;
use crate::http::Http;
use serde_json::Value;
use std::collections::BTreeSet;

/// The JSON at `path`.
pub async fn json(http: &Http, address: &str, path: &str) -> Result<Value, String> {
    let reply = http.ask(hyper::Method::GET, address, path, &[("accept", "application/json")], "").await?;
    serde_json::from_slice(&reply.body).map_err(|error| format!("{error}: {}", reply.text()))
}

/// The partitions that a node has of a version, by its own word.
pub async fn held(http: &Http, address: &str, version: &str) -> Result<BTreeSet<u32>, String> {
    let told = json(http, address, "/healthz").await?;
    let partitions = told[DATASET][version]["partitions"].as_array().cloned().unwrap_or_default();
    Ok(partitions.iter().filter_map(Value::as_u64).map(|partition| partition as u32).collect())
}

/// The nodes of which one can tell that they know a version, itself among them.
pub async fn known(http: &Http, address: &str, version: &str) -> Result<BTreeSet<String>, String> {
    let told = json(http, address, &format!("/{DATASET}")).await?;
    let nodes = told["versions"][version]["nodes"].as_object();
    Ok(nodes.map(|nodes| nodes.keys().cloned().collect()).unwrap_or_default())
}

/// The state of a version at a node, by its own word.
pub async fn state(http: &Http, address: &str, version: &str) -> Result<String, String> {
    let told = json(http, address, "/healthz").await?;
    Ok(told[DATASET][version]["state"].as_str().unwrap_or("unknown").to_owned())
}

/// The seat of a node, by its own word; empty as long as it has none.
pub async fn shard_id(http: &Http, address: &str) -> Result<String, String> {
    let reply = http.get(address, "/healthz").await?;
    Ok(reply.header("x-sequins-shard-id").unwrap_or_default().to_owned())
}

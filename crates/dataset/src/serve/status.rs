//! How datasets stand, over all nodes: JSON for programs, and what `page.rs` shows to people.
//!
//! Each node tells of itself; the one that is asked puts together what all say. The JSON has the names that Sequins
//! gives these things, and a few more, so that what reads the one reads the other.

use super::refusal::Refusal;
use super::request::by_peer;
use super::server::{ServerState, ThreadState};
use super::{answer, page};
use crate::catalogue::{Dataset, Link, State, Trouble, Version};
use crate::limits;
use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::request::Parts;
use http::{Response, StatusCode};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

/// `GET /`.
pub async fn home(thread: &ThreadState, parts: &Parts) -> Result<Response<Bytes>, Refusal> {
    let mut status = here(&thread.server, None);
    if by_peer(parts.uri.query())?.is_none() {
        let silent = merge_others(thread, &mut status, "/").await;
        status["unreachable"] = json!(silent);
    }
    summarise(&mut status);
    Ok(shown(parts, &status, None))
}

/// `GET /<dataset>`.
pub async fn dataset(thread: &ThreadState, name: &str, parts: &Parts) -> Result<Response<Bytes>, Refusal> {
    let is_known = thread.server.datasets().contains_key(name);
    if !is_known && !thread.server.catalogue.troubles().datasets.contains_key(name) {
        return Err(thread.server.not_there(Refusal::no_dataset(name)));
    }
    let mut status = here(&thread.server, Some(name));
    if by_peer(parts.uri.query())?.is_none() {
        let silent = merge_others(thread, &mut status, &format!("/{name}")).await;
        status["unreachable"] = json!(silent);
    }
    summarise(&mut status);
    Ok(shown(parts, &status, Some(name)))
}

/// `GET /-/health`: well is who can answer requests; what is behind is said, and is no reason to be stopped.
pub fn health(server: &ServerState) -> Response<Bytes> {
    let serving = server.catalogue.datasets().iter().filter(|dataset| dataset.serving().is_some()).count();
    let stopping = server.stopping.load(std::sync::atomic::Ordering::Relaxed);
    let status = if stopping { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    let awaited = server.catalogue.awaited();
    let word = match (stopping, &awaited) {
        (true, _) => "stopping",
        (false, Some(_)) => "starting",
        (false, None) => "ok",
    };
    let datasets = server.catalogue.datasets().len();
    let mut told = json!({ "status": word, "datasets": datasets, "serving": serving });
    if let Some(awaited) = awaited {
        told["awaited"] = awaited.as_str().into();
    }
    json_answer(status, &told)
}

/// `GET /healthz`, as Sequins has it: this node's versions; 404 unless one is active or being built.
pub fn healthz(server: &ServerState) -> Response<Bytes> {
    let me = address(server);
    let mut all = Map::new();
    let mut is_well = false;
    for dataset in server.catalogue.datasets() {
        let current = dataset.serving();
        let versions: Map<String, Value> = dataset
            .versions()
            .iter()
            .map(|version| {
                is_well |= matches!(version.state(), State::Active | State::Building | State::Held { .. });
                (version.name().to_string(), node(server, version, current.as_ref(), &me))
            })
            .collect();
        all.insert(dataset.name().to_string(), Value::Object(versions));
    }
    let status = if is_well { StatusCode::OK } else { StatusCode::NOT_FOUND };
    let mut response = json_answer(status, &Value::Object(all));
    let shard_id = &server.catalogue.neighbours().me.shard_id;
    if !shard_id.is_empty() {
        response.headers_mut().insert(super::SEQUINS_SHARD_ID, answer::text(shard_id));
    }
    response
}

fn json_answer(status: StatusCode, body: &Value) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(format!("{body:#}\n")));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A page for who prefers HTML, and JSON for all others.
fn shown(parts: &Parts, status: &Value, dataset: Option<&str>) -> Response<Bytes> {
    let accept = parts.headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or("");
    let mut response = match accept.contains("text/html") {
        true => {
            let mut response = Response::new(Bytes::from(page::render(status, dataset)));
            let kind = HeaderValue::from_static("text/html; charset=utf-8");
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
            let none = HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'");
            response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, none);
            response
        }
        // Sequins gives one dataset without its name around it.
        false => match dataset {
            Some(name) => {
                let mut one = status["dbs"][name].clone();
                one["nodes"] = status["nodes"].clone();
                one["unreachable"] = status["unreachable"].clone();
                json_answer(StatusCode::OK, &one)
            }
            None => json_answer(StatusCode::OK, status),
        },
    };
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept"));
    response
}

fn address(server: &ServerState) -> String {
    let me = server.catalogue.neighbours().me.address.to_string();
    if me.is_empty() { "localhost".to_owned() } else { me }
}

/// What this node tells of itself.
fn here(server: &ServerState, only: Option<&str>) -> Value {
    let me = address(server);
    let datasets = server.catalogue.datasets();
    let is_asked = |name: &str| only.is_none_or(|only| name == only);
    let mut told: Map<String, Value> = datasets
        .iter()
        .filter(|dataset| is_asked(dataset.name().as_str()))
        .map(|dataset| (dataset.name().to_string(), one(server, dataset, &me)))
        .collect();
    let troubles = server.catalogue.troubles();
    for name in troubles.datasets.keys().filter(|name| is_asked(name.as_str())) {
        // One that never could be looked at is told of, too.
        let nothing = || json!({ "content_type": "", "versions": {}, "source_errors": {} });
        told.entry(name.as_str()).or_insert_with(nothing);
    }
    for (name, one) in &mut told {
        if let Some(refused) = troubles.refused.get(name.as_str()) {
            one["refused"] = json!(refused);
        }
        if let Some(trouble) = troubles.of(name) {
            one["source_errors"][&me] = trouble_told(trouble);
        }
    }
    let shard_id = server.catalogue.neighbours().me.shard_id.clone();
    json!({ "dbs": told, "shard_id": shard_id, "node": me, "nodes": { me: of_me(server) } })
}

/// What this node tells of itself, whatever its datasets.
fn of_me(server: &ServerState) -> Value {
    let troubles = server.catalogue.troubles();
    let shard_id = &server.catalogue.neighbours().me.shard_id;
    let mut told = json!({ "shard_id": shard_id, "coordination": troubles.link.word() });
    if let Link::Away(trouble) = &troubles.link {
        told["coordination_error"] = trouble_told(trouble);
    }
    told["coordinator"] = troubles.coordinator.word().into();
    if let Link::Away(trouble) = &troubles.coordinator {
        told["coordinator_error"] = trouble_told(trouble);
    }
    if let Some(trouble) = &troubles.source {
        told["source_error"] = trouble_told(trouble);
    }
    if let Some(check) = server.catalogue.store_check() {
        told["store_check"] = json!({ "bytes": check.bytes, "bytes_in_all": check.bytes_in_all });
    }
    told
}

fn trouble_told(trouble: &Trouble) -> Value {
    json!({ "error": trouble.reason, "since": written(trouble.since), "times": trouble.times })
}

fn one(server: &ServerState, dataset: &Dataset, me: &str) -> Value {
    let current = dataset.serving();
    let versions: Map<String, Value> = dataset
        .versions()
        .iter()
        .map(|version| {
            let told = json!({
                "path": version.source(),
                "num_partitions": version.partitions(),
                "partitioner": version.partitioner().to_string(),
                "target_replication": dataset.options().replication,
                "nodes": { me: node(server, version, current.as_ref(), me) },
            });
            (version.name().to_string(), told)
        })
        .collect();
    let mut told =
        json!({ "content_type": dataset.options().content_type, "versions": versions, "source_errors": {} });
    if let Some(pinned) = dataset.pinned() {
        told["pinned"] = json!({ me: pinned.as_str() });
    }
    told
}

fn node(server: &ServerState, version: &Arc<Version>, current: Option<&Arc<Version>>, me: &str) -> Value {
    let places = version.places();
    let partitions: Vec<usize> = (0..places.len()).filter(|number| places[*number].here.is_some()).collect();
    let (keys, bytes) = places
        .iter()
        .filter_map(|place| place.here.as_ref())
        .fold((0, 0), |(keys, bytes), reader| (keys + reader.len(), bytes + reader.describe().file_bytes));
    let progress = version.progress();
    let mut told = json!({
        "name": me,
        "shard_id": server.catalogue.neighbours().me.shard_id,
        "created_at": written(version.created_at()),
        "current": current.is_some_and(|current| current.name() == version.name()),
        "state": version.state().word(),
        "partitions": partitions,
        "keys": keys,
        "bytes": bytes,
        "in_flight": version.in_flight(),
        "loading": {
            "partitions": partitions.len(),
            "partitions_in_all": progress.partitions_in_all.max(partitions.len() as u32),
            "bytes": progress.bytes,
            "bytes_in_all": progress.bytes_in_all,
        },
    });
    if let Some(at) = version.active_at() {
        told["active_at"] = written(at).into();
    }
    match version.state() {
        State::Error { reason, tries, next_try } => {
            told["error"] = reason.into();
            told["tries"] = tries.into();
            if let Some(at) = next_try {
                told["next_try_at"] = written(at).into();
            }
        }
        State::Held { reason } => told["held"] = reason.into(),
        State::Building | State::Active | State::Removing => {}
    }
    let damaged = version.damaged();
    if !damaged.is_empty() {
        let damaged = damaged.iter().map(|(partition, reason)| (partition.to_string(), json!(reason)));
        told["damaged"] = Value::Object(damaged.collect());
    }
    if !version.differing().is_empty() {
        told["differing"] = json!(*version.differing());
    }
    told
}

/// RFC 3339, in UTC.
fn written(seconds: u64) -> String {
    let date = httpdate::HttpDate::from(UNIX_EPOCH + Duration::from_secs(seconds)).to_string();
    // "Sun, 06 Nov 1994 08:49:37 GMT"
    let words: Vec<&str> = date.split(' ').collect();
    let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    match words[..] {
        [_, day, month, year, time, _] => {
            let month = months.iter().position(|name| *name == month).map_or(0, |at| at + 1);
            format!("{year}-{month:02}-{day}T{time}Z")
        }
        _ => date,
    }
}

/// Adds what the other nodes tell; returns those that told nothing.
async fn merge_others(thread: &ThreadState, status: &mut Value, path: &str) -> Vec<String> {
    let others = thread.server.catalogue.neighbours().others.clone();
    let peer_request =
        format!("GET {path}?proxy=status HTTP/1.1\r\naccept: application/json\r\n\r\n").into_bytes();
    let asked = others.iter().take(limits::STATUS_NODES).map(|other| {
        let peer_request = &peer_request;
        async move {
            let answered = tokio::time::timeout(
                limits::STATUS_TIMEOUT,
                thread.pool.send(&other.address, peer_request, false),
            );
            let answer = answered.await.ok()?.ok()?;
            let is_told = answer.status() == StatusCode::OK;
            is_told.then(|| serde_json::from_slice::<Value>(answer.body()).ok()).flatten()
        }
    });
    let told = futures::future::join_all(asked).await;
    let mut silent = Vec::new();
    for (other, told) in others.iter().zip(told) {
        match told {
            Some(told) => merge(status, &told, path),
            None => silent.push(other.address.to_string()),
        }
    }
    silent
}

fn merge(status: &mut Value, told: &Value, path: &str) {
    let name = path.trim_start_matches('/');
    let datasets: Vec<(&str, &Value)> = match name {
        "" => told["dbs"].as_object().into_iter().flatten().map(|(name, one)| (name.as_str(), one)).collect(),
        name => vec![(name, told)],
    };
    for (name, one) in datasets {
        let ours = &mut status["dbs"][name];
        if !ours.is_object() {
            *ours = one.clone();
            // What it says of itself comes below.
            if let Some(ours) = ours.as_object_mut() {
                ours.remove("nodes");
            }
            continue;
        }
        for of_nodes in ["source_errors", "pinned"] {
            if one[of_nodes].is_object() {
                add(&mut ours[of_nodes], &one[of_nodes]);
            }
        }
        for (version, theirs) in one["versions"].as_object().into_iter().flatten() {
            let ours = &mut ours["versions"][version];
            if !ours.is_object() {
                *ours = theirs.clone();
                continue;
            }
            add(&mut ours["nodes"], &theirs["nodes"]);
        }
    }
    add(&mut status["nodes"], &told["nodes"]);
}

/// What each node has said.
fn add(ours: &mut Value, theirs: &Value) {
    for (node, told) in theirs.as_object().into_iter().flatten() {
        ours[node] = told.clone();
    }
}

/// Counts replicas, now that all have told what they have.
fn summarise(status: &mut Value) {
    let datasets = status["dbs"].as_object_mut().into_iter().flatten();
    for (_, dataset) in datasets {
        for (_, version) in dataset["versions"].as_object_mut().into_iter().flatten() {
            count_replicas(version);
        }
    }
}

fn count_replicas(version: &mut Value) {
    let partitions = version["num_partitions"].as_u64().unwrap_or(0).min(u64::from(u32::MAX)) as usize;
    let target = version["target_replication"].as_u64().unwrap_or(0) as usize;
    let mut replicas: BTreeMap<usize, usize> = BTreeMap::new();
    for node in version["nodes"].as_object().into_iter().flatten().map(|(_, node)| node) {
        let holds = node["state"].as_str() != Some("ERROR");
        for partition in node["partitions"].as_array().into_iter().flatten().filter(|_| holds) {
            let number = partition.as_u64().unwrap_or(u64::MAX) as usize;
            if number < partitions {
                *replicas.entry(number).or_default() += 1;
            }
        }
    }
    let mut histogram: BTreeMap<usize, usize> =
        replicas.values().fold(BTreeMap::new(), |mut histogram, count| {
            *histogram.entry(*count).or_default() += 1;
            histogram
        });
    let missing = partitions - replicas.len();
    if missing > 0 {
        histogram.insert(0, missing);
    }
    let of = |keep: &dyn Fn(usize) -> bool| -> usize {
        histogram.iter().filter(|(count, _)| keep(**count)).map(|(_, partitions)| partitions).sum()
    };
    version["missing_partitions"] = missing.into();
    version["underreplicated_partitions"] = of(&|count| count > 0 && count < target).into();
    version["overreplicated_partitions"] = of(&|count| count > target).into();
    let sum: usize = replicas.values().sum();
    version["average_replication"] = (sum as f64 / partitions.max(1) as f64).into();
    let histogram: Map<String, Value> =
        histogram.into_iter().map(|(count, n)| (count.to_string(), n.into())).collect();
    version["replication_histogram"] = Value::Object(histogram);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_programs_read_them() {
        assert_eq!(written(784_111_777), "1994-11-06T08:49:37Z");
        assert_eq!(written(0), "1970-01-01T00:00:00Z");
    }

    #[test]
    fn replicas_are_counted_over_all_nodes_that_have_them() {
        let node = |state: &str, partitions: &[u32]| json!({ "state": state, "partitions": partitions });
        let mut version = json!({
            "num_partitions": 5,
            "target_replication": 2,
            "nodes": {
                "a": node("ACTIVE", &[0, 1, 2]),
                "b": node("BUILDING", &[0, 1, 9]),
                "c": node("REMOVING", &[0]),
                "d": node("ERROR", &[3]),
            },
        });
        count_replicas(&mut version);
        assert_eq!(version["replication_histogram"], json!({ "0": 2, "1": 1, "2": 1, "3": 1 }));
        let counts = ["missing_partitions", "underreplicated_partitions", "overreplicated_partitions"];
        assert_eq!(counts.map(|name| version[name].as_u64().unwrap()), [2, 1, 1]);
    }
}

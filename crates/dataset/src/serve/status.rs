//! How datasets stand, over all nodes: JSON for programs, and what `page.rs` shows to people.
//!
//! Each node tells of itself; the one that is asked puts together what all say. The JSON has the names that Sequins
//! gives these things, and a few more, so that what reads the one reads the other.

use super::refusal::Refusal;
use super::request::by_peer;
use super::server::{ServerState, ThreadState};
use super::{answer, page};
use crate::catalogue::{self, Link, State};
use crate::limits;
use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::request::Parts;
use http::{Response, StatusCode};
use partage_service::dataset::node as machine;
use partage_wire::dataset::status::{
    Dataset, Datasets, Health, HealthState, Loading, LocalVersion, Node, Trouble, Version,
};
use serde::Serialize;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::{Duration, UNIX_EPOCH};

/// Answers `GET /`: the status of all datasets.
pub async fn home(thread: &ThreadState, parts: &Parts) -> Result<Response<Bytes>, Refusal> {
    shown(thread, parts, None).await
}

/// Answers `GET /<dataset>`: the status of one dataset.
pub async fn dataset(thread: &ThreadState, name: &str, parts: &Parts) -> Result<Response<Bytes>, Refusal> {
    let is_known = thread.server.datasets().contains_key(name);
    if !is_known && !thread.server.catalogue.troubles().datasets.contains_key(name) {
        return Err(thread.server.not_there(Refusal::no_dataset(name)));
    }
    shown(thread, parts, Some(name)).await
}

/// `GET /-/health`: well is who can answer requests; what is behind is said, and is no reason to be stopped.
pub fn health(server: &ServerState) -> Response<Bytes> {
    let datasets = server.catalogue.datasets();
    let stopping = server.stopping.load(std::sync::atomic::Ordering::Relaxed);
    let code = if stopping { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    let awaited = server.catalogue.awaited().map(|awaited| (*awaited).clone());
    let status = match (stopping, &awaited) {
        (true, _) => HealthState::Stopping,
        (false, Some(_)) => HealthState::Starting,
        (false, None) => HealthState::Ok,
    };
    let serving = datasets.iter().filter(|dataset| dataset.serving().is_some()).count();
    json_answer(code, &Health { status: status.into(), datasets: datasets.len(), serving, awaited })
}

/// `GET /healthz`, as Sequins has it: this node's versions; 404 unless one is active or being built.
pub fn healthz(server: &ServerState) -> Response<Bytes> {
    let me = address(server);
    let versions = |dataset: &catalogue::Dataset| -> BTreeMap<String, LocalVersion> {
        let (current, versions) = (dataset.serving(), dataset.versions());
        let told = |version| local(server, version, current.as_deref(), &me);
        versions.iter().map(|version| (version.name().to_string(), told(version))).collect()
    };
    let datasets = server.catalogue.datasets();
    let all: BTreeMap<_, _> = datasets.iter().map(|one| (one.name().as_str(), versions(one))).collect();
    let well = [machine::State::Active, machine::State::Building, machine::State::Held];
    let is_well = all.values().flat_map(BTreeMap::values).any(|version| version.state.is_any(&well));
    let status = if is_well { StatusCode::OK } else { StatusCode::NOT_FOUND };
    let mut response = json_answer(status, &all);
    let shard_id = &server.catalogue.neighbours().me.shard_id;
    if !shard_id.is_empty() {
        response.headers_mut().insert(super::SEQUINS_SHARD_ID, answer::text(shard_id));
    }
    response
}

fn json_answer(status: StatusCode, body: &impl Serialize) -> Response<Bytes> {
    let text = serde_json::to_string_pretty(body).expect("a struct of texts and numbers is always JSON");
    let mut response = Response::new(Bytes::from(text + "\n"));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// All datasets or one: a page for who prefers HTML, and JSON for all others.
async fn shown(
    thread: &ThreadState,
    parts: &Parts,
    dataset: Option<&str>,
) -> Result<Response<Bytes>, Refusal> {
    let mut status = here(&thread.server, dataset);
    if by_peer(parts.uri.query())?.is_none() {
        status.unreachable = Some(merge_others(thread, &mut status, dataset).await);
    }
    status.dbs.values_mut().flat_map(|one| one.versions.values_mut()).for_each(count_replicas);
    let accept = parts.headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or("");
    let mut response = match dataset {
        _ if accept.contains("text/html") => {
            let mut response = Response::new(Bytes::from(page::render(&status, dataset)));
            let kind = HeaderValue::from_static("text/html; charset=utf-8");
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
            let none = HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'");
            response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, none);
            response
        }
        // Sequins gives one dataset without its name around it.
        Some(name) => {
            let Datasets { mut dbs, nodes, unreachable, .. } = status;
            let one = dbs.remove(name).unwrap_or_default();
            json_answer(StatusCode::OK, &Dataset { nodes, unreachable, ..one })
        }
        None => json_answer(StatusCode::OK, &status),
    };
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept"));
    Ok(response)
}

fn address(server: &ServerState) -> String {
    let me = server.catalogue.neighbours().me.address.to_string();
    if me.is_empty() { "localhost".to_owned() } else { me }
}

/// What this node tells of itself.
fn here(server: &ServerState, only: Option<&str>) -> Datasets {
    let me = address(server);
    let datasets = server.catalogue.datasets();
    let is_asked = |name: &str| only.is_none_or(|only| name == only);
    let mut dbs: BTreeMap<String, Dataset> = datasets
        .iter()
        .filter(|dataset| is_asked(dataset.name().as_str()))
        .map(|dataset| (dataset.name().to_string(), one(server, dataset, &me)))
        .collect();
    let troubles = server.catalogue.troubles();
    for name in troubles.datasets.keys().filter(|name| is_asked(name.as_str())) {
        // The status names a dataset that never could be looked at, too.
        dbs.entry(name.to_string()).or_default();
    }
    for (name, one) in &mut dbs {
        one.refused = troubles.refused.get(name.as_str()).cloned().unwrap_or_default();
        one.source_errors =
            troubles.of(name).map(|trouble| (me.clone(), told(trouble))).into_iter().collect();
    }
    let shard_id = server.catalogue.neighbours().me.shard_id.clone();
    let nodes = BTreeMap::from([(me.clone(), of_me(server))]);
    Datasets { dbs, shard_id, node: me, nodes, unreachable: None }
}

/// What this node tells of itself, whatever its datasets.
fn of_me(server: &ServerState) -> Node {
    let troubles = server.catalogue.troubles();
    let error = |link: &Link| match link {
        Link::Away(trouble) => Some(told(trouble)),
        Link::Unused | Link::Connecting | Link::Connected => None,
    };
    Node {
        shard_id: server.catalogue.neighbours().me.shard_id.clone(),
        coordination: troubles.link.state().into(),
        coordination_error: error(&troubles.link),
        coordinator: troubles.coordinator.state().into(),
        coordinator_error: error(&troubles.coordinator),
        source_error: troubles.source.as_ref().map(told),
        store_check: server.catalogue.store_check(),
    }
}

fn told(trouble: &catalogue::Trouble) -> Trouble {
    Trouble { error: trouble.reason.clone(), since: written(trouble.since), times: trouble.times }
}

fn one(server: &ServerState, dataset: &catalogue::Dataset, me: &str) -> Dataset {
    let pinned = dataset.pinned().map(|version| (me.to_owned(), version.to_string()));
    Dataset {
        content_type: dataset.options().content_type.clone(),
        versions: versions(server, dataset, me),
        pinned: pinned.into_iter().collect(),
        ..Dataset::default()
    }
}

/// What this node tells of the versions of a dataset.
fn versions(server: &ServerState, dataset: &catalogue::Dataset, me: &str) -> BTreeMap<String, Version> {
    let current = dataset.serving();
    let told = |version: &catalogue::Version| Version {
        path: version.source().to_owned(),
        num_partitions: version.partitions(),
        partitioner: version.partitioner().to_string(),
        target_replication: dataset.options().replication,
        nodes: BTreeMap::from([(me.to_owned(), local(server, version, current.as_deref(), me))]),
        ..Version::default()
    };
    dataset.versions().iter().map(|version| (version.name().to_string(), told(version))).collect()
}

/// What this node tells of a version.
fn local(
    server: &ServerState,
    version: &catalogue::Version,
    current: Option<&catalogue::Version>,
    me: &str,
) -> LocalVersion {
    let places = version.places();
    let here = || (0..).zip(&**places).filter_map(|(number, place)| Some((number, place.here.as_ref()?)));
    let partitions: Vec<u32> = here().map(|(number, _)| number).collect();
    let (progress, state) = (version.progress(), version.state());
    let mut told = LocalVersion {
        name: me.to_owned(),
        shard_id: server.catalogue.neighbours().me.shard_id.clone(),
        created_at: written(version.created_at()),
        active_at: version.active_at().map(written),
        current: current.is_some_and(|current| current.name() == version.name()),
        state: state.kind().into(),
        keys: here().map(|(_, reader)| reader.len()).sum(),
        bytes: here().map(|(_, reader)| reader.describe().file_bytes).sum(),
        in_flight: version.in_flight(),
        loading: Loading {
            partitions: partitions.len() as u32,
            partitions_in_all: progress.partitions_in_all.max(partitions.len() as u32),
            bytes: progress.bytes,
            bytes_in_all: progress.bytes_in_all,
        },
        partitions,
        damaged: (*version.damaged()).clone(),
        differing: (*version.differing()).clone(),
        ..LocalVersion::default()
    };
    match state {
        State::Error { reason, tries, next_try, is_superseded } => {
            (told.error, told.tries) = (Some(reason), Some(tries));
            told.next_try_at = next_try.map(written);
            told.superseded = is_superseded;
        }
        State::Held { reason } => told.held = Some(reason),
        State::Building | State::Active | State::Removing => {}
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
async fn merge_others(thread: &ThreadState, status: &mut Datasets, dataset: Option<&str>) -> Vec<String> {
    let others = thread.server.catalogue.neighbours().others.clone();
    let path = dataset.unwrap_or_default();
    let peer_request =
        format!("GET /{path}?proxy=status HTTP/1.1\r\naccept: application/json\r\n\r\n").into_bytes();
    let asked = others.iter().take(limits::STATUS_NODES).map(|other| {
        let peer_request = &peer_request;
        async move {
            let answered = tokio::time::timeout(
                limits::STATUS_TIMEOUT,
                thread.pool.send(&other.address, peer_request, false),
            );
            let answer = answered.await.ok()?.ok()?;
            let is_told = answer.status() == StatusCode::OK;
            is_told.then(|| read(answer.body(), dataset).ok()).flatten()
        }
    });
    let told = futures::future::join_all(asked).await;
    let mut silent = Vec::new();
    for (other, told) in others.iter().zip(told) {
        match told {
            Some((dbs, nodes)) => merge(status, dbs, nodes),
            None => silent.push(other.address.to_string()),
        }
    }
    silent
}

/// The datasets and nodes in what a peer answers: all, or one dataset.
fn read(
    body: &[u8],
    dataset: Option<&str>,
) -> serde_json::Result<(BTreeMap<String, Dataset>, BTreeMap<String, Node>)> {
    let Some(name) = dataset else {
        return serde_json::from_slice(body).map(|all: Datasets| (all.dbs, all.nodes));
    };
    let mut one: Dataset = serde_json::from_slice(body)?;
    let nodes = std::mem::take(&mut one.nodes);
    Ok((BTreeMap::from([(name.to_owned(), one)]), nodes))
}

fn merge(status: &mut Datasets, dbs: BTreeMap<String, Dataset>, nodes: BTreeMap<String, Node>) {
    for (name, theirs) in dbs {
        match status.dbs.entry(name) {
            Entry::Vacant(entry) => drop(entry.insert(theirs)),
            Entry::Occupied(entry) => merge_dataset(entry.into_mut(), theirs),
        }
    }
    status.nodes.extend(nodes);
}

fn merge_dataset(ours: &mut Dataset, theirs: Dataset) {
    ours.source_errors.extend(theirs.source_errors);
    ours.pinned.extend(theirs.pinned);
    for (version, theirs) in theirs.versions {
        match ours.versions.entry(version) {
            Entry::Vacant(entry) => drop(entry.insert(theirs)),
            Entry::Occupied(entry) => entry.into_mut().nodes.extend(theirs.nodes),
        }
    }
}

/// The number of nodes that have each partition, for those that any node has.
pub fn replicas(version: &Version) -> BTreeMap<u32, u32> {
    let mut replicas = BTreeMap::new();
    let nodes = version.nodes.values().filter(|node| !node.state.is(machine::State::Error));
    for partition in
        nodes.flat_map(|node| &node.partitions).filter(|number| **number < version.num_partitions)
    {
        *replicas.entry(*partition).or_default() += 1;
    }
    replicas
}

/// Counts replicas, now that all have told what they have.
fn count_replicas(version: &mut Version) {
    let (replicas, target) = (replicas(version), version.target_replication);
    let mut histogram = BTreeMap::new();
    for count in replicas.values() {
        *histogram.entry(*count).or_default() += 1;
    }
    let missing = version.num_partitions - replicas.len() as u32;
    if missing > 0 {
        histogram.insert(0, missing);
    }
    let of = |keep: &dyn Fn(u32) -> bool| -> u32 {
        histogram.iter().filter(|(count, _)| keep(**count)).map(|(_, partitions)| partitions).sum()
    };
    version.missing_partitions = missing;
    version.underreplicated_partitions = of(&|count| count > 0 && count < target);
    version.overreplicated_partitions = of(&|count| count > target);
    let sum: f64 = replicas.values().map(|count| f64::from(*count)).sum();
    version.average_replication = sum / f64::from(version.num_partitions.max(1));
    version.replication_histogram = histogram;
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn times_are_written_as_programs_read_them() {
        assert_eq!(written(784_111_777), "1994-11-06T08:49:37Z");
        assert_eq!(written(0), "1970-01-01T00:00:00Z");
    }

    #[test]
    fn replicas_are_counted_over_all_nodes_that_have_them() {
        let node = |state: &str, partitions: &[u32]| json!({ "state": state, "partitions": partitions });
        let version = json!({
            "num_partitions": 5,
            "target_replication": 2,
            "nodes": {
                "a": node("ACTIVE", &[0, 1, 2]),
                "b": node("BUILDING", &[0, 1, 9]),
                "c": node("REMOVING", &[0]),
                "d": node("ERROR", &[3]),
            },
        });
        let mut version: Version = serde_json::from_value(version).unwrap();
        count_replicas(&mut version);
        assert_eq!(version.replication_histogram, BTreeMap::from([(0, 2), (1, 1), (2, 1), (3, 1)]));
        let Version { missing_partitions, underreplicated_partitions, overreplicated_partitions, .. } =
            version;
        assert_eq!([missing_partitions, underreplicated_partitions, overreplicated_partitions], [2, 1, 1]);
    }
}

//! Verbs that ask a running node.

use super::node_client::NodeClient;
use super::wait::{Given, Wait};
use crate::http::{segment, segment_of};
use crate::output::table;
use crate::output::{Failure, Output, say};
use bytes::Bytes;
use clap::Args;
use comfy_table::Table;
use hyper::{Method, StatusCode};
use partage_core::base::count::counted;
use partage_dataset::serve::VERSION;
use partage_service::dataset::node::State;
use partage_wire::dataset::status::{Dataset, Datasets, LocalVersion, Node, Version};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The arguments of `partage dataset list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    #[command(flatten)]
    client: NodeClient,
}

/// The arguments of `partage dataset status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The dataset to show
    dataset: String,
    #[command(flatten)]
    client: NodeClient,
    #[command(flatten)]
    wait: Wait,
}

/// The arguments of `partage dataset versions`.
#[derive(Debug, Args)]
pub struct VersionsArgs {
    /// The dataset whose versions are listed
    dataset: String,
    #[command(flatten)]
    client: NodeClient,
}

/// The arguments of `partage dataset refresh`.
#[derive(Debug, Args)]
pub struct RefreshArgs {
    /// The dataset to wait for, with --wait
    #[arg(required_if_eq("wait", "true"))]
    dataset: Option<String>,
    #[command(flatten)]
    client: NodeClient,
    #[command(flatten)]
    wait: Wait,
}

/// The arguments of `partage dataset get`.
#[derive(Debug, Args)]
pub struct GetArgs {
    /// The dataset that has the key
    dataset: String,
    /// The key, as plain text
    key: String,
    #[command(flatten)]
    client: NodeClient,
}

/// The arguments of `partage dataset scan`.
#[derive(Debug, Args)]
pub struct ScanArgs {
    /// The dataset whose entries are listed
    dataset: String,
    /// List only keys with this prefix
    #[arg(long)]
    prefix: Option<String>,
    /// List from this key on, inclusive
    #[arg(long)]
    from: Option<String>,
    /// List up to this key, exclusive
    #[arg(long)]
    to: Option<String>,
    /// Maximum number of entries to list
    #[arg(long, default_value_t = 100)]
    limit: u64,
    #[command(flatten)]
    client: NodeClient,
}

/// Warns of the nodes that did not answer.
pub(super) fn warn(unreachable: Option<&[String]>) {
    let unreachable = unreachable.unwrap_or_default();
    if !unreachable.is_empty() {
        say(&format!("warning: {} did not answer: what they have is not counted", unreachable.join(", ")));
    }
}

/// The latest version that clients of some node get.
pub(super) fn current(dataset: &Dataset) -> Option<(&String, &Version)> {
    dataset.versions.iter().rev().find(|(_, version)| version.served_by() > 0)
}

/// One word for how a version stands.
fn word(version: &Version) -> &'static str {
    if version.errors().next().is_some() {
        "error"
    } else if version.hold().is_some() {
        "held"
    } else if version.in_state(State::Building).next().is_some() {
        "building"
    } else if version.served_by() > 0 {
        "active"
    } else {
        KEPT
    }
}

/// The word for a version that clients do not get any more and that nodes keep, so that clients can get it again at once.
const KEPT: &str = "kept";

/// One word for how a version stands at one node.
fn local_word(version: &LocalVersion) -> String {
    match version.state.is(State::Removing) {
        true => KEPT.to_owned(),
        false => version.state.to_string().to_lowercase(),
    }
}

/// How often a node has failed to load a version, and when it tries again; empty if it tries at the next refresh.
fn tries(version: &LocalVersion) -> String {
    let Some(tries) = version.tries else { return String::new() };
    let failed = counted(tries, "time");
    match &version.next_try_at {
        _ if version.superseded => {
            format!(" (failed {failed}; not tried again while clients get, or wait for, another version)")
        }
        Some(at) => format!(" (failed {failed}, tried again at {at})"),
        None => String::new(),
    }
}

impl ListArgs {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let all: Datasets = self.client.json("/").await?;
        warn(all.unreachable.as_deref());
        if output.is_json() {
            return output.json(&all);
        }
        let mut rows =
            table(["dataset", "version", "state", "partitions", "replicas", "nodes", "content type"]);
        for (name, dataset) in &all.dbs {
            let (version, at) = match current(dataset) {
                Some((version, at)) => (version.as_str(), Some(at)),
                None => ("none yet", dataset.versions.values().next_back()),
            };
            rows.add_row([
                name.clone(),
                version.to_owned(),
                at.map_or("", word).to_owned(),
                at.map(|at| at.num_partitions.to_string()).unwrap_or_default(),
                at.map(|at| format!("{:.1}", at.average_replication)).unwrap_or_default(),
                at.map(|at| at.nodes.len().to_string()).unwrap_or_default(),
                dataset.content_type.clone(),
            ]);
        }
        output.text(&rows.trim_fmt());
        troubles(&all.nodes, output);
        for (name, dataset) in &all.dbs {
            errors(name, dataset, &all.nodes, output);
        }
        Ok(())
    }
}

/// What does not work at whole nodes.
fn troubles(nodes: &BTreeMap<String, Node>, output: &mut Output) {
    for (node, standing) in nodes {
        if let Some(trouble) = &standing.source_error {
            output.text(&format!("the source cannot be read at {node}, {trouble}"));
        }
        if let Some(trouble) = &standing.coordination_error {
            output.text(&format!("the coordination service is away at {node}, {trouble}"));
        }
        if let Some(trouble) = &standing.coordinator_error {
            output.text(&format!("the coordinator is away at {node}, {trouble}"));
        }
        if let Some(check) = &standing.store_check {
            let read = percent(check.bytes, check.bytes_in_all);
            output.text(&format!("{node} reads its store through for damage: {read}"));
        }
    }
}

impl VersionsArgs {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let dataset = look(&self.client, &self.dataset).await?;
        if output.is_json() {
            return output.json(&dataset.versions);
        }
        output.text(&versions(&dataset).to_string());
        errors(&self.dataset, &dataset, &dataset.nodes, output);
        Ok(())
    }
}

fn versions(dataset: &Dataset) -> Table {
    let mut rows = table(["version", "state", "clients of", "partitions", "missing", "too few", "too many"]);
    for (name, version) in dataset.versions.iter().rev() {
        rows.add_row([
            name.clone(),
            word(version).to_owned(),
            format!("{} of {}", version.served_by(), counted(version.nodes.len(), "node")),
            version.num_partitions.to_string(),
            version.missing_partitions.to_string(),
            version.underreplicated_partitions.to_string(),
            version.overreplicated_partitions.to_string(),
        ]);
    }
    rows
}

/// What is wrong with a dataset, and where; not with all of the source at a node, which is said already.
fn errors(dataset: &str, told: &Dataset, nodes: &BTreeMap<String, Node>, output: &mut Output) {
    let of_all = |node: &String| nodes.get(node).and_then(|standing| standing.source_error.as_ref());
    for (node, trouble) in told.source_errors.iter().filter(|(node, own)| of_all(node) != Some(*own)) {
        output.text(&format!("{dataset} cannot be read from the source at {node}, {trouble}"));
    }
    for why in &told.refused {
        output.text(&format!("{dataset}: a folder is passed over: {why}"));
    }
    for (name, version) in &told.versions {
        for (node, why) in version.errors() {
            let tries = version.nodes.get(node).map_or_else(String::new, tries);
            output.text(&format!("{dataset}, version {name} at {node}: {why}{tries}"));
        }
        if let Some(why) = version.hold() {
            let release = format!("`partage dataset release {dataset} {name}` gives it to clients");
            output.text(&format!("{dataset}, version {name} is held: {why}: {release}"));
        }
        for (node, at) in &version.nodes {
            for (partition, why) in &at.damaged {
                output.text(&format!("{dataset}, version {name}, partition {partition} at {node}: {why}"));
            }
            if !at.differing.is_empty() {
                output.text(&format!(
                    "{dataset}, version {name} at {node}: other files under this name at {}, of which nothing is used here; do \
                     all nodes read the same source?",
                    at.differing.join(", ")
                ));
            }
        }
    }
}

impl StatusArgs {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        if self.wait.wait {
            self.wait.until_served(&self.client, &self.dataset, output.is_json()).await?;
        }
        let dataset = look(&self.client, &self.dataset).await?;
        if output.is_json() {
            return output.json(&dataset);
        }
        output.text(&versions(&dataset).to_string());
        let mut rows = table(["node", "version", "state", "partitions", "keys", "bytes", "read"]);
        for (name, version) in dataset.versions.iter().rev() {
            for (node, told) in &version.nodes {
                rows.add_row([
                    node.clone(),
                    format!("{name}{}", if told.current { " (clients get it)" } else { "" }),
                    local_word(told),
                    of(told.partitions.len() as u32, told.loading.partitions_in_all),
                    told.keys.to_string(),
                    told.bytes.to_string(),
                    percent(told.loading.bytes, told.loading.bytes_in_all),
                ]);
            }
        }
        output.text(&rows.trim_fmt());
        let pinned: BTreeSet<&String> = dataset.pinned.values().collect();
        for version in pinned {
            output.text(&format!(
                "pinned to {version}: `partage dataset rollback {} --latest` follows the latest version again",
                self.dataset
            ));
        }
        troubles(&dataset.nodes, output);
        errors(&self.dataset, &dataset, &dataset.nodes, output);
        Ok(())
    }
}

/// `3`, or `3 of 8` while some are lacking.
pub(super) fn of(ready: u32, wanted: u32) -> String {
    if ready < wanted { format!("{ready} of {wanted}") } else { ready.to_string() }
}

fn percent(part: u64, whole: u64) -> String {
    (100 * part.min(whole)).checked_div(whole).map_or_else(String::new, |percent| format!("{percent} %"))
}

/// How a dataset stands, with a warning for nodes that do not answer.
pub(super) async fn look(client: &NodeClient, name: &str) -> Result<Dataset, Failure> {
    let dataset = seen(client, name).await?;
    warn(dataset.unreachable.as_deref());
    Ok(dataset)
}

/// How a dataset stands, without a warning.
pub(super) async fn seen(client: &NodeClient, name: &str) -> Result<Dataset, Failure> {
    client.json(&format!("/{}", segment(name))).await
}

impl RefreshArgs {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        self.client.ask(Method::POST, "/-/refresh", Bytes::new()).await?;
        let Some(name) = self.dataset.as_ref().filter(|_| self.wait.wait) else {
            if output.is_json() {
                return output.json(&json!({ "refreshed": self.client.node }));
            }
            output.text("the node looks at its source now: `partage dataset list` shows what it finds");
            return Ok(());
        };
        let given = self.wait.until_served(&self.client, name, output.is_json()).await?;
        if output.is_json() {
            let Given { version, is_pinned, .. } = &given;
            return output.json(
                &json!({ "refreshed": self.client.node, "dataset": name, "version": version, "pinned": is_pinned }),
            );
        }
        output.text(&given.told(name));
        Ok(())
    }
}

impl GetArgs {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        if self.key.is_empty() {
            let what = format!("the key is empty: `partage dataset scan {}` lists keys", self.dataset);
            return Err(Failure::usage(what));
        }
        let path = format!("/{}/{}", segment(&self.dataset), segment_of(self.key.as_bytes()));
        let reply = self.client.answer(Method::GET, &path, Bytes::new()).await?;
        let version = reply.headers.get(VERSION).and_then(|version| version.to_str().ok());
        match (reply.status, version) {
            (StatusCode::OK, version) if output.is_json() => {
                let value = String::from_utf8_lossy(&reply.body);
                output.json(&json!({ "key": self.key, "value": value, "version": version }))
            }
            (StatusCode::OK, _) => {
                output.bytes(&reply.body);
                Ok(())
            }
            // Absent, and not for want of a dataset.
            (StatusCode::NOT_FOUND, Some(version)) => {
                let what = format!("dataset {} has no key {:?} in version {version}", self.dataset, self.key);
                Err(Failure::refused(what).kind("absent"))
            }
            _ => Err(self.client.refusal(&reply).await),
        }
    }
}

impl ScanArgs {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let mut path = format!("/{}?limit={}", segment(&self.dataset), self.limit);
        for (name, value) in [("prefix", &self.prefix), ("from", &self.from), ("to", &self.to)] {
            path.extend(value.iter().map(|value| format!("&{name}={}", segment(value))));
        }
        let told: Value = self.client.json(&path).await?;
        let entries = told["entries"].as_array().map(Vec::as_slice).unwrap_or_default();
        for entry in entries {
            if output.is_json() {
                output.json(entry)?;
            } else {
                let text = |field: &str| {
                    entry[field].as_str().map_or_else(|| entry[field].to_string(), str::to_owned)
                };
                output.text(&format!("{}\t{}", text("key"), text("value")));
            }
        }
        Ok(())
    }
}

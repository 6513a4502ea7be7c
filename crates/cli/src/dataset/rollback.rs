//! `partage dataset rollback`: clients get an earlier version again, or the latest.
//!
//! The command asks every node first whether it can give the version to clients. Where one has failed to load it, the command
//! ends before any node is given the order: a pin to such a version would keep clients from later versions, and give them
//! nothing.

use super::ask::{current, look};
use super::node_client::NodeClient;
use super::wait::{Wait, follow_latest};
use crate::http::segment;
use crate::output::{Failure, Output, say};
use bytes::Bytes;
use clap::Args;
use hyper::Method;
use partage_service::dataset::VersionName;
use partage_wire::dataset::status::Dataset;
use serde_json::json;
use std::time::Duration;
use tokio::task::JoinSet;

/// How long a node may check whether it can give a version. The status says it, too.
const CHECK: Duration = Duration::from_secs(5);

/// The word of a node that has failed to load the version.
const BROKEN: &str = "broken_version";

/// The arguments of `partage dataset rollback`.
#[derive(Debug, Args)]
#[command(override_usage = "partage dataset rollback [OPTIONS] <DATASET> <VERSION|--latest>")]
pub struct RollbackArgs {
    /// The dataset to roll back
    dataset: String,
    /// The version to give to clients; required without --latest. Refused if a node has failed to load it
    #[arg(required_unless_present = "latest", conflicts_with = "latest")]
    version: Option<String>,
    /// Give clients the latest version again
    #[arg(long)]
    latest: bool,
    /// Print what would happen, and change nothing
    #[arg(long, conflicts_with = "wait")]
    dry_run: bool,
    #[command(flatten)]
    client: NodeClient,
    #[command(flatten)]
    wait: Wait,
}

impl RollbackArgs {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        self.version.as_deref().map(VersionName::new).transpose().map_err(Failure::usage)?;
        let dataset = look(&self.client, &self.dataset).await?;
        let name = &self.dataset;
        if let Some(version) = &self.version {
            self.check(&dataset, version).await?;
            self.tell_of_loading(&dataset, version);
        }
        self.order().await?;
        let summary = self.summary(&dataset);
        if self.wait.wait {
            match &self.version {
                Some(version) => self.wait.until_given(&self.client, name, version).await?,
                None => drop(self.wait.until_latest(&self.client, name, output.is_json()).await?),
            }
        }
        if output.is_json() {
            return output
                .json(&json!({ "dataset": name, "version": self.version, "dry_run": self.dry_run }));
        }
        output.text(&format!("{}{summary}", if self.dry_run { "would: " } else { "" }));
        Ok(())
    }

    /// The path of the order, or of the question whether a node would take it.
    fn path(&self, is_dry: bool) -> String {
        let version = self.version.as_deref().map(|version| format!("&version={}", segment(version)));
        format!("/-/pin/{}?dry_run={is_dry}{}", segment(&self.dataset), version.unwrap_or_default())
    }

    async fn order(&self) -> Result<(), Failure> {
        let method = if self.version.is_some() { Method::POST } else { Method::DELETE };
        self.client
            .ask(method, &self.path(self.dry_run), Bytes::new())
            .await
            .map_err(|why| self.unknown(why))?;
        Ok(())
    }

    /// Refuses a version that there is not, or that a node has failed to load.
    async fn check(&self, dataset: &Dataset, version: &str) -> Result<(), Failure> {
        let mut asking = JoinSet::new();
        for node in dataset.nodes.keys().cloned() {
            let (client, path) = (NodeClient { node: vec![node.clone()] }, self.path(true));
            asking.spawn(async move {
                let asked = client.ask(Method::POST, &path, Bytes::new());
                (node, tokio::time::timeout(CHECK, asked).await)
            });
        }
        let at = dataset.versions.get(version);
        let said = format!("version {version} of dataset {} cannot be loaded: ", self.dataset);
        let reason = |what: &str| what.strip_prefix(&said).unwrap_or(what).to_owned();
        while let Some(asked) = asking.join_next().await {
            let (node, told) = asked.map_err(Failure::failed)?;
            // A node that cannot be reached from here has told the one that can.
            let shown = at.and_then(|at| at.nodes.get(&node)?.error.as_deref());
            let broken = match told {
                Ok(Ok(_)) => None,
                Ok(Err(failure)) if failure.is_kind(BROKEN) => Some(reason(failure.what())),
                Ok(Err(failure)) if !failure.is_not_reachable() => None,
                Ok(Err(_)) | Err(_) => shown.map(str::to_owned),
            };
            if let Some(why) = broken {
                return Err(self.broken(dataset, version, (&node, &why)));
            }
        }
        let asked = self.client.ask(Method::POST, &self.path(true), Bytes::new()).await;
        asked.map(drop).map_err(|why| self.unknown(why))
    }

    /// What is wrong with a version that a node has failed to load, and which.
    fn broken(&self, dataset: &Dataset, version: &str, (node, why): (&str, &str)) -> Failure {
        let name = &self.dataset;
        let is_pinned = dataset.pinned.values().any(|pinned| pinned == version);
        let pin = match is_pinned {
            true => format!("it is pinned already: {}", follow_latest(name)),
            false => "nothing was pinned".to_owned(),
        };
        let what = format!("version {version} of dataset {name} cannot be loaded at {node}: {why}");
        Failure::refused(what).kind(BROKEN).help(format!(
            "{pin}; `partage dataset versions {name}` shows the versions there are; if its files are mended, run `partage dataset \
             refresh --node {node}` first"
        ))
    }

    fn unknown(&self, failure: Failure) -> Failure {
        match failure.is_kind("unknown_version") {
            true => failure
                .help(format!("`partage dataset versions {}` shows the versions there are", self.dataset)),
            false => failure,
        }
    }

    fn tell_of_loading(&self, dataset: &Dataset, version: &str) {
        if !dataset.versions.contains_key(version) {
            let known: Vec<_> = dataset.versions.keys().map(String::as_str).collect();
            let (name, known) = (&self.dataset, known.join(", "));
            say(&format!(
                "no node has version {version} of dataset {name} now (they have {known}): each loads it first"
            ));
        }
    }

    /// What the order changes.
    fn summary(&self, dataset: &Dataset) -> String {
        let (name, now) = (&self.dataset, current(dataset).map_or("none", |(name, _)| name.as_str()));
        let latest = dataset.versions.keys().next_back();
        match self.version.as_deref() {
            Some(version) if version != now => {
                format!("clients of dataset {name} get {version} instead of {now}")
            }
            Some(version) => {
                let stay = format!("clients of dataset {name} get {version} already, and stay at it");
                format!("{stay}: {}", follow_latest(name))
            }
            None if dataset.pinned.is_empty() => {
                format!(
                    "dataset {name} is not pinned: clients follow the latest version already, and get {now}"
                )
            }
            None if latest.is_some_and(|latest| latest == now) => {
                format!("clients of dataset {name} follow the latest version again: they get {now} already")
            }
            None => format!("clients of dataset {name} get the latest instead of {now}"),
        }
    }
}

//! `partage dataset release`: a version that is held is given to clients.

use super::ask::look;
use super::node_client::NodeClient;
use super::wait::{Timeout, follow_latest};
use crate::client::DryRun;
use crate::http::segment;
use crate::output::{Failure, Output};
use bytes::Bytes;
use clap::Args;
use hyper::Method;
use partage_service::dataset::VersionName;
use partage_wire::dataset::status::Version;
use serde_json::json;
use std::time::Duration;

/// Between two looks at who gives it.
const LOOK: Duration = Duration::from_millis(300);

/// The arguments of `partage dataset release`.
#[derive(Debug, Args)]
pub struct ReleaseArgs {
    /// The dataset of the held version
    dataset: String,
    /// The held version to give to clients
    version: String,
    #[command(flatten)]
    dry: DryRun,
    #[command(flatten)]
    timeout: Timeout,
    #[command(flatten)]
    client: NodeClient,
}

impl ReleaseArgs {
    /// Runs it: an order for that version, and when all nodes have followed it, one for the latest again.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let (name, version) = (&self.dataset, &self.version);
        VersionName::new(version).map_err(Failure::usage)?;
        let dataset = look(&self.client, name).await?;
        let held = dataset.versions.get(version).and_then(Version::hold);
        let Some(why) = held else {
            let what = format!("version {version} of dataset {name} is not held");
            let help = format!("`partage dataset status {name}` says how its versions stand");
            return Err(Failure::refused(what).help(help));
        };
        let why = why.to_owned();
        let path = format!("/-/pin/{}", segment(name));
        let order = format!("{path}?dry_run={}&version={}", self.dry.dry_run, segment(version));
        self.client.ask(Method::POST, &order, Bytes::new()).await?;
        if self.dry.dry_run {
            if output.is_json() {
                return output
                    .json(&json!({ "dataset": name, "version": version, "held": why, "dry_run": true }));
            }
            output.text(&format!(
                "would: give clients of dataset {name} version {version}, which is held: {why}"
            ));
            return Ok(());
        }
        let help = format!("it stays pinned: {}", follow_latest(name));
        let late = (format!("not every node gives version {version}"), help);
        self.timeout.within(self.is_given(), late).await?;
        self.client.ask(Method::DELETE, &path, Bytes::new()).await?;
        if output.is_json() {
            return output.json(&json!({ "dataset": name, "version": version, "held": why }));
        }
        output.text(&format!("clients of dataset {name} get version {version}, which was held: {why}"));
        Ok(())
    }

    async fn is_given(&self) -> Result<(), Failure> {
        loop {
            let dataset = look(&self.client, &self.dataset).await?;
            let version = dataset.versions.get(&self.version);
            if version.is_some_and(|version| version.served_by() == version.nodes.len()) {
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

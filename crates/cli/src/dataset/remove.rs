//! `partage dataset remove`: the settings in the source say that the dataset is not served, and nodes let go of it.
//!
//! Under a coordinator it has a keyspace, which nodes delete when they read that. Here it is waited for: first no node
//! serves the dataset any more, then the keyspace goes, so none of them creates it again.

use super::ask::look;
use super::node_client::NodeClient;
use super::origin::{From, toml};
use super::settings::{kept, named, open, there};
use super::wait::{Wait, let_go};
use crate::admin::Yes;
use crate::client::ApiClient;
use crate::http::{address, segment};
use crate::output::{Failure, Output, say};
use clap::Args;
use partage_core::keyspace::KeyspaceKind;
use partage_core::node::Health;
use partage_dataset::settings::FILE;
use partage_service::dataset::DatasetName;
use partage_wire::config::DatasetFile;
use partage_wire::json::{Command, Keyspace, Node, Nodes};
use serde_json::json;

/// The arguments of `partage dataset remove`.
#[derive(Debug, Args)]
pub struct RemoveArgs {
    /// The dataset to remove
    dataset: String,
    #[command(flatten)]
    from: From,
    /// Coordinators, as host:port separated by commas, one of which has a keyspace for the dataset; the command also
    /// waits until that keyspace is gone
    #[arg(
        long,
        env = "PARTAGE_COORDINATOR",
        value_delimiter = ',',
        value_name = "HOST:PORT",
        value_parser = address
    )]
    coordinator: Vec<String>,
    /// Which node knows who serves it, for --wait
    #[command(flatten)]
    node: NodeClient,
    #[command(flatten)]
    wait: Wait,
    #[command(flatten)]
    yes: Yes,
    /// Print what would happen, and change nothing
    #[arg(long, conflicts_with = "wait")]
    dry_run: bool,
}

/// A keyspace that is to go, and who deletes it.
struct Leaving {
    dataset: DatasetName,
    client: ApiClient,
}

impl RemoveArgs {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let dataset = named(&self.dataset)?;
        let source = open(&self.from.source)?;
        there(&source, &dataset).await?;
        let before = kept(&source, &dataset).await?.unwrap_or_default();
        if before.served == Some(false) {
            say(&format!("dataset {dataset} is not served already"));
        }
        // Before anything is written: who names a coordinator that is away is told so while nothing has changed.
        let leaving = Leaving::find(&self.coordinator, &dataset).await?;
        let serving = if self.wait.wait { serving(&self.node, &dataset).await? } else { vec![] };
        if !self.dry_run && !self.yes.is_given() {
            self.ask(&dataset, leaving.as_ref()).await?;
        }
        let file = DatasetFile { served: Some(false), ..before };
        let mut gone = None;
        if self.dry_run {
            if let Some(leaving) = &leaving {
                gone = leaving.foresee().await?;
            }
        } else {
            source.write(&dataset, FILE, toml(&file)?.into()).await.map_err(Failure::failed)?;
            if let Some(leaving) = &leaving {
                gone = Some(self.wait.timeout.within(leaving.leave(), leaving.late()).await?);
            }
            self.wait.until_gone(&serving, dataset.as_str()).await?;
        }
        if output.is_json() {
            return output.json(&json!({
                "dataset": dataset.as_str(), "served": false, "keyspace_deleted": leaving.is_some(),
                "dry_run": self.dry_run,
            }));
        }
        let would = if self.dry_run { "would: " } else { "" };
        output.text(&format!(
            "{would}dataset {dataset} is served no more, from the nodes' next refresh on; its files stay. \
             `partage dataset add` serves it again"
        ));
        match gone {
            Some(gone) => output.text(&format!("{would}{gone}")),
            None if self.coordinator.is_empty() => {
                output.text("nodes under a coordinator delete its keyspace then, too")
            }
            None => output.text(&format!("the coordinator has no keyspace {dataset}")),
        }
        Ok(())
    }

    /// Asks a person whether that is meant.
    async fn ask(&self, dataset: &DatasetName, leaving: Option<&Leaving>) -> Result<(), Failure> {
        let mut what = format!("stop serving dataset {dataset}, and delete the copies of it on all nodes");
        if let Some(leaving) = leaving {
            what.extend(leaving.foresee().await?.map(|keyspace| format!("; {keyspace}")));
        }
        self.yes.ask_for(&format!("{what}; its files stay in the source"), &[])
    }
}

/// The addresses of the nodes that serve the dataset, as one of them knows.
async fn serving(client: &NodeClient, dataset: &DatasetName) -> Result<Vec<String>, Failure> {
    match look(client, dataset.as_str()).await {
        Ok(told) => Ok(told.nodes.into_keys().collect()),
        Err(failure) if failure.is_kind("no_dataset") => Ok(vec![]),
        Err(failure) => {
            Err(failure.help("nothing was written: --wait asks a node, named by --node HOST:PORT"))
        }
    }
}

impl Leaving {
    /// The keyspace of the dataset at one of these coordinators, if it has one.
    async fn find(coordinators: &[String], dataset: &DatasetName) -> Result<Option<Leaving>, Failure> {
        if coordinators.is_empty() {
            return Ok(None);
        }
        let client = ApiClient { coordinator: coordinators.to_vec(), who: "dataset remove".to_owned() };
        match client.get::<Keyspace>(&format!("/v1/keyspaces/{}", segment(dataset.as_str()))).await {
            Ok(found) if found.is_of(KeyspaceKind::Dataset) => {
                Ok(Some(Leaving { dataset: dataset.clone(), client }))
            }
            Ok(_) => Ok(None),
            Err(failure) if failure.is_kind("not_found") => Ok(None),
            Err(failure) => Err(failure.help(
                "nothing was written: ask again when it answers; or leave out --coordinator (and PARTAGE_COORDINATOR), and \
                 the nodes delete the keyspace as soon as it is back",
            )),
        }
    }

    /// Returns what was deleted, when no node can create it again.
    async fn leave(&self) -> Result<String, Failure> {
        let told: Nodes = self.client.get("/v1/nodes").await?;
        let serves = |node: &&Node| {
            node.serves(KeyspaceKind::Dataset) && !node.health.is_any(&[Health::Down, Health::Left])
        };
        for node in told.nodes.iter().filter(serves) {
            if !let_go(&node.address, self.dataset.as_str()).await {
                say(&format!(
                    "warning: node {} at {} does not answer: if it lives and has not read its source since, it may create \
                     keyspace {} again, until the next look of any node",
                    node.id, node.address, self.dataset
                ));
            }
        }
        self.delete().await
    }

    fn command(&self) -> Command {
        Command::DeleteKeyspace { keyspace: self.dataset.to_string() }
    }

    /// What would be deleted; none if a node has deleted it.
    async fn foresee(&self) -> Result<Option<String>, Failure> {
        match self.client.command(self.command(), true).await {
            Ok(answer) => Ok(Some(answer.summary)),
            Err(failure) if failure.is_kind("not_found") => Ok(None),
            Err(failure) => Err(failure.help("nothing was written: ask again when the coordinator answers")),
        }
    }

    /// Nodes may have been quicker.
    async fn delete(&self) -> Result<String, Failure> {
        match self.client.command(self.command(), false).await {
            Ok(answer) => Ok(answer.summary),
            Err(failure) if failure.is_kind("not_found") => {
                Ok(format!("keyspace {} was deleted by a node", self.dataset))
            }
            Err(failure) => Err(failure.help(format!(
                "the dataset is served no more; its keyspace is left: partage keyspace delete {}",
                self.dataset
            ))),
        }
    }

    fn late(&self) -> (String, String) {
        let dataset = &self.dataset;
        let help = format!(
            "it is written that it is not served; nodes delete its keyspace when they read that. See `partage dataset status \
             {dataset}`, or ask again"
        );
        (format!("nodes have not let go of dataset {dataset}"), help)
    }
}

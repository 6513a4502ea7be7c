//! `--wait` of the verbs of datasets: stays until what a verb has begun is done at every node.
//!
//! | verb | done is | exit code 5 is |
//! |---|---|---|
//! | `status`, `refresh`, `rollback --latest` | clients of every node get the latest version | it is held, or late |
//! | `rollback` | clients of every node get that version | late |
//! | `remove` | no node serves the dataset any more | late |
//!
//! A version that a node cannot load is a failure (1), also while the node will try again.

use super::ask::{look, of};
use super::door::NodeDoor;
use super::progress;
use super::told::{Dataset, Version};
use crate::http::segment;
use crate::output::Failure;
use bytes::Bytes;
use clap::Args;
use hyper::Method;
use indicatif::ProgressBar;
use std::future::Future;
use std::time::Duration;

/// Between two looks at how far it is.
const LOOK: Duration = Duration::from_millis(300);

/// Whether to wait, and for how long.
#[derive(Debug, Clone, Copy, Args)]
pub struct Wait {
    /// Wait until every node is done; exit code 5 when the change is blocked, or not done within --timeout
    #[arg(long)]
    pub wait: bool,
    #[command(flatten)]
    pub most: Most,
}

/// For how long to wait.
#[derive(Debug, Clone, Copy, Args)]
pub struct Most {
    /// Maximum number of seconds to wait
    #[arg(long, alias = "at-most-s", value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
}

impl Most {
    /// Does it within that time. Else it is not done: `what`, and the way out.
    pub async fn within<T>(
        self,
        doing: impl Future<Output = Result<T, Failure>>,
        (what, help): (String, String),
    ) -> Result<T, Failure> {
        let done = tokio::time::timeout(Duration::from_secs(self.timeout), doing).await;
        done.unwrap_or_else(|_| Err(Failure::not_done(format!("{what} after {} s", self.timeout)).help(help)))
    }
}

impl Wait {
    /// Until clients of every node get the latest version that is being taken up.
    pub async fn until_served(self, door: &NodeDoor, name: &str, is_json: bool) -> Result<(), Failure> {
        let bar = progress::bar(&format!("loading {name}"), is_json);
        let late = (format!("dataset {name} is not served everywhere"), status(name));
        let served = self.most.within(is_served(door, name, &bar), late).await;
        bar.finish_and_clear();
        served
    }

    /// Until clients of every node get this version.
    pub async fn until_given(self, door: &NodeDoor, name: &str, version: &str) -> Result<(), Failure> {
        let late = (
            format!("not every node gives version {version} of dataset {name}"),
            format!("it stays pinned: {}", status(name)),
        );
        self.most.within(is_given(door, name, version), late).await
    }

    /// Until none of these nodes serves the dataset any more.
    pub async fn until_gone(self, nodes: &[String], name: &str) -> Result<(), Failure> {
        let gone = async {
            for node in nodes {
                if !let_go(node, name).await {
                    let what = format!("the dataset node at {node} does not answer any more");
                    return Err(Failure::not_done(what).help(status(name)));
                }
            }
            Ok(())
        };
        self.most.within(gone, (format!("nodes have not let go of dataset {name}"), status(name))).await
    }
}

fn status(name: &str) -> String {
    format!("see `partage dataset status {name}`; wait longer with --timeout SECONDS")
}

async fn is_served(door: &NodeDoor, name: &str, bar: &ProgressBar) -> Result<(), Failure> {
    loop {
        // What was there before the order is not what is waited for: a node looks within this.
        tokio::time::sleep(LOOK).await;
        let dataset = match look(door, name).await {
            // A node that was just started does not know yet which datasets there are.
            Err(failure) if failure.is_kind("starting") => continue,
            looked => looked?,
        };
        let Some((version, at)) = dataset.versions.iter().next_back() else { continue };
        fails(version, at)?;
        if let Some((_, why)) = at.holds().next() {
            let help = format!("`partage dataset release {name} {version}` gives it to clients");
            return Err(Failure::not_done(format!("version {version} is held: {why}")).help(help));
        }
        let far = at.loading();
        bar.set_length(far.bytes_in_all);
        bar.set_position(far.bytes);
        let partitions = of(far.partitions, far.partitions_in_all);
        bar.set_message(format!("loading {name} {version}: {partitions} partitions,"));
        if at.served_by() == at.nodes.len() && !at.is_building() {
            return Ok(());
        }
    }
}

/// Whether a node cannot load it.
fn fails(version: &str, at: &Version) -> Result<(), Failure> {
    match at.errors().next() {
        Some((node, why)) => Err(Failure::failed(format!("version {version} at {node}: {why}"))),
        None => Ok(()),
    }
}

async fn is_given(door: &NodeDoor, name: &str, version: &str) -> Result<(), Failure> {
    let nodes = |dataset: &Dataset, at: &Version| at.nodes.len().max(dataset.nodes.len()).max(1);
    loop {
        let dataset = look(door, name).await?;
        if let Some(at) = dataset.versions.get(version) {
            fails(version, at)?;
            if at.served_by() >= nodes(&dataset, at) {
                return Ok(());
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Waits until the node at this address does not serve the dataset; false if it does not answer.
pub async fn let_go(node: &str, name: &str) -> bool {
    let door = NodeDoor { node: vec![node.to_owned()] };
    let here = format!("/{}?proxy=status", segment(name));
    loop {
        // Each time: the look that goes on may have begun before the settings were written.
        let asked = door.ask(Method::POST, "/-/refresh", Bytes::new()).await;
        let told = match asked {
            Ok(_) => door.ask(Method::GET, &here, Bytes::new()).await.map(drop),
            Err(failure) => Err(failure),
        };
        match told {
            Err(failure) if failure.is_kind("no_dataset") => return true,
            Ok(()) => {}
            Err(failure) if failure.is_kind("starting") => {}
            Err(_) => return false,
        }
        tokio::time::sleep(LOOK).await;
    }
}

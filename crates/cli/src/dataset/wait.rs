//! `--wait` of the verbs of datasets: stays until what a verb has begun is done at every node.
//!
//! | verb | done is | exit code 5 is |
//! |---|---|---|
//! | `status`, `refresh` | clients of every node get the latest version, or the one that is pinned | it is held, or late |
//! | `rollback --latest` | clients of every node get the latest version | it is held, or late |
//! | `add` | clients of every node get the version that the source has as its latest | it is held, another is pinned, or late |
//! | `rollback` | clients of every node get that version | late |
//! | `remove` | no node serves the dataset any more | late |
//!
//! A version that a node cannot load is a failure (1), also while the node will try again, and where it is pinned. For `add`, a
//! failure counts only if it came after the settings were written: nodes also try to read a dataset that has none.

use super::ask::{look, of, seen};
use super::node_client::NodeClient;
use super::progress;
use crate::http::segment;
use crate::output::Failure;
use bytes::Bytes;
use clap::Args;
use hyper::Method;
use indicatif::ProgressBar;
use partage_core::base::count::counted;
use partage_service::dataset::node::State;
use partage_wire::dataset::status::{Dataset, Datasets, Version};
use std::future::Future;
use std::time::Duration;
use tokio::task::JoinSet;

/// Between two looks at how far it is.
const LOOK: Duration = Duration::from_millis(300);

/// How many looks in a row find that a node cannot load a version, before the command says so: some three seconds.
const FAILING_LOOKS: u32 = 10;

/// The path by which a command asks a node to look at its source now.
const REFRESH: &str = "/-/refresh";

/// Whether to wait, and for how long.
#[derive(Debug, Clone, Copy, Args)]
pub struct Wait {
    /// Wait until every node is done; exit code 5 when the change is blocked, or not done within --timeout
    #[arg(long)]
    pub wait: bool,
    #[command(flatten)]
    pub timeout: Timeout,
}

/// The flag `--timeout`: for how long to wait.
#[derive(Debug, Clone, Copy, Args)]
pub struct Timeout {
    /// Maximum number of seconds to wait
    #[arg(long, alias = "at-most-s", value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
}

impl Timeout {
    /// Does it within that time. Else it is not done: `what`, and the way out.
    pub async fn within<T>(
        self,
        doing: impl Future<Output = Result<T, Failure>>,
        (what, help): (String, String),
    ) -> Result<T, Failure> {
        self.in_time(doing).await.unwrap_or_else(|| Err(self.late(&what).help(help)))
    }

    /// What comes of it within that time; none if it is not done then.
    async fn in_time<T>(self, doing: impl Future<Output = T>) -> Option<T> {
        tokio::time::timeout(Duration::from_secs(self.timeout), doing).await.ok()
    }

    fn late(self, what: &str) -> Failure {
        Failure::not_done(format!("{what} after {} s", self.timeout))
    }
}

impl Wait {
    /// Until clients of every node get the latest version that is being taken up, or the one that is pinned.
    pub async fn until_served(
        self,
        client: &NodeClient,
        name: &str,
        is_json: bool,
    ) -> Result<Given, Failure> {
        self.until(Until::Served, client, name, is_json).await
    }

    /// Until clients of every node get the latest version, and no node is pinned any more.
    pub async fn until_latest(
        self,
        client: &NodeClient,
        name: &str,
        is_json: bool,
    ) -> Result<Given, Failure> {
        self.until(Until::Latest, client, name, is_json).await
    }

    async fn until(
        self,
        until: Until,
        client: &NodeClient,
        name: &str,
        is_json: bool,
    ) -> Result<Given, Failure> {
        let bar = progress::bar(&format!("loading {name}"), is_json);
        let mut pinned = None;
        let served = self.timeout.in_time(is_served(client, name, until, &mut pinned, &bar)).await;
        bar.finish_and_clear();
        served.unwrap_or_else(|| {
            Err(match pinned {
                Some(version) => {
                    let what =
                        format!("dataset {name} is pinned to version {version}, which not every node gives");
                    self.timeout.late(&what).help(format!("{}; {}", follow_latest(name), status(name)))
                }
                None => {
                    self.timeout.late(&format!("dataset {name} is not served everywhere")).help(status(name))
                }
            })
        })
    }

    /// Until clients of every node that told `before` get this version, whose settings have been written since.
    pub async fn until_added(
        self,
        client: &NodeClient,
        (name, version): (&str, &str),
        before: &Datasets,
        is_json: bool,
    ) -> Result<(), Failure> {
        let bar = progress::bar(&format!("loading {name}"), is_json);
        let mut missing = before.nodes.keys().cloned().collect();
        let adding = is_added(client, (name, version), before, &mut missing, &bar);
        let added = self.timeout.in_time(adding).await;
        bar.finish_and_clear();
        added.unwrap_or_else(|| {
            let late = self.timeout.late(&format!("dataset {name} is not served everywhere"));
            Err(late.help(format!(
                "its settings are written, and it is not served at {}; {}",
                missing.join(", "),
                status(name)
            )))
        })
    }

    /// Until clients of every node get this version.
    pub async fn until_given(self, client: &NodeClient, name: &str, version: &str) -> Result<(), Failure> {
        let stays = format!(
            "dataset {name} stays pinned to version {version}, and nodes load no later one: {}",
            follow_latest(name)
        );
        let given = self.timeout.in_time(is_given(client, name, version)).await;
        match given {
            Some(given) => given.map_err(|failure| failure.help(stays)),
            None => {
                let what = format!("not every node gives version {version} of dataset {name}");
                Err(self.timeout.late(&what).help(format!("{stays}; {}", status(name))))
            }
        }
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
        self.timeout.within(gone, (format!("nodes have not let go of dataset {name}"), status(name))).await
    }
}

fn status(name: &str) -> String {
    format!("see `partage dataset status {name}`; wait longer with --timeout SECONDS")
}

/// How a pin ends.
pub(super) fn follow_latest(name: &str) -> String {
    format!("`partage dataset rollback {name} --latest` follows the latest version again")
}

/// What a verb waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    /// The latest version, or the one that is pinned.
    Served,
    /// The latest version, and no pin.
    Latest,
}

/// What clients of every node get.
#[derive(Debug, PartialEq, Eq)]
pub struct Given {
    pub version: String,
    /// The addresses of the nodes.
    pub nodes: Vec<String>,
    /// Whether they get it as it is pinned.
    pub is_pinned: bool,
}

impl Given {
    fn of(version: &str, dataset: &Dataset, is_pinned: bool) -> Given {
        Given { version: version.to_owned(), nodes: dataset.nodes.keys().cloned().collect(), is_pinned }
    }

    /// A sentence about it.
    pub fn told(&self, name: &str) -> String {
        let given = format!("clients of {} get version {}", everyone(&self.nodes), self.version);
        match self.is_pinned {
            true => format!("{given}, to which dataset {name} is pinned: {}", follow_latest(name)),
            false => given,
        }
    }
}

/// One node by its address, several by their number.
pub(super) fn everyone(nodes: &[String]) -> String {
    match nodes {
        [one] => one.clone(),
        nodes => format!("all {}", counted(nodes.len(), "node")),
    }
}

/// Leaves in `pinned` the version that is pinned.
async fn is_served(
    client: &NodeClient,
    name: &str,
    until: Until,
    pinned: &mut Option<String>,
    bar: &ProgressBar,
) -> Result<Given, Failure> {
    loop {
        // What was there before the order is not what is waited for: a node looks within this.
        tokio::time::sleep(LOOK).await;
        let dataset = match look(client, name).await {
            // A node that was just started does not know yet which datasets there are.
            Err(failure) if failure.is_kind("starting") => continue,
            looked => looked?,
        };
        *pinned = dataset.pinned.values().next().cloned();
        if let Some(version) = &*pinned {
            // An order spreads from node to node, and an order for the latest version has not reached all of them.
            let is_everywhere = dataset.pinned.values().all(|other| other == version);
            if until == Until::Served && is_everywhere && is_pin_followed(name, version, &dataset, bar)? {
                return Ok(Given::of(version, &dataset, true));
            }
            continue;
        }
        // A later version that goes from every node is one that was deleted from the source.
        let goes = |at: &Version| at.in_state(State::Removing).count() == at.nodes.len();
        let Some((version, at)) = dataset.versions.iter().rev().find(|(_, at)| !goes(at)) else { continue };
        fails(version, at)?;
        is_held(name, version, at)?;
        show(bar, name, version, at);
        if at.served_by() == at.nodes.len() && at.in_state(State::Building).next().is_none() {
            return Ok(Given::of(version, &dataset, false));
        }
    }
}

/// Whether clients of every node get the version that is pinned.
fn is_pin_followed(name: &str, version: &str, dataset: &Dataset, bar: &ProgressBar) -> Result<bool, Failure> {
    let Some(at) = dataset.versions.get(version) else { return Ok(false) };
    if at.served_by() >= everywhere(dataset, at) {
        return Ok(true);
    }
    if let Some((node, why)) = at.errors().next() {
        let what = format!("dataset {name} is pinned to version {version}, which clients do not get");
        return Err(Failure::failed(format!("{what}: at {node}: {why}")).help(follow_latest(name)));
    }
    show(bar, name, version, at);
    Ok(false)
}

/// The number of nodes that are to give a version.
fn everywhere(dataset: &Dataset, at: &Version) -> usize {
    at.nodes.len().max(dataset.nodes.len()).max(1)
}

/// Leaves in `missing` the nodes whose clients do not get the version yet.
async fn is_added(
    client: &NodeClient,
    (name, version): (&str, &str),
    before: &Datasets,
    missing: &mut Vec<String>,
    bar: &ProgressBar,
) -> Result<(), Failure> {
    let failed_before = before.dbs.get(name).and_then(|dataset| dataset.versions.get(version));
    client.ask(Method::POST, REFRESH, Bytes::new()).await?;
    let mut asking = JoinSet::new();
    for node in before.nodes.keys() {
        let client = NodeClient { node: vec![node.clone()] };
        // A node that cannot be reached from here looks at the source by itself before long.
        asking.spawn(async move { client.ask(Method::POST, REFRESH, Bytes::new()).await.is_ok() });
    }
    loop {
        // What was there before the settings is not what is waited for: a node looks within this.
        tokio::time::sleep(LOOK).await;
        let dataset = match seen(client, name).await {
            Err(failure) if failure.is_kind("starting") || failure.is_kind("no_dataset") => continue,
            looked => looked?,
        };
        let nothing = Version::default();
        let at = dataset.versions.get(version).unwrap_or(&nothing);
        fails_anew(version, at, failed_before)?;
        is_held(name, version, at)?;
        show(bar, name, version, at);
        let is_given = |node: &String| at.nodes.get(node).is_some_and(|told| told.current);
        *missing = before.nodes.keys().filter(|node| !is_given(node)).cloned().collect();
        if missing.is_empty() {
            return Ok(());
        }
        if let Some(pinned) = dataset.pinned.values().find(|pinned| *pinned != version) {
            let what = format!("dataset {name} is pinned to version {pinned}: clients do not get {version}");
            return Err(Failure::not_done(what).help(follow_latest(name)));
        }
    }
}

/// Whether a node holds it back from clients.
fn is_held(name: &str, version: &str, at: &Version) -> Result<(), Failure> {
    let Some(why) = at.hold() else { return Ok(()) };
    let help = format!("`partage dataset release {name} {version}` gives it to clients");
    Err(Failure::not_done(format!("version {version} is held: {why}")).help(help))
}

/// Shows how far loading is.
fn show(bar: &ProgressBar, name: &str, version: &str, at: &Version) {
    let loading = || at.in_state(State::Building).map(|node| node.loading);
    bar.set_length(loading().map(|node| node.bytes_in_all).sum());
    bar.set_position(loading().map(|node| node.bytes).sum());
    let partitions =
        of(loading().map(|node| node.partitions).sum(), loading().map(|node| node.partitions_in_all).sum());
    bar.set_message(format!("loading {name} {version}: {partitions} partitions,"));
}

/// Whether a node cannot load it, and has tried since `before`.
fn fails_anew(version: &str, at: &Version, before: Option<&Version>) -> Result<(), Failure> {
    let is_old = |node: &String| {
        let told = [Some(at), before].map(|version| version.and_then(|version| version.nodes.get(node)));
        let [now, then] = told.map(|told| told.map(|told| (told.tries, &told.error)));
        now == then
    };
    match at.errors().find(|(node, _)| !is_old(node)) {
        Some((node, why)) => Err(Failure::failed(format!("version {version} at {node}: {why}"))),
        None => Ok(()),
    }
}

/// Whether a node cannot load it.
fn fails(version: &str, at: &Version) -> Result<(), Failure> {
    fails_anew(version, at, None)
}

async fn is_given(client: &NodeClient, name: &str, version: &str) -> Result<(), Failure> {
    let mut failing_looks = 0;
    loop {
        let dataset = look(client, name).await?;
        if let Some(at) = dataset.versions.get(version) {
            if at.served_by() >= everywhere(&dataset, at) {
                return Ok(());
            }
            // What a node tells may be of before the order.
            failing_looks = if at.errors().next().is_some() { failing_looks + 1 } else { 0 };
            if failing_looks >= FAILING_LOOKS {
                fails(version, at)?;
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Waits until the node at this address does not serve the dataset; false if it does not answer.
pub async fn let_go(node: &str, name: &str) -> bool {
    let client = NodeClient { node: vec![node.to_owned()] };
    let here = format!("/{}?proxy=status", segment(name));
    loop {
        // Each time: the look that goes on may have begun before the settings were written.
        let asked = client.ask(Method::POST, REFRESH, Bytes::new()).await;
        let told = match asked {
            Ok(_) => client.ask(Method::GET, &here, Bytes::new()).await.map(drop),
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn version(nodes: Value) -> Version {
        serde_json::from_value(json!({ "nodes": nodes })).unwrap()
    }

    #[test]
    fn a_pin_is_followed_when_clients_of_all_nodes_get_it_and_a_failure_says_how_it_ends() {
        let bar = ProgressBar::hidden();
        let of = |nodes: Value| -> Dataset {
            let told = json!({ "content_type": "", "nodes": { "n1": {}, "n2": {} }, "versions": { "1": { "nodes": nodes } } });
            serde_json::from_value(told).unwrap()
        };
        let followed = |nodes: Value, version: &str| is_pin_followed("fruit", version, &of(nodes), &bar);
        let both = json!({ "n1": { "current": true }, "n2": { "current": true } });
        assert_eq!(followed(both.clone(), "1"), Ok(true));
        assert_eq!(followed(both, "0"), Ok(false), "nobody has it yet");
        assert_eq!(followed(json!({ "n1": { "current": true } }), "1"), Ok(false), "one has not heard of it");
        let failed =
            followed(json!({ "n1": { "current": true }, "n2": { "error": "line 2" } }), "1").unwrap_err();
        assert!(
            failed.what().contains("is pinned to version 1, which clients do not get: at n2: line 2"),
            "{failed}"
        );
        let nodes = vec!["n1".to_owned(), "n2".to_owned()];
        let given = Given { version: "1".to_owned(), nodes, is_pinned: true };
        let told = given.told("fruit");
        assert!(
            told.starts_with("clients of all 2 nodes get version 1, to which dataset fruit is pinned"),
            "{told}"
        );
    }

    #[test]
    fn a_failure_of_before_the_settings_does_not_count_and_one_of_after_does() {
        let error = |tries: u32| json!({ "n1": { "error": "no key column", "tries": tries } });
        let (before, after) = (version(error(3)), version(error(4)));
        assert_eq!(fails_anew("1", &before, Some(&before)), Ok(()));
        let told = fails_anew("1", &after, Some(&before)).unwrap_err();
        assert!(told.what().contains("version 1 at n1: no key column"), "{told}");
        assert!(fails_anew("1", &before, None).is_err(), "nobody told anything before");
        assert!(fails_anew("1", &before, Some(&version(json!({ "n2": { "error": "x" } })))).is_err());
        assert_eq!(fails_anew("1", &version(json!({ "n1": { "current": true } })), Some(&before)), Ok(()));
    }
}

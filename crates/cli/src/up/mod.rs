//! `partage up`: everything on this machine, in one process, in seconds. A coordinator, some nodes with the
//! built-in key-value service, some that serve the package index of Debian 12 as a dataset, some that store a table, a pool of
//! shuffles, and a router.
//!
//! Nothing here is special: the parts are those of `partage coordinator`, `node`, `dataset serve`, `table serve`, `shuffle serve`
//! and `router`, on loopback. Only that nodes can be killed and added from outside, so that one can watch what happens, is
//! `up`'s own ([`node_manager`]).

mod node_manager;
mod sample;
mod sample_dataset;

use crate::client::ApiClient;
use crate::output::{Failure, Output, say};
use crate::role::{StopSignals, log};
use clap::Args;
use node_manager::{NodeManager, REDIS_ABOVE};
use partage_coordinator::{Backing, Config, Coordinator, StartError};
use partage_core::base::count::counted;
use partage_core::base::settings::Settings;
use partage_door::state::make_private;
use partage_router::{Options, Router, proxy};
use sample_dataset::SampleDataset;
use serde::{Serialize, Serializer};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinSet;

/// The coordinator's port; the others follow it.
const PORT: u16 = 7400;

/// Nodes have the ports from one above this, counted from the coordinator's.
const NODES_FROM: u16 = 10;

/// Nodes of the dataset have the ports from one above this.
const DATASET_NODES_FROM: u16 = 80;

/// How many there are at the most.
const DATASET_NODES: u16 = 3;

/// Nodes of tables have the ports from one above this.
const TABLE_NODES_FROM: u16 = 90;

/// How many there are at the most.
const TABLE_NODES: u16 = 3;

/// Nodes of the pool of shuffles have the ports from one above this: with the usual port those that commands ask by themselves.
const SHUFFLE_NODES_FROM: u16 = 299;

/// How many there are at the most.
const SHUFFLE_NODES: u16 = 3;

/// Each record of a shuffle is on so many of them, if there are so many.
const SHUFFLE_REPLICAS: u16 = 2;

/// The key that the commands to try are about.
const KEY: &str = "apple";

/// How long everything may take to be there.
const READY: Duration = Duration::from_secs(60);

/// The arguments of `partage up`.
#[derive(Debug, Args)]
pub struct UpArgs {
    /// Number of nodes of the key-value service; the same number of nodes, at most three, serve the dataset, as many
    /// store the table, and as many are the pool of shuffles
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64))]
    nodes: u16,
    /// Directory to keep shard placement, plans, the dataset, the table and shuffles for the next start; the nodes of the
    /// key-value service keep their data in memory only
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Port of the coordinator; the router takes port + 1, the listener that kills and adds nodes port + 2, key-value nodes
    /// take ports from + 11, dataset nodes from + 81, table nodes from + 91 and for Redis clients
    /// from + 96, nodes of shuffles from + 300, and nodes that are added any free port; 0 takes free ports for all
    #[arg(long, default_value_t = PORT)]
    port: u16,
    /// Do not load the package index into the table
    #[arg(long)]
    empty_table: bool,
}

/// The addresses, as `--json` prints them.
#[derive(Debug, Serialize)]
struct Addresses {
    coordinator: String,
    router: String,
    control: String,
    nodes: Vec<NodeAddress>,
    /// The nodes that serve the package index as a dataset, and where its versions are.
    dataset_nodes: Vec<NodeAddress>,
    dataset_source: String,
    /// The nodes that store the table.
    table_nodes: Vec<NodeAddress>,
    /// Where they listen for clients of Redis.
    resp: Vec<String>,
    /// The nodes of the pool of shuffles: where they listen.
    #[serde(serialize_with = "addresses_alone")]
    shuffle: Vec<NodeAddress>,
    /// Where they are reached over Arrow Flight.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    flight: Vec<String>,
    /// The shard of the table in which [`KEY`] is, and the node that leads it.
    #[serde(skip)]
    shard: Option<(u64, String)>,
}

#[derive(Debug, Serialize)]
struct NodeAddress {
    id: String,
    address: String,
}

fn addresses_alone<S: Serializer>(nodes: &[NodeAddress], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(nodes.iter().map(|node| &node.address))
}

/// What runs in the process.
struct Parts {
    coordinator: Coordinator,
    manager: NodeManager,
    proxy: proxy::Proxy,
    addresses: Addresses,
    /// The folder of the table and shuffles, where they are not kept; removed in the end.
    _temporary: Option<TempDir>,
}

impl Parts {
    async fn stop(self) {
        self.proxy.stop().await;
        self.manager.stop().await;
        self.coordinator.stop().await;
    }
}

impl UpArgs {
    /// Runs until it is asked to stop.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        // Warnings would be read past: what happens is to be watched with the commands.
        log(false, "error");
        let mut signals = StopSignals::listen()?;
        crate::door::make_state_private();
        self.check_ports()?;
        say(&self.begins());
        let Some(parts) = signals.unless_asked(self.start()).await else { return Ok(()) };
        let parts = parts?;
        if output.is_json() {
            output.json(&parts.addresses)?;
        } else {
            output.text(&welcome(&parts.addresses, self.port == PORT, self.data_dir.is_some()));
        }
        output.flush();
        let nodes = parts.addresses.table_nodes.iter().map(|node| node.address.clone()).collect();
        let filling = (!self.empty_table).then(|| tokio::spawn(fill(nodes)));
        signals.asked_to_stop().await;
        if let Some(filling) = filling {
            filling.abort();
        }
        parts.stop().await;
        Ok(())
    }

    /// Starts all of it, and waits until the shards are served.
    async fn start(&self) -> Result<Parts, Failure> {
        if let Some(folder) = &self.data_dir {
            make_private(folder);
        }
        let dataset_dir = self.data_dir.as_ref().map(|dir| dir.join("datasets"));
        let dataset = SampleDataset::open(dataset_dir.as_deref()).await?;
        let doors = crate::door::settings().shared_by(self.listeners());
        let coordinator = self.coordinator(doors.clone()).await?;
        let at = coordinator.address().to_string();
        let client = ApiClient { coordinator: vec![at.clone()], who: "up".to_owned() };
        let (data, temporary) = self.data()?;
        let replicas = self.nodes.min(SHUFFLE_REPLICAS).into();
        let manager = NodeManager::new(at.clone(), dataset, data, replicas, doors.clone());
        self.add_nodes(&manager).await?;
        let control = manager.open(self.address(2)).await?;
        let router = Router::connect(vec![at.clone()], Options::default()).await;
        let config = proxy::Config { listen: self.address(1), door: doors, ..proxy::Config::default() };
        let proxy = proxy::serve(&router, config).await.map_err(Failure::failed)?;
        sample::create_notes(&client).await?;
        sample::create_inventory(&client, self.nodes.min(TABLE_NODES).into()).await?;
        sample::wait_until_served(&client, READY).await?;
        let nodes = manager.nodes().into_iter();
        let nodes = nodes.map(|(id, address)| NodeAddress { id, address: address.to_string() });
        let (dataset_nodes, nodes): (Vec<_>, Vec<_>) =
            nodes.partition(|node| node_manager::is_of_dataset(&node.id));
        let (table_nodes, nodes): (Vec<_>, Vec<_>) =
            nodes.into_iter().partition(|node| node_manager::is_of_tables(&node.id));
        let (shuffle, nodes): (Vec<_>, Vec<_>) =
            nodes.into_iter().partition(|node| node_manager::is_of_shuffles(&node.id));
        let flight = shuffle.iter().filter_map(|node| crate::shuffle::flight::uri(&node.address)).collect();
        let addresses = Addresses {
            coordinator: at,
            router: proxy.address().to_string(),
            control: control.to_string(),
            nodes,
            dataset_nodes,
            dataset_source: manager.dataset().folder().display().to_string(),
            table_nodes,
            resp: manager.redis(),
            shuffle,
            flight,
            shard: sample::shard_of(&client, KEY).await?,
        };
        Ok(Parts { coordinator, manager, proxy, addresses, _temporary: temporary })
    }

    /// The folder of the nodes of tables and of shuffles.
    fn data(&self) -> Result<(PathBuf, Option<TempDir>), Failure> {
        if let Some(folder) = &self.data_dir {
            return Ok((folder.clone(), None));
        }
        let temporary = tempfile::tempdir();
        let temporary = temporary.map_err(|error| {
            Failure::failed(format!("cannot make a folder for the table and shuffles: {error}"))
        })?;
        Ok((temporary.path().to_owned(), Some(temporary)))
    }

    /// Coordinator, router, the listener that stops and adds nodes, and the nodes.
    fn listeners(&self) -> usize {
        let few = [DATASET_NODES, TABLE_NODES, SHUFFLE_NODES].map(|most| self.nodes.min(most));
        let redis = self.nodes.min(TABLE_NODES);
        3 + usize::from(self.nodes + few.iter().sum::<u16>() + redis)
    }

    /// All nodes side by side: each waits for the coordinator to take it in.
    async fn add_nodes(&self, manager: &NodeManager) -> Result<(), Failure> {
        let keep = (1..=self.nodes).map(|number| (format!("n{number}"), NODES_FROM + number));
        let serve = (1..=self.nodes.min(DATASET_NODES))
            .map(|number| (format!("d{number}"), DATASET_NODES_FROM + number));
        let store =
            (1..=self.nodes.min(TABLE_NODES)).map(|number| (format!("t{number}"), TABLE_NODES_FROM + number));
        let shuffle = (1..=self.nodes.min(SHUFFLE_NODES))
            .map(|number| (format!("s{number}"), SHUFFLE_NODES_FROM + number));
        let mut begun = JoinSet::new();
        for (id, above) in keep.chain(serve).chain(store).chain(shuffle) {
            let (manager, listen) = (manager.clone(), self.address(above));
            begun.spawn(async move { manager.add(&id, listen).await });
        }
        while let Some(added) = begun.join_next().await {
            added.map_err(Failure::failed)??;
        }
        Ok(())
    }

    /// What is said before anything takes time.
    fn begins(&self) -> String {
        let nodes = |count: u16| counted(count, "node");
        let (all, of_dataset) = (nodes(self.nodes), nodes(self.nodes.min(DATASET_NODES)));
        let of_tables = nodes(self.nodes.min(TABLE_NODES));
        let of_shuffles = nodes(self.nodes.min(SHUFFLE_NODES));
        format!(
            "starting a coordinator, a key-value service on {all}, the packages of Debian 12 on {of_dataset}, a table on {of_tables}, shuffles on {of_shuffles}, and a router"
        )
    }

    /// All ports follow the first, so the last must be one too.
    fn check_ports(&self) -> Result<(), Failure> {
        let redis = TABLE_NODES_FROM + TABLE_NODES + REDIS_ABOVE;
        let above = (NODES_FROM + self.nodes).max(redis).max(SHUFFLE_NODES_FROM + SHUFFLE_NODES);
        let last = u16::MAX - above;
        if self.port <= last {
            return Ok(());
        }
        let what = format!("--port {} leaves no ports for {}", self.port, counted(self.nodes, "node"));
        Err(Failure::usage(what).help(format!("give {last} or less, or 0 for any that are free")))
    }

    fn address(&self, above: u16) -> SocketAddr {
        let port = if self.port == 0 { 0 } else { self.port.saturating_add(above) };
        SocketAddr::from((Ipv4Addr::LOCALHOST, port))
    }

    async fn coordinator(&self, door: partage_door::Settings) -> Result<Coordinator, Failure> {
        let backing = self.data_dir.clone().map_or(Backing::Memory, Backing::Directory);
        // All nodes begin together here: none is waited for.
        let settings = Settings { settle_ms: 100, ..Settings::default() };
        let config = Config { backing, door, settings, ..Config::new(self.address(0)) };
        Coordinator::start(config).await.map_err(|error| match &error {
            StartError::Listen { .. } => {
                Failure::failed(error).help("another `up` may run: choose a free --port, or 0 for any")
            }
            StartError::Store(_) | StartError::Recover(_) | StartError::Unreachable { .. } => {
                Failure::failed(error)
            }
        })
    }
}

/// Loads the table while everything runs already, and says when that is done.
async fn fill(nodes: Vec<String>) {
    match sample::fill_inventory(nodes).await {
        Ok(what) => say(&what),
        Err(failure) => say(&format!(
            "warning: {} is not loaded: {}; the next `partage up` in this --data-dir goes on",
            sample::TABLE,
            failure.what()
        )),
    }
}

/// What the death of a leader of the table does, with so many nodes.
fn of_its_death(nodes: usize) -> &'static str {
    match nodes {
        1 => "kill the only node of the table: its rows are back when it is added again",
        2 => "kill its leader: the other node answers reads some seconds later; writes wait for both",
        _ => "kill its leader: another node leads some seconds later; nothing is lost",
    }
}

/// The commands to try with the table. No node that they name is the leader that they kill, unless there is one node alone.
fn to_try_of_tables(at: &Addresses, usual_port: bool) -> Vec<(String, &'static str)> {
    let control = &at.control;
    let (shard, leader) = at.shard.clone().unwrap_or_else(|| (1, "t1".to_owned()));
    let stays = at.table_nodes.iter().position(|node| node.id != leader).unwrap_or_default();
    let node = at.table_nodes.get(stays).map_or("", |node| &node.address);
    let redis = at.resp.get(stays).and_then(|address| address.rsplit(':').next()).unwrap_or_default();
    let partage = |command: String| in_cluster(at, usual_port, &command);
    let is_alone = at.table_nodes.len() == 1;
    let written =
        if is_alone { "on its disk when it returns" } else { "on the disks of two nodes when it returns" };
    let post = |what: &str| format!("curl -X POST -H 'partage-request: 1' http://{control}/{what}/{leader}");
    let mut tries = vec![
        (format!("partage table put inventory {KEY} 3 --node {node}"), written),
        (format!("curl -i http://{node}/v1/tables/inventory/keys/{KEY}"), "any node answers; see etag"),
        (format!("redis-cli -p {redis} INCRBY {KEY} 2"), "the same table for any client of Redis"),
        (
            format!("partage table index query inventory section --equals games --limit 5 --node {node}"),
            "packages of a section, once `up` says that the table is loaded",
        ),
        (partage(format!("explain inventory {KEY}")), "which shard, who leads it, and why"),
        (post("kill"), of_its_death(at.table_nodes.len())),
        (format!("partage table get inventory {KEY} --node {node}"), "what was written last"),
        (post("add"), "it comes back with what it has stored, and catches up"),
        (
            partage(format!("shard split inventory s{shard} --wait")),
            "split the shard at its median, while requests go on",
        ),
        (partage("shard list inventory --long".to_owned()), "watch it: before, meanwhile and after"),
    ];
    if is_alone {
        // No other node answers while the only one is dead.
        tries.retain(|(command, _)| !command.starts_with("partage table get"));
    }
    tries
}

/// A command about the cluster, with its coordinator where that is not at the usual port.
fn in_cluster(at: &Addresses, usual_port: bool, command: &str) -> String {
    match usual_port {
        true => format!("partage {command}"),
        false => format!("partage {command} --coordinator {}", at.coordinator),
    }
}

/// The commands to try, with what each does.
fn to_try(at: &Addresses, usual_port: bool) -> Vec<(String, &'static str)> {
    let Addresses { coordinator, router, control, .. } = at;
    let partage = |command: &str| in_cluster(at, usual_port, command);
    vec![
        (format!("curl http://{router}/packages/libc6"), "look a package up"),
        (format!("curl -X PUT http://{router}/notes/hello -d hi"), "write something, and read it back"),
        (partage("status"), ""),
        (partage("shard list packages"), "shards × nodes"),
        (partage("explain packages libc6"), "why it is where it is"),
        (
            format!("curl -X POST -H 'partage-request: 1' http://{control}/kill/d2"),
            "kill a node: its shards are served on, then placed again",
        ),
        (
            format!("curl -X POST -H 'partage-request: 1' http://{control}/add/d9"),
            "add one; n9 would be one of `notes`",
        ),
        (format!("partage node --id n10 --join {coordinator}"), "a node of `notes`, in a process of its own"),
        (partage("plan list"), "a plan for `notes` waits for you some seconds later: show it, approve it"),
        (partage("node drain d1"), "empty a node without losing a request"),
    ]
}

/// The same for the dataset.
fn to_try_of_datasets(at: &Addresses) -> Vec<(String, &'static str)> {
    let node = at.dataset_nodes.first().map_or("", |node| &node.address);
    let last = at.dataset_nodes.last().map_or("", |node| &node.address);
    let [(old, _), _] = sample_dataset::VERSIONS;
    let partage = |command: &str| format!("partage dataset {command} --node {node}");
    vec![
        (format!("curl -i http://{node}/packages/libc6"), "any node answers; see partage-version"),
        (partage("scan packages --prefix libc"), "in the order of the keys"),
        (partage(&format!("rollback packages {old}")), "clients get the earlier version, on every node"),
        (partage("status packages"), "watch it: who has which version, and what clients get"),
        (partage("rollback packages --latest"), "and back"),
        (format!("curl -H 'accept: text/html' http://{last}/"), "the same as a page: open it in a browser"),
    ]
}

/// The same for shuffles: the files of the dataset are sorted, since they are there.
fn to_try_of_shuffles(at: &Addresses, usual_port: bool) -> Vec<(String, &'static str)> {
    let [_, (version, _)] = sample_dataset::VERSIONS;
    let source = Path::new(&at.dataset_source).join(sample_dataset::DATASET).join(version);
    let files = in_shell(&std::path::absolute(&source).unwrap_or(source));
    let nodes: Vec<&str> = at.shuffle.iter().map(|node| node.address.as_str()).collect();
    let node = if usual_port { String::new() } else { format!(" --node {}", nodes.join(",")) };
    let sort = |out: &str| {
        format!("partage shuffle sort {files}/*.jsonl --by size_bytes:desc -o {out} --partitions 3{node}")
    };
    let post = |what: &str| format!("curl -X POST -H 'partage-request: 1' http://{}/{what}/s2", at.control);
    let mut tries = vec![
        (sort("sorted"), ""),
        ("wc -l sorted/*".to_owned(), "exactly divided: the parts differ by one package at most"),
    ];
    if at.shuffle.len() > usize::from(SHUFFLE_REPLICAS) {
        tries.extend([
            (post("kill"), "kill a node, and sort without it: that takes some seconds more"),
            (sort("again"), ""),
            ("diff -r sorted again".to_owned(), "prints nothing: the parts are the same"),
            (post("add"), "it comes back with what it has stored"),
        ]);
    }
    tries.push((format!("partage shuffle list{node}"), "what is there; a sort deletes its own in the end"));
    tries
}

/// Where programs shuffle, if this one is built with Arrow Flight.
fn of_flight(nodes: &[String]) -> String {
    let said = |node| {
        format!(
            "
Programs shuffle over Arrow Flight, Python with pyarrow alone: at {node}, as examples/shuffle-pyarrow shows.
"
        )
    };
    nodes.first().map(said).unwrap_or_default()
}

/// A path as one word of a command.
fn in_shell(path: &Path) -> String {
    let path = path.display().to_string();
    let is_plain = path.chars().all(|char| char.is_ascii_alphanumeric() || "/._-".contains(char));
    if is_plain { path } else { format!("'{}'", path.replace('\'', r"'\''")) }
}

fn welcome(at: &Addresses, usual_port: bool, keeps: bool) -> String {
    let named = |nodes: &[NodeAddress]| -> String {
        nodes.iter().map(|node| format!("{} at {}", node.id, node.address)).collect::<Vec<_>>().join(", ")
    };
    let (tries, of_datasets) = (to_try(at, usual_port), to_try_of_datasets(at));
    let (of_tables, of_shuffles) = (to_try_of_tables(at, usual_port), to_try_of_shuffles(at, usual_port));
    let all = tries.iter().chain(&of_datasets).chain(&of_tables).chain(&of_shuffles);
    let explained = all.filter(|(_, what)| !what.is_empty());
    let width = explained.map(|(command, _)| command.chars().count()).max().unwrap_or(0);
    let (tries, of_datasets) = (in_columns(&tries, width), in_columns(&of_datasets, width));
    let (of_tables, of_shuffles) = (in_columns(&of_tables, width), in_columns(&of_shuffles, width));
    let of_flight = of_flight(&at.flight);
    let kept = if keeps {
        "What is kept in --data-dir is where shards are, plans, the dataset, the table and shuffles. Notes are in the memory of
their nodes, and gone when this ends."
    } else {
        "All of it is gone when this ends."
    };
    format!(
        "Partage is up: {} packages on {}.

  coordinator  http://{}
  router       http://{}
  `packages`   {}
  `notes`      {}
  `inventory`  {}
  shuffles     {}

Try, in another terminal:

{tries}

`packages` is a dataset: batch data of which clients get one version at a time. There are {}, in
{}.
A version is a folder of files: copy one there to a later name, and all nodes load it and switch.

{of_datasets}

`inventory` is a table: each of its rows is on the disks of several nodes before a write is acknowledged.
The package index is loaded into it while you read this, by key, with an index of the field `section`.

{of_tables}

A shuffle takes records from any number of clients, and gives them back sorted, in equal parts. `partage shuffle sort` sorts files
so: CSV, JSON Lines, Parquet, and records of a fixed length. Here are the packages, the largest ones first:

{of_shuffles}
{of_flight}
{kept} Ctrl-C stops everything.",
        sample_dataset::ROWS,
        counted(at.dataset_nodes.len(), "node"),
        at.coordinator,
        at.router,
        named(&at.dataset_nodes),
        named(&at.nodes),
        named(&at.table_nodes),
        named(&at.shuffle),
        sample_dataset::VERSIONS.map(|(name, _)| name).join(" and "),
        at.dataset_source,
    )
}

fn in_columns(tries: &[(String, &str)], width: usize) -> String {
    let line =
        |(command, what): &(String, &str)| format!("  {command:<width$}  {what}").trim_end().to_owned();
    tries.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_of_the_welcome_are_straight_at_every_port() {
        for port in [7400, 17400] {
            let at = |above: u16| format!("127.0.0.1:{}", port + above);
            let node = |id: &str, above| NodeAddress { id: id.into(), address: at(above) };
            let addresses = Addresses {
                coordinator: at(0),
                router: at(1),
                control: at(2),
                nodes: vec![node("n1", 11)],
                dataset_nodes: vec![node("d1", 81), node("d2", 82)],
                dataset_source: "/tmp/source".into(),
                table_nodes: vec![node("t1", 91), node("t2", 92)],
                resp: vec![at(96), at(97)],
                shuffle: vec![node("s1", 300), node("s2", 301), node("s3", 302)],
                flight: if port == 7400 { vec![format!("grpc+tcp://{}", at(300))] } else { Vec::new() },
                shard: Some((1, "t2".into())),
            };
            let text = welcome(&addresses, port == 7400, true);
            let explained =
                text.lines().filter(|line| line.starts_with("  curl") || line.starts_with("  partage"));
            let begins = |line: &str| {
                let (command, what) = line.trim_start().split_once("  ")?;
                let gap = what.len() - what.trim_start().len();
                Some(command.chars().count() + gap)
            };
            let columns: std::collections::BTreeSet<usize> = explained.filter_map(begins).collect();
            assert_eq!(columns.len(), 1, "{text}");
            assert!(text.contains("Notes are in the memory") && !text.contains("\n\n\n"), "{text}");
            let flight = text.lines().filter(|line| line.contains("at grpc+tcp://127.0.0.1:7700,")).count();
            assert_eq!(
                (flight, text.contains("Flight")),
                (usize::from(port == 7400), port == 7400),
                "{text}"
            );
            assert_eq!(text.contains("--node 127.0.0.1:17700,"), port == 17400, "{text}");
            assert!(text.contains(" /tmp/source/packages/day-2/*.jsonl --by size_bytes:desc"), "{text}");
            let nodes_named = text.lines().filter(|line| line.contains(&at(92))).count();
            assert_eq!(nodes_named, 1, "only where its address is, as t2 is the one that is killed: {text}");
        }
    }

    #[test]
    fn ports_that_do_not_fit_are_told_before_anything_starts() {
        let up = |port, nodes| UpArgs { nodes, data_dir: None, port, empty_table: false };
        assert!(up(0, 64).check_ports().is_ok());
        assert!(up(65_233, 3).check_ports().is_ok());
        let told = up(65_234, 3).check_ports().unwrap_err().to_string();
        assert!(told.contains("--port 65234") && told.contains("65233"), "{told}");
    }

    #[test]
    fn at_the_usual_port_commands_ask_the_nodes_of_shuffles_by_themselves() {
        let asked =
            (1..=SHUFFLE_NODES).map(|number| format!("127.0.0.1:{}", PORT + SHUFFLE_NODES_FROM + number));
        assert!(asked.eq(crate::shuffle::NODES));
    }

    #[test]
    fn a_path_is_one_word_of_a_command() {
        assert_eq!(in_shell(Path::new("/tmp/.tmpA_b-1/source")), "/tmp/.tmpA_b-1/source");
        assert_eq!(in_shell(Path::new("/my data/it's")), r"'/my data/it'\''s'");
    }
}

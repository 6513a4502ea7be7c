//! A coordinator and three nodes of tables: processes of the program `partage`, with default settings.

use crate::resp::{Answer, Connection};
use crate::{Run, rows};
use bench_gauge::{PATIENCE, Running, free, http, now, rest};
use partage_core::keyspace::hash::HashFunction;
use partage_core::keyspace::map::Role;
use partage_core::keyspace::sharding::{Bounds, PartitionKey, Sharding};
use partage_core::node::Health;
use partage_wire::json::{ReplicaPhase, Shard, Shards};
use std::io::{Error, Result};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

/// Nodes, each of which has a replica of each shard, unless one was [added](Cluster::add_node).
pub const NODES: usize = 3;

/// The name of the table that is measured.
const TABLE: &str = "bench";

/// How its keys are spread over shards.
const SHARDING: Sharding = Sharding::HashRange { hash: HashFunction::Xxh3_64 };

/// All processes, ended with their handle.
pub struct Cluster {
    program: PathBuf,
    folder: PathBuf,
    /// The process of the only coordinator.
    pub coordinator: Running,
    /// The nodes, by their numbers; the address is that for coordinators and other nodes.
    pub nodes: Vec<Running>,
    /// Where each listens for clients of Redis.
    pub resp: Vec<SocketAddr>,
}

/// One shard, and the node that leads it.
#[derive(Debug, Clone)]
pub struct Led {
    bounds: Bounds,
    /// The number of the node that leads it, if one does.
    pub leader: Option<usize>,
}

/// One shard, and the nodes that have its replicas.
#[derive(Debug, Clone)]
pub struct Place {
    /// The id of the shard.
    pub shard: u64,
    /// The number of the node that leads it, if one does.
    pub leader: Option<usize>,
    /// The numbers of the other nodes with a replica.
    pub followers: Vec<usize>,
}

/// All shards of the table, in the order of their bounds.
#[derive(Debug, Clone)]
pub struct Layout(pub Vec<Led>);

impl Layout {
    /// The place of a key's shard.
    pub fn shard(&self, key: &[u8]) -> usize {
        let position = SHARDING.position(PartitionKey::Whole, key);
        let found = self.0.binary_search_by(|led| match (&led.bounds, &position) {
            (Bounds::Hashes(range), partage_core::keyspace::sharding::Position::Point(point)) => {
                match range.contains(*point) {
                    true => std::cmp::Ordering::Equal,
                    false => range.last.cmp(point),
                }
            }
            _ => std::cmp::Ordering::Less,
        });
        found.unwrap_or_default()
    }

    /// For each node, the numbers below `keys` of the keys that it leads.
    pub fn numbers(&self, keys: u64) -> Vec<Vec<u64>> {
        let mut numbers = vec![Vec::new(); NODES];
        for number in 0..keys {
            if let Some(node) = self.0[self.shard(&rows::key(number))].leader {
                numbers[node].push(number);
            }
        }
        numbers
    }

    /// For each shard, a number whose key is in it.
    pub fn number_of_each(&self) -> Vec<u64> {
        let mut numbers = vec![None; self.0.len()];
        let mut left = numbers.len();
        for number in 0.. {
            let of = &mut numbers[self.shard(&rows::key(number))];
            if of.is_none() {
                *of = Some(number);
                left -= 1;
            }
            if left == 0 {
                break;
            }
        }
        numbers.into_iter().flatten().collect()
    }
}

impl Cluster {
    /// Starts all processes, and creates the table.
    pub fn start(run: &Run, name: &str, shards: u64) -> Result<Cluster> {
        let program = std::env::current_exe()?.with_file_name("partage");
        if !program.exists() {
            let program = program.display();
            return Err(Error::other(format!("{program} is not there: cargo build --release --bin partage")));
        }
        let folder = run.folder(name)?;
        let at = free()?;
        let coordinator = Running::start(&mut coordinator(&program, &folder, at), at)?;
        let mut cluster = Cluster { program, folder, coordinator, nodes: Vec::new(), resp: Vec::new() };
        for number in 0..NODES {
            let (at, resp) = (free()?, free()?);
            let node = cluster.start_node(number, at, resp)?;
            cluster.nodes.push(node);
            cluster.resp.push(resp);
        }
        cluster.nodes.iter_mut().try_for_each(Running::listens)?;
        let shards = shards.to_string();
        cluster.command(&["table", "create", TABLE, "--shards", &shards])?;
        cluster.settles()?;
        Ok(cluster)
    }

    /// Starts one node more than there are replicas of a shard. Nothing goes there by itself: the planner moves, splits and
    /// merges nothing from now on, and changes no leader.
    pub fn add_node(&mut self) -> Result<()> {
        self.command(&["keyspace", "update", TABLE, "--mode", "manual"])?;
        let (at, resp) = (free()?, free()?);
        let mut node = self.start_node(self.nodes.len(), at, resp)?;
        node.listens()?;
        self.nodes.push(node);
        self.resp.push(resp);
        Ok(())
    }

    fn start_node(&self, number: usize, at: SocketAddr, resp: SocketAddr) -> Result<Running> {
        let mut command = Command::new(&self.program);
        command.args(["table", "serve", "--id", &format!("t{number}"), "--listen", &at.to_string()]);
        command.args(["--redis-listen", &resp.to_string(), "--join", &self.coordinator.at.to_string()]);
        command.arg("--data-dir").arg(self.folder.join(format!("t{number}")));
        // What is measured does not hang on how full the disk of the machine is.
        command.args(["--disk-nearly-full", "1", "--disk-full", "1"]);
        Running::spawn(&mut command, at)
    }

    /// Starts a node again whose process has ended.
    pub fn restart_node(&mut self, number: usize) -> Result<()> {
        self.nodes[number] = self.start_node(number, self.nodes[number].at, self.resp[number])?;
        Ok(())
    }

    /// Starts the coordinator again, whose process has ended.
    pub fn restart_coordinator(&mut self) -> Result<()> {
        let at = self.coordinator.at;
        self.coordinator = Running::spawn(&mut coordinator(&self.program, &self.folder, at), at)?;
        Ok(())
    }

    fn command(&self, words: &[&str]) -> Result<()> {
        let output = Command::new(&self.program)
            .args(words)
            .args(["--coordinator", &self.coordinator.at.to_string()])
            .output()?;
        succeeded(words, &output)
    }

    /// Creates an index of the table, and waits until it is ready.
    pub fn create_index(&self, name: &str, field: &str) -> Result<()> {
        let node = self.nodes[0].at.to_string();
        let words = ["table", "index", "create", TABLE, name, "--field", field, "--wait", "--node", &node];
        let output = Command::new(&self.program).args(words).output()?;
        succeeded(&words, &output)
    }

    /// Changes a shard of the table, and waits until that is done: the verb of `partage shard`, and what follows the name.
    pub fn change_shard(&self, words: &[&str]) -> Result<()> {
        let (verb, rest) = words.split_first().ok_or_else(|| Error::other("no verb"))?;
        let words: Vec<&str> =
            ["shard", verb, TABLE].into_iter().chain(rest.iter().copied()).chain(["--wait"]).collect();
        self.command(&words)
    }

    /// The ids of the shards that serve, in the order of their bounds.
    pub fn numbers_of_shards(&self) -> Result<Vec<u64>> {
        Ok(self.shards()?.into_iter().map(|shard| shard.shard).collect())
    }

    /// Where the replicas of the first shard are.
    pub fn first_place(&self) -> Result<Place> {
        let shard = self.shards()?.into_iter().next().ok_or_else(|| Error::other("there is no shard"))?;
        let mut place = Place { shard: shard.shard, leader: None, followers: Vec::new() };
        for replica in &shard.replicas {
            match number_of(&replica.node) {
                Some(node) if replica.role.is(Role::Leader) => place.leader = Some(node),
                node => place.followers.extend(node),
            }
        }
        Ok(place)
    }

    fn shards(&self) -> Result<Vec<Shard>> {
        let (mut all, mut after) = (Vec::new(), String::new());
        loop {
            let path = format!("/v1/keyspaces/{TABLE}/shards{after}");
            let answer = http::ask(self.coordinator.at, "GET", &path)?;
            let page: Shards = serde_json::from_slice(http::body(&answer))?;
            all.extend(page.shards);
            match page.next {
                Some(next) => after = format!("?after={next}"),
                None => return Ok(all),
            }
        }
    }

    /// Which node leads which shard.
    pub fn layout(&self) -> Result<Layout> {
        let led = |shard: Shard| {
            let mut replicas = shard.replicas.iter();
            let leader = replicas.find(|replica| replica.role.is(Role::Leader));
            let leader = leader.and_then(|replica| number_of(&replica.node));
            let bounds = shard.bounds.try_into().map_err(Error::other)?;
            Ok(Led { bounds, leader })
        };
        let mut led = self.shards()?.into_iter().map(led).collect::<Result<Vec<Led>>>()?;
        led.sort_by_key(|led| match &led.bounds {
            Bounds::Hashes(range) => range.first,
            _ => 0,
        });
        Ok(Layout(led))
    }

    /// Followers in sync of the shard that has the fewest, as each node knows it that has a replica of one.
    fn in_sync(&self, shards: &[Shard]) -> Result<i64> {
        let has = |node: usize| {
            let mut replicas = shards.iter().flat_map(|shard| &shard.replicas);
            replicas.any(|replica| number_of(&replica.node) == Some(node))
        };
        let mut least = i64::MAX;
        for (_, at) in self.resp.iter().enumerate().filter(|(node, _)| has(*node)) {
            let mut connection = Connection::open(*at, Duration::from_secs(5))?;
            connection.send(b"WAIT 0 0\r\n")?;
            match connection.answer()? {
                Answer::Number(followers) => least = least.min(followers),
                other => return Err(Error::other(format!("WAIT: {other:?}"))),
            }
        }
        Ok(least)
    }

    /// Waits until each shard has a leader, and on [`NODES`] nodes a replica that serves and is in sync.
    pub fn settles(&mut self) -> Result<()> {
        let end = now() + PATIENCE;
        loop {
            let unsettled = match self.shards() {
                Ok(shards) if shards.is_empty() => "there is no shard".to_owned(),
                Ok(shards) => {
                    let unsettled = shards.iter().filter(|shard| !is_settled(shard)).count();
                    match self.in_sync(&shards) {
                        Ok(followers) if unsettled == 0 && followers >= NODES as i64 - 1 => return Ok(()),
                        Ok(followers) => format!(
                            "{unsettled} of {} shards are not served by all nodes, and one has {followers} followers in sync",
                            shards.len()
                        ),
                        Err(error) => error.to_string(),
                    }
                }
                Err(error) => error.to_string(),
            };
            self.coordinator.lives()?;
            self.nodes.iter_mut().try_for_each(Running::lives)?;
            if now() > end {
                return Err(Error::other(format!("not within {} s: {unsettled}", PATIENCE.as_secs())));
            }
            rest(200);
        }
    }

    /// Seconds on a core that all processes have used, the coordinator's too.
    pub fn core_seconds(&self) -> f64 {
        self.nodes.iter().map(Running::core_seconds).sum::<f64>() + self.coordinator.core_seconds()
    }
}

fn coordinator(program: &std::path::Path, folder: &std::path::Path, at: SocketAddr) -> Command {
    let mut command = Command::new(program);
    command.args(["coordinator", "--listen", &at.to_string()]).arg("--data-dir").arg(folder.join("state"));
    command
}

/// The number of a node, by its name.
fn number_of(node: &str) -> Option<usize> {
    node.strip_prefix('t')?.parse().ok()
}

fn succeeded(words: &[&str], output: &Output) -> Result<()> {
    match output.status.success() {
        true => Ok(()),
        false => Err(Error::other(format!("{words:?}: {}", String::from_utf8_lossy(&output.stderr)))),
    }
}

fn is_settled(shard: &Shard) -> bool {
    let serves = |replica: &partage_wire::json::Replica| {
        replica.phase == Some(ReplicaPhase::Serving.into()) && replica.health.is(Health::Up)
    };
    shard.replicas.len() == NODES
        && shard.replicas.iter().all(serves)
        && shard.replicas.iter().any(|replica| replica.role.is(Role::Leader))
}

//! What happens to the nodes and the shards while clients go on. Each trouble ends when the table is whole again, and clients
//! write.

use crate::TABLE;
use crate::clients::Recorder;
use crate::cluster::{Cluster, eventually};
use crate::history::{Kind, Outcome};
use crate::links::{COORDINATOR, Links};
use serde_json::Value;
use std::time::Duration;

/// Longer than a follower promises to follow no other leader, and than one may be silent in the in-sync set.
const STOPPED: Duration = Duration::from_millis(2_500);

/// Longer than a node may be silent that does not count as dead (`dead_after_ms`).
const CUT_OFF: Duration = Duration::from_millis(5_000);

/// Which way nothing goes between two processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    There,
    Back,
    Both,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// The lead of a shard goes to another node.
    Transfer,
    /// A shard is split, or two are merged.
    Reshape,
    StopLeader,
    StopFollower,
    KillLeader,
    KillFollower,
    /// All nodes are killed, and started again.
    KillAll,
    /// A leader is stopped, another one leads, and that one is killed.
    StopAndKill,
    /// The node that leads the last shard and another one do not hear each other, or one of them not the other. There is from the
    /// leader.
    CutNodes(Way),
    /// The same of the node that leads and the coordinator. There is from the node.
    CutOff(Way),
    KillCoordinator,
}

/// The shards that serve, by their keys.
fn serving(cluster: &Cluster) -> Vec<Value> {
    let shards = cluster.shards(TABLE).into_iter();
    let mut serving: Vec<Value> = shards.filter(|shard| shard["stage"] == "serving").collect();
    serving.sort_by_key(|shard| shard["bounds"].to_string());
    serving
}

/// All replicas of all shards are live and in sync, and each shard has a leader.
pub fn are_whole(cluster: &Cluster) -> Result<(), String> {
    let all = cluster.shards(TABLE);
    let is_whole = |shard: &Value| {
        let replicas = shard["replicas"].as_array().unwrap();
        shard["stage"] == "serving"
            && replicas.len() == 3
            && replicas.iter().all(|replica| replica["state"] == "live" && replica["in_sync"] == true)
            && replicas.iter().any(|replica| replica["role"] == "leader")
    };
    if all.iter().all(is_whole) { Ok(()) } else { Err(format!("{all:?}")) }
}

/// The number of the node that leads the last shard, and its id.
fn led(cluster: &Cluster) -> (usize, String) {
    let shards = serving(cluster);
    let last = shards.last().unwrap();
    (cluster.leader(last), last["shard"].to_string())
}

/// Clients go on: so many more writes are acknowledged.
fn writes_go_on(recorder: &Recorder, more: usize) {
    let count = || recorder.count(|one| one.kind == Kind::Put && one.outcome == Outcome::Ok);
    let before = count();
    eventually("clients write", || match count() {
        now if now >= before + more => Ok(()),
        now => Err(format!("{now} writes, and {before} before")),
    });
}

fn stop_for_a_while(cluster: &Cluster, node: usize) {
    cluster.nodes[node].process.signal("-STOP");
    std::thread::sleep(STOPPED);
    cluster.nodes[node].process.signal("-CONT");
}

impl Trouble {
    pub fn drawn(draw: u8) -> Trouble {
        let all = [
            Trouble::Transfer,
            Trouble::Reshape,
            Trouble::StopLeader,
            Trouble::StopFollower,
            Trouble::KillLeader,
            Trouble::KillFollower,
            Trouble::KillAll,
            Trouble::StopAndKill,
            Trouble::CutNodes(Way::There),
            Trouble::CutNodes(Way::Back),
            Trouble::CutNodes(Way::Both),
            Trouble::CutOff(Way::There),
            Trouble::CutOff(Way::Back),
            Trouble::CutOff(Way::Both),
            Trouble::KillCoordinator,
        ];
        all[usize::from(draw) % all.len()]
    }

    pub fn comes(self, cluster: &mut Cluster, links: &Links, recorder: &Recorder) {
        let (leader, _) = led(cluster);
        let follower = (leader + 1) % 3;
        match self {
            Trouble::Transfer => run(cluster, || {
                let (leader, shard) = led(cluster);
                words(&["shard", "transfer", TABLE, &shard, "--to", &Cluster::id((leader + 1) % 3)])
            }),
            Trouble::Reshape => run(cluster, || match &serving(cluster)[..] {
                [low, high, ..] => {
                    let [low, high] = [low, high].map(|shard| shard["shard"].to_string());
                    words(&["shard", "merge", TABLE, &low, &high])
                }
                _ => words(&["shard", "split", TABLE, &led(cluster).1, "--at", "k3"]),
            }),
            Trouble::StopLeader => stop_for_a_while(cluster, leader),
            Trouble::StopFollower => stop_for_a_while(cluster, follower),
            Trouble::KillLeader => kill(cluster, recorder, leader),
            Trouble::KillFollower => kill(cluster, recorder, follower),
            Trouble::KillAll => {
                (0..3).for_each(|node| cluster.nodes[node].process.kill());
                (0..3).for_each(|node| cluster.start_again(node));
            }
            Trouble::StopAndKill => stop_and_kill(cluster, leader),
            Trouble::CutNodes(way) => cut(links, leader, follower, way, STOPPED),
            Trouble::CutOff(way) => cut(links, leader, COORDINATOR, way, CUT_OFF),
            Trouble::KillCoordinator => {
                cluster.kill_coordinator();
                writes_go_on(recorder, 20);
                cluster.start_coordinator_again();
            }
        }
        eventually("the table is whole again", || are_whole(cluster));
        writes_go_on(recorder, 20);
    }
}

/// The leader is stopped, and the one that leads then is killed.
fn stop_and_kill(cluster: &mut Cluster, leader: usize) {
    cluster.nodes[leader].process.signal("-STOP");
    std::thread::sleep(STOPPED);
    let (next, _) = led(cluster);
    if next != leader {
        cluster.nodes[next].process.kill();
    }
    cluster.nodes[leader].process.signal("-CONT");
    if next != leader {
        cluster.start_again(next);
    }
}

/// Nothing goes from one process to the other, back, or either way, for so long.
fn cut(links: &Links, one: usize, other: usize, way: Way, time: Duration) {
    if way != Way::Back {
        links.hold(one, other);
    }
    if way != Way::There {
        links.hold(other, one);
    }
    std::thread::sleep(time);
    links.mend();
}

fn kill(cluster: &mut Cluster, recorder: &Recorder, node: usize) {
    cluster.nodes[node].process.kill();
    writes_go_on(recorder, 20);
    cluster.start_again(node);
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Runs a command until it is done.
fn run(cluster: &Cluster, arguments: impl Fn() -> Vec<String>) {
    eventually("a change by hand", || {
        let arguments = arguments();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let said = cluster.run(&[&arguments[..], &["--wait", "--timeout", "60"]].concat());
        if said.code == Some(0) { Ok(()) } else { Err(format!("{said:?}")) }
    });
}

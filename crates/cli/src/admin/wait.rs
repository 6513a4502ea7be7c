//! `--wait`: the command waits until the coordinator has done what it asked for, and prints the progress.
//!
//! | the command began  | it is done when                                  | it is blocked when                            |
//! |--------------------|--------------------------------------------------|-----------------------------------------------|
//! | a plan             | it is finished, and nothing of it was dropped    | it waits for a person, was refused or replaced |
//! | a drain            | every node of it is safe to stop                 | the coordinator says so in [`BLOCKED_LOOKS`] looks |
//! | a deletion         | every node that had a replica has taken in that it has none, or is gone | never |
//! | none of these      | for [`QUIET_LOOKS`] looks every shard is served with the replicas that it wants, and nothing is on its way | a keyspace in mode manual is not |
//!
//! Waiting changes nothing: after an interrupt or a timeout the work goes on.

use super::node::drain_line;
use super::shard::{all, is_led, is_short};
use crate::client::ApiClient;
use crate::http::segment;
use crate::output::{Failure, say};
use crate::redrawn::{is_watched, spinner};
use crate::role::StopSignals;
use crate::terminal::line;
use clap::Args;
use indicatif::ProgressBar;
use partage_core::base::count::{counted, counted_with};
use partage_core::keyspace::Mode;
use partage_core::node::Health;
use partage_wire::json::{
    Answer, ChangeProgress, Command, DrainState, Drains, Keyspace, Moves, Node, Nodes, Plan, PlanStatus,
    ShardStage, Summary,
};
use std::time::Duration;

/// The time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Looks in a row that must find nothing to do, as the planner may begin only after the first one.
const QUIET_LOOKS: u32 = 4;

/// Looks in a row that must find a drain blocked, as some time may pass between two moves.
const BLOCKED_LOOKS: u32 = 10;

/// Whether to wait, and for how long.
#[derive(Debug, Clone, Copy, Args)]
pub struct Wait {
    /// Wait until the change is done, and show its progress on stderr; exit code 5 when the change is blocked, or not
    /// done within --timeout
    #[arg(long, conflicts_with = "dry_run")]
    wait: bool,
    /// With --wait: maximum number of seconds to wait
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
}

/// What the command watches if it began neither a plan nor a drain.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Watch {
    Keyspace(String),
    Cluster,
    /// The nodes that had replicas of a deleted keyspace.
    Deletion {
        keyspace: String,
        holders: Vec<String>,
    },
    /// The command is done at once.
    Nothing,
}

/// What a look has found.
enum Found {
    Done(String),
    Going(String),
    /// It is blocked, perhaps for a moment only.
    Blocked(String),
    /// It has ended, and will not be done.
    Over(String),
}

impl Watch {
    fn of(command: &Command) -> Watch {
        match command {
            Command::CreateKeyspace { keyspace, .. } => Watch::Keyspace(keyspace.name.clone()),
            Command::UpdateKeyspace { keyspace, .. }
            | Command::RegisterPartitions { keyspace, .. }
            | Command::UnregisterPartitions { keyspace, .. }
            | Command::MoveShard { keyspace, .. }
            | Command::TransferLeader { keyspace, .. }
            | Command::AddReplica { keyspace, .. }
            | Command::RemoveReplica { keyspace, .. }
            | Command::SplitShard { keyspace, .. }
            | Command::MergeShards { keyspace, .. }
            | Command::IsolateKey { keyspace, .. }
            | Command::SetShardReplicas { keyspace, .. }
            | Command::PinShard { keyspace, .. }
            | Command::ReleaseShard { keyspace, .. }
            | Command::ForceJoinShard { keyspace, .. }
            | Command::RecreateShard { keyspace, .. } => Watch::Keyspace(keyspace.clone()),
            Command::UndrainNode { .. }
            | Command::UndrainZone { .. }
            | Command::DrainNode { .. }
            | Command::DrainZone { .. }
            | Command::RemoveNode { .. }
            | Command::ReleaseBrake {} => Watch::Cluster,
            Command::DeleteKeyspace { .. }
            | Command::ApprovePlan { .. }
            | Command::RejectPlan { .. }
            | Command::EditPlan { .. } => Watch::Nothing,
        }
    }
}

/// What a command has begun and `--wait` watches.
pub struct Begun {
    plan: Option<u64>,
    drains: Vec<String>,
    watch: Watch,
}

impl Begun {
    /// Of a command and its answer.
    pub fn of(command: &Command, answer: &Answer) -> Begun {
        let drains = match command {
            Command::DrainNode { .. } | Command::DrainZone { .. } => {
                answer.drains.iter().map(|drain| drain.node.clone()).collect()
            }
            _ => vec![],
        };
        Begun { plan: answer.plan.as_ref().map(|plan| plan.id), drains, watch: Watch::of(command) }
    }

    /// Changes in the whole cluster.
    pub fn of_all() -> Begun {
        Begun { plan: None, drains: vec![], watch: Watch::Cluster }
    }

    /// The wait until these nodes drop their replicas of a keyspace.
    pub fn of_deletion(keyspace: String, holders: Vec<String>) -> Begun {
        Begun { plan: None, drains: vec![], watch: Watch::Deletion { keyspace, holders } }
    }

    async fn look(&self, client: &ApiClient) -> Result<Found, Failure> {
        if let Some(plan) = self.plan {
            return match client.get::<Plan>(&format!("/v1/plans/{plan}")).await {
                Ok(plan) => Ok(of_plan(&plan)),
                Err(failure) if failure.is_kind("not_found") => {
                    Ok(Found::Over(format!("plan {plan} is not kept any more")))
                }
                Err(failure) => Err(failure),
            };
        }
        if !self.drains.is_empty() {
            return Ok(of_drains(&self.drains, &client.get::<Drains>("/v1/drains").await?));
        }
        match &self.watch {
            Watch::Keyspace(name) => of_keyspace(client, name).await,
            Watch::Cluster => Ok(of_cluster(&client.get::<Summary>("/v1/status").await?)),
            Watch::Deletion { keyspace, holders } => {
                Ok(of_deletion(keyspace, holders, &client.get::<Nodes>("/v1/nodes").await?))
            }
            Watch::Nothing => Ok(Found::Done("done".to_owned())),
        }
    }

    /// Looks until it is done or over.
    async fn follow(&self, client: &ApiClient, progress: &mut Progress) -> Result<(), Failure> {
        let (mut quiet, mut blocked) = (0, 0);
        let is_told =
            self.plan.is_some() || !self.drains.is_empty() || matches!(self.watch, Watch::Deletion { .. });
        let quiet_looks = if is_told { 1 } else { QUIET_LOOKS };
        loop {
            match self.look(client).await {
                Ok(Found::Done(text)) => {
                    (quiet, blocked) = (quiet + 1, 0);
                    if quiet >= quiet_looks {
                        progress.end(&text);
                        return Ok(());
                    }
                }
                Ok(Found::Going(text)) => {
                    (quiet, blocked) = (0, 0);
                    progress.show(&text);
                }
                Ok(Found::Blocked(text)) => {
                    (quiet, blocked) = (0, blocked + 1);
                    progress.show(&text);
                    if blocked >= BLOCKED_LOOKS {
                        return Err(Failure::not_done(format!("it is blocked: {text}")).help(
                            "the coordinator goes on trying; `partage status` says what is in the way",
                        ));
                    }
                }
                Ok(Found::Over(text)) => return Err(Failure::not_done(text)),
                // The next coordinator that leads goes on with it.
                Err(failure) if failure.is_not_reachable() => progress.show(failure.what()),
                Err(failure) => return Err(failure),
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }
}

impl Wait {
    /// Whether the person gave `--wait`.
    pub fn is_asked(&self) -> bool {
        self.wait
    }

    /// Waits until it is done, if the person gave `--wait`.
    pub async fn until_done(self, client: &ApiClient, begun: Begun) -> Result<(), Failure> {
        if !self.wait {
            return Ok(());
        }
        let mut signals = StopSignals::listen()?;
        let mut progress = Progress::new();
        let most = Duration::from_secs(self.timeout);
        let ended = tokio::select! {
            ended = tokio::time::timeout(most, begun.follow(client, &mut progress)) => ended,
            () = signals.asked_to_stop() => {
                progress.clear();
                return Err(Failure::interrupted("not waited for any longer: what was begun goes on")
                    .help("`partage status` and `partage events` say how far it is"));
            }
        };
        progress.clear();
        let late = || {
            let (seconds, last) = (self.timeout, progress.last());
            Failure::not_done(format!("not done within {seconds} s: {last}; what was begun goes on"))
                .help("`partage status` says how far it is; wait longer with --timeout SECONDS")
        };
        ended.unwrap_or_else(|_| Err(late()))
    }
}

/// The progress of a plan.
fn of_plan(plan: &Plan) -> Found {
    let (id, all) = (plan.id, plan.changes.len());
    let at = |progress| plan.changes.iter().filter(|planned| planned.progress.is(progress)).count();
    let dropped = plan.changes.iter().find(|planned| planned.progress.is(ChangeProgress::Dropped));
    match (plan.status.known(), dropped) {
        (Some(PlanStatus::Finished), None) => {
            Found::Done(format!("plan {id} is finished: {} done", counted_with(all, "change", ("is", "are"))))
        }
        (Some(PlanStatus::Finished), Some(first)) => Found::Over(format!(
            "plan {id} is finished, and {} of its {} dropped: {}",
            at(ChangeProgress::Dropped),
            counted_with(all, "change", ("was", "were")),
            first.dropped_because.as_deref().unwrap_or("no reason is kept")
        )),
        (Some(PlanStatus::Approved), _) => Found::Going(format!(
            "plan {id}: {} of {} done, {} under way",
            at(ChangeProgress::Done),
            counted_with(all, "change", ("is", "are")),
            at(ChangeProgress::Started)
        )),
        (Some(PlanStatus::Suggested), _) => {
            Found::Over(format!("plan {id} waits for a person: `partage plan approve {id}`"))
        }
        _ => Found::Over(match &plan.refused_because {
            Some(why) => format!("plan {id} is {}: {why}", plan.status),
            None => format!("plan {id} is {}", plan.status),
        }),
    }
}

/// The progress of the drains of these nodes.
fn of_drains(nodes: &[String], all: &Drains) -> Found {
    let drains: Vec<_> = all.drains.iter().filter(|drain| nodes.contains(&drain.node)).collect();
    if let Some(gone) = nodes.iter().find(|node| !drains.iter().any(|drain| drain.node == **node)) {
        return Found::Over(format!("the drain of node {gone} was ended"));
    }
    let of = |state| drains.iter().filter(|drain| drain.progress.is(state)).count();
    let (safe, blocked) = (of(DrainState::SafeToStop), of(DrainState::Blocked));
    if safe == drains.len() {
        return Found::Done(format!("safe to stop: {}", nodes.join(", ")));
    }
    let lines: Vec<_> = drains.iter().filter(|drain| !drain.progress.is(DrainState::SafeToStop)).collect();
    let first = lines.first().map_or_else(String::new, |drain| {
        drain_line(drain).lines().next().unwrap_or_default().trim_start_matches("drain").trim().to_owned()
    });
    let text = match lines.len() {
        1 => first,
        more => format!("{first}; and {}", counted(more - 1, "more node")),
    };
    match blocked + safe == drains.len() {
        true => {
            let why = drains.iter().flat_map(|drain| drain.stuck.first()).next().cloned().unwrap_or_default();
            Found::Blocked(format!("{text}: {why}"))
        }
        false => Found::Going(text),
    }
}

async fn of_keyspace(client: &ApiClient, name: &str) -> Result<Found, Failure> {
    let shards = all(client, name).await?;
    let moves: Moves = client.get(&format!("/v1/moves?keyspace={}", segment(name))).await?;
    let wants_service = shards.iter().filter(|shard| shard.serving.is_some());
    let (want, served) = (wants_service.clone().count(), wants_service.filter(|shard| is_led(shard)).count());
    let short = shards.iter().filter(|shard| is_short(shard)).count();
    let changing = shards.iter().filter(|shard| !shard.stage.is(ShardStage::Serving)).count();
    let counts = [served < want, short > 0, changing > 0, !moves.moves.is_empty()];
    let text = format!("keyspace {name}: {served} of {} served", counted_with(want, "shard", ("is", "are")));
    if counts.iter().all(|is_unfinished| !is_unfinished) {
        return Ok(Found::Done(text));
    }
    let under_way = moves.moves.len();
    let text = format!("{text}, {}", lacks(short, under_way));
    if short > 0 && under_way == 0 && changing == 0 {
        let keyspace: Keyspace = client.get(&format!("/v1/keyspaces/{}", segment(name))).await?;
        if keyspace.mode.is_some_and(|mode| mode.is(Mode::Manual)) {
            return Ok(Found::Over(format!(
                "{text}; it is in mode manual, so a person places it: with `partage shard add`, or by \
                 `partage keyspace update {name} --mode automatic`"
            )));
        }
    }
    Ok(Found::Going(text))
}

/// Whether every holder has taken in that it has no replica any more. The command does not wait for a node that is down,
/// has left, or was removed.
fn of_deletion(keyspace: &str, holders: &[String], all: &Nodes) -> Found {
    let is_gone = |node: &Node| node.health.is_any(&[Health::Down, Health::Left]);
    let standing = |id: &&String| all.nodes.iter().find(|node| node.id == **id && !is_gone(node));
    let (there, gone): (Vec<&String>, Vec<&String>) = holders.iter().partition(|id| standing(id).is_some());
    let is_left = |id: &&&String| standing(id).is_some_and(|node| !node.up_to_date);
    let left: Vec<&str> = there.iter().filter(is_left).map(|id| id.as_str()).collect();
    let names = gone.iter().map(|id| id.as_str()).collect::<Vec<_>>().join(", ");
    let but = if gone.is_empty() { String::new() } else { format!("; not waited for, as gone: {names}") };
    match (left.as_slice(), holders.len()) {
        ([], 0) => Found::Done(format!("no node had a replica of keyspace {keyspace}")),
        ([], _) => {
            let nodes = counted_with(there.len(), "node", ("has", "have"));
            Found::Done(format!("keyspace {keyspace}: {nodes} dropped every replica of it{but}"))
        }
        ([first, ..], of) => Found::Going(format!(
            "keyspace {keyspace}: {} of {} not dropped the replicas of it yet, such as {first}{but}",
            left.len(),
            counted_with(of, "node", ("has", "have")),
        )),
    }
}

fn of_cluster(status: &Summary) -> Found {
    let shards = &status.shards;
    let changing = shards.forming + shards.closing + shards.removing;
    let (open, on_their_way) = (shards.unserved + shards.unheard, status.moves + status.loads);
    let all = counted_with(shards.led + open, "shard", ("is", "are"));
    let text = format!("{} of {all} served", shards.led);
    match open + on_their_way + changing + status.short {
        0 => Found::Done(text),
        _ => Found::Going(format!("{text}, {}", lacks(status.short, on_their_way))),
    }
}

/// How many shards lack replicas, and how many replicas move.
fn lacks(short: usize, on_their_way: usize) -> String {
    let have = if short == 1 { "has" } else { "have" };
    format!("{short} {have} too few replicas, {} on the way", counted(on_their_way, "replica"))
}

/// One line on stderr: written over on a terminal, else written again when it has changed.
struct Progress {
    /// On a terminal, from the first text on.
    line: Option<ProgressBar>,
    last: String,
}

impl Progress {
    fn new() -> Progress {
        Progress { line: None, last: String::new() }
    }

    fn last(&self) -> &str {
        &self.last
    }

    fn show(&mut self, text: &str) {
        if self.last == text {
            return;
        }
        text.clone_into(&mut self.last);
        if !is_watched() {
            return say(text);
        }
        self.line.get_or_insert_with(|| spinner(false)).set_message(line(text).into_owned());
    }

    fn clear(&mut self) {
        if let Some(line) = self.line.take() {
            line.finish_and_clear();
        }
    }

    fn end(&mut self, text: &str) {
        self.clear();
        self.last.clear();
        say(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn plan(status: &str, changes: &[&str]) -> Plan {
        let change = |progress: &&str| {
            json!({
                "change": { "type": "add", "shard": 1, "node": "a" }, "reason": "r", "progress": progress,
                "dropped_because": (*progress == "dropped").then_some("the node is gone"),
            })
        };
        let changes: Vec<_> = changes.iter().map(change).collect();
        serde_json::from_value(json!({
            "id": 7, "keyspace": "kv", "origin": "rebalance", "status": status, "changes": changes,
            "base": { "sequence": 1, "transaction": "0".repeat(40) }, "made_ms": 0,
        }))
        .unwrap()
    }

    fn said(found: Found) -> (&'static str, String) {
        match found {
            Found::Done(text) => ("done", text),
            Found::Going(text) => ("going", text),
            Found::Blocked(text) => ("blocked", text),
            Found::Over(text) => ("over", text),
        }
    }

    #[test]
    fn a_plan_is_done_only_when_nothing_of_it_was_dropped() {
        let done = said(of_plan(&plan("finished", &["done", "done"])));
        assert_eq!(done, ("done", "plan 7 is finished: 2 changes are done".to_owned()));
        let (word, text) = said(of_plan(&plan("finished", &["done", "dropped"])));
        assert!(word == "over" && text.contains("1 of its 2 changes") && text.contains("the node is gone"));
        let (word, text) = said(of_plan(&plan("approved", &["done", "started", "waiting"])));
        assert!(word == "going" && text.contains("1 of 3 changes are done, 1 under way"), "{text}");
        assert!(said(of_plan(&plan("suggested", &["waiting"]))).1.contains("partage plan approve 7"));
        assert_eq!(said(of_plan(&plan("superseded", &["waiting"]))).0, "over");
    }

    fn drains(of: &[(&str, &str)]) -> Drains {
        let drain = |(node, progress): &(&str, &str)| {
            json!({
                "node": node, "reason": "disk", "asked_ms": 0, "progress": progress, "left": 3, "of": 5,
                "stuck": if *progress == "blocked" { vec!["no node could take it"] } else { vec![] },
            })
        };
        serde_json::from_value(json!({ "drains": of.iter().map(drain).collect::<Vec<_>>() })).unwrap()
    }

    fn nodes(of: &[(&str, &str, bool)]) -> Nodes {
        let node = |(id, health, up_to_date): &(&str, &str, bool)| {
            json!({
                "id": id, "address": "a.invalid:80", "incarnation": 1, "since_ms": 0, "health": health, "labels": [],
                "capacity": 1.0, "leaving": false, "up_to_date": up_to_date, "busy": 0.0, "replicas": {}, "leaders": 0,
                "requests_per_s": 0.0, "cpu_ms_per_s": 0.0, "size_bytes": 0.0,
            })
        };
        serde_json::from_value(json!({ "nodes": of.iter().map(node).collect::<Vec<_>>() })).unwrap()
    }

    #[test]
    fn a_deletion_says_what_was_waited_for_and_what_was_not() {
        let holders = ["a".to_owned(), "b".to_owned(), "c".to_owned()];
        let look = |of: &[(&str, &str, bool)]| said(of_deletion("kv", &holders, &nodes(of)));
        let going = look(&[("a", "up", true), ("b", "up", false), ("d", "up", false), ("c", "up", true)]);
        let text = "keyspace kv: 1 of 3 nodes have not dropped the replicas of it yet, such as b";
        assert_eq!(going, ("going", text.to_owned()));
        let text =
            "keyspace kv: 1 node has dropped every replica of it; not waited for, as gone: b, c".to_owned();
        assert_eq!(look(&[("a", "up", true), ("b", "down", false)]), ("done", text));
        let none = "no node had a replica of keyspace kv".to_owned();
        assert_eq!(said(of_deletion("kv", &[], &nodes(&[("a", "up", false)]))), ("done", none));
    }

    #[test]
    fn a_zone_is_drained_when_all_its_nodes_are() {
        let nodes = ["a".to_owned(), "b".to_owned()];
        let look = |of: &[(&str, &str)]| said(of_drains(&nodes, &drains(of)));
        assert_eq!(look(&[("a", "safe_to_stop"), ("b", "safe_to_stop")]).0, "done");
        assert_eq!(look(&[("a", "safe_to_stop"), ("b", "moving"), ("c", "blocked")]).0, "going");
        assert_eq!(look(&[("a", "blocked"), ("b", "moving")]).0, "going", "something still moves");
        let (word, text) = look(&[("a", "blocked"), ("b", "safe_to_stop")]);
        assert!(word == "blocked" && text.contains("no node could take it"), "{text}");
        assert!(look(&[("a", "moving")]).1.contains("drain of node b was ended"));
    }
}

//! What is wrong, for a person who looks at the status: a few sentences, the worst first, each with the way out.
//!
//! Nothing here is a list of shards: whatever is wrong with many of them is counted, and the way out names the command
//! that lists them.

use super::admin::DrainProgress;
use super::serving::Serving;
use super::status::Summary;
use super::{Cluster, Moment, NodeState};
use crate::base::count::{counted, counted_with};
use crate::base::name::NodeId;
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::Shard;
use crate::limits;
use crate::node::Health;
use crate::node::exchange::{Failure, Phase};
use std::collections::BTreeMap;
use std::fmt;

/// Something that is wrong, and what a person can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// What is wrong, in a sentence.
    pub what: String,
    /// What a person can do about it: the end of the sentence.
    pub way_out: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.way_out)
    }
}

pub(super) fn problem(what: String, way_out: impl Into<String>) -> Problem {
    Problem { what, way_out: way_out.into() }
}

/// "1 shard is", "3 shards are".
fn shards_are(count: usize) -> String {
    counted_with(count, "shard", ("is", "are"))
}

pub(super) fn shards_wait(count: usize) -> String {
    counted_with(count, "shard", ("waits", "wait"))
}

/// The way out where a disk or a backend does not take a change.
pub const MAKE_ROOM: &str = "make room there (files that cannot be opened: make them readable and writable), and the coordinator makes \
                             changes again by itself";

impl Cluster {
    /// What is wrong in a cluster that `summary` sums up, with nodes that leave, the worst first.
    pub(super) fn problems(
        &self,
        at: Moment,
        summary: &Summary,
        leaving: &[(&NodeId, DrainProgress)],
    ) -> Vec<Problem> {
        let mut told = Vec::new();
        if let Some(why) = &self.storage_problem {
            let what = format!("changes cannot be stored: {why}");
            told.push(problem(what, MAKE_ROOM));
        }
        told.extend(self.brake_problem(at));
        told.extend(self.unrest().map(unrest_problem));
        told.extend(self.foreign_problem(at));
        let no_nodes = self.no_nodes_problem(summary);
        let has_nodes = no_nodes.is_none();
        told.extend(no_nodes);
        told.extend(self.unserved_problem(at, summary));
        told.extend(waiting_problem(summary));
        told.extend(hung_problem(summary));
        told.extend(self.silent_nodes_problem(at));
        told.extend(self.disk_problems());
        if let Some((keyspace, shard, why)) = summary.set_aside.first() {
            let count = summary.set_aside.len();
            let what = format!("{} set aside, such as {shard} of {keyspace}: {why}", shards_are(count));
            let way_out = format!("mend that, then `partage shard release {keyspace} {}`", shard.0);
            told.push(problem(what, way_out));
        }
        told.extend(blocked_drains(summary));
        told.extend(blocked_leaves(leaving));
        if has_nodes {
            told.extend(lacking(summary));
        }
        told
    }

    fn brake_problem(&self, at: Moment) -> Option<Problem> {
        let brakes = self.brakes();
        let why = brakes.join("; ");
        let what = format!("the brake is on, so the coordinator moves nothing by itself: {why}");
        let undrain = self.undrain(at).map(|undrain| format!(" ({undrain})")).unwrap_or_default();
        let way_out = format!("look at the nodes and the network, then `partage brake release`{undrain}");
        (!brakes.is_empty()).then(|| problem(what, way_out))
    }

    /// How the nodes could take shards again that are up and drained. A drain outlives its process: only a person ends it.
    pub(super) fn undrain(&self, at: Moment) -> Option<String> {
        let is_kept_free = |node: &&NodeState| {
            node.record.drain.is_some() && node.signs.health(at.now, &self.settings) == Health::Up
        };
        let drained: Vec<&str> = self
            .members
            .nodes
            .values()
            .filter(is_kept_free)
            .map(|node| node.record.spec.id.as_str())
            .collect();
        let named = drained.iter().take(limits::NAMES_SHOWN).copied().collect::<Vec<_>>().join(", ");
        let more = if drained.len() > limits::NAMES_SHOWN { " and others" } else { "" };
        let are = if drained.len() == 1 { "is" } else { "are" };
        (!drained.is_empty()).then(|| {
            format!("{named}{more} {are} drained, and nothing goes there before `partage node undrain NODE`")
        })
    }

    /// Why a shard goes nowhere, and the ways out.
    pub(super) fn no_candidate(&self, at: Moment) -> String {
        let undrain = self.undrain(at).map(|undrain| format!(" ({undrain})")).unwrap_or_default();
        format!(
            "no other node may take it: add a node, relax its constraints, or lower its replicas{undrain}"
        )
    }

    /// Shards, and no node at all: that explains all that they lack.
    fn no_nodes_problem(&self, summary: &Summary) -> Option<Problem> {
        let is_one_there = self.members.nodes.values().any(|node| !node.record.ended);
        let has_shards = summary.shards.standing() > 0;
        let what = match self.members.nodes.is_empty() {
            true => "no node has joined, so no shard is served",
            false => "every node that had joined has left or is dead, so no shard is served",
        };
        let way_out = "start workers that know this coordinator's address";
        (!is_one_there && has_shards).then(|| problem(what.to_owned(), way_out))
    }

    fn unserved_problem(&self, at: Moment, summary: &Summary) -> Option<Problem> {
        let counts = &summary.shards;
        let unserved = counts.unserved();
        let parts = [
            (counts.waiting, "waiting for nodes that have their data"),
            (counts.silent, "led by nodes that do not answer"),
            (counts.braked, "held by the brake"),
            (counts.set_aside, "set aside"),
            (counts.loading, "being loaded or handed over"),
            (counts.unplaced, "on no node"),
        ];
        let parts: Vec<_> =
            parts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
        let what =
            format!("{} of {} shards are not served: {}", unserved, counts.standing(), parts.join(", "));
        if unserved == 0 {
            return None;
        }
        let wait = || "wait; `partage shard list KEYSPACE --moves` says what for".to_owned();
        let way_out = match unserved == counts.loading {
            true => self.failing_load(at).unwrap_or_else(wait),
            false => "`partage shard list KEYSPACE --unserved` lists them".to_owned(),
        };
        Some(problem(what, way_out))
    }

    /// Of the shards that are not served as they are being loaded: how many replicas have failed as often as the coordinator
    /// lets them, with one of them and its reason. Waiting alone does not help there.
    fn failing_load(&self, at: Moment) -> Option<String> {
        let mut count = 0;
        let mut first = None;
        for (name, keyspace) in &self.keyspaces.by_name {
            let is_loading =
                |shard: &&Shard| shard.is_serving() && self.serving(at, keyspace, shard) == Serving::Loading;
            for shard in keyspace.map.shards().filter(is_loading) {
                for replica in shard.replicas.iter().filter(|r| r.state == ReplicaState::Load) {
                    let seen = keyspace.phase_of(replica.placement);
                    let Some(Phase::Failed(failure)) = seen else { continue };
                    count += 1;
                    let (id, node, Failure { attempts, reason, .. }) = (shard.id, &replica.node, &**failure);
                    first.get_or_insert_with(|| {
                        let times = counted(*attempts, "time");
                        format!("shard {id} of keyspace {name} on node {node} ({times}: {reason})")
                    });
                }
            }
        }
        let fail = counted_with(count, "replica", ("fails", "fail"));
        first
            .map(|first| format!("{fail} to load, such as that of {first}: mend the service if that goes on"))
    }

    /// Nodes that should answer and do not. One that was given up is none of them: its shards are elsewhere.
    fn silent_nodes_problem(&self, at: Moment) -> Option<Problem> {
        let mut silent: BTreeMap<Health, Vec<String>> = BTreeMap::new();
        for (id, node) in self.members.nodes.iter().filter(|(_, node)| !node.record.ended) {
            let health = node.signs.health(at.now, &self.settings);
            let name = match health {
                Health::Down => id.to_string(),
                Health::Unreachable => format!("{id} ({})", node.record.spec.address),
                _ => continue,
            };
            silent.entry(health).or_default().push(name);
        }
        let told: Vec<_> =
            silent.iter().map(|(health, nodes)| format!("{} {health}", names(nodes))).collect();
        let way_out = "start them again, or mend the network and the addresses that they announce";
        (!told.is_empty()).then(|| problem(format!("nodes that do not answer: {}", told.join("; ")), way_out))
    }
}

/// Nodes that were started anew, or died: no person has to release anything.
fn unrest_problem(why: &str) -> Problem {
    let what = format!("{why}, so the coordinator begins nothing by itself but repairs");
    problem(
        what,
        "look at the release and the machines; when the nodes stay, other moves go on by themselves",
    )
}

/// Shards whose data is on nodes that are away, or that have come back without it.
fn waiting_problem(summary: &Summary) -> Option<Problem> {
    let hung: usize = summary.hung.values().sum();
    let (count, nodes) = (summary.shards.waiting.saturating_sub(hung), &summary.awaited);
    let waits = shards_wait(count);
    let awaited: Vec<_> = nodes.iter().take(limits::NAMES_SHOWN).map(|id| id.as_str()).collect();
    let more = if nodes.len() > awaited.len() { " and others" } else { "" };
    let (what, way_out) = match awaited.is_empty() {
        true => (
            format!("{waits}: of the copies that the map names none can be read"),
            "bring back the disk of a node that had one (`partage explain` names them), or choose",
        ),
        false => (
            format!(
                "{waits} for {}{more}, which hold the only copies of their data, or may hold later ones",
                awaited.join(", ")
            ),
            "start these nodes again with their disks; remove one that holds nothing by the map and does not come back \
             (`partage node remove NODE`); where a disk is lost, choose",
        ),
    };
    let way_out = format!(
        "{way_out} another copy with `partage shard force-join KEYSPACE SHARD --node NODE --generation G`, or give all of it \
         up with `partage shard recreate KEYSPACE SHARD --generation G`"
    );
    (count > 0).then(|| problem(what, way_out))
}

/// Shards which only processes may lead that do not serve.
fn hung_problem(summary: &Summary) -> Option<Problem> {
    let count: usize = summary.hung.values().sum();
    let names: Vec<_> = summary.hung.keys().take(limits::NAMES_SHOWN).map(NodeId::as_str).collect();
    let more = if summary.hung.len() > names.len() { " and others" } else { "" };
    let names = names.join(", ");
    let what = format!("{} not served, as only {names}{more} may lead and does not serve", shards_are(count));
    let way_out = "restart that process: its data stays on its disk (its log may say what `serve` or `unload` waits for)";
    (count > 0).then(|| problem(what, way_out))
}

fn names(nodes: &[String]) -> String {
    format!("{} {}", some_names(nodes), if nodes.len() == 1 { "is" } else { "are" })
}

/// The first few by name, the others by their number.
pub(super) fn some_names(nodes: &[String]) -> String {
    let told: Vec<_> = nodes.iter().take(limits::NAMES_SHOWN).map(String::as_str).collect();
    match nodes.len() - told.len() {
        0 => told.join(", "),
        rest => format!("{} and {rest} more", told.join(", ")),
    }
}

/// Drains that cannot go on: the first few each, the others together.
fn blocked_drains(summary: &Summary) -> Vec<Problem> {
    let blocked = summary.drains.iter().filter_map(|drain| match &drain.progress {
        DrainProgress::Blocked { left, why } => Some((&drain.node, left, why)),
        DrainProgress::Queued { .. } | DrainProgress::Moving { .. } | DrainProgress::SafeToStop => None,
    });
    let tell = |(node, left, why): (&NodeId, &u32, &Vec<String>)| {
        let first = why.first().map_or(String::new(), |why| format!(": {why}"));
        let what =
            format!("the drain of {node} cannot go on, with {} left{first}", counted(*left, "replica"));
        let way_out = format!(
            "it is tried again until it can; add a node or relax what forbids the others, or `partage node undrain {node}`"
        );
        problem(what, way_out)
    };
    let all: Vec<_> = blocked.collect();
    let (told, rest) = all.split_at(all.len().min(limits::PROBLEMS_OF_A_KIND));
    let drains = counted(rest.len(), "more drain");
    let more = (!rest.is_empty()).then(|| {
        let nodes: Vec<_> = rest.iter().map(|(node, ..)| node.to_string()).collect();
        let what = format!("{drains} cannot go on: {}", some_names(&nodes));
        problem(what, "as above; `partage status --json` lists all of them, each with its reasons")
    });
    told.iter().copied().map(tell).chain(more).collect()
}

/// Nodes that have asked to leave and cannot: often all of a service at once, so one sentence names them all.
fn blocked_leaves(leaving: &[(&NodeId, DrainProgress)]) -> Option<Problem> {
    let blocked = leaving.iter().filter_map(|(node, progress)| match progress {
        DrainProgress::Blocked { left, why } => Some((node.to_string(), *left, why)),
        DrainProgress::Queued { .. } | DrainProgress::Moving { .. } | DrainProgress::SafeToStop => None,
    });
    let blocked: Vec<_> = blocked.collect();
    let nodes: Vec<_> = blocked.iter().map(|(node, ..)| node.clone()).collect();
    let left: u32 = blocked.iter().map(|(_, left, _)| left).sum();
    let (.., first) = blocked.first()?;
    let first = first.first().map_or(String::new(), |why| format!(": {why}"));
    let wants = if nodes.len() == 1 { "wants to leave and cannot" } else { "want to leave and cannot" };
    let what = format!("{} {wants}, with {} left{first}", some_names(&nodes), counted(left, "replica"));
    let way_out = "start other nodes to take that over; else the processes end when their time to leave is over (`--leave-s`) or \
                   when they are killed, and what they alone serve is not served then";
    Some(problem(what, way_out))
}

/// Shards that have fewer replicas than they want, for which nothing is on its way: one line for each reason.
fn lacking(summary: &Summary) -> Vec<Problem> {
    let mut by_reason: BTreeMap<_, (usize, u64)> = BTreeMap::new();
    for lack in summary.unplaced.iter().filter(|lack| !lack.why.starts_with("it is set aside")) {
        by_reason.entry((&lack.keyspace, &lack.why)).or_insert((0, lack.shard.0)).0 += 1;
    }
    let cut = summary.unplaced.len() >= limits::COMPLAINTS;
    let least = if cut { "at least " } else { "" };
    let rest: usize = by_reason.values().skip(limits::PROBLEMS_OF_A_KIND).map(|(count, _)| count).sum();
    let told =
        by_reason.into_iter().take(limits::PROBLEMS_OF_A_KIND).map(|((keyspace, why), (count, first))| {
            let shards = counted(count, "shard");
            let lack = if count == 1 { "lacks" } else { "lack" };
            let what = format!("{least}{shards} of {keyspace} {lack} replicas, such as s{first}: {why}");
            problem(what, format!("`partage shard list {keyspace} --unserved` lists them"))
        });
    let more = (rest > 0).then(|| {
        let what = format!(
            "{least}{} replicas, for other reasons",
            counted_with(rest, "more shard", ("lacks", "lack"))
        );
        problem(what, "`partage shard list KEYSPACE --unserved` lists them")
    });
    told.chain(more).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::id::ShardId;
    use crate::cluster::admin::DrainStatus;
    use crate::cluster::status::Unplaced;

    fn drain(number: usize) -> DrainStatus {
        let why = vec![format!("no node could take shard s{number} of kv: add a node"), "another".to_owned()];
        DrainStatus {
            node: NodeId::new(&format!("n{number:02}")).unwrap(),
            reason: "disk".to_owned(),
            asked_ms: 1,
            progress: DrainProgress::Blocked { left: 3, why },
        }
    }

    #[test]
    fn fifty_drains_that_cannot_go_on_are_told_in_a_few_lines() {
        let drains: Vec<_> = (0..50).map(drain).collect();
        let told = blocked_drains(&Summary { drains, ..Summary::default() });
        assert_eq!(told.len(), limits::PROBLEMS_OF_A_KIND + 1);
        assert!(told[0].what.contains("the drain of n00 cannot go on") && told[0].what.contains("shard s0"));
        let rest = told.last().unwrap().to_string();
        assert!(
            rest.starts_with("47 more drains cannot go on: n03, n04") && rest.contains("and 41 more"),
            "{rest}"
        );
        assert!(rest.contains("partage status --json"), "{rest}");
        let few = blocked_drains(&Summary { drains: vec![drain(1)], ..Summary::default() });
        assert_eq!(few.len(), 1);
    }

    #[test]
    fn reasons_beyond_the_first_are_counted() {
        let lack = |number: u64| Unplaced {
            keyspace: format!("k{number}").parse().unwrap(),
            shard: ShardId(number),
            have: 0,
            want: 1,
            why: "no other node may take it".to_owned(),
        };
        let told = lacking(&Summary { unplaced: (0..10).map(lack).collect(), ..Summary::default() });
        assert_eq!(told.len(), limits::PROBLEMS_OF_A_KIND + 1);
        assert!(told.last().unwrap().what.starts_with("7 more shards lack replicas"), "{told:?}");
    }
}

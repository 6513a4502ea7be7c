//! Nodes that say that their disk has no room, or is stalled: that it stores nothing for seconds; and nodes whose disk is
//! nearly full.
//!
//! A node whose disk is full or stalled takes no writes, so others lead. It goes on as a follower that reads, as far as it
//! needs no disk for that, and comes back by itself:
//!
//! | while a node says that of its disk | where |
//! |---|---|
//! | no plan gives it anything new, nor a lead | [`Cluster::closed`] |
//! | what it has stays: to copy that away needs no less room on another disk | `Cluster::standing` |
//! | another replica in sync leads whose node takes writes, and where there is none, it leads on, refuses writes and reads | [`crate::plan::handover`] |
//! | status and `explain` name it | here |
//!
//! A node whose disk is nearly full takes writes and leads on, gets nothing new, and is named: so there is time to make
//! room before it is full.
//!
//! When it takes writes again and has caught up, it gets leads as any node that leads too little (`planning/leaders.rs`). Nothing
//! is remembered of it: it says in each beat how its disk is, so the next coordinator does the same.

use super::keyspaces::Keyspaces;
use super::members::Members;
use super::{Cluster, Moment, Outbox};
use crate::base::count::counted_with;
use crate::base::name::NodeId;
use crate::cluster::event::{About, Actor, Event, EventKind, event};
use crate::cluster::problems::{Problem, problem, some_names};
use crate::keyspace::map::Shard;
use crate::node::exchange::DiskHealth;

impl Members {
    /// A beat says something else of the node's disk than the one before.
    pub(super) fn take_disk(
        &mut self,
        at: Moment,
        (id, disk): (&NodeId, DiskHealth),
        keyspaces: &mut Keyspaces,
        outbox: &mut Outbox,
    ) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        let before = std::mem::replace(&mut node.disk, disk);
        // Shards that it leads may be led by others now, and it may lead others.
        keyspaces.enqueue_replicas_of(id);
        if let Some(trouble) = disk.trouble(id) {
            if before.trouble(id).as_ref() == Some(&trouble) {
                return;
            }
            let text = format!("{trouble}: the node takes no writes, and other nodes lead where they can");
            let by = Actor::Node(id.clone());
            outbox.tell_event(Event {
                by,
                alarm: true,
                ..event(EventKind::NodeHealth, About::node(id), text)
            });
            return;
        }
        if !before.takes_writes() {
            let does = if before.full { "has room again" } else { "stores again" };
            outbox.tell_of(EventKind::NodeHealth, id, format!("the disk of node {id} {does}"));
        }
        if disk.nearly_full && !before.nearly_full {
            let text = format!("the disk of {id} is nearly full: nothing new is placed there");
            let by = Actor::Node(id.clone());
            outbox.tell_event(Event {
                by,
                alarm: true,
                ..event(EventKind::NodeHealth, About::node(id), text)
            });
        } else if before.nearly_full && !disk.nearly_full {
            let text = format!("the disk of node {id} has room for new replicas again");
            outbox.tell_of(EventKind::NodeHealth, id, text);
        }
        keyspaces.plan_soon(at, 0);
    }
}

impl Cluster {
    /// Nodes that take no writes, and nodes that get no new replicas.
    pub(super) fn disk_problems(&self) -> impl Iterator<Item = Problem> {
        let full = self.disk_problem(
            |disk| disk.full,
            ("has a full disk", "have full disks"),
            "no writes and no new replicas",
            "make room there (the log of a node says which folder is meant); it goes on, and leads again, by itself",
        );
        let stalled = self.disk_problem(
            |disk| disk.stalled && !disk.full,
            ("has a stalled disk", "have stalled disks"),
            "no writes and no new replicas",
            "look at the disk there: it has stored nothing for seconds; when it does, the node leads again by itself",
        );
        let nearly_full = self.disk_problem(
            |disk| disk.nearly_full && disk.takes_writes(),
            ("has a nearly full disk", "have nearly full disks"),
            "no new replicas",
            "make room there, or add nodes: when it is full, it takes no writes",
        );
        full.into_iter().chain(stalled).chain(nearly_full)
    }

    fn disk_problem(
        &self,
        is_so: impl Fn(DiskHealth) -> bool,
        (has, have): (&str, &str),
        left_out: &str,
        way_out: &str,
    ) -> Option<Problem> {
        let named = self.members.nodes.iter().filter(|(_, node)| is_so(node.disk));
        let named: Vec<String> = named.map(|(id, _)| id.to_string()).collect();
        let has = counted_with(named.len(), "node", (has, have));
        let what = format!("{has}, so that {left_out} go there: {}", some_names(&named));
        (!named.is_empty()).then(|| problem(what, way_out))
    }

    /// Which replicas of a shard are on disks that are nearly full, in sentences.
    pub(super) fn on_nearly_full_disks(&self, shard: &Shard) -> impl Iterator<Item = String> {
        let is_so = move |node: &NodeId| {
            self.members.get(node).is_some_and(|of| of.disk.nearly_full && of.disk.takes_writes())
        };
        let nodes = shard.staying().map(|replica| &replica.node).filter(move |node| is_so(node));
        nodes.map(|node| format!("the disk of {node} is nearly full: the node gets nothing new"))
    }

    /// Which replicas of a shard take no writes, in sentences.
    pub(super) fn without_writes(&self, shard: &Shard) -> Vec<String> {
        let trouble = |node: &NodeId| self.members.get(node).and_then(|of| of.disk.trouble(node));
        let mut told: Vec<String> = shard
            .staying()
            .filter_map(|replica| trouble(&replica.node))
            .map(|why| format!("{why}: it reads, takes no writes, and leads only where no other replica can"))
            .collect();
        let can_lead = |node: &NodeId| trouble(node).is_none();
        let leader = shard.leader().filter(|leader| !can_lead(&leader.node));
        if let Some(leader) = leader.filter(|_| !shard.copies().any(|r| can_lead(&r.node))) {
            told.push(format!(
                "writes are refused, and reads answered, until the disk of a replica in sync takes writes: no other can lead in the \
                 place of {}",
                leader.node
            ));
        }
        told
    }
}

//! Nodes that say that their disk has no room.
//!
//! Such a node takes no writes, so it lays its leads down (`local_replica/service_reports.rs`), and others lead. It goes on as a
//! follower that reads, and comes back by itself:
//!
//! | while a node says that its disk is full | where |
//! |---|---|
//! | no plan gives it anything new | [`Cluster::closed`] |
//! | what it has stays: to copy that away needs no less room on another disk | `Cluster::standing` |
//! | it leads only shards that no other replica can lead | `handover::successor` |
//! | status and `explain` name it | here |
//!
//! When it has room again and has caught up, it gets leads as any node that leads too little (`planning/leaders.rs`), also by a
//! coordinator that has come meanwhile.

use super::{Cluster, Moment};
use crate::base::count::counted_with;
use crate::base::name::NodeId;
use crate::cluster::event::{About, Actor, Event, EventKind, event};
use crate::cluster::problems::{Problem, problem, some_names};
use crate::keyspace::map::Shard;

impl Cluster {
    /// A beat says something else of the node's disk than the one before.
    pub(super) fn take_room(&mut self, at: Moment, id: &NodeId, disk_full: bool) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        node.disk_full = disk_full;
        if disk_full {
            let text = format!("the disk of node {id} is full: it takes no writes, and lays its leads down");
            let by = Actor::Node(id.clone());
            self.tell_event(Event { by, alarm: true, ..event(EventKind::NodeHealth, About::node(id), text) });
        } else {
            self.tell_of(EventKind::NodeHealth, id, format!("the disk of node {id} has room again"));
            self.plan_soon(at, 0);
        }
    }

    /// Nodes that take no writes.
    pub(super) fn full_disks_problem(&self) -> Option<Problem> {
        let full = self.nodes.iter().filter(|(_, node)| node.disk_full && !node.record.ended);
        let full: Vec<String> = full.map(|(id, _)| id.to_string()).collect();
        let has = counted_with(full.len(), "node", ("has a full disk", "have full disks"));
        let what = format!("{has}, so that no writes and no new replicas go there: {}", some_names(&full));
        let way_out = "make room there (the log of a node says which folder is meant); it goes on, and leads again, by itself";
        (!full.is_empty()).then(|| problem(what, way_out))
    }

    /// Which replicas of a shard take no writes, in sentences.
    pub(super) fn without_room(&self, shard: &Shard) -> Vec<String> {
        let nodes = shard.staying().filter_map(|replica| self.nodes.get_key_value(&replica.node));
        let full = nodes.filter(|(_, node)| node.disk_full);
        full.map(|(id, _)| {
            format!("the disk of {id} is full: it reads, takes no writes, and leads only where no other replica can")
        })
        .collect()
    }
}

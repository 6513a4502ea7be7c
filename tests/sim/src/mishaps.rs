//! What befalls workers besides: restarts in turn, crash loops, replicas that a service gives up, a change of mind about
//! leaving, and disks that are lost.

use crate::clock::{MS, SECOND, True};
use crate::faults::{Kind, Mend};
use crate::message::{Event, Message, Place, Via};
use crate::model::Space;
use crate::world::World;
use partage_core::base::id::SessionDigest;
use partage_core::base::name::NodeId;
use partage_core::base::time::Millis;
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::{Replica, Shard, Stage};
use partage_core::limits;
use partage_core::node::NodeSpec;
use partage_core::node::exchange::Beat;
use partage_core::node::exchange::Registration;

/// How long a worker that is restarted in its turn has for moving everything off.
const NOTICE: True = 4 * SECOND;
/// Nodes that there are not and that a stranger registers.
const GHOSTS: u64 = 12;
const GHOST: &str = "ghost-";

/// Whether a stranger has registered it, and there is no such node.
pub fn is_ghost(id: &NodeId) -> bool {
    id.as_str().starts_with(GHOST)
}

impl World {
    /// One of these, with a time that is short and one that may be long.
    pub fn mishap(&mut self, kind: Kind, node: usize, (brief, long): (True, True)) {
        match kind {
            Kind::WorkersInTurn => {
                for at in 0..self.nodes.len() {
                    self.scene.after(at as True * 2 * brief, Event::Mend(Mend::Turn(at)));
                }
            }
            Kind::CrashLoop => {
                if !self.nodes[node].is_down() {
                    self.scene.count("crash loops");
                }
                let times = self.scene.draw.between(3, 10);
                self.crash_again(node, times);
            }
            Kind::Unhealthy => self.nodes[node].give_one_up(&mut self.scene),
            Kind::Stays => {
                self.nodes[node].leave(&mut self.scene);
                self.scene.after(long, Event::Mend(Mend::Stay(node)));
            }
            _ => self.lose_disk(node, brief),
        }
    }

    /// Somebody on the network sends messages in the name of a worker that lives, with a guessed token or none: they would end
    /// it, make its own beats late, and move it to the address of another one (Z1).
    pub fn forge(&mut self, node: usize) {
        let scene = &mut self.scene;
        let Some(process) = &self.nodes[node].process else { return };
        let Some(incarnation) = process.worker.incarnation() else { return };
        scene.count("forged messages");
        let guessed = if scene.draw.chance(500) { SessionDigest([9; 32]) } else { SessionDigest::default() };
        let (id, session) = (self.nodes[node].id.clone(), guessed);
        let elsewhere = NodeSpec::new(id.clone(), format!("node-{}:1", (node + 1) % self.nodes.len()));
        let back = Registration { incarnation: Some(incarnation), session, ..Registration::new(elsewhere) };
        let beat = Beat {
            node: id.clone(),
            incarnation,
            session,
            sequence: limits::BEATS,
            sent_at: Millis(0),
            applied: 0,
            sent: 0,
            whole: true,
            reports: Vec::new(),
            leaving: Some(true),
            busy: 1.0,
            lease_expired: false,
            disk: Default::default(),
        };
        // And registers nodes that there are not: they beat never.
        let ghost = format!("{GHOST}{}", scene.draw.between(1, GHOSTS));
        let ghost = NodeId::new(&ghost).expect("a plain word is a name");
        let ghost = NodeSpec::new(ghost.clone(), format!("{ghost}:1"));
        let ghost = Registration { from: Some("10.6.6.6".to_owned()), ..Registration::new(ghost) };
        for coordinator in &self.coordinators {
            let forged = [
                Message::Register(ghost.clone()),
                Message::Register(back.clone()),
                Message::Beat(beat.clone()),
                Message::Goodbye(id.clone(), incarnation, session),
            ];
            for message in forged {
                scene.send(Place::Router(0), coordinator.place(), Via::Post(0), message);
            }
        }
    }

    /// A worker is restarted in good order; no longer once faults have stopped.
    pub fn take_turn(&mut self, node: usize) {
        if !self.is_lively() || self.nodes[node].is_down() {
            return;
        }
        self.scene.count("restarts in turn");
        self.nodes[node].leave(&mut self.scene);
        self.scene.after(NOTICE, Event::Mend(Mend::LeaveNow(node)));
    }

    /// A worker is to stay after all; one that has gone meanwhile is started again.
    pub fn stays(&mut self, node: usize) {
        self.nodes[node].stay(&mut self.scene);
        self.start_node(node);
    }

    /// A worker dies, is started soon, and dies again soon after that; no longer once faults have stopped.
    pub fn crash_again(&mut self, node: usize, times: u64) {
        if !self.is_lively() || times == 0 {
            return;
        }
        let scene = &mut self.scene;
        if !self.nodes[node].is_down() {
            scene.count("crashes in a loop");
            self.nodes[node].crash(scene);
        }
        let down = scene.draw.between(50 * MS, 500 * MS);
        let lives = scene.draw.between(20 * MS, 1_500 * MS);
        scene.after(down, Event::Mend(Mend::Start(node)));
        scene.after(down + lives, Event::Mend(Mend::CrashAgain(node, times - 1)));
    }

    /// A disk is lost with all that is on it, or can be read no more, where every shard has another whole copy: all of them at
    /// once would be a matter for a person.
    fn lose_disk(&mut self, node: usize, brief: True) {
        if self.nodes[node].is_down() || !self.may_lose_disk(node) {
            return;
        }
        let scene = &mut self.scene;
        let is_damaged = scene.draw.chance(500);
        self.nodes[node].crash(scene);
        let disks = &mut scene.oracles.storage.disks;
        if disks.lose(node, is_damaged) {
            scene.count(if is_damaged { "disks damaged" } else { "disks lost" });
        }
        scene.after(brief, Event::Mend(Mend::Start(node)));
    }

    /// Whether all that is durable is whole elsewhere, in processes that run, and nothing of it is being split or merged. Not
    /// where backups are restored: the disk may have had the only copy that is later than the backup.
    fn may_lose_disk(&self, node: usize) -> bool {
        if self.shape.touched {
            return false;
        }
        let oracles = &self.scene.oracles;
        let durable = oracles.spaces.iter().filter(|space| space.keyspace.durable);
        let shards = |space: &Space| {
            let map = oracles.maps.latest(&space.keyspace.name);
            map.into_iter().flat_map(|map| map.shards().cloned()).collect::<Vec<_>>()
        };
        let is_whole_elsewhere = |space: &Space, shard: &Shard| {
            let is_other = |replica: &&Replica| {
                replica.state == ReplicaState::Live && replica.node != self.nodes[node].id
            };
            let mut others = shard.replicas.iter().filter(is_other);
            let name = &space.keyspace.name;
            *shard.stage() == Stage::Serving
                && others.any(|replica| oracles.storage.disks.is_whole(name, shard.id, replica.placement))
        };
        durable.into_iter().all(|space| shards(space).iter().all(|shard| is_whole_elsewhere(space, shard)))
    }
}

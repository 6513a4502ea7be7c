//! Whether a shard is served now, and if not, why: counted from what workers report and how their nodes are, not from
//! what the map says.
//!
//! A map may name a leader that has been dead for minutes: the brake keeps the coordinator from giving the shard to
//! another node. To a person that shard is down.
//!
//! | the shard                                                            | counts as   | who ends it           |
//! |----------------------------------------------------------------------|-------------|-----------------------|
//! | its leader serves it, on a node that answers                         | `Led`       |                       |
//! | its leader's node is not heard yet, and this coordinator has just begun | `Unheard` | that node, or the coordinator within `dead_after_ms` |
//! | every node that has its data is away, or has lost it                 | `Waiting`   | these nodes, when they come back |
//! | its leader's node is silent or unreachable                           | `Silent`    | the coordinator, soon |
//! | its leader's node is dead or it has none, and the brake is on        | `Braked`    | a person              |
//! | it is set aside                                                      | `SetAside`  | a person              |
//! | a replica loads it, or its new leader is about to serve              | `Loading`   | that node             |
//! | nothing of this: no replica, and none on its way                     | `Unplaced`  | the next plan, or a person |
//!
//! A coordinator that has just begun knows of no node how it is: workers come to it within a second or so. Until one has,
//! or would count as dead, its shards are neither served nor not served by what is known: they are most likely served,
//! as clients need no coordinator, and each change of leader would be an alarm otherwise.
//!
//! The first line that fits counts, but `SetAside` goes before `Braked`: releasing the brake would not help.

use super::{Cluster, KeyspaceState, Moment};
use crate::keyspace::Ownership;
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::{Replica, Shard};
use crate::node::Health;
use crate::node::exchange::Phase;
use crate::plan::handover;
use std::fmt;

/// Whether a shard is served, and if not, why: a line of the table of this module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Serving {
    /// Its leader serves it, on a node that answers.
    Led,
    /// This coordinator has just begun, and has not heard its leader yet: it is not known whether it is served.
    Unheard,
    /// Every node that has its data is away, or never begins to serve it.
    Waiting,
    /// Its leader is not heard, or not reached.
    Silent,
    /// No replica serves it, and the brake holds it.
    Braked,
    /// No replica serves it until a person releases it.
    SetAside,
    /// No replica serves it yet.
    Loading,
    /// No replica serves it, and nothing is on its way.
    Unplaced,
}

impl Serving {
    /// Every one, in the order of the table.
    pub const ALL: [Serving; 8] = [
        Serving::Led,
        Serving::Unheard,
        Serving::Waiting,
        Serving::Silent,
        Serving::Braked,
        Serving::SetAside,
        Serving::Loading,
        Serving::Unplaced,
    ];
}

impl fmt::Display for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Serving::Led => "led",
            Serving::Unheard => "unheard",
            Serving::Waiting => "waiting",
            Serving::Silent => "silent",
            Serving::Braked => "braked",
            Serving::SetAside => "set_aside",
            Serving::Loading => "loading",
            Serving::Unplaced => "unplaced",
        })
    }
}

impl Cluster {
    /// How it stands with a shard that should answer for its bounds.
    pub fn serving(&self, at: Moment, keyspace: &KeyspaceState, shard: &Shard) -> Serving {
        let leader = shard.leader().map(|leader| (leader, self.replica_health(at, leader)));
        if let Some((leader, Health::Up)) = leader
            && self.serves(at, keyspace, shard, leader)
        {
            return Serving::Led;
        }
        if let Some((_, Health::Unknown)) = leader
            && self.is_beginning(at)
        {
            return Serving::Unheard;
        }
        if keyspace.waits_for_copy(&self.members.nodes, shard) {
            return Serving::Waiting;
        }
        let rule = keyspace.record.rules.get(&shard.id);
        let is_aside = rule.is_some_and(|rule| rule.set_aside.is_some());
        let is_braked = self.brake_on(keyspace).is_some();
        let prepares = |r: &Replica| {
            matches!(r.state, ReplicaState::Load | ReplicaState::Live)
                && self.replica_health(at, r) == Health::Up
        };
        let prepares = || shard.replicas.iter().any(prepares);
        match leader {
            Some((_, Health::Suspect | Health::Unreachable | Health::Unknown)) => Serving::Silent,
            _ if is_aside => Serving::SetAside,
            Some((_, Health::Up)) if keyspace.hung_copy(&self.members.nodes, at.now, shard).is_some() => {
                Serving::Waiting
            }
            Some((_, Health::Up)) => Serving::Loading,
            None if prepares() => Serving::Loading,
            _ if is_braked => Serving::Braked,
            Some((_, Health::Down | Health::Left)) => Serving::Silent,
            None => Serving::Unplaced,
        }
    }

    /// Whether this coordinator has begun so lately that a node which it has not heard may be as well as any.
    pub(super) fn is_beginning(&self, at: Moment) -> bool {
        at.now.since(self.times.started) < self.settings.dead_after_ms
    }

    /// How the node is on which a replica is; down, where that start of it is over.
    pub(super) fn replica_health(&self, at: Moment, replica: &Replica) -> Health {
        let node = self.members.get(&replica.node);
        let current = node.filter(|node| node.record.incarnation == replica.incarnation);
        current.map_or(Health::Down, |node| node.signs.health(at.now, &self.settings))
    }

    fn serves(&self, at: Moment, keyspace: &KeyspaceState, shard: &Shard, leader: &Replica) -> bool {
        let seen = keyspace.phase_of(leader.placement);
        let is_granted = || {
            !keyspace.queue.ungranted.contains(&shard.id)
                || handover::is_granted(shard, &keyspace.map, &self.view(keyspace, at.now))
        };
        // Without a lease it serves nothing that is exclusive, whatever it reports.
        let is_exclusive = keyspace.record.keyspace.ownership == Ownership::Exclusive;
        let node = self.members.get(&leader.node).filter(|_| is_exclusive);
        let has_lease = !node.is_some_and(|node| node.has_no_lease || node.gets_no_lease(at.now));
        seen == Some(&Phase::Serving) && has_lease && is_granted()
    }
}

//! Unrest (many processes end and start again), and the brakes, where the coordinator releases them without a person.
//!
//! | seen                                                           | follows                                     |
//! |----------------------------------------------------------------|---------------------------------------------|
//! | more nodes ended or started again in the window than the brake allows | unrest: shards without a replica are placed, nothing else moves |
//! | fewer                                                          | unrest ends                                 |
//! | the brake of a keyspace is on, and no load of it has failed for as long as a node is avoided | the coordinator releases it, and tries again what failed |
//! | the brake is on, every node that was not declared dead is heard, and none that was lost in the window is missing, for `dead_after_ms` | the brake is released |
//!
//! A crash loop of a whole release is over when the next release is out, and no person should have to say so. What a
//! shard explains ([`crate::plan::poison`]) counts as one node, as it does for the brake.

use super::decide::Transition;
use super::{Cluster, Moment, NodeState, Write};
use crate::base::name::KeyspaceName;
use crate::base::time::Millis;
use crate::cluster::event::{About, EventKind};
use crate::limits;
use crate::node::Health;
use crate::plan::brake;

impl Cluster {
    /// Why only repairs begin by themselves.
    pub fn unrest(&self) -> Option<&str> {
        self.guard.unrest.as_deref()
    }
}

/// Whether so many processes end that only repairs begin by themselves.
pub(super) struct Unrest {
    why: Option<String>,
    next: Millis,
}

impl Transition for Unrest {
    fn find(cluster: &Cluster, at: Moment) -> Unrest {
        let (died, next) = cluster.guard.deaths.lately(at.now, cluster.settings.brake_window_ms);
        // A node whose process was started anew has held nothing yet in this incarnation, and counts all the same.
        let counts = |(id, node): &(_, &NodeState)| {
            !node.record.left && (!node.has_never_held() || died.contains(*id))
        };
        let standing = cluster.members.nodes.iter().filter(counts).count();
        let counted = died.len() - cluster.deaths_to_discount(&died);
        Unrest { why: brake::unrest(counted, standing, &cluster.settings), next }
    }

    fn apply(self, cluster: &mut Cluster, at: Moment) -> Millis {
        match (&self.why, &cluster.guard.unrest) {
            (Some(why), None) => cluster.outbox.notice(
                true,
                format!(
                    "{why}: what has no replica is placed, nothing else moves by itself until that is over. Look at \
                     the release and the machines"
                ),
            ),
            (None, Some(_)) => {
                cluster.outbox.notice(false, "the nodes stay: moves go on".to_owned());
                cluster.keyspaces.plan_soon(at, 0);
            }
            (Some(_), Some(_)) | (None, None) => {}
        }
        cluster.guard.unrest = self.why;
        self.next
    }
}

/// The brakes of keyspaces whose loads failed long enough ago that they may be tried again.
pub(super) struct ReleasedKeyspaceBrakes {
    keyspaces: Vec<KeyspaceName>,
    next: Millis,
}

impl Transition for ReleasedKeyspaceBrakes {
    fn find(cluster: &Cluster, at: Moment) -> ReleasedKeyspaceBrakes {
        // This coordinator does not know what failed before it led.
        let earliest = cluster.times.started + limits::AVOID_MS;
        let mut found = ReleasedKeyspaceBrakes { keyspaces: Vec::new(), next: Millis::NEVER };
        for (name, keyspace) in cluster.keyspaces.by_name.iter().filter(|(_, k)| k.record.brake.is_some()) {
            let until = keyspace.overdue.avoid.values().map(|avoided| avoided.until).max();
            match until.unwrap_or(earliest).max(earliest) {
                due if due > at.now => found.next = found.next.min(due),
                _ => found.keyspaces.push(name.clone()),
            }
        }
        found
    }

    fn apply(self, cluster: &mut Cluster, at: Moment) -> Millis {
        for name in self.keyspaces {
            let Some(keyspace) = cluster.keyspaces.get_mut(&name) else { continue };
            keyspace.record.brake = None;
            keyspace.plan_again(at);
            cluster.outbox.writes.push(Write::Keyspace(keyspace.record.clone()));
            cluster.outbox.tell(
                EventKind::BrakeReleased,
                About::keyspace(&name),
                false,
                format!("the brake of keyspace {name} is released: what could not be loaded is tried again"),
            );
        }
        self.next
    }
}

/// Whether the brake of the cluster goes off without a person.
pub(super) enum ReleasedBrake {
    /// The brake is off, or a node is missing.
    NotYet,
    /// Every node has been heard since this time, for less than `dead_after_ms`.
    NotLongEnough(Millis),
    /// Every node has been heard for `dead_after_ms`.
    Now,
}

impl Transition for ReleasedBrake {
    fn find(cluster: &Cluster, at: Moment) -> ReleasedBrake {
        if cluster.record.brake.is_none() || !cluster.is_everybody_heard(at) {
            return ReleasedBrake::NotYet;
        }
        let since = cluster.guard.all_heard_since.unwrap_or(at.now);
        let is_long = since + cluster.settings.dead_after_ms <= at.now;
        if is_long { ReleasedBrake::Now } else { ReleasedBrake::NotLongEnough(since) }
    }

    fn apply(self, cluster: &mut Cluster, at: Moment) -> Millis {
        cluster.guard.all_heard_since = match self {
            ReleasedBrake::NotLongEnough(since) => Some(since),
            ReleasedBrake::NotYet | ReleasedBrake::Now => None,
        };
        match self {
            ReleasedBrake::NotYet => Millis::NEVER,
            ReleasedBrake::NotLongEnough(since) => since + cluster.settings.dead_after_ms,
            ReleasedBrake::Now => {
                cluster.record.brake = None;
                cluster.outbox.writes.push(Write::Cluster(cluster.record.clone()));
                cluster.guard.losses.clear();
                cluster.outbox.tell(
                    EventKind::BrakeReleased,
                    About::all(),
                    false,
                    "the brake is released: every node is heard again".to_owned(),
                );
                cluster.keyspaces.plan_soon(at, 0);
                Millis::NEVER
            }
        }
    }
}

impl Cluster {
    fn is_everybody_heard(&self, at: Moment) -> bool {
        let is_heard = |health: Health| matches!(health, Health::Up | Health::Unreachable);
        let mut standing =
            self.members.nodes.values().filter(|node| !node.record.ended && !node.has_never_held());
        standing.all(|node| is_heard(node.signs.health(at.now, &self.settings)))
            && self.guard.losses.are_all_back(at.now, &self.settings)
    }
}

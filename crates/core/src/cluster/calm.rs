//! What stops moves and ends by itself: unrest, while many processes end and come back, and a brake under which
//! everybody is heard again.
//!
//! | seen                                                           | follows                                     |
//! |----------------------------------------------------------------|---------------------------------------------|
//! | more nodes ended or were started anew in the window than the brake bears | unrest: what has no replica is placed, nothing else moves |
//! | fewer                                                          | it ends                                     |
//! | the brake of a keyspace is on, and no load of it has failed for as long as a node is avoided | it is released, and what failed is tried again |
//! | the brake is on, every node that was not given up is heard, and none that was lost in the window is missing, for `dead_after_ms` | the brake is released |
//!
//! A crash loop of a whole release is over when the next release is out, and nobody should have to say so. What a
//! shard explains ([`crate::plan::poison`]) counts as one node, as it does for the brake.

use super::{Cluster, Moment, NodeState, Write};
use crate::base::name::NodeId;
use crate::base::time::Millis;
use crate::cluster::event::{About, EventKind};
use crate::limits;
use crate::node::Health;
use crate::plan::brake;

impl Cluster {
    /// Why nothing but repairs begins by itself.
    pub fn unrest(&self) -> Option<&str> {
        self.guard.unrest.as_deref()
    }

    /// Notices when unrest begins and ends, and when the brake has done its work. Returns when to look again.
    pub(super) fn watch_unrest(&mut self, at: Moment) -> Millis {
        let window_ms = self.settings.brake_window_ms;
        let (died, next) = self.guard.deaths.lately(at.now, window_ms);
        // Who was started anew has held nothing yet as what it is now, and is one of those all the same.
        let counts = |(id, node): &(&NodeId, &NodeState)| {
            !node.record.left && (!node.has_never_held() || died.contains(*id))
        };
        let standing = self.nodes.iter().filter(counts).count();
        let counted = died.len() - self.explained_deaths(&died);
        let why = brake::unrest(counted, standing, &self.settings);
        let began = why.is_some() && self.guard.unrest.is_none();
        let ended = why.is_none() && self.guard.unrest.is_some();
        if let Some(why) = why.as_ref().filter(|_| began) {
            self.notice(
                true,
                format!(
                    "{why}: what has no replica is placed, nothing else moves by itself until that is over. Look at \
                     the release and the machines"
                ),
            );
        }
        if ended {
            self.notice(false, "the nodes stay: moves go on".to_owned());
            self.plan_soon(at, 0);
        }
        self.guard.unrest = why;
        next.min(self.release_when_calm(at)).min(self.release_keyspaces_when_calm(at))
    }

    /// Releases the brakes of keyspaces whose loads failed long enough ago that they may be tried again.
    fn release_keyspaces_when_calm(&mut self, at: Moment) -> Millis {
        let (mut next, mut released) = (Millis::NEVER, Vec::new());
        // What failed before this coordinator led is not known to it.
        let earliest = self.started + limits::AVOID_MS;
        for (name, keyspace) in self.keyspaces.iter_mut().filter(|(_, k)| k.record.brake.is_some()) {
            let until = keyspace.overdue.avoid.values().map(|avoided| avoided.until).max();
            let due = until.unwrap_or(earliest).max(earliest);
            if due > at.now {
                next = next.min(due);
                continue;
            }
            keyspace.record.brake = None;
            keyspace.plan_again(at);
            released.push((name.clone(), Write::Keyspace(keyspace.record.clone())));
        }
        for (name, write) in released {
            self.outbox.writes.push(write);
            self.tell(
                EventKind::BrakeReleased,
                About::keyspace(&name),
                false,
                format!("the brake of keyspace {name} is released: what could not be loaded is tried again"),
            );
        }
        next
    }

    /// Releases the brake when there is nothing left to decide about.
    fn release_when_calm(&mut self, at: Moment) -> Millis {
        if self.record.brake.is_none() || !self.is_everybody_heard(at) {
            self.guard.calm_since = None;
            return Millis::NEVER;
        }
        let since = *self.guard.calm_since.get_or_insert(at.now);
        let due = since + self.settings.dead_after_ms;
        if due > at.now {
            return due;
        }
        self.guard.calm_since = None;
        self.record.brake = None;
        self.outbox.writes.push(Write::Cluster(self.record.clone()));
        self.guard.losses.clear();
        self.tell(
            EventKind::BrakeReleased,
            About::all(),
            false,
            "the brake is released: every node is heard again".to_owned(),
        );
        self.plan_soon(at, 0);
        Millis::NEVER
    }

    fn is_everybody_heard(&mut self, at: Moment) -> bool {
        let is_heard = |health: Health| matches!(health, Health::Up | Health::Unreachable);
        let mut standing = self.nodes.values().filter(|node| !node.record.ended && !node.has_never_held());
        standing.all(|node| is_heard(node.signs.health(at.now, &self.settings)))
            && self.guard.losses.are_all_back(at.now, &self.settings)
    }
}

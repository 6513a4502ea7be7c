//! The nodes of a cluster, and the processes that ask to be one.

use super::session::Registrations;
use super::stored::Nodes;
use super::{Kept, NodeRecord};
use crate::base::id::Incarnation;
use crate::base::name::NodeId;
use crate::base::settings::Settings;
use crate::base::time::Millis;
use crate::node::Health;
use crate::node::exchange::{DiskHealth, ReplicaKey};
use crate::node::health::Signs;
use std::collections::BTreeMap;

/// The nodes, with what was seen of each.
#[derive(Debug, Clone)]
pub(super) struct Members {
    /// Dead ones included until they are removed.
    pub(super) nodes: Nodes,
    /// When a node last registered, or became up.
    pub(super) last_join: Millis,
    /// Refused registrations and messages.
    pub(super) registrations: Registrations,
}

/// A node with what is known of it.
#[derive(Debug, Clone)]
pub struct NodeState {
    /// What the coordinator stores of the node.
    pub record: NodeRecord,
    /// What was seen of its current incarnation.
    pub signs: Signs,
    /// Earlier incarnations that may still act, with what was seen of them.
    pub(super) former: BTreeMap<Incarnation, Signs>,
    /// The process has registered with this coordinator, as a new one or as one that comes back.
    pub(super) registered: bool,
    /// The number of the last heartbeat; 0 before the first of this incarnation.
    pub(super) sequence: u64,
    /// It has asked to leave.
    pub leaving: bool,
    /// It gets no further lease: see [`super::overdue`]. Not stored.
    pub(super) revoked: bool,
    /// It has said that its last lease is over, and got none: see `Cluster::may_lease`.
    pub(super) has_no_lease: bool,
    /// The share of its capacity that foreground work takes, as its last heartbeat says.
    pub busy: f64,
    /// The health of its disk, as its last heartbeat says (`disk.rs`).
    pub disk: DiskHealth,
    /// The replicas that the maps place on it, as orders for its worker.
    pub(super) orders: super::orders::OrderIndex,
    /// Whether a map has named it since this coordinator leads, or it had ended before that. See [`super::reach`].
    pub(super) has_held: bool,
    /// When its address is to be checked again.
    pub(super) check_due: Millis,
    /// Its address has not answered for so long that its replicas move to other nodes: see [`super::reach`].
    pub(super) long_unreachable: bool,
    /// The health that the last event on it, for people, named.
    pub(super) reported_health: Health,
    /// Whether its lease was over at the last decision.
    pub(super) lease_over: bool,
    /// When it ended; of a node that had ended before this coordinator led, when that began.
    pub(super) ended_at: Millis,
    /// Data that it keeps and no map names. Not stored, as its heartbeats name that again.
    pub(super) kept: BTreeMap<ReplicaKey, Kept>,
    /// The last of `kept` that the coordinator looked at.
    pub(super) kept_until: Option<ReplicaKey>,
    /// An event has told people that it is drained and safe to stop.
    pub(super) safe_to_stop_told: bool,
    /// An event has told people that it keeps data which may not be deleted.
    pub(super) kept_told: bool,
    /// When the coordinator last said that a message for it came without its token.
    pub(super) wrong_token_told: Option<Millis>,
    /// Its token was lost, and another one was accepted since. Not stored: the process that registered is refused with
    /// its next beat, and begins anew.
    pub(super) is_on_trust: bool,
}

/// The nodes as they look at one time, by the settings.
#[derive(Clone, Copy)]
pub(super) struct NodesView<'a> {
    pub(super) nodes: &'a Nodes,
    pub(super) now: Millis,
    pub(super) settings: &'a Settings,
}

impl Members {
    pub(super) fn new(now: Millis) -> Members {
        Members { nodes: Nodes::new(), last_join: now, registrations: Registrations::default() }
    }

    pub(super) fn view<'a>(&'a self, now: Millis, settings: &'a Settings) -> NodesView<'a> {
        NodesView { nodes: &self.nodes, now, settings }
    }

    pub(super) fn get(&self, id: &NodeId) -> Option<&NodeState> {
        self.nodes.get(id)
    }

    pub(super) fn get_mut(&mut self, id: &NodeId) -> Option<&mut NodeState> {
        self.nodes.get_mut(id)
    }

    /// Packs what each node should hold, as far as there is `room` for that in this decision.
    pub(super) fn pack(&mut self, room: &mut i64) {
        self.nodes.values_mut().for_each(|node| node.orders.pack(room));
    }
}

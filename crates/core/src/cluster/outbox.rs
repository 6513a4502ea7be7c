//! What a decision leaves for the driver to do.

use super::Write;
use super::event::{About, Actor, Event, EventKind, event};
use crate::base::name::NodeId;
use crate::keyspace::map::MapDiff;
use std::collections::BTreeSet;

/// Something that a person should know of. The driver logs it and counts it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Whether a person has to do something.
    pub alarm: bool,
    /// One sentence, naming the thing and, for an alarm, the way out.
    pub text: String,
}

/// What has to leave the cluster: `writes` first, all or nothing, then the rest.
#[derive(Debug, Clone, Default)]
pub struct Outbox {
    /// What the driver has to make durable before the rest leaves.
    pub writes: Vec<Write>,
    /// Nodes whose orders have changed: send [`super::Cluster::orders_since`] what they have.
    pub changed_orders: BTreeSet<NodeId>,
    /// New maps to publish, in order.
    pub maps: Vec<MapDiff>,
    /// Sentences for the driver to log and count.
    pub notices: Vec<Notice>,
    /// To be kept for people who ask later what has happened, once the writes are durable.
    pub events: Vec<Event>,
}

impl Outbox {
    /// Tells of the whole cluster.
    pub(super) fn notice(&mut self, alarm: bool, text: String) {
        let kind = if alarm { EventKind::Alarm } else { EventKind::Notice };
        self.tell(kind, About::all(), alarm, text);
    }

    /// Tells of what the coordinator did by itself.
    pub(super) fn tell(&mut self, kind: EventKind, about: About, alarm: bool, text: String) {
        self.tell_event(Event { alarm, ..event(kind, about, text) });
    }

    /// Tells of what a node did.
    pub(super) fn tell_of(&mut self, kind: EventKind, node: &NodeId, text: String) {
        self.tell_event(Event { by: Actor::Node(node.clone()), ..event(kind, About::node(node), text) });
    }

    /// Logs an event and keeps it; others are only kept.
    pub(super) fn tell_event(&mut self, event: Event) {
        self.notices.push(Notice { alarm: event.alarm, text: event.text.clone() });
        self.events.push(event);
    }
}

//! What changed, when, why and by whom, as JSON: in answers, and, a line each, where events are stored.

use crate::Malformed;
use crate::json::{EventActor, FixedWord};
use partage_core::cluster::event::EventKind;
use partage_core::cluster::event::{self, Actor};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One change in the cluster, as the leader has recorded it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// The term of the leader that recorded the event. Later leaders have higher terms.
    pub term: u64,
    /// The number of the event among those of that term, from 1.
    pub number: u64,
    /// The time of the event, in milliseconds of Unix time by the leader's clock.
    pub at_ms: u64,
    /// The kind of the event: node_registered, node_health, node_ended, node_forgotten, node_drain, keyspace_created,
    /// keyspace_changed, keyspace_deleted, shard_change, shard_placed, shard_rule, shard_set_aside, shard_released,
    /// plan_made, plan_decided, plan_finished, brake_set, brake_released, leader_changed, alarm, notice; later
    /// versions may have more.
    #[schema(value_type = String)]
    pub kind: FixedWord<EventKind>,
    /// Whether a person has to do something.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub alarm: bool,
    /// The actor that caused the event: coordinator, person, node.
    #[schema(value_type = String)]
    pub actor: FixedWord<EventActor>,
    /// The name of that person or node; absent for the coordinator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The keyspace that the event is about; absent = no single keyspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keyspace: Option<String>,
    /// The id of the shard that the event is about; absent = no single shard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<u64>,
    /// The nodes that the event is about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// The number of the plan that the event is about; absent = no plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<u64>,
    /// A text for people: what happened, and why.
    pub text: String,
}

impl Event {
    /// As it is kept, with its place and its time.
    pub fn of((term, number): (u64, u64), at_ms: u64, event: &event::Event) -> Event {
        let event::Event { kind, about, by, alarm, text } = event;
        let (actor, by) = match by {
            Actor::Coordinator => (EventActor::Coordinator, None),
            Actor::Person(name) => (EventActor::Person, Some(name.clone())),
            Actor::Node(node) => (EventActor::Node, Some(node.to_string())),
        };
        Event {
            term,
            number,
            at_ms,
            kind: (*kind).into(),
            alarm: *alarm,
            actor: actor.into(),
            by,
            keyspace: about.keyspace.as_ref().map(ToString::to_string),
            shard: about.shard.map(|shard| shard.0),
            nodes: about.nodes.iter().map(ToString::to_string).collect(),
            plan: about.plan.map(|plan| plan.0),
            text: text.clone(),
        }
    }

    /// Its place among all that are kept.
    pub fn place(&self) -> EventPlace {
        EventPlace { term: self.term, number: self.number }
    }
}

/// The place of an event: `<term>-<number>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct EventPlace {
    /// See [`Event::term`].
    pub term: u64,
    /// See [`Event::number`].
    pub number: u64,
}

impl std::fmt::Display for EventPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.term, self.number)
    }
}

impl std::str::FromStr for EventPlace {
    type Err = Malformed;
    fn from_str(text: &str) -> Result<EventPlace, Malformed> {
        let parts =
            text.split_once('-').and_then(|(term, number)| Some((term.parse().ok()?, number.parse().ok()?)));
        let (term, number) = parts.ok_or_else(|| {
            Malformed::new("after", format!("{text:?} is no place: give `next` of an answer, such as 3-17"))
        })?;
        Ok(EventPlace { term, number })
    }
}

/// A page of events, the oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Events {
    /// The events of this page, the oldest first.
    pub events: Vec<Event>,
    /// The place to give as `after` in the next request, also when there is no later event yet.
    pub next: String,
    /// Whether there are more events than the limit: later ones where the request has `after`, else earlier ones.
    pub more: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::cluster::event::{About, EventKind};

    #[test]
    fn an_event_is_written_as_it_always_was() {
        let about = About::shard(&"kv".parse().unwrap(), partage_core::base::id::ShardId(3))
            .and_node(&"n1".parse().unwrap());
        let by = Actor::Person("alice".to_owned());
        let event =
            event::Event { by, alarm: true, ..event::event(EventKind::ShardChange, about, "why".to_owned()) };
        let form = Event::of((3, 17), 1_000, &event);
        let text = r#"{"term":3,"number":17,"at_ms":1000,"kind":"shard_change","alarm":true,"actor":"person","by":"alice","keyspace":"kv","shard":3,"nodes":["n1"],"text":"why"}"#;
        assert_eq!(serde_json::to_string(&form).unwrap(), text);
        assert_eq!(serde_json::from_str::<Event>(text).unwrap(), form);
        assert_eq!(form.place().to_string().parse::<EventPlace>().unwrap(), form.place());
        for wrong in ["", "3", "3-", "-3", "a-b", "3-17-1"] {
            assert!(wrong.parse::<EventPlace>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_document_names_every_kind() {
        let source = include_str!("event.rs");
        let said = source.split("pub kind: FixedWord").next().unwrap();
        for kind in EventKind::ALL {
            assert!(said.contains(kind.as_str()), "{kind} is not in the document");
        }
    }
}

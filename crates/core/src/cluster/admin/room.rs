//! Whether nodes have joined that could hold what a command asks for.
//!
//! A person who asks for nine replicas where six nodes have joined has mostly miscounted: the command is refused. One who
//! knows that three more nodes will join says so (`ahead`), and the command is accepted.
//!
//! **Members count**: a member is a node that has joined and has neither left nor been removed. Its health does not
//! matter, nor a drain: both pass, and whether a command is good must not depend on the second in which it is
//! given. A node that died counts until a person removes it, because it is expected back until then. The answer
//! warns of what cannot be placed *now*.
//!
//! **What was accepted stays accepted.** Nodes may leave later; a command is refused only when it asks for more
//! replicas than before, or for fewer nodes to put them on. And a cluster without members is being set up:
//! everything is accepted there.

use super::AdminError;
use crate::base::count::{counted, counted_with};
use crate::base::id::ShardId;
use crate::base::name::NodeId;
use crate::base::suggest;
use crate::cluster::{Cluster, KeyspaceRecord, Moment, NodeState};
use crate::keyspace::{Constraint, KeyspaceKind, Spread};
use crate::node::Health;
use crate::node::NodeSpec;
use std::collections::BTreeSet;
use std::fmt::Display;

/// What is asked for a shard, or for each of several.
struct Demand<'a> {
    /// For which, at the beginning of a sentence.
    of: String,
    replicas: u32,
    spread: Spread,
    kind: KeyspaceKind,
    /// Those of the keyspace, then those of the shard.
    constraints: Vec<&'a Constraint>,
}

impl<'a> Demand<'a> {
    fn of_keyspace(record: &'a KeyspaceRecord) -> Demand<'a> {
        let keyspace = &record.keyspace;
        let of = format!("each shard of keyspace {}", keyspace.name);
        Demand {
            of,
            replicas: keyspace.replicas,
            spread: keyspace.spread,
            kind: keyspace.kind,
            constraints: vec![&keyspace.constraint],
        }
    }

    fn of_shard(record: &'a KeyspaceRecord, shard: ShardId) -> Demand<'a> {
        let rule = record.rules.get(&shard);
        let mut demand = Demand::of_keyspace(record);
        demand.of = format!("shard {shard} of keyspace {}", record.keyspace.name);
        demand.replicas = rule.and_then(|rule| rule.replicas).unwrap_or(demand.replicas);
        demand.constraints.extend(rule.map(|rule| &rule.constraint));
        demand
    }

    fn allowed<'n>(&self, nodes: &[&'n NodeSpec]) -> Vec<&'n NodeSpec> {
        let fits = |node: &&NodeSpec| {
            node.kinds.contains(&self.kind)
                && self.constraints.iter().all(|constraint| constraint.allows(node))
        };
        nodes.iter().copied().filter(fits).collect()
    }

    /// How many replicas of one shard the nodes can hold.
    fn room(&self, nodes: &[&NodeSpec]) -> usize {
        let allowed = self.allowed(nodes);
        if self.spread.is_strict() { self.domains(&allowed) } else { allowed.len() }
    }

    /// A node that is in no domain shares it with none.
    fn domains(&self, nodes: &[&NodeSpec]) -> usize {
        let domains: Vec<_> = nodes.iter().map(|node| self.spread.domain(node)).collect();
        let known: BTreeSet<_> = domains.iter().flatten().collect();
        known.len() + domains.iter().filter(|domain| domain.is_none()).count()
    }

    /// Whether it asks for more replicas, or for less room for them.
    fn exceeds(&self, before: &Demand<'_>, members: &[&NodeSpec]) -> bool {
        self.replicas > before.replicas || self.room(members) < before.room(members)
    }

    /// What keeps replicas off the members: each part that alone leaves too few, or, where none does, all of them.
    fn obstacles(&self, members: &[&NodeSpec]) -> Vec<String> {
        let mut parts: Vec<(String, usize)> = Vec::new();
        let mut part = |what: String, allows: &dyn Fn(&NodeSpec) -> bool| {
            let left = members.iter().filter(|node| allows(node)).count();
            if left < members.len() {
                parts.push((format!("{what} leaves {left} of them"), left));
            }
        };
        part(format!("the kind {}", self.kind), &|node| node.kinds.contains(&self.kind));
        for constraint in &self.constraints {
            let Constraint { pinned, excluded, labels } = constraint;
            part(format!("the pin to {}", list(pinned)), &|node| {
                pinned.is_empty() || pinned.contains(&node.id)
            });
            part(format!("the exclusion of {}", list(excluded)), &|node| !excluded.contains(&node.id));
            part(format!("the label {}", list(labels)), &|node| labels.is_subset(&node.labels));
        }
        let allowed = self.allowed(members);
        let domains = self.domains(&allowed);
        if self.spread.is_strict() && domains < allowed.len() {
            let kind = if self.spread == Spread::RackStrict { "racks" } else { "zones" };
            let what = format!("spread {} allows one in each of their {domains} {kind}", self.spread);
            parts.push((what, domains));
        }
        let alone = parts.iter().any(|(_, left)| *left < self.replicas as usize);
        parts.retain(|(_, left)| !alone || *left < self.replicas as usize);
        parts.into_iter().map(|(what, _)| what).collect()
    }

    fn refusal(&self, members: &[&NodeSpec]) -> AdminError {
        let Demand { of, replicas, .. } = self;
        let (room, obstacles) = (self.room(members), self.obstacles(members));
        let because = obstacles.iter().map(|what| format!(", {what}")).collect::<String>();
        let joined = counted_with(members.len(), "node", ("has", "have"));
        let wanted = counted(*replicas, "replica");
        let problem = format!("{of} needs {wanted} and there is room for {room}: {joined} joined{because}");
        let fewer = (room > 0).then(|| format!("ask for {room} or fewer, "));
        let relax = (!obstacles.is_empty()).then_some("relax that, ");
        let way_out = format!(
            "{}{}let more nodes join first, or say with `ahead` (--ahead) that nodes still to join will hold the rest",
            fewer.unwrap_or_default(),
            relax.unwrap_or_default()
        );
        AdminError::Refused { problem, way_out }
    }
}

/// Names, a few of many.
fn list<T: Display>(names: &BTreeSet<T>) -> String {
    const SHOWN: usize = 5;
    let shown: Vec<_> = names.iter().take(SHOWN).map(ToString::to_string).collect();
    let rest = names.len().saturating_sub(SHOWN);
    if rest > 0 { format!("{} and {rest} more", shown.join(", ")) } else { shown.join(", ") }
}

impl Cluster {
    /// Refuses settings of a keyspace that its nodes could not carry out, for its shards in general and for those
    /// with rules of their own. Returns what cannot be carried out now.
    pub(super) fn room_for_keyspace(
        &self,
        at: Moment,
        before: Option<&KeyspaceRecord>,
        after: &KeyspaceRecord,
        ahead: bool,
    ) -> Result<Option<String>, AdminError> {
        let general: Vec<_> = before.map(Demand::of_keyspace).into_iter().collect();
        let warning = self.room(at, &general, &Demand::of_keyspace(after), ahead)?;
        let mut seen = BTreeSet::new();
        for (id, rule) in &after.rules {
            if seen.insert((rule.replicas, &rule.constraint)) {
                let before: Vec<_> = before.map(|record| Demand::of_shard(record, *id)).into_iter().collect();
                self.room(at, &before, &Demand::of_shard(after, *id), ahead)?;
            }
        }
        Ok(warning)
    }

    /// The same for one shard. What its keyspace asks for was accepted, and so is that for the shard.
    pub(super) fn room_for_shard(
        &self,
        at: Moment,
        before: &KeyspaceRecord,
        after: &KeyspaceRecord,
        shard: ShardId,
        ahead: bool,
    ) -> Result<Option<String>, AdminError> {
        let accepted = [Demand::of_shard(before, shard), Demand::of_keyspace(before)];
        self.room(at, &accepted, &Demand::of_shard(after, shard), ahead)
    }

    /// The same for new partitions with a number of replicas of their own.
    pub(super) fn room_for_partitions(
        &self,
        at: Moment,
        record: &KeyspaceRecord,
        replicas: Option<u32>,
        ahead: bool,
    ) -> Result<Option<String>, AdminError> {
        let general = Demand::of_keyspace(record);
        let of = format!("each new partition of keyspace {}", record.keyspace.name);
        let replicas = replicas.unwrap_or(general.replicas);
        let demand = Demand { of, replicas, ..Demand::of_keyspace(record) };
        self.room(at, &[general], &demand, ahead)
    }

    fn room(
        &self,
        at: Moment,
        accepted: &[Demand<'_>],
        demand: &Demand<'_>,
        ahead: bool,
    ) -> Result<Option<String>, AdminError> {
        let members = self.members();
        let wanted = demand.replicas as usize;
        let is_more = accepted.iter().all(|before| demand.exceeds(before, &members));
        if demand.room(&members) < wanted && is_more && !ahead && !members.is_empty() {
            return Err(demand.refusal(&members));
        }
        // Of those that a coordinator has not heard of since it began to lead, it expects to hear.
        let takes = |node: &&NodeState| {
            let awaited = node.signs.health(at.now, &self.settings) == Health::Unknown;
            node.accepts(at.now, &self.settings) || awaited && node.record.drain.is_none()
        };
        let open: Vec<_> = self.members.nodes.values().filter(takes).map(|node| &node.record.spec).collect();
        let room = demand.room(&open);
        Ok((room < wanted).then(|| {
            format!(
                "{} needs {} and there is room for {room} now: the rest stays where it is, or is reported as \
                 unplaced until more nodes join",
                demand.of,
                counted(wanted, "replica")
            )
        }))
    }

    fn members(&self) -> Vec<&NodeSpec> {
        self.members.nodes.values().filter(|node| !node.signs.left).map(|node| &node.record.spec).collect()
    }

    /// Refuses to pin to unknown nodes, but where they are still to join; those that `before` named are
    /// not looked at again. Excluded nodes may be unknown: that harms no shard.
    pub(super) fn check_pins(
        &self,
        constraint: &Constraint,
        before: &Constraint,
        ahead: bool,
    ) -> Result<Option<String>, AdminError> {
        let mut named = constraint.pinned.difference(&before.pinned);
        let Some(unknown) = named.find(|node| !self.members.nodes.contains_key(*node)) else {
            return Ok(None);
        };
        let problem = format!("no node {unknown} to pin to has registered");
        if ahead || self.members().is_empty() {
            return Ok(Some(format!("{problem} yet")));
        }
        let known = self.members.nodes.keys().map(NodeId::as_str);
        let way_out = suggest::close(unknown.as_str(), known).map_or(
            "pin to nodes that have registered, or by label, or say with `ahead` (--ahead) that it is still to join"
                .into(),
            |near| format!("did you mean {near}?"),
        );
        Err(AdminError::Invalid { problem, way_out })
    }
}

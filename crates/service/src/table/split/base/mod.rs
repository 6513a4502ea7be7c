//! The base of one replica of a child: from whom it takes it, and when it has all of it.
//!
//! | seen | next |
//! |---|---|
//! | a parent that was not asked for [`Settings::ask_ms`]; after the switch, one with news | ask it for what is behind what is here |
//! | no answer for [`Settings::patience_ms`], nor a part of one ([`Base::heard`]) | ask the next of its replicas |
//! | a snapshot that is later than what is here | it replaces that |
//! | changes that follow on what is here | they follow; ask on at once if there are more than are given at once, or after the switch |
//! | anything else | nothing: the ask is repeated |
//! | each parent has something, and lags by `split_lag` at most | ready |
//! | of each parent all up to the end of its log, and together they held what the child holds | store it |
//! | it is stored | open |
//!
//! Before the switch nobody waits for the changes, so they are taken some at a time: to ask for each group of writes, as it is
//! applied, would cost a parent more than the writes do. After the switch requests wait for them.
//!
//! Replicas that are in sync are asked first, of them that of the own node. One that is not in sync and has nothing new may never
//! have: the next one is asked.

use super::{Ask, Given, What, base_position};
use crate::table::replication::LogPosition;
use partage_core::base::id::{PlacementId, ShardId};
use partage_core::base::name::NodeId;
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;
use partage_core::keyspace::sharding::{Bounds, geometry};
use std::collections::BTreeMap;

/// The numbers that it goes by. Times in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// A child is ready when it is so many entries behind each parent's log, or less: they are what it takes at the switch,
    /// while requests wait.
    pub split_lag: u64,
    /// How often a parent is asked before the switch, and one which has had nothing new.
    pub ask_ms: u64,
    /// How long an answer is waited for.
    pub patience_ms: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { split_lag: 1_000, ask_ms: 20, patience_ms: 1_000 }
    }
}

/// A replica of a parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parent {
    /// The parent.
    pub shard: ShardId,
    /// What the parent held.
    pub bounds: Bounds,
    /// The replica.
    pub placement: PlacementId,
    /// Its node.
    pub node: NodeId,
    /// Whether it has all that the parent has acknowledged.
    pub in_sync: bool,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Ask a parent's replica.
    Ask(Ask),
    /// The base is whole: store it, for a log that begins behind that position.
    Store(LogPosition),
    /// The base is stored: the replica opens.
    Open,
}

/// What becomes of something that was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// It takes the place of all that is here of that parent.
    Replaces,
    /// It follows on what is here of that parent.
    Follows,
    /// It is of no use.
    Nothing,
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Taking,
    Storing,
    Stored,
}

/// What is here of one parent.
#[derive(Debug, Clone, Default)]
struct Part {
    bounds: Option<Bounds>,
    replicas: Vec<Parent>,
    has: Option<LogPosition>,
    lag: Option<u64>,
    closed: Option<LogPosition>,
    /// Counts replicas that did not answer.
    turn: usize,
    /// Until when the answer is waited for.
    waits_until: Option<Millis>,
    ask_at: Millis,
}

/// The base of one replica.
#[derive(Debug, Clone)]
pub struct Base {
    node: NodeId,
    /// What the child holds.
    bounds: Bounds,
    settings: Settings,
    parts: BTreeMap<ShardId, Part>,
    /// The child serves, as far as the map says.
    serves: bool,
    phase: Phase,
}

impl Base {
    /// Of a replica on `node` of a child with these bounds, of which nothing is here yet.
    pub fn new(node: NodeId, bounds: Bounds, settings: Settings) -> Base {
        Base { node, bounds, settings, parts: BTreeMap::new(), serves: false, phase: Phase::Taking }
    }

    /// What a parent held, as far as an order has said.
    pub fn held(&self, parent: ShardId) -> Option<&Bounds> {
        self.parts.get(&parent)?.bounds.as_ref()
    }

    /// An order: these are the parents' replicas, all of them that can be asked. `serves`: the switch was.
    pub fn ordered(&mut self, now: Millis, parents: Vec<Parent>, serves: bool) -> Vec<Effect> {
        let has_switched = serves && !self.serves;
        self.serves = serves;
        if has_switched {
            self.parts.values_mut().for_each(|part| part.ask_at = now);
        }
        let mut replicas: BTreeMap<ShardId, Vec<Parent>> = BTreeMap::new();
        parents.into_iter().for_each(|parent| replicas.entry(parent.shard).or_default().push(parent));
        for (shard, of_it) in &replicas {
            let part = self.parts.entry(*shard).or_default();
            part.bounds = of_it.first().map(|one| one.bounds.clone());
        }
        for (shard, part) in &mut self.parts {
            let mut of_it = replicas.remove(shard).unwrap_or_default();
            of_it.sort_by_key(|one| (!one.in_sync, one.node != self.node, one.placement));
            if part.replicas != of_it {
                (part.replicas, part.turn) = (of_it, 0);
            }
        }
        self.tick(now)
    }

    /// A replica on the own node has applied something of that parent: of use after the switch.
    pub fn news(&mut self, now: Millis, parent: ShardId) -> Vec<Effect> {
        if let Some(part) = self.parts.get_mut(&parent).filter(|_| self.serves) {
            part.ask_at = now;
        }
        self.tick(now)
    }

    /// A part of what that parent's replica gives has come: the rest is waited for from now on.
    pub fn heard(&mut self, now: Millis, parent: ShardId) {
        let until = now + self.settings.patience_ms;
        if let Some(part) = self.parts.get_mut(&parent) {
            part.waits_until = part.waits_until.map(|_| until);
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Millis) -> Vec<Effect> {
        if self.phase != Phase::Taking {
            return Vec::new();
        }
        let settings = self.settings;
        self.parts.iter_mut().filter_map(|(shard, part)| part.ask(now, *shard, settings)).collect()
    }

    /// What becomes of what was given. The caller takes it so, and then carries out the effects.
    pub fn take(&mut self, now: Millis, given: &Given) -> (Taken, Vec<Effect>) {
        let settings = self.settings;
        let part = self.parts.get_mut(&given.parent).filter(|_| self.phase == Phase::Taking);
        let Some(part) = part else { return (Taken::Nothing, Vec::new()) };
        let taken = part.take(now, given, settings, self.serves);
        let mut effects = self.tick(now);
        if let Some(base) = self.whole() {
            self.phase = Phase::Storing;
            effects.push(Effect::Store(base));
            if planted::is(Planted::UnstoredBase) {
                effects.push(Effect::Open);
            }
        }
        (taken, effects)
    }

    /// The base is on disk.
    pub fn stored(&mut self) -> Vec<Effect> {
        let is_news = self.phase == Phase::Storing && !planted::is(Planted::UnstoredBase);
        self.phase = Phase::Stored;
        if is_news { vec![Effect::Open] } else { Vec::new() }
    }

    /// Whether so little is missing that the parents may close.
    pub fn is_ready(&self) -> bool {
        let lags_little = |part: &Part| part.lag.is_some_and(|lag| lag <= self.settings.split_lag);
        self.phase != Phase::Taking || (!self.parts.is_empty() && self.parts.values().all(lags_little))
    }

    /// When to call [`Base::tick`] at the latest.
    pub fn wake_at(&self) -> Millis {
        let asks = self.parts.values().filter(|part| part.closed.is_none() && !part.replicas.is_empty());
        let due = asks.map(|part| part.waits_until.unwrap_or(part.ask_at));
        if self.phase == Phase::Taking { due.min().unwrap_or(Millis::NEVER) } else { Millis::NEVER }
    }

    /// Where the log begins, when all is here.
    fn whole(&self) -> Option<LogPosition> {
        let ends = |part: &Part| {
            let is_early = planted::is(Planted::EarlyChild) && self.serves;
            part.closed.or(part.has.filter(|_| is_early))
        };
        // A parent that no order names is not taken for one that had nothing.
        let bounds: Vec<_> = self.parts.values().filter_map(|part| part.bounds.as_ref()).collect();
        let is_all = geometry::joined(&bounds).is_some_and(|all| geometry::holds(&all, &self.bounds));
        let ends: Option<Vec<_>> = self.parts.values().map(ends).collect();
        ends.filter(|_| is_all).map(base_position)
    }
}

impl Part {
    fn ask(&mut self, now: Millis, shard: ShardId, settings: Settings) -> Option<Effect> {
        if self.closed.is_some() || self.replicas.is_empty() {
            return None;
        }
        match self.waits_until {
            Some(until) if now < until => return None,
            Some(_) => self.turn += 1,
            None if now < self.ask_at => return None,
            None => {}
        }
        self.waits_until = Some(now + settings.patience_ms);
        let of = self.replicas[self.turn % self.replicas.len()].placement;
        Some(Effect::Ask(Ask { parent: shard, of, after: self.has }))
    }

    fn take(&mut self, now: Millis, given: &Given, settings: Settings, serves: bool) -> Taken {
        let to = given.what.to();
        let is_news = self.has.is_none_or(|has| has.index < to.index);
        let taken = match given.what {
            What::Changes { after, .. } if self.has != Some(after) => return Taken::Nothing,
            What::Snapshot(_) if is_news => Taken::Replaces,
            What::Changes { .. } if is_news => Taken::Follows,
            What::Snapshot(_) | What::Changes { .. } => Taken::Nothing,
        };
        let lag = given.end.saturating_sub(to.index);
        let asks_on = is_news && (serves || given.has_more || lag > settings.split_lag);
        self.waits_until = None;
        self.ask_at = if asks_on { now } else { now + settings.ask_ms };
        if is_news || self.has == Some(to) {
            self.has = Some(to);
            self.lag = Some(lag);
            self.closed = given.closed.filter(|closed| closed.index <= to.index);
        }
        let is_in_sync = |one: &Parent| one.placement != given.by || one.in_sync;
        if !is_news && !self.replicas.iter().all(is_in_sync) {
            self.turn += 1;
        }
        taken
    }
}

#[cfg(test)]
mod tests;

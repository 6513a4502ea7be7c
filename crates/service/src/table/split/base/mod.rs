//! The base of one replica of a child: from which replicas it takes it, and when it is whole.
//!
//! | what has happened | what the base does |
//! |---|---|
//! | [`Settings::ask_ms`] after an answer; after the switch, also when a parent's replica on this node has applied something | ask that parent for what comes behind what is here |
//! | no answer for [`Settings::patience_ms`], nor a part of one for [`Settings::part_patience_ms`] ([`Base::snapshot_progressed`]) | ask the next of its replicas |
//! | a snapshot that is later than what is here | it replaces that |
//! | changes that follow on what is here | append them; ask again at once if the parent keeps more, or after the switch |
//! | the first part of a snapshot ([`Base::copy_begins`]) | ask the same replica for its changes meanwhile, which wait *aside* |
//! | changes that follow on those aside | put them aside, too |
//! | the snapshot is whole | replace what is here by it, and apply the changes aside to it, while more may come |
//! | all changes aside are applied ([`Base::caught_up`]) | go on as usual |
//! | anything else | nothing: the ask is repeated |
//! | each parent has something, and lags by `split_lag` at most | ready |
//! | of each parent all up to the end of its log, and together they held what the child holds | store it |
//! | it is stored | open |
//!
//! Before the switch no request waits for the changes, so the base asks every [`Settings::ask_ms`]: an ask for each group of
//! writes would cost a parent more than the writes do. After the switch requests wait for them.
//!
//! Changes during the copy of a snapshot wait at the child, not at the parent, which keeps little: so a shard is split however
//! fast clients write, if the child applies changes faster than they come.
//!
//! The base asks replicas that are in sync first, the one on the own node before others. One that is not in sync and has nothing
//! new may never have: the base asks the next one.

use super::{Ask, Given, GivenExtent, base_position};
use crate::table::replication::LogPosition;
use partage_core::base::id::{PlacementId, ShardId};
use partage_core::base::name::NodeId;
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;
use partage_core::keyspace::sharding::{Bounds, geometry};
use std::collections::BTreeMap;

/// The settings of a base. Times are in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// A child is ready when it is at most so many entries behind each parent's log: it takes these at the switch, while requests
    /// wait.
    pub split_lag: u64,
    /// The time between two asks before the switch, and after one that brought nothing new.
    pub ask_ms: u64,
    /// How long the base waits for an answer.
    pub patience_ms: u64,
    /// How long the base waits for the next part of a snapshot: longer, as copies give way to clients.
    pub part_patience_ms: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { split_lag: 1_000, ask_ms: 20, patience_ms: 1_000, part_patience_ms: 5_000 }
    }
}

/// A replica of a parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parent {
    /// The shard that the child is a part of, or one of those it was merged from.
    pub shard: ShardId,
    /// What the parent held.
    pub bounds: Bounds,
    /// The replica of it that can be asked.
    pub placement: PlacementId,
    /// The node of that replica: the child asks its own node first.
    pub node: NodeId,
    /// Whether it has all that the parent has acknowledged.
    pub in_sync: bool,
}

/// What a base asks its driver to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Ask a parent's replica.
    Ask(Ask),
    /// The base is whole: store it, for a log that begins behind that position.
    Store(LogPosition),
    /// The base is stored: the replica opens.
    Open,
}

/// How to apply an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// The snapshot replaces all that is here of that parent.
    Replaces,
    /// The changes follow on what is here of that parent.
    Follows,
    /// The changes wait until the snapshot of that parent is copied, behind those that wait already.
    Aside,
    /// The answer is of no use.
    Nothing,
}

/// The progress of a base.
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
    /// Counts replicas that did not answer: which one to ask next.
    turn: usize,
    /// The base waits for the answer until then.
    waits_until: Option<Millis>,
    ask_at: Millis,
    copying: Option<Copying>,
}

/// A snapshot that is copied, and what waits for it.
#[derive(Debug, Clone, Copy)]
struct Copying {
    /// The replica that gives it.
    by: PlacementId,
    /// The position of the snapshot.
    from: LogPosition,
    /// The position of the last change that waits.
    at: LogPosition,
    lag: u64,
    closed: Option<LogPosition>,
    waits_until: Option<Millis>,
    ask_at: Millis,
    /// The snapshot is here, and the changes that wait are being applied to it.
    is_whole: bool,
}

/// The base of one replica.
#[derive(Debug, Clone)]
pub struct Base {
    node: NodeId,
    /// What the child holds.
    bounds: Bounds,
    settings: Settings,
    parts: BTreeMap<ShardId, Part>,
    /// The child serves by the map: the switch has been committed.
    serves: bool,
    phase: Phase,
}

impl Base {
    /// The base of a replica on `node` of a child with these bounds, of which nothing is here yet.
    pub fn new(node: NodeId, bounds: Bounds, settings: Settings) -> Base {
        Base { node, bounds, settings, parts: BTreeMap::new(), serves: false, phase: Phase::Taking }
    }

    /// What a parent held, if an order has named it.
    pub fn bounds_of(&self, parent: ShardId) -> Option<&Bounds> {
        self.parts.get(&parent)?.bounds.as_ref()
    }

    /// An order names the parents' replicas that can be asked. `serves`: the switch has been committed.
    pub fn on_order(&mut self, now: Millis, parents: Vec<Parent>, serves: bool) -> Vec<Effect> {
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

    /// A replica of that parent on the own node has applied something: after the switch the base asks it at once.
    pub fn parent_applied(&mut self, now: Millis, parent: ShardId) -> Vec<Effect> {
        if let Some(part) = self.parts.get_mut(&parent).filter(|_| self.serves) {
            part.ask_at = now;
        }
        self.tick(now)
    }

    /// That parent's replica gives a snapshot: the base waits for its first part from now on.
    pub fn snapshot_begins(&mut self, now: Millis, parent: ShardId) {
        self.waits_until(parent, now + self.settings.patience_ms);
    }

    /// A part of that snapshot has come: the base waits for the next one from now on.
    pub fn snapshot_progressed(&mut self, now: Millis, parent: ShardId) {
        self.waits_until(parent, now + self.settings.part_patience_ms);
    }

    fn waits_until(&mut self, parent: ShardId, until: Millis) {
        if let Some(part) = self.parts.get_mut(&parent) {
            part.waits_until = part.waits_until.map(|_| until);
        }
    }

    /// The first part of that snapshot has come: the base asks for changes meanwhile. Returns whether the copy is new: changes
    /// that wait for another one are of no use then.
    pub fn copy_begins(&mut self, now: Millis, given: &Given) -> bool {
        let (GivenExtent::Snapshot(from), by) = (given.what, given.by) else { return false };
        let Some(part) = self.parts.get_mut(&given.parent) else { return false };
        match part.copying {
            Some(copying) if (copying.by, copying.from) == (by, from) => return false,
            _ if part.has.is_some_and(|has| from.index <= has.index) => return false,
            // Of the former snapshot not all changes that waited are applied.
            Some(Copying { is_whole: true, .. }) => part.has = None,
            Some(_) | None => {}
        }
        // What is here lags by at least what is copied now.
        part.lag = None;
        let lag = given.end.saturating_sub(from.index);
        let closed = given.closed.filter(|closed| closed.index <= from.index);
        let ask_at = now + self.settings.ask_ms;
        part.waits_until = Some(now + self.settings.part_patience_ms);
        part.copying =
            Some(Copying { by, from, at: from, lag, closed, waits_until: None, ask_at, is_whole: false });
        true
    }

    /// Whether a snapshot of that parent is being copied, or changes that waited for it are being applied.
    pub fn is_copying(&self, parent: ShardId) -> bool {
        self.parts.get(&parent).is_some_and(|part| part.copying.is_some())
    }

    /// Whether these changes must wait for a snapshot that is being copied ([`Taken::Aside`]).
    pub fn is_aside(&self, given: &Given) -> bool {
        self.parts.get(&given.parent).is_some_and(|part| part.is_aside(given))
    }

    /// All changes that waited for the snapshot of that parent are applied.
    pub fn caught_up(&mut self, now: Millis, parent: ShardId) -> Vec<Effect> {
        let part = self.parts.get_mut(&parent).filter(|_| self.phase == Phase::Taking);
        let Some(part) = part else { return Vec::new() };
        if let Some(copying) = part.copying.take_if(|copying| copying.is_whole) {
            (part.has, part.lag, part.closed) = (Some(copying.at), Some(copying.lag), copying.closed);
            (part.waits_until, part.ask_at) = (copying.waits_until, copying.ask_at);
        }
        self.next(now)
    }

    /// Asks parents that are due, and others where answers are late.
    pub fn tick(&mut self, now: Millis) -> Vec<Effect> {
        if self.phase != Phase::Taking {
            return Vec::new();
        }
        let settings = self.settings;
        self.parts.iter_mut().filter_map(|(shard, part)| part.ask(now, *shard, settings)).collect()
    }

    /// How to apply an answer. The caller does so, and then carries out the effects.
    pub fn take(&mut self, now: Millis, given: &Given) -> (Taken, Vec<Effect>) {
        let settings = self.settings;
        let part = self.parts.get_mut(&given.parent).filter(|_| self.phase == Phase::Taking);
        let Some(part) = part else { return (Taken::Nothing, Vec::new()) };
        let taken = part.take(now, given, settings, self.serves);
        (taken, self.next(now))
    }

    /// The effects after an answer.
    fn next(&mut self, now: Millis) -> Vec<Effect> {
        let mut effects = self.tick(now);
        if let Some(base) = self.whole() {
            self.phase = Phase::Storing;
            effects.push(Effect::Store(base));
            if planted::is(Planted::UnstoredBase) {
                effects.push(Effect::Open);
            }
        }
        effects
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
        let due = asks.map(Part::asks_at);
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
        if let Some(copying) = &mut self.copying {
            let ask = copying.ask(now, shard, settings);
            if ask.is_some() || copying.is_whole {
                return ask;
            }
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

    /// When something is to be asked for, or asked again.
    fn asks_at(&self) -> Millis {
        let aside = self.copying.as_ref().map_or(Millis::NEVER, Copying::asks_at);
        let is_whole = self.copying.is_some_and(|copying| copying.is_whole);
        if is_whole { aside } else { aside.min(self.waits_until.unwrap_or(self.ask_at)) }
    }

    fn is_aside(&self, given: &Given) -> bool {
        let GivenExtent::Changes { after, .. } = given.what else { return false };
        self.copying.is_some_and(|copying| (copying.by, copying.at) == (given.by, after))
    }

    fn take(&mut self, now: Millis, given: &Given, settings: Settings, serves: bool) -> Taken {
        let to = given.what.to();
        if self.is_aside(given)
            && let Some(copying) = &mut self.copying
        {
            copying.take(now, given, settings);
            return Taken::Aside;
        }
        if let Some(copying) = &mut self.copying
            && (copying.by, GivenExtent::Snapshot(copying.from)) == (given.by, given.what)
        {
            if self.has.is_none_or(|has| has.index < to.index) {
                if planted::is(Planted::SkippedAside) {
                    (self.has, self.lag, self.closed) = (Some(copying.at), Some(copying.lag), copying.closed);
                    (self.copying, self.waits_until) = (None, None);
                    return Taken::Replaces;
                }
                copying.is_whole = true;
                (self.has, self.lag, self.closed, self.waits_until) = (Some(to), None, None, None);
                return Taken::Replaces;
            }
            self.copying = None;
        }
        let is_news = self.has.is_none_or(|has| has.index < to.index);
        let taken = match given.what {
            GivenExtent::Changes { after, .. } if self.has != Some(after) => return Taken::Nothing,
            GivenExtent::Snapshot(_) if is_news => Taken::Replaces,
            GivenExtent::Changes { .. } if is_news => Taken::Follows,
            GivenExtent::Snapshot(_) | GivenExtent::Changes { .. } => Taken::Nothing,
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

impl Copying {
    fn asks_at(&self) -> Millis {
        if self.closed.is_some() { Millis::NEVER } else { self.waits_until.unwrap_or(self.ask_at) }
    }

    /// Only the replica that gives the snapshot keeps what it has changed since.
    fn ask(&mut self, now: Millis, shard: ShardId, settings: Settings) -> Option<Effect> {
        if now < self.asks_at() {
            return None;
        }
        self.waits_until = Some(now + settings.patience_ms);
        Some(Effect::Ask(Ask { parent: shard, of: self.by, after: Some(self.at) }))
    }

    fn take(&mut self, now: Millis, given: &Given, settings: Settings) {
        let to = given.what.to();
        self.at = to;
        self.lag = given.end.saturating_sub(to.index);
        self.closed = given.closed.filter(|closed| closed.index <= to.index);
        self.waits_until = None;
        self.ask_at = if given.has_more { now } else { now + settings.ask_ms };
    }
}

#[cfg(test)]
mod tests;

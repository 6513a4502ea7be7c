//! One dataset at a node: which version clients get, which comes next, and which may go.
//!
//! It holds the version that clients get, the later ones that are loaded until they are whole, and the earlier ones
//! until they are let go.
//!
//! **What clients get** only goes forward (S14): from one `(order, version)` to a higher one. Without an order of an
//! operator that is the next higher version. A pin is an order, and has a higher number than all before; so a version
//! that is lower than what clients get becomes higher by it, once. What was served before a restart counts, too.
//!
//! **Whose word counts** (Z5): the node's own source says which versions there are, and what each is. Peers say only
//! which partitions they have. Anyone who can send a datagram may be a peer, and a node that reads another source by
//! mistake is one; so clients get no version that the own source neither lists nor gave this node a part of, however
//! many have it, and one that peers divide otherwise, or of which their source lists other files ([`Layout::digest`]),
//! is another version. For an ordered version that the own source lacks the node waits a stated time
//! ([`NodeSettings::order_wait_ms`]), and follows the order as soon as the source has it.

use super::Effect;
use super::announcements::{Holders, Layout, Pin};
use super::effects::Effects;
use super::guard::Guard;
use super::version::{Inspection, State, Version};
use super::{DatasetName, NodeSettings, Spread, VersionName};
use crate::dataset::seats::{Address, Seat};
use crate::dataset::shards::partitions_of;
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;
use partage_core::keyspace::sharding::Slot;
use std::collections::{BTreeMap, BTreeSet};

/// Later versions that are loaded at a time: the one that was begun, so that clients get one at last from a source that
/// is quicker than the loading, and the latest.
const LOADING: usize = 2;

/// After so long the node asks the driver again to let go of a version that need not be kept, and that a request reads.
pub(super) const DROP_AGAIN_MS: u64 = 1_000;

/// What clients get, and by which order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Served {
    /// The order of [`Pin`] that held when it was decided.
    pub order: u64,
    /// The version that clients get.
    pub version: VersionName,
}

/// What a dataset must know of the rest of the node.
pub(super) struct NodeContext<'a> {
    pub(super) settings: &'a NodeSettings,
    pub(super) now: Millis,
    /// Its own seat and all seats, once shares may be computed.
    pub(super) dealer: Option<(Seat, &'a BTreeSet<Seat>)>,
    pub(super) seat_of: &'a dyn Fn(&Address) -> Option<Seat>,
    /// Whether what was served before may be served again though it is not whole.
    pub(super) may_resume: bool,
    pub(super) is_leaving: bool,
}

/// An order for a version that the own source does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiting {
    /// Since when it has been waited for.
    Since(Millis),
    /// It was waited for long enough: the latest counts, until the source has the version.
    Over,
}

/// One dataset at one node: its versions, and which of them clients get. See the module.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DatasetState {
    pub(super) serving: Option<Served>,
    /// What was served before a restart.
    pub(super) before: Option<Served>,
    pub(super) pin: Pin,
    /// Whether the order is for what the own source does not have.
    pub(super) waiting: Option<Waiting>,
    /// The shards that a coordinator has ordered, once one was heard; before that, those that are remembered.
    pub(super) slots: Option<BTreeSet<Slot>>,
    /// Whether they were ordered since the start.
    pub(super) has_orders: bool,
    /// Those of them that are remembered.
    pub(super) kept: BTreeSet<Slot>,
    /// How it is to be spread, if otherwise than the node's settings say.
    pub(super) spread: Option<Spread>,
    /// Which versions a person must release.
    pub(super) guard: Guard,
    /// Whether the disk is full: what clients do not get goes at once.
    pub(super) is_disk_full: bool,
    /// Whether it is not served any more.
    pub(super) is_dropped: bool,
    /// Whether the driver was told so.
    pub(super) was_dropped: bool,
    /// Whether the source has told which versions there are.
    pub(super) was_listed: bool,
    pub(super) versions: BTreeMap<VersionName, Version>,
}

impl DatasetState {
    /// The version that clients get now, if there is one.
    pub fn serving(&self) -> Option<&VersionName> {
        self.serving.as_ref().map(|served| &served.version)
    }

    /// What clients get or got last, and by which order: what the local store should remember.
    pub fn served(&self) -> Option<&Served> {
        self.serving.as_ref().or(self.before.as_ref())
    }

    /// The order of an operator that holds.
    pub fn pin(&self) -> &Pin {
        &self.pin
    }

    /// All versions that are known, the lowest first.
    pub fn versions(&self) -> impl Iterator<Item = (&VersionName, &Version)> {
        self.versions.iter()
    }

    /// How a version stands here.
    pub fn state(&self, name: &VersionName) -> Option<State> {
        let version = self.versions.get(name)?;
        Some(match version {
            _ if self.serving() == Some(name) => State::Active,
            version if version.failure.is_some() => State::Error,
            version if version.held.is_some() && self.is_ahead(name) => State::Held,
            _ if self.is_ahead(name) => State::Building,
            _ => State::Removing,
        })
    }

    /// Whether it is served at all.
    pub fn is_served(&self) -> bool {
        !self.is_dropped
    }

    /// How it is spread.
    pub fn spread(&self, settings: &NodeSettings) -> Spread {
        self.spread.unwrap_or(settings.spread)
    }

    pub(super) fn version(&mut self, name: &VersionName) -> &mut Version {
        self.versions.entry(name.clone()).or_default()
    }

    /// The node was killed while it loaded a version: it does not load that first now.
    pub(super) fn remember_death(&mut self, name: &VersionName, times: u32, now: Millis, retry_ms: u64) {
        let often = if times == 1 { "once".to_owned() } else { format!("{times} times") };
        let reason = format!(
            "the node was killed {often} while it loaded this version, for want of memory perhaps: write it with shorter \
             values, or give the node more memory"
        );
        let version = self.version(name);
        version.failures = times;
        version.fail(reason, now, retry_ms);
    }

    /// Remembers all holders as the last ones.
    pub(super) fn forget_holders(&mut self) {
        self.versions.values_mut().for_each(|version| version.holders.forget(version.layout));
    }

    /// Whether nothing is known of it any more: a peer announced it, and took that back.
    pub(super) fn is_forgotten(&self) -> bool {
        *self == DatasetState::default()
    }

    /// A planted bug: forgets the last holders, too.
    pub(super) fn lose_holders(&mut self) {
        self.versions.values_mut().for_each(|version| version.holders = Holders::default());
    }

    /// Whether a version is what clients get, or may be next.
    pub(super) fn is_ahead(&self, name: &VersionName) -> bool {
        if self.serving() == Some(name) {
            return true;
        }
        if !self.is_within_reach(name) {
            return false;
        }
        match (self.pinned(), self.served()) {
            (Some(pinned), _) if pinned != name => false,
            // What clients got before a restart, and is not whole here any more.
            (_, Some(served)) if self.serving.is_none() && served.version == *name => true,
            (Some(_), Some(served)) if self.pin.order > served.order => true,
            (_, Some(served)) => *name > served.version,
            (_, None) => true,
        }
    }

    /// Whether a version that has failed is not tried again, as another one is loaded, or is what clients get.
    pub(super) fn is_superseded(&self, name: &VersionName) -> bool {
        !self.wanted().contains(name)
    }

    /// The version that clients are to get by order, unless the own source has kept the node waiting for it too long.
    fn pinned(&self) -> Option<&VersionName> {
        self.pin.version.as_ref().filter(|_| self.waiting != Some(Waiting::Over))
    }

    /// Notes whether the own source lacks the ordered version.
    fn wait(&mut self, context: &NodeContext<'_>) {
        let lacks = |pinned: &VersionName| {
            self.serving() != Some(pinned) && !self.versions.get(pinned).is_some_and(Version::is_own)
        };
        if !self.pin.version.as_ref().is_some_and(lacks) {
            self.waiting = None;
        } else if self.was_listed || self.waiting.is_some() {
            self.waiting = Some(match self.waiting.unwrap_or(Waiting::Since(context.now)) {
                Waiting::Since(since) if since + context.settings.order_wait_ms > context.now => {
                    Waiting::Since(since)
                }
                Waiting::Since(_) | Waiting::Over => Waiting::Over,
            });
        }
    }

    /// Another order is to be followed from now on.
    pub(super) fn pin_to(&mut self, pin: Pin) {
        (self.pin, self.waiting) = (pin, None);
    }

    /// The ordered version that the own source lacks, and for which the node no longer waits.
    pub fn overdue(&self) -> Option<&VersionName> {
        self.pin.version.as_ref().filter(|_| self.waiting == Some(Waiting::Over))
    }

    /// The versions that peers have and the own source does not list: clients do not get them from this node (Z5).
    pub fn unlisted(&self) -> impl Iterator<Item = &VersionName> {
        let was_listed = self.was_listed;
        let is_unlisted =
            move |version: &Version| was_listed && !version.is_own() && !version.holders.is_empty();
        self.versions.iter().filter(move |(_, version)| is_unlisted(version)).map(|(name, _)| name)
    }

    /// The versions that clients may get next, the best first; with what was served before a restart.
    fn ahead(&self) -> Vec<VersionName> {
        let may = |name: &&VersionName| self.is_ahead(name) && self.serving() != Some(*name);
        self.versions.keys().rev().filter(may).cloned().collect()
    }

    /// Does what the present state calls for.
    pub(super) fn settle(&mut self, dataset: &DatasetName, context: &NodeContext<'_>, out: &mut Effects) {
        if self.is_dropped {
            return self.drop_all(dataset, context, out);
        }
        self.was_dropped = false;
        self.wait(context);
        self.learn(dataset, out);
        self.upgrade(dataset, context, out);
        if !context.is_leaving {
            self.load(dataset, context, out);
        }
        self.cancel(dataset, out);
        self.retire(dataset, context, out);
        // A version that has killed the node stays an error until the source was listed.
        let was_listed = self.was_listed;
        let is_marked = |version: &Version| version.failure.is_some() && !was_listed;
        self.versions.retain(|_, version| !version.is_forgotten() || is_marked(version));
    }

    /// Holds whole versions that have too few keys, unless a person has ordered a version.
    fn hold(&mut self, dataset: &DatasetName, min: u32, out: &mut Effects) {
        let served = self.served().map(|served| served.version.clone());
        let known = served.as_ref().and_then(|name| self.versions.get(name));
        let before = known.and_then(Version::keys);
        let is_checked = |name: &VersionName| self.pin.version.is_none() && served.as_ref() != Some(name);
        let checked: BTreeSet<VersionName> =
            self.ahead().into_iter().filter(|name| is_checked(name)).collect();
        for (name, version) in &mut self.versions {
            let keys = version.keys().filter(|_| checked.contains(name) && version.is_complete(min));
            let mut held =
                keys.and_then(|keys| self.guard.check(keys, served.as_ref().map(|name| (name, before))));
            if held.is_some() && self.was_listed && !version.is_listed {
                // Its folder was deleted before it was whole: no person is asked for what is to go.
                (held, version.is_withdrawn) = (None, true);
            }
            if held != version.held {
                version.held = held;
                out.show(dataset.clone(), name.clone());
            }
        }
    }

    /// The versions that are to be loaded, the best first: the latest, earlier ones as long as those before them are
    /// doubtful, and what clients get if all later ones are; under a coordinator what clients get in any case, as
    /// shards move at any time.
    pub(super) fn wanted(&self) -> Vec<VersionName> {
        let serving = self.serving().filter(|name| self.pinned().is_none_or(|pin| pin == *name));
        let mut wanted = Vec::new();
        for name in self.ahead().into_iter().chain(serving.cloned()) {
            let version = &self.versions[&name];
            let is_hope = version.is_listed && !version.is_doubtful;
            wanted.push(name);
            if is_hope {
                break;
            }
        }
        let served = self.serving().filter(|name| self.slots.is_some() && !wanted.contains(name)).cloned();
        wanted.extend(served);
        wanted
    }

    /// Has the driver inspect versions: those that are to be loaded, and those that clients may get next and peers have
    /// some of.
    fn learn(&mut self, dataset: &DatasetName, out: &mut Effects) {
        let ahead: BTreeSet<VersionName> = self.ahead().into_iter().collect();
        let (wanted, serving) = (self.wanted(), self.serving().cloned());
        for (name, version) in &mut self.versions {
            let is_in_front = ahead.contains(name) || serving.as_ref() == Some(name);
            let is_of_interest = is_in_front || !version.here.is_empty();
            if version.layout.is_none() && is_of_interest && planted::is(Planted::AnySource) {
                version.layout = version.holders.layout();
            }
            if version.layout.is_some() && !version.is_shown && is_of_interest {
                version.is_shown = true;
                out.show(dataset.clone(), name.clone());
            }
            let is_wanted = wanted.contains(name) || is_in_front && !version.holders.is_empty();
            let is_open = match version.inspection {
                Inspection::None => version.layout.is_none(),
                Inspection::Again => true,
                Inspection::Asked | Inspection::Failed => false,
            };
            if is_open && version.is_listed && is_wanted {
                version.inspection = Inspection::Asked;
                out.push(Effect::Inspect(dataset.clone(), name.clone()));
            }
        }
    }

    /// Gives clients the best version that is whole in the cluster (S10), or what they had before a restart.
    fn upgrade(&mut self, dataset: &DatasetName, context: &NodeContext<'_>, out: &mut Effects) {
        let min = self.spread(context.settings).replication.min;
        self.hold(dataset, min, out);
        let mut ahead = self.ahead();
        if planted::is(Planted::S14) {
            ahead = self.versions.keys().filter(|name| self.serving() != Some(*name)).cloned().collect();
        }
        // Clients do not get a version while the driver may be letting it go.
        let whole =
            |name: &VersionName| self.versions[name].is_complete(min) && !self.versions[name].is_retiring;
        let ahead = ahead.into_iter().filter(|name| self.versions[name].held.is_none());
        let next = ahead.into_iter().find(whole);
        // A version given while an order is overdue is not given by it, so that it can still be followed.
        let order = match self.overdue() {
            Some(_) => self.served().map_or(0, |served| served.order),
            None => self.pin.order,
        };
        let mut next = next.map(|version| Served { order, version });
        if next.is_none() && self.serving.is_none() && context.may_resume {
            next = self.resumed(context);
        }
        if let Some(served) = next {
            let Served { order, version } = served.clone();
            self.serving = Some(served);
            self.before = None;
            out.remember(dataset.clone());
            out.push(Effect::Upgrade { dataset: dataset.clone(), version, order });
        }
        if let Some(serving) = &mut self.serving
            && self.pin.version.as_ref() == Some(&serving.version)
            && serving.order < self.pin.order
        {
            serving.order = self.pin.order;
            out.remember(dataset.clone());
        }
    }

    /// What was served before a restart, if any of it is there. It no longer counts when nodes are stable, and neither
    /// a node nor the source has it.
    fn resumed(&mut self, context: &NodeContext<'_>) -> Option<Served> {
        let before = self.before.clone()?;
        let there = self.versions.get(&before.version);
        if there.is_some_and(|version| version.layout.is_some() && version.is_somewhere()) {
            return Some(before);
        }
        let is_gone = !there.is_some_and(|version| version.is_listed || version.is_somewhere());
        if is_gone && self.was_listed && context.dealer.is_some() {
            self.before = None;
        }
        None
    }

    /// Loads the node's share of the latest version, and of earlier ones as long as later ones fail.
    fn load(&mut self, dataset: &DatasetName, context: &NodeContext<'_>, out: &mut Effects) {
        let (spread, slots) = (self.spread(context.settings), self.slots.clone());
        let can_deal = if context.settings.is_ordered { slots.is_some() } else { context.dealer.is_some() };
        for name in self.wanted().into_iter().filter(|_| can_deal) {
            let has_room = self.later_loads() < LOADING || self.serving() == Some(&name);
            let version = self.version(&name);
            let may_begin = has_room || !version.loading.is_empty();
            let Some(layout) = version.to_load().filter(|_| may_begin) else { continue };
            let share = match (&slots, context.dealer) {
                (Some(slots), _) => version.ordered(layout, slots),
                (None, Some((seat, seats))) => version.share(layout, spread, context, seat, seats),
                (None, None) => BTreeSet::new(),
            };
            let is_lacking = |p: &u32| !version.here.contains(p) && !version.loading.contains(p);
            let partitions: BTreeSet<u32> = share.into_iter().filter(is_lacking).collect();
            if !partitions.is_empty() {
                version.loading.extend(&partitions);
                out.push(Effect::Load {
                    dataset: dataset.clone(),
                    version: name.clone(),
                    layout,
                    partitions,
                });
                out.show(dataset.clone(), name);
            }
        }
    }

    /// How many versions that clients do not get yet are being loaded.
    fn later_loads(&self) -> usize {
        let is_later = |name: &VersionName| self.serving() != Some(name);
        self.versions.iter().filter(|(name, version)| !version.loading.is_empty() && is_later(name)).count()
    }

    /// Stops to load what clients will not get any more.
    fn cancel(&mut self, dataset: &DatasetName, out: &mut Effects) {
        let left: Vec<VersionName> =
            self.versions.keys().filter(|name| !self.is_ahead(name)).cloned().collect();
        for name in left {
            let version = self.version(&name);
            if !std::mem::take(&mut version.loading).is_empty() {
                out.push(Effect::Cancel(dataset.clone(), name));
            }
        }
    }

    /// Asks the driver to let versions go that no request has wanted for long (S15).
    fn retire(&mut self, dataset: &DatasetName, context: &NodeContext<'_>, out: &mut Effects) {
        let is_disk_full = std::mem::take(&mut self.is_disk_full);
        // Before anything is served there is nothing that could take an old version's place.
        let keeps_all = self.serving.is_none();
        let ahead: BTreeSet<VersionName> =
            self.versions.keys().filter(|name| self.is_ahead(name)).cloned().collect();
        let gone = self.versions.iter().filter(|(name, version)| self.is_gone_everywhere(name, version));
        let gone: BTreeSet<VersionName> = gone.map(|(name, _)| name.clone()).collect();
        for (name, version) in &mut self.versions {
            let rests = version.ask_again_at > context.now && gone.contains(name);
            if !rests {
                version.ask_again_at = Millis(0);
            }
            let is_kept = (keeps_all && !gone.contains(name)) || ahead.contains(name);
            if is_kept || !version.is_shown {
                if version.idle.take().is_some() && version.failure.is_some() {
                    // It is tried again from now on.
                    out.show(dataset.clone(), name.clone());
                }
                continue;
            }
            let was_idle = version.idle.is_some();
            let mut since = *version.idle.get_or_insert(context.now);
            if !was_idle {
                out.show(dataset.clone(), name.clone());
            }
            let is_over = since + context.settings.keep_ms <= context.now;
            let may_go_at_once = gone.contains(name) && !rests;
            let is_due = is_over || is_disk_full || may_go_at_once;
            if may_go_at_once {
                // At once, unless a request has asked for it lately.
                since = since.min(Millis(context.now.0.saturating_sub(context.settings.keep_ms)));
            }
            if is_disk_full {
                // Requests that read from it go on to the end; those that come later do without.
                since = Millis::NEVER;
            }
            if is_due && !version.is_retiring {
                version.is_retiring = true;
                out.push(Effect::Retire {
                    dataset: dataset.clone(),
                    version: name.clone(),
                    unused_since: since,
                });
            }
        }
    }

    /// Lets everything go that no request reads from, also what clients get.
    fn drop_all(&mut self, dataset: &DatasetName, context: &NodeContext<'_>, out: &mut Effects) {
        let had = (self.serving.take().is_some(), self.before.take().is_some());
        if had != (false, false) {
            out.remember(dataset.clone());
        }
        for (name, version) in &mut self.versions {
            version.share = None;
            if !std::mem::take(&mut version.loading).is_empty() {
                out.push(Effect::Cancel(dataset.clone(), name.clone()));
            }
            let is_left = version.is_shown || !version.here.is_empty();
            let is_due = version.idle.is_none_or(|used| used + DROP_AGAIN_MS <= context.now);
            if is_left && is_due && !version.is_retiring {
                version.is_retiring = true;
                version.idle = Some(context.now);
                let (dataset, version) = (dataset.clone(), name.clone());
                out.push(Effect::Retire { dataset, version, unused_since: Millis::NEVER });
            }
        }
        let is_empty = self.versions.values().all(|version| !version.is_shown && version.here.is_empty());
        if is_empty && !self.was_dropped {
            self.was_dropped = true;
            out.push(Effect::Drop(dataset.clone()));
        }
        self.versions.retain(|_, version| !version.is_forgotten());
    }

    /// When the next tick is due.
    pub(super) fn deadline(&self, settings: &NodeSettings) -> Option<Millis> {
        let idle = self.versions.values().filter(|version| !version.is_retiring);
        let after = if self.is_dropped { DROP_AGAIN_MS } else { settings.keep_ms };
        let ordered = match self.waiting {
            Some(Waiting::Since(since)) => Some(since + settings.order_wait_ms),
            Some(Waiting::Over) | None => None,
        };
        let again =
            idle.clone().map(|version| version.ask_again_at).filter(|at| *at > Millis(0) && !self.is_dropped);
        idle.filter_map(|version| version.idle).map(|since| since + after).chain(again).chain(ordered).min()
    }
}

impl Version {
    /// This node's share: the partitions of the ordered shards.
    fn ordered(&mut self, layout: Layout, slots: &BTreeSet<Slot>) -> BTreeSet<u32> {
        let share = partitions_of(slots, layout.partitions);
        self.share = Some(share.clone());
        share
    }

    /// This node's share: computed once, and added to where replicas were lost, if `re_replicate` (S18).
    fn share(
        &mut self,
        layout: Layout,
        spread: Spread,
        context: &NodeContext<'_>,
        seat: Seat,
        seats: &BTreeSet<Seat>,
    ) -> BTreeSet<u32> {
        let Spread { replication, dealing } = spread;
        let (is_computed, mends) = (self.share.is_some(), context.settings.re_replicate);
        if is_computed && !mends {
            return self.share.clone().unwrap_or_default();
        }
        let dealt = dealing.deal(seats, layout.partitions, replication.wanted);
        let held = |partition| self.holders.count(layout, partition);
        let share = if is_computed {
            let holders = |partition| -> Vec<Seat> {
                self.holders.of(layout, partition).filter_map(|address| (context.seat_of)(address)).collect()
            };
            let mut share = self.share.clone().unwrap_or_default();
            share.extend(replication.mend(&dealt, seat, &self.here, holders));
            share
        } else {
            replication.share(&dealt, seat, held)
        };
        self.share = Some(share.clone());
        share
    }
}

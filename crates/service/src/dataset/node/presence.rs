//! Whether a node is part of its cluster, which seat it has, and whether the list of nodes is stable (S9).

use super::super::seats::{self, Address, Claim, Right, Seat, Wish};
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;
use std::collections::{BTreeMap, BTreeSet};

/// After so many periods, nodes that still come and go count as stable: shares must be dealt some time.
const MOST_PERIODS: u64 = 6;

/// What a node knows of its cluster's nodes.
#[derive(Debug, Clone)]
pub struct Presence {
    me: Address,
    wish: Wish,
    stable_ms: u64,
    /// Whether the coordination service holds a session for it.
    pub(super) has_session: bool,
    /// Whether the mirror was ever heard whole.
    has_heard: bool,
    mine: Option<Claim>,
    others: BTreeMap<Address, Claim>,
    changed: Millis,
    /// Since when nodes have not been stable.
    unrest: Option<Millis>,
}

impl Presence {
    pub(super) fn new(me: Address, wish: Wish, stable_ms: u64, now: Millis) -> Presence {
        let (mine, others) = (None, BTreeMap::new());
        Presence {
            me,
            wish,
            stable_ms,
            has_session: false,
            has_heard: false,
            mine,
            others,
            changed: now,
            unrest: Some(now),
        }
    }

    /// The address by which the other nodes know this one.
    pub fn me(&self) -> &Address {
        &self.me
    }

    /// Its seat, once it has one.
    pub fn seat(&self) -> Option<Seat> {
        self.mine.map(|claim| claim.seat)
    }

    /// The others, and where they sit.
    pub fn others(&self) -> impl Iterator<Item = (&Address, Seat)> {
        self.others.iter().map(|(address, claim)| (address, claim.seat))
    }

    /// Where one of the others sits.
    pub(super) fn seat_of(&self, address: &Address) -> Option<Seat> {
        self.others.get(address).map(|claim| claim.seat)
    }

    /// All seats that are taken, its own among them.
    pub(super) fn seats(&self) -> BTreeSet<Seat> {
        self.others.values().chain(&self.mine).map(|claim| claim.seat).collect()
    }

    /// Whether the mirror was ever heard.
    pub fn has_heard(&self) -> bool {
        self.has_heard
    }

    /// A session began: nodes must become stable again.
    pub(super) fn begin(&mut self, now: Millis) {
        self.has_session = true;
        self.unrest = Some(now);
        self.changed = now;
    }

    /// The mirror was heard whole.
    pub(super) fn heard(&mut self, now: Millis) {
        if !self.has_heard {
            self.has_heard = true;
            self.unrest = Some(now);
            self.changed = now;
        }
    }

    fn disturb(&mut self, now: Millis) {
        self.changed = now;
        self.unrest.get_or_insert(now);
    }

    /// Forgets the other nodes; returns them.
    pub(super) fn forget(&mut self) -> BTreeMap<Address, Claim> {
        std::mem::take(&mut self.others)
    }

    /// Takes in that a node is at a seat, or is gone. From its own key a node learns its seat before a restart.
    pub(super) fn hear(&mut self, address: Address, claim: Option<Claim>) {
        if address == self.me {
            if let (Wish::Any { before: before @ None }, Some(claim)) = (&mut self.wish, claim) {
                *before = Some(claim.seat);
            }
            return;
        }
        match claim {
            Some(claim) => self.others.insert(address, claim),
            None => self.others.remove(&address),
        };
    }

    /// Whether others are at other seats than `before`; if so, nodes must become stable again.
    pub(super) fn compare(&mut self, before: &BTreeMap<Address, Claim>, now: Millis) -> bool {
        let seats = |claims: &BTreeMap<Address, Claim>| -> Vec<(Address, Seat)> {
            claims.iter().map(|(address, claim)| (address.clone(), claim.seat)).collect()
        };
        let has_changed = seats(before) != seats(&self.others);
        if has_changed {
            self.disturb(now);
        }
        has_changed
    }

    /// The others as they are now, to compare with later.
    pub(super) fn snapshot(&self) -> BTreeMap<Address, Claim> {
        self.others.clone()
    }

    /// Takes, changes or settles the seat; returns the claim if it changed.
    pub(super) fn sit(&mut self, now: Millis) -> Option<Claim> {
        let is_told = matches!(self.wish, Wish::Configured(_));
        if !self.has_heard && !is_told {
            return None;
        }
        let before = self.mine;
        let stays = planted::is(Planted::S11) && before.is_some();
        if !stays {
            self.mine = Some(seats::claim(self.wish, &self.me, before, &self.others));
        }
        if self.seat() != before.map(|claim| claim.seat) {
            self.disturb(now);
        }
        if self.is_stable(now)
            && let Some(mine @ Claim { right: Right::Taken, .. }) = &mut self.mine
        {
            mine.right = Right::Settled;
        }
        self.mine.filter(|mine| Some(*mine) != before)
    }

    /// When nodes will have been stable for the period, if nothing else happens.
    pub(super) fn stable_at(&self) -> Option<Millis> {
        let known = self.has_heard && self.mine.is_some();
        let late = self.unrest.map_or(Millis::NEVER, |since| since + MOST_PERIODS * self.stable_ms);
        known.then(|| (self.changed + self.stable_ms).min(late))
    }

    /// Whether nodes have been stable for the period.
    pub fn is_stable(&self, now: Millis) -> bool {
        self.stable_at().is_some_and(|at| at <= now)
    }

    /// Nodes were found to be stable: the next unrest is a new one.
    pub(super) fn rest(&mut self, now: Millis) {
        if self.is_stable(now) && now >= self.changed + self.stable_ms {
            self.unrest = None;
        }
    }
}

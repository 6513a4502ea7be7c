//! What a leader tells people of the shuffles that it leads.

use super::{Leader, Led, State};
use crate::shuffle::{Combine, Durability, Failure, PoolSlot, ShuffleId, ShuffleOptions};
use partage_core::base::time::Millis;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Input partitions without a whole attempt that an overview names, the first ones.
const LACKING_NAMED: usize = 100;

/// How far a shuffle is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShuffleStage {
    /// Buffers take records for it.
    Open,
    /// It is being sealed.
    Sealing,
    /// It is sealed: its plan is final.
    Sealed,
    /// It has failed, and no client can read it.
    Failed(Failure),
}

/// One shuffle, as its leader knows it. What an open one has may be more than the leader has heard of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShuffleOverview {
    /// The number under which it was started.
    pub shuffle: ShuffleId,
    /// The options with which it was started.
    pub options: Arc<ShuffleOptions>,
    /// How it combines records.
    pub combine: Option<Combine>,
    /// Where its records are when they are acknowledged.
    pub durability: Durability,
    /// How far it is.
    pub stage: ShuffleStage,
    /// Input partitions with a whole attempt; of a sealed one, those that are read.
    pub partitions: u64,
    /// Whole attempts. Of a sealed one those that are read, and the losers of which its leader has heard: a leader that has taken
    /// it up sealed knows none.
    pub attempts: u64,
    /// Records of the attempts that are read, or would be if it were sealed now.
    pub records: u64,
    /// Their keys and values, in bytes.
    pub bytes: u64,
    /// The version of its bounds.
    pub version: u32,
    /// How many ranges that version has.
    pub ranges: u32,
    /// In how many milliseconds it ends, if no client asks for it.
    pub ends_in_ms: u64,
    /// Slots in which something is being divided.
    pub dividing: u32,
    /// Slots of its ranges that have fewer replicas in `Live` than the pool is to have.
    pub short_slots: u32,
    /// Input partitions that a seal waits for, the first ones.
    pub lacking: Vec<u32>,
}

impl Led {
    /// Partitions, attempts, records, bytes.
    pub(super) fn sums(&self) -> (u64, u64, u64, u64) {
        match &self.state {
            State::Sealed(plan) => {
                let count = plan.winners.len() as u64;
                let sizes = plan.winners.values().map(|winner| (winner.records, winner.bytes));
                let (records, bytes) = sizes.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
                (count, count.max(self.heard), records, bytes)
            }
            State::Open | State::Failed(_) => {
                let attempts = self.marks.values().map(|marks| marks.len() as u64).sum();
                let first = self.marks.values().filter_map(|marks| marks.first());
                let (records, bytes) =
                    first.fold((0, 0), |sum, mark| (sum.0 + mark.records, sum.1 + mark.bytes));
                (self.marks.len() as u64, attempts, records, bytes)
            }
        }
    }

    fn stage(&self) -> ShuffleStage {
        match &self.state {
            State::Open if self.seal.is_some() => ShuffleStage::Sealing,
            State::Open => ShuffleStage::Open,
            State::Sealed(_) => ShuffleStage::Sealed,
            State::Failed(failure) => ShuffleStage::Failed(*failure),
        }
    }
}

impl Leader {
    /// The shuffles that it leads, by their numbers; none before it leads, and none after.
    pub fn overviews(&self, now: Millis) -> impl Iterator<Item = ShuffleOverview> {
        let leads = self.counted.is_some() && !self.is_deposed;
        let led = self.shuffles.iter().filter(move |_| leads);
        led.map(move |(shuffle, led)| self.overview_of(now, *shuffle, led))
    }

    pub(super) fn overview(&self, now: Millis, shuffle: ShuffleId) -> Option<ShuffleOverview> {
        self.shuffles.get(&shuffle).map(|led| self.overview_of(now, shuffle, led))
    }

    fn overview_of(&self, now: Millis, shuffle: ShuffleId, led: &Led) -> ShuffleOverview {
        let (partitions, attempts, records, bytes) = led.sums();
        let bounds = led.versions.current();
        let slots: BTreeSet<PoolSlot> =
            bounds.ranges.iter().map(|range| self.map.slot_of(shuffle, range.id)).collect();
        let is_short = |slot: &&PoolSlot| self.map.live(**slot).len() < self.map.replicas;
        ShuffleOverview {
            shuffle,
            options: led.options.clone(),
            combine: led.terms.combine,
            durability: led.terms.durability,
            stage: led.stage(),
            partitions,
            attempts,
            records,
            bytes,
            version: bounds.version,
            ranges: u32::try_from(bounds.ranges.len()).unwrap_or(u32::MAX),
            ends_in_ms: led.ends_in_ms(now, &self.settings),
            dividing: u32::try_from(led.dividing.len()).unwrap_or(u32::MAX),
            short_slots: u32::try_from(slots.iter().filter(is_short).count()).unwrap_or(u32::MAX),
            lacking: led.lacks_for_seal(LACKING_NAMED),
        }
    }
}

//! What an owner of shuffles may have, and when a start is refused for it.
//!
//! A pool asks nothing but its leaders, so each node that leads keeps its own share of a quota: as large a part of it as the
//! node leads slots, rounded up. While leads stay where they are, all nodes together so let an owner start as many shuffles as
//! the quota says, and less than one more for each node that leads. As shuffles are spread over the slots by their numbers, one
//! node may refuse a start while another one has room: a client then draws another number.
//!
//! What was not done: a quota does not stop a shuffle that has started. Its attempts are taken, and so is its seal: only the next
//! start of its owner is refused, until enough of the others have ended.

use super::{Leader, Led};
use crate::shuffle::ShuffleId;
use crate::shuffle::log::Decision;

/// What each owner may have in a pool. Shuffles without an owner have no quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OwnerQuota {
    /// Shuffles that have not ended; none: there is no limit.
    pub shuffles: Option<u64>,
    /// Keys and values of the attempts that are read, or would be if their shuffles were sealed now; none: there is no limit.
    pub bytes: Option<u64>,
}

/// What an owner has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OwnerUse {
    /// Its shuffles that have not ended, with those being started.
    pub shuffles: u64,
    /// Keys and values of their attempts that are read, or would be if they were sealed now.
    pub bytes: u64,
}

/// The owner of a shuffle has as much as it may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QuotaUsedUp {
    /// The owner has as many shuffles as it may have here.
    #[error(
        "its owner has {has} shuffles that are led by this node, of {share} that it may have here, and {quota} in the pool: delete \
         shuffles that are not used, or try again under another number, which another node may lead"
    )]
    Shuffles {
        /// Those that this node leads.
        has: u64,
        /// As many as this node allows.
        share: u64,
        /// As many as all nodes allow.
        quota: u64,
    },
    /// The owner has as many bytes as it may have here.
    #[error(
        "its owner has {has} bytes in shuffles that are led by this node, of {share} that it may have here, and {quota} in the pool: \
         delete shuffles that are not used, or try again under another number, which another node may lead"
    )]
    Bytes {
        /// Those of shuffles that this node leads.
        has: u64,
        /// As many as this node allows.
        share: u64,
        /// As many as all nodes allow.
        quota: u64,
    },
}

impl OwnerQuota {
    /// Whether there is none.
    pub fn is_none(&self) -> bool {
        *self == OwnerQuota::default()
    }

    /// Why a node that leads so many of all slots starts no further shuffle of an owner; none: it does.
    pub fn used_up(&self, has: OwnerUse, led: usize, slots: usize) -> Option<QuotaUsedUp> {
        let share = |quota: u64| {
            let share = (u128::from(quota) * led as u128).div_ceil(slots.max(1) as u128);
            u64::try_from(share).unwrap_or(u64::MAX).max(1)
        };
        let shuffles = self.shuffles.filter(|quota| has.shuffles >= share(*quota)).map(|quota| {
            let share = share(quota);
            QuotaUsedUp::Shuffles { has: has.shuffles, share, quota }
        });
        shuffles.or_else(|| {
            let quota = self.bytes.filter(|quota| has.bytes >= share(*quota))?;
            Some(QuotaUsedUp::Bytes { has: has.bytes, share: share(quota), quota })
        })
    }
}

impl Leader {
    /// Whether it has that shuffle, be it that the decision to start it is under way.
    pub fn has(&self, shuffle: ShuffleId) -> bool {
        self.decisions.living.contains_key(&shuffle)
    }

    /// What an owner has of it, with what is being started. Bytes as far as the leader has heard of whole attempts.
    pub fn used_by(&self, owner: &str) -> OwnerUse {
        let is_of = |decisions: &[Decision]| {
            decisions
                .iter()
                .any(|decision| matches!(decision, Decision::Start(_, options) if options.owner == owner))
        };
        let own = self.decisions.living.iter().filter(|(_, decisions)| is_of(decisions));
        own.fold(OwnerUse::default(), |sum, (shuffle, _)| {
            let (_, _, _, bytes) = self.shuffles.get(shuffle).map(Led::sums).unwrap_or_default();
            OwnerUse { shuffles: sum.shuffles + 1, bytes: sum.bytes.saturating_add(bytes) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_share_is_rounded_up_and_at_least_one() {
        let quota = OwnerQuota { shuffles: Some(10), bytes: None };
        let has = |shuffles| OwnerUse { shuffles, bytes: u64::MAX };
        assert_eq!(quota.used_up(has(2), 24, 100), None);
        let refused = QuotaUsedUp::Shuffles { has: 3, share: 3, quota: 10 };
        assert_eq!(quota.used_up(has(3), 24, 100), Some(refused));
        assert_eq!(quota.used_up(has(0), 1, 1_000), None, "one at least");
        assert!(quota.used_up(has(1), 1, 1_000).is_some());
        let bytes = OwnerQuota { shuffles: None, bytes: Some(1_000) };
        let has = |bytes| OwnerUse { shuffles: u64::MAX, bytes };
        assert_eq!(bytes.used_up(has(499), 1, 2), None);
        let refused = QuotaUsedUp::Bytes { has: 500, share: 500, quota: 1_000 };
        assert_eq!(bytes.used_up(has(500), 1, 2), Some(refused));
        assert_eq!(OwnerQuota::default().used_up(has(u64::MAX), 2, 2), None);
    }

    proptest! {
        /// However the slots are led, all nodes together let an owner start the quota, and less than one more for each of them.
        #[test]
        fn shares_add_up_to_the_quota(quota in 1u64..1_000, led in prop::collection::vec(1usize..50, 1..8)) {
            let slots: usize = led.iter().sum();
            let of = OwnerQuota { shuffles: Some(quota), bytes: None };
            let is_started = |has: u64, led: usize| {
                of.used_up(OwnerUse { shuffles: has, bytes: 0 }, led, slots).is_none()
            };
            let started: u64 = led.iter().map(|led| (0..).take_while(|has| is_started(*has, *led)).count() as u64).sum();
            prop_assert!((quota..quota + led.len() as u64).contains(&started), "{started} of {quota}");
        }
    }
}

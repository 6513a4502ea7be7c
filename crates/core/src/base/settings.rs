//! The numbers that a cluster runs by. Each has a default and a reason; an operator may set any.

/// Cluster-wide settings. Times in milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// How often workers beat. Short, because the first beat after a change carries the news.
    pub heartbeat_ms: u64,
    /// How long a worker may act without hearing from the coordinator. Several beats, so that one lost
    /// packet costs nothing; short, because an exclusive shard waits this long for a dead owner.
    pub lease_ms: u64,
    /// Silence after which a node is dead, if its lease is over too.
    pub dead_after_ms: u64,
    /// How often the announced address is checked (A11).
    pub check_back_ms: u64,
    /// Failed check-backs in a row that make a node unreachable.
    pub failed_checks: u32,
    /// How long nodes must have stopped joining before the first placement, so that the first node does
    /// not get everything (S9).
    pub settle_ms: u64,
    /// How often a keyspace is looked at when nothing has happened: balance drifts with load.
    pub rebalance_ms: u64,
    /// Nodes lost within this window count together for the brake (K18).
    pub brake_window_ms: u64,
    /// Share of nodes that may be lost in the window before moves stop; at least two may be (R4).
    pub brake_share: f64,
    /// Failures that follow moves, within the window, that are borne before moves stop (K18): nodes that die
    /// soon after they took shards on, or shards that could not be loaded, each on another node. As many as
    /// one poison shard can cause before it is set aside (`poison_deaths`); one more looks like a cascade.
    pub brake_setbacks: u32,
    /// Deaths of its young owners after which a shard is set aside (R5, A20).
    pub poison_deaths: u32,
    /// A shard that an owner had taken on at most this long before it died is suspected of it.
    pub poison_window_ms: u64,
    /// Failed `load` attempts after which a replica is given up and tried on another node.
    pub load_attempts: u32,
    /// How long a node may take to begin to serve, to let go, or to delete a replica, before it is treated as one
    /// that cannot (A12). Generous, as a service may have much to write out; how long a load may take is a matter
    /// of the keyspace ([`crate::keyspace::Throttle::load_ms`]).
    pub handover_ms: u64,
    /// How long a leader of a replicated shard that is to hand over is waited for, before another is made leader without that:
    /// longer than the leader lets no writes in.
    pub transfer_ms: u64,
    /// Plans kept for `plan list`, finished ones included.
    pub plans_kept: usize,
    /// Events kept for `partage events`, at most.
    pub events_kept: usize,
    /// How long an event is kept.
    pub events_kept_ms: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            heartbeat_ms: 500,
            lease_ms: 3_000,
            dead_after_ms: 4_000,
            check_back_ms: 2_000,
            failed_checks: 3,
            settle_ms: 500,
            rebalance_ms: 30_000,
            brake_window_ms: 60_000,
            brake_share: 0.2,
            brake_setbacks: 3,
            poison_deaths: 3,
            poison_window_ms: 60_000,
            load_attempts: 5,
            handover_ms: 60_000,
            transfer_ms: 3_000,
            plans_kept: 1_000,
            events_kept: 10_000,
            events_kept_ms: 7 * 24 * 60 * 60 * 1_000,
        }
    }
}

/// Settings that contradict each other.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SettingsError {
    /// A time or count of 0.
    #[error("{0} is 0: give 1 or more")]
    Zero(&'static str),
    /// A lease too short to survive one lost beat.
    #[error(
        "lease_ms is {lease_ms}, not above twice heartbeat_ms ({heartbeat_ms}): one lost heartbeat would stop a healthy node; raise lease_ms"
    )]
    ShortLease {
        /// The lease that was given, in milliseconds.
        lease_ms: u64,
        /// The time between two heartbeats that was given, in milliseconds.
        heartbeat_ms: u64,
    },
    /// A node would be given up between two of its beats.
    #[error(
        "dead_after_ms is {dead_after_ms}, not above heartbeat_ms ({heartbeat_ms}): a healthy node would be dead between two beats; raise dead_after_ms"
    )]
    EarlyDeath {
        /// The time without a heartbeat after which a node is dead, as given, in milliseconds.
        dead_after_ms: u64,
        /// The time between two heartbeats that was given, in milliseconds.
        heartbeat_ms: u64,
    },
    /// A share outside 0 to 1.
    #[error("brake_share is {0}: give a share from 0 to 1")]
    BrakeShare(f64),
}

impl Settings {
    /// Missed beats before a node is suspect: three, as one may be late and one lost.
    pub fn suspect_after_ms(&self) -> u64 {
        (3 * self.heartbeat_ms).min(self.dead_after_ms)
    }

    /// Refuses what could not work.
    pub fn check(&self) -> Result<(), SettingsError> {
        let zero = [
            ("heartbeat_ms", self.heartbeat_ms),
            ("lease_ms", self.lease_ms),
            ("dead_after_ms", self.dead_after_ms),
            ("check_back_ms", self.check_back_ms),
            ("failed_checks", u64::from(self.failed_checks)),
            ("rebalance_ms", self.rebalance_ms),
            ("brake_window_ms", self.brake_window_ms),
            ("brake_setbacks", u64::from(self.brake_setbacks)),
            ("poison_deaths", u64::from(self.poison_deaths)),
            ("load_attempts", u64::from(self.load_attempts)),
            ("handover_ms", self.handover_ms),
            ("transfer_ms", self.transfer_ms),
            ("plans_kept", self.plans_kept as u64),
            ("events_kept", self.events_kept as u64),
            ("events_kept_ms", self.events_kept_ms),
        ];
        if let Some((name, _)) = zero.into_iter().find(|(_, value)| *value == 0) {
            return Err(SettingsError::Zero(name));
        }
        if self.lease_ms <= 2 * self.heartbeat_ms {
            return Err(SettingsError::ShortLease {
                lease_ms: self.lease_ms,
                heartbeat_ms: self.heartbeat_ms,
            });
        }
        if self.dead_after_ms <= self.heartbeat_ms {
            return Err(SettingsError::EarlyDeath {
                dead_after_ms: self.dead_after_ms,
                heartbeat_ms: self.heartbeat_ms,
            });
        }
        if !(0.0..=1.0).contains(&self.brake_share) {
            return Err(SettingsError::BrakeShare(self.brake_share));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_pass_and_contradictions_do_not() {
        assert_eq!(Settings::default().check(), Ok(()));
        let short = Settings { lease_ms: 900, ..Settings::default() };
        assert!(matches!(short.check(), Err(SettingsError::ShortLease { .. })));
        let early = Settings { dead_after_ms: 100, ..Settings::default() };
        assert!(matches!(early.check(), Err(SettingsError::EarlyDeath { .. })));
        let zero = Settings { dead_after_ms: 0, ..Settings::default() };
        assert_eq!(zero.check(), Err(SettingsError::Zero("dead_after_ms")));
        let share = Settings { brake_share: f64::NAN, ..Settings::default() };
        assert!(matches!(share.check(), Err(SettingsError::BrakeShare(_))));
    }
}

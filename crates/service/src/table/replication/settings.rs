//! The numbers that replication runs by. Each has a default and a reason.

/// The numbers of one table. Times are in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// For how long a follower that replies promises to lead under no later epoch: a leader lease. The leader's reads rest on it,
    /// and a new leader waits until it ends: long against round trips, short as a shard waits so long after its leader died.
    pub promise_ms: u64,
    /// The longest time between two appends to a follower. Several in `follower_patience_ms`, so that one lost packet costs
    /// nothing.
    pub append_ms: u64,
    /// After so long without a reply the leader sends entries again.
    pub resend_ms: u64,
    /// After so long a silence the leader asks a follower out of the in-sync set: writes stall meanwhile.
    pub follower_patience_ms: u64,
    /// How many times as long a leader waits for a follower without which too few would be in sync for a write. It gains little
    /// by asking that one out: writes are refused then, only reads go on, and of a shard of which the leader alone is in sync no
    /// other replica may lead. On a machine that is busy for a moment all leaders would do it at once. With a follower that has
    /// left the set again and again it waits up to four times as long as that.
    pub needed_patience_times: u64,
    /// The longest time for which the leader does not ask a follower in that has left the set again and again, while enough are
    /// in sync without it: each time is a commit of the map, of which a coordinator makes some hundreds a second for all shards.
    /// So long may a shard have one in-sync copy fewer after the fault has ended.
    pub longest_rejoin_delay_ms: u64,
    /// The leader asks a follower out that replies and stores nothing for so long: longer than a busy disk hesitates.
    pub follower_stall_ms: u64,
    /// Wishes and reports to the coordinator are repeated after so long: the interval of heartbeats.
    pub wish_repeat_ms: u64,
    /// How long a leader that hands over admits no write, at most: meanwhile the heir gets ready and the coordinator commits the
    /// map. The coordinator's own `transfer_ms` is longer.
    pub hand_over_ms: u64,
    /// A follower that needs a snapshot and has none after so long is given another.
    pub snapshot_repeat_ms: u64,
    /// For how long a linearizable read waits for promises.
    pub read_wait_ms: u64,
    /// A write that is not committed after so long is answered: its outcome is unknown.
    pub write_wait_ms: u64,
    /// How many in-sync replicas a write needs, the leader included.
    pub min_in_sync: usize,
    /// Entries that may be in the log and not committed.
    pub in_flight_entries: usize,
    /// Bytes of entries that may be in the log and not committed.
    pub in_flight_bytes: usize,
    /// Entries of one append.
    pub append_entries: usize,
    /// Bytes of one append; an entry that is larger goes alone.
    pub append_bytes: usize,
    /// Linearizable reads that may wait for promises.
    pub reads_waiting: usize,
    /// Bytes of entries that are applied and flushed and still kept, for followers that are behind. One that is
    /// further behind gets a snapshot.
    pub catch_up_log_bytes: usize,
    /// The same for a follower to which rows are copied, counted from the position of the snapshot: its copy must be whole before
    /// that is used up, and clients wait for it before half of that is (`copy/deadline.rs`). In memory, as all of the log; a node
    /// copies for some shards at a time only.
    pub copy_log_bytes: usize,
    /// Clients wait for no copy of which nothing was heard for so long: its follower has died, or its disk hesitates.
    pub copy_slows_ms: u64,
    /// The log is kept for no copy of which nothing was heard for so long: for as long a leader keeps the snapshot for a follower
    /// that starts again.
    pub copy_patience_ms: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            promise_ms: 1_000,
            append_ms: 100,
            resend_ms: 200,
            follower_patience_ms: 500,
            needed_patience_times: 4,
            longest_rejoin_delay_ms: 120_000,
            follower_stall_ms: 5_000,
            wish_repeat_ms: 500,
            hand_over_ms: 2_000,
            snapshot_repeat_ms: 10_000,
            read_wait_ms: 1_000,
            write_wait_ms: 10_000,
            min_in_sync: 2,
            in_flight_entries: 4_096,
            in_flight_bytes: 16 << 20,
            append_entries: 256,
            append_bytes: 1 << 20,
            reads_waiting: 1_024,
            catch_up_log_bytes: 64 << 20,
            copy_log_bytes: 256 << 20,
            copy_slows_ms: 1_000,
            copy_patience_ms: 60_000,
        }
    }
}

/// Settings that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A number of 0.
    #[error("{0} is 0: give 1 or more")]
    Zero(&'static str),
    /// One is not above another.
    #[error("{0} is not above {1}, as it must be: {2}")]
    NotAbove(&'static str, &'static str, &'static str),
}

impl Settings {
    /// Refuses what could not work.
    pub fn check(&self) -> Result<(), SettingsError> {
        let zero = [
            ("append_ms", self.append_ms),
            ("resend_ms", self.resend_ms),
            ("needed_patience_times", self.needed_patience_times),
            ("wish_repeat_ms", self.wish_repeat_ms),
            ("hand_over_ms", self.hand_over_ms),
            ("snapshot_repeat_ms", self.snapshot_repeat_ms),
            ("read_wait_ms", self.read_wait_ms),
            ("write_wait_ms", self.write_wait_ms),
            ("min_in_sync", self.min_in_sync as u64),
            ("in_flight_entries", self.in_flight_entries as u64),
            ("in_flight_bytes", self.in_flight_bytes as u64),
            ("append_entries", self.append_entries as u64),
            ("append_bytes", self.append_bytes as u64),
            ("reads_waiting", self.reads_waiting as u64),
            ("catch_up_log_bytes", self.catch_up_log_bytes as u64),
            ("copy_log_bytes", self.copy_log_bytes as u64),
            ("copy_patience_ms", self.copy_patience_ms),
        ];
        if let Some((name, _)) = zero.into_iter().find(|(_, value)| *value == 0) {
            return Err(SettingsError::Zero(name));
        }
        let above = [
            (
                self.promise_ms,
                self.append_ms,
                "promise_ms",
                "append_ms",
                "promises would end between two appends",
            ),
            (
                self.follower_patience_ms,
                self.append_ms,
                "follower_patience_ms",
                "append_ms",
                "healthy followers would be asked out",
            ),
            (
                self.follower_stall_ms,
                self.follower_patience_ms,
                "follower_stall_ms",
                "follower_patience_ms",
                "a disk that hesitates would count as a dead node",
            ),
            (
                self.longest_rejoin_delay_ms,
                self.wish_repeat_ms,
                "longest_rejoin_delay_ms",
                "wish_repeat_ms",
                "a follower that comes and goes would be asked in and out without end",
            ),
        ];
        match above.into_iter().find(|(more, less, ..)| more <= less) {
            Some((_, _, more, less, why)) => Err(SettingsError::NotAbove(more, less, why)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_pass_and_contradictions_do_not() {
        assert_eq!(Settings::default().check(), Ok(()));
        let none = Settings { min_in_sync: 0, ..Settings::default() };
        assert_eq!(none.check(), Err(SettingsError::Zero("min_in_sync")));
        let hasty = Settings { follower_patience_ms: 100, ..Settings::default() };
        assert!(matches!(hasty.check(), Err(SettingsError::NotAbove("follower_patience_ms", ..))));
    }
}

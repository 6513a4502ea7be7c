//! The deadline of a copy of rows to a follower, and how urgent the copy is by that.
//!
//! Behind the snapshot the follower needs its leader's log, so the leader keeps its log for the copy, up to
//! [`copy_log_bytes`](crate::table::replication::Settings::copy_log_bytes). The entry that uses this up is the deadline. How soon
//! it comes depends on what clients write, so how much of it is used decides:
//!
//! | of the log for it | the copy | clients |
//! |---|---|---|
//! | at the present rates, a quarter is used at most when it is whole | gives way to clients | write as they like |
//! | more would be used, and an eighth of that quarter is | does not give way ([`Urgency::Pressed`]) | the same |
//! | the same, and half of that quarter is | does not heed the limit of bytes either ([`Urgency::Urgent`]) | the same |
//! | the quarter is used | the same | write as much of a second quarter as is copied of the rows ([`may_be_logged`]) |
//! | the rows are copied, and the follower stores the log behind them | is over | log half of what the follower stores, and a third quarter besides ([`may_be_logged_behind`]) |
//!
//! So a copy that goes on ends, however slow it is: when its last row is stored, half of the log for it is used at most. And the
//! follower comes to the end of the log, as that grows half as fast as it stores it; three quarters are used at most. The last
//! quarter is for what was admitted already, and for entries of the leader's own.
//!
//! What was not done: slowing clients down to a rate in bytes a second. A wrong estimate of that rate would slow them without
//! need or overrun the copy.

/// The progress of a copy, in bytes of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CopyProgress {
    /// Bytes that the follower has stored.
    pub copied: u64,
    /// Bytes of all rows, as its leader estimates.
    pub size: u64,
}

/// At least one part in so many of all rows is taken to be left, since the size is an estimate.
const LEFT_AT_LEAST: u64 = 8;

impl CopyProgress {
    /// All rows, those that are copied and those that are left: one byte at least.
    fn all(self) -> u64 {
        let left = self.size.saturating_sub(self.copied).max(self.size / LEFT_AT_LEAST).max(1);
        self.copied.saturating_add(left)
    }
}

/// How urgent a copy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Urgency {
    /// It gives way to clients.
    #[default]
    GivesWay,
    /// It does not give way to clients, as it would miss its deadline.
    Pressed,
    /// It heeds no limit of bytes either, as clients would have to wait for it.
    Urgent,
}

/// `whole * part / of`, and no more than `whole`.
fn share(whole: u64, part: u64, of: u64) -> u64 {
    let share = u128::from(whole) * u128::from(part) / u128::from(of.max(1));
    u64::try_from(share).unwrap_or(u64::MAX).min(whole)
}

/// So many bytes may be logged since the position of the snapshot while its rows are copied, of a log that keeps `most` for it.
pub fn may_be_logged(progress: CopyProgress, most: u64) -> u64 {
    let CopyProgress { copied, size } = progress;
    let (free, beyond) = (most / 4, most / 4 / LEFT_AT_LEAST);
    // Where the rows come to more than was estimated, a little always may be logged for what is copied yet.
    let over = copied.saturating_sub(size);
    free + share(free - beyond, copied.min(size), size) + share(beyond, over, over.saturating_add(size))
}

/// So many bytes may be logged since the rows were copied, while the follower stores what is behind them, of which it has
/// stored so many.
pub fn may_be_logged_behind(stored: u64, most: u64) -> u64 {
    (most / 4).saturating_add(stored / 2)
}

/// How urgent a copy is, since the position of which so many bytes are logged.
pub fn urgency(progress: CopyProgress, logged: u64, most: u64) -> Urgency {
    let free = most / 4;
    // What would be logged when it is whole, if it and clients went on as until now, against what is free.
    let is_late = u128::from(logged) * u128::from(progress.all())
        > u128::from(free) * u128::from(progress.copied.min(progress.all()));
    match is_late {
        true if logged > free / 2 => Urgency::Urgent,
        true if logged > free / 8 => Urgency::Pressed,
        _ => Urgency::GivesWay,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Milliseconds of one round of the model.
    const ROUND_MS: u64 = 10;

    /// A shard that is copied while clients write: bytes, and bytes a second.
    #[derive(Debug, Clone, Copy)]
    struct Model {
        /// Bytes of log that are kept for the copy.
        most: u64,
        /// Bytes of all rows, and what their leader takes them for.
        size: u64,
        estimated: u64,
        /// What clients would write.
        writes: u64,
        /// What the copy comes to when it gives way, when it does not, and without the limit.
        gentle: u64,
        limited: u64,
        disk: u64,
        /// Whether clients wait, as a last resort.
        slows: bool,
    }

    /// How a copy went.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    struct Went {
        /// Rounds until the follower has all; none: more was logged than is kept.
        rounds: Option<u64>,
        /// The most that was kept for it.
        kept: u64,
        /// Bytes that clients wrote, and would have written.
        written: u64,
        wanted: u64,
        most_urgent: Urgency,
    }

    fn of_round(bytes_per_s: u64) -> u64 {
        (bytes_per_s * ROUND_MS / 1_000).max(1)
    }

    impl Model {
        /// Goes on until the follower has all, or the log does not reach back any more.
        fn run(self) -> Went {
            let Model { most, size, estimated, .. } = self;
            let (mut went, mut progress) = (Went::default(), CopyProgress { copied: 0, size: estimated });
            let (mut logged, mut behind, mut stored) = (0u64, 0u64, 0u64);
            for round in 1.. {
                let is_whole = progress.copied >= size;
                let room = match is_whole {
                    false => may_be_logged(progress, most).saturating_sub(logged),
                    true => may_be_logged_behind(stored, most).saturating_sub(behind),
                };
                let wanted = of_round(self.writes);
                let writes = if self.slows { wanted.min(room) } else { wanted };
                (went.written, went.wanted) = (went.written + writes, went.wanted + wanted);
                if is_whole {
                    behind += writes;
                    stored += of_round(self.disk).min(logged + behind - stored);
                } else {
                    logged += writes;
                    let urgency = urgency(progress, logged, most);
                    went.most_urgent = went.most_urgent.max(urgency);
                    progress.copied += of_round(match urgency {
                        Urgency::GivesWay => self.gentle,
                        Urgency::Pressed => self.limited,
                        Urgency::Urgent => self.disk,
                    });
                }
                let kept = logged + behind - stored;
                went.kept = went.kept.max(kept);
                if kept > most {
                    return went;
                }
                if is_whole && kept <= of_round(self.writes) {
                    went.rounds = Some(round);
                    return went;
                }
            }
            went
        }
    }

    fn models() -> impl Strategy<Value = Model> {
        let mib = |mib: u64| mib << 20;
        (1u64..64, 1u64..256, 1u64..16, (1u64..64, 1u64..64, 1u64..64), 1u64..200).prop_map(
            move |(most, size, estimated, (gentle, limited, disk), writes)| Model {
                most: mib(most),
                size: mib(size),
                // From an eighth of it to twice as much.
                estimated: mib(size) * estimated / 8,
                writes: mib(writes),
                gentle: mib(gentle.min(limited).min(disk)),
                limited: mib(limited.min(disk)),
                disk: mib(disk),
                slows: true,
            },
        )
    }

    proptest! {
        /// However much clients would write, and however slow the disk, a copy ends before the log is overrun.
        #[test]
        fn l1_each_copy_ends(model in models()) {
            let went = model.run();
            prop_assert!(went.rounds.is_some(), "{went:?}");
            prop_assert!(went.kept <= model.most / 4 * 3 + 2, "{went:?}");
        }

        /// Clients that would not fill the log while the rows are copied never wait.
        #[test]
        fn clients_that_write_little_do_not_wait(model in models()) {
            let gentle_ms = (model.size / model.gentle + 2) * 1_000;
            let writes = (model.most / 8 * 1_000 / gentle_ms).min(model.disk / 4).max(1_000);
            let model = Model { writes, estimated: model.size, ..model };
            let went = model.run();
            prop_assert_eq!((went.written, went.rounds.is_some()), (went.wanted, true));
        }

        /// The more is copied, the more may be logged, up to half of all; and something always may when something is copied.
        #[test]
        fn what_may_be_logged_grows_with_what_is_copied(size in 0u64..1 << 40, copied in 0u64..1 << 41, more in 1u64..1 << 30, most in 0u64..1 << 40) {
            let (one, other) = (CopyProgress { copied, size }, CopyProgress { copied: copied + more, size });
            prop_assert!(may_be_logged(one, most) <= may_be_logged(other, most));
            prop_assert!((most / 4..=most / 2).contains(&may_be_logged(one, most)));
            prop_assert!(may_be_logged_behind(copied, most) <= may_be_logged_behind(copied + more, most));
        }

        /// A copy only gets more urgent by what is logged, and less so by what is copied.
        #[test]
        fn a_copy_gets_more_urgent_by_what_is_logged(size in 0u64..1 << 40, copied in 0u64..1 << 40, logged in 0u64..1 << 32, more in 0u64..1 << 30, most in 0u64..1 << 34) {
            let progress = CopyProgress { copied, size };
            prop_assert!(urgency(progress, logged, most) <= urgency(progress, logged + more, most));
            let further = CopyProgress { copied: copied + more, size };
            if further.copied <= size - size / LEFT_AT_LEAST {
                prop_assert!(urgency(further, logged, most) <= urgency(progress, logged, most));
            }
            if logged > most / 4 {
                prop_assert_eq!(urgency(progress, logged, most), Urgency::Urgent, "before clients wait");
            }
        }
    }

    /// A shard of 512 MiB on a machine that copies 20 MiB/s beside clients that write 8 MiB/s.
    const BUSY: Model = Model {
        most: 256 << 20,
        size: 512 << 20,
        estimated: 512 << 20,
        writes: 8 << 20,
        gentle: 8 << 20,
        limited: 20 << 20,
        disk: 20 << 20,
        slows: true,
    };

    #[test]
    fn a_copy_takes_what_it_needs_and_clients_wait_when_that_is_not_enough() {
        let went = BUSY.run();
        assert_eq!((went.rounds.is_some(), went.most_urgent), (true, Urgency::Urgent));
        assert!(went.written * 10 >= went.wanted * 6, "0.6 of what they would write: {went:?}");
        let few = Model { writes: 256 << 10, ..BUSY }.run();
        assert_eq!((few.written, few.most_urgent), (few.wanted, Urgency::GivesWay));
        let some = Model { writes: 2 << 20, ..BUSY }.run();
        assert_eq!((some.written, some.rounds.is_some()), (some.wanted, true));
        assert!(some.most_urgent >= Urgency::Pressed, "{some:?}");
    }

    #[test]
    fn without_waiting_a_copy_may_be_overrun() {
        let went = Model { writes: 16 << 20, slows: false, ..BUSY }.run();
        assert_eq!(went.rounds, None);
        assert!(Model { writes: 16 << 20, ..BUSY }.run().rounds.is_some());
    }
}

//! The pace of all copies of one node.
//!
//! A copy goes in steps: it reads a chunk, or stores one. After each step the [`Pacer`] says when the copy may take the next one.
//! All copies of the node share one pacer, and each has at most one step under way, so each gets a step in turn.
//!
//! [`interval_us`] is the least time from the beginning of one step to the next:
//!
//! | it covers | while clients write | otherwise, and for a copy that must not give way |
//! |---|---|---|
//! | the bytes that count against the limit, at [`Settings::bytes_per_s`] | yes | yes |
//! | the time that the step has worked, as [`Settings::busy_percent`] of the whole | yes, but no more than its bytes take at [`Settings::floor_bytes_per_s`] | no |
//!
//! A copy for which clients would have to wait ([`Load::Urgent`]) heeds neither; what it copies counts for the others.
//!
//! So copies never stop: whatever clients write, those of a node together get `floor_bytes_per_s`, unless the limit or the disk
//! allows less. No copy waits longer than [`MOST_AHEAD_US`].

/// The limits of the copies of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Bytes of rows that all copies of the node send and take in a second: half of what a line of 1 Gbit/s carries.
    pub bytes_per_s: u64,
    /// The share of the time, in percent, in which copies work while clients write: 100 = they do not give way. A quarter of one
    /// thread leaves a machine of two cores nearly nine tenths of them.
    pub busy_percent: u64,
    /// Bytes a second that the steps of the node get at least while clients write: a shard of 512 MiB in a minute.
    pub floor_bytes_per_s: u64,
}

/// The lowest allowed limit: with less, chunks of several copies would come so late that their takers ask other replicas.
pub const LEAST_BYTES_PER_S: u64 = 4 << 20;

impl Default for Settings {
    fn default() -> Settings {
        Settings { bytes_per_s: 64 << 20, busy_percent: 25, floor_bytes_per_s: 8 << 20 }
    }
}

/// The longest wait of a copy, in microseconds. A child waits five seconds for a part of a snapshot before it asks another
/// replica, a follower ten. At [`LEAST_BYTES_PER_S`] that is 16 MiB, as much as 64 copies have under way.
pub const MOST_AHEAD_US: u64 = 4_000_000;

/// What else a node does, and how urgent the copy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// No client writes: copies go on as fast as the limit allows.
    Idle,
    /// Clients write: copies give way.
    Busy,
    /// Clients write so much that they would outrun the copy: it does not give way.
    Pressed,
    /// The same, and clients would have to wait for the copy: it heeds no limit of bytes either.
    Urgent,
}

/// A step of a copy that is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacedStep {
    /// Bytes that it has read or stored.
    pub bytes: u64,
    /// Bytes of these that count against the limit: none where another step of the same node counts them.
    pub limited: u64,
    /// How long it has worked, in microseconds.
    pub worked_us: u64,
}

fn at_rate(bytes: u64, bytes_per_s: u64) -> u64 {
    let us = u128::from(bytes) * 1_000_000 / u128::from(bytes_per_s.max(1));
    u64::try_from(us).unwrap_or(u64::MAX)
}

/// The least time from the beginning of that step to the next one, in microseconds.
pub fn interval_us(settings: &Settings, step: PacedStep, load: Load) -> u64 {
    let by_limit = at_rate(step.limited, settings.bytes_per_s);
    let by_share = match load {
        Load::Idle | Load::Pressed | Load::Urgent => 0,
        Load::Busy => {
            let share = step.worked_us.saturating_mul(100) / settings.busy_percent.clamp(1, 100);
            share.min(at_rate(step.bytes, settings.floor_bytes_per_s).max(step.worked_us))
        }
    };
    by_limit.max(by_share)
}

/// Paces all copies of a node.
#[derive(Debug, Clone)]
pub struct Pacer {
    settings: Settings,
    /// The next step of a copy that gives way may begin then.
    used_until_us: u64,
    /// The same for a copy that only heeds the limit.
    limited_until_us: u64,
}

impl Pacer {
    /// Nothing is copied yet.
    pub fn new(settings: Settings) -> Pacer {
        Pacer { settings, used_until_us: 0, limited_until_us: 0 }
    }

    /// A step that began at that time, in microseconds of any clock, is done: returns when its copy may take the next one, which
    /// may have passed already.
    pub fn done(&mut self, began_us: u64, step: PacedStep, load: Load) -> u64 {
        let interval = interval_us(&self.settings, step, load);
        let by_limit = at_rate(step.limited, self.settings.bytes_per_s);
        // Idle time is not saved up, and debt is capped.
        let most = began_us.saturating_add(step.worked_us).saturating_add(MOST_AHEAD_US);
        let until = |before: u64, interval| before.max(began_us).saturating_add(interval).min(most);
        self.used_until_us = until(self.used_until_us, interval);
        self.limited_until_us = until(self.limited_until_us, by_limit);
        match load {
            Load::Busy => self.used_until_us,
            Load::Idle | Load::Pressed => self.limited_until_us,
            Load::Urgent => began_us.saturating_add(step.worked_us),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CHUNK: u64 = 256 << 10;

    /// What copies that always have a next step come to, each in its own thread: how long that took, how many steps each has
    /// done, and how long these have worked.
    fn run(
        settings: Settings,
        copies: usize,
        steps: usize,
        worked_us: u64,
        load: Load,
    ) -> (u64, Vec<usize>, u64) {
        let mut pacer = Pacer::new(settings);
        let mut next = vec![0; copies];
        let (mut done, mut worked) = (vec![0; copies], 0);
        for _ in 0..steps {
            let copy = (0..copies).min_by_key(|copy| next[*copy]).unwrap();
            let began = next[copy];
            let until = pacer.done(began, PacedStep { bytes: CHUNK, limited: CHUNK, worked_us }, load);
            next[copy] = until.max(began + worked_us);
            done[copy] += 1;
            worked += worked_us;
        }
        (next.into_iter().max().unwrap(), done, worked)
    }

    fn settings() -> impl Strategy<Value = Settings> {
        (LEAST_BYTES_PER_S..1 << 30, 1u64..=100, 1u64 << 20..64 << 20).prop_map(
            |(bytes_per_s, busy_percent, floor_bytes_per_s)| Settings {
                bytes_per_s,
                busy_percent,
                floor_bytes_per_s,
            },
        )
    }

    fn loads() -> impl Strategy<Value = Load> {
        prop_oneof![Just(Load::Idle), Just(Load::Busy), Just(Load::Pressed)]
    }

    proptest! {
        /// But for the first chunk of each copy, no more bytes go than the limit says, however many copies there are.
        #[test]
        fn all_copies_together_keep_the_limit(
            settings in settings(), load in loads(), copies in 1usize..9, worked in 1u64..20_000,
        ) {
            let steps = 20 * copies;
            let (took, ..) = run(settings, copies, steps, worked, load);
            let most = u128::from(took) * u128::from(settings.bytes_per_s) / 1_000_000;
            prop_assert!(((steps - copies) as u128) * u128::from(CHUNK) <= most + u128::from(CHUNK));
        }

        /// However much is done without waiting, nobody waits for longer than [`MOST_AHEAD_US`].
        #[test]
        fn l1_no_copy_waits_for_long_however_much_was_done(
            settings in settings(),
            steps in prop::collection::vec((0u64..64 << 20, 0u64..100_000, loads()), 1..100),
        ) {
            let (mut pacer, mut now) = (Pacer::new(settings), 0);
            for (bytes, worked_us, load) in steps {
                let until = pacer.done(now, PacedStep { bytes, limited: bytes, worked_us }, load);
                now += worked_us;
                prop_assert!(until <= now + MOST_AHEAD_US);
            }
        }

        /// Each copy gets as many steps as another, but for one.
        #[test]
        fn copies_get_a_step_in_turn(
            settings in settings(), load in loads(), copies in 1usize..9, worked in 1u64..20_000,
        ) {
            let (_, done, _) = run(settings, copies, 12 * copies + 3, worked, load);
            let (least, most) = (done.iter().min().unwrap(), done.iter().max().unwrap());
            prop_assert!(most - least <= 1, "{done:?}");
        }

        /// While clients write, copies work for their share of the time at most, unless that were slower than the floor.
        #[test]
        fn busy_copies_keep_their_share_and_the_floor(settings in settings(), worked in 1u64..20_000) {
            let step = PacedStep { bytes: CHUNK, limited: 0, worked_us: worked };
            let interval = interval_us(&settings, step, Load::Busy);
            let at_floor = at_rate(CHUNK, settings.floor_bytes_per_s);
            prop_assert!(interval <= at_floor.max(worked), "it goes on with the floor");
            let keeps_share = worked * 100 <= (interval + 1) * settings.busy_percent;
            prop_assert!(keeps_share || interval == at_floor.max(worked));
        }

        /// A copy that is not to give way rests for the limit only, and none ever rests for less than that.
        #[test]
        fn what_is_pressed_or_alone_rests_for_the_limit_only(settings in settings(), worked in 0u64..20_000) {
            let step = PacedStep { bytes: CHUNK, limited: CHUNK, worked_us: worked };
            let limit = at_rate(CHUNK, settings.bytes_per_s);
            prop_assert_eq!(interval_us(&settings, step, Load::Idle), limit);
            prop_assert_eq!(interval_us(&settings, step, Load::Pressed), limit);
            prop_assert!(interval_us(&settings, step, Load::Busy) >= limit);
        }
    }

    #[test]
    fn several_busy_copies_share_the_share() {
        let settings = Settings { bytes_per_s: 1 << 40, busy_percent: 25, floor_bytes_per_s: 1 };
        for copies in [1, 2, 4] {
            let (took, _, worked) = run(settings, copies, 400, 1_000, Load::Busy);
            let share = worked * 100 / took;
            assert!((23..=26).contains(&share), "{copies} copies worked {share} % of the time");
        }
    }

    #[test]
    fn one_that_does_not_give_way_waits_for_the_limit_only_whatever_others_do() {
        let mut pacer = Pacer::new(Settings { bytes_per_s: 1 << 20, busy_percent: 1, floor_bytes_per_s: 1 });
        let others = PacedStep { bytes: CHUNK, limited: 0, worked_us: 10_000 };
        assert_eq!(pacer.done(0, others, Load::Busy), 1_000_000);
        assert_eq!(pacer.done(0, others, Load::Busy), 2_000_000);
        let step = PacedStep { bytes: CHUNK, limited: CHUNK, worked_us: 10_000 };
        assert_eq!(pacer.done(10_000, step, Load::Pressed), 260_000);
        assert_eq!(pacer.done(20_000, step, Load::Idle), 510_000);
        assert_eq!(pacer.done(20_000, others, Load::Busy), 3_500_000, "they give way to these, too");
    }

    #[test]
    fn one_for_which_clients_would_wait_waits_for_nothing_and_counts_for_the_others() {
        let mut pacer = Pacer::new(Settings { bytes_per_s: 1 << 20, ..Settings::default() });
        let step = PacedStep { bytes: 1 << 20, limited: 1 << 20, worked_us: 10 };
        assert_eq!(pacer.done(0, step, Load::Urgent), 10);
        assert_eq!(pacer.done(10, step, Load::Urgent), 20);
        assert_eq!(pacer.done(20, step, Load::Pressed), 3_000_000);
    }

    #[test]
    fn time_in_which_nothing_was_copied_is_not_saved_up() {
        let mut pacer = Pacer::new(Settings { bytes_per_s: 1 << 20, ..Settings::default() });
        let step = PacedStep { bytes: 1 << 20, limited: 1 << 20, worked_us: 10 };
        assert_eq!(pacer.done(0, step, Load::Idle), 1_000_000);
        assert_eq!(pacer.done(60_000_000, step, Load::Idle), 61_000_000);
        assert_eq!(pacer.done(60_000_100, step, Load::Idle), 62_000_000, "another copy waits for both");
    }
}

//! The pace of all copies of a node: `core` says when the next step of a copy may begin
//! ([`partage_service::table::copy::pacing`]); this has the clock, knows whether clients write, and counts.
//!
//! No call in here waits. A task of the pool says what it has done, and gets the time from which on its replica may have the
//! next step done; the replica is served again at that time.

use crate::limits::COPIES_GIVE_WAY_MS;
use partage_clock::Clock;
use partage_core::base::time::Millis;
use partage_service::table::copy::deadline::Urgency;
use partage_service::table::copy::pacing::{Load, PacedStep, Pacer, Settings};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Where rows are copied to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopyDirection {
    /// To another replica, of this node or another one.
    Out,
    /// Rows of a replica of another node are copied into one of this node.
    In,
    /// From a replica of this node, which counts them, or from one file of this node to another.
    Within,
}

/// A step of a copy that a task has done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FinishedStep {
    /// When it began, in microseconds of the clock of the node.
    pub(crate) began_us: u64,
    /// Bytes that it has read or stored.
    pub(crate) bytes: usize,
    /// Bytes of rows that it has sent or taken.
    pub(crate) rows: usize,
    pub(crate) copied: CopyDirection,
    pub(crate) urgency: Urgency,
}

/// What the copies of a node have come to, since its process began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CopyCounts {
    /// Bytes of rows that were read for other replicas, of this node or others.
    pub bytes_out: u64,
    /// Bytes of rows that were stored, of replicas of other nodes.
    pub bytes_in: u64,
    /// Steps that the copy had to wait after, for the limit or for clients that write.
    pub waits: u64,
    /// For how long, in milliseconds, of all copies together.
    pub waited_ms: u64,
    /// Snapshots that went on, after a restart, where they were.
    pub resumed: u64,
    /// Times that writes of clients waited for a copy, as the log would have outrun it.
    pub slowed: u64,
}

/// The pace of the copies of one node.
pub(crate) struct CopyPacing {
    clock: Clock,
    pacer: Mutex<Pacer>,
    /// When entries were last handed to the log, in milliseconds of the clock and one more; 0: none were.
    logged: AtomicU64,
    bytes_out: AtomicU64,
    bytes_in: AtomicU64,
    waits: AtomicU64,
    waited_ms: AtomicU64,
    resumed: AtomicU64,
    slowed: AtomicU64,
}

impl CopyPacing {
    pub(crate) fn new(clock: Clock, settings: Settings) -> CopyPacing {
        CopyPacing {
            clock,
            pacer: Mutex::new(Pacer::new(settings)),
            logged: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            bytes_in: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            waited_ms: AtomicU64::new(0),
            resumed: AtomicU64::new(0),
            slowed: AtomicU64::new(0),
        }
    }

    /// A replica of this node, leader or follower, hands entries to the log.
    pub(crate) fn entries_are_logged(&self, now: Millis) {
        self.logged.store(now.0 + 1, Ordering::Relaxed);
    }

    /// The clock, for [`FinishedStep::began_us`].
    pub(crate) fn now_us(&self) -> u64 {
        self.clock.micros()
    }

    /// A step is done: from when on the copy may have the next one done, which may have passed.
    pub(crate) fn done(&self, worked: FinishedStep) -> Millis {
        let FinishedStep { began_us, bytes, rows, copied, urgency } = worked;
        let (now_us, rows) = (self.clock.micros(), rows as u64);
        let limited = if copied == CopyDirection::Within { 0 } else { rows };
        let step = PacedStep { bytes: bytes as u64, limited, worked_us: now_us.saturating_sub(began_us) };
        let load = self.load(Millis(now_us / 1_000), urgency);
        let next_us = self.pacer.lock().unwrap_or_else(PoisonError::into_inner).done(began_us, step, load);
        let counter = match copied {
            CopyDirection::Out => Some(&self.bytes_out),
            CopyDirection::In => Some(&self.bytes_in),
            CopyDirection::Within => None,
        };
        if let Some(counter) = counter {
            counter.fetch_add(rows, Ordering::Relaxed);
        }
        let waits_us = next_us.saturating_sub(now_us);
        if waits_us >= 1_000 {
            self.waits.fetch_add(1, Ordering::Relaxed);
            self.waited_ms.fetch_add(waits_us / 1_000, Ordering::Relaxed);
        }
        Millis(next_us.div_ceil(1_000))
    }

    fn load(&self, now: Millis, urgency: Urgency) -> Load {
        let logged = self.logged.load(Ordering::Relaxed);
        let is_idle = logged == 0 || now.0 > logged + COPIES_GIVE_WAY_MS;
        match urgency {
            Urgency::Urgent => Load::Urgent,
            _ if is_idle => Load::Idle,
            Urgency::Pressed => Load::Pressed,
            Urgency::GivesWay => Load::Busy,
        }
    }

    /// Writes of clients wait for a copy.
    pub(crate) fn slows_writes(&self) {
        self.slowed.fetch_add(1, Ordering::Relaxed);
    }

    /// A snapshot goes on where it was before a restart.
    pub(crate) fn resumes(&self) {
        self.resumed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> CopyCounts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CopyCounts {
            bytes_out: get(&self.bytes_out),
            bytes_in: get(&self.bytes_in),
            waits: get(&self.waits),
            waited_ms: get(&self.waited_ms),
            resumed: get(&self.resumed),
            slowed: get(&self.slowed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worked(pacing: &CopyPacing, copied: CopyDirection, urgency: Urgency) -> Millis {
        let now = pacing.now_us();
        let began_us = now.saturating_sub(20_000);
        pacing.done(FinishedStep { began_us, bytes: 1 << 20, rows: 1 << 20, copied, urgency })
    }

    /// The limit of this lets a MiB pass in a microsecond, and its floor is none.
    fn without_limit() -> CopyPacing {
        let settings = Settings { bytes_per_s: 1 << 40, floor_bytes_per_s: 1, ..Settings::default() };
        let clock = Clock::start();
        // So that a step may have begun before now.
        while clock.micros() < 20_000 {
            std::thread::yield_now();
        }
        CopyPacing::new(clock, settings)
    }

    #[test]
    fn a_copy_gives_way_while_entries_are_logged_and_not_otherwise() {
        let pacing = without_limit();
        let until = worked(&pacing, CopyDirection::Out, Urgency::GivesWay);
        assert!(until.0 * 1_000 <= pacing.now_us() + 1_000, "nobody writes");
        assert_eq!(pacing.counts().waits, 0);
        pacing.entries_are_logged(Millis(pacing.clock.now().0 + 60_000));
        let before = pacing.now_us();
        let until = worked(&pacing, CopyDirection::Out, Urgency::GivesWay);
        assert!(until.0 * 1_000 >= before + 60_000, "20 ms of 80 are worked");
        let counts = pacing.counts();
        assert_eq!((counts.waits, counts.bytes_out, counts.bytes_in), (1, 2 << 20, 0));
        assert!(counts.waited_ms >= 59);
    }

    #[test]
    fn a_copy_that_is_pressed_does_not_give_way() {
        let pacing = without_limit();
        pacing.entries_are_logged(Millis(pacing.clock.now().0 + 60_000));
        let until = worked(&pacing, CopyDirection::In, Urgency::Pressed);
        assert!(until.0 * 1_000 <= pacing.now_us() + 1_000);
        assert_eq!(pacing.counts(), CopyCounts { bytes_in: 1 << 20, ..CopyCounts::default() });
    }

    #[test]
    fn rows_count_once_on_a_node_against_its_limit() {
        let settings = Settings { bytes_per_s: 4 << 20, ..Settings::default() };
        let pacing = CopyPacing::new(Clock::start(), settings);
        let began_us = pacing.now_us();
        let urgency = Urgency::GivesWay;
        let worked =
            FinishedStep { began_us, bytes: 1 << 20, rows: 1 << 20, copied: CopyDirection::Out, urgency };
        let out = pacing.done(worked);
        assert!(out.0 * 1_000 >= began_us + 250_000, "a quarter of a second of 4 MiB/s");
        let within = pacing.done(FinishedStep { copied: CopyDirection::Within, ..worked });
        assert_eq!(within, out, "the same rows");
        assert!(pacing.done(FinishedStep { copied: CopyDirection::In, ..worked }).0 >= out.0 + 250);
        let urgent =
            pacing.done(FinishedStep { copied: CopyDirection::In, urgency: Urgency::Urgent, ..worked });
        assert!(urgent.0 * 1_000 <= pacing.now_us() + 1_000, "clients would have to wait for it");
    }
}

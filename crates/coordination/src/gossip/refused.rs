//! Refused datagrams: counted by reason, and logged now and then.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use partage_clock::Instant;

/// The rest between two log lines about one reason.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// Why a datagram is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// It is in the clear, and this process has a key.
    Unsealed,
    /// It is sealed, and this process has no key.
    Sealed,
    /// It is sealed with a key that this process does not have.
    OtherKey,
    /// It is not as it was sealed, or is of another cluster.
    Damaged,
    /// Its time is too far from this process's clock.
    Clock,
    /// Its number came before, or is too old to tell.
    Again,
    /// There are too many senders.
    TooMany,
    /// It is no message of the protocol.
    Strange,
}

impl Reason {
    pub const ALL: [Reason; 8] = [
        Reason::Unsealed,
        Reason::Sealed,
        Reason::OtherKey,
        Reason::Damaged,
        Reason::Clock,
        Reason::Again,
        Reason::TooMany,
        Reason::Strange,
    ];

    /// The label of metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Reason::Unsealed => "unsealed",
            Reason::Sealed => "sealed",
            Reason::OtherKey => "other_key",
            Reason::Damaged => "damaged",
            Reason::Clock => "clock",
            Reason::Again => "again",
            Reason::TooMany => "too_many",
            Reason::Strange => "strange",
        }
    }

    /// What it means to a person.
    const fn sentence(self) -> &'static str {
        match self {
            Reason::Unsealed => {
                "they are in the clear, and this process has a key: give every process of the cluster --gossip-key-file"
            }
            Reason::Sealed => "they are sealed, and this process has no key: give it --gossip-key-file",
            Reason::OtherKey => "they are sealed with a key that is not in the key file of this process",
            Reason::Damaged => "they are not as they were sealed, or of another cluster with the same key",
            Reason::Clock => {
                "they were sealed more than a minute before or after the time here: set the clocks"
            }
            Reason::Again => "they came before: somebody sends them again",
            Reason::TooMany => "there are too many senders",
            Reason::Strange => "they are nothing of the protocol: another program sends to this port",
        }
    }
}

/// How many datagrams were refused.
#[derive(Debug, Default)]
pub(super) struct Refused {
    counts: [AtomicU64; Reason::ALL.len()],
}

impl Refused {
    fn count(&self, reason: Reason) -> u64 {
        self.counts[reason as usize].fetch_add(1, Ordering::Relaxed) + 1
    }

    /// How many were refused so far, for each reason.
    pub fn counts(&self) -> impl Iterator<Item = (Reason, u64)> {
        Reason::ALL.into_iter().map(|reason| (reason, self.counts[reason as usize].load(Ordering::Relaxed)))
    }
}

/// Logs what is refused: the first of each reason at once, then how many more there were in a minute.
#[derive(Debug, Default)]
pub(super) struct RefusalReporter {
    told: [Option<(Instant, u64)>; Reason::ALL.len()],
}

impl RefusalReporter {
    /// How many to log now, if any.
    fn due(&mut self, reason: Reason, count: u64, now: Instant) -> Option<u64> {
        let told = &mut self.told[reason as usize];
        let since = match *told {
            None => count,
            Some((at, before)) if at + TELL_EVERY <= now => count - before,
            Some(_) => return None,
        };
        *told = Some((now, count));
        Some(since)
    }

    /// Counts a refused datagram, and logs it when a line about its reason is due.
    pub fn refuse(&mut self, refused: &Refused, reason: Reason, from: SocketAddr) {
        let count = refused.count(reason);
        if let Some(more) = self.due(reason, count, Instant::now()) {
            let why = reason.sentence();
            tracing::warn!(%from, reason = reason.name(), datagrams = more, "datagrams of gossip are not heard: {why}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixty_thousand_are_counted_and_told_of_once_a_minute() {
        let (refused, mut reporter) = (Refused::default(), RefusalReporter::default());
        let begun = Instant::now();
        let mut lines = Vec::new();
        for number in 0..60_000u64 {
            let count = refused.count(Reason::Strange);
            lines.extend(reporter.due(Reason::Strange, count, begun + Duration::from_millis(3 * number)));
        }
        assert_eq!(lines, [1, 20_000, 20_000], "in three minutes");
        assert!(reporter.due(Reason::Again, 1, begun).is_some(), "another reason is told at once");
        let counts: Vec<u64> = refused.counts().map(|(_, count)| count).collect();
        assert_eq!(counts, [0, 0, 0, 0, 0, 0, 0, 60_000]);
    }

    #[test]
    fn each_reason_has_its_place_and_name() {
        for (at, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, at);
        }
        let names: std::collections::BTreeSet<&str> = Reason::ALL.map(Reason::name).into();
        assert_eq!(names.len(), Reason::ALL.len());
    }
}

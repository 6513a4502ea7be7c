//! Which peer is asked for a partition that is not here, and when the next one (S16).
//!
//! You ring at one neighbour's door. Nobody opens for a while: you ring at the next one's too, and stay at both. One
//! says no: you go to the next one at once. The first who has what you need ends the search, and "there is no such
//! book" is an answer as good as the book.
//!
//! | event | what follows |
//! |---|---|
//! | it begins | one peer is asked, whom the seed chooses among those that have not been slow lately |
//! | a stage is over | one more is asked, beside those that have not answered |
//! | a peer fails | one more is asked at once, and the stage begins anew |
//! | a peer answers, and be it that there is no such key | its answer counts; the caller drops the other requests |
//! | all were asked, and have failed | [`Failure::All`]: 502 |
//! | the whole time is over | [`Failure::TimedOut`]: 504 |
//!
//! - (fa) no peer is asked twice, and none after an end;
//! - (fb) as long as one is left, one is asked at every stage and after every failure;
//! - (fc) it ends at the first answer, or when all have failed, or when its time is over, whichever is first;
//! - (fd) over many seeds each peer is the first equally often, of those that have not been slow lately;
//! - (fe) a peer that let a stage pass without an answer comes after all others for a while, and is asked all the same when these
//!   do not answer. The caller remembers which peers these are, and for how long.
//!
//! Not done: to prefer peers that were fast (they are few, and would become slow by that), and to ask one that has
//! failed again (the client may).

use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;
use partage_core::keyspace::hash::mix;

/// How long peers are waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FetchSettings {
    /// Milliseconds until one more is asked.
    pub stage_ms: u64,
    /// Milliseconds from the beginning until the search fails.
    pub total_ms: u64,
}

impl Default for FetchSettings {
    /// 100 ms in all, as Sequins has it, and a second peer at half time, since there are two by default.
    fn default() -> FetchSettings {
        FetchSettings { stage_ms: 50, total_ms: 100 }
    }
}

/// What the caller is to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Ask the peer of that number, and call again.
    Ask(usize),
    /// Wait for answers and failures, and call again by then.
    Wait(Millis),
    /// The search has failed, for this reason.
    Fail(Failure),
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// No node is known to have the partition: 502.
    #[error("no node is known to have this partition: it is lost until one has it again")]
    NoPeers,
    /// All nodes that have it failed: 502.
    #[error("all {0} nodes that have this partition failed: try again")]
    All(usize),
    /// The time is over: 504.
    #[error("none of {0} nodes that were asked for this partition answered in time: try again")]
    TimedOut(usize),
}

/// One search for an answer. See the module.
#[derive(Debug, Clone)]
pub struct Fetch {
    settings: FetchSettings,
    /// The peers in the order in which they are asked.
    order: Vec<usize>,
    asked: usize,
    failed: usize,
    /// When one more is asked.
    next: Millis,
    until: Millis,
}

impl Fetch {
    /// Begins to ask some of so many peers. Another `seed`, another order.
    pub fn new(peers: usize, seed: u64, settings: FetchSettings, now: Millis) -> Fetch {
        let mut order: Vec<usize> = (0..peers).collect();
        let mut draw = seed;
        for at in (1..peers).rev() {
            draw = mix(draw.wrapping_add(0x9e37_79b9_7f4a_7c15));
            order.swap(at, (draw % (at as u64 + 1)) as usize);
        }
        Fetch { settings, order, asked: 0, failed: 0, next: now, until: now + settings.total_ms }
    }

    /// The same, with these peers after all others: see (fe).
    pub fn with_last(mut self, is_slow: impl Fn(usize) -> bool) -> Fetch {
        self.order.sort_by_key(|peer| is_slow(*peer));
        self
    }

    /// What to do at `now`. Call it again after each [`Next::Ask`].
    pub fn next(&mut self, now: Millis) -> Next {
        let all = self.order.len();
        match self.order.get(self.asked) {
            None if all == 0 => Next::Fail(Failure::NoPeers),
            None if self.failed == all => Next::Fail(Failure::All(all)),
            _ if now >= self.until => Next::Fail(Failure::TimedOut(self.asked)),
            Some(peer) if now >= self.next => {
                self.asked += 1;
                self.next = now + self.settings.stage_ms.max(1);
                Next::Ask(*peer)
            }
            Some(_) => Next::Wait(self.next.min(self.until)),
            None => Next::Wait(self.until),
        }
    }

    /// One of the peers that were asked has failed: it cannot be reached, does not have the partition, or answers with an
    /// error.
    pub fn failed(&mut self, now: Millis) {
        self.failed = (self.failed + 1).min(self.asked);
        self.next = if planted::is(Planted::S16) { self.until } else { now };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SETTINGS: FetchSettings = FetchSettings { stage_ms: 50, total_ms: 100 };

    fn fetch(peers: usize) -> Fetch {
        Fetch::new(peers, 7, SETTINGS, Millis(1_000))
    }

    fn asks(fetch: &mut Fetch, now: u64) -> Option<usize> {
        match fetch.next(Millis(now)) {
            Next::Ask(peer) => Some(peer),
            Next::Wait(_) | Next::Fail(_) => None,
        }
    }

    #[test]
    fn fe_who_was_slow_is_asked_last_and_the_others_are_as_often_first() {
        let mut first = [0; 4];
        for seed in 0..3_000 {
            let mut fetch = Fetch::new(4, mix(seed), SETTINGS, Millis(0)).with_last(|peer| peer == 2);
            let mut order = Vec::new();
            while let Next::Ask(peer) = fetch.next(Millis(0)) {
                order.push(peer);
                fetch.failed(Millis(0));
            }
            assert_eq!((order.len(), order[3]), (4, 2));
            first[order[0]] += 1;
        }
        assert!([0, 1, 3].iter().all(|peer| (850..1_150).contains(&first[*peer])), "{first:?}");
        let mut alone = Fetch::new(1, 0, SETTINGS, Millis(0)).with_last(|_| true);
        assert_eq!(alone.next(Millis(0)), Next::Ask(0));
    }

    #[test]
    fn fb_one_more_at_every_stage() {
        let mut fetch = fetch(3);
        assert!(asks(&mut fetch, 1_000).is_some());
        assert_eq!(fetch.next(Millis(1_000)), Next::Wait(Millis(1_050)));
        assert_eq!(fetch.next(Millis(1_049)), Next::Wait(Millis(1_050)));
        assert!(asks(&mut fetch, 1_050).is_some());
        assert_eq!(fetch.next(Millis(1_050)), Next::Wait(Millis(1_100)));
        assert_eq!(
            fetch.next(Millis(1_100)),
            Next::Fail(Failure::TimedOut(2)),
            "time is over before the third"
        );
    }

    #[test]
    fn fb_at_once_after_an_error() {
        let mut fetch = fetch(3);
        assert!(asks(&mut fetch, 1_000).is_some());
        fetch.failed(Millis(1_001));
        assert!(asks(&mut fetch, 1_001).is_some());
        assert_eq!(fetch.next(Millis(1_001)), Next::Wait(Millis(1_051)), "the stage begins anew");
        fetch.failed(Millis(1_002));
        assert!(asks(&mut fetch, 1_002).is_some());
        assert_eq!(fetch.next(Millis(1_002)), Next::Wait(Millis(1_100)), "nobody is left to be asked");
        fetch.failed(Millis(1_003));
        assert_eq!(fetch.next(Millis(1_003)), Next::Fail(Failure::All(3)));
    }

    #[test]
    fn fc_nobody_to_ask() {
        assert_eq!(fetch(0).next(Millis(1_000)), Next::Fail(Failure::NoPeers));
    }

    #[test]
    fn fd_each_is_the_first_equally_often() {
        let mut first = [0; 4];
        for seed in 0..4_000 {
            let mut fetch = Fetch::new(4, seed, SETTINGS, Millis(0));
            first[asks(&mut fetch, 0).unwrap()] += 1;
        }
        assert!(first.iter().all(|count| (900..1_100).contains(count)), "{first:?}");
    }

    proptest! {
        #[test]
        fn fa_fc_nobody_twice_and_always_an_end(peers in 0usize..6, seed: u64, steps in prop::collection::vec((0u64..40, any::<bool>()), 0..40)) {
            let mut fetch = Fetch::new(peers, seed, SETTINGS, Millis(0));
            let (mut now, mut asked, mut failed) = (0, Vec::new(), 0);
            for (later, fails) in steps {
                loop {
                    match fetch.next(Millis(now)) {
                        Next::Ask(peer) => {
                            prop_assert!(!asked.contains(&peer) && peer < peers && now < 100);
                            asked.push(peer);
                        }
                        Next::Wait(until) => {
                            prop_assert!(until > Millis(now) && until <= Millis(100) && failed < asked.len());
                            break;
                        }
                        Next::Fail(Failure::TimedOut(many)) => {
                            prop_assert!(now >= 100 && many == asked.len());
                            return Ok(());
                        }
                        Next::Fail(_) => {
                            prop_assert!(failed == peers && asked.len() == peers);
                            return Ok(());
                        }
                    }
                }
                now += later;
                if fails && failed < asked.len() {
                    failed += 1;
                    fetch.failed(Millis(now));
                }
            }
        }
    }
}

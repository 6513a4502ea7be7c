//! One request, from its first try to its answer: when the router asks again, when it rests, when it gives up.
//!
//! A request is *resting* (no node is asked), *asking* (one node is) or *hedging* (two are, and the first good
//! answer wins). Whether it may be repeated depends on whether a node can have carried it out. A connection that
//! never opened, or a node that says "not mine" (421) or "not yet" (503 with Retry-After), has not. When a
//! connection broke after the request was sent, the node may have: then only an idempotent request is sent again.
//!
//! | state | event | next | action |
//! |---|---|---|---|
//! | Resting | `Woke` | Asking | `Ask` |
//! | Resting | `Woke`, a token is owed and there is none | Resting | `Rest` |
//! | Asking | `Nobody` (no leader for a moment) | Resting | `Rest` |
//! | Asking | `Answer`, of any kind | Over | `Deliver` |
//! | Asking | `Misdirected`, the first hint, body kept, budget left | Asking | `AskHinted` |
//! | Asking | `Misdirected` otherwise, `NotReady`, body kept | Resting | `Rest` |
//! | Asking | `NotConnected`, another can be asked | Asking | `Ask` |
//! | Asking | `NotConnected` otherwise | Resting | `Rest` |
//! | Asking | `Broken`, idempotent, body kept | Resting | `Rest` |
//! | Asking | `Misdirected`, `NotReady`, idempotent `Broken`: body not kept | Over | `GiveUp(NotKept)` |
//! | Asking | `Broken` otherwise | Over | `GiveUp(Broken)` |
//! | Asking | a row says `Ask`, `AskHinted` or `Rest`, and no try is left | Over | `GiveUp(Tries)` |
//! | Asking | `Slow`, a read, not hedged before, a try and budget left | Hedging | `Hedge` |
//! | Asking | `Slow` otherwise | Asking | `Listen` |
//! | Hedging | `Answer` that is good | Over | `Deliver` |
//! | Hedging | anything else that ends one of the two | Asking | `Listen` |
//! | Hedging | `Slow` | Hedging | `Listen` |
//! | not Over | `Late` (the deadline) | Over | `GiveUp(Deadline)` |
//! | Over | any; and `Woke` when not Resting, all but `Woke` when Resting | same | `Listen` |
//!
//! The last line is no error: answers and timers cross each other on the way.
//!
//! A try after one that reached a node takes a token of the [`Budget`], when it begins and not before: a request that ends while
//! it rests has taken none. Where a node said "not mine" or "not yet", or an idempotent request broke off, and there is no
//! token after the rest, the router does not give up: the request rests until there is one or its deadline comes. So a drain and
//! a killed node lose nothing, and R3 holds.
//!
//! Two drive this machine: the router, and a node that sends requests on for clients that ask any node.

use super::budget::Budget;
use crate::base::time::Millis;
use crate::keyspace::hash::mix;

/// How long and how often the router tries a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryPolicy {
    /// How long a request may take until its answer begins, in milliseconds.
    pub deadline_ms: u64,
    /// The first rest, in milliseconds; each later one is twice as long. Of each, half is drawn at random.
    pub rest_ms: u64,
    /// No rest is longer than this, in milliseconds, unless the node asks for a longer one.
    pub longest_rest_ms: u64,
    /// How often the router sends a request before it gives up; the first time and a hedge count.
    pub tries: u32,
}

impl Default for RetryPolicy {
    /// Ten seconds outlast a dead node's lease and the plan that follows. With rests from 10 ms to half a second they
    /// leave some 25 tries.
    fn default() -> RetryPolicy {
        RetryPolicy { deadline_ms: 10_000, rest_ms: 10, longest_rest_ms: 500, tries: 64 }
    }
}

/// What may be done with a request, as the driver knows it before the first try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestTraits {
    /// Doing it twice is as doing it once.
    pub idempotent: bool,
    /// It only reads, and hedging is on.
    pub hedged: bool,
    /// Its whole body is kept; else it cannot be sent again once sending has begun.
    pub replayable: bool,
}

/// What became of a try, or of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The rest is over, or a new map came.
    Woke,
    /// There is no node to ask: no leader, address or shard yet.
    Nobody,
    /// An answer of the service. Good is everything but a failure of the server: also "not found".
    Answer {
        /// Whether the answer is no failure of the server.
        good: bool,
    },
    /// The node does not own the key (421), so it has done nothing.
    Misdirected {
        /// The node names another owner.
        hinted: bool,
    },
    /// The node owns the key and is not ready (503 with Retry-After), so it has done nothing.
    NotReady {
        /// How long it asks us to wait, in milliseconds.
        after_ms: u64,
    },
    /// No connection opened, so the node has done nothing.
    NotConnected {
        /// Whether another replica can be asked.
        another: bool,
    },
    /// The connection broke after the request was sent: the node may have done it.
    Broken,
    /// No answer has come, and nearly all take less time.
    Slow,
    /// The deadline has come.
    Late,
}

/// What the driver of the machine does now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Choose a node and send it the request.
    Ask,
    /// Ask the node that the hint names.
    AskHinted,
    /// Wait until then, or until a new map comes; then report [`Event::Woke`].
    Rest {
        /// The time to wait until, never after the deadline.
        until: Millis,
    },
    /// Ask a second node as well.
    Hedge,
    /// Go on waiting for what is under way.
    Listen,
    /// Give the answer that came to the client.
    Deliver,
    /// Give the client an error, for this reason.
    GiveUp(Reason),
}

/// Why a request was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The connection broke: the outcome is unknown.
    Broken,
    /// The deadline passed, after this happened last.
    Deadline(LastFailure),
    /// So many tries were made; this happened last.
    Tries(LastFailure),
    /// It should be sent again, but its body was too large to be kept; this happened.
    NotKept(LastFailure),
}

/// What the last try came to before the router gave up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastFailure {
    /// Nothing: no answer came.
    None,
    /// There was no node to ask.
    Nobody,
    /// The node did not own the key (421).
    Misdirected,
    /// The node was not ready (503).
    NotReady,
    /// No connection to the node opened.
    NotConnected,
    /// The connection broke after the request was sent.
    Broken,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Resting,
    Asking,
    Hedging,
    Over,
}

/// The machine of one request. It begins by asking.
#[derive(Debug, Clone)]
pub struct Attempts {
    state: State,
    traits: RequestTraits,
    deadline: Millis,
    tries: u32,
    rests: u32,
    hint_used: bool,
    hedged: bool,
    /// The next try still needs a token.
    owes: bool,
    /// An earlier try broke off.
    may_be_done: bool,
    last_failure: LastFailure,
    seed: u64,
}

impl Attempts {
    /// A request that begins at `now`: its first action is [`Action::Ask`].
    pub fn begin(now: Millis, policy: &RetryPolicy, traits: RequestTraits, seed: u64) -> Attempts {
        Attempts {
            state: State::Asking,
            traits,
            deadline: now + policy.deadline_ms,
            tries: 1,
            rests: 0,
            hint_used: false,
            hedged: false,
            owes: false,
            may_be_done: false,
            last_failure: LastFailure::None,
            seed,
        }
    }

    /// Says whether the request is idempotent, where that was not known when it began. Before the first try is sent.
    pub fn set_idempotent(&mut self, idempotent: bool) {
        self.traits.idempotent = idempotent;
    }

    /// When [`Event::Late`] is due.
    pub fn deadline(&self) -> Millis {
        self.deadline
    }

    /// Tries so far, the first included, hedges too.
    pub fn tries(&self) -> u32 {
        self.tries
    }

    /// Whether the request may have been carried out although no answer came: some try broke off, or was
    /// still under way at the deadline.
    pub fn may_be_done(&self) -> bool {
        self.may_be_done
    }

    /// Takes the step for `event`; see the table.
    pub fn step(&mut self, now: Millis, event: Event, policy: &RetryPolicy, budget: &mut Budget) -> Action {
        let under_way = matches!(self.state, State::Asking | State::Hedging);
        self.may_be_done |= under_way && matches!(event, Event::Broken | Event::Late);
        match (self.state, event) {
            (State::Over, _) => Action::Listen,
            (_, Event::Late) => self.over(Reason::Deadline(self.last_failure)),
            (State::Resting, Event::Woke) => self.woke(now, policy, budget),
            (State::Resting, _) | (_, Event::Woke) => Action::Listen,

            (State::Hedging, Event::Answer { good: true }) | (State::Asking, Event::Answer { .. }) => {
                self.state = State::Over;
                Action::Deliver
            }
            (State::Hedging, Event::Slow) => Action::Listen,
            (State::Hedging, _) => {
                self.state = State::Asking;
                Action::Listen
            }

            (State::Asking, Event::Slow) => {
                let may_hedge = self.traits.hedged && !self.hedged && self.has_try_left(policy);
                if !may_hedge || !budget.spend(now) {
                    return Action::Listen;
                }
                (self.state, self.hedged, self.tries) = (State::Hedging, true, self.tries + 1);
                Action::Hedge
            }
            (State::Asking, Event::Nobody) => self.rest(now, 0, LastFailure::Nobody, policy),
            (State::Asking, Event::Misdirected { hinted }) => self.misdirected(now, hinted, policy, budget),
            (State::Asking, Event::NotReady { after_ms }) => {
                self.refused(now, after_ms, LastFailure::NotReady, policy)
            }
            (State::Asking, Event::NotConnected { another }) => {
                self.last_failure = LastFailure::NotConnected;
                if another {
                    self.ask(Action::Ask, policy)
                } else {
                    self.rest(now, 0, self.last_failure, policy)
                }
            }
            (State::Asking, Event::Broken) => {
                self.last_failure = LastFailure::Broken;
                if !self.traits.idempotent {
                    return self.over(Reason::Broken);
                }
                self.refused(now, 0, LastFailure::Broken, policy)
            }
        }
    }

    fn over(&mut self, reason: Reason) -> Action {
        self.state = State::Over;
        Action::GiveUp(reason)
    }

    fn has_try_left(&self, policy: &RetryPolicy) -> bool {
        self.tries < policy.tries
    }

    fn ask(&mut self, action: Action, policy: &RetryPolicy) -> Action {
        if !self.has_try_left(policy) {
            return self.over(Reason::Tries(self.last_failure));
        }
        self.tries += 1;
        (self.state, self.last_failure) = (State::Asking, LastFailure::None);
        action
    }

    fn woke(&mut self, now: Millis, policy: &RetryPolicy, budget: &mut Budget) -> Action {
        if self.owes && !budget.spend(now) {
            return self.rest(now, policy.longest_rest_ms, self.last_failure, policy);
        }
        self.owes = false;
        self.ask(Action::Ask, policy)
    }

    fn misdirected(
        &mut self,
        now: Millis,
        hinted: bool,
        policy: &RetryPolicy,
        budget: &mut Budget,
    ) -> Action {
        self.last_failure = LastFailure::Misdirected;
        let may_follow = hinted && !self.hint_used && self.traits.replayable && self.has_try_left(policy);
        if may_follow && budget.spend(now) {
            self.hint_used = true;
            return self.ask(Action::AskHinted, policy);
        }
        self.refused(now, 0, LastFailure::Misdirected, policy)
    }

    /// The node refused or broke off, after work that it had with the request: the next try takes a token, or waits until there
    /// is one.
    fn refused(
        &mut self,
        now: Millis,
        after_ms: u64,
        last_failure: LastFailure,
        policy: &RetryPolicy,
    ) -> Action {
        if !self.traits.replayable {
            return self.over(Reason::NotKept(last_failure));
        }
        self.owes = true;
        // After a rest the hints are about another map.
        self.hint_used = false;
        self.rest(now, after_ms, last_failure, policy)
    }

    /// A rest is for another try: without one, the client gets its error at once.
    fn rest(
        &mut self,
        now: Millis,
        least_ms: u64,
        last_failure: LastFailure,
        policy: &RetryPolicy,
    ) -> Action {
        if !self.has_try_left(policy) {
            return self.over(Reason::Tries(last_failure));
        }
        self.state = State::Resting;
        self.last_failure = last_failure;
        let whole = policy.rest_ms.saturating_mul(1 << self.rests);
        let whole = whole.clamp(1, policy.longest_rest_ms.max(1));
        self.rests = (self.rests + 1).min(32);
        self.seed = mix(self.seed.wrapping_add(1));
        // Half of it fixed, half random: requests that were refused together do not come back together.
        let jittered = whole / 2 + self.seed % (whole - whole / 2 + 1);
        Action::Rest { until: (now + jittered.max(least_ms)).min(self.deadline) }
    }
}

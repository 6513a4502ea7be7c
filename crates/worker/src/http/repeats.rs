//! Requests that this node sends again itself, so that its client need not ([`Sharded::sends_again`]).
//!
//! A client asks any node, and does not see which one leads. When the leader dies or hands its lead over, the node that the
//! client has asked knows best what became of the request, and hears first who leads next:
//!
//! | a try ended with | by | sent again |
//! |---|---|---|
//! | nothing was done | 503 `soon`, `unreachable`, another node's `lapsed`; 421; no connection | yes |
//! | it may have been carried out | a broken connection, a silent node; 503 `moved`, `lapsed_while_served`; 504 `unknown_outcome` | if it reads, or has a name ([`IDEMPOTENCY_KEY`]) |
//! | nothing was done, and this node cannot tell who has the key | its own `lapsed`; no such keyspace or named shard | never |
//! | an answer | any other status: its body may be on its way to the client | never |
//!
//! When it is sent again, and how often, the machine of routers decides ([`partage_core::routing::retry`]), with its deadline,
//! its rests, and its budget, of which the node has one for all clients. A try that has asked no node and no replica takes
//! nothing from it. Each try looks anew who has the key.
//!
//! What a router or another node has sent on (`partage-hop`) is tried once: they send it again themselves. What a router streams
//! has `partage-generation` alone: it cannot send that again. This node does, for half of the time, as the deadline of the router
//! would come first otherwise.
//!
//! No try begins after the deadline. A try that is under way by then is given up if the request reads, or is known as one that
//! may have been carried out. Any other write is awaited: if it were given up, the client would hear that the outcome is unknown
//! of a request of which, most likely, nothing was done.
//!
//! A body is kept if it announces its length, that is at most [`limits::KEPT_BODY_BYTES`], and all that are kept have at most
//! [`limits::KEPT_BODIES_BYTES`]. A request with any other body is streamed, and tried once.

use super::{Sharded, Target, access_of};
use crate::limits;
use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::response::Response;
use http::StatusCode;
use http::request::Parts;
use partage_clock::Clock;
use partage_core::base::time::Millis;
use partage_core::keyspace::map::Access;
use partage_core::routing::budget::{Budget, BudgetPolicy};
use partage_core::routing::retry::{Action, Attempts, Event, RequestTraits, RetryPolicy};
use partage_core::worker::gates::Verdict;
use partage_wire::json::ErrorBody;
use partage_wire::request::headers::{EPOCH, GENERATION, IDEMPOTENCY_KEY};
use partage_wire::request::unavailable;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep_until, timeout_at};
use tower::Service;

/// What the requests of a node that are sent again have in common.
#[derive(Debug)]
pub(super) struct Repeats {
    policy: RetryPolicy,
    clock: Clock,
    budget: Mutex<Budget>,
    /// Requests not added to the budget yet.
    unearned: AtomicU64,
    /// Bytes of bodies that may be kept beside those that are.
    bodies: Semaphore,
    /// How many more requests may rest so that a change wakes them. Apart from those that wait for a gate of this node, which a
    /// handover of a healthy shard needs.
    resting: Semaphore,
}

impl Repeats {
    pub(super) fn new(policy: RetryPolicy, clock: Clock) -> Repeats {
        let budget = Mutex::new(Budget::new(BudgetPolicy::default()));
        let bodies = Semaphore::new(limits::KEPT_BODIES_BYTES);
        let resting = Semaphore::new(limits::WAITERS);
        Repeats { policy, clock, budget, unearned: AtomicU64::new(0), bodies, resting }
    }

    fn begin(&self, begun: Millis, kept: &KeptRequest<'_>) -> Attempts {
        let mut policy = self.policy.clone();
        if kept.is_streamed_by_router() {
            policy.deadline_ms /= 2;
        }
        Attempts::begin(begun, &policy, kept.traits(), partage_random::seed())
    }

    /// The room for a body of that length, while it is kept; none: it is not kept.
    fn room_for(&self, announced: Option<u64>) -> Option<SemaphorePermit<'_>> {
        let bytes = announced.filter(|bytes| *bytes <= limits::KEPT_BODY_BYTES as u64)?;
        self.bodies.try_acquire_many(u32::try_from(bytes).ok()?).ok()
    }

    fn step(&self, attempts: &mut Attempts, event: Event) -> Action {
        let mut budget = self.budget.lock().unwrap_or_else(PoisonError::into_inner);
        budget.earn(self.unearned.swap(0, Ordering::Relaxed));
        attempts.step(self.clock.now(), event, &self.policy, &mut budget)
    }
}

/// What one try has come to: the response for the client, if there is no other try, and what it says of the request.
pub(super) struct Tried {
    pub(super) response: Response,
    pub(super) event: Event,
}

impl Tried {
    /// A try with an answer that goes to the client.
    pub(super) fn answered(response: Response) -> Tried {
        Tried { response, event: Event::Answer { good: true } }
    }

    /// A try in which no node or replica was asked, which costs no token.
    pub(super) fn not_sent(response: Response) -> Tried {
        Tried { response, event: Event::Nobody }
    }

    /// A try without an outcome: the request may have been carried out.
    pub(super) fn unknown(response: Response) -> Tried {
        Tried { response, event: Event::Broken }
    }
}

/// A request whose body is kept.
struct KeptRequest<'a> {
    target: &'a Target,
    access: Access,
    parts: Parts,
    body: Bytes,
}

impl KeptRequest<'_> {
    fn again(&self) -> (Parts, Body) {
        (self.parts.clone(), Body::from(self.body.clone()))
    }

    fn is_read(&self) -> bool {
        access_of(&self.parts.method) == Access::Read
    }

    /// Whether a router has sent it and cannot send it again: else it would have `partage-hop`. The router waits until its own
    /// deadline, which began to count before; then it cannot say what the last refusal was.
    fn is_streamed_by_router(&self) -> bool {
        self.parts.headers.contains_key(GENERATION)
    }

    fn traits(&self) -> RequestTraits {
        let idempotent = self.is_read() || self.parts.headers.contains_key(IDEMPOTENCY_KEY);
        RequestTraits { idempotent, hedged: false, replayable: true }
    }
}

impl Sharded {
    /// Answers a request of a client, by as many tries as it takes.
    pub(super) async fn answer_repeatedly<S>(
        &self,
        repeats: &Repeats,
        (target, access): (&Target, Access),
        (parts, body): (Parts, Body),
        inner: S,
    ) -> Response
    where
        S: Service<axum::extract::Request, Response = Response, Error = Infallible> + Clone + Send,
        S::Future: Send,
    {
        let Some(_room) = repeats.room_for(body.size_hint().exact()) else {
            return self.attempt((target, access), (parts, body), self.hold_until(), inner).await.response;
        };
        let body = match to_bytes(body, limits::KEPT_BODY_BYTES).await {
            Ok(body) => body,
            Err(error) => {
                let why = format!("the body of the request broke off: {error}");
                return self
                    .refusal(StatusCode::BAD_REQUEST, ErrorBody::told("malformed", why, "send it whole"));
            }
        };
        repeats.unearned.fetch_add(1, Ordering::Relaxed);
        // A client may take any time to send the body.
        let begun = repeats.clock.now();
        let kept = KeptRequest { target, access, parts, body };
        let first = self.attempt((target, access), kept.again(), self.hold_until(), inner.clone()).await;
        if matches!(first.event, Event::Answer { .. }) {
            return first.response;
        }
        // Seldom, so it does not make the usual future larger.
        Box::pin(self.go_on(repeats, kept, inner, begun, first)).await
    }

    /// What a client gets whose request has no answer by its first try. How long a request may take is the service's affair:
    /// the deadline ends no first try, and later ones only of a request that reads or may have been carried out already.
    async fn go_on<S>(
        &self,
        repeats: &Repeats,
        kept: KeptRequest<'_>,
        inner: S,
        begun: Millis,
        first: Tried,
    ) -> Response
    where
        S: Service<axum::extract::Request, Response = Response, Error = Infallible> + Clone + Send,
        S::Future: Send,
    {
        let of = (kept.target, kept.access);
        let mut attempts = repeats.begin(begun, &kept);
        let deadline = repeats.clock.at(attempts.deadline());
        let mut action = repeats.step(&mut attempts, first.event);
        let mut last = first;
        loop {
            action = match action {
                Action::Ask | Action::AskHinted => {
                    let until = self.hold_until().min(deadline);
                    let next = self.attempt(of, kept.again(), until, inner.clone());
                    let tried = if kept.is_read() || attempts.may_be_done() {
                        timeout_at(deadline, next).await.ok()
                    } else {
                        Some(next.await)
                    };
                    let event = tried.as_ref().map_or(Event::Late, |tried| tried.event);
                    last = tried.unwrap_or(last);
                    repeats.step(&mut attempts, event)
                }
                // The client asks another node sooner than this one, which is about to end, hears who leads.
                Action::Rest { .. } if self.worker.has_ended() => break,
                Action::Rest { until } => {
                    let is_late = until >= attempts.deadline();
                    let has_changed = self.rest(repeats, of, repeats.clock.at(until)).await;
                    let event = if is_late && !has_changed { Event::Late } else { Event::Woke };
                    repeats.step(&mut attempts, event)
                }
                Action::Deliver | Action::GiveUp(_) | Action::Hedge | Action::Listen => break,
            };
        }
        self.last_word(kept.is_read(), attempts.may_be_done(), last)
    }

    /// Waits until `until`, or until this node hears otherwise of who has the key; says whether it has.
    async fn rest(&self, repeats: &Repeats, (target, access): (&Target, Access), until: Instant) -> bool {
        let shared = self.worker.shared();
        let look = || {
            let published = shared.published.load();
            published.gates.judge(shared.clock.now(), &target.keyspace, &target.key, access)
        };
        let before = look();
        let is_same = |seen: &Verdict| *seen == before;
        let now = shared.await_change_among(&repeats.resting, until, look, is_same).await;
        let has_changed = now != before;
        if !has_changed {
            // The time has come already, unless too many requests rest.
            sleep_until(until).await;
        }
        has_changed
    }

    /// The response to a request after its last try. That an earlier one may have carried it out is not forgotten: only an
    /// outcome of the service says more than that.
    fn last_word(&self, is_read: bool, may_be_done: bool, last: Tried) -> Response {
        let Tried { response, event } = last;
        let is_outcome = response.headers().contains_key(EPOCH) && !response.status().is_server_error();
        if is_read || !may_be_done || is_outcome || event == Event::Broken {
            return response;
        }
        let text = "an earlier try of the request was not answered: it may or may not have been carried out";
        self.broken(Access::Write, text)
    }

    /// What an answer says of its try, whether the service has given it here or at another node. The body of a refusal is read
    /// for its kind; every other answer is passed on as it comes.
    pub(super) async fn judged(&self, access: Access, response: Response) -> Tried {
        match response.status() {
            StatusCode::MISDIRECTED_REQUEST if !response.headers().contains_key(EPOCH) => {
                return Tried { response, event: Event::Misdirected { hinted: false } };
            }
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT if is_short(response.body()) => {}
            _ => return Tried::answered(response),
        }
        let (parts, body) = response.into_parts();
        match to_bytes(body, limits::BUFFERED_BYTES).await {
            Ok(body) => {
                let event = event_of(parts.status, &body);
                Tried { response: Response::from_parts(parts, Body::from(body)), event }
            }
            Err(error) => {
                let text =
                    format!("the owner's answer broke off: the request may have been carried out: {error}");
                Tried::unknown(self.broken(access, &text))
            }
        }
    }
}

/// What a refusal says of its try.
fn event_of(status: StatusCode, body: &[u8]) -> Event {
    use unavailable::{LAPSED, LAPSED_WHILE_SERVED, MOVED, SOON, UNKNOWN_OUTCOME, UNREACHABLE};
    let kind = unavailable::kind_of(body).unwrap_or_default();
    match (status, kind.as_str()) {
        (StatusCode::SERVICE_UNAVAILABLE, SOON | LAPSED | UNREACHABLE) => Event::NotReady { after_ms: 0 },
        (StatusCode::SERVICE_UNAVAILABLE, MOVED | LAPSED_WHILE_SERVED)
        | (StatusCode::GATEWAY_TIMEOUT, UNKNOWN_OUTCOME) => Event::Broken,
        _ => Event::Answer { good: false },
    }
}

pub(super) fn is_short(body: &Body) -> bool {
    body.size_hint().upper().is_some_and(|bytes| bytes <= limits::BUFFERED_BYTES as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r1_bodies_are_kept_while_all_of_them_have_room() {
        let repeats = Repeats::new(RetryPolicy::default(), Clock::start());
        let largest = limits::KEPT_BODY_BYTES as u64;
        assert!(repeats.room_for(Some(largest + 1)).is_none() && repeats.room_for(None).is_none());
        let many = limits::KEPT_BODIES_BYTES / limits::KEPT_BODY_BYTES;
        let mut kept: Vec<_> = (0..many).filter_map(|_| repeats.room_for(Some(largest))).collect();
        assert_eq!(kept.len(), many);
        assert!(repeats.room_for(Some(1)).is_none(), "streamed, and tried once");
        assert!(repeats.room_for(Some(0)).is_some(), "nothing is kept");
        kept.pop();
        assert!(repeats.room_for(Some(largest)).is_some());
    }

    #[test]
    fn a_refusal_says_by_its_kind_whether_the_request_was_begun() {
        let (refused, timeout) = (StatusCode::SERVICE_UNAVAILABLE, StatusCode::GATEWAY_TIMEOUT);
        let not_begun = Event::NotReady { after_ms: 0 };
        for (status, kind, event) in [
            (refused, unavailable::SOON, not_begun),
            (refused, unavailable::LAPSED, not_begun),
            (refused, unavailable::UNREACHABLE, not_begun),
            (refused, unavailable::MOVED, Event::Broken),
            (refused, unavailable::LAPSED_WHILE_SERVED, Event::Broken),
            (timeout, unavailable::UNKNOWN_OUTCOME, Event::Broken),
            // The replica has waited for these to pass.
            (refused, unavailable::TOO_FEW_IN_SYNC, Event::Answer { good: false }),
            (refused, unavailable::BUSY, Event::Answer { good: false }),
            // Words of the service, whatever it means by them.
            (timeout, unavailable::SOON, Event::Answer { good: false }),
            (refused, unavailable::UNKNOWN_OUTCOME, Event::Answer { good: false }),
            (refused, "closed on sundays", Event::Answer { good: false }),
        ] {
            let body = ErrorBody::told(kind, "why", "look").bytes();
            assert_eq!(event_of(status, &body), event, "{status} {kind}");
        }
        assert_eq!(event_of(refused, b"soon"), Event::Answer { good: false }, "it is no error of a node");
    }
}

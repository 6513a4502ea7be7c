//! Carries out a request: the driver of `core`'s machine ([`partage_core::routing::retry`]).
//!
//! It looks up, chooses, asks, reports events to the machine, and does the machine's actions. It decides nothing
//! itself. A [`Caller`] has connections and a budget of its own; the proxy has one for each thread.
//!
//! A seldom step (a new connection, a rest, a hedge) is boxed where it is awaited, so that the usual
//! future stays small: it is moved several times.

pub mod ask;
pub mod body;
pub mod pool;
mod request_state;

use crate::counters::Counters;
use crate::error::CallError;
use crate::options::CallOptions;
use ask::{Outcome, Target, ask};
use body::{AnswerBody, Outgoing};
use futures::future::BoxFuture;
use http::{Request, Response};
use partage_clock::Clock;
use partage_core::base::name::KeyspaceName;
use partage_core::base::time::Millis;
use partage_core::keyspace::KeyspaceKind;
use partage_core::keyspace::hash::mix;
use partage_core::keyspace::map::Access;
use partage_core::keyspace::sharding::Sharding;
use partage_core::routing::budget::Budget;
use partage_core::routing::choose::{FAILED_MS, HintedNode, Preference, choose, follow, has_choice};
use partage_core::routing::pace::{Hedging, Pace};
use partage_core::routing::retry::{Action, Event, Reason, RequestTraits};
use partage_core::routing::routes::NoRoute;
use partage_maps::Cache;
use pool::Pools;
use request_state::RequestState;
use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Sleep, sleep, sleep_until};

/// Sends each request to its key's node.
#[derive(Debug)]
pub struct Caller {
    cache: Arc<Cache>,
    options: CallOptions,
    clock: Clock,
    pools: Arc<Pools>,
    budget: Mutex<Budget>,
    pace: Mutex<Pace>,
    seeds: AtomicU64,
    in_flight: AtomicUsize,
    counters: Counters,
}

/// What a shard's route was, to see whether it has changed: shard, epoch, first node, replicas.
type RouteSnapshot = Option<(u64, u64, Option<u32>, usize)>;

/// An extension of answers: `host:port` of the node.
#[derive(Debug, Clone)]
pub struct AnsweredBy(pub Arc<str>);

/// A try under way beside another.
type Trying<'a> = BoxFuture<'a, (Target, Outcome)>;

struct InFlightGuard<'a>(&'a AtomicUsize);

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Caller {
    pub fn new(cache: Arc<Cache>, options: CallOptions, clock: Clock) -> Caller {
        Caller {
            cache,
            clock,
            pools: Arc::default(),
            budget: Mutex::new(Budget::new(options.budget)),
            pace: Mutex::default(),
            seeds: AtomicU64::new(partage_random::seed()),
            in_flight: AtomicUsize::new(0),
            counters: Counters::default(),
            options,
        }
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    pub fn now(&self) -> Millis {
        self.clock.now()
    }

    /// How long a request may take until its answer begins, in milliseconds.
    pub fn deadline_ms(&self) -> u64 {
        self.options.retry.deadline_ms
    }

    /// Its connections, to be swept from time to time.
    pub fn pools(&self) -> &Arc<Pools> {
        &self.pools
    }

    /// Sends `request` to the node that has `key`, and gives the answer, whose body still comes in.
    pub async fn request(
        &self,
        request: Request<Outgoing>,
        keyspace: &str,
        key: &[u8],
        access: Access,
    ) -> Result<Response<AnswerBody>, CallError> {
        self.request_first(request, (keyspace, key, access), None).await
    }

    /// The same, but asks the node at `first` before all others, whether or not it has the key. The answer names its
    /// node by [`AnsweredBy`].
    pub async fn request_first(
        &self,
        request: Request<Outgoing>,
        of: (&str, &[u8], Access),
        first: Option<&str>,
    ) -> Result<Response<AnswerBody>, CallError> {
        let before = self.in_flight.fetch_add(1, Ordering::Relaxed);
        let _guard = InFlightGuard(&self.in_flight);
        if before >= self.options.in_flight {
            self.counters.failed();
            return Err(CallError::Full { limit: self.options.in_flight });
        }
        self.counters.asked();
        let answer = self.carry(request, of, first).await;
        match &answer {
            Ok(answer) => self.counters.answered(answer.status()),
            Err(_) => self.counters.failed(),
        }
        answer
    }

    async fn carry(
        &self,
        request: Request<Outgoing>,
        of: (&str, &[u8], Access),
        first: Option<&str>,
    ) -> Result<Response<AnswerBody>, CallError> {
        let seed = mix(self.seeds.fetch_add(1, Ordering::Relaxed));
        let now = self.clock.now();
        let kind = self.kind_of(of.0);
        let mut state = RequestState::prepare(request, of, kind, &self.options, now, seed).await?;
        state.hint = first.map(|address| self.at(address));
        let mut deadline = pin!(sleep_until(self.clock.at(state.attempts.deadline())));
        let mut action = Action::Ask;
        loop {
            action = match action {
                Action::Ask | Action::AskHinted => self.ask(&mut state, deadline.as_mut()).await?,
                Action::Rest { until } => Box::pin(self.rest(&mut state, until, deadline.as_mut())).await,
                Action::Deliver => match state.answer.take() {
                    Some(answer) if state.conceals(&answer) => return state.end(Reason::Broken),
                    Some(answer) => return Ok(answer),
                    None => self.step(&mut state, Event::Late),
                },
                Action::GiveUp(reason) => return state.end(reason),
                // Nothing is under way: while two are asked, `ask_both` listens itself.
                Action::Hedge | Action::Listen => {
                    deadline.as_mut().await;
                    self.step(&mut state, Event::Late)
                }
            };
        }
    }

    /// The addresses of the nodes that have shards of `keyspace`, but for those that have failed lately. None: there are
    /// more than `most` nodes, or the keyspace is not known.
    pub fn reachable_nodes(&self, keyspace: &KeyspaceName, most: usize) -> Option<BTreeSet<Arc<str>>> {
        let routes = self.cache.routes();
        let keyspace = routes.keyspace(keyspace.as_str())?;
        let now = self.clock.now();
        let mut nodes = BTreeMap::new();
        for replica in routes.routes_of(keyspace).flat_map(|route| route.replicas()) {
            nodes.insert(replica.number, replica.node);
            if nodes.len() > most {
                return None;
            }
        }
        let has_failed = |number| self.pools.failed_at(number).is_some_and(|at| now.since(at) < FAILED_MS);
        nodes.retain(|number, _| !has_failed(*number));
        Some(nodes.into_values().map(|node| Arc::from(node.address.as_str())).collect())
    }

    fn kind_of(&self, keyspace: &str) -> Option<KeyspaceKind> {
        let routes = self.cache.routes();
        let keyspace = routes.keyspace(keyspace)?;
        Some(keyspace.brief().kind)
    }

    /// The node at an address, as the maps have it if they do.
    fn at(&self, address: &str) -> HintedNode {
        let routes = self.cache.routes();
        let mut nodes = routes.nodes().iter().flatten().filter_map(|node| node.at.clone());
        let known = nodes.find(|at| at.address == address);
        known.map_or(HintedNode::Told { address: address.to_owned() }, HintedNode::Known)
    }

    fn step(&self, state: &mut RequestState<'_>, event: Event) -> Action {
        let mut budget = self.budget.lock().unwrap_or_else(PoisonError::into_inner);
        budget.earn(self.counters.take_unearned());
        let action = state.attempts.step(self.clock.now(), event, &self.options.retry, &mut budget);
        drop(budget);
        match action {
            Action::Ask | Action::AskHinted => self.counters.retried(),
            Action::Hedge => self.counters.hedged(),
            Action::Rest { .. } | Action::Listen | Action::Deliver | Action::GiveUp(_) => {}
        }
        action
    }

    async fn ask(
        &self,
        state: &mut RequestState<'_>,
        mut deadline: Pin<&mut Sleep>,
    ) -> Result<Action, CallError> {
        let Some(target) = self.target(state)? else { return Ok(self.step(state, Event::Nobody)) };
        // The request came before the first map.
        if !state.knows_kind()
            && let Some(kind) = self.kind_of(state.keyspace)
        {
            state.learn(kind);
        }
        let Some(request) = state.request() else { return Ok(self.step(state, Event::Broken)) };
        if state.traits.hedged && target.choice {
            return Ok(Box::pin(self.ask_both(state, target, request, deadline)).await);
        }
        let RequestTraits { idempotent, replayable, .. } = state.traits;
        let outcome = tokio::select! {
            biased;
            outcome = ask(&self.pools, &target, request, !replayable, idempotent) => Some(outcome),
            () = &mut deadline => None,
        };
        match outcome {
            Some(outcome) => Ok(self.settle(state, target, outcome)),
            None => {
                state.last = Some(target);
                Ok(self.step(state, Event::Late))
            }
        }
    }

    fn try_one(&self, target: Target, request: Request<Outgoing>, idempotent: bool) -> Trying<'_> {
        Box::pin(async move {
            let outcome = ask(&self.pools, &target, request, false, idempotent).await;
            (target, outcome)
        })
    }

    /// Asks one, and another when the first is slow.
    async fn ask_both(
        &self,
        state: &mut RequestState<'_>,
        first: Target,
        request: Request<Outgoing>,
        mut deadline: Pin<&mut Sleep>,
    ) -> Action {
        let (began, idempotent, begun) = (self.clock.micros(), state.traits.idempotent, first.number());
        let mut slow = pin!(sleep(self.hedge_after()));
        let mut may_hedge = true;
        let mut one = self.try_one(first, request, idempotent);
        let mut other: Option<Trying<'_>> = None;
        loop {
            let done = tokio::select! {
                biased;
                done = &mut one => {
                    one = other.take().unwrap_or_else(|| Box::pin(pending()));
                    Some(done)
                }
                done = async { match &mut other { Some(other) => other.await, None => pending().await } } => {
                    other = None;
                    Some(done)
                }
                () = &mut deadline => return self.step(state, Event::Late),
                () = &mut slow, if may_hedge => None,
            };
            let Some((target, outcome)) = done else {
                may_hedge = false;
                if let Some((second, request)) = self.second(state, begun)
                    && self.step(state, Event::Slow) == Action::Hedge
                {
                    other = Some(self.try_one(second, request, idempotent));
                }
                continue;
            };
            if matches!(outcome, Outcome::Answer { .. }) {
                let took = self.clock.micros() - began;
                self.pace.lock().unwrap_or_else(PoisonError::into_inner).saw(took);
            }
            let action = self.settle(state, target, outcome);
            if action != Action::Listen {
                return action;
            }
        }
    }

    /// Another replica than the first, and the request for it.
    fn second(
        &self,
        state: &mut RequestState<'_>,
        first: Option<u32>,
    ) -> Option<(Target, Request<Outgoing>)> {
        state.avoided.extend(first);
        let target = self.target(state).ok()??;
        if target.number() == first {
            return None;
        }
        Some((target, state.request()?))
    }

    fn hedge_after(&self) -> Duration {
        match self.options.hedging {
            Hedging::AfterMs(ms) => Duration::from_millis(ms),
            Hedging::Slowest | Hedging::Off => {
                let pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
                // Timers are no finer than a millisecond.
                Duration::from_micros(pace.p95_us().max(1_000))
            }
        }
    }

    /// The node to ask now; none if there is none yet.
    fn target(&self, state: &mut RequestState<'_>) -> Result<Option<Target>, CallError> {
        let routes = self.cache.routes();
        let route = match routes.route(state.keyspace, state.key) {
            Ok(route) => route,
            Err(NoRoute::Keyspace { .. }) if !self.cache.has_heard() => return Ok(None),
            Err(missing @ NoRoute::Keyspace { .. }) => return Err(CallError::NoRoute(missing)),
            Err(missing @ NoRoute::Shard { .. }) => {
                let keyspace = routes.keyspace(state.keyspace);
                let named = keyspace.is_some_and(|k| k.brief().sharding == Sharding::Named);
                return if named { Err(CallError::NoRoute(missing)) } else { Ok(None) };
            }
        };
        let choice = state.access == Access::Read && has_choice(&route);
        let (place, told) = match state.hint.take() {
            Some(HintedNode::Told { address }) => (None, Some(address)),
            Some(HintedNode::Known(node)) => {
                // The hinted node need not be in our route; its number is needed for its connections.
                let known = |at: &Option<_>| at.as_ref().is_some_and(|at| Arc::ptr_eq(at, &node));
                let mut nodes = routes.nodes().iter();
                let number = nodes.position(|entry| entry.as_ref().is_some_and(|entry| known(&entry.at)));
                match number {
                    Some(number) => (Some((number as u32, node)), None),
                    None => (None, Some(node.address.clone())),
                }
            }
            None => {
                let preference = Preference {
                    zone: self.options.zone.as_ref(),
                    now: self.clock.now(),
                    seed: state.seed,
                    failed: |number| self.pools.failed_at(number),
                    avoided: &state.avoided,
                };
                match choose(&route, state.access, &preference) {
                    Some(replica) => (Some((replica.number, replica.node.clone())), None),
                    None => return Ok(None),
                }
            }
        };
        Ok(Some(Target { place, told, shard: route.shard(), generation: route.generation(), choice }))
    }

    /// Reports a try's outcome to the machine.
    fn settle(&self, state: &mut RequestState<'_>, target: Target, outcome: Outcome) -> Action {
        let event = match outcome {
            Outcome::Answer { mut answer, sent_on } => {
                answer.extensions_mut().insert(AnsweredBy(target.address().into()));
                if sent_on {
                    self.lags(state.keyspace, target.generation.sequence + 1);
                }
                let good = !answer.status().is_server_error();
                state.answer = Some(answer);
                Event::Answer { good }
            }
            Outcome::Misdirected(hint) => {
                self.counters.misdirected();
                let routes = self.cache.routes();
                let followed = routes.route(state.keyspace, state.key).ok().map(|route| {
                    let nodes = || routes.nodes().iter().flatten();
                    let known = |id: &_| nodes().find(|node| node.id == *id)?.at.clone();
                    follow(&hint, &route, target.node(), known)
                });
                if followed.as_ref().is_some_and(|followed| followed.refresh) {
                    self.lags(state.keyspace, hint.sequence.unwrap_or_default());
                }
                state.hint = followed.and_then(|followed| followed.to);
                Event::Misdirected { hinted: state.hint.is_some() }
            }
            Outcome::NotReady { after_ms } => Event::NotReady { after_ms },
            Outcome::NotConnected { request, why } => {
                tracing::debug!(address = target.address(), why, "no connection");
                self.avoid(state, &target);
                state.put_back(*request);
                Event::NotConnected { another: self.has_another(state) }
            }
            Outcome::Broken(error) => {
                tracing::debug!(address = target.address(), %error, "a request broke off");
                self.avoid(state, &target);
                Event::Broken
            }
            // The node is well: its lead may have gone to another one.
            Outcome::Unknown(answer) => {
                state.unknown = Some(answer);
                Event::Broken
            }
        };
        state.last = Some(target);
        let action = self.step(state, event);
        if action != Action::AskHinted {
            state.hint = None;
        }
        action
    }

    fn avoid(&self, state: &mut RequestState<'_>, target: &Target) {
        if let Some(number) = target.number() {
            self.pools.failed(number, self.clock.now());
            state.avoided.push(number);
        }
    }

    fn has_another(&self, state: &RequestState<'_>) -> bool {
        let routes = self.cache.routes();
        state.access == Access::Read
            && routes
                .route(state.keyspace, state.key)
                .is_ok_and(|route| route.replicas().any(|replica| !state.avoided.contains(&replica.number)))
    }

    fn lags(&self, keyspace: &str, sequence: u64) {
        if let Ok(keyspace) = KeyspaceName::new(keyspace) {
            self.cache.refresh(keyspace, sequence);
        }
    }

    fn route_snapshot(&self, state: &RequestState<'_>) -> RouteSnapshot {
        let routes = self.cache.routes();
        let route = routes.route(state.keyspace, state.key).ok()?;
        let first = route.replicas().next().map(|replica| replica.number);
        Some((route.shard().0, route.epoch().0, first, route.replicas().count()))
    }

    /// Waits until `until`, or for another route, which may have the replica that was missing.
    async fn rest(
        &self,
        state: &mut RequestState<'_>,
        until: Millis,
        mut deadline: Pin<&mut Sleep>,
    ) -> Action {
        let late = until >= state.attempts.deadline();
        let mut changes = self.cache.changes();
        let before = self.route_snapshot(state);
        let mut pause = pin!(sleep_until(self.clock.at(until)));
        let event = loop {
            tokio::select! {
                () = &mut deadline => break Event::Late,
                () = &mut pause, if !late => break Event::Woke,
                changed = changes.changed() => {
                    // An error cannot be: the cache outlives its callers.
                    if changed.is_err() || self.route_snapshot(state) != before {
                        break Event::Woke;
                    }
                }
            }
        };
        if self.route_snapshot(state) != before {
            state.avoided.clear();
        }
        self.step(state, event)
    }
}

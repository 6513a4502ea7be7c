//! Notices: they tell servers what became of a change, until the server has heard, a later notice has taken the place,
//! or the server has long been away (T9).
//!
//! A server that does not answer rests, with all its notices, for longer each time. Every server looks at the head by
//! itself now and then, and when it starts; so a notice that is not told costs it time, and nothing else.

use crate::limits::{NOTICES, TELL_ABSENT, TELL_AGAIN, TELL_AGAIN_MOST, TELLING, TELLING_ONE};
use crate::peers::Peers;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_service::metadata::change::Notice;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

/// The keyspace, and whether it is a commit: the latest notice of each waits.
type Subject = (KeyspaceName, bool);

/// What each server is to be told. A server that is to be told nothing is not in it.
type ByServer = BTreeMap<NodeId, BTreeMap<Subject, Notice>>;

#[derive(Default)]
struct PendingNotices {
    notices: Mutex<ByServer>,
    changed: Notify,
}

impl PendingNotices {
    fn lock(&self) -> MutexGuard<'_, ByServer> {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells notices. Copies share the queue; with the last one it ends.
#[derive(Clone)]
pub struct Notices(Arc<Inner>);

struct Inner {
    pending: Arc<PendingNotices>,
    task: AbortHandle,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Notices {
    /// To the servers that `peers` knows. Must be called in a tokio runtime.
    pub fn start(peers: Peers) -> Notices {
        let pending = Arc::new(PendingNotices::default());
        let task = tokio::spawn(deliver_all(pending.clone(), peers)).abort_handle();
        Notices(Arc::new(Inner { pending, task }))
    }

    /// Has `servers` told.
    pub fn tell(&self, keyspace: &KeyspaceName, servers: &[NodeId], notice: Notice) {
        let is_commit = matches!(notice, Notice::Committed(_));
        let mut notices = self.0.pending.lock();
        for server in servers {
            let subject = (keyspace.clone(), is_commit);
            let is_known = notices.get(server).is_some_and(|waiting| waiting.contains_key(&subject));
            if is_known || count(&notices) < NOTICES {
                notices.entry(server.clone()).or_default().insert(subject, notice);
            } else {
                // Every server looks at the head by itself, too.
                tracing::warn!(%keyspace, %server, "too many notices wait; this one is dropped");
            }
        }
        drop(notices);
        self.0.pending.changed.notify_one();
    }

    /// How many have not been heard yet.
    pub fn waiting(&self) -> usize {
        count(&self.0.pending.lock())
    }
}

fn count(notices: &ByServer) -> usize {
    notices.values().map(BTreeMap::len).sum()
}

/// A server that did not hear.
#[derive(Debug)]
struct Rest {
    until: Instant,
    /// How long it rests when it does not hear again.
    next: Duration,
    /// Since when it is not there.
    absent: Option<Instant>,
}

impl Rest {
    fn fresh(now: Instant) -> Rest {
        Rest { until: now, next: TELL_AGAIN, absent: None }
    }

    /// The server rests from now on. Calls that failed together count once.
    fn begin(&mut self, now: Instant) {
        if self.until <= now {
            self.until = now + self.next;
            self.next = (2 * self.next).min(TELL_AGAIN_MOST);
        }
    }
}

/// Calls under way, and servers that rest.
#[derive(Default)]
struct Deliveries {
    busy: BTreeMap<NodeId, BTreeSet<Subject>>,
    resting: BTreeMap<NodeId, Rest>,
    /// What each server was told last: the others have their turn before that has it again.
    last: BTreeMap<NodeId, Subject>,
}

impl Deliveries {
    /// Notices to be told now, `room` at most: a server that does not answer takes no other server's place. Drops those
    /// of servers that have long been away.
    fn begin(
        &mut self,
        notices: &mut ByServer,
        is_there: impl Fn(&NodeId) -> bool,
        room: usize,
        now: Instant,
    ) -> Vec<(NodeId, Subject, Notice)> {
        self.resting.retain(|server, _| notices.contains_key(server));
        self.last.retain(|server, _| notices.contains_key(server));
        notices.retain(|server, _| self.keeps(server, is_there(server), now));
        let mut begun = Vec::new();
        for (server, waiting) in notices.iter().filter(|(server, _)| is_there(server)) {
            let rest = self.resting.get(server).filter(|rest| rest.until > now);
            let busy = self.busy.entry(server.clone()).or_default();
            while rest.is_none()
                && begun.len() < room
                && busy.len() < TELLING_ONE
                && let Some((subject, notice)) = next(waiting, self.last.get(server), busy)
            {
                busy.insert(subject.clone());
                self.last.insert(server.clone(), subject.clone());
                begun.push((server.clone(), subject.clone(), *notice));
            }
        }
        self.busy.retain(|_, busy| !busy.is_empty());
        begun
    }

    /// Notes whether a server is there; returns whether its notices are kept.
    fn keeps(&mut self, server: &NodeId, is_there: bool, now: Instant) -> bool {
        if is_there {
            self.resting.get_mut(server).into_iter().for_each(|rest| rest.absent = None);
            return true;
        }
        let rest = self.resting.entry(server.clone()).or_insert_with(|| Rest::fresh(now));
        rest.begin(now);
        if now < *rest.absent.get_or_insert(now) + TELL_ABSENT {
            return true;
        }
        tracing::warn!(%server, "this metadata server has long been away: what waits for it is dropped");
        self.resting.remove(server);
        false
    }

    fn end(&mut self, server: &NodeId, subject: &Subject, is_heard: bool, now: Instant) {
        if let Some(busy) = self.busy.get_mut(server) {
            busy.remove(subject);
        }
        match is_heard {
            true => drop(self.resting.remove(server)),
            false => self.resting.entry(server.clone()).or_insert_with(|| Rest::fresh(now)).begin(now),
        }
    }

    /// When a rest ends next.
    fn next_rest(&self, now: Instant) -> Option<Instant> {
        self.resting.values().map(|rest| rest.until).filter(|until| *until > now).min()
    }
}

/// The notice whose turn it is after `last`, of those that are not under way.
fn next<'a>(
    waiting: &'a BTreeMap<Subject, Notice>,
    last: Option<&Subject>,
    busy: &BTreeSet<Subject>,
) -> Option<(&'a Subject, &'a Notice)> {
    let after = last.map_or(Bound::Unbounded, Bound::Excluded);
    let later = waiting.range((after, Bound::Unbounded));
    later.chain(waiting).find(|(subject, _)| !busy.contains(*subject))
}

async fn deliver_all(pending: Arc<PendingNotices>, peers: Peers) {
    let (mut deliveries, mut calls) = (Deliveries::default(), FuturesUnordered::new());
    loop {
        let now = Instant::now();
        let room = TELLING.saturating_sub(calls.len());
        let begun = deliveries.begin(&mut pending.lock(), |server| peers.is_there(server), room, now);
        for (server, subject, notice) in begun {
            let peers = peers.clone();
            calls.push(async move {
                (peers.tell(&server, &subject.0, notice).await.is_ok(), server, subject, notice)
            });
        }
        tokio::select! {
            Some((is_heard, server, subject, notice)) = calls.next() => {
                deliveries.end(&server, &subject, is_heard, Instant::now());
                if is_heard {
                    heard(&mut pending.lock(), &server, &subject, notice);
                }
            }
            () = pending.changed.notified() => {}
            () = rest(deliveries.next_rest(now)) => {}
        }
    }
}

/// Forgets a notice, unless a later one has come in between, which is still to be told.
fn heard(notices: &mut ByServer, server: &NodeId, subject: &Subject, notice: Notice) {
    let Some(waiting) = notices.get_mut(server) else { return };
    if waiting.get(subject) == Some(&notice) {
        waiting.remove(subject);
    }
    if waiting.is_empty() {
        notices.remove(server);
    }
}

async fn rest(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::base::id::Generation;

    fn server(name: &str) -> NodeId {
        name.parse().unwrap()
    }

    fn of(server: &str, keyspaces: usize) -> (NodeId, BTreeMap<Subject, Notice>) {
        let notice = Notice::Committed(Generation::default());
        let of = |number: usize| ((format!("k{number:03}").parse().unwrap(), true), notice);
        (server.parse().unwrap(), (0..keyspaces).map(of).collect())
    }

    #[test]
    fn a_server_that_does_not_answer_takes_no_other_servers_place() {
        let (mut deliveries, now) = (Deliveries::default(), Instant::now());
        let mut notices = ByServer::from([of("hung", 100), of("well", 1)]);
        let begun = deliveries.begin(&mut notices, |_| true, TELLING, now);
        let to = |name: &str| begun.iter().filter(|begun| begun.0.as_str() == name).count();
        assert_eq!((to("hung"), to("well")), (TELLING_ONE, 1));
        assert!(deliveries.begin(&mut notices, |_| true, TELLING, now).is_empty(), "they are under way");
        // Where it hears, the others have their turn.
        deliveries.end(&begun[0].0, &begun[0].1, true, now);
        heard(&mut notices, &begun[0].0, &begun[0].1, begun[0].2);
        let more = deliveries.begin(&mut notices, |_| true, TELLING, now);
        assert_eq!((more.len(), more[0].1.0.as_str()), (1, "k008"));
    }

    #[test]
    fn a_server_that_does_not_hear_rests_for_longer_each_time() {
        let (mut deliveries, mut now) = (Deliveries::default(), Instant::now());
        let (mut notices, mut rests) = (ByServer::from([of("hung", 100)]), Vec::new());
        let (mut all, mut tried) = (BTreeSet::new(), 0);
        for _ in 0..20 {
            let begun = deliveries.begin(&mut notices, |_| true, TELLING, now);
            for (server, subject, _) in &begun {
                deliveries.end(server, subject, false, now);
                all.insert(subject.clone());
                tried += 1;
            }
            assert!(deliveries.begin(&mut notices, |_| true, TELLING, now).is_empty(), "it rests");
            let until = deliveries.next_rest(now).unwrap();
            rests.push(until - now);
            now = until;
        }
        let ms: Vec<_> = rests.iter().map(Duration::as_millis).collect();
        assert_eq!((&ms[..6], ms[19]), (&[500, 1_000, 2_000, 4_000, 8_000, 10_000][..], 10_000));
        assert_eq!((all.len(), tried), (100, 20 * TELLING_ONE), "each has its turn");
        let begun = deliveries.begin(&mut notices, |_| true, TELLING, now);
        deliveries.end(&begun[0].0, &begun[0].1, true, now);
        assert_eq!(deliveries.next_rest(now), None, "it hears again");
    }

    #[test]
    fn notices_for_a_server_that_stays_away_are_dropped() {
        let (mut deliveries, mut now) = (Deliveries::default(), Instant::now());
        let mut notices = ByServer::from([of("gone", 100), of("well", 1)]);
        let (begin, is_there) = (now, |name: &NodeId| name.as_str() != "gone");
        let mut looks = 0;
        while notices.contains_key(&server("gone")) {
            for (server, subject, notice) in deliveries.begin(&mut notices, is_there, TELLING, now) {
                assert_eq!(server.as_str(), "well", "nobody calls who is not there");
                deliveries.end(&server, &subject, true, now);
                heard(&mut notices, &server, &subject, notice);
            }
            now = deliveries.next_rest(now).unwrap_or(now);
            looks += 1;
        }
        let after = now - begin;
        assert!(after >= TELL_ABSENT && after <= TELL_ABSENT + TELL_AGAIN_MOST, "{after:?}");
        assert!(looks < 30, "{looks}");
        // It is back before that, and told all.
        notices.extend([of("gone", 1)]);
        assert!(deliveries.begin(&mut notices, is_there, TELLING, now).is_empty());
        now += TELL_AGAIN;
        assert_eq!(deliveries.begin(&mut notices, |_| true, TELLING, now).len(), 1);
    }
}

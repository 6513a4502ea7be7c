//! The task that owns the cluster. Everybody else talks to it through a [`Mind`] handle.

use crate::clock::Clock;
use crate::limits;
use crate::store::{Store, StoreError};
use crate::trays::{Tray, Trays};
use partage_coordination::Session;
use partage_core::cluster::{Cluster, Moment, Outbox};
use partage_core::id::TransactionId;
use partage_core::map::MapDiff;
use partage_core::name::NodeId;
use partage_core::time::Millis;
use rand::Rng;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// A piece of work on the cluster; what it gives back is sent only when everything before it is durable.
type Call = Box<dyn FnOnce(&mut Cluster, Moment) -> Reply + Send>;
/// Sends the answer of a call, or, dropped unsent, says that there is none.
type Reply = Box<dyn FnOnce() + Send>;

/// The mind is gone: the coordinator stops or starts anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the coordinator is starting or stopping: try again in a moment")]
pub struct Gone;

/// What follows from the mind's decisions, after they are durable.
pub trait Audience: Send + Sync + 'static {
    /// New maps, in order.
    fn maps(&self, cluster: &Cluster, diffs: Vec<MapDiff>);
    /// Something was logged.
    fn notice(&self, alarm: bool, text: &str);
    /// Something was made durable; the commit took that long.
    fn committed(&self, took: Duration);
    /// A round of decisions behind that many calls is over.
    fn looked(&self, cluster: &Cluster, now: Millis, calls: usize);
}

/// A handle to the mind.
#[derive(Clone)]
pub struct Mind {
    calls: mpsc::Sender<Call>,
    trays: Arc<Trays>,
    call_backs: Arc<CallBacks>,
    called: watch::Receiver<()>,
}

/// Nodes with a callback whose orders have changed since this was last taken.
type CallBacks = Mutex<BTreeSet<NodeId>>;

impl Mind {
    /// Starts the mind of a recovered cluster, which decides while `session` lives. The returned task ends when
    /// every handle is gone, or with why it decides no more: the store did not keep what was decided, or the
    /// session is lost. `begin` is called before it decides anything.
    pub fn start(
        cluster: Cluster,
        store: Store,
        session: Arc<Session>,
        clock: Clock,
        audience: Arc<dyn Audience>,
        begin: impl FnOnce(&Mind, &Cluster),
    ) -> (Mind, tokio::task::JoinHandle<Result<(), StoreError>>) {
        let (calls, inbox) = mpsc::channel(limits::CALLS);
        let (trays, call_backs) = (Arc::new(Trays::default()), Arc::new(CallBacks::default()));
        let (call_back, called) = watch::channel(());
        let mind = Mind { calls, trays: trays.clone(), call_backs: call_backs.clone(), called };
        begin(&mind, &cluster);
        let task = Task { cluster, store, session, clock, audience, trays, call_backs, call_back };
        (mind, tokio::spawn(task.run(inbox)))
    }

    /// Does `work` on the cluster and gives back what it returns, once everything it did is durable.
    pub async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Cluster, Moment) -> T + Send + 'static,
    ) -> Result<T, Gone> {
        let (answer, answered) = oneshot::channel();
        let call: Call = Box::new(move |cluster, at| {
            let result = work(cluster, at);
            // Whoever asked may have gone: nobody is told then.
            Box::new(move || drop(answer.send(result)))
        });
        self.calls.send(call).await.map_err(|_| Gone)?;
        answered.await.map_err(|_| Gone)
    }

    /// Where the orders of `node` are laid when they have changed; it has those up to `sent`.
    pub fn tray(&self, node: &NodeId, sent: u64) -> Tray {
        self.trays.open(node, sent)
    }

    /// Changes whenever [`Mind::take_called`] has something to give; ends with the mind.
    pub fn called(&self) -> watch::Receiver<()> {
        self.called.clone()
    }

    /// Nodes with a callback whose orders have changed since this was last asked.
    pub fn take_called(&self) -> BTreeSet<NodeId> {
        std::mem::take(&mut *self.call_backs.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

struct Task {
    cluster: Cluster,
    store: Store,
    session: Arc<Session>,
    clock: Clock,
    audience: Arc<dyn Audience>,
    trays: Arc<Trays>,
    call_backs: Arc<CallBacks>,
    call_back: watch::Sender<()>,
}

impl Task {
    async fn run(mut self, mut inbox: mpsc::Receiver<Call>) -> Result<(), StoreError> {
        let mut wake = self.decide(Vec::new()).await?;
        loop {
            let rest_ms = wake.since(self.clock.now()).min(60_000);
            let first = tokio::select! {
                call = inbox.recv() => match call {
                    Some(call) => Some(call),
                    None => return Ok(()),
                },
                () = tokio::time::sleep(Duration::from_millis(rest_ms)) => None,
                () = self.session.lost() => None,
            };
            let at = self.moment()?;
            let mut replies = Vec::new();
            let mut next = first;
            while let Some(call) = next {
                replies.push(call(&mut self.cluster, at));
                next = if replies.len() < limits::BATCH { inbox.try_recv().ok() } else { None };
            }
            // Who waits for its grant waits for a former owner's word, not for the disk.
            let granted = self.cluster.grant_at_once(at);
            self.order(granted);
            wake = self.decide(replies).await?;
        }
    }

    /// What time it is, as long as nobody else can lead. Also what is only in memory, such as a lease that a beat
    /// prolongs, is a leader's to give; a worker counts it from when it asked, so from before this moment.
    fn moment(&self) -> Result<Moment, StoreError> {
        let at = self.clock.moment();
        if self.session.is_live() { Ok(at) } else { Err(StoreError::Deposed) }
    }

    /// Decides until nothing more follows at once, makes it durable, lets it out, and answers.
    async fn decide(&mut self, replies: Vec<Reply>) -> Result<Millis, StoreError> {
        let mut wake = Millis(0);
        for _ in 0..limits::ROUNDS {
            let at = self.moment()?;
            wake = self.cluster.decide(at, transaction());
            let outbox = self.cluster.take_outbox();
            if !outbox.writes.is_empty() {
                let begun = tokio::time::Instant::now();
                self.store.commit(&outbox.writes, &self.cluster).await?;
                self.audience.committed(begun.elapsed());
            }
            self.let_out(outbox);
            if wake > at.now {
                break;
            }
        }
        self.audience.looked(&self.cluster, self.clock.now(), replies.len());
        replies.into_iter().for_each(|reply| reply());
        Ok(wake)
    }

    fn let_out(&mut self, outbox: Outbox) {
        for notice in &outbox.notices {
            self.audience.notice(notice.alarm, &notice.text);
        }
        if !outbox.maps.is_empty() {
            self.audience.maps(&self.cluster, outbox.maps);
        }
        self.order(outbox.orders);
    }

    /// Tells nodes that their orders have changed.
    fn order(&self, changed: BTreeSet<NodeId>) {
        self.trays.lay(&self.cluster, &changed);
        let nodes = self.cluster.nodes();
        let called = |id: &NodeId| nodes.get(id).is_some_and(|node| node.record.spec.callback.is_some());
        let mut called = changed.into_iter().filter(called).peekable();
        if called.peek().is_some() {
            self.call_backs.lock().unwrap_or_else(PoisonError::into_inner).extend(called);
            self.call_back.send_replace(());
        }
    }
}

impl Drop for Task {
    /// Streams that wait for orders end.
    fn drop(&mut self) {
        self.trays.clear();
    }
}

/// A fresh name for what is committed next.
#[expect(clippy::disallowed_methods, reason = "the one source of randomness of this crate")]
pub(crate) fn transaction() -> TransactionId {
    let mut bytes = [0; 20];
    rand::rng().fill_bytes(&mut bytes);
    TransactionId(bytes)
}

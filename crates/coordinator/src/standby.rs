//! A coordinator that stands by: it knows who leads, passes the leader's maps on to its own subscribers, and
//! everything else on to the leader.
//!
//! ```text
//!  backend ── who leads? ──► leader ──┬── maps ──► publisher ──► routers that listen here
//!                                     └◄─ everything else ── workers, people, programs
//! ```

use crate::backend::presence_of;
use crate::backend::terms::Terms;
use crate::limits;
use crate::publish::Publisher;
use partage_coordination::{Coordination, Election, Result};
use partage_core::node::exchange::Known;
use partage_core::routing::table::RouteTable;
use partage_maps::{Listener, MapClient};
use partage_wire::map::MapEvent;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// The coordinator that leads, as a standby knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderInfo {
    /// Its address.
    pub address: String,
    /// Its term.
    pub term: u64,
}

/// Where everybody looks who leads; none = nobody, as far as is known.
pub type LeaderWatch = watch::Receiver<Option<LeaderInfo>>;

/// Why this coordinator's last attempt to lead failed. A copy is the same.
#[derive(Debug, Clone, Default)]
pub struct LastFailure(Arc<Mutex<Option<String>>>);

impl LastFailure {
    fn lock(&self) -> MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The attempt ended with that error.
    pub fn note(&self, error: &dyn std::fmt::Display) {
        *self.lock() = Some(error.to_string());
    }

    /// It leads.
    pub fn clear(&self) {
        *self.lock() = None;
    }

    /// That no coordinator leads, and why this one does not.
    pub fn nobody_leads(&self) -> String {
        match &*self.lock() {
            Some(why) => format!("no coordinator leads at the moment, and this one could not: {why}"),
            None => "no coordinator leads at the moment".to_owned(),
        }
    }
}

/// The standing by. Dropped, it follows no leader any more.
pub struct Standby {
    /// Where we are ourselves: what an earlier process of ours has left is no leader.
    own: String,
    leads: Arc<watch::Sender<Option<LeaderInfo>>>,
    /// What the leaders so far have said of the maps.
    table: Arc<Mutex<RouteTable>>,
    /// Follows the leader's maps.
    relay: AbortHandle,
    /// Follows the election, while there is a backend.
    watching: Option<AbortHandle>,
}

impl Standby {
    /// Knows no leader yet. From here on `publisher` gets what the leader says.
    pub fn begin(publisher: Arc<Publisher>, own: String) -> Standby {
        let leads = Arc::new(watch::Sender::default());
        let table = Arc::new(Mutex::new(publisher.table()));
        let listener = PublisherListener { number: publisher.stand_by(table.clone()), publisher };
        let relay =
            tokio::spawn(relay(leads.subscribe(), own.clone(), table.clone(), listener)).abort_handle();
        Standby { own, leads, table, relay, watching: None }
    }

    /// Follows the coordinator that leads.
    pub fn watch_leader(&self) -> LeaderWatch {
        self.leads.subscribe()
    }

    /// The latest maps that were passed on here.
    pub fn known(&self) -> Vec<Known> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).keyspaces()
    }

    /// Stands by no more, as `leads` answers as the leader: who still waits for somebody to lead is sent there.
    pub fn end(self, leads: LeaderInfo) {
        self.leads.send_replace(Some(leads));
    }

    /// Looks there who leads, from here on. While nobody answers there, who led before is taken to lead still.
    pub fn look_at(&mut self, coordination: Arc<dyn Coordination>, election: Election, terms: Arc<Terms>) {
        let (own, leads) = (self.own.clone(), self.leads.clone());
        let task = tokio::spawn(follow_election(coordination, election, terms, own, leads)).abort_handle();
        if let Some(before) = self.watching.replace(task) {
            before.abort();
        }
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        self.relay.abort();
        if let Some(watching) = &self.watching {
            watching.abort();
        }
    }
}

async fn follow_election(
    coordination: Arc<dyn Coordination>,
    election: Election,
    terms: Arc<Terms>,
    own: String,
    leads: Arc<watch::Sender<Option<LeaderInfo>>>,
) {
    loop {
        if let Err(error) = until_broken(&*coordination, &election, &terms, &own, &leads).await {
            tracing::debug!(%error, "who leads cannot be seen; looking again");
        }
        tokio::time::sleep(Duration::from_millis(limits::LOOK_AGAIN_MS)).await;
    }
}

async fn until_broken(
    coordination: &dyn Coordination,
    election: &Election,
    terms: &Terms,
    own: &str,
    leads: &watch::Sender<Option<LeaderInfo>>,
) -> Result<()> {
    let mut changes = coordination.watch(election.scope(), None).await?;
    loop {
        changes.next().await?;
        let leader = election.leader().await?;
        if let Some(leader) = &leader
            && let Err(error) = terms.keep(leader.term).await
        {
            tracing::error!(%error, "the highest term is kept in memory only");
        }
        let said = leader.as_ref().map(|leader| (presence_of(leader), leader.term.get())).and_then(
            |(presence, term)| match presence {
                Ok(presence) => Some(LeaderInfo { address: presence.address, term }),
                Err(error) => {
                    tracing::error!(%error, "somebody leads, but it is not known who");
                    None
                }
            },
        );
        let said = said.filter(|leader| leader.address != own);
        leads.send_if_modified(|known| std::mem::replace(known, said.clone()) != said);
    }
}

/// Follows the maps of the leader. When there is none, the connection to the last one stays: it may still be
/// there, and what it said is the truth until somebody says otherwise.
async fn relay(
    mut leads: LeaderWatch,
    own: String,
    table: Arc<Mutex<RouteTable>>,
    listener: PublisherListener,
) {
    let mut following: Option<(LeaderInfo, MapClient)> = None;
    loop {
        // A coordinator that stands by no more is about to end this too.
        let now = leads.borrow_and_update().clone().filter(|leader| leader.address != own);
        if let Some(now) = now
            && following.as_ref().is_none_or(|(before, _)| *before != now)
        {
            tracing::info!(leader = %now.address, term = now.term, "standing by");
            // The one before ends first: two would take turns at the table.
            drop(following.take());
            let maps = MapClient::pass_on(now.address.clone(), table.clone(), listener.clone());
            following = Some((now, maps));
        }
        if leads.changed().await.is_err() {
            return;
        }
    }
}

/// Passes maps on to the publisher, as the source of that number.
#[derive(Clone)]
struct PublisherListener {
    number: u64,
    publisher: Arc<Publisher>,
}

impl Listener for PublisherListener {
    fn taken(&mut self, table: &RouteTable, event: MapEvent) {
        self.publisher.pass_on(self.number, table, event);
    }
}

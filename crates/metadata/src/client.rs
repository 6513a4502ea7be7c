//! Reading and changing maps and lists of servers, by way of the servers: the driver of [`Changing`].
//!
//! A leader that commits several records together calls [`MetadataServerClient::prepare`] for each map, puts
//! [`Prepared::swap_in`] of all of them into its own transaction, and then calls [`Prepared::finish`] with the
//! outcome. [`MetadataServerClient::change`] is the same with a transaction that has the swap alone.

use crate::head::{HeadError, Heads};
use crate::limits;
use crate::notices::Notices;
use crate::peers::Peers;
use crate::server::LocalServer;
use partage_coordination::{KeyError, Transaction};
use partage_core::base::id::Generation;
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::keyspace::map::{MapDiff, ShardMap};
use partage_service::metadata::change::{Change, Changing, Effect, Event, Failed, Notice, Swapped, Unstored};
use partage_service::metadata::{ChangeRefused, Head, SERVERS, Seen, check, choose};
use partage_wire::map::metadata::MapQuestion;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

/// A change that did not come to be, or may not have.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// It would make a map that must not be.
    #[error(transparent)]
    Refused(#[from] ChangeRefused),
    /// How it ended.
    #[error(transparent)]
    Failed(#[from] Failed),
    /// The head cannot be had.
    #[error(transparent)]
    Head(#[from] HeadError),
    /// There is no map to change.
    #[error("keyspace {0} has no map: it was deleted, or is still to be created")]
    NoMap(KeyspaceName),
    /// No server to keep it.
    #[error("no metadata server is there: start one, and see that it reaches the coordination service")]
    NoServers,
    /// No server of the list gives the map.
    #[error("no metadata server of keyspace {keyspace} gives its map: {why}")]
    NoAnswer {
        /// The keyspace of the map.
        keyspace: KeyspaceName,
        /// What the last of them said.
        why: String,
    },
}

/// The client of metadata servers. A copy is the same.
#[derive(Clone)]
pub struct MetadataServerClient {
    heads: Heads,
    peers: Peers,
    notices: Notices,
    /// The metadata server in the same process, if there is one.
    here: Option<LocalServer>,
}

/// What a change is built on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Base {
    /// The map behind that head.
    Head(Seen),
    /// No map: it is created on these servers, see [`MetadataServerClient::draw`].
    Nothing(Vec<NodeId>),
}

/// A change that a majority has on disk, ready to be swapped in. Dropped, its fate is unknown; the servers find
/// it out.
pub struct Prepared {
    client: MetadataServerClient,
    keyspace: KeyspaceName,
    changing: Changing,
}

impl MetadataServerClient {
    /// By way of those heads and servers.
    pub fn new(
        heads: Heads,
        peers: Peers,
        notices: Notices,
        here: Option<LocalServer>,
    ) -> MetadataServerClient {
        MetadataServerClient { heads, peers, notices, here }
    }

    /// The head of a keyspace.
    ///
    /// # Errors
    /// When it cannot be read, or is missing.
    pub async fn head(&self, keyspace: &KeyspaceName) -> Result<Option<Seen>, HeadError> {
        self.heads.read(keyspace).await
    }

    /// The latest map, with the head that leads to it.
    ///
    /// # Errors
    /// When there is none, or no server has it.
    pub async fn latest(&self, keyspace: &KeyspaceName) -> Result<(Seen, Arc<ShardMap>), ChangeError> {
        let seen = self.head(keyspace).await?.ok_or_else(|| ChangeError::NoMap(keyspace.clone()))?;
        let question = MapQuestion { keyspace: keyspace.clone(), sequence: seen.head.at.sequence };
        let mut why = "none was asked".to_owned();
        for server in self.nearest_first(&seen.head.servers) {
            let answered = match self.here_if(&server) {
                Some(here) => here.map(question.clone()).await.map_err(|refused| refused.to_string()),
                None => {
                    let fetched = self.peers.fetch(&server, &question).await;
                    fetched.map_err(|status| status.message().to_owned())
                }
            };
            match answered {
                Ok(map) if map.generation() == seen.head.at => return Ok((seen, map)),
                Ok(_) => return Err(Failed::Conflict.into()),
                Err(said) => why = format!("{server}: {said}"),
            }
        }
        Err(ChangeError::NoAnswer { keyspace: keyspace.clone(), why })
    }

    fn nearest_first(&self, servers: &[NodeId]) -> Vec<NodeId> {
        let mut servers = servers.to_vec();
        servers.sort_by_key(|server| self.here_if(server).is_none());
        servers
    }

    fn here_if(&self, server: &NodeId) -> Option<&LocalServer> {
        self.here.as_ref().filter(|here| here.me() == server)
    }

    /// Servers for a new map, drawn from those that are there (T6).
    ///
    /// # Errors
    /// When no server is there.
    pub fn draw(&self) -> Result<Base, ChangeError> {
        let mut present = self.peers.present();
        present.extend(self.here.iter().map(|here| here.me().clone()));
        match choose(&present, SERVERS, partage_random::seed()) {
            none if none.is_empty() => Err(ChangeError::NoServers),
            servers => Ok(Base::Nothing(servers)),
        }
    }

    /// The servers that are there, and the one in this process.
    pub fn present(&self) -> (Vec<NodeId>, Option<NodeId>) {
        (self.peers.present(), self.here.as_ref().map(|here| here.me().clone()))
    }

    /// Drawn anew each time: for choices among servers.
    pub fn seed(&self) -> u64 {
        partage_random::seed()
    }

    /// Has a majority of the servers store `change` on `base`. The caller has checked it ([`check`]). A change on one
    /// that is prepared and not swapped in yet may be swapped in with it.
    ///
    /// # Errors
    /// When a majority cannot be had: nothing has happened, nor will. Within [`limits::AGAIN`] the same change may be
    /// prepared again, or else [abandoned](MetadataServerClient::abandon).
    pub async fn prepare(
        &self,
        keyspace: &KeyspaceName,
        base: Base,
        change: Change,
    ) -> Result<Prepared, ChangeError> {
        let (seen, servers) = match base {
            Base::Head(seen) => (Some(seen), vec![]),
            Base::Nothing(servers) => (None, servers),
        };
        let (changing, effects) = Changing::begin(seen, change.to(), servers);
        let prepared = Prepared { client: self.clone(), keyspace: keyspace.clone(), changing };
        prepared.store(effects, Some(change)).await
    }

    /// Has the servers of `base` forget a change that was not swapped in and never will be.
    pub fn abandon(&self, keyspace: &KeyspaceName, base: &Base, to: Generation) {
        let servers = match base {
            Base::Head(seen) => &seen.head.servers,
            Base::Nothing(servers) => servers,
        };
        self.notices.tell(keyspace, servers, Notice::Aborted(to));
    }

    async fn prepare_once(
        &self,
        keyspace: &KeyspaceName,
        base: Base,
        change: Change,
    ) -> Result<Prepared, ChangeError> {
        let to = change.to();
        let prepared = self.prepare(keyspace, base.clone(), change).await;
        if prepared.is_err() {
            self.abandon(keyspace, &base, to);
        }
        prepared
    }

    /// Commits a change of the map behind `seen`, which is `map` (T7).
    ///
    /// # Errors
    /// Why not; whether it may have happened is in [`Failed`].
    pub async fn change(&self, seen: Seen, map: &ShardMap, diff: MapDiff) -> Result<Generation, ChangeError> {
        check(map, &diff)?;
        let change = Change::Operation(Arc::new(diff));
        self.prepare_once(map.keyspace(), Base::Head(seen), change).await?.commit().await
    }

    /// Commits the first map of a keyspace (T6).
    ///
    /// # Errors
    /// When the map is not committed, or not known to be; the [`ChangeError`] says why.
    pub async fn create(&self, map: ShardMap) -> Result<Generation, ChangeError> {
        let keyspace = map.keyspace().clone();
        let base = self.draw()?;
        self.prepare_once(&keyspace, base, Change::Whole(Arc::new(map))).await?.commit().await
    }

    /// Makes `servers` those that keep the map, if a majority of them has it on disk (T8).
    ///
    /// # Errors
    /// When the list of servers is not committed, or not known to be; the [`ChangeError`] says why.
    pub async fn set_servers(
        &self,
        seen: Seen,
        keyspace: &KeyspaceName,
        servers: Vec<NodeId>,
    ) -> Result<Generation, ChangeError> {
        self.prepare_servers(seen, keyspace, servers).await?.commit().await
    }

    /// Makes sure that most of `servers` have the map on disk; they keep it when that is swapped in (T8).
    ///
    /// # Errors
    /// When no majority of `servers` has the map on disk; the [`ChangeError`] says why.
    pub async fn prepare_servers(
        &self,
        seen: Seen,
        keyspace: &KeyspaceName,
        servers: Vec<NodeId>,
    ) -> Result<Prepared, ChangeError> {
        if servers.is_empty() {
            return Err(ChangeError::NoServers);
        }
        let (changing, effects) = Changing::list(seen, servers);
        let prepared = Prepared { client: self.clone(), keyspace: keyspace.clone(), changing };
        prepared.store(effects, None).await
    }

    /// Has its servers look: the map behind that head was deleted.
    pub fn tell_deleted(&self, keyspace: &KeyspaceName, head: &Head) {
        self.notices.tell(keyspace, &head.servers, Notice::Committed(head.at));
    }

    /// Has `server` fetch the map and swap itself into the list (T8).
    ///
    /// # Errors
    /// Why not; calling it again goes on from there.
    pub async fn join(&self, keyspace: &KeyspaceName, server: &NodeId) -> Result<(), ChangeError> {
        let joined = match self.here_if(server) {
            Some(here) => here.join(keyspace).await.map_err(|refused| refused.to_string()),
            None => {
                let joined = self.peers.join(server, keyspace).await;
                joined.map_err(|status| status.message().to_owned())
            }
        };
        let no_answer = |why| ChangeError::NoAnswer {
            keyspace: keyspace.clone(),
            why: format!("{server} cannot join: {why}"),
        };
        joined.map(drop).map_err(no_answer)
    }

    async fn ask(
        &self,
        server: &NodeId,
        keyspace: &KeyspaceName,
        change: Option<&Change>,
        at: Generation,
    ) -> Result<(), Unstored> {
        let question = MapQuestion { keyspace: keyspace.clone(), sequence: at.sequence };
        let holds = match (self.here_if(server), change) {
            (Some(here), Some(change)) => return Ok(here.store(keyspace, change.clone()).await?),
            (None, Some(change)) => return self.peers.store(server, change).await.map_err(unstored),
            (Some(here), None) => here.map(question).await?.generation(),
            (None, None) => self.peers.holds(server, &question).await.map_err(unstored)?,
        };
        if holds == at { Ok(()) } else { Err("it is at another map".to_owned().into()) }
    }

    /// Whether the server in this process, if it is one of those of `base`, stores that change now. It is to be
    /// [abandoned](MetadataServerClient::abandon) afterwards.
    pub async fn is_stored_here(&self, keyspace: &KeyspaceName, base: &Base, change: &Change) -> bool {
        let servers = match base {
            Base::Head(seen) => &seen.head.servers,
            Base::Nothing(servers) => servers,
        };
        match self.here.as_ref().filter(|here| servers.contains(here.me())) {
            Some(here) => here.store(keyspace, change.clone()).await.is_ok(),
            None => false,
        }
    }
}

impl Prepared {
    /// Asks all servers, and waits for a majority. Those that are slower go on by themselves.
    async fn store(mut self, effects: Vec<Effect>, change: Option<Change>) -> Result<Prepared, ChangeError> {
        let servers: Vec<NodeId> = effects
            .into_iter()
            .flat_map(|effect| if let Effect::Store(servers) = effect { servers } else { vec![] })
            .collect();
        let at = self.changing.swap().1.at;
        let (sender, mut votes) = mpsc::channel(servers.len().max(1));
        for server in servers {
            let (client, keyspace, change) = (self.client.clone(), self.keyspace.clone(), change.clone());
            let sender = sender.clone();
            tokio::spawn(async move {
                let vote = client.ask(&server, &keyspace, change.as_ref(), at).await;
                // Without a receiver a majority was there before.
                let _ = sender.send((server, vote)).await;
            });
        }
        drop(sender);
        let patience = match change {
            Some(Change::Whole(_)) => limits::STORE,
            Some(Change::Operation(_)) | None => limits::STORE_OPERATION,
        };
        let until = Instant::now() + patience;
        loop {
            let event = match timeout_at(until, votes.recv()).await {
                Ok(Some((server, vote))) => Event::Stored(server, vote),
                Ok(None) | Err(_) => Event::TimeUp,
            };
            for effect in self.changing.take(event) {
                match effect {
                    Effect::Swap { .. } => return Ok(self),
                    Effect::Done(outcome) => drop(outcome?),
                    // The caller may prepare again, and abandons the change when it does not.
                    Effect::Tell(..) | Effect::Store(_) | Effect::Read | Effect::Seal(_) => {}
                }
            }
        }
    }

    /// Adds the swap to a transaction: the condition on the head as it was seen, and the new head.
    ///
    /// # Errors
    /// For a name that makes no key.
    pub fn swap_in(&self, transaction: Transaction) -> Result<Transaction, KeyError> {
        let (expected, head) = self.changing.swap();
        Heads::swap_in(&self.keyspace, expected, head, transaction)
    }

    /// The head that it makes.
    pub fn head(&self) -> &Head {
        self.changing.swap().1
    }

    /// Swaps, with a transaction that does nothing else.
    ///
    /// # Errors
    /// How it failed.
    pub async fn commit(self) -> Result<Generation, ChangeError> {
        let (expected, head) = self.changing.swap();
        let swapped = self.client.heads.swap(&self.keyspace, expected, head).await;
        self.finish(swapped).await
    }

    /// Ends the change, whatever became of the transaction with the swap: tells the servers, and finds out what
    /// is not known.
    ///
    /// # Errors
    /// How it failed.
    pub async fn finish(mut self, swapped: Swapped) -> Result<Generation, ChangeError> {
        let mut effects = self.changing.take(Event::Swapped(swapped));
        for _ in 0..limits::READS {
            if let Some(outcome) = self.tell(&effects) {
                return Ok(outcome?);
            }
            for effect in &effects {
                if let Effect::Seal(seen) = effect {
                    self.client.heads.seal(&self.keyspace, seen).await;
                }
            }
            let read = self.client.heads.read(&self.keyspace).await;
            if let Err(error) = &read {
                tracing::warn!(keyspace = %self.keyspace, %error, "the outcome of a change is not known yet");
            }
            effects = self.changing.take(Event::Read(read.ok()));
        }
        let last = self.tell(&effects);
        Ok(last.unwrap_or(Err(Failed::Unknown))?)
    }

    /// Has notices told; gives the outcome, if there is one.
    fn tell(&self, effects: &[Effect]) -> Option<Result<Generation, Failed>> {
        let mut outcome = None;
        for effect in effects {
            match effect {
                Effect::Tell(servers, notice) => {
                    let mut all: BTreeSet<_> = self.client.peers.present().into_iter().collect();
                    all.extend(servers.iter().cloned());
                    let all: Vec<_> = all.into_iter().collect();
                    self.client.notices.tell(&self.keyspace, &all, *notice);
                }
                Effect::Done(done) => outcome = Some(done.clone()),
                Effect::Store(_) | Effect::Swap { .. } | Effect::Read | Effect::Seal(_) => {}
            }
        }
        outcome
    }
}

/// Why another server has not stored it; only a disk is resource-exhausted, see [`crate::service`].
fn unstored(status: tonic::Status) -> Unstored {
    let is_disk = status.code() == tonic::Code::ResourceExhausted;
    Unstored { why: status.message().to_owned(), is_disk }
}

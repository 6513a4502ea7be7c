//! A coordinator's connection to the backend: a session there, and its candidacy in the election.

pub mod leaders;
pub mod map_store;
pub mod store;
pub mod terms;

use crate::backend::map_store::inline::InlineMaps;
use crate::backend::map_store::local_metadata::LocalMetadata;
use crate::backend::map_store::replicated::ReplicatedMaps;
use crate::backend::map_store::{MapStore, stores_maps_inline};
use crate::backend::store::StoreError;
use crate::backend::terms::Terms;
use crate::limits;
use axum::Router;
use bytes::Bytes;
use partage_coordination::embedded::{Embedded, Options};
use partage_coordination::{
    ABOUT, ClusterId, Coordination, Election, Entry, Error, Expected, Key, Leader, Leadership, Scope,
    Session, Target, Transaction, claim, connect,
};
use partage_core::base::settings::Settings;
use partage_wire::json::Coordinators;
use partage_wire::stored::{COORDINATORS, ELECTION, Presence, StoredError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Where the state is kept.
#[derive(Debug, Clone, Default)]
pub enum Backing {
    /// In memory, gone with the process.
    #[default]
    Memory,
    /// In a directory, for one coordinator.
    Directory(PathBuf),
    /// In a backend that several coordinators share. They have a directory each for what is too large for it.
    Shared {
        /// The backend.
        target: Box<Target>,
        /// Where this coordinator keeps the highest term that it has seen, and its part of the maps: that for backends
        /// of which one value cannot hold a map, and for no others ([`stores_maps_inline`]).
        data_dir: Option<PathBuf>,
        /// Time-to-live of its session: how long the others wait for a leader that was killed.
        session: Duration,
    },
    /// In a store that the caller has opened, for several coordinators in one process.
    Open {
        /// The store.
        coordination: Arc<dyn Coordination>,
        /// Where this coordinator keeps its part of the maps, and the highest term that it has seen; none = the store
        /// keeps the maps.
        data_dir: Option<PathBuf>,
        /// Time-to-live of its session.
        session: Duration,
    },
}

impl Backing {
    /// The settings that are meant where none are given.
    pub fn default_settings(&self) -> Settings {
        if !self.is_shared() {
            return Settings::default();
        }
        let (lease_ms, dead_after_ms) = (limits::SHARED_LEASE_MS, limits::SHARED_DEAD_AFTER_MS);
        Settings { lease_ms, dead_after_ms, ..Settings::default() }
    }

    /// Whether other coordinators may stand beside this one.
    pub fn is_shared(&self) -> bool {
        matches!(self, Backing::Shared { .. } | Backing::Open { .. })
    }

    /// Where a coordinator that shares a backend keeps what is its own.
    fn data_dir(&self) -> Option<&Path> {
        match self {
            Backing::Shared { data_dir, .. } | Backing::Open { data_dir, .. } => data_dir.as_deref(),
            Backing::Memory | Backing::Directory(_) => None,
        }
    }

    /// In words, for messages: an address without its secrets, a directory.
    pub fn place(&self) -> String {
        match self {
            Backing::Memory => "memory".to_owned(),
            Backing::Directory(dir) => dir.display().to_string(),
            Backing::Shared { target, .. } => target.to_string(),
            Backing::Open { coordination, .. } => coordination.backend().to_owned(),
        }
    }
}

/// Time-to-live of the session of a coordinator that is alone.
const OWN_SESSION: Duration = Duration::from_millis(limits::SESSION_MS);

/// An open backend, and this coordinator's session in it.
pub struct BackendConnection {
    /// The backend.
    pub coordination: Arc<dyn Coordination>,
    /// Where the root is, in words.
    place: String,
    /// Whose root it is.
    pub cluster: ClusterId,
    /// Ends with the process, or some time after.
    pub session: Arc<Session>,
    /// Where the coordinators elect their leader.
    pub election: Election,
    /// This coordinator's part in keeping the maps, where the backend does not keep them.
    local_metadata: Option<LocalMetadata>,
    /// The highest term that was seen here, over restarts too.
    pub terms: Arc<Terms>,
    /// What the key `about` holds, where the root has one.
    pub about: Option<Bytes>,
    /// What is closed with it.
    embedded: Option<Arc<Embedded>>,
}

/// What a process keeps of its backing from one leadership to the next.
#[derive(Debug, Default)]
pub struct BackendState {
    /// Of which cluster it is, once that is known.
    cluster: OnceLock<ClusterId>,
    /// The highest term of each cluster that was seen here: also where it could not be written down.
    terms: Mutex<Vec<(Option<ClusterId>, Arc<Terms>)>>,
    /// The state, for [`Backing::Memory`]: a session that ended must not end the cluster.
    memory: OnceLock<Arc<Embedded>>,
}

impl BackendState {
    fn terms(&self, backing: &Backing, cluster: Option<ClusterId>) -> Result<Arc<Terms>, StoreError> {
        let mut all = self.terms.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, terms)) = all.iter().find(|(of, _)| *of == cluster) {
            return Ok(terms.clone());
        }
        let terms = Arc::new(Terms::open(backing.data_dir(), cluster)?);
        all.push((cluster, terms.clone()));
        Ok(terms)
    }
}

/// A backend that is open, and holds our cluster.
struct OpenBackend<'b> {
    coordination: Arc<dyn Coordination>,
    cluster: ClusterId,
    /// What the key `about` holds, where the root has one.
    about: Option<Bytes>,
    /// Time-to-live of the coordinator's session.
    ttl: Duration,
    /// Where this coordinator keeps its part of the maps; none = the backend stores the maps.
    maps_dir: Option<&'b Path>,
    /// What is closed when the coordinator is done with it.
    embedded: Option<Arc<Embedded>>,
}

impl<'b> OpenBackend<'b> {
    async fn of(backing: &'b Backing, state: &BackendState) -> Result<OpenBackend<'b>, StoreError> {
        match backing {
            Backing::Memory => {
                let memory = state.memory.get_or_init(Embedded::in_memory);
                Ok(OpenBackend::alone(memory.clone(), None))
            }
            Backing::Directory(dir) => {
                let embedded = Embedded::open(dir, Options::default()).await?;
                Ok(OpenBackend::alone(embedded.clone(), Some(embedded)))
            }
            Backing::Shared { target, data_dir, session } => {
                let is_inline = stores_maps_inline(target.backend);
                if !is_inline && data_dir.is_none() {
                    return Err(StoreError::NoDirectory { backend: target.backend.to_string() });
                }
                let maps_dir = data_dir.as_deref().filter(|_| !is_inline);
                let coordination = connect(target).await?;
                let root = claim_root(&*coordination, &backing.place(), &state.cluster).await?;
                Ok(OpenBackend::shared(coordination, root, *session, maps_dir))
            }
            Backing::Open { coordination, data_dir, session } => {
                let root = claim_root(&**coordination, &backing.place(), &state.cluster).await?;
                Ok(OpenBackend::shared(coordination.clone(), root, *session, data_dir.as_deref()))
            }
        }
    }

    fn alone(coordination: Arc<Embedded>, embedded: Option<Arc<Embedded>>) -> OpenBackend<'b> {
        let cluster = coordination.cluster();
        OpenBackend { coordination, cluster, about: None, ttl: OWN_SESSION, maps_dir: None, embedded }
    }

    fn shared(
        coordination: Arc<dyn Coordination>,
        Root { cluster, about }: Root,
        ttl: Duration,
        maps_dir: Option<&'b Path>,
    ) -> OpenBackend<'b> {
        OpenBackend { coordination, cluster, about: Some(about), ttl, maps_dir, embedded: None }
    }
}

/// A root, and what it says about itself.
struct Root {
    cluster: ClusterId,
    about: Bytes,
}

/// Whose root it is: nobody's becomes that of a new cluster, but not under a process that has seen it full.
async fn claim_root(
    coordination: &dyn Coordination,
    place: &str,
    known: &OnceLock<ClusterId>,
) -> Result<Root, StoreError> {
    if let Some(cluster) = known.get()
        && coordination.read(&Key::new(ABOUT)?).await?.is_none()
    {
        return Err(StoreError::Emptied { place: place.to_owned(), cluster: *cluster });
    }
    let cluster = claim(coordination, place, known.get().copied()).await?;
    let about = coordination.read(&Key::new(ABOUT)?).await?;
    let emptied = || StoreError::Emptied { place: place.to_owned(), cluster };
    Ok(Root { cluster: *known.get_or_init(|| cluster), about: about.ok_or_else(emptied)?.value })
}

impl BackendConnection {
    /// The maps, in the hands of the leader.
    pub fn map_store(&self, leadership: Leadership) -> Arc<dyn MapStore> {
        let coordination = self.coordination.clone();
        match &self.local_metadata {
            Some(metadata) => Arc::new(ReplicatedMaps::new(metadata, coordination, leadership)),
            None => Arc::new(InlineMaps::new(coordination, leadership)),
        }
    }

    /// Opens the backend, makes sure that it is ours, and says there that `presence` is here.
    pub async fn open(
        backing: &Backing,
        presence: &Presence,
        state: &BackendState,
    ) -> Result<BackendConnection, StoreError> {
        let OpenBackend { coordination, cluster, about, ttl, maps_dir, embedded } =
            OpenBackend::of(backing, state).await?;
        let shared = backing.is_shared().then_some(cluster);
        let terms = state.terms(backing, shared)?;
        let local_metadata = match maps_dir {
            Some(dir) => Some(LocalMetadata::open(coordination.clone(), cluster, dir, presence).await?),
            None => None,
        };
        let session = Arc::new(Session::open(coordination.clone(), ttl).await?);
        let election = Election::new(coordination.clone(), &Key::new(ELECTION)?)?;
        election.raise(terms.highest());
        let place = backing.place();
        let connection = BackendConnection {
            place,
            election,
            coordination,
            cluster,
            session,
            local_metadata,
            terms,
            about,
            embedded,
        };
        connection.announce(presence).await?;
        Ok(connection)
    }

    /// Says that `presence` is here, for as long as the session lives: others come there for maps. Fails where the root
    /// was emptied meanwhile: what is written there would look like a cluster that has begun.
    pub async fn announce(&self, presence: &Presence) -> Result<(), StoreError> {
        let own_key = presence_key(presence)?;
        let about = Key::new(ABOUT)?;
        loop {
            if self.about.is_some() && self.coordination.read(&about).await?.is_none() {
                return Err(StoreError::Emptied { place: self.place.clone(), cluster: self.cluster });
            }
            let there = self.coordination.read(&own_key).await?;
            // What goes with our own session, or with none, no other coordinator holds.
            let of_other = |there: &&Entry| there.session.is_some_and(|other| other != self.session.id());
            let other = there.as_ref().filter(of_other);
            let other = other.and_then(|there| Presence::from_bytes(own_key.as_str(), &there.value).ok());
            if let Some(other) = other
                && other.address != presence.address
            {
                return Err(StoreError::IdTaken { id: other.id, address: other.address });
            }
            let mut here = Transaction::new()
                .when(&own_key, Expected::unchanged(there.as_ref()))
                .put_ephemeral(&own_key, presence.to_bytes(), self.session.id());
            if self.about.is_some() {
                here = here.when(&about, Expected::Present);
            }
            match self.coordination.commit(here).await {
                // Somebody was first, or it may have been us: look again.
                Err(Error::Refused { .. } | Error::Indefinite { .. }) => {}
                committed => return Ok(committed.map(drop)?),
            }
        }
    }

    /// These routes, and those of a metadata server.
    pub fn with_metadata_routes(&self, routes: Router) -> Router {
        match &self.local_metadata {
            Some(local_metadata) => routes.merge(local_metadata.routes()),
            None => routes,
        }
    }

    /// Ends the session, so that no coordinator has to wait for its end, and frees the directory.
    pub async fn close(self) {
        if self.embedded.is_none() {
            let ended = self.coordination.end_session(self.session.id());
            let patience = Duration::from_millis(limits::GOODBYE_MS);
            match tokio::time::timeout(patience, ended).await {
                Ok(Ok(())) | Ok(Err(Error::SessionEnded { .. })) => {}
                Ok(Err(error)) => tracing::warn!(%error, "the session was not ended; it ends by its time"),
                Err(_) => tracing::warn!("the backend does not answer; the session ends by its time"),
            }
        }
        if let Some(local_metadata) = &self.local_metadata {
            local_metadata.stop().await;
        }
        if let Some(embedded) = &self.embedded {
            embedded.close().await;
        }
    }
}

/// Computes on a thread for blocking work, so that the decision loop answers workers meanwhile. A leader awaits each such work
/// before it begins the next. The thread of one that it awaits no more goes on until it is done.
pub async fn off_loop<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(panicked) => match panicked.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime ends, and every task with it.
            Err(_) => std::future::pending().await,
        },
    }
}

/// The key of a coordinator that is there.
pub fn presence_key(presence: &Presence) -> Result<Key, StoreError> {
    Ok(Key::new(COORDINATORS)?.join(key_segment(&presence.id))?)
}

/// A name as one segment of a key: what a key cannot carry is written as `%` and two hex digits.
fn key_segment(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_:[]".contains(&byte);
    name.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// Who a leader says it is.
pub fn presence_of(leader: &Leader) -> Result<Presence, StoredError> {
    Presence::from_bytes("election/leader", &leader.candidate)
}

/// Notes what somebody else has written: its owner writes it again, if it has one.
fn unreadable(problems: &mut Vec<String>) -> impl FnMut(StoredError) + '_ {
    |error| problems.push(format!("{error}: somebody else wrote there; delete the key if this stays"))
}

/// The coordinators that are there, the leader first.
pub async fn coordinators(
    coordination: &dyn Coordination,
    election: &Election,
) -> Result<Coordinators, StoreError> {
    let mut problems = Vec::new();
    let leader = match election.leader().await {
        Err(Error::Invalid { what }) => {
            problems.push(what);
            None
        }
        leader => leader?,
    };
    let led_by =
        leader.as_ref().and_then(|leader| presence_of(leader).map_err(unreadable(&mut problems)).ok());
    let mut present = Vec::new();
    let (scope, mut after) = (Scope::Children(Key::new(COORDINATORS)?), None);
    loop {
        let page = coordination.list(&scope, after.as_ref(), usize::MAX).await?;
        for (key, entry) in page.entries {
            let one = Presence::from_bytes(key.as_str(), &entry.value);
            present.extend(one.map_err(unreadable(&mut problems)));
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let elected =
        led_by.as_ref().zip(leader.as_ref()).map(|(one, leader)| (one.id.as_str(), leader.term.get()));
    problems.extend(leaders::problems(elected, &present).iter().map(ToString::to_string));
    Ok(Coordinators {
        backend: coordination.backend().to_owned(),
        coordinators: leaders::rows(elected, led_by.as_ref(), &present),
        problems,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_is_one_segment() {
        for name in ["c1", "10.0.0.1:7400", "a/b", ".", "..", "é", "[::1]:7400"] {
            let key = Key::new(COORDINATORS).unwrap().join(key_segment(name)).unwrap();
            assert_eq!(key.parent().unwrap().as_str(), COORDINATORS, "{name}");
        }
    }

    /// A key that is written after the others were deleted would make the root look like one that somebody else uses.
    #[tokio::test]
    async fn a_coordinator_writes_nothing_into_a_root_that_was_emptied() {
        let coordination: Arc<dyn Coordination> = Embedded::in_memory();
        let session = Duration::from_secs(60);
        let backing = Backing::Open { coordination: coordination.clone(), data_dir: None, session };
        let (id, address) = ("c1".to_owned(), "c1:7400".to_owned());
        let presence = Presence { id, address, since_ms: 1, version: "0.1.0".to_owned(), leads: None };
        let connection =
            BackendConnection::open(&backing, &presence, &BackendState::default()).await.unwrap();
        connection.announce(&presence).await.unwrap();
        for (key, _) in coordination.list(&Scope::All, None, usize::MAX).await.unwrap().entries {
            coordination.delete(&key, Expected::Present).await.unwrap();
        }
        let refused = connection.announce(&presence).await.unwrap_err();
        assert!(matches!(refused, StoreError::Emptied { .. }), "{refused}");
        assert_eq!(coordination.list(&Scope::All, None, 1).await.unwrap().entries, vec![]);
    }
}

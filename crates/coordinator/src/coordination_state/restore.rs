//! Restoring: from the records of a backup to a state that coordinators start from.
//!
//! ```text
//!  empty root ──► `about`: a restore ──► lead ──► write ──► leases of old are over ──► `about`: a cluster
//!                 no coordinator starts here                                           term, in the same commit
//! ```
//!
//! It takes the lead like a coordinator, and writes with the same store, so what it writes is fenced and is what
//! coordinators read. One that was cut off leaves a root on which no coordinator starts; the next restore empties it
//! and begins again. A directory is filled beside its place, and moved there at the end.
//!
//! The restored cluster has an id of its own. The backup may be restored beside the cluster it was taken of, to look
//! at it or to rehearse; and what a coordinator keeps elsewhere for a root (its part of the maps) is later than the
//! backup, and must not be taken for this cluster's.

use crate::backend::Backing;
use crate::backend::store::{Store, StoreError};
use crate::clock::Clock;
use crate::limits;
use partage_coordination::embedded::{Embedded, Options};
use partage_coordination::{
    ClusterId, Coordination, Election, Error, Key, Leadership, RestoreMark, Session, Term, Transaction,
    check_vacant, connect,
};
use partage_core::base::counter_jump::CounterJump;
use partage_core::base::settings::Settings;
use partage_core::cluster::{Cluster, Records, RecoverError};
use partage_wire::stored::{ELECTION, Presence};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A backup that was not restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The store is not empty, cannot be reached, or did not take it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The records are no cluster.
    #[error(transparent)]
    Recover(#[from] RecoverError),
    /// A directory.
    #[error("{}: {what}", path.display())]
    Directory {
        /// The directory that cannot take the backup.
        path: PathBuf,
        /// What is wrong with it, and the way out.
        what: String,
    },
    /// It has no place to be restored to.
    #[error("a backup is restored into a directory or a backend, not into memory")]
    Nowhere,
    /// Somebody else leads in that root.
    #[error("another restore is at work at {0}: wait until it has ended")]
    Busy(String),
}

impl From<Error> for RestoreError {
    fn from(error: Error) -> RestoreError {
        RestoreError::Store(error.into())
    }
}

/// Makes sure that a backup can be restored there, and changes nothing.
///
/// # Errors
/// Names what is there already.
pub async fn can_restore(backing: &Backing) -> Result<(), RestoreError> {
    match backing {
        Backing::Memory => Err(RestoreError::Nowhere),
        Backing::Directory(dir) => beside(dir).map(drop),
        Backing::Shared { target, .. } => {
            Ok(check_vacant(&*connect(target).await?, &target.to_string()).await?)
        }
        Backing::Open { coordination, .. } => Ok(check_vacant(&**coordination, &backing.place()).await?),
    }
}

/// A restore at work.
pub struct Restore {
    clock: Clock,
    coordination: Arc<dyn Coordination>,
    session: Session,
    election: Election,
    leadership: Leadership,
    destination: Destination,
}

/// Where it is restored to.
enum Destination {
    /// The root of a backend.
    Root(RestoreMark),
    /// A directory, filled beside its place.
    Directory { embedded: Arc<Embedded>, filled: PathBuf, place: PathBuf },
}

impl Restore {
    /// Takes an empty place. From here on no coordinator starts there until [`Restore::end`].
    ///
    /// # Errors
    /// When it is not empty, or cannot be reached.
    pub async fn begin(backing: &Backing) -> Result<Restore, RestoreError> {
        let clock = Clock::start();
        let (coordination, destination): (Arc<dyn Coordination>, _) = match backing {
            Backing::Memory => return Err(RestoreError::Nowhere),
            Backing::Directory(dir) => {
                let filled = beside(dir)?;
                let embedded = Embedded::open(&filled, Options::default()).await?;
                (embedded.clone(), Destination::Directory { embedded, filled, place: dir.clone() })
            }
            Backing::Shared { target, .. } => {
                let coordination = connect(target).await?;
                let mark = RestoreMark::begin(&*coordination, &target.to_string()).await?;
                (coordination, Destination::Root(mark))
            }
            Backing::Open { coordination, .. } => {
                let mark = RestoreMark::begin(&**coordination, &backing.place()).await?;
                (coordination.clone(), Destination::Root(mark))
            }
        };
        let session =
            Session::open(coordination.clone(), Duration::from_millis(limits::RESTORE_SESSION_MS)).await?;
        let election = Election::new(coordination.clone(), &Key::new(ELECTION).map_err(StoreError::from)?)?;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let (id, address) = ("restore".to_owned(), String::new());
        let me = Presence { id, address, since_ms: clock.moment().wall_ms, version, leads: None };
        // The session of one that was cut off ends by its time.
        let patience = Duration::from_millis(2 * limits::RESTORE_SESSION_MS);
        let leadership = tokio::time::timeout(patience, election.lead(&session, || me.to_bytes())).await;
        let leadership = leadership.map_err(|_| RestoreError::Busy(backing.place()))??;
        Ok(Restore { clock, coordination, session, election, leadership, destination })
    }

    /// Writes them, [as they are after a loss](Records::after_loss), in the place of what is there.
    ///
    /// # Errors
    /// When they are no cluster, or the store did not take them.
    pub async fn write(&self, records: Records) -> Result<(), RestoreError> {
        let mut store = Store::wipe(self.coordination.clone(), self.leadership.clone()).await?;
        let writes = records.writes();
        let cluster = Cluster::recover(self.clock.moment(), Settings::default(), records)?;
        Ok(store.commit(writes, &cluster).await?)
    }

    /// From now on coordinators start from it. The first leader's term is above that of any before: what is stored
    /// elsewhere under a term is refused to nobody who leads now.
    ///
    /// # Errors
    /// When the store did not take it; then no coordinator starts from it.
    pub async fn end(self) -> Result<(), RestoreError> {
        let last =
            Term::new(CounterJump::at(self.clock.moment().wall_ms).beyond(self.leadership.term().get()));
        let (key, value) = Election::last_term(&Key::new(ELECTION).map_err(StoreError::from)?, last)?;
        let transaction = Transaction::new().put(&key, value);
        match self.destination {
            Destination::Root(mark) => {
                let transaction = self.leadership.fence(mark.end(transaction)?);
                self.leadership.commit(&*self.coordination, transaction).await?;
                self.election.resign(self.leadership).await?;
                Ok(self.coordination.end_session(self.session.id()).await?)
            }
            Destination::Directory { embedded, filled, place } => {
                self.leadership.commit(&*self.coordination, self.leadership.fence(transaction)).await?;
                embedded.close().await;
                moved(&filled, &place)
            }
        }
    }

    /// Of the cluster that it becomes.
    pub fn cluster(&self) -> ClusterId {
        match &self.destination {
            Destination::Root(mark) => mark.cluster,
            Destination::Directory { embedded, .. } => embedded.cluster(),
        }
    }
}

/// Where the restore fills the directory for `place`, once it is certain that there is nothing at either.
fn beside(place: &Path) -> Result<PathBuf, RestoreError> {
    let error = |path: &Path, what: String| RestoreError::Directory { path: path.to_owned(), what };
    match std::fs::read_dir(place) {
        Ok(mut entries) => {
            if let Some(Ok(entry)) = entries.next() {
                let what = format!(
                    "is not empty, it has {}: a backup is restored into a new or empty directory only",
                    entry.file_name().display()
                );
                return Err(error(place, what));
            }
        }
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => {}
        Err(why) => return Err(error(place, why.to_string())),
    }
    let name = place.file_name().ok_or_else(|| error(place, "is no name for a directory".to_owned()))?;
    let mut filled = name.to_owned();
    filled.push(".restoring");
    let filled = place.with_file_name(filled);
    match filled.try_exists() {
        Ok(false) => Ok(filled),
        Ok(true) => {
            let what =
                "a restore is at work there, or one was cut off: wait for its end, or delete this directory";
            Err(error(&filled, what.to_owned()))
        }
        Err(why) => Err(error(&filled, why.to_string())),
    }
}

fn moved(filled: &Path, place: &Path) -> Result<(), RestoreError> {
    let error = |why: std::io::Error| RestoreError::Directory {
        path: place.to_owned(),
        what: format!("the restored state stays in {}: {why}", filled.display()),
    };
    std::fs::rename(filled, place).map_err(error)?;
    // Of a relative path of one name, the folder has the empty name.
    let folder = place.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(error)
}

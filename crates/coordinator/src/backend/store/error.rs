//! What keeps the store from keeping what was decided.

use partage_coordination::{ClusterId, Deposed, Error, KeyError, Leadership};
use partage_core::base::id::Generation;
use partage_core::base::name::{KeyspaceName, NameError};
use partage_metadata::{ChangeError, OpenError};
use partage_service::metadata::change::Failed;
use partage_wire::stored::{EncodeError, StoredError};
use std::path::PathBuf;

/// The store did not keep what was decided, or does not hold what it should.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The backend said so.
    #[error(transparent)]
    Coordination(#[from] partage_coordination::Error),
    /// Another may lead by now.
    #[error("this coordinator leads no more: {0}")]
    Deposed(#[from] Deposed),
    /// The fence has refused a commit.
    #[error("this coordinator leads no more: its election key is gone, or another coordinator's")]
    FencedOff,
    /// A map is not as this leader left it.
    #[error("this coordinator leads no more: a map is not as it left it, so a later leader has changed it")]
    Overtaken,
    /// The file that holds the highest term that was seen.
    #[error("{}: {what}", path.display())]
    Terms {
        /// The file of the highest term, which could not be read or written.
        path: PathBuf,
        /// What is wrong with it, and the way out.
        what: String,
    },
    /// Of a commit in several transactions the first ones count, and the others were not done.
    #[error("a part of what was decided last is durable, and the rest is not: {0}")]
    PartDone(Box<StoreError>),
    /// A commit counts, and what is left to be done of it was not done.
    #[error("what was decided last is durable, and is finished by the next leader: {0}")]
    HalfDone(Box<StoreError>),
    /// A key that the backend cannot take.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A record that cannot be stored.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// A map that is not in the store: with an empty one in its place everything would be placed anew.
    #[error(
        "the map of keyspace {keyspace} is kept in METADATA files by {}, and this coordinator reads none: check the root",
        servers.join(", ")
    )]
    Elsewhere {
        /// The keyspace whose map is kept by metadata servers.
        keyspace: KeyspaceName,
        /// Who has it.
        servers: Vec<String>,
    },
    /// A map that metadata servers keep was not read, or not changed.
    #[error(transparent)]
    Map(#[from] ChangeError),
    /// This coordinator's own files of the maps.
    #[error(transparent)]
    Files(#[from] OpenError),
    /// A worker knows of later maps than this leader has.
    #[error(
        "{who} knows of keyspace {keyspace} at {at}, of which this coordinator knows nothing: another one leads by \
         now, or the stored state was set back. It reads everything anew"
    )]
    Ahead {
        /// Who, in words.
        who: String,
        /// Of which keyspace.
        keyspace: KeyspaceName,
        /// The generation of the later map.
        at: Generation,
    },
    /// Somebody else has its name.
    #[error(
        "coordinator {id} is at {address} already: give this one another --id, or wait until the session of that one \
         has ended"
    )]
    IdTaken {
        /// The name.
        id: String,
        /// Who has it.
        address: String,
    },
    /// Somebody has deleted everything under a process that knew it.
    #[error(
        "{place} does not say whose it is any more (key `about`), and held cluster {cluster} before: its keys were \
         deleted, and workers keep what they have. Stop all coordinators, and restore a backup there; or start them \
         anew, and they begin a new cluster"
    )]
    Emptied {
        /// The URL of the emptied root, or the name of its backend.
        place: String,
        /// Which cluster it was.
        cluster: ClusterId,
    },
    /// A directory is missing.
    #[error(
        "a coordinator on {backend} keeps its part of the maps in files: say where with --data-dir (data_dir), a \
         directory of its own"
    )]
    NoDirectory {
        /// The name of the coordination backend, such as `etcd`.
        backend: String,
    },
    /// A keyspace that was in quarantine need not be any more.
    #[error(
        "the stored state of keyspace {keyspace} can be read again: the coordinator reads everything anew"
    )]
    ReadableAgain {
        /// The keyspace that was in quarantine.
        keyspace: KeyspaceName,
    },
    /// Its name cannot stand in a list of metadata servers.
    #[error("the coordinator's id names it as a metadata server too, and {0}: choose another with --id")]
    Name(NameError),
    /// A record that nothing can be made of.
    #[error("{0}: restore a backup, or see `partage check` for what can be saved")]
    Stored(#[from] StoredError),
}

impl StoreError {
    /// Whether it is certain that nothing of a commit is durable.
    pub fn changed_nothing(&self) -> bool {
        match self {
            StoreError::Coordination(error) => error.is_definite(),
            StoreError::FencedOff | StoreError::Key(_) | StoreError::Encode(_) => true,
            // Its head was not swapped, and never will be.
            StoreError::Map(ChangeError::Failed(Failed::TooFew { .. }) | ChangeError::NoServers) => true,
            StoreError::PartDone(_)
            | StoreError::HalfDone(_)
            | StoreError::Deposed(_)
            | StoreError::Overtaken
            | StoreError::Terms { .. }
            | StoreError::Elsewhere { .. }
            | StoreError::Map(_)
            | StoreError::Files(_)
            | StoreError::Ahead { .. }
            | StoreError::IdTaken { .. }
            | StoreError::ReadableAgain { .. }
            | StoreError::Emptied { .. }
            | StoreError::NoDirectory { .. }
            | StoreError::Name(_)
            | StoreError::Stored(_) => false,
        }
    }

    /// Whether nothing is wrong but that there is no room.
    pub fn is_full(&self) -> bool {
        self.full_disk().is_some()
    }

    /// Which disks are full, or which backend has no room, if that is what is wrong.
    pub fn full_disk(&self) -> Option<String> {
        let (file, what) = match self {
            StoreError::Coordination(Error::DiskFull { file, what }) => (file, what),
            StoreError::Coordination(Error::NoRoom { location, what }) => {
                return Some(format!("{location} has no room: {what}"));
            }
            // One that has stored it has room, and may lead.
            StoreError::Map(ChangeError::Failed(Failed::TooFew {
                stored: 0, disks: Some(disks), ..
            })) => {
                return Some(format!("the disks of metadata servers do not take a change of a map: {disks}"));
            }
            _ => return None,
        };
        let dir = file.parent().unwrap_or(file).display();
        Some(format!("the disk that holds {dir} is full: `{}` cannot grow ({what})", file.display()))
    }

    /// What follows from a commit that `leadership` has fenced.
    pub fn of_fenced(leadership: &Leadership, error: Error) -> StoreError {
        if leadership.is_fenced_off(&error) { StoreError::FencedOff } else { error.into() }
    }

    pub(super) fn part_done(self) -> StoreError {
        StoreError::PartDone(Box::new(self))
    }

    pub(super) fn half_done(self) -> StoreError {
        StoreError::HalfDone(Box::new(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where another coordinator has room, the leader hands over instead of waiting for room.
    #[test]
    fn c14_disks_are_full_for_the_leader_where_no_server_has_stored_the_change() {
        let refused = |stored| {
            let disks = Some("m1: /data/maps: no space left".to_owned());
            StoreError::Map(ChangeError::Failed(Failed::TooFew {
                stored,
                servers: 3,
                needed: 2,
                why: "m1: no space left".to_owned(),
                disks,
            }))
        };
        assert!(refused(0).is_full() && refused(0).changed_nothing());
        assert!(!refused(1).is_full() && refused(1).changed_nothing());
    }
}

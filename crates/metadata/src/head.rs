//! The head of a map in the coordination service: read, swapped, written again.

use crate::limits;
use partage_coordination::{
    Coordination, Entry, Error, Expected, Key, KeyError, Scope, Transaction, Update, Version, Watch,
};
use partage_core::base::name::KeyspaceName;
use partage_service::metadata::change::Swapped;
use partage_service::metadata::{Head, Seen};
use partage_wire::stored::StoredError;
use partage_wire::stored::map_file;
use std::sync::Arc;
use tokio::time::timeout;

/// The heads of all keyspaces of a cluster.
#[derive(Debug, Clone)]
pub struct Heads(Arc<dyn Coordination>);

/// A head that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum HeadError {
    /// The backend said so.
    #[error(transparent)]
    Coordination(#[from] Error),
    /// A key that the backend does not take.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Something else is stored there, or it is damaged. It is never overwritten.
    #[error("{0}: it is left alone; restore a backup")]
    Stored(#[from] StoredError),
    /// Its key alone was deleted.
    #[error(
        "key `{key}` is missing, and keyspace {keyspace} is there: its METADATA files are kept. Write the key again as it \
         was, or restore a backup"
    )]
    Missing {
        /// Whose it was.
        keyspace: KeyspaceName,
        /// Where it was.
        key: String,
    },
    /// No answer in time.
    #[error("the coordination service did not answer within {:?}", limits::SWAP)]
    TimeOut,
}

impl Heads {
    /// In that coordination service.
    pub fn new(coordination: Arc<dyn Coordination>) -> Heads {
        Heads(coordination)
    }

    /// The head of a keyspace; none when there is no such keyspace, or none yet.
    ///
    /// # Errors
    /// When it cannot be read, or is missing.
    pub async fn read(&self, keyspace: &KeyspaceName) -> Result<Option<Seen>, HeadError> {
        let [head, record] =
            [Key::new(map_file::head_key(keyspace))?, Key::new(map_file::record_key(keyspace))?];
        // A head and its record come and go in one transaction, or the head comes first. So a head that is still
        // missing after the record was seen, and before it was seen again, was deleted alone; one that was missing
        // only before may have come just then.
        for _ in 0..2 {
            if let Some(entry) = self.entry(&head).await? {
                return seen(keyspace, &entry).map(Some);
            }
            if self.entry(&record).await?.is_none() {
                return Ok(None);
            }
        }
        Err(HeadError::Missing { keyspace: keyspace.clone(), key: head.to_string() })
    }

    async fn entry(&self, key: &Key) -> Result<Option<Entry>, HeadError> {
        Ok(timeout(limits::SWAP, self.0.read(key)).await.map_err(|_| HeadError::TimeOut)??)
    }

    /// Follows the heads of all keyspaces, from what was last heard.
    pub(crate) async fn watch(&self, from: Option<Version>) -> Result<HeadWatch, HeadError> {
        let scope = Scope::Below(Key::new(map_file::HEADS)?);
        Ok(HeadWatch(self.0.watch(scope, from).await?))
    }

    /// Adds the swap to a transaction: the condition that the head is as it was seen, and the new head.
    ///
    /// # Errors
    /// For a name that makes no key.
    pub fn swap_in(
        keyspace: &KeyspaceName,
        expected: Option<u64>,
        head: &Head,
        transaction: Transaction,
    ) -> Result<Transaction, KeyError> {
        let key = Key::new(map_file::head_key(keyspace))?;
        let expected = expected.map_or(Expected::Absent, |version| Expected::At(Version::new(version)));
        Ok(transaction.when(&key, expected).put(&key, map_file::seal_head(keyspace, head)))
    }

    /// Writes `head` if the key is as it was seen.
    pub async fn swap(&self, keyspace: &KeyspaceName, expected: Option<u64>, head: &Head) -> Swapped {
        let transaction = match Heads::swap_in(keyspace, expected, head, Transaction::new()) {
            Ok(transaction) => transaction,
            Err(error) => {
                tracing::error!(%keyspace, %error, "no key for the head");
                return Swapped::Refused;
            }
        };
        match timeout(limits::SWAP, self.0.commit(transaction)).await {
            Ok(outcome) => swapped(&outcome),
            Err(_) => Swapped::Unknown,
        }
    }

    /// Writes the head again as it is, so that no other swap from that version can come.
    pub async fn seal(&self, keyspace: &KeyspaceName, seen: &Seen) {
        let swapped = self.swap(keyspace, Some(seen.version), &seen.head).await;
        tracing::debug!(%keyspace, ?swapped, "the head was written again as it was");
    }
}

fn seen(keyspace: &KeyspaceName, entry: &Entry) -> Result<Seen, HeadError> {
    let head = map_file::open_head(keyspace, &entry.value)?;
    Ok(Seen { head, version: entry.version.get() })
}

/// What was heard of heads.
pub(crate) struct HeadUpdate {
    /// Where to go on after a break.
    pub at: Version,
    /// Whether there are no other heads.
    pub is_all: bool,
    /// Those that were written or deleted.
    pub heads: Vec<(KeyspaceName, Option<Seen>)>,
}

/// Hears of heads that were written.
pub(crate) struct HeadWatch(Watch);

impl HeadWatch {
    /// What comes next. A head that cannot be read is left out: the task that looks at it says why.
    pub async fn next(&mut self) -> Result<HeadUpdate, HeadError> {
        let update = self.0.next().await?;
        let at = update.at();
        let (is_all, entries): (bool, Vec<_>) = match update {
            Update::Resync { entries, .. } => {
                (true, entries.into_iter().map(|(key, entry)| (key, Some(entry))).collect())
            }
            Update::Changes { changes, .. } => {
                (false, changes.into_iter().map(|change| (change.key, change.entry)).collect())
            }
        };
        let heads = entries.into_iter().filter_map(|(key, entry)| {
            let keyspace = map_file::keyspace_of_head(key.as_str())?;
            let head = entry.map(|entry| seen(&keyspace, &entry)).transpose().ok()?;
            Some((keyspace, head))
        });
        Ok(HeadUpdate { at, is_all, heads: heads.collect() })
    }
}

/// What a commit says of the swap in it.
pub fn swapped(outcome: &Result<Version, Error>) -> Swapped {
    match outcome {
        Ok(_) => Swapped::Done,
        Err(error) if error.is_definite() => Swapped::Refused,
        Err(_) => Swapped::Unknown,
    }
}

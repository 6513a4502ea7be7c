//! Writes to a store that others share, refused once a later owner of the shard has begun.
//!
//! A lease stops a worker by its own clock; a store that compares before it writes stops it for certain. Each shard has
//! one object there (its state, or a manifest that names its files). It begins with the epoch of its writer:
//!
//! ```text
//!  serve as leader in epoch 8 ──► claim: read (epoch 7, version c) ── write epoch 8 if still c ──► version d
//!  former owner, epoch 7      ──► write if still c ──► refused: the object is of epoch 8
//! ```
//!
//! [`FencedObject::claim`] is what a leader does first in `serve`, before it reads the state to serve from. From then on
//! every write of a former owner fails, however late it arrives, as the version that it expects is gone. Objects
//! beside this one are not fenced: write them under new names first, and name them in this one last.
//!
//! What the store must offer is [`ConditionalStore`]: `If-Match` and `If-None-Match` of object stores,
//! `UPDATE … WHERE version = …` of a database.

use async_trait::async_trait;
use partage_core::base::id::Epoch;
use std::fmt;

/// How often a claim that others disturb is tried: each owner of a later epoch disturbs it once.
const CLAIM_TRIES: usize = 16;

/// Bytes before the content: the epoch, big-endian.
const HEADER: usize = 8;

/// One object of a store that can compare before it writes.
#[async_trait]
pub trait ConditionalStore: Send + Sync {
    /// Names one state of the object: an ETag, a row's version. New with each write.
    type Version: Clone + Send + Sync;
    /// What can go wrong; after it a write may have been done.
    type Error: std::error::Error + Send + Sync + 'static;

    /// The object as it is; none = there is none.
    async fn read(&self) -> Result<Option<(Self::Version, Vec<u8>)>, Self::Error>;

    /// Writes it if it still is as `expected` (none = if there is none), atomically. None = it was not, and nothing was
    /// done.
    async fn write(
        &self,
        expected: Option<&Self::Version>,
        bytes: Vec<u8>,
    ) -> Result<Option<Self::Version>, Self::Error>;
}

/// The object of one shard, claimed by its leader in one epoch.
pub struct FencedObject<S: ConditionalStore> {
    store: S,
    epoch: Epoch,
    /// The version that was written last; none = a write failed and may have been done.
    version: Option<S::Version>,
}

/// A write that was not done, or perhaps not.
#[derive(Debug, thiserror::Error)]
pub enum FenceError<E: std::error::Error + 'static> {
    /// Nothing was written: the shard has a later owner.
    #[error("the shard is owned in epoch {by} by now, this is epoch {epoch}: serve it no more")]
    Fenced {
        /// The epoch in which this writer leads the shard.
        epoch: Epoch,
        /// The later epoch that the object begins with.
        by: Epoch,
    },
    /// Nothing was written: another writer uses the same epoch.
    #[error("the object was changed by another writer in epoch {0}: write it by the shard's leader only")]
    Shared(Epoch),
    /// The object does not begin with an epoch.
    #[error("the object has {0} bytes and does not begin with an epoch: it was not written by this helper")]
    NotFenced(usize),
    /// A write before this one may or may not have been done: claim the object again and read it.
    #[error("an earlier write has an unknown outcome: claim the object again")]
    Unclear,
    /// Other writers changed the object before each try.
    #[error("the object could not be claimed, as it changed each time: try again")]
    Busy,
    /// The store failed; a write may have been done.
    #[error("the store failed: {0}")]
    Store(#[source] E),
}

impl<S: ConditionalStore> FencedObject<S> {
    /// Takes the object for the leader of `epoch`, and returns its content: none if there was none. Safe to
    /// call again in the same epoch.
    ///
    /// # Errors
    /// [`FenceError::Fenced`] when a later owner has claimed it; what the store says.
    pub async fn claim(
        store: S,
        epoch: Epoch,
    ) -> Result<(FencedObject<S>, Option<Vec<u8>>), FenceError<S::Error>> {
        for _ in 0..CLAIM_TRIES {
            let seen = store.read().await.map_err(FenceError::Store)?;
            let (expected, content) = match seen {
                None => (None, None),
                Some((version, bytes)) => {
                    let (by, content) = split(&bytes)?;
                    if by > epoch {
                        return Err(FenceError::Fenced { epoch, by });
                    }
                    (Some(version), Some(content.to_vec()))
                }
            };
            let bytes = joined(epoch, content.as_deref().unwrap_or_default());
            if let Some(version) = store.write(expected.as_ref(), bytes).await.map_err(FenceError::Store)? {
                // An object that was only claimed has no content yet.
                let content = content.filter(|content| !content.is_empty());
                return Ok((FencedObject { store, epoch, version: Some(version) }, content));
            }
        }
        Err(FenceError::Busy)
    }

    /// The epoch in which the object was claimed.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Replaces the content, if no later owner has claimed the object.
    ///
    /// # Errors
    /// [`FenceError::Fenced`]: nothing was written, and the service must serve the shard no more. [`FenceError::Store`]: it may
    /// have been written; every further write is refused until the object is claimed again.
    pub async fn write(&mut self, content: &[u8]) -> Result<(), FenceError<S::Error>> {
        let Some(expected) = self.version.take() else { return Err(FenceError::Unclear) };
        let written = self.store.write(Some(&expected), joined(self.epoch, content)).await;
        match written.map_err(FenceError::Store)? {
            Some(version) => {
                self.version = Some(version);
                Ok(())
            }
            None => Err(self.refused().await?),
        }
    }

    async fn refused(&self) -> Result<FenceError<S::Error>, FenceError<S::Error>> {
        let seen = self.store.read().await.map_err(FenceError::Store)?;
        let by = seen.map(|(_, bytes)| split(&bytes).map(|(by, _)| by)).transpose()?;
        Ok(match by {
            Some(by) if by > self.epoch => FenceError::Fenced { epoch: self.epoch, by },
            _ => FenceError::Shared(self.epoch),
        })
    }
}

impl<S: ConditionalStore> fmt::Debug for FencedObject<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencedObject").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

fn joined(epoch: Epoch, content: &[u8]) -> Vec<u8> {
    [&epoch.0.to_be_bytes()[..], content].concat()
}

fn split<E: std::error::Error>(bytes: &[u8]) -> Result<(Epoch, &[u8]), FenceError<E>> {
    match bytes.split_first_chunk::<HEADER>() {
        Some((epoch, content)) => Ok((Epoch(u64::from_be_bytes(*epoch)), content)),
        None => Err(FenceError::NotFenced(bytes.len())),
    }
}

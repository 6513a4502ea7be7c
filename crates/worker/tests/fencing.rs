//! Two owners of one shard write to a shared object store: an example of [`partage_worker::fence`] on conditional
//! writes (`If-Match`, `If-None-Match`), here of the `object_store` crate, which speaks to S3, GCS and Azure the same way.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, UpdateVersion};
use partage_worker::fence::{ConditionalStore, FenceError, FencedObject};
use partage_worker::{Epoch, async_trait};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The object of one shard. `loses_answers`: writes are done, but their callers do not hear of it.
#[derive(Clone)]
struct ShardObject {
    store: Arc<dyn ObjectStore>,
    path: Path,
    loses_answers: Arc<AtomicBool>,
}

#[async_trait]
impl ConditionalStore for ShardObject {
    type Version = UpdateVersion;
    type Error = Error;

    async fn read(&self) -> Result<Option<(UpdateVersion, Vec<u8>)>, Error> {
        match self.store.get(&self.path).await {
            Ok(found) => {
                let version =
                    UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
                Ok(Some((version, found.bytes().await?.to_vec())))
            }
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn write(
        &self,
        expected: Option<&UpdateVersion>,
        bytes: Vec<u8>,
    ) -> Result<Option<UpdateVersion>, Error> {
        let mode = expected.cloned().map_or(PutMode::Create, PutMode::Update);
        let put = self.store.put_opts(&self.path, bytes.into(), PutOptions::from(mode)).await;
        if self.loses_answers.load(Ordering::SeqCst) {
            return Err(Error::NotImplemented {
                operation: "answers".into(),
                implementer: "the test".into(),
            });
        }
        match put {
            Ok(done) => Ok(Some(UpdateVersion { e_tag: done.e_tag, version: done.version })),
            Err(Error::Precondition { .. } | Error::AlreadyExists { .. } | Error::NotFound { .. }) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

fn shard() -> ShardObject {
    let store = Arc::new(InMemory::new());
    ShardObject { store, path: Path::from("users/s1"), loses_answers: Arc::default() }
}

#[tokio::test]
async fn o3_a_former_owner_that_wakes_up_writes_nothing() {
    let shard = shard();
    let (mut former, content) = FencedObject::claim(shard.clone(), Epoch(7)).await.unwrap();
    assert_eq!(content, None, "the shard is new");
    former.write(b"one").await.unwrap();
    // The former owner is paused; the next one leads under a later epoch.
    let (mut next, content) = FencedObject::claim(shard.clone(), Epoch(8)).await.unwrap();
    assert_eq!(content.as_deref(), Some(&b"one"[..]));
    let refused = former.write(b"late").await.unwrap_err();
    assert!(matches!(refused, FenceError::Fenced { epoch: Epoch(7), by: Epoch(8) }), "{refused}");
    next.write(b"two").await.unwrap();
    let refused = FencedObject::claim(shard.clone(), Epoch(7)).await.unwrap_err();
    assert!(matches!(refused, FenceError::Fenced { .. }), "{refused}");
    let (_, content) = FencedObject::claim(shard, Epoch(9)).await.unwrap();
    assert_eq!(content.as_deref(), Some(&b"two"[..]));
}

#[tokio::test]
async fn a_write_with_an_unknown_outcome_is_followed_by_a_claim() {
    let shard = shard();
    let (mut owner, _) = FencedObject::claim(shard.clone(), Epoch(3)).await.unwrap();
    shard.loses_answers.store(true, Ordering::SeqCst);
    assert!(matches!(owner.write(b"perhaps").await.unwrap_err(), FenceError::Store(_)));
    shard.loses_answers.store(false, Ordering::SeqCst);
    assert!(matches!(owner.write(b"more").await.unwrap_err(), FenceError::Unclear));
    let (mut owner, content) = FencedObject::claim(shard, Epoch(3)).await.unwrap();
    assert_eq!(content.as_deref(), Some(&b"perhaps"[..]), "it had been done");
    owner.write(b"more").await.unwrap();
}

#[tokio::test]
async fn o3_of_many_owners_only_the_latest_goes_on_writing() {
    let shard = shard();
    let owners = (1..=8).map(|epoch| {
        let shard = shard.clone();
        tokio::spawn(async move {
            let Ok((mut owner, _)) = FencedObject::claim(shard, Epoch(epoch)).await else {
                return (epoch, true);
            };
            for _ in 0..50 {
                if owner.write(&epoch.to_be_bytes()).await.is_err() {
                    return (epoch, true);
                }
                tokio::task::yield_now().await;
            }
            (epoch, false)
        })
    });
    for owner in owners.collect::<Vec<_>>() {
        let (epoch, was_fenced) = owner.await.unwrap();
        assert!(epoch < 8 || !was_fenced, "nobody comes after the latest");
    }
    let (_, content) = FencedObject::claim(shard, Epoch(8)).await.unwrap();
    assert_eq!(content, Some(8_u64.to_be_bytes().to_vec()));
}

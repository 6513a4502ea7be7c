//! The key `about`, which names the cluster of a root: written once and compared at every start.
//!
//! A coordinator claims a root without it only when it is empty, and never writes over another program's keys. While a
//! backup is restored into a root, the key says that instead, so that no coordinator starts on half of a cluster.

use std::fmt;

use bytes::Bytes;

use crate::contract::Coordination;
use crate::error::{Error, Result};
use crate::key::{Key, Scope};
use crate::transaction::{Expected, Transaction, Version};

/// The key that names a root's cluster.
pub const ABOUT: &str = "about";

/// What the claim begins with; the number is that of the layout below the root.
const LAYOUT: &str = "partage coordination 1 cluster ";

/// What the key holds instead until a restore has ended.
const RESTORING: &str = "partage restore 1 cluster ";

/// Which cluster a root or a directory belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterId(pub u128);

impl ClusterId {
    /// A new random id: for a cluster that begins, or that a backup is restored into.
    #[must_use]
    pub fn random() -> Self {
        Self(u128::from_be_bytes(partage_random::bytes()))
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Makes sure that the root behind `coordination` is of the cluster `expected`, or of any cluster if none is.
/// Claims an empty root. `location` names it in errors.
///
/// # Errors
/// [`Error::WrongCluster`] for another cluster's root; [`Error::Invalid`], with the key, for what this program
/// did not write, or wrote in a later layout.
pub async fn claim(
    coordination: &dyn Coordination,
    location: &str,
    expected: Option<ClusterId>,
) -> Result<ClusterId> {
    let about = Key::new(ABOUT)?;
    loop {
        if let Some(entry) = coordination.read(&about).await? {
            let found = read(location, &about, &entry.value)?;
            return match expected.filter(|expected| *expected != found) {
                None => Ok(found),
                Some(expected) => Err(Error::WrongCluster {
                    location: location.to_owned(),
                    expected: expected.to_string(),
                    found: found.to_string(),
                }),
            };
        }
        check_empty(coordination, location).await?;
        let cluster = expected.unwrap_or_else(ClusterId::random);
        let value = Bytes::from(format!("{LAYOUT}{cluster}\n"));
        match coordination.compare_and_swap(&about, Expected::Absent, value).await {
            // Somebody was first, or it may have been us: look again.
            Ok(_) | Err(Error::Refused { .. } | Error::Indefinite { .. }) => {}
            Err(error) => return Err(error),
        }
    }
}

/// The cluster of a root, by the value of `about`.
///
/// # Errors
/// [`Error::Invalid`] with the key, for a restore that has not ended and for a value of another program.
pub fn cluster_of(location: &str, about: &[u8]) -> Result<ClusterId> {
    read(location, &Key::new(ABOUT)?, about)
}

/// A root that is being filled from a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoreMark {
    /// The id of the restored cluster: a new one, as the former may run elsewhere.
    pub cluster: ClusterId,
    version: Version,
}

/// Makes sure that the root behind `coordination` holds nothing, or an unfinished restore: no cluster that ever
/// ran. Changes nothing.
///
/// # Errors
/// [`Error::Invalid`] with the key that is there.
pub async fn check_vacant(coordination: &dyn Coordination, location: &str) -> Result<()> {
    match coordination.read(&Key::new(ABOUT)?).await? {
        Some(entry) if entry.value.starts_with(RESTORING.as_bytes()) => Ok(()),
        Some(entry) => {
            let cluster = read(location, &Key::new(ABOUT)?, &entry.value)?;
            let what = format!(
                "{location} holds cluster {cluster} (key `about`), and a backup is restored into an empty root only: \
                 choose another root, or empty this one"
            );
            Err(Error::Invalid { what })
        }
        None => check_empty(coordination, location).await,
    }
}

impl RestoreMark {
    /// Marks the root, which must be vacant, as being restored. No coordinator starts on
    /// it until [`RestoreMark::end`].
    pub async fn begin(coordination: &dyn Coordination, location: &str) -> Result<RestoreMark> {
        let about = Key::new(ABOUT)?;
        loop {
            check_vacant(coordination, location).await?;
            let before = coordination.read(&about).await?;
            let cluster = ClusterId::random();
            let value = Bytes::from(format!("{RESTORING}{cluster}\n"));
            let expected = Expected::unchanged(before.as_ref());
            match coordination.compare_and_swap(&about, expected, value).await {
                Ok(version) => return Ok(RestoreMark { cluster, version }),
                // Somebody was first, or it may have been us: look again.
                Err(Error::Refused { .. } | Error::Indefinite { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Adds the claim of the root to the last transaction of a restore.
    pub fn end(&self, transaction: Transaction) -> Result<Transaction> {
        let about = Key::new(ABOUT)?;
        let value = Bytes::from(format!("{LAYOUT}{}\n", self.cluster));
        Ok(transaction.when(&about, Expected::At(self.version)).put(&about, value))
    }
}

async fn check_empty(coordination: &dyn Coordination, location: &str) -> Result<()> {
    let listing = coordination.list(&Scope::All, None, 1).await?;
    match listing.entries.first().filter(|(key, _)| key.as_str() != ABOUT) {
        None => Ok(()),
        Some((key, _)) => {
            let what = format!(
                "{location} is not empty and not a cluster's: it has `{key}`; choose another root, or empty this one"
            );
            Err(Error::Invalid { what })
        }
    }
}

fn read(location: &str, about: &Key, value: &[u8]) -> Result<ClusterId> {
    let invalid = |what: &str| Error::Invalid { what: format!("{location}: key `{about}` {what}") };
    let text = std::str::from_utf8(value).unwrap_or_default();
    if text.starts_with(RESTORING) {
        return Err(invalid(
            "says that a restore was begun here and not finished: run `partage restore` again, or empty the root",
        ));
    }
    if let Some(id) = text.strip_prefix(LAYOUT) {
        let id = u128::from_str_radix(id.trim_end(), 16);
        return id.map(ClusterId).map_err(|_| invalid("is damaged: restore a backup"));
    }
    Err(invalid(if text.starts_with("partage coordination ") {
        "is of another version of this program: use that version, or restore its backup into an empty root"
    } else {
        "was not written by this program: choose another root"
    }))
}

#[cfg(all(test, feature = "embedded"))]
mod tests {
    use super::*;
    use crate::Transaction;
    use crate::embedded::Embedded;

    #[tokio::test]
    async fn an_empty_root_is_claimed_once_and_kept() {
        let store = Embedded::in_memory();
        let cluster = claim(&*store, "here", None).await.unwrap();
        assert_eq!(claim(&*store, "here", None).await, Ok(cluster));
        assert_eq!(claim(&*store, "here", Some(cluster)).await, Ok(cluster));
        let other = claim(&*store, "here", Some(ClusterId(7))).await.unwrap_err();
        assert!(matches!(other, Error::WrongCluster { .. }));
        let named = Embedded::in_memory();
        assert_eq!(claim(&*named, "here", Some(ClusterId(7))).await, Ok(ClusterId(7)));
    }

    #[tokio::test]
    async fn nobody_starts_on_a_root_that_is_being_restored_until_that_has_ended() {
        let store = Embedded::in_memory();
        let first = RestoreMark::begin(&*store, "here").await.unwrap();
        let error = claim(&*store, "here", None).await.unwrap_err().to_string();
        assert!(error.contains("`about`") && error.contains("partage restore"), "{error}");
        // It was cut off; whoever begins again takes over, and the first can end nothing any more.
        store.commit(Transaction::new().put(&Key::new("nodes/n1").unwrap(), "half")).await.unwrap();
        let second = RestoreMark::begin(&*store, "here").await.unwrap();
        assert!(store.commit(first.end(Transaction::new()).unwrap()).await.is_err());
        store.commit(second.end(Transaction::new()).unwrap()).await.unwrap();
        assert_eq!(claim(&*store, "here", None).await, Ok(second.cluster));
        let error = RestoreMark::begin(&*store, "here").await.unwrap_err().to_string();
        assert!(error.contains("empty root only") && error.contains("here"), "{error}");
    }

    #[tokio::test]
    async fn what_is_not_ours_is_named_and_left_alone() {
        for (key, value, why) in [
            ("users/7", "hello", "it has `users/7`"),
            ("about", "hello", "`about` was not written by this program"),
            ("about", "partage coordination 2 cluster 00", "another version"),
            ("about", "partage coordination 1 cluster xyz", "damaged"),
        ] {
            let store = Embedded::in_memory();
            let key = Key::new(key).unwrap();
            let before = store.commit(Transaction::new().put(&key, value)).await.unwrap();
            let error = claim(&*store, "etcd://h/root", None).await.unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("etcd://h/root"), "{error}");
            let error = RestoreMark::begin(&*store, "etcd://h/root").await.unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("etcd://h/root"), "{error}");
            let all = store.list(&Scope::All, None, 10).await.unwrap();
            assert_eq!((all.entries.len(), all.at), (1, before));
        }
    }
}

//! Objects of a place that is no source of datasets: what backups of tables are stored as. The same URLs, stores and errors.

use super::error::{SourceError, SourceErrorKind};
use super::{Settings, Source, SourceRetryPolicy};
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode};
use std::path::PathBuf;
use std::sync::Arc;

/// An object, as a listing has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Its path below the root, with `/` between the parts.
    pub path: String,
    /// The length in bytes, as the store lists it.
    pub bytes: u64,
}

impl Source {
    /// Opens a place for objects; see [`Source::open`] for its URL. What is put into a local folder is on the disk before that is
    /// said.
    ///
    /// # Errors
    /// The URL is none, or the folder is not there.
    pub fn open_objects(url: &str, settings: &Settings) -> Result<Source, SourceError> {
        durable(super::open::open(url, settings, &SourceRetryPolicy::default())?, false)
    }

    /// The same for objects that come and go: how long a store is waited for the caller says, and a local folder has no empty
    /// folders left.
    ///
    /// # Errors
    /// As of [`Source::open_objects`].
    pub fn open_objects_with_policy(
        url: &str,
        settings: &Settings,
        policy: &SourceRetryPolicy,
    ) -> Result<Source, SourceError> {
        durable(super::open::open(url, settings, policy)?, true)
    }

    /// The folder that a URL names, if it names one.
    ///
    /// # Errors
    /// The URL is none.
    pub fn folder_of(url: &str) -> Result<Option<PathBuf>, SourceError> {
        let none = |why: String| SourceError::new(url, SourceErrorKind::Url(why));
        match (url.contains("://"), url.strip_prefix("file://")) {
            (false, _) => Ok(Some(PathBuf::from(url))),
            (true, None) => Ok(None),
            (true, Some(_)) => {
                let parsed = url::Url::parse(url).map_err(|error| none(error.to_string()))?;
                let folder = parsed.to_file_path();
                folder.map(Some).map_err(|()| none("file:// takes an absolute path".to_owned()))
            }
        }
    }

    fn object(&self, path: &str) -> Path {
        path.split('/').filter(|part| !part.is_empty()).fold(self.root.clone(), |at, part| at.join(part))
    }

    fn failed(&self, path: &str, error: object_store::Error) -> SourceError {
        SourceError::new(format!("{}/{path}", self.url), SourceErrorKind::of(error))
    }

    /// Puts an object, whole or not at all, over one that may be there.
    ///
    /// # Errors
    /// The store refuses.
    pub async fn put_object(&self, path: &str, bytes: Bytes) -> Result<(), SourceError> {
        let put = self.store.put(&self.object(path), bytes.into()).await;
        put.map(drop).map_err(|error| self.failed(path, error))
    }

    /// Puts an object, whole or not at all, unless one is there.
    ///
    /// # Errors
    /// One is there, or the store refuses.
    pub async fn put_new_object(&self, path: &str, bytes: Bytes) -> Result<(), SourceError> {
        let put = self.store.put_opts(&self.object(path), bytes.into(), PutMode::Create.into()).await;
        put.map(drop).map_err(|error| match error {
            object_store::Error::AlreadyExists { .. } => {
                SourceError::new(format!("{}/{path}", self.url), SourceErrorKind::There)
            }
            error => self.failed(path, error),
        })
    }

    /// An object as a whole, of so many bytes at most.
    ///
    /// # Errors
    /// It is not there, or longer, or cannot be read.
    pub async fn get_object(&self, path: &str, limit: u64) -> Result<Bytes, SourceError> {
        let got = self.store.get(&self.object(path)).await.map_err(|error| self.failed(path, error))?;
        if got.meta.size > limit {
            let kind = SourceErrorKind::TooLong { bytes: got.meta.size, limit };
            return Err(SourceError::new(format!("{}/{path}", self.url), kind));
        }
        got.bytes().await.map_err(|error| self.failed(path, error))
    }

    /// Reads so many bytes of an object, from byte `from` on.
    ///
    /// # Errors
    /// It is not there, or shorter, or cannot be read.
    pub async fn get_object_range(&self, path: &str, from: u64, bytes: u64) -> Result<Bytes, SourceError> {
        let range = from..from.saturating_add(bytes);
        let got = self.store.get_range(&self.object(path), range).await;
        let got = got.map_err(|error| self.failed(path, error))?;
        match got.len() as u64 {
            length if length == bytes => Ok(got),
            length => {
                let kind = SourceErrorKind::Length { bytes: length, expected: bytes };
                Err(SourceError::new(format!("{}/{path}", self.url), kind))
            }
        }
    }

    /// All objects below a path, in no order; none if there is nothing.
    ///
    /// # Errors
    /// The store does not list.
    pub async fn list_objects(&self, path: &str) -> Result<Vec<Object>, SourceError> {
        let below = self.object(path);
        let skipped = self.root.parts().count();
        let listed = self.store.list(Some(&below)).map_ok(|meta| {
            let parts: Vec<_> =
                meta.location.parts().skip(skipped).map(|part| part.as_ref().to_owned()).collect();
            Object { path: parts.join("/"), bytes: meta.size }
        });
        listed.try_collect().await.map_err(|error| self.failed(path, error))
    }

    /// The names of the folders right below a path, in no order; none if there is nothing.
    ///
    /// # Errors
    /// The store does not list.
    pub async fn list_folders(&self, path: &str) -> Result<Vec<String>, SourceError> {
        let listed = self.store.list_with_delimiter(Some(&self.object(path))).await;
        let listed = listed.map_err(|error| self.failed(path, error))?;
        Ok(listed.common_prefixes.iter().filter_map(Path::filename).map(str::to_owned).collect())
    }

    /// Takes an object away.
    ///
    /// # Errors
    /// The store refuses.
    pub async fn delete_object(&self, path: &str) -> Result<(), SourceError> {
        match self.store.delete(&self.object(path)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed(path, error)),
        }
    }
}

/// What is put into a local folder is on the disk before that is said; and no empty folder is left in it, or one may be.
fn durable(source: Source, cleans: bool) -> Result<Source, SourceError> {
    let Some(folder) = &source.folder else { return Ok(source) };
    let store = LocalFileSystem::new_with_prefix(folder);
    let store = store.map_err(|error| SourceError::new(source.url.clone(), SourceErrorKind::of(error)))?;
    let store = store.with_fsync(true).with_automatic_cleanup(cleans);
    Ok(Source { store: Arc::new(store), ..source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn objects_are_put_got_listed_and_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let url = folder.path().to_str().unwrap();
        let source = Source::open_objects(url, &Settings::new()).unwrap();
        assert_eq!(source.list_objects("a").await.unwrap(), []);
        source.put_object("a/b/c", Bytes::from_static(b"one")).await.unwrap();
        source.put_object("a/b/c", Bytes::from_static(b"two!")).await.unwrap();
        source.put_new_object("a/d", Bytes::new()).await.unwrap();
        let there = source.put_new_object("a/d", Bytes::new()).await.unwrap_err();
        assert!(matches!(there.kind, SourceErrorKind::There), "{there}");
        assert_eq!(source.get_object("a/b/c", 4).await.unwrap(), "two!");
        assert_eq!(source.get_object_range("a/b/c", 1, 2).await.unwrap(), "wo");
        assert!(source.get_object_range("a/b/c", 3, 2).await.is_err(), "it is shorter");
        assert!(source.get_object("a/b/c", 3).await.unwrap_err().to_string().contains("4 bytes"));
        let missing = source.get_object("a/x", 9).await.unwrap_err();
        assert!(matches!(missing.kind, SourceErrorKind::NotThere) && missing.to_string().contains("a/x"));
        let mut listed = source.list_objects("a").await.unwrap();
        listed.sort_by(|one, other| one.path.cmp(&other.path));
        let object = |path: &str, bytes| Object { path: path.to_owned(), bytes };
        assert_eq!(listed, [object("a/b/c", 4), object("a/d", 0)]);
        assert_eq!(source.list_folders("a").await.unwrap(), ["b"]);
        assert_eq!(source.list_folders("none").await.unwrap(), Vec::<String>::new());
        source.delete_object("a/d").await.unwrap();
        source.delete_object("a/d").await.unwrap();
        assert_eq!(source.list_objects("").await.unwrap(), [object("a/b/c", 4)]);
    }

    #[test]
    fn a_url_of_a_folder_is_told_from_others() {
        assert_eq!(Source::folder_of("a/b").unwrap(), Some(PathBuf::from("a/b")));
        assert_eq!(Source::folder_of("file:///a/b").unwrap(), Some(PathBuf::from("/a/b")));
        assert_eq!(Source::folder_of("s3://a/b").unwrap(), None);
        assert!(Source::folder_of("file://a/b").is_err());
    }
}

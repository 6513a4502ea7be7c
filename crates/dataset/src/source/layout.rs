//! What lies in a source: datasets, their versions, and the files of one (S5).

use bytes::Bytes;
use object_store::path::Path;
use object_store::{ListResult, ObjectMeta, ObjectStore, ObjectStoreExt};
use partage_service::dataset::{DatasetName, DatasetNameError, VersionName};

use super::Source;
use super::error::{SourceError, SourceErrorKind};
use crate::limits::{SOURCE_ENTRIES, SYMLINK_BYTES, SYMLINKS};

/// Folders whose names are names, and why the others are none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folders<N> {
    /// In the order of their bytes: of versions, the latest is the last.
    pub names: Vec<N>,
    /// The folders that are passed over for their names, but for those that begin with `_` or `.`.
    pub refused: Vec<DatasetNameError>,
}

/// The files of a version: file number i is where partition i would be, were the keys dealt out by the hash.
#[derive(Debug, Clone)]
pub struct Files {
    /// The files in the order of their names.
    pub files: Vec<SourceFile>,
    /// The version in whose folder they lie: another one after a `_SYMLINK`.
    pub version: VersionName,
    /// Whether `_SUCCESS` is there too.
    pub is_success: bool,
}

/// A file of a version.
#[derive(Debug, Clone)]
pub struct SourceFile {
    /// The name of the file in the folder of its version.
    pub name: String,
    /// Its URL, for errors.
    pub url: String,
    /// The length in bytes, as the source listed it; a download of another length fails.
    pub bytes: u64,
    pub(super) location: Path,
    pub(super) e_tag: Option<String>,
}

impl Files {
    /// The bytes of all files together, for progress.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

const SUCCESS: &str = "_SUCCESS";
const SYMLINK: &str = "_SYMLINK";

impl Source {
    /// The datasets that there are.
    pub async fn datasets(&self) -> Result<Folders<DatasetName>, SourceError> {
        let listed = self.list(&self.root, &self.url).await?;
        Ok(folders(&listed, DatasetName::new))
    }

    /// The versions of a dataset; whether they are whole is not looked at.
    pub async fn versions(&self, dataset: &DatasetName) -> Result<Folders<VersionName>, SourceError> {
        let (path, url) = self.below(&self.root, &self.url, dataset.as_str());
        let listed = self.list(&path, &url).await?;
        Ok(folders(&listed, VersionName::new))
    }

    /// The latest version that has files, and `_SUCCESS` if that is asked for.
    pub async fn latest(
        &self,
        dataset: &DatasetName,
        needs_success: bool,
    ) -> Result<Option<VersionName>, SourceError> {
        for version in self.versions(dataset).await?.names.into_iter().rev() {
            match self.files(dataset, &version).await {
                Ok(files) if files.is_success || !needs_success => return Ok(Some(version)),
                Ok(_) | Err(SourceError { kind: SourceErrorKind::Empty, .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// The files of a version, `_SYMLINK` followed.
    pub async fn files(&self, dataset: &DatasetName, version: &VersionName) -> Result<Files, SourceError> {
        let (dataset_path, dataset_url) = self.below(&self.root, &self.url, dataset.as_str());
        let mut version = version.clone();
        for _ in 0..=SYMLINKS {
            let (path, url) = self.below(&dataset_path, &dataset_url, version.as_str());
            let listed = self.list(&path, &url).await?;
            match listed.objects.iter().find(|object| object.location.filename() == Some(SYMLINK)) {
                None => return files(version, listed, &path, &url),
                Some(link) => version = self.symlink(link, &url).await?,
            }
        }
        Err(SourceError::new(dataset_url, SourceErrorKind::Symlinks))
    }

    /// A small file beside a dataset's versions, or `None` if it is not there: what begins with `_` is no data.
    pub async fn read(
        &self,
        dataset: &DatasetName,
        name: &str,
        limit: u64,
    ) -> Result<Option<Bytes>, SourceError> {
        let (path, url) = self.below(&self.root, &self.url, dataset.as_str());
        let (path, url) = self.below(&path, &url, name);
        self.small(&path, &url, limit).await
    }

    /// Writes a small file beside a dataset's versions, whole or not at all.
    pub async fn write(&self, dataset: &DatasetName, name: &str, bytes: Bytes) -> Result<(), SourceError> {
        let (path, url) = self.below(&self.root, &self.url, dataset.as_str());
        let (path, url) = self.below(&path, &url, name);
        let put = self.store.put(&path, bytes.into()).await;
        put.map(drop).map_err(|error| SourceError::new(&url, SourceErrorKind::of(error)))
    }

    /// The same beside the files of a version.
    pub(crate) async fn read_of_version(
        &self,
        dataset: &DatasetName,
        version: &VersionName,
        name: &str,
        limit: u64,
    ) -> Result<Option<Bytes>, SourceError> {
        let (path, url) = self.below(&self.root, &self.url, dataset.as_str());
        let (path, url) = self.below(&path, &url, version.as_str());
        let (path, url) = self.below(&path, &url, name);
        self.small(&path, &url, limit).await
    }

    async fn small(&self, path: &Path, url: &str, limit: u64) -> Result<Option<Bytes>, SourceError> {
        let failed = |kind| SourceError::new(url, kind);
        let got = match self.store.get(path).await {
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            got => got.map_err(|error| failed(SourceErrorKind::of(error)))?,
        };
        self.stays_inside(path).map_err(failed)?;
        if got.meta.size > limit {
            return Err(failed(SourceErrorKind::TooLong { bytes: got.meta.size, limit }));
        }
        got.bytes().await.map(Some).map_err(|error| failed(SourceErrorKind::of(error)))
    }

    async fn symlink(&self, link: &ObjectMeta, url: &str) -> Result<VersionName, SourceError> {
        let url = format!("{url}/{SYMLINK}");
        let bytes = self.small(&link.location, &url, SYMLINK_BYTES).await?.unwrap_or_default();
        let name = String::from_utf8_lossy(&bytes);
        VersionName::new(name.trim()).map_err(|error| SourceError::new(url, SourceErrorKind::Symlink(error)))
    }

    async fn list(&self, path: &Path, url: &str) -> Result<ListResult, SourceError> {
        let failed = |kind| SourceError::new(url, kind);
        if let Some(folder) = &self.folder {
            // The library lists what is not there as empty.
            std::fs::read_dir(folder.join(path.as_ref()))
                .map_err(|error| failed(SourceErrorKind::of_disk(error)))?;
        }
        self.stays_inside(path).map_err(failed)?;
        let listed = self.store.list_with_delimiter(Some(path)).await;
        let listed = listed.map_err(|error| failed(SourceErrorKind::of(error)))?;
        for object in &listed.objects {
            let outside =
                |kind| SourceError::new(format!("{url}/{}", object.location.filename().unwrap_or("")), kind);
            self.stays_inside(&object.location).map_err(outside)?;
        }
        match listed.objects.len() + listed.common_prefixes.len() {
            count if count > SOURCE_ENTRIES => Err(failed(SourceErrorKind::TooMany(count))),
            _ => Ok(listed),
        }
    }

    /// Whether what is there in a local folder is there, and not elsewhere behind a link: who may write to a source may
    /// not read with a node's eyes.
    fn stays_inside(&self, path: &Path) -> Result<(), SourceErrorKind> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let whole = folder.join(path.as_ref()).canonicalize().map_err(SourceErrorKind::of_disk)?;
        let root = folder.canonicalize().map_err(SourceErrorKind::of_disk)?;
        if whole.starts_with(root) { Ok(()) } else { Err(SourceErrorKind::Outside) }
    }

    fn below(&self, path: &Path, url: &str, name: &str) -> (Path, String) {
        (path.clone().join(name), format!("{url}/{name}"))
    }
}

fn is_hidden(name: &str) -> bool {
    name.starts_with(['_', '.'])
}

fn folders<N: Ord>(listed: &ListResult, name: impl Fn(&str) -> Result<N, DatasetNameError>) -> Folders<N> {
    let (mut names, mut refused) = (Vec::new(), Vec::new());
    for folder in listed.common_prefixes.iter().filter_map(Path::filename) {
        match name(folder) {
            _ if is_hidden(folder) => {}
            Ok(name) => names.push(name),
            Err(error) => refused.push(error),
        }
    }
    names.sort();
    Folders { names, refused }
}

fn files(version: VersionName, listed: ListResult, path: &Path, url: &str) -> Result<Files, SourceError> {
    let mut folders = listed.common_prefixes.iter().filter_map(Path::filename);
    if let Some(folder) = folders.find(|name| !is_hidden(name)) {
        return Err(SourceError::new(format!("{url}/{folder}"), SourceErrorKind::Folder));
    }
    let is_success = listed.objects.iter().any(|object| object.location.filename() == Some(SUCCESS));
    let file = |object: ObjectMeta| {
        // Tools that know folders mark one in a bucket by an object of its name, and a slash: it is no file in it.
        if object.location == *path {
            return None;
        }
        let name = object.location.filename()?.to_owned();
        let url = format!("{url}/{name}");
        let ObjectMeta { size, location, e_tag, .. } = object;
        (!is_hidden(&name)).then_some(SourceFile { name, url, bytes: size, location, e_tag })
    };
    let mut files: Vec<SourceFile> = listed.objects.into_iter().filter_map(file).collect();
    files.sort_by(|one, other| one.name.cmp(&other.name));
    if files.is_empty() {
        return Err(SourceError::new(url, SourceErrorKind::Empty));
    }
    Ok(Files { files, version, is_success })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s5_the_mark_of_a_folder_is_no_file_in_it() {
        let object = |location: &str, size| ObjectMeta {
            location: Path::from(location),
            size,
            last_modified: std::time::SystemTime::UNIX_EPOCH.into(),
            e_tag: None,
            version: None,
        };
        // As S3 lists `pre/ds/1/`: the client takes the slash away.
        let listed =
            |objects| ListResult { common_prefixes: Vec::new(), objects, extensions: Default::default() };
        let (version, path) = (VersionName::new("1").unwrap(), Path::from("pre/ds/1"));
        let marked = listed(vec![object("pre/ds/1", 0), object("pre/ds/1/part-0", 7)]);
        let found = files(version.clone(), marked, &path, "s3://b/pre/ds/1").unwrap().files;
        assert_eq!(found.iter().map(|file| file.name.as_str()).collect::<Vec<_>>(), ["part-0"]);
        let alone = files(version, listed(vec![object("pre/ds/1", 0)]), &path, "s3://b/pre/ds/1");
        assert!(matches!(alone, Err(SourceError { kind: SourceErrorKind::Empty, .. })));
    }
}

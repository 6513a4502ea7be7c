//! Store files that were built in a folder, brought to a source where others look for versions.
//!
//! An object store has no folder that could be renamed when all is in it. So the files are put where no node looks for a
//! version, `<dataset>/_built-<version>-<checksum>/`, and at last the version itself appears, whole, with one
//! object: `<dataset>/<version>/_SYMLINK`, which names that folder (S5). An upload that breaks off leaves no version.

use std::path::Path;

use futures::{StreamExt, TryStreamExt, stream};
use partage_service::dataset::{DatasetName, VersionName};
use partage_wire::dataset::manifest::{MANIFEST, Manifest};

use super::{Error, file_name};
use crate::limits::UPLOADS_AT_ONCE;
use crate::source::{Source, SourceError, SourceErrorKind};

/// Whether a version may be published: nothing is there under its name.
///
/// # Errors
/// That something is, or that the target does not answer.
pub async fn may_publish(
    target: &Source,
    (dataset, version): (&DatasetName, &VersionName),
) -> Result<(), Error> {
    match target.files(dataset, version).await {
        Ok(_) => {
            let url = format!("{}/{dataset}/{version}", target.url());
            Err(Error::Source(SourceError::new(url, SourceErrorKind::There)))
        }
        Err(SourceError { kind: SourceErrorKind::Empty | SourceErrorKind::NotThere, .. }) => Ok(()),
        Err(error) => Err(Error::Source(error)),
    }
}

/// Publishes what [`build_all`](super::build_all) made in `folder`, which is that of the version itself. Says where its
/// files lie. What was brought before a failure is taken away again, as far as the target lets us.
///
/// # Errors
/// As [`may_publish`], and what a file or the target has.
pub async fn publish(folder: &Path, manifest: &Manifest, target: &Source) -> Result<String, Error> {
    let (dataset, version) = (&manifest.dataset, &manifest.version);
    may_publish(target, (dataset, version)).await?;
    let text = manifest.encode();
    let place = format!("_built-{version}-{:08x}", crc32c::crc32c(&text));
    let named = VersionName::new(&place).map_err(|error| {
        let url = format!("{}/{dataset}/{place}", target.url());
        Error::Source(SourceError::new(url, SourceErrorKind::Symlink(error)))
    })?;
    let files = manifest.files.iter().map(|file| file_name(file.partition));
    let files: Vec<String> = files.chain([MANIFEST.to_owned()]).collect();
    let sent: Vec<_> = files
        .iter()
        .map(|name| {
            let path = format!("{dataset}/{place}/{name}");
            async move { target.upload(&path, &folder.join(name)).await }
        })
        .collect();
    let brought: Result<Vec<()>, SourceError> =
        stream::iter(sent).buffer_unordered(UPLOADS_AT_ONCE).try_collect().await;
    let done = match brought {
        Ok(_) => {
            async {
                target.put(&format!("{dataset}/{place}/_SUCCESS"), Default::default()).await?;
                let link = format!("{dataset}/{version}/_SYMLINK");
                target.put(&link, named.as_str().to_owned().into()).await
            }
            .await
        }
        Err(error) => Err(error),
    };
    if let Err(error) = done {
        for name in files.iter().map(String::as_str).chain(["_SUCCESS"]) {
            target.discard(&format!("{dataset}/{place}/{name}")).await;
        }
        return Err(Error::Source(error));
    }
    Ok(format!("{}/{dataset}/{place}", target.url()))
}

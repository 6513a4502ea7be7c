//! What the source has: which datasets, how they are to be read and served, and which versions.

use super::driving::Input;
use crate::limits::{REFUSED_SHOWN, SETTINGS_BYTES};
use crate::settings::{self, DatasetSettings};
use crate::source::{Source, SourceError, SourceErrorKind};
use partage_service::dataset::{DatasetName, VersionName};
use std::collections::{BTreeMap, BTreeSet};
use tokio::sync::mpsc;

/// What was found of one dataset.
#[derive(Debug)]
pub struct Listed {
    pub dataset: DatasetName,
    pub settings: DatasetSettings,
    pub versions: Vec<VersionName>,
    /// Folders that are no versions, and why: some of them.
    pub refused: Vec<String>,
    /// Versions of which the next look need not ask whether they are finished.
    pub finished: BTreeSet<VersionName>,
}

/// Of each dataset, the versions that count as finished without a look: those that had `_SUCCESS` once, and what
/// clients get.
pub type Finished = BTreeMap<DatasetName, BTreeSet<VersionName>>;

/// Looks once, and tells. Without names it looks at every dataset.
pub async fn look(
    source: Source,
    names: BTreeSet<DatasetName>,
    mut finished: Finished,
    inputs: mpsc::Sender<Input>,
) {
    let datasets = match names.is_empty() {
        true => source.datasets().await.map(|found| {
            for refused in &found.refused {
                tracing::warn!(%refused, "passed over in the source");
            }
            found.names.into_iter().collect()
        }),
        false => Ok(names),
    };
    let told = match datasets {
        Ok(datasets) => {
            let names: BTreeSet<DatasetName> = datasets;
            for dataset in names.clone() {
                let finished = finished.remove(&dataset).unwrap_or_default();
                let found = dataset_at(&source, &dataset, finished).await;
                let told = found.map_or_else(
                    |reason| Input::SourceFailed(Some(dataset), reason),
                    |listed| Input::Listed(Box::new(listed)),
                );
                // Without a receiver the node has ended.
                let _ = inputs.send(told).await;
            }
            Input::Refreshed(names)
        }
        Err(error) => Input::SourceFailed(None, error.to_string()),
    };
    let _ = inputs.send(told).await;
}

async fn dataset_at(
    source: &Source,
    dataset: &DatasetName,
    finished: BTreeSet<VersionName>,
) -> Result<Listed, String> {
    let told = |error: SourceError| error.to_string();
    let file = source.read(dataset, settings::FILE, SETTINGS_BYTES as u64).await.map_err(told)?;
    let name = format!("{}/{dataset}/{}", source.url(), settings::FILE);
    let settings = file.map(|bytes| DatasetSettings::parse(&name, &bytes)).transpose();
    let settings = settings.map_err(|error| error.to_string())?.unwrap_or_default();
    let folders = source.versions(dataset).await.map_err(told)?;
    let mut refused: Vec<String> = folders.refused.iter().map(ToString::to_string).collect();
    let mut versions = folders.names;
    if settings.needs_success {
        versions = only_finished(source, dataset, versions, &finished, &mut refused).await.map_err(told)?;
    }
    refused.truncate(REFUSED_SHOWN);
    let finished = if settings.needs_success { versions.iter().cloned().collect() } else { BTreeSet::new() };
    Ok(Listed { dataset: dataset.clone(), settings, versions, refused, finished })
}

/// The versions that have `_SUCCESS`, in their order. At every look it asks the source for the latest ones, down to the
/// first that has it, as a job may write one of these anew. It asks for an earlier one until that has it once, and not
/// for those in `finished`. A version that cannot be listed is not finished; `refused` says why.
async fn only_finished(
    source: &Source,
    dataset: &DatasetName,
    versions: Vec<VersionName>,
    finished: &BTreeSet<VersionName>,
    refused: &mut Vec<String>,
) -> Result<Vec<VersionName>, SourceError> {
    let mut found = Vec::new();
    for version in versions.into_iter().rev() {
        let is_known = !found.is_empty() && finished.contains(&version);
        if is_known || is_finished(source, dataset, &version, refused).await? {
            found.push(version);
        }
    }
    found.reverse();
    Ok(found)
}

async fn is_finished(
    source: &Source,
    dataset: &DatasetName,
    version: &VersionName,
    refused: &mut Vec<String>,
) -> Result<bool, SourceError> {
    match source.files(dataset, version).await {
        Ok(files) => Ok(files.is_success),
        // A job has begun to write it.
        Err(SourceError { kind: SourceErrorKind::Empty, .. }) => Ok(false),
        Err(error) if error.kind.is_of_version() => {
            // If the whole dataset is away, none of its versions is gone.
            source.versions(dataset).await?;
            refused.push(error.to_string());
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    fn write(folder: &Path, files: &[&str]) {
        for file in files {
            let path = folder.join("names").join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "success = true\n").unwrap();
        }
    }

    async fn look(folder: &Path, finished: &BTreeSet<VersionName>) -> Listed {
        let source = Source::open(folder.to_str().unwrap(), &BTreeMap::new()).unwrap();
        dataset_at(&source, &DatasetName::new("names").unwrap(), finished.clone()).await.unwrap()
    }

    fn names(listed: &Listed) -> Vec<&str> {
        listed.versions.iter().map(VersionName::as_str).collect()
    }

    #[tokio::test]
    async fn s19_no_version_is_listed_before_it_is_finished_be_there_a_later_one_or_not() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path();
        write(folder, &[settings::FILE, "1/x", "2/x", "2/_SUCCESS", "3/x", "4/x", "4/_SUCCESS", "5/x"]);
        fs::create_dir_all(folder.join("names/6")).unwrap();
        let first = look(folder, &BTreeSet::new()).await;
        assert_eq!((names(&first), first.refused.len()), (vec!["2", "4"], 0));
        // An earlier one is finished late, and the source is not asked again for one that was.
        write(folder, &["1/_SUCCESS"]);
        fs::remove_file(folder.join("names/2/_SUCCESS")).unwrap();
        let second = look(folder, &first.finished).await;
        assert_eq!(names(&second), ["1", "2", "4"]);
        // The latest may be written anew.
        fs::remove_file(folder.join("names/4/_SUCCESS")).unwrap();
        assert_eq!(names(&look(folder, &second.finished).await), ["1"]);
    }

    #[tokio::test]
    async fn s19_one_version_that_cannot_be_listed_keeps_no_other_from_being_listed() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &[settings::FILE, "1/folder/x", "2/x", "2/_SUCCESS"]);
        write(dir.path(), &["3/x", "3/_SUCCESS", "4/folder/x"]);
        let listed = look(dir.path(), &BTreeSet::new()).await;
        assert_eq!(names(&listed), ["2", "3"]);
        assert!(listed.refused.len() == 2 && listed.refused[0].contains("/4/folder"), "{:?}", listed.refused);
    }
}

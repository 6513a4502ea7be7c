//! What the source has: which datasets, how they are to be read and served, and which versions.

use super::driving::Input;
use crate::limits::{REFUSED_SHOWN, SETTINGS_BYTES};
use crate::settings::{self, DatasetSettings};
use crate::source::{Source, SourceError};
use partage_core::service::dataset::{DatasetName, VersionName};
use std::collections::BTreeSet;
use tokio::sync::mpsc;

/// What was found of one dataset.
#[derive(Debug)]
pub struct Listed {
    pub dataset: DatasetName,
    pub settings: DatasetSettings,
    pub versions: Vec<VersionName>,
    /// Folders that are no versions, and why: some of them.
    pub refused: Vec<String>,
}

/// Looks once, and tells. Without names it looks at every dataset.
pub async fn look(source: Source, names: BTreeSet<DatasetName>, inputs: mpsc::Sender<Input>) {
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
                let found = dataset_at(&source, &dataset).await;
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

async fn dataset_at(source: &Source, dataset: &DatasetName) -> Result<Listed, String> {
    let told = |error: SourceError| error.to_string();
    let file = source.read(dataset, settings::FILE, SETTINGS_BYTES as u64).await.map_err(told)?;
    let name = format!("{}/{dataset}/{}", source.url(), settings::FILE);
    let settings = file.map(|bytes| DatasetSettings::parse(&name, &bytes)).transpose();
    let settings = settings.map_err(|error| error.to_string())?.unwrap_or_default();
    let folders = source.versions(dataset).await.map_err(told)?;
    let refused = folders.refused.iter().take(REFUSED_SHOWN).map(ToString::to_string).collect();
    let mut versions = folders.names;
    if settings.needs_success {
        take_unfinished(source, dataset, &mut versions).await.map_err(told)?;
    }
    Ok(Listed { dataset: dataset.clone(), settings, versions, refused })
}

/// Takes away the latest versions, down to the first that has `_SUCCESS`. Those before it are not looked at.
async fn take_unfinished(
    source: &Source,
    dataset: &DatasetName,
    versions: &mut Vec<VersionName>,
) -> Result<(), SourceError> {
    while let Some(latest) = versions.last() {
        if source.files(dataset, latest).await?.is_success {
            break;
        }
        versions.pop();
    }
    Ok(())
}

//! What a version is, by a look into each of its files.

use std::collections::BTreeMap;

use futures::{StreamExt, TryStreamExt, stream};
use partage_service::dataset::node::Layout;
use partage_service::dataset::partition::{Sample, recognise};
use partage_service::dataset::{DatasetName, Partitioner, VersionName};
use partage_wire::dataset::manifest::{MANIFEST, MANIFEST_BYTES, Manifest};
use partage_wire::dataset::presence::PARTITIONS;
use tokio::sync::Mutex;

use super::{Error, Options, SUFFIX, load, partition_of};
use crate::format::{self, Sampled};
use crate::limits::{INSPECTED_AT_ONCE, SAMPLE_KEYS};
use crate::source::{Files, Source, SourceFile, Throttle};

/// What a version is, as a sample of its files tells before any of it is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// The dataset that the version belongs to.
    pub dataset: DatasetName,
    /// The version that was inspected.
    pub version: VersionName,
    /// Which partition a key is in, and the digest of the files.
    pub layout: Layout,
    /// Whether the batch job partitioned its files so too, as far as the sample goes.
    pub is_followed: bool,
    /// Files that are one partition, and which.
    pub whole: BTreeMap<u32, u32>,
    /// A version of store files, built before.
    pub built: Option<Manifest>,
}

/// Looks into the files of a version.
pub async fn inspect(
    source: &Source,
    (dataset, version): (&DatasetName, &VersionName),
    files: &Files,
    options: &Options,
    throttle: &Throttle,
) -> Result<Inspection, Error> {
    let partitions = files.files.len() as u32;
    if files.files.len() > PARTITIONS as usize {
        let url = format!("{}/{dataset}/{version}", source.url());
        return Err(Error::TooMany { url, files: files.files.len(), limit: PARTITIONS });
    }
    let found = |partitioner, is_followed, whole, built: Option<Manifest>| Inspection {
        dataset: dataset.clone(),
        version: version.clone(),
        layout: Layout { partitioner, partitions, digest: digest(files, built.as_ref()) },
        is_followed,
        whole,
        built,
    };
    if files.files.iter().any(|file| file.name.ends_with(SUFFIX)) {
        let manifest = manifest(source, dataset, files).await?;
        return Ok(found(manifest.partitioner, true, BTreeMap::new(), Some(manifest)));
    }
    let alone = Mutex::new(());
    let samples = files.files.iter().map(|file| sample(source, file, options, throttle, &alone));
    // Collected, since a task cannot hold a closure over references.
    let samples: Vec<_> = samples.collect();
    let samples: Vec<Sampled> = stream::iter(samples).buffered(INSPECTED_AT_ONCE).try_collect().await?;
    one_format(files, &samples)?;
    if let Some((column, of)) = options.partition_by {
        return Ok(found(Partitioner::Column { column, of }, false, BTreeMap::new(), None));
    }
    if !options.is_sampled {
        return Ok(found(Partitioner::default(), false, BTreeMap::new(), None));
    }
    let samples: Vec<Sample<'_, Vec<u8>>> = samples
        .iter()
        .zip(0..)
        .map(|(sampled, file)| Sample { file, keys: &sampled.keys, is_whole: sampled.is_whole })
        .collect();
    let recognised = recognise(partitions, &samples);
    Ok(found(recognised.partitioner, recognised.is_followed, recognised.whole, None))
}

/// The first keys of a file. Many are looked at side by side, so each with little memory; one whose records are longer
/// than that is looked at again, and `alone` of those.
async fn sample(
    source: &Source,
    file: &SourceFile,
    options: &Options,
    throttle: &Throttle,
    alone: &Mutex<()>,
) -> Result<Sampled, Error> {
    let read = format::Options { is_tolerant: options.tolerance.is_some(), ..options.format.clone() };
    let little = read.clone().within(options.memory_bytes / INSPECTED_AT_ONCE);
    match sample_within(source, file, little, throttle).await {
        Err(error) if error.is_too_long() => {
            let _turn = alone.lock().await;
            let all = read.within(options.memory_bytes);
            sample_within(source, file, all, throttle).await
        }
        sampled => sampled,
    }
}

async fn sample_within(
    source: &Source,
    file: &SourceFile,
    options: format::Options,
    throttle: &Throttle,
) -> Result<Sampled, Error> {
    let download = source.download(file, throttle).await?;
    let url = file.url.clone();
    let _stopper = download.stopper();
    load::on_a_thread(&file.url, move || {
        format::sample(&url, download, &options, SAMPLE_KEYS).map_err(Error::of_format)
    })
    .await
}

fn one_format(files: &Files, samples: &[Sampled]) -> Result<(), Error> {
    let mut formats = files.files.iter().zip(samples.iter().map(|sampled| sampled.format));
    let Some((first, expected)) = formats.next() else { return Ok(()) };
    match formats.find(|(_, format)| *format != expected) {
        None => Ok(()),
        Some((file, found)) => {
            Err(Error::Mixed { file: file.url.clone(), found, first: first.url.clone(), expected })
        }
    }
}

/// The manifest of a version of store files, which must be all there.
async fn manifest(source: &Source, dataset: &DatasetName, files: &Files) -> Result<Manifest, Error> {
    let url = format!("{}/{dataset}/{}/{MANIFEST}", source.url(), files.version);
    let wrong = |url: &str, how: &str| Error::NotAsBuilt { url: url.to_owned(), how: how.to_owned() };
    if let Some(file) = files.files.iter().find(|file| !file.name.ends_with(SUFFIX)) {
        return Err(Error::PartlyBuilt { file: file.url.clone() });
    }
    let text = source.read_of_version(dataset, &files.version, MANIFEST, MANIFEST_BYTES).await?;
    let text = text.ok_or_else(|| wrong(&url, "not there, beside store files"))?;
    let manifest =
        Manifest::decode(&text).map_err(|error| Error::Manifest { url: url.clone(), source: error })?;
    if manifest.partitions as usize != files.files.len() || manifest.files.len() != files.files.len() {
        let how = format!("of {} partitions, but there are {} files", manifest.partitions, files.files.len());
        return Err(wrong(&url, &how));
    }
    for (number, (file, stored)) in (0..).zip(files.files.iter().zip(&manifest.files)) {
        if partition_of(&file.name) != Some(number) || stored.partition != number {
            return Err(wrong(&file.url, &format!("partition {number} should stand here")));
        }
        if stored.bytes != file.bytes {
            return Err(wrong(&file.url, &format!("{} bytes, not {}", file.bytes, stored.bytes)));
        }
    }
    Ok(manifest)
}

/// Names and lengths of the files in the order of their names, and of store files also their manifest, which has their
/// checksums. Times and e-tags are no part of it: they differ between copies of one source.
fn digest(files: &Files, built: Option<&Manifest>) -> u64 {
    let mut text = files.version.to_string().into_bytes();
    for file in &files.files {
        text.extend(format!("\n{} {}", file.bytes, file.name).into_bytes());
    }
    text.extend(built.map(Manifest::encode).unwrap_or_default());
    xxhash_rust::xxh3::xxh3_64(&text)
}

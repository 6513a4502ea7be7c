//! The same source, read from each store: the same datasets, versions, files and values, and the same errors.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use partage_dataset::build::{Load, Options, build_all, inspect, publish};
use partage_dataset::format::{Columns, Format};
use partage_dataset::source::{Settings, Source, SourceErrorKind, SourceRetryPolicy, Throttle};
use partage_engine::readonly::Reader;
use partage_service::dataset::{DatasetName, VersionName};
use sources::tree::{FILES, KEYS, key, value, write};
use sources::{azure::Azurite, dav::Dav, gcs::FakeGcs, hdfs::Hdfs, s3::Moto};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

/// A folder `bucket` with the source in `data/sets`.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("bucket/data")).unwrap();
    write(&folder.path().join("bucket/data/sets"));
    folder
}

fn sets(folder: &TempDir) -> std::path::PathBuf {
    folder.path().join("bucket/data/sets")
}

fn dataset(name: &str) -> DatasetName {
    DatasetName::new(name).unwrap()
}

fn version(name: &str) -> VersionName {
    VersionName::new(name).unwrap()
}

/// What every source must do with [`write`]'s tree.
async fn conforms(url: &str, settings: &Settings) {
    let source = Source::open(url, settings).unwrap();
    let words = dataset("words");
    assert_eq!(source.url(), url.split('?').next().unwrap());
    assert_eq!(source.datasets().await.unwrap().names, std::slice::from_ref(&words));
    let versions = source.versions(&words).await.unwrap().names;
    assert_eq!(versions, ["1", "2", "3"].map(version));
    assert_eq!(source.latest(&words, true).await.unwrap(), Some(version("2")));
    let read = source.read(&words, "_dataset.toml", 100).await.unwrap();
    assert_eq!(read.as_deref(), Some(&b"layout = \"hashed\"\n"[..]));
    assert_eq!(source.read(&words, "_other.toml", 100).await.unwrap(), None);
    let files = source.files(&words, &version("2")).await.unwrap();
    let names: Vec<_> = files.files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, FILES);
    loads(&source).await;
    let empty = source.files(&words, &version("3")).await.unwrap_err();
    assert!(matches!(empty.kind, SourceErrorKind::Empty), "{empty}");
    // What is not there, and was never there, is not taken for empty.
    let gone = source.files(&words, &version("4")).await.unwrap_err();
    assert!(matches!(gone.kind, SourceErrorKind::NotThere | SourceErrorKind::Empty), "{gone}");
    assert!(gone.to_string().starts_with(&format!("{}/words/4", source.url())), "{gone}");
}

/// Every key of version 1 is in its store files, with its value.
async fn loads(source: &Source) {
    let (words, one) = (dataset("words"), version("1"));
    let files = source.files(&words, &one).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut options = Options::default();
    options.format.format = Some(Format::Tsv);
    options.format.columns = Columns {
        key: vec!["1".to_owned()],
        values: vec!["2".to_owned()],
        header: false,
        ..Columns::default()
    };
    let throttle = Throttle::new(0);
    let inspection = inspect(source, (&words, &one), &files, &options, &throttle).await.unwrap();
    let (source, to) = (source.clone(), folder.path().to_owned());
    let (progress, replaced) = (Arc::default(), BTreeSet::new());
    let load = Load { source, files, inspection, options, throttle, progress, folder: to, replaced };
    let readers = Mutex::new(Vec::<Arc<Reader>>::new());
    let ready = |_, reader: Arc<Reader>| readers.lock().unwrap().push(reader);
    load.run(&BTreeSet::from([0, 1, 2]), &ready).await.unwrap();
    let readers = readers.into_inner().unwrap();
    assert_eq!(readers.iter().map(|reader| reader.len()).sum::<u64>(), u64::from(KEYS));
    for number in 0..KEYS {
        let found = readers.iter().find_map(|reader| reader.get(key(number).as_bytes()).unwrap());
        assert!(found.is_some_and(|found| *found == *value(number).as_bytes()), "{}", key(number));
    }
}

/// Asks once, and waits for a second at most.
fn impatient() -> SourceRetryPolicy {
    let short = Duration::from_secs(1);
    SourceRetryPolicy { connect_time: short, answer_time: short, retries: 0, retry_time: short }
}

/// Reads a source at an address where no server listens: the error says that it is away, and that this may pass.
async fn is_away(url: &str, settings: &Settings) {
    let source = Source::open_with_policy(url, settings, &impatient()).unwrap();
    let error = source.datasets().await.unwrap_err();
    assert!(matches!(error.kind, SourceErrorKind::Unreachable(_) | SourceErrorKind::Slow(_)), "{error:?}");
    assert!(error.kind.may_pass(), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder() {
    let folder = folder();
    conforms(sets(&folder).to_str().unwrap(), &Settings::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s3() {
    let (moto, folder) = (Moto::start().await, folder());
    moto.put_all(&sets(&folder), "data/sets").await;
    conforms(&moto.url("data/sets"), &Moto::settings()).await;
    // Seen before: a version with such an object was an error.
    for folder in
        ["data/sets", "data/sets/words", "data/sets/words/1", "data/sets/words/2", "data/sets/words/3"]
    {
        moto.put_marker(folder).await;
    }
    assert!(moto.has_marker("data/sets/words/1").await);
    conforms(&moto.url("data/sets"), &Moto::settings()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn webdav() {
    let folder = folder();
    let dav = Dav::start(folder.path()).await;
    conforms(&dav.url("bucket/data/sets"), &Settings::new()).await;
    drop(dav);
    is_away(&format!("http://127.0.0.1:{}/sets", backends::free_port()), &Settings::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "Azurite is installed by ./test sources"]
async fn azure() {
    let (azurite, folder) = (Azurite::start().await, folder());
    azurite.put_all(&sets(&folder), "data/sets").await;
    conforms(&azurite.url("data/sets"), &Azurite::settings()).await;
    let denied = Source::open(&azurite.url("data/sets"), &Azurite::wrong_settings()).unwrap();
    let error = denied.datasets().await.unwrap_err();
    assert!(matches!(error.kind, SourceErrorKind::Denied(_)), "{error:?}");
    let url = azurite.url("data/sets");
    drop(azurite);
    is_away(&url, &Azurite::settings()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "fake-gcs-server is installed by ./test sources"]
async fn google_cloud() {
    let folder = folder();
    let gcs = FakeGcs::start(folder.path()).await;
    conforms(&gcs.url("bucket", "data/sets"), &Settings::new()).await;
    let url = gcs.url("bucket", "data");
    drop(gcs);
    is_away(&url, &Settings::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "Hadoop is installed by ./test sources"]
async fn hdfs() {
    let folder = folder();
    let hdfs = Hdfs::start().await;
    hdfs.put_all(&folder.path().join("bucket"), "bucket");
    conforms(&hdfs.url("bucket/data/sets"), &Settings::new()).await;
    hdfs.hide("bucket/data/sets/words/1");
    let hidden = Source::open(&hdfs.url("bucket/data/sets"), &Settings::new()).unwrap();
    let error = hidden.files(&dataset("words"), &version("1")).await.unwrap_err();
    assert!(matches!(error.kind, SourceErrorKind::Denied(_)), "{error:?}");
    let url = hdfs.url("bucket");
    drop(hdfs);
    is_away(&url, &Settings::new()).await;
}

#[test]
fn the_tree_is_what_it_is_said_to_be() {
    let folder = folder();
    let files = sources::files_below(Path::new(folder.path()));
    assert!(files.iter().filter(|file| file.contains("/1/part")).count() == FILES.len() + 1, "{files:?}");
}

/// A version of store files in a folder, each of more than one part of an upload.
async fn built(folder: &TempDir) -> (std::path::PathBuf, partage_wire::dataset::manifest::Manifest) {
    let (from, out) = (folder.path().join("from"), folder.path().join("out"));
    let version_folder = from.join("words/7");
    std::fs::create_dir_all(&version_folder).unwrap();
    // No codec makes it shorter, so that a file is as long as its values.
    let mut random = 1_u64;
    for file in 0..2 {
        let mut lines = String::new();
        for number in 0..40_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            lines += &format!("key-{file}-{number}\t{}\n", format!("{random:016x}").repeat(30));
        }
        std::fs::write(version_folder.join(format!("part-{file}.tsv")), lines).unwrap();
    }
    let mut options = Options::default();
    options.format.columns = Columns {
        key: vec!["1".to_owned()],
        values: vec!["2".to_owned()],
        header: false,
        ..Columns::default()
    };
    let source = Source::open(from.to_str().unwrap(), &Settings::new()).unwrap();
    let (words, seven) = (dataset("words"), version("7"));
    let manifest = build_all(&source, (&words, &seven), &out, &options, &Arc::default()).await.unwrap();
    (out.join("words/7"), manifest)
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_takes_a_version_that_is_built_whole_or_not_at_all() {
    let (moto, folder) = (Moto::start().await, tempfile::tempdir().unwrap());
    let target = Source::open(&moto.url("data/sets"), &Moto::settings()).unwrap();
    let (files, manifest) = built(&folder).await;
    let (words, seven) = (dataset("words"), version("7"));
    let length = std::fs::metadata(files.join("00001.partage")).unwrap().len();
    assert!(length > 16 << 20, "more than two parts: {length}");

    // The upload fails midway: one file cannot be read.
    std::fs::rename(files.join("00001.partage"), files.join("away")).unwrap();
    let failed = publish(&files, &manifest, &target).await.unwrap_err();
    assert!(failed.to_string().contains("00001.partage"), "{failed}");
    let is_nothing = |found: Result<partage_dataset::source::Files, _>| {
        matches!(
            found,
            Err(partage_dataset::source::SourceError {
                kind: SourceErrorKind::Empty | SourceErrorKind::NotThere,
                ..
            })
        )
    };
    assert!(target.versions(&words).await.unwrap().names.is_empty(), "nothing half built is a version");
    assert!(is_nothing(target.files(&words, &seven).await));
    assert!(target.latest(&words, false).await.unwrap().is_none());

    std::fs::rename(files.join("away"), files.join("00001.partage")).unwrap();
    publish(&files, &manifest, &target).await.unwrap();
    assert_eq!(target.latest(&words, true).await.unwrap(), Some(seven.clone()));
    let again = publish(&files, &manifest, &target).await.unwrap_err();
    assert!(again.to_string().contains("a version of that name already"), "{again}");

    // A node loads it, and has every key.
    let found = target.files(&words, &seven).await.unwrap();
    let (options, throttle) = (Options::default(), Throttle::new(0));
    let inspection = inspect(&target, (&words, &seven), &found, &options, &throttle).await.unwrap();
    let to = folder.path().join("local");
    std::fs::create_dir_all(&to).unwrap();
    let load = Load {
        source: target,
        files: found,
        inspection,
        options,
        throttle,
        progress: Arc::default(),
        folder: to,
        replaced: BTreeSet::new(),
    };
    let keys = Mutex::new(0);
    let ready = |_, reader: Arc<Reader>| *keys.lock().unwrap() += reader.len();
    load.run(&BTreeSet::from([0, 1]), &ready).await.unwrap();
    assert_eq!(keys.into_inner().unwrap(), 80_000);
}

//! What a source lists and refuses, on a local folder. S3 is in `tests/backends`, on a real server.

use std::fs;
use std::io::Read;

use tempfile::TempDir;

use super::*;
use crate::limits::SYMLINKS;
use partage_service::dataset::{DatasetName, VersionName};

fn names<N: std::fmt::Display>(folders: &Folders<N>) -> Vec<String> {
    folders.names.iter().map(ToString::to_string).collect()
}

fn dataset(name: &str) -> DatasetName {
    DatasetName::new(name).unwrap()
}

fn version(name: &str) -> VersionName {
    VersionName::new(name).unwrap()
}

/// A folder with these files, each holding its own path.
fn folder(files: &[&str]) -> (TempDir, Source) {
    let folder = tempfile::tempdir().unwrap();
    for file in files {
        let path = folder.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, file).unwrap();
    }
    let source = Source::open(folder.path().to_str().unwrap(), &Settings::new()).unwrap();
    (folder, source)
}

#[tokio::test]
async fn s5_datasets_versions_and_files_are_listed_in_order() {
    let (_folder, source) = folder(&[
        "b/2/part-1",
        "b/2/part-0",
        "b/2/_SUCCESS",
        "b/2/.part-0.crc",
        "b/2/_temporary/0/part-9",
        "b/10/part-0",
        "b/v1.5/part-0",
        "a/1/part-0",
        "_logs/1/part-0",
        ".git/1/x",
        "no set/1/x",
        "loose",
    ]);
    let datasets = source.datasets().await.unwrap();
    assert_eq!(names(&datasets), ["a", "b"]);
    assert_eq!(datasets.refused.len(), 1);
    assert!(datasets.refused[0].to_string().contains("no set"), "{}", datasets.refused[0]);
    let versions = source.versions(&dataset("b")).await.unwrap();
    assert_eq!(names(&versions), ["10", "2"], "in the order of bytes");
    assert!(versions.refused[0].to_string().contains("v1.5"));
    let files = source.files(&dataset("b"), &version("2")).await.unwrap();
    assert_eq!(files.files.iter().map(|file| file.name.as_str()).collect::<Vec<_>>(), ["part-0", "part-1"]);
    assert!(files.is_success);
    assert_eq!(files.bytes(), 20);
    assert!(!source.files(&dataset("b"), &version("10")).await.unwrap().is_success);
    assert_eq!(source.latest(&dataset("b"), false).await.unwrap(), Some(version("2")));
}

#[tokio::test]
async fn s5_a_version_may_need_success() {
    let (_folder, source) = folder(&["a/1/x", "a/1/_SUCCESS", "a/2/x", "a/3/_SUCCESS"]);
    assert_eq!(source.latest(&dataset("a"), true).await.unwrap(), Some(version("1")));
    assert_eq!(source.latest(&dataset("a"), false).await.unwrap(), Some(version("2")));
}

#[tokio::test]
async fn s5_a_symlink_names_another_version() {
    let (folder, source) = folder(&["a/1/x", "a/1/_SUCCESS", "a/2/_SYMLINK", "a/3/_SYMLINK", "b/1/secret"]);
    let link = |at: &str, to: &str| fs::write(folder.path().join(at), to).unwrap();
    link("a/2/_SYMLINK", "1\n");
    link("a/3/_SYMLINK", "2");
    let files = source.files(&dataset("a"), &version("3")).await.unwrap();
    assert_eq!((files.version, files.files[0].name.as_str()), (version("1"), "x"));
    assert!(files.is_success);

    link("a/2/_SYMLINK", "3");
    let circle = source.files(&dataset("a"), &version("3")).await.unwrap_err();
    assert!(matches!(circle.kind, SourceErrorKind::Symlinks), "{circle} {SYMLINKS}");
    for trick in ["../b/1", "", "%2e%2e", "1\0", "/etc"] {
        link("a/3/_SYMLINK", trick);
        let refused = source.files(&dataset("a"), &version("3")).await.unwrap_err();
        assert!(matches!(refused.kind, SourceErrorKind::Symlink(_)), "{trick:?}: {refused}");
    }
}

#[tokio::test]
async fn a_small_file_beside_the_versions_is_read_whole_or_refused() {
    let (_folder, source) = folder(&["a/_dataset.toml", "a/1/x"]);
    let read = source.read(&dataset("a"), "_dataset.toml", 15).await.unwrap();
    assert_eq!(read.as_deref(), Some(&b"a/_dataset.toml"[..]));
    assert_eq!(source.read(&dataset("a"), "_other", 15).await.unwrap(), None);
    let long = source.read(&dataset("a"), "_dataset.toml", 14).await.unwrap_err();
    assert!(matches!(long.kind, SourceErrorKind::TooLong { bytes: 15, limit: 14 }), "{long}");
}

#[tokio::test]
async fn what_is_not_there_is_not_taken_for_empty() {
    let (folder, source) = folder(&["a/1/_SUCCESS", "a/2/sub/x"]);
    let empty = source.files(&dataset("a"), &version("1")).await.unwrap_err();
    assert!(matches!(empty.kind, SourceErrorKind::Empty), "{empty}");
    let nested = source.files(&dataset("a"), &version("2")).await.unwrap_err();
    assert!(matches!(nested.kind, SourceErrorKind::Folder) && nested.url.ends_with("/a/2/sub"), "{nested}");
    let gone = source.files(&dataset("a"), &version("3")).await.unwrap_err();
    assert_eq!(gone.to_string(), format!("{}/a/3: not there (404)", source.url()));
    fs::remove_dir_all(folder.path()).unwrap();
    let away = source.datasets().await.unwrap_err();
    assert!(matches!(away.kind, SourceErrorKind::NotThere), "{away}");
}

#[tokio::test]
async fn s20_a_folder_that_is_away_may_come_back() {
    let (folder, _) = folder(&["it/a/1/x"]);
    let (here, away) = (folder.path().join("it"), folder.path().join("away"));
    fs::rename(&here, &away).unwrap();
    let url = here.display().to_string();
    assert!(Source::open(&url, &Settings::new()).is_err());
    for url in [url.clone(), format!("{url}/"), format!("file://{url}")] {
        let source = Source::open_away(&url, &Settings::new()).unwrap();
        let gone = source.datasets().await.unwrap_err();
        assert!(matches!(gone.kind, SourceErrorKind::NotThere), "{gone}");
        fs::rename(&away, &here).unwrap();
        assert_eq!(source.datasets().await.unwrap().names, [dataset("a")]);
        let files = source.files(&dataset("a"), &version("1")).await.unwrap();
        let download = source.download(&files.files[0], &Throttle::new(0)).await.unwrap();
        assert_eq!(tokio::task::spawn_blocking(|| read(download)).await.unwrap().unwrap(), b"it/a/1/x");
        fs::rename(&here, &away).unwrap();
    }
    assert!(Source::open_away("ftp://x/y", &Settings::new()).is_err());
}

#[test]
fn urls_that_cannot_be_are_refused_with_the_reason() {
    let refused = |url: &str| Source::open(url, &Settings::new()).unwrap_err().to_string();
    assert_eq!(refused("/nowhere/at/all"), "/nowhere/at/all: not there (404)");
    assert!(refused("ftp://x/y").contains("no source has the scheme ftp"), "{}", refused("ftp://x/y"));
    #[cfg(feature = "s3")]
    {
        let secret = refused("s3://bucket/x?secret_access_key=abc");
        assert!(secret.contains("no option of such a URL") && !secret.contains("abc"), "{secret}");
        let password = refused("s3://me:abc@bucket/x");
        assert!(password.contains("must not hold a user") && !password.contains("abc"), "{password}");
    }
    #[cfg(not(feature = "hdfs"))]
    assert!(refused("hdfs://n:8020/x").contains("without the feature `hdfs`"));
}

fn read(download: Download) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut download = download;
    download.read_to_end(&mut bytes).map(|_| bytes)
}

#[tokio::test]
async fn a_file_that_is_shorter_than_it_was_is_noticed() {
    let (folder, source) = folder(&["a/1/x"]);
    let files = source.files(&dataset("a"), &version("1")).await.unwrap();
    let throttle = Throttle::new(0);
    let download = source.download(&files.files[0], &throttle).await.unwrap();
    assert_eq!(tokio::task::spawn_blocking(|| read(download)).await.unwrap().unwrap(), b"a/1/x");

    fs::write(folder.path().join("a/1/x"), "a").unwrap();
    let download = source.download(&files.files[0], &throttle).await;
    let failed = match download {
        Err(error) => error.to_string(),
        Ok(download) => {
            tokio::task::spawn_blocking(|| read(download)).await.unwrap().unwrap_err().to_string()
        }
    };
    assert!(
        failed.contains("a/1/x: ") && (failed.contains("length is 5") || failed.contains("replaced")),
        "{failed}"
    );
    fs::remove_file(folder.path().join("a/1/x")).unwrap();
    let gone = source.download(&files.files[0], &throttle).await.unwrap_err();
    assert!(matches!(gone.kind, SourceErrorKind::NotThere), "{gone}");
}

#[tokio::test]
async fn s19_a_throttle_is_shared_by_all_who_read() {
    let throttle = Throttle::new(1_000_000);
    let readers = (0..4).map(|_| {
        let throttle = throttle.clone();
        async move {
            for _ in 0..10 {
                throttle.take(10_000).await;
            }
        }
    });
    let clock = partage_clock::Clock::start();
    futures::future::join_all(readers).await;
    // 0.4 MB at 1 MB/s, less what an idle bucket holds and the last piece. There is no upper bound to a test's time.
    assert!(clock.now().0 >= 250, "{} ms", clock.now().0);
}

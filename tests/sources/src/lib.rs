//! Stores that datasets are read from, for tests: each on a port and in a folder of its own, stopped with its handle.
//!
//! | file    | what it is                                                          | where it comes from |
//! |---------|---------------------------------------------------------------------|---------------------|
//! | `tree`  | a source as a batch job leaves it, in a folder                      | here                |
//! | `s3`    | moto, which speaks S3                                               | PyPI                |
//! | `dav`   | WsgiDAV, a WebDAV server                                            | PyPI                |
//! | `azure` | Azurite, Microsoft's own stand-in for Azure Blob Storage            | npm                 |
//! | `gcs`   | fake-gcs-server, which speaks Google Cloud Storage                  | Go modules          |
//! | `hdfs`  | HDFS itself: a NameNode and a DataNode                              | Maven Central       |
//!
//! `./test setup` installs the first two, `./test sources` all of them.

#![allow(clippy::unwrap_used, reason = "a harness of tests may stop at the first surprise")]

pub mod azure;
pub mod dav;
pub mod gcs;
pub mod hdfs;
pub mod s3;
pub mod tree;

use partage_dataset::source::Settings;
use std::path::{Path, PathBuf};
use std::sync::Once;

/// A client of a store needs it even where nothing is encrypted, and a test may be the first that makes one.
fn have_cryptography() {
    static CHOSEN: Once = Once::new();
    CHOSEN.call_once(|| {
        // The product may have been quicker, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
}

/// A file of what `./test` has installed for itself.
#[expect(clippy::disallowed_methods, reason = "where programs are is a matter of the machine")]
pub fn tool(path: &str) -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let found = cache.or_else(home).unwrap_or_default().join("partage/tools").join(path);
    assert!(found.exists(), "{} is not there: `./test setup`, or `./test sources`", found.display());
    found
}

/// Settings as the environment would give them.
pub fn settings<const N: usize>(pairs: [(&str, &str); N]) -> Settings {
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

/// All files below a folder, by their path from there.
pub fn files_below(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push(path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

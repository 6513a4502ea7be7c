//! Where versions come from: a folder or a bucket that a batch job writes.
//!
//! What there is, is listed from the source itself each time; a file is fetched piece by piece, and if the transfer breaks
//! off half-way, it is resumed from there.
//!
//! ```text
//!  <source>/<dataset>/<version>/<file>        the highest version in the order of bytes is the latest (S5)
//!                              /_SUCCESS      if the dataset asks for it: the version is whole
//!                              /_SYMLINK      the name of another version whose files count instead
//!                              /_..., .x      not looked at
//! ```
//!
//! Local folders, S3, Google Cloud, Azure and HTTP (WebDAV) come from `object_store`, HDFS from `hdfs-native`, each
//! behind a feature of that name. A listing is never believed to be empty where the folder itself is not there.

mod download;
mod error;
mod layout;
mod objects;
mod open;
mod throttle;
mod upload;

pub use download::{Download, Stopped, Stopper};
pub use error::{SourceError, SourceErrorKind};
pub use layout::{Files, Folders, SourceFile};
pub use objects::Object;
pub use throttle::Throttle;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use object_store::ObjectStore;
use object_store::path::Path;

use crate::limits::{ANSWER_TIME, CONNECT_TIME, RETRIES, RETRY_TIME};

/// What the environment says to whom it concerns, `AWS_ACCESS_KEY_ID` and the like, by names in any case.
pub type Settings = BTreeMap<String, String>;

/// How long a source that is reached over HTTP is waited for, and how often a request to it is retried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceRetryPolicy {
    /// How long a connection may take to open.
    pub connect_time: Duration,
    /// How long the next byte of an answer may take.
    pub answer_time: Duration,
    /// How often a request that failed is made again.
    pub retries: usize,
    /// How long after a request's beginning it may be made again.
    pub retry_time: Duration,
}

impl Default for SourceRetryPolicy {
    fn default() -> SourceRetryPolicy {
        SourceRetryPolicy {
            connect_time: CONNECT_TIME,
            answer_time: ANSWER_TIME,
            retries: RETRIES,
            retry_time: RETRY_TIME,
        }
    }
}

/// A place with datasets in it.
#[derive(Debug, Clone)]
pub struct Source {
    /// The URL as it is shown: without what follows a `?`.
    url: String,
    store: Arc<dyn ObjectStore>,
    root: Path,
    /// The folder of a local one.
    folder: Option<PathBuf>,
}

impl Source {
    /// A path or URL: `/data`, `file:///data`, `s3://bucket/prefix?endpoint=http://host:9000&region=eu-west-1`,
    /// `gs://bucket/prefix`, `az://container/prefix?account=name`, `http://host/prefix`, `hdfs://namenode:8020/prefix`.
    /// No request is made yet, but a local folder must be there.
    pub fn open(url: &str, settings: &Settings) -> Result<Source, SourceError> {
        open::open(url, settings, &SourceRetryPolicy::default())
    }

    /// The same of a local folder that may be away, for who can do without it for now; of all else what [`Source::open`]
    /// does.
    pub fn open_away(url: &str, settings: &Settings) -> Result<Source, SourceError> {
        open::open_away(url).map_or_else(|| Source::open(url, settings), Ok)
    }

    /// The same as [`Source::open`] with other times.
    pub fn open_with_policy(
        url: &str,
        settings: &Settings,
        policy: &SourceRetryPolicy,
    ) -> Result<Source, SourceError> {
        open::open(url, settings, policy)
    }

    /// The URL without its options, among which there may be secrets.
    pub fn url(&self) -> &str {
        &self.url
    }
}

#[cfg(test)]
mod tests;

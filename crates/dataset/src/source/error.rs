//! Why a source did not give what it was asked for: which URL, and what to do.

use std::error::Error;
use std::io;

use partage_service::dataset::DatasetNameError;

use crate::limits::{SOURCE_ENTRIES, SYMLINKS};

/// What went wrong at a URL.
#[derive(Debug, thiserror::Error)]
#[error("{url}: {kind}")]
pub struct SourceError {
    /// The file or folder, without what secrets there may be.
    pub url: String,
    /// What is wrong there, with the way out.
    pub kind: SourceErrorKind,
}

impl SourceError {
    /// An error at this URL, from which the caller has taken secrets.
    pub fn new(url: impl Into<String>, kind: SourceErrorKind) -> SourceError {
        SourceError { url: url.into(), kind }
    }
}

/// What can be wrong with a source.
#[derive(Debug, thiserror::Error)]
pub enum SourceErrorKind {
    /// No URL of a source.
    #[error("{0}; give a path or a URL such as s3://bucket/prefix")]
    Url(String),
    /// A URL for which nothing is built in.
    #[error("this Partage was built without the feature `{0}`; build it with that")]
    NotBuiltIn(&'static str),
    /// An option of the URL, or a setting of the environment.
    #[error("{name}: {why}")]
    Setting {
        /// The name of the option, cut to 64 characters.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// 404, or no such file or folder.
    #[error("not there (404)")]
    NotThere,
    /// 403, or no right to read.
    #[error("reading it is not allowed (403); check the rights of {0}")]
    Denied(&'static str),
    /// The source answered 401: it does not accept the credentials.
    #[error("the source does not know us (401); check the credentials")]
    Unknown,
    /// No answer within the time-out, tried again and again.
    #[error("too slow: no answer, or no next byte, in time; tried again in vain: {0}")]
    Slow(String),
    /// The source cannot be reached; the text says why.
    #[error("not reachable: {0}")]
    Unreachable(String),
    /// 5xx and whatever else is answered that is no answer.
    #[error("the source fails: {0}")]
    Failing(String),
    /// A file ended before its length.
    #[error("{bytes} bytes came, and its length is {expected}; it has changed, or the transfer broke off")]
    Length {
        /// How many bytes of the file came.
        bytes: u64,
        /// How many were to come.
        expected: u64,
    },
    /// Another file has taken its name.
    #[error("replaced while it was being read; a version must not change once it is there")]
    Replaced,
    /// Reading a local file failed.
    #[error("{0}")]
    Disk(io::Error),
    /// The name in a `_SYMLINK` is none.
    #[error("_SYMLINK must hold the name of another version of the dataset: {0}")]
    Symlink(DatasetNameError),
    /// They go round in a circle, or nearly.
    #[error(
        "_SYMLINK leads on more than {SYMLINKS} times, or in a circle; let it name the version with the files"
    )]
    Symlinks,
    /// A folder in a version.
    #[error("a folder in a version, whose files lie in it directly; move them, or let its name begin with _")]
    Folder,
    /// A link of the file system.
    #[error("a link that leads out of the source; put what it leads to into the source, or mount it there")]
    Outside,
    /// See [`SOURCE_ENTRIES`].
    #[error("{0} entries, more than {SOURCE_ENTRIES}; write fewer and larger files")]
    TooMany(usize),
    /// A file that is read whole.
    #[error("{bytes} bytes, more than the {limit} that such a file may have")]
    TooLong {
        /// The length of the file in bytes, as the source states it.
        bytes: u64,
        /// The most bytes that a node reads of such a file.
        limit: u64,
    },
    /// A version that was to be written.
    #[error("there is a version of that name already; take it away, or give another version")]
    There,
    /// A version without files.
    #[error("a version without a file in it")]
    Empty,
}

impl SourceErrorKind {
    /// Whether asking again later may help without a person's doing.
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            SourceErrorKind::Slow(_)
                | SourceErrorKind::Unreachable(_)
                | SourceErrorKind::Failing(_)
                | SourceErrorKind::Length { .. }
        )
    }

    /// Whether one version may be at fault, and nothing else in the source.
    pub fn is_of_version(&self) -> bool {
        matches!(
            self,
            SourceErrorKind::NotThere
                | SourceErrorKind::Denied(_)
                | SourceErrorKind::Symlink(_)
                | SourceErrorKind::Symlinks
                | SourceErrorKind::Folder
                | SourceErrorKind::Outside
                | SourceErrorKind::TooMany(_)
                | SourceErrorKind::TooLong { .. }
        )
    }

    /// What an error of the library means.
    pub fn of(error: object_store::Error) -> SourceErrorKind {
        match error {
            object_store::Error::NotFound { .. } => return SourceErrorKind::NotThere,
            object_store::Error::PermissionDenied { .. } => {
                return SourceErrorKind::Denied("these credentials");
            }
            object_store::Error::Unauthenticated { .. } => return SourceErrorKind::Unknown,
            _ => {}
        }
        for cause in causes(&error) {
            #[cfg(feature = "cloud")]
            if let Some(http) = cause.downcast_ref::<object_store::client::HttpError>() {
                match http.kind() {
                    object_store::client::HttpErrorKind::Timeout => {
                        return SourceErrorKind::Slow(error.to_string());
                    }
                    object_store::client::HttpErrorKind::Connect => {
                        return SourceErrorKind::Unreachable(error.to_string());
                    }
                    _ => {}
                }
            }
            if let Some(io) = cause.downcast_ref::<io::Error>() {
                match io.kind() {
                    io::ErrorKind::PermissionDenied => return SourceErrorKind::Denied("this user"),
                    io::ErrorKind::NotFound => return SourceErrorKind::NotThere,
                    io::ErrorKind::TimedOut => return SourceErrorKind::Slow(error.to_string()),
                    io::ErrorKind::ConnectionRefused
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::HostUnreachable
                    | io::ErrorKind::NetworkUnreachable => {
                        return SourceErrorKind::Unreachable(error.to_string());
                    }
                    _ => {}
                }
            }
        }
        let said = error.to_string();
        // The library gives the status of a refused list in words only.
        match said.split_once("status code: ").and_then(|(_, status)| status.get(..3)) {
            Some("401") => return SourceErrorKind::Unknown,
            Some("403") => return SourceErrorKind::Denied("these credentials"),
            Some("404") => return SourceErrorKind::NotThere,
            Some(_) | None => {}
        }
        // HDFS names a class of Java, and its library has no other word for it.
        if cfg!(feature = "hdfs") && said.contains("security.AccessControlException") {
            return SourceErrorKind::Denied("this user");
        }
        // What follows in an answer of HDFS is where in Java it happened.
        SourceErrorKind::Failing(said.lines().next().unwrap_or_default().to_owned())
    }

    /// What an error of a local file means.
    pub fn of_disk(error: io::Error) -> SourceErrorKind {
        match error.kind() {
            io::ErrorKind::NotFound => SourceErrorKind::NotThere,
            io::ErrorKind::PermissionDenied => SourceErrorKind::Denied("this user"),
            _ => SourceErrorKind::Disk(error),
        }
    }
}

/// An error, its cause, the cause of that, and so on.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let mut next = Some(error);
    std::iter::from_fn(move || {
        let cause = next?;
        next = cause.source();
        Some(cause)
    })
}

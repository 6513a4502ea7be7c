//! From the files of a version to store files, one for each partition that is wanted.
//!
//! A sample of each file's records tells how the file was partitioned before ([`inspect`]). A file that holds one partition
//! goes to the builder of that partition; the records of one that is mixed go each to the builder of their own. Builders are
//! finished only when every file that may hold a record for them has been read.
//!
//! ```text
//!  files ──► records ──► which partition? ──┬─► Builder of partition 0 ──► 00000.partage
//!   (several at once, throttled)            └─► Builder of partition 3 ──► 00003.partage
//! ```
//!
//! - Of several values of a key the one in the file with the highest name counts, and within it the last: so all
//!   nodes give the same one (S6).
//! - A file that the sample says is one partition that is not wanted here is not read. Every key is looked at all the
//!   same: the first one that should not be where it is ends the trust in samples (S7). Who makes all partitions reads
//!   all files then. Who makes some gives up, and so does every node that reads this file: its partition is nowhere, and
//!   clients never get a version of which keys are lacking elsewhere. Who mixes files beyond what a sample shows sets
//!   [`Options::is_sampled`] to false, and all read all.
//! - A key that Cascading may have put into another partition stays in that of its file; readers look in both.
//! - What is built already is not built again. Nothing that is half done has a name.

mod error;
mod inspect;
mod keys;
mod load;
mod offline;
mod plan;
mod prebuilt;
mod progress;
mod publish;
mod rejects;

pub use error::Error;
pub use inspect::{Inspection, inspect};
pub use load::{Load, Ready};
pub use offline::build_all;
pub(crate) use offline::{sync_folder, write};
pub use progress::{Progress, ProgressSnapshot};
pub use publish::{may_publish, publish};
pub use rejects::{REJECTS, Rejects, Tolerance, UnknownTolerance};

use partage_engine::readonly::{Compression, Layout};

use crate::format;
use crate::limits::{BUILD_MEMORY_BYTES, BUILDS_AT_ONCE};

/// How the versions of a dataset are made into store files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// How its files are read.
    pub format: format::Options,
    /// The column of a key that says alone which partition it is in, from 0, and of how many; `None`: all of the key does.
    pub partition_by: Option<(u8, u8)>,
    /// How many rows of a file may be no records.
    pub tolerance: Tolerance,
    /// How the store files are laid out: for lookups alone, or for scans too.
    pub layout: Layout,
    /// How the store files are compressed.
    pub compression: Compression,
    /// Whether files of one partition are recognised by a sample, and those of others not read.
    pub is_sampled: bool,
    /// Files that are read, and store files that are written, at once.
    pub at_once: usize,
    /// Whether store files that were built before, in a folder of the same file system, are given a second name instead of
    /// being copied. No process may then write into them or cut them off.
    pub is_linked: bool,
    /// Memory of all builders together. What does not fit is spilled beside the store files.
    pub memory_bytes: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            format: format::Options::default(),
            partition_by: None,
            tolerance: Tolerance::default(),
            layout: Layout::Hashed,
            compression: Compression::None,
            is_sampled: true,
            at_once: BUILDS_AT_ONCE,
            is_linked: false,
            memory_bytes: BUILD_MEMORY_BYTES,
        }
    }
}

/// The name of a partition's store file.
pub fn file_name(partition: u32) -> String {
    format!("{partition:05}{SUFFIX}")
}

/// The end of a store file's name.
pub const SUFFIX: &str = ".partage";

/// Which partition a store file is, by its name.
pub fn partition_of(name: &str) -> Option<u32> {
    let digits = name.strip_suffix(SUFFIX)?;
    let partition = digits.parse().ok()?;
    (file_name(partition) == name).then_some(partition)
}

#[cfg(test)]
mod tests;

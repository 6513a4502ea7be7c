//! Files that are only added to, and in which every damage is found: the one way in which Partage writes what
//! must not be lost.
//!
//! A log file is only appended to, and each record has a checksum; when the file is large, what counts is copied into a
//! new one. [`frame`] is how records lie in the file and how damage is told from an unfinished write, [`LogFile`] an open
//! file, [`read`] the way back. What the records say is decided by the code that owns the file: the embedded
//! coordination backend, and the METADATA files.
//!
//! # When the disk fails
//!
//! Room is taken, zeroed and synced before it is written, so a full disk is noticed while nothing has
//! been written: a definite error, and the file stays in use. Once a record's write or its sync has failed,
//! it is not known what is on the disk, and a second sync may report success for pages that the kernel has
//! dropped (Rebello et al., "Can Applications Recover from fsync Failures?", 2020). So it is never
//! retried: the outcome is unknown, and the file must be read anew from the disk.

mod aligned;
pub mod disk;
#[cfg(feature = "testing")]
pub mod faulty_disk;
pub mod frame;
mod log_file;

pub use aligned::{AlignedBuffer, BLOCK};
pub use disk::{Disk, DiskFile, RealDisk, is_refused};
pub use frame::{Damage, FileHeader};
pub use log_file::{AppendError, Contents, LogFile, UNFINISHED, is_full, read, unfinished};

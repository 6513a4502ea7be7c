//! Files that are only added to, and in which every damage is found: the one way in which Partage writes what
//! must not be lost.
//!
//! A ship's log: lines are only added, each signed; when the book is thick, what counts is copied into a new
//! one. [`frame`] is how lines lie in the file and how damage is told from an unfinished write, [`Book`] an open
//! file, [`read`] the way back. What the lines say is the business of whoever keeps the book: the embedded
//! coordination backend, and the METADATA files.
//!
//! # When the disk fails
//!
//! Room is taken, zeroed and synced before it is written, so a full disk is noticed while nothing has
//! been written: a definite error, and the book goes on. Once a record's write or its sync has failed,
//! nobody knows what is on the disk, and a second sync may report success for pages that the kernel has
//! dropped (Rebello et al., "Can Applications Recover from fsync Failures?", 2020). So it is never
//! retried: the outcome is unknown, and the book must be read anew from the disk.

mod book;
pub mod disk;
#[cfg(feature = "testing")]
pub mod faulty_disk;
pub mod frame;

pub use book::{AppendError, Book, Contents, UNFINISHED, is_full, read, unfinished};
pub use disk::{Disk, DiskFile, RealDisk};
pub use frame::{Damage, FileHeader};

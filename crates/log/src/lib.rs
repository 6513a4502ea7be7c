//! The log of a node's disk, which all replicas on the disk share.
//!
//! A node has thousands of replicas, and a sync costs as much for one byte as for a megabyte. So the records of all
//! replicas go to one log: what waits is one *group*, which one synced write puts at the end of the *head segment*. When
//! no replica needs an entry of the oldest segment, the log deletes that file.
//!
//! ```text
//!  replica A ─┐               group               oldest segment      …       head segment
//!  replica B ─┼─► queue ─► A│A│B│C│B ─► one write ─► files of fixed size, zeros behind the last group
//!  replica C ─┘  (GroupWriter)          and sync
//! ```
//!
//! [`Log`] is the log, [`GroupWriter`] a thread that gathers the groups, [`Recovered`] what a start finds. A [`Record`] is a
//! write of the replication machine (a truncation is a record like an append), a note of what is committed, or a note that a
//! replica is dropped.
//!
//! # What is promised
//!
//! - When [`Log::write`] returns, the whole group is on stable storage. If it fails with a definite error, nothing of it is
//!   there. If it fails with [`WriteError::Ends`], the process must end, and the log refuses every later write: after a failed
//!   write or sync the kernel may have dropped what it says it has.
//! - After a crash each replica has what a prefix of its records makes of it, in which all acknowledged ones are. The
//!   group that was under way is there as a whole or not at all.
//! - A full disk is noticed before anything is written: a segment has all its room, in zeros that were synced, before the
//!   first group goes there. The log stays in use, and goes on when there is room.
//! - Two processes cannot open one folder.
//!
//! # Damage, and an unfinished last write
//!
//! A group is one frame of `partage_journal`, and begins at a block of 4 KiB; the zeros up to the next block belong to it. So
//! no write touches a block that has an earlier group, and a crash can tear the last frame only. The journal's rules
//! tell a torn frame from a damaged one, as long as zeros follow. Each part of a group has a checksum of its own
//! (`group.rs`), and each record names the record of its replica before it. So, of one damaged byte:
//!
//! | the byte is in | what the start says |
//! |---|---|
//! | a record of a replica | that replica is damaged, by file and offset; all others are whole |
//! | another part of a group, the header of a segment | all replicas are whole; in most cases the place is named |
//! | the zeros behind the last group | all replicas are whole; the byte may look like an unfinished write |
//!
//! If more than a byte is damaged, records of any replica may be lost. A replica is cleared when a later record of it names a
//! record before it that was read. Those that cannot be cleared count as damaged. The start does not find a replica of which
//! nothing else is in the log: [`DamagedPlace::may_hide_a_replica`] says that there may be one.
//!
//! What no log can tell by itself: that the last file went away, or that whole sectors of the last group went back to zeros.
//! This looks like a write that was never finished. And records that were written and never acknowledged may be there.
//!
//! # What was not done
//!
//! - Deleted segments are not used again: their old bytes would look like groups. A thread makes new ones ahead.
//! - Entries are not copied out of old segments: a replica that keeps one must flush ([`Log::holding_oldest`]).
//! - Small groups take a whole block each. To write the last block again, with more in it, would put what was synced at risk.

mod error;
mod group;
mod log;
mod record;
mod recovery;
mod replica;
mod segment;
mod settings;
#[cfg(test)]
mod tests;
mod writer;

pub use error::{Damage, OpenError, WriteError};
pub use log::Log;
pub use record::Record;
pub use recovery::{DamagedPlace, Recovered};
pub use segment::{BLOCK, Mode};
pub use settings::{LogSettings, SettingsError};
pub use writer::{GroupWriter, Report, SubmitError, WriterSettings};

//! The numbers that the log runs by. Each has a default and a reason.

use crate::segment::BLOCK;

/// The numbers that one log runs by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogSettings {
    /// The store that the log belongs to. [`crate::Log::open`] refuses the files of another one.
    pub owner: u128,
    /// Bytes of a segment. Large against a group, so that few groups wait for the next segment; small against the disk, as
    /// the log gives room back by whole segments.
    pub segment_bytes: u32,
    /// Bytes of the largest payload of an entry: a value of 1 MiB, and what a table puts around it.
    pub entry_bytes: usize,
    /// Whether the log tries to write past the page cache. If the file system refuses, the log syncs with `fdatasync`.
    pub try_direct: bool,
    /// Whether a thread makes the next segment as soon as the head segment is half full. Otherwise the write that needs the
    /// segment makes it, and waits until its zeros are on disk.
    pub prepare_ahead: bool,
}

impl Default for LogSettings {
    fn default() -> LogSettings {
        LogSettings {
            owner: 0,
            segment_bytes: 64 << 20,
            entry_bytes: (1 << 20) + (64 << 10),
            try_direct: true,
            prepare_ahead: true,
        }
    }
}

/// Settings that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A segment of blocks that are not whole, or too few.
    #[error("segments of {0} bytes: give a multiple of {BLOCK}, and at least {min}", min = 8 * BLOCK)]
    Segment(u32),
    /// A segment that has no room for a group with the largest entry.
    #[error(
        "a segment of {segment_bytes} bytes has no room for an entry of {entry_bytes} bytes: make segments four times as large as entries"
    )]
    Entry {
        /// Bytes of a segment.
        segment_bytes: u32,
        /// Bytes of an entry.
        entry_bytes: usize,
    },
}

impl LogSettings {
    /// Refuses what could not work.
    ///
    /// # Errors
    /// Which setting, and what to set.
    pub fn check(&self) -> Result<(), SettingsError> {
        let segment_bytes = self.segment_bytes;
        if !(segment_bytes as usize).is_multiple_of(BLOCK) || (segment_bytes as usize) < 8 * BLOCK {
            return Err(SettingsError::Segment(segment_bytes));
        }
        if self.entry_bytes > self.group_bytes() / 2 {
            return Err(SettingsError::Entry { segment_bytes, entry_bytes: self.entry_bytes });
        }
        Ok(())
    }

    /// Bytes of the largest group, frame and padding included.
    pub fn group_bytes(&self) -> usize {
        self.segment_bytes as usize - BLOCK - self.reserved_bytes()
    }

    /// Bytes at the end of each segment that only checkpoints may take: so the log can delete a segment, and thereby get
    /// room, while the disk is full.
    pub(crate) fn reserved_bytes(&self) -> usize {
        (self.segment_bytes as usize / 32).next_multiple_of(BLOCK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_cannot_work_are_refused() {
        assert_eq!(LogSettings::default().check(), Ok(()));
        let odd = LogSettings { segment_bytes: (64 << 20) + 1, ..LogSettings::default() };
        assert_eq!(odd.check(), Err(SettingsError::Segment((64 << 20) + 1)));
        let tight = LogSettings { segment_bytes: 1 << 20, ..LogSettings::default() };
        assert!(matches!(tight.check(), Err(SettingsError::Entry { .. })));
    }
}

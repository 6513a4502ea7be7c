//! The log of one replica, as it is in memory: what was appended, whether it is on disk or not.

use super::{Entry, EntryKind, LogPosition};
use partage_core::base::id::Epoch;
use std::collections::VecDeque;

/// Entries that follow on each other, behind a base of which only the position is known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Log {
    base: LogPosition,
    entries: VecDeque<Entry>,
    bytes: usize,
    /// Bytes of all that it has ever had, but for what was cut.
    appended: u64,
}

/// How entries of a leader fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Matching {
    /// The entry before is not here, or another one: up to this index the logs may be alike.
    Ends(u64),
    /// The entry before is here, and so are so many of the entries.
    Fits {
        /// How many of the entries are here already.
        known: usize,
        /// The index behind which entries are here that differ from the leader's: none if all are alike.
        cut: Option<u64>,
    },
}

impl Log {
    /// What was stored: entries that follow on each other.
    pub(super) fn new(base: LogPosition, entries: impl IntoIterator<Item = Entry>) -> Log {
        let mut log = Log { base, ..Log::default() };
        entries.into_iter().for_each(|entry| log.push(entry));
        log
    }

    /// The position before its first entry.
    pub(super) fn base(&self) -> LogPosition {
        self.base
    }

    /// The position of its last entry.
    pub(super) fn end(&self) -> LogPosition {
        self.entries.back().map_or(self.base, |entry| entry.position)
    }

    /// What its entries count against limits.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of all entries that it has ever had, but for those that were cut.
    pub(super) fn appended(&self) -> u64 {
        self.appended
    }

    /// Bytes of the entries behind `after` up to `to`.
    pub(super) fn bytes_between(&self, after: u64, to: u64) -> u64 {
        let skip = after.saturating_sub(self.base.index) as usize;
        let most = to.saturating_sub(after.max(self.base.index)) as usize;
        self.entries.iter().skip(skip).take(most).map(|entry| entry.bytes() as u64).sum()
    }

    /// The position at that index, as far as it is known.
    pub(super) fn position(&self, index: u64) -> Option<LogPosition> {
        if index == self.base.index { Some(self.base) } else { self.entry(index).map(|entry| entry.position) }
    }

    fn entry(&self, index: u64) -> Option<&Entry> {
        self.entries.get(index.checked_sub(self.base.index + 1)? as usize)
    }

    /// The entries from that index on, so many and so many bytes of them at most, and one at least, if there is one.
    pub(super) fn slice(&self, from: u64, most: usize, most_bytes: usize) -> Vec<Entry> {
        let mut bytes = 0;
        let skip = from.saturating_sub(self.base.index + 1) as usize;
        let fits = |(at, entry): &(usize, &Entry)| {
            bytes += entry.bytes();
            *at == 0 || bytes <= most_bytes
        };
        let behind = self.entries.iter().skip(skip).take(most).enumerate();
        behind.take_while(fits).map(|(_, entry)| entry.clone()).collect()
    }

    /// Whether the entries from `from` on, and before `to`, have so many bytes or more.
    pub(super) fn is_much(&self, from: u64, to: u64, bytes: usize) -> bool {
        let skip = from.saturating_sub(self.base.index + 1) as usize;
        let entries = self.entries.iter().skip(skip).take(to.saturating_sub(from) as usize);
        let mut sums = entries.scan(0, |sum, entry| {
            *sum += entry.bytes();
            Some(*sum)
        });
        sums.any(|sum| sum >= bytes)
    }

    /// The entries behind `after` up to `to`.
    pub(super) fn between(&self, after: u64, to: u64) -> Vec<Entry> {
        let most = to.saturating_sub(after) as usize;
        self.slice(after + 1, most, usize::MAX)
    }

    /// The first of the closing entries at its end, committed or not.
    pub(super) fn first_of_close(&self) -> Option<LogPosition> {
        let closing = self.entries.iter().rev().take_while(|entry| entry.kind == EntryKind::Close);
        closing.last().map(|entry| entry.position)
    }

    /// Adds an entry, which must follow on the last one.
    pub(super) fn push(&mut self, entry: Entry) {
        self.bytes += entry.bytes();
        self.appended += entry.bytes() as u64;
        self.entries.push_back(entry);
    }

    /// Cuts the entries behind that index.
    pub(super) fn truncate(&mut self, after: u64) {
        while self.end().index > after.max(self.base.index) {
            let bytes = self.entries.pop_back().map_or(0, |entry| entry.bytes());
            self.bytes -= bytes;
            self.appended -= bytes as u64;
        }
    }

    /// Lets go of entries up to that index while it has more than so many bytes, or up to `certain` in any case.
    /// Says whether it has let go of any.
    pub(super) fn trim(&mut self, to: u64, certain: u64, most_bytes: usize) -> bool {
        let before = self.base;
        while let Some(first) = self.entries.front().map(|entry| entry.position) {
            if first.index > to || (first.index > certain && self.bytes <= most_bytes) {
                break;
            }
            self.bytes -= self.entries.pop_front().map_or(0, |entry| entry.bytes());
            self.base = first;
        }
        self.base != before
    }

    /// Begins anew behind that position.
    pub(super) fn restart(&mut self, base: LogPosition) {
        *self = Log { base, ..Log::default() };
    }

    /// How entries that follow on `before` fit. `is_blind`: the entry before is not looked at, if there is any.
    pub(super) fn matching(&self, before: LogPosition, entries: &[Entry], is_blind: bool) -> Matching {
        let end = self.end().index;
        if before.index > end {
            return Matching::Ends(end);
        }
        // What is at the base or before it is committed, and so the leader's.
        if before.index >= self.base.index
            && !is_blind
            && let Some(own) = self.position(before.index)
            && own != before
        {
            return Matching::Ends(self.before_epoch(own.epoch, before.index));
        }
        let here = |entry: &&Entry| {
            entry.position.index <= self.base.index
                || self.position(entry.position.index) == Some(entry.position)
        };
        let known = entries.iter().take_while(here).count();
        let next = entries.get(known).map(|entry| entry.position.index);
        Matching::Fits { known, cut: next.filter(|next| *next <= end).map(|next| next - 1) }
    }

    /// The last index below `index` at which an entry of an earlier epoch is: a leader that lacks one entry of an epoch
    /// where this log has one may lack them all (Raft's fast step back).
    fn before_epoch(&self, epoch: Epoch, index: u64) -> u64 {
        let mut at = index - 1;
        while at > self.base.index && self.position(at).is_some_and(|position| position.epoch >= epoch) {
            at -= 1;
        }
        at
    }
}

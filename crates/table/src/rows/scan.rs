//! Scans: the rows of a range, page by page.
//!
//! A page is read on the replica's thread, from one snapshot of the store, so it has bounds: rows, bytes, and rows that were
//! looked at ([`limits`]). It ends before the first row that is beyond one of them, and names that row's key: the next page
//! begins there. Keys ascend over all pages, so no row comes twice, and one that is there all the time is not missed.

use super::{PinnedRows, RowsError, StoredRows, malformed};
use crate::limits;
use crate::stored::keys;
use crate::stored::values::decode_row;
use partage_core::keyspace::key::Key;
use partage_engine::replica::{Direction, Snapshot, Store};
use partage_service::table::replication::LogPosition;
use partage_service::table::rows::{Row, Value};

/// Which rows a scan reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanRange {
    /// The first key; the empty key is the lowest one.
    pub from: Key,
    /// The first key behind the range; none: there is no end.
    pub to: Option<Key>,
    /// Bytes with which all keys begin; none: any key.
    pub prefix: Key,
    /// How many rows a page may have; [`limits::SCAN_ROWS`] at most count.
    pub most: usize,
    /// Whether the page has the values, or only keys, versions and ends.
    pub with_values: bool,
}

impl Default for ScanRange {
    /// All rows with their values, [`limits::SCAN_ROWS`] on a page.
    fn default() -> ScanRange {
        ScanRange {
            from: Key::empty(),
            to: None,
            prefix: Key::empty(),
            most: limits::SCAN_ROWS,
            with_values: true,
        }
    }
}

/// A row that a scan has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScannedRow {
    /// The key of the row, whole even where the scan has a prefix.
    pub key: Key,
    /// The value of the row, if the scan wants values.
    pub value: Option<Value>,
    /// The entry that wrote it.
    pub version: LogPosition,
    /// When it ends, in milliseconds of Unix time; none = never.
    pub expires_ms: Option<u64>,
}

/// A page of a scan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanPage {
    /// Rows in the order of their keys; there may be none though more follow.
    pub rows: Vec<ScannedRow>,
    /// Where the next page begins; none: there is nothing more in the range.
    pub next: Option<Key>,
    /// Up to which entry of the log it is read.
    pub position: LogPosition,
    /// How old that may be, in milliseconds: none if that is not known.
    pub age_ms: Option<u64>,
}

/// What a page has of the store.
#[derive(Debug)]
pub(crate) struct ScannedRows {
    pub(crate) rows: Vec<ScannedRow>,
    pub(crate) next: Option<Key>,
}

impl ScanRange {
    /// The keys from the first on and before the second are all that may be in the range; no second: there is no end.
    pub(crate) fn bounds(&self) -> (&[u8], Option<Vec<u8>>) {
        let from = self.from.as_bytes().max(self.prefix.as_bytes());
        let ends = [self.to.as_ref().map(|to| to.as_bytes().to_vec()), behind(self.prefix.as_bytes())];
        (from, ends.into_iter().flatten().min())
    }
}

/// The lowest bytes above all that begin with a prefix; none: there are no such bytes.
fn behind(prefix: &[u8]) -> Option<Vec<u8>> {
    let kept = prefix.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut behind = prefix[..=kept].to_vec();
    behind[kept] += 1;
    Some(behind)
}

/// What one page may still take.
pub(super) struct Budget {
    pub(super) rows: usize,
    looks: usize,
    bytes: usize,
}

impl Budget {
    /// What may be spent on a page with so many rows.
    pub(super) fn new(rows: usize) -> Budget {
        let rows = rows.clamp(1, limits::SCAN_ROWS);
        Budget { rows, looks: limits::SCAN_LOOKS, bytes: limits::SCAN_BYTES }
    }

    /// Whether a row of so many bytes may be looked at. The first one may, whatever it has.
    pub(super) fn takes(&mut self, bytes: usize) -> bool {
        let is_first = self.looks == limits::SCAN_LOOKS;
        if self.rows == 0 || self.looks == 0 || (bytes > self.bytes && !is_first) {
            return false;
        }
        self.looks -= 1;
        self.bytes = self.bytes.saturating_sub(bytes);
        true
    }
}

impl<S: Store> StoredRows<S> {
    /// Reads a page of rows as the shard's clock has them.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) fn scan(&self, range: &ScanRange) -> Result<ScannedRows, RowsError> {
        self.pin()?.page(range)
    }
}

impl<S: Snapshot> PinnedRows<S> {
    /// Reads a page of rows.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) fn page(&self, range: &ScanRange) -> Result<ScannedRows, RowsError> {
        let (from, to) = range.bounds();
        let mut page = ScannedRows { rows: Vec::new(), next: None };
        if to.as_ref().is_some_and(|to| to.as_slice() <= from) {
            return Ok(page);
        }
        let from = keys::row_bytes(from);
        let to = to.map_or(keys::BEHIND_ROWS.to_vec(), |to| keys::row_bytes(&to));
        let mut budget = Budget::new(range.most);
        for stored in self.snapshot.range(Some(&from), Some(&to), Direction::Forward) {
            let stored = stored?;
            let key = keys::parse_row(&stored.key)
                .ok_or_else(|| malformed("a stored row", "its key", "has another form"))?;
            if !budget.takes(stored.key.len() + stored.value.len()) {
                page.next = Some(key);
                break;
            }
            let row = decode_row(&stored.value)?;
            if row.is_there(self.clock_ms) {
                budget.rows -= 1;
                let Row { value, version, expires_ms } = row;
                let value = range.with_values.then_some(value);
                page.rows.push(ScannedRow { key, value, version, expires_ms });
            }
        }
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_behind_a_prefix() {
        let cases: [(&[u8], Option<&[u8]>); 6] = [
            (b"", None),
            (b"a", Some(b"b")),
            (b"a\xff", Some(b"b")),
            (b"\xff\xff", None),
            (b"a\0", Some(b"a\x01")),
            (b"ab", Some(b"ac")),
        ];
        for (prefix, expected) in cases {
            assert_eq!(behind(prefix).as_deref(), expected, "{prefix:?}");
        }
    }
}

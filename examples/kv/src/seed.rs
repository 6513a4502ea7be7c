//! What a keyspace holds before the first write: rows of a JSON Lines file, read once for all nodes of a
//! process.

use bytes::{Bytes, BytesMut};
use flate2::read::MultiGzDecoder;
use partage_worker::Bounds;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

/// Rows of one keyspace, in the order of their keys. A copy shares them.
#[derive(Clone)]
pub struct Seed {
    keyspace: String,
    rows: Arc<Vec<(Bytes, Bytes)>>,
}

/// A file that cannot be read as rows.
#[derive(Debug, thiserror::Error)]
pub enum SeedError {
    /// The operating system cannot open or read the file, or it cannot be unpacked.
    #[error("{file}: {error}")]
    File {
        /// The name of the file that could not be read.
        file: String,
        /// The error met in opening, reading or unpacking it.
        error: std::io::Error,
    },
    /// A line that is no row.
    #[error("{file}, line {line}: {why}: give one JSON object a line, each with the text field {field:?}")]
    Line {
        /// The name of the file with the bad line.
        file: String,
        /// Which line, from 1.
        line: usize,
        /// Why the line is no row.
        why: String,
        /// The field that holds the key.
        field: String,
    },
}

impl Seed {
    /// Rows for `keyspace` from a file of JSON objects, one a line, gzipped if its name ends in `.gz`: the
    /// text in `field` is the key, the whole line the value.
    pub fn from_json_lines(keyspace: &str, file: &Path, field: &str) -> Result<Seed, SeedError> {
        let name = file.display().to_string();
        let raw = File::open(file).map_err(|error| SeedError::File { file: name.clone(), error })?;
        match file.extension().is_some_and(|extension| extension == "gz") {
            true => Seed::read(keyspace, &name, MultiGzDecoder::new(raw), field),
            false => Seed::read(keyspace, &name, raw, field),
        }
    }

    /// The same from gzipped bytes that are there already; `name` is for errors.
    pub fn from_gzip(keyspace: &str, name: &str, bytes: &[u8], field: &str) -> Result<Seed, SeedError> {
        Seed::read(keyspace, name, MultiGzDecoder::new(bytes), field)
    }

    fn read(keyspace: &str, name: &str, text: impl Read, field: &str) -> Result<Seed, SeedError> {
        let failed = |error| SeedError::File { file: name.to_owned(), error };
        let mut rows = Vec::new();
        for (at, line) in BufReader::new(text).split(b'\n').enumerate() {
            let line = line.map_err(failed)?;
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let bad = |why: String| SeedError::Line {
                file: name.to_owned(),
                line: at + 1,
                why,
                field: field.to_owned(),
            };
            let row: serde_json::Value =
                serde_json::from_slice(&line).map_err(|error| bad(error.to_string()))?;
            let key = row.get(field).and_then(|key| key.as_str());
            let key = key.ok_or_else(|| bad("no such text field".to_owned()))?;
            rows.push((Bytes::copy_from_slice(key.as_bytes()), Bytes::from(line)));
        }
        rows.sort();
        Ok(Seed { keyspace: keyspace.to_owned(), rows: Arc::new(in_one_piece(&rows)) })
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The keys of all rows.
    pub fn keys(&self) -> impl Iterator<Item = &Bytes> {
        self.rows.iter().map(|(key, _)| key)
    }

    /// The rows that may be in a shard of `keyspace` with these bounds: exactly those for a range of keys,
    /// all for the others, whose hashes are not kept.
    pub(crate) fn rows(&self, keyspace: &str, bounds: &Bounds) -> &[(Bytes, Bytes)] {
        match bounds {
            _ if self.keyspace != keyspace => &[],
            Bounds::Keys(range) => {
                let first = self.rows.partition_point(|(key, _)| key[..] < *range.begin.as_bytes());
                let end = match range.end.is_empty() {
                    true => self.rows.len(),
                    false => self.rows.partition_point(|(key, _)| key[..] < *range.end.as_bytes()),
                };
                &self.rows[first..end]
            }
            Bounds::Hashes(_) | Bounds::Slot(_) | Bounds::Name(_) => &self.rows,
        }
    }
}

/// The same rows in one allocation instead of one for each.
fn in_one_piece(rows: &[(Bytes, Bytes)]) -> Vec<(Bytes, Bytes)> {
    let mut all = BytesMut::with_capacity(rows.iter().map(|(key, value)| key.len() + value.len()).sum());
    rows.iter().for_each(|(key, value)| {
        all.extend_from_slice(key);
        all.extend_from_slice(value);
    });
    let mut all = all.freeze();
    rows.iter().map(|(key, value)| (all.split_to(key.len()), all.split_to(value.len()))).collect()
}

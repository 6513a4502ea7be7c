//! The manifest of a backup: the table's settings, and of each shard the chunks with its rows.
//!
//! ```text
//! partage table backup 1
//! <SHA-256 of the rest, 64 hex digits>
//! {"id":"20261128T065456.789Z-3f0c9a11","table":"stock",…}
//! ```
//!
//! Readers ignore fields that they do not know. A form that they would misunderstand gets another number in the first line: 2
//! stands for a table with indexes, which readers of the first form would leave out, or with named partitions. Other backups are
//! written in the first form, and any program reads them.

use super::ContentDigest;
use crate::json::{Keyspace, Sharding};
use crate::table::{KeyBytes, PlaceForm};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The first line of the first form, which every reader knows.
const FIRST: &str = "partage table backup 1\n";

/// The first line of a backup that has more than readers of the first form know.
const SECOND: &str = "partage table backup 2\n";

/// What the first line of each such form begins with.
const KIND: &str = "partage table backup ";

/// Hex digits of the digest, and the line break.
const DIGEST_BYTES: usize = 65;

/// A backup of a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// What it is called by: later ones of a table come later in the order of bytes.
    pub id: String,
    /// The name of the table that was backed up.
    pub table: String,
    /// When it began, in milliseconds of Unix time: it has each write that was acknowledged before that.
    pub began_ms: u64,
    /// When its last shard was read.
    pub ended_ms: u64,
    /// The version of the program that took it.
    pub by: String,
    /// The settings of the table.
    pub settings: Keyspace,
    /// The indexes of the table when the backup began, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub indexes: Vec<IndexEntry>,
    /// The backup whose chunks were expected to be there; none: there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// The shards, in the order of their bounds: together they hold every key. Named partitions stand in the order of their
    /// names.
    pub shards: Vec<ShardBackup>,
    /// Chunks that this backup has written; the others were there.
    pub chunks_written: u64,
    /// Bytes of the files of these.
    pub bytes_written: u64,
}

/// An index of the table that was backed up: not its entries, which follow from the rows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct IndexEntry {
    /// The name of the index, under which a restore creates it again.
    pub name: String,
    /// Which field of the JSON values it is of.
    pub field: String,
}

/// A shard in a backup.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShardBackup {
    /// The id that the shard had in the table that was backed up.
    pub shard: u64,
    /// The lowest key, point or slot of the shard, or the name of a named partition.
    pub begin: PlaceForm,
    /// Where the next one begins; none: this is the last one, or a named partition.
    pub end: Option<PlaceForm>,
    /// The place in its log that it was read at, as versions of rows are written: all writes up to there are in the backup, and
    /// no later one.
    pub position: String,
    /// The clock of the shard there, in milliseconds of Unix time: rows that ended before are not in the backup.
    pub clock_ms: u64,
    /// Its rows, in the order of keys; none: it has no row.
    pub chunks: Vec<ChunkEntry>,
}

/// A chunk in a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkEntry {
    /// The key of its first row.
    pub first: KeyBytes,
    /// The SHA-256 of its content, which is its name.
    pub digest: DigestText,
    /// How many rows it has; the head of its file says the same.
    pub rows: u64,
    /// Bytes of its content.
    pub content_bytes: u64,
    /// Bytes of its file.
    pub file_bytes: u64,
}

/// A digest in hex.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DigestText(pub ContentDigest);

impl Serialize for DigestText {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for DigestText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<DigestText, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map(DigestText).map_err(serde::de::Error::custom)
    }
}

/// Why a file is not the manifest that it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// It does not begin as one.
    #[error("it is no manifest of a backup of a table: it does not begin with {KIND:?}")]
    Kind,
    /// It has a later form.
    #[error("it has the form {0:?}, and this program knows {FIRST:?} and {SECOND:?}: use a later one")]
    Form(String),
    /// A bit of it is not as it was written, or it is cut.
    #[error("it is damaged: the SHA-256 of its text is {found}, and it says {said:?}")]
    Digest {
        /// The SHA-256 of the text that is there.
        found: ContentDigest,
        /// The digest in its second line.
        said: String,
    },
    /// It is whole, and no manifest.
    #[error("it is not understood: {0}")]
    Malformed(String),
    /// It is that of another backup.
    #[error("it is the backup {id} of table {table}: it was moved or renamed")]
    Moved {
        /// The id that the manifest has, not that of its path.
        id: String,
        /// The table that the manifest has, not that of its path.
        table: String,
    },
    /// Its shards do not hold every key once.
    #[error("its shards {0} and the next one do not join: the manifest was not written by this program")]
    Gap(u64),
}

impl Manifest {
    /// The bytes of the file.
    ///
    /// # Errors
    /// Never for a manifest that was read or made by this program.
    pub fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        let text = serde_json::to_vec(self)?;
        let digest = ContentDigest::of(&text);
        let first = if self.has_more() { SECOND } else { FIRST };
        let mut bytes = format!("{first}{digest}\n").into_bytes();
        bytes.extend_from_slice(&text);
        Ok(bytes)
    }

    /// Reads the file that lies under that table and id; each bit of it is checked.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn open(bytes: &[u8], table: &str, id: &str) -> Result<Manifest, ManifestError> {
        let rest = [FIRST, SECOND].into_iter().find_map(|line| bytes.strip_prefix(line.as_bytes()));
        let Some(rest) = rest else {
            let line: Vec<u8> = bytes.iter().take(64).take_while(|byte| **byte != b'\n').copied().collect();
            let line = String::from_utf8_lossy(&line).into_owned();
            return Err(if line.starts_with(KIND) { ManifestError::Form(line) } else { ManifestError::Kind });
        };
        let (said, text) = rest.split_at(rest.len().min(DIGEST_BYTES));
        let found = ContentDigest::of(text);
        if format!("{found}\n").as_bytes() != said {
            return Err(ManifestError::Digest { found, said: String::from_utf8_lossy(said).into_owned() });
        }
        let manifest: Manifest =
            serde_json::from_slice(text).map_err(|error| ManifestError::Malformed(error.to_string()))?;
        if manifest.table != table || manifest.id != id {
            return Err(ManifestError::Moved { id: manifest.id, table: manifest.table });
        }
        match gap(&manifest.settings.sharding, &manifest.shards) {
            Some(shard) => Err(ManifestError::Gap(shard)),
            None => Ok(manifest),
        }
    }

    /// Whether a reader of the first form would lose something.
    fn has_more(&self) -> bool {
        !self.indexes.is_empty() || matches!(self.settings.sharding, Sharding::Named {})
    }

    /// The names of the named partitions; none for another sharding.
    pub fn partitions(&self) -> Vec<String> {
        let name = |shard: &ShardBackup| match &shard.begin {
            PlaceForm::Name(name) => Some(name.clone()),
            PlaceForm::Key(_) | PlaceForm::Point(_) | PlaceForm::Slot(_) => None,
        };
        self.shards.iter().filter_map(name).collect()
    }

    /// All chunks, in the order of shards and keys.
    pub fn chunks(&self) -> impl Iterator<Item = &ChunkEntry> {
        self.shards.iter().flat_map(|shard| &shard.chunks)
    }

    /// How many rows all its chunks have together.
    pub fn rows(&self) -> u64 {
        self.chunks().map(|chunk| chunk.rows).sum()
    }

    /// Bytes of the contents of its chunks.
    pub fn content_bytes(&self) -> u64 {
        self.chunks().map(|chunk| chunk.content_bytes).sum()
    }
}

/// The first of these shards, which are in the order of their bounds, behind which there is a gap or an overlap, and 0 if the
/// first place is missing; none: they hold every key once. Of named partitions, of which there may be none, each comes once.
pub fn gap(sharding: &Sharding, shards: &[ShardBackup]) -> Option<u64> {
    if matches!(sharding, Sharding::Named {}) {
        let is_name = |shard: &ShardBackup| matches!(shard.begin, PlaceForm::Name(_)) && shard.end.is_none();
        let other = shards.iter().find(|shard| !is_name(shard));
        let twice = shards.array_windows().find(|[one, next]| one.begin >= next.begin).map(|[one, _]| one);
        return other.or(twice).map(|shard| shard.shard);
    }
    let Some((first, last)) = shards.first().zip(shards.last()) else { return Some(0) };
    if !first.begin.is_first() {
        return Some(0);
    }
    let broken = shards.array_windows().find(|[one, next]| one.end.as_ref() != Some(&next.begin));
    broken.map(|[one, _]| one.shard).or_else(|| last.end.is_some().then_some(last.shard))
}

//! A folder or an object store with backups of tables, and its files: [`partage_wire::table::backup`] has their forms.

use crate::dataset::{environment, make_folder};
use crate::output::Failure;
use partage_dataset::source::{Source, SourceError, SourceErrorKind};
use partage_wire::table::backup::ContentDigest;
use partage_wire::table::backup::chunk::{self, ChunkError, ChunkFile, Codec, HEAD_BYTES};
use partage_wire::table::backup::manifest::{ChunkEntry, Manifest, ManifestError};
use partage_wire::table::backup::rows::RowReader;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use tokio::task::spawn_blocking;

/// Bytes of a manifest: that of some fifteen TB.
const MANIFEST_BYTES: u64 = 1 << 30;

/// Bytes of a chunk file: a payload that compression would make longer is stored as it is.
const FILE_BYTES: u64 = (HEAD_BYTES + chunk::CONTENT_BYTES) as u64;

/// Level of compression: the fastest one, as a backup should be bound by disks and networks.
const LEVEL: i32 = 1;

/// The folders with manifests and with chunks.
const TABLES: &str = "tables";
const CHUNKS: &str = "chunks";

/// The folder in which commands leave markers while they work.
const MARKERS: &str = "markers";

/// Bytes of a marker.
const MARKER_BYTES: u64 = 64;

/// A place with backups. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Location {
    source: Arc<Source>,
    /// Permits of a test: each request takes one, so that the command stops in between.
    #[cfg(test)]
    steps: Option<Arc<tokio::sync::Semaphore>>,
}

/// A backup, as a listing has it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listed {
    pub table: String,
    /// The name of the backup in its table.
    pub id: String,
}

impl Listed {
    fn path(&self) -> String {
        format!("{TABLES}/{}/{}", self.table, self.id)
    }
}

/// Why a file was not read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The store did not give it.
    #[error("{0}")]
    Source(#[from] SourceError),
    /// It is no manifest, or a damaged one.
    #[error("{0}: {1}")]
    Manifest(String, ManifestError),
    /// It is not the chunk that its name says.
    #[error("{0}: {1}")]
    Chunk(String, ChunkError),
    /// The thread that unpacked it has stopped.
    #[error("{0}: {1}")]
    Stopped(String, String),
}

impl FileError {
    /// Whether the file itself is at fault: it is damaged, or not there.
    pub fn is_of_file(&self) -> bool {
        match self {
            FileError::Manifest(..) | FileError::Chunk(..) => true,
            FileError::Source(error) => {
                matches!(error.kind, SourceErrorKind::NotThere | SourceErrorKind::TooLong { .. })
            }
            FileError::Stopped(..) => false,
        }
    }

    /// The failure that the command ends with.
    pub fn failure(&self) -> Failure {
        match self.is_of_file() {
            true => Failure::refused(self).kind("damaged").help(
                "restore another backup (`partage table backup list`), or bring the file back from a copy",
            ),
            false => Failure::failed(self),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.source.url())
    }
}

fn chunk_path(digest: ContentDigest) -> String {
    let name = digest.to_string();
    format!("{CHUNKS}/{}/{name}", &name[..2])
}

impl Location {
    /// One that is there.
    ///
    /// # Errors
    /// It is not, or the URL is none.
    pub fn open(url: &str) -> Result<Location, Failure> {
        if url.ends_with("://") {
            let what = format!("{url} names no bucket: give all of it, such as s3://bucket/prefix");
            return Err(Failure::usage(what));
        }
        let opened = Source::open_objects(url, &environment());
        opened.map(Location::of).map_err(|error| match error.kind {
            SourceErrorKind::NotThere => Failure::refused(format!("there is no folder {url}"))
                .help("name the folder, or a URL such as s3://bucket/prefix, that backups were written to"),
            _ => Failure::usage(error),
        })
    }

    fn of(source: Source) -> Location {
        Location {
            source: Arc::new(source),
            #[cfg(test)]
            steps: None,
        }
    }

    /// The same location, for a command that makes so many requests and stops.
    #[cfg(test)]
    pub fn stopping(&self, steps: Arc<tokio::sync::Semaphore>) -> Location {
        Location { steps: Some(steps), ..self.clone() }
    }

    /// The store that a request goes to.
    #[cfg_attr(not(test), expect(clippy::unused_async, reason = "a test stops a command here"))]
    async fn source(&self) -> &Source {
        #[cfg(test)]
        if let Some(steps) = &self.steps {
            steps.acquire().await.unwrap().forget();
        }
        &self.source
    }

    /// The same, to write to: a folder is made if it is not there.
    ///
    /// # Errors
    /// It cannot be made, or the URL is none.
    pub fn create(url: &str) -> Result<Location, Failure> {
        make_folder(url)?;
        Location::open(url)
    }

    /// The backups, in the order of tables and times.
    ///
    /// # Errors
    /// The store does not list.
    pub async fn backups(&self) -> Result<Vec<Listed>, Failure> {
        let objects = self.source().await.list_objects(TABLES).await.map_err(Failure::failed)?;
        let listed = objects.iter().filter_map(|object| {
            let [TABLES, table, id] = object.path.split('/').collect::<Vec<_>>()[..] else { return None };
            Some(Listed { table: table.to_owned(), id: id.to_owned() })
        });
        let mut listed: Vec<_> = listed.collect();
        listed.sort();
        Ok(listed)
    }

    /// The backup of that id, or the latest one where there are backups of one table only.
    ///
    /// # Errors
    /// There is none, or it is not clear which one is meant.
    pub async fn choose(&self, id: Option<&str>) -> Result<Listed, Failure> {
        let mut all = self.backups().await?;
        let list = format!("`partage table backup list {self}` lists the backups");
        if let Some(id) = id {
            let found = all.into_iter().find(|listed| listed.id == id);
            return found.ok_or_else(|| Failure::refused(format!("{self} has no backup {id}")).help(list));
        }
        let is_of_one = all.iter().all(|listed| listed.table == all[0].table);
        match all.pop() {
            Some(latest) if is_of_one => Ok(latest),
            Some(_) => Err(Failure::usage(format!("{self} has backups of several tables"))
                .help(format!("name one with --backup ID; {list}"))),
            None => Err(Failure::refused(format!("{self} has no backup of a table"))
                .help("`partage table backup create TABLE LOCATION` makes one")),
        }
    }

    /// Its manifest, each bit of which is checked.
    ///
    /// # Errors
    /// It is damaged, or cannot be read.
    pub async fn manifest(&self, listed: &Listed) -> Result<Manifest, FileError> {
        let path = listed.path();
        let bytes = self.source().await.get_object(&path, MANIFEST_BYTES).await?;
        let wrong = |error| FileError::Manifest(format!("{self}/{path}"), error);
        Manifest::open(&bytes, &listed.table, &listed.id).map_err(wrong)
    }

    /// Writes a manifest: from then on there is a backup.
    ///
    /// # Errors
    /// The store refuses.
    pub async fn put_manifest(&self, manifest: &Manifest) -> Result<(), Failure> {
        let listed = Listed { table: manifest.table.clone(), id: manifest.id.clone() };
        let bytes = manifest.encode().map_err(Failure::failed)?;
        self.source().await.put_new_object(&listed.path(), bytes.into()).await.map_err(Failure::failed)
    }

    /// Removes a manifest: from then on there is no such backup.
    ///
    /// # Errors
    /// The store refuses.
    pub async fn remove_manifest(&self, table: &str, id: &str) -> Result<(), Failure> {
        let listed = Listed { table: table.to_owned(), id: id.to_owned() };
        self.source().await.delete_object(&listed.path()).await.map_err(Failure::failed)
    }

    /// Removes a chunk.
    ///
    /// # Errors
    /// The store refuses.
    pub async fn remove_chunk(&self, digest: ContentDigest) -> Result<(), Failure> {
        self.source().await.delete_object(&chunk_path(digest)).await.map_err(Failure::failed)
    }

    /// Puts a marker, or renews it.
    ///
    /// # Errors
    /// The store refuses.
    pub async fn put_marker(&self, name: &str, at_ms: u64) -> Result<(), Failure> {
        let path = format!("{MARKERS}/{name}");
        self.source().await.put_object(&path, at_ms.to_string().into()).await.map_err(Failure::failed)
    }

    /// The markers that there are, and when each was renewed last: none if that is not understood.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn markers(&self) -> Result<Vec<(String, Option<u64>)>, Failure> {
        let listed = self.source().await.list_objects(MARKERS).await.map_err(Failure::failed)?;
        let mut markers = Vec::new();
        for object in listed {
            let Some(name) = object.path.strip_prefix(MARKERS).and_then(|name| name.strip_prefix('/')) else {
                continue;
            };
            match self.source().await.get_object(&object.path, MARKER_BYTES).await {
                Ok(text) => {
                    let at_ms = std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok());
                    markers.push((name.to_owned(), at_ms));
                }
                Err(SourceError { kind: SourceErrorKind::NotThere, .. }) => {}
                Err(SourceError { kind: SourceErrorKind::TooLong { .. }, .. }) => {
                    markers.push((name.to_owned(), None));
                }
                Err(error) => return Err(Failure::failed(error)),
            }
        }
        Ok(markers)
    }

    /// Removes a marker.
    ///
    /// # Errors
    /// The store refuses.
    pub async fn remove_marker(&self, name: &str) -> Result<(), Failure> {
        self.source().await.delete_object(&format!("{MARKERS}/{name}")).await.map_err(Failure::failed)
    }

    /// The chunks that there are, with the bytes of their files; whether they are sound is not looked at.
    ///
    /// # Errors
    /// The store does not list.
    pub async fn chunks(&self) -> Result<BTreeMap<ContentDigest, u64>, Failure> {
        let objects = self.source().await.list_objects(CHUNKS).await.map_err(Failure::failed)?;
        let chunk = |object: partage_dataset::source::Object| {
            let digest = object.path.rsplit('/').next()?.parse().ok()?;
            (object.path == chunk_path(digest) && object.bytes > HEAD_BYTES as u64)
                .then_some((digest, object.bytes))
        };
        Ok(objects.into_iter().filter_map(chunk).collect())
    }

    /// Writes a chunk; says how many bytes its file has.
    ///
    /// # Errors
    /// The store refuses.
    pub async fn put_chunk(
        &self,
        digest: ContentDigest,
        rows: u64,
        content: bytes::Bytes,
    ) -> Result<u64, Failure> {
        let packed = spawn_blocking(move || pack(rows, &content)).await.map_err(Failure::failed)??;
        let bytes = packed.len() as u64;
        self.source().await.put_object(&chunk_path(digest), packed.into()).await.map_err(Failure::failed)?;
        Ok(bytes)
    }

    /// The rows of a chunk, each bit of whose file is checked.
    ///
    /// # Errors
    /// The file is damaged, or cannot be read.
    pub async fn chunk(&self, entry: &ChunkEntry) -> Result<Vec<u8>, FileError> {
        let (entry, path) = (entry.clone(), chunk_path(entry.digest.0));
        let file = self.source().await.get_object(&path, FILE_BYTES).await?;
        let name = format!("{self}/{path}");
        let unpacked = spawn_blocking(move || unpack(&file, &entry)).await;
        let unpacked = unpacked.map_err(|error| FileError::Stopped(name.clone(), error.to_string()))?;
        unpacked.map_err(|error| FileError::Chunk(name, error))
    }
}

fn pack(rows: u64, content: &[u8]) -> Result<Vec<u8>, Failure> {
    let packed = zstd::bulk::compress(content, LEVEL).map_err(Failure::failed)?;
    let (codec, payload) = match packed.len() < content.len() {
        true => (Codec::Zstd, packed.as_slice()),
        false => (Codec::Plain, content),
    };
    let small = |number: u64| {
        u32::try_from(number).map_err(|_| Failure::failed("a node sent a chunk beyond all limits"))
    };
    let (rows, content_bytes) = (small(rows)?, small(content.len() as u64)?);
    Ok(ChunkFile { codec, rows, content_bytes, payload }.encode())
}

fn unpack(file: &[u8], entry: &ChunkEntry) -> Result<Vec<u8>, ChunkError> {
    let opened = chunk::open(file)?;
    let bytes = opened.content_bytes as usize;
    let content = match opened.codec {
        Codec::Plain => opened.payload.to_vec(),
        Codec::Zstd => zstd::bulk::decompress(opened.payload, bytes)
            .map_err(|error| ChunkError::Unpack(error.to_string()))?,
    };
    let found = ContentDigest::of(&content);
    if found != entry.digest.0 || content.len() != bytes {
        return Err(ChunkError::Content(found));
    }
    let mut rows = 0;
    for row in RowReader::new(&content) {
        row?;
        rows += 1;
    }
    match rows == entry.rows && rows == u64::from(opened.rows) {
        true => Ok(content),
        false => Err(ChunkError::Count { found: rows, said: entry.rows }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::keyspace::key::Key;
    use partage_wire::table::KeyBytes;
    use partage_wire::table::backup::manifest::DigestText;
    use partage_wire::table::backup::rows::BackupRow;

    fn content(value: &[u8]) -> Vec<u8> {
        let mut content = Vec::new();
        BackupRow { key: b"a", value, expires_ms: None }.put(&mut content);
        content
    }

    fn entry(content: &[u8]) -> ChunkEntry {
        let digest = DigestText(ContentDigest::of(content));
        ChunkEntry { first: KeyBytes(Key::empty()), digest, rows: 1, content_bytes: 0, file_bytes: 0 }
    }

    #[test]
    fn d8_no_flipped_bit_of_a_packed_chunk_gives_rows() {
        let compressible = content(&[7; 3_000]);
        let packed = pack(1, &compressible).unwrap();
        assert!(packed.len() < 200, "it is compressed");
        assert_eq!(unpack(&packed, &entry(&compressible)), Ok(compressible.clone()));
        for bit in 0..packed.len() * 8 {
            let mut flipped = packed.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(unpack(&flipped, &entry(&compressible)).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_chunk_under_the_name_of_another_one_is_refused() {
        let (one, other) = (content(b"one"), content(b"other"));
        let packed = pack(1, &one).unwrap();
        assert_eq!(unpack(&packed, &entry(&one)), Ok(one.clone()));
        assert!(matches!(unpack(&packed, &entry(&other)), Err(ChunkError::Content(_))));
        let two = ChunkEntry { rows: 2, ..entry(&one) };
        assert!(matches!(unpack(&packed, &two), Err(ChunkError::Count { found: 1, said: 2 })));
    }
}

//! What a durable replica keeps on its disk: one file for each, which is only added to.
//!
//! ```text
//!  DIR/lock                          held by the process that uses DIR
//!  DIR/store                         a number that names this disk
//!  DIR/<keyspace>/<shard>-<placement>.log
//!      header    the cluster's id, the placement
//!      1st       'S' which replica, its bounds, its epoch (the JSON form of a registration)
//!      others    'E' a later epoch, or 'R' records of rows, as they travel between nodes
//! ```
//!
//! Every record has a checksum and is synced before anyone hears of it ([`partage_journal`]). A file that is not as it was
//! written, or cannot be read, is reported damaged, by its name where that is all there is: its shard is then loaded from
//! other nodes, and its neighbours are not concerned. A log is written anew, without the rows that were overwritten, when
//! a process opens it and more than half of it is of no use any more.

use crate::limits::STEP_BYTES;
use crate::records::Record;
use crate::shard::Shard;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use partage_door::state::make_private;
use partage_journal::{AppendError, Damage, Disk, FileHeader, LogFile, RealDisk, UNFINISHED, read};
use partage_wire::json;
use partage_worker::{Assignment, ClusterId, Failure, PlacementId, ReplicaKey, ShardId, Stored};
use std::fs;
use std::hash::BuildHasher;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A folder of replicas.
pub struct Folder {
    dir: PathBuf,
    store: u64,
    /// Locked as long as the folder is used.
    _lock: fs::File,
}

/// A folder that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The operating system refuses to read or write a file.
    #[error("{}: {error}", path.display())]
    Disk {
        /// What was read or written.
        path: PathBuf,
        /// The error that the operating system gave.
        error: io::Error,
    },
    /// Another process uses this folder.
    #[error("{} is used by another process: give each node a folder of its own", .0.display())]
    Locked(PathBuf),
}

/// A file of a replica.
pub struct Found {
    /// As it is named to the coordinator.
    pub stored: Stored,
    /// The cluster that it is of, if that can be read.
    pub cluster: Option<ClusterId>,
    /// Its rows; none if it is damaged.
    pub shard: Option<Arc<Shard>>,
}

/// The open file of a replica.
pub struct Log {
    /// None once a write has failed: it is not known what is on the disk.
    file: Option<LogFile>,
    epoch: u64,
}

const STORED: u8 = b'S';
const EPOCH: u8 = b'E';
const ROWS: u8 = b'R';

impl Folder {
    /// Opens `dir`, which is made if it is not there, for its user alone.
    pub fn open(dir: &Path) -> Result<Folder, FolderError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error| FolderError::Disk { path, error }
        };
        RealDisk.create_dir(dir).map_err(failed(dir))?;
        make_private(dir);
        let lock = fs::File::create(dir.join("lock")).map_err(failed(&dir.join("lock")))?;
        if lock.try_lock().is_err() {
            return Err(FolderError::Locked(dir.to_owned()));
        }
        let path = dir.join("store");
        let known = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
        let store = match known {
            Some(store) => store,
            None => {
                let store = fresh_number();
                fs::write(&path, format!("{store}\n")).map_err(failed(&path))?;
                store
            }
        };
        Ok(Folder { dir: dir.to_owned(), store, _lock: lock })
    }

    fn path(&self, replica: &ReplicaKey) -> PathBuf {
        let ReplicaKey { keyspace, shard, placement } = replica;
        self.dir.join(keyspace.as_str()).join(format!("{}-{}.log", shard.0, placement.0))
    }

    /// Every replica that is stored here. It fails when a folder cannot be listed: then it is unknown what is in it.
    pub fn find(&self) -> Result<Vec<Found>, Failure> {
        let mut found = Vec::new();
        for keyspace in fs::read_dir(&self.dir)?.collect::<Result<Vec<_>, _>>()? {
            if !keyspace.file_type()?.is_dir() {
                continue;
            }
            for file in fs::read_dir(keyspace.path())?.collect::<Result<Vec<_>, _>>()? {
                let path = file.path();
                if path.to_string_lossy().ends_with(UNFINISHED) {
                    // Of a process that ended while it wrote it: it never counted.
                    if let Err(error) = fs::remove_file(&path) {
                        tracing::warn!(file = %path.display(), "stays, although it was never finished: {error}");
                    }
                } else if let Some(replica) = named(&path) {
                    found.push(self.one(&path, replica));
                } else {
                    tracing::warn!(file = %path.display(), "is no file of a replica: it is left alone");
                }
            }
        }
        Ok(found)
    }

    /// One replica. Whatever is wrong with its file concerns it alone: the node starts, and says that it is damaged.
    fn one(&self, path: &Path, replica: ReplicaKey) -> Found {
        self.read(path, &replica).unwrap_or_else(|error| {
            tracing::error!(file = %path.display(), "cannot be read: {error}");
            Found { stored: Stored::unreadable(replica, self.store), cluster: None, shard: None }
        })
    }

    fn read(&self, path: &Path, replica: &ReplicaKey) -> Result<Found, Failure> {
        let bytes = RealDisk.read(path)?;
        let (mut stored, mut epoch, mut rows, mut records) = (None, 0, Shard::default(), 0_usize);
        let contents = read(&bytes, replica.placement.0, |_, payload| {
            let mut payload = Bytes::from(payload);
            let kind = payload.try_get_u8().map_err(|error| error.to_string())?;
            match kind {
                STORED => {
                    let form: json::Stored =
                        serde_json::from_slice(&payload).map_err(|error| error.to_string())?;
                    stored = Some(Stored::try_from(form).map_err(|error| error.to_string())?);
                }
                EPOCH => epoch = payload.try_get_u64().map_err(|error| error.to_string())?,
                ROWS => records += take_rows(payload, &mut rows)?,
                other => return Err(format!("a record of kind {other}")),
            }
            Ok(())
        });
        // A record that names another replica than the file does is as bad as none.
        let stored = stored.filter(|stored| stored.replica == *replica);
        let contents = match stored {
            Some(_) => contents,
            None => contents.and(Err(Damage::new(0, "it does not say which replica it is".to_owned()))),
        };
        let stored = stored.unwrap_or_else(|| Stored::unreadable(replica.clone(), self.store));
        let epoch = epoch.max(stored.epoch.0);
        let stored = Stored { epoch: partage_worker::Epoch(epoch), store: self.store, ..stored };
        let contents = match contents {
            Ok(contents) => contents,
            Err(damage) => {
                tracing::error!(file = %path.display(), "damaged at byte {}: {}", damage.offset, damage.what);
                let cluster = FileHeader::decode(&bytes).ok().map(|header| ClusterId(header.owner));
                return Ok(Found { stored: Stored { damaged: true, ..stored }, cluster, shard: None });
            }
        };
        let cluster = Some(ClusterId(contents.header.owner));
        let file = match records > 2 * rows.len() + 100 {
            true => self.write(path, contents.header, &stored, rows.all())?,
            false => LogFile::reopen(&RealDisk, path, bytes.len(), &contents)?,
        };
        rows.keep_in(Log { file: Some(file), epoch });
        Ok(Found { stored, cluster, shard: Some(Arc::new(rows)) })
    }

    /// A new replica, without rows, in place of what was stored under its name.
    pub fn create(&self, assignment: &Assignment) -> Result<Shard, Failure> {
        let path = self.path(&assignment.replica);
        let cluster = assignment.cluster.ok_or("no coordinator has taken this node in")?;
        let stored = Stored {
            replica: assignment.replica.clone(),
            bounds: assignment.bounds.clone(),
            // It has served nothing yet: how new its rows are is not known.
            epoch: partage_worker::Epoch(0),
            store: self.store,
            damaged: false,
        };
        if let Some(keyspace) = path.parent() {
            RealDisk.create_dir(keyspace)?;
            RealDisk.sync_dir(&self.dir)?;
        }
        let file_number = assignment.replica.placement.0;
        let header = FileHeader { owner: cluster.0, file_number, step: STEP_BYTES };
        let file = self.write(&path, header, &stored, Vec::new())?;
        let mut shard = Shard::default();
        shard.keep_in(Log { file: Some(file), epoch: 0 });
        Ok(shard)
    }

    fn write(
        &self,
        path: &Path,
        header: FileHeader,
        stored: &Stored,
        rows: Vec<Record>,
    ) -> Result<LogFile, Failure> {
        let mut first = vec![STORED];
        serde_json::to_writer(&mut first, &json::Stored::from(stored))?;
        let records = std::iter::once(first).chain(rows.chunks(1_000).map(payload));
        let file = LogFile::write(&RealDisk, path, header, records)?;
        file.publish(&RealDisk)?;
        Ok(file)
    }

    /// Deletes what is stored of a replica; when it returns, that is durable.
    pub fn remove(&self, replica: &ReplicaKey) -> io::Result<()> {
        let path = self.path(replica);
        match RealDisk.remove(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.and_then(|()| path.parent().map_or(Ok(()), |dir| RealDisk.sync_dir(dir))),
        }
    }
}

/// Which replica's file is at `path`, if that is the path of one.
fn named(path: &Path) -> Option<ReplicaKey> {
    let keyspace = path.parent()?.file_name()?.to_str()?.parse().ok()?;
    let (shard, placement) = path.file_name()?.to_str()?.strip_suffix(".log")?.split_once('-')?;
    let (shard, placement) = (ShardId(shard.parse().ok()?), PlacementId(placement.parse().ok()?));
    Some(ReplicaKey { keyspace, shard, placement })
}

fn take_rows(payload: Bytes, rows: &mut Shard) -> Result<usize, String> {
    let (mut payload, mut count) = (BytesMut::from(payload), 0);
    while let Some(record) = Record::take(&mut payload).map_err(|error| error.to_string())? {
        rows.restore(record);
        count += 1;
    }
    if payload.is_empty() { Ok(count) } else { Err("it breaks off within a row".to_owned()) }
}

fn payload(records: &[Record]) -> Vec<u8> {
    let mut bytes = BytesMut::from(&[ROWS][..]);
    records.iter().for_each(|record| record.put(&mut bytes));
    bytes.into()
}

/// A number that is not 0, and that is hardly ever drawn twice.
#[expect(clippy::disallowed_types, reason = "it is to differ at each start; nothing is decided by it")]
fn fresh_number() -> u64 {
    std::hash::RandomState::new().hash_one(std::process::id()) | 1
}

/// The disk does not take a write. The replica takes no more writes until its process starts again.
#[derive(Debug, thiserror::Error)]
#[error("{0}: make room on the disk or replace it, and start the node again")]
pub struct DiskError(String);

impl Log {
    fn append(&mut self, payload: Vec<u8>) -> Result<(), DiskError> {
        let Some(file) = &mut self.file else {
            return Err(DiskError("an earlier write to the disk has failed".to_owned()));
        };
        match file.append(payload) {
            Ok(()) => Ok(()),
            Err(AppendError::Full(error)) => Err(DiskError(format!("the disk is full: {error}"))),
            Err(AppendError::Unknown(error)) => {
                self.file = None;
                Err(DiskError(error))
            }
        }
    }

    /// Adds rows to the file and syncs it. After an error the replica takes no more writes.
    pub fn add(&mut self, records: &[Record]) -> Result<(), DiskError> {
        if records.is_empty() { Ok(()) } else { self.append(payload(records)) }
    }

    /// Makes it durable that the replica serves under that epoch.
    pub fn enter(&mut self, epoch: u64) -> Result<(), DiskError> {
        if epoch > self.epoch {
            let mut bytes = vec![EPOCH];
            bytes.put_u64(epoch);
            self.append(bytes)?;
            self.epoch = epoch;
        }
        Ok(())
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::records::Version;
    use partage_worker::{Bounds, Epoch};
    use std::collections::BTreeSet;

    fn stored(folder: &Folder) -> Stored {
        Stored {
            replica: ReplicaKey {
                keyspace: "users".parse().unwrap(),
                shard: ShardId(3),
                placement: PlacementId(7),
            },
            bounds: Bounds::Name("eu".parse().unwrap()),
            epoch: Epoch(2),
            store: folder.store,
            damaged: false,
        }
    }

    /// An empty replica in a folder.
    pub fn create(dir: &Path) -> Shard {
        let folder = Folder::open(dir).unwrap();
        let stored = stored(&folder);
        let path = folder.path(&stored.replica);
        RealDisk.create_dir(path.parent().unwrap()).unwrap();
        let header = FileHeader { owner: 9, file_number: 7, step: STEP_BYTES };
        let file = folder.write(&path, header, &stored, vec![]).unwrap();
        let mut shard = Shard::default();
        shard.keep_in(Log { file: Some(file), epoch: 2 });
        shard
    }

    /// A folder with one replica, as a process leaves it that was killed.
    fn filled(dir: &Path) -> Stored {
        let shard = create(dir);
        let stored = stored(&Folder::open(dir).unwrap());
        shard.enter(5).unwrap();
        for count in 0..300 {
            shard.write(5, Bytes::from_static(b"k"), Some(Bytes::from(vec![b'v'; count]))).unwrap();
        }
        shard.write(5, Bytes::from_static(b"gone"), None).unwrap();
        stored
    }

    #[test]
    fn d10_what_was_acknowledged_is_there_after_the_process_was_killed() {
        let dir = tempfile::tempdir().unwrap();
        let stored = filled(dir.path());
        let size = || fs::metadata(dir.path().join("users/3-7.log")).unwrap().len();
        let before = size();
        for _ in 0..2 {
            let found = Folder::open(dir.path()).unwrap().find().unwrap();
            let [Found { stored: named, cluster, shard: Some(shard) }] = &found[..] else { panic!() };
            assert_eq!(
                (named, *cluster),
                (&Stored { epoch: Epoch(5), ..stored.clone() }, Some(ClusterId(9)))
            );
            assert_eq!(shard.get(b"k").unwrap().len(), 299);
            assert_eq!(shard.get(b"gone"), None);
            let gone = shard.all().into_iter().find(|record| record.key == "gone").unwrap();
            assert_eq!(gone.version, Version { epoch: 5, count: 301 }, "a late copy brings nothing back");
        }
        assert!(size() < before / 2, "it was written anew: {} of {before}", size());
    }

    #[test]
    fn d8_a_flipped_bit_is_found_and_the_replica_is_reported_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let stored = filled(dir.path());
        let path = dir.path().join("users/3-7.log");
        let mut bytes = fs::read(&path).unwrap();
        bytes[9_000] ^= 1;
        fs::write(&path, bytes).unwrap();
        let found = Folder::open(dir.path()).unwrap().find().unwrap();
        let [Found { stored: named, cluster, shard: None }] = &found[..] else { panic!("not found damaged") };
        assert!(named.damaged && named.replica == stored.replica);
        assert_eq!(*cluster, Some(ClusterId(9)));
    }

    /// What is in place of a replica's file.
    fn replaced(dir: &Path, replace: impl FnOnce(&Path, Vec<u8>)) -> Vec<Found> {
        let path = dir.join("users/3-7.log");
        let bytes = fs::read(&path).unwrap();
        replace(&path, bytes);
        let neighbour = dir.join("users/4-8.log");
        fs::write(neighbour, "no file of ours").unwrap();
        Folder::open(dir).unwrap().find().unwrap()
    }

    #[test]
    fn d10_a_file_of_which_nothing_can_be_read_is_a_damaged_replica_by_its_name() {
        type Replace = fn(&Path, Vec<u8>);
        let first_record: Replace = |path, mut bytes| {
            bytes[100] ^= 1;
            fs::write(path, bytes).unwrap();
        };
        let header: Replace = |path, mut bytes| {
            bytes[0] ^= 1;
            fs::write(path, bytes).unwrap();
        };
        let empty: Replace = |path, _| fs::write(path, "").unwrap();
        // Reading it fails, as on a disk with a bad sector.
        let unreadable: Replace = |path, _| {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        };
        for replace in [first_record, header, empty, unreadable] {
            let dir = tempfile::tempdir().unwrap();
            let replica = filled(dir.path()).replica;
            let found = replaced(dir.path(), replace);
            let shards: BTreeSet<_> = found.iter().map(|found| found.stored.replica.shard.0).collect();
            assert_eq!(shards, BTreeSet::from([3, 4]), "both are named");
            assert!(found.iter().all(|found| found.stored.damaged && found.shard.is_none()));
            assert!(found.iter().any(|found| found.stored.replica == replica), "by its own placement");
            let clusters: BTreeSet<_> = found.iter().filter_map(|found| found.cluster).collect();
            assert!(clusters.iter().all(|cluster| *cluster == ClusterId(9)), "no cluster is made up");
        }
    }

    #[test]
    fn d10_a_file_under_the_name_of_another_replica_is_damaged() {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path());
        fs::rename(dir.path().join("users/3-7.log"), dir.path().join("users/5-7.log")).unwrap();
        let found = Folder::open(dir.path()).unwrap().find().unwrap();
        let [Found { stored, shard: None, .. }] = &found[..] else { panic!("taken for what it is not") };
        assert!(stored.damaged && stored.replica.shard == ShardId(5), "{stored:?}");
    }

    #[test]
    fn one_process_uses_a_folder() {
        let dir = tempfile::tempdir().unwrap();
        let first = Folder::open(dir.path()).unwrap();
        assert!(matches!(Folder::open(dir.path()), Err(FolderError::Locked(_))));
        drop(first);
        assert!(Folder::open(dir.path()).is_ok());
    }
}

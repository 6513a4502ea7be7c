//! What a node must know of its stored replicas before any coordinator speaks to it: of which cluster they are, which keys each
//! holds, and under which epoch it has served last. Services whose data lies on disk may keep that here, for
//! [`crate::Handler::stored`].
//!
//! One file of the node has that, `members`: records of changes, each a line of JSON, and each record with one sync for all
//! changes that wait. An opening writes the file anew with what holds now, and so does a change when the file has grown.

use partage_core::base::id::{ClusterId, Epoch};
use partage_core::keyspace::sharding::Bounds;
use partage_core::node::exchange::{ReplicaKey, Stored};
use partage_core::node::store;
use partage_journal::{AppendError, Contents, Damage, Disk, FileHeader, LogFile, is_full, read, unfinished};
use partage_wire::stored::table_members::{MemberChange, decode, encode};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The file is written anew when it is larger than this, and four times what it was then.
const MEMBERS_BYTES: u64 = 1 << 20;

/// How many bytes the file grows by at a time.
const MEMBERS_STEP: u32 = 64 << 10;

/// What is known of one stored replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    /// What its shard holds.
    pub bounds: Bounds,
    /// The latest epoch under which it has served; 0 = it has only loaded.
    pub served: Epoch,
    /// It is of a child, of a split or a merge, and has not been opened with what its parents had, as far as this file knows:
    /// unless the log has something of it, it lacks that.
    pub forms: bool,
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MembersError {
    /// The system refuses to read or write.
    #[error("{}: {source}", path.display())]
    Disk {
        /// What was read or written.
        path: PathBuf,
        /// The error that the operating system gave.
        source: std::io::Error,
    },
    /// Not even the number of the store can be read, without which the log cannot be opened.
    #[error(
        "{}: {what}: the log beside it cannot be opened without that file. Restore the file, or remove the node's folder: other nodes have what is \
         in sync",
        path.display()
    )]
    Unreadable {
        /// The path of the file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// There is no room for a change; nothing was written.
    #[error(
        "{}: the disk is full, and nothing was written: free room on it. This file wants {bytes} bytes there, and the log \
         beside it a segment at a time",
        path.display()
    )]
    Full {
        /// The path of the file.
        path: PathBuf,
        /// How many bytes it was to grow by, or to have.
        bytes: u64,
    },
    /// A write has failed, so it is not known what the file has.
    #[error("{0}; start the node again")]
    Failed(String),
}

#[derive(Debug, Default, Clone)]
struct Known {
    cluster: Option<ClusterId>,
    replicas: BTreeMap<ReplicaKey, Membership>,
}

#[derive(Debug)]
struct Writer {
    file: LogFile,
    /// Where the file ended when it was written anew.
    began_at: u64,
    /// All changes up to this number are on disk.
    written: u64,
    failed: Option<String>,
}

#[derive(Debug, Default)]
struct Waiting {
    issued: u64,
    changes: Vec<MemberChange>,
}

#[derive(Debug)]
struct Inner {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    store: u64,
    known: Mutex<Known>,
    waiting: Mutex<Waiting>,
    writer: Mutex<Writer>,
    /// There was no room to write the file anew when the node started, and has been none since.
    lacks_room: AtomicBool,
}

/// The file of a node.
#[derive(Debug, Clone)]
pub struct Memberships(Arc<Inner>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Known {
    fn take(&mut self, change: MemberChange) {
        match change {
            MemberChange::Cluster(cluster) => self.cluster = Some(cluster),
            MemberChange::Has(Stored { replica, bounds, epoch, .. }) => {
                self.replicas.insert(replica, Membership { bounds, served: epoch, forms: false });
            }
            MemberChange::Forms(Stored { replica, bounds, epoch, .. }) => {
                self.replicas.insert(replica, Membership { bounds, served: epoch, forms: true });
            }
            MemberChange::Gone(replica) => drop(self.replicas.remove(&replica)),
        }
    }

    fn changes(&self, store: u64) -> Vec<MemberChange> {
        let cluster = self.cluster.iter().map(|cluster| MemberChange::Cluster(*cluster));
        cluster.chain(self.replicas.iter().map(|(key, known)| has(key, known, store))).collect()
    }
}

fn has(replica: &ReplicaKey, membership: &Membership, store: u64) -> MemberChange {
    let Membership { bounds, served, forms } = membership.clone();
    let stored = Stored { replica: replica.clone(), bounds, epoch: served, store, damaged: false };
    if forms { MemberChange::Forms(stored) } else { MemberChange::Has(stored) }
}

impl Inner {
    /// Writes the file anew. Says whether there was room: if not, the file is as it was. What else goes wrong the writer keeps.
    fn write_anew(&self, writer: &mut Writer, known: &Known) -> bool {
        let header = FileHeader { owner: self.store.into(), file_number: 1, step: MEMBERS_STEP };
        match write_file(&*self.disk, &self.path, header, encode(&known.changes(self.store))) {
            Ok(Some(file)) => (writer.began_at, writer.file) = (file.end(), file),
            Ok(None) => return false,
            Err(error) => writer.failed = Some(format!("writing `{}` anew: {error}", self.path.display())),
        }
        true
    }

    fn write_waiting(&self, number: u64) -> Result<(), MembersError> {
        let mut writer = lock(&self.writer);
        if let Some(failed) = &writer.failed {
            return Err(MembersError::Failed(failed.clone()));
        }
        if writer.written >= number {
            return Ok(());
        }
        let (changes, last) = {
            let mut waiting = lock(&self.waiting);
            (std::mem::take(&mut waiting.changes), waiting.issued)
        };
        let appended = writer.file.append(encode(&changes));
        match appended {
            Ok(()) => writer.written = last,
            Err(AppendError::Full(_)) => {
                // They go with the next change.
                let mut waiting = lock(&self.waiting);
                let later = std::mem::replace(&mut waiting.changes, changes);
                waiting.changes.extend(later);
                return Err(MembersError::Full { path: self.path.clone(), bytes: MEMBERS_STEP.into() });
            }
            Err(AppendError::Unknown(why)) => {
                writer.failed = Some(why.clone());
                return Err(MembersError::Failed(why));
            }
        }
        let mut known = lock(&self.known);
        for change in changes {
            known.take(change);
        }
        if writer.file.end() > MEMBERS_BYTES.max(4 * writer.began_at) {
            // Without room the next change tries again.
            self.write_anew(&mut writer, &known);
        }
        Ok(())
    }
}

/// Whether what a record says is stored lies in the store of that number, which the head of the file names.
fn is_of_store(own: u64, change: &MemberChange) -> Result<(), String> {
    match change {
        MemberChange::Has(stored) | MemberChange::Forms(stored)
            if !store::is_own(own.into(), stored.store.into()) =>
        {
            let (placement, found) = (stored.replica.placement, stored.store);
            Err(format!("{placement} is of the store {found:x}, and the file is of the store {own:x}"))
        }
        _ => Ok(()),
    }
}

/// Writes the file anew, with one record. None: there is no room for that, and the file is as it was.
fn write_file(
    disk: &dyn Disk,
    path: &Path,
    header: FileHeader,
    record: Vec<u8>,
) -> std::io::Result<Option<LogFile>> {
    match LogFile::write(disk, path, header, std::iter::once(record)) {
        Ok(file) => file.publish(disk).map(|()| Some(file)),
        Err(error) if is_full(&error) => {
            // If it stays, the next one is written over it.
            let _ = disk.remove(&unfinished(path));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Begins the file of a node that starts. Where the disk has no room for a new one, and the file that is there is whole, the node
/// goes on with that one. Second: whether it is so.
fn begin(
    disk: &dyn Disk,
    path: &Path,
    header: FileHeader,
    record: Vec<u8>,
    whole: Option<(usize, Contents)>,
) -> Result<(LogFile, bool), MembersError> {
    let failed = |source| MembersError::Disk { path: path.to_owned(), source };
    let bytes = (record.len().max(1) as u64).next_multiple_of(MEMBERS_STEP.into());
    match (write_file(disk, path, header, record).map_err(failed)?, whole) {
        (Some(file), _) => Ok((file, false)),
        (None, Some((bytes, contents))) => {
            tracing::warn!(file = %path.display(), "the disk is full: the node starts with what it has");
            LogFile::reopen(disk, path, bytes, &contents).map(|file| (file, true)).map_err(failed)
        }
        (None, None) => Err(MembersError::Full { path: path.to_owned(), bytes }),
    }
}

impl Memberships {
    /// Opens the file at `path`, or makes it for a node whose store has no number yet. Second: what is wrong with the file that
    /// was there. Then nothing is known of the replicas that are stored. `has_log`: there is a log beside the file, so that the
    /// file is not made anew.
    ///
    /// # Errors
    /// The disk failed, or the number of the store is lost. Then nothing was written. A full disk is no error where the file is
    /// there and whole: it is added to as it is.
    pub fn open(
        disk: Arc<dyn Disk>,
        path: &Path,
        has_log: bool,
    ) -> Result<(Memberships, Option<Damage>), MembersError> {
        let failed = |source| MembersError::Disk { path: path.to_owned(), source };
        let unreadable = |what: String| MembersError::Unreadable { path: path.to_owned(), what };
        let (mut known, mut damage, mut whole) = (Known::default(), None, None);
        let store = match disk.read(path) {
            Ok(bytes) => {
                let header = FileHeader::decode(&bytes);
                let header = header.map_err(|damage| {
                    unreadable(format!("damaged at byte {}: {}", damage.offset, damage.what))
                })?;
                let own = header.owner as u64;
                let read = read(&bytes, 1, |_, payload| {
                    let changes = decode(&payload)?;
                    changes.iter().try_for_each(|change| is_of_store(own, change))?;
                    changes.into_iter().for_each(|change| known.take(change));
                    Ok(())
                });
                match read {
                    Ok(contents) => whole = Some((bytes.len(), contents)),
                    Err(found) => (known, damage) = (Known::default(), Some(found)),
                }
                own
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => match has_log {
                true => return Err(unreadable("it is not there".to_owned())),
                // 0 is the store that has no name.
                false => partage_random::seed().max(1),
            },
            Err(error) => return Err(failed(error)),
        };
        let header = FileHeader { owner: store.into(), file_number: 1, step: MEMBERS_STEP };
        let (file, lacks_room) = begin(&*disk, path, header, encode(&known.changes(store)), whole)?;
        let writer = Writer { began_at: file.end(), file, written: 0, failed: None };
        let inner = Inner {
            disk,
            path: path.to_owned(),
            store,
            known: Mutex::new(known),
            waiting: Mutex::default(),
            writer: Mutex::new(writer),
            lacks_room: AtomicBool::new(lacks_room),
        };
        Ok((Memberships(Arc::new(inner)), damage))
    }

    /// Whether the disk had no room for the file when the node started, and has had none since.
    pub fn found_no_room(&self) -> bool {
        self.0.lacks_room.load(Ordering::Acquire)
    }

    /// Tries to write the file anew, which is what the start had no room for. Says whether there is room. Blocks.
    pub fn look_for_room(&self) -> bool {
        let mut writer = lock(&self.0.writer);
        let known = lock(&self.0.known).clone();
        if !self.0.write_anew(&mut writer, &known) {
            return false;
        }
        self.0.lacks_room.store(false, Ordering::Release);
        true
    }

    /// The number of the store, which distinguishes one disk from another.
    pub fn store(&self) -> u64 {
        self.0.store
    }

    /// The cluster of all that is stored; none where nothing is.
    pub fn cluster(&self) -> Option<ClusterId> {
        lock(&self.0.known).cluster
    }

    /// What is known of a replica.
    pub fn of(&self, replica: &ReplicaKey) -> Option<Membership> {
        lock(&self.0.known).replicas.get(replica).cloned()
    }

    /// All replicas of which something is known.
    pub fn all(&self) -> BTreeMap<ReplicaKey, Membership> {
        lock(&self.0.known).replicas.clone()
    }

    /// Everything stored here is of that cluster. When this returns, that is on disk.
    ///
    /// # Errors
    /// It is not.
    pub async fn set_cluster(&self, cluster: ClusterId) -> Result<(), MembersError> {
        match self.cluster() == Some(cluster) {
            true => Ok(()),
            false => self.write(MemberChange::Cluster(cluster)).await,
        }
    }

    /// Sets what is known of the replica. When this returns, it is on disk.
    ///
    /// # Errors
    /// It is not.
    pub async fn set(&self, replica: &ReplicaKey, membership: Membership) -> Result<(), MembersError> {
        match self.of(replica).as_ref() == Some(&membership) {
            true => Ok(()),
            false => self.write(has(replica, &membership, self.0.store)).await,
        }
    }

    /// Nothing is stored of the replica any more.
    ///
    /// # Errors
    /// The disk does not take that; the replica is named again after a restart, as one of which the log knows nothing.
    pub async fn remove(&self, replica: &ReplicaKey) -> Result<(), MembersError> {
        if self.of(replica).is_none() {
            return Ok(());
        }
        self.write(MemberChange::Gone(replica.clone())).await
    }

    async fn write(&self, change: MemberChange) -> Result<(), MembersError> {
        let number = {
            let mut waiting = lock(&self.0.waiting);
            waiting.issued += 1;
            waiting.changes.push(change);
            waiting.issued
        };
        let inner = Arc::clone(&self.0);
        let written = tokio::task::spawn_blocking(move || inner.write_waiting(number)).await;
        written.unwrap_or_else(|error| Err(MembersError::Failed(error.to_string())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::base::id::{PlacementId, ShardId};
    use partage_core::keyspace::key::{Key, KeyRange};
    use partage_journal::RealDisk;
    use partage_journal::faulty_disk::{Fault, FaultyDisk};

    fn key(placement: u64) -> ReplicaKey {
        let keyspace = "stock".parse().expect("a name");
        ReplicaKey { keyspace, shard: ShardId(3), placement: PlacementId(placement) }
    }

    fn served(epoch: u64) -> Membership {
        Membership { bounds: Bounds::Keys(KeyRange::all()), served: Epoch(epoch), forms: false }
    }

    fn open(path: &Path) -> (Memberships, Option<Damage>) {
        Memberships::open(Arc::new(RealDisk), path, false).expect("the disk works")
    }

    #[test]
    fn d10_what_lies_in_another_store_is_not_resumed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("members");
        let header = FileHeader { owner: 7, file_number: 1, step: MEMBERS_STEP };
        for (store, resumed) in [(7, 1), (8, 0)] {
            let Membership { bounds, served, .. } = served(3);
            let stored = Stored { replica: key(1), bounds, epoch: served, store, damaged: false };
            let record = encode(&[MemberChange::Has(stored)]);
            write_file(&RealDisk, &path, header, record).expect("the disk works");
            let (members, damage) = open(&path);
            let is_other = damage.is_some_and(|damage| damage.what.contains("is of the store 8"));
            assert_eq!((is_other, members.store(), members.all().len()), (store == 8, 7, resumed));
        }
    }

    #[tokio::test]
    async fn what_was_set_is_there_when_the_file_is_opened_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("members");
        let (members, damage) = open(&path);
        assert_eq!(damage, None);
        let store = members.store();
        members.set_cluster(ClusterId(7)).await.expect("written");
        let all = (1..=20).map(|placement| {
            let members = members.clone();
            tokio::spawn(async move { members.set(&key(placement), served(placement)).await })
        });
        for one in all.collect::<Vec<_>>() {
            one.await.expect("no panic").expect("written");
        }
        members.remove(&key(3)).await.expect("written");
        members.set(&key(4), served(40)).await.expect("written");
        drop(members);
        let (members, damage) = open(&path);
        assert_eq!((damage, members.store(), members.cluster()), (None, store, Some(ClusterId(7))));
        assert_eq!(members.of(&key(3)), None);
        assert_eq!(members.of(&key(4)), Some(served(40)));
        assert_eq!(members.all().len(), 19);
    }

    #[tokio::test]
    async fn a_file_that_has_grown_is_written_anew() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("members");
        let (members, _) = open(&path);
        let long = |byte| Key::new(&[byte; 1_000]).expect("a key");
        let bounds = Bounds::Keys(KeyRange::new(long(b'a'), long(b'b')).expect("a range"));
        let changes = MEMBERS_BYTES / 1_000;
        for epoch in 1..=changes {
            let membership = Membership { bounds: bounds.clone(), served: Epoch(epoch), forms: false };
            members.set(&key(1), membership).await.expect("written");
        }
        let bytes = std::fs::metadata(&path).expect("a file").len();
        assert!(bytes <= MEMBERS_BYTES + 2 * u64::from(MEMBERS_STEP), "{bytes}");
        let (again, damage) = open(&path);
        assert_eq!(damage, None);
        assert_eq!(again.of(&key(1)).map(|known| known.served), Some(Epoch(changes)));
    }

    #[test]
    fn a_log_whose_store_is_not_known_any_more_is_not_given_another_number() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("members");
        let again = || Memberships::open(Arc::new(RealDisk), &path, true).map(drop);
        assert!(matches!(again(), Err(MembersError::Unreadable { .. })), "the file is gone");
        assert!(!path.exists(), "nothing was written");
        drop(open(&path));
        assert!(again().is_ok());
        let whole = std::fs::read(&path).expect("a file");
        for at in [0, 20, 63] {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            std::fs::write(&path, &bytes).expect("written");
            assert!(matches!(again(), Err(MembersError::Unreadable { .. })), "byte {at}");
            assert_eq!(std::fs::read(&path).expect("a file"), bytes, "the file is as it was");
        }
    }

    #[tokio::test]
    async fn a_full_disk_keeps_no_node_from_starting_that_has_started_before() {
        let (disk, path) = (FaultyDisk::default(), Path::new("members"));
        let open = || Memberships::open(Arc::new(disk.clone()), path, false);
        disk.arm(0, Fault::Full);
        let error = open().map(drop).expect_err("a file cannot be made").to_string();
        assert!(error.starts_with("members: the disk is full") && error.contains("65536 bytes"), "{error}");
        let (members, _) = open().expect("there is room");
        members.set(&key(1), served(1)).await.expect("written");
        drop(members);
        disk.arm(0, Fault::Full);
        let (members, damage) = open().expect("the file is there");
        assert!(disk.fired() && damage.is_none(), "{damage:?}");
        assert!(members.found_no_room());
        disk.arm(0, Fault::Full);
        assert!(!members.look_for_room() && members.found_no_room(), "and still none");
        assert_eq!(members.of(&key(1)), Some(served(1)));
        members.set(&key(2), served(2)).await.expect("the file has room for that");
        assert!(members.look_for_room() && !members.found_no_room());
        members.set(&key(3), served(3)).await.expect("written to the new file");
        drop(members);
        let (members, damage) = open().expect("there is room");
        assert_eq!((members.all().len(), damage, members.found_no_room()), (3, None, false));
    }

    #[tokio::test]
    async fn a_flipped_bit_is_found_and_nothing_is_taken_for_known() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("members");
        let (members, _) = open(&path);
        members.set(&key(1), served(1)).await.expect("written");
        members.set(&key(2), served(1)).await.expect("written");
        drop(members);
        let mut bytes = std::fs::read(&path).expect("a file");
        bytes[partage_journal::frame::FILE_HEADER + 40] ^= 1;
        std::fs::write(&path, bytes).expect("written");
        let (members, damage) = open(&path);
        assert!(damage.is_some());
        assert!(members.all().is_empty());
    }
}

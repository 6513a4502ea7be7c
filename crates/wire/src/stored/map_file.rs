//! METADATA: the file that a metadata server keeps of a map, record by record, and the head of it that the
//! coordination service keeps.
//!
//! How records lie in the file, and how a cut, torn or misplaced one is found, is `partage_journal`'s. Each
//! record is an envelope of this module's parent around a protobuf message, and says by its checksum to which
//! file it belongs.
//!
//! | record | how many | what |
//! |---|---|---|
//! | `begin` | 1 | keyspace, sharding, generation, number of chunks |
//! | `chunk` | as many | some of the shards, as a diff from the empty map |
//! | `operation` | any | a change that was stored; the head says whether it counts |
//! | `dropped` | any | the transaction of one that never will |

use super::encoder::Chunks;
use super::envelope;
use super::path::Path;
use super::read::StoredError;
use crate::Malformed;
use crate::malformed::{At, Inside, names, required};
use crate::map::join;
use crate::proto::{self, stored_book_record::Kind};
use partage_core::base::id::{Generation, TransactionId};
use partage_core::base::name::KeyspaceName;
use partage_core::keyspace::map::{MapDiff, ShardMap};
use partage_core::keyspace::sharding::{PartitionKey, Sharding};
use partage_service::metadata::Head;
use prost::Message;

/// The key of the head of a keyspace's map.
pub fn head_key(keyspace: &KeyspaceName) -> String {
    Path::Metadata(keyspace.clone()).to_string()
}

/// The key of a keyspace's record.
pub fn record_key(keyspace: &KeyspaceName) -> String {
    Path::Keyspace(keyspace.clone()).to_string()
}

/// Below which key all heads are, among other keys.
pub const HEADS: &str = "keyspaces";

/// The keyspace whose head is at a key; none for any other key.
pub fn keyspace_of_head(key: &str) -> Option<KeyspaceName> {
    match Path::parse(key)? {
        (Path::Metadata(keyspace), 0) => Some(keyspace),
        _ => None,
    }
}

/// The head, to be put at its key.
pub fn seal_head(keyspace: &KeyspaceName, head: &Head) -> bytes::Bytes {
    let servers = head.servers.iter().map(ToString::to_string).collect();
    let form = proto::StoredMetadata { at: Some(head.at.into()), servers };
    envelope::seal(&head_key(keyspace), 0, 1, &form.encode_to_vec())
}

/// The head from what is stored at its key.
///
/// # Errors
/// With the key, when it is damaged or something else.
pub fn open_head(keyspace: &KeyspaceName, value: &[u8]) -> Result<Head, StoredError> {
    let key = head_key(keyspace);
    let (_, _, payload) = envelope::open(&key, value).map_err(|why| StoredError::new(&key, why))?;
    let wrong = |why: String| StoredError::new(&key, format!("is no head: {why}"));
    let form = proto::StoredMetadata::decode(payload).map_err(|why| wrong(why.to_string()))?;
    Head::try_from(form).map_err(|why| wrong(why.to_string()))
}

impl TryFrom<proto::StoredMetadata> for Head {
    type Error = Malformed;
    fn try_from(form: proto::StoredMetadata) -> Result<Self, Malformed> {
        if form.servers.is_empty() || form.servers.len() > partage_service::metadata::SERVERS_MOST {
            let count = form.servers.len();
            return Err(Malformed::new("servers", format!("are {count}: there are 1 to 15")));
        }
        Ok(Head { at: required(form.at, "at")?, servers: names(&form.servers, "servers")? })
    }
}

/// Says which file a record belongs to.
fn place(keyspace: &KeyspaceName, name: TransactionId) -> String {
    format!("{keyspace}/{name}")
}

fn sealed(keyspace: &KeyspaceName, name: TransactionId, kind: Kind) -> Vec<u8> {
    let payload = proto::StoredBookRecord { kind: Some(kind) }.encode_to_vec();
    envelope::seal(&place(keyspace, name), 0, 1, &payload).into()
}

/// The records of a map, with which a file begins.
pub fn whole(name: TransactionId, map: &ShardMap) -> impl Iterator<Item = Vec<u8>> {
    let keyspace = map.keyspace();
    let begin = proto::stored_book_record::Begin {
        keyspace: keyspace.to_string(),
        sharding: Some(map.sharding().into()),
        partition_key: Some(map.partition_key().into()),
        at: Some(map.generation().into()),
        // Counted ahead, so that a file with too few of them is seen.
        chunks: Chunks::of(map).count() as u32,
    };
    let chunks = Chunks::of(map).map(move |chunk| sealed(keyspace, name, Kind::Chunk((&chunk).into())));
    std::iter::once(sealed(keyspace, name, Kind::Begin(begin))).chain(chunks)
}

/// The record of an operation.
pub fn operation(name: TransactionId, diff: &MapDiff) -> Vec<u8> {
    sealed(&diff.keyspace, name, Kind::Operation(diff.into()))
}

/// The record that says that an operation never counts.
pub fn dropped(keyspace: &KeyspaceName, name: TransactionId, transaction: TransactionId) -> Vec<u8> {
    sealed(keyspace, name, Kind::Dropped(transaction.0.to_vec()))
}

/// What a METADATA file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredMapFile {
    /// The map that the file begins with.
    pub map: ShardMap,
    /// The operations that are stored behind it, in their order.
    pub operations: Vec<MapDiff>,
}

/// Puts the records of a file together.
#[derive(Debug)]
pub struct MapFileReader {
    keyspace: KeyspaceName,
    name: TransactionId,
    begun: Option<(ShardMap, Generation, u32)>,
    base: Option<MapDiff>,
    chunks: u32,
    whole: Option<StoredMapFile>,
}

impl MapFileReader {
    /// Reads the file of that name.
    pub fn new(keyspace: KeyspaceName, name: TransactionId) -> MapFileReader {
        MapFileReader { keyspace, name, begun: None, base: None, chunks: 0, whole: None }
    }

    /// Takes the next record.
    ///
    /// # Errors
    /// What is wrong with it; the rest of the file is then of no use.
    pub fn take(&mut self, record: &[u8]) -> Result<(), String> {
        let place = place(&self.keyspace, self.name);
        let (_, _, payload) = envelope::open(&place, record).map_err(|why| format!("it {why}"))?;
        let form = proto::StoredBookRecord::decode(payload).map_err(|why| why.to_string())?;
        let kind = form.kind.ok_or("it is of a kind that this program does not know")?;
        self.note(kind).map_err(|why| why.to_string())
    }

    fn note(&mut self, kind: Kind) -> Result<(), Malformed> {
        match (kind, &mut self.whole) {
            (Kind::Begin(begin), None) if self.begun.is_none() => self.begin(begin),
            (Kind::Chunk(chunk), None) => self.chunk(chunk.try_into().inside("chunk")?),
            (Kind::Operation(diff), Some(whole)) => {
                let diff: MapDiff = diff.try_into().inside("operation")?;
                if diff.keyspace != self.keyspace {
                    return Err(Malformed::new("operation.keyspace", "is another"));
                }
                whole.operations.push(diff);
                Ok(())
            }
            (Kind::Dropped(gone), Some(whole)) => {
                let gone: [u8; 20] =
                    gone.try_into().map_err(|_| Malformed::new("dropped", "has not 20 bytes"))?;
                whole.operations.retain(|diff| diff.to.transaction.0 != gone);
                Ok(())
            }
            (Kind::Begin(_) | Kind::Chunk(_), _) | (Kind::Operation(_) | Kind::Dropped(_), None) => {
                Err(Malformed::new("kind", "is not the one that belongs here"))
            }
        }
    }

    fn begin(&mut self, form: proto::stored_book_record::Begin) -> Result<(), Malformed> {
        let keyspace = KeyspaceName::new(&form.keyspace).at("begin.keyspace")?;
        if keyspace != self.keyspace {
            return Err(Malformed::new("begin.keyspace", format!("is {keyspace}")));
        }
        if form.chunks == 0 {
            return Err(Malformed::new("begin.chunks", "are none"));
        }
        let sharding: Sharding = required(form.sharding, "begin.sharding")?;
        let partition_key: PartitionKey = required(form.partition_key, "begin.partition_key")?;
        let at = required(form.at, "begin.at")?;
        self.begun = Some((ShardMap::empty(keyspace, sharding, partition_key), at, form.chunks));
        Ok(())
    }

    fn chunk(&mut self, chunk: MapDiff) -> Result<(), Malformed> {
        let Some((empty, at, chunks)) = &self.begun else {
            return Err(Malformed::new("kind", "is not the one that belongs here"));
        };
        if chunk.to != *at {
            return Err(Malformed::new("chunk.to", format!("is {:?}", chunk.to)));
        }
        match &mut self.base {
            None => self.base = Some(chunk),
            Some(base) => join(base, chunk)?,
        }
        self.chunks += 1;
        if self.chunks == *chunks
            && let Some(base) = self.base.take()
        {
            let mut map = empty.clone();
            map.apply(&base).at("chunk")?;
            self.whole = Some(StoredMapFile { map, operations: vec![] });
        }
        Ok(())
    }

    /// Whether the map is whole: what follows are operations.
    pub fn is_whole(&self) -> bool {
        self.whole.is_some()
    }

    /// What the file says, when all of it was taken.
    ///
    /// # Errors
    /// When it ends too early.
    pub fn finish(self) -> Result<StoredMapFile, String> {
        let missing = || "the file ends before its map is whole".to_owned();
        self.whole.ok_or_else(missing)
    }
}

//! The file of a chunk.
//!
//! ```text
//! "partage chunk 1\n" · codec u8 (0 = as it is, 1 = zstd) · rows u32 · content bytes u32 · CRC32C u32 · payload
//! ```
//!
//! The checksum is of all other bytes of the file, in their order. The payload is the content ([`super::rows`]), compressed or
//! not: a reader unpacks it into exactly the bytes that the head says, whose SHA-256 is the name of the file. How well a writer
//! compresses is its own matter, and changes no name.

use super::ContentDigest;

const MAGIC: &[u8; 16] = b"partage chunk 1\n";

/// Bytes before the payload.
pub const HEAD_BYTES: usize = 16 + 1 + 4 + 4 + 4;

/// Bytes of content that a chunk has at most: what a node cuts, [`CUT_MOST_BYTES`](super::messages::CUT_MOST_BYTES), and one row.
pub const CONTENT_BYTES: usize = super::messages::CUT_MOST_BYTES + super::rows::ROW_BYTES;

/// How a payload is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// The content as it is, not compressed.
    Plain,
    /// A frame of zstd.
    Zstd,
}

/// A chunk file that was taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkFile<'a> {
    /// How the payload is packed.
    pub codec: Codec,
    /// How many rows the content has, as the head says.
    pub rows: u32,
    /// Bytes of the content.
    pub content_bytes: u32,
    /// The content, packed as `codec` says.
    pub payload: &'a [u8],
}

/// Why a file is not the chunk that it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// It does not begin as one.
    #[error("it is no chunk of this form: it does not begin with \"partage chunk 1\"")]
    Kind,
    /// It ends before its head does.
    #[error("it is cut: it has {0} bytes")]
    Cut(usize),
    /// A bit of it is not as it was written.
    #[error("it is damaged: its checksum is {found:08x}, and it says {said:08x}")]
    Checksum {
        /// The checksum of what is there.
        found: u32,
        /// The checksum that the head has.
        said: u32,
    },
    /// The head is whole, and says what no writer writes.
    #[error("its head is not understood: {0}")]
    Head(&'static str),
    /// The content cannot be unpacked.
    #[error("it cannot be unpacked: {0}")]
    Unpack(String),
    /// The content is another one.
    #[error("it has another content than its name says: SHA-256 {0}")]
    Content(ContentDigest),
    /// The content is not rows.
    #[error("its content is malformed: {0}")]
    Rows(#[from] super::rows::RowsError),
    /// The manifest counts other rows.
    #[error("it has {found} rows, and the manifest says {said}")]
    Count {
        /// How many rows the content has.
        found: u64,
        /// How many rows the manifest counts in this chunk.
        said: u64,
    },
}

fn checksum(head: &[u8], payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(head), payload)
}

impl ChunkFile<'_> {
    /// The bytes of the file.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + self.payload.len());
        bytes.extend_from_slice(MAGIC);
        bytes.push(match self.codec {
            Codec::Plain => 0,
            Codec::Zstd => 1,
        });
        bytes.extend_from_slice(&self.rows.to_be_bytes());
        bytes.extend_from_slice(&self.content_bytes.to_be_bytes());
        let sum = checksum(&bytes, self.payload);
        bytes.extend_from_slice(&sum.to_be_bytes());
        bytes.extend_from_slice(self.payload);
        bytes
    }
}

/// Takes a file apart; each bit of it is checked.
///
/// # Errors
/// What is wrong with it.
pub fn open(bytes: &[u8]) -> Result<ChunkFile<'_>, ChunkError> {
    if bytes.len() < HEAD_BYTES {
        return Err(ChunkError::Cut(bytes.len()));
    }
    let (head, payload) = bytes.split_at(HEAD_BYTES);
    let (summed, said) = head.split_at(HEAD_BYTES - 4);
    let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("four bytes"));
    if &summed[..16] != MAGIC {
        return Err(ChunkError::Kind);
    }
    let (found, said) = (checksum(summed, payload), number(said));
    if found != said {
        return Err(ChunkError::Checksum { found, said });
    }
    let codec = match summed[16] {
        0 => Codec::Plain,
        1 => Codec::Zstd,
        _ => return Err(ChunkError::Head("this program knows the codecs 0 and 1: use a later one")),
    };
    let (rows, content_bytes) = (number(&summed[17..21]), number(&summed[21..25]));
    if content_bytes as usize > CONTENT_BYTES {
        return Err(ChunkError::Head("its content is longer than a chunk may be"));
    }
    Ok(ChunkFile { codec, rows, content_bytes, payload })
}

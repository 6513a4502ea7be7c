//! Store files: the entries of one partition of one dataset version, written once, read for as long as it serves.
//!
//! A store file is immutable, as an SSTable is: it is built from entries in any order, and from then on only read. It is
//! never changed; the next version has files of its own.
//!
//! [`Builder`] takes keys and values in any order and of any number, with bounded memory, and the last of
//! equal keys counts. [`Reader`] maps the file into memory and answers from it.
//!
//! # The file
//!
//! ```text
//! header      "PARTAGE" 1a · format u32 · checksum u32
//! data        pages (see `hashed.rs`) or blocks (see `ordered.rs`)
//! index       hashed: for each page where its directory is, u64; ordered: the sparse index
//! dictionary  of zstd, may be empty
//! footer      96 bytes: layout, compression, counts, lengths and checksums of the sections; checksum; end mark
//! ```
//!
//! Numbers are little-endian; lengths of keys and values are in groups of 7 bits (LEB128); checksums are CRC32C.
//! Every byte is under a checksum. `open` checks header, footer, dictionary, and the index of an ordered file; a
//! lookup checks all it reads; `verify` reads everything. A checksum also covers the place of what it protects, so a
//! table entry that points at another, sound page is found by the lookup that uses it.
//!
//! # Why not a perfect hash
//!
//! A minimal perfect hash says which entry a key is, not where it lies. Offsets beside it take more than its 3 bits a
//! key, and the look at its pilot is one more miss. The page of a key follows from its hash without anything to look
//! up, one table entry says where it is: 2 bytes a key in all, no misses more, and the file is written in the
//! order in which it is sorted, while a perfect hash wants all hashes of a part in memory. `ptr_hash`, the best kept
//! of them, also reads its own tables without bounds checks, which is not to be done with a file from elsewhere, and
//! would tie the format to a version of it.

mod arena;
mod builder;
mod checksum;
mod codec;
mod error;
mod estimate;
mod form;
mod hashed;
mod loss;
mod mapped;
mod ordered;
mod output;
mod prefetch;
mod reader;
mod sort;
mod sort_buffer;
mod spill;

pub use arena::Arenas;
pub use builder::{Builder, Options, Summary};
pub use error::{BuildError, Part, ReadError, Reason};
pub use form::{Compression, Layout, VERSION};
pub use loss::Losses;
pub use ordered::{Pair, Scan};
pub use output::UNFINISHED;
pub use reader::{Description, Reader, Search, Value};

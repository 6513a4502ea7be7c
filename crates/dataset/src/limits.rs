//! Every limit of the dataset service, with its reason.

/// Bytes that are read from a file at a time: long enough that calls do not count, short enough to stay in a cache.
pub const READ_BYTES: usize = 256 << 10;

/// Longest record of a file as it is read, key and value with all around them. Twice what a store file takes, since
/// JSON writes a byte as up to six characters, but seldom; the store's own limit says then which of the two is too long.
pub const RECORD_BYTES: usize = 2 * (partage_engine::limits::KEY_BYTES + partage_engine::limits::VALUE_BYTES);

/// Longest part of a SequenceFile's block, compressed or not. Hadoop closes a block at 1 MB unless told otherwise, but
/// after a record, so that one of the longest fits in.
pub const SEQUENCE_BLOCK_BYTES: usize = RECORD_BYTES;

/// Longest name of a class, and key or value of the metadata, in a SequenceFile's header: longer ones are damage.
pub const SEQUENCE_NAME_BYTES: usize = 64 << 10;

/// Most metadata pairs in a SequenceFile's header: Hadoop itself writes none.
pub const SEQUENCE_METADATA: usize = 1_024;

/// Bytes of a dataset's settings: a page of text, and far from what would hurt.
pub const SETTINGS_BYTES: usize = 64 << 10;

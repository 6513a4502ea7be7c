//! How much is encoded at once.

use partage_core::limits::SHUFFLE_RECORD_BYTES;

/// About how many bytes of records [`Rows::some_records`](super::Rows::some_records) makes: enough that a column's work outweighs
/// the call for it, and little beside the memory of a node.
pub const PIECE_BYTES: u64 = 4 << 20;
/// Rows that are encoded before the size of a row is known.
pub const FIRST_ROWS: usize = 16;
/// Rows that are encoded at once.
pub const PIECE_ROWS: usize = 4_096;
/// What one row may take while it is encoded: a record of the largest kind, and the items of its lists by themselves. A row that
/// fits into it is encoded, and refused then if it is longer than records are.
pub const ROW_BYTES: u64 = 2 * SHUFFLE_RECORD_BYTES as u64;
/// What nulls of all columns take in an array, and in the encoders of structs, each of which keeps a null: a schema is kept by
/// each node that a client of the shuffle asks, and may have thousands of columns.
pub const NULLS_BYTES: usize = 1 << 20;
/// Bytes that the records of one batch take in memory, as [`Rows::records`](super::Rows::records) makes them at once. A batch
/// says in few bytes that a value occurs a billion times. The largest record fits in four times.
pub const BATCH_BYTES: u64 = 256 << 20;

//! How much is encoded at once.

/// About how many bytes of records [`Rows::some_records`](super::Rows::some_records) makes: enough that a column's work outweighs
/// the call for it, and little beside the memory of a node.
pub const PIECE_BYTES: u64 = 4 << 20;
/// Rows that are encoded before the size of a row is known.
pub const FIRST_ROWS: usize = 16;
/// Rows that are encoded at once: one long value of a dictionary may stand in each of them.
pub const PIECE_ROWS: usize = 4_096;
/// Bytes that the records of one batch take in memory, as [`Rows::records`](super::Rows::records) makes them at once. A batch
/// says in few bytes that a value occurs a billion times. The largest record fits in four times.
pub const BATCH_BYTES: u64 = 256 << 20;

//! Why rows are not taken, or not made of records.

use crate::rows::{BATCH_BYTES, ENCODING, NULLS_BYTES};
use partage_core::limits::{SHUFFLE_KEY_BYTES, SHUFFLE_RECORD_BYTES, SHUFFLE_SCHEMA_BYTES};

/// Why rows are not taken, or not made of records. Only [`RowsError::Damaged`] is no mistake of the one who sent the schema or
/// the rows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RowsError {
    /// The bytes are no schema.
    #[error(
        "the schema is no message of Arrow IPC ({0}): send the bytes that `schema.serialize()` of pyarrow makes"
    )]
    Schema(String),
    /// Rows of that encoding are unknown.
    #[error(
        "the rows of this shuffle have the encoding {0}, and this program knows {ENCODING}: ask a node of the version that \
         started the shuffle"
    )]
    Encoding(u16),
    /// No column to sort by is named.
    #[error("no column is named by which rows are sorted: name one at least")]
    NoOrder,
    /// There is no column in that place.
    #[error("there is no column {column} to sort by: the schema has {columns}, counted from 0")]
    NoColumn {
        /// The place that was named.
        column: u32,
        /// How many columns there are.
        columns: usize,
    },
    /// A column is named twice as one to sort by.
    #[error("the column {column:?} is named twice as one to sort by: name it once")]
    Twice {
        /// The name of the column in the schema.
        column: String,
    },
    /// A column has a type that cannot be encoded.
    #[error(
        "the column {column:?} of type {data_type} cannot be encoded, as {why}: cast it, or leave it out"
    )]
    Type {
        /// The name of the column in the schema.
        column: String,
        /// Its type of Arrow, such as a union.
        data_type: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The schema has too many bytes.
    #[error(
        "the schema has {bytes} bytes, of {SHUFFLE_SCHEMA_BYTES} at most: leave out columns or their metadata"
    )]
    LongSchema {
        /// Its bytes as a message of Arrow IPC.
        bytes: usize,
    },
    /// The columns are too wide.
    #[error(
        "the columns up to {column:?} take more than {NULLS_BYTES} bytes where all of them are null: use types without a fixed \
         size, such as lists and texts, or leave out columns"
    )]
    Wide {
        /// The first one that is too much.
        column: String,
    },
    /// A column cannot be combined.
    #[error("the column {column:?} cannot be combined, as {why}")]
    Combined {
        /// Its name, or its place if the schema has none there.
        column: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// What the numbers of a column become does not fit.
    #[error(
        "what rows of one key have in the column {column:?} does not fit into its type: start the shuffle with a wider one"
    )]
    TotalTooLarge {
        /// The name of the column whose total is too large.
        column: String,
    },
    /// A column is not what the shuffle was started with.
    #[error("the column {column:?} differs from the schema that the shuffle was started with: {why}")]
    Differs {
        /// Its name in the schema of the shuffle, or in that of the writer if the shuffle has none in its place.
        column: String,
        /// In what it differs.
        why: String,
    },
    /// A column that may have no nulls has one.
    #[error(
        "row {row} of the batch has a null in the column {column:?}, which the shuffle was started without"
    )]
    Null {
        /// The name of the column.
        column: String,
        /// The row, counted from 0.
        row: usize,
    },
    /// The columns that a row is sorted by are too long.
    #[error(
        "row {row} of the batch has a key of {bytes} bytes, of {SHUFFLE_KEY_BYTES} at most: sort by a shorter column, such as \
         the front of this one"
    )]
    LongKey {
        /// The row, counted from 0.
        row: usize,
        /// The bytes of its key, encoded.
        bytes: usize,
    },
    /// A row is too long.
    #[error(
        "row {row} of the batch has {bytes} bytes or more, of {SHUFFLE_RECORD_BYTES} at most: store large values elsewhere"
    )]
    LongRecord {
        /// The row, counted from 0.
        row: usize,
        /// Its bytes, encoded; of one that is far too long as many as were counted.
        bytes: usize,
    },
    /// The rows of one batch take too much memory.
    #[error(
        "the {rows} rows of the batch take more than {BATCH_BYTES} bytes of memory: send batches of fewer rows, with pyarrow by \
         `max_chunksize`"
    )]
    LongBatch {
        /// How many rows it has.
        rows: usize,
    },
    /// A column cannot be encoded, for what is in it.
    #[error("the column {column:?} cannot be encoded: {why}")]
    Column {
        /// The name of the column in the schema.
        column: String,
        /// The error of Arrow, which names the value or the type.
        why: String,
    },
    /// Arrow refuses all the columns together.
    #[error("the rows cannot be encoded: {0}")]
    Arrow(String),
    /// Records are no rows of this shuffle.
    #[error(
        "records of the shuffle are no rows of its schema ({0}): they were written by a client that does not encode rows; \
         delete the shuffle and write it again"
    )]
    Damaged(String),
}

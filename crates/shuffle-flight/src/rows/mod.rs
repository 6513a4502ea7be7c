//! Rows of Arrow as records of a shuffle, and back.
//!
//! A shuffle compares keys as bytes and knows nothing of columns. So the key of a row is an encoding of the columns that rows are
//! sorted by, in which the order of bytes is the order of the rows; the value is one of all other columns.
//!
//! | in a sort column | order, ascending |
//! |---|---|
//! | numbers, decimals, dates, times, timestamps, durations | by value |
//! | floats | by value, −0 before 0, NaN last whatever its sign. Descending reverses all of it, so NaN is first |
//! | truth values | false, true |
//! | texts, bytes | as unsigned bytes |
//! | intervals | by months, then days, then nanoseconds |
//! | lists | by the first item that differs, then the shorter one |
//! | structs | by the first field that differs |
//! | nulls | where the column says, first or last, also when it descends |
//!
//! What is read is what was written, with two exceptions: dictionaries and runs come back as their values, and a NaN in a sort
//! column as the one NaN, so that all are equal. Maps and unions are refused, by the name of the column.
//!
//! Both parts are the row encoding of the crate `arrow-row`: a byte for "null or not" before each value, integers with the most
//! significant byte first, texts in blocks. The value needs no order, so a denser form would do (a text of 5 bytes takes 10
//! here), but arrow-row writes and reads a column at a time, knows every type, and is one thing to test instead of two. The
//! encoding has a version, [`ENCODING`], in the decision that starts a shuffle; a golden test fails if another release of
//! arrow-row encodes otherwise.

mod limits;
mod numbers;
mod plain;
mod size;
#[cfg(test)]
mod tests;

pub(crate) use limits::{BATCH_BYTES, NULLS_BYTES};
pub(crate) use numbers::Numbers;

use crate::error::RowsError;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_ipc::convert::try_schema_from_ipc_buffer;
use arrow_ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteOptions, write_message};
use arrow_row::{RowConverter, SortField};
use arrow_schema::{ArrowError, Schema, SchemaRef, SortOptions};
use limits::{FIRST_ROWS, PIECE_BYTES, PIECE_ROWS};
use numbers::{NumberColumn, number_columns};
use partage_core::limits::{SHUFFLE_KEY_BYTES, SHUFFLE_RECORD_BYTES, SHUFFLE_SCHEMA_BYTES};
use partage_service::shuffle::Bytes;
use partage_service::shuffle::record::Record;
use partage_shuffle_wire::client::{ArrowKind, CombinedColumn, SortColumn};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The version of the encoding of rows that this program writes and reads.
pub const ENCODING: u16 = 1;

/// How rows of a schema become records, and records rows.
#[derive(Debug, Clone)]
pub struct Rows {
    layout: Arc<Layout>,
}

#[derive(Debug)]
struct Layout {
    kind: ArrowKind,
    schema: SchemaRef,
    key: Part,
    /// None: rows are sorted by all of their columns.
    value: Option<Part>,
    /// The columns of the value, if rows of equal keys become one.
    combined: Vec<NumberColumn>,
}

/// A part of a record: some columns.
#[derive(Debug)]
struct Part {
    /// Their places in the schema.
    places: Vec<usize>,
    /// Whether rows are sorted by them.
    sorts: bool,
    converter: RowConverter,
}

impl Rows {
    /// The encoding of rows of this schema, sorted by these columns, the first one first. It refuses columns whose types have no
    /// order or no encoding.
    pub fn new(schema: &Schema, order: &[SortColumn]) -> Result<Rows, RowsError> {
        Rows::combining(schema, order, &[])
    }

    /// The same of rows that become one if they are equal in all of these columns, if all other ones are named, by what their
    /// numbers become.
    pub fn combining(
        schema: &Schema,
        order: &[SortColumn],
        combine: &[CombinedColumn],
    ) -> Result<Rows, RowsError> {
        let names = sort_columns(schema, order)?;
        plain::check(schema.fields())?;
        let schema = Schema::new_with_metadata(plain::fields(schema.fields()), schema.metadata().clone());
        let message = message(&schema).map_err(|error| RowsError::Schema(error.to_string()))?;
        let (order_of, combine_of) = (order.to_vec(), combine.to_vec());
        let kind =
            ArrowKind { encoding: ENCODING, schema: message.into(), order: order_of, combine: combine_of };
        let options = |column: &SortColumn| SortOptions {
            descending: column.descends,
            nulls_first: column.nulls_first,
        };
        let sorted = order.iter().map(|column| (column.column as usize, options(column))).collect();
        let others: Vec<usize> = (0..schema.fields().len()).filter(|place| !names.contains(place)).collect();
        let combined =
            if combine.is_empty() { Vec::new() } else { number_columns(&schema, &others, combine)? };
        let others: Vec<(usize, SortOptions)> =
            others.into_iter().map(|place| (place, SortOptions::default())).collect();
        let key = Part::new(&schema, sorted, true)?;
        let value = if others.is_empty() { None } else { Some(Part::new(&schema, others, false)?) };
        Ok(Rows { layout: Arc::new(Layout { kind, schema: Arc::new(schema), key, value, combined }) })
    }

    /// The encoding of the rows of a shuffle that was started so.
    pub fn of_kind(kind: &ArrowKind) -> Result<Rows, RowsError> {
        if kind.encoding != ENCODING {
            return Err(RowsError::Encoding(kind.encoding));
        }
        check_message(&kind.schema)?;
        let schema = try_schema_from_ipc_buffer(&kind.schema);
        let schema = schema.map_err(|error| RowsError::Schema(error.to_string()))?;
        Rows::combining(&schema, &kind.order, &kind.combine)
    }

    /// What the decision to start the shuffle says of its rows. The schema is the encapsulated message of Arrow IPC.
    pub fn kind(&self) -> ArrowKind {
        self.layout.kind.clone()
    }

    /// The schema of the rows as they are read: dictionaries and runs are unpacked.
    pub fn schema(&self) -> &SchemaRef {
        &self.layout.schema
    }

    /// Whether rows of a writer's schema can be stored: the same names and types in the same places. Its values may be in
    /// dictionaries and runs, and it may exclude nulls where the shuffle allows them.
    pub fn accepts(&self, schema: &Schema) -> Result<(), RowsError> {
        let (ours, theirs) = (self.layout.schema.fields(), schema.fields());
        for (ours, theirs) in ours.iter().zip(theirs.iter()) {
            let differs = |why: String| Err(RowsError::Differs { column: ours.name().clone(), why });
            if ours.name() != theirs.name() {
                return differs(format!("in its place is {:?}", theirs.name()));
            }
            if !plain::fits(ours.data_type(), theirs.data_type()) {
                return differs(format!("it is {}, and was {}", theirs.data_type(), ours.data_type()));
            }
            if theirs.is_nullable() && !ours.is_nullable() {
                return differs("it may have nulls, and had none".to_owned());
            }
        }
        let at = ours.len().min(theirs.len());
        let missing = ours.get(at).map(|field| (field, "it is missing"));
        match missing.or_else(|| theirs.get(at).map(|field| (field, "there was none in its place"))) {
            Some((field, why)) => {
                Err(RowsError::Differs { column: field.name().clone(), why: why.to_owned() })
            }
            None => Ok(()),
        }
    }

    /// The rows of a batch as records, in their order. Who must bound memory asks for [some](Rows::some_records) at a time.
    pub fn records(&self, batch: &RecordBatch) -> Result<Vec<Record>, RowsError> {
        self.records_within(batch, BATCH_BYTES)
    }

    fn records_within(&self, batch: &RecordBatch, most_bytes: u64) -> Result<Vec<Record>, RowsError> {
        let (mut records, mut bytes) = (Vec::new(), 0);
        while records.len() < batch.num_rows() {
            let some = self.some_records(batch, records.len())?;
            bytes += some.iter().map(Record::memory).sum::<u64>();
            if bytes > most_bytes {
                return Err(RowsError::LongBatch { rows: batch.num_rows() });
            }
            records.extend(some);
        }
        Ok(records)
    }

    /// Records of the rows of a batch from one on, of some megabytes; at least one if there is a row. The next to ask for is that
    /// many rows further.
    pub fn some_records(&self, batch: &RecordBatch, from: usize) -> Result<Vec<Record>, RowsError> {
        self.accepts(batch.schema_ref())?;
        let left = batch.num_rows().saturating_sub(from);
        let (mut records, mut bytes, mut rows) = (Vec::new(), 0, FIRST_ROWS);
        while records.len() < left && bytes < PIECE_BYTES {
            let at = from + records.len();
            let fitting = size::fitting(batch.columns(), at, rows.min(left - records.len()));
            let too_long = |bytes| RowsError::LongRecord {
                row: at,
                bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
            };
            let piece = batch.slice(at, fitting.map_err(too_long)?);
            bytes += self.encode(&piece, at, &mut records)?;
            let mean = (bytes / (records.len() as u64).max(1)).max(1);
            let fit = PIECE_BYTES.saturating_sub(bytes) / mean;
            rows = (2 * rows).min(PIECE_ROWS).min((fit as usize).max(1));
        }
        Ok(records)
    }

    /// The records of a piece of a batch that begins at that row of it, and what they take in memory.
    fn encode(&self, piece: &RecordBatch, at: usize, records: &mut Vec<Record>) -> Result<u64, RowsError> {
        let Layout { schema, key, value, .. } = self.layout.as_ref();
        let keys = key.encode(piece, schema, at)?;
        let values = value.as_ref().map(|part| part.encode(piece, schema, at)).transpose()?;
        let (mut memory, nothing) = (0, Bytes::from(&[][..]));
        for row in 0..piece.num_rows() {
            let key = keys.row(row).data();
            let value = values.as_ref().map(|values| values.row(row).data()).unwrap_or_default();
            let bytes = key.len() + value.len();
            if key.len() > SHUFFLE_KEY_BYTES {
                return Err(RowsError::LongKey { row: at + row, bytes: key.len() });
            }
            if bytes > SHUFFLE_RECORD_BYTES {
                return Err(RowsError::LongRecord { row: at + row, bytes });
            }
            let value = if value.is_empty() { Arc::clone(&nothing) } else { value.into() };
            let record = Record { key: key.into(), value };
            memory += record.memory();
            records.push(record);
        }
        Ok(memory)
    }

    /// The rows of records, given as keys and values.
    pub fn batch<'a>(
        &self,
        records: impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Result<RecordBatch, RowsError> {
        let Layout { schema, key, value, .. } = self.layout.as_ref();
        let (keys, values): (Vec<&[u8]>, Vec<&[u8]>) = records.unzip();
        if keys.is_empty() {
            return Ok(RecordBatch::new_empty(Arc::clone(schema)));
        }
        let mut columns: BTreeMap<usize, ArrayRef> = BTreeMap::new();
        columns.extend(key.places.iter().copied().zip(key.decode(&keys)?));
        match value {
            Some(value) => columns.extend(value.places.iter().copied().zip(value.decode(&values)?)),
            None if values.iter().any(|value| !value.is_empty()) => {
                return Err(RowsError::Damaged(
                    "a record has a value, and its schema no column for it".into(),
                ));
            }
            None => {}
        }
        RecordBatch::try_new(Arc::clone(schema), columns.into_values().collect()).map_err(damaged)
    }
}

impl Part {
    fn new(schema: &Schema, columns: Vec<(usize, SortOptions)>, sorts: bool) -> Result<Part, RowsError> {
        let field = |(place, options): &(usize, SortOptions)| {
            SortField::new_with_options(schema.field(*place).data_type().clone(), *options)
        };
        let converter = RowConverter::new(columns.iter().map(field).collect());
        let converter = converter.map_err(|error| RowsError::Arrow(error.to_string()))?;
        Ok(Part { places: columns.into_iter().map(|(place, _)| place).collect(), sorts, converter })
    }

    fn encode(&self, piece: &RecordBatch, schema: &Schema, at: usize) -> Result<arrow_row::Rows, RowsError> {
        let column = |place: &usize| {
            let (field, given) = (schema.field(*place), piece.column(*place));
            let name = || field.name().clone();
            let column = plain::array(given, field.data_type(), self.sorts)
                .map_err(|error| RowsError::Column { column: name(), why: error.to_string() })?;
            // In a dictionary a null may stand behind a number.
            if !field.is_nullable() && column.null_count() > 0 {
                let row = (0..column.len()).find(|row| column.is_null(*row)).unwrap_or(0);
                return Err(RowsError::Null { column: name(), row: at + row });
            }
            Ok(column)
        };
        let columns = self.places.iter().map(column).collect::<Result<Vec<ArrayRef>, RowsError>>()?;
        self.converter.convert_columns(&columns).map_err(|error| RowsError::Arrow(error.to_string()))
    }

    /// The library panics where bytes are no rows of its making: a client that writes records of its own may have written any
    /// bytes. What lies behind a row it does not see: such a tail is left out.
    fn decode(&self, rows: &[&[u8]]) -> Result<Vec<ArrayRef>, RowsError> {
        let decoded = catch_unwind(AssertUnwindSafe(|| {
            let parser = self.converter.parser();
            self.converter.convert_rows(rows.iter().map(|row| parser.parse(row)))
        }));
        match decoded {
            Ok(columns) => columns.map_err(damaged),
            Err(_) => Err(RowsError::Damaged("a row ends too early, or has a text that is none".into())),
        }
    }
}

fn damaged(error: ArrowError) -> RowsError {
    RowsError::Damaged(error.to_string())
}

/// The places of the columns that rows are sorted by, each of which is there, once.
fn sort_columns(schema: &Schema, order: &[SortColumn]) -> Result<BTreeSet<usize>, RowsError> {
    if order.is_empty() {
        return Err(RowsError::NoOrder);
    }
    let mut places = BTreeSet::new();
    for SortColumn { column, .. } in order {
        let place = *column as usize;
        let Some(field) = schema.fields().get(place) else {
            return Err(RowsError::NoColumn { column: *column, columns: schema.fields().len() });
        };
        if !places.insert(place) {
            return Err(RowsError::Twice { column: field.name().clone() });
        }
    }
    Ok(places)
}

/// Refuses the bytes of a schema that no shuffle may have, before anything is made of them.
pub(crate) fn check_message(schema: &[u8]) -> Result<(), RowsError> {
    if schema.len() > SHUFFLE_SCHEMA_BYTES {
        return Err(RowsError::LongSchema { bytes: schema.len() });
    }
    Ok(())
}

/// A schema as pyarrow's `Schema.serialize()` makes it.
fn message(schema: &Schema) -> Result<Vec<u8>, ArrowError> {
    let (options, mut tracker) = (IpcWriteOptions::default(), DictionaryTracker::new(false));
    let encoded = IpcDataGenerator {}.schema_to_bytes_with_dictionary_tracker(schema, &mut tracker, &options);
    let mut message = Vec::new();
    write_message(&mut message, encoded, &options)?;
    Ok(message)
}

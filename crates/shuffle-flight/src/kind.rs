//! What the records of a shuffle are to clients of Flight: rows of Arrow, or two columns of bytes, `key` and `value`.

use crate::combine::HeldRows;
use crate::ipc::is_plain;
use crate::limits::RAW_RECORDS;
use crate::rows::Rows;
use crate::status;
use arrow_array::builder::BinaryBuilder;
use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch};
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use partage_service::shuffle::record::Record;
use partage_service::shuffle::{Bytes, Combine, RecordKind, SortColumn};
use std::sync::Arc;
use tonic::Status;

/// The columns of raw records.
const KEY: &str = "key";
const VALUE: &str = "value";

/// What the records of a shuffle are.
#[derive(Debug)]
pub(crate) enum Kind {
    /// Key and value as they are, or as those of equal keys are combined.
    Raw(SchemaRef, Option<Combine>),
    /// Rows, and the columns by which they are ordered.
    Rows(Rows, Vec<SortColumn>),
}

/// Key and value of a record.
type Pair<'a> = (&'a [u8], &'a [u8]);

fn raw_schema() -> SchemaRef {
    let fields = [KEY, VALUE].map(|name| Field::new(name, DataType::Binary, false));
    Arc::new(Schema::new(fields.to_vec()))
}

/// One of both columns of raw records, in one of the types that bytes have.
fn raw_column<'a>(batch: &'a RecordBatch, name: &str) -> Result<Vec<&'a [u8]>, Status> {
    let none =
        || status::differs(format!("raw records have the columns key and value, and {name} is not there"));
    let column = batch.column_by_name(name).ok_or_else(none)?;
    if column.null_count() > 0 {
        let why = format!("column {name} has nulls, and raw records have none: write empty values");
        return Err(status::differs(why));
    }
    match column.data_type() {
        DataType::Binary => Ok(column.as_binary::<i32>().iter().flatten().collect()),
        DataType::LargeBinary => Ok(column.as_binary::<i64>().iter().flatten().collect()),
        DataType::FixedSizeBinary(_) => Ok(column.as_fixed_size_binary().iter().flatten().collect()),
        other => Err(raw_type(name, other)),
    }
}

fn raw_type(name: &str, found: &DataType) -> Status {
    status::differs(format!("column {name} is {found}, and raw records are binary: cast it"))
}

fn raw_accepts(schema: &Schema) -> Result<(), Status> {
    let mut names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    names.sort_unstable();
    if names != [KEY, VALUE] {
        let why = format!(
            "raw records have the columns key and value, and the schema has {}",
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        );
        return Err(status::differs(why));
    }
    let is_binary = |field: &&Arc<Field>| {
        matches!(field.data_type(), DataType::Binary | DataType::LargeBinary | DataType::FixedSizeBinary(_))
    };
    match schema.fields().iter().find(|field| !is_binary(field)) {
        Some(other) => Err(raw_type(other.name(), other.data_type())),
        None => Ok(()),
    }
}

fn bytes_column<'a>(values: impl ExactSizeIterator<Item = &'a [u8]> + Clone) -> Arc<dyn Array> {
    let bytes = values.clone().map(<[u8]>::len).sum();
    let mut builder = BinaryBuilder::with_capacity(values.len(), bytes);
    values.for_each(|value| builder.append_value(value));
    Arc::new(builder.finish())
}

fn raw_batch(schema: &SchemaRef, pairs: &[Pair<'_>]) -> Result<RecordBatch, Status> {
    let keys = bytes_column(pairs.iter().map(|pair| pair.0));
    let values = bytes_column(pairs.iter().map(|pair| pair.1));
    RecordBatch::try_new(Arc::clone(schema), vec![keys, values]).map_err(failed)
}

/// What cannot happen, but for a node of another version.
fn failed(why: impl std::fmt::Display) -> Status {
    Status::internal(format!(
        "the records are no rows of the shuffle: {why}: look whether all nodes have one version"
    ))
}

impl Kind {
    /// As a shuffle was started.
    pub(crate) fn of(kind: &RecordKind, combine: Option<Combine>) -> Result<Kind, Status> {
        match kind {
            RecordKind::Raw => Ok(Kind::Raw(raw_schema(), combine)),
            RecordKind::Arrow(arrow) => {
                let rows = Rows::of_kind(arrow).map_err(status::differs)?;
                Ok(Kind::Rows(rows, arrow.order.clone()))
            }
        }
    }

    /// What an attempt holds back of its rows, so that those of equal keys meet; none: they are not combined, or the buffer does
    /// it.
    pub(crate) fn held_rows(&self) -> Option<HeldRows> {
        match self {
            Kind::Rows(rows, _) if rows.combines() => Some(HeldRows::new(rows.clone())),
            _ => None,
        }
    }

    /// As rows are read.
    pub(crate) fn schema(&self) -> &SchemaRef {
        match self {
            Kind::Raw(schema, _) => schema,
            Kind::Rows(rows, _) => rows.schema(),
        }
    }

    /// Whether a writer's rows are those of the shuffle.
    pub(crate) fn accepts(&self, schema: &Schema) -> Result<(), Status> {
        match self {
            Kind::Raw(..) => raw_accepts(schema),
            Kind::Rows(rows, _) => rows.accepts(schema).map_err(status::differs),
        }
    }

    /// Records of rows that are accepted, from one row on, of some megabytes; at least one if there is a row.
    pub(crate) fn some_records(&self, batch: &RecordBatch, from: usize) -> Result<Vec<Record>, Status> {
        match self {
            Kind::Raw(..) => {
                let some = batch.slice(from, RAW_RECORDS.min(batch.num_rows().saturating_sub(from)));
                let (keys, values) = (raw_column(&some, KEY)?, raw_column(&some, VALUE)?);
                let record = |(key, value): (&[u8], &[u8])| Record { key: key.into(), value: value.into() };
                Ok(keys.into_iter().zip(values).map(record).collect())
            }
            Kind::Rows(rows, _) => rows.some_records(batch, from).map_err(status::differs),
        }
    }

    /// The rows of records.
    pub(crate) fn batch(&self, pairs: &[Pair<'_>]) -> Result<RecordBatch, Status> {
        match self {
            Kind::Raw(schema, _) => raw_batch(schema, pairs),
            Kind::Rows(rows, _) => rows.batch(pairs.iter().copied()).map_err(failed),
        }
    }

    /// The rows of the first columns of the order alone: their keys are those of whole rows, as far as they go.
    fn key_rows(rows: &Rows, order: &[SortColumn]) -> Result<Rows, Status> {
        let schema = rows.schema();
        let field = |one: &SortColumn| schema.fields().get(one.column as usize).cloned();
        let fields: Vec<_> = order.iter().filter_map(field).collect();
        let columns = (0_u32..).zip(order).map(|(column, one)| SortColumn { column, ..*one });
        Rows::new(&Schema::new(fields), &columns.collect::<Vec<_>>()).map_err(status::differs)
    }

    /// The key that a row of the columns of the order has, or of the first of them: a stream of Arrow IPC with that row.
    pub(crate) fn key(&self, stream: &[u8]) -> Result<Bytes, Status> {
        let not_read = |why: ArrowError| {
            status::malformed(format!("an end of an interval is no stream of Arrow IPC: {why}"))
        };
        if !is_plain(stream) {
            let why = "an end of an interval is no stream of Arrow IPC without compression: write one";
            return Err(status::malformed(why));
        }
        let mut batches = StreamReader::try_new(stream, None).map_err(not_read)?;
        let batch = match batches.next() {
            Some(batch) => batch.map_err(not_read)?,
            None => return Err(status::malformed("an end of an interval has no row: give one")),
        };
        if batch.num_rows() != 1 {
            let why = format!("an end of an interval has {} rows: give one", batch.num_rows());
            return Err(status::malformed(why));
        }
        match self {
            Kind::Raw(..) => {
                let key = raw_column(&batch, KEY)?;
                key.first().map(|key| Bytes::from(*key)).ok_or_else(|| failed("a row has no key"))
            }
            Kind::Rows(rows, order) => {
                let Some(first) = order.get(..batch.num_columns()).filter(|first| !first.is_empty()) else {
                    let why = format!(
                        "an end of an interval has {} columns: give the first 1 to {} of those that rows are ordered by",
                        batch.num_columns(),
                        order.len()
                    );
                    return Err(status::differs(why));
                };
                let rows = Kind::key_rows(rows, first)?;
                rows.accepts(batch.schema_ref()).map_err(status::differs)?;
                let record = rows.records(&batch).map_err(status::differs)?.into_iter().next();
                record.map(|record| record.key).ok_or_else(|| failed("a row has no key"))
            }
        }
    }

    /// Keys as rows of the columns of the order: a stream of Arrow IPC.
    pub(crate) fn keys_as_rows(&self, keys: &[Bytes]) -> Result<Vec<u8>, Status> {
        let nothing: &[u8] = &[];
        let pairs: Vec<Pair<'_>> = keys.iter().map(|key| (&key[..], nothing)).collect();
        let batch = match self {
            Kind::Raw(schema, _) => {
                let batch = raw_batch(schema, &pairs)?;
                batch.project(&[0]).map_err(failed)?
            }
            Kind::Rows(rows, order) => {
                let rows = Kind::key_rows(rows, order)?;
                rows.batch(pairs.into_iter()).map_err(failed)?
            }
        };
        let mut writer = StreamWriter::try_new(Vec::new(), batch.schema_ref()).map_err(failed)?;
        writer.write(&batch).map_err(failed)?;
        writer.into_inner().map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{BinaryArray, Int64Array, LargeBinaryArray};

    fn raw(columns: Vec<(&str, Arc<dyn Array>)>) -> RecordBatch {
        RecordBatch::try_from_iter(columns).unwrap()
    }

    #[test]
    fn raw_records_are_two_columns_of_bytes_in_any_order() {
        let kind = Kind::of(&RecordKind::Raw, None).unwrap();
        let keys: Arc<dyn Array> = Arc::new(BinaryArray::from_vec(vec![b"b".as_slice(), b""]));
        let values: Arc<dyn Array> = Arc::new(LargeBinaryArray::from_vec(vec![b"1".as_slice(), b"22"]));
        let batch = raw(vec![("value", values.clone()), ("key", keys.clone())]);
        kind.accepts(batch.schema_ref()).unwrap();
        let records = kind.some_records(&batch, 0).unwrap();
        let pairs: Vec<Pair<'_>> = records.iter().map(|one| (&one.key[..], &one.value[..])).collect();
        let expected: [Pair<'_>; 2] = [(b"b", b"1"), (b"", b"22")];
        assert_eq!(pairs, expected);
        let back = kind.batch(&pairs).unwrap();
        assert_eq!((back.schema_ref(), back.num_rows()), (kind.schema(), 2));
        assert_eq!(kind.some_records(&back, 0).unwrap(), records);

        let numbers: Arc<dyn Array> = Arc::new(Int64Array::from(vec![1, 2]));
        for (columns, part) in [
            (vec![("key", keys.clone())], "the schema has key"),
            (vec![("key", keys.clone()), ("value", numbers)], "column value is Int64"),
            (vec![("key", keys.clone()), ("value", values.clone()), ("more", values)], "key, more, value"),
        ] {
            let why = kind.accepts(raw(columns).schema_ref()).unwrap_err();
            assert!(why.message().contains(part), "{why}");
        }
        let nulls: Arc<dyn Array> = Arc::new(BinaryArray::from_opt_vec(vec![None, Some(b"x".as_slice())]));
        let why = kind.some_records(&raw(vec![("key", nulls), ("value", keys)]), 0).unwrap_err();
        assert!(why.message().contains("column key has nulls"), "{why}");
    }

    #[test]
    fn a_key_goes_to_a_client_and_comes_back() {
        let kind = Kind::of(&RecordKind::Raw, None).unwrap();
        let stream = kind.keys_as_rows(&[b"some key".as_slice().into()]).unwrap();
        assert_eq!(&kind.key(&stream).unwrap()[..], b"some key");
        let two = kind.keys_as_rows(&[b"a".as_slice().into(), b"b".as_slice().into()]).unwrap();
        assert!(kind.key(&two).unwrap_err().message().contains("has 2 rows"));
        assert!(kind.key(b"nothing").unwrap_err().message().contains("no stream of Arrow IPC"));
    }
}

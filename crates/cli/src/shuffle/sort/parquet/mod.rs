//! Apache Parquet. The parts have the schema, the compression and the key-value metadata of the first file.
//!
//! Rows are read and written column by column, with their levels ([`column`]), so that what is nested comes out as it was. An
//! input partition is a row group; some rows of it are in memory at a time.

mod column;
#[cfg(test)]
mod tests;

use super::by::By;
use super::layout::{PartWriter, Piece, Take, cannot_write, length, open};
use crate::output::Failure;
use column::{Column, Sorted};
use parquet::basic::{Compression, LogicalType, SortOrder, Type as PhysicalType};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{WriterProperties, WriterPropertiesPtr};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{ColumnDescriptor, SchemaDescriptor, TypePtr};
use partage_shuffle_client::key::{Order, put};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Rows that are read at a time.
const READ_ROWS: usize = 1_024;

/// A row group that is written has at most so many rows, and is written when its rows have so many bytes.
const GROUP_ROWS: usize = 1 << 20;
const GROUP_BYTES: usize = 32 << 20;

/// A column by which rows are sorted.
#[derive(Debug)]
struct SortColumn {
    at: usize,
    sorted: Sorted,
    order: Order,
}

/// The schema of Parquet files, and by what they are sorted.
#[derive(Debug)]
pub struct Parquet {
    schema: TypePtr,
    compression: Compression,
    metadata: Option<Vec<KeyValue>>,
    columns: Vec<SortColumn>,
}

fn cannot_read(file: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("cannot read {} as Parquet: {error}", file.display()))
        .help("write the file again, or say its format with --format")
}

fn reader(file: &Path) -> Result<SerializedFileReader<File>, Failure> {
    SerializedFileReader::new(open(file)?).map_err(|error| cannot_read(file, error))
}

impl Parquet {
    /// See [`super::layout::Layout::of`].
    pub fn of(files: &[PathBuf], by: &[By]) -> Result<(Parquet, Vec<Piece>), Failure> {
        let mut pieces = Vec::new();
        let mut first: Option<(&Path, Parquet)> = None;
        for file in files {
            length(file)?;
            let reader = reader(file)?;
            let metadata = reader.metadata();
            let schema = metadata.file_metadata().schema_descr();
            match &first {
                Some((name, first)) if first.schema != schema.root_schema_ptr() => {
                    let what = format!("{} has another schema than {}", file.display(), name.display());
                    return Err(Failure::usage(what).help("sort files of one schema together"));
                }
                Some(_) => {}
                None => {
                    let columns = by.iter().map(|by| sort_column(by, file, schema));
                    let groups = metadata.row_groups().first();
                    let codec = groups.and_then(|group| group.columns().first());
                    let parquet = Parquet {
                        schema: schema.root_schema_ptr(),
                        compression: codec.map_or(Compression::UNCOMPRESSED, |column| column.compression()),
                        metadata: metadata.file_metadata().key_value_metadata().cloned(),
                        columns: columns.collect::<Result<_, _>>()?,
                    };
                    first = Some((file.as_path(), parquet));
                }
            }
            let groups = metadata.num_row_groups() as u64;
            pieces.extend((0..groups).map(|at| Piece { file: file.clone(), begin: at, end: at + 1 }));
        }
        let none = || Failure::usage("no file is named").help("name the files that are to be sorted");
        Ok((first.ok_or_else(none)?.1, pieces))
    }

    fn empty_columns(&self) -> Vec<Column> {
        let schema = SchemaDescriptor::new(Arc::clone(&self.schema));
        schema.columns().iter().map(|column| Column::new(column)).collect()
    }

    /// See [`super::layout::Layout::read`]. What was read is told in bytes of the row group as it lies in the file.
    pub fn read(&self, piece: &Piece, take: &mut Take<'_>) -> Result<(), Failure> {
        let cannot = |error: ParquetError| cannot_read(&piece.file, error);
        let file = reader(&piece.file)?;
        for at in piece.begin..piece.end {
            let group = file.get_row_group(at as usize).map_err(cannot)?;
            let metadata = group.metadata();
            let rows = u64::try_from(metadata.num_rows()).unwrap_or(0);
            let bytes = u64::try_from(metadata.compressed_size()).unwrap_or(0);
            let readers = (0..group.num_columns()).map(|column| group.get_column_reader(column));
            let mut readers = readers.collect::<Result<Vec<_>, _>>().map_err(cannot)?;
            let mut columns = self.empty_columns();
            let (mut key, mut row, mut scratch) = (Vec::new(), Vec::new(), Vec::new());
            let mut done = 0;
            while done < rows {
                let wanted = usize::try_from(rows - done).unwrap_or(READ_ROWS).min(READ_ROWS);
                for (column, reader) in columns.iter_mut().zip(&mut readers) {
                    let found = column.read(reader, wanted).map_err(cannot)?;
                    if found != wanted {
                        let what = format!("a column of row group {at} has fewer rows than the group");
                        return Err(cannot_read(&piece.file, what));
                    }
                }
                for number in done + 1..=done + wanted as u64 {
                    key.clear();
                    row.clear();
                    for SortColumn { at, sorted, order } in &self.columns {
                        put(columns[*at].key(*sorted, &mut scratch), *order, &mut key);
                    }
                    columns.iter_mut().for_each(|column| column.put_row(&mut row));
                    if !take(&key, &row, bytes.saturating_mul(number) / rows) {
                        return Ok(());
                    }
                }
                done += wanted as u64;
            }
        }
        Ok(())
    }

    /// Writes a part.
    pub fn writer(&self, file: File) -> Result<Box<dyn PartWriter>, Failure> {
        let properties: WriterPropertiesPtr = Arc::new(
            WriterProperties::builder()
                .set_compression(self.compression)
                .set_key_value_metadata(self.metadata.clone())
                .build(),
        );
        let file = SerializedFileWriter::new(file, Arc::clone(&self.schema), properties);
        let file = file.map_err(cannot_write)?;
        Ok(Box::new(RowGroupWriter { file, columns: self.empty_columns(), rows: 0, bytes: 0 }))
    }
}

fn sort_column(by: &By, file: &Path, schema: &SchemaDescriptor) -> Result<SortColumn, Failure> {
    let name = |column: &ColumnDescriptor| column.path().string();
    let at = schema.columns().iter().position(|column| name(column) == by.column).ok_or_else(|| {
        let names: Vec<String> = schema.columns().iter().map(|column| name(column)).collect();
        let what = format!("{} has no column {:?}: it has {}", file.display(), by.column, names.join(", "));
        Failure::usage(what)
            .help("name a column by --by as the schema has it; one in a struct as STRUCT.FIELD")
    })?;
    let no_order = |why: &str| {
        Failure::usage(format!("nothing is sorted by column {:?}: it is {why}", by.column))
            .help("name another column by --by")
    };
    if by.is_number {
        return Err(Failure::usage(format!("column {:?} has its type from the file", by.column))
            .help("leave :number out"));
    }
    let column = schema.column(at);
    if column.max_rep_level() > 0 {
        return Err(no_order("in a list or map"));
    }
    if column.logical_type_ref() == Some(&LogicalType::Float16) {
        return Err(no_order("of floats with 16 bits"));
    }
    let sorted = match (column.physical_type(), column.sort_order()) {
        (PhysicalType::INT96 | PhysicalType::FLOAT | PhysicalType::DOUBLE | PhysicalType::BOOLEAN, _) => {
            Sorted::Plain
        }
        (PhysicalType::INT32 | PhysicalType::INT64, SortOrder::UNSIGNED) => Sorted::Unsigned,
        (PhysicalType::INT32 | PhysicalType::INT64, _) => Sorted::Plain,
        (PhysicalType::FIXED_LEN_BYTE_ARRAY, SortOrder::SIGNED) => Sorted::SignedBytes,
        (PhysicalType::BYTE_ARRAY, SortOrder::SIGNED) => return Err(no_order("of decimals of any length")),
        (_, SortOrder::UNDEFINED) => return Err(no_order("of a type that has no order")),
        (PhysicalType::BYTE_ARRAY | PhysicalType::FIXED_LEN_BYTE_ARRAY, _) => Sorted::Plain,
    };
    Ok(SortColumn { at, sorted, order: by.order })
}

/// Writes rows in groups.
struct RowGroupWriter {
    file: SerializedFileWriter<File>,
    columns: Vec<Column>,
    rows: usize,
    bytes: usize,
}

impl RowGroupWriter {
    fn write_group(&mut self) -> Result<(), ParquetError> {
        let mut group = self.file.next_row_group()?;
        for column in &mut self.columns {
            let fewer = || ParquetError::General("the schema has fewer columns than its rows".to_owned());
            let mut writer = group.next_column()?.ok_or_else(fewer)?;
            column.write(&mut writer)?;
            writer.close()?;
            column.clear();
        }
        group.close()?;
        (self.rows, self.bytes) = (0, 0);
        Ok(())
    }
}

impl PartWriter for RowGroupWriter {
    fn put(&mut self, _: &[u8], value: &[u8]) -> Result<(), Failure> {
        let mut from = value;
        let taken = self.columns.iter_mut().try_for_each(|column| column.take_row(&mut from));
        if taken.is_none() || !from.is_empty() {
            return Err(Failure::failed("a row was read that is no row of the schema")
                .help("sort again, and report this"));
        }
        self.rows += 1;
        self.bytes += value.len();
        if self.rows >= GROUP_ROWS || self.bytes >= GROUP_BYTES {
            self.write_group().map_err(cannot_write)?;
        }
        Ok(())
    }

    fn end(mut self: Box<Self>) -> Result<File, Failure> {
        if self.rows > 0 {
            self.write_group().map_err(cannot_write)?;
        }
        let RowGroupWriter { file, .. } = *self;
        file.into_inner().map_err(cannot_write)
    }
}

//! The values of one column, with the levels that say where lists, structs and nulls begin and end, and one row of them as bytes.
//!
//! ```text
//!  entries 4 (only in a list) · ( definition level 2 (if there is more than one) · repetition level 2 (likewise) · value )*
//! ```
//!
//! Numbers have their least significant byte first. Values are as the format has them plainly: a bit as a byte, a text with its
//! length in 4 bytes. So a row is written again as it was, however deep its columns are.

use parquet::column::reader::ColumnReader;
use parquet::data_type::{
    BoolType, ByteArray, ByteArrayType, DoubleType, FixedLenByteArray, FixedLenByteArrayType, FloatType,
    Int32Type, Int64Type, Int96, Int96Type,
};
use parquet::errors::{ParquetError, Result};
use parquet::file::writer::SerializedColumnWriter;
use parquet::schema::types::ColumnDescriptor;
use partage_shuffle_client::key::{Value, of_signed};

/// A value as bytes.
trait Plain: Sized {
    fn put(&self, out: &mut Vec<u8>);
    /// None: the bytes end before.
    fn take(from: &mut &[u8]) -> Option<Self>;
}

/// The first bytes, which are taken away.
fn array<const BYTES: usize>(from: &mut &[u8]) -> Option<[u8; BYTES]> {
    let (first, rest) = from.split_first_chunk::<BYTES>()?;
    *from = rest;
    Some(*first)
}

macro_rules! numbers {
    ($($type:ty),*) => {
        $(impl Plain for $type {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend(self.to_le_bytes());
            }
            fn take(from: &mut &[u8]) -> Option<Self> {
                array(from).map(Self::from_le_bytes)
            }
        })*
    };
}

numbers!(i32, i64, u32, i16, f32, f64);

impl Plain for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn take(from: &mut &[u8]) -> Option<Self> {
        array::<1>(from).map(|[byte]| byte != 0)
    }
}

impl Plain for Int96 {
    fn put(&self, out: &mut Vec<u8>) {
        self.data().iter().for_each(|part| part.put(out));
    }
    fn take(from: &mut &[u8]) -> Option<Self> {
        let mut value = Int96::new();
        value.set_data(u32::take(from)?, u32::take(from)?, u32::take(from)?);
        Some(value)
    }
}

impl Plain for ByteArray {
    fn put(&self, out: &mut Vec<u8>) {
        (self.data().len() as u32).put(out);
        out.extend_from_slice(self.data());
    }
    fn take(from: &mut &[u8]) -> Option<Self> {
        let length = u32::take(from)? as usize;
        let (bytes, rest) = from.split_at_checked(length)?;
        *from = rest;
        Some(ByteArray::from(bytes))
    }
}

impl Plain for FixedLenByteArray {
    fn put(&self, out: &mut Vec<u8>) {
        ByteArray::put(self, out);
    }
    fn take(from: &mut &[u8]) -> Option<Self> {
        ByteArray::take(from).map(FixedLenByteArray::from)
    }
}

/// How a column becomes a part of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sorted {
    /// As the values are.
    Plain,
    /// Integers without a sign.
    Unsigned,
    /// Bytes that are an integer with a sign, most significant byte first.
    SignedBytes,
}

macro_rules! columns {
    ($($variant:ident, $reader:ident, $data:ty, $value:ty;)*) => {
        #[derive(Debug)]
        enum Values {
            $($variant(Vec<$value>),)*
        }

        impl Values {
            fn put(&self, at: usize, out: &mut Vec<u8>) {
                match self {
                    $(Values::$variant(values) => values[at].put(out),)*
                }
            }

            fn take(&mut self, from: &mut &[u8]) -> Option<()> {
                match self {
                    $(Values::$variant(values) => values.push(Plain::take(from)?),)*
                }
                Some(())
            }

            fn clear(&mut self) {
                match self {
                    $(Values::$variant(values) => values.clear(),)*
                }
            }
        }

        impl Column {
            /// Reads so many rows in place of those that are here. Says how many there were.
            pub fn read(&mut self, reader: &mut ColumnReader, rows: usize) -> Result<usize> {
                self.clear();
                let Column { definitions, repetitions, values, .. } = self;
                let levels = (Some(definitions), Some(repetitions));
                let (rows, ..) = match (reader, values) {
                    $((ColumnReader::$reader(reader), Values::$variant(values)) => {
                        reader.read_records(rows, levels.0, levels.1, values)?
                    })*
                    _ => return Err(ParquetError::General("a column has another type than its schema".to_owned())),
                };
                Ok(rows)
            }

            /// Writes all rows that are here.
            pub fn write(&self, writer: &mut SerializedColumnWriter<'_>) -> Result<()> {
                let definitions = (self.most_definition > 0).then_some(&self.definitions[..]);
                let repetitions = (self.most_repetition > 0).then_some(&self.repetitions[..]);
                match &self.values {
                    $(Values::$variant(values) => {
                        writer.typed::<$data>().write_batch(values, definitions, repetitions)?;
                    })*
                }
                Ok(())
            }
        }
    };
}

columns! {
    Bool, BoolColumnReader, BoolType, bool;
    Int32, Int32ColumnReader, Int32Type, i32;
    Int64, Int64ColumnReader, Int64Type, i64;
    Int96, Int96ColumnReader, Int96Type, Int96;
    Float, FloatColumnReader, FloatType, f32;
    Double, DoubleColumnReader, DoubleType, f64;
    Bytes, ByteArrayColumnReader, ByteArrayType, ByteArray;
    Fixed, FixedLenByteArrayColumnReader, FixedLenByteArrayType, FixedLenByteArray;
}

/// Some rows of a column.
#[derive(Debug)]
pub struct Column {
    most_definition: i16,
    most_repetition: i16,
    definitions: Vec<i16>,
    repetitions: Vec<i16>,
    values: Values,
    /// Where the next row begins: among the levels, and among the values.
    level: usize,
    value: usize,
}

impl Column {
    /// Without rows.
    pub fn new(column: &ColumnDescriptor) -> Column {
        use parquet::basic::Type;
        let values = match column.physical_type() {
            Type::BOOLEAN => Values::Bool(Vec::new()),
            Type::INT32 => Values::Int32(Vec::new()),
            Type::INT64 => Values::Int64(Vec::new()),
            Type::INT96 => Values::Int96(Vec::new()),
            Type::FLOAT => Values::Float(Vec::new()),
            Type::DOUBLE => Values::Double(Vec::new()),
            Type::BYTE_ARRAY => Values::Bytes(Vec::new()),
            Type::FIXED_LEN_BYTE_ARRAY => Values::Fixed(Vec::new()),
        };
        Column {
            most_definition: column.max_def_level(),
            most_repetition: column.max_rep_level(),
            definitions: Vec::new(),
            repetitions: Vec::new(),
            values,
            level: 0,
            value: 0,
        }
    }

    /// Forgets all rows.
    pub fn clear(&mut self) {
        self.definitions.clear();
        self.repetitions.clear();
        self.values.clear();
        (self.level, self.value) = (0, 0);
    }

    /// Whether the entry at that place among the levels has a value.
    fn has_value(&self, level: usize) -> bool {
        self.most_definition == 0 || self.definitions.get(level) == Some(&self.most_definition)
    }

    /// What the next row has, of a column outside of lists.
    pub fn key<'a>(&'a self, sorted: Sorted, bytes: &'a mut Vec<u8>) -> Value<'a> {
        if !self.has_value(self.level) {
            return Value::Null;
        }
        let at = self.value;
        match (&self.values, sorted) {
            (Values::Bool(values), _) => Value::Bool(values[at]),
            (Values::Int32(values), Sorted::Unsigned) => Value::Unsigned(u64::from(values[at] as u32)),
            (Values::Int32(values), _) => Value::Int(i64::from(values[at])),
            (Values::Int64(values), Sorted::Unsigned) => Value::Unsigned(values[at] as u64),
            (Values::Int64(values), _) => Value::Int(values[at]),
            (Values::Int96(values), _) => {
                // Nanoseconds of a day in the first two parts, the day in the last one.
                let parts = values[at].data();
                let ordered = [parts[2], parts[1], parts[0]].map(u32::to_be_bytes).concat();
                *bytes = of_signed(&ordered);
                Value::Text(bytes)
            }
            (Values::Float(values), _) => Value::Float(f64::from(values[at])),
            (Values::Double(values), _) => Value::Float(values[at]),
            (Values::Bytes(values), _) => Value::Text(values[at].data()),
            (Values::Fixed(values), Sorted::SignedBytes) => {
                *bytes = of_signed(values[at].data());
                Value::Text(bytes)
            }
            (Values::Fixed(values), _) => Value::Text(values[at].data()),
        }
    }

    /// Writes the next row, and goes to the one behind it.
    pub fn put_row(&mut self, out: &mut Vec<u8>) {
        let entries = if self.most_repetition == 0 {
            1
        } else {
            let behind = self.repetitions.get(self.level + 1..).unwrap_or_default();
            1 + behind.iter().take_while(|level| **level > 0).count()
        };
        if self.most_repetition > 0 {
            (entries as u32).put(out);
        }
        for level in self.level..self.level + entries {
            if self.most_definition > 0 {
                self.definitions.get(level).copied().unwrap_or(0).put(out);
            }
            if self.most_repetition > 0 {
                self.repetitions.get(level).copied().unwrap_or(0).put(out);
            }
            if self.has_value(level) {
                self.values.put(self.value, out);
                self.value += 1;
            }
        }
        self.level += entries;
    }

    /// Adds a row that [`Column::put_row`] has written. None: these bytes are none.
    pub fn take_row(&mut self, from: &mut &[u8]) -> Option<()> {
        let entries = if self.most_repetition > 0 { u32::take(from)? } else { 1 };
        for _ in 0..entries {
            let definition = if self.most_definition > 0 { i16::take(from)? } else { 0 };
            if self.most_definition > 0 {
                self.definitions.push(definition);
            }
            if self.most_repetition > 0 {
                self.repetitions.push(i16::take(from)?);
            }
            if definition == self.most_definition {
                self.values.take(from)?;
            }
        }
        Some(())
    }
}

//! What rows take when they are encoded, counted before anything of them is made: a message of some kilobytes can say that a long
//! value stands in each of a thousand rows, or that a list has a billion items of no bytes. Arrow reserves what it counts at
//! once.
//!
//! The count is that of the encoding, or a little more: what an encoder has beside it, such as the items of lists by themselves,
//! is counted too. It goes no further than its bound.

use super::limits::{PIECE_BYTES, ROW_BYTES};
use arrow_array::cast::AsArray;
use arrow_array::types::{Int16Type, Int32Type, Int64Type, RunEndIndexType};
use arrow_array::{Array, ArrayRef, OffsetSizeTrait};
use arrow_schema::DataType;
use std::ops::Range;

/// What an encoder has for each value that is part of another one: where it ends.
const PLACE_BYTES: u64 = 8;

/// How many rows from one on are encoded at once, of so many at most. An error: one row alone has at least so many bytes, and is
/// too long.
pub fn fitting(columns: &[ArrayRef], first: usize, most_rows: usize) -> Result<usize, u64> {
    let mut rows = most_rows.max(1);
    loop {
        let most = if rows == 1 { ROW_BYTES } else { PIECE_BYTES };
        let mut count = Count { bytes: 0, most };
        let counted = columns.iter().try_for_each(|column| count.rows(column.as_ref(), first..first + rows));
        match counted {
            Some(()) => return Ok(rows),
            None if rows == 1 => return Err(count.bytes),
            None => rows /= 2,
        }
    }
}

/// What some rows take, without a bound.
#[cfg(test)]
pub fn bytes(columns: &[ArrayRef], rows: Range<usize>) -> u64 {
    let mut count = Count { bytes: 0, most: u64::MAX };
    for column in columns {
        count.rows(column.as_ref(), rows.clone());
    }
    count.bytes
}

/// The bytes of each value of a type, if all have as many.
fn width(of: &DataType) -> Option<u64> {
    match of {
        DataType::Null | DataType::Boolean => Some(2),
        DataType::FixedSizeBinary(size) => Some(1 + u64::try_from(*size).unwrap_or(0)),
        other => other.primitive_width().map(|bytes| 1 + bytes as u64),
    }
}

/// The bytes of a value of any length, which is written in blocks.
fn in_blocks(bytes: u64) -> u64 {
    if bytes <= 32 {
        1 + 9 * bytes.div_ceil(8)
    } else {
        4_u64.saturating_add(bytes.div_ceil(32).saturating_mul(33))
    }
}

/// Bytes so far; each step says none when they are more than the most.
struct Count {
    bytes: u64,
    most: u64,
}

impl Count {
    fn add(&mut self, bytes: u64) -> Option<()> {
        self.bytes = self.bytes.saturating_add(bytes);
        (self.bytes <= self.most).then_some(())
    }

    fn each(&mut self, rows: &Range<usize>, bytes: u64) -> Option<()> {
        self.add(bytes.saturating_mul(rows.len() as u64))
    }

    /// Some rows of a column.
    fn rows(&mut self, of: &dyn Array, rows: Range<usize>) -> Option<()> {
        if let Some(bytes) = width(of.data_type()) {
            return self.each(&rows, bytes);
        }
        match of.data_type() {
            DataType::Utf8 => self.texts(of, of.as_string::<i32>().value_offsets(), rows),
            DataType::LargeUtf8 => self.texts(of, of.as_string::<i64>().value_offsets(), rows),
            DataType::Binary => self.texts(of, of.as_binary::<i32>().value_offsets(), rows),
            DataType::LargeBinary => self.texts(of, of.as_binary::<i64>().value_offsets(), rows),
            DataType::Utf8View => self.views(of, of.as_string_view().views(), rows),
            DataType::BinaryView => self.views(of, of.as_binary_view().views(), rows),
            DataType::List(_) => {
                let lists = of.as_list::<i32>();
                self.lists(lists.values().as_ref(), lists.value_offsets(), rows)
            }
            DataType::LargeList(_) => {
                let lists = of.as_list::<i64>();
                self.lists(lists.values().as_ref(), lists.value_offsets(), rows)
            }
            DataType::ListView(_) => {
                let lists = of.as_list_view::<i32>();
                self.list_views(lists.values().as_ref(), (lists.value_offsets(), lists.value_sizes()), rows)
            }
            DataType::LargeListView(_) => {
                let lists = of.as_list_view::<i64>();
                self.list_views(lists.values().as_ref(), (lists.value_offsets(), lists.value_sizes()), rows)
            }
            DataType::FixedSizeList(_, size) => {
                let size = usize::try_from(*size).unwrap_or(0);
                let items = rows.start.saturating_mul(size)..rows.end.saturating_mul(size);
                self.each(&rows, 1 + PLACE_BYTES)?;
                self.each(&items, PLACE_BYTES)?;
                self.rows(of.as_fixed_size_list().values().as_ref(), items)
            }
            DataType::Struct(_) => {
                self.each(&rows, 1 + PLACE_BYTES)?;
                let mut columns = of.as_struct().columns().iter();
                columns.try_for_each(|column| self.rows(column.as_ref(), rows.clone()))
            }
            DataType::Dictionary(..) => self.dictionary(of, rows),
            DataType::RunEndEncoded(ends, _) => match ends.data_type() {
                DataType::Int16 => self.runs::<Int16Type>(of, rows),
                DataType::Int32 => self.runs::<Int32Type>(of, rows),
                _ => self.runs::<Int64Type>(of, rows),
            },
            // No shuffle has such a column.
            _ => self.each(&rows, 1),
        }
    }

    fn value(&mut self, bytes: u64, is_null: bool) -> Option<()> {
        self.add(if is_null { 1 } else { in_blocks(bytes) })
    }

    fn texts<O: OffsetSizeTrait>(&mut self, of: &dyn Array, ends: &[O], rows: Range<usize>) -> Option<()> {
        let ends = ends.get(rows.start..=rows.end).unwrap_or_default();
        for (row, ends) in rows.zip(ends.windows(2)) {
            let [begin, end] = ends else { continue };
            self.value((end.as_usize() - begin.as_usize()) as u64, of.is_null(row))?;
        }
        Some(())
    }

    fn views(&mut self, of: &dyn Array, views: &[u128], rows: Range<usize>) -> Option<()> {
        let views = views.get(rows.clone()).unwrap_or_default();
        for (row, view) in rows.zip(views) {
            // Its lowest 32 bits are the length.
            self.value((view & u128::from(u32::MAX)) as u64, of.is_null(row))?;
        }
        Some(())
    }

    /// Each item of a list is written in blocks.
    fn items(&mut self, values: &dyn Array, items: Range<usize>) -> Option<()> {
        if let Some(bytes) = width(values.data_type()) {
            return self.each(&items, in_blocks(bytes));
        }
        for item in items {
            let mut one = Count { bytes: 0, most: self.most - self.bytes };
            // What is above the most is above it in blocks, too.
            let _ = one.rows(values, item..item + 1);
            self.add(in_blocks(one.bytes))?;
        }
        Some(())
    }

    fn lists<O: OffsetSizeTrait>(
        &mut self,
        values: &dyn Array,
        ends: &[O],
        rows: Range<usize>,
    ) -> Option<()> {
        self.each(&rows, 1 + PLACE_BYTES)?;
        let of = |row: usize| ends.get(row).map_or(0, |end| end.as_usize());
        self.items(values, of(rows.start)..of(rows.end))
    }

    /// Lists may overlap: each has its items. What lies between them is encoded too.
    fn list_views<O: OffsetSizeTrait>(
        &mut self,
        values: &dyn Array,
        (begins, sizes): (&[O], &[O]),
        rows: Range<usize>,
    ) -> Option<()> {
        self.each(&rows, 1 + PLACE_BYTES)?;
        let (begins, sizes) = (begins.get(rows.clone())?, sizes.get(rows)?);
        let lists = || {
            let lists = begins.iter().zip(sizes).map(|(begin, size)| (begin.as_usize(), size.as_usize()));
            lists.filter(|(_, size)| *size > 0).map(|(begin, size)| begin..begin + size)
        };
        let begin = lists().map(|list| list.start).min().unwrap_or(0);
        let end = lists().map(|list| list.end).max().unwrap_or(0);
        self.each(&(begin..end), PLACE_BYTES)?;
        self.rows(values, begin..end)?;
        lists().try_for_each(|list| self.items(values, list))
    }

    /// A long value may stand in each row.
    fn dictionary(&mut self, of: &dyn Array, rows: Range<usize>) -> Option<()> {
        let some = of.slice(rows.start, rows.len());
        let dictionary = some.as_any_dictionary();
        let values = dictionary.values();
        if values.is_empty() {
            return self.each(&rows, 1);
        }
        for (row, value) in dictionary.normalized_keys().into_iter().enumerate() {
            if dictionary.keys().is_null(row) {
                self.add(1)?;
            } else {
                self.rows(values.as_ref(), value..value + 1)?;
            }
        }
        Some(())
    }

    fn runs<R: RunEndIndexType>(&mut self, of: &dyn Array, mut rows: Range<usize>) -> Option<()> {
        let runs = of.as_run::<R>();
        rows.try_for_each(|row| {
            let value = runs.get_physical_index(row);
            self.rows(runs.values().as_ref(), value..value + 1)
        })
    }
}

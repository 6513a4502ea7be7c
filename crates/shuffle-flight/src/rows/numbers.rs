//! Rows that are equal in their sort columns become one: the numbers of each other column become their count, sum, least or
//! largest one.
//!
//! | type of the column | a sum |
//! |---|---|
//! | whole numbers of 8 to 64 bits, with or without a sign | is exact, and refused if it does not fit into the type |
//! | floats of 32 and 64 bits | is rounded as floats are, in 64 bits |
//!
//! Nulls are left out. A count is one of whole numbers: that of the rows with a value, whichever it is.

use super::{Part, Rows};
use crate::error::RowsError;
use arrow_array::builder::PrimitiveBuilder;
use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type,
    UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, Schema};
use partage_service::shuffle::Bytes;
use partage_shuffle_wire::client::{ColumnCombine, CombinedColumn};
use std::cmp::Ordering;
use std::sync::Arc;

/// A value of a column that is combined.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Number {
    Null,
    Whole(i128),
    Float(f64),
}

/// The numbers of a row, in the order of the schema.
pub(crate) type Numbers = Vec<Number>;

/// A column that is combined.
#[derive(Debug)]
pub(super) struct NumberColumn {
    name: String,
    data_type: DataType,
    by: ColumnCombine,
}

/// The columns that are combined, in the order of the schema: each that rows are not sorted by, once.
pub(super) fn number_columns(
    schema: &Schema,
    others: &[usize],
    combine: &[CombinedColumn],
) -> Result<Vec<NumberColumn>, RowsError> {
    let named = |place: usize| combine.iter().filter(move |one| one.column as usize == place);
    if let Some(wrong) = combine.iter().find(|one| !others.contains(&(one.column as usize))) {
        let field = schema.fields().get(wrong.column as usize);
        let column = field.map_or_else(|| wrong.column.to_string(), |field| field.name().clone());
        return Err(RowsError::Combined { column, why: "it is no column beside those of the order" });
    }
    let column = |place: &usize| {
        let field = schema.field(*place);
        let refused = |why| RowsError::Combined { column: field.name().clone(), why };
        let by = match (named(*place).next(), named(*place).count()) {
            (Some(one), 1) => one.by,
            (None, _) => return Err(refused("it is not named: name each column beside those of the order")),
            _ => return Err(refused("it is named twice")),
        };
        match field.data_type() {
            whole if whole.is_integer() => {}
            DataType::Float32 | DataType::Float64 if by != ColumnCombine::Count => {}
            DataType::Float32 | DataType::Float64 => {
                return Err(refused("a count is a whole number, and its type is one of floats"));
            }
            _ => {
                return Err(refused("its type is none of whole numbers or floats: cast it, or leave it out"));
            }
        }
        Ok(NumberColumn { name: field.name().clone(), data_type: field.data_type().clone(), by })
    };
    others.iter().map(column).collect()
}

/// By value, −0 before 0, NaN last whatever its sign: as sort columns are ordered.
fn order(first: f64, second: f64) -> Ordering {
    match (first.is_nan(), second.is_nan()) {
        (false, false) => first.total_cmp(&second),
        (first, second) => first.cmp(&second),
    }
}

fn added(by: ColumnCombine, first: Number, second: Number) -> Number {
    match (first, second) {
        (Number::Null, one) | (one, Number::Null) => one,
        (Number::Whole(first), Number::Whole(second)) => Number::Whole(match by {
            ColumnCombine::Count | ColumnCombine::Sum => first.saturating_add(second),
            ColumnCombine::Min => first.min(second),
            ColumnCombine::Max => first.max(second),
        }),
        (Number::Float(first), Number::Float(second)) => Number::Float(match by {
            ColumnCombine::Count | ColumnCombine::Sum => first + second,
            ColumnCombine::Min => {
                if order(first, second).is_le() {
                    first
                } else {
                    second
                }
            }
            ColumnCombine::Max => {
                if order(first, second).is_ge() {
                    first
                } else {
                    second
                }
            }
        }),
        // A column has one type.
        (one, _) => one,
    }
}

fn wholes<T: ArrowPrimitiveType>(array: &dyn Array) -> Vec<Number>
where
    T::Native: Into<i128>,
{
    let number = |value: Option<T::Native>| value.map_or(Number::Null, |value| Number::Whole(value.into()));
    array.as_primitive::<T>().iter().map(number).collect()
}

fn floats<T: ArrowPrimitiveType>(array: &dyn Array) -> Vec<Number>
where
    T::Native: Into<f64>,
{
    let number = |value: Option<T::Native>| value.map_or(Number::Null, |value| Number::Float(value.into()));
    array.as_primitive::<T>().iter().map(number).collect()
}

fn whole_array<T: ArrowPrimitiveType>(numbers: &[Number]) -> Option<ArrayRef>
where
    T::Native: TryFrom<i128>,
{
    let mut builder = PrimitiveBuilder::<T>::with_capacity(numbers.len());
    for number in numbers {
        match number {
            Number::Whole(whole) => builder.append_value(T::Native::try_from(*whole).ok()?),
            _ => builder.append_null(),
        }
    }
    Some(Arc::new(builder.finish()))
}

fn float_array<T: ArrowPrimitiveType>(numbers: &[Number], of: impl Fn(f64) -> T::Native) -> ArrayRef {
    let mut builder = PrimitiveBuilder::<T>::with_capacity(numbers.len());
    for number in numbers {
        match number {
            Number::Float(float) => builder.append_value(of(*float)),
            _ => builder.append_null(),
        }
    }
    Arc::new(builder.finish())
}

impl NumberColumn {
    fn numbers(&self, array: &dyn Array) -> Vec<Number> {
        match self.data_type {
            DataType::Int8 => wholes::<Int8Type>(array),
            DataType::Int16 => wholes::<Int16Type>(array),
            DataType::Int32 => wholes::<Int32Type>(array),
            DataType::Int64 => wholes::<Int64Type>(array),
            DataType::UInt8 => wholes::<UInt8Type>(array),
            DataType::UInt16 => wholes::<UInt16Type>(array),
            DataType::UInt32 => wholes::<UInt32Type>(array),
            DataType::UInt64 => wholes::<UInt64Type>(array),
            DataType::Float32 => floats::<Float32Type>(array),
            // Others are refused when the shuffle is started.
            _ => floats::<Float64Type>(array),
        }
    }

    /// None: one does not fit.
    fn array(&self, numbers: &[Number]) -> Option<ArrayRef> {
        match self.data_type {
            DataType::Int8 => whole_array::<Int8Type>(numbers),
            DataType::Int16 => whole_array::<Int16Type>(numbers),
            DataType::Int32 => whole_array::<Int32Type>(numbers),
            DataType::Int64 => whole_array::<Int64Type>(numbers),
            DataType::UInt8 => whole_array::<UInt8Type>(numbers),
            DataType::UInt16 => whole_array::<UInt16Type>(numbers),
            DataType::UInt32 => whole_array::<UInt32Type>(numbers),
            DataType::UInt64 => whole_array::<UInt64Type>(numbers),
            DataType::Float32 => Some(float_array::<Float32Type>(numbers, |float| float as f32)),
            _ => Some(float_array::<Float64Type>(numbers, |float| float)),
        }
    }

    fn fits(&self, number: Number) -> bool {
        let Number::Whole(whole) = number else { return true };
        let (least, most): (i128, i128) = match self.data_type {
            DataType::Int8 => (i8::MIN.into(), i8::MAX.into()),
            DataType::Int16 => (i16::MIN.into(), i16::MAX.into()),
            DataType::Int32 => (i32::MIN.into(), i32::MAX.into()),
            DataType::UInt8 => (0, u8::MAX.into()),
            DataType::UInt16 => (0, u16::MAX.into()),
            DataType::UInt32 => (0, u32::MAX.into()),
            DataType::UInt64 => (0, u64::MAX.into()),
            _ => (i64::MIN.into(), i64::MAX.into()),
        };
        (least..=most).contains(&whole)
    }
}

impl Rows {
    fn combined_part(&self) -> Option<(&Part, &[NumberColumn])> {
        let part = self.layout.value.as_ref()?;
        Some((part, &self.layout.combined[..])).filter(|(_, columns)| !columns.is_empty())
    }

    /// Whether rows that are equal in their sort columns become one.
    pub(crate) fn combines(&self) -> bool {
        self.combined_part().is_some()
    }

    /// The numbers of rows that have these values.
    pub(crate) fn numbers(&self, values: &[&[u8]]) -> Result<Vec<Numbers>, RowsError> {
        let mut rows = vec![Numbers::new(); values.len()];
        let Some((part, columns)) = self.combined_part().filter(|_| !values.is_empty()) else {
            return Ok(rows);
        };
        for (array, column) in part.decode(values)?.iter().zip(columns) {
            rows.iter_mut().zip(column.numbers(array)).for_each(|(row, number)| row.push(number));
        }
        Ok(rows)
    }

    /// The numbers of a row as they are stored, before they meet others: where values are counted, it counts one.
    pub(crate) fn begun(&self, mut numbers: Numbers) -> Numbers {
        for (number, column) in numbers.iter_mut().zip(&self.layout.combined) {
            if column.by == ColumnCombine::Count {
                *number = Number::Whole(i128::from(*number != Number::Null));
            }
        }
        numbers
    }

    /// The numbers that two rows become.
    pub(crate) fn added(&self, first: &[Number], second: &[Number]) -> Numbers {
        let columns = first.iter().zip(second).zip(&self.layout.combined);
        columns.map(|((first, second), column)| added(column.by, *first, *second)).collect()
    }

    /// Whether they fit into their columns.
    pub(crate) fn fit(&self, numbers: &[Number]) -> bool {
        numbers.iter().zip(&self.layout.combined).all(|(number, column)| column.fits(*number))
    }

    /// The values of rows that have these numbers.
    pub(crate) fn values(&self, rows: &[Numbers]) -> Result<Vec<Bytes>, RowsError> {
        let Some((part, columns)) = self.combined_part().filter(|_| !rows.is_empty()) else {
            return Ok(rows.iter().map(|_| Bytes::from(&[][..])).collect());
        };
        let array = |(place, column): (usize, &NumberColumn)| {
            let numbers: Vec<Number> =
                rows.iter().map(|row| row.get(place).copied().unwrap_or(Number::Null)).collect();
            column.array(&numbers).ok_or_else(|| RowsError::TotalTooLarge { column: column.name.clone() })
        };
        let arrays = columns.iter().enumerate().map(array).collect::<Result<Vec<ArrayRef>, RowsError>>()?;
        let encoded = part.converter.convert_columns(&arrays);
        let encoded = encoded.map_err(|error| RowsError::Arrow(error.to_string()))?;
        Ok((0..rows.len()).map(|row| Bytes::from(encoded.row(row).data())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{Float32Array, Float64Array, Int8Array, Int64Array, RecordBatch, UInt64Array};
    use arrow_schema::Field;
    use partage_service::shuffle::SortColumn;

    const ORDER: [SortColumn; 1] = [SortColumn { column: 1, descends: false, nulls_first: false }];

    fn schema() -> Schema {
        let field = |name, data_type| Field::new(name, data_type, true);
        Schema::new(vec![
            field("sum", DataType::Int8),
            field("key", DataType::Int64),
            field("least", DataType::Float64),
            field("count", DataType::UInt64),
            field("mass", DataType::Float32),
        ])
    }

    fn combine() -> Vec<CombinedColumn> {
        let by = [
            (0, ColumnCombine::Sum),
            (4, ColumnCombine::Max),
            (2, ColumnCombine::Min),
            (3, ColumnCombine::Count),
        ];
        by.map(|(column, by)| CombinedColumn { column, by }).to_vec()
    }

    fn rows() -> Rows {
        Rows::combining(&schema(), &ORDER, &combine()).unwrap()
    }

    fn batch() -> RecordBatch {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int8Array::from(vec![Some(100), Some(27), None, Some(1)])),
            Arc::new(Int64Array::from(vec![7, 7, 7, 7])),
            Arc::new(Float64Array::from(vec![Some(f64::NAN), Some(0.0), Some(-0.0), None])),
            Arc::new(UInt64Array::from(vec![Some(9), None, Some(5), Some(0)])),
            Arc::new(Float32Array::from(vec![None, None, None, None])),
        ];
        RecordBatch::try_new(Arc::new(schema()), columns).unwrap()
    }

    #[test]
    fn numbers_of_equal_rows_become_one_and_nulls_are_left_out() {
        let rows = rows();
        assert_eq!(Rows::of_kind(&rows.kind()).unwrap().kind(), rows.kind());
        let records = rows.records(&batch()).unwrap();
        let values: Vec<&[u8]> = records.iter().map(|record| &record.value[..]).collect();
        let numbers: Vec<Numbers> =
            rows.numbers(&values).unwrap().into_iter().map(|numbers| rows.begun(numbers)).collect();
        let three = numbers[1..3].iter().fold(numbers[0].clone(), |sum, next| rows.added(&sum, next));
        let expected = [Number::Whole(127), Number::Float(-0.0), Number::Whole(2), Number::Null];
        assert_eq!(three, expected);
        assert!(matches!(three[1], Number::Float(zero) if zero.is_sign_negative()));
        assert!(rows.fit(&three));
        // As they are stored and read again.
        let stored = rows.values(std::slice::from_ref(&three)).unwrap();
        assert_eq!(rows.numbers(&[&stored[0][..]]).unwrap(), std::slice::from_ref(&three));
        let all = rows.added(&three, &numbers[3]);
        assert!(!rows.fit(&all), "128 is no number of eight bits");
        let refused = rows.values(&[all]).unwrap_err();
        assert_eq!(refused, RowsError::TotalTooLarge { column: "sum".to_owned() });
    }

    #[test]
    fn a_float_that_is_none_is_the_largest_one() {
        let (none, one) = (Number::Float(-f64::NAN), Number::Float(1.0));
        assert_eq!(added(ColumnCombine::Min, none, one), one);
        assert!(matches!(added(ColumnCombine::Max, one, none), Number::Float(most) if most.is_nan()));
    }

    #[test]
    fn columns_that_cannot_be_combined_are_refused_by_name() {
        let refused =
            |combine: Vec<CombinedColumn>| match Rows::combining(&schema(), &ORDER, &combine).unwrap_err() {
                RowsError::Combined { column, why } => (column, why),
                other => panic!("{other}"),
            };
        let with = |at: usize, column: u32, by: ColumnCombine| {
            let mut combine = combine();
            combine[at] = CombinedColumn { column, by };
            combine
        };
        assert_eq!(refused(with(0, 1, ColumnCombine::Sum)).0, "key");
        assert_eq!(refused(with(0, 9, ColumnCombine::Sum)).0, "9");
        assert_eq!(refused(with(0, 4, ColumnCombine::Sum)).0, "sum", "it is not named");
        assert!(refused(with(1, 4, ColumnCombine::Count)).1.contains("whole number"));
        let text = Schema::new(vec![
            Field::new("text", DataType::Utf8, true),
            Field::new("key", DataType::Int64, true),
        ]);
        let combine = [CombinedColumn { column: 0, by: ColumnCombine::Max }];
        let refused = Rows::combining(&text, &ORDER, &combine).unwrap_err();
        assert!(matches!(&refused, RowsError::Combined { column, .. } if column == "text"), "{refused}");
    }
}

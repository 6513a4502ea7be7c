//! Columns as they are encoded: without dictionaries and runs, with the names and nullability of the shuffle's schema, and where
//! rows are sorted by them with one NaN.
//!
//! Two batches may encode one value in different ways: as itself, as a number in a dictionary, as a run. Keys are compared as
//! bytes, so each value must have one form.

use super::limits::NULLS_BYTES;
use crate::error::RowsError;
use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Float16Type, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type,
    RunEndIndexType,
};
use arrow_array::{
    Array, ArrayRef, FixedSizeListArray, GenericListArray, GenericListViewArray, OffsetSizeTrait,
    StructArray, UInt64Array,
};
use arrow_buffer::{OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Fields};
use arrow_select::take::take;
use std::sync::Arc;

/// A type without dictionaries and runs.
fn data_type(of: &DataType) -> DataType {
    match of {
        DataType::Dictionary(_, values) => data_type(values),
        DataType::RunEndEncoded(_, values) => data_type(values.data_type()),
        DataType::List(item) => DataType::List(field(item)),
        DataType::LargeList(item) => DataType::LargeList(field(item)),
        DataType::ListView(item) => DataType::ListView(field(item)),
        DataType::LargeListView(item) => DataType::LargeListView(field(item)),
        DataType::FixedSizeList(item, size) => DataType::FixedSizeList(field(item), *size),
        DataType::Struct(children) => DataType::Struct(fields(children)),
        other => other.clone(),
    }
}

fn field(of: &FieldRef) -> FieldRef {
    Arc::new(of.as_ref().clone().with_data_type(data_type(of.data_type())))
}

/// Fields whose types are without dictionaries and runs.
pub fn fields(of: &Fields) -> Fields {
    of.iter().map(field).collect()
}

/// Refuses columns that cannot be encoded, and those that are too wide together.
pub fn check(of: &Fields) -> Result<(), RowsError> {
    let mut bytes = 0_usize;
    for field in of {
        let (column, data_type) = (field.name(), field.data_type());
        let refused = |why| RowsError::Type { column: column.clone(), data_type: data_type.to_string(), why };
        let own = width(data_type).and_then(|width| Ok(width.saturating_add(kept(data_type)?)));
        bytes = bytes.saturating_add(own.map_err(refused)?);
        if bytes > NULLS_BYTES {
            return Err(RowsError::Wide { column: column.clone() });
        }
    }
    Ok(())
}

/// The bytes that encoders of a type keep: for each struct in it a null of all that is within.
fn kept(of: &DataType) -> Result<usize, &'static str> {
    match of {
        DataType::Dictionary(_, values) => kept(values),
        DataType::RunEndEncoded(_, values) => kept(values.data_type()),
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _) => kept(item.data_type()),
        DataType::Struct(children) => {
            let own = width(of)?;
            children.iter().try_fold(own, |sum, child| Ok(sum.saturating_add(kept(child.data_type())?)))
        }
        _ => Ok(0),
    }
}

/// The bytes that a null of a type takes in an array, or why the type is refused. An encoder makes such a null when it is made.
fn width(of: &DataType) -> Result<usize, &'static str> {
    let sized = |size: i32| usize::try_from(size).map_err(|_| "its size is negative");
    match of {
        DataType::Map(..) => Err("maps have no order and no row encoding"),
        DataType::Union(..) => Err("values of different types have no order"),
        DataType::Dictionary(_, values) => width(values),
        DataType::RunEndEncoded(_, values) => width(values.data_type()),
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item) => width(item.data_type()),
        // An item of no bytes has a place in the encoding.
        DataType::FixedSizeList(item, size) => {
            Ok(sized(*size)?.saturating_mul(width(item.data_type())?.max(1)))
        }
        DataType::FixedSizeBinary(size) => sized(*size),
        DataType::Struct(children) => {
            children.iter().try_fold(0_usize, |sum, child| Ok(sum.saturating_add(width(child.data_type())?)))
        }
        other => Ok(other.primitive_width().unwrap_or(1)),
    }
}

/// Whether values of the second type can be stored as the first one, which has neither dictionaries nor runs.
pub fn fits(ours: &DataType, theirs: &DataType) -> bool {
    match (ours, theirs) {
        (_, DataType::Dictionary(_, values)) => fits(ours, values),
        (_, DataType::RunEndEncoded(_, values)) => fits(ours, values.data_type()),
        (DataType::List(ours), DataType::List(theirs))
        | (DataType::LargeList(ours), DataType::LargeList(theirs))
        | (DataType::ListView(ours), DataType::ListView(theirs))
        | (DataType::LargeListView(ours), DataType::LargeListView(theirs)) => child_fits(ours, theirs),
        (DataType::FixedSizeList(ours, size), DataType::FixedSizeList(theirs, their_size)) => {
            size == their_size && child_fits(ours, theirs)
        }
        (DataType::Struct(ours), DataType::Struct(theirs)) => {
            let fits = |(ours, theirs): (&FieldRef, &FieldRef)| {
                ours.name() == theirs.name() && child_fits(ours, theirs)
            };
            ours.len() == theirs.len() && ours.iter().zip(theirs).all(fits)
        }
        _ => ours == theirs,
    }
}

/// The same of what is within a list or a struct. What a list calls its items says nothing: pyarrow and Parquet have different
/// names.
fn child_fits(ours: &Field, theirs: &Field) -> bool {
    (ours.is_nullable() || !theirs.is_nullable()) && fits(ours.data_type(), theirs.data_type())
}

/// A column as one of a type into which it fits; with `one_nan` each NaN in it is the positive, quiet one without a payload.
pub fn array(of: &ArrayRef, to: &DataType, one_nan: bool) -> Result<ArrayRef, ArrowError> {
    match (of.data_type(), to) {
        (DataType::Dictionary(..), _) => {
            let dictionary = of.as_any_dictionary();
            array(&take(dictionary.values().as_ref(), dictionary.keys(), None)?, to, one_nan)
        }
        (DataType::RunEndEncoded(ends, _), _) => {
            let values = match ends.data_type() {
                DataType::Int16 => without_runs::<Int16Type>(of)?,
                DataType::Int32 => without_runs::<Int32Type>(of)?,
                _ => without_runs::<Int64Type>(of)?,
            };
            array(&values, to, one_nan)
        }
        (from, to) if from == to && !(one_nan && has_floats(to)) => Ok(Arc::clone(of)),
        (DataType::Float16, _) => Ok(with_one_nan::<Float16Type>(of, |value| {
            if value.is_nan() {
                <<Float16Type as ArrowPrimitiveType>::Native>::from_bits(0x7e00)
            } else {
                value
            }
        })),
        (DataType::Float32, _) => Ok(with_one_nan::<Float32Type>(of, |value| {
            if value.is_nan() { f32::from_bits(0x7fc0_0000) } else { value }
        })),
        (DataType::Float64, _) => Ok(with_one_nan::<Float64Type>(of, |value| {
            if value.is_nan() { f64::from_bits(0x7ff8_0000_0000_0000) } else { value }
        })),
        (DataType::List(_), DataType::List(item)) => list::<i32>(of, item, one_nan),
        (DataType::LargeList(_), DataType::LargeList(item)) => list::<i64>(of, item, one_nan),
        (DataType::ListView(_), DataType::ListView(item)) => list_view::<i32>(of, item, one_nan),
        (DataType::LargeListView(_), DataType::LargeListView(item)) => list_view::<i64>(of, item, one_nan),
        (DataType::FixedSizeList(..), DataType::FixedSizeList(item, size)) => {
            let list = of.as_fixed_size_list();
            let values = array(list.values(), item.data_type(), one_nan)?;
            let (item, nulls) = (Arc::clone(item), list.nulls().cloned());
            Ok(Arc::new(FixedSizeListArray::try_new_with_length(item, *size, values, nulls, list.len())?))
        }
        (DataType::Struct(_), DataType::Struct(children)) => {
            let of = of.as_struct();
            let columns = of.columns().iter().zip(children.iter());
            let columns = columns
                .map(|(column, child)| array(column, child.data_type(), one_nan))
                .collect::<Result<Vec<ArrayRef>, ArrowError>>()?;
            let (children, nulls) = (children.clone(), of.nulls().cloned());
            Ok(Arc::new(StructArray::try_new_with_length(children, columns, nulls, of.len())?))
        }
        // The encoder refuses a column of another type.
        _ => Ok(Arc::clone(of)),
    }
}

fn has_floats(of: &DataType) -> bool {
    match of {
        DataType::Float16 | DataType::Float32 | DataType::Float64 => true,
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _) => has_floats(item.data_type()),
        DataType::Struct(children) => children.iter().any(|child| has_floats(child.data_type())),
        _ => false,
    }
}

fn with_one_nan<T: ArrowPrimitiveType>(of: &ArrayRef, one: impl Fn(T::Native) -> T::Native) -> ArrayRef {
    Arc::new(of.as_primitive::<T>().unary::<_, T>(one))
}

fn without_runs<R: RunEndIndexType>(of: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let runs = of.as_run::<R>();
    let places = (0..runs.len()).map(|row| runs.get_physical_index(row) as u64);
    take(runs.values().as_ref(), &UInt64Array::from_iter_values(places), None)
}

/// Only the items of these lists: the array may be a small part of a large one.
fn list<O: OffsetSizeTrait>(of: &ArrayRef, item: &FieldRef, one_nan: bool) -> Result<ArrayRef, ArrowError> {
    let lists = of.as_list::<O>();
    let places = lists.value_offsets();
    let ends = places.first().zip(places.last()).map(|(first, end)| (first.as_usize(), end.as_usize()));
    let (first, end) = ends.unwrap_or_default();
    let values = array(&lists.values().slice(first, end - first), item.data_type(), one_nan)?;
    let offsets = OffsetBuffer::<O>::from_lengths(lists.offsets().lengths());
    let nulls = lists.nulls().cloned();
    Ok(Arc::new(GenericListArray::<O>::try_new(Arc::clone(item), offsets, values, nulls)?))
}

fn list_view<O: OffsetSizeTrait>(
    of: &ArrayRef,
    item: &FieldRef,
    one_nan: bool,
) -> Result<ArrayRef, ArrowError> {
    let lists = of.as_list_view::<O>();
    let spans = || {
        let places = lists.offsets().iter().zip(lists.sizes().iter());
        places.map(|(first, size)| (first.as_usize(), size.as_usize()))
    };
    let filled = || spans().filter(|(_, size)| *size > 0);
    let first = filled().map(|(first, _)| first).min().unwrap_or(0);
    let end = filled().map(|(first, size)| first + size).max().unwrap_or(0);
    let values = array(&lists.values().slice(first, end - first), item.data_type(), one_nan)?;
    // An empty list may lie anywhere.
    let place = |(place, size): (usize, usize)| O::usize_as(if size == 0 { 0 } else { place - first });
    let offsets: ScalarBuffer<O> = spans().map(place).collect();
    let (sizes, nulls) = (lists.sizes().clone(), lists.nulls().cloned());
    Ok(Arc::new(GenericListViewArray::<O>::try_new(Arc::clone(item), offsets, sizes, values, nulls)?))
}

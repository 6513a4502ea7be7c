//! What is asked of an index: the rows with a value, or with a value in a range.
//!
//! A range is of values of one kind, as comparisons of filters are: `from 5` finds no texts.

use super::value::{IndexedValue, is_cut, kind_end};
use std::cmp::Ordering;

/// Which rows are wanted, by what an index has of them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct IndexQuery {
    from: Option<IndexedValue>,
    to: Option<IndexedValue>,
    /// The upper bound is wanted too: it is the lower one.
    is_equal: bool,
}

/// Why a query cannot be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The bounds cannot be compared.
    #[error(
        "from and to are of different kinds: give two numbers, two texts (in double quotes if they look like numbers), or two booleans"
    )]
    Kinds,
    /// Nothing can be between.
    #[error("to is below from: exchange them")]
    Below,
}

impl IndexQuery {
    /// All rows that are in the index.
    pub fn all() -> IndexQuery {
        IndexQuery::default()
    }

    /// The rows with this value.
    pub fn equals(value: IndexedValue) -> IndexQuery {
        IndexQuery { from: Some(value.clone()), to: Some(value), is_equal: true }
    }

    /// The rows with a value from the one on and before the other.
    ///
    /// # Errors
    /// No value can be between.
    pub fn between(from: Option<IndexedValue>, to: Option<IndexedValue>) -> Result<IndexQuery, QueryError> {
        if let (Some(from), Some(to)) = (&from, &to) {
            if from.kind() != to.kind() {
                return Err(QueryError::Kinds);
            }
            if from.compare(to) == Ordering::Greater {
                return Err(QueryError::Below);
            }
        }
        Ok(IndexQuery { from, to, is_equal: false })
    }

    /// The places in the index that may have what is wanted: from the first on, before the second; none: there is no end.
    pub fn places(&self) -> (Vec<u8>, Option<Vec<u8>>) {
        let kind = self.from.as_ref().or(self.to.as_ref()).map(IndexedValue::kind);
        let from = match (&self.from, kind) {
            (Some(from), _) => from.encode(),
            (None, Some(kind)) => vec![kind],
            (None, None) => Vec::new(),
        };
        let to = match (&self.to, kind) {
            (Some(to), _) => {
                let encoded = to.encode();
                // Of texts that are cut where this one is some may be below it.
                Some(if self.is_equal || is_cut(&encoded) { behind(encoded) } else { encoded })
            }
            (None, Some(kind)) => Some(vec![kind_end(kind)]),
            (None, None) => None,
        };
        (from, to)
    }

    /// Whether a value is wanted: for those of which an index has the beginning only.
    pub fn wants(&self, value: &IndexedValue) -> bool {
        let from = self
            .from
            .as_ref()
            .is_none_or(|from| from.kind() == value.kind() && value.compare(from) != Ordering::Less);
        let to = self.to.as_ref().is_none_or(|to| {
            let order = value.compare(to);
            to.kind() == value.kind()
                && (order == Ordering::Less || (self.is_equal && order == Ordering::Equal))
        });
        from && to
    }
}

/// The lowest bytes above all that begin so. An encoded value does not have only bytes of the highest kind.
fn behind(mut bytes: Vec<u8>) -> Vec<u8> {
    while let Some(last) = bytes.pop() {
        if last < u8::MAX {
            bytes.push(last + 1);
            break;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::filter::Number;
    use partage_core::limits::INDEX_TEXT_BYTES;
    use proptest::prelude::*;

    fn value() -> impl Strategy<Value = IndexedValue> {
        prop_oneof![
            any::<bool>().prop_map(IndexedValue::Bool),
            (-3i128..3).prop_map(|whole| IndexedValue::Number(Number::Whole(whole))),
            (-3i32..3).prop_map(|half| IndexedValue::Number(Number::Fraction(f64::from(half) / 2.0))),
            "[ab\0]{0,2}".prop_map(IndexedValue::Text),
            "[ab]{0,2}".prop_map(|end| IndexedValue::Text("a".repeat(INDEX_TEXT_BYTES) + &end)),
        ]
    }

    proptest! {
        #[test]
        fn what_is_wanted_is_between_the_places(
            from in proptest::option::of(value()), to in proptest::option::of(value()), value in value(), key in any::<Vec<u8>>(),
            is_equal in any::<bool>(),
        ) {
            let query = match &from {
                Some(from) if is_equal => IndexQuery::equals(from.clone()),
                _ => match IndexQuery::between(from, to) {
                    Ok(query) => query,
                    Err(_) => return Ok(()),
                },
            };
            let (begin, end) = query.places();
            let encoded = value.encode();
            let place = [&encoded[..], &key].concat();
            let is_between = place >= begin && end.is_none_or(|end| place < end);
            if is_cut(&encoded) {
                prop_assert!(is_between || !query.wants(&value), "a place for all that is wanted");
            } else {
                prop_assert_eq!(is_between, query.wants(&value));
            }
        }
    }

    #[test]
    fn bounds_are_of_one_kind_and_in_order() {
        let number = |whole| Some(IndexedValue::Number(Number::Whole(whole)));
        let text = Some(IndexedValue::Text("1".to_owned()));
        assert_eq!(IndexQuery::between(number(1), text), Err(QueryError::Kinds));
        assert_eq!(IndexQuery::between(number(2), number(1)), Err(QueryError::Below));
        assert!(IndexQuery::between(number(1), number(1)).is_ok());
        assert_eq!(behind(vec![2, 255, 255]), [3]);
    }
}

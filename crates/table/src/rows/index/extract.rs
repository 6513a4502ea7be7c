//! What an index has of a value: read along the path of the index, and past everything else.
//!
//! What else is in the value does not matter: a number there that fits no 64 bits, or a list nested too deeply for a parser that
//! keeps it, is passed over. So what one index has of a row depends on that index alone. Only bytes that are no JSON text are in
//! no index.
//!
//! Of a field that comes twice in an object the last one counts, as for filters.

use partage_service::table::filter::{Number, Path, Scalar, Step};
use partage_service::table::index::IndexedValue;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// What an index with that path has of a value; none: it has nothing of it.
pub(super) fn extract(path: &Path, value: &[u8]) -> Option<IndexedValue> {
    // What is passed over is not looked at as UTF-8.
    let text = std::str::from_utf8(value).ok()?;
    let mut reader = serde_json::Deserializer::from_str(text);
    let found = Along(path.steps()).deserialize(&mut reader).ok()?;
    reader.end().ok()?;
    found
}

/// Reads along these steps.
struct Along<'p>(&'p [Step]);

impl<'de> DeserializeSeed<'de> for Along<'_> {
    type Value = Option<IndexedValue>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        match self.0.first() {
            None => from.deserialize_any(Found),
            Some(_) => from.deserialize_any(self),
        }
    }
}

/// Passes over the rest of an object.
fn skip_fields<'de, A: MapAccess<'de>>(mut map: A) -> Result<(), A::Error> {
    while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
    Ok(())
}

/// Passes over the rest of a list.
fn skip_items<'de, A: SeqAccess<'de>>(mut list: A) -> Result<(), A::Error> {
    while list.next_element::<IgnoredAny>()?.is_some() {}
    Ok(())
}

/// A value into which another step leads.
impl<'de> Visitor<'de> for Along<'_> {
    type Value = Option<IndexedValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let Some((Step::Field(name), rest)) = self.0.split_first() else {
            return skip_fields(map).map(|()| None);
        };
        let mut found = None;
        while let Some(is_it) = map.next_key_seed(Is(name))? {
            if is_it {
                found = map.next_value_seed(Along(rest))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let Some((Step::Item(place), rest)) = self.0.split_first() else {
            return skip_items(list).map(|()| None);
        };
        for _ in 0..*place {
            if list.next_element::<IgnoredAny>()?.is_none() {
                return Ok(None);
            }
        }
        let found = list.next_element_seed(Along(rest))?.flatten();
        skip_items(list)?;
        Ok(found)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}

/// Whether a field has that name.
struct Is<'p>(&'p str);

impl<'de> DeserializeSeed<'de> for Is<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<bool, D::Error> {
        from.deserialize_str(self)
    }
}

impl Visitor<'_> for Is<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<bool, E> {
        Ok(name == self.0)
    }
}

/// What is at the end of the path.
struct Found;

impl<'de> Visitor<'de> for Found {
    type Value = Option<IndexedValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E: Error>(self, is: bool) -> Result<Self::Value, E> {
        Ok(IndexedValue::of(Scalar::Bool(is)))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        Ok(IndexedValue::of(Scalar::Number(Number::Whole(number.into()))))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        Ok(IndexedValue::of(Scalar::Number(Number::Whole(number.into()))))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Self::Value, E> {
        Ok(IndexedValue::of(Scalar::Number(Number::Fraction(number))))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(IndexedValue::of(Scalar::Text(text)))
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        skip_fields(map).map(|()| None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
        skip_items(list).map(|()| None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::{self, JsonRef};
    use partage_service::table::filter::Document;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn of(path: &str, value: &str) -> Option<IndexedValue> {
        extract(&Path::parse(path).unwrap(), value.as_bytes())
    }

    fn whole(number: i128) -> Option<IndexedValue> {
        Some(IndexedValue::Number(Number::Whole(number)))
    }

    #[test]
    fn what_else_is_in_a_value_does_not_matter() {
        let deep = "[".repeat(300) + &"]".repeat(300);
        for value in [
            r#"{"x": 1e999, "a": 7}"#.to_owned(),
            r#"{"a": 7, "x": 1e999}"#.to_owned(),
            format!("{{\"x\": {deep}, \"a\": 7}}"),
            r#"{"x": {"a": 1}, "a": 3, "a": 7}"#.to_owned(),
            r#"{"x": "\ud800", "a": 7}"#.to_owned(),
            " {\"a\":7}\n".to_owned(),
        ] {
            assert_eq!(of("a", &value), whole(7), "{value}");
        }
        assert_eq!(of("x", r#"{"x": 1e999, "a": 7}"#), None, "what is no number of 64 bits");
        assert_eq!(of("a.b", r#"{"a": {"b": 1}, "a": 2}"#), None, "the last one counts");
        assert_eq!(of("a[1].b", r#"{"a": [1e999, {"b": "t"}, {}]}"#), Some(IndexedValue::Text("t".into())));
    }

    #[test]
    fn what_is_no_scalar_or_no_json_is_in_no_index() {
        for value in [
            "",
            "x",
            "{\"a\": 7",
            "{\"a\": 7} x",
            "7",
            "[7]",
            "{\"a\": null}",
            "{\"a\": {}}",
            "{\"a\": [1]}",
            "null",
            "{\"b\": 7}",
            "\"a\"",
            "true",
            "1.5",
            "-3",
        ] {
            assert_eq!(of("a", value), None, "{value}");
        }
        assert_eq!(extract(&Path::parse("a").unwrap(), b"{\"a\": 1, \"b\": \"\xff\"}"), None);
        assert_eq!(of("$", "7"), whole(7));
        assert_eq!(of("$", "\"h\u{f6}he\""), Some(IndexedValue::Text("höhe".into())));
        assert_eq!(of("a", "{\"a\": 18446744073709551615}"), whole(u64::MAX.into()));
        assert_eq!(of("a", "{\"a\": false}"), Some(IndexedValue::Bool(false)));
    }

    fn document() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "[a-c\\PC]{0,4}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map("[a-c]", inner, 0..4).prop_map(|fields| json!(fields)),
            ]
        })
    }

    proptest! {
        #[test]
        fn an_index_has_what_a_filter_finds(document in document(), path in "[a-c](\\.[a-c]|\\[[0-2]\\]){0,3}") {
            let text = document.to_string();
            let path = Path::parse(&path).unwrap();
            let parsed = json::parse(text.as_bytes()).unwrap();
            let mut at = Some(JsonRef(&parsed));
            for step in path.steps() {
                at = at.and_then(|at| match step {
                    Step::Field(name) => at.field(name),
                    Step::Item(place) => at.item(*place),
                });
            }
            let found = at.and_then(JsonRef::scalar).and_then(IndexedValue::of);
            prop_assert_eq!(extract(&path, text.as_bytes()), found);
        }
    }
}

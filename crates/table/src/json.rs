//! JSON values: which bytes are one, and what a filter sees of them.

use partage_core::keyspace::RowValues;
use partage_service::table::filter::{Document, Number, Scalar};
use partage_service::table::rows::{Action, Invalid, Write};
use serde::de::IgnoredAny;
use serde_json::Value;

/// Refuses what a table with such values does not take.
pub(crate) fn check(write: &Write, values: RowValues) -> Result<(), Invalid> {
    if values == RowValues::Bytes {
        return Ok(());
    }
    for operation in &write.operations {
        match &operation.action {
            Action::Put(value, _) | Action::Overwrite(value) => {
                let key = || operation.key.clone();
                is_json(value).map_err(|why| Invalid::NotJson { key: key(), why })?;
            }
            Action::Append(_) => return Err(Invalid::AppendToJson(operation.key.clone())),
            // A sum is a number, which is JSON.
            Action::Read | Action::Delete | Action::Expire(_) | Action::Add(_) => {}
        }
    }
    Ok(())
}

/// Whether bytes are a JSON text; if not, what is wrong, and where.
fn is_json(bytes: &[u8]) -> Result<(), String> {
    // What is skipped is not looked at as UTF-8.
    let text = std::str::from_utf8(bytes)
        .map_err(|error| format!("byte {} is not of UTF-8", error.valid_up_to() + 1))?;
    serde_json::from_str::<IgnoredAny>(text).map(|_| ()).map_err(|error| error.to_string())
}

/// A JSON value; none: the bytes are no JSON text, or one that is nested more deeply than 127 times.
pub(crate) fn parse(bytes: &[u8]) -> Option<Value> {
    serde_json::from_slice(bytes).ok()
}

/// What a filter sees of a JSON value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JsonRef<'a>(pub(crate) &'a Value);

impl<'a> Document<'a> for JsonRef<'a> {
    fn field(self, name: &str) -> Option<Self> {
        self.0.as_object()?.get(name).map(JsonRef)
    }

    fn item(self, at: usize) -> Option<Self> {
        self.0.as_array()?.get(at).map(JsonRef)
    }

    fn scalar(self) -> Option<Scalar<'a>> {
        match self.0 {
            Value::Null => Some(Scalar::Null),
            Value::Bool(is) => Some(Scalar::Bool(*is)),
            Value::Number(number) => {
                let whole = number.as_i64().map(i128::from).or(number.as_u64().map(i128::from));
                let fraction = || Number::Fraction(number.as_f64().unwrap_or_default());
                Some(Scalar::Number(whole.map_or_else(fraction, Number::Whole)))
            }
            Value::String(text) => Some(Scalar::Text(text)),
            Value::Array(_) | Value::Object(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::keyspace::key::Key;
    use partage_service::table::filter::Filter;
    use partage_service::table::rows::{Condition, Expiry, Operation};

    fn checked(action: Action, values: RowValues) -> Result<(), String> {
        let key = Key::new(b"k").unwrap();
        let operation = Operation { key, condition: Condition::Always, action, wants_former: false };
        let write = Write { at_ms: 0, request: None, operations: vec![operation] };
        check(&write, values).map_err(|error| error.to_string())
    }

    #[test]
    fn a_table_of_json_takes_nothing_else() {
        let put = |value: &[u8]| Action::Put(value.into(), Expiry::Never);
        let deep = "[".repeat(200) + &"]".repeat(200);
        for value in ["1", " {\"a\": [true, null]}\n", "\"höhe\"", &deep] {
            assert_eq!(checked(put(value.as_bytes()), RowValues::Json), Ok(()), "{value}");
        }
        for (value, named) in [
            (&b""[..], "line 1 column 0"),
            (b"{\"a\":\n x}", "line 2 column 2"),
            (b"1 2", "column 3"),
            (b"\"\xff\"", "byte 2"),
            (b"{\"a\": 1", "column 7"),
        ] {
            let why = checked(put(value), RowValues::Json).unwrap_err();
            assert!(why.contains(named) && why.contains("key 'k'"), "{why}");
            assert_eq!(checked(put(value), RowValues::Bytes), Ok(()));
        }
        assert!(checked(Action::Append(b"1"[..].into()), RowValues::Json).unwrap_err().contains("append"));
        assert_eq!(checked(Action::Add(1), RowValues::Json), Ok(()));
    }

    #[test]
    fn a_filter_sees_what_is_there() {
        let value = parse(br#"{"a": [1, -2.5, 18446744073709551615, "x", null, true]}"#).unwrap();
        let all = "a[0] = 1 and a[1] = -2.5 and a[2] = 18446744073709551615 and a[3] = \"x\" and a[4] = null and a[5] = true";
        assert!(Filter::parse(all).unwrap().matches(JsonRef(&value)));
        assert!(parse(b"x").is_none() && parse("[".repeat(200).as_bytes()).is_none());
    }
}

//! What a request says of the values that it wants.
//!
//! A value is JSON: `7`, `-0.5`, `true`, `"net"`. What is no JSON is a text as it stands, so that `net` is `"net"`; a text that
//! looks like a number stands in double quotes.

use crate::json::{self, JsonRef};
use partage_service::table::filter::{Document, Scalar};
use partage_service::table::index::{IndexQuery, IndexedValue};

/// The values as they were given.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct QueryText {
    pub(crate) equals: Option<String>,
    pub(crate) from: Option<String>,
    pub(crate) to: Option<String>,
}

fn value_of(text: &str) -> Result<IndexedValue, String> {
    let Some(value) = json::parse(text.as_bytes()) else { return Ok(IndexedValue::Text(text.to_owned())) };
    let indexed = JsonRef(&value).scalar().and_then(IndexedValue::of);
    indexed.ok_or_else(|| match JsonRef(&value).scalar() {
        Some(Scalar::Null) => "null is in no index; the text is \"null\", in double quotes".to_owned(),
        _ => format!("{text} is no value of an index: give a number, true, false, or a text"),
    })
}

/// What is wanted.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn query_of(text: &QueryText) -> Result<IndexQuery, String> {
    let value = |text: &Option<String>| text.as_deref().map(value_of).transpose();
    let (equals, from, to) = (value(&text.equals)?, value(&text.from)?, value(&text.to)?);
    match (equals, from, to) {
        (Some(value), None, None) => Ok(IndexQuery::equals(value)),
        (Some(_), ..) => Err("equals and a range contradict each other: give one of them".to_owned()),
        (None, None, None) => Ok(IndexQuery::all()),
        (None, from, to) => IndexQuery::between(from, to).map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_service::table::filter::Number;

    #[test]
    fn values_are_json_or_plain_texts() {
        let number = |whole| Ok(IndexedValue::Number(Number::Whole(whole)));
        let text = |text: &str| Ok(IndexedValue::Text(text.to_owned()));
        assert_eq!(value_of("7"), number(7));
        assert_eq!(value_of("1e1"), Ok(IndexedValue::Number(Number::Fraction(10.0))));
        assert_eq!(value_of("true"), Ok(IndexedValue::Bool(true)));
        assert_eq!(value_of("\"7\""), text("7"));
        assert_eq!(value_of("net work"), text("net work"));
        assert_eq!(value_of(""), text(""));
        assert!(value_of("null").is_err() && value_of("[1]").is_err() && value_of("{}").is_err());
    }

    #[test]
    fn bounds_go_together_or_are_refused() {
        let given = |equals: Option<&str>, from: Option<&str>, to: Option<&str>| {
            let own = |text: Option<&str>| text.map(str::to_owned);
            query_of(&QueryText { equals: own(equals), from: own(from), to: own(to) })
        };
        assert_eq!(given(None, None, None), Ok(IndexQuery::all()));
        assert!(given(Some("1"), None, None).is_ok() && given(None, Some("1"), Some("2")).is_ok());
        assert!(given(Some("1"), Some("1"), None).unwrap_err().contains("equals"));
        assert!(given(None, Some("1"), Some("x")).unwrap_err().contains("kinds"));
        assert!(given(None, Some("2"), Some("1")).unwrap_err().contains("exchange"));
    }
}

//! Keys and values of rows in JSON: text where they are UTF-8, any other bytes in base64.

use crate::Malformed;
use crate::json::from_hex;
use crate::malformed::At;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use partage_core::keyspace::key::Key;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Bytes of a row: text when they are UTF-8, else in base64. A request may give either, or hex digits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum BytesText {
    /// Bytes that are UTF-8.
    Text(String),
    /// Any bytes in base64; in answers, those that are not UTF-8.
    Base64 {
        /// The bytes in base64, with padding.
        base64: String,
    },
    /// Any bytes as hex digits, in requests only.
    Hex {
        /// The bytes as hex digits, two for each byte.
        hex: String,
    },
}

impl BytesText {
    /// In base64 always: how nodes send bytes to each other.
    pub fn base64(bytes: &[u8]) -> BytesText {
        BytesText::Base64 { base64: STANDARD.encode(bytes) }
    }

    /// The bytes.
    ///
    /// # Errors
    /// They are in no base64, or no hex digits.
    pub fn bytes(self) -> Result<Vec<u8>, Malformed> {
        match self {
            BytesText::Text(text) => Ok(text.into_bytes()),
            BytesText::Base64 { base64 } => STANDARD.decode(base64).at("base64"),
            BytesText::Hex { hex } => from_hex(&hex),
        }
    }
}

impl From<&[u8]> for BytesText {
    fn from(bytes: &[u8]) -> BytesText {
        match std::str::from_utf8(bytes) {
            Ok(text) => BytesText::Text(text.to_owned()),
            Err(_) => BytesText::base64(bytes),
        }
    }
}

impl From<&Key> for BytesText {
    fn from(key: &Key) -> BytesText {
        key.as_bytes().into()
    }
}

impl TryFrom<BytesText> for Key {
    type Error = Malformed;
    fn try_from(form: BytesText) -> Result<Key, Malformed> {
        Key::new(&form.bytes()?).at("key")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_come_back(bytes in any::<Vec<u8>>()) {
            let text = serde_json::to_string(&BytesText::from(&bytes[..])).unwrap();
            prop_assert_eq!(serde_json::from_str::<BytesText>(&text).unwrap().bytes().unwrap(), bytes.clone());
            prop_assert_eq!(BytesText::base64(&bytes).bytes().unwrap(), bytes);
        }
    }

    #[test]
    fn text_is_text_and_other_bytes_are_base64() {
        let text = |bytes: &[u8]| serde_json::to_string(&BytesText::from(bytes)).unwrap();
        assert_eq!(text("höhe\0".as_bytes()), "\"höhe\\u0000\"");
        assert_eq!(text(b"\xff\0"), r#"{"base64":"/wA="}"#);
        let hex = serde_json::from_str::<BytesText>(r#"{"hex":"ff00"}"#).unwrap();
        assert_eq!(hex.bytes().unwrap(), b"\xff\0");
        for bad in [r#"{"base64":"/wA"}"#, r#"{"hex":"f"}"#] {
            assert!(serde_json::from_str::<BytesText>(bad).unwrap().bytes().is_err(), "{bad}");
        }
        for bad in ["7", r#"{"octal":"7"}"#, "null"] {
            assert!(serde_json::from_str::<BytesText>(bad).is_err(), "{bad}");
        }
    }
}

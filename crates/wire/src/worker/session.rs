//! The token of a worker's session: given to the process that registers, and stored only as its digest.
//!
//! | door | a new process gets it in     | and sends it in                                     |
//! |------|-----------------------------|-----------------------------------------------------|
//! | gRPC | `Welcome`                   | `Register`, when it comes back; then its stream is it |
//! | HTTP | `welcome`                   | every registration, heartbeat and `leave` after that |

use crate::Malformed;
use crate::json::{from_hex, to_hex};
use partage_core::base::id::SessionDigest;
use sha2::{Digest, Sha256};
use std::fmt;
use std::str::FromStr;

/// Digits of a token: 256 bits.
const DIGITS: usize = 64;

/// 256 bits that only a process and its coordinator know, in hexadecimal digits. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// The token of bits that were drawn at random.
    pub fn of(bits: [u8; DIGITS / 2]) -> Token {
        Token(to_hex(&bits))
    }

    /// As it is sent.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What a coordinator knows it by.
    pub fn digest(&self) -> SessionDigest {
        SessionDigest(Sha256::digest(self.0.as_bytes()).into())
    }
}

impl FromStr for Token {
    type Err = Malformed;
    fn from_str(given: &str) -> Result<Token, Malformed> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        match given.len() == DIGITS && given.bytes().all(is_digit) {
            true => Ok(Token(given.to_owned())),
            false => Err(Malformed::new(
                "token",
                format!("is not what the welcome gave: {DIGITS} hexadecimal digits, in lower case"),
            )),
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// What a coordinator knows the token of a message by; the default where it has none.
pub(crate) fn digest_given(token: Option<&str>) -> Result<SessionDigest, Malformed> {
    let token: Option<Token> = token.map(str::parse).transpose()?;
    Ok(token.map(|token| token.digest()).unwrap_or_default())
}

/// Reads a digest in hexadecimal digits.
pub(crate) fn digest_of(text: &str) -> Result<SessionDigest, Malformed> {
    let wrong = || Malformed::new("session", format!("is no digest: {DIGITS} hexadecimal digits"));
    let bytes = from_hex(text).map_err(|_| wrong())?;
    bytes.try_into().map(SessionDigest).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn z1_a_token_is_known_by_the_sha_256_of_its_digits() {
        let token = Token::of([0xab; 32]);
        assert_eq!(token.as_str(), "ab".repeat(32));
        // printf 'abab…' | sha256sum
        let digest = "271a413bd339c5709fdceaec41f14f11e9fbfb5042d72d331c65f32b284cd09a";
        assert_eq!(to_hex(&token.digest().0), digest);
        assert_eq!(digest_of(digest), Ok(token.digest()));
        assert_eq!(token.as_str().parse(), Ok(token));
    }

    #[test]
    fn z1_what_is_no_token_is_refused_and_not_repeated() {
        for given in ["", "x", &"A".repeat(64), &"a".repeat(63), &"é".repeat(32)] {
            let refused = Token::from_str(given).unwrap_err().to_string();
            assert!(given.is_empty() || !refused.contains(&format!("{given:?}")), "{refused}");
        }
        assert_eq!(format!("{:?}", Token::of([1; 32])), "Token(…)");
    }
}

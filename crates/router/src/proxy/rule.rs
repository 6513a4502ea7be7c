//! Which keyspace and which key an HTTP request is about.
//!
//! A rule names two places in a request, such as "the first segment of the path" and "the rest of it". Rules
//! are tried in their order; one whose path prefix does not fit, or whose keyspace is not known, is passed
//! over. A key is what its place holds after percent-decoding, byte for byte. Nothing is decoded twice, and
//! the path is passed on to the node as it came.

use http::request::Parts;
use http::{HeaderName, Uri};
use partage_core::base::name::KeyspaceName;
use partage_core::keyspace::KeyspaceKind;
use partage_core::limits::KEY_BYTES;
use partage_core::routing::routes::{NoRoute, Routes};
use percent_encoding::percent_decode;
use std::borrow::Cow;
use std::fmt;

/// Where the name of the keyspace is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyspaceFrom {
    /// The keyspace is this one for all requests.
    Name(KeyspaceName),
    /// In this segment of the path, counted from 1.
    PathSegment(usize),
    /// In this header of the request.
    Header(HeaderName),
    /// In this parameter of the query.
    Query(String),
}

/// Where the key is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyFrom {
    /// In this segment of the path, counted from 1.
    PathSegment(usize),
    /// All of the path after the segment of the keyspace and the slash behind it; else after the rule's prefix, and the
    /// slash behind that unless the prefix ends with one.
    Rest,
    /// In this header of the request.
    Header(HeaderName),
    /// In this parameter of the query.
    Query(String),
}

/// How to find keyspace and key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Only for paths that begin so; empty = all.
    pub prefix: String,
    /// Where the keyspace is.
    pub keyspace: KeyspaceFrom,
    /// Where the key is.
    pub key: KeyFrom,
}

impl Default for Rule {
    /// The first segment of the path is the keyspace, the rest is the key: `/<keyspace>/<key…>`.
    fn default() -> Rule {
        Rule { prefix: String::new(), keyspace: KeyspaceFrom::PathSegment(1), key: KeyFrom::Rest }
    }
}

/// Why no rule gives keyspace and key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// The request names a keyspace that the router does not know.
    #[error("{0}")]
    Keyspace(NoRoute),
    /// The keyspace is known, but there is no key where the rule says.
    #[error("the request has no key: by the rule {rule}, it is expected in {place}")]
    NoKey {
        /// The rule that found the keyspace, in words.
        rule: String,
        /// The place of the key by that rule, in words.
        place: String,
    },
    /// The key is longer than [`KEY_BYTES`].
    #[error("the key has {bytes} bytes: the limit is {KEY_BYTES}")]
    KeyTooLong {
        /// The length of the key that was found.
        bytes: usize,
    },
    /// No rule is for such a request.
    #[error("no rule of this router fits the request: {rules}")]
    NoRule {
        /// All rules of the router in words, divided by semicolons.
        rules: String,
    },
}

/// What a request is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub keyspace: KeyspaceName,
    pub kind: KeyspaceKind,
    /// Empty: the request is for a dataset, or for several keys of it.
    pub key: Vec<u8>,
}

/// Keyspace and key by the first rule that fits.
pub fn find(rules: &[Rule], routes: &Routes, parts: &Parts) -> Result<Found, RuleError> {
    let mut unknown = None;
    for rule in rules.iter().filter(|rule| parts.uri.path().starts_with(&rule.prefix)) {
        let Some(name) = rule.keyspace_of(parts) else { continue };
        let known = std::str::from_utf8(&name).ok().and_then(|name| routes.keyspace(name));
        let Some(routes) = known else {
            unknown.get_or_insert_with(|| String::from_utf8_lossy(&name).into_owned());
            continue;
        };
        let kind = routes.brief().kind;
        let no_key = || RuleError::NoKey { rule: rule.to_string(), place: rule.key.to_string() };
        let needs_key = kind != KeyspaceKind::Dataset || rule.key != KeyFrom::Rest;
        let key = rule.key_of(parts).filter(|key| !key.is_empty());
        let key = key.or((!needs_key).then_some(Cow::Borrowed(&[][..]))).ok_or_else(no_key)?;
        if key.len() > KEY_BYTES {
            return Err(RuleError::KeyTooLong { bytes: key.len() });
        }
        return Ok(Found { keyspace: routes.brief().name.clone(), kind, key: key.into_owned() });
    }
    let known = || routes.keyspaces().map(|keyspace| keyspace.brief().name.clone()).collect();
    match unknown {
        Some(asked) => Err(RuleError::Keyspace(NoRoute::Keyspace { asked, known: known() })),
        None => {
            let rules: Vec<String> = rules.iter().map(Rule::to_string).collect();
            Err(RuleError::NoRule { rules: rules.join("; ") })
        }
    }
}

impl Rule {
    fn keyspace_of<'a>(&'a self, parts: &'a Parts) -> Option<Cow<'a, [u8]>> {
        match &self.keyspace {
            KeyspaceFrom::Name(name) => Some(Cow::Borrowed(name.as_str().as_bytes())),
            KeyspaceFrom::PathSegment(at) => segment(&parts.uri, *at),
            KeyspaceFrom::Header(name) => header(parts, name),
            KeyspaceFrom::Query(name) => query(&parts.uri, name),
        }
        .filter(|name| !name.is_empty())
    }

    fn key_of<'a>(&self, parts: &'a Parts) -> Option<Cow<'a, [u8]>> {
        match &self.key {
            KeyFrom::PathSegment(at) => segment(&parts.uri, *at),
            KeyFrom::Rest => {
                let path = parts.uri.path();
                let rest = match &self.keyspace {
                    KeyspaceFrom::PathSegment(at) => path.splitn(at + 2, '/').nth(at + 1)?,
                    _ => self.after_prefix(path)?,
                };
                Some(decoded(rest))
            }
            KeyFrom::Header(name) => header(parts, name),
            KeyFrom::Query(name) => query(&parts.uri, name),
        }
    }

    /// The rest of the path. One slash divides it from the prefix: further ones belong to the key.
    fn after_prefix<'a>(&self, path: &'a str) -> Option<&'a str> {
        let rest = path.get(self.prefix.len()..)?;
        if self.prefix.ends_with('/') {
            return Some(rest);
        }
        Some(rest.strip_prefix('/').unwrap_or(rest))
    }
}

fn decoded(text: &str) -> Cow<'_, [u8]> {
    if text.contains('%') { percent_decode(text.as_bytes()).into() } else { Cow::Borrowed(text.as_bytes()) }
}

/// A segment of the path, counted from 1.
fn segment(uri: &Uri, at: usize) -> Option<Cow<'_, [u8]>> {
    uri.path().split('/').nth(at).map(decoded)
}

fn header<'a>(parts: &'a Parts, name: &HeaderName) -> Option<Cow<'a, [u8]>> {
    parts.headers.get(name).map(|value| Cow::Borrowed(value.as_bytes()))
}

/// A parameter of the query, as forms write it: `+` is a blank.
fn query<'a>(uri: &'a Uri, name: &str) -> Option<Cow<'a, [u8]>> {
    let pairs = uri.query()?.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let (_, value) = pairs.into_iter().find(|(key, _)| form_decoded(key).as_ref() == name.as_bytes())?;
    Some(form_decoded(value))
}

fn form_decoded(text: &str) -> Cow<'_, [u8]> {
    if !text.contains('+') {
        return decoded(text);
    }
    Cow::Owned(percent_decode(text.replace('+', " ").as_bytes()).collect())
}

impl fmt::Display for KeyspaceFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyspaceFrom::Name(name) => write!(f, "keyspace {name}"),
            KeyspaceFrom::PathSegment(at) => write!(f, "keyspace in segment {at} of the path"),
            KeyspaceFrom::Header(name) => write!(f, "keyspace in the header {name}"),
            KeyspaceFrom::Query(name) => write!(f, "keyspace in the query parameter {name}"),
        }
    }
}

impl fmt::Display for KeyFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyFrom::PathSegment(at) => write!(f, "segment {at} of the path"),
            KeyFrom::Rest => write!(f, "the rest of the path"),
            KeyFrom::Header(name) => write!(f, "the header {name}"),
            KeyFrom::Query(name) => write!(f, "the query parameter {name}"),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.prefix.is_empty() {
            write!(f, "under {}: ", self.prefix)?;
        }
        write!(f, "{}, key in {}", self.keyspace, self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn key(rule: &Rule, path: &str) -> String {
        let (parts, ()) = Request::get(path).body(()).unwrap().into_parts();
        String::from_utf8(rule.key_of(&parts).unwrap().into_owned()).unwrap()
    }

    #[test]
    fn the_rest_of_the_path_is_the_key_byte_for_byte() {
        let named = |prefix: &str| Rule {
            prefix: prefix.to_owned(),
            keyspace: KeyspaceFrom::Name("ks".parse().unwrap()),
            key: KeyFrom::Rest,
        };
        for (prefix, path, expected) in [
            ("", "/x", "x"),
            ("", "//x", "/x"),
            ("/p", "/p", ""),
            ("/p", "/p/", ""),
            ("/p", "/p/x", "x"),
            ("/p", "/p//x", "/x"),
            ("/p", "/p///x//", "//x//"),
            ("/p/", "/p/x", "x"),
            ("/p/", "/p//x", "/x"),
            ("/p/", "/p/%2Fx", "/x"),
        ] {
            assert_eq!(key(&named(prefix), path), expected, "{prefix} {path}");
        }
        // As after the segment of a keyspace.
        for (path, expected) in [("/ks/x", "x"), ("/ks//x", "/x"), ("/ks/x//", "x//")] {
            assert_eq!(key(&Rule::default(), path), expected, "{path}");
        }
    }
}

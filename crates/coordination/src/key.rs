//! Keys: `/`-separated paths, relative to the root of the cluster.
//!
//! `maps/users/head` is a key; its parent is `maps/users`. The backend puts the cluster's root in
//! front, so no caller can name what belongs to another cluster. Segments are printable ASCII without
//! `/`: what ZooKeeper, etcd, a SQL column and a log line all carry unchanged. A caller that makes keys of names that
//! people choose checks or encodes them.

use std::fmt;
use std::sync::Arc;

use crate::limits::MAX_KEY_BYTES;

/// A path such as `nodes/n1`: one or more non-empty segments. Ordered by bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

/// Why some text is no key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Two slashes in a row, a slash at one end, or no text at all.
    #[error("key {0:?} has an empty segment: write it as `a/b`, with no slash at either end")]
    EmptySegment(String),
    /// `.` and `..` are refused: ZooKeeper refuses them too.
    #[error("key {0:?} has the segment `.` or `..`, which no backend takes: name it otherwise")]
    DotSegment(String),
    /// A byte that is not printable ASCII.
    #[error("key {key:?} has a character at byte {at} that is not printable ASCII: encode it first")]
    Character {
        /// The text as the caller gave it.
        key: String,
        /// Byte offset of the character.
        at: usize,
    },
    /// Longer than [`MAX_KEY_BYTES`]; the number is its length in bytes.
    #[error("key of {0} bytes is longer than the limit of {MAX_KEY_BYTES}: shorten it")]
    TooLong(usize),
}

impl Key {
    /// Checks and keeps `path`.
    pub fn new(path: impl AsRef<str>) -> Result<Self, KeyError> {
        let path = path.as_ref();
        if path.len() > MAX_KEY_BYTES {
            return Err(KeyError::TooLong(path.len()));
        }
        if let Some(at) = path.bytes().position(|byte| !byte.is_ascii_graphic()) {
            return Err(KeyError::Character { key: path.to_owned(), at });
        }
        for segment in path.split('/') {
            match segment {
                "" => return Err(KeyError::EmptySegment(path.to_owned())),
                "." | ".." => return Err(KeyError::DotSegment(path.to_owned())),
                _ => {}
            }
        }
        Ok(Self(path.into()))
    }

    /// The key `self/segments`; `segments` may itself hold slashes.
    pub fn join(&self, segments: impl AsRef<str>) -> Result<Self, KeyError> {
        Self::new(format!("{}/{}", self.0, segments.as_ref()))
    }

    /// The lower bound of keys that start with `prefix`. Not a key: only for comparisons.
    #[cfg(feature = "embedded")]
    pub(crate) fn lower_bound(prefix: &str) -> Self {
        Self(prefix.into())
    }

    /// The whole path, without the cluster's root in front.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What follows the last slash, or the whole path if there is none.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// The key one segment up; `None` at the top.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        self.0.rsplit_once('/').map(|(parent, _)| Self(parent.into()))
    }

    /// True if `self` is `ancestor/…`, at any depth.
    #[must_use]
    pub fn is_below(&self, ancestor: &Self) -> bool {
        self.0.strip_prefix(ancestor.as_str()).is_some_and(|rest| rest.starts_with('/'))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

impl std::str::FromStr for Key {
    type Err = KeyError;
    fn from_str(path: &str) -> Result<Self, KeyError> {
        Self::new(path)
    }
}

/// Which keys a list or a watch is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// That key, whether it exists or not, and none below it.
    One(Key),
    /// The keys exactly one segment below.
    Children(Key),
    /// All keys below, at any depth.
    Below(Key),
    /// Everything of the cluster.
    All,
}

impl Scope {
    /// True if `key` belongs to the scope.
    #[must_use]
    pub fn contains(&self, key: &Key) -> bool {
        match self {
            Self::One(one) => key == one,
            Self::Children(parent) => {
                key.is_below(parent) && !key.as_str()[parent.as_str().len() + 1..].contains('/')
            }
            Self::Below(ancestor) => key.is_below(ancestor),
            Self::All => true,
        }
    }

    /// The bytes that every key of the scope starts with.
    #[must_use]
    pub fn prefix(&self) -> String {
        match self {
            Self::One(key) => key.to_string(),
            Self::Children(key) | Self::Below(key) => format!("{key}/"),
            Self::All => String::new(),
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(key) => write!(f, "{key}"),
            Self::Children(key) => write!(f, "{key}/*"),
            Self::Below(key) => write!(f, "{key}/**"),
            Self::All => f.write_str("**"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_checked() {
        assert!(Key::new("a/b-c/D.1=x").is_ok());
        assert!(matches!(Key::new(""), Err(KeyError::EmptySegment(_))));
        assert!(matches!(Key::new("/a"), Err(KeyError::EmptySegment(_))));
        assert!(matches!(Key::new("a//b"), Err(KeyError::EmptySegment(_))));
        assert!(matches!(Key::new("a/../b"), Err(KeyError::DotSegment(_))));
        assert_eq!(Key::new("a/é"), Err(KeyError::Character { key: "a/é".into(), at: 2 }));
        assert!(matches!(Key::new("a\0"), Err(KeyError::Character { at: 1, .. })));
        assert!(Key::new("a".repeat(MAX_KEY_BYTES)).is_ok());
        assert_eq!(Key::new("a".repeat(MAX_KEY_BYTES + 1)), Err(KeyError::TooLong(MAX_KEY_BYTES + 1)));
    }

    #[test]
    fn scopes_contain_what_they_say() {
        let [a, ab, abc, ax] = ["a", "a/b", "a/b/c", "a.x"].map(|path| Key::new(path).unwrap());
        let held = |scope: Scope| [&a, &ab, &abc, &ax].map(|key| scope.contains(key));
        assert_eq!(held(Scope::One(a.clone())), [true, false, false, false]);
        assert_eq!(held(Scope::Children(a.clone())), [false, true, false, false]);
        assert_eq!(held(Scope::Below(a.clone())), [false, true, true, false]);
        assert_eq!(held(Scope::All), [true; 4]);
        assert_eq!((abc.name(), abc.parent(), a.parent()), ("c", Some(ab), None));
    }
}

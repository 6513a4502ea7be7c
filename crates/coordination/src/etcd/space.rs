//! Where the keys of one cluster lie in etcd's flat keyspace.
//!
//! ```text
//! /partage/prod/ session/5b3c…   markers of sessions: a space sorts before every character of a key
//! /partage/prod/maps/users/head  the key maps/users/head
//! ```
//!
//! `/` is followed by `0`, so all that begins with `…/` ends before `…0`.

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::key::{Key, Scope};
use crate::session::SessionId;

/// From `start` to before `end`; an empty end is the start alone, as etcd has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub start: Bytes,
    pub end: Bytes,
}

/// This cluster's part of etcd.
#[derive(Clone, Debug)]
pub(super) struct Space {
    /// Begins and ends with a slash.
    prefix: String,
}

impl Space {
    pub fn new(root: &Key) -> Self {
        Self { prefix: format!("/{root}/") }
    }

    /// All keys of this cluster, markers included: what a user of etcd needs rights to.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    pub fn raw(&self, key: &Key) -> Bytes {
        format!("{}{key}", self.prefix).into()
    }

    /// The key that goes with a session's lease, and says that the lease is one of ours.
    pub fn marker(&self, session: SessionId) -> Bytes {
        format!("{} session/{session}", self.prefix).into()
    }

    /// The key behind what etcd has; an error for what this program cannot have written.
    pub fn key(&self, raw: &[u8]) -> Result<Key> {
        let text = std::str::from_utf8(raw).ok().and_then(|text| text.strip_prefix(&self.prefix));
        text.and_then(|text| Key::new(text).ok()).ok_or_else(|| Error::Invalid {
            what: format!(
                "etcd has the key `{}`, which this program did not write: it is left alone; remove it, or choose \
                 another root",
                raw.escape_ascii()
            ),
        })
    }

    pub fn range(&self, scope: &Scope) -> Range {
        match scope {
            Scope::One(key) => Range { start: self.raw(key), end: Bytes::new() },
            Scope::Children(key) | Scope::Below(key) => self.below(key),
            Scope::All => Range {
                start: format!("{}!", self.prefix).into(),
                end: format!("{}0", self.prefix.trim_end_matches('/')).into(),
            },
        }
    }

    /// All keys below `key`.
    pub fn below(&self, key: &Key) -> Range {
        Range { start: format!("{}{key}/", self.prefix).into(), end: self.after_below(key) }
    }

    /// The first place after all keys below `key`.
    pub fn after_below(&self, key: &Key) -> Bytes {
        format!("{}{key}0", self.prefix).into()
    }

    /// The first place after `key`.
    pub fn after(&self, key: &Key) -> Bytes {
        format!("{}{key}\0", self.prefix).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(range: &Range, raw: &Bytes) -> bool {
        if range.end.is_empty() { *raw == range.start } else { (&range.start..&range.end).contains(&raw) }
    }

    /// A range has all keys of its scope; more only where children have children.
    #[test]
    fn ranges_are_their_scopes() {
        let space = Space::new(&Key::new("p/q").unwrap());
        let keys = ["!", "a", "a!x", "a.x", "a/!", "a/b", "a/b/c", "a/~", "a0", "aa", "~"];
        let keys = keys.map(|key| Key::new(key).unwrap());
        let a = Key::new("a").unwrap();
        for scope in [Scope::One(a.clone()), Scope::Below(a.clone()), Scope::All] {
            for key in &keys {
                assert_eq!(
                    holds(&space.range(&scope), &space.raw(key)),
                    scope.contains(key),
                    "{scope} {key}"
                );
            }
        }
        assert!(space.after(&a) > space.raw(&a) && space.after(&a) < space.raw(&Key::new("a!").unwrap()));
        assert!(!holds(&space.range(&Scope::All), &space.marker(SessionId::new(7))));
        assert!(space.marker(SessionId::new(7)).starts_with(space.prefix().as_bytes()));
    }

    #[test]
    fn what_is_not_ours_is_named() {
        let space = Space::new(&Key::new("p").unwrap());
        assert_eq!(space.key(b"/p/a/b"), Ok(Key::new("a/b").unwrap()));
        for raw in [&b"/p/a//b"[..], b"/p/\xff", b"/q/a", b"/p/ session/7"] {
            assert!(space.key(raw).unwrap_err().to_string().contains("did not write"));
        }
    }
}

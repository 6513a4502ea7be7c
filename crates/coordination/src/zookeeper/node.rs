//! How keys lie in ZooKeeper's tree, and how a value lies in a znode.
//!
//! ```text
//! /partage/prod                the root: our mark; its data version is the clock that all writers share
//! /partage/prod/maps           no key: an empty znode, there because something lies below
//! /partage/prod/maps/head      a key: one byte that says "value, form 1", then the value
//! /partage/prod/ sessions      no key, and none below: see `marks`
//! ```
//!
//! So a key with an empty value, a key with keys below it, and a znode that is only there for others below it all differ.
//! A znode without our byte is another program's: the error names it, and we leave it alone.

use bytes::Bytes;
use zookeeper_client::Stat;

use crate::error::{Error, Result};
use crate::key::{Key, Scope};
use crate::session::SessionId;
use crate::transaction::{Entry, Version};

/// First byte of a key's znode. No text begins with it: in UTF-8 it only continues a character.
const VALUE: u8 = 0xA1;

/// Data of the root.
pub(super) const ROOT_MARK: &[u8] = b"partage coordination root 1\n";

/// The znode right below the root that sessions keep their marks in. No key has a blank.
pub(super) const MARKS: &str = " sessions";

/// Where the root is.
#[derive(Clone, Debug)]
pub(super) struct Root {
    path: String,
    marks: String,
}

impl Root {
    pub fn new(root: &Key) -> Result<Self> {
        if root.as_str().split('/').next() == Some("zookeeper") {
            let what = format!("the root `/{root}` is ZooKeeper's own: choose another one");
            return Err(Error::Invalid { what });
        }
        Ok(Self { path: format!("/{root}"), marks: format!("/{root}/{MARKS}") })
    }

    /// The path of its znode, with a slash in front.
    pub fn as_str(&self) -> &str {
        &self.path
    }

    /// The znode that the marks of the sessions are in.
    pub fn marks(&self) -> &str {
        &self.marks
    }

    /// The znode of a key.
    pub fn path(&self, key: &Key) -> String {
        format!("{}/{key}", self.path)
    }

    /// The key of a znode; `None` for the root, and for what lies elsewhere or cannot be a key.
    pub fn key(&self, path: &str) -> Option<Key> {
        Key::new(path.strip_prefix(&self.path)?.strip_prefix('/')?).ok()
    }

    /// The znode itself and all above it, from the top.
    pub fn path_prefixes(&self) -> impl Iterator<Item = &str> {
        let ends = self.path.match_indices('/').map(|(at, _)| at).skip(1).chain([self.path.len()]);
        ends.map(|end| &self.path[..end])
    }
}

/// All keys above `key`, from the nearest.
pub(super) fn ancestors(key: &Key) -> impl Iterator<Item = Key> {
    std::iter::successors(key.parent(), Key::parent)
}

/// The key that all keys of a scope lie at or below, if there is one.
pub(super) fn anchor(scope: &Scope) -> Option<&Key> {
    match scope {
        Scope::One(key) | Scope::Children(key) | Scope::Below(key) => Some(key),
        Scope::All => None,
    }
}

/// What a znode is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// No key: there because something lies below.
    Intermediate,
    /// A key that stays.
    Lasting,
    /// A key that goes with its session.
    Ephemeral(SessionId),
    /// Another program's: its data is not of our form.
    Foreign,
}

/// A znode as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub kind: Kind,
    /// Empty where only the rest is kept.
    pub value: Bytes,
    /// How often its data was set; ZooKeeper's conditions compare it.
    pub data_version: i32,
    /// The transaction that set its data last.
    pub changed: Version,
    /// The transaction that last made or removed a child of it.
    pub children_changed: Version,
    pub children: usize,
}

impl Node {
    pub fn read(data: Vec<u8>, stat: &Stat) -> Self {
        let data = Bytes::from(data);
        let kind = match (data.first(), stat.ephemeral_owner) {
            (None, 0) => Kind::Intermediate,
            (Some(&VALUE), 0) => Kind::Lasting,
            (Some(&VALUE), owner) => Kind::Ephemeral(session_id(owner)),
            _ => Kind::Foreign,
        };
        Self {
            kind,
            value: data.slice(data.len().min(1)..),
            data_version: stat.version,
            changed: version(stat.mzxid),
            children_changed: version(stat.pzxid),
            children: usize::try_from(stat.num_children).unwrap_or(0),
        }
    }

    /// The node without its value, which a plan does not need.
    pub fn bare(self) -> Self {
        Self { value: Bytes::new(), ..self }
    }

    /// The key's version, if it is a key.
    pub fn found(&self, key: &Key) -> Result<Option<Version>> {
        match self.kind {
            Kind::Intermediate => Ok(None),
            Kind::Lasting | Kind::Ephemeral(_) => Ok(Some(self.changed)),
            Kind::Foreign => Err(foreign(key)),
        }
    }

    /// The key's entry, if it is a key.
    pub fn entry(&self, key: &Key) -> Result<Option<Entry>> {
        let session = if let Kind::Ephemeral(session) = self.kind { Some(session) } else { None };
        let found = self.found(key)?;
        Ok(found.map(|version| Entry { value: self.value.clone(), version, session }))
    }
}

/// The data of a znode: of a key with its value, or of an intermediate one.
pub(super) fn data(value: Option<&Bytes>) -> Vec<u8> {
    value.map_or_else(Vec::new, |value| [&[VALUE], &value[..]].concat())
}

/// ZooKeeper's transaction ids are versions.
pub(super) fn version(zxid: i64) -> Version {
    Version::new(u64::try_from(zxid).unwrap_or(0))
}

pub(super) fn session_id(owner: i64) -> SessionId {
    SessionId::new(u128::from(owner.cast_unsigned()))
}

/// The error for a znode that another program wrote.
pub(super) fn foreign(key: &Key) -> Error {
    let what = format!(
        "key `{key}` holds what this program did not write there: it is left alone; check the root, or delete that \
         znode"
    );
    Error::Invalid { what }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(path: &str) -> Key {
        Key::new(path).unwrap()
    }

    fn stat(ephemeral_owner: i64) -> Stat {
        Stat {
            czxid: 1,
            mzxid: 7,
            pzxid: 9,
            ctime: 0,
            mtime: 0,
            version: 3,
            cversion: 0,
            aversion: 0,
            ephemeral_owner,
            data_length: 0,
            num_children: 2,
        }
    }

    #[test]
    fn paths_and_keys_are_two_names_of_one_thing() {
        let root = Root::new(&key("a/b")).unwrap();
        assert_eq!(root.path(&key("x/y")), "/a/b/x/y");
        assert_eq!(root.key("/a/b/x/y"), Some(key("x/y")));
        for path in ["/a/b", "/a/bc/x", "/a", "/a/b/x y", "/a/b/é", root.marks()] {
            assert_eq!(root.key(path), None, "{path}");
        }
        assert_eq!(root.path_prefixes().collect::<Vec<_>>(), ["/a", "/a/b"]);
        assert!(Root::new(&key("zookeeper/x")).is_err());
        assert_eq!(ancestors(&key("a/b/c")).collect::<Vec<_>>(), [key("a/b"), key("a")]);
    }

    #[test]
    fn what_is_ours_comes_back_and_the_rest_is_foreign() {
        let at = key("k");
        for value in [&b""[..], b"x", b"\xA1"] {
            let value = Bytes::copy_from_slice(value);
            let node = Node::read(data(Some(&value)), &stat(0));
            let entry = Entry { value: value.clone(), version: Version::new(7), session: None };
            assert_eq!(node.entry(&at), Ok(Some(entry)));
            let owned = Node::read(data(Some(&value)), &stat(-2)).entry(&at).unwrap().unwrap();
            assert_eq!(owned.session, Some(SessionId::new(u128::from(u64::MAX - 1))));
        }
        assert_eq!(Node::read(data(None), &stat(0)).entry(&at), Ok(None));
        for (bytes, owner) in [(&b"hello"[..], 0), (b"{}", 5), (b"", 5)] {
            let error = Node::read(bytes.to_vec(), &stat(owner)).entry(&at).unwrap_err();
            assert!(error.to_string().contains("`k`"), "{error}");
        }
    }
}

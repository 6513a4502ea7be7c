//! Names that people choose: of keyspaces, nodes, zones, labels, partitions and indexes.
//!
//! One rule for all of them, checked once at the edge and then trusted: 1 to [`limits::NAME_BYTES`] bytes
//! of letters, digits and `-_.:@+`, not beginning with `.`. So a name is at once a path segment, a file
//! name, a metric label and a shell word. `/`, NUL, blanks and control characters are refused.

use crate::limits;
use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// Why a string is not a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name is the empty string.
    #[error("a {what} name is empty: give it 1 to {max} characters", max = limits::NAME_BYTES)]
    Empty {
        /// What the name was for: "keyspace", "node" …
        what: &'static str,
    },
    /// More than [`limits::NAME_BYTES`] bytes.
    #[error("a {what} name of {bytes} bytes is too long: the limit is {max}", max = limits::NAME_BYTES)]
    TooLong {
        /// What the name was for.
        what: &'static str,
        /// The length of the name in bytes.
        bytes: usize,
    },
    /// A character that no name may hold.
    #[error(
        "the {what} name {name:?} has {found:?} at byte {at}: use letters, digits and -_.:@+ , and do not begin with a dot"
    )]
    Character {
        /// What the name was for.
        what: &'static str,
        /// The name as given.
        name: String,
        /// The first character that no name may hold there.
        found: char,
        /// Where in the name it is, in bytes from 0.
        at: usize,
    },
}

fn check(what: &'static str, name: &str) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty { what });
    }
    if name.len() > limits::NAME_BYTES {
        return Err(NameError::TooLong { what, bytes: name.len() });
    }
    let bad = |(at, c): &(usize, char)| {
        !(c.is_ascii_alphanumeric() || "-_.:@+".contains(*c)) || (*at == 0 && *c == '.')
    };
    match name.char_indices().find(bad) {
        Some((at, found)) => Err(NameError::Character { what, name: name.to_owned(), found, at }),
        None => Ok(()),
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(Arc<Box<str>>);

        impl $type {
            /// Checks the rule of this module and keeps the name.
            pub fn new(name: &str) -> Result<Self, NameError> {
                check($what, name)?;
                Ok(Self(Arc::new(name.into())))
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl std::str::FromStr for $type {
            type Err = NameError;
            fn from_str(name: &str) -> Result<Self, NameError> {
                Self::new(name)
            }
        }
    };
}

name!(
    /// Name of a keyspace, unique in a cluster.
    KeyspaceName, "keyspace"
);
name!(
    /// Name of a node: the worker process as its operator calls it. Survives restarts; see
    /// [`crate::base::id::Incarnation`] for what does not.
    NodeId, "node"
);
name!(
    /// Name of a partition that the user registered by an id of their own (A1).
    PartitionName, "partition"
);
name!(
    /// A failure domain: what is lost together. Used for zones and for racks.
    Zone, "zone"
);
name!(
    /// Name of an index of a table, unique in its table.
    IndexName, "index"
);
name!(
    /// A label of a node, either bare or as `key:value`.
    Label, "label"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_names_pass_and_print_as_given() {
        for good in ["a", "packages", "eu-west-1.a", "10.0.0.1:7000", "user@host", "c++"] {
            assert_eq!(NodeId::new(good).unwrap().to_string(), good);
        }
    }

    #[test]
    fn bad_names_say_what_and_where() {
        assert_eq!(KeyspaceName::new(""), Err(NameError::Empty { what: "keyspace" }));
        for (bad, at) in [("a/b", 1), ("a\0", 1), (".hidden", 0), ("two words", 3), ("é", 0)] {
            let error = NodeId::new(bad).unwrap_err();
            assert!(
                matches!(error, NameError::Character { at: found, .. } if found == at),
                "{bad:?}: {error}"
            );
        }
    }

    #[test]
    fn the_limit_is_exact() {
        assert!(NodeId::new(&"x".repeat(limits::NAME_BYTES)).is_ok());
        let error = NodeId::new(&"x".repeat(limits::NAME_BYTES + 1)).unwrap_err();
        assert_eq!(error, NameError::TooLong { what: "node", bytes: limits::NAME_BYTES + 1 });
        assert!(NodeId::new(&"x".repeat(1 << 20)).unwrap_err().to_string().len() < 200);
    }
}

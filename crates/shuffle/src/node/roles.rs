//! What a node does in its pool.

use std::fmt;
use std::str::FromStr;

/// What a node does in its pool: one of both, or both. Any node takes requests, leads what the map says, and gives records to
/// readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Roles {
    /// It takes attempts of clients, and stores records.
    #[default]
    Both,
    /// It takes attempts of clients. The coordinator places no slots on it, and it stands in for no other node.
    Buffer,
    /// It stores records, and refuses attempts.
    Storage,
}

/// Words that are no roles.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} are no roles of a node of shuffles: give buffer, storage, or both, as buffer,storage")]
pub struct BadRoles(String);

impl Roles {
    /// Whether it takes attempts of clients.
    pub fn buffers(self) -> bool {
        self != Roles::Storage
    }

    /// Whether it stores records.
    pub fn stores(self) -> bool {
        self != Roles::Buffer
    }
}

impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Roles::Both => "buffer,storage",
            Roles::Buffer => "buffer",
            Roles::Storage => "storage",
        })
    }
}

impl FromStr for Roles {
    type Err = BadRoles;

    fn from_str(text: &str) -> Result<Roles, BadRoles> {
        let (mut buffers, mut stores) = (false, false);
        for word in text.split(',') {
            match word.trim() {
                "buffer" => buffers = true,
                "storage" => stores = true,
                _ => return Err(BadRoles(text.to_owned())),
            }
        }
        match (buffers, stores) {
            (true, true) => Ok(Roles::Both),
            (true, false) => Ok(Roles::Buffer),
            (false, true) => Ok(Roles::Storage),
            (false, false) => Err(BadRoles(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_words_in_any_order() {
        for roles in [Roles::Both, Roles::Buffer, Roles::Storage] {
            assert_eq!(roles.to_string().parse(), Ok(roles));
            assert!(roles.buffers() || roles.stores());
        }
        assert_eq!("storage, buffer".parse(), Ok(Roles::default()));
        for bad in ["", ",", "buffer,", "store", "Buffer"] {
            assert_eq!(bad.parse::<Roles>(), Err(BadRoles(bad.to_owned())));
        }
    }
}

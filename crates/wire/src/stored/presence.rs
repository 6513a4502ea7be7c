//! How a coordinator introduces itself in the coordination service: beside its own ephemeral key, and as a candidate.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The key below which each coordinator keeps a key of its own, by its id.
pub const COORDINATORS: &str = "coordinators";

/// The key below which the election is kept.
pub const ELECTION: &str = "election";

/// A coordinator, as it says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Presence {
    /// Its name, the same across its restarts.
    pub id: String,
    /// `host:port` where others reach it.
    pub address: String,
    /// Since when it runs, or leads, in milliseconds of Unix time.
    pub since_ms: u64,
    /// The version of the program that it runs.
    pub version: String,
    /// The term at which it leads and answers; none while it stands by, or was elected and does not answer yet.
    #[serde(default)]
    pub leads: Option<u64>,
}

impl Presence {
    /// As it is stored.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        let quoted = serde_json::json!({
            "id": self.id, "address": self.address, "since_ms": self.since_ms, "version": self.version,
            "leads": self.leads,
        });
        quoted.to_string().into()
    }

    /// From what is stored at `key`.
    ///
    /// # Errors
    /// Names the key when that is something else.
    pub fn from_bytes(key: &str, bytes: &[u8]) -> Result<Presence, super::StoredError> {
        serde_json::from_slice(bytes)
            .map_err(|why| super::StoredError::new(key, format!("does not say which coordinator: {why}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_presence_comes_back_and_anything_else_is_named() {
        let presence = Presence {
            id: "c1".to_owned(),
            address: "10.0.0.1:7400".to_owned(),
            since_ms: 7,
            version: "0.1.0".to_owned(),
            leads: None,
        };
        for presence in [presence.clone(), Presence { leads: Some(7), ..presence }] {
            assert_eq!(Presence::from_bytes("k", &presence.to_bytes()).unwrap(), presence);
        }
        for bytes in [&b""[..], b"{}", b"\xff", b"[1]"] {
            let error = Presence::from_bytes("election/leader", bytes).unwrap_err().to_string();
            assert!(error.contains("election/leader"), "{error}");
        }
    }
}

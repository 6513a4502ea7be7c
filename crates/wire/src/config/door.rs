//! `[door]`, a section of every role's file: which clients may connect, and what they may cost.

use serde::Deserialize;

/// The section. What is absent has the default of the role.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DoorFile {
    /// Names beside the process's own addresses that it answers to; `*` for all.
    pub allowed_hosts: Vec<String>,
    /// Origins of other sites whose pages may ask; `*` for all.
    pub allowed_origins: Vec<String>,
    /// Connections at a time.
    pub connections: Option<usize>,
    /// Connections from one address at a time.
    pub connections_per_address: Option<usize>,
    /// Seconds that a connection may be silent before its first byte.
    pub first_byte_s: Option<u64>,
    /// Seconds that the head of a request may take.
    pub head_s: Option<u64>,
    /// Bytes a second that a body must come with.
    pub body_bytes_s: Option<u64>,
    /// Mebibytes of request bodies in the memory of the process.
    pub bytes_in_flight_mib: Option<u64>,
    /// Mebibytes of these for the bodies above 64 KiB of one client address.
    pub bytes_in_flight_per_address_mib: Option<u64>,
}

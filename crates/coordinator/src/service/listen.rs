//! One listener for everything: gRPC (HTTP/2) and JSON (HTTP/1.1 or 2) on one port.

use crate::limits;
use partage_door::{Door, Role, Settings};
use std::net::SocketAddr;
use std::time::Duration;

/// The door of a coordinator that listens at `listen`, and that others reach at `address`.
pub fn door(settings: Settings, address: &str, listen: SocketAddr) -> Door {
    let role = Role {
        announced: vec![address.to_owned(), listen.to_string()],
        connections: limits::CONNECTIONS,
        ping: Duration::from_millis(limits::KEEP_ALIVE_MS),
        streams: limits::STREAMS,
        body_bytes: limits::BODY_BYTES as u64,
        ..Role::default()
    };
    Door::new(role, settings)
}

//! Keyspaces: settings, shardings, bounds.

pub(crate) mod grpc;
pub(crate) mod json;

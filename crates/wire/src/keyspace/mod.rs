//! Keyspaces: settings, shardings, bounds.

mod conversion;
pub(crate) mod grpc;
pub(crate) mod json;

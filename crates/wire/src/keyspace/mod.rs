//! Keyspaces: settings, shardings, bounds.

mod alike;
pub(crate) mod grpc;
pub(crate) mod json;

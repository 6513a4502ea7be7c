//! Keyspaces in protobuf, to and from core.

mod settings;
pub(crate) mod sharding;

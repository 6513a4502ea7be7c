//! Keyspaces in JSON.

pub mod settings;
pub mod sharding;

//! The worker protocol in protobuf, to and from core.

pub(crate) mod exchange;
pub(crate) mod node;

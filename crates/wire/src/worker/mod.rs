//! What workers and coordinators say to each other.

pub(crate) mod conversion;
pub(crate) mod grpc;
pub(crate) mod json;
pub mod lines;
pub(crate) mod refusal;
pub mod session;

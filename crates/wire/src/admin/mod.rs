//! Administration: commands, questions and their answers, and the document of everything durable.

mod conversion;
pub(crate) mod grpc;
pub(crate) mod json;

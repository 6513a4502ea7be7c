//! The messages and services of `proto/partage/v1`, as generated. Their documentation is in those files.

#![allow(
    missing_docs,
    clippy::all,
    clippy::too_many_lines,
    clippy::allow_attributes_without_reason,
    reason = "generated code"
)]

tonic::include_proto!("partage.v1");

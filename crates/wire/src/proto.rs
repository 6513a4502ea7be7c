//! The messages and services of `proto/partage/v1`, and in [`table`] those of `proto/partage/table/v1`, as generated. Their
//! documentation is in those files.

#![allow(
    missing_docs,
    clippy::all,
    clippy::too_many_lines,
    clippy::allow_attributes_without_reason,
    reason = "generated code"
)]

tonic::include_proto!("partage.v1");
tonic::include_proto!("packets/partage.v1");

/// The messages and the service that clients of tables use, of `proto/partage/table/v1`.
pub mod table {
    #![allow(clippy::allow_attributes_without_reason, reason = "generated code")]

    tonic::include_proto!("partage.table.v1");
}

/// The files themselves, as an encoded `google.protobuf.FileDescriptorSet`: for reflection.
pub const DESCRIPTORS: &[u8] = tonic::include_file_descriptor_set!("partage.v1");

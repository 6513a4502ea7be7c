//! etcd's messages, as `proto/etcd.proto` names them.

#![allow(clippy::all, clippy::allow_attributes_without_reason, reason = "generated code")]

tonic::include_proto!("etcdserverpb");

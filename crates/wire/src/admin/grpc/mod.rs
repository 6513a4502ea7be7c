//! Administration in protobuf, to and from core. Outwards is `From<&core>` and cannot fail; inwards is
//! `TryFrom<proto>` and names the field that is wrong. So it is in the folders `grpc` of the other topics, too.

mod command;
mod plan;
mod status;

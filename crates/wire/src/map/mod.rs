//! Maps: to routers by push, between metadata servers, and on a router's own disk.

mod encoded;
pub(crate) mod grpc;
pub mod kept;
pub mod metadata;
mod push;
#[cfg(test)]
mod tests;

pub use encoded::{EncodedMaps, encoded, with_brief};
pub use push::{Joiner, MapEvent, MapNews, NodeAddress, Watch, in_parts};
pub(crate) use push::{cut, join};

//! What routers and nodes say to each other on each request of a client.

pub mod at_least;
pub mod headers;
pub mod unavailable;

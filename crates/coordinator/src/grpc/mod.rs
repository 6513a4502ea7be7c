//! The gRPC doors: workers, routers, administration.

mod admin;
mod maps;
mod reflection;
mod worker;

pub use admin::AdminDoor;
pub use maps::MapsDoor;
pub(crate) use reflection::with_reflection;
pub use worker::WorkerDoor;

//! The gRPC doors: workers, routers, administration.

mod admin;
mod maps;
mod worker;

pub use admin::AdminDoor;
pub use maps::MapsDoor;
pub use worker::WorkerDoor;

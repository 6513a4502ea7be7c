//! The gRPC doors: workers, routers, administration.

mod maps;
mod worker;

pub use maps::MapsDoor;
pub use worker::WorkerDoor;

//! The gRPC services: workers, routers, administration.

mod admin;
mod maps;
mod reflection;
mod worker;

pub use admin::AdminService;
pub use maps::MapsService;
pub(crate) use reflection::with_reflection;
pub use worker::WorkerService;

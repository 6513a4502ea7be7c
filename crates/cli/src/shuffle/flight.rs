//! Arrow Flight at the nodes of a pool, where the program is built with it.

use partage_shuffle::server::MoreRoutes;

/// The routes of Flight; none: the program is built without it.
#[cfg(feature = "flight")]
pub fn routes() -> Option<MoreRoutes> {
    Some(std::sync::Arc::new(partage_shuffle_flight::routes))
}

/// The same without Flight.
#[cfg(not(feature = "flight"))]
pub fn routes() -> Option<MoreRoutes> {
    None
}

/// Where clients of Flight reach a node that listens there, as they take it; none: the program is built without Flight.
#[cfg(feature = "flight")]
pub fn uri(address: &str) -> Option<String> {
    Some(partage_shuffle_flight::uri(address))
}

/// The same without Flight.
#[cfg(not(feature = "flight"))]
pub fn uri(_: &str) -> Option<String> {
    None
}

//! The worker protocol in JSON.

pub mod exchange;
pub mod registration;

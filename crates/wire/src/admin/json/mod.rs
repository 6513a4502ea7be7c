//! Administration in JSON.

pub mod command;
pub mod coordinators;
pub mod dump;
pub mod event;
pub mod node;
pub mod pages;
pub mod plan;
pub mod query;
pub mod status;

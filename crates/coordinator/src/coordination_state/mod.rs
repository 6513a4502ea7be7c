//! The root of a cluster in a backend, for a person who works on it while no coordinator does, or beside them: look into
//! it, show it, restore it.

pub mod inspect;
pub mod restore;
pub mod show;

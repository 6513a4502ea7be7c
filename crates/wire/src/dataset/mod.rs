//! Datasets: the manifest of a version, what nodes publish and remember, and how they stand.

pub mod manifest;
pub mod presence;
pub mod status;

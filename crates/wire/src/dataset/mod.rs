//! Datasets: the manifest of a version, and what nodes publish and remember.

pub mod manifest;
pub mod presence;

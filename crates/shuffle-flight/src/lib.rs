//! Arrow Flight for shuffles.
#![forbid(unsafe_code)]

pub mod rows;

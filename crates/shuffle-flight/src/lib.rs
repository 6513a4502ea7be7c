//! Arrow Flight for shuffles.
#![forbid(unsafe_code)]

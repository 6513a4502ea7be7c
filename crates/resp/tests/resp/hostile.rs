//! See main.

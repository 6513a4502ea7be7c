//! Arrow Flight for shuffles.
#![forbid(unsafe_code)]

mod error;
mod rows;

pub use error::RowsError;
pub use rows::Rows;

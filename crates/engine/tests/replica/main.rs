//! The suite of stored replicas: the same cases on the engine of the product and on the simulated one, and crashes of the first.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "tests may stop at the first surprise, wait, start themselves as another process, and say what they measured"
)]

mod cases;
mod crash;
mod filling;
mod full;
mod harness;
mod model;
mod small_disk;

//! Servers over loopback, with catalogues filled by hand.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod agree;
mod door;
mod idle;
mod many;
mod one;
mod pages;
mod peers;
mod scan;
mod status;
mod test_cluster;

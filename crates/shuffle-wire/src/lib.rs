//! The inner protocol of shuffles: what nodes of a pool and their clients say to each other, as bytes, and how it gets there.
//!
//! ```text
//!  core's messages ──┐                                    ┌── frames over TCP or a Unix socket
//!  a client's calls ─┼─► forms ─► frame: header, body ────┤
//!  batches on disk ──┘   (bytes)  checksums, number       └── back, each with its own error if it is not as it was sent
//! ```
//!
//! | topic | where |
//! |---|---|
//! | the header of a frame, and what is checked of it | [`frame`] |
//! | how values look in bytes, and why so | [`form`](mod@form) |
//! | records and batches that stay where they lie | [`records`], [`batch`] |
//! | between nodes: core's messages, and how a connection begins and ends | [`node`] |
//! | between nodes, for their clients: questions to leaders and holders | [`relay`] |
//! | from clients and back: calls, answers, refusals | [`client`] |
//! | connections, queues, back-off, servers | [`transport`] |
//! | what can be wrong | [`FrameError`], [`Malformed`] |
//! | every limit | [`limits`] |
//!
//! # How often bulk is copied
//!
//! On the way out once, into the body of its frame ([`node::frame`], [`client::Call::frame`]), and not at all when it is passed
//! on as it came or lies on a disk ([`node::stored_batch_frame`]). On the way in not at all: a body is read from the socket to
//! where it stays, and records are parts of it.
//!
//! # What is not believed
//!
//! Any bytes may come. Each way to be wrong is an error with a name; nothing panics, and room is made for no more than has come:
//! a header is checked before its length is believed, a body above [`limits::ROOM_AT_ONCE`] grows as it comes, and what it is
//! decoded to takes at most [`limits::DECODED_BYTES_A_BYTE`] for each of its bytes. A server bounds what comes on all connections
//! together ([`transport::ConnectionBounds`]), and what the records of one frame take in memory.
//!
//! # What was not done
//!
//! | what | where |
//! |---|---|
//! | the whole copy of a leader's decisions, a plan, and an inventory are one message each: with tens of shuffles of 65,536 ranges in one slot, or millions of input partitions, one is longer than a frame | core's `leader`, `holder` |
//! | a client that sends a long frame a byte at a time keeps its room from others | `transport/framed.rs` |
//! | files of batches have a form of their own (`crates/shuffle/src/forms`): what they hold is put into the form of frames anew, with a checksum of its own | [`node::stored_batch_frame`] |

pub mod batch;
pub mod client;
pub mod form;
pub mod frame;
pub mod limits;
mod malformed;
pub mod node;
pub mod records;
pub mod relay;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
pub mod transport;

pub use malformed::{FrameError, Malformed};

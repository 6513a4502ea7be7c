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
//! On the way out once, into the body of its frame ([`batch::PackedBatch::put`], [`client::Call::frame`]), and not at all when it
//! is passed on as it came or lies on a disk ([`node::batch_frame`]). On the way in not at all: a body is read from the socket to
//! where it stays, and records are parts of it. Core's own form of a batch, with a value on the heap for each key, is one copy
//! more; a driver that is measured need not ask for it ([`node::Received`]).
//!
//! # What is not believed
//!
//! Any bytes may come. Each way to be wrong is an error with a name; nothing panics, and room is made for no more than has come:
//! a header is checked before its length is believed, a body above [`limits::ROOM_AT_ONCE`] grows as it comes, and what it is
//! decoded to takes at most [`limits::DECODED_BYTES_A_BYTE`] for each of its bytes.
//!
//! # What was not done
//!
//! No process uses this crate yet. Before one does:
//!
//! | what | where |
//! |---|---|
//! | a connection is given up while one long frame takes more than ten seconds, though bytes move | `transport/peer_connection.rs` |
//! | core may put more into a batch than a frame can have, as it counts neither what surrounds records nor the last frame of a client | [`limits`] |
//! | all end marks of a slot are one message, which some ten thousand attempts make too long | `node.rs` |
//! | a stranger may send a long frame before it has said who it is; clients may take all connections from nodes | `transport/server.rs` |
//! | to listen at a Unix path removes what lies there and does not answer, whatever it is | `transport/address.rs` |
//! | a stored batch gets a new checksum on its way out, not the one that it was stored with | `frame.rs` |
//! | half of the kinds of frames have no golden vector | `vectors/shuffle_frames.json` |

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

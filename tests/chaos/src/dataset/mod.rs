//! Dataset nodes as users run them: real `partage dataset serve` processes, each with a source of its own.
//!
//! At each node somebody asks all the time and writes down which version the answers are of, whenever that changes. What
//! a test asserts is that list: `v1 -> down -> v2`, never back and never mixed. Every value says its version and key, so
//! that an answer put together from two versions is noticed whichever it claims to be of.
//!
//! | file      | what it is                                                         |
//! |-----------|--------------------------------------------------------------------|
//! | `ground`  | where the nodes see each other: an engine, or gossip               |
//! | `source`  | the folder that a batch job writes                                 |
//! | `nodes`   | the processes: started, stopped, killed                            |
//! | `watch`   | who asks at a node, and what was seen                              |
//! | `status`  | what a node tells of itself and of the others                      |

pub mod ground;
pub mod nodes;
pub mod source;
pub mod status;
pub mod watch;

pub use ground::Ground;
pub use nodes::{Nodes, dealt};
pub use source::Source;

//! Clusters of dataset nodes, as users run them: what their clients see while versions come, and nodes and the
//! coordination service come and go.
//!
//! | file      | what happens                                                                            |
//! |-----------|-----------------------------------------------------------------------------------------|
//! | `gossip`  | gossip behind a key, and garbage                                                        |
//! | `grow`    | versions come, to clusters that are empty, late, without data                           |
//! | `restart` | nodes end, are killed and come back; their sources are away                             |
//! | `share`   | who has what: dealings, seats, the limits of replication                                |
//! | `service` | the coordination service is gone, or takes somebody for dead                            |

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod gossip;
mod grow;
mod restart;
mod service;
mod share;

//! Copies of rows between replicas: the snapshots that fill a follower whose leader's log does not reach back, and what the
//! children of a split or a merge take of their parents.
//!
//! | module | what it decides |
//! |---|---|
//! | [`deadline`] | by when the copy to a follower must be whole, how urgent it is by that, and how much clients may write until then |
//! | [`pacing`] | when the copies of a node may go on: a limit of bytes a second, and a share of the time while clients write |
//! | [`resume`] | whether a follower goes on with what it had stored of a snapshot before its process ended |

pub mod deadline;
pub mod pacing;
pub mod resume;

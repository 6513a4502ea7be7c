//! Coordination: the small state that several processes must agree on.
//!
//! A coordination store is an ordered map of keys. Every process may read it. A value is replaced only on
//! condition that it is still the one that was read (compare-and-swap). Ephemeral keys belong to a session
//! and are deleted when the session ends. A watch gets every change, in order. This
//! crate defines the contract of such a store ([`Coordination`]), tests it (feature `conformance`), and has the
//! store that needs nothing installed ([`embedded`]). ZooKeeper, etcd and SQL databases are stores
//! that clusters already own; the contract asks for nothing that one of them cannot do.
//!
//! # What the caller must do
//!
//! 1. Condition every change on what you read: [`Expected::At`] the version you saw, or
//!    [`Expected::Absent`]. An unconditional put is right only for a key that nobody else writes.
//! 2. After an error, ask [`Error::is_definite`]. If it is definite, nothing happened. If it is not,
//!    the change may be there now, may come a moment later, or never: read before you decide.
//!    Repeating the same conditioned transaction is safe; it takes effect once at most.
//! 3. Compare versions for equality only on the same key, for order only in the same store. Never
//!    compute one. A version is never given twice, also when a key was deleted and created again.
//! 4. Act as the owner of a session only before [`Session::deadline`]. Look at it after every await:
//!    the process may have been asleep in between.
//! 5. As a leader, put every change through [`Leadership::fence`], and hand the [`Term`] to whatever
//!    storage you write to outside. Act as a leader without a change only while a
//!    [`LeaderLease`] allows it: a leader learns that it is deposed, also while its session lives, at once from a
//!    watch, and within [`LeaderLease::bound`] in any case. The next leader waits for that long before it grants
//!    what the former leader has granted.
//! 6. Put nothing below an ephemeral key.
//! 7. Fold updates of a watch in the order they come ([`View`] does it). On a resync forget what you had.
//!    Remember [`Update::at`] and pass it to the next watch after a break.
//! 8. Keep values under [`Coordination::limits`]. What is larger belongs elsewhere, with a pointer here.
//! 9. Give each cluster its own root, and each backend its own directory, user or path.
//!
//! # Not done, and why
//!
//! No consensus protocol: the backends that need one bring theirs. No range deletes, no reads in the
//! past, no locks beside the election: nothing in Partage asks for them, and each would have to hold on
//! four backends.

mod claim;
#[cfg(feature = "conformance")]
pub mod conformance;
mod connect;
mod contract;
mod election;
#[cfg(feature = "embedded")]
pub mod embedded;
mod error;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "gossip")]
pub mod gossip;
mod key;
mod late;
mod leader_lease;
pub mod limits;
#[cfg(feature = "mysql")]
pub mod mysql;
mod session;
mod target;
mod transaction;
mod watch;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

pub use claim::{ABOUT, ClusterId, RestoreMark, check_vacant, claim, cluster_of};
pub use connect::connect;
pub use contract::{Coordination, Limits, Listing, Remark, Weight};
pub use election::{Election, FENCE_STEPS, FencedTransaction, Leader, Leadership, Term};
pub use error::{Advice, Error, Result};
pub use key::{Key, KeyError, Scope};
pub use late::Late;
pub use leader_lease::{Deposed, LeaderLease};
pub use session::{Session, SessionId};
pub use target::{Backend, DEFAULT_ROOT, Listen, Secret, ServerAddress, Target, Tls};
pub use transaction::{Condition, Entry, Expected, Operation, Transaction, Version};
pub use watch::{Change, Subscription, Update, View, Watch};

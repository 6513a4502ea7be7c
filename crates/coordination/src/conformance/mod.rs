//! The conformance suite: what every backend must do, said once, run against each.
//!
//! A backend joins by implementing [`Subject`] and calling [`run`] from its tests. Each check gets a fresh
//! store, names the invariant it is about (C1 to C7, W1 to W6), and panics where it does not hold. Nothing here
//! knows a backend: where backends may differ, a check accepts all that the contract allows, and the
//! backend's own tests pin down what it does.

mod elections;
mod presence;
mod sessions;
mod values;
mod watches;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::{Coordination, Error, Key, Result};

/// A store under test.
#[async_trait]
pub trait Subject: Send + Sync {
    /// A handle, as another process would get one. After a restart, a handle to the store that runs now.
    async fn connect(&self) -> Arc<dyn Coordination>;

    /// Stops the store and starts it again; false if that cannot be done with this one.
    async fn restart(&self) -> bool;

    /// The handle that somebody who held `before` goes on with after a restart: a new one, where a handle does not
    /// live through it.
    async fn after_restart(&self, before: Arc<dyn Coordination>) -> Arc<dyn Coordination> {
        drop(before);
        self.connect().await
    }

    /// How long after its time-to-live a session's end is seen at the latest (C4).
    fn expiry_bound(&self) -> Duration;
}

/// Runs the whole suite; `make` gives a fresh, empty store each time.
pub async fn run<S, F>(make: impl Fn() -> F)
where
    S: Subject,
    F: Future<Output = S>,
{
    values::reads_see_what_was_committed(&make().await).await;
    values::conditions_are_kept(&make().await).await;
    values::transactions_are_all_or_nothing(&make().await).await;
    values::no_update_is_lost(&make().await).await;
    values::versions_are_the_order(&make().await).await;
    values::readers_never_go_back(&make().await).await;
    values::versions_are_never_reused(&make().await).await;
    values::repeating_after_an_unknown_outcome_is_safe(&make().await).await;
    values::too_large_is_refused_before_sending(&make().await).await;
    values::lists_have_pages(&make().await).await;
    values::a_restart_loses_nothing(&make().await).await;
    watches::updates_fold_to_the_truth(&make().await).await;
    watches::a_watch_resumes(&make().await).await;
    watches::an_old_cursor_is_resynced(&make().await).await;
    watches::a_slow_subscriber_delays_nobody(&make().await).await;
    watches::a_watch_survives_a_restart(&make().await).await;
    sessions::keys_go_with_their_session(&make().await).await;
    sessions::a_session_ends_after_its_owner_gave_up(&make().await).await;
    sessions::a_renewed_session_lives_on(&make().await).await;
    sessions::an_ended_session_stays_ended(&make().await).await;
    sessions::nothing_lies_below_an_ephemeral_key(&make().await).await;
    sessions::a_restart_ends_sessions_or_keeps_them_whole(&make().await).await;
    elections::one_leads_and_the_next_waits(&make().await).await;
    elections::a_deposed_leader_is_refused(&make().await).await;
    elections::terms_only_grow(&make().await).await;
    elections::a_term_that_was_set_back_is_not_given_again(&make().await).await;
    elections::a_leader_key_of_no_session_is_nobodys(&make().await).await;
    elections::a_leader_hears_that_it_is_deposed(&make().await).await;
    elections::a_leader_hears_that_the_root_is_not_its_clusters(&make().await).await;
    elections::a_leader_hears_that_the_store_went_back(&make().await).await;
    elections::a_leader_hears_that_its_commit_is_gone(&make().await).await;
    elections::a_leader_hears_that_the_mark_of_its_commits_was_touched(&make().await).await;
}

/// Runs the part of the suite that a backend of presence alone can pass: what is published is seen by all in the
/// end, in order, and goes with its session; what else the contract has is refused by name. Where `run` asks for
/// the truth at once, these checks give the news [`Subject::expiry_bound`] to go round.
pub async fn run_presence<S, F>(make: impl Fn() -> F)
where
    S: Subject,
    F: Future<Output = S>,
{
    sessions::an_ended_session_stays_ended(&make().await).await;
    presence::what_is_published_is_seen_by_all(&make().await).await;
    presence::updates_fold_to_the_mirror(&make().await).await;
    presence::keys_go_with_their_session(&make().await).await;
    presence::too_large_is_refused_before_sending(&make().await).await;
    presence::what_it_lacks_is_refused_by_name(&make().await).await;
}

fn key(path: &str) -> Key {
    Key::new(path).expect("the suite writes good keys")
}

#[track_caller]
fn ok<T>(result: Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("should have worked: {error}"),
    }
}

#[track_caller]
fn refused<T: Debug>(result: Result<T>) -> Error {
    match result {
        Err(error) if error.is_definite() => error,
        other => panic!("should have been refused, definitely: {other:?}"),
    }
}

/// Numbers that look random and are the same in every run (Marsaglia's xorshift).
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

//! A machine that sleeps for longer than a session lasts: its leader finds that it leads no more before it acts again,
//! and not when its timers come to that, which have slept, too.

#![cfg(feature = "embedded")]
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use bytes::Bytes;
use partage_clock::suspended;
use partage_coordination::embedded::Embedded;
use partage_coordination::{Coordination, Deposed, Election, Key, LeaderLease, Session};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

const TTL: Duration = Duration::from_secs(60);
/// Far below what is left of the session by the timers.
const SOON: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c4_o10_a_leader_whose_machine_slept_leads_no_more() {
    let store: Arc<dyn Coordination> = Embedded::in_memory();
    let election = Election::new(Arc::clone(&store), &Key::new("election").unwrap()).unwrap();
    let session = Arc::new(Session::open(Arc::clone(&store), TTL).await.unwrap());
    let leadership = election.try_lead(&session, &Bytes::from_static(b"one")).await.unwrap().unwrap();
    let lease = LeaderLease::begin(store, Arc::clone(&session), &leadership, None).await.unwrap();
    let lease = Arc::new(lease);
    let waits = Arc::clone(&lease);
    let waiting = tokio::spawn(async move { waits.lost().await });
    suspended::wake_after(TTL / 2);
    assert_eq!(lease.check(), Ok(()), "it slept for less than its session lasts");
    assert!(!waiting.is_finished());
    suspended::wake_after(TTL / 2);
    assert!(!session.is_live());
    assert_eq!(lease.check(), Err(Deposed::SessionOver));
    let noticed = timeout(SOON, waiting).await;
    assert!(matches!(noticed, Ok(Ok(Deposed::SessionOver | Deposed::NotConfirmed))), "{noticed:?}");
}

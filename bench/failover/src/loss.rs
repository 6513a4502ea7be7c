//! One leader is lost, and three clocks run until it is made up for.

use chaos::admin::{Admin, empty_keyspace};
use chaos::fleet::Fleet;
use std::fmt;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// Rest between two looks: how exact the figures are.
const LOOK: Duration = Duration::from_millis(2);

/// Renewals of a session are this far apart, at most: kills are spread over that time.
const RENEWAL: Duration = Duration::from_millis(1_000);

/// How a leader is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Its process is killed with SIGKILL, as by `kill -9`.
    Killed,
    /// Its process gets SIGTERM, and ends in order.
    InOrder,
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            How::Killed => "is killed (-9)",
            How::InOrder => "leaves in order (SIGTERM)",
        })
    }
}

/// From the signal on.
pub struct Lost {
    /// Until the engine names another leader.
    pub elected: Duration,
    /// Until that leader has committed a change.
    pub committed: Duration,
    /// Until a change was answered that was asked at that moment of a coordinator that stands by, as a person does to whom the
    /// loss is not known.
    pub answered: Duration,
}

/// Loses the leader for the `time`th of `times` times, and waits until all are there again.
pub async fn lose(fleet: &mut Fleet, how: How, time: u64, times: u64) -> Lost {
    sleep(RENEWAL.mul_f64(time as f64 / times as f64)).await;
    let (leader, term) = fleet.leader().await;
    let lost = fleet.one(&leader).address.clone();
    let others: Vec<String> = fleet.addresses().into_iter().filter(|address| *address != lost).collect();
    let name = format!("{how:?}-{time}").to_lowercase();
    let begin = Instant::now();
    match how {
        How::Killed => fleet.one(&leader).process.kill(),
        How::InOrder => fleet.one(&leader).process.terminate(),
    }
    let mut commits = JoinSet::new();
    for (number, address) in others.iter().enumerate() {
        commits.spawn(change(Admin::new(address), format!("{name}-{number}"), Asked::OfItself));
    }
    let asking = tokio::spawn(change(Admin::new(&others[0]), format!("{name}-asked"), Asked::OfAnybody));
    let elected = next_leader(fleet, term).await - begin;
    let committed = commits.join_next().await.unwrap().unwrap() - begin;
    let answered = asking.await.unwrap() - begin;
    if how == How::InOrder {
        fleet.one(&leader).process.end().await;
    }
    fleet.revive(&leader);
    fleet.whole().await;
    Lost { elected, committed, answered }
}

/// The coordinator that may make a change which another or the same one is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// Only the one that is asked: if it stands by, it refuses.
    OfItself,
    /// The one that leads: the one that is asked passes the change on to it.
    OfAnybody,
}

/// When a change was made that is asked for until it is. Each attempt has a name of its own, as one may be done
/// though its answer was lost.
async fn change(admin: Admin, name: String, asked: Asked) -> Instant {
    for attempt in 0_u64.. {
        let command = empty_keyspace(&format!("{name}-{attempt}"));
        let answered = match asked {
            Asked::OfItself => admin.command_to_leader(command).await,
            Asked::OfAnybody => admin.command(command).await,
        };
        if answered.is_ok() {
            break;
        }
        sleep(LOOK).await;
    }
    Instant::now()
}

/// When the engine named a leader of a later term.
async fn next_leader(fleet: &Fleet, term: u64) -> Instant {
    while !fleet.seen_to_lead().await.is_ok_and(|led| led.is_some_and(|(_, now)| now > term)) {
        sleep(LOOK).await;
    }
    Instant::now()
}

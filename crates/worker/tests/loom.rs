//! Where the threads of requests meet the driver: every order in which they can, and every value that a weak memory lets
//! them see, by loom. The source that is tried is the worker's own, with loom's atomics in the place of the standard ones;
//! a flag stands for the gates, and a counter with a condition for tokio's `Notify`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

#[path = "../src/in_flight/counter.rs"]
mod counter;

mod atomics {
    pub use loom::sync::atomic::{AtomicU64, Ordering};
}

use counter::{EvictionEpoch, InFlightCounter};
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

struct ReplicaModel {
    counter: InFlightCounter,
    is_open: AtomicBool,
    is_handed_over: AtomicBool,
    woken: Mutex<u64>,
    wake: Condvar,
    /// As `InFlight`'s own: notified at each eviction.
    evicted: Mutex<u64>,
    eviction: Condvar,
}

impl ReplicaModel {
    fn open() -> Arc<ReplicaModel> {
        Arc::new(ReplicaModel {
            counter: InFlightCounter::new(),
            is_open: AtomicBool::new(true),
            is_handed_over: AtomicBool::new(false),
            woken: Mutex::new(0),
            wake: Condvar::new(),
            evicted: Mutex::new(0),
            eviction: Condvar::new(),
        })
    }

    /// As `Shared::enter` and the drop of its guard do.
    fn request(&self) {
        self.counter.enter();
        if self.is_open.load(Ordering::Acquire) {
            assert!(!self.is_handed_over.load(Ordering::Relaxed), "O1: inside, and the shard is another's");
        }
        self.leave();
    }

    fn leave(&self) {
        if self.counter.leave() {
            *self.woken.lock().unwrap() += 1;
            self.wake.notify_all();
        }
    }

    /// Waits as `InFlight::emptied` does.
    fn emptied(&self) {
        self.counter.begin_to_wait();
        loop {
            let enabled = *self.woken.lock().unwrap();
            if self.counter.count() == 0 {
                break;
            }
            let mut woken = self.woken.lock().unwrap();
            while *woken == enabled {
                woken = self.wake.wait(woken).unwrap();
            }
        }
        self.counter.end_to_wait();
    }

    /// As `Guard::mine_all_along` does, but for the lease.
    fn mine_all_along(&self, entered_at: EvictionEpoch) -> bool {
        !self.counter.is_evicted(entered_at)
    }

    /// A request that is let in asks whether the shard was its own all along, before it answers.
    fn answer(&self) {
        let entered_at = self.counter.enter();
        if self.is_open.load(Ordering::Acquire) {
            let is_anothers = self.is_handed_over.load(Ordering::Acquire);
            assert!(
                !(is_anothers && self.mine_all_along(entered_at)),
                "O7: another has it, and the answer counts"
            );
        }
        self.leave();
    }

    /// A request that ends only when it is evicted.
    fn stay(&self) {
        let entered_at = self.counter.enter();
        if self.is_open.load(Ordering::Acquire) {
            let mut evictions = self.evicted.lock().unwrap();
            while !self.counter.is_evicted(entered_at) {
                evictions = self.eviction.wait(evictions).unwrap();
            }
        }
        self.leave();
    }

    /// Ends requests as `InFlight::evict` does.
    fn evict(&self) {
        self.counter.evict();
        *self.evicted.lock().unwrap() += 1;
        self.eviction.notify_all();
    }

    /// As a driver does that stops without waiting: its lease runs out.
    fn abandon(&self) {
        self.is_open.store(false, Ordering::Release);
        self.evict();
        self.is_handed_over.store(true, Ordering::Release);
    }

    /// As the driver does when the requests inside have run out of time.
    fn hand_over_by_force(&self) {
        self.is_open.store(false, Ordering::Release);
        self.counter.begin_to_wait();
        self.evict();
        self.counter.end_to_wait();
        self.emptied();
        self.is_handed_over.store(true, Ordering::Relaxed);
    }

    /// As the driver does: publishes shut gates, and waits.
    fn hand_over(&self) {
        self.is_open.store(false, Ordering::Release);
        self.emptied();
        self.is_handed_over.store(true, Ordering::Relaxed);
    }
}

/// All orders with at most three switches of a thread that could go on: more find nothing more, as a rule, and take hours.
fn all_orders(act: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(act);
}

fn beside(replica: &Arc<ReplicaModel>, act: fn(&ReplicaModel)) -> thread::JoinHandle<()> {
    let replica = replica.clone();
    thread::spawn(move || act(&replica))
}

#[test]
fn o1_nobody_is_inside_when_a_shard_is_handed_over() {
    all_orders(|| {
        let replica = ReplicaModel::open();
        let requests = [beside(&replica, ReplicaModel::request), beside(&replica, ReplicaModel::request)];
        replica.hand_over();
        requests.into_iter().for_each(|request| request.join().unwrap());
    });
}

/// A wake-up that is lost shows as a deadlock.
#[test]
fn l1_all_who_wait_for_the_last_request_are_woken() {
    all_orders(|| {
        let replica = ReplicaModel::open();
        replica.counter.enter();
        let waiting = [beside(&replica, ReplicaModel::emptied), beside(&replica, ReplicaModel::hand_over)];
        replica.leave();
        waiting.into_iter().for_each(|waits| waits.join().unwrap());
        assert_eq!(replica.counter.count(), 0);
    });
}

/// A driver that ends evicts whoever is inside: none of them answers as the owner once another may be.
#[test]
fn o7_who_was_evicted_does_not_answer_as_the_owner() {
    all_orders(|| {
        let replica = ReplicaModel::open();
        let requests = [beside(&replica, ReplicaModel::answer), beside(&replica, ReplicaModel::answer)];
        replica.abandon();
        requests.into_iter().for_each(|request| request.join().unwrap());
    });
}

/// A request that misses its eviction stays for ever, which shows as a deadlock.
#[test]
fn o1_l1_whoever_is_inside_hears_of_the_eviction() {
    all_orders(|| {
        let replica = ReplicaModel::open();
        let requests = [beside(&replica, ReplicaModel::stay), beside(&replica, ReplicaModel::request)];
        replica.hand_over_by_force();
        requests.into_iter().for_each(|request| request.join().unwrap());
        assert_eq!(replica.counter.count(), 0);
    });
}

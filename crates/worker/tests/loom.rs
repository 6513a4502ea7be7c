//! Where the threads of requests meet the driver: every order in which they can, and every value that a weak memory lets
//! them see, by loom. The source that is tried is the worker's own, with loom's atomics in the place of the standard ones;
//! a flag stands for the gates, and a counter with a condition for tokio's `Notify`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

#[path = "../src/inside/occupancy.rs"]
mod occupancy;

mod atomics {
    pub use loom::sync::atomic::{AtomicU64, Ordering};
}

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use occupancy::{Came, Occupancy};

struct House {
    occupancy: Occupancy,
    is_open: AtomicBool,
    is_handed_over: AtomicBool,
    woken: Mutex<u64>,
    wake: Condvar,
    /// As `Inside`'s own: rung at each eviction.
    evicted: Mutex<u64>,
    rung: Condvar,
}

impl House {
    fn open() -> Arc<House> {
        Arc::new(House {
            occupancy: Occupancy::new(),
            is_open: AtomicBool::new(true),
            is_handed_over: AtomicBool::new(false),
            woken: Mutex::new(0),
            wake: Condvar::new(),
            evicted: Mutex::new(0),
            rung: Condvar::new(),
        })
    }

    /// As `Shared::enter` and the drop of its guard do.
    fn request(&self) {
        self.occupancy.come();
        if self.is_open.load(Ordering::Acquire) {
            assert!(!self.is_handed_over.load(Ordering::Relaxed), "O1: inside, and the shard is another's");
        }
        self.leave();
    }

    fn leave(&self) {
        if self.occupancy.go() {
            *self.woken.lock().unwrap() += 1;
            self.wake.notify_all();
        }
    }

    /// As `Inside::emptied` does.
    fn emptied(&self) {
        self.occupancy.begin_to_wait();
        loop {
            let enabled = *self.woken.lock().unwrap();
            if self.occupancy.count() == 0 {
                break;
            }
            let mut woken = self.woken.lock().unwrap();
            while *woken == enabled {
                woken = self.wake.wait(woken).unwrap();
            }
        }
        self.occupancy.end_to_wait();
    }

    /// As `Guard::mine_all_along` does, but for the lease.
    fn mine_all_along(&self, came: Came) -> bool {
        !self.occupancy.is_evicted(came)
    }

    /// A request that is let in asks whether the shard was its own all along, before it answers.
    fn answer(&self) {
        let came = self.occupancy.come();
        if self.is_open.load(Ordering::Acquire) {
            let is_anothers = self.is_handed_over.load(Ordering::Acquire);
            assert!(!(is_anothers && self.mine_all_along(came)), "O7: another has it, and the answer counts");
        }
        self.leave();
    }

    /// A request that goes only when it is told to.
    fn stay(&self) {
        let came = self.occupancy.come();
        if self.is_open.load(Ordering::Acquire) {
            let mut rung = self.evicted.lock().unwrap();
            while !self.occupancy.is_evicted(came) {
                rung = self.rung.wait(rung).unwrap();
            }
        }
        self.leave();
    }

    /// As `Inside::evict` does.
    fn evict(&self) {
        self.occupancy.evict();
        *self.evicted.lock().unwrap() += 1;
        self.rung.notify_all();
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
        self.occupancy.begin_to_wait();
        self.evict();
        self.occupancy.end_to_wait();
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

fn beside(house: &Arc<House>, act: fn(&House)) -> thread::JoinHandle<()> {
    let house = house.clone();
    thread::spawn(move || act(&house))
}

#[test]
fn o1_nobody_is_inside_when_a_shard_is_handed_over() {
    all_orders(|| {
        let house = House::open();
        let requests = [beside(&house, House::request), beside(&house, House::request)];
        house.hand_over();
        requests.into_iter().for_each(|request| request.join().unwrap());
    });
}

/// A wake-up that is lost shows as a deadlock.
#[test]
fn l1_all_who_wait_for_the_last_request_are_woken() {
    all_orders(|| {
        let house = House::open();
        house.occupancy.come();
        let waiting = [beside(&house, House::emptied), beside(&house, House::hand_over)];
        house.leave();
        waiting.into_iter().for_each(|waits| waits.join().unwrap());
        assert_eq!(house.occupancy.count(), 0);
    });
}

/// A driver that ends evicts whoever is inside: none of them answers as the owner once another may be.
#[test]
fn o7_who_was_evicted_does_not_answer_as_the_owner() {
    all_orders(|| {
        let house = House::open();
        let requests = [beside(&house, House::answer), beside(&house, House::answer)];
        house.abandon();
        requests.into_iter().for_each(|request| request.join().unwrap());
    });
}

/// A request that misses its eviction stays for ever, which shows as a deadlock.
#[test]
fn o1_l1_whoever_is_inside_hears_of_the_eviction() {
    all_orders(|| {
        let house = House::open();
        let requests = [beside(&house, House::stay), beside(&house, House::request)];
        house.hand_over_by_force();
        requests.into_iter().for_each(|request| request.join().unwrap());
        assert_eq!(house.occupancy.count(), 0);
    });
}

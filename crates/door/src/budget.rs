//! The bytes of request bodies that a process has in memory, of all its doors together.

use crate::limits;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// How many bytes there may be, and how many there are.
#[derive(Debug)]
pub struct Budget {
    most: u64,
    /// What large bodies may use of it.
    for_large: u64,
    /// What the large bodies of one address may use of that.
    per_address: u64,
    used: AtomicU64,
    /// Bytes of large bodies, by the client's address; only addresses that have some.
    large_of: Mutex<BTreeMap<IpAddr, u64>>,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget::new(limits::BYTES_IN_FLIGHT, None)
    }
}

/// The limit that a reservation would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exceeded {
    /// The limit for all requests together.
    All,
    /// The limit for the requests of one client address.
    Address,
}

impl Budget {
    /// `most` bytes. The large bodies of one address have `per_address` of them; none: half of what large bodies have.
    pub fn new(most: u64, per_address: Option<u64>) -> Budget {
        let for_large = most - most / limits::SMALL_SHARE;
        let per_address = per_address.unwrap_or(for_large / 2).min(for_large);
        Budget { most, for_large, per_address, used: AtomicU64::new(0), large_of: Mutex::default() }
    }

    /// Bytes in memory now.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// The most there may be.
    pub fn most(&self) -> u64 {
        self.most
    }

    /// The most that large bodies may use together.
    pub fn for_large(&self) -> u64 {
        self.for_large
    }

    /// The most that the large bodies of one address may use, and so the longest large body.
    pub(crate) fn per_address(&self) -> u64 {
        self.per_address
    }

    fn take(&self, bytes: u64, most: u64) -> Result<(), Exceeded> {
        let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= most);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        taken.map(drop).map_err(|_| Exceeded::All)
    }

    fn take_large(&self, address: IpAddr, bytes: u64) -> Result<(), Exceeded> {
        let mut large_of = self.large_of.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = large_of.get(&address).copied().unwrap_or(0).saturating_add(bytes);
        if sum > self.per_address {
            return Err(Exceeded::Address);
        }
        self.take(bytes, self.for_large)?;
        if sum > 0 {
            large_of.insert(address, sum);
        }
        Ok(())
    }

    /// Gives `bytes` back, of which `large` are of large bodies from this address.
    fn give_back(&self, bytes: u64, large: u64, address: IpAddr) {
        if bytes > 0 {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
        }
        if large == 0 {
            return;
        }
        let mut large_of = self.large_of.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sum) = large_of.get_mut(&address) {
            *sum = sum.saturating_sub(large);
            if *sum == 0 {
                large_of.remove(&address);
            }
        }
    }
}

/// One request's part of the budget, until it is dropped.
#[derive(Debug)]
pub(crate) struct ReservedBytes {
    budget: Arc<Budget>,
    address: IpAddr,
    bytes: AtomicU64,
    /// The bytes among them that count for the address.
    large: AtomicU64,
}

impl ReservedBytes {
    pub(crate) fn new(budget: Arc<Budget>, address: IpAddr) -> ReservedBytes {
        let address = address.to_canonical();
        ReservedBytes { budget, address, bytes: AtomicU64::new(0), large: AtomicU64::new(0) }
    }

    /// Takes more bytes.
    ///
    /// # Errors
    /// When there are not so many: it has as many as before.
    pub(crate) fn take(&self, bytes: u64, is_small: bool) -> Result<(), Exceeded> {
        if is_small {
            self.budget.take(bytes, self.budget.most)?;
        } else {
            self.budget.take_large(self.address, bytes)?;
            self.large.fetch_add(bytes, Ordering::Relaxed);
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Holds `bytes` in all.
    ///
    /// # Errors
    /// When there are not so many: it has as many as before.
    pub(crate) fn set(&self, bytes: u64) -> Result<(), Exceeded> {
        let has = self.bytes.load(Ordering::Relaxed);
        if bytes > has {
            return self.take(bytes - has, false);
        }
        self.give_back_some(has - bytes);
        Ok(())
    }

    /// Gives back some of its bytes.
    pub(crate) fn give_back_some(&self, bytes: u64) {
        let large = self.large.load(Ordering::Relaxed).min(bytes);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.large.fetch_sub(large, Ordering::Relaxed);
        self.budget.give_back(bytes, large, self.address);
    }

    /// Gives all its bytes back to the budget; later calls give back nothing.
    pub(crate) fn give_back(&self) {
        let (bytes, large) = (self.bytes.swap(0, Ordering::Relaxed), self.large.swap(0, Ordering::Relaxed));
        self.budget.give_back(bytes, large, self.address);
    }
}

impl Drop for ReservedBytes {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn the_bytes_of_all_requests_stay_within_the_budget_and_small_ones_have_a_share_of_it() {
        let budget = Arc::new(Budget::new(800, Some(600)));
        let (one, two) =
            (ReservedBytes::new(budget.clone(), address(1)), ReservedBytes::new(budget.clone(), address(2)));
        assert_eq!(one.take(600, false), Ok(()));
        assert_eq!(two.take(101, false), Err(Exceeded::All), "the last eighth is for small ones");
        assert_eq!(two.take(100, false), Ok(()));
        assert_eq!(two.take(100, true), Ok(()));
        assert_eq!(one.take(1, true), Err(Exceeded::All), "there is no more");
        assert_eq!(budget.used(), 800);
        drop(one);
        assert_eq!(budget.used(), 200);
        two.give_back();
        drop(two);
        assert_eq!(budget.used(), 0);
        assert!(budget.large_of.lock().unwrap().is_empty());
    }

    #[test]
    fn the_large_bodies_of_one_address_have_half_of_what_all_have() {
        let budget = Arc::new(Budget::new(800, None));
        let of = |last| ReservedBytes::new(budget.clone(), address(last));
        let (one, again, two) = (of(1), of(1), of(2));
        assert_eq!(one.take(350, false), Ok(()));
        assert_eq!(again.take(51, false), Err(Exceeded::Address));
        assert_eq!(again.take(50, true), Ok(()), "small ones are everybody's");
        assert_eq!(two.take(300, false), Ok(()));
        one.give_back_some(50);
        assert_eq!(again.set(100), Ok(()));
        assert_eq!(again.set(101), Err(Exceeded::Address));
        assert_eq!(budget.used(), 700);
        // The same client by another form of its address.
        let mapped = IpAddr::from([0, 0, 0, 0, 0, 0xffff, 0x0a00, 2]);
        assert_eq!(ReservedBytes::new(budget.clone(), mapped).take(51, false), Err(Exceeded::Address));
        drop((one, again, two));
        assert_eq!(budget.used(), 0);
        assert!(budget.large_of.lock().unwrap().is_empty());
    }

    proptest::proptest! {
        /// Whatever requests take and give back, in whatever order, each limit holds, and nothing is left at the end.
        #[test]
        fn every_limit_holds_and_all_is_given_back(
            steps in proptest::collection::vec((0_usize..4, 0_u64..500, 0_u8..5), 1..80),
        ) {
            let budget = Arc::new(Budget::new(1_000, Some(300)));
            let held: Vec<_> =
                (0..4).map(|n| ReservedBytes::new(budget.clone(), address(n % 2))).collect();
            for (number, bytes, what) in steps {
                let one = &held[number];
                let before = one.bytes.load(Ordering::Relaxed);
                let (done, right) = match what {
                    0 => (one.take(bytes, true), before + bytes),
                    1 => (one.take(bytes, false), before + bytes),
                    2 => (one.set(bytes), bytes),
                    3 => { one.give_back_some(bytes.min(before)); (Ok(()), before - bytes.min(before)) }
                    _ => { one.give_back(); (Ok(()), 0) }
                };
                let after = one.bytes.load(Ordering::Relaxed);
                proptest::prop_assert_eq!(after, if done.is_ok() { right } else { before });
                let all: u64 = held.iter().map(|one| one.bytes.load(Ordering::Relaxed)).sum();
                proptest::prop_assert_eq!(budget.used(), all);
                proptest::prop_assert!(all <= 1_000);
                for (address, large) in budget.large_of.lock().unwrap().iter() {
                    let of = |one: &&ReservedBytes| one.address == *address;
                    let sum: u64 = held.iter().filter(of).map(|one| one.large.load(Ordering::Relaxed)).sum();
                    proptest::prop_assert_eq!(sum, *large);
                    proptest::prop_assert!(sum <= 300);
                }
            }
            drop(held);
            proptest::prop_assert_eq!(budget.used(), 0);
            proptest::prop_assert!(budget.large_of.lock().unwrap().is_empty());
        }
    }
}

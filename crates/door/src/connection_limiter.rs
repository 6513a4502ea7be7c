//! The limits on open connections.
//!
//! ```text
//! accepted ──► silent (at most SILENT; a further one displaces the oldest)
//!                │ first byte
//!                ├──► a place (at most `connections`, and `per_address` of one address)
//!                ├──► the reserve (at most RESERVE): one request, soon
//!                └──► closed
//! ```
//!
//! So silent connections cost next to nothing and keep no other out; and where clients take all places, a person
//! still gets in to see it.

use crate::limits;
use crate::refusal::Reason;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// The open connections of one listener, and the limits on how many more may come.
#[derive(Debug)]
pub(crate) struct ConnectionLimiter {
    places: usize,
    per_address: usize,
    silent: usize,
    reserve: usize,
    state: Mutex<State>,
    /// The number of open connections, as in `state`, to be read without its lock.
    open: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// The oldest first; each with its ending sender.
    silent: VecDeque<(u64, oneshot::Sender<()>)>,
    taken: usize,
    reserve: usize,
    /// Places by address; only those that have some.
    of_address: BTreeMap<IpAddr, usize>,
}

/// A connection's place, until it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    limiter: Arc<ConnectionLimiter>,
    address: IpAddr,
    kind: PermitKind,
}

#[derive(Debug)]
enum PermitKind {
    Silent { number: u64, displaced: oneshot::Receiver<()> },
    Regular,
    Reserve,
    Rejected,
}

impl ConnectionLimiter {
    /// At most `places`, and in all (places, reserve, silent) no more than `files`. Without `per_address` one address
    /// has half of the places.
    pub(crate) fn new(places: usize, per_address: Option<usize>, files: usize) -> Arc<ConnectionLimiter> {
        let reserve = limits::RESERVE.min(files / 4).max(1);
        let files = files.saturating_sub(reserve);
        let places = places.min((files / 5 * 4).max(files.saturating_sub(limits::SILENT))).max(1);
        let silent = limits::SILENT.min(places / 4).max(1);
        Arc::new(ConnectionLimiter {
            places,
            per_address: per_address.unwrap_or(places.div_ceil(2)).max(1),
            silent,
            reserve,
            state: Mutex::default(),
            open: AtomicUsize::new(0),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Open connections, the silent ones among them.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Adds a silent one; true if it displaced another.
    pub(crate) fn enter(self: &Arc<ConnectionLimiter>, address: IpAddr) -> (ConnectionPermit, bool) {
        let (end, displaced) = oneshot::channel();
        let mut state = self.state();
        let displaces = state.silent.len() >= self.silent && state.displace();
        state.next += 1;
        let number = state.next;
        state.silent.push_back((number, end));
        drop(state);
        self.open.fetch_add(1, Ordering::Relaxed);
        let kind = PermitKind::Silent { number, displaced };
        (ConnectionPermit { limiter: self.clone(), address: address.to_canonical(), kind }, displaces)
    }

    /// Ends the oldest silent one, if there is one.
    pub(crate) fn displace(&self) -> bool {
        self.state().displace()
    }
}

impl State {
    fn displace(&mut self) -> bool {
        let oldest = self.silent.pop_front();
        // It may have ended by itself.
        oldest.is_some_and(|(_, end)| end.send(()).is_ok())
    }

    fn leave_silent(&mut self, number: u64) {
        // Mostly among the last.
        if let Some(at) = self.silent.iter().rposition(|(one, _)| *one == number) {
            self.silent.remove(at);
        }
    }
}

impl ConnectionPermit {
    /// Returns when a newer connection displaces this silent one.
    pub(crate) async fn displaced(&mut self) {
        if let PermitKind::Silent { displaced, .. } = &mut self.kind
            && displaced.await.is_ok()
        {
            return;
        }
        std::future::pending().await
    }

    /// After its first byte: takes a place, or one in the reserve.
    ///
    /// # Errors
    /// When there is neither.
    pub(crate) fn admit(&mut self) -> Result<(), Reason> {
        let PermitKind::Silent { number, .. } = self.kind else { return Ok(()) };
        let mut state = self.limiter.state();
        state.leave_silent(number);
        let of_address = state.of_address.get(&self.address).copied().unwrap_or(0);
        let full = if state.taken >= self.limiter.places {
            Some(Reason::Connections)
        } else if of_address >= self.limiter.per_address {
            Some(Reason::Address)
        } else {
            None
        };
        self.kind = match full {
            None => {
                state.taken += 1;
                *state.of_address.entry(self.address).or_default() += 1;
                PermitKind::Regular
            }
            Some(_) if state.reserve < self.limiter.reserve => {
                state.reserve += 1;
                PermitKind::Reserve
            }
            Some(_) => PermitKind::Rejected,
        };
        match (full, &self.kind) {
            (Some(reason), PermitKind::Rejected) => Err(reason),
            _ => Ok(()),
        }
    }

    /// Whether it may ask once only, since all places are taken.
    pub(crate) fn is_in_reserve(&self) -> bool {
        matches!(self.kind, PermitKind::Reserve)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.limiter.open.fetch_sub(1, Ordering::Relaxed);
        let mut state = self.limiter.state();
        match self.kind {
            PermitKind::Silent { number, .. } => state.leave_silent(number),
            PermitKind::Regular => {
                state.taken -= 1;
                if let Some(count) = state.of_address.get_mut(&self.address) {
                    *count -= 1;
                    if *count == 0 {
                        state.of_address.remove(&self.address);
                    }
                }
            }
            PermitKind::Reserve => state.reserve -= 1,
            PermitKind::Rejected => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn placed(limiter: &Arc<ConnectionLimiter>, last: u8) -> Result<ConnectionPermit, Reason> {
        let mut permit = limiter.enter(ip(last)).0;
        permit.admit().map(|()| permit)
    }

    #[tokio::test]
    async fn the_oldest_silent_connection_gives_way_and_no_place_is_lost() {
        let limiter = ConnectionLimiter::new(8, Some(8), usize::MAX);
        let (mut first, displaces) = limiter.enter(ip(1));
        assert!(!displaces);
        let (mut second, _) = limiter.enter(ip(1));
        let (third, displaces) = limiter.enter(ip(1));
        assert!(displaces, "two of eight may be silent");
        first.displaced().await;
        assert_eq!(limiter.open(), 3);
        second.admit().unwrap();
        drop((first, third));
        assert_eq!(limiter.state().silent.len(), 0);
        assert_eq!(limiter.state().taken, 1);
        drop(second);
        let state = limiter.state();
        assert_eq!((state.taken, state.of_address.len(), limiter.open()), (0, 0, 0));
    }

    #[test]
    fn connections_take_no_more_files_than_they_may_whatever_they_do() {
        for files in [6, 32, 100, 1_000, 3_584, 10_000, 1 << 20] {
            let limiter = ConnectionLimiter::new(1 << 24, None, files);
            let all = limiter.places + limiter.silent + limiter.reserve;
            assert!(all <= files && all * 10 >= files * 7, "{all} of {files}");
        }
        assert_eq!(ConnectionLimiter::new(200, None, 10_000).places, 200);
    }

    #[test]
    fn one_address_has_its_share_and_whoever_finds_no_place_the_reserve() {
        let limiter = ConnectionLimiter::new(4, None, usize::MAX);
        let mut places: Vec<_> = [1, 1, 2, 3].map(|last| placed(&limiter, last).unwrap()).into();
        assert!(places.iter().all(|permit| !permit.is_in_reserve()));
        for _ in 0..limits::RESERVE {
            let permit = placed(&limiter, 4).unwrap();
            assert!(permit.is_in_reserve());
            places.push(permit);
        }
        assert_eq!(placed(&limiter, 4).unwrap_err(), Reason::Connections);
        places.pop();
        assert!(placed(&limiter, 4).unwrap().is_in_reserve(), "it comes free again");
        places.remove(3);
        assert!(placed(&limiter, 1).unwrap().is_in_reserve(), "its address has two");
        assert!(!placed(&limiter, 4).unwrap().is_in_reserve());
    }
}

//! Who is connected, and who may still come.
//!
//! ```text
//! accepted ──► silent (at most SILENT; a further one displaces the oldest)
//!                │ first byte
//!                ├──► a place (at most `connections`, and `per_address` of one address)
//!                ├──► the reserve (at most RESERVE): one request, soon
//!                └──► closed
//! ```
//!
//! So connections that say nothing cost next to nothing and keep nobody out; and where others keep all places, a person
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
pub(crate) struct Crowd {
    places: usize,
    per_address: usize,
    silent: usize,
    reserve: usize,
    state: Mutex<State>,
    /// As in `state`, to be read without it.
    open: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// The oldest first; each with what ends it.
    silent: VecDeque<(u64, oneshot::Sender<()>)>,
    taken: usize,
    reserve: usize,
    /// Places by address; only those that have some.
    of_address: BTreeMap<IpAddr, usize>,
}

/// A connection among the others, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    crowd: Arc<Crowd>,
    address: IpAddr,
    stands: Stands,
}

#[derive(Debug)]
enum Stands {
    Silent { number: u64, displaced: oneshot::Receiver<()> },
    Placed,
    Reserve,
    Nowhere,
}

impl Crowd {
    /// Of at most `places`, and of no more files than `files`, whatever stands of each connection: a place, the reserve, or
    /// silence. None said for one address: half of the places.
    pub(crate) fn new(places: usize, per_address: Option<usize>, files: usize) -> Arc<Crowd> {
        let reserve = limits::RESERVE.min(files / 4).max(1);
        let files = files.saturating_sub(reserve);
        let places = places.min((files / 5 * 4).max(files.saturating_sub(limits::SILENT))).max(1);
        let silent = limits::SILENT.min(places / 4).max(1);
        Arc::new(Crowd {
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

    /// Connections, those that have said nothing among them.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// One more that has said nothing yet; and whether another one had to go.
    pub(crate) fn enter(self: &Arc<Crowd>, address: IpAddr) -> (Place, bool) {
        let (end, displaced) = oneshot::channel();
        let mut state = self.state();
        let displaces = state.silent.len() >= self.silent && state.displace();
        state.next += 1;
        let number = state.next;
        state.silent.push_back((number, end));
        drop(state);
        self.open.fetch_add(1, Ordering::Relaxed);
        let stands = Stands::Silent { number, displaced };
        (Place { crowd: self.clone(), address: address.to_canonical(), stands }, displaces)
    }

    /// The oldest silent one must go, if there is one.
    pub(crate) fn displace(&self) -> bool {
        self.state().displace()
    }
}

impl State {
    fn displace(&mut self) -> bool {
        let oldest = self.silent.pop_front();
        // It may have gone by itself.
        oldest.is_some_and(|(_, end)| end.send(()).is_ok())
    }

    fn leave_silent(&mut self, number: u64) {
        // Mostly one of the last.
        if let Some(at) = self.silent.iter().rposition(|(one, _)| *one == number) {
            self.silent.remove(at);
        }
    }
}

impl Place {
    /// Ends when the connection must go because it is silent and others have come.
    pub(crate) async fn displaced(&mut self) {
        if let Stands::Silent { displaced, .. } = &mut self.stands
            && displaced.await.is_ok()
        {
            return;
        }
        std::future::pending().await
    }

    /// It has said something: it takes a place.
    ///
    /// # Errors
    /// When there is none, nor one in the reserve.
    pub(crate) fn speak(&mut self) -> Result<(), Reason> {
        let Stands::Silent { number, .. } = self.stands else { return Ok(()) };
        let mut state = self.crowd.state();
        state.leave_silent(number);
        let of_address = state.of_address.get(&self.address).copied().unwrap_or(0);
        let full = if state.taken >= self.crowd.places {
            Some(Reason::Connections)
        } else if of_address >= self.crowd.per_address {
            Some(Reason::Address)
        } else {
            None
        };
        self.stands = match full {
            None => {
                state.taken += 1;
                *state.of_address.entry(self.address).or_default() += 1;
                Stands::Placed
            }
            Some(_) if state.reserve < self.crowd.reserve => {
                state.reserve += 1;
                Stands::Reserve
            }
            Some(_) => Stands::Nowhere,
        };
        match (full, &self.stands) {
            (Some(reason), Stands::Nowhere) => Err(reason),
            _ => Ok(()),
        }
    }

    /// Whether it may ask once only, since all places are taken.
    pub(crate) fn is_in_reserve(&self) -> bool {
        matches!(self.stands, Stands::Reserve)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.crowd.open.fetch_sub(1, Ordering::Relaxed);
        let mut state = self.crowd.state();
        match self.stands {
            Stands::Silent { number, .. } => state.leave_silent(number),
            Stands::Placed => {
                state.taken -= 1;
                if let Some(count) = state.of_address.get_mut(&self.address) {
                    *count -= 1;
                    if *count == 0 {
                        state.of_address.remove(&self.address);
                    }
                }
            }
            Stands::Reserve => state.reserve -= 1,
            Stands::Nowhere => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn placed(crowd: &Arc<Crowd>, last: u8) -> Result<Place, Reason> {
        let mut place = crowd.enter(ip(last)).0;
        place.speak().map(|()| place)
    }

    #[tokio::test]
    async fn the_oldest_silent_connection_gives_way_and_no_place_is_lost() {
        let crowd = Crowd::new(8, Some(8), usize::MAX);
        let (mut first, displaces) = crowd.enter(ip(1));
        assert!(!displaces);
        let (mut second, _) = crowd.enter(ip(1));
        let (third, displaces) = crowd.enter(ip(1));
        assert!(displaces, "two of eight may be silent");
        first.displaced().await;
        assert_eq!(crowd.open(), 3);
        second.speak().unwrap();
        drop((first, third));
        assert_eq!(crowd.state().silent.len(), 0);
        assert_eq!(crowd.state().taken, 1);
        drop(second);
        let state = crowd.state();
        assert_eq!((state.taken, state.of_address.len(), crowd.open()), (0, 0, 0));
    }

    #[test]
    fn connections_take_no_more_files_than_they_may_whatever_they_do() {
        for files in [6, 32, 100, 1_000, 3_584, 10_000, 1 << 20] {
            let crowd = Crowd::new(1 << 24, None, files);
            let all = crowd.places + crowd.silent + crowd.reserve;
            assert!(all <= files && all * 10 >= files * 7, "{all} of {files}");
        }
        assert_eq!(Crowd::new(200, None, 10_000).places, 200);
    }

    #[test]
    fn one_address_has_its_share_and_whoever_finds_no_place_the_reserve() {
        let crowd = Crowd::new(4, None, usize::MAX);
        let mut places: Vec<_> = [1, 1, 2, 3].map(|last| placed(&crowd, last).unwrap()).into();
        assert!(places.iter().all(|place| !place.is_in_reserve()));
        for _ in 0..limits::RESERVE {
            let place = placed(&crowd, 4).unwrap();
            assert!(place.is_in_reserve());
            places.push(place);
        }
        assert_eq!(placed(&crowd, 4).unwrap_err(), Reason::Connections);
        places.pop();
        assert!(placed(&crowd, 4).unwrap().is_in_reserve(), "it comes free again");
        places.remove(3);
        assert!(placed(&crowd, 1).unwrap().is_in_reserve(), "its address has two");
        assert!(!placed(&crowd, 4).unwrap().is_in_reserve());
    }
}

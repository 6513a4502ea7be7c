//! Where a coordinator is: a name may stand for several of them, which are then asked in rotation.

use crate::limits;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::time::timeout;

/// Round-robin over the addresses behind names. Copies share what is known of a name.
#[derive(Clone, Debug)]
pub struct AddressRotation {
    turn: usize,
    /// How many addresses there were behind the last name.
    behind: Arc<AtomicUsize>,
}

impl AddressRotation {
    /// Begins at a random address: so those who follow one name are spread over what is behind it.
    #[must_use]
    pub fn begin() -> AddressRotation {
        AddressRotation { turn: partage_random::one_of(usize::MAX), behind: Arc::new(AtomicUsize::new(1)) }
    }

    /// In how many places there may be a coordinator, as far as is known, where so many are listed.
    #[must_use]
    pub fn places(&self, listed: usize) -> usize {
        listed.max(self.behind.load(Ordering::Relaxed))
    }

    /// Moves to the next address, whatever is behind the name.
    pub fn advance(&mut self) {
        self.turn = self.turn.wrapping_add(1);
    }

    /// A URL to connect to for `coordinator`, `host:port` or a URL. A name that cannot be resolved, or a URL, is given
    /// as it is: the connection then fails with what is wrong with it.
    pub async fn url(&self, coordinator: &str) -> String {
        if coordinator.contains("://") {
            return coordinator.to_owned();
        }
        let looked_up = timeout(limits::COORDINATOR_CONNECT, tokio::net::lookup_host(coordinator)).await;
        let found = looked_up.ok().and_then(Result::ok).map(Iterator::collect).unwrap_or_default();
        let address = self.one_of(found).map_or(coordinator.to_owned(), |address| address.to_string());
        format!("http://{address}")
    }

    fn one_of(&self, mut found: Vec<SocketAddr>) -> Option<SocketAddr> {
        found.sort_unstable();
        found.dedup();
        let turn = self.turn.checked_rem(found.len())?;
        self.behind.store(found.len(), Ordering::Relaxed);
        Some(found[turn])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_address_behind_a_name_gets_its_turn() {
        let addresses: Vec<SocketAddr> =
            ["10.0.0.3:7", "10.0.0.1:7", "10.0.0.2:7", "10.0.0.1:7"].map(|text| text.parse().unwrap()).into();
        let mut rotation = AddressRotation { turn: 4, ..AddressRotation::begin() };
        assert_eq!(rotation.places(1), 1);
        let mut seen = Vec::new();
        for _ in 0..3 {
            seen.push(rotation.one_of(addresses.clone()).unwrap());
            rotation.advance();
        }
        seen.sort_unstable();
        assert_eq!(seen, [addresses[1], addresses[2], addresses[0]]);
        assert_eq!(rotation.one_of(vec![]), None);
        assert_eq!([1, 4].map(|listed| rotation.places(listed)), [3, 4]);
        assert_eq!(rotation.url("127.0.0.1:80").await, "http://127.0.0.1:80");
        assert_eq!(rotation.url("http://h/").await, "http://h/");
        assert_eq!(rotation.url("no port").await, "http://no port", "refused where it is connected to");
    }
}

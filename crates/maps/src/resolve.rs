//! Where a coordinator is: a name may stand for several of them, which then take turns.

use crate::entropy;
use std::net::SocketAddr;

/// Goes round the addresses behind names.
#[derive(Clone, Debug)]
pub struct Turns(usize);

impl Turns {
    /// Begins by lot: so those who follow one name are spread over what is behind it.
    #[must_use]
    pub fn begin() -> Turns {
        Turns(entropy::one_of(usize::MAX))
    }

    /// The next time, whatever is behind the name, another address of it.
    pub fn go_on(&mut self) {
        self.0 = self.0.wrapping_add(1);
    }

    /// A URL to connect to for `coordinator`, `host:port` or a URL. A name that cannot be resolved, or a URL, is given
    /// as it is: whoever connects says what is wrong with it.
    pub async fn url(&self, coordinator: &str) -> String {
        if coordinator.contains("://") {
            return coordinator.to_owned();
        }
        let found = tokio::net::lookup_host(coordinator).await.map(Iterator::collect).unwrap_or_default();
        let address = self.one_of(found).map_or(coordinator.to_owned(), |address| address.to_string());
        format!("http://{address}")
    }

    fn one_of(&self, mut found: Vec<SocketAddr>) -> Option<SocketAddr> {
        found.sort_unstable();
        found.dedup();
        let turn = self.0.checked_rem(found.len())?;
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
        let mut turns = Turns(4);
        let mut seen = Vec::new();
        for _ in 0..3 {
            seen.push(turns.one_of(addresses.clone()).unwrap());
            turns.go_on();
        }
        seen.sort_unstable();
        assert_eq!(seen, [addresses[1], addresses[2], addresses[0]]);
        assert_eq!(turns.one_of(vec![]), None);
        assert_eq!(turns.url("127.0.0.1:80").await, "http://127.0.0.1:80");
        assert_eq!(turns.url("http://h/").await, "http://h/");
        assert_eq!(turns.url("no port").await, "http://no port", "refused where it is connected to");
    }
}

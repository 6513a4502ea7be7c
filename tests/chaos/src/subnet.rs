//! Addresses that no other test has meanwhile, in this process or another: all of 127/8 leads here.

use std::fmt;
use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

/// The first three numbers of addresses, as `127.1.2`. Whoever has it listens at its last address, so that others see
/// that it is taken, until it is dropped.
#[derive(Debug)]
pub struct Subnet {
    numbers: String,
    _sign: TcpListener,
}

impl Subnet {
    /// One that is free.
    pub fn take() -> Subnet {
        static TRIED: AtomicU32 = AtomicU32::new(0);
        loop {
            // Processes begin apart, so that most find a free one at once.
            let number = (16 * std::process::id()).wrapping_add(TRIED.fetch_add(1, Ordering::Relaxed));
            let numbers = format!("127.{}.{}", 1 + number / 256 % 250, number % 256);
            if let Ok(_sign) = TcpListener::bind(format!("{numbers}.254:7399")) {
                return Subnet { numbers, _sign };
            }
        }
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_two_have_one_at_a_time() {
        let all: Vec<Subnet> = (0..40).map(|_| Subnet::take()).collect();
        let different: BTreeSet<String> = all.iter().map(Subnet::to_string).collect();
        assert_eq!(different.len(), all.len());
    }
}

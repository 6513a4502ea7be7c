//! Which names a listener answers to.
//!
//! An attacker's page can point its own name at the listener's address (DNS rebinding): then the browser takes the
//! answers for the attacker's own, and lets the page read and change anything. It cannot change the `Host` that the
//! browser sends: the attacker's name. So a listener answers only to names that no attacker can have: loopback, the
//! address at which the connection arrived, and those that an operator configured.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

/// The names by which a listener may be asked, in small letters.
#[derive(Debug, Clone, Default)]
pub struct Hosts {
    /// The names: alone, with any port, or as `host:port`.
    names: BTreeSet<String>,
    /// The operator configured `*`.
    any: bool,
}

impl Hosts {
    /// The operator's names, each a host or `host:port`; `*` for all.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Hosts {
        let mut hosts = Hosts::default();
        names.into_iter().for_each(|name| hosts.add(name));
        hosts
    }

    fn add(&mut self, name: &str) {
        match name.trim() {
            "*" => self.any = true,
            "" => {}
            name => {
                self.names.insert(name.to_ascii_lowercase());
            }
        }
    }

    /// One more address of the listener's own: its host, with any port.
    pub fn add_announced(&mut self, address: &str) {
        if let Some((host, _)) = split(address) {
            self.add(host);
        }
    }

    /// Whether the listener answers to `authority` (`host` or `host:port`) on a connection that arrived at `local`.
    pub fn allow(&self, authority: &str, local: IpAddr) -> bool {
        if self.any {
            return true;
        }
        let Some((host, _)) = split(authority) else { return false };
        if let Some(ip) = literal(host) {
            let ip = ip.to_canonical();
            if ip.is_loopback() || ip == local.to_canonical() {
                return true;
            }
        }
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        // Names below `localhost` are loopback by RFC 6761, for browsers too.
        host == "localhost"
            || host.ends_with(".localhost")
            || self.names.contains(&host)
            || self.names.contains(&authority.to_ascii_lowercase())
    }
}

fn literal(host: &str) -> Option<IpAddr> {
    match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(inner) => inner.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        None => host.parse().ok(),
    }
}

/// Host and port; none if it is no authority.
fn split(authority: &str) -> Option<(&str, Option<&str>)> {
    let (host, port) = match authority.rfind(']') {
        Some(end) => match authority[end + 1..].strip_prefix(':') {
            Some(port) => (&authority[..=end], Some(port)),
            None if authority.len() == end + 1 => (authority, None),
            None => return None,
        },
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let is_port = port.is_none_or(|port| port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit()));
    let is_host = !host.is_empty()
        && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._[]:".contains(&byte));
    (is_port && is_host).then_some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(hosts: &Hosts, authority: &str) -> bool {
        hosts.allow(authority, "10.0.0.7".parse().unwrap())
    }

    #[test]
    fn loopback_the_address_of_the_connection_and_what_was_said_are_answered_to() {
        let mut hosts = Hosts::new(["Search.Example.com", "other.example:8080"]);
        hosts.add_announced("node-3.internal:7410");
        for name in [
            "127.0.0.1",
            "127.0.0.1:7400",
            "127.8.9.10:1",
            "[::1]:7400",
            "localhost",
            "LOCALHOST:7400",
            "localhost.",
            "d1.localhost:80",
            "10.0.0.7:7400",
            "[::ffff:10.0.0.7]:1",
            "search.example.com",
            "SEARCH.example.COM:443",
            "other.example:8080",
            "node-3.internal",
            "node-3.internal:99",
        ] {
            assert!(allowed(&hosts, name), "{name}");
        }
        for name in [
            "",
            ":80",
            "evil.example",
            "evil.example:7400",
            "10.0.0.8",
            "other.example",
            "localhost.evil.example",
            "evillocalhost",
            "127.0.0.1.evil.example",
            "user@127.0.0.1",
            "127.0.0.1:x",
            "[::1",
            "[::1]x",
            "127.1",
        ] {
            assert!(!allowed(&hosts, name), "{name}");
        }
        assert!(allowed(&Hosts::new(["*"]), "evil.example"));
    }

    proptest::proptest! {
        #[test]
        fn a_name_that_was_not_said_is_not_answered_to(name in "[a-z0-9.-]{1,20}\\.example(:[0-9]{1,5})?") {
            proptest::prop_assert!(!allowed(&Hosts::new(["a.test"]), &name));
        }
    }
}

//! The headers of HTTP requests that routers and nodes send each other, and those that neither passes on.

use http::header::{self, HeaderMap, HeaderName};

/// On a request: answer it or refuse it, but do not send it on.
pub const HOP: HeaderName = HeaderName::from_static("partage-hop");
/// On a request: the sequence of the map that it was sent by. On a 421: that of the node which refuses.
pub const GENERATION: HeaderName = HeaderName::from_static("partage-generation");
/// On an answer: the epoch in which it was given.
pub const EPOCH: HeaderName = HeaderName::from_static("partage-epoch");
/// On an answer: the node that gave it.
pub const NODE: HeaderName = HeaderName::from_static("partage-node");
/// On an answer: the node that the request was sent on to, because the one that was asked is not the owner.
pub const PROXIED_TO: HeaderName = HeaderName::from_static("partage-proxied-to");
/// On a 421: `host:port` of the owner.
pub const OWNER_ADDRESS: HeaderName = HeaderName::from_static("partage-owner-address");
/// On a 421: the name of the owner.
pub const OWNER_NODE: HeaderName = HeaderName::from_static("partage-owner-node");
/// On a refused worker's stream: `host:port` of the coordinator that leads.
pub const LEADER: HeaderName = HeaderName::from_static("partage-leader");
/// On a request to a coordinator: another one has passed it on, for want of the lead.
pub const FORWARDED_BY: HeaderName = HeaderName::from_static("partage-forwarded-by");
/// On a request that changes something, with the value `1`: no page of another site has sent it, since browsers do not
/// let those send it unasked.
pub const REQUEST: HeaderName = HeaderName::from_static("partage-request");
/// On a request of a router or a node: the `host` that the client asked for.
pub const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
/// On a request to a table that changes something: the client's name for it. What has a name may be sent again: it is carried out
/// once, and each repetition gets the first answer.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The addresses of the client and of the proxies between.
pub const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Whether a header is about one connection only (RFC 9110, 7.6.1), so that no proxy passes it on.
/// `transfer-encoding` among them: each connection has its own statement of the length of a body.
fn is_hop_by_hop(name: &HeaderName) -> bool {
    *name == header::CONNECTION
        || *name == header::TRANSFER_ENCODING
        || *name == header::TE
        || *name == header::TRAILER
        || *name == header::UPGRADE
        || *name == KEEP_ALIVE
        || *name == PROXY_CONNECTION
        || *name == header::PROXY_AUTHENTICATE
        || *name == header::PROXY_AUTHORIZATION
}

/// Takes out what is about one connection, also what `connection` names.
pub fn drop_hop_by_hop(headers: &mut HeaderMap) {
    if !headers.keys().any(is_hop_by_hop) {
        return;
    }
    let values: Vec<_> = headers.get_all(header::CONNECTION).iter().cloned().collect();
    for name in values.iter().filter_map(|value| value.to_str().ok()).flat_map(|names| names.split(',')) {
        // What frames the message or says whom it is for is not to be dropped at a client's word.
        match name.trim().parse::<HeaderName>() {
            Ok(name) if name != header::HOST && name != header::CONTENT_LENGTH => headers.remove(name),
            Ok(_) | Err(_) => None,
        };
    }
    let gone: Vec<HeaderName> = headers.keys().filter(|name| is_hop_by_hop(name)).cloned().collect();
    for name in gone {
        headers.remove(name);
    }
}

/// A header that is a number.
pub fn number(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.trim_start_matches('g').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_about_the_connection_is_dropped_and_the_rest_stays() {
        let mut headers = HeaderMap::new();
        let all = [
            ("connection", "close, X-Mine, host, content-length"),
            ("x-mine", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("host", "h"),
            ("content-length", "3"),
            ("x-yours", "2"),
        ];
        for (name, value) in all {
            headers.insert(HeaderName::from_static(name), value.parse().unwrap());
        }
        drop_hop_by_hop(&mut headers);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["content-length", "host", "x-yours"]);
    }
}

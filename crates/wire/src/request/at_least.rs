//! How far a dataset has come, as clients, routers and nodes tell each other: so that a client never sees an earlier
//! version after a later one, whichever node it asks.
//!
//! ```text
//! partage-at-least: 7 20240102       on a request: by order 7 version 20240102, or later
//! partage-version: 20240102          on an answer
//! partage-order: 7                   on an answer, unless it is 0: no order of an operator was ever given
//! ```
//!
//! A rollback is an order with a higher number than all before, so the version that is lower by name is the later one.

use http::HeaderMap;
use http::header::HeaderName;
use partage_service::dataset::VersionName;
use partage_service::dataset::node::Served;

/// On a request: nothing that is behind this.
pub const AT_LEAST: HeaderName = HeaderName::from_static("partage-at-least");
/// On an answer: its version.
pub const VERSION: HeaderName = HeaderName::from_static("partage-version");
/// On an answer: the order of an operator by which the version is served.
pub const ORDER: HeaderName = HeaderName::from_static("partage-order");

/// As it is written.
pub fn text(served: &Served) -> String {
    format!("{} {}", served.order, served.version)
}

/// What was written; nothing of what was not.
pub fn read(text: &[u8]) -> Option<Served> {
    let (order, version) = std::str::from_utf8(text).ok()?.split_once(' ')?;
    Some(Served { order: order.parse().ok()?, version: VersionName::new(version).ok()? })
}

/// How far the node is that gave this answer.
pub fn of_answer(headers: &HeaderMap) -> Option<Served> {
    let text = |name: HeaderName| headers.get(name)?.to_str().ok();
    let order = text(ORDER).map_or(Some(0), |order| order.parse().ok())?;
    Some(Served { order, version: VersionName::new(text(VERSION)?).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        for (order, version) in [(0, "v1"), (7, "20240102"), (u64::MAX, "a_b-c")] {
            let served = Served { order, version: VersionName::new(version).unwrap() };
            assert_eq!(read(text(&served).as_bytes()), Some(served));
        }
        for strange in ["", "v1", "7", "7 ", "x v1", "-1 v1", "7 v 1", "7 ../v1", "18446744073709551616 v1"] {
            assert_eq!(read(strange.as_bytes()), None, "{strange:?}");
        }
        assert_eq!(read(b"7 \xff"), None);
    }

    #[test]
    fn an_answer_tells_how_far_its_node_is() {
        let mut headers = HeaderMap::new();
        assert_eq!(of_answer(&headers), None);
        headers.insert(VERSION, "v1".parse().unwrap());
        assert_eq!(of_answer(&headers).map(|served| text(&served)).as_deref(), Some("0 v1"));
        headers.insert(ORDER, "9".parse().unwrap());
        assert_eq!(of_answer(&headers).map(|served| text(&served)).as_deref(), Some("9 v1"));
    }
}
